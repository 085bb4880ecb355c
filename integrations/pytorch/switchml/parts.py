# SPDX-License-Identifier: Apache-2.0
"""What a group has in its row of calls: sums, made of parts, and what stands between them."""
import ctypes
import threading
import time

import torch

from . import gloo, staging
from .job import SML_TYPE
from .library import SwitchMLError

of_thread = threading.local()  # attends: the id of the Offload that it is of; runs: the one of whose callbacks it runs one now


class Part:
    """A tensor of a call, or a piece of one that is on a GPU: what one operation of the library sums. The buffer is lent to
    it until the operation ended."""
    __slots__ = ("tensor", "dense", "piece", "starts", "operation")

    def __init__(self, tensor, piece=None, starts=None):
        self.tensor, self.dense, self.piece, self.starts, self.operation = tensor, tensor, piece, starts, None
        if piece is None and (not tensor.is_contiguous() or tensor.is_neg()):
            self.tensor, self.dense = tensor.detach(), None  # a copy, once its turn has come

    @property
    def buffer(self):
        if self.dense is None:
            self.dense = self.tensor.resolve_neg().contiguous()
        return self.dense if self.piece is None else self.piece.buffer

    @property
    def tensors(self):
        """What of the caller's it reads or writes."""
        return [self.tensor]

    def is_taken(self, job, reduction):
        return job.takes(self.tensor.dtype, self.tensor.numel(), reduction)

    def begin(self, job, call):
        """The library's operation. Raises as Job.begin()."""
        buffer = self.buffer
        return job.begin("allreduce", call.key, self.starts, buffer, buffer, buffer.numel(), SML_TYPE[buffer.dtype],
                         call.reduction)

    def by_gloo(self, group, reduction, watched):
        """What begin() does, where Gloo stands in."""
        gloo.reduce_in_place(group, self.buffer.detach(), reduction, watched)

    def is_large(self):
        """It never shares packets, nor waits for what does while it has pinned memory."""
        return self.piece is not None and self.piece.num_bytes > staging.SMALL_BYTES

    def take_result(self):
        with torch.inference_mode():  # a tensor made in that mode can be written to in it alone, any other in it, too
            if self.piece is not None:
                self.piece.start_back()
            elif self.dense is not self.tensor:
                self.tensor.copy_(self.dense)


def _is_dense(tensor):
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _num_bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _storage(tensor):
    return getattr(tensor, "untyped_storage", tensor.storage)().data_ptr()


class _OfParts(Part):
    """Of a collective in which each rank has a part of a whole. What it lends to the library is chosen, and read, once no
    call before it has the tensors any more. It shares no packets: when that is differs from rank to rank. counts: of each
    rank's part, elements or bytes. outputs: whose elements, one tensor's behind the other's, are the result."""
    __slots__ = ("tensors", "given", "outputs", "counts", "rank", "lent")

    def __init__(self, outputs, given, counts, rank):
        self.outputs, self.given = [each.detach() for each in outputs], [each.detach() for each in given]
        self.tensors, self.counts, self.rank, self.lent = self.outputs + self.given, counts, rank, None
        self.piece = self.operation = None

    def is_large(self):
        return True

    def is_in_place(self, given, output):
        """Whether this rank's part, the one or the other, lies in its place of the whole."""
        raise NotImplementedError

    def lend(self, num_elements, dtype):
        """(input, output), apart from each other, or in place."""
        given = self.given[0].resolve_neg().resolve_conj().contiguous() if len(self.given) == 1 else torch.cat(
            [each.reshape(-1) for each in self.given])
        output = self.outputs[0] if len(self.outputs) == 1 else None
        if output is None or not _is_dense(output) or (_storage(output) == _storage(given) and
                                                       not self.is_in_place(given, output)):
            output = torch.empty(num_elements, dtype=dtype)
        self.lent = given, output

    def array(self):
        return (ctypes.c_size_t * len(self.counts))(*self.counts)

    def take_result(self):
        result = self.lent[1]
        if self.outputs and result is not self.outputs[0]:
            sizes = [_num_bytes(each) for each in self.outputs]
            with torch.inference_mode(any(each.is_inference() for each in self.outputs)):  # this thread is not in its caller's
                for output, part in zip(self.outputs, result.view(torch.uint8).split(sizes)):
                    output.copy_(part.view(output.dtype).view(output.shape))


class ReduceScatter(_OfParts):
    """A reduce is one whose root has all."""
    __slots__ = ()

    def is_in_place(self, given, output):
        return output.data_ptr() == given.data_ptr() + sum(self.counts[:self.rank]) * given.element_size()

    def is_taken(self, job, reduction):
        return job.takes(self.given[0].dtype, sum(self.counts), reduction)

    def begin(self, job, call):
        dtype = self.given[0].dtype
        if self.lent is None:
            self.lend(self.counts[self.rank], dtype)
        return job.begin("reduce_scatter", call.key, None, *self.lent, 0, self.array(), SML_TYPE[dtype], call.reduction)

    def by_gloo(self, group, reduction, watched):
        self.lend(self.counts[self.rank], self.given[0].dtype)
        whole, output = self.lent[0].reshape(-1).clone(), self.lent[1]
        gloo.reduce_in_place(group, whole, reduction, watched)
        with torch.inference_mode(output.is_inference()):
            output.view(-1).copy_(whole.split(self.counts)[self.rank])


class AllGather(_OfParts):
    """Of bytes. A broadcast is one whose root has all."""
    __slots__ = ()

    def is_in_place(self, given, output):
        return given.data_ptr() == output.data_ptr() + sum(self.counts[:self.rank])

    def is_taken(self, job, reduction):
        return True

    def begin(self, job, call):
        if self.lent is None:
            self.lend(sum(self.counts), torch.uint8)
        return job.begin("all_gather", call.key, None, *self.lent, 0, self.array())

    def by_gloo(self, group, reduction, watched):
        self.lend(sum(self.counts), torch.uint8)
        own, whole = (each.as_strided((each.numel(),), (1,)).view(torch.uint8) for each in self.lent)
        for rank, part in enumerate(whole.split(self.counts)):
            if rank == self.rank:
                with torch.inference_mode():
                    part.copy_(own)
            if len(part):
                watched(group.broadcast(part, rank)).wait()


def own_part(output, given, rank, size):
    """A reduce-scatter's; given: one tensor, or a list of one for each rank."""
    is_one = isinstance(given, torch.Tensor)
    counts = [output.numel()] * size if is_one else [part.numel() for part in given]
    total = given.numel() if is_one else sum(counts)
    if len(counts) != size or counts[rank] != output.numel() or sum(counts) != total:
        raise RuntimeError(f"switchml: reduce_scatter takes a part for each of the {size} ranks, as long as that one's output; "
                           f"not {total} elements for an output of {output.numel()}")
    return ReduceScatter([output], [given] if is_one else given, counts, rank)


def gathered(outputs, given, rank, size):
    """An all-gather's; outputs: a tensor for each rank, or one for all."""
    counts = [_num_bytes(given)] * size if len(outputs) == 1 else [_num_bytes(each) for each in outputs]
    total = sum(map(_num_bytes, outputs))
    if outputs[0].dtype != given.dtype:  # lists with another go to Gloo, which refuses them
        raise RuntimeError(f"switchml: all_gather takes results of its input's type, {given.dtype}, not "
                           f"{outputs[0].dtype}")
    if len(counts) != size or counts[rank] != _num_bytes(given) or sum(counts) != total:
        raise RuntimeError(f"switchml: all_gather takes room for a part of each of the {size} ranks; not {total} bytes for "
                           f"parts like this rank's, of {_num_bytes(given)}")
    return AllGather(outputs, [given], counts, rank)


def of_root(kind, tensor, root, rank, size):
    """A reduce, whose root gets all, or a broadcast, whose root has it. The root's of a broadcast, and the others' of a
    reduce, stay as they are."""
    nothing, is_root = torch.empty(0, dtype=tensor.dtype), rank == root
    count = tensor.numel() if kind is ReduceScatter else _num_bytes(tensor)
    has_result, has_input = (is_root, True) if kind is ReduceScatter else (not is_root, is_root)
    return kind([tensor] if has_result else [], [tensor if has_input else nothing],
                [count * (other == root) for other in range(size)], rank)


class Call:
    """One call that SwitchML sums for: one tensor, or a coalesced list of them. starts: of tensors within the one, or
    None."""
    __slots__ = ("offload", "result", "reduction", "parts", "num_called", "num_submitted", "num_waited", "uses_gloo",
                 "key", "error", "is_ended", "promise", "is_of_callback", "called", "crossings", "made_at", "is_late_at",
                 "is_clear", "spans", "low", "high", "num_edges")

    def __init__(self, offload, tensors, reduction, result, called, starts=None):
        self.offload, self.reduction, self.result, self.called = offload, reduction, result, called
        self.parts, self.crossings, self.made_at = [], [], time.monotonic()
        self.key = called.key if called is not None else 0
        self.num_edges = offload.num_edges  # of ranges before it: equal on all ranks, as how far it has got is not
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
        self.is_clear = bool(self.crossings)  # no call before it has its tensors; those on GPUs are not copied before
        self.spans = [staging.span(tensor) for part in self.parts for tensor in part.tensors if tensor.numel()]
        self.low, self.high = min(self.spans, default=(0,))[0], max((end for _, end in self.spans), default=0)

    def overlaps(self, other):
        """Whether both read or write the same memory."""
        return any(begin < its_end and its_begin < end for begin, end in self.spans for its_begin, its_end in other.spans)

    def pause_s(self):
        """Between two looks at a copy: longer the longer it takes, because the device may compute before it."""
        return min(0.001, max(0.0001, (time.monotonic() - self.made_at) / 16))

    def late(self, timeout_s):
        what = self.called.text(True) if self.called is not None else "the call"
        return SwitchMLError(f"{what} has not ended within the {timeout_s:g} s of this wait", "timed out")

    def join_streams(self):
        for crossing in self.crossings:
            crossing.join_stream()

    def end_promise(self):
        self.promise.end(self.error)


class Step:
    """A collective that Gloo does, behind calls that have not ended."""
    num_called, num_waited, is_of_callback, low, high, num_edges = 0, 0, True, 0, 0, -1

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
