"""Writes the README's tables from results, so that no figure in it is typed by hand.

    python tools/bench/readme.py

Reads tools/bench/results/*.json (``make figures`` renews them) and replaces what stands between the
markers.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sedge_emulate.human import percent, size
from sedge_emulate.result import Result, StrategyResult, headline, read_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tools" / "bench" / "results"


def main() -> None:
    """Rewrite the tables of README.md."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    text = replaced(text, "demo", demo(read_json(RESULTS / "demo.json")))
    text = replaced(text, "bench", bench())
    readme.write_text(text)


def replaced(text: str, name: str, lines: Iterable[str]) -> str:
    """The text with new lines between ``name``'s markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return "\n".join([before + begin, *lines, end + after])


def demo(result: Result) -> list[str]:
    """The table at the top."""
    minutes = sum(strategy.seconds for strategy in result.strategies) / 60
    rows = [
        f"`make demo`: {result.split}, {result.model.parameters:,} parameters, "
        f"{len(result.strategies[0].rounds)} rounds, {result.machine.cpus} cores, {minutes:.1f} minutes:",
        "",
        "| strategy | before training | worst 10 % | after training | worst 10 % | up, of dense |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for strategy in result.strategies:
        h = headline(strategy)
        rows.append(
            f"| {h.name} | **{percent(h.before.mean)}** | {percent(h.before.worst_tenth)} "
            f"| {percent(h.after.mean)} | {percent(h.after.worst_tenth)} | {h.up_of_dense:.1%} |"
        )
    return rows


def bench() -> list[str]:
    """The table of measurements."""
    rows = ["| what | measured | command |", "| --- | --- | --- |"]
    rows += traffic(read_json(RESULTS / "demo.json"))
    rows += compression(read_json(RESULTS / "compression.json"))
    for name, row in load("train_step")["train_step"].items():
        rows.append(
            f"| a training step of {name}, ONNX Runtime against eager torch, one thread "
            f"| {row['ratio']:.2f} of its time | `tools/bench/train_step.py` |"
        )
    memory = load("agent_memory")
    rows.append(
        f"| an agent's installation, and its peak memory while it trains the CNN "
        f"| {memory['install_mb']:.0f} MB, {memory['peak_mib']:.0f} MiB | `tools/bench/agent_memory.py` |"
    )
    scoring = load("scoring")
    rows.append(
        f"| scoring a device and choosing {scoring['personal']} of {scoring['size']:,} parameters, "
        f"against torch.quantile | {scoring['ratio']:.0f} times as fast | `tools/bench/scoring.py` |"
    )
    return rows


def traffic(result: Result) -> list[str]:
    """One update, and the broadcast, as the sockets saw them."""
    first = result.strategies[0]
    rounds = len(first.rounds) + 1
    dense = first.bytes.dense_update
    return [
        f"| one update of {first.name}, against dense float32 | {size(first.bytes.update_payload_mean)}, "
        f"{dense / first.bytes.update_payload_mean:.0f} times smaller | `make demo` |",
        f"| what leaves the coordinator in a round, {result.devices} devices, against one dense model "
        f"| {first.bytes.coordinator_up / rounds / dense:.2f} | `make demo` |",
    ]


def compression(result: Result) -> list[str]:
    """What the codec costs in accuracy."""
    whole, *others = result.strategies

    def row(s: StrategyResult) -> str:
        smaller = s.bytes.dense_update / s.bytes.update_payload_mean
        before = 100 * (s.before.mean - whole.before.mean)
        after = 100 * (s.after.mean - whole.after.mean)
        return (
            f"| accuracy with updates as {s.name} ({smaller:.0f} times smaller than dense), "
            f"against whole ones "
            f"| {before:+.1f} points before, {after:+.1f} after training "
            f"| `sedge-emulate run examples/compression.toml` |"
        )

    return [row(s) for s in others]


def load(name: str) -> Any:
    """The JSON line that a benchmark ended with."""
    return json.loads((RESULTS / f"{name}.json").read_text())


if __name__ == "__main__":
    main()
