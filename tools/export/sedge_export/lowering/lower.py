"""The third stage: compiles the programs for each runtime."""

from collections.abc import Sequence

from sedge_export.lowering.target import TARGETS
from sedge_export.programs import File
from sedge_export.stages import Lowered, Traced
from sedge_protocol.errors import ExportError


def check_backends(backends: Sequence[str]) -> None:
    """Raise ``ExportError`` for a runtime that is unknown, named twice or not installed."""
    if not backends or len(set(backends)) < len(backends) or not set(backends) <= set(TARGETS):
        raise ExportError(
            f"backends: {', '.join(backends)}, expected one or more of {', '.join(TARGETS)}"
        )
    for backend in backends:
        TARGETS[backend].check_installed()


def lower(traced: Traced, backends: Sequence[str]) -> Lowered:
    """Compile the programs for each runtime. Raises ``ExportError`` naming runtime, operator and module."""
    files: dict[str, dict[str, File]] = {}
    for backend in backends:
        try:
            files[backend] = TARGETS[backend].lower(traced.graphs, traced.signatures, traced.where)
        except ExportError as exc:
            raise ExportError(f"{backend}: {exc}") from exc
    return files
