"""The emulator's tests import models from folders that pytest deletes."""

import sys
from pathlib import Path

import pytest


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
