"""Prints a command's output to a stream of any encoding, whose reader may close it early."""

import codecs
import io
import json
import os
import select
import signal
import sys
import unicodedata
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec

# Replacements for characters that we print but that some encodings lack. Any other such character becomes
# its base letter or "?".
_WORDS = {
    "↑": "up",
    "↓": "down",
    "→": "to",
    "±": "+/-",
    "°": "",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{EN DASH}": "-",
}


@contextmanager
def printing() -> Generator[None]:
    """Let the command print any text inside (and after) this context, whatever the streams' encoding.

    A character that a stream's encoding lacks is replaced by a word. If the reader closes the pipe (``|
    head``), the command ends without a traceback, as if killed by SIGPIPE.
    """
    codecs.register_error("sedge.words", _in_words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sedge.words")
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        if not _reader_has_left():
            raise  # the broken pipe is not stdout
        # The interpreter flushes stdout again at exit and would report the error then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON in ASCII, which every stream can print unchanged."""
    return json.dumps(json.loads(msgspec.json.encode(value)), indent=indent)


def check_printer(as_json: bool) -> Callable[[bool, str], None]:
    """Return a function that prints a doctor's checks: one line each, or one JSON object each."""

    def report(good: bool, text: str) -> None:
        line = f"{'ok     ' if good else 'PROBLEM'}  {text}"
        print(json_text({"ok": good, "text": text}) if as_json else line, flush=True)

    return report


def _in_words(error: UnicodeError) -> tuple[str, int]:
    """Handle an encoding error for ``codecs``. Returns the replacement and the end of the bad text."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return "".join(_WORDS.get(sign, _plain(sign)) for sign in signs), error.end


def _plain(sign: str) -> str:
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"


def _reader_has_left() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
