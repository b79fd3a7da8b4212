"""Progress: the estimate of the time left, the live table and the plain lines, on a clock of our own."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from sedge_emulate.progress import Progress, time_left_s
from sedge_emulate.result import RoundResult


def a_round(number: int) -> RoundResult:
    """Odd rounds have one late update."""
    return RoundResult(
        round=number, before_mean=0.5, after_mean=0.625, train_loss=0.5, num_updates=2,
        late=number % 2, seconds=4.0, bytes_up=60_000, bytes_down=6_000_000,
        coordinator_up=2_000_000, coordinator_down=60_000,
    )  # fmt: skip


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("round_s", "rounds", "in_s", "expected"),
    [
        ([], 5, 0.0, None),
        ([], 0, 0.0, 0.0),
        ([4.0], 3, 0.0, 12.0),
        ([4.0], 3, 1.5, 10.5),
        ([4.0], 3, 99.0, 8.0),
        ([2.0, 4.0, 6.0], 1, 1.0, 3.0),
        ([4.0], 0, 3.0, 0.0),
    ],
)
def test_time_left(round_s: list[float], rounds: int, in_s: float, expected: float | None) -> None:
    assert time_left_s(round_s, rounds, in_s) == expected


def test_plain_lines_where_no_one_watches() -> None:
    clock, file = Clock(), io.StringIO()
    with Progress(Console(file=file, width=40), clock) as progress:
        progress.note("data: fashion-mnist [real]")
        progress.strategy("fedobp", 3)
        for number in (1, 2):
            progress.round_opened(number, 3)
            progress.update_received(number, 1, 3)
            clock.now += 4
            progress.round_closed(a_round(number))
        progress.finished()
    assert file.getvalue().splitlines() == [
        "data: fashion-mnist [real]",
        "fedobp: 3 rounds",
        "fedobp round 1/3: 2 devices, 1 late, accuracy 50.0 % -> 62.5 %, loss 0.500, "
        "a device ↑ 20.0 kB ↓ 2.00 MB, coordinator ↑ 2.00 MB ↓ 60.0 kB, 4.0 s, 8.0 s left",
        "fedobp round 2/3: 2 devices, accuracy 50.0 % -> 62.5 %, loss 0.500, "
        "a device ↑ 30.0 kB ↓ 3.00 MB, coordinator ↑ 2.00 MB ↓ 60.0 kB, 4.0 s, 4.0 s left",
        "fedobp: 2 rounds in 8.0 s",
    ]


def test_rounds_are_counted_and_not_called_by_their_numbers() -> None:
    """Evaluations have numbers too, and two rounds had closed before this start."""
    file = io.StringIO()
    with Progress(Console(file=file, width=40), Clock()) as progress:
        progress.strategy("fedobp", 4)
        progress.round_remembered()
        progress.round_remembered()
        progress.round_opened(5, 10)
        assert shown(progress)[-1] == "round 3: 0 of 10 devices have trained"
        progress.round_closed(a_round(5))
        assert shown(progress)[0].startswith("fedobp 3/4 ")
    line = file.getvalue().splitlines()[1]
    assert line.startswith("fedobp round 3/4: ") and line.endswith(", 4.0 s left")


def test_a_line_says_who_was_late_and_what_went_twice() -> None:
    file = io.StringIO()
    with Progress(Console(file=file, width=40), Clock()) as progress:
        progress.strategy("fedobp", 9)
        progress.round_closed(replace(a_round(2), late_devices=["a", "b", "c"], resent_bytes=1234))
        new = replace(a_round(4), newcomers=1, newcomer_up=50_000, newcomer_down=5_000_000)
        progress.round_closed(new)
    _, line, other, _ = file.getvalue().splitlines()
    assert "2 devices, 3 late, accuracy" in line
    assert "coordinator ↑ 2.00 MB ↓ 60.0 kB, 1.23 kB again, 4.0 s" in line
    assert "a device ↑ 10.0 kB ↓ 1.00 MB, 1 newcomers ↑ 50.0 kB ↓ 5.00 MB, coordinator" in other


# No newcomers in the rounds of this file.
LINKS = "; a device's first round ↑ 0 B ↓ 0 B, coordinator ↑ 2.00 MB ↓ 60.0 kB per round"


def shown(progress: Progress, width: int = 110) -> list[str]:
    """The lines that the live table would draw now, without bars and padding."""
    file = io.StringIO()
    Console(file=file, width=width).print(progress._render())
    return [" ".join(line.split()) for line in file.getvalue().replace("━", "").splitlines()]


def test_the_live_table_follows_a_strategy() -> None:
    clock = Clock()
    progress = Progress(Console(file=io.StringIO()), clock)
    assert shown(progress) == []
    progress.strategy("fedavg", 2)
    assert shown(progress) == ["fedavg 0/2 ↑ 0 B ↓ 0 B 0.0 s", "waiting for devices"]
    progress.round_opened(1, 10)
    progress.update_received(1, 7, 10)
    # A late update of another round says nothing about this one.
    progress.update_received(0, 99, 99)
    assert shown(progress)[-1] == "round 1: 7 of 10 devices have trained"
    clock.now += 4
    progress.round_closed(a_round(1))
    assert shown(progress) == [
        "fedavg 1/2 50.0 % → 62.5 % ↑ 20.0 kB ↓ 2.00 MB 4.0 s 4.0 s left",
        f"between rounds{LINKS}",
    ]
    progress.round_opened(2, 10)
    clock.now += 3
    assert shown(progress)[0].endswith(" 7.0 s 1.0 s left")


def test_a_finished_strategy_stays_and_its_time_stops() -> None:
    clock = Clock()
    progress = Progress(Console(file=io.StringIO()), clock)
    progress.strategy("fedavg", 1)
    progress.round_opened(1, 2)
    clock.now += 4
    progress.round_closed(a_round(1))
    assert shown(progress)[-1] == f"evaluating every device{LINKS}"
    clock.now += 2
    progress.strategy("fedobp", 1)
    clock.now += 50
    first, second, doing = shown(progress)
    assert first == "fedavg 1/1 50.0 % → 62.5 % ↑ 20.0 kB ↓ 2.00 MB 6.0 s"
    assert second.startswith("fedobp 0/1 ") and second.endswith(" 50 s")
    assert doing == "waiting for devices"
    progress.finished()
    progress.finished()
    assert len(shown(progress)) == 2


def test_the_bar_gives_way_in_a_narrow_terminal() -> None:
    progress = Progress(Console(file=io.StringIO()), Clock())
    progress.strategy("fedpurin", 20)
    progress.round_closed(a_round(1))
    for width in (80, 200):
        words = shown(progress, width)[0]
        assert words == "fedpurin 1/20 50.0 % → 62.5 % ↑ 20.0 kB ↓ 2.00 MB 0.0 s 1:16 left"


def test_the_live_table_is_drawn_and_cleaned_up_on_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, width=110, force_terminal=True)
    with pytest.raises(RuntimeError, match="the run fails"), Progress(console, Clock()) as progress:
        progress.strategy("fedavg", 2)
        progress.note("one note")
        raise RuntimeError("the run fails")
    written = file.getvalue()
    assert "one note" in written and "fedavg" in written
    assert written.rstrip().endswith("\x1b[?25h"), "the cursor is back"
