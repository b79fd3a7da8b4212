"""The report as one HTML file: no script, no address, nothing to load.

What it shows and in which order: the table, what to make of it, accuracy by round, every device, bytes,
where the personal parameters sit, and how it was made. It only words and arranges a ``Result``.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files

from sedge_emulate import plots
from sedge_emulate.human import duration, listed, percent, size
from sedge_emulate.result import Headline, Result, Spread, StrategyResult, headline
from sedge_emulate.svg import NUM_SERIES

_COLUMNS: tuple[tuple[str, Callable[[Headline], float]], ...] = (
    ("mean", lambda row: row.before.mean),
    ("worst 10 %", lambda row: row.before.worst_tenth),
    ("mean", lambda row: row.after.mean),
    ("worst 10 %", lambda row: row.after.worst_tenth),
)


def page(result: Result) -> str:
    """The whole page."""
    style = files("sedge_emulate").joinpath("report.css").read_text("utf-8")
    title = f"{result.dataset} on {result.devices} devices"
    sections = [
        _opening(result, title),
        _results(result),
        _rounds(result),
        _devices(result),
        _bytes(result),
        _personal(result),
        _making(result),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Sedge: {escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


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
    on_arrival = max(rows, key=lambda row: row.before.mean)
    trained = max(rows, key=lambda row: row.after.mean)
    return (
        "The model that is best <em>as it arrives</em> comes from "
        f"{_spoken(on_arrival, on_arrival.before)}; "
        f"the best <em>after local training</em> from {_spoken(trained, trained.after)}."
    )


def _spoken(row: Headline, accuracy: Spread) -> str:
    return (
        f"<strong>{escape(row.name)}</strong> ({_unbroken(accuracy.mean)} on average, "
        f"{_unbroken(accuracy.worst_tenth)} for the worst tenth of the devices)"
    )


def _results(result: Result) -> str:
    rows = [headline(strategy) for strategy in result.strategies]
    best = [max((value(row) for row in rows), default=0.0) for _, value in _COLUMNS]
    body: list[str] = []
    for i, row in enumerate(rows):
        cells = [f'<td class="name" style="{_series(i)}">{escape(row.name)}</td>']
        for (_, value), top in zip(_COLUMNS, best, strict=True):
            # Only where there is something to compare, and as the reader sees it: rounded.
            is_best = len(rows) > 1 and percent(value(row)) == percent(top)
            mark = ' class="best"' if is_best else ""
            cells.append(f"<td{mark}>{percent(value(row))}</td>")
        for num_bytes, of_dense in ((row.up, row.up_of_dense), (row.down, row.down_of_dense)):
            cells.append(f'<td class="group">{size(num_bytes)}</td><td>{percent(of_dense)}</td>')
        cells.append(f'<td class="group">{duration(row.seconds)}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = (
        '<tr class="groups"><th></th><th colspan="2">Before local training</th>'
        '<th colspan="2">After local training</th><th colspan="2" class="group">Up, all rounds</th>'
        '<th colspan="2" class="group">Down, all rounds</th><th class="group">Time</th></tr>\n'
        f"<tr><th>strategy</th>{''.join(f'<th>{name}</th>' for name, _ in _COLUMNS)}"
        '<th class="group">bytes</th><th>of dense</th><th class="group">bytes</th><th>of dense</th>'
        '<th class="group"></th></tr>'
    )
    return (
        f'<section>{_table(head, body)}\n<p class="caption below">'
        "Accuracy is measured on each device's own test examples, over all devices, each counting once. "
        "Bytes are counted at the devices' sockets, with every header and repeat; 100 % of dense is one "
        f"plain float32 model for each update.</p>\n{_note(rows)}</section>"
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
            f"FedAvg followed by local training reaches {_unbroken(plain.after.mean)} here "
            f"({_unbroken(plain.after.worst_tenth)} for the worst tenth)."
        )
    return f'<p class="note">{found} {advice}</p>'


def _rounds(result: Result) -> str:
    return _section(
        "Accuracy by round",
        "Mean over the devices that trained in the round, so it also varies with who they were. "
        "Each plot has its own scale.",
        _keys(result) + _panels(plots.accuracy_panels(result)),
    )


def _devices(result: Result) -> str:
    worst = [f"{row.worst.device} under {row.name}" for row in map(headline, result.strategies)]
    return _section(
        "Every device",
        "The final evaluation. A stroke leads from a device's accuracy before local training (grey) "
        f"to that after it (colour); red where training made it worse. Worst off: {listed(worst)}.",
        _panels(plots.device_panels(result)) + _device_table(result.strategies),
    )


def _device_table(strategies: Sequence[StrategyResult]) -> str:
    """One row for each device that any strategy evaluated, folded away."""
    by_name = [{device.device: device for device in s.devices} for s in strategies]
    names = sorted(set().union(*by_name))
    worst = [headline(strategy).worst.device for strategy in strategies]
    body: list[str] = []
    for name in names:
        facts = next(devices[name] for devices in by_name if name in devices)
        cells = [
            f"<td>{escape(name)}</td><td>{facts.num_train:,}</td><td>{facts.num_test:,}</td>"
            f"<td>{facts.num_classes}</td>"
        ]
        for devices, worst_name in zip(by_name, worst, strict=True):
            found = devices.get(name)
            mark = ' class="group worst"' if name == worst_name else ' class="group"'
            before, after = (percent(found.before), percent(found.after)) if found else ("", "")
            cells.append(f"<td{mark}>{before}</td><td>{after}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    groups = "".join(f'<th colspan="2" class="group">{escape(s.name)}</th>' for s in strategies)
    columns = '<th class="group">before</th><th>after</th>' * len(strategies)
    head = (
        f'<tr class="groups"><th></th><th colspan="3">examples</th>{groups}</tr>\n'
        f"<tr><th>device</th><th>train</th><th>test</th><th>classes</th>{columns}</tr>"
    )
    rows = "\n".join(body)
    return (
        f'\n<details class="card"><summary>All {len(names):,} devices</summary>'
        f'<div class="scroll"><table><thead>{head}</thead>\n<tbody>{rows}</tbody></table>'
        "</div></details>"
    )


def _bytes(result: Result) -> str:
    body = [
        f'<tr><td class="name" style="{_series(i)}">{escape(s.name)}</td>'
        f"<td>{size(s.bytes.update_payload_mean)}</td>"
        f"<td>{_share(s.bytes.update_payload_mean, s.bytes.dense_update)}</td>"
        f'<td class="group">{size(s.bytes.device_up)}</td><td>{size(s.bytes.device_down)}</td>'
        f'<td class="group">{size(s.bytes.coordinator_up)}</td>'
        f"<td>{size(s.bytes.coordinator_down)}</td></tr>"
        for i, s in enumerate(result.strategies)
    ]
    head = (
        '<tr class="groups"><th></th><th colspan="2">One coded update</th>'
        '<th colspan="2" class="group">All devices, in total</th>'
        '<th colspan="2" class="group">Coordinator, in total</th></tr>\n'
        "<tr><th>strategy</th><th>bytes</th><th>of dense</th>"
        '<th class="group">sent</th><th>received</th><th class="group">sent</th><th>received</th></tr>'
    )
    return _section(
        "Bytes on the wire",
        "What one round costs one device, against sending the whole model as plain float32; the scale is "
        "logarithmic. The totals below also hold the joining of the fleet and the final evaluation. "
        "The coordinator sends a shared model once, and every device receives it.",
        _keys(result) + _panels(plots.traffic_panels(result)) + "<br>\n" + _table(head, body),
    )


def _personal(result: Result) -> str:
    panels = plots.personal_panels(result)
    if not panels:
        return ""
    return _section(
        "Where the personal parameters sit",
        "Share of a device's personal parameters in each tensor, and their mean number per device.",
        _panels(panels),
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
    for strategy in result.strategies:
        options = ", ".join(f"{key} {value}" for key, value in strategy.options.items())
        rounds = f"{len(strategy.rounds)} rounds"
        facts.append((escape(strategy.name), escape(f"{rounds}; {options}" if options else rounds)))
    rows = "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return _section("How this was made", "", f"<dl>{rows}</dl>")


def _section(title: str, caption: str, body: str) -> str:
    words = f'<p class="caption">{escape(caption)}</p>\n' if caption else ""
    return f"<section><h2>{escape(title)}</h2>\n{words}{body}</section>"


def _table(head: str, body: Iterable[str]) -> str:
    rows = "\n".join(body)
    return f'<div class="card scroll"><table><thead>{head}</thead>\n<tbody>{rows}</tbody></table></div>'


def _panels(panels: Iterable[plots.Panel]) -> str:
    cards = "\n".join(
        f'<figure class="card"><figcaption>{escape(panel.title)}</figcaption>{panel.svg}</figure>'
        for panel in panels
    )
    return f'<div class="panels">{cards}</div>'


def _keys(result: Result) -> str:
    keys = "".join(
        f'<span class="key" style="{_series(i)}">{escape(strategy.name)}</span>'
        for i, strategy in enumerate(result.strategies)
    )
    return f'<p class="keys">{keys}</p>\n'


def _unbroken(share: float) -> str:
    """A percentage that a line break does not part from its sign."""
    return percent(share).replace(" ", "&nbsp;")


def _series(i: int) -> str:
    return f"--series: var(--series-{i % NUM_SERIES + 1})"


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else ""


def _is_fedavg(name: str) -> bool:
    return name.lower().replace("-", "").replace("_", "").startswith("fedavg")
