"""Runs prepared in the state folder, so that the status page can start them.

    STATE/prepared/NAME/run.toml    the run file
    STATE/prepared/NAME/bundle/     the bundle that `sedge-export` wrote
    STATE/prepared/NAME/policy      the policy that `run sign` wrote, if [trust] requires one

This gives nobody a new permission: the state folder belongs to the coordinator, so anyone who can write
there could start runs anyway.
"""

from pathlib import Path

from sedge_cloud.config import RunConfig
from sedge_cloud.figures.numbers import natural
from sedge_cloud.run_file import load_run
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.topics import check_id

FOLDER, RUN_FILE, BUNDLE, POLICY = "prepared", "run.toml", "bundle", "policy"


def prepared_runs(state: Path) -> list[str]:
    """Return the names of runs with a run file and a bundle; an empty list if the folder is unreadable."""
    try:
        folders = list((state / FOLDER).iterdir())
        ready = [
            it.name for it in folders if all((it / part).exists() for part in (RUN_FILE, BUNDLE))
        ]
    except OSError:
        return []
    return sorted(ready, key=natural)


def prepared_config(state: Path, name: str) -> RunConfig:
    """Load the run file of a prepared run. Raises ``ConfigError`` if it is invalid or missing."""
    check_id(name, "run")
    if name not in prepared_runs(state):
        raise ConfigError(
            "name", name, f"a folder in {state / FOLDER} with {RUN_FILE} and {BUNDLE}/"
        )
    return load_run(state / FOLDER / name / RUN_FILE)
