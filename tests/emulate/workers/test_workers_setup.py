"""A worker opens the trainer that the fleet file asks for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from sedge_emulate.config import TrainerConfig
from sedge_emulate.training import choice
from sedge_emulate.workers.setup import WorkerSetup, trainer_for
from sedge_protocol.wire.bundle import load


def test_every_option_of_the_fleet_file_reaches_the_trainer(
    setup: WorkerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def open_trainer(*model: object, **options: Any) -> None:
        asked.update(options)

    monkeypatch.setattr(choice, "open_trainer", open_trainer)
    wished = TrainerConfig("vectorised", "bf16", "cuda", True, True, "unfold")
    setup = replace(setup, trainer=wished, processes=3)
    bundle, _ = load(setup.bundle)
    notes: list[str] = []
    trainer_for(setup, bundle, np.zeros((1, 4), np.float32), notes.append)
    asked["note"]("training on the CPU")
    assert notes == ["training on the CPU"]
    assert asked["processes"] == 3
    options = structs.asdict(wished)
    assert all(value != getattr(TrainerConfig(), key) for key, value in options.items())
    assert asked["name"] == options.pop("backend")
    assert {key: asked[key] for key in options} == options
