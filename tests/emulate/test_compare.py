"""Runs of several seeds: their mean and spread by hand, and which runs may not be compared."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from sedge_emulate.__main__ import main
from sedge_emulate.compare import compared, escaped, latex
from sedge_emulate.result import Result, Spread, StrategyResult, read_json, write_json
from sedge_protocol.errors import DataError
from sedge_protocol.wire.objective import ABSOLUTE_ERROR

_SAMPLE = read_json(Path(__file__).parents[1] / "vectors" / "result_format_1.json")
BEFORE = {42: 0.5, 43: 0.6, 44: 0.64}


def of_seed(seed: int, change: Callable[[Result], Result] | None = None) -> Result:
    """The sample as another seed could have made it."""

    def turned(strategy: StrategyResult) -> StrategyResult:
        return replace(strategy, before=Spread(BEFORE[seed], 0.25, 0.1, 0.9))

    strategies = [turned(strategy) for strategy in _SAMPLE.strategies]
    settings = {**_SAMPLE.settings, "seed": seed}
    found = replace(_SAMPLE, seed=seed, strategies=strategies, settings=settings)
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
    assert [row.name for row in found.strategies] == [s.name for s in _SAMPLE.strategies]
    for row in found.strategies:
        assert row.seeds == [42, 43, 44]
        before = row.figures["before"]
        assert before.mean == pytest.approx(0.58)
        assert before.std == pytest.approx(0.0721110255)  # over n - 1 = 2
        assert before.std == pytest.approx(statistics.stdev(BEFORE.values()))
        assert row.figures["before_worst_tenth"].std == 0
    avg = found.strategies[1].figures
    assert (avg["bytes_up"].mean, avg["bytes_down"].mean) == (30_000, 3_000_000)
    assert avg["global_model"].mean == 0.75


def test_the_first_strategy_minus_another_run_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(result: Result) -> Result:
        [first, *rest] = result.strategies
        gain = {42: 0.01, 43: 0.02, 44: 0.03}[result.seed]
        better = replace(first, before=replace(first.before, mean=first.before.mean + gain))
        return replace(result, strategies=[better, *rest])

    folder = written(tmp_path, *(of_seed(seed, shifted) for seed in BEFORE))
    found = compared([folder])
    assert [row.name for row in found.differences] == ["local - fedavg", "local - fedobp"]
    # The seeds differ by 14 points and the strategies by 1 to 3.
    before = found.differences[0].figures["before"]
    assert before.mean == pytest.approx(0.02)
    assert before.std == pytest.approx(0.01)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", str(folder)]) == 0
    assert "+2.0 ± 1.0" in capsys.readouterr().out


def test_one_run_has_no_spread(runs: Path) -> None:
    found = compared([runs / "seed-43"])
    assert found.strategies[0].figures["before"].std is None
    assert "$\\pm$" not in latex(found)


def test_runs_of_different_strategies_are_one_table(tmp_path: Path) -> None:
    def only(place: int) -> Callable[[Result], Result]:
        def change(result: Result) -> Result:
            settings = {**result.settings, "strategies": result.settings["strategies"][place:][:1]}
            return replace(result, strategies=result.strategies[place:][:1], settings=settings)

        return change

    first = written(tmp_path / "a", of_seed(42, only(0)), of_seed(43, only(0)))
    second = written(tmp_path / "b", of_seed(42, only(1)))
    found = compared([first, second])
    assert [(row.name, row.seeds) for row in found.strategies] == [
        (_SAMPLE.strategies[0].name, [42, 43]),
        (_SAMPLE.strategies[1].name, [42]),
    ]


def replaced(**changes: object) -> Callable[[Result], Result]:
    def change(result: Result) -> Result:
        return replace(result, **changes)

    return change


def with_setting(table: str, key: str, value: object) -> Callable[[Result], Result]:
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
        (
            with_setting("data", "alpha", 0.5),
            r"data\.alpha: 0\.1 in .*seed-42/result\.json, 0\.5 in",
        ),
        (with_setting("rounds", "num_rounds", 9), r"rounds\.num_rounds: 2 in .*, 9 in"),
        (replaced(dataset="digits"), "data: 'fashion-mnist' in"),
        (replaced(data_sha256="ff"), "data_sha256: "),
        (replaced(metric=ABSOLUTE_ERROR), "metric: 'accuracy' in .*, 'mean_abs"),
        (other_quantile, r"strategies\[fedobp\]\.options\.quantile: 0\.99 in .*, 0\.5 in"),
        (replaced(settings={}), "no settings, expected .*: run it again"),
    ],
)
def test_runs_that_are_not_comparable(
    tmp_path: Path, change: Callable[[Result], Result], message: str
) -> None:
    folder = written(tmp_path, of_seed(42), of_seed(43, change))
    with pytest.raises(DataError, match=message):
        compared([folder])


def test_a_seed_counts_once(runs: Path) -> None:
    with pytest.raises(DataError, match=r"seed 42 in .* and in .*, expected each seed once"):
        compared([runs, runs / "seed-42"])


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no result\.json, expected one here or in seed-\*"):
        compared([tmp_path])


def test_a_folder_with_two_kinds_of_results(runs: Path) -> None:
    write_json(of_seed(42), runs / "result.json")
    with pytest.raises(DataError, match=r"both a result\.json and some in seed-\*"):
        compared([runs])


def test_the_tables(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", str(runs)]) == 0
    said = capsys.readouterr().out
    assert "58.0 ± 7.2" in said
    assert "\nfedavg " in said, "a name is broken"
    assert "over 3 seeds (42, 43, 44)" in said
    assert main(["compare", str(runs), "--latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("% fashion-mnist, 12 devices")
    assert lines[1] == r"\begin{tabular}{lrrrrrrrrrrr}"
    assert lines[3].startswith(
        r"Strategy & Before, pooled, \% & Mean, \% & Worst 10 \% & After, pooled"
    )
    assert lines[5].startswith(r"local & 85.1 $\pm$ 0.0 & 58.0 $\pm$ 7.2 & 25.0 $\pm$ 0.0 &")
    assert lines[5].count("&") == 11
    assert lines[5].endswith(r"\\")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert main(["compare", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["strategies"][0]["figures"]["before"]["mean"] == pytest.approx(0.58)


def test_another_metric_is_no_percentage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = replaced(metric=ABSOLUTE_ERROR)
    folder = written(tmp_path, of_seed(42, change), of_seed(43, change))
    assert main(["compare", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "0.55 ± 0.071" in said
    assert "mean absolute error, pooled over all test examples" in said


def test_names_are_text() -> None:
    assert escaped(r"a_b & 5 % of $x^2$ {~} \x <y> #1|") == (
        r"a\_b \& 5 \% of \$x\textasciicircum{}2\$ \{\textasciitilde{}\} \textbackslash{}x "
        r"\textless{}y\textgreater{} \#1\textbar{}"
    )
