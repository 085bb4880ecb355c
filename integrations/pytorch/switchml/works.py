# SPDX-License-Identifier: Apache-2.0
"""Handles of calls: what torch waits for, and gets the reason of a failure from."""
import collections
import weakref

import torch
from torch._C import _distributed_c10d as _c10d

from .process import Thread


class Promise:
    """A torch future, and the Work made of it, that this package ends."""
    of_work = weakref.WeakKeyDictionary()

    def __init__(self, result, devices=()):
        self.result, self.error = result, None
        self.ended = torch.futures.Future(devices=list(devices)) if devices else torch.futures.Future()
        # An exception only becomes the future's own error, for C++ (DDP) too, by leaving a callback.
        self.future = self.ended.then(self.outcome)

    def outcome(self, _ended=None):
        if self.error is not None:
            raise self.error
        return self.result

    def end(self, error=None):
        self.error = error
        self.ended.set_result(None)

    def work(self, before_wait=None):
        work = _c10d._create_work_from_future(self.future)
        self.before_wait = before_wait
        self.of_work[work] = self
        return work


def _wait_and_raise(work, *arguments, **keywords):
    """Work.wait() for works made of futures: torch's own forgets to raise the future's error."""
    promise = Promise.of_work.get(work)
    if promise is not None and promise.before_wait is not None:
        promise.before_wait()
    result = _torch_wait(work, *arguments, **keywords)
    if promise is not None:
        promise.outcome()
    return result


_torch_wait, _c10d.Work.wait = _c10d.Work.wait, _wait_and_raise


class Finisher(Thread):
    """Does what is left to do after Gloo calls. Not on Gloo's own threads: Python code on a thread that
    outlives the interpreter crashes the process."""

    def __init__(self):
        super().__init__()
        self.items = collections.deque()

    def add(self, work, result, function):
        promise = Promise(result)
        with self.changed:
            self.items.append((work, function, promise))
            self.start()
            self.changed.notify_all()
        return promise.work()

    def _next(self):
        """Whether there is an item; if not it is time to end."""
        with self.changed:
            while not self.items and not self.is_closing:
                self.changed.wait()
            return bool(self.items)

    def _run(self):
        with torch.no_grad():
            while self._next():
                work, function, promise = self.items.popleft()
                problem = None
                try:
                    work.wait()
                    function()
                except Exception as error:  # pylint: disable=broad-except  # the future must end
                    problem = error
                promise.end(problem)
                del work, function, promise, problem


class CallWork(_c10d.Work):
    """The handle of a call that Python code waits for: who waits completes it, on its own thread. C++ may not hold one,
    because of this object only its C++ half would be left then, which nobody ends."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def wait(self, timeout=None):
        """Raises why the call failed, with the rank; after `timeout` (a timedelta) that it has not ended."""
        call = self.call
        timeout_s = timeout.total_seconds() if timeout is not None else 0
        call.offload.wait_for(call, timeout_s if timeout_s > 0 else None)
        if call.error is not None:
            raise call.error
        call.join_streams()
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self.call.is_ended or self.call.offload.poll(self.call)

    def is_success(self):
        return self.call.is_ended and self.call.error is None

    def exception(self):
        return self.call.error

    def result(self):
        self.wait()
        return self.call.result

    def get_future(self):
        return self.call.offload.future_of(self.call)
