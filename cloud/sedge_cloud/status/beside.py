"""What runs beside the coordinator's loop, each in a thread: status page, notices, Home Assistant."""

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager

from sedge_cloud.config import CloudConfig
from sedge_cloud.status.home_assistant import HomeAssistant
from sedge_cloud.status.notices import Notifier
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.mqtt import BrokerSettings


@contextmanager
def beside(cloud: CloudConfig, settings: BrokerSettings) -> Generator[None]:
    """Do what cloud.toml asks for; ``settings`` are the coordinator's. Raises ``ConfigError``."""
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
        if cloud.home_assistant.enabled:
            stack.enter_context(closing(HomeAssistant(cloud, settings))).start()
        yield
