"""All settings as one list, and what must be equal in runs that are compared."""

import msgspec
from msgspec.structs import replace
from tests.emulate.sample import SAMPLE

from sedge_emulate.config import EmulationConfig, StrategyConfig
from sedge_emulate.device_classes import ClassConfig
from sedge_emulate.settings import conditions, conditions_of, differing, flat


def test_a_setting_has_the_key_that_the_file_gives_it() -> None:
    settings = {
        "seed": 42,
        "data": {"alpha": 0.1},
        "classes": [{"name": "Pi", "link": {"loss": 0.5}}, {"name": "solar", "link": {}}],
        "strategies": [{"name": "fedobp", "label": "mine", "options": {"quantile": 0.9}}],
        "widths": [0.0, 0.5],
        "real": [],
    }
    assert dict(flat(settings)) == {
        "seed": 42,
        "data.alpha": 0.1,
        "classes[Pi].name": "Pi",
        "classes[Pi].link.loss": 0.5,
        "classes[solar].name": "solar",
        "classes[solar].link": {},
        "strategies[mine].name": "fedobp",
        "strategies[mine].label": "mine",
        "strategies[mine].options.quantile": 0.9,
        "widths": [0.0, 0.5],
        "real": [],
    }


def test_neither_seed_nor_workers_nor_other_strategies_matter() -> None:
    other = {**SAMPLE.settings, "seed": 7, "workers": 3, "strategies": [{"name": "fedavg"}]}
    assert conditions(replace(SAMPLE, seed=7, settings=other)) == conditions(SAMPLE)
    for changed in (
        replace(SAMPLE, settings={**SAMPLE.settings, "devices": 13}),
        replace(SAMPLE, link="mosquitto"),
        replace(SAMPLE, model=replace(SAMPLE.model, parameters=1)),
    ):
        assert conditions(changed) != conditions(SAMPLE)


def test_the_conditions_of_a_strategy_are_its_table() -> None:
    found = conditions_of(SAMPLE, "fedobp")
    assert found["strategies[fedobp].options.quantile"] == 0.99
    # Of the fleet's table only the widths, which not every strategy has.
    assert [key for key in found if not key.startswith("strategies[")] == ["model.widths"]


def test_settings_of_another_version_are_read_as_this_one_means_them() -> None:
    """A key that they lack is as by default, one that is gone says nothing; what differs has its key."""
    classes = (ClassConfig("a"), ClassConfig("b"))
    fleet = EmulationConfig(strategies=(StrategyConfig(name="fedavg"),), classes=classes)
    settings = msgspec.json.decode(msgspec.json.encode(fleet))
    del settings["data"]["alpha"], settings["classes"][1]["absent_rounds"]
    settings["classes"][0]["link"]["gone"] = settings["gone"] = 3
    assert not list(differing(settings, fleet))
    other = replace(fleet, classes=(classes[0], ClassConfig("b", absent_rounds=2)))
    assert list(differing(settings, other)) == [("classes[b].absent_rounds", 0, 2)]
    settings["devices"] = 3
    assert list(differing(settings, fleet)) == [("devices", 3, 20)]
    assert "classes[a].name" in {key for key, *_ in differing(settings, replace(fleet, classes=()))}
