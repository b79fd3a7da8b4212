"""[store] and [blobs] in cloud.toml: where the rows and the blobs are, if not in the state folder."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from sedge_protocol.errors import ConfigError, LinkError
from sedge_protocol.host.toml import named_text
from sedge_protocol.host.web import parse, shown

# The same as the first part of the URL's text: what libpq and obstore take.
DATABASES = ("postgresql", "postgres")
OBJECT_STORES = ("s3", "file")
# In ``public``: the store's own URLs, each good for a while; and where a blob's name belongs.
PRESIGNED, NAME = "presigned", "{name}"


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[store]: the database of the rows (the extra ``stores``)."""

    url: str | None = None
    """postgresql://user@host:port/database; by default SQLite in ``state_dir``."""
    password_file: str | None = None
    """A file with the password of that user. By default what libpq finds, as in ~/.pgpass."""

    def check(self, where: str) -> None:
        """Raise ``ConfigError`` for a URL that is none."""
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
        """The password; None without a file. Raises ``ConfigError``."""
        path = self.password_file
        return path and named_text(path, "store.password_file").strip()


class BlobsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[blobs]: the object store of the blobs (the extra ``stores``)."""

    url: str | None = None
    """s3://bucket/prefix, or file:///folder; by default ``state_dir``."""
    endpoint: str | None = None
    """The server, http:// or https://, where it is not Amazon's."""
    region: str | None = None
    """The bucket's region."""
    key_id: str | None = None
    """The access key's name. By default what the environment says, or the machine's own role."""
    secret_file: str | None = None
    """A file with the access key itself."""
    cache_mb: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    """How much of the disk below ``state_dir`` copies of blobs may take."""
    public: str | None = None
    """Where devices find large blobs: https://host/path, or presigned for URLs of the store's own."""

    def place(self, sha256: bytes) -> str:
        """The public URL of a blob."""
        assert self.public is not None
        if NAME in self.public:
            return self.public.replace(NAME, sha256.hex())
        return f"{self.public.rstrip('/')}/{sha256.hex()}"

    def check(self, where: str) -> None:
        """Raise ``ConfigError`` for a URL that is none, and for half a key."""
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
        expected = f"https://host/path, or with {NAME} where a blob's name belongs"
        if self.public == PRESIGNED:
            if self.url is None or not self.url.startswith("s3:"):
                raise ConfigError("blobs.public", self.public, "blobs.url = s3://…", where)
            return
        try:
            parse(self.place(bytes(32)))
        except LinkError as exc:
            raise ConfigError("blobs.public", shown(self.public), expected, where) from exc

    def secret(self) -> str | None:
        """The access key; None without a file. Raises ``ConfigError``."""
        path = self.secret_file
        return path and named_text(path, "blobs.secret_file").strip()


def _look(key: str, url: str, where: str) -> tuple[str, bool]:
    """A URL's scheme, and whether it holds a password."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.password is not None
    except ValueError as exc:
        raise ConfigError(key, url, f"a URL ({exc})", where) from exc
