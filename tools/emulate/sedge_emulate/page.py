"""The report as one HTML file: no script, no address, nothing to load.

What it shows and in which order: the table, what to make of it, accuracy by round and over time, every
device, who was late, bytes and what they bought, where the personal parameters sit, and how it was made.
It only words and arranges a ``Result``, and stays small however many devices there were.
"""

from collections.abc import Callable, Sequence
from html import escape

from sedge_emulate import plots, time_plots
from sedge_emulate.human import duration, percent, size
from sedge_emulate.markup import document, keys, name_cell, panels, section, table, unbroken
from sedge_emulate.page_bytes import bytes_section, cost_section
from sedge_emulate.page_devices import devices_section, late_section
from sedge_emulate.result import Engine, Headline, Result, Spread, headline

_COLUMNS: tuple[tuple[str, Callable[[Headline], float]], ...] = (
    ("mean", lambda row: row.before.mean),
    ("worst 10 %", lambda row: row.before.worst_tenth),
    ("mean", lambda row: row.after.mean),
    ("worst 10 %", lambda row: row.after.worst_tenth),
)


def page(result: Result) -> str:
    """The whole page."""
    title = f"{result.dataset} on {result.devices} devices"
    sections = [
        _opening(result, title),
        _results(result),
        _rounds(result),
        _times(result),
        devices_section(result),
        late_section(result),
        bytes_section(result),
        cost_section(result),
        _personal(result),
        _making(result),
    ]
    return document(title, [found for found in sections if found])


def _opening(result: Result, title: str) -> str:
    facts = f"{result.split} · seed {result.seed} · {result.created}"
    return (
        f'<p class="eyebrow">Sedge emulation report</p>\n<h1>{escape(title)}</h1>\n'
        f'<p class="muted">{escape(facts)}</p>\n<p class="lead">{_lead(result)}</p>'
    )


def _lead(result: Result) -> str:
    """The two answers that matter, whichever strategy gives them."""
    if not result.strategies:
        return "No strategy has run."
    rows = [headline(strategy) for strategy in result.strategies]
    if len(rows) == 1:
        return (
            f"<em>As it arrives</em> the model is right in {_shares(rows[0].before)}; "
            f"<em>after local training</em> in {_shares(rows[0].after)}."
        )
    on_arrival = max(rows, key=lambda row: row.before.mean)
    trained = max(rows, key=lambda row: row.after.mean)
    return (
        "The model that is best <em>as it arrives</em> comes from "
        f"{_spoken(on_arrival, on_arrival.before)}; "
        f"the best <em>after local training</em> from {_spoken(trained, trained.after)}."
    )


def _spoken(row: Headline, accuracy: Spread) -> str:
    return f"<strong>{escape(row.name)}</strong> ({_shares(accuracy)})"


def _shares(accuracy: Spread) -> str:
    return (
        f"{unbroken(accuracy.mean)} on average, "
        f"{unbroken(accuracy.worst_tenth)} for the worst tenth of the devices"
    )


def _results(result: Result) -> str:
    rows = [headline(strategy) for strategy in result.strategies]
    best = [max((value(row) for row in rows), default=0.0) for _, value in _COLUMNS]
    body: list[str] = []
    for i, row in enumerate(rows):
        cells = [name_cell(i, row.name)]
        for (_, value), top in zip(_COLUMNS, best, strict=True):
            # Only where there is something to compare, and as the reader sees it: rounded.
            is_best = len(rows) > 1 and percent(value(row)) == percent(top)
            mark = ' class="best"' if is_best else ""
            cells.append(f"<td{mark}>{percent(value(row))}</td>")
        device, first = row.rates.device, row.rates.newcomer
        of_dense = percent(row.of_dense)
        cells.append(f'<td class="group">{size(device.both)}</td><td>{of_dense}</td>')
        cells.append(f"<td>{size(device.up)}</td><td>{size(device.down)}</td>")
        cells.append(f'<td class="group">{size(first.up)}</td><td>{size(first.down)}</td>')
        cells.append(f'<td class="group">{duration(row.seconds)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = (
        '<tr class="groups"><th></th><th colspan="2">Before local training</th>'
        '<th colspan="2">After local training</th><th colspan="4" class="group">A device and round</th>'
        '<th colspan="2" class="group">Its first round</th><th class="group">Time</th></tr>\n'
        f"<tr><th>strategy</th>{''.join(f'<th>{name}</th>' for name, _ in _COLUMNS)}"
        '<th class="group">both ways</th><th>of dense</th><th>up</th><th>down</th>'
        '<th class="group">up</th><th>down</th>'
        '<th class="group"></th></tr>'
    )
    return (
        f'<section>{table(head, body)}\n<p class="caption below">'
        "Accuracy is measured on each device's own test examples, over all devices, each counting once. "
        "Bytes are counted at the devices' sockets, with every header and repeat, in a round after a device's "
        f"first; 100 % of dense is one plain float32 model each way.</p>\n{_note(rows)}</section>"
    )


def _note(rows: Sequence[Headline]) -> str:
    plain = next((row for row in rows if _is_fedavg(row.name)), None)
    advice = (
        "Compare it first: one shared model, trained a little on each device, is a strong competitor, and "
        "personalised strategies seldom beat it by much <em>after</em> local training. What they "
        "can add is a model that is good <em>before</em> it, on a device that will not train "
        "this round, and fewer bytes."
    )
    if plain is None:
        found = "This run has no FedAvg followed by local training."
    else:
        found = (
            f"FedAvg followed by local training reaches {unbroken(plain.after.mean)} here "
            f"({unbroken(plain.after.worst_tenth)} for the worst tenth)."
        )
    return f'<p class="note">{found} {advice}</p>'


def _rounds(result: Result) -> str:
    return section(
        "Accuracy by round",
        "Mean over the devices that trained in the round, so it also varies with who they were. "
        "Each plot has its own scale.",
        keys(result) + panels(plots.accuracy_panels(result)),
    )


def _times(result: Result) -> str:
    if not time_plots.has_times(result):
        return ""
    end_s = max(r.closed_s for s in result.strategies for r in s.rounds)
    clock = "virtual time: what devices and links need by fleet.toml, not what this host needs"
    return section(
        "Rounds over time",
        f"The clock is {clock if result.link == 'memory' else 'the one on the wall'}. "
        f"The last round closed after {duration(end_s)}. Each strip is a round from its opening to its "
        "close, its end red where it closed without some of its devices.",
        keys(result) + panels([*time_plots.time_panels(result), *time_plots.strip_panels(result)]),
    )


def _personal(result: Result) -> str:
    found = [*plots.personal_panels(result), *plots.personal_round_panels(result)]
    if not found:
        return ""
    return section(
        "Where the personal parameters sit",
        "Share of a device's personal parameters in each tensor, and their mean number per device: in the "
        "final evaluation, and in each round.",
        panels(found),
    )


def _making(result: Result) -> str:
    machine, model = result.machine, result.model
    versions = ", ".join(f"{name} {version}" for name, version in sorted(machine.versions.items()))
    facts = [
        ("Command", f"<code>{escape(result.command)}</code>"),
        ("Data", escape(f"{result.dataset}, {result.split}")),
        (
            "Model",
            escape(f"{model.name}, {model.parameters:,} parameters, {size(model.dense_bytes)}"),
        ),
        ("Machine", escape(f"{machine.platform}, {machine.cpus} CPUs, Python {machine.python}")),
        ("Versions", escape(versions)),
    ]
    if result.link:
        facts.insert(2, ("Link", escape(result.link)))
    for strategy in result.strategies:
        options = ", ".join(f"{key} {value}" for key, value in strategy.options.items())
        words = [f"{len(strategy.rounds)} rounds", options, _engine(strategy.engine)]
        facts.append((escape(strategy.name), escape("; ".join(word for word in words if word))))
    rows = "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return section("How this was made", "", f"<dl>{rows}</dl>")


def _engine(engine: Engine | None) -> str:
    """What the host did, in one line."""
    if engine is None:
        return ""
    return (
        f"{engine.device_rounds:,} jobs by the {engine.trainer} trainer in {duration(engine.wall_s)} with "
        f"{engine.workers} workers, {percent(engine.overhead)} of their time outside of training; "
        f"{size(engine.peak_rss_bytes)} of memory at most"
    )


def _is_fedavg(name: str) -> bool:
    return name.lower().replace("-", "").replace("_", "").startswith("fedavg")
