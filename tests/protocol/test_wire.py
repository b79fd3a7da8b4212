"""WIRE.md against the code: what a table there says is what the code does."""

import json
import re
from pathlib import Path

import pytest
from msgspec import inspect

from sedge_cloud import disk_errors
from sedge_cloud.broker.access import ACL
from sedge_cloud.config import CloudConfig
from sedge_cloud.ingest import open_orders
from sedge_cloud.ingest import uploads as inbox
from sedge_cloud.runs import garbage
from sedge_cloud.store import rows as store_rows
from sedge_edge.rounds import state
from sedge_protocol import layout
from sedge_protocol.host import mqtt
from sedge_protocol.wire import bundle, frame, messages, reconnect, topics, transfer, update
from sedge_protocol.wire.frame import HEADER, Kind, ReplayWindow
from sedge_protocol.wire.messages import KINDS
from sedge_protocol.wire.reasons import REASONS

ROOT = Path(__file__).parents[2]
CORE = (ROOT / "protocol" / "WIRE.md").read_text()
PAGES = sorted((ROOT / "protocol" / "spec").glob("*.md"))
TEXT = "\n".join([CORE, *(page.read_text() for page in PAGES)])
LIMITS = "11. Limits and times"
VECTORS = json.loads((ROOT / "tests" / "vectors" / "frames.json").read_text())

FIELDS = ["magic", "version", "kind", "flags", "head_len", "incarnation", "seq", "transfer", "index",
          "body_len", "reserved", "mac"]  # fmt: skip


def section(heading: str) -> str:
    """The text below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"no page has a heading {heading!r}"
    return found.group(1)


def prose(heading: str) -> str:
    """The text below a heading in one line: it may be wrapped anywhere."""
    return " ".join(section(heading).split())


def rows(text: str) -> list[list[str]]:
    """Every table row below the heads, as its cells without backticks."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|--"):
            found.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return found


def row(text: str, first: str) -> list[str]:
    return next(cells for cells in rows(text) if cells[0].startswith(first))


def test_kinds() -> None:
    names = {struct: struct.__name__ for struct in KINDS}
    bodies = {kind: names[struct] for struct, kind in KINDS.items()}
    bodies[Kind.CHUNK] = "the chunk's bytes"
    found = [(cells[0], cells[1], cells[-1]) for cells in rows(section("4. Kinds"))[1:]]
    assert found == [(kind.name, str(int(kind)), bodies[kind]) for kind in Kind]


def test_header_fields() -> None:
    sizes = {"s": 1, "B": 1, "H": 2, "I": 4, "Q": 8}
    expected: list[tuple[str, str]] = []
    offset = 0
    for count, code in re.findall(r"(\d*)([sBHIQ])", HEADER.format.lstrip("<")):
        for size in [int(count)] if code == "s" else [sizes[code]] * int(count or 1):
            expected.append((str(offset), str(size)))
            offset += size
    found = rows(section("3. Frames"))[1:]
    assert [(cells[0], cells[1]) for cells in found] == expected
    assert [cells[2] for cells in found] == FIELDS
    assert (offset, found[-1][0]) == (HEADER.size, str(frame.MAC_OFFSET))
    assert found[0][3] == frame.MAGIC.decode()
    assert found[1][3].startswith(str(frame.FIRST_VERSION))
    assert str(frame.MAX_BODY_BYTES) in row(section("3. Frames"), "36")[3]
    assert f"last {ReplayWindow.WIDTH} sequence numbers" in prose("3. Frames")


def test_the_words_of_the_tables() -> None:
    text = prose("5. Messages")
    assert "*count* is an integer from 0 to 2^40" in text
    assert "*hash* 32 bytes" in text
    assert "*round* an integer from 1 to 2^31" in text
    info = inspect.type_info(messages.Cancel)
    assert isinstance(info, inspect.StructType)
    run = info.fields[0].type
    assert isinstance(run, inspect.StrType)
    assert run.pattern == topics.ID_PATTERN
    assert "{0,47}" in topics.ID_PATTERN
    assert "1 to 48 of `a-z`, `0-9` and `-`" in prose("1. Topics and the broker")


NUMBERS: list[tuple[str, int]] = [
    ("body", frame.MAX_BODY_BYTES),
    ("chunk_bytes", transfer.MIN_CHUNK_BYTES),
    ("chunk_bytes", transfer.MAX_CHUNK_BYTES),
    ("chunk_bytes", transfer.DEFAULT_CHUNK_BYTES),
    ("chunks of a blob", transfer.MAX_CHUNKS),
    ("inline", transfer.MAX_INLINE_BYTES),
    ("credit", transfer.CREDIT),
    ("bitmap", transfer.MAX_CHUNKS // 8),
    ("report", update.MAX_REPORT_BYTES),
    ("update", update.MAX_REPORT_BYTES),
    ("update", update.DENSE_SLACK),
    ("update", update.DENSE_SLACK + 1),
    ("packed bundle", bundle.MAX_BUNDLE_BYTES),
    ("tensors", layout.MAX_TENSORS),
    ("tensors", layout.MAX_NAME_CHARS),
    ("tensors", layout.MAX_RANK),
    ("open transfers", inbox.MAX_TRANSFERS),
    ("steps", messages.MAX_STEPS),
    ("late", store_rows.LATE_ROUNDS),
    ("silence", int(transfer.SILENCE_S)),
    ("backoff", int(transfer.RETRY_MAX_S)),
    ("report of a quiet", int(transfer.Intake.QUIET_S)),
    ("BUSY", inbox.RETRY_MS // 1000),
    ("BUSY", int(disk_errors.DISK_RETRY_S)),
    ("BUSY", int(state.DISK_RETRY_S)),
    ("an unanswered ORDER", int(open_orders.RESEND_S)),
    ("a silent upload", int(inbox.IDLE_S)),
    ("a half-received", int(garbage.PART_AGE_S)),
]


@pytest.mark.parametrize(("first", "number"), NUMBERS)
def test_limits_and_times(first: str, number: int) -> None:
    assert str(number) in re.findall(r"[\d.]+", row(section(LIMITS), first)[1])


def test_the_other_numbers() -> None:
    assert f"2^{(layout.MAX_PARAMETERS - 1).bit_length()}" == row(section(LIMITS), "n")[1]
    upload = prose("7. Upload: an update from the device to the coordinator")
    assert f"min({transfer.RETRY_MAX_S:g}, {transfer.RETRY_FIRST_S:g} · 2^a)" in upload
    link = prose("1. Topics and the broker")
    assert link.count(str(frame.MAX_PACKET_BYTES)) == 2
    assert f"packets of at least {frame.LEAST_PACKET_BYTES} bytes" in link
    assert f"in the {mqtt.DEAF_S:g} s after" in link and f"up to {mqtt.DEAF_MAX_S:g} s" in link
    assert f"keepalive is {mqtt.KEEPALIVE_S:g} s" in link
    assert f"within {mqtt.CONNECT_TIMEOUT_S:g} s" in link
    assert reconnect.FIRST_S == 1.0
    first = f"2^f · max(1, n / {reconnect.FIRST_DEVICES_A_SECOND})"
    soon = (
        f"max({reconnect.SOON_S:g}, n / {reconnect.DEVICES_A_SECOND}, t / {reconnect.OUTAGE_PART})"
    )
    for ended, most_s in reconnect.CEILINGS_S.items():
        away = ended is reconnect.Ended.TURNED_AWAY
        assert f"min({most_s:g}, {'2^f' if away else f'{soon}, {first}'})" in link
    assert f"or {reconnect.UNKNOWN_DEVICES} if that is 0" in link
    assert f"`gather_ms` ({CloudConfig('fleet').gather_ms})" in TEXT
    assert f"BUSY, {inbox.RETRY_MS} ms" in TEXT
    assert row(section("The packed bundle"), "format")[1] == str(bundle.FORMAT)


def test_topics_and_access_list() -> None:
    names = [cells[0] for cells in rows(section("1. Topics and the broker"))[1:]]
    shared = topics.all_up("<fleet>", "<shard>").removesuffix("+/up")
    assert names == [
        shared + "<device>/up",
        shared + "<device>/down",
        topics.blob("<fleet>", b"").rstrip("/") + "/<transfer>",
        topics.hint("<fleet>", "<shard>"),
        f"{shared}{topics.ITSELF}/up",
        f"{shared}{topics.ITSELF}/down",
    ]
    assert f"that of `-` is `{topics.shard_of(topics.ITSELF)}`" in TEXT
    assert ACL.format(user="coordinator-<fleet>", fleet="<fleet>").replace("\n\n", "\n") in TEXT
    assert f"`{topics.all_up('<fleet>')}`" in TEXT


def test_every_reason_that_the_coordinator_gives() -> None:
    """Read off its source: a reason is the first argument of ``UpdateRejected`` and its like."""
    files = (ROOT / "cloud" / "sedge_cloud").rglob("*.py")
    source = "".join(path.read_text() for path in files)
    given = set(
        re.findall(
            r'(?:UpdateRejected|[Rr]eject|_rejected|[Rr]efused|Refusal)\([^"()]*"([a-z-]+)"', source
        )
    )
    given |= set(re.findall(r'UpdateRejected\(\s*"([a-z-]+)"', source))
    assert len(given) >= 9
    assert REASONS["REJECT"].keys() | REASONS["REFUSED"].keys() == given


def test_vectors_of_the_page_are_those_of_the_file() -> None:
    plain = re.sub(r"\s", "", TEXT)
    keys, manifest = VECTORS["keys"][0], VECTORS["manifests"][0]
    for value in (*keys.values(), manifest["packed"], manifest["transfer"]):
        assert value in plain
    goodbye = next(case for case in VECTORS["frames"] if case["name"] == "GOODBYE")
    assert goodbye["sealed"] in plain
    assert f"incarnation {goodbye['incarnation']}, seq {goodbye['seq']}" in prose("3. Frames")


def test_headings_are_numbered_in_order() -> None:
    assert [int(number) for number in re.findall(r"^## (\d+)\. ", CORE, re.M)] == list(range(1, 15))


def test_rules_are_numbered_in_order() -> None:
    for page in (CORE, *(page.read_text() for page in PAGES)):
        found = re.findall(r"\*\*(\d+\.|[A-Z])(\d+)\*\*", page)
        for prefix in {prefix for prefix, _ in found}:
            numbers = [int(number) for found_prefix, number in found if found_prefix == prefix]
            assert numbers == list(range(1, len(numbers) + 1)), prefix


def test_every_rule_that_conformance_names_is_on_a_page() -> None:
    source = (ROOT / "tools" / "conformance" / "sedge_conformance").glob("*.py")
    named = set(
        re.findall(r'"(\d[\w.]*(?: \w+)?|[A-Z]\d+)"', "".join(p.read_text() for p in source))
    )
    assert named >= {"3.3", "3.6", "5.17", "8.1", "B4", "T4"}
    assert named <= set(re.findall(r"\*\*(\d+\.\d+|[A-Z]\d+)\*\*", TEXT))
