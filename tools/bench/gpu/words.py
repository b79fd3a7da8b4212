"""Formats figures in words, for the terminal and for RESULTS.md. Does not import torch."""

from collections.abc import Mapping

from tools.bench.gpu.cells import Row, named

# Figures appear in this order. Raw rates are hidden if there is a rate in examples, which says more.
_WORDS = {
    "examples_s": ("{:,.0f} examples/s", 1.0),
    "of_peak": ("{:.1f} % of the matrix peak", 100.0),
    "of_bandwidth": ("{:.1f} % of the memory bandwidth", 100.0),
    "flops_s": ("{:,.3g} TFLOP/s", 1e-12),
    "bytes_s": ("{:,.3g} GB/s", 1e-9),
    "round_s": ("{:.3f} s per round", 1.0),
    "wall_s": ("{:.1f} s", 1.0),
    "command_s": ("{:.1f} s including startup", 1.0),
    "device_rounds_s": ("{:,.1f} device rounds per second", 1.0),
    "passed": ("{:.0f} passed", 1.0),
    "failed": ("{:.0f} failed", 1.0),
    "skipped": ("{:.0f} skipped", 1.0),
    "memory_bytes": ("{:.1f} GiB", 2.0**-30),
    "free_bytes": ("{:.1f} GiB of it free", 2.0**-30),
}
_RAW = {"flops_s", "bytes_s"}


def told(row: Row) -> str:
    """Format a row's figures, then the reason why any is missing or wrong."""
    words = [*figures(row.figures), *([row.why] if row.why else [])]
    return ", ".join(words) if words else "no figures"


def figures(found: Mapping[str, float]) -> list[str]:
    """Return the figures as text, formatted and ordered as in ``_WORDS``."""
    hidden = _RAW if "examples_s" in found else set[str]()
    return [
        text.format(factor * found[key])
        for key, (text, factor) in _WORDS.items()
        if key in found and key not in hidden
    ]


def line(stage: str, row: Row) -> str:
    """Format a row as a progress line."""
    return f"{stage:<11} {named(row.setting)}: {told(row)}"
