"""Where a store is, as cloud.toml says; test_cloud_config.py has what may be wrong with that."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.cloud.stores import on_servers
from tools.bench.parts.servers import Servers

from sedge_cloud.config import load_cloud
from sedge_cloud.store.opening import is_shared, open_store
from sedge_protocol.errors import ConfigError, LinkError, SedgeError, StorageError
from sedge_protocol.host.web import Span
from sedge_protocol.wire.transfer import describe


def written(folder: Path, text: str) -> Path:
    path = folder / "cloud.toml"
    path.write_text(f'fleet = "bench"\n{text}')
    return path


def test_files_with_secrets_are_beside_the_configuration(tmp_path: Path) -> None:
    text = (
        '[store]\nurl = "postgresql://u@127.0.0.1:1/d"\npassword_file = "database"\n'
        '[blobs]\nurl = "s3://b/p"\nkey_id = "k"\nsecret_file = "objects"\n'
    )
    cloud = load_cloud(written(tmp_path, text))
    with pytest.raises(ConfigError, match=rf"store\.password_file: found '{tmp_path}/database'"):
        cloud.store.password()
    (tmp_path / "database").write_text("one\n")
    (tmp_path / "objects").write_text("two\n")
    assert (cloud.store.password(), cloud.blobs.secret()) == ("one", "two")
    assert is_shared(cloud)


@pytest.mark.parametrize(
    ("public", "place"),
    [
        ("https://cdn.example/home/", "https://cdn.example/home/NAME"),
        ("https://cdn.example/{name}.bin?token=1", "https://cdn.example/NAME.bin?token=1"),
    ],
)
def test_where_a_blob_is_public(tmp_path: Path, public: str, place: str) -> None:
    cloud = load_cloud(written(tmp_path, f'[blobs]\npublic = "{public}"'))
    assert cloud.blobs.place(bytes(32)) == place.replace("NAME", "00" * 32)
    assert not is_shared(cloud)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "sedge_cloud.store.postgres", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    cloud = load_cloud(written(tmp_path, '[store]\nurl = "postgresql://u@h/d"'))
    with pytest.raises(ConfigError, match=r"needs psycopg, .*: pip install 'sedge-fl\[stores\]'"):
        open_store(cloud)


def lines(servers: Servers, folder: Path, **changes: str) -> str:
    """[store] and [blobs] for a new store on the servers, but for these."""
    rows, objects = servers.place(folder)
    names = ("url", "endpoint", "region", "key_id", "secret_file")
    keys = {name: getattr(objects, name) for name in names} | changes
    blobs = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return f'[store]\nurl = "{rows.url}"\n[blobs]\n{blobs}'


@on_servers
def test_both_places_of_a_configuration_are_used(tmp_path: Path, servers: Servers) -> None:
    public = lines(servers, tmp_path / "state", public="presigned")
    store = open_store(load_cloud(written(tmp_path, public)))
    store.add_device("a", bytes(32))
    data = bytes(range(256)) * 40
    sha256 = store.blobs.write(data)
    store.blobs.settle()
    assert store.public is not None
    span = Span(store.public(sha256), describe(data, 4096), 1, 3)  # as a device asks, without a key
    assert dict(span.chunks()) == {1: data[4096:8192], 2: data[8192:]} and span.ranged
    with pytest.raises(LinkError, match="answered 403"):
        list(Span(store.public(sha256).partition("?")[0], describe(data), 0, 1).chunks())
    other = open_store(load_cloud(written(tmp_path, lines(servers, tmp_path / "state"))))
    assert [row.device for row in other.devices()] == ["a"] and other.blobs.has(sha256)
    assert not (tmp_path / "state" / "sedge.sqlite").exists()
    assert not (tmp_path / "state" / "blobs").exists()


@on_servers
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "s3://nowhere/p"}, "NoSuchBucket"),
        ({"key_id": "stranger"}, "403"),
        ({"secret_file": "wrong"}, "403"),
        ({"secret_file": "absent"}, r"blobs\.secret_file: found .*absent"),
        ({"endpoint": "http://127.0.0.1:1"}, "127.0.0.1:1/"),
    ],
)
def test_a_wrong_bucket_is_one_line(
    tmp_path: Path, servers: Servers, changes: dict[str, str], said: str
) -> None:
    (tmp_path / "wrong").write_text("not-the-secret-of-this-key")
    cloud = load_cloud(written(tmp_path, lines(servers, tmp_path / "state", **changes)))
    with pytest.raises(SedgeError, match=said) as caught:
        open_store(cloud)
    assert isinstance(caught.value, StorageError | ConfigError)
    assert len(str(caught.value).splitlines()) == 1 and "not-the-secret" not in str(caught.value)


def test_another_fleets_store_is_refused(tmp_path: Path) -> None:
    cloud = load_cloud(written(tmp_path, ""))
    open_store(cloud).close()
    open_store(cloud).close()
    other = msgspec.structs.replace(cloud, fleet="other")
    with pytest.raises(ConfigError) as caught:
        open_store(other)
    place = tmp_path / "state" / "sedge.sqlite"
    said = f"fleet: found 'other', expected 'bench', which owns the store {place}"
    assert str(caught.value) == said
    assert [*place.parent.glob("sedge.sqlite*")] == [place], "it is still open"


@on_servers
def test_a_replica_is_refused_in_one_line(tmp_path: Path, servers: Servers) -> None:
    cloud = load_cloud(written(tmp_path, lines(servers, tmp_path / "state")))
    name = str(cloud.store.url).rpartition("/")[2]
    servers.postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StorageError, match="session is read-only") as caught:
        open_store(cloud)
    assert len(str(caught.value).splitlines()) == 1
