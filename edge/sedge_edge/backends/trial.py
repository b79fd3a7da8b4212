"""Runs a step of a bundle in a process of its own first: a runtime that crashes takes its process along.

It crashes where the processor lacks an instruction that it was built for, where the system hides what it
reads, or on a damaged program. An error that it reports instead is left to the agent's own process, which
meets it again.
"""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np

from sedge_edge.training.examples import Examples
from sedge_protocol.wire.bundle import Bundle, pack, unpack
from sedge_protocol.wire.messages import Training

_CRASHES = {
    signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGKILL,
}  # fmt: skip
# As /proc/cpuinfo names them; wheels have been built for each of them by mistake.
_FEATURES = {
    "flags": ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f"),
    "Features": ("atomics", "asimdrdm", "asimdhp", "asimddp", "sve", "i8mm", "bf16"),
}
_CPUINFO = Path("/proc/cpuinfo")
_SYSTEM = Path("/sys/devices/system/cpu")
_found: dict[tuple[str, str], str] = {}
_lock = Lock()


def crash(backend: str, bundle: Bundle, threads: int, each: bool) -> str:
    """How the backend crashed with the bundle's gradient program, or "" when it did not.

    Tried once in this process, or with ``each`` once for each program.
    """
    wanted = "gradient", backend
    program = next(p for p in bundle.manifest.programs if (p.name, p.backend) == wanted)
    key = backend, program.sha256 if each else ""
    with _lock:
        if key not in _found:
            manifest = msgspec.structs.replace(bundle.manifest, programs=(program,))
            only = Bundle(manifest, {program.file: bundle.files[program.file]})
            _found[key] = _try(backend, only, threads)
        return _found[key]


def _try(backend: str, bundle: Bundle, threads: int) -> str:
    code = f"from {__name__} import main; main()"
    words = [sys.executable, "-P", "-c", code, backend, str(threads)]
    done = subprocess.run(words, input=pack(bundle), capture_output=True, check=False)
    if -done.returncode not in _CRASHES:
        return ""
    ended = signal.Signals(-done.returncode)
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
    return f"a trial run ended with {ended.name}{_reason(ended)}{last and f' ({last})'}"


def _reason(ended: signal.Signals) -> str:
    if ended is signal.SIGILL:
        return f": this processor lacks {', '.join(_lacking()) or 'an instruction'}"
    if ended is signal.SIGKILL:
        return ": most likely there was too little memory"
    if not _SYSTEM.exists():
        return f": {_SYSTEM} is not to be seen here, and runtimes read it"
    return ""


def _lacking() -> list[str]:
    """The features that this machine's processors could have and do not."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if could_have := _FEATURES.get(name.strip()):
            return [feature for feature in could_have if feature not in value.split()]
    return []


def _step(backend: str, bundle: Bundle, threads: int) -> None:
    """One step of training, on zeros."""
    from sedge_edge.backends import BACKENDS, NO_CODE

    manifest = bundle.manifest
    inputs = np.zeros((manifest.batch_size, *manifest.input.shape), manifest.input.dtype)
    row = manifest.row_target
    examples = Examples(inputs, np.zeros((manifest.batch_size, *row.shape), row.dtype))
    theta = np.zeros(manifest.layout.size, np.float32)
    if manifest.frozen is not None:
        bundle = Bundle(manifest, bundle.files, np.zeros(manifest.frozen.layout.size, np.float32))
    trainer = BACKENDS[backend].open(bundle, backend, threads, NO_CODE)
    trainer.train(theta, examples, Training(1), 0, lambda: False)


def main() -> None:
    """In the process of a trial: backend and threads are its arguments, standard input the bundle."""
    with suppress(Exception):
        _step(sys.argv[1], unpack(sys.stdin.buffer.read()), int(sys.argv[2]))
