"""Commands whose reader leaves early, or whose stream has few signs: in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from sedge_protocol.host.console import json_text

COMMAND = """\
import os, sys
from sedge_protocol.host.console import printing
with printing():
    print("first", flush=True)
    sys.stdin.read()
    {body}
"""
MANY = "for number in range(100_000): print(number)"


def run(body: str, reads: bool = False) -> tuple[int, str, str]:
    """Exit status, output and errors of a body that begins when its reader has left, or reads on."""
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(body=body)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        read = process.stdout.readline()
        if not reads:
            process.stdout.close()
        process.stdin.close()
        read += process.stdout.read() if reads else ""
        errors = process.stderr.read()
        return process.wait(), read, errors


def test_a_reader_that_leaves_ends_a_command_in_silence() -> None:
    assert run(MANY) == (141, "first\n", "")


def test_a_reader_that_leaves_before_the_last_flush() -> None:
    assert run("print('little')") == (141, "first\n", "")


def test_another_pipe_that_breaks_is_an_error() -> None:
    body = "near, far = os.pipe(); os.close(near); os.write(far, b'x')"
    status, _, errors = run(body, reads=True)
    assert status == 1
    assert "BrokenPipeError" in errors


SAID = "↑ 4 kB ↓ 5 kB, 0.5 → 0.7 ± 0.1 at 21 °C; café … 猫"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("utf-8", SAID),
        ("ascii", "up 4 kB down 5 kB, 0.5 to 0.7 +/- 0.1 at 21 C; cafe ... ?"),
        ("cp1252", "up 4 kB down 5 kB, 0.5 to 0.7 ± 0.1 at 21 °C; café … ?"),
    ],
)
def test_signs_that_a_stream_has_not_become_words(encoding: str, expected: str) -> None:
    code = (
        "import sys\nfrom sedge_protocol.host.console import printing\n"
        f"with printing():\n    print({SAID!a})\n    print({SAID!a}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.stdout.decode(encoding) == done.stderr.decode(encoding) == expected + "\n"


def test_json_loses_no_sign() -> None:
    text = json_text({"error": SAID, "values": [1.5, None]})
    assert text.isascii() and json.loads(text) == {"error": SAID, "values": [1.5, None]}
