# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU: copied to pinned host memory before the call and back after it, on a stream of their own.

The host waits for nothing but the one copy that it needs next, and the device for nothing but the copies of this
call: the stream that was current at the call goes on computing, and waits for the result where the program says so
(Work.wait(), or a future's). Pinned buffers are kept for later calls, because pinning memory takes longer than a sum.
"""
import contextlib
import threading

import torch

_LARGEST_KEPT_BYTES = 1 << 30  # of free buffers, each device
_SMALLEST_BYTES = 4096


class Cuda:
    """What this file wants of a device; the tests put a slow stand-in in its place."""

    def is_here(self, tensor):
        return tensor.is_cuda

    def new_stream(self, device):
        return torch.cuda.Stream(device)

    def current_stream(self, device):
        return torch.cuda.current_stream(device)

    def as_current(self, stream):
        return torch.cuda.stream(stream)

    def copy(self, stream, to, source):
        """On the stream, after what it has; an event that is over when the copy is."""
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        return event

    def keep(self, tensor, stream):
        """The tensor's memory is not for others before the stream is done with it."""
        tensor.record_stream(stream)

    def pinned(self, num_bytes):
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


api = Cuda()


def is_staged(tensor):
    return api.is_here(tensor)


class _Lane:
    """A device's stream for copies, and the host memory that they use."""
    lock = threading.Lock()
    of_device = {}

    def __init__(self, device):
        self.stream = api.new_stream(device)
        self.free, self.num_free_bytes = {}, 0  # by size, which is a power of two

    @classmethod
    def of(cls, device):
        with cls.lock:
            if device not in cls.of_device:
                cls.of_device[device] = cls(device)
            return cls.of_device[device]

    def take(self, num_bytes):
        """A buffer of at least that size. Its last copy to the device may still be under way: the next one into it is
        of the same stream, so it comes after."""
        size = 1 << (max(num_bytes, _SMALLEST_BYTES) - 1).bit_length()
        with self.lock:
            if self.free.get(size):
                self.num_free_bytes -= size
                return self.free[size].pop()
        return api.pinned(size)

    def give_back(self, buffer):
        with self.lock:
            if self.num_free_bytes + buffer.numel() <= _LARGEST_KEPT_BYTES:
                self.free.setdefault(buffer.numel(), []).append(buffer)
                self.num_free_bytes += buffer.numel()


class Staged:
    """One tensor's way through the host. Made at the call, where the current stream is the caller's."""

    def __init__(self, tensor):
        num_bytes = tensor.numel() * tensor.element_size()
        self.tensor, self.lane = tensor, _Lane.of(tensor.device)
        self.pinned = self.lane.take(num_bytes)
        self.host = self.pinned[:num_bytes].view(tensor.dtype).view(tensor.shape)
        stream = self.lane.stream
        stream.wait_stream(api.current_stream(tensor.device))
        self.is_here, self.is_back = api.copy(stream, self.host, tensor), None
        api.keep(tensor, stream)

    def is_ready(self):
        """Whether the host has it, without waiting."""
        return self.is_here.query()

    def wait_until_ready(self):
        self.is_here.synchronize()

    def start_back(self):
        """The host has the result: off to the device."""
        self.is_back = api.copy(self.lane.stream, self.tensor, self.host)
        self.drop()

    def drop(self):
        """The host memory is free for the next call."""
        if self.pinned is not None:
            self.lane.give_back(self.pinned)
        self.pinned = self.host = None

    def join_stream(self):
        """The stream that is current here goes on once the result is on the device."""
        if self.is_back is not None:
            api.current_stream(self.tensor.device).wait_event(self.is_back)


@contextlib.contextmanager
def streams_of(staged):
    """With the streams of these as the current ones: a future that ends here ends for a device once they are done."""
    with contextlib.ExitStack() as stack:
        for stream in {each.lane.stream for each in staged}:
            stack.enter_context(api.as_current(stream))
        yield
