"""What torch's caching allocator reserves on a card for what a program allocates and frees."""

from __future__ import annotations

from collections.abc import Hashable

from hf_efficient.memory.blocks import BLOCK, MIB, SMALL, Block, Pool, whole
from hf_efficient.memory.growing import ADDRESSES, GrowingPool


class CardFullError(Exception):
    """An allocation that the card cannot hold, even after every cached segment was given back."""

    def __init__(self, size: int, missing: int, reason: str) -> None:
        super().__init__(f"An allocation of {size / MIB:,.2f} MiB does not fit: {reason}.")
        self.size, self.missing = size, missing
        """Bytes asked for; bytes that the card has too few."""


class CachingAllocator:
    """A card of `capacity` bytes behind torch's caching allocator, without data; None: a card without end.

    Use it to learn the reserved bytes (`torch.cuda.memory_reserved`) of a known sequence of allocations. Not modelled:
    settings other than `expandable_segments`, pools of CUDA graphs, and blocks that `record_stream` holds back.
    """

    def __init__(self, capacity: int | None = None, *, expandable: bool = False) -> None:
        self.capacity, self.expandable = capacity, expandable
        self.allocated = self.peak_allocated = 0
        """Bytes of the blocks in use, as torch counts them: a rest that is not worth splitting off is among them."""
        self.peak_reserved = 0
        self.retries = 0
        """How often cached segments were given back to make room: num_alloc_retries of torch.cuda.memory_stats."""
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._used: dict[Hashable, Block] = {}

    @property
    def reserved(self) -> int:
        """Return the bytes that were asked from the card and not given back."""
        return sum(pool.reserved for pool in self._pools.values())

    def malloc(self, key: Hashable, size: int, stream: int = 0) -> None:
        """Allocate `size` bytes, more than none, under a key that is not in use. Raises CardFullError."""
        assert size > 0, "torch allocates no block for an empty tensor"
        assert key not in self._used, key
        size = whole(size, BLOCK)
        small = size <= SMALL
        pool = self._pools.get((stream, small)) or self._new_pool(stream, small)
        block = pool.best(size) or self._grown(pool, size)
        pool.cut(block, size)
        self._used[key] = block
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated

    def free(self, key: Hashable) -> None:
        """Free what was allocated under `key`; its memory stays reserved."""
        block = self._used.pop(key)
        self.allocated -= block.size
        block.pool.give_back(block)

    def empty_cache(self) -> None:
        """Give back to the card what is free as a whole, as `torch.cuda.empty_cache()` does."""
        for pool in self._pools.values():
            pool.release()

    def _new_pool(self, stream: int, small: bool) -> Pool:
        pool = GrowingPool(small=small) if self.expandable else Pool(small=small)
        self._pools[stream, small] = pool
        return pool

    def _grown(self, pool: Pool, size: int) -> Block:
        """Return a block of new memory. Where that fails, torch releases its cache, asks once more and gives up."""
        block = self._asked(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._asked(pool, size)
        if block is None:
            raise self._full(pool, size)
        return block

    def _asked(self, pool: Pool, size: int) -> Block | None:
        limit = ADDRESSES if self.capacity is None else self.capacity - self.reserved + pool.reserved
        block = pool.grow(size, limit)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return block

    def _full(self, pool: Pool, size: int) -> CardFullError:
        assert self.capacity is not None
        wanted = pool.wanted(size)
        left = self.capacity - self.reserved
        return CardFullError(
            size,
            wanted - left,
            f"it takes {wanted / MIB:,.2f} MiB more from the card, which has {left / MIB:,.2f} MiB left of "
            f"{self.capacity / MIB:,.2f} MiB; {self.reserved / MIB:,.2f} MiB are reserved, "
            f"{self.allocated / MIB:,.2f} MiB of them allocated",
        )
