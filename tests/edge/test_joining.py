"""``sedge-edge join``: files from a line; the same that ``device add`` writes."""

import io
from pathlib import Path

import msgspec
import pytest

from sedge_edge.__main__ import main
from sedge_edge.asking import Asking
from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.enrolment import Enrolment, Token
from sedge_protocol.wire.frame import Frame, Kind, seal
from sedge_protocol.wire.joining import Agreement, key_name, private_key, public_key
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Joined, encode_body

GIVEN = Enrolment("pi-1", "home", "mqtts://broker.example", bytes(range(32)).hex(), "PEM\n")


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_line_becomes_a_device(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    by_hand: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"  {GIVEN.join_text()}\n"))
    assert main(["join"] if by_hand else ["join", GIVEN.join_text()]) == 0
    config = load_config(tmp_path / "pi-1" / "edge.toml")
    assert (config.device, config.fleet, config.state_dir) == (
        "pi-1",
        "home",
        tmp_path / "pi-1" / "state",
    )
    settings = config.broker_settings()
    assert settings.url == GIVEN.url and settings.ca_file == str(tmp_path / "pi-1" / "ca.pem")
    assert (tmp_path / "pi-1" / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "pi-1").stat().st_mode & 0o777 == 0o700
    assert "cd pi-1 && sedge-edge doctor" in capsys.readouterr().out
    # A join that was cut off before its last file goes on; a second device does not overwrite the first.
    (tmp_path / "pi-1" / "secret").unlink()
    assert main(["join", GIVEN.join_text()]) == 0
    capsys.readouterr()
    # So does one in the folder that `device add --join` wrote, where everything is there.
    assert main(["join", GIVEN.join_text()]) == 0
    assert "pi-1 of the fleet home: already in pi-1" in capsys.readouterr().out
    other = msgspec.structs.replace(GIVEN, device="pi-2").join_text()
    assert main(["join", other, "--out", "pi-1", "--replace"]) == 2
    assert "expected a folder without a device" in capsys.readouterr().err
    # The same device with a new secret, as of `device reissue`: its edge.toml stays as it was made.
    (tmp_path / "pi-1" / "edge.toml").write_text(
        (tmp_path / "pi-1" / "edge.toml").read_text() + "#"
    )
    again = msgspec.structs.replace(GIVEN, secret="00" * 32, certificate="NEW\n").join_text()
    assert main(["join", again]) == 2
    assert "expected `sedge-edge join --replace`, to give pi-1" in capsys.readouterr().err
    assert main(["join", again, "--replace"]) == 0
    assert (tmp_path / "pi-1" / "secret").read_text() == "00" * 32 + "\n"
    assert (tmp_path / "pi-1" / "edge.toml").read_text().endswith("#")
    assert (tmp_path / "pi-1" / "device.pem").read_text() == "NEW\n"


def test_for_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    assert main(["join", GIVEN.join_text(), "--service", "--out", str(folder)]) == 0
    text = (folder / "edge.toml").read_text()
    assert 'state_dir = "/var/lib/sedge"' in text and "$CREDENTIALS_DIRECTORY" in text
    assert "systemctl enable --now sedge-edge" in capsys.readouterr().out


def test_the_authority_of_another_fleet_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ca.pem").write_text("of another")
    assert main(["join", GIVEN.join_text(), "--out", str(tmp_path)]) == 2
    assert "ca.pem" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["ca.pem"]


def test_a_url_cannot_add_keys(tmp_path: Path) -> None:
    """Whoever wrote the line decides on the broker, and on nothing else in edge.toml."""
    for number, url in enumerate(
        ('mqtt://h"]\ndata.train="evil:load', "mqtt://h\x7f", 'mqtt://h"]x')
    ):
        text = Enrolment("pi-1", "home", url, GIVEN.secret).join_text()
        main(["join", text, "--out", str(tmp_path / str(number))])
        config = tmp_path / str(number) / "edge.toml"
        assert not config.exists() or load_config(config).data.train.endswith("train.npz")


def test_a_line_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", GIVEN.join_text()[:-9]]) == 2
    said = capsys.readouterr().err
    assert "join text: cut off or damaged" in said and GIVEN.secret[:8] not in said


def test_only_the_coordinators_answer_to_this_device_is_heard() -> None:
    """Several devices may join by one token, and whoever has its line can seal what its coordinator can."""
    private, keys = private_key(bytes(32)), DeviceKeys.of(bytes(32))
    token = Token("t1", "home", "mqtt://127.0.0.1:9", "00" * 32, public_key(private).hex())
    mine, other = (Asking(token, "pi-1", bytes([number]) * 32) for number in (1, 2))
    agreement = Agreement.of(private, mine.point, mine.point, "home", "t1")
    assert mine.secret == agreement.secret != other.secret

    def heard(by: Asking, said: Joined, key: bytes = keys.down) -> Joined | None:
        return by.answer(seal(Frame(Kind.JOINED, encode_body(said), 1, 1), by.down, key))

    name = key_name(mine.point)
    accepted = Joined(name, "accepted", "pi-9", agreement.answers("pi-9"))
    for said in (accepted, Joined(name, "pending", "pi-1"), Joined(name, "refused", detail="no")):
        assert heard(mine, said) == said
        assert heard(other, said) is None and heard(mine, said, keys.up) is None
    assert heard(mine, msgspec.structs.replace(accepted, device="pi-8")) is None
    assert mine.answer(mine.question()[1]) is None
    no_point = msgspec.structs.replace(token, point="04" + 64 * "00")
    with pytest.raises(ConfigError, match=r"token: .*not a point.*, expected the whole line"):
        Asking(no_point, "pi-1", bytes(32)).question()


def test_ctrl_c_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sedge_edge.asking.MqttLink.step", interrupted)
    point = public_key(private_key(bytes(32))).hex()
    line = Token("t1", "home", "mqtt://127.0.0.1:9", "00" * 32, point).join_text()
    assert main(["join", line, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "sedge-edge: interrupted\n"
    assert (tmp_path / "joining").exists()  # the same line goes on
