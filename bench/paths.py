# SPDX-License-Identifier: Apache-2.0
"""The middle of the curve and long paths: ours through a daemon, without one and in shared memory, beside the peers."""
import json
import os
import statistics
import subprocess
import time

import netbed
import places
from contenders import BUILD, FRAME_BYTES, HEADER_BYTES, Gloo, OpenMPI, SwitchML

K, M = 1 << 10, 1 << 20
PARTS = {"middle": ("loopback", "hosts", "shaped"), "long-path": ("bed", "simulated"), "exact": ("daemon", "embedded", "memory")}
MEMORY_SHARE = 0.6        # of what is free: inputs and outputs of all ranks
PATH_BURST_BYTES = 72 << 10  # the smallest bucket that lets a segmented send through whole
LEAST_S = 1.0             # of a round on a long path: one short operation says little of busy processors
ROUND_TRIPS = 30          # that an operation on a long path takes by its bytes alone


def parts(session):
    chosen = session.options.parts or PARTS[session.scenario]
    return [part for part in PARTS[session.scenario] if part in chosen]


class Embedded(SwitchML):
    """No daemon: the first rank of each host aggregates."""
    title = "SwitchML, embedded"

    def start(self, place):
        self.place = place
        address = "127.0.0.1" if place.name == "loopback" else place.bed.worker_address(0)
        self.environment["SWITCHML_RENDEZVOUS"] = f"{address}:{self.port}"

    def daemon_cpu_s(self):
        return 0.0


def free_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def iterations_of(size, is_quick):
    return max(2, min(20 if is_quick else 400, ((4 if is_quick else 64) * M) // size))


def sizes_that_fit(session, sizes, n):
    fitting = [size for size in sizes if 3 * n * size <= MEMORY_SHARE * free_bytes()]
    if len(fitting) < len(sizes):
        session.note(f"n = {n}: memory for up to {max(fitting, default=0) // M} MiB; the rest is left out")
    return [(size, iterations_of(size, session.options.quick)) for size in fitting]


def gloos(session, n):
    names = [name for name in Gloo.algorithms if name != "halving-doubling" or n & (n - 1) == 0]
    return [Gloo(session.processes, n, session.tools, name)
            for name in (names[:1] if session.options.quick else names) if session.wants("gloo")]


def mpis(session, n, transport):
    """Open MPI's own choice; in full also what is best for long and for short tensors."""
    return [OpenMPI(session.processes, n, session.tools, algorithm, transport)
            for algorithm in ((0,) if session.options.quick else (0, 3, 4, 6)) if session.wants("openmpi")]


def measure(session, place, contenders, runs, part, **more):
    return session.measure(place, contenders, runs, {"part": part, "mtu": None, "rate": "none", **more})


def middle_loopback(session):
    sizes = session.pick("sizes", [4 ** i for i in range(1, 16)], [4, K, 256 * K])
    for n in session.pick("n", [2, 4, 8], [2]):
        with places.loopback() as place:
            make = lambda kind, *more: kind(session.processes, n, *more)
            contenders = [make(SwitchML), make(Embedded, None, None, "", (), "bench", 4820),
                          SwitchML(session.processes, n, "SwitchML, shared memory", {"SWITCHML_SHARED_MEMORY": "1"}, port=4801),
                          *gloos(session, n), *mpis(session, n, "tcp"), *mpis(session, n, "vader")]
            measure(session, place, contenders, sizes_that_fit(session, sizes, n), "loopback", mtu=65536)


def middle_hosts(session):
    """Hosts at 100 us and 1 ms of round trip, whose links are as fast as this machine."""
    sizes = session.pick("sizes", [4, 64, K, 4 * K, 16 * K, 64 * K, 256 * K, M, 4 * M, 16 * M], [4, 64 * K])
    for n in session.pick("n", [4, 8], [2]):
        for rtt_us in session.options.delays or ((1000,) if session.options.quick else (100, 1000)):
            with places.bed(n, rate="none", path=netbed.Path(rtt_us=rtt_us)) as place:
                rows = measure(session, place, [SwitchML(session.processes, n), Embedded(session.processes, n, port=4820),
                                                *gloos(session, n), *mpis(session, n, "tcp")],
                               [(size, min(100, iters)) for size, iters in sizes_that_fit(session, sizes, n)], "hosts",
                               mtu=1500, rtt_us=rtt_us)
                give_path(rows, place.bed.path_counters())
                session.save()


def give_path(rows, counters):
    for row in rows:
        row["bed_error_us"], row["bed_overrun"] = counters["error_us"], counters["overrun"]


def middle_shaped(session):
    """Links of 1 Gbit/s. What a token bucket lets out at once after a pause is taken off the bound."""
    sizes = session.pick("sizes", [4, 64 * K, 256 * K, M, 4 * M], [4, M])
    for n in session.pick("n", [8], [2]):
        with places.bed(n, rate="1gbit", burst_bytes=PATH_BURST_BYTES) as place:
            rows = measure(session, place, [SwitchML(session.processes, n), Embedded(session.processes, n, port=4820),
                                            *gloos(session, n)], [(size, 20 if size < 4 * M else 10) for size in sizes],
                           "shaped", mtu=1500, rate="1gbit")
            idle_s = next((row["time_s"] for row in rows if row["bytes"] == 4 and row["contender"] == SwitchML.title), None)
            for row in rows:
                if idle_s and row["contender"] == SwitchML.title and row["bytes"] > 4:
                    sent_bytes = max(0.0, row["bytes"] * row["floor"] - PATH_BURST_BYTES)
                    row["bound_s"], row["bound"] = sent_bytes * 8e-9 + 2 * idle_s, "S/B less the bucket, and two idle round trips"
                    row["bound_ratio"] = row["time_s"] / row["bound_s"]
                    row["wanted_s"] = 1.15 * sent_bytes * 8e-9 + 2 * idle_s
            session.save()


def middle(session):
    """4 B to 1 GiB, n = 2, 4, 8: UDP by a daemon, embedded, shared memory; hosts at 0.1 and 1 ms; 1 Gbit/s links"""
    for part in parts(session):
        {"loopback": middle_loopback, "hosts": middle_hosts, "shaped": middle_shaped}[part](session)


def exact(session):
    """Exact mode beside the default one: loopback, 1, 16, 64 MiB, n = 2, 4, 8, by a daemon, embedded, shared memory"""
    sizes = session.pick("sizes", [M, 16 * M, 64 * M], [M])
    kinds = {"daemon": (SwitchML, {}), "embedded": (Embedded, {}), "memory": (SwitchML, {"SWITCHML_SHARED_MEMORY": "1"})}
    for n in session.pick("n", [2, 4, 8], [2]):
        for part in parts(session):
            kind, environment = kinds[part]
            with places.loopback() as place:
                both = [kind(session.processes, n, f"{part}, {mode}", environment, arguments=arguments, port=4800 + i)
                        for i, (mode, arguments) in enumerate({"default": [], "exact": ["--exact"]}.items())]
                rows = measure(session, place, both, sizes_that_fit(session, sizes, n), part, mtu=65536)
            for default, row in zip(rows[:len(rows) // 2], rows[len(rows) // 2:]):
                row["over_default"] = row["time_s"] / default["time_s"]
                wire = f", {row['wire_bytes'] / default['wire_bytes']:.3f} of its bytes" if default["wire_bytes"] else ""
                session.say(f"n {n}, {row['bytes'] / M:g} MiB, {part}: {1e3 * default['time_s']:.1f} and {1e3 * row['time_s']:.1f} ms: "
                            f"{row['over_default']:.2f} times, {row['cpu_s'] / default['cpu_s']:.2f} of the processor time{wire}")
            session.save()


# ---- long paths ----

class ControlledGloo(Gloo):
    """Over TCP with a congestion control by name, which connections keep that are made at the start. Given up where a
    round, one all-reduce ahead of the timed ones, takes `limit_s`: then that is the time of all of them at least."""

    def __init__(self, processes, num_ranks, tools, control, limit_s):
        super().__init__(processes, num_ranks, tools)
        self.control, self.limit_s, self.is_given_up = control, limit_s, False
        self.title, self.command = f"Gloo, ring, {control.title() if control == 'cubic' else 'BBR'}", f"{self.command} ({control})"

    def start(self, place):
        place.bed.use_congestion_control(self.control)
        super().start(place)

    def round(self, runs, type_name):
        size, iters = runs[0]
        least = {**self.result(size, [1e6 * self.limit_s / (1 + iters)], 0.0), "is_at_least": 1}
        if self.is_given_up:
            return [least]
        begin_s = time.monotonic()
        killer = subprocess.Popen(["sh", "-c", f"sleep {self.limit_s:.0f}; kill -9 {' '.join(str(w.pid) for w in self.workers)}"],
                                  process_group=0)
        try:
            return super().round(runs, type_name)
        except places.BenchError:
            if time.monotonic() - begin_s < self.limit_s - 2:
                raise
            self.is_given_up = True
            return [least]
        finally:
            kill_group(killer)


def kill_group(process):
    """With what it started."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()


def floor_s(size, rate_bps, floor):
    return size * floor * 8 / rate_bps


def operation_bytes(rtt_us, rate_bps, is_quick):
    return max(64 * K, int((4 if is_quick else ROUND_TRIPS) * rtt_us * 1e-6 * rate_bps / 8)) & ~3


def long_path_bed(session):
    rate = (session.options.rates or ["100mbit"])[0]
    rate_bps = netbed.parse_rate(rate)
    for n in session.pick("n", [8], [2]):
        for rtt_us in session.options.delays or ((20_000,) if session.options.quick else (2000, 20_000, 100_000, 300_000)):
            size = session.pick("sizes", None, None) or [operation_bytes(rtt_us, rate_bps, session.options.quick)]
            for loss in session.options.losses or ((0.0, 0.01) if session.options.quick else (0.0, 0.001, 0.01)):
                session.say(f"n {n}  round trip {rtt_us / 1000:g} ms  loss {100 * loss:g} %")
                with places.bed(n, rate=rate, path=netbed.Path(rtt_us=rtt_us, loss=loss)) as place:
                    long_path_cell(session, place, n, size[0], {"rate": rate, "rtt_us": rtt_us, "loss": loss, "mtu": 1500})


def long_path_cell(session, place, n, size, case):
    rate_bps = netbed.parse_rate(case["rate"])
    about_s = floor_s(size, rate_bps, 1.05) + 4 * case["rtt_us"] * 1e-6
    iters = max(1, int(LEAST_S / about_s))
    limit_s = 12 * (1 + iters) * about_s + 5
    contenders = [SwitchML(session.processes, n)]
    if session.wants("gloo"):
        contenders += [ControlledGloo(session.processes, n, session.tools, control, limit_s) for control in ("cubic", "bbr")]
    rows = measure(session, place, contenders, [(size, iters)], "bed", **case)
    give_path(rows, place.bed.path_counters())
    for row in rows:
        if row["family"] == "switchml":
            row["bound_s"], row["bound"] = floor_s(size, rate_bps, row["floor"]) + 4e-6 * case["rtt_us"], "S/B, and four round trips"
            row["bound_ratio"] = row["time_s"] / row["bound_s"]
            row["wanted_s"] = 1.05 * floor_s(size, rate_bps, row["floor"]) + 4e-6 * case["rtt_us"]
    session.save()


# Round trip in ms: slots that hold what 1 Gbit/s has under way, and the time that waits in a queue.
SIMULATED_SLOTS = {2: 512, 20: 4096, 100: 16384, 300: 32768}


def long_path_simulated(session):
    """By the shipped engines in virtual time, at 1 Gbit/s; medians of three seeds."""
    program = os.path.join(BUILD, "sim/loss")
    if not os.path.exists(program):
        session.note("not available: this build has no sim/loss")
        return
    for rtt_us in session.options.delays or ((2000,) if session.options.quick else (2000, 20_000, 100_000, 300_000)):
        rtt_ms = int(rtt_us / 1000)
        slots = SIMULATED_SLOTS.get(rtt_ms, 32768)
        size = operation_bytes(rtt_us, 1e9, session.options.quick)
        found = {}
        for seed in range(1, 2 if session.options.quick or rtt_ms > 100 else 4):
            session.say(f"round trip {rtt_ms} ms, seed {seed}")
            command = [program, "--delay", str(rtt_us / 2), "--size", str(size), "--slots", str(slots), "--loss", "0.001,0.01",
                       "--json", "--seed", str(seed)]
            output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800).stdout
            for each in map(json.loads, output.splitlines()):
                found.setdefault(each["loss"], []).append(each)
        session.add([simulated_row(session, size, rtt_us, loss, each) for loss, each in found.items()])


def simulated_row(session, size, rtt_us, loss, found):
    if not all(each["right"] for each in found):
        raise places.BenchError("a wrong sum, or none within the limit")
    middle_of = lambda key: statistics.median(each[key] for each in found)
    time_s, floor = middle_of("time_ms") / 1e3, 1 + (FRAME_BYTES + HEADER_BYTES) / found[0]["chunk_bytes"]
    bare_s = floor_s(size, 1e9, floor)
    return {"scenario": session.scenario, "part": "simulated", "contender": SwitchML.title, "family": "switchml",
            "ranks": found[0]["workers"], "bytes": size, "type": "float32", "rate": "1gbit", "mtu": 1500, "rtt_us": rtt_us,
            "loss": loss, "rounds": len(found), "time_s": time_s, "bound_s": bare_s + 4e-6 * rtt_us,
            "bound_ratio": time_s / (bare_s + 4e-6 * rtt_us), "wanted_s": 1.05 * bare_s + 4e-6 * rtt_us,
            "questions": middle_of("questions_a_loss") if loss else None}


def long_path(session):
    """Round trips of 2 to 300 ms, 0, 0.1, 1 % loss: 100 Mbit/s, Gloo over Cubic and BBR; 1 Gbit/s in virtual time"""
    for part in parts(session):
        {"bed": long_path_bed, "simulated": long_path_simulated}[part](session)
