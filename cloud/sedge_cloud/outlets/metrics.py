"""Exports the facts as Prometheus metrics.

Labels have a bounded number of values: codes, states and the last runs, but never devices.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from sedge_cloud.facts.records import Code, DeviceState, Fleet, RoundFacts
from sedge_cloud.store.records import RunSums

# If there are more runs than this, only the newest ones have metrics.
MAX_RUNS = 20


class _Facts:
    """A Prometheus collector for the facts read at one moment."""

    def __init__(self, facts: Fleet) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        facts = self._facts
        it, disk = facts.coordinator, facts.disk
        yield _gauge("running", "1 while the coordinator shows signs of life", it.running)
        yield _gauge(
            "broker_connected", "1 while the coordinator is connected to its broker", it.link
        )
        yield _gauge("disk_free_bytes", "Free space on the state folder's disk", disk.free)
        yield _gauge("state_bytes", "Size of the state folder", disk.used)
        if disk.daily is not None:
            yield _gauge("state_growth_bytes_per_day", "Growth of the state folder", disk.daily)
        yield _labelled("problems", "Problems by code", "code",
                        Counter(p.code for p in facts.problems), get_args(Code))  # fmt: skip
        yield _labelled("devices", "Devices by state", "state",
                        facts.states, get_args(DeviceState))  # fmt: skip
        yield from self._processes()
        events = CounterMetricFamily(
            "sedge_events", "Events counted by the coordinator", labels=["event"]
        )
        for name, count in sorted(it.counters.items()):
            events.add_metric([name], count)
        yield events
        yield from self._runs()

    def _processes(self) -> Iterator[Metric]:
        labels = ["host", "pid"]
        shards = GaugeMetricFamily("sedge_process_shards", "Shards of a process", labels=labels)
        leads = GaugeMetricFamily(
            "sedge_process_leads", "1 for the process that leads", labels=labels
        )
        for it in self._facts.processes:
            shards.add_metric([it.host, str(it.pid)], it.shards)
            leads.add_metric([it.host, str(it.pid)], float(it.leads))
        yield from (shards, leads)

    def _runs(self) -> Iterator[Metric]:
        runs = self._facts.runs[-MAX_RUNS:]
        closed = CounterMetricFamily("sedge_rounds_closed", "Rounds closed", labels=["run"])
        moved = CounterMetricFamily(
            "sedge_bytes",
            "Bytes in closed rounds: of devices in their first round, of all others, of the coordinator",
            labels=["run", "of", "way"],
        )
        whole = CounterMetricFamily(
            "sedge_whole_models", "Devices that had a model and fetched a whole one", labels=["run"]
        )
        running = GaugeMetricFamily("sedge_run_running", "1 while it is running", labels=["run"])
        gauges = [
            GaugeMetricFamily(f"sedge_round_{name}", text, labels=["run"])
            for name, text in (
                ("updates", "Updates of the open round"),
                ("updates_needed", "Updates needed to close the open round"),
                ("devices_awaited", "Devices that the open round waits for"),
                ("open_seconds", "Time since the round opened"),
            )
        ]
        accuracy = GaugeMetricFamily("sedge_accuracy", "Accuracy in the last closed round",
                                     labels=["run", "moment", "of"])  # fmt: skip
        budgets = GaugeMetricFamily("sedge_privacy_rounds", "Training rounds in a private run's budget",
                                    labels=["run", "of"])  # fmt: skip
        rollouts = GaugeMetricFamily("sedge_rollout_devices", "Devices of a run's newest rollout",
                                     labels=["run", "state"])  # fmt: skip
        for run in runs:
            if run.privacy is not None:
                budgets.add_metric([run.run, "spent"], run.privacy.spent)
                budgets.add_metric([run.run, "all"], run.privacy.rounds)
            for state in ("succeeded", "failed", "waiting") if run.rollout else ():
                rollouts.add_metric([run.run, state], getattr(run.rollout, state))
            closed.add_metric([run.run], run.closed_rounds)
            for labels, count in _moved(run.sums).items():
                moved.add_metric([run.run, *labels], count)
            whole.add_metric([run.run], run.sums.whole)
            running.add_metric([run.run], float(run.status == "running"))
            if run.open is not None and run.open.state == "open":
                for gauge, value in zip(gauges, self._open(run.open), strict=True):
                    gauge.add_metric([run.run], value)
            for moment in ("before", "after"):
                for of, key in (("mean", moment), ("worst_tenth", f"{moment}_worst")):
                    share: float | None = getattr(run.rounds[-1], key) if run.rounds else None
                    if share is not None:
                        accuracy.add_metric([run.run, moment, of], share)
        yield from (closed, moved, whole, running, *gauges, accuracy, budgets, rollouts)

    def _open(self, it: RoundFacts) -> tuple[float, float, float, float]:
        seconds = (self._facts.at - it.opened).total_seconds() if it.opened else 0.0
        awaited = sum(waiting.code != "device_waits" for waiting in it.waiting)
        return it.updates, it.needed, awaited, seconds


def exposition(facts: Fleet) -> tuple[bytes, str]:
    """Return the metrics in Prometheus's text format, and the content type of that format."""
    return generate_latest(_Facts(facts)), CONTENT_TYPE_PLAIN_0_0_4


def _moved(sums: RunSums) -> dict[tuple[str, str], int]:
    """Return total bytes by (owner, direction); ``up`` is what the devices or the coordinator sent."""
    return {
        ("newcomers", "up"): sums.newcomer_up,
        ("newcomers", "down"): sums.newcomer_down,
        ("devices", "up"): sums.up - sums.newcomer_up,
        ("devices", "down"): sums.down - sums.newcomer_down,
        ("devices", "http"): sums.http,
        ("coordinator", "up"): sums.link_up,
        ("coordinator", "down"): sums.link_down,
    }


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sedge_{name}", text, value=float(value))


def _labelled(
    name: str, text: str, label: str, counts: Mapping[Any, int], known: tuple[str, ...]
) -> Metric:
    """Return a gauge with a value for every known label, so that no series disappears at zero."""
    metric = GaugeMetricFamily(f"sedge_{name}", text, labels=[label])
    for value in known:
        metric.add_metric([value], counts.get(value, 0))
    return metric
