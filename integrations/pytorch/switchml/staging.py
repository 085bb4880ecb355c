# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU: through pinned host memory, in pieces, so that copies and sums overlap.

A device has two streams for this package: `down` copies to the host, `up` copies back. Each piece goes this way:

1. down waits for what the caller's stream had at the call, for the results of the group's calls before it on the same
   memory, and for the last copies of the piece's host memory;
2. down copies the piece to the host;
3. once the host has seen the end of that copy, the library sums the piece, which is an operation of its own;
4. up copies the sum back, and the host memory is free for what waits for that copy.

The caller's stream goes on computing. It waits for the last copy on `up` where the program says so (Work.wait(), or a
future's). The host waits for no copy back.
"""
import bisect
import collections
import contextlib
import threading

import torch

from . import cuda, pinned
from .library import SwitchMLError

# The largest piece. Ranks must agree on it, because each piece is an operation of the library.
PIECE_BYTES = pinned.PAGE_BYTES
SMALL_BYTES = 16 << 10  # of a piece that may share packets with others
_PIECE_MULTIPLE = 1024  # elements
_BLOCK = 256            # elements that share a scale, from the start of their tensor on


def is_staged(tensor):
    return cuda.api.device_of(tensor) is not None


class _Lane:
    """A device's two streams."""
    lock = threading.Lock()
    of_device = {}

    def __init__(self, device):
        self.down, self.up = cuda.api.new_stream(device), cuda.api.new_stream(device)

    @classmethod
    def of(cls, device):
        with cls.lock:
            if device not in cls.of_device:
                cls.of_device[device] = cls(device)
            return cls.of_device[device]


def block_cuts(starts, num_elements, count):
    """Where pieces of less than count + _BLOCK elements begin, but the first: each at a block of its tensor."""
    cuts = []
    for at in range(count, num_elements, count):
        start = starts[bisect.bisect_right(starts, at) - 1]
        cuts.append(at - (at - start) % _BLOCK)
    return cuts


def copy_error(rank, problem, is_of_device=True):
    what = "a tensor between its GPU and the host" if is_of_device else "a result to the tensor that it is for"
    return SwitchMLError(f"rank {rank} could not copy {what}: {problem}", "device" if is_of_device else "", [rank])


def span(tensor):
    """Where its elements are, from the first one to behind the last."""
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + count * tensor.element_size()


class _Use:
    """Of a tensor's memory by a call, until the result is back. It keeps the memory for nobody."""
    __slots__ = "storage", "begin", "end", "range", "is_back", "is_dropped"

    def __init__(self, tensor):
        self.storage = getattr(tensor, "untyped_storage", tensor.storage)().data_ptr()
        self.begin, self.end = span(tensor)
        self.range, self.is_back, self.is_dropped = None, None, False

    def overlaps(self, other):
        return self.begin < other.end and other.begin < self.end

    def has_ended(self):
        """For the host: the copy back, if any, may still be under way."""
        return self.is_back is not None or self.is_dropped

    def is_over(self):
        return self.is_dropped or self.is_back is not None and cuda.api.is_over(self.is_back)


class Crossing:
    """A tensor of one call on its way through the host. Made at the call, where the current stream is the caller's."""

    def __init__(self, tensor):
        self.tensor = self.dense = tensor.detach()
        self.device = cuda.api.device_of(tensor)
        self.lane = _Lane.of(self.device)
        stream = cuda.api.current_stream(self.device)
        if not tensor.is_contiguous() or tensor.is_neg():
            self.dense = cuda.api.new_like(self.tensor)
        self.called, self.is_back = cuda.api.mark(stream), None
        self.num_left = 0  # pieces that are not back
        self.use, self.before = _Use(self.tensor), ()  # uses of its memory by the calls before; None: down waits for them

    def pieces(self, starts=None):
        """In order. Equal on all ranks for tensors of the same type and number of elements. starts: of tensors within this
        one; then pieces, too, begin where a block of such a tensor does."""
        flat, element_bytes = self.dense.view(-1), self.dense.element_size()
        num_pieces = max(1, -(-flat.numel() * element_bytes // PIECE_BYTES))
        count = -(-flat.numel() // num_pieces)
        if num_pieces > 1:
            count = min(-(-count // _PIECE_MULTIPLE) * _PIECE_MULTIPLE, PIECE_BYTES // element_bytes)
        if starts is None:
            cuts = list(range(count, flat.numel(), count)) if count else []
        else:
            cuts = block_cuts(starts, flat.numel(), count - _BLOCK if num_pieces > 1 else count)
        edges = [0, *cuts, flat.numel()]
        self.num_left = len(edges) - 1
        return [Piece(self, flat[begin:end], None if starts is None else
                      [0, *(start - begin for start in starts if begin < start < end)])
                for begin, end in zip(edges, edges[1:])]

    def start(self):
        """Down goes on once the tensor has what it had at the call. False: the host does not have that yet."""
        if self.before is None:
            return True
        if not all(use.has_ended() for use in self.before):
            return False
        down = self.lane.down
        for use in self.before:
            if use.is_back is not None:
                cuda.api.wait(down, use.is_back)
        cuda.api.wait(down, self.called)
        if self.dense is not self.tensor:
            with torch.inference_mode():  # as in Part.take_result()
                cuda.api.copy(down, self.dense, self.tensor)
            cuda.api.keep(self.tensor, down)
            cuda.api.keep(self.dense, down)
        self.before = None
        return True

    def end_piece(self):
        """A piece is about to be back. The last one's event is that of all, because they are copied in order."""
        self.num_left -= 1
        if self.num_left == 0:
            if self.dense is not self.tensor:
                cuda.api.copy(self.lane.up, self.tensor, self.dense)
                cuda.api.keep(self.tensor, self.lane.up)
            self.is_back = self.use.is_back = cuda.api.mark(self.lane.up)
        cuda.api.keep(self.dense, self.lane.up)

    def join_stream(self):
        """The stream that is current here goes on once the result is on the device."""
        if self.is_back is not None:
            cuda.api.wait(cuda.api.current_stream(self.device), self.is_back)


class Piece:
    """Some consecutive elements of a tensor. buffer: where the library finds them, and leaves the sum."""
    __slots__ = "crossing", "part", "starts", "num_bytes", "memory", "buffer", "is_here"

    def __init__(self, crossing, part, starts):
        self.crossing, self.part, self.num_bytes = crossing, part, part.numel() * part.element_size()
        self.starts = starts
        self.memory, self.is_here = None, None
        self.buffer = None if self.num_bytes else part

    def start(self, group):
        """Off to the host. False: there is no pinned memory now, or a call before it has the tensor."""
        if self.num_bytes == 0:
            return True
        if not self.crossing.start():
            return False
        self.memory = pinned.pool.take(group, self.num_bytes)
        if self.memory is None:
            return False
        down = self.crossing.lane.down
        self.buffer = self.memory.tensor(self.num_bytes, self.part.dtype)
        for _, event in self.memory.after.values():
            cuda.api.wait(down, event)
        cuda.api.copy(down, self.buffer, self.part)
        cuda.api.keep(self.crossing.dense, down)
        self.is_here = cuda.api.mark(down)
        return True

    def is_ready(self):
        """Whether the host has it, without waiting."""
        return self.num_bytes == 0 or (self.is_here is not None and cuda.api.is_over(self.is_here))

    def start_back(self):
        """The host has the sum: off to the device."""
        up = self.crossing.lane.up
        if self.num_bytes:
            cuda.api.copy(up, self.part, self.buffer)
            memory, self.memory = self.memory, None
            pinned.pool.give(memory, up, cuda.api.mark(up))
        self.crossing.end_piece()

    def drop(self):
        """It is not wanted any longer. The host memory is free once nothing copies into it."""
        memory, self.memory, self.crossing.use.is_dropped = self.memory, None, True
        if memory is not None:
            pinned.pool.give(memory, self.crossing.lane.down, self.is_here)

    def why_late(self):
        if self.crossing.before is not None and not all(use.has_ended() for use in self.crossing.before):
            return "calls before this one on the same tensor have not ended within the group's timeout"
        return ("the GPU has not come to the copy within the group's timeout" if self.memory is not None else
                "no pinned memory was free within the group's timeout, because other groups hold it; let "
                "SWITCHML_PINNED_MIB be larger")


class Queue:
    """The pieces of one group that wait for host memory, in the order of its calls."""

    def __init__(self):
        self.pieces = collections.deque()
        self.uses, self.most_uses = {}, 64  # by storage: of calls whose results may not be back

    def add(self, crossings, pieces, open_range):
        """Of one call. open_range: the number of the range of coalesced calls that it is in, or None. These share packets,
        so none of them can wait for another one's result."""
        for crossing in crossings:
            crossing.use.range = open_range
            crossing.before = [use for use in self.uses.get(crossing.use.storage, ()) if use.overlaps(crossing.use)
                               and (open_range is None or use.range != open_range)]
        for crossing in crossings:
            before = self.uses.get(crossing.use.storage, ())
            self.uses[crossing.use.storage] = [use for use in before if not use.is_over()] + [crossing.use]
        self.pieces.extend(pieces)
        if len(self.uses) > self.most_uses:
            self.uses = {storage: uses for storage, uses in self.uses.items() if not all(use.is_over() for use in uses)}
            self.most_uses = 64 + 2 * len(self.uses)

    def start(self):
        """Starts what there is memory for."""
        while self.pieces and self.pieces[0].start(self):
            self.pieces.popleft()

    def drop(self, pieces):
        self.pieces = collections.deque(piece for piece in self.pieces if piece not in pieces)
        for piece in pieces:
            piece.drop()


def follow(tensors):
    """A function that returns the streams on which these tensors go to the host, after what the current streams here have
    now: for a call that another thread makes later."""
    devices = _devices(tensors)
    calls = [(_Lane.of(device).down, cuda.api.mark(cuda.api.current_stream(device))) for device in devices]

    def streams():
        for device in devices:  # results of calls before it
            cuda.api.wait(_Lane.of(device).down, cuda.api.mark(_Lane.of(device).up))
        for stream, event in calls:
            cuda.api.wait(stream, event)
        for tensor in tensors if calls else ():
            if is_staged(tensor):
                cuda.api.keep(tensor, _Lane.of(cuda.api.device_of(tensor)).down)
        return [stream for stream, _ in calls]
    return streams


def up_streams(tensors):
    """The streams on which results come back to the devices of these tensors."""
    return [_Lane.of(device).up for device in _devices(tensors)]


def keep_on_up_streams(tensors):
    """Those on devices outlive what the streams have."""
    for tensor in tensors:
        if is_staged(tensor):
            cuda.api.keep(tensor, _Lane.of(cuda.api.device_of(tensor)).up)


def marks_of_up_streams(tensors):
    """(device, event) of each device of these tensors: an event of what the stream has now. The stream keeps them."""
    keep_on_up_streams(tensors)
    return [(device, cuda.api.mark(_Lane.of(device).up)) for device in _devices(tensors)]


def _devices(tensors):
    return {device for device in map(cuda.api.device_of, tensors) if device is not None}


@contextlib.contextmanager
def as_current(streams):
    """With these streams as the current ones: a future that ends here ends for a device once they are done."""
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.enter_context(cuda.api.as_current(stream))
        yield
