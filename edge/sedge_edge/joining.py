"""``sedge-edge join``: a device's files, from the one line that enrolled it."""

from collections.abc import Mapping
from pathlib import Path

from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.enrolment import BESIDE, OF_SERVICE, SECRET, parse_join_text
from sedge_protocol.host.privileges import as_caller

SERVICE = Path("/etc/sedge")

_NEXT = """\
{device} of the fleet {fleet}: written to {folder}. Next:
  put train.npz (x and y) there, or name another source, such as train.csv, in its edge.toml
  {check}
  {begin}"""


def join(line: str, out: Path | None, service: bool) -> str:
    """Write edge.toml, secret and the broker's authority; what to do next.

    Raises ``ConfigError`` for a line that is none, and where a device is in the folder already;
    ``StorageError``.
    """
    enrolment = parse_join_text(line)
    folder = out or (SERVICE if service else Path(enrolment.device))
    files = enrolment.public_files(OF_SERVICE if service else BESIDE)
    with as_caller(), translated("write the files of a device into", folder):
        _require_free(folder, files)
        folder.mkdir(parents=True, exist_ok=True, mode=0o755 if service else 0o700)
        enrolment.write(folder, files)
    check, begin = f"cd {folder} && sedge-edge doctor", "sedge-edge run"
    if service:
        check, begin = "sudo sedge-edge doctor", "sudo systemctl enable --now sedge-edge"
    return _NEXT.format(
        device=enrolment.device, fleet=enrolment.fleet, folder=folder, check=check, begin=begin
    )


def _require_free(folder: Path, files: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for another device's files; those of a join that was cut off are taken over."""
    for name in (SECRET, *files):
        path = folder / name
        if path.exists() and (name == SECRET or path.read_text(errors="replace") != files[name]):
            expected = "a folder without a device, or another one: --out FOLDER"
            raise ConfigError("sedge-edge join", str(path), expected)
