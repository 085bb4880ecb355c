# SPDX-License-Identifier: Apache-2.0
"""What the groups of one process share: the library, one context, and their threads."""
import atexit
import ctypes
import os
import sys
import threading
import time
import weakref

from . import gloo
from .library import load_library, thread_error

_EXIT_GRACE_S = 1  # for operations still outstanding when the script ends
_LEAVE_S = 6       # and, with nothing outstanding, until others have what this rank adds up for them


def is_main_thread():
    return threading.current_thread() is threading.main_thread()


class Process:
    """The library, one context for all groups, and the list of their threads."""
    lock = threading.RLock()
    library, context = None, None
    threads = weakref.WeakSet()
    num_in_torch, is_over = 0, False  # threads that end a promise; from the end of at_exit() on none begins to
    totals = None  # of groups that have left their job in order, on the rank that says it at the end

    @classmethod
    def load(cls):
        with cls.lock:
            cls.library = cls.library or load_library()
            return cls.library

    @classmethod
    def open_context(cls):
        with cls.lock:
            library = cls.load()
            if cls.context is None:
                context = ctypes.c_void_p()
                status = library.sml_context_create(None, ctypes.byref(context))
                if status != 0:
                    raise thread_error(library, status)
                cls.context = context
            return cls.context

    @classmethod
    def forked(cls):
        """In the child: nothing of the parent's is its own, but it may make groups of its own."""
        cls.lock, cls.context, cls.threads, cls.totals = threading.RLock(), None, weakref.WeakSet(), None
        cls.num_in_torch, cls.is_over = 0, False

    @classmethod
    def at_exit(cls):
        """Ends the groups that the script left open. Every wait in here is short; threads are daemons."""
        threads = list(cls.threads)
        for act in (Thread.close, Thread.abandon):
            for thread in threads:
                act(thread)
            deadline = time.monotonic() + _EXIT_GRACE_S
            have_ended = [thread.join(deadline - time.monotonic()) for thread in threads]
            deadline += _LEAVE_S
            have_ended = [has_ended or (thread.is_leaving or act is Thread.abandon) and thread.join(deadline - time.monotonic())
                          for has_ended, thread in zip(have_ended, threads)]
        deadline = time.monotonic() + _EXIT_GRACE_S
        for thread in threading.enumerate():  # one may be about to end, and to free a group of Gloo's that it was the last to hold
            if thread.name == "switchml":
                thread.join(max(deadline - time.monotonic(), 0.001))
        cls._keep_out_of_torch(time.monotonic() + _EXIT_GRACE_S)
        if cls.context is not None and all(have_ended):
            cls.library.sml_context_destroy(cls.context)
            cls.context = None
        gloo.end()
        if cls.totals and not hasattr(sys, "last_value") and os.environ.get("SWITCHML_SUMMARY") != "0":
            print("switchml: rank 0 summed {:,} bytes in {:,} collectives through SwitchML, and {:,} through Gloo "
                  "(SWITCHML_SUMMARY=0: no such line)".format(*cls.totals), file=sys.stderr, flush=True)

    @classmethod
    def _keep_out_of_torch(cls, deadline):
        """A thread that wants the interpreter's lock after its end is unwound, and that ends the process if there is C++ on
        its stack."""
        with cls.lock:
            cls.is_over = True
        while cls.num_in_torch > 0 and time.monotonic() < deadline:
            time.sleep(0.001)

    @classmethod
    def enter_torch(cls):
        """False: it is too late. Else leave_torch() follows."""
        with cls.lock:
            may_enter = not cls.is_over or is_main_thread()
            cls.num_in_torch += may_enter
            return may_enter

    @classmethod
    def leave_torch(cls):
        with cls.lock:
            cls.num_in_torch -= 1

    @classmethod
    def add_totals(cls, stats):
        with cls.lock:
            mine = (stats.get("tensor_bytes", 0), stats["offloaded_calls"], stats["fallback_calls"])
            cls.totals = tuple(map(sum, zip(cls.totals or (0, 0, 0), mine)))


class Thread:
    """A group's daemon thread over a queue of its own, started by the first thing to do."""

    def __init__(self):
        self.pid, self.thread, self.is_closing, self.is_leaving = os.getpid(), None, False, False
        self.changed = threading.Condition(threading.RLock())  # reentrant: a finalizer may run anywhere
        Process.threads.add(self)

    def start(self):
        """With self.changed held."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="switchml", daemon=True)
            self.thread.start()

    def _run(self):
        raise NotImplementedError

    def let_go(self):
        """A signal handler's exception may break off this thread between taking `changed` and letting go of it."""
        while self.changed._is_owned():
            self.changed.release()

    def close(self):
        """What was submitted is still completed; then the thread ends."""
        if os.getpid() == self.pid:
            with self.changed:
                self.is_closing = True
                self.changed.notify_all()

    def abandon(self):
        """Nothing that is outstanding is waited for any longer."""

    def join(self, timeout_s):
        if self.thread is not None:
            self.thread.join(max(timeout_s, 0.001))
        return not (self.thread and self.thread.is_alive())


os.register_at_fork(after_in_child=Process.forked)
atexit.register(Process.at_exit)
