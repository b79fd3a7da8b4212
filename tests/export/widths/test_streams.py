"""Streams of channels: tied, cut and fixed."""

import itertools

import pytest

from sedge_export.widths.streams import Dim, Stream, Streams, extent_of, resolved


@pytest.fixture
def streams() -> Streams:
    return Streams()


def stream(dim: Dim) -> Stream:
    """The one stream that a dimension is."""
    (part,) = resolved(dim)
    assert isinstance(part, Stream)
    return part


def test_plain_extents_are_multiplied(streams: Streams) -> None:
    channels = streams.fresh(6, "c")
    assert resolved((2, 3, 1, *channels, 1, 4)) == (6, *channels, 4)
    assert resolved((1, 1)) == ()
    assert extent_of((2, *channels, 4)) == 48


def test_one_channel_is_no_stream(streams: Streams) -> None:
    assert streams.fresh(1, "c") == ()


def test_tied_streams_are_one(streams: Streams) -> None:
    dims = [streams.fresh(6, name) for name in "abcd"]
    streams.tie(dims[0], dims[1], "")
    streams.tie(dims[2], dims[3], "")
    assert stream(dims[0]) is not stream(dims[3])
    streams.tie(dims[1], dims[3], "")
    assert len({stream(dim) for dim in dims}) == 1
    streams.tie(dims[0], dims[2], "")
    assert not streams.reasons


def test_a_long_chain_of_ties(streams: Streams) -> None:
    dims = [streams.fresh(4, str(number)) for number in range(5000)]
    for first, second in itertools.pairwise(dims):
        streams.tie(second, first, "")
    assert stream(dims[0]) is stream(dims[-1])


@pytest.mark.parametrize("swapped", [False, True])
def test_a_flattened_image_is_found_in_what_reads_it(streams: Streams, swapped: bool) -> None:
    channels, flat = streams.fresh(6, "conv"), streams.fresh(24, "fc")
    image = resolved((*channels, 4))
    first, second = (flat, image) if swapped else (image, flat)
    streams.tie(first, second, "")
    assert resolved(flat) == (*channels, 4)
    assert not streams.reasons


def test_flattened_images_are_tied_by_their_channels(streams: Streams) -> None:
    first, second = streams.fresh(6, "a"), streams.fresh(6, "b")
    streams.tie((*first, 4), (*second, 4), "")
    assert stream(first) is stream(second)
    third, fourth = streams.fresh(6, "c"), streams.fresh(6, "d")
    streams.tie((5, *third), (5, *fourth), "")
    assert stream(third) is stream(fourth)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_plain_extent_fixes_what_it_is_tied_to(streams: Streams, swapped: bool) -> None:
    channels = streams.fresh(6, "c")
    plain: Dim = (6,)
    first, second = (channels, plain) if swapped else (plain, channels)
    streams.tie(first, second, "meets 6")
    assert resolved(channels) == (6,)
    assert streams.reasons == ["c meets 6"]


def test_what_cannot_match_is_fixed(streams: Streams) -> None:
    first, second = streams.fresh(6, "a"), streams.fresh(8, "b")
    streams.tie((*first, 4), (*second, 3), "differs")
    assert resolved(first) == (6,)
    assert resolved(second) == (8,)
    assert streams.reasons == ["a differs", "b differs"]


def test_all_that_is_tied_is_fixed_with_it(streams: Streams) -> None:
    first, second, flat = streams.fresh(6, "a"), streams.fresh(6, "b"), streams.fresh(12, "f")
    streams.tie(first, second, "")
    streams.tie((*second, 2), flat, "")
    streams.fix(first, "is cut")
    assert [resolved(dim) for dim in (first, second, flat)] == [(6,), (6,), (12,)]
    assert streams.reasons == ["a is cut"]
    streams.fix(second, "again")
    assert streams.reasons == ["a is cut"]


def test_a_reason_may_be_no_news(streams: Streams) -> None:
    streams.fix(streams.fresh(3, "kernel"), "")
    assert not streams.reasons


REGROUPED: dict[str, tuple[tuple[object, ...], tuple[int, ...], list[tuple[object, ...]]]] = {
    "flatten": (((5,), ("c",), (2,), (2,)), (5, 24), [(5,), ("c", 4)]),
    "unflatten": (((5,), ("c", 4)), (5, 6, 2, 2), [(5,), ("c",), (2,), (2,)]),
    "batch and channels": (((5,), ("c",), (4,)), (1, 30, 4), [(), (5, "c"), (4,)]),
    "only plain": (((4,), (6,), ("c",)), (3, 8, 6), [(3,), (8,), ("c",)]),
    "ones": (((1,), ("c",), (1,)), (6, 1, 1), [("c",), (), ()]),
    "cut in two": (((5,), ("c",), (4,)), (5, 2, 3, 4), [(5,), (2,), (3,), (4,)]),
    "cut behind": (((5,), ("c",), (4,)), (5, 12, 2), [(5,), ("c", 2), (2,)]),
    "no boundary kept": (((4,), ("c",)), (6, 4), [(6,), (4,)]),
    "cut by what comes before": (((4,), ("c",)), (8, 3), [(8,), (3,)]),
}


@pytest.mark.parametrize("case", REGROUPED)
def test_regroup(streams: Streams, case: str) -> None:
    before, shape, after = REGROUPED[case]
    channels = streams.fresh(6, "c")

    def dim(parts: object) -> Dim:
        assert isinstance(parts, tuple)
        return resolved(p for part in parts for p in (channels if part == "c" else (part,)))

    found = streams.regroup([dim(parts) for parts in before], shape, "is cut")
    assert [resolved(d) for d in found] == [dim(parts) for parts in after]
    assert [extent_of(d) for d in found] == list(shape)
    lost = not any("c" in parts for parts in after)
    assert streams.reasons == (["c is cut"] if lost else [])
