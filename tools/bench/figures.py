"""The benchmarks' results, read from tools/bench/results and put into words, one ``Figure`` each.

``sections`` returns all; results_page.py writes them down. Targets are defined here unless the
benchmark's result contains them. A result that is missing or outdated becomes a section without figures,
with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.bench.emulator_figures import attacks, emulator, frameworks, training
from tools.bench.figure import Figure, loaded, mid
from tools.bench.gpu_figures import gpu
from tools.bench.scale_figures import processes, three_hosts

from sedge_cloud.figures.numbers import percent, size
from sedge_emulate.headline import headline
from sedge_emulate.result import StrategyResult, read_json
from sedge_protocol.errors import SedgeError
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

RESULTS = Path(__file__).parent / "results"
# Updates a second on one core, by the share of elements that an update keeps.
TARGET_UPDATES = {0.5: 200, 0.01: 900}
# Bytes of the whole model for a newcomer.
TARGET_NEWCOMER = 400_000
# The time limit for encoding the demo's update.
TARGET_ENCODE_MS = 10.0
RUNTIMES = {ONNXRUNTIME: "ONNX Runtime", EXECUTORCH: "ExecuTorch"}
# An agent's installation in MB, and its memory in MiB while it trains the 4-layer CNN.
TARGET_AGENT = {ONNXRUNTIME: (150, 96), EXECUTORCH: (100, 64)}
# The coded vectors (codec.py): the share of the elements and the coding of their values.
CODED = {
    ("update", 1.0, "fp32"): "update of everything in fp32",
    ("update", 0.04, "bf16"): "update by default, the largest 4 % in bf16, with error feedback",
    ("update", 0.12, "bf16"): "update of the largest 12 % in bf16, with error feedback",
    ("update", 0.04, "int4"): "update of the largest 4 % in int4, with error feedback",
    ("update", 0.05, "sign"): "update of the largest 5 % in sign, with error feedback",
    ("update", 0.01, "bf16"): "update of the largest 1 % in bf16, with error feedback",
    ("selection", 0.5, "int8"): "update of the half that an order selects, in int8",
    ("next patch", 0.5, "int8"): "patch of what the device sent last, in int8",
    ("patch", 0.0005, "fp32"): "patch of a device's personal 0.05 %, in fp32",
    ("broadcast", 0.12, "bf16"): "broadcast of the largest 12 % in bf16",
    ("broadcast", 0.05, "bf16"): "broadcast of the largest 5 % in bf16",
}
# What a cell of compression.py has: accuracies, then bytes.
MEANS = (
    "before",
    "before_worst",
    "after",
    "after_worst",
    "up",
    "down",
    "newcomer_down",
    "of_dense",
)
# What the other settings of compression.py are compared with.
WHOLE = "everything whole"


@dataclass(frozen=True)
class Section:
    """One benchmark: its figures and its command, or ``why`` there are none."""

    title: str
    command: str
    figures: list[Figure] = field(default_factory=list[Figure])
    why: str = ""


def sections(folder: Path = RESULTS) -> list[Section]:
    """All benchmarks in the order of the page."""
    return [section(folder / f"{name}.json", *rest) for name, rest in BENCHMARKS.items()]


def section(path: Path, title: str, command: str, read: Callable[[Path], list[Figure]]) -> Section:
    """One benchmark's section."""
    if not path.exists():
        return Section(title, command, why="not measured yet")
    try:
        return Section(title, command, read(path))
    except (SedgeError, LookupError, TypeError, ValueError):
        return Section(title, command, why=f"{path.name} is not what this command writes now")


def traffic(path: Path) -> list[Figure]:
    """A device's bytes both ways, one update and the broadcast, as counted at the sockets."""
    result = read_json(path)
    first = result.strategies[0]
    dense, payload = first.bytes.dense_update, first.bytes.update_payload_mean
    sent = first.bytes.coordinator_up / (len(first.rounds) + 1) / dense
    update = f"one update of {first.name}, against dense float32"
    broadcast = (
        f"what leaves the coordinator in a round, {result.devices} devices, against one dense model"
    )
    return [
        *both_ways(first),
        Figure(update, f"{size(payload)}, {dense / payload:.0f} times smaller"),
        Figure(broadcast, f"{sent:.2f}"),
    ]


def both_ways(strategy: StrategyResult) -> list[Figure]:
    """A device's bytes; none where the result does not tell its first round from later ones."""
    row = headline(strategy)
    device, new = row.rates.device, row.rates.newcomer
    if not device.both or not new.both:
        return []
    what = f"a device and round of {row.name} after its first, both ways, against dense both ways"
    return [
        Figure(what, f"{size(device.both)}, {1 / row.of_dense:.0f} times smaller"),
        Figure("of these, up and down", f"{size(device.up)} and {size(device.down)}"),
        Figure("a device's first round, up and down", f"{size(new.up)} and {size(new.down)}"),
    ]


def compression(path: Path) -> list[Figure]:
    """Accuracy beside bytes: each setting's means over the seeds, for each split."""
    found = loaded(path)
    grouped: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for cell in found["cells"]:
        grouped.setdefault((cell["alpha"], cell["setting"]), []).append(cell)

    def means(cells: list[dict[str, Any]]) -> dict[str, float]:
        return {key: fmean(cell[key] for cell in cells) for key in MEANS}

    def figure(alpha: float, setting: str, cells: list[dict[str, Any]]) -> Figure:
        mean = means(cells)
        accuracies = [f"{percent(mean[key])}" for key in MEANS[:4]]
        seeds = ", ".join(str(cell["seed"]) for cell in cells)
        measured = (
            f"{size(mean['up'] + mean['down'])} a device and round, {times(1 / mean['of_dense'])} smaller "
            f"than dense both ways ({size(mean['up'])} up, {size(mean['down'])} down; newcomer "
            f"{size(mean['newcomer_down'])}); "
            f"{accuracies[0]} before (worst tenth {accuracies[1]}), "
            f"{accuracies[2]} after training (worst tenth {accuracies[3]})"
        )
        if setting != WHOLE and (alpha, WHOLE) in grouped:
            whole = means(grouped[alpha, WHOLE])
            before, after = (100 * (mean[key] - whole[key]) for key in ("before", "after"))
            measured += f"; against {WHOLE} {before:+.2f} and {after:+.2f} points"
        what = f"{setting}, Dir({alpha:g}), {found['rounds']} rounds, seed {seeds}"
        return Figure(what, measured)

    return [figure(*key, cells) for key, cells in grouped.items()]


def times(factor: float) -> str:
    """``1.5 times``, ``186 times``."""
    return f"{factor:.1f} times" if factor < 10 else f"{factor:.0f} times"


def adapters(path: Path) -> list[Figure]:
    """A part of a model in training beside all of it."""
    found = loaded(path)
    return [
        Figure(
            f"{name}: {cell['parameters']:,} parameters in training, {found['rounds']} rounds",
            f"{size(cell['up'])} up, {size(cell['down'])} down a device and round (its first: "
            f"{size(cell['newcomer_up'])} up, {size(cell['newcomer_down'])} down); "
            f"{percent(cell['before'])} before, {percent(cell['after'])} after training",
        )
        for name, cell in found["adapters"].items()
    ]


def codec(path: Path) -> list[Figure]:
    """The vectors that are sent, coded whole: means over all rounds and devices."""
    found = loaded(path)
    figures: list[Figure] = []
    for key, what in CODED.items():
        rows = [r for r in found["rows"] if (r["what"], r["fraction"], r["values"]) == key]
        mean = sum(row["bytes"] for row in rows) / len(rows)
        timed = [row for row in rows if row["round"] == found["rounds"]]
        encode_ms, decode_ms = mid(timed, "encode_ms"), mid(timed, "decode_ms")
        bound = key == ("update", 0.12, "bf16")
        met = ((f"at most {TARGET_ENCODE_MS:g} ms", encode_ms <= TARGET_ENCODE_MS),)
        measured = (
            f"{size(mean)}, {4 * found['n'] / mean:.1f} times smaller than dense float32; "
            f"coded in {encode_ms:.1f} ms, decoded in {decode_ms:.1f} ms"
        )
        figures.append(Figure(what, measured, met if bound else ()))
    return [*figures, *snapshots(found)]


def snapshots(found: dict[str, Any]) -> list[Figure]:
    """What a device that joins late fetches."""
    return [
        Figure(
            f"the whole model for a newcomer after {row['round']} rounds of broadcasts of "
            f"{percent(row['fraction'], 0)} in {row['values']}",
            f"{size(row['bytes'])}, {row['smaller']:.1f} times smaller than dense float32",
            ((f"at most {size(TARGET_NEWCOMER)}", row["bytes"] <= TARGET_NEWCOMER),),
        )
        for row in found["rows"]
        if row["what"] == "snapshot"
    ]


def train_step(path: Path) -> list[Figure]:
    """A step in each runtime against eager torch."""
    figures: list[Figure] = []
    found = loaded(path)
    for name, rows in found["train_step"].items():
        for runtime, row in rows.items():
            runs = (
                f"{RUNTIMES[runtime]} against eager torch, one thread with {found['instructions']}"
            )
            what = f"a training step of {name}, {runs}"
            met = ((f"at most {row['target']:g}", row["ratio"] <= row["target"]),)
            figures.append(Figure(what, f"{row['ratio']:.2f} of its time", met))
    return figures


def joint_graph(path: Path) -> list[Figure]:
    """ExecuTorch's own training path beside ours."""
    row = loaded(path)["joint_graph"]
    measured = (
        f"{row['times']:.0f} times as fast ({row['ours_ms']:.1f} and {row['joint_ms']:.0f} ms); the "
        f"gradient's error is {row['ours_error']:.0e} of its largest, there {row['joint_error']:.0e}"
    )
    met = ((f"at least {row['target']:g} times", row["times"] >= row["target"]),)
    what = "a training step of avgcnn in ExecuTorch, against ExecuTorch's own training path"
    return [Figure(what, measured, met)]


def personal(path: Path) -> list[Figure]:
    """A prediction of each file for apps against the bundle's program."""
    figures: list[Figure] = []
    for name, files in loaded(path)["personal"].items():
        baseline, *others = files
        for kind in others:
            row = files[kind]
            what = f"a prediction of {name}, one row: {kind}, against the program with {baseline}"
            measured = f"{row['ratio']:.2f} of its time"
            if row["bytes"]:
                measured += f", {size(row['bytes'])}, accuracy {percent(row['accuracy'])}"
            figures.append(Figure(what, measured))
    return figures


def agent_memory(path: Path) -> list[Figure]:
    """What the agent costs a device."""
    figures: list[Figure] = []
    for row in loaded(path)["agent_memory"]:
        runtime, (most_mb, most_mib) = RUNTIMES[row["backend"]], TARGET_AGENT[row["backend"]]
        what = f"an agent's installation with {runtime}, and its memory while it trains the CNN"
        measured = f"{row['install_mb']:.0f} MB, {row['peak_mib']:.0f} MiB; {row['idle_mib']:.0f} MiB after"
        met = (
            (f"at most {most_mb} MB", row["install_mb"] <= most_mb),
            (f"at most {most_mib} MiB", row["peak_mib"] <= most_mib),
        )
        figures.append(Figure(what, measured, met))
    return figures


def disk(path: Path) -> list[Figure]:
    """What a round costs a device's disk."""
    row = loaded(path)
    what = f"a device's writes in a round of the CNN, for an update of {size(row['update_bytes'])}"
    measured = f"{size(row['written_bytes'])} with {row['fsyncs']:g} fsyncs"
    met = [(f"at most {most:g} {name}", row[name] <= most) for name, most in row["target"].items()]
    return [Figure(what, measured, tuple(met))]


def status_page(path: Path) -> list[Figure]:
    """What the status page of a large fleet costs the coordinator, and how long a browser waits for it."""
    row = loaded(path)
    what = (
        f"the status page of {row['devices']:,} devices, {row['readers']} readers, "
        f"{row['changes_a_minute']:.0f} changes a minute told to each"
    )
    measured = (
        f"{1000 * row['first_paint_s']:.0f} ms and {size(row['page_bytes'])} to the first paint; "
        f"{percent(row['without_page_share'], 2)} of the coordinator's time without a page, "
        f"{percent(row['idle_share'], 2)} with one that nobody reads, "
        f"{percent(row['loop_share'], 2)} with all readers"
    )
    return [Figure(what, measured, (("at most 1 %", row["loop_share"] <= 0.01),))]


def seen(path: Path) -> list[Figure]:
    """How soon each place names a fault, with its reason."""
    found = loaded(path)
    target: float = found["target_s"]

    def figure(row: dict[str, Any]) -> Figure:
        times: dict[str, float] = row["seconds"]
        told = ", ".join(f"{place} {seconds:.1f} s" for place, seconds in times.items())
        met = ((f"at most {target:g} s each", max(times.values()) <= target),)
        return Figure(f"{row['fault']} (`{row['code']}`)", told, met)

    return [figure(row) for row in found["rows"]]


def scoring(path: Path) -> list[Figure]:
    """Selecting a device's personal parameters."""
    row = loaded(path)
    what = (
        f"scoring a device and choosing {row['personal']} of {row['size']:,} parameters, "
        "against torch.quantile"
    )
    measured = f"{row['score_select_ms'][1]:.2f} ms, {row['ratio']:.0f} times as fast"
    return [Figure(what, measured)]


def coordinator(path: Path) -> list[Figure]:
    """What the coordinator does with updates, on a store that survives power cuts."""
    rows = loaded(path)["rows"]
    figures: list[Figure] = []
    for row in rows:
        if not row["durable"]:
            continue
        (loose,) = [
            r for r in rows
            if not r["durable"] and (r["delta"], r["share"]) == (row["delta"], row["share"])
        ]  # fmt: skip
        share, rate = row["share"], row["updates_per_s"]
        what = f"updates of the largest {share:g} in bf16 ({row['delta']}), on one core"
        measured = f"{rate:,.0f} a second ({loose['updates_per_s']:,.0f} without fsync)"
        target = TARGET_UPDATES.get(share)
        met = ((f"at least {target} a second", rate >= target),) if target else ()
        figures.append(Figure(what, measured, met))
    return figures


def broker(path: Path) -> list[Figure]:
    """The link compared with paho alone, by chunk size."""
    found = loaded(path)
    target = found["target"]
    figures: list[Figure] = []
    for kib in dict.fromkeys(row["kib"] for row in found["broker"]):
        rows = {r["way"]: r for r in found["broker"] if r["kib"] == kib}
        raw, link, frames = rows["paho"], rows["link"], rows["frames"]
        what = f"chunks of {kib} KiB over Mosquitto, sealed and opened, against paho alone"
        measured = (
            f"{frames['mb_s']:.0f} MB/s, {frames['messages_s']:,.0f} a second, "
            f"{frames['of_paho']:.2f} of its rate ({raw['mb_s']:.0f} MB/s); unsealed {link['of_paho']:.2f}"
        )
        if frames["lost"]:
            measured += f"; the broker threw {frames['lost']:,.0f} away"
        met: list[tuple[str, bool]] = []
        if kib == target["kib"]:
            met += [(f"at least {target['mb_s']:g} MB/s", frames["mb_s"] >= target["mb_s"])]
            met += [(f"at least {target['of_paho']:g}", frames["of_paho"] >= target["of_paho"])]
        figures.append(Figure(what, measured, tuple(met)))
    return figures


def flood(path: Path) -> list[Figure]:
    """The honest devices' rate while one device floods the coordinator."""
    found = loaded(path)
    target, names = (
        found["target"],
        {
            "chunk": "chunks that it has not offered",
            "get": "GETs for a whole model",
            "hello": "HELLOs of later and later starts",
            "garbage": "bytes that are no frame",
            "mac": "frames with a wrong MAC",
        },
    )
    return [
        Figure(
            f"honest devices' rate while one sends {found['rate']:,.0f} {names[row['kind']]} a second",
            f"{row['share']:.2f} of that in calm times; {row['cores']:.2f} of a core at the coordinator, "
            f"{row['repeated']} messages are said again, {row['lines']} lines in the log",
            (
                (f"at least {target['share']}", row["share"] >= target["share"]),
                (f"at most {target['lines']} lines", row["lines"] <= target["lines"]),
            ),
        )
        for row in found["flood"]
    ]


def outage(path: Path) -> list[Figure]:
    """How soon a fleet is back after an outage, and what that costs."""

    def figure(row: dict[str, Any]) -> Figure:
        met = ((f"at most {row['most']:g}", row["measured"] <= row["most"]),)
        return Figure(row["what"], f"{row['measured']:g} {row['unit']}", met)

    return [figure(row) for row in loaded(path)["rows"]]


# Result name: title, command, reader.
BENCHMARKS: dict[str, tuple[str, str, Callable[[Path], list[Figure]]]] = {
    "demo": ("Bytes of a fleet", "make demo", traffic),
    "compression": ("Accuracy beside bytes", "python -m tools.bench.compression", compression),
    "adapters": ("Adapters and frozen bodies", "python -m tools.bench.adapters", adapters),
    "attacks": ("What hostile devices cost", "tools/bench/attacks.py", attacks),
    "codec": ("Codec: whole vectors", "tools/bench/codec.py", codec),
    "train_step": ("A training step on a device", "tools/bench/train_step.py", train_step),
    "joint_graph": (
        "ExecuTorch's own training path",
        "python -m tools.bench.joint_graph",
        joint_graph,
    ),
    "personal": ("A model for apps", "python -m tools.bench.personal", personal),
    "agent_memory": (
        "Size of the agent",
        "tools/bench/agent_memory.py",
        agent_memory,
    ),
    "disk": ("Writes to a device's disk", "python -m tools.bench.disk", disk),
    "scoring": ("Personal parameters", "tools/bench/scoring.py", scoring),
    "coordinator": ("Coordinator", "tools/bench/coordinator.py", coordinator),
    "broker": ("Link and broker", "tools/bench/broker.py", broker),
    "status_page": ("Status page", "python -m tools.bench.status_page", status_page),
    "seen": (
        "What breaks, and how soon it is named with its reason",
        "python -m tools.bench.seen",
        seen,
    ),
    "outage": ("After an outage", "python -m tools.bench.outage", outage),
    "flood": ("One device's flood", "python -m tools.bench.flood", flood),
    "three_hosts": (
        "Coordinators on three hosts, and what goes wrong",
        "python -m tools.bench.three_hosts",
        three_hosts,
    ),
    "processes": ("Coordinators by their number", "python -m tools.bench.processes", processes),
    "training": ("Training many devices on one host", "tools/bench/training.py", training),
    "gpu": ("Many devices on one GPU", "make bench-gpu", gpu),
    "emulator": ("The emulator beside training", "tools/bench/emulator.py", emulator),
    "frameworks": ("Other frameworks", "tools/bench/frameworks.py", frameworks),
}
