# SPDX-License-Identifier: Apache-2.0
"""Inputs from which the fuzzers begin, made from the formats of docs/PROTOCOL.md rather than by our own encoder. What a
target reads is said at the head of its source."""
import struct

# docs/PROTOCOL.md section 10: rank 2 of 4 sends three floats as position 1 of operation 7.
VECTOR = bytes.fromhex("11000003deadbeef0002000c010300000000000577b30d070000004d55a78f9c08000000fc000000000624dd")
FIX_LENGTH, FIX_CRC, FIX_TAG = 1, 2, 4


def header(kind, flags=0, wire=0, payload=b""):
    return struct.pack(">BBHIHHHHIIII", 0x10 | kind, wire << 4 | min(wire, 1), 3, 0xdeadbeef, 2, len(payload), 259, flags, 5, 77, 8, 0) + payload


def wire_seeds():
    yield "protocol_section_10", b"\0" + VECTOR
    for kind in range(1, 8):
        yield f"type_{kind}", bytes([FIX_LENGTH | FIX_CRC]) + header(kind)
    yield "codes", bytes([FIX_LENGTH | FIX_CRC]) + header(1, wire=1, payload=b"\x7f\x80\x00")
    yield "wide_codes", bytes([FIX_LENGTH | FIX_CRC]) + header(1, wire=2, payload=b"\0\0\0\x7f")
    yield "checked", bytes([FIX_LENGTH | FIX_CRC]) + header(2, flags=5, payload=bytes(8))
    yield "keyed", bytes([FIX_LENGTH | FIX_CRC | FIX_TAG]) + header(1, flags=2) + bytes(4) + b"\0\0\0\1"
    yield "flagged_keyed", bytes([FIX_LENGTH | FIX_CRC]) + header(1, flags=2) + bytes(4) + b"\0\0\0\1"


def conform_seeds():
    vector = b'{"vector":"v","topic":"t","family":"%s","about":"a","needs":["key"],"jobs":[{"ranks":3,"slots":4,"checked":true}]}\n'
    update = b'{"from":1,"send":{"type":"UPDATE","flags":["CHECKED",128],"slot":"slots-1","phase":0,"tag":"0x100b05e5","bytes":"full-4","values":[1,4294967295]'
    out = b'},"verdict":"COMPLETE","out":[{"to":"all","type":"RESULT","chunk":"slots+1","bytes":8,"values":[7,8]}]}\n'
    for family in (b"ordinary", b"switch"):
        yield f"sum_{family.decode()}", vector % family + update + out
    yield "spoilt", vector % b"ordinary" + update + b',"crc":"wrong","mac":"wrong","key":"other","cut":3,"extra":5,"version":2,"payload_bytes":"max"' + out
    yield "answers", (vector % b"ordinary" + b'{"from":"stranger","send":{"type":"HELLO","rank":"ranks","nonce":-1,"bytes":16},"verdict":"DROP","reason":"BAD_RANK","out":[]}\n'
                      b'{"leave":2,"verdict":"LEFT"}\n{"job":0,"from":0,"send":{"type":7,"epoch":-1,"job":"unknown"},"verdict":"MISMATCH","report":[0,2],'
                      b'"out":[{"to":0,"type":"PENDING","missing":[0,63],"optional":true}]}\n')
    yield "narrow", (vector % b"ordinary").replace(b"checked", b"narrow") + update.replace(b'"CHECKED",128', b'"NARROW"').replace(b"full-4", b"narrow+28") + out
    yield "large", vector % b"switch" + b'{"from":1,"send":{"type":"UPDATE","bytes":"max"},"verdict":"DROP"}\n'
    yield "no_json", b"{\n"


def text(value):
    return struct.pack(">H", len(value)) + value


def message(kind, body):
    """As it is on the wire, and as a body around which the target writes the header."""
    frame = struct.pack(">IHHI", 0x534d4c31, 3, kind, len(body)) + body
    yield f"kind_{kind}", b"\0" + frame
    yield f"body_{kind}", bytes([1 | kind << 4 & 0xff]) + frame


def control_seeds():
    second = 10 ** 9
    join = (text(b"job") + struct.pack(">IIIIIQQI", 1, 4, 2, 256, 8960, 2 * second, 60 * second, 3) + text(b"tenant")
            + struct.pack(">QQQQIQQI", 1, 2, 5, 4, 8928, 3, 4, 1))
    abort = struct.pack(">iIHH", -11, 2, 0, 3) + text(b"rank 3 was lost")
    bodies = {1: join, 2: struct.pack(">HIQIHHQQQQHQQ", 7, 9, 11, 2, 4000, 4001, 13, 17, 0, 0, 0, 19, 23), 3: struct.pack(">IQI", 8960, 1000, 0),
              4: struct.pack(">IIIIHHIIIQIQIIQQIHHHH", 9, 2, 1440, 256, 0, 256, 2, 0, 1, 1000, 2, 5, 0, 0, 19, 23, 4, 0, 1, 1, 0), 5: struct.pack(">QQ", 6, 5),
              6: struct.pack(">I", 9), 7: abort, 8: struct.pack(">iIH", -11, 1, 3) + text(b"it left"), 9: b"",
              10: struct.pack(">i", -8) + text(b"no"), 11: struct.pack(">QQ", 3, 4), 12: b"", 13: text(b"tenant") + struct.pack(">QQI", 1, 2, 8192),
              14: struct.pack(">IIH", 70000, 8192, 3) + b'{"a', 15: b"", 16: struct.pack(">IHH", 2, 0, 3) + text(b"rank 3 is late")}
    for kind, body in bodies.items():
        yield from message(kind, body)
    yield "other_version", b"\0" + struct.pack(">IHHI", 0x534d4c31, 1, 1, 0)
    yield "other_protocol", b"\0GET / HTTP/1.1\r\n\r\n"


def key_file_seeds():
    key = b"000102030405060708090a0b0c0d0e0f"
    yield "one", b"\7a " + key
    yield "two", b"\7a " + key + b"\r\n# comment\n\n\tjob.b:1/x_-  " + key[::-1].upper() + b" # more\n"
    yield "too_many", b"\0a " + key + b"\nb " + key + b"\n"
    yield "same_name", b"\7a " + key + b"\na " + key + b"\n"
    yield "zero", b"\7a " + b"0" * 32
    yield "short", b"\7a 00"
    yield "long_name", b"\7" + b"n" * 32 + b" " + key
    yield "more", b"\7a " + key + b" x"


def faults_seeds():
    yield "all", b"loss=0.01,duplicate=.5,reorder=5e-2,corrupt=1,reorder_frames=1024,seed=18446744073709551615"
    yield "too_large", b"loss=1.1"
    yield "unknown", b"lose=1"
    yield "frames", b"reorder_frames=0"
    yield "digits", b"loss=0.00000000000000000001"


def addr_seeds():
    port = struct.pack(">H", 4000)
    for number, value in enumerate(["127.0.0.1:80", "192.0.2.1", "[::1]:65535", "::1", "[fe80::1%1]:7", "fe80::1%lo",
                                    "[2001:db8::1]", "4000", ":1", "[::1", "10.1:5", "0x7f.1:5", "host:1",
                                    "[::ffff:1.2.3.4]:9", "1.2.3.4:65536", "a" * 300]):
        yield f"text_{number}", port + value.encode()
    yield "no_port", b"\0\0192.0.2.1"


def settings_seeds():
    numbers = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    key = "000102030405060708090a0b0c0d0e0f"
    for number, lines in enumerate([["t4", "n1", "kscalar", "floss=0.5", "dTRACE", "a127.0.0.1:4000"],
                                    ["c1", "r2.5", f"Fa {key}", "Ka", "jjob.1", "a[::1]:5"], ["t99"], ["n2"], ["kx"],
                                    ["floss"], ["dx"], ["a1.2.3.4:0"], ["a1.2.3.4:5", "c2"], ["a1.2.3.4:5", "r-1"],
                                    [f"Fa {key}", f"Fb {key}", "Kc", "a1.2.3.4:5"], ["F", "a1.2.3.4:5"],
                                    ["jbad name", "a1.2.3.4:5"], ["Ka", "a1.2.3.4:5"], ["r1e9", "a1.2.3.4:5"]]):
        yield f"lines_{number}", numbers + "\n".join(lines).encode()


    # the context's four numbers, then world size, rank, slots, datagram bytes
    for name, slots in [("slots_3", 3), ("slots_64", 64)]:
        yield name, bytes([0, 0, 0, 0, 0, 0, 240, 128 + slots, 0, 0, 0, 0, 0, 0, 0, 0]) + b"a1.2.3.4:5"
    yield "one_rank", bytes([0, 0, 0, 0, 240, 127, 240, 127, 0, 0, 0, 0, 0, 0, 0, 0])


def record_seeds():
    yield "honest", b"\3\1\0"
    yield "failed", b"\3\1\1"
    for at in [0, 4, 8, 12, 24, 256 + 3, 256 + 11, 256 + 15, 256 + 19, 256 + 31]:
        yield f"byte_{at}", b"\3\2\0" + struct.pack(">HB", at, 0xf5)


def trace_seeds():
    def dump(num_records=2, more=b""):
        events = b"".join(struct.pack(">BB", 1, kind) + text(b"event") + text(b"slot") * 5 for kind in range(4))
        tables = (struct.pack(">QQI", 2 * 10 ** 18, 10 ** 9, 7) + text(b"switchmld") + text(b"0.1") + text(b"host") + text(b"why")
                  + struct.pack(">H", 4) + events + struct.pack(">H", 1) + text(b"BAD_CRC")
                  + struct.pack(">HHII", 1, 3, 5, 0) + text(b"job")
                  + struct.pack(">HIQI", 1, 0, 9, num_records) + text(b"lane 0") + more)
        record = struct.pack(">QHHHHIIQ", 10 ** 9, 1, 3, 4, 5, 6, 7, 8)
        return b"SMLTRACE" + struct.pack(">HHI", 1, 32, 16 + len(tables)) + tables + record * 2
    yield "whole", dump()
    yield "cut", dump(num_records=5)
    yield "longer_header", dump(more=b"later")
    yield "lies", dump(num_records=2 ** 32 - 1)


def programs():
    """The stateful targets: a few bytes repeated are programs that get somewhere."""
    yield "aggregator", "rounds", b"\4" + b"".join(bytes([244, slot % 2, 0, 0]) for slot in range(40))
    yield "aggregator", "rounds_twice", b"\x14" + b"".join(bytes([245, slot % 2, 0, 0]) for slot in range(40))
    yield "aggregator", "ranks", b"\0" + b"".join(bytes([0, 0, i % 2, i % 3]) for i in range(60))
    yield "aggregator", "narrow", b"\x08" + b"".join(bytes([0, slot % 4, slot // 4 % 2, 128, 4 | slot % 2 * 8]) for slot in range(60))
    yield "aggregator", "narrow_not_agreed", b"\0" + b"".join(bytes([0, 0, i % 2, 128, 4 | i % 2 * 8]) for i in range(20))
    yield "aggregator", "many_ranks", b"\x01\x44" + b"".join(bytes([244, 0, 0, 0]) for _ in range(6))
    yield "worker", "ints", b"\4\1" + b"\0\0\x10" + (b"\x64" + b"\xc8\0\0\xc8\1\0") * 30
    yield "worker", "floats", b"\x14\1" + b"\0\1\x40" + (b"\x64" + b"\xc8\0\0\xc8\1\0") * 30
    yield "worker", "pending", b"\4\1" + b"\0\0\x10\x64" + b"\xc8\0\x14\xff\xff\xff\xff\xff\xff\xff\xff\x64" * 8
    yield "worker", "pending_turned_result", bytes.fromhex("2c000003003ecd88ad88a2")
    yield "channel", "talk", b"\0\1\2" + bytes([11, 0, 7, 10, 1, 9]) * 20
    for trouble in (1, 2, 3):
        yield "channel", f"trouble_{trouble}", bytes([trouble, 1, 2]) + bytes([11, 0, 7, 10, 1, 9]) * 4
    yield "registry", "start", b"\0" + bytes([18, 0, 0, 0, 0]) * 3
    yield "registry", "keyed", b"\1" + bytes([18, 0, 0, 1, 2]) * 3
    yield "registry", "life", b"\0" + bytes([18, 0, 0, 1, 1]) + bytes([17, 0, 0, 0, 1, 0]) + bytes([16, 0, 200, 28, 1]) * 4
    yield "engine", "rounds", b"\0" + b"".join(bytes([121, i % 4]) for i in range(60))
    yield "engine", "late", b"\0" + b"".join(bytes([121, 0, 0, 2, 4 | 8, 1, 1, 0, 0]) for i in range(20))
    yield "engine", "strangers", b"\0" + b"".join(bytes([0, i % 3, 64 | i % 4, 3, 1, 1, 0]) for i in range(40))
    yield "engine", "mixed", b"\0" + b"".join(bytes([1, i % 3, 128 | i % 4, i % 16, i, 121, i % 4]) for i in range(40))
    yield "engine", "fields", b"\0" + b"".join(bytes([0, i % 3, 32 | i % 4, i % 10, 0, 121, i % 4]) for i in range(40))
    yield "engine", "epochs", b"\0" + b"".join(bytes([121, i % 4, 191, i % 2]) for i in range(20))


def seeds():
    """(target, name, bytes)"""
    for target, generate in [("wire", wire_seeds), ("conform", conform_seeds), ("control", control_seeds), ("key_file", key_file_seeds),
                             ("faults", faults_seeds), ("addr", addr_seeds), ("settings", settings_seeds),
                             ("record", record_seeds), ("trace", trace_seeds)]:
        for name, data in generate():
            yield target, name, data
    yield from programs()
