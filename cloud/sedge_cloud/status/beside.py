"""What runs beside the coordinator's loop, each in a thread of its own: the status page and the notices."""

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager

from sedge_cloud.config import CloudConfig
from sedge_cloud.status.notices import Notifier
from sedge_protocol.errors import ConfigError


@contextmanager
def beside(cloud: CloudConfig) -> Generator[None]:
    """Serve the page and send notices, where cloud.toml asks for them. Raises ``ConfigError``."""
    with ExitStack() as stack:
        if cloud.http.listen is not None:
            try:
                from sedge_cloud.status.server import StatusServer  # comes with an extra
            except ModuleNotFoundError as exc:
                expected = "its packages: pip install 'sedge-fl[http]'"
                raise ConfigError("http", f"no {exc.name}", expected) from exc
            stack.enter_context(closing(StatusServer(cloud))).start()
        if cloud.notify.wanted:
            stack.enter_context(closing(Notifier(cloud))).start()
        yield
