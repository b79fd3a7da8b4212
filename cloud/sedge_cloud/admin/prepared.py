"""Runs that lie ready in the state folder, so that the status page can start them.

    STATE/prepared/NAME/run.toml    the run file
    STATE/prepared/NAME/bundle/     the bundle that `sedge-export` wrote
    STATE/prepared/NAME/policy      what `run sign` wrote, where [trust] asks for it

Whoever may write there may start runs anyway: the state folder belongs to the coordinator.
"""

from pathlib import Path

from sedge_cloud.config import RunConfig
from sedge_cloud.figures.numbers import natural
from sedge_cloud.run_file import load_run
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.topics import check_id

FOLDER, RUN_FILE, BUNDLE, POLICY = "prepared", "run.toml", "bundle", "policy"


def prepared_runs(state: Path) -> list[str]:
    """The names of the runs that have a run file and a bundle; none where the folder cannot be read."""
    try:
        folders = list((state / FOLDER).iterdir())
        ready = [
            it.name for it in folders if all((it / part).exists() for part in (RUN_FILE, BUNDLE))
        ]
    except OSError:
        return []
    return sorted(ready, key=natural)


def prepared_config(state: Path, name: str) -> RunConfig:
    """The run file of a run that lies ready. Raises ``ConfigError`` for a bad one, or where none does."""
    check_id(name, "run")
    if name not in prepared_runs(state):
        raise ConfigError(
            "name", name, f"a folder of {state / FOLDER} with {RUN_FILE} and {BUNDLE}/"
        )
    return load_run(state / FOLDER / name / RUN_FILE)
