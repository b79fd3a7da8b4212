"""Writes sparse.json: coded vectors that a decoder must accept, and ones that it must refuse.

    python tests/vectors/make_sparse.py

Every array of the file is hex: float32 values little endian, coded vectors as they travel. The refused
ones are put together by hand from WIRE.md, section "Coded vector", one for each rule.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decoded_values,
    encode,
    mask_bitmap,
)
from sedge_protocol.codec.compression import zstd

PATH = Path(__file__).with_name("sparse.json")

EMPTY, DENSE, BITMAP, GAPS, CHANGES = range(5)
ZLIB, ZSTD = 1 << 4, 2 << 4
FP32, FP16, BF16, INT8, INT4, SIGN = range(6)
ONE_BF16 = (b"\x80", b"\x3f")  # the planes of one 1.0

ABOUT = (
    "Coded vectors of WIRE.md. accepted: `coded` decodes to `decoded` at `indices` (null: all) when "
    "`size` is expected and `context` is the bitmap of the earlier mask (null: there is none); where "
    "compression is none, encoding `values` gives `coded` again, byte for byte. readable: to be read, not "
    "made, as an encoder may choose otherwise. refused: `coded` breaks `rule`. Written by make_sparse.py."
)


def _kept(*positions: int) -> NDArray[np.uint32]:
    return np.array(positions, np.uint32)


def _random(seed: int, size: int, count: int) -> SparseVector:
    rng = np.random.default_rng(seed)
    indices = np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)
    return SparseVector(size, indices, rng.normal(0, 1e-3, count).astype(np.float32))


def _accepted() -> Iterator[tuple[str, SparseVector, ValueCoding, Compression]]:
    """Name, vector and how it is coded, without a context."""
    floats = np.array([0.0, -0.0, 1.0, -2.5, 1e-45, -1.1754942e-38, 3e38, 1 / 3], np.float32)
    halves = np.array([1.00390625, 1.01171875, -65000, 6e-8, 1e-9, -0.0, 0.1, 7], np.float32)
    ramp = np.concatenate([np.arange(-32, 32) / 100, np.zeros(64), [1e-30]]).astype(np.float32)
    rows = np.flatnonzero(np.arange(1024) // 32 % 5 == 2).astype(np.uint32)
    row_values = np.repeat(np.array([0.5, -0.25], np.float32), rows.size // 2)
    far = _kept(0, 127, 256, 16_640, 2_130_000)
    plain, zl, zs = Compression.NONE, Compression.ZLIB, Compression.ZSTD
    fp32, fp16, bf16, int8, int4, sign = ValueCoding
    yield "empty, n=1", SparseVector(1, _kept(), np.empty(0, np.float32)), bf16, plain
    yield "empty, int8", SparseVector(70, _kept(), np.empty(0, np.float32)), int8, zs
    yield "dense, n=1", SparseVector(1, None, floats[3:4]), bf16, plain
    yield "dense, every kind of float32", SparseVector(8, None, floats), fp32, plain
    yield "dense, bf16 ties", SparseVector(8, None, halves), bf16, plain
    yield "dense, fp16 ties and denormals", SparseVector(8, None, halves), fp16, plain
    yield "dense, int8 blocks: short, zero", SparseVector(129, None, ramp), int8, plain
    yield "dense, int4 blocks: short, zero", SparseVector(129, None, ramp), int4, plain
    yield "dense, int4, every code and a half", _codes(7), int4, plain
    yield "dense, sign blocks: short, zero", SparseVector(129, None, ramp), sign, plain
    yield "dense, sign of both zeros", SparseVector(8, None, floats[:2].repeat(4)), sign, plain
    yield "dense, int4, zlib", SparseVector(500, None, np.ones(500, np.float32)), int4, zl
    yield "dense, sign, zstd", SparseVector(500, None, np.ones(500, np.float32)), sign, zs
    yield "dense, zeros, zstd", SparseVector(500, None, np.zeros(500, np.float32)), fp32, zs
    yield "dense, zeros, zlib", SparseVector(500, None, np.zeros(500, np.float32)), int8, zl
    yield "bitmap", SparseVector(9, _kept(2, 7), floats[2:4]), bf16, plain
    yield "bitmap, n=64", _random(1, 64, 31), fp32, plain
    yield "bitmap, zstd", SparseVector(1024, rows, row_values), bf16, zs
    yield "bitmap, zlib", SparseVector(1024, rows, row_values), fp16, zl
    yield "gaps of 1 to 4 bytes", SparseVector(2**22, far, floats[:5]), fp32, plain
    yield "gaps, zstd", SparseVector(2**14, rows[:100] * 16, row_values[:100]), bf16, zs
    yield "gaps, zlib", SparseVector(2**14, rows[:100] * 16, row_values[:100]), int8, zl
    yield "gaps of the left out", _random(2, 300, 299), bf16, plain
    yield "bitmap, fp16", _random(3, 400, 110), fp16, plain
    yield "gaps, int8", _random(4, 2000, 70), int8, plain
    yield "gaps, int4", _random(6, 1000, 111), int4, plain
    yield "gaps, sign", _random(7, 1000, 111), sign, plain
    small = SparseVector(600, None, _random(11, 600, 600).values)
    for coding in (fp32, bf16):
        for compression in (zl, zs):
            yield f"by exponent, {coding}, {compression}", small, coding, compression
    mixed = SparseVector(1000, None, np.concatenate([small.values, np.full(400, 1.5, np.float32)]))
    yield "by exponent, blocks of their own", mixed, bf16, zs


def _with_context() -> Iterator[tuple[str, SparseVector, ValueCoding, Compression, bytes]]:
    """Name, vector, how it is coded, and the context."""
    bf16, plain, zl, zs = ValueCoding.BF16, Compression.NONE, Compression.ZLIB, Compression.ZSTD

    def moved(vector: SparseVector, *positions: int) -> SparseVector:
        """``vector`` with these positions dropped where it keeps them, added where not."""
        assert vector.indices is not None
        indices = np.setxor1d(vector.indices, _kept(*positions))
        return SparseVector(vector.size, indices, np.resize(vector.values, indices.size))

    before = _random(8, 3000, 400)
    bitmap = mask_bitmap(before)
    low = np.arange(64, dtype=np.uint32)
    half = SparseVector(128, low, np.linspace(-1, 1, 64, dtype=np.float32))
    yield "changes: none", before, bf16, plain, bitmap
    yield "changes: a few", moved(before, 0, 1, 7, 8, 2999), bf16, plain, bitmap
    every = tuple(range(0, 3000, 15))
    yield "changes: many, zstd", moved(before, *every), ValueCoding.FP32, zs, bitmap
    yield "changes: many, zlib", moved(before, *every), ValueCoding.INT8, zl, bitmap
    yield "changes: dropped only", moved(half, 0, 63), ValueCoding.INT4, plain, mask_bitmap(half)
    yield "changes: added only", moved(half, 64, 127), ValueCoding.SIGN, plain, mask_bitmap(half)
    yield (
        "context of no ones",
        SparseVector(900, _kept(300), half.values[:1]),
        bf16,
        plain,
        bytes(113),
    )
    ones = mask_bitmap(SparseVector(200, None, np.zeros(200, np.float32)))
    yield "context of ones alone", moved(_random(9, 200, 199), 5), bf16, plain, ones
    far = SparseVector(2**15, np.arange(0, 2**15, 512, dtype=np.uint32), half.values)
    yield (
        "changes with gaps of 1 to 3 bytes",
        moved(far, 512, 20_001),
        bf16,
        plain,
        mask_bitmap(far),
    )
    yield "context that does not help", _random(10, 64, 31), bf16, plain, bytes(8)
    yield (
        "context and nothing kept",
        SparseVector(9, _kept(), half.values[:0]),
        bf16,
        plain,
        b"\x07\x00",
    )
    yield "context and all kept", SparseVector(9, None, half.values[:9]), bf16, plain, b"\x07\x00"


def _codes(most: int) -> SparseVector:
    """Every code of a block twice, once halfway to the next."""
    codes = np.arange(-most, most + 1, dtype=np.float32)
    return SparseVector(4 * most + 1, None, np.concatenate([codes, codes[:-1] + np.float32(0.5)]))


def _coded(
    mask: bytes,
    planes: tuple[bytes, ...] = ONE_BF16,
    *,
    form: int = BITMAP,
    coding: int = BF16,
    size: int = 9,
    count: int = 1,
    head: bytes = b"\x01",
    order: int = 0,
    lengths: tuple[int, ...] | None = None,
) -> bytes:
    """A coded vector from its parts, true or not."""
    stated = (len(mask), *map(len, planes)) if lengths is None else lengths
    fields = struct.pack(f"<BBBII{len(stated)}I", form, coding, order, size, count, *stated)
    return head + fields + mask + b"".join(planes)


def _readable() -> Iterator[tuple[str, int, list[int] | None, list[float], bytes]]:
    """Name, n, positions, values and bytes, of forms that ours would not choose."""
    half = (b"\x80" * 200, b"\x3f" * 200)
    every = zlib.compress(b"\x00" + b"\x01" * 199, 9)  # each second one
    mask = _coded(every, half, form=GAPS | ZLIB, size=400, count=200)
    yield "gaps where 2k = n", 400, list(range(0, 400, 2)), [1.0] * 200, mask
    most = (b"\x80" * 21, b"\x3f" * 21)
    mask = _coded(b"\x00\x03\x12", most, form=GAPS, size=24, count=21)
    kept = [p for p in range(24) if p not in (0, 4, 23)]
    yield "gaps of the left out, the last one too", 24, kept, [1.0] * 21, mask
    wide = _coded(b"\x00" * 6 + b"\x10\x00", size=64)
    yield "bitmap where gaps are shorter", 64, [52], [1.0], wide
    by_exponent = (b"\x01\x02\x03\x04", b"\xbf\x3f\xc0\x3f")
    values = [-0.50390625, 0.5078125, -2.0625, 0.51171875]
    order = _coded(b"", by_exponent, form=DENSE, size=4, count=4, order=1)
    yield "by exponent, a few and plain", 4, None, values, order
    summed = zstd.compress(b"\x3f" * 400, options={zstd.CompressionParameter.checksum_flag: 1})
    planes = (b"\x80" * 400, summed)
    coded = _coded(b"", planes, form=DENSE, coding=BF16 | ZSTD, size=400, count=400)
    yield "zstd with a checksum", 400, None, [1.0] * 400, coded
    zeros = (b"\x03", b"\x00", b"\x00")
    both = _coded(b"", zeros, form=DENSE, coding=SIGN, size=2, count=2)
    yield "signs of a scale 0", 2, None, [-0.0, -0.0], both


def _refused_heads() -> Iterator[tuple[str, int, bytes]]:
    """Rule, expected n and bytes."""
    good = _coded(b"\x04\x00")
    yield "no bytes", 9, b""
    yield "version 0", 9, _coded(b"\x04\x00", head=b"\x00")
    yield "version 2", 9, _coded(b"\x04\x00", head=b"\x02")
    yield "another n than expected", 8, good
    yield "n = 0", 0, _coded(b"", (b"", b""), form=EMPTY, size=0, count=0)
    yield "n above 2**28", 2**28 + 1, _coded(b"", (b"", b""), form=EMPTY, size=2**28 + 1, count=0)
    yield "k above n", 1, _coded(b"", (b"\x80" * 2, b"\x3f" * 2), form=DENSE, size=1, count=2)
    ten = (b"\x80" * 10, b"\x3f" * 10)
    for form in (BITMAP, GAPS, GAPS | ZLIB, GAPS | ZSTD):
        yield f"k above n, mask tag {form}", 9, _coded(b"", ten, form=form, count=10)
    yield "k of four thousand million", 9, _coded(b"\x04\x00", count=2**32 - 1)
    yield "unknown mask form 5", 9, _coded(b"\x04\x00", form=5)
    yield "unknown mask form 15", 9, _coded(b"\x04\x00", form=15)
    yield "unknown mask compression 3", 9, _coded(b"\x04\x00", form=BITMAP | 3 << 4)
    yield "unknown value coding 6", 9, _coded(b"\x04\x00", coding=6)
    yield "unknown order 2", 9, _coded(b"\x04\x00", order=2)
    yield "unknown order 255", 9, _coded(b"\x04\x00", order=255)
    for coding in (FP16, INT8, INT4, SIGN):
        three = (b"\x01", b"\x80", b"\x3f")[coding == FP16 :]
        yield (
            f"order 1 of value coding {coding}",
            9,
            _coded(b"\x04\x00", three, coding=coding, order=1),
        )
    yield "unknown value compression 3", 9, _coded(b"\x04\x00", coding=BF16 | 3 << 4)
    yield "header cut off", 9, good[:20]
    yield "last byte cut off", 9, good[:-1]
    yield "a byte too many", 9, good + b"\x00"
    yield "length of four thousand million", 9, _coded(b"\x04\x00", lengths=(2, 1, 2**32 - 1))
    yield "lengths whose sum wraps in 32 bits", 9, _coded(b"\x04", lengths=(2, 2**32 - 1, 2))
    yield "mask longer than a bitmap", 9, _coded(b"\x04\x00\x00")
    yield "plane longer than its values", 9, _coded(b"\x04\x00", (b"\x80\x80", b"\x3f"))
    yield "plain plane shorter than its values", 9, _coded(b"\x04\x00", (b"\x80", b""))


def _refused_masks() -> Iterator[tuple[str, int, bytes]]:
    none, two = (b"", b""), (b"\x80\x80", b"\x3f\x3f")
    yield "empty with k > 0", 9, _coded(b"", form=EMPTY)
    yield "empty with a mask section", 9, _coded(b"\x00", none, form=EMPTY, count=0)
    yield "empty and compressed", 9, _coded(b"", none, form=EMPTY | ZSTD, count=0)
    yield "dense with k < n", 9, _coded(b"", form=DENSE)
    yield "dense and compressed", 1, _coded(b"", form=DENSE | ZLIB, size=1)
    yield "bitmap with k = 0", 9, _coded(b"", none, count=0)
    yield "bitmap with k = n", 1, _coded(b"", size=1)
    yield "bitmap too short", 9, _coded(b"\x04")
    yield "bitmap with more ones than k", 9, _coded(b"\x05\x00")
    yield "bitmap with fewer ones than k", 9, _coded(b"\x04\x00", two, count=2)
    yield "bitmap with bits past n", 9, _coded(b"\x00\x02")
    yield "gap out of range", 9, _coded(b"\x09", form=GAPS)
    yield "gaps whose sum is out of range", 9, _coded(b"\x04\x04", two, form=GAPS, count=2)
    big, minus_one = 2**22, b"\xff\xff\xff\xff\x0f"
    yield "gap of 28 bits", big, _coded(b"\xff\xff\xff\x7f", form=GAPS, size=big)
    many = (b"\x80" * 4, b"\x3f" * 4)
    yield (
        "gap -1 in 10 bytes",
        big,
        _coded(b"\xff" * 9 + b"\x01\x04\x00\x00", many, form=GAPS, size=big, count=4),
    )
    yield "gap -1 in 5 bytes", big, _coded(b"\x04" + minus_one, two, form=GAPS, size=big, count=2)
    yield "varint longer than need be", 400, _coded(b"\x84\x00", form=GAPS, size=400)
    yield "varint cut off", 400, _coded(b"\x84", form=GAPS, size=400)
    yield "last varint cut off", 400, _coded(b"\x04\x84", form=GAPS, size=400)
    yield "too few varints", 400, _coded(b"\x04", two, form=GAPS, size=400, count=2)
    yield "too many varints", 400, _coded(b"\x04\x04", form=GAPS, size=400)
    yield "no varints", 40, _coded(b"", form=GAPS, size=40)


def _refused_values() -> Iterator[tuple[str, int, bytes]]:
    def one(coding: int, word: int, width: int) -> bytes:
        planes = tuple(bytes([word >> 8 * byte & 255]) for byte in range(width))
        return _coded(b"\x04\x00", planes, coding=coding)

    def scaled(coding: int, code: int, scale: int) -> bytes:
        planes = (bytes([code]), bytes([scale & 255]), bytes([scale >> 8]))
        return _coded(b"\x04\x00", planes, coding=coding)

    yield "fp32 NaN", 9, one(FP32, 0x7FC00000, 4)
    yield "fp32 signalling NaN", 9, one(FP32, 0xFF800001, 4)
    yield "fp32 infinity", 9, one(FP32, 0x7F800000, 4)
    yield "fp16 NaN", 9, one(FP16, 0x7C01, 2)
    yield "fp16 minus infinity", 9, one(FP16, 0xFC00, 2)
    yield "bf16 NaN", 9, one(BF16, 0x7F81, 2)
    yield "bf16 infinity", 9, one(BF16, 0x7F80, 2)
    yield "int8 code -128", 9, scaled(INT8, 0x80, 0x3F80)
    yield "int8 product overflows", 9, scaled(INT8, 127, 0x7F00)
    yield "int4 code -8", 9, scaled(INT4, 0x08, 0x3F80)
    two = _coded(b"\x84\x00", (b"\x81", b"\x80", b"\x3f"), coding=INT4, count=2)
    yield "int4 code -8 in the high half", 9, two
    yield "int4 product overflows", 9, scaled(INT4, 7, 0x7F00)
    yield "int4 bits past the last code", 9, scaled(INT4, 0x11, 0x3F80)
    yield "sign bits past the last one", 9, scaled(SIGN, 0x02, 0x3F80)
    for name, coding in (("int8", INT8), ("int4", INT4), ("sign", SIGN)):
        yield f"{name} scale NaN", 9, scaled(coding, 1, 0x7FC0)
        yield f"{name} scale NaN under a code 0", 9, scaled(coding, 0, 0x7FC0)
        yield f"{name} scale infinity", 9, scaled(coding, 1, 0x7F80)
        yield f"{name} scale negative", 9, scaled(coding, 1, 0xBF80)
        yield f"{name} scale -0", 9, scaled(coding, 1, 0x8000)
        for codes in (b"", b"\x01\x00"):
            coded = _coded(b"\x04\x00", (codes, b"\x80", b"\x3f"), coding=coding)
            yield f"{name} with {len(codes)} bytes of codes for one value", 9, coded


def _refused_changes() -> Iterator[tuple[str, int, bytes, bytes | None]]:
    """Rule, expected n, bytes and context; the context keeps positions 2 and 5 of 40."""
    context, two = b"\x24" + bytes(4), (b"\x80\x80", b"\x3f\x3f")

    def changes(
        section: bytes, planes: tuple[bytes, ...] = two, *, form: int = CHANGES, count: int = 2
    ) -> bytes:
        return _coded(section, planes, form=form, size=40, count=count)

    swapped = changes(b"\x00\x03")
    yield "changes without a context", 40, swapped, None
    yield "context a byte too short", 40, swapped, context[:-1]
    yield "context a byte too long", 40, swapped, context + b"\x00"
    yield "context of no bytes", 40, swapped, b""
    bit = _coded(b"\x00\x03", two, form=CHANGES, size=39, count=2)
    yield "context with a bit past n", 39, bit, b"\x24" + bytes(3) + b"\x80"
    yield "changes that drop more than they add", 40, changes(b"\x00"), context
    yield "changes that add more than they drop", 40, changes(b"\x03"), context
    yield "no changes but another k", 40, changes(b"", ONE_BF16, count=1), context
    yield "rank out of range", 40, changes(b"\x00\x27"), context
    yield "ranks whose sum is out of range", 40, changes(b"\x00\x10\x16"), context
    yield "changes, varint cut off", 40, changes(b"\x00\x83"), context
    yield "changes, varint longer than need be", 40, changes(b"\x00\x83\x00"), context
    yield "changes longer than a bitmap", 40, changes(b"\x00\x03" + bytes(4)), context
    kept = (b"\x80" * 40, b"\x3f" * 40)
    yield "changes with k = 0", 40, changes(b"", (b"", b""), count=0), context
    yield "changes with k = n", 40, changes(b"", kept, count=40), b"\xff" * 5
    yield "changes, no zstd frame", 40, changes(b"\x00\x03", form=CHANGES | ZSTD), context
    large, planes = bytes(1250), (b"\x80" * 100, b"\x3f" * 100)
    bomb = zlib.compress(bytes(2501))
    over = _coded(bomb, planes, form=CHANGES | ZLIB, size=10_000, count=100)
    yield "changes over two bits a position", 10_000, over, large
    wide = b"\x00" * 99 + b"\x83\x80\x80\x80\x00"
    over = _coded(wide, planes, form=CHANGES, size=10_000, count=100)
    yield "changes, varint of 5 bytes", 10_000, over, large
    # Right but for their length: as many are dropped as added.
    more, twenty = b"\x00\x00\x00\x11\x00\x00", (b"\x80" * 20, b"\x3f" * 20)
    over = changes(more, twenty, count=20)
    yield "changes of the right k, longer than a bitmap", 40, over, b"\xff\xff\x0f\x00\x00"
    same = tuple(zlib.compress(plane * 5000, 9) for plane in ONE_BF16)
    section = zlib.compress(bytes(1251) + b"\xa5\x1d" + bytes(1250), 9)
    over = _coded(section, same, form=CHANGES | ZLIB, coding=BF16 | ZLIB, size=10_000, count=5000)
    yield (
        "changes of the right k, over two bits a position",
        10_000,
        over,
        b"\xff" * 625 + bytes(625),
    )
    bomb = zstd.compress(bytes(10**6))
    over = _coded(bomb, planes, form=CHANGES | ZSTD, size=10_000, count=100)
    yield "changes bomb, zstd", 10_000, over, large


def _refused_streams() -> Iterator[tuple[str, int, bytes]]:
    """Compressed planes and masks: 400 values of 1.0, of which every other is kept."""

    def plane(section: bytes, compression: int, count: int = 400) -> bytes:
        planes = (b"\x80" * count, section)
        return _coded(b"", planes, form=DENSE, coding=BF16 | compression, size=count, count=count)

    def bitmap(section: bytes, compression: int) -> bytes:
        planes = (b"\x80" * 200, b"\x3f" * 200)
        return _coded(section, planes, form=BITMAP | compression, size=400, count=200)

    def gaps(section: bytes, compression: int) -> bytes:
        planes = (b"\x80" * 50, b"\x3f" * 50)
        return _coded(section, planes, form=GAPS | compression, size=400, count=50)

    def zs(data: bytes, sized: bool = True) -> bytes:
        return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: sized})

    high = b"\x3f" * 400
    preset = zlib.compressobj(zdict=b"\x3f" * 64)
    unsized = zs(high, sized=False)
    named = bytearray(zs(high))
    named[4:5] = bytes([named[4] | 1]) + b"\x07"  # a one-byte dictionary id
    yield "zstd bomb", 400, plane(zs(bytes(10**6)), ZSTD)
    yield "zstd bomb without a size", 400, plane(zs(bytes(10**6), sized=False), ZSTD)
    yield "zstd without a size", 400, plane(unsized, ZSTD)
    yield "zstd with a dictionary id", 400, plane(bytes(named), ZSTD)
    yield "zstd of one byte too few", 400, plane(zs(high[1:]), ZSTD)
    yield "zstd of one byte too many", 400, plane(zs(high + b"\x3f"), ZSTD)
    yield "zstd cut off", 400, plane(zs(high)[:-1], ZSTD)
    yield "zstd and a byte", 400, plane(zs(high) + b"\x00", ZSTD)
    yield "two zstd frames", 400, plane(zs(high[:200]) + zs(high[:200]), ZSTD)
    yield "zstd skippable frame", 400, plane(b"\x50\x2a\x4d\x18\x90\x01\x00\x00" + bytes(64), ZSTD)
    yield "zstd of nothing", 400, plane(zs(b""), ZSTD)
    yield "zlib stream called zstd", 400, plane(zlib.compress(high), ZSTD)
    yield "compressed plane called plain", 400, plane(zs(high), 0)
    yield "zlib bomb", 400, plane(zlib.compress(bytes(10**5)), ZLIB)
    yield "zlib of one byte too few", 400, plane(zlib.compress(high[1:]), ZLIB)
    yield "zlib of one byte too many", 400, plane(zlib.compress(high + b"\x3f"), ZLIB)
    yield "zlib cut off", 400, plane(zlib.compress(high)[:-1], ZLIB)
    yield "zlib with a wrong checksum", 400, plane(zlib.compress(high)[:-1] + b"\x00", ZLIB)
    yield "zlib and a byte", 400, plane(zlib.compress(high) + b"\x00", ZLIB)
    yield "zlib with a preset dictionary", 400, plane(preset.compress(high) + preset.flush(), ZLIB)
    yield "compressed plane of no bytes", 400, plane(b"", ZLIB)
    yield "bitmap bomb", 400, bitmap(zs(b"\x55" * 10**5), ZSTD)
    yield "bitmap compressed and too short", 400, bitmap(zs(b"\x55" * 49), ZSTD)
    yield "varint bomb", 400, gaps(zs(b"\x01" * 10**5), ZSTD)
    yield "varint bomb, zlib", 400, gaps(zlib.compress(b"\x01" * 10**4), ZLIB)
    yield "varints just over the limit", 400, gaps(zs(b"\x81" * 200 + b"\x01"), ZSTD)


def _case(
    name: str,
    vector: SparseVector,
    coding: ValueCoding,
    compression: Compression,
    context: bytes | None = None,
) -> dict[str, object]:
    indices = None if vector.indices is None else [int(index) for index in vector.indices]
    return {
        "name": name,
        "size": vector.size,
        "indices": indices,
        "values": vector.values.astype("<f4").tobytes().hex(),
        "coding": coding.value,
        "compression": compression.value,
        "context": None if context is None else context.hex(),
        "coded": encode(vector, coding, compression, context).hex(),
        "decoded": decoded_values(vector.values, coding).astype("<f4").tobytes().hex(),
    }


def _readable_case(
    name: str, size: int, indices: list[int] | None, values: list[float], coded: bytes
) -> dict[str, object]:
    decoded = np.array(values, "<f4").tobytes().hex()
    return {
        "name": name, "size": size, "indices": indices, "context": None, "coded": coded.hex(),
        "decoded": decoded,
    }  # fmt: skip


def _refusal(rule: str, size: int, coded: bytes, context: bytes | None = None) -> dict[str, object]:
    held = None if context is None else context.hex()
    return {"rule": rule, "size": size, "context": held, "coded": coded.hex()}


def main() -> None:
    """Write the file, one case a line."""
    groups = (_refused_heads(), _refused_masks(), _refused_values(), _refused_streams())
    refused = [_refusal(*case) for group in groups for case in group]
    refused += [_refusal(*case) for case in _refused_changes()]
    accepted = [_case(*case) for case in _accepted()]
    accepted += [_case(*case) for case in _with_context()]
    readable = [_readable_case(*case) for case in _readable()]
    lines = [f'{{\n"about": {json.dumps(ABOUT)}']
    for key, cases in (("accepted", accepted), ("readable", readable), ("refused", refused)):
        rows = ",\n".join(json.dumps(case) for case in cases)
        lines.append(f'"{key}": [\n{rows}\n]')
    PATH.write_text(",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
