"""The cache: bounded by bytes, and the longest unwanted goes first."""

import pytest

from sedge_cloud.store.cache import Cache


def filled(*names: str) -> Cache[bytes]:
    """A cache of ten bytes with values of three each."""
    cache: Cache[bytes] = Cache(10, len)
    for name in names:
        assert cache.put(name.encode(), name.encode() * 3) == name.encode() * 3
    return cache


def held(cache: Cache[bytes], names: str) -> str:
    """Which of these are there."""
    return "".join(name for name in names if cache.get(name.encode()) is not None)


def test_the_longest_unwanted_goes_first() -> None:
    cache = filled("a", "b", "c")
    cache.get(b"a")
    cache.put(b"d", b"ddd")
    assert held(cache, "abcd") == "acd"


def test_another_value_takes_the_place_of_the_first() -> None:
    cache = filled("a", "b")
    cache.put(b"a", b"A" * 7)
    assert cache.get(b"a") == b"A" * 7 and held(cache, "ab") == "ab"
    cache.put(b"a", b"A")
    cache.put(b"c", b"c" * 6)  # 1 + 3 + 6: the seven bytes count no more
    assert held(cache, "abc") == "abc"


@pytest.mark.parametrize(("size", "kept"), [(10, "d"), (11, "")])
def test_it_never_holds_more_than_its_limit(size: int, kept: str) -> None:
    cache = filled("a", "b", "c")
    assert cache.put(b"d", b"d" * size) == b"d" * size
    assert held(cache, "abcd") == kept and len(cache) == len(kept)
