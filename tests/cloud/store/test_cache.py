"""The cache: bounded by bytes, and the longest unwanted goes first."""

import pytest

from sedge_cloud.store.cache import Cache, Memory


def filled(*names: str) -> Cache[bytes]:
    """A cache of ten bytes with values of three each."""
    cache: Cache[bytes] = Cache(Memory(10), len)
    for name in names:
        assert cache.put(name.encode(), name.encode() * 3) == name.encode() * 3
    return cache


def held(cache: Cache[bytes], names: str) -> str:
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


@pytest.mark.parametrize(("size", "kept"), [(10, "d"), (11, "abc")])
def test_it_never_holds_more_than_its_limit(size: int, kept: str) -> None:
    cache = filled("a", "b", "c")
    assert cache.put(b"d", b"d" * size) == b"d" * size
    assert held(cache, "abcd") == kept


def test_caches_share_one_bound_and_no_names() -> None:
    memory = Memory(10)
    one, other = Cache[bytes](memory, len), Cache[bytes](memory, len)
    one.put(b"a", b"1" * 4)
    other.put(b"a", b"2" * 4)
    assert one.get(b"a") == b"1111" and other.get(b"a") == b"2222" and memory.held == 8
    other.put(b"b", b"3" * 6)
    assert held(one, "ab") == "" and held(other, "ab") == "ab" and memory.held == 10
    other.drop(b"a")
    other.drop(b"a")
    assert held(other, "ab") == "b" and memory.held == 6
    one.put(b"c", b"4")
    other.clear()
    assert held(other, "ab") == "" and held(one, "c") == "c" and memory.held == 1


def test_a_machine_that_does_not_tell_counts_as_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, limit in ((0, 50), (8000, 400)):
        monkeypatch.setattr("sedge_cloud.store.cache.memory_mb", lambda found=found: found)
        cache: Cache[int] = Cache(Memory.of_machine(0.05), lambda size: size)
        cache.put(b"a", limit * 10**6)
        assert cache.get(b"a")
        cache.put(b"b", limit * 10**6 + 1)
        assert cache.get(b"b") is None
