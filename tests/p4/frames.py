# SPDX-License-Identifier: Apache-2.0
"""Frames of wire version 1 in switch format, and packet files."""
import socket
import struct
from collections import namedtuple

UPDATE, RESULT, PENDING, ERROR, HELLO, PROBE, HEARD, REPORT = 1, 2, 3, 4, 5, 7, 13, 15
RETRANSMISSION, KEYED, CHECKED, BY_GRANT, DEAF = 1, 2, 4, 8, 64
SUM, MAX = 0x00, 0x21

Host = namedtuple("Host", "mac ip udp")  # as numbers
Head = namedtuple("Head", "type wire job epoch rank slot flags phase tag chunk payload_bytes version crc32c",
                  defaults=(SUM, 3, 0xdeadbeef, 0, 0, 0, 2, 0x1234, 0, None, 1, 0))


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total ^ 0xffff


def udp_frame(source, target, payload, udp_checksum=0):
    head = struct.pack(">BBHHHBBHII", 0x45, 2, 28 + len(payload), 0, 0x4000, 64, 17, 0, source.ip, target.ip)
    head = head[:10] + struct.pack(">H", checksum(head)) + head[12:]
    udp = struct.pack(">HHHH", source.udp, target.udp, 8 + len(payload), udp_checksum)
    return target.mac.to_bytes(6, "big") + source.mac.to_bytes(6, "big") + b"\x08\0" + head + udp + payload


def datagram(head, payload=b""):
    num_bytes = len(payload) if head.payload_bytes is None else head.payload_bytes
    return struct.pack(">BBHIHHHHIIII", head.version << 4 | head.type, head.wire, head.job, head.epoch, head.rank,
                       num_bytes, head.slot, head.flags, head.phase, head.tag, head.chunk, head.crc32c) + payload


def lanes(values):
    return b"".join(struct.pack(">I", value & 0xffffffff) for value in values)


def parse(frame):
    """(source, target, Head, payload, is the IPv4 checksum right) of a frame with a datagram of ours."""
    addresses = [Host(int.from_bytes(frame[mac:mac + 6], "big"), int.from_bytes(frame[ip:ip + 4], "big"),
                      int.from_bytes(frame[udp:udp + 2], "big")) for mac, ip, udp in ((6, 26, 34), (0, 30, 36))]
    f = struct.unpack(">BBHIHHHHIIII", frame[42:74])
    head = Head(f[0] & 15, f[1], f[2], f[3], f[4], f[6], f[7], f[8], f[9], f[10], f[5], f[0] >> 4, f[11])
    udp_bytes = struct.unpack(">H", frame[38:40])[0]
    if udp_bytes != len(frame) - 34 or struct.unpack(">H", frame[16:18])[0] != len(frame) - 14:
        raise ValueError(f"a frame of {len(frame)} bytes says that its UDP has {udp_bytes}")
    return addresses[0], addresses[1], head, frame[74:], checksum(frame[14:34]) == 0


def ip(text):
    return int.from_bytes(socket.inet_aton(text), "big")


def write_pcap(path, frames):
    """frames: (microseconds, frame)."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for time_us, frame in frames:
            file.write(struct.pack("<IIII", 1 + time_us // 1000000, time_us % 1000000, len(frame), len(frame)) + frame)


def read_timed(path):
    """[(microseconds, frame)]"""
    with open(path, "rb") as file:
        data = file.read()
    frames, at = [], 24
    while at + 16 <= len(data):
        seconds, fraction_us, num_bytes = struct.unpack("<III", data[at:at + 12])
        if at + 16 + num_bytes > len(data):
            break  # it is still being written
        frames.append((seconds * 1000000 + fraction_us, data[at + 16:at + 16 + num_bytes]))
        at += 16 + num_bytes
    return frames


def read_pcap(path):
    return [frame for _, frame in read_timed(path)]
