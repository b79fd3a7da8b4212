"""The documentation: what is made from the code is up to date, and no link leads nowhere."""

from pathlib import Path

import pytest
from tools.docs.__main__ import REFERENCE, build, reference_page

from sedge_cloud.__main__ import main as cloud
from sedge_edge.__main__ import main as edge
from sedge_emulate.__main__ import main as emulate


def test_the_reference_of_every_program(capsys: pytest.CaptureFixture[str]) -> None:
    page = REFERENCE.read_text()
    for program, words in (
        (cloud, ["reference", "run.toml"]),
        (cloud, ["reference", "cloud.toml"]),
        (edge, ["reference"]),
        (emulate, ["reference"]),
    ):
        assert program(words) == 0
        assert capsys.readouterr().out in page
    assert cloud(["reference", "fedobp"]) == 0
    options = capsys.readouterr().out.partition("\n")[2]
    assert options in page


def test_the_page_is_up_to_date() -> None:
    assert REFERENCE.read_text() == reference_page(), "run: make docs"


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    assert build(tmp_path / "site") == 0
    assert "quantile" in (tmp_path / "site" / "docs" / "reference.html").read_text()
