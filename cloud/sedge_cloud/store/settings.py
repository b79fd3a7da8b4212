"""[store] and [blobs] in cloud.toml: where rows and blobs are stored, if not in the state folder."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from sedge_protocol.errors import ConfigError, LinkError
from sedge_protocol.host.toml import named_text
from sedge_protocol.host.web import parse, shown

# The prefix of a coordinator's user name at the broker; a device's user name is its id.
COORDINATOR = "coordinator-"
# The accepted URL schemes of databases and of object stores.
DATABASES = ("postgresql", "postgres")
OBJECT_STORES = ("s3", "file")
# In ``public``: "presigned" stands for URLs of the store itself, and {name} for a blob's name.
PRESIGNED, NAME = "presigned", "{name}"


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[store]: where the coordinator's database is (pip install 'sedge-fl[stores]').

    docs/stores.md explains how to move there.
    """

    url: str | None = None
    """PostgreSQL database for this fleet only, as postgresql://user@host:port/database; by default,
    SQLite in ``state_dir``."""
    password_file: str | None = None
    """File with the database user's password; by default, libpq finds it, for example in ~/.pgpass."""

    def check(self, where: str) -> None:
        """Raise ``ConfigError`` if the URL is invalid."""
        if self.url is None:
            if self.password_file is not None:
                raise ConfigError("store.password_file", self.password_file, "store.url", where)
            return
        scheme, has_password = _look("store.url", self.url, where)
        if scheme not in DATABASES or has_password:
            expected = "postgresql://user@host/database, with the password in store.password_file"
            shown = f"{scheme}://…" if has_password else self.url
            raise ConfigError("store.url", shown, expected, where)

    def password(self) -> str | None:
        """Read the password; None if no file is configured. Raises ``ConfigError``."""
        path = self.password_file
        return path and named_text(path, "store.password_file").strip()


class BlobsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[blobs]: where models and updates are (pip install 'sedge-fl[stores]').

    With ``public``, large models and frozen data need not pass through the broker: a web server or CDN
    serves the bucket, or the folder blobs in ``state_dir``. {name}, anywhere in the address, stands for the
    blob's name. "presigned" gives devices URLs of the bucket itself, each valid for a day (docs/stores.md).
    """

    url: str | None = None
    """Bucket and prefix for this fleet only, as s3://bucket/prefix, or file:///folder; by default, files
    in ``state_dir``."""
    endpoint: str | None = None
    """Address of the S3 server, http:// or https://; by default, Amazon's."""
    region: str | None = None
    """Region of the bucket, such as ``eu-central-1``."""
    key_id: str | None = None
    """Name of the access key; by default, credentials come from the environment or the machine's role."""
    secret_file: str | None = None
    """File with the secret of the access key ``key_id``."""
    cache_mb: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    """Megabytes of disk below ``state_dir`` for copies of blobs, so that each is fetched only once."""
    public: str | None = None
    """Web address where devices download large blobs by name, as https://host/path, or ``presigned``; by
    default, everything is sent over MQTT."""

    def place(self, sha256: bytes) -> str:
        """Return the public URL of a blob."""
        assert self.public is not None
        if NAME in self.public:
            return self.public.replace(NAME, sha256.hex())
        return f"{self.public.rstrip('/')}/{sha256.hex()}"

    def check(self, where: str) -> None:
        """Raise ``ConfigError`` if a URL is invalid or the access key is incomplete."""
        self._check_public(where)
        if self.url is None:
            for key in ("endpoint", "region", "key_id", "secret_file"):
                if getattr(self, key) is not None:
                    raise ConfigError(f"blobs.{key}", getattr(self, key), "blobs.url", where)
            return
        scheme, has_password = _look("blobs.url", self.url, where)
        if scheme not in OBJECT_STORES or has_password:
            expected = "s3://bucket/prefix, or file:///folder"
            raise ConfigError("blobs.url", self.url, expected, where)
        if self.endpoint is not None and urlsplit(self.endpoint).scheme not in ("http", "https"):
            expected = "http://host:port or https://host"
            raise ConfigError("blobs.endpoint", self.endpoint, expected, where)
        if (self.key_id is None) != (self.secret_file is None):
            found = self.key_id or self.secret_file
            raise ConfigError("blobs.key_id", found, "both key_id and secret_file", where)

    def _check_public(self, where: str) -> None:
        if self.public is None:
            return
        expected = f"https://host/path, optionally with {NAME} where a blob's name goes"
        if self.public == PRESIGNED:
            if self.url is None or not self.url.startswith("s3:"):
                raise ConfigError("blobs.public", self.public, "blobs.url = s3://…", where)
            return
        try:
            parse(self.place(bytes(32)))
        except LinkError as exc:
            raise ConfigError("blobs.public", shown(self.public), expected, where) from exc

    def secret(self) -> str | None:
        """Read the access key; None if no file is configured. Raises ``ConfigError``."""
        path = self.secret_file
        return path and named_text(path, "blobs.secret_file").strip()


def _look(key: str, url: str, where: str) -> tuple[str, bool]:
    """Return a URL's scheme, and whether it contains a password."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.password is not None
    except ValueError as exc:
        raise ConfigError(key, url, f"a URL ({exc})", where) from exc
