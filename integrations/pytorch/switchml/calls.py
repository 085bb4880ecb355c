# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group have called: numbered collectives, and a watch over those that do not end.

Most calls end soon, and nobody asks what they were. One that has not after a tick is written into the group's store by
the first rank that is so late, under its number. Whoever is late with another one under that number has found ranks that
call different things, though one went to SwitchML and the other to Gloo, which know nothing of each other. The finder
asks what each rank is in, and writes it down as the reason of the group's end. A rank whose group failed for another
reason writes that. Whoever waits meanwhile looks for a reason there, so all ranks raise the same.
"""
import collections
import itertools
import json
import os
import threading
import time
import weakref
import zlib

import torch
from torch.distributed import ReduceOp

from . import gloo
from .api import SML_ERR_MISMATCH, SML_MAX_NAMED_RANKS
from .library import SwitchMLError
from .process import Process, Thread

_TICK_S = 0.04       # a call that is older than one is looked at
_FAST_TICK_S = 0.005  # once a group is known to fail
_SAY_S = 1.0         # so long the finder waits for what the others are in,
_SAY_TICKS = 50      # and so many looks, which take long on a busy machine
_REASON_S = 30.0     # so long the others wait for what the finder writes
_SLOW_AFTER_S = 1.0  # a call that is older than this is looked at every fifth tick only
_KEPT_NUMBERS = 16   # calls of which the store keeps what they were
_STORE_S = 1.0       # so long whoever waits for a reason waits for an answer of the store
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class Called:
    """One collective call of this rank."""
    __slots__ = ("number", "name", "reduction", "tensors", "root", "is_told")

    def __init__(self, number, name, reduction, tensors, root):
        self.number, self.name, self.reduction, self.root = number, name, reduction, root
        self.tensors = [(tensor.dtype, tensor.numel()) for tensor in tensors]
        self.is_told = False

    def text(self, has_tensors=False):
        """Equal on two ranks unless they can't succeed together. has_tensors: says of bytes, too, what they are, which
        may differ."""
        text = self.name
        if self.reduction is not None:
            name = next((name for name in _REDUCTIONS if self.reduction == getattr(ReduceOp, name, None)), "?")
            text += f"({name})"
        if self.reduction is not None or has_tensors and self.tensors:
            types = sorted({str(dtype).removeprefix("torch.") for dtype, _ in self.tensors})
            text += f" of {', '.join(types)}[{sum(count for _, count in self.tensors)}]"
        return text + (f" of rank {self.root}" if self.root is not None else "")

    @property
    def key(self):
        """Tells the library apart what only sums alike: a broadcast, say, from an all-reduce, or from another root's."""
        return 0 if self.name == "all_reduce" else zlib.crc32(self.text().encode())


class Calls:
    """The collectives of one group on this rank. inner: Gloo's group; offload(): its Offload, or None."""

    def __init__(self, store, rank, size, inner):
        self.store, self.rank, self.size, self.inner = store, rank, size, inner
        self.number, self.error = 0, None
        self.offload = lambda: None  # or a weak reference: an Offload has these Calls
        self.by_gloo = collections.deque()  # (Called, Gloo's Work), oldest first; those that have ended are dropped late
        self.seen, self.seen_at, self.num_ticks = None, 0, 0
        self.finding, self.failing_since, self.has_said = None, None, False
        self.written = collections.deque()  # the numbers under which this rank has written what it called
        self.has_written_reason = False
        self.asking, self.broken = [], None  # Called, of threads that want a reason; what Gloo said, or "", when one broke off
        self.num_looks = 0                  # into the store, since somebody asks
        if size > 1:
            Watch.add(self)

    def next(self, name, tensors=(), reduction=None, root=None):
        self.number += 1
        return Called(self.number, name, reduction, tensors, root)

    def is_with_gloo(self, called, work):
        self._drop_ended()
        self.by_gloo.append((called, work))
        self.is_queued()

    def is_queued(self):
        if Watch.is_asleep:
            Watch.wake()

    def is_busy(self):
        return self.finding is not None or (self.error is None and (bool(self.asking) or self.oldest() is not None))

    def _drop_ended(self):
        while True:
            try:
                if not self.by_gloo[0][1].is_completed():
                    return
                self.by_gloo.popleft()
            except IndexError:  # the watch drops them, too
                return

    def under_way(self):
        """Gloo's works that have not ended."""
        self._drop_ended()
        return [work for _, work in list(self.by_gloo)]

    def raise_if_failed(self):
        if self.error is not None:
            raise self.error

    def oldest(self):
        """The first call that has not ended, or None."""
        self._drop_ended()
        with_gloo = next(iter(list(self.by_gloo)), (None, None))[0]
        offload = self.offload()
        queued = offload.oldest_called() if offload is not None else None
        return min((called for called in (with_gloo, queued) if called is not None), default=None,
                   key=lambda called: called.number)

    # ---- On the watch's thread -------------------------------------------------------------------------------

    def look(self):
        """One tick."""
        called, now = self.oldest(), time.monotonic()
        if called is not self.seen:
            self._forget_oldest()
            self.seen, self.seen_at, self.num_ticks = called, now, 0
        failed = getattr(self.offload(), "error", None)
        if failed is not None:
            self._write_reason(failed)
        asked, is_finder = next(iter(list(self.asking)), None), self.finding is not None
        if is_finder:
            self._ask(*self.finding)
        if asked is not None:
            self._answer(asked if called is None else called)
        if not is_finder and (called is None or self.error is not None):
            return
        self.num_ticks += 1
        if self.failing_since is None and (now < self.seen_at + _TICK_S / 2
                                           or now > self.seen_at + _SLOW_AFTER_S and self.num_ticks % 5):
            return
        if called is not None and not called.is_told:
            mine = f"{self.rank} {called.text()}"
            first = self._write_once(str(called.number), mine)
            called.is_told = bool(first)
            if first == mine:
                self.written.append(called.number)
            elif first and first.partition(" ")[2] != called.text():
                self._find(called.number)
        self._look_for_reason(called)

    def _answer(self, called):
        """Threads ask for a reason; this one may wait for the store."""
        broken, self.broken = self.broken, None
        if not self._look_for_reason(called) and broken is not None:
            self._find(called.number, broken)
        self.num_looks += 1

    def _write_once(self, key, value):
        """What the first rank wrote there, or "" while it writes. Torch 1.13's compare_set() would be one question instead
        of three, but makes its answer without Python's lock, beside whatever other threads do with Python's memory."""
        if self.store.add(f"{key} begun", 1) > 1:
            return self._read(key)
        self.store.set(key, value)
        self.store.add(f"{key} done", 1)
        return value

    def _read(self, key):
        """The same, without writing anything."""
        return self.store.get(key).decode() if self.store.add(f"{key} done", 0) > 0 else ""

    def _forget_oldest(self):
        """Not the latest: somebody may be about to read it, and the store would let it wait for what is gone."""
        if len(self.written) > _KEPT_NUMBERS:
            number = self.written.popleft()
            for key in (f"{number} done", f"{number} begun", str(number)):
                self.store.delete_key(key)

    def _find(self, number, broken=""):
        """Ranks differ under this number, or Gloo's call broke off. The first to find so asks what each is in."""
        if self._write_once("failure", f"{self.rank} call {number}") == f"{self.rank} call {number}":
            self.finding = number, [""] * self.size, time.monotonic() + _SAY_S, itertools.count(), broken
            Watch.wake()

    def _ask(self, number, said, deadline, ticks, broken):
        """The finder, at each tick until all ranks have said what they are in, or for as long as it waits for that."""
        for rank in range(self.size):
            said[rank] = said[rank] or self._read(f"in/{rank}")
        if not all(said) and (next(ticks) < _SAY_TICKS or time.monotonic() < deadline):
            return
        silent = [rank for rank, what in enumerate(said) if not what][:SML_MAX_NAMED_RANKS]
        if broken:
            what, status = ("a call timed out", "timed out") if "Timed out" in broken else ("a connection broke off", "rank lost")
            text = f"{_those(silent)} gave no answer when {what}: {broken}" if silent else broken
            self._write_once("reason", json.dumps([text, status if silent else "", silent]))
            self.finding = None
            return
        self.finding, ranks_of = None, {}
        for rank, what in enumerate(said):
            its_number, text = json.loads(what) if what else (number, "no collective under way")
            text += f", its call {its_number}" if its_number != number else ""
            ranks_of.setdefault(text, []).append(rank)
        parts = [f"{_those(ranks)}: {text}" for text, ranks in sorted(ranks_of.items(), key=lambda item: item[1])]
        fewest = min(ranks_of.values(), key=len)
        self._write_once("reason", json.dumps(
            [f"the ranks' call {number} of this group differs: {'; '.join(parts)}", "mismatch", fewest[:SML_MAX_NAMED_RANKS]]))

    def _write_reason(self, error):
        if not self.has_written_reason:
            self.has_written_reason = True
            reason = json.dumps([str(error), error.status, list(error.ranks)])
            self._write_once("failure", f"{self.rank} {reason}")
            if self.finding is not None:
                self.finding = None
                self._write_once("reason", reason)

    def _look_for_reason(self, called):
        """called: what this rank is in. Whether the group has failed, and is about to have a reason."""
        rank, _, failure = self._read("failure").partition(" ")
        if not failure:
            return False
        self.failing_since = self.failing_since or time.monotonic()
        if failure.startswith("call") and not self.has_said and called is not None:
            self.has_said = True
            self._write_once(f"in/{self.rank}", json.dumps([called.number, called.text(True)]))
        reason = self._read("reason") if failure.startswith("call") else failure
        if reason:
            text, status, ranks = json.loads(reason)
            self.fail(SwitchMLError(text, status, ranks))
        elif time.monotonic() > self.failing_since + _REASON_S:
            self.fail(SwitchMLError(f"rank {rank} found the group failed, and ended before it said why", "", [int(rank)]))
        return True

    def fail(self, error):
        """Every wait and every later call of the group raises it."""
        self.has_written_reason = True
        if self.error is None:
            self.error = error
            if self.by_gloo:
                gloo.keep_for_ever(self.inner)
            offload = self.offload()
            if offload is not None:
                offload.fail(error)

    # ---- On the thread that waits ------------------------------------------------------------------------------

    def why(self, problem):
        """A call broke off: the library's, or Gloo's, most often because a connection did, or its time was over. If the group
        has a reason for that: that. If not: which ranks are silent. Otherwise what was heard of it here.

        The watch asks the store, whose host may be the one that is stopped or gone: then it does not answer."""
        is_of_job, offload = isinstance(problem, SwitchMLError), self.offload()
        called = self.oldest() or self.seen or Called(self.number, "a call that broke off", None, (), None)
        if is_of_job and problem.status == Process.library.sml_status_string(SML_ERR_MISMATCH).decode():
            self.broken = ""  # as if the watch had found it: it asks what each rank is in
        elif not is_of_job and any(word in str(problem) for word in ("Connection", "Timed out")) and (
                offload is None or offload.job_error() is None):
            self.broken = str(problem)
        first, last, last_at = self.num_looks, self.num_looks, time.monotonic()
        self.asking.append(called)
        self.is_queued()
        while self.error is None and time.monotonic() < last_at + _STORE_S:
            if self.num_looks != last:
                last, last_at = self.num_looks, time.monotonic()
            if last > first + 1 and self.failing_since is None:
                break
            time.sleep(0.002)
        self.asking.remove(called)
        if self.error is None and not is_of_job:
            self.fail(offload and offload.job_error() or SwitchMLError(str(problem), ""))
            return problem if self.error.status == "" else self.error
        return self.error or problem


def _those(ranks):
    shown = ", ".join(map(str, ranks[:SML_MAX_NAMED_RANKS])) + (" and others" if len(ranks) > SML_MAX_NAMED_RANKS else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


_DETAIL_BYTES = 256


def check_detail(checker, called, timeout):
    """Before each collective under TORCH_DISTRIBUTED_DEBUG=DETAIL, as torch does for its own groups: every rank is there,
    and calls the same."""
    checker.monitored_barrier(timeout, wait_all_ranks=True)
    mine = torch.zeros(_DETAIL_BYTES, dtype=torch.uint8)
    text = f"number {called.number}, {called.text()}".encode()[:_DETAIL_BYTES]
    mine[:len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    said = [[torch.empty_like(mine) for _ in range(checker.size())]]
    checker.allgather(said, [mine]).wait()
    texts = [bytes(each.tolist()).rstrip(b"\0").decode(errors="replace") for each in said[0]]
    for rank, other in enumerate(texts):
        if other != texts[0]:
            raise SwitchMLError(f"Detected mismatch between collectives on ranks. Rank 0 is running collective: {texts[0]}, "
                                f"but Rank {rank} is running collective: {other}.", "mismatch", [0, rank])


class Watch(Thread):
    """One thread of the process looks at the calls of all its groups, while there are any."""
    lock = threading.Lock()
    one, is_asleep = None, True
    groups = weakref.WeakSet()

    @classmethod
    def add(cls, calls):
        with cls.lock:
            cls.groups.add(calls)

    @classmethod
    def wake(cls):
        with cls.lock:
            if cls.one is None or cls.one.pid != os.getpid():
                cls.one = cls()
        with cls.one.changed:
            cls.is_asleep = False
            cls.one.start()
            cls.one.changed.notify_all()

    @classmethod
    def forked(cls):
        cls.lock, cls.one, cls.is_asleep, cls.groups = threading.Lock(), None, True, weakref.WeakSet()

    is_failing = False

    def _run(self):
        while True:
            with self.changed:
                self.changed.wait(_FAST_TICK_S if self.is_failing else _TICK_S)
            self._look_at_all()
            if self.is_closing:
                return
            with self.changed:
                Watch.is_asleep = True  # first: whoever queues a call looks at it afterwards
                Watch.is_asleep = not any(calls.is_busy() for calls in self.all_groups())
                while Watch.is_asleep and not self.is_closing:
                    self.changed.wait()

    def _look_at_all(self):
        """Apart from _run(), whose variables would hold a group and its store while it sleeps."""
        groups = self.all_groups()
        for calls in groups:
            self._look(calls)
        self.is_failing = any((calls.failing_since is not None or calls.asking) and calls.error is None
                              for calls in groups)

    @classmethod
    def all_groups(cls):
        with cls.lock:
            return list(cls.groups)

    @staticmethod
    def _look(calls):
        try:
            calls.look()
        except (RuntimeError, ValueError):  # the store is gone, and what it would have said, a reason that was due, too
            calls.seen = calls.failing_since = None
            calls.num_looks += 1


os.register_at_fork(after_in_child=Watch.forked)
