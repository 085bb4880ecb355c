# SPDX-License-Identifier: Apache-2.0
"""Keys, for scripted members (docs/PROTOCOL.md): SipHash-2-4, what is derived with it, and the MACs of control
frames and datagrams."""
import struct

HAS_MAC = 0x8000
MASK = 2**64 - 1


def rotate(value, bits):
    return (value << bits | value >> 64 - bits) & MASK


def siphash(key, data):
    """key: 16 bytes, or two numbers."""
    k0, k1 = struct.unpack("<QQ", key) if isinstance(key, bytes) else key
    v = [k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573]

    def rounds(number):
        for _ in range(number):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1], v[3] = rotate(v[1], 13) ^ v[0], rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & MASK
            v[0] = (v[0] + v[3]) & MASK
            v[1], v[3] = rotate(v[1], 17) ^ v[2], rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xff
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


assert siphash(bytes(range(16)), bytes(range(15))) == 0xa129ca6149be45e5  # the authors' test vector


def derive(key, label, data):
    """A key of its own for one purpose."""
    return tuple(siphash(key, bytes([half]) + label + b"\0" + data) for half in range(2))


class Channel:
    """The keys of one control connection, of the worker's end."""

    def __init__(self, key, worker_nonce, daemon_nonce, plain):
        """plain: the frames before, JOIN and CHALLENGE, as they were."""
        context = struct.pack(">QQQQ", *worker_nonce, *daemon_nonce) + plain
        self.up, self.down = derive(key, b"switchml control up", context), derive(key, b"switchml control down", context)
        self.num_sent = self.num_heard = 0

    def seal(self, frame):
        """The frame with its MAC behind it."""
        kind, = struct.unpack_from(">H", frame, 6)
        frame = frame[:6] + struct.pack(">H", kind | HAS_MAC) + frame[8:]
        mac_value = siphash(self.up, struct.pack(">Q", self.num_sent) + frame)
        self.num_sent += 1
        return frame + struct.pack(">Q", mac_value)

    def check(self, frame, mac):
        expected = siphash(self.down, struct.pack(">Q", self.num_heard) + frame)
        assert struct.pack(">Q", expected) == mac, f"wrong MAC on {frame}"
        self.num_heard += 1


def data_key(key, job_name, job, epoch, salt):
    """The key of an epoch's datagrams."""
    return derive(key, b"switchml data", struct.pack(">QQHI", *salt, job, epoch) + job_name.encode())


def digest(key, run):
    """NH's two sums over a run of at most 1,024 bytes, and zeros up to a whole pair of words."""
    run += bytes(-len(run) % 8)
    own = derive(key, b"switchml digests", b"")
    words = [word for i in range(len(run) // 8 + 1)
             for word in struct.unpack("<II", struct.pack("<Q", siphash(own, struct.pack("<Q", i))))]
    sums = [0, 0]
    for i, (low, high) in enumerate(struct.iter_unpack("<II", run)):
        for shift in range(2):
            k = words[2 * (i + shift):]
            sums[shift] += ((low + k[0]) % 2**32) * ((high + k[1]) % 2**32)
    return struct.pack("<QQ", *(each & MASK for each in sums))


def mac(key, head, payload):
    """The MAC of a datagram whose first 28 bytes are head."""
    return siphash(key, head + bytes(4) + b"".join(digest(key, payload[at:at + 1024])
                                                   for at in range(0, len(payload), 1024)))
