"""A device keeps the stricter of its own value and the coordinator's, key by key."""

import msgspec
import pytest

from sedge_protocol.wire.settings import (
    MAX_SETTINGS_BYTES,
    GatesConfig,
    LimitsConfig,
    Settings,
    Value,
    tightened,
)

OWN = Settings(
    GatesConfig(
        mains=False, unmetered=True, min_battery_percent=50, max_load=2.0, quiet_hours="01:00-05:00"
    ),
    LimitsConfig(orders_per_hour=100, megabytes_per_day=20_000.0),
    "info",
)


@pytest.mark.parametrize(
    ("key", "taken", "ignored"),
    [
        ("gates.mains", (True,), ()),
        ("gates.unmetered", (), (False,)),
        ("gates.min_battery_percent", (60,), (40, 101, "60")),
        ("gates.max_load", (1.5,), (2.5, 0)),
        ("gates.max_temperature_c", (70,), (19, 151)),
        (
            "gates.quiet_hours",
            ("22:00-06:00", "00:30-05:00"),
            ("01:30-06:00", "22:00-04:59", "", "night"),
        ),
        ("limits.orders_per_hour", (99,), (101, 0, 50.5)),
        ("limits.megabytes_per_day", (0.5, 19_999), (1e9, -1)),
        ("limits.disk_share", (0.25,), (0.75,)),
        ("log_level", ("error",), ("debug", "loud", 3)),
        ("device", (), ("pi-2",)),
        ("gates", (), (1,)),
        ("limits.", (), (1,)),
        ("broker.url", (), ("mqtt://thief",)),
        ("__class__.gates", (), (1,)),
    ],
)
def test_values_that_tighten_are_taken_and_all_others_ignored(
    key: str, taken: tuple[Value, ...], ignored: tuple[Value, ...]
) -> None:
    section, _, name = key.rpartition(".")
    for value in taken:
        now, why = tightened(OWN, msgspec.json.encode({key: value}))
        assert getattr(getattr(now, section) if section else now, name) == value
        assert now != OWN and not why
    for value in ignored:
        now, why = tightened(OWN, msgspec.json.encode({key: value}))
        assert now == OWN
        assert len(why) == 1 and why[0].startswith(f"{key} = {value!r} (")


def test_every_key_at_once_fits_a_welcome() -> None:
    whole = Settings(GatesConfig(quiet_hours="07:30-22:00"))
    keys = {
        f"{section}.{name}": value or 123456.789
        for section in ("gates", "limits")
        for name, value in msgspec.structs.asdict(getattr(whole, section)).items()
    }
    assert len(msgspec.json.encode(keys)) < MAX_SETTINGS_BYTES / 2
