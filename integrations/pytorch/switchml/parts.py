# SPDX-License-Identifier: Apache-2.0
"""What a group has in its row of calls: sums, made of parts, and what stands between them."""
import threading
import time

import torch

from . import staging

of_thread = threading.local()  # attends: the Offload that it is of; runs: the one of whose callbacks it runs one now


class Part:
    """A tensor of a call, or a piece of one that is on a GPU: what one operation of the library sums. The buffer is lent to
    it until the operation ended."""
    __slots__ = ("tensor", "dense", "piece", "starts", "operation", "fill")

    def __init__(self, tensor, piece=None, starts=None):
        self.tensor, self.dense, self.piece, self.starts, self.operation, self.fill = tensor, tensor, piece, starts, None, None
        if piece is None and (not tensor.is_contiguous() or tensor.is_neg()):
            self.tensor = tensor.detach()
            self.dense = self.tensor.resolve_neg().contiguous()

    @property
    def buffer(self):
        return self.dense if self.piece is None else self.piece.buffer

    @property
    def tensors(self):
        """What of the caller's it reads or writes."""
        return [self.tensor]

    def make(self):
        if self.fill is not None:
            self.fill()
            self.fill = None

    def is_large(self):
        """It never shares packets, nor waits for what does while it has pinned memory."""
        return self.piece is not None and self.piece.num_bytes > staging.SMALL_BYTES

    def take_result(self):
        if self.piece is not None:
            self.piece.start_back()
        elif self.dense is not self.tensor:
            self.tensor.copy_(self.dense)


class Made(Part):
    """A buffer that `fill` makes of tensors once no call before it has them any more. `output`, if there is one, gets what
    is in `result` of the sum. It shares no packets: when it is made differs from rank to rank."""
    __slots__ = ("tensors", "output", "result")

    def __init__(self, buffer, fill, tensors, output=None, result=None):
        super().__init__(buffer)
        self.fill, self.tensors, self.output, self.result = fill, tensors, output, result

    def is_large(self):
        return True

    def take_result(self):
        if self.output is not None:
            self.output.detach().copy_(self.result.view(self.output.shape))


def copied(tensor, is_root):
    """A reduce's: the tensors of other ranks than the root stay as they are."""
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
    return Made(buffer, lambda: buffer.copy_(tensor.detach()), [tensor], tensor if is_root else None, buffer)


def own_part(output, given, rank, size):
    """A reduce-scatter's; given: one tensor, or a list of one for each rank."""
    parts = [each.detach() for each in ([given] if isinstance(given, torch.Tensor) else given)]
    counts = [output.numel()] * size if isinstance(given, torch.Tensor) else [part.numel() for part in parts]
    buffer = torch.empty(sum(part.numel() for part in parts), dtype=output.dtype)
    if len(counts) != size or counts[rank] != output.numel() or sum(counts) != buffer.numel():
        raise RuntimeError(f"switchml: reduce_scatter takes a part for each of the {size} ranks, as long as that one's output; "
                           f"not {buffer.numel()} elements for an output of {output.numel()}")
    return Made(buffer, lambda: torch.cat([part.reshape(-1) for part in parts], out=buffer), [output, *parts], output,
                buffer[sum(counts[:rank]):][:counts[rank]])


def bytes_of_root(tensor, is_root):
    """A broadcast's, of any type: the bytes as integers of 32 bits, to which the other ranks add 0. The root's memory is
    only read; the others' is summed in place where it is whole integers."""
    num_bytes, source = tensor.numel() * tensor.element_size(), tensor.detach()
    if not (is_root or tensor.is_neg() or tensor.is_conj()) and tensor.is_contiguous() and tensor.element_size() % 4 == 0:
        words = source.view(-1).view(torch.int32)
        return Made(words, words.zero_, [tensor])
    words = torch.empty(-(-num_bytes // 4), dtype=torch.int32)
    result = words.view(torch.uint8)[:num_bytes].view(tensor.dtype).view(tensor.shape)

    def fill():
        words[-1:].zero_()
        result.copy_(source)
    return Made(words, fill, [tensor]) if is_root else Made(words, words.zero_, [tensor], tensor, result)


class Call:
    """One call that SwitchML sums for: one tensor, or a coalesced list of them. starts: of tensors within the one, or
    None."""
    __slots__ = ("offload", "result", "reduction", "parts", "num_called", "num_submitted", "num_waited", "uses_gloo",
                 "key", "error", "is_ended", "promise", "is_of_callback", "called", "crossings", "made_at", "is_late_at")

    def __init__(self, offload, tensors, reduction, result, called, starts=None):
        self.offload, self.reduction, self.result, self.called = offload, reduction, result, called
        self.parts, self.crossings, self.made_at = [], [], time.monotonic()
        self.key = called.key if called is not None else 0
        self.is_late_at = None  # when its next part must have come from the device
        for tensor in tensors:
            if isinstance(tensor, Part):
                self.parts.append(tensor)
            elif staging.is_staged(tensor):
                self.crossings.append(staging.Crossing(tensor))
                self.parts += [Part(piece.part, piece, piece.starts) for piece in self.crossings[-1].pieces(starts)]
            else:
                self.parts.append(Part(tensor, starts=starts))
        self.num_called = 0     # parts handed to the library, in order
        self.num_submitted = 0  # of them, that no open batch holds
        self.num_waited = 0     # of them, that have ended
        self.uses_gloo, self.is_ended = False, False
        self.error, self.promise = None, None
        self.is_of_callback = getattr(of_thread, "runs", None) is offload

    def memory(self):
        """Where what it reads or writes is."""
        tensors = [tensor for part in self.parts for tensor in part.tensors]
        return {getattr(tensor, "untyped_storage", tensor.storage)().data_ptr() for tensor in tensors}

    def pause_s(self):
        """Between two looks at a copy: longer the longer it takes, because the device may compute before it."""
        return min(0.001, max(0.0001, (time.monotonic() - self.made_at) / 16))

    def join_streams(self):
        for crossing in self.crossings:
            crossing.join_stream()

    def end_promise(self):
        self.promise.end(self.error)


class Step:
    """A collective that Gloo does, behind calls that have not ended."""
    num_called, is_of_callback = 0, True

    def __init__(self, begin, finisher, promise, called):
        self.begin, self.finisher, self.promise, self.called = begin, finisher, promise, called
        self.error, self.is_ended, self.uses_gloo = None, False, True

    def take(self):
        """Its turn has come; the finisher ends the promise."""
        work, finish = self.begin()
        self.finisher.add(work, finish, self.promise)

    def end_promise(self):
        if self.error is not None:
            self.promise.end(self.error)


class Edge:
    """Among the calls: a range of coalesced ones begins or ends here."""

    def __init__(self, is_begin):
        self.is_begin = is_begin
