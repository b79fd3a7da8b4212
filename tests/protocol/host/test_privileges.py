"""Root's commands beside a service with a user of its own, who plants links in its state folder.

Each command is a process of its own, as an operator runs it. Only root can show any of this.
"""

import os
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.edge.home import make_home

from sedge_cloud.__main__ import main as cloud_main
from sedge_edge.__main__ import main as edge_main
from sedge_protocol.errors import StorageError
from sedge_protocol.host.privileges import act_as_owner, as_caller

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")


@pytest.fixture
def service() -> Iterator[Path]:
    """A folder in /tmp, as pytest's own are closed to all but root; ``state`` in it is the service's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(0o700)
        os.chown(folder / "state", NOBODY, NOBODY)
        yield folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("root's own")
    path.chmod(0o644)
    return path


def of(path: Path) -> tuple[int, int, str]:
    found = path.stat()
    return found.st_uid, stat.S_IMODE(found.st_mode), path.read_text()


def command(main: Callable[[list[str]], int], config: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command of root's."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
            child = os.fork()
        if child == 0:
            sys.stdout, sys.stderr, status = out, errors, 1
            try:
                status = main(["-c", str(config), *words])
            finally:
                out.flush()
                errors.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        errors.seek(0)
        return status, out.read(), errors.read()


def cloud(folder: Path, *words: str) -> tuple[int, str, str]:
    """A command beside the coordinator; cloud.toml and the password file are root's alone."""
    config = folder / "cloud.toml"
    password = folder / "coordinator-password"
    password.write_text("secret")
    password.chmod(0o600)
    config.write_text(
        'fleet = "home"\nstate_dir = "state"\n[broker]\nurl = "mqtt://127.0.0.1:9"\n'
        f'password_file = "{password}"\ndevice_password_file = "{folder}/passwords"\n'
    )
    return command(cloud_main, config, *words)


@pytest.mark.parametrize(
    ("name", "words"), [("sedge.sqlite", ["device", "list"]), ("lock", ["serve"])]
)
def test_a_planted_link_reaches_nothing_of_roots(
    service: Path, victim: Path, name: str, words: list[str]
) -> None:
    before = of(victim)
    (service / "state" / name).symlink_to(victim)
    status, _, errors = cloud(service, *words)
    assert status == 4 and len(errors.splitlines()) == 1
    assert of(victim) == before


def test_a_state_folder_that_is_a_planted_link(service: Path, tmp_path: Path) -> None:
    """The service owns what its state folder lies in, and puts a folder of root's in its place."""
    (service / "state").rmdir()
    os.chown(service, NOBODY, NOBODY)
    (service / "state").symlink_to(tmp_path)
    os.chown(service / "state", NOBODY, NOBODY, follow_symlinks=False)
    assert cloud(service, "device", "list")[0] == 4
    assert list(tmp_path.iterdir()) == []


def test_what_root_makes_belongs_to_whom_it_is_for(service: Path) -> None:
    """The state to the service; the device's files and the broker's passwords to root."""
    status, _, errors = cloud(service, "device", "add", "pi-1", "--out", str(service / "pi-1"))
    assert (status, errors) == (0, "")
    state = [service / "state", *(service / "state").rglob("*")]
    assert len(state) >= 4 and {path.stat().st_uid for path in state} == {NOBODY}
    ours = [service / "passwords", service / "pi-1", *(service / "pi-1").iterdir()]
    assert len(ours) == 4 and {path.stat().st_uid for path in ours} == {0}


def test_a_state_folder_whose_parent_is_open_to_root_alone(service: Path) -> None:
    """As systemd's DynamicUser has it: /var/lib/sedge is a link into /var/lib/private."""
    private = service / "private"
    private.mkdir(0o700)
    (service / "state").rename(private / "state")
    (service / "state").symlink_to(private / "state")
    config = make_home(service)
    status, out, errors = command(edge_main, config, "status")
    assert (status, errors) == (0, "") and "has never run" in out
    assert [path.name for path in (private / "state").iterdir()] == []


@pytest.fixture
def identity() -> Iterator[None]:
    groups = os.getgroups()
    yield
    os.seteuid(0)
    os.setegid(0)
    os.setgroups(groups)


def test_the_caller_is_back_for_its_own_files(service: Path, identity: None) -> None:
    assert act_as_owner(service / "state") == service / "state"
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (NOBODY, NOBODY, [NOBODY])
    with pytest.raises(StorageError), as_caller():
        assert (os.geteuid(), os.getegid()) == (0, 0)
        raise StorageError("test")
    assert (os.geteuid(), os.getegid()) == (NOBODY, NOBODY)


def missing(service: Path) -> Path:
    """A folder that is yet to be made in one of the service's."""
    return service / "state" / "deeper" / "still"


def roots_own(service: Path) -> Path:
    return service


@pytest.mark.parametrize(("folder", "owner"), [(missing, NOBODY), (roots_own, 0)])
def test_whose_identity_is_taken(
    service: Path, identity: None, folder: Callable[[Path], Path], owner: int
) -> None:
    act_as_owner(folder(service))
    assert os.geteuid() == owner


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_root_is_given_up_for_good(service: Path, mode: int) -> None:
    """What is imported later must be open to the owner: here the library is one file of this mode."""
    library = service / "library.py"
    library.touch(mode)
    code = (
        "import os, sys; from pathlib import Path; from sedge_protocol.host import privileges\n"
        "os.__file__ = privileges.__file__ = sys.argv[2]\n"
        "try: privileges.act_as_owner(Path(sys.argv[1]), for_good=True)\n"
        "except privileges.StorageError as exc: print(exc)\n"
        "print(os.getresuid(), os.getresgid())\n"
        "os.seteuid(0)"
    )
    call = [sys.executable, "-c", code, str(service / "state"), str(library)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    *errors, ids = done.stdout.splitlines()
    three = (NOBODY, NOBODY, NOBODY)
    assert ids == f"{three} {three}" and "PermissionError" in done.stderr
    assert len(errors) == (mode == 0o600)
    assert all(f"user {NOBODY}; this command now runs as that user" in text for text in errors)
