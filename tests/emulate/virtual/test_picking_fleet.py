"""A fleet whose devices pick how much of their patch they start with: virtual, and over a real broker."""

from pathlib import Path

from tests.emulate.virtual.test_virtual_fleet import HEAD, emulate, models

PICKING = (
    HEAD
    + """
[rounds]
num_rounds = 3
[training]
learning_rate = 0.05
momentum = 0.7
[codec]
values = "bf16"
fraction = 0.1
[[strategies]]
name = "fedobp"
label = "picked"
options = { prefixes = [0, 20, 200], holdout = 0.2 }
"""
)


def test_devices_pick_alike_over_every_link(tmp_path: Path) -> None:
    virtual = emulate(tmp_path / "memory", PICKING)
    (one,) = virtual.strategies
    # From the second round on all eight devices have a patch, of up to 200 elements; these are means.
    counts = [8 * sum(r.personal.values()) for r in one.rounds]
    assert counts[0] == 0 and all(round(count) % 20 == 0 for count in counts)
    assert 0 < sum(counts) < 2 * 8 * 200
    real = emulate(tmp_path / "mosquitto", PICKING, "--link", "mosquitto")
    assert models(tmp_path / "memory") == models(tmp_path / "mosquitto")
    (two,) = real.strategies
    assert [r.personal for r in one.rounds] == [r.personal for r in two.rounds]
    assert [(d.before, d.after) for d in one.devices] == [(d.before, d.after) for d in two.devices]
