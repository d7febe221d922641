"""Segments of GPU memory, in blocks that are split, joined and found as torch's caching allocator does it.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.x with its default settings, and c10/core/AllocatorConfig.h.
"""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 2**20
BLOCK = 512
"""Bytes to which every size is rounded up: kMinBlockSize."""
SMALL = MIB
"""Up to here, sizes come from the small pool: kSmallSize."""
SMALL_SEGMENT = 2 * MIB
"""Bytes of a segment of the small pool: kSmallBuffer."""
LARGE = 10 * MIB
"""From here on, a size gets a segment of its own: kMinLargeAlloc."""
LARGE_SEGMENT = 20 * MIB
"""Bytes of a segment for sizes below that: large_segment_size, formerly kLargeBuffer."""
ROUND_LARGE = 2 * MIB
"""Bytes to which a segment of its own is rounded up: kRoundLarge."""
SIZE_BITS = 64


def whole(size: int, unit: int) -> int:
    """Return the bytes of the whole units that hold `size`."""
    return -(-size // unit) * unit


def segment_size(size: int) -> int:
    """Return the bytes that torch asks the card for where no free block holds `size`: get_allocation_size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < LARGE else whole(size, ROUND_LARGE)


class Block:
    """A piece of a segment; its neighbours there are `before` and `after`."""

    __slots__ = ("address", "after", "before", "free", "mapped", "pool", "size")

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.free = False
        """Whether it can be given out as it is."""
        self.mapped = True
        """Whether memory stands behind it; only a GrowingPool has blocks without."""
        self.before: Block | None = None
        self.after: Block | None = None

    def split(self, size: int) -> Block:
        """Keep the first `size` bytes; return the rest, as a block behind them."""
        rest = Block(self.pool, self.address + size, self.size - size)
        rest.before, rest.after = self, self.after
        if rest.after:
            rest.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self, other: Block) -> None:
        """Take in one of the two neighbours."""
        if other is self.before:
            self.address, self.before = other.address, other.before
            if self.before:
                self.before.after = self
        else:
            self.after = other.after
            if self.after:
                self.after.before = self
        self.size += other.size


class Pool:
    """The small or the large blocks of one stream.

    Torch takes the smallest block that is large enough, of equal ones that at the lowest address. Addresses count per
    pool, and each new segment lies behind all earlier ones: where the driver really puts it is not documented, and it
    decides between free blocks of equal size only.
    """

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.reserved = 0
        """Bytes that were asked from the card and not given back."""
        self.least_rest = BLOCK if small else SMALL + BLOCK
        """What is left of a block is split off from this size on: should_split."""
        self._order: list[int] = []
        self._free: dict[int, Block] = {}
        self._end = 0

    def best(self, size: int) -> Block | None:
        """Take out the free block that torch would give for `size`."""
        at = bisect_left(self._order, size << SIZE_BITS)
        if at == len(self._order):
            return None
        block = self._free.pop(self._order.pop(at))
        block.free = False
        return block

    def put(self, block: Block) -> None:
        """Add a free block."""
        place = block.size << SIZE_BITS | block.address
        insort(self._order, place)
        self._free[place] = block
        block.free = True

    def take(self, block: Block) -> None:
        """Take out one free block."""
        place = block.size << SIZE_BITS | block.address
        del self._order[bisect_left(self._order, place)], self._free[place]
        block.free = False

    def cut(self, block: Block, size: int) -> None:
        """Leave `size` bytes in a block that is given out, where the rest is worth keeping."""
        if block.size - size >= self.least_rest:
            self.put(block.split(size))

    def give_back(self, block: Block) -> None:
        """Add a block that is no longer in use, as one with its free neighbours."""
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.free:
                self.take(neighbour)
                block.absorb(neighbour)
        self.put(block)

    def wanted(self, size: int) -> int:
        """Return the bytes that `grow` asks the card for."""
        return segment_size(size)

    def grow(self, size: int, limit: int) -> Block | None:
        """Return a new segment; None where that takes the pool above `limit` bytes."""
        segment = segment_size(size)
        if self.reserved + segment > limit:
            return None
        block = Block(self, self._end, segment)
        self._end += segment
        self.reserved += segment
        return block

    def release(self) -> None:
        """Give back to the card each segment that is free as a whole: release_blocks."""
        for block in list(self._free.values()):
            if block.before is None and block.after is None:
                self.take(block)
                self.reserved -= block.size
