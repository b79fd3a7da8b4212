"""``device rotate``: who is asked, and a line for each that has yet to change."""

from pathlib import Path

import msgspec
from tests.cloud.helper import a_hello
from tests.cloud.test_cloud_main import CAPSYS

from sedge_cloud.__main__ import main
from sedge_cloud.facts.devices import versions_of
from sedge_cloud.store.opening import open_folder
from sedge_protocol import VERSION

OLD = b"o" * 32


def begin(folder: Path, reload: bool = True) -> list[str]:
    """A fleet: a and b can change, c is too old, d has never said hello, e is revoked."""
    assert main(["init", str(folder), "--fleet", "test", "--url", "mqtt://127.0.0.1:1"]) == 0
    config = folder / "cloud.toml"
    if reload:
        config.write_text(config.read_text().replace("[broker]\n", '[broker]\nreload = "true"\n'))
    store = open_folder(folder / "state")
    store.add_devices(dict.fromkeys("abcde", OLD))
    for name, words in (("a", ("renew",)), ("b", ("renew",)), ("c", ())):
        row = store.device(name)
        assert row is not None
        hello = a_hello("x", codecs=words, version="0.0.9")
        store.save_hello(row, 1, msgspec.msgpack.encode(hello))
    store.revoke_device("e")
    store.close()
    return ["-c", str(config), "device", "rotate"]


def test_who_has_yet_to_change(tmp_path: Path, capsys: CAPSYS) -> None:
    rotate = begin(tmp_path)
    assert main(rotate) == 0
    assert "no device still has to change its secret" in capsys.readouterr().out
    assert main([*rotate, "a", "b", "c", "d", "e"]) == 0
    said = capsys.readouterr().out
    assert "asked for new secrets: 4 devices" in said
    assert "c: its agent 0.0.9 cannot change its secret: upgrade it" in said
    assert "token add --device c" in said
    store = open_folder(tmp_path / "state")
    store.offer_secret("b", b"p", b"n" * 32)
    assert main(rotate) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == {"a", "b", "c", "d"}
    assert lines["a"].startswith("is offline; it gets a new secret when it comes back")
    assert lines["b"].startswith("has its new secret; the broker has yet to get its password")
    assert lines["c"].startswith("its agent 0.0.9 cannot change")
    # `device accept` is what root does where the service may not write the broker's files.
    before = (tmp_path / "broker-passwords").read_text()
    assert main(["-c", str(tmp_path / "cloud.toml"), "device", "accept"]) == 0
    assert (tmp_path / "broker-passwords").read_text() != before
    capsys.readouterr()
    assert main(rotate) == 0
    assert "b: has its new secret but has yet to connect with it" in capsys.readouterr().out
    store.close()


def test_a_broker_whose_passwords_are_elsewhere(tmp_path: Path, capsys: CAPSYS) -> None:
    rotate = begin(tmp_path, reload=False)
    assert main([*rotate, "a"]) == 2
    assert "broker.reload" in capsys.readouterr().err
    assert main([*rotate, "a", "--where", "site=lab"]) == 2
    assert "device ids or --where, not both" in capsys.readouterr().err


def test_agents_that_are_behind(tmp_path: Path, capsys: CAPSYS) -> None:
    """``device list`` says how many; revoked devices do not count."""
    config = begin(tmp_path)[1]
    store = open_folder(tmp_path / "state")
    row = store.device("b")
    assert row is not None
    hello = a_hello("y", version=f"java {VERSION}")
    store.save_hello(row, 2, msgspec.msgpack.encode(hello))
    expected = f"agents: 2 on 0.0.9 (behind), 1 on java {VERSION}; this coordinator is {VERSION}"
    assert main(["-c", config, "device", "list"]) == 0
    assert expected in capsys.readouterr().out
    counts = store.agent_versions()  # as a large fleet counts them
    assert counts == {"0.0.9": 2, f"java {VERSION}": 1}
    store.revoke_device("a")
    store.revoke_device("c")
    assert store.agent_versions() == {f"java {VERSION}": 1}
    assert main(["-c", config, "device", "list"]) == 0
    assert "behind" not in capsys.readouterr().out
    known = versions_of({"0.0.9": 1, "9.0.0": 1, "mine": 1})
    assert [version.behind for version in known] == [True, False, False]
    store.close()
