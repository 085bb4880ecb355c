# SPDX-License-Identifier: Apache-2.0
"""The pinned host memory of this process: pages of one size, at most SWITCHML_PINNED_MIB of them, which never go back.

Groups share half of the pages. The other half is a reserve: a group that finds no room among the shared ones gets a page
of its own, for as long as it has something in it. So a group always has room for its next piece, once its own pieces
before that are done, whatever the other groups wait for: two ranks whose groups have filled all memory in different orders
would wait for each other for ever.
"""
import itertools
import os
import threading

import torch

from . import cuda
from .library import SwitchMLError

PAGE_BYTES = 4 << 20
_SMALLEST_BYTES = 512
_DEFAULT_MIB = 256


def limit_bytes():
    text = os.environ.get("SWITCHML_PINNED_MIB", str(_DEFAULT_MIB))
    if not text.isdecimal() or int(text) << 20 < 2 * PAGE_BYTES:
        raise SwitchMLError(f"SWITCHML_PINNED_MIB={text}: pinned memory for tensors of GPUs is a number of MiB, at least "
                            f"{2 * PAGE_BYTES >> 20}")
    return int(text) << 20


class Memory:
    """A part of a page. after: by stream the last event of its earlier users; what comes next waits for them."""
    __slots__ = "page", "offset", "num_bytes", "after"

    def __init__(self, page, offset, num_bytes, after):
        self.page, self.offset, self.num_bytes, self.after = page, offset, num_bytes, after

    def tensor(self, num_bytes, dtype):
        return self.page.buffer[self.offset:self.offset + num_bytes].view(dtype)


def _latest(first, second):
    """Of two maps stream -> (number, event) the later event of each stream."""
    return {stream: max((each[stream] for each in (first, second) if stream in each), key=lambda event: event[0])
            for stream in {**first, **second}}


class _Page:
    """A buddy allocator: free parts of sizes that are powers of 2, each at a multiple of its size."""

    def __init__(self):
        with torch.inference_mode(False):  # later calls, in that mode or not, write to it
            self.buffer = cuda.api.pinned(PAGE_BYTES)
        self.free = {PAGE_BYTES: {0: {}}}  # size -> offset -> after

    def is_free(self):
        return bool(self.free.get(PAGE_BYTES))

    def smallest(self, num_bytes):
        """The size of the smallest free part of at least so many bytes, or None."""
        return min((size for size, parts in self.free.items() if parts and size >= num_bytes), default=None)

    def take(self, num_bytes):
        size = self.smallest(num_bytes)
        offset = next(iter(self.free[size]))
        after = self.free[size].pop(offset)
        while size > num_bytes:
            size //= 2
            self.free.setdefault(size, {})[offset + size] = after
        return Memory(self, offset, num_bytes, after)

    def give(self, memory):
        offset, size, after = memory.offset, memory.num_bytes, memory.after
        while offset ^ size in self.free.get(size, {}):
            after = _latest(after, self.free[size].pop(offset ^ size))
            offset, size = offset & ~size, 2 * size
        self.free.setdefault(size, {})[offset] = after


class Pool:
    def __init__(self):
        self.lock, self.num_events = threading.Lock(), itertools.count()
        self.shared, self.reserved, self.spare = [], {}, []  # pages; by group; of the reserve, nobody's
        self.max_pages = 0

    def num_pages(self):
        return len(self.shared) + len(self.reserved) + len(self.spare)

    def take(self, group, num_bytes):
        """Room for a piece, or None: there is none before the group's or the other groups' pieces are done."""
        size = max(_SMALLEST_BYTES, 1 << (num_bytes - 1).bit_length())
        with self.lock:
            if self.max_pages == 0:
                self.max_pages = limit_bytes() // PAGE_BYTES
            page = min((page for page in self.shared if page.smallest(size)), key=lambda page: page.smallest(size),
                       default=None) or self._new_shared() or self._reserved_for(group)
            return page.take(size) if page is not None and page.smallest(size) else None

    def _new_shared(self):
        if len(self.shared) == self.max_pages - self.max_pages // 2:
            return None
        self.shared.append(_Page())
        return self.shared[-1]

    def _reserved_for(self, group):
        if group not in self.reserved:
            if not self.spare and len(self.reserved) == self.max_pages // 2:
                return None
            self.reserved[group] = self.spare.pop() if self.spare else _Page()
        return self.reserved[group]

    def give(self, memory, stream=None, event=None):
        """stream, event: the memory is free for what comes after that event, of that stream."""
        with self.lock:
            if event is not None:
                memory.after = {**memory.after, stream: (next(self.num_events), event)}
            page = memory.page
            page.give(memory)
            if not page.is_free():
                return
            for group in [group for group, its_page in self.reserved.items() if its_page is page]:
                self.spare.append(self.reserved.pop(group))
            if page in self.shared:  # the pages that were used last come last
                self.shared.remove(page)
                self.shared.append(page)


pool = Pool()
