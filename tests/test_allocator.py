"""The model of torch's caching allocator: every rule on a case counted by hand, random ones against a slow model."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise, permutations
from pathlib import Path
from random import Random

import pytest

from hf_efficient.memory import blocks
from hf_efficient.memory.allocator import CachingAllocator, CardFullError
from hf_efficient.memory.blocks import MIB, SMALL, Block, Pool, segment_size, whole
from hf_efficient.memory.growing import ADDRESSES, GrowingPool

SIZES = (1, 512, 513, 5000, 700_000, MIB, MIB + 1, 3 * MIB, 7 * MIB, 10 * MIB - 512, 10 * MIB, 25 * MIB, 33 * MIB + 7)


def _after(*changes: tuple[str, float], capacity: int | None = None, expandable: bool = False) -> CachingAllocator:
    """Return an allocator after changes: (key, MiB), or (key, 0) to free; `capacity` in MiB."""
    allocator = CachingAllocator(capacity * MIB if capacity else None, expandable=expandable)
    for key, size in changes:
        if size:
            allocator.malloc(key, int(size * MIB))
        else:
            allocator.free(key)
    return allocator


def _grown(pool: Pool, size: int) -> Block:
    block = pool.grow(size * MIB, ADDRESSES)
    assert block
    return block


def _taken(allocator: CachingAllocator) -> tuple[float, float]:
    return allocator.reserved / MIB, allocator.allocated / MIB


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("BLOCK", "kMinBlockSize"), ("SMALL", "kSmallSize"), ("SMALL_SEGMENT", "kSmallBuffer"),
     ("LARGE", "kMinLargeAlloc"), ("ROUND_LARGE", "kRoundLarge"), ("LARGE_SEGMENT", "large_segment_size_")],
)  # fmt: skip
def test_the_sizes_are_those_of_the_installed_torch(ours: str, theirs: str) -> None:
    """Each size that decides is the one in the header that torch brings along."""
    spec = find_spec("torch")
    assert spec
    assert spec.origin
    header = Path(spec.origin).parent / "include/c10/core/AllocatorConfig.h"
    found = re.search(rf"\b{theirs}\s*[={{]\s*(\d+)", header.read_text())
    assert found
    assert int(found[1]) == getattr(blocks, ours)


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (100_000, 100_352)])
def test_sizes_are_rounded_up_to_512_bytes(size: int, rounded: int) -> None:
    """A block holds whole units of 512 bytes."""
    allocator = CachingAllocator()
    allocator.malloc("a", size)
    assert allocator.allocated == allocator.peak_allocated == rounded


@pytest.mark.parametrize(
    ("size", "reserved"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB - 511, 10), (10 * MIB, 10), (10 * MIB + 1, 12),
     (30 * MIB, 30), (31 * MIB, 32)],
)  # fmt: skip
def test_a_segment_has_2_or_20_mib_or_its_own_size(size: int, reserved: int) -> None:
    """Up to 1 MiB 2 MiB, below 10 MiB 20 MiB, from there on the size itself in units of 2 MiB."""
    allocator = CachingAllocator()
    allocator.malloc("a", size)
    assert allocator.reserved == allocator.peak_reserved == reserved * MIB


def test_small_blocks_share_segments_of_2_mib() -> None:
    """Two blocks of 1 MiB fill a segment; the next one opens another."""
    assert _taken(_after(("a", 1), ("b", 1))) == (2, 2)
    assert _taken(_after(("a", 1), ("b", 1), ("c", 1 / 2048))) == (4, 2 + 1 / 2048)


def test_small_and_large_never_share() -> None:
    """What is left of a large segment holds no small block."""
    assert _taken(_after(("a", 3), ("b", 0.5))) == (22, 3.5)


def test_a_freed_block_stays_reserved_and_is_given_out_again() -> None:
    """30 MiB freed hold 25 MiB, and what is left holds 3 MiB more."""
    assert _taken(_after(("a", 30), ("a", 0))) == (30, 0)
    assert _taken(_after(("a", 30), ("a", 0), ("b", 25), ("c", 3))) == (30, 28)


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    """Of free blocks of 40 and 30 MiB, 25 MiB go into the latter, and 40 find the former."""
    allocator = _after(("a", 40), ("b", 30), ("a", 0), ("b", 0), ("c", 25), ("d", 40))
    assert _taken(allocator) == (70, 65)


def test_of_equal_blocks_the_first_is_taken() -> None:
    """Of free blocks of one size, the one at the lowest address goes, in whatever order they were freed."""
    pool = Pool(small=False)
    first, second = _grown(pool, 30), _grown(pool, 30)
    for block in (second, first):
        pool.give_back(block)
    assert pool.best(25 * MIB) is first


@pytest.mark.parametrize(("second", "allocated"), [(29, 30), (29 - 1 / 2048, 29 - 1 / 2048), (28, 28)])
def test_a_large_block_is_split_where_more_than_1_mib_is_left(second: float, allocated: float) -> None:
    """A rest of exactly 1 MiB stays with its block, and counts as allocated; 512 bytes more are split off."""
    assert _taken(_after(("a", 30), ("a", 0), ("b", second))) == (30, allocated)


def test_a_small_block_is_split_wherever_512_bytes_are_left() -> None:
    """The last 512 bytes of a small segment are a block of their own."""
    little = 1 / 2048
    assert _taken(_after(("a", 1), ("b", 1 - little), ("c", little))) == (2, 2)


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_free_neighbours_join(order: tuple[str, ...]) -> None:
    """Three blocks of one segment and its rest, freed in any order, are one block of 20 MiB."""
    made = [(key, 6.0) for key in "abc"]
    assert _taken(_after(*made, *((key, 0.0) for key in order), ("d", 20))) == (20, 20)


def test_segments_never_join() -> None:
    """Two free segments of 20 MiB do not hold 40."""
    assert _taken(_after(("a", 20), ("b", 20), ("a", 0), ("b", 0), ("c", 40))) == (80, 40)


def test_streams_share_nothing() -> None:
    """What one stream freed is not given to another."""
    allocator = CachingAllocator()
    allocator.malloc("a", 30 * MIB)
    allocator.free("a")
    allocator.malloc("b", 30 * MIB, stream=1)
    assert allocator.reserved == 60 * MIB


def test_a_full_card_gets_back_what_is_free_as_a_whole() -> None:
    """Where no new segment fits, the cached ones are released, which counts as one retry."""
    allocator = _after(("a", 30), ("a", 0), ("b", 40), capacity=50)
    assert _taken(allocator) == (40, 40)
    assert (allocator.retries, allocator.peak_reserved) == (1, 40 * MIB)


def test_a_segment_in_use_cannot_be_given_back() -> None:
    """25 of 30 MiB in use keep the whole segment: 22 MiB more do not fit on 50, for 2 MiB."""
    allocator = _after(("a", 30), ("a", 0), ("b", 25), capacity=50)
    with pytest.raises(CardFullError) as caught:
        allocator.malloc("c", 22 * MIB)
    assert str(caught.value) == (
        "An allocation of 22.00 MiB does not fit: it takes 22.00 MiB more from the card, which has 20.00 MiB left of "
        "50.00 MiB; 30.00 MiB are reserved, 25.00 MiB of them allocated."
    )
    assert (caught.value.size, caught.value.missing) == (22 * MIB, 2 * MIB)
    allocator.malloc("c", 20 * MIB)
    assert allocator.reserved == 50 * MIB


@pytest.mark.parametrize(("expandable", "left"), [(False, 32), (True, 42)])
def test_empty_cache_keeps_what_is_in_use(expandable: bool, left: int) -> None:
    """Whole segments go, in pages of 20 MiB where they are expandable; the peak stays."""
    made = [("a", 30), ("b", 30), ("c", 1), ("d", 1), ("e", 0.5), ("b", 0), ("e", 0)]
    allocator = _after(*made, expandable=expandable)
    assert allocator.reserved == 64 * MIB
    allocator.empty_cache()
    assert (allocator.reserved, allocator.peak_reserved) == (left * MIB, 64 * MIB)


def test_expandable_segments_grow_by_pages() -> None:
    """Large blocks lie behind each other in pages of 20 MiB, small ones in pages of 2 MiB."""
    assert _taken(_after(("a", 25), expandable=True)) == (40, 25)
    assert _taken(_after(("a", 25), ("b", 15), expandable=True)) == (40, 40)
    assert _taken(_after(("a", 25), ("b", 15), ("c", 0.5), expandable=True)) == (42, 40.5)


def test_expandable_segments_split_off_every_rest() -> None:
    """No block keeps a rest, large ones neither."""
    assert _taken(_after(("a", 19.5), expandable=True)) == (20, 19.5)


def test_expandable_segments_do_not_fragment() -> None:
    """Two freed blocks of 30 MiB hold 32 and 28 where they are one segment, and not where they are two."""
    made = [("a", 30), ("b", 30), ("a", 0), ("b", 0), ("c", 32), ("d", 28)]
    assert _taken(_after(*made)) == (92, 60)
    assert _taken(_after(*made, expandable=True)) == (60, 60)


def test_the_free_end_of_an_expandable_segment_grows() -> None:
    """45 MiB fit behind 10 on 60 MiB: the 30 MiB at the end get one page more. A plain segment does not grow."""
    made = [("a", 40), ("a", 0), ("b", 10), ("c", 45)]
    allocator = _after(*made, capacity=60, expandable=True)
    assert _taken(allocator) == (60, 55)
    assert allocator.retries == 0
    with pytest.raises(CardFullError):
        _after(*made, capacity=60)


def test_the_end_of_an_expandable_segment_is_used_last() -> None:
    """10 MiB go into a hole of 20 rather than into the 15 at the end, so that 20 MiB more take a new page."""
    made = [("a", 20), ("b", 20), ("c", 25), ("a", 0), ("d", 10)]
    assert _taken(_after(*made, expandable=True)) == (80, 55)
    assert _taken(_after(*made, ("e", 20), expandable=True)) == (100, 75)


def test_a_full_card_gets_back_free_pages() -> None:
    """A free page between used ones is unmapped and mapped at the end, where 60 MiB are in one piece."""
    made = [("a", 20), ("b", 20), ("c", 20), ("a", 0), ("d", 60)]
    allocator = _after(*made, capacity=100, expandable=True)
    assert _taken(allocator) == (100, 100)
    assert allocator.retries == 1


def test_the_lowest_gap_is_mapped_first() -> None:
    """After an unmapped page new memory goes there if it fits, else behind the end."""
    pool = GrowingPool(small=False)
    first, _ = _grown(pool, 20), _grown(pool, 20)
    pool.give_back(first)
    pool.release()
    assert [_grown(pool, size).address // MIB for size in (25, 15)] == [40, 0]
    assert pool.reserved == 80 * MIB


def test_a_page_that_is_not_quite_free_stays() -> None:
    """A used block at either end of 60 free MiB, off the pages' borders, keeps its page: 40 MiB go."""
    made = [("a", 10), ("b", 60), ("c", 10), ("b", 0)]
    allocator = _after(*made, expandable=True)
    allocator.empty_cache()
    assert _taken(allocator) == (40, 20)


def test_what_an_expandable_segment_lacks_is_counted_in_pages() -> None:
    """30 MiB on a card of 50 with a free end of 10: one page of 20 MiB more, of which 10 are there."""
    with pytest.raises(CardFullError, match=r"takes 20\.00 MiB more .* 10\.00 MiB left") as caught:
        _after(("a", 30), ("b", 30), capacity=50, expandable=True)
    assert caught.value.missing == 10 * MIB


class _Slow:
    """The plain allocator once more, in lists that are searched from end to end: a segment is [[key, bytes], ...]."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: dict[bool, list[list[list[int]]]] = {True: [], False: []}

    def reserved(self) -> int:
        return sum(size for pool in self.segments.values() for segment in pool for _, size in segment)

    def allocated(self) -> int:
        return sum(size for pool in self.segments.values() for segment in pool for key, size in segment if key)

    def malloc(self, key: int, size: int) -> bool:
        size = whole(size, 512)
        small = size <= SMALL
        pool = self.segments[small]
        free = [(block[1], number, at) for number, segment in enumerate(pool) for at, block in enumerate(segment)
                if not block[0] and block[1] >= size]  # fmt: skip
        if not free:
            if self.reserved() + segment_size(size) > self.capacity:
                for each in self.segments.values():
                    each[:] = [segment for segment in each if len(segment) > 1 or segment[0][0]]
            if self.reserved() + segment_size(size) > self.capacity:
                return False
            pool.append([[0, segment_size(size)]])
            free = [(segment_size(size), len(pool) - 1, 0)]
        found, number, at = min(free)
        split = found - size >= 512 if small else found - size > SMALL
        pool[number][at : at + 1] = [[key, size], [0, found - size]] if split else [[key, found]]
        return True

    def free(self, key: int) -> None:
        for pool in self.segments.values():
            for segment in pool:
                for at in [at for at, block in enumerate(segment) if block[0] == key]:
                    segment[at][0] = 0
                    for left in (at, at - 1):
                        if 0 <= left < len(segment) - 1 and not segment[left][0] and not segment[left + 1][0]:
                            segment[left][1] += segment.pop(left + 1)[1]


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_model_of_the_same_rules_agrees(seed: int) -> None:
    """Reserved and allocated bytes, and what does not fit, after each of 400 random changes on a nearly full card."""
    random = Random(seed)
    fast, slow, used = CachingAllocator(300 * MIB), _Slow(300 * MIB), []
    for key in range(1, 401):
        if used and random.random() < 0.45:
            gone = used.pop(random.randrange(len(used)))
            fast.free(gone)
            slow.free(gone)
        else:
            used += [key] * _same(fast, slow, key, random.choice(SIZES))
        assert (fast.reserved, fast.allocated) == (slow.reserved(), slow.allocated())
    assert seed > 3 or fast.retries


def _same(fast: CachingAllocator, slow: _Slow, key: int, size: int) -> bool:
    fits = slow.malloc(key, size)
    if fits:
        fast.malloc(key, size)
    else:
        with pytest.raises(CardFullError):
            fast.malloc(key, size)
    return fits


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_tile_their_segments_whatever_comes(seed: int, expandable: bool) -> None:
    """Nothing overlaps, nothing is lost, nothing is above the capacity, and all of it can be given back."""
    random = Random(seed)
    allocator, used = CachingAllocator(250 * MIB, expandable=expandable), []
    for key in range(600):
        if used and random.random() < 0.45:
            allocator.free(used.pop(random.randrange(len(used))))
        else:
            with suppress(CardFullError):
                allocator.malloc(key, random.choice(SIZES), random.randrange(2))
                used.append(key)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved <= 250 * MIB
        if key % 20 == 0:
            _tiled(allocator)
    for key in used:
        allocator.free(key)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.allocated) == (0, 0)


def _tiled(allocator: CachingAllocator) -> None:
    """Check every segment, block by block."""
    for pool in allocator._pools.values():
        known = [*pool._free.values(), *(b for b in allocator._used.values() if b.pool is pool)]
        known += pool._unmapped if isinstance(pool, GrowingPool) else []
        heads = [block for block in known if block.before is None]
        rows = [_row(head) for head in heads]
        assert sorted(map(id, known)) == sorted(id(block) for row in rows for block in row)
        assert sum(block.size for row in rows for block in row if block.mapped) == pool.reserved
        assert not isinstance(pool, GrowingPool) or [sum(block.size for block in row) for row in rows] == [ADDRESSES]
        for one, next_one in (pair for row in rows for pair in pairwise(row)):
            assert one.address + one.size == next_one.address
            assert not (one.free and next_one.free)
            assert one.mapped or next_one.mapped


def _row(block: Block | None) -> list[Block]:
    row = []
    while block:
        row.append(block)
        block = block.after
    return row
