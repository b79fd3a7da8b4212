"""Conditions on devices: what they select, in which order they bind, and what is refused in one line."""

from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, a_hello, make_bundle, secret_of

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import CohortConfig
from sedge_cloud.events import RoundOpened
from sedge_cloud.facts.reader import Reader
from sedge_cloud.recorder import Recorder
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import SessionRow
from sedge_cloud.store.selector import parse
from sedge_cloud.store.tags import MAX_TAGS
from sedge_protocol.errors import ConfigError

# Device, tags, memory and backends; d has not said hello yet, e has gone and f waits.
FLEET = {
    "a": ({"site": "lab", "floor": "2"}, 256, ("onnxruntime",)),
    "b": ({"site": "lab", "floor": "10"}, 1024, ("onnxruntime", "torch")),
    "c": ({"site": "hall b", "floor": "one"}, 1024, ("executorch",)),
    "d": ({"site": "lab"}, 0, ()),
    "e": ({"site": "lab"}, 2048, ("torch",)),
    "f": ({"site": "lab"}, 2048, ("torch",)),
}


# Conditions, and who matches of those that are online.
ONLINE = {
    "site=lab": "abf",
    "site = 'hall b'": "c",
    "site!=lab": "c",
    "floor>=2": "ab",
    "floor>2 and site=lab": "b",
    "floor=2 or floor=one": "ac",
    "memory_mb>=512": "bcf",
    "memory_mb=256.0 or site=lab and floor=10": "ab",
    "(memory_mb=256 or site=lab) and floor=10": "b",
    "NOT site=lab AND NOT floor=2": "c",
    "not (site=lab and memory_mb<512)": "bcf",
    "backend=torch": "bf",
    "backend!=torch and version=bench": "ac",
    "floor<=2": "a",
    "floor=\"10\" and site='lab' and site=lab": "b",
    'site="\' OR 1=1 --"': "",
    "elsewhere=1": "",
}


@pytest.fixture
def store(store: Store) -> Store:
    store.add_devices({name: secret_of(name) for name in FLEET})
    for name, (tags, memory_mb, backends) in FLEET.items():
        store.tag([name], tags)
        if backends:
            hello = a_hello(name, backends, memory_mb=memory_mb)
            store.save_hello(store.devices_named(name)[name], 1, msgspec.msgpack.encode(hello))
    sessions = [SessionRow(name, True, waits="busy" if name == "f" else "") for name in "abcf"]
    store.save_sessions([*sessions, SessionRow("e", False)])
    return store


def test_a_condition_selects_those_that_are_online_and_match(store: Store) -> None:
    found = {select: "".join(sorted(store.online_matching(parse(select)))) for select in ONLINE}
    assert found == ONLINE
    # The tag's own index finds a million devices' few; the condition then does not look at it again.
    assert (parse("site=lab").sql, parse("site=lab and memory_mb>1").sql.count("?")) == ("1 = 1", 1)


@pytest.mark.parametrize(
    "select", ["(" * 16 + "a=1" + ")" * 16, " or ".join(["a=1"] * 32), "a=" + "1" * 998]
)
def test_the_longest_conditions(select: str) -> None:
    assert parse(select).keys == {"a"}


@pytest.mark.parametrize(
    ("select", "text"),
    [
        ("", "an attribute or a tag at its end"),
        ("site", "= != < <= > >= at its end"),
        ("site=", "a value at its end"),
        ("site=lab or", "an attribute or a tag at its end"),
        ("site=lab floor=2", "and, or, or the end instead of 'floor' at character 10"),
        ("(site=lab", "and, or, or a closing parenthesis at its end"),
        ("and=1", "an attribute or a tag instead of 'and' at character 1"),
        ("Site=lab", "an attribute or a tag instead of 'Site'"),
        ("site=lab)", "and, or, or the end instead of ')'"),
        ("site='lab", "a condition; character 6 cannot start a word"),
        ("memory_mb>=many", "a number after memory_mb"),
        ("floor>nan", "a number after floor"),
        ("version>1", "version = … or version != …"),
        ("backend=%", "the name of a backend"),
        ("(" * 17 + "a=1" + ")" * 17, "at most 16 levels of parentheses and not"),
        (" or ".join(["a=1"] * 33), "at most 32 comparisons"),
        ("a=" + "1" * 999, "at most 1000"),
    ],
)
def test_what_is_no_condition_is_refused_in_one_line(select: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(select, "cohort.select", "run.toml")
    line = str(caught.value)
    assert text in line and line.startswith("run.toml: cohort.select") and "\n" not in line


def test_a_tag_that_no_device_has_is_named_with_those_there_are(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"siet.*\(backend, .*\(floor, site\)"):
        store.require_known(parse("siet=lab"), "--where")
    store.require_known(parse("site=lab and memory_mb>1"), "--where")


def test_tags_are_given_replaced_and_taken_away(store: Store) -> None:
    assert store.tag(parse("site=lab and memory_mb>=1024"), {"tier": "1", "floor": "3"}) == 3
    assert store.tags_of("bcz") == {
        "b": {"floor": "3", "site": "lab", "tier": "1"}, "c": FLEET["c"][0],
    }  # fmt: skip
    assert store.tag(["b", "c"], {"floor": "", "site": "roof"}) == 2
    assert store.tags_of("bc") == {"b": {"site": "roof", "tier": "1"}, "c": {"site": "roof"}}
    before = store.tags_of(FLEET)
    with pytest.raises(ConfigError, match="'z', expected an enrolled device"):
        store.tag(["a", "z"], {"x": "1"})
    many = {f"k{i}": "1" for i in range(MAX_TAGS)}
    with pytest.raises(ConfigError, match="at most 32 tags per device"):
        store.tag(["a"], many)
    assert store.tags_of(FLEET) == before


def test_a_reissued_device_has_its_tags_and_says_anew_what_it_can(store: Store) -> None:
    store.reissue_device("b", bytes(32))
    assert store.online_matching(parse("site=lab")) == {"a", "b", "f"}
    assert store.online_matching(parse("memory_mb>1")) == {"a", "c", "f"}


def test_a_run_asks_the_devices_that_it_selects(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, "abcde")
    config = msgspec.structs.replace(CONFIG, cohort=CohortConfig("site=lab"))
    bundle = make_bundle(tmp_path / "again")
    with pytest.raises(ConfigError, match=r"cohort\.select: found 'site'"):
        start_run(cloud.store, RUN, bundle, config)
    cloud.store.tag(["a", "c"], {"site": "lab"})
    cloud.store.tag(["d"], {"site": "roof"})
    start_run(cloud.store, RUN, bundle, config)
    cloud.restart()
    reader = Reader(cloud.core.fleet, tmp_path / "state", cloud.store)
    cloud.hello("a", "b", "d", "e")
    assert cloud.events(RoundOpened) == []
    Recorder(cloud.core, cloud.wall).poll(cloud.now)
    assert reader.read(cloud.now).runs[0].why == "needs 2 devices online with site=lab, 1 is"
    cloud.second_store().tag(["e"], {"site": "lab"})
    cloud.notice()
    (opened,) = cloud.events(RoundOpened)
    assert opened.cohort == ("a", "e")
