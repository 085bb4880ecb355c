# SPDX-License-Identifier: Apache-2.0
"""The store, over a connection that nobody waits in.

A process has one connection to a TCP store, and whoever waits there for a key has its lock: a script's own wait, or that of
a group of torch's which is being made. Meanwhile no thread could write what another rank's first call needs, and if that
rank is to write the key once its call has ended, both would wait for ever. So the threads of groups have a connection of
their own, one for all groups of a process. They poll."""
import weakref

from torch._C import _distributed_c10d as _c10d

_connections = weakref.WeakValueDictionary()  # by the server's host and port


def _base(store):
    while isinstance(store, _c10d.PrefixStore):
        store = store.underlying_store
    return store


def _is_of(connection, key):
    """Not of another server, which had this port before."""
    try:
        return connection.add(key, 0) > 0
    except RuntimeError:
        return False


def _connect(base):
    arguments = {"is_master": False, "timeout": base.timeout, "wait_for_workers": False}
    try:
        return _c10d.TCPStore(base.host, base.port, use_libuv=False, **arguments)  # a matter of the server alone
    except TypeError:  # torch 1
        return _c10d.TCPStore(base.host, base.port, **arguments)


class Own:
    """Of a group. offer() comes before, and take() after, something that all ranks wait in for each other."""

    def __init__(self, store, rank, size):
        self.store, self.base, self.rank = store, _base(store), rank
        self.has_server = size > 1 and isinstance(self.base, _c10d.TCPStore)
        self.connection = None  # C++ keeps only its half of it alive

    def offer(self):
        """A prefix by which all ranks find this group's keys: those of `store` can't be read."""
        if self.has_server and self.rank == 0:
            number = self.base.add("switchml groups", 1)
            self.base.add(f"switchml group {number}", 1)
            self.store.set("group", str(number))

    def take(self):
        """The store to use."""
        if not self.has_server:
            return self.store
        key, address = f"switchml group {int(self.store.get('group'))}", (self.base.host, self.base.port)
        self.connection = _connections.get(address)
        if self.connection is None or not _is_of(self.connection, key):
            try:
                self.connection = _connections[address] = _connect(self.base)
            except RuntimeError:  # no file descriptor is left, say: the keys are the same over the old one
                self.connection = self.base
        return _c10d.PrefixStore(key, self.connection)
