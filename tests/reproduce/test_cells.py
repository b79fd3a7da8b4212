"""The tables of published figures: what stands in them can be played."""

import pytest
from tools.reproduce.cells import FIRST_ROUNDS, SHORT, TABLES, Cell, Table

from sedge_cloud.config import RunConfig
from sedge_cloud.run_file import check_run

CELLS = [
    pytest.param(table, cell, id=f"{table.name}-{cell.name}")
    for table in TABLES.values()
    for cell in table.cells
]


@pytest.mark.parametrize(("table", "cell"), CELLS)
def test_every_cell_is_a_run_of_a_known_strategy(table: Table, cell: Cell) -> None:
    setting = table.setting
    run = RunConfig(
        strategy=cell.strategy,
        options=cell.options,
        num_rounds=table.rounds,
        min_available_devices=setting.devices,
        evaluate_every=setting.checkpoint,
        training=setting.training,
    )
    assert check_run(run) == run


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_what_was_published_is_measured(table: Table) -> None:
    names = [cell.name for cell in table.cells]
    assert len(set(names)) == len(names)
    assert table.best_of in ("before", "after")
    for cell in table.cells:
        # A figure of a later round than the table's own is there for longer runs.
        for number in (*cell.published, *cell.published_after):
            assert number % table.setting.checkpoint == 0
        figures = [*cell.published.values(), *cell.published_after.values(), cell.best or 50.0]
        assert all(20 < figure < 100 for figure in figures)


def test_the_short_form_and_the_first_rounds_are_cells() -> None:
    for table, cell in SHORT:
        assert cell in [known.name for known in TABLES[table].cells]
    known = {cell.name for table in TABLES.values() for cell in table.cells}
    assert {cell for cell, _ in FIRST_ROUNDS} <= known
    assert all(len(rounds) == 10 for rounds in FIRST_ROUNDS.values())
