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


def exact_seeds():
    """Type, ranks, whole blocks, no average; codes and lanes; two ranks' inputs, each a pattern, and kernels."""
    def pattern(data):
        return bytes([len(data) - 1]) + data
    lanes = pattern(struct.pack("=8i", 1, -1, 2**31 - 1, -2**31, 1 << 28, -5, 0, 77))
    for number, (form, values) in enumerate([("f", [1.5, -1e-30, 3e38, 1e-45]), ("d", [1e300, -1e-300, 0.1, -0.0]),
                                             ("e", [1.5, -6e-8, 65504, 0]), ("f", [1, -1, float("inf"), float("nan")])]):
        data = struct.pack(f"=4{form}", *values)
        for name, codes in [("near", b"\x11\x11\x11\0"), ("all", b"\xff"), ("none", b"\0")]:
            yield f"{form}{number}_{name}", (bytes([number % 3, 0, 6, 1, number % 2]) + pattern(codes) + lanes +
                                             pattern(data) + b"\1" + pattern(data[::-1]) + b"\2\0\3")


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


def sized(*answers):
    return b"".join(bytes([255]) + struct.pack(">H", len(a) - 255) + a if len(a) >= 255 else bytes([len(a)]) + a for a in answers)


def thrift_seeds():
    done, number = b"\0", b"\x08\0\0" + struct.pack(">I", 5) + b"\0"
    refused = b"\x0c\0\1\x08\0\1" + struct.pack(">I", 5) + b"\0\0"
    port = b"\x08\0\1" + struct.pack(">I", 2) + b"\x0b\0\2\0\0\0\4veth" + b"\x02\0\3\1\0"
    ports = b"\x0f\0\0\x0c\0\0\0\2" + port * 2 + b"\0"
    cells = b"\x0f\0\0\x0a\0\0\0\x10" + struct.pack(">16q", *([-(2 ** 31) + 3] * 16)) + b"\0"
    opened = [done, number, refused, number, ports, number, number, done, number]
    counter = b"\x0c\0\0\x0a\0\1" + struct.pack(">q", 7) + b"\x0a\0\2" + struct.pack(">q", 8) + b"\0\0"
    job = [done] * 3 + [number] * 2 + [number, number, done] * 3 + [number] * 9 + [cells] * 2 + [counter] * 8
    yield "life", b"\1" + sized(*opened, *job)
    yield "numbers", b"\x71" + sized(*[number] * 90)
    yield "refused", b"\1" + sized(refused)
    yield "map", b"\1" + sized(b"\x0d\0\0\x08\x0b\0\0\0\1\0\0\0\7\0\0\0\1x\0")
    yield "no_thrift", b"\0HTTP/1.0 400 Bad Request\r\n\r\n"
    yield "old", b"\0\x80\1\0\2\0\0\0\1x\0\0\0\1\0"


def dpdk_seeds():
    opened = b"ok 4 77\nok\nok 0\nerror no such register\nok 0\n"
    words, counters = b"ok" + b" 2147483651" * 8 + b"\n", b"ok" + b" 5" * 41 + b"\n"
    job = b"ok\n" + words * 2 + counters + b"ok\n"
    yield "life", b"\0" + opened + job * 2 + b"ok\n" * 2
    yield "restarted", b"\3" + opened + b"ok 1 2\n" + b"ok 78\n"
    yield "errors", b"\0error " + b"x" * 200 + b"\n" + b"ok 0 1\nok 99999999999999999999999\nfoo\n"


def grpc_seeds():
    def field(number, data):
        return bytes([number << 3 | 2, len(data)]) + data
    name = field(1, field(5, b"\x18\7"))                             # an object's id is 7
    key = field(1, field(1, field(2, field(1, b"\x08\1" + field(2, field(1, b"\2"))))
                           + field(3, field(2, b"\x08\7" + field(2, b"\1\0\0\0")))))
    answers = [b""] * 7 + [name, b"", key, b"", name] * 12
    yield "names", b"\1" + b"".join(bytes([(len(a) + 3) // 4]) + a + b"\0" * (-len(a) % 4) for a in answers)
    yield "empty", b"\1" + b"\0" * 64
    yield "framed", b"\3" + b"\3\0\0\0\0\2\x18\7xxxxx" * 20
    yield "no_http2", b"\0HTTP/1.0 400 Bad Request\r\n\r\n"
    yield "settings", b"\0\0\0\0\4\0\0\0\0\0" + b"\0\0\1\1\5\0\0\0\1\x88"


def protobuf_seeds():
    yield "kinds", b"\x08\x96\1\x12\3abc\x1d\1\2\3\4\x21\1\2\3\4\5\6\7\x08\x2a\4\x0a\2\x08\1"
    yield "largest", b"\xf8\xff\xff\xff\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"
    yield "cut", b"\x12\x7fabc"
    yield "endless", b"\x08" + b"\x80" * 12


def config_seeds():
    options = b"listen = 127.0.0.1:0\nlanes = 2\nslots = 4096\n# comment\n; another\nlog-level=info\n\n"
    tenants = b"[tenant a.b]\njobs = 2\nworkers=8\n slots = 256\n[tenant *]\nworkers = 4\n"
    yield "whole", options + tenants
    yield "again", options + tenants + b"\0" + options.replace(b"4096", b"8192") + b"log-format = json\n"
    yield "switch", b"dataplane = bmv2\nswitch = 10.7.0.3:9090\nswitch-format = 32\nlanes = 1\nlisten = 10.7.0.1:5\n"
    yield "multicast", b"listen = 0.0.0.0:5\nmulticast = 239.1.2.3/9\nmulticast-interface = lo\nhttp = [::1]:8080\n"
    for number, text in enumerate([b"lane = 2", b"lanes = 2\nlanes = 3", b"[tenant x", b"[tenant x]\nkey-file = /nowhere",
                                   b"[other]\n", b"slots = 3", b"\xef\xbb\xbflanes = 2", b"listen = a\n", b"x" * 300,
                                   b"[tenant " + b"x" * 40 + b"]\n", b"[tenant x]\njobs = 1\njobs = 2\n", b" \t= 5\n"]):
        yield f"wrong_{number}", text


def training_seeds():
    table = (b"source somewhere\nparameters 131\nbatch 8\nspeed abacus 400 measured # at home\nlayer embed 0 weight=100\n"
             b"layer hidden 2e4 weight=20 bias=10\nlayer last 1000 weight=1\n")
    for kind in range(4):
        yield f"table_{kind}", bytes([kind]) + table
    for number, text in enumerate([b"layer a\n", b"layer a 1 x=0\n", b"layer a nan x=1\n", b"layer a 1e308 x=1\nlayer b 1e308 y=2\n",
                                   b"layer a 1 x=1099511627776 y=1\n", b"batch 0\n", b"speed x 1e-300\n", b"parameters -1\n"]):
        yield f"wrong_{number}", b"\2" + text


def status_seeds():
    rank = (b'{"rank":1,"host":"10.0.0.2","state":"late","since_s":12.5,"heard_s":0.1,"operations_called":7,"packets":9,'
            b'"operations_completed":6,"slots_missing":2,"bytes":null,"retransmissions":3}')
    job = (b'{"name":"a","number":3,"key":"k","state":"running","health":"late","present":2,"world_size":3,"lanes":2,"slots":64,'
           b'"slots_waiting":5,"least_contributions":1,"most_contributions":2,"contributors":3,"operations_called":9,'
           b'"operations_completed":7,"bytes":1000000,"packets":900,"sums":800,"retransmissions":null,"drops":{"BAD_CRC":3},'
           b'"ranks":[' + rank + b']}')
    status = (b'{"version":"0.1.0","uptime_s":%s,"limits":{"slots":4096},"lanes":[{"slots_used":64,"drops":{"STALE_PHASE":1}}],'
              b'"jobs":[' + job + b'],"tenants":[{"name":"t","jobs":1,"max_jobs":2}],"switch":{"told_s":1.5,"sums":7},'
              b'"ended":[{"name":"old","failed":true,"ago_s":99999,"text":"rank 3 was lost"}]}')
    yield "two_looks", b"\1" + status % b"100.5" + b"\0" + status.replace(b"1000000", b"9000000") % b"101.5"
    yield "no_object", b"\1[1,2]"
    yield "types", b'\1{"jobs":[1,"x",{"name":5,"ranks":{},"drops":[]}],"lanes":"x","ended":[null]}'
    yield "terminal", b'\1{"version":"\\u001b]0;x\\u0007","jobs":[{"name":"\\u009b31m","drops":{"\\u001b[2J":1}}]}'
    yield "deep", b"\1" + b'{"jobs":' + b"[" * 300
    part = struct.pack(">IIH", 2, 0, 2) + b"{}"
    yield "parts", b"\x70" + struct.pack(">IHHI", 0x534d4c31, 3, 14, len(part)) + part
    refusal = struct.pack(">i", -7) + text(b"too busy")
    yield "refused", b"\0" + struct.pack(">IHHI", 0x534d4c31, 3, 10, len(refusal)) + refusal


def rendezvous_seeds():
    for how in (0, 1):
        yield f"honest_{how}", bytes([how, 0, 128])
        yield f"news_{how}", bytes([how, 3, 3, 0, 128])
        yield f"occupied_{how}", bytes([how | 0x70, 3, 4, 0, 0])
    for kind in range(7):
        yield f"answer_{kind}", bytes([2, kind, 0, 128])
    yield "answer_changed", bytes([4, 5, 1, 0, 128])
    yield "untagged", bytes([0, 32, 0, 128])


def embedded_seeds():
    for size in range(5):
        yield f"honest_{size}", bytes([size, 0b11100100, 0, 0])
    yield "who_changed", bytes([2, 0b11100100, 2, 0, 4, 7, 0, 24, 9])
    yield "another_offers", bytes.fromhex("22e4ac00ac52e400e402fffff5ff0407ffff")
    yield "failed", bytes([1, 0, 0, 5, 0, 4, 255, 0, 5, 255, 0, 6, 255, 0, 7, 253, 1, 0, 65])


def greeting_seeds():
    yield "all_come", bytes([0, 1, 0, 0, 2, 0, 0])
    yield "one_again", bytes([0]) + bytes([1, 0, 0]) * 4
    yield "changed", bytes([0]) + b"".join(bytes([1, 1, at, 5, 0]) for at in (0, 9, 25, 33, 37))
    yield "cut_and_long", bytes([0, 1, 2, 39, 0, 1, 2, 41, 0, 1, 4, 0, 2, 0, 0])
    for kind in (0, 1, 3, 4, 8):
        yield f"descriptor_{kind}", bytes([1, 0, kind, 0, kind])
    yield "another_user", bytes([1, 255, 0, 255, 0, 0, 0])


def programs():
    """The stateful targets: a few bytes repeated are programs that get somewhere."""
    for wants in (0, 1, 2, 4, 32, 64):
        yield "session", f"honest_{wants}", bytes([wants])
    yield "session", "lies", b"\x64" + bytes([230, 1]) * 3 + bytes([0, 1, 250, 9, 0, 0, 16, 250, 3, 2, 2, 64]) * 12
    yield "session", "ends", b"\0" + bytes(40) + b"\xdc\5\2\x30" + bytes(30) + b"\xec" + bytes(9) + b"\xe2\7"
    yield "session", "one_host_unasked", (bytes(19) + b"\x13\0" + b"\x19" * 7 + b"\xff" + b"\x19" * 42
                                          + bytes.fromhex("120004f52b2bee1e"))
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
    # Ranks, kind, parts; then calls, packets and what becomes of them.
    for name, kind in (("sums", 1), ("sums_with_exponents", 0x89), ("copies", 0x15)):
        calls = bytes([0, 0, 0, 1, 0, 2, 60, 0, 60, 1, 60, 2])
        yield "one_way", name, bytes([kind]) + bytes(range(5, 20)) + (calls + bytes([100, 0, 0, 190, 0, 1, 220, 0, 2, 75, 1])) * 12
    yield "one_way", "lies", bytes([1]) + bytes(range(5, 20)) + bytes([0, 0, 0, 1, 60, 0, 60, 1] + [252, 0, 0, 31, 9] + [100, 0, 0] * 4) * 6
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
                             ("exact", exact_seeds), ("faults", faults_seeds), ("addr", addr_seeds), ("settings", settings_seeds),
                             ("record", record_seeds), ("trace", trace_seeds), ("thrift", thrift_seeds),
                             ("dpdk", dpdk_seeds), ("grpc", grpc_seeds), ("protobuf", protobuf_seeds),
                             ("config", config_seeds), ("training", training_seeds), ("status", status_seeds),
                             ("rendezvous", rendezvous_seeds), ("embedded", embedded_seeds), ("greeting", greeting_seeds)]:
        for name, data in generate():
            yield target, name, data
    yield from programs()
