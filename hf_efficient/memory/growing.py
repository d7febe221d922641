"""Pools under `expandable_segments:True`: one range of addresses, to which memory is mapped page by page.

Source: Note [Expandable Segments], try_allocate_expandable_block and unmap_block of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from hf_efficient.memory.blocks import BLOCK, LARGE_SEGMENT, SIZE_BITS, SMALL_SEGMENT, Block, Pool, whole

ADDRESSES = 2**50 // LARGE_SEGMENT * LARGE_SEGMENT
"""Bytes of addresses of one pool. Torch takes 9/8 of the card's memory, and a second range where those are used up."""
_address = attrgetter("address")


class GrowingPool(Pool):
    """The small or the large blocks of one stream, in one segment that grows at its end and in its gaps."""

    def __init__(self, *, small: bool) -> None:
        super().__init__(small=small)
        self.least_rest = BLOCK
        self.page = SMALL_SEGMENT if small else LARGE_SEGMENT
        everything = Block(self, 0, ADDRESSES)
        everything.mapped = False
        self._unmapped = [everything]

    def best(self, size: int) -> Block | None:
        """Take out the free block that torch would give for `size`.

        A block that can still grow counts with what it can grow to, so that the end of the segment is used last.
        """
        order, free = self._order, self._free
        at = bisect_left(order, size << SIZE_BITS)
        if at == len(order):
            return None
        while at + 1 < len(order) and _can_be(free[order[at]]) > _can_be(free[order[at + 1]]):
            at += 1
        block = free.pop(order.pop(at))
        block.free = False
        return block

    def wanted(self, size: int) -> int:
        """Return the bytes that `grow` asks the card for."""
        block: Block | None = self._start(size)
        pages = 0
        while size > 0:
            assert block
            pages += 0 if block.mapped else whole(min(size, block.size), self.page)
            size, block = size - block.size, block.after
        return pages

    def grow(self, size: int, limit: int) -> Block | None:
        """Map pages at the lowest address where `size` can be; None where that takes the pool above `limit` bytes.

        What was mapped before the limit was met stays, as in torch.
        """
        block = self._start(size)
        if not block.mapped and not self._map(block, min(size, block.size), limit):
            return None
        while block.size < size:
            gap = block.after
            assert gap
            if not self._map(gap, min(size - block.size, gap.size), limit):
                return None
            block = gap
        self.take(block)
        return block

    def release(self) -> None:
        """Give back to the card each page of which no byte is in use."""
        for block in list(self._free.values()):
            self._unmap(block)

    def _start(self, size: int) -> Block:
        """Return the first block of the lowest run of free and unmapped ones that can hold `size`."""
        for gap in self._unmapped:
            start = gap.before if gap.before and gap.before.free else gap
            if _run(start, size) >= size:
                return start
        raise AssertionError("the addresses are used up")

    def _map(self, block: Block, size: int, limit: int) -> bool:
        """Put pages behind the first `size` bytes of a block, and join it with its free neighbours."""
        size = whole(size, self.page)
        if self.reserved + size > limit:
            return False
        self._unmapped.remove(block)
        if size < block.size:
            self._leave(block.split(size))
        block.mapped = True
        self.reserved += size
        self.give_back(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Take the pages from inside a free block; what is left of it at both ends stays free."""
        begin = whole(block.address, self.page)
        end = (block.address + block.size) // self.page * self.page
        if begin >= end:
            return
        self.take(block)
        if end < block.address + block.size:
            self.put(block.split(end - block.address))
        if begin > block.address:
            head, block = block, block.split(begin - block.address)
            self.put(head)
        self.reserved -= block.size
        for neighbour in (block.before, block.after):
            if neighbour is not None and not neighbour.mapped:
                self._unmapped.remove(neighbour)
                block.absorb(neighbour)
        self._leave(block)

    def _leave(self, block: Block) -> None:
        block.mapped = False
        insort(self._unmapped, block, key=_address)


def _can_be(block: Block) -> int:
    """Return the bytes to which a free block can grow."""
    after = block.after
    return block.size if after is None or after.mapped else block.size + after.size


def _run(block: Block | None, enough: int) -> int:
    """Return the bytes of the free and unmapped blocks from here on, or `enough` and more."""
    size = 0
    while size < enough and block and (block.free or not block.mapped):
        size, block = size + block.size, block.after
    return size
