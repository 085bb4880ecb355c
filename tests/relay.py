# SPDX-License-Identifier: Apache-2.0
"""A relay before the control port of a daemon: who reads a job's control connection knows what its datagrams look like.
For tests that must send packets which are right but for one thing."""
import contextlib
import socket
import struct
import threading

import e2e
import peer


class Relay:
    """Forwards connections to a daemon, and keeps what it tells the ranks. Ports and addresses of data stay the daemon's."""

    def __init__(self, daemon_port):
        self.daemon_port = daemon_port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.welcomes, self.starts = [], []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.daemon_port))
                for each in near, far:
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.pump, args=(near, far, None), daemon=True).start()
                threading.Thread(target=self.pump, args=(far, near, bytearray()), daemon=True).start()

    def pump(self, source, sink, heard):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if heard is not None:
                    heard += data
                    self.listen(heard)
                sink.sendall(data)
        for each in source, sink:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def listen(self, heard):
        """Takes whole frames out of what came from the daemon."""
        while len(heard) >= 12:
            _, kind, body_bytes = struct.unpack(">HHI", heard[4:12])
            end = 12 + body_bytes + (8 if kind & 0x8000 else 0)
            if len(heard) < end:
                return
            body = bytes(heard[12:12 + body_bytes])
            del heard[:end]
            if kind & 0x7fff == peer.MESSAGES["WELCOME"]:
                self.welcomes.append(peer.unpack_body("WELCOME", body))
            elif kind & 0x7fff == peer.MESSAGES["START"]:
                self.starts.append(peer.unpack_body("START", body))

    def await_start(self):
        """(WELCOME, START) of the one job that ranks joined here."""
        e2e.wait_until(lambda: self.starts, "the job has started")
        return self.welcomes[0], self.starts[0]

    def close(self):
        self.listener.close()
