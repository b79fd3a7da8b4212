"""Sets up the threads alongside the coordinator's loop: page, problem log, notices, Home Assistant."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from sedge_cloud.admin.joining import WANTED, is_due, may_settle, settle
from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.snapshot import FRESH_S, Snapshot
from sedge_cloud.outlets.home_assistant import HomeAssistant
from sedge_cloud.outlets.notices import Notices
from sedge_cloud.outlets.problem_log import ProblemLog
from sedge_cloud.outlets.supervisor import Supervised, watcher
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_store
from sedge_protocol.errors import NotInstalled
from sedge_protocol.host.mqtt import BrokerSettings

# Seconds between readings, for the log and for notices. Both report a problem once two readings in a row
# contain it.
LOG_S, NOTICE_S = FRESH_S, 10.0
# How often broker accounts are created for the devices that are waiting for one.
ACCOUNTS_S = 1.0


def snapshot_of(cloud: CloudConfig) -> Snapshot:
    """Return a cache for the fleet's facts that all threads share."""

    def open_reader() -> Reader:
        folder = Path(cloud.state_dir)
        return Reader(cloud.fleet, folder, open_store(cloud, any_thread=True))

    return Snapshot(open_reader)


def accounts(cloud: CloudConfig) -> Callable[[], None]:
    """Return a function that creates accounts for joining devices, if this process may write the files.

    Otherwise the function touches a file in the state folder, which makes systemd's
    sedge-cloud-accounts.path have root create them.
    """
    opened: list[Store] = []

    def turn() -> None:
        if not opened:
            opened.append(open_store(cloud, any_thread=True))
        if may_settle(cloud):
            settle(opened[0], cloud)
        elif is_due(opened[0], cloud):
            (Path(cloud.state_dir) / WANTED).touch()

    return turn


@contextmanager
def sidecars(cloud: CloudConfig, settings: BrokerSettings) -> Generator[None]:
    """Run the problem log, and the other threads that cloud.toml asks for, during a ``with`` block.

    ``settings`` are the coordinator's connection settings. Raises ``ConfigError``.
    """
    with ExitStack() as stack:
        snapshot = stack.enter_context(closing(snapshot_of(cloud)))
        watchers = [watcher("problem log", snapshot, LOG_S, ProblemLog())]
        if cloud.notify.wanted:
            watchers.append(watcher("notices", snapshot, NOTICE_S, Notices(cloud)))
        if cloud.http.listen is not None:
            try:
                # The module needs an optional dependency.
                from sedge_cloud.outlets.page.server import StatusServer
            except ModuleNotFoundError as exc:
                raise NotInstalled("[http]", exc.name or "a package", "http") from exc
            stack.enter_context(closing(StatusServer(cloud, snapshot))).start()
        if cloud.home_assistant.enabled:
            stack.enter_context(closing(HomeAssistant(cloud, settings, snapshot))).start()
        for one in watchers:
            stack.enter_context(closing(one)).start()
        stack.enter_context(closing(Supervised("accounts", accounts(cloud), ACCOUNTS_S))).start()
        yield
