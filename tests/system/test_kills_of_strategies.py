"""``kill -9`` in runs whose devices and coordinator remember more than a model.

A run that was disturbed ends as one that was not: the same global models, bit for bit, the same orders, and
on every device the same things kept.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.trio import DEVICES, RUN, Course, Trio, make_forms
from tools.bench.parts.real_fleet import wait_until

from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.store.rows import OrderRow

pytestmark = pytest.mark.fleet

ROUNDS = 4
# FedPURIN's patches are blobs of more than 32 KiB, coded against the masks that both sides hold, until
# beta; from then on each is one that the device has remembered. Ditto owes what its codec left out.
RUNS = {
    "fedpurin": ("beta = 2", 'values = "bf16"', ("mask", "patch")),
    "ditto": ("lam = 0.5", 'values = "int8"\nfraction = 0.2', ("residual",)),
}
MORE = """
[training]
local_epochs = {epochs}
learning_rate = 0.05
momentum = 0.5
[codec]
{codec}
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_forms(tmp_path_factory.mktemp("forms"), hidden=600)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    # The last device trains for so long that the others are killed while a round is open.
    trio = Trio(tmp_path_factory.mktemp("trio"), (200, 200, 1700))
    try:
        yield trio
    finally:
        trio.close()


def has_sent(trio: Trio, run: str, number: int, *devices: str) -> None:
    """Wait until the updates of these devices in a round are stored."""
    for device in devices:
        wait_until(
            lambda name=device: trio.store.update(run, number, name) is not None,  # type: ignore[misc]
            60,
            f"run {run}, round {number}: the update of {device}",
        )


def disturb(trio: Trio, run: str) -> None:
    """Kill everyone at a different moment of the run, and start them again."""
    has_sent(trio, run, 1, "pi-1")
    restart(trio, "pi-1")  # between its two rounds
    has_sent(trio, run, 2, "pi-1")
    restart(trio, "cloud")  # in a round
    has_sent(trio, run, 3, "pi-1", "pi-2")
    restart(trio, "pi-3", "pi-2")  # in its training; between its rounds before and after beta


def restart(trio: Trio, *names: str) -> None:
    assert trio.store.runs()[-1].status == RUNNING
    for name in names:
        trio.fleet.kill(name)
    for name in names:
        trio.start(name)


def given(order: OrderRow) -> tuple[object, ...]:
    """All of an order but its run."""
    patch = order.patch, order.patch_blob, order.patch_context
    return (order.work, order.arrays, order.context, order.model_hash, *patch)


@pytest.mark.parametrize("strategy", RUNS)
def test_a_disturbed_run_ends_as_a_calm_one(strategy: str, trio: Trio, bundles: list[Path]) -> None:
    options, codec, kept = RUNS[strategy]
    more = MORE.format(epochs=10, codec=codec)
    text = RUN.format(strategy=strategy, rounds=ROUNDS, options=options, more=more)
    ends: dict[str, Course] = {}
    for name in (f"{strategy}-calm", f"{strategy}-disturbed"):
        trio.begin(name, bundles, text)
        if name.endswith("disturbed"):
            disturb(trio, name)
        ends[name] = trio.end(name)
    calm, disturbed = ends.values()
    for number in range(1, ROUNDS + 2):
        assert set(disturbed.reports(number)) == set(DEVICES)
        expected, found = calm.orders(number), disturbed.orders(number)
        for device in DEVICES:
            assert given(found[device]) == given(expected[device]), f"{device}, round {number}"
    assert disturbed.run.state.model_hash == calm.run.state.model_hash
    for device in DEVICES:
        entry = calm.kept[device].entry  # of names, each the hash of what it names
        assert None not in [getattr(entry.kept, what) for what in ("model", *kept)]
        assert disturbed.kept[device].entry == entry, device
    if strategy == "fedpurin":
        assert any(order.patch_context for order in calm.orders(3).values())
        for device, order in calm.last_orders.items():
            assert order.patch_blob == calm.kept[device].entry.kept.patch
