"""A bundle contains everything that a device needs to train one model, without any Python code.

On disk it is a folder: ``manifest.json``, the programs, ``init.bin`` (theta, little-endian float32) and
``frozen.bin`` (a coded vector of any tensors that no device trains). On the wire it is one blob (``pack``).
``init.bin`` is left out, because only the cloud needs it; ``frozen.bin`` is a separate blob that the
manifest names. A device runs a bundle only if its hash arrived in a frame with a valid MAC under the
device's own key.
"""

import hashlib
import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_protocol.axes import Axes
from sedge_protocol.codec.compression import decompress_zlib
from sedge_protocol.codec.vector import MAX_DENSE_OVERHEAD
from sedge_protocol.errors import CodecError, ConfigError, StorageError, os_reason
from sedge_protocol.layout import Layout, Tensor, Theta
from sedge_protocol.wire.frozen import FrozenData, frozen_blob
from sedge_protocol.wire.objective import ACCURACY, Guide, Loss, Metric
from sedge_protocol.wire.parts import ElementType, InputPart, Shape
from sedge_protocol.wire.program import check_program
from sedge_protocol.wire.programs import GUIDED, PROGRAM_NAMES, Signature, signatures

FORMAT = 1
MANIFEST_NAME = "manifest.json"
INIT_NAME = "init.bin"
FROZEN_NAME = "frozen.bin"
ONNXRUNTIME = "onnxruntime"  # the backend that runs ONNX programs
# The backend of a single .pte file that all programs share. Each program is a method in that file, and its
# inputs and outputs are matched by position, in the order of the ONNX program's names.
EXECUTORCH = "executorch"
# Backends that train with the device's own code need no program; only the layout describes the model.
TORCH = "torch"
FUNCTION = "function"
WITHOUT_PROGRAMS = frozenset({TORCH, FUNCTION})
# The memory in bytes that an agent takes once it has loaded a runtime's library, on x86-64.
AGENT_BYTES = {ONNXRUNTIME: 70 * 10**6, EXECUTORCH: 52 * 10**6}
# A training program for ResNet-8 takes only 0.2 MB, because weights are inputs, not constants. 64 MiB
# leaves room for programs with delegated blobs and still fits the smallest device.
MAX_BUNDLE_BYTES = 64 * 2**20


Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**50)]


class TensorSpec(msgspec.Struct, frozen=True):
    """The element type and shape of one row, without the batch axis."""

    dtype: ElementType
    shape: Shape


class Program(msgspec.Struct, frozen=True):
    """One executable graph: its name, the backend that runs it, its file and the file's hash.

    In the program ``gradient``, ``memory_bytes`` is the memory that the runtime needs for all programs of a
    job, measured by the exporter, excluding the runtime's library and the model's vectors. In ``guided`` it
    is the same for a job with the guided loss. ``multiply_adds`` counts the multiply-adds in one batch's
    convolutions and matrix products. For both, 0 means unknown.
    """

    name: str
    backend: str
    file: str
    sha256: str
    memory_bytes: Count = 0
    multiply_adds: Count = 0


class Verification(msgspec.Struct, frozen=True):
    """The export's comparison with torch autograd in float64.

    Errors are max |difference of gradients| divided by max |gradient|. ``step_error`` is the error in the
    first step. ``epoch_error`` is the largest error in an epoch whose steps all start from the theta
    computed in float64. ``torch_error`` is the largest error of eager torch in float32 at the same steps.
    Each tensor's gradient is off by at most ``tolerance`` of its largest value plus a small multiple of
    eager torch's own error; otherwise no bundle is written. A batch whose gradient depends on rounding, as
    at a kink of an operator, was replaced; ``kinks`` names these operators. ``frozen`` describes the effect
    of rounding the frozen data, if that was measured.
    """

    step_error: float
    epoch_error: float
    tolerance: float
    versions: dict[str, str]
    torch_error: float = 0.0
    kinks: tuple[str, ...] = ()
    frozen: str = ""


class BundleManifest(msgspec.Struct, frozen=True):
    """Describes a bundle. The programs are named here, and their bytes are stored elsewhere.

    ``batch_size`` is fixed in the programs. ``num_classes`` is 0 for a model that does not classify.
    ``uses_batch_statistics`` is true if padded rows would change the result (BatchNorm). ``axes`` tells
    which channels of the layout's tensors belong together, or is None if the model cannot be narrowed.
    ``dropped`` (0 to below 1) is the share of the full model's channels that this form lacks. ``frozen`` is
    None if every tensor is in ``layout``. ``verification`` is None for a bundle without programs. ``noise``
    is how many random numbers a step uses. If ``target`` is None, the input is the target. ``labels`` are
    human-readable names of the classes: one for each, or none. ``parts`` lists the inputs of a model that
    has several, in their order within a row of ``input``; it is empty for a single input. Integers in x lie
    between 0 and ``vocabulary`` - 1; a ``vocabulary`` of 0 means unknown. ``guide`` describes the guided
    loss, if the bundle has one.
    """

    format: int
    name: str
    layout: Layout
    batch_size: int
    input: TensorSpec
    target: TensorSpec | None
    num_classes: Count
    uses_batch_statistics: bool
    programs: tuple[Program, ...]
    verification: Verification | None
    axes: Axes | None = None
    dropped: float = 0.0
    frozen: FrozenData | None = None
    noise: Annotated[int, Meta(ge=0, le=2**28)] = 0
    loss: Loss = Loss()
    metric: Metric = ACCURACY
    labels: tuple[str, ...] = ()
    parts: tuple[InputPart, ...] = ()
    vocabulary: Count = 0
    guide: Guide | None = None

    def class_axis(self, outputs: Shape) -> int:
        """Return the axis of the classes in outputs (N, C, ...), or in (N, ..., C) if only that fits y."""
        last = self.target is not None and outputs[2:] != self.target.shape
        return len(outputs) - 1 if last else 1

    @property
    def row_target(self) -> TensorSpec:
        """The element type and shape of one row of y."""
        return self.input if self.target is None else self.target

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the model: the tensors in ``layout``, followed by the frozen ones."""
        frozen = () if self.frozen is None else self.frozen.layout.tensors
        return (*self.layout.tensors, *frozen)

    def memory_mb(self, backends: Collection[str], vectors: int, program: str = "gradient") -> int:
        """Return the memory in MB that an agent with these backends needs for a job, or 0 if unknown.

        The job trains with ``program`` and holds this number of ``vectors`` of the model (``Work.program``
        and ``Work.vectors``). If several backends can run it, the one that needs least counts. The device's
        data are not included.
        """
        runs = [p for p in self.programs if p.name == program and p.backend in backends]
        if not all(p.memory_bytes for p in runs) or not WITHOUT_PROGRAMS.isdisjoint(backends):
            return 0
        least = min((AGENT_BYTES.get(p.backend, 0) + p.memory_bytes for p in runs), default=0)
        frozen = 0 if self.frozen is None else self.frozen.memory_bytes
        return -(-(least + frozen + 4 * vectors * self.layout.size) // 10**6) if least else 0

    @property
    def signatures(self) -> dict[str, Signature]:
        """The inputs and outputs of each program, by its name."""
        held = bool(self.layout.statistics), self.noise > 0, self.frozen is not None
        return signatures(*held, self.guide)

    @property
    def padding_is_safe(self) -> bool:
        """True if padded rows do not affect a step. Batch statistics or random numbers make them unsafe."""
        return not self.uses_batch_statistics and not self.noise


class Bundle(msgspec.Struct, frozen=True):
    """A manifest, its programs' bytes keyed by file name, and the frozen values (m,) if they are loaded.

    ``manifest_hash`` is the SHA-256 of the manifest's bytes if the bundle was unpacked from a blob.
    """

    manifest: BundleManifest
    files: dict[str, bytes]
    frozen: Theta | None = None
    manifest_hash: bytes = b""

    def program(self, name: str, backend: str) -> bytes:
        """Return the bytes of a program. Raises ``CodecError`` if the bundle lacks it."""
        for program in self.manifest.programs:
            if program.name == name and program.backend == backend:
                return self.files[program.file]
        raise CodecError(f"bundle {self.manifest.name!r}: no program {name!r} for {backend}")

    def views(self, theta: Theta) -> dict[str, NDArray[np.float32]]:
        """Return every tensor by name, in its shape: the tensors in theta (n,), then the frozen ones."""
        views = self.manifest.layout.views(theta)
        if self.manifest.frozen is not None and self.frozen is not None:
            views |= self.manifest.frozen.layout.views(self.frozen)
        return views

    def check_programs(self) -> None:
        """Raise ``CodecError`` for a program that devices reject (``sedge_protocol.wire.program``)."""
        for program in self.manifest.programs:
            if program.backend == ONNXRUNTIME:
                try:
                    check_program(self.files[program.file])
                except CodecError as exc:
                    where = f"bundle {self.manifest.name!r}: program {program.name!r}"
                    raise CodecError(f"{where}: {exc}") from exc

    def backends(self) -> tuple[str, ...]:
        """Return the backends that can train this bundle."""
        return tuple(p.backend for p in self.manifest.programs if p.name == "gradient")


class _Packed(msgspec.Struct, frozen=True):
    manifest: bytes
    files: dict[str, bytes]


def _encode_manifest(manifest: BundleManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def _decode_manifest(data: bytes, where: str) -> BundleManifest:
    try:
        number = json.loads(data).get("format")
        if number != FORMAT:
            raise CodecError(f"{where}: bundle format {number!r}, this version reads {FORMAT}")
        manifest = msgspec.json.decode(data, type=BundleManifest)
    except (ValueError, AttributeError, RecursionError) as exc:  # msgspec's errors are ValueErrors
        raise CodecError(f"{where}: {exc}") from exc
    if not 1 <= manifest.batch_size <= 65536:
        raise CodecError(f"{where}: batch_size {manifest.batch_size}, expected 1 to 65536")
    if not 0 <= manifest.dropped < 1:
        raise CodecError(f"{where}: dropped {manifest.dropped}, expected at least 0 and below 1")
    if manifest.axes is not None:
        manifest.axes.check(manifest.layout)
    if manifest.labels and len(manifest.labels) != manifest.num_classes:
        expected = f"{manifest.num_classes}, one for each class, or none"
        raise CodecError(f"{where}: {len(manifest.labels)} labels, expected {expected}")
    size = sum(part.size for part in manifest.parts)
    if manifest.parts and manifest.input != TensorSpec("float32", (size,)):
        raise CodecError(
            f"{where}: parts of {size} numbers do not fit an input of {manifest.input}"
        )
    for program in manifest.programs:
        if Path(program.file).name != program.file or program.file in ("", ".."):
            raise CodecError(f"{where}: program file {program.file!r} contains a path")
        if program.name == GUIDED and manifest.guide is None:
            raise CodecError(f"{where}: program {GUIDED!r} without a guide")
    if manifest.frozen is not None:
        _check_frozen(manifest.frozen, manifest.layout, f"{where}: frozen")
    return manifest


def _check_frozen(frozen: FrozenData, layout: Layout, where: str) -> None:
    most = frozen.memory_bytes + MAX_DENSE_OVERHEAD
    if frozen.blob.size > most:
        expected = f"at most {most} for {frozen.layout.size} values"
        raise CodecError(f"{where}: a blob of {frozen.blob.size} bytes, expected {expected}")
    if both := frozen.layout.by_name.keys() & layout.by_name.keys():
        raise CodecError(f"{where}: tensor {min(both)!r} is also in the layout")


def _check_files(manifest: BundleManifest, files: Mapping[str, bytes], where: str) -> None:
    for program in manifest.programs:
        if program.name not in PROGRAM_NAMES:
            raise CodecError(f"{where}: unknown program {program.name!r}")
        if program.file not in files:
            raise CodecError(f"{where}: program file {program.file!r} is missing")
        if hashlib.sha256(files[program.file]).hexdigest() != program.sha256:
            raise CodecError(f"{where}: {program.file!r} does not match the manifest's sha256")


def save(folder: Path, bundle: Bundle, init: Theta) -> None:
    """Write a bundle and its initial theta (n,) to a folder. The manifest is written last.

    Raises ``StorageError`` if the disk fails.
    """
    bundle.manifest.layout.check(init)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in bundle.files.items():
            (folder / name).write_bytes(data)
        (folder / INIT_NAME).write_bytes(init.astype("<f4").tobytes())
        if bundle.frozen is not None:
            (folder / FROZEN_NAME).write_bytes(frozen_blob(bundle.frozen))
        (folder / MANIFEST_NAME).write_bytes(_encode_manifest(bundle.manifest))
    except OSError as exc:
        raise StorageError(f"bundle {exc.filename or folder}: {os_reason(exc)}") from exc


def load(folder: Path) -> tuple[Bundle, Theta]:
    """Read and check a bundle folder.

    Returns the bundle with its frozen values, and the initial theta (n,). Raises ``ConfigError`` for a path
    without a manifest, ``StorageError`` if a file cannot be read, ``CodecError`` if a file is invalid.
    """
    try:
        if not (folder / MANIFEST_NAME).exists():
            raise ConfigError("bundle", str(folder), "a folder that sedge-export wrote")
        manifest = _decode_manifest(_read(folder / MANIFEST_NAME), str(folder))
        names = {program.file for program in manifest.programs}
        files = {name: _read(folder / name) for name in sorted(names)}
        room = 4 * manifest.layout.size
        init = np.frombuffer(_read(folder / INIT_NAME, room), "<f4").astype(np.float32)
    except OSError as exc:
        raise StorageError(f"bundle {exc.filename or folder}: {os_reason(exc)}") from exc
    except ValueError as exc:
        raise CodecError(f"bundle {folder}: {INIT_NAME}: {exc}") from exc
    _check_files(manifest, files, str(folder))
    manifest.layout.check(init)
    coded = read_frozen_blob(folder, manifest)
    frozen = None if manifest.frozen is None else manifest.frozen.values(coded)
    return Bundle(manifest, files, frozen), init


def read_frozen_blob(folder: Path, manifest: BundleManifest) -> bytes:
    """Return the coded frozen values stored in a bundle folder, or b"" if there are none.

    The file is read, not encoded again, because another version of zlib might produce other bytes. Raises
    ``StorageError``, or ``CodecError`` for a file that does not match the manifest.
    """
    if manifest.frozen is None:
        return b""
    path, expected = folder / FROZEN_NAME, manifest.frozen.blob
    try:
        data = _read(path, expected.size)
    except OSError as exc:
        raise StorageError(f"bundle {exc.filename or folder}: {os_reason(exc)}") from exc
    if hashlib.sha256(data).digest() != expected.sha256:
        raise CodecError(f"{path}: {len(data)} bytes do not match the manifest's sha256")
    return data


def _read(path: Path, limit: int = MAX_BUNDLE_BYTES) -> bytes:
    """Read a file in a bundle folder.

    Raises ``OSError``, or ``CodecError`` if the file is larger than ``limit``.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise CodecError(f"{path}: expected at most {limit} bytes")
    return data


def pack(bundle: Bundle) -> bytes:
    """Pack a bundle into one blob: MessagePack, compressed with zlib, which every device supports.

    Raises ``CodecError`` for a bundle that is too large for devices.
    """
    files = {name: bundle.files[name] for name in sorted(bundle.files)}
    packed = msgspec.msgpack.encode(_Packed(_encode_manifest(bundle.manifest), files))
    if len(packed) > MAX_BUNDLE_BYTES:
        raise CodecError(f"bundle: {len(packed)} bytes, the limit is {MAX_BUNDLE_BYTES}")
    return zlib.compress(packed, 9)


def unpack(blob: bytes) -> Bundle:
    """Unpack the bundle in a blob. Raises ``CodecError`` for anything that ``pack`` would not produce."""
    try:
        packed = msgspec.msgpack.decode(decompress_zlib(blob, MAX_BUNDLE_BYTES), type=_Packed)
    except (ValueError, RecursionError) as exc:
        raise CodecError(f"bundle: {exc}") from exc
    manifest = _decode_manifest(packed.manifest, "bundle")
    _check_files(manifest, packed.files, "bundle")
    manifest_hash = hashlib.sha256(packed.manifest).digest()
    return Bundle(manifest, packed.files, manifest_hash=manifest_hash)
