"""Runs of several seeds: means, spreads and tests by hand, and which runs may not be compared."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.emulate.sample import SAMPLE

from sedge_emulate.__main__ import main
from sedge_emulate.compare.comparison import compared
from sedge_emulate.compare.grids import escaped
from sedge_emulate.result import DeviceResult, Result, StrategyResult, write_json
from sedge_protocol.errors import DataError
from sedge_protocol.wire.objective import ABSOLUTE_ERROR

BEFORE = {42: 0.5, 43: 0.6, 44: 0.64}
Change = Callable[[Result], Result]


def moved(strategy: StrategyResult, by: Callable[[DeviceResult], float]) -> StrategyResult:
    """The strategy with another metric before training on each device."""
    return replace(strategy, devices=[replace(d, before=by(d)) for d in strategy.devices])


def of_seed(seed: int, change: Change | None = None) -> Result:
    """The sample as another seed could have made it: the worst device .1 below all others."""
    worst = SAMPLE.strategies[0].devices[0].device

    def before(device: DeviceResult) -> float:
        return BEFORE[seed] - 0.1 * (device.device == worst)

    strategies = [moved(strategy, before) for strategy in SAMPLE.strategies]
    settings = {**SAMPLE.settings, "seed": seed}
    found = replace(SAMPLE, seed=seed, strategies=strategies, settings=settings)
    return found if change is None else change(found)


def written(folder: Path, *results: Result) -> Path:
    for result in results:
        write_json(result, folder / f"seed-{result.seed}" / "result.json")
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return written(tmp_path / "runs", *map(of_seed, BEFORE))


def test_mean_and_sample_standard_deviation(runs: Path) -> None:
    found = compared([runs])
    assert [row.name for row in found.strategies] == [s.name for s in SAMPLE.strategies]
    for row in found.strategies:
        assert row.seeds == [42, 43, 44]
        before, worst = row.figures["before"], row.figures["before_worst_tenth"]
        assert before.mean == pytest.approx(0.58 - 0.1 / 12)
        assert before.std == pytest.approx(0.0721110255)  # over n - 1 = 2
        assert before.std == pytest.approx(statistics.stdev(BEFORE.values()))
        assert worst.mean == pytest.approx(0.48)
        assert row.figures["before_spread"].mean == pytest.approx(0.1 / 12**0.5)  # of 12 devices
    avg = found.strategies[1].figures
    assert (avg["bytes_up"].mean, avg["bytes_down"].mean) == (30_000, 3_000_000)
    assert avg["global_model"].mean == 0.75


def better_first(result: Result) -> Result:
    """The first strategy is better by 1 to 3 points, and the seeds differ by 14."""
    [first, *rest] = result.strategies
    gain = {42: 0.01, 43: 0.02, 44: 0.03}[result.seed]
    return replace(result, strategies=[moved(first, lambda d: d.before + gain), *rest])


def other_split(result: Result) -> Result:
    """Devices with another number of examples under each seed."""
    strategies = [
        replace(s, devices=[replace(d, num_train=d.num_train + result.seed) for d in s.devices])
        for s in result.strategies
    ]
    return better_first(replace(result, strategies=strategies))


@pytest.mark.parametrize(("change", "devices"), [(better_first, 12), (other_split, 36)])
def test_the_first_strategy_minus_another_run_by_run_and_device_by_device(
    tmp_path: Path, change: Change, devices: int
) -> None:
    """The same devices under three seeds are 12, those of three splits 36; all are better."""
    found = compared([written(tmp_path, *(of_seed(seed, change) for seed in BEFORE))])
    assert [row.name for row in found.differences] == ["local - fedavg", "local - fedobp"]
    before, tests = found.differences[0].figures["before"], found.differences[0].tests["before"]
    assert before.mean == pytest.approx(0.02)
    assert before.std == pytest.approx(0.01)
    assert (tests.devices, tests.better, tests.worse) == (devices, devices, 0)
    assert tests.mean == pytest.approx(0.02)
    assert tests.sign_p == pytest.approx(2 / 2**devices)


def absent(result: Result) -> Result:
    """Of two classes one has missed the last round of two, and a third one, of a device, both."""
    [five, solar] = result.settings["classes"]
    classes = [five, {**solar, "absent_rounds": 1}, {**solar, "name": "new", "absent_rounds": 2}]
    [first, *rest] = result.strategies
    [one, *others] = first.devices
    first = replace(first, devices=[replace(one, class_name="new", before=0.1), *others])
    settings = {**result.settings, "classes": classes}
    return replace(result, settings=settings, strategies=[first, *rest])


def test_devices_that_missed_rounds_have_moments_of_their_own(tmp_path: Path) -> None:
    [row, *_] = compared([written(tmp_path, of_seed(42, absent))]).strategies
    solar = [d for d in SAMPLE.strategies[0].devices if d.class_name == "solar node"]
    assert row.figures["newcomer"].mean == 0.1
    assert row.figures["away"].mean == pytest.approx(0.5)
    assert row.figures["before"].mean == pytest.approx(0.5)
    there = [d for d in SAMPLE.strategies[0].devices[1:] if d not in solar]
    assert row.figures["after"].mean == pytest.approx(statistics.fmean(d.after for d in there))


def test_runs_of_different_strategies_are_one_table(tmp_path: Path) -> None:
    def only(place: int, seed: int) -> Result:
        result, kept = of_seed(seed), slice(place, place + 1)
        settings = {**result.settings, "strategies": result.settings["strategies"][kept]}
        return replace(result, strategies=result.strategies[kept], settings=settings)

    first = written(tmp_path / "a", only(0, 42), only(0, 43))
    second = written(tmp_path / "b", only(1, 42))
    found = compared([first, second])
    assert [(row.name, row.seeds) for row in found.strategies] == [
        (SAMPLE.strategies[0].name, [42, 43]),
        (SAMPLE.strategies[1].name, [42]),
    ]
    assert found.strategies[1].figures["before"].std is None


def replaced(**changes: object) -> Change:
    def change(result: Result) -> Result:
        return replace(result, **changes)

    return change


def with_setting(table: str, key: str, value: object) -> Change:
    def change(result: Result) -> Result:
        changed = {**result.settings[table], key: value}
        return replace(result, settings={**result.settings, table: changed})

    return change


def other_quantile(result: Result) -> Result:
    found = json.loads(json.dumps(result.settings))
    found["strategies"][2]["options"]["quantile"] = 0.5
    return replace(result, settings=found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_setting("data", "alpha", 0.5), r"data\.alpha: 0\.1 in .*42/result\.json, 0\.5 in"),
        (with_setting("rounds", "num_rounds", 9), r"rounds\.num_rounds: 2 in .*, 9 in"),
        (replaced(dataset="digits"), "data: 'fashion-mnist' in"),
        (replaced(data_sha256="ff"), "data_sha256: "),
        (replaced(metric=ABSOLUTE_ERROR), "metric: 'accuracy' in .*, 'mean_abs"),
        (other_quantile, r"strategies\[fedobp\]\.options\.quantile: 0\.99 in .*, 0\.5 in"),
        (replaced(settings={}), "no settings, expected .*: run it again"),
    ],
)
def test_runs_that_are_not_comparable(tmp_path: Path, change: Change, message: str) -> None:
    with pytest.raises(DataError, match=message):
        compared([written(tmp_path, of_seed(42), of_seed(43, change))])


def test_a_seed_counts_once(runs: Path) -> None:
    with pytest.raises(DataError, match=r"seed 42 in .* and in .*, expected each seed once"):
        compared([runs, runs / "seed-42"])


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no result\.json, expected either .* or some in seed-\*"):
        compared([tmp_path])


def test_a_folder_with_two_kinds_of_results(runs: Path) -> None:
    write_json(of_seed(42), runs / "result.json")
    with pytest.raises(DataError, match=r"both a result\.json and some in seed-\*"):
        compared([runs])


def test_the_forms(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "57.2 ± 7.2" in said
    assert "\nfedavg " in said, "a name is broken"
    assert "over 3 seeds (42, 43, 44)" in said
    assert main(["compare", str(runs), "--latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("% fashion-mnist, 12 devices")
    assert lines[1] == r"\begin{tabular}{lrrrrrr}"
    assert lines[3].startswith(r"Before & Pooled, \% & Mean, \% & Worst 10 \% & Spread, \% & Up,")
    assert lines[5].startswith(r"local & 57.2 $\pm$ 7.2 &")
    assert {line.count("&") for line in lines[3:8] if "&" in line} == {6}
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert main(["compare", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategies"][0]["figures"]["before"]["mean"] == pytest.approx(0.58 - 0.1 / 12)
    page = runs / "page.html"
    assert main(["compare", str(runs), "--html", str(page)]) == 0
    text = page.read_text()
    assert "57.2 ± 7.2" in text
    assert text.count('area"') == 2 * 3  # a band for each strategy, before and after


def test_what_it_took_to_get_to_a_value(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    best = max(r.after_mean for r in SAMPLE.strategies[1].rounds)
    assert main(["compare", str(runs), "--json", "--target", str(best)]) == 0
    rows = json.loads(capsys.readouterr().out)["reached"]
    [row] = [row for row in rows if (row["name"], row["when"]) == ("fedavg", "after")]
    reached = next(r for r in SAMPLE.strategies[1].rounds if r.after_mean == best)
    assert (row["seeds"], row["rounds"]["mean"]) == ([42, 43, 44], reached.round)
    assert row["seconds"]["mean"] == pytest.approx(reached.closed_s)
    moved = [r.bytes_up + r.bytes_down for r in SAMPLE.strategies[1].rounds[: reached.round]]
    assert row["bytes"]["mean"] == pytest.approx(sum(moved) / SAMPLE.devices)
    assert main(["compare", str(runs), "--target", "1"]) == 0
    assert f"not reached, best {100 * best:.1f} %" in capsys.readouterr().out
    assert main(["compare", str(runs), "--target", "85"]) == 2
    assert "--target: found 85.0, expected a fraction from 0 to 1" in capsys.readouterr().err


def test_unequal_work_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def twice(result: Result) -> Result:
        [first, *rest] = [replace(s, epochs=1) for s in result.strategies]
        return replace(result, strategies=[replace(first, epochs=2), *rest])

    assert main(["compare", str(written(tmp_path, of_seed(42, twice)))]) == 0
    said = capsys.readouterr().out
    assert "Training epochs per round: fedavg and fedobp 1; local 2." in said


def test_an_error_is_no_percentage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = replaced(metric=ABSOLUTE_ERROR)
    folder = written(tmp_path, of_seed(42, change), of_seed(43, change))
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "0.5417 ±" in said
    assert "mean absolute error: pooled over all test examples" in said


def test_names_are_text() -> None:
    assert escaped(r"a_b & 5 % of $x^2$ {~} \x <y> #1|") == (
        r"a\_b \& 5 \% of \$x\textasciicircum{}2\$ \{\textasciitilde{}\} \textbackslash{}x "
        r"\textless{}y\textgreater{} \#1\textbar{}"
    )
