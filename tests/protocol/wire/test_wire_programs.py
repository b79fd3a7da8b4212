"""The names of what programs take and give: those that the specification's table has."""

import re
from pathlib import Path

from sedge_protocol.wire.objective import Guide
from sedge_protocol.wire.programs import PROGRAM_NAMES, signatures

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "protocol" / "spec" / "bundle.md"
JAVA = ROOT / "edge/android/core/src/main/java/org/sedge/edge/wire"
GUIDE = Guide("x", ("start", "previous"), 1, counts=True)


def test_the_table_of_the_specification_has_the_same_names() -> None:
    every = signatures(True, True, guide=GUIDE)
    rows = re.findall(r"^\| `(\w+)` \| (theta.*?) \| (.*?) \|$", TABLE.read_text(), re.MULTILINE)
    assert tuple(name for name, _, _ in rows) == PROGRAM_NAMES
    for name, takes, gives in rows:
        said = [re.findall(r"(?:^|, (?:and )?)(\w+)", names) for names in (takes, gives)]
        assert tuple(map(tuple, said)) == every[name][1:]


def test_the_core_in_java_has_the_same_names() -> None:
    every = signatures(True, True, guide=GUIDE)
    names = {name for one in every.values() for name in (one.program, *one.inputs, *one.outputs)}
    said = (JAVA / "Signature.java").read_text() + (JAVA / "Guide.java").read_text()
    assert set(re.findall(r'"([a-z_]+)"', said)) - {"name", "models"} == names


def test_what_a_model_has_not_no_program_takes_or_gives() -> None:
    plain, frozen = signatures(), signatures(has_frozen=True)
    assert plain["gradient"].inputs == plain["evaluate"].inputs == ("theta", "x", "y", "w")
    assert plain["gradient"].outputs == ("gradient", "loss")
    assert [s.inputs[:2] for s in frozen.values()] == [("theta", "frozen")] * 3
