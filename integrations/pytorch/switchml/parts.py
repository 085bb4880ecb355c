# SPDX-License-Identifier: Apache-2.0
"""What a group has in its row of calls: all-reduces, made of parts, and what stands between them."""
import threading
import time

from . import staging

of_thread = threading.local()  # attends: the Offload that it is of; runs: the one of whose callbacks it runs one now


class Part:
    """A tensor of a call, or a piece of one that is on a GPU: what one operation of the library sums. The buffer is lent to
    it until the operation ended."""
    __slots__ = ("tensor", "dense", "piece", "operation")

    def __init__(self, tensor, piece=None):
        self.tensor, self.dense, self.piece, self.operation = tensor, tensor, piece, None
        if piece is None and (not tensor.is_contiguous() or tensor.is_neg()):
            self.tensor = tensor.detach()
            self.dense = self.tensor.resolve_neg().contiguous()

    @property
    def buffer(self):
        return self.dense if self.piece is None else self.piece.buffer

    def is_large(self):
        """It never shares packets, nor waits for what does while it has pinned memory."""
        return self.piece is not None and self.piece.num_bytes > staging.SMALL_BYTES

    def take_result(self):
        if self.piece is not None:
            self.piece.start_back()
        elif self.dense is not self.tensor:
            self.tensor.copy_(self.dense)


class Call:
    """One all-reduce call: one tensor, or a coalesced list of them."""
    __slots__ = ("offload", "result", "is_average", "parts", "num_called", "num_submitted", "num_waited", "uses_gloo",
                 "error", "is_ended", "promise", "is_of_callback", "called", "crossings", "made_at", "is_late_at")

    def __init__(self, offload, tensors, is_average, result, called):
        self.offload, self.is_average, self.result, self.called = offload, is_average, result, called
        self.parts, self.crossings, self.made_at = [], [], time.monotonic()
        self.is_late_at = None  # when its next part must have come from the device
        for tensor in tensors:
            if staging.is_staged(tensor):
                self.crossings.append(staging.Crossing(tensor))
                self.parts += [Part(piece.part, piece) for piece in self.crossings[-1].pieces()]
            else:
                self.parts.append(Part(tensor))
        self.num_called = 0     # parts handed to the library, in order
        self.num_submitted = 0  # of them, that no open batch holds
        self.num_waited = 0     # of them, that have ended
        self.uses_gloo, self.is_ended = False, False
        self.error, self.promise = None, None
        self.is_of_callback = getattr(of_thread, "runs", None) is offload

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
