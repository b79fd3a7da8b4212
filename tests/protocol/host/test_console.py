"""Commands whose reader leaves early: in processes of their own, as only their pipes are real ones."""

import subprocess
import sys

COMMAND = """\
import os, sys
from sedge_protocol.host.console import reader_may_leave
with reader_may_leave():
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
