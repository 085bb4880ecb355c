#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""check.py [--keep] [--lanes N ...]: compiles the programs of p4/ and runs packets through them, where there are tools.

The tools are optional: p4c-bm2-ss, p4test, p4c-dpdk, p4c-barefoot, bfas and simple_switch from PATH, or where the
environment variables P4C_BM2_SS, P4TEST, P4C_DPDK, P4C_BAREFOOT, BFAS and SIMPLE_SWITCH say; P4_TNA_INCLUDE is the
folder with tna.p4, P4_DPDK_PIPELINE the folder lib/pipeline of the sources of the DPDK that is installed. What is not
there is a skip with its name. Nothing here needs root. Writes TAP.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import behaviour
import dpdk
import frames
import jumbo
import plan
import schema
from bmv2 import Switch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
P4 = os.path.join(ROOT, "p4")
DEADLINE_S = 60
WAITS_S = (4, 12, 48) # until the first packet: the longer ones for many lanes, or a busy machine
VECTORS = os.path.normpath(os.path.join(HERE, "..", "conformance", "pcap.py"))
SCHEMA = os.path.join(ROOT, "src", "dataplane", "test_schema.h")
PNA_QUIET = "--Wdisable=mismatch" # keys out of several headers are copied to metadata, as they have to be
PNA_LANES = 64 # more take p4c-dpdk minutes
# A chip's name to people and to the compiler, its architecture, and its stages; lanes that tna.p4 can have.
TOFINOS = ((1, "tofino", "tna", 12), (2, "tofino2", "t2na", 20))
TNA_LANES = (32, 64)
# What bfas says where the compiler has lost a parser's choices, as p4c did before its pull request 5753.
LOST_SELECT = "Can't match parser state due to previous match"
# The compiler warns of a loop that it makes itself, where a packet could be too short.
ITS_OWN_WARNING = "Parser state min_parse_depth_accept_loop will be unrolled"
MAX_STRUCT_BYTES = 256 # DPDK 22.11: the offset of a field is 8 bits wide


class Tap:
    def __init__(self):
        self.count, self.failed, self.skipped = 0, 0, 0

    def line(self, is_ok, name, note=""):
        self.count += 1
        self.failed += not is_ok
        print(f"{'ok' if is_ok else 'not ok'} {self.count} - {name}{note}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        self.line(True, name, f" # SKIP {why}")

    def problems(self, name, problems):
        """problems: sentences; none is success."""
        try:
            problems = list(problems)
        except OSError as error: # the switch is gone, or never was ready
            problems = [f"{type(error).__name__}: {error}"]
        self.line(not problems, name)
        for problem in problems[:20]:
            print("# " + problem.replace("\n", "\n# "), flush=True)


def tool(name, variable):
    return shutil.which(os.environ.get(variable, name))


def compile_p4(program, source, lanes, output, *more, folder=P4):
    """Sentences about what the compiler did not like: warnings are faults."""
    arguments = [program, f"-DLANES={lanes}", *more, os.path.join(folder, source)]
    if output:
        arguments += ["-o", output]
    done = subprocess.run(arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0 or "warning" in done.stdout or "error" in done.stdout:
        yield f"{' '.join(arguments)}: exit status {done.returncode}\n{done.stdout[:3000].strip()}"


def struct_bytes(spec):
    """{name: bytes} of the structs of a .spec."""
    sizes = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)\n\}", spec, re.MULTILINE | re.DOTALL):
        sizes[name] = sum(int(bits) for bits in re.findall(r"bit<(\d+)>", body)) // 8
    return sizes


def check_spec(path):
    with open(path, encoding="utf-8") as file:
        sizes = struct_bytes(file.read())
    if not sizes:
        yield f"no struct in {path}"
    for name, num_bytes in sizes.items():
        if num_bytes > MAX_STRUCT_BYTES:
            yield f"struct {name} has {num_bytes} bytes, more than {MAX_STRUCT_BYTES}: its last fields alias its first"


def outputs(folder, port):
    path = os.path.join(folder, f"port{port}_out.pcap")
    return frames.read_pcap(path) if os.path.exists(path) else []


def compare_ports(steps, folder):
    for port in range(behaviour.NUM_PORTS):
        for problem in behaviour.differences(steps.due[port], outputs(folder, port)):
            yield f"port {port}: {problem}"


def play_once(simple_switch, json, folder, jobs, wait_s):
    """Returns {verdict: packets}; None if the tables were not filled when the first packet came, wait_s after start."""
    files = [os.path.join(folder, f"port{port}_in.pcap") for port in range(jobs["num_ports"])]
    num_sent = sum(len(frames.read_pcap(path)) for path in files)
    start = time.monotonic()
    with Switch(simple_switch, json, folder, jobs["num_ports"], wait_s) as switch:
        plan.fill(switch.control, jobs)
        if time.monotonic() - start > wait_s:
            return None
        end, counts = time.monotonic() + wait_s + DEADLINE_S, []
        while time.monotonic() < end and sum(counts) < num_sent:
            time.sleep(0.1)
            counts = [switch.control.count("verdicts", verdict) for verdict in range(plan.NUM_VERDICTS)]
        time.sleep(0.3) # what is still in queues
    return {verdict: count for verdict, count in enumerate(counts) if count}


def play(simple_switch, json, folder, jobs):
    """Runs the packet files of a folder through BMv2, its tables filled for jobs. Returns {verdict: packets}."""
    for wait_s in WAITS_S:
        counts = play_once(simple_switch, json, folder, jobs, wait_s)
        if counts is not None:
            return counts
    raise TimeoutError(f"filling the tables took longer than {WAITS_S[-1]} s")


def run_steps(simple_switch, json, folder, lanes):
    """Sentences about what the switch did otherwise than behaviour.py says."""
    steps = behaviour.steps(lanes)
    for port in range(behaviour.NUM_PORTS):
        frames.write_pcap(os.path.join(folder, f"port{port}_in.pcap"),
                          [(1000 * at, frame) for at, (out, frame) in enumerate(steps.sent) if out == port])
    counted = play(simple_switch, json, folder, behaviour.plan())
    if counted != steps.verdicts:
        yield f"verdicts {counted} instead of {steps.verdicts}"
    yield from compare_ports(steps, folder)


def conformance(*arguments):
    done = subprocess.run([sys.executable, VECTORS, *arguments], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


def play_vectors(simple_switch, json, folder, jobs):
    return plan.wrong_counts(folder, play(simple_switch, json, folder, jobs))


def run_vectors(folder, lanes, player, *switch, cannot=()):
    """Sentences about which conformance vectors a switch fails. player(*switch, folder, plan) runs those of a folder
    and returns what went wrong (with the counters, too), or None. cannot: needs that it does not have."""
    needs = [word for need in cannot for word in ("--cannot", need)]
    status, said = conformance("make", folder, "--lanes", str(lanes), *needs)
    if status != 0:
        yield said
        return
    wrong = player(*switch, folder, plan.of_vectors(folder))
    status, said = conformance("compare", folder)
    lines = said.splitlines()
    if status != 0 or not any(line.startswith("ok ") for line in lines):
        yield "\n".join(line for line in lines if not line.startswith("ok "))
    if wrong:
        yield wrong


def check_bmv2(tap, folder, lanes_list):
    compiler, switch = tool("p4c-bm2-ss", "P4C_BM2_SS"), tool("simple_switch", "SIMPLE_SWITCH")
    for lanes in lanes_list:
        name = f"v1model.p4 with {lanes} lanes"
        if not compiler:
            tap.skip(name, "no p4c-bm2-ss")
            continue
        inner = os.path.join(folder, str(lanes))
        os.mkdir(inner)
        json = os.path.join(inner, "switchml.json")
        tap.problems(f"{name} compiles", compile_p4(compiler, "v1model.p4", lanes, json))
        if not switch:
            tap.skip(f"{name} does what it should", "no simple_switch")
        elif os.path.exists(json):
            tap.problems(f"{name} does what it should", run_steps(switch, json, inner, lanes))
            vectors = os.path.join(inner, "vectors")
            tap.problems(f"{name} passes the conformance vectors",
                         run_vectors(vectors, lanes, play_vectors, switch, json))


def run_pipeline(folder, spec, headers, lanes):
    """Sentences about what DPDK's pipeline did otherwise than behaviour.py says."""
    wrong = dpdk.build(folder, spec, headers)
    if wrong:
        yield wrong
        return
    steps = behaviour.steps(lanes, is_pna=True)
    text = dpdk.script(behaviour.plan(), "copy_3 port 0x0")
    status, said = dpdk.play(folder, steps.sent, behaviour.NUM_PORTS, text)
    if status != 0:
        yield f"exit status {status}: {said[:2000]}"
        return
    counted = dpdk.counts(said)
    if counted != steps.verdicts:
        yield f"verdicts {counted} instead of {steps.verdicts}"
    yield from compare_ports(steps, folder)


def check_dpdk(tap, folder, lanes_list):
    compiler, headers = tool("p4c-dpdk", "P4C_DPDK"), os.environ.get("P4_DPDK_PIPELINE")
    for lanes in lanes_list:
        name, inner = f"pna.p4 with {lanes} lanes", os.path.join(folder, f"pna{lanes}")
        if not compiler:
            tap.skip(name, "no p4c-dpdk")
            continue
        os.mkdir(inner)
        spec = os.path.join(inner, "switchml.spec")
        tap.problems(f"{name} compiles", compile_p4(compiler, "pna.p4", lanes, spec, "--arch", "pna", PNA_QUIET))
        if not os.path.exists(spec):
            continue
        tap.problems(f"{name} has structs that are small enough for the pipeline", check_spec(spec))
        if not headers or dpdk.flags("--cflags") is None:
            tap.skip(f"{name} does what it should",
                     "no libdpdk-dev, or P4_DPDK_PIPELINE does not name its sources' lib/pipeline")
            continue
        tap.problems(f"{name} does what it should", run_pipeline(inner, spec, headers, lanes))
        tap.problems(f"{name} passes the conformance vectors",
                     run_vectors(os.path.join(inner, "vectors"), lanes, dpdk.play_vectors, inner))


def check_jumbo(tap, folder):
    name, why = "switchml-pipeline carries jumbo frames", jumbo.why_unavailable()
    if why:
        tap.skip(name, why)
        return
    inner = os.path.join(folder, "jumbo")
    os.mkdir(inner)
    tap.problems(name, jumbo.problems(inner))


def check_tna(tap):
    compiler, include = tool("p4test", "P4TEST"), os.environ.get("P4_TNA_INCLUDE")
    for number, _, _, _ in TOFINOS:
        for lanes in TNA_LANES:
            name = f"tna.p4 with {lanes} lanes for Tofino {number}"
            if not compiler:
                tap.skip(name, "no p4test")
            elif not include:
                tap.skip(name, "P4_TNA_INCLUDE does not name the folder with tna.p4")
            else:
                tap.problems(f"{name} is well typed", compile_p4(compiler, "tna.p4", lanes, None, "-I", include,
                                                                 f"-D__TARGET_TOFINO__={number}"))


def stages_of(assembly):
    """What an assembly has in each stage: (tables, stateful ALUs)."""
    found = {}
    for stage, text in re.findall(r"^stage (\d+) (?:in|e)gress:\n(.*?)(?=^\S|\Z)", assembly, re.MULTILINE | re.DOTALL):
        tables, alus = found.get(int(stage), (0, 0))
        found[int(stage)] = (tables + len(re.findall(r"^  (?:exact|ternary|hash_action)_match ", text, re.MULTILINE)),
                             alus + len(re.findall(r"^  stateful ", text, re.MULTILINE)))
    return found


def place_tna(compiler, include, chip, lanes, folder):
    """Sentences about why tna.p4 cannot be placed in a chip. No warning is switched off."""
    number, target, architecture, num_stages = chip
    arguments = [compiler, "--target", target, "--arch", architecture, "-I", include, f"-DLANES={lanes}",
                 f"-D__TARGET_TOFINO__={number}", "-o", folder, "--bf-rt-schema", os.path.join(folder, "bf-rt.json"),
                 os.path.join(P4, "tna.p4")]
    os.makedirs(folder)
    done = subprocess.run(arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    warnings = [line for line in done.stdout.splitlines() if "warning:" in line and ITS_OWN_WARNING not in line]
    if done.returncode != 0 or warnings:
        yield f"exit status {done.returncode}\n{done.stdout[-3000:].strip()}"
    if done.returncode != 0:
        return
    with open(os.path.join(folder, "pipe", "tna.bfa"), encoding="utf-8") as file:
        stages = stages_of(file.read())
    if not stages or max(stages) >= num_stages:
        yield f"stages {sorted(stages)}"
    print(f"# stages {max(stages) + 1} of {num_stages}, stateful ALUs {sum(alus for _, alus in stages.values())}")


def compare_names(folder, lanes):
    """Sentences about names that switchmld's test of its calls (tofino_test) does not have as the compiler has them."""
    known = {line for line in schema.recorded(SCHEMA) if line.startswith("pipe.")}
    found = set(schema.excerpt([os.path.join(folder, "bf-rt.json")]))
    if lanes != 32: # recorded is the other form; the last lane is what switchmld looks for
        known, found = ({line for line in lines if ".sum.lane_" not in line} for lines in (known, found))
        with open(os.path.join(folder, "bf-rt.json"), encoding="utf-8") as file:
            text = file.read()
        if f"lane_{lanes // 32 - 1}_31.values" not in text or f"lane_{lanes // 32}_0.values" in text:
            yield f"the last lane is not lane_{lanes // 32 - 1}_31"
    yield from sorted(f"not in test_schema.h: {line}" for line in found - known)
    yield from sorted(f"only in test_schema.h: {line}" for line in known - found)


def assemble_tna(assembler, target, folder):
    """Sentences about why there is no binary."""
    done = subprocess.run([assembler, "-o", os.path.join(folder, "pipe"), os.path.join(folder, "pipe", "tna.bfa")],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    is_parsed = LOST_SELECT not in done.stdout
    if done.returncode != 0 or not is_parsed or not os.path.exists(os.path.join(folder, "pipe", f"{target}.bin")):
        yield f"exit status {done.returncode}\n{done.stdout[-3000:].strip()}"


def check_placement(tap, folder, chip, lanes):
    compiler, include = tool("p4c-barefoot", "P4C_BAREFOOT"), os.environ.get("P4_TNA_INCLUDE")
    assembler, program = tool("bfas", "BFAS"), f"tna.p4 with {lanes} lanes"
    names = (f"{program} is placed in a Tofino {chip[0]}", f"{program} has the names that switchmld uses (Tofino {chip[0]})",
             f"{program} is assembled for a Tofino {chip[0]}")
    if not compiler or not include:
        for name in names:
            tap.skip(name, "P4_TNA_INCLUDE does not name the folder with tna.p4" if compiler else "no p4c-barefoot")
        return
    folder = os.path.join(folder, f"{chip[1]}-{lanes}")
    tap.problems(names[0], place_tna(compiler, include, chip, lanes, folder))
    if not os.path.exists(os.path.join(folder, "pipe", "tna.bfa")):
        tap.skip(names[1], "not compiled")
        tap.skip(names[2], "not compiled")
        return
    tap.problems(names[1], compare_names(folder, lanes))
    if assembler:
        tap.problems(names[2], assemble_tna(assembler, chip[1], folder))
    else:
        tap.skip(names[2], "no bfas")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keep", action="store_true", help="leave what was compiled and the packets, and say where")
    parser.add_argument("--lanes", type=int, nargs="+", default=[32, 64, 128])
    options = parser.parse_args()
    tap = Tap()
    folder = tempfile.mkdtemp(prefix="switchml-p4-")
    try:
        check_bmv2(tap, folder, options.lanes)
        check_dpdk(tap, folder, [lanes for lanes in options.lanes if lanes <= PNA_LANES])
        check_jumbo(tap, folder)
        check_tna(tap)
        for chip in TOFINOS:
            for lanes in TNA_LANES:
                check_placement(tap, folder, chip, lanes)
    finally:
        if options.keep:
            print(f"# {folder}")
        else:
            shutil.rmtree(folder)
    print(f"1..{tap.count}")
    done = tap.count - tap.skipped
    print(f"# P4: {done} of {tap.count} checks done, {tap.failed} failed" if done else "# P4: not compiled, not run")
    return 1 if tap.failed else 0


if __name__ == "__main__":
    sys.exit(main())
