"""The emulator's tests import models from folders that pytest deletes."""

import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def exported_here() -> Generator[None]:
    """Export in this process, which has torch: a fresh one imports it and its exporter for 2 s."""

    def call(function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sedge_emulate.emulation.in_process", call)
        yield


@pytest.fixture(autouse=True)
def _no_modules_without_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Forget what earlier tests imported from there: beside it, no model has a digest."""
    root = str(tmp_path_factory.getbasetemp().parent)
    for name, module in [*sys.modules.items()]:
        spec = vars(module).get("__spec__")
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        gone = [place for place in places if place and place.startswith(root)]
        if any(not Path(place).exists() for place in gone):
            del sys.modules[name]
