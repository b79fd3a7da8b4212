"""``sedge-emulate cost``: its arithmetic by hand, and its command on a tiny fleet that really trains."""

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sedge_emulate import cost as costs
from sedge_emulate.__main__ import main
from sedge_emulate.cost import Prices, Use, measured, month
from sedge_emulate.emulation import SharedSetup
from sedge_emulate.result import Result, StrategyResult
from sedge_emulate.run import emulate
from sedge_protocol.errors import DataError

pytestmark = pytest.mark.usefixtures("exported_here")
FLEET = """\
devices = 3
workers = 1
[data]
dataset = "digits"
examples = 120
alpha = 5.0
[rounds]
num_rounds = 3
[trainer]
backend = "onnx"
[[strategies]]
name = "fedavg"
label = "FedAvg"
"""
PRICES = Prices(
    rounds_per_day=2, days=5, online_hours=1, header_bytes=10, kbit_s=8, radio_w=2, train_s=3,
    train_w=4, per_mb=100, per_million_units=1_000_000,
)  # fmt: skip


def test_a_month_by_hand() -> None:
    bill = month(Use(1000, 14_000, 9, 10), Use(600, 800, 5, 6), PRICES)
    pings = 5 * 3600 / 30  # each way
    up, down = 1000 + 9 * 600 + 2 * pings, 14_000 + 9 * 800 + 2 * pings
    assert bill.use == Use(up, down, 9 + 9 * 5, 10 + 9 * 6)
    linked = up + down + 10 * (54 + (up + down) / 1400 + 2 * pings)
    assert bill.link_bytes == pytest.approx(linked)
    assert bill.airtime_s == pytest.approx(linked / 1000)  # a byte takes a millisecond
    assert bill.energy_j == pytest.approx(2 * linked / 1000 + 10 * 3 * 4)
    assert bill.price == pytest.approx(linked / 1e6 * 100 + 64)


def test_no_rounds_cost_what_joining_and_waiting_cost() -> None:
    bill = month(Use(1, 2, 3, 4), Use(5, 6, 7, 8), Prices(0, 30, 0, 0, 0, 0, 0, 0, 0, 0))
    assert bill.use == Use(1, 2, 3, 4)
    assert (bill.link_bytes, bill.energy_j, bill.price) == (3, 0, 0)


@dataclass
class Ran:
    """What the command ran, and what it said."""

    fleet: Path
    text: str
    result: Result


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    fleet, said = tmp_path_factory.mktemp("cost") / "fleet.toml", io.StringIO()
    fleet.write_text(FLEET)
    kept: list[Result] = []

    def keep(*arguments: Any) -> tuple[SharedSetup, Result]:
        shared, result = emulate(*arguments)
        kept.append(result)
        return shared, result

    words = ("--rounds", "3", "--rounds-per-day", "2", "--days", "5", "--per-mb", "2")
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(said):
        patched.setattr(costs, "emulate", keep)
        assert main(["cost", str(fleet), *words]) == 0
    return Ran(fleet, said.getvalue(), *kept)


@pytest.fixture
def strategy(ran: Ran) -> StrategyResult:
    return ran.result.strategies[0]


def test_a_tiny_run_is_measured(strategy: StrategyResult) -> None:
    first, later = measured(strategy)
    begun, *others = strategy.rounds
    assert [r.newcomers for r in strategy.rounds] == [3, 0, 0]
    # Bundle and model in the first round; all of a device's messages fit one unit or more.
    moved = begun.newcomer_up, begun.newcomer_down
    assert first == Use(*(count / 3 for count in (*moved, begun.messages, begun.units)))
    assert moved == (begun.bytes_up, begun.bytes_down)
    assert later.up == sum(r.bytes_up for r in others) / 6
    assert later.down == sum(r.bytes_down for r in others) / 6
    # Down: order, model in one chunk or two, HAVE or COMMITTED; up: GETs and OFFER. No message is
    # without a unit, and no unit of one has fewer than 1 or more than 5120 bytes.
    assert 5 <= later.messages <= 12 and later.units >= later.messages
    both = later.up + later.down
    assert both / 5120 <= later.units <= later.messages + both / 5120


def test_the_command_says_what_was_measured(ran: Ran, strategy: StrategyResult) -> None:
    first, later = measured(strategy)
    prices = Prices(2, 5, 24, 80, 100, 1, 0, 3, 2, 0)
    bill = month(first, later, prices)
    lines = [line.split("│") for line in ran.text.splitlines() if "│" in line]
    rows = {name.strip(): [cell.strip() for cell in cells[:3]] for _, name, *cells in lines}
    names = ("bytes up", "bytes down", "messages", "units of 5 KB")
    for name, key in zip(names, ("up", "down", "messages", "units"), strict=True):
        assert rows[name] == [f"{getattr(use, key):,.0f}" for use in (first, later, bill.use)]
    assert rows["airtime at 100 kbit/s"][2] == f"{bill.airtime_s:,.0f} s"
    assert rows["price"][2] == f"{bill.price:,.4f}"


def test_one_round_is_too_few(ran: Ran, strategy: StrategyResult) -> None:
    for rounds in (strategy.rounds[:1], []):
        with pytest.raises(DataError, match="no device took part twice"):
            measured(replace(strategy, rounds=rounds))
    with pytest.raises(SystemExit):
        main(["cost", str(ran.fleet), "--days", "-1"])
