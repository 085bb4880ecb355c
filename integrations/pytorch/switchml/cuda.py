# SPDX-License-Identifier: Apache-2.0
"""All that this package asks of CUDA: tensors, streams, events, host memory. Nothing else of it calls torch.cuda.

The tests put a stand-in in its place (tests/cuda_standin.py), which does everything as late as CUDA may.
"""
import torch


class Cuda:
    """Streams and events are torch's. Nothing here waits but synchronize()."""

    def device_of(self, tensor):
        """The GPU that the tensor is on, or None."""
        return tensor.device if tensor.is_cuda else None

    def new_stream(self, device):
        return torch.cuda.Stream(device)

    def current_stream(self, device):
        """Of this thread."""
        return torch.cuda.current_stream(device)

    def as_current(self, stream):
        """A context in which the stream is this thread's current one."""
        return torch.cuda.stream(stream)

    def mark(self, stream):
        """An event that is over when what the stream has so far is done."""
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def wait(self, stream, event):
        """What the stream gets from here on begins after the event. The host goes on."""
        stream.wait_event(event)

    def is_over(self, event):
        return event.query()

    def synchronize(self, event):
        """The host waits for the event."""
        event.synchronize()

    def copy(self, stream, to, source):
        """On the stream, after what it has. Host memory on either side is pinned."""
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def new_like(self, tensor):
        """A dense tensor of the same shape, in memory of the current stream."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def keep(self, tensor, stream):
        """The tensor's memory is given to nobody before the stream is done with what it has."""
        tensor.record_stream(stream)

    def pinned(self, num_bytes):
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def future(self, devices):
        """A future whose events are those of the current streams of the thread that ends it, of the devices that its
        value has tensors on."""
        return torch.futures.Future(devices=list(devices))


api = Cuda()
