"""Tries out every program of a bundle in a separate process, so that a crash does not affect the agent.

A runtime crashes if the processor lacks an instruction that the runtime was built for, if the system hides
files that it reads, or on a damaged program. If it reports an error instead, nothing is done here, because
the caller's own process will encounter the same error.

A verdict holds for these programs, this runtime and this machine. It is stored in the agent's folder, so
that neither a restart nor another program that opens the model repeats the trial. An outcome that may not
occur again is not stored: a kill for lack of memory, or a timeout.
"""

import hashlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.trainer import Guidance, Trainer, TrainRequest
from sedge_protocol.errors import StorageError
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.memory_limit import release_memory, unpool_large_arrays
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, BundleManifest, pack, unpack
from sedge_protocol.wire.objective import CONSTANTS, COUNTS, Guide
from sedge_protocol.wire.programs import GUIDED
from sedge_protocol.wire.training import Training

# A trial costs about as much as five training steps. Even the slowest usable model takes only seconds per
# step.
TIMEOUT_S = 300.0
# The number of verdicts in the folder. A device keeps the bundles of 16 runs, each of which may come in a
# few widths.
MAX_VERDICTS = 64
# The signals that stop the agent also stop its trial, which then has no verdict.
_STOPS = {getattr(signal, name, signal.SIGTERM) for name in ("SIGTERM", "SIGINT", "SIGHUP")}
# Processor features, named as in /proc/cpuinfo. Wheels have been built for each of them by mistake.
_FEATURES = {
    "flags": ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f"),
    "Features": ("atomics", "asimdrdm", "asimdhp", "asimddp", "sve", "i8mm", "bf16"),
}
_CPUINFO = Path("/proc/cpuinfo")
_SYSTEM = Path("/sys/devices/system/cpu")
_found: dict[str, str] = {}
_lock = Lock()


class Verdicts(msgspec.Struct, frozen=True):
    """The results of trials, oldest first: "" for a pass, otherwise how the runtime crashed."""

    found: dict[str, str] = {}


def fault(backend: str, package: str, bundle: Bundle, threads: int, state_dir: Path | None) -> str:
    """Return why this process must not run the bundle's programs for a backend, or "" if it may.

    ``package`` is the runtime's package. The verdict comes from this process's memory, the agent's folder
    ``state_dir``, or a new trial. Raises ``CodecError`` for a program that must not be given to a
    runtime.
    """
    ours = tuple(one for one in bundle.manifest.programs if one.backend == backend)
    subject = _subject(package, [one.sha256 for one in ours])
    journal = None if state_dir is None else Journal(state_dir / "trials", Verdicts, 1)
    with _lock:
        kept = _kept(journal)
        if subject in _found or subject in kept:
            return _found.get(subject, kept.get(subject, ""))
        manifest = msgspec.structs.replace(bundle.manifest, programs=ours)
        only = Bundle(manifest, {one.file: bundle.files[one.file] for one in ours})
        said, lasting = _try(backend, only, threads)
        if said is None:
            return ""
        if lasting and not said:
            only.check_programs()  # also checks programs that only predictions will need
        _found[subject] = said
        if lasting and journal is not None:
            newest = dict([*kept.items(), (subject, said)][-MAX_VERDICTS:])
            with suppress(StorageError):  # a full disk, or a process that may not write there
                journal.commit(Verdicts(newest))
        return said


def _subject(package: str, programs: list[str]) -> str:
    """Return the key of a verdict.

    A different runtime, processor or sandbox may lead to a different verdict.
    """
    spec = find_spec(package)
    origin = None if spec is None else spec.origin
    installed = Path(origin).stat().st_mtime_ns if origin else 0
    facts = [package, origin, installed, _lacking(), _SYSTEM.exists(), programs]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _kept(journal: Journal[Verdicts] | None) -> dict[str, str]:
    """Return the stored verdicts. If they cannot be read, the dict is empty: trials can be repeated."""
    try:
        verdicts = None if journal is None else journal.load()
    except StorageError:
        return {}
    return {} if verdicts is None else verdicts.found


def _try(backend: str, bundle: Bundle, threads: int) -> tuple[str | None, bool]:
    """Run a trial.

    Returns its result (None if it was stopped), and whether another trial would end in the same way.
    """
    code = f"from {__name__} import main; main()"
    words = [sys.executable, "-P", "-c", code, backend, str(threads)]
    try:
        done = subprocess.run(
            words, input=pack(bundle), capture_output=True, check=False, timeout=TIMEOUT_S
        )
    except OSError as exc:
        return f"a trial run could not begin: {exc}", False
    except subprocess.TimeoutExpired as exc:
        return f"a trial run{_program(exc.stdout)} did not end within {TIMEOUT_S:.0f} s", False
    if done.returncode == 0:
        return "", bool(done.stdout)  # no program has run if there is no output
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
    where = f"a trial run{_program(done.stdout)} ended with"
    if done.returncode > 0:
        return f"{where} exit status {done.returncode}{last and f' ({last})'}", False
    ended = signal.Signals(-done.returncode)
    if ended in _STOPS:
        return None, False
    said = f"{where} {ended.name}{_reason(ended)}{last and f' ({last})'}"
    return said, ended is not signal.SIGKILL


def _program(printed: bytes | None) -> str:
    """Return the program that the trial began last, for a message."""
    names = (printed or b"").decode(errors="replace").split()
    return f" of {names[-1]!r}" if names else ""


def _reason(ended: signal.Signals) -> str:
    if ended is signal.SIGILL:
        return f": this processor lacks {', '.join(_lacking()) or 'an instruction'}"
    if ended is signal.SIGKILL:
        return ": most likely there was too little memory"
    if not _SYSTEM.exists():
        return f": {_SYSTEM} is not visible here, but runtimes read it"
    return ""


def _lacking() -> list[str]:
    """Return the features that this machine's processor could have but does not."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        name, _, value = line.partition(":")
        if could_have := _FEATURES.get(name.strip()):
            return [feature for feature in could_have if feature not in value.split()]
    return []


def _samples(bundle: Bundle) -> Iterator[tuple[Theta, Inputs]]:
    """Yield models (n,) with inputs (B, ...): zeros, ordinary numbers, and NaN as after divergence.

    Integers are always 0, because a runtime may rely on them being valid indices.
    """
    manifest, rng, kind = bundle.manifest, np.random.default_rng(0), np.float32
    n, rows = (manifest.layout.size,), (manifest.batch_size, *manifest.input.shape)

    def inputs(numbers: NDArray[np.float32]) -> Inputs:
        dtype = manifest.input.dtype
        return numbers if dtype == "float32" else np.zeros(rows, dtype)

    yield np.zeros(n, kind), inputs(np.zeros(rows, kind))
    yield rng.standard_normal(n, kind), inputs(rng.standard_normal(rows, kind))
    yield np.full(n, np.nan, kind), inputs(np.full(rows, np.nan, kind))


def _run(trainer: Trainer, bundle: Bundle, theta: Theta, inputs: Inputs) -> None:
    """Run every program once. Prints the name of each before it runs."""
    manifest, row = bundle.manifest, bundle.manifest.row_target
    targets: Inputs = np.zeros((manifest.batch_size, *row.shape), row.dtype)
    examples = Examples(inputs, inputs if manifest.target is None else targets)
    steps: dict[str, Callable[[], object]] = {
        "gradient": lambda: trainer.train(
            TrainRequest(theta, Training(1), 0), examples, lambda: False
        ),
        GUIDED: lambda: trainer.train(
            TrainRequest(theta, Training(1), 0, guidance=sample_guidance(manifest, theta)),
            examples,
            lambda: False,
        ),
        "evaluate": lambda: trainer.evaluate(theta, examples),
        "predict": lambda: trainer.predictor(theta)(inputs),
    }
    for name, step in steps.items():
        if name not in manifest.signatures:
            continue
        print(name, flush=True)
        with suppress(Exception):
            step()


def sample_guidance(manifest: BundleManifest, theta: Theta) -> Guidance:
    """Return sample inputs for the bundle's guided loss: theta (n,) as every reference, and ones."""
    guide = manifest.guide or Guide("")
    sizes = {CONSTANTS: guide.constants, COUNTS: manifest.num_classes * guide.counts}
    arrays = {name: np.ones(size, np.float32) for name, size in sizes.items() if size}
    return Guidance(dict.fromkeys(guide.models, theta), arrays)


def main() -> None:
    """Run a trial in its own process.

    The arguments are backend and threads, and standard input is the bundle.
    """
    from sedge_edge.backends import BACKENDS, NO_CODE

    # If memory runs out, the kernel should kill the trial and not the agent.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    unpool_large_arrays()
    backend, threads = sys.argv[1], int(sys.argv[2])
    with suppress(Exception):
        bundle = unpack(sys.stdin.buffer.read())
        if bundle.manifest.frozen is not None:
            frozen = np.zeros(bundle.manifest.frozen.layout.size, np.float32)
            bundle = Bundle(bundle.manifest, bundle.files, frozen)
        trainer = BACKENDS[backend].open(bundle, backend, threads, NO_CODE)
        for theta, inputs in _samples(bundle):
            _run(trainer, bundle, theta, inputs)
            release_memory()
