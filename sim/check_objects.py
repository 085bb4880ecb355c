#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""check_objects.py BUILD_DIR SIMULATOR PRODUCT...: the simulator runs the objects of the products.

Each program is linked once more with --trace, which names every object that goes into it. Those of the
product's folders must be the very same files in the simulator, but for the few that stand at the edge to the
operating system; and whatever they ask of the system must be simulated or harmless. Prints TAP.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

# An object of the product: libsml_core.a.p/..., src/lib/libsml_lib.a.p/...
OBJECT = re.compile(r"\blibsml_(base|core|quant|trace|ctl|netio|engine|aggd|process|meet|lib)\.a(?:\.p/|\()([\w.+-]+\.o)\)?$")
# What the kernel replaces: the packet back end of real sockets, fork's lock and list, the daemon's log.
# They look at a state machine and change nothing: the checkers ask them, the products have no use for them.
ONLOOKERS = {"ctl/src_ctl_test_registry_check.c.o", "core/src_core_test_aggregator_invariants.c.o",
             "core/src_core_test_worker_invariants.c.o"}
# The daemon's command alone has options, looks at links, and says how much memory it may need: base/options.c,
# netio/link.c and aggd/memory.c are not asked for.
REPLACED = re.compile(r"^(base/(.*_)?options\.c\.o|netio/(.*_)?link\.c\.o|aggd/(.*_)?memory\.c\.o|netio/\w*udp(_rx|_tx|_group)?\.c\.o|netio/.*_udp(_rx|_tx|_group)?\.c\.o|base/(.*_)?(fork|log)\.c\.o)$")
# Simulated processes have no host to share memory on: sml_shm_identity() is replaced and says so (sim/process.c),
# so what else is in this folder is linked, but never called.
# Nor do they write files: nothing asks for a trace or a capture. Their library's lines go where the simulator's do, and
# simulated descriptors begin at 3: none has to be moved up. The simulator's own command has options.
UNREACHED = re.compile(r"^(process/(.*_)?log\.c\.o$|base/(.*_)?(fd|options|writer)\.c\.o$|host/|trace/.*dump\.c\.o$|netio/.*pcap\.c\.o$)")
# Functions that depend on nothing but their arguments, or that the simulated system leaves as they are.
HARMLESS = re.compile(
    r"^(mem\w+|str(c|n|l|r|s|t|e|p)\w+|stpcpy|explicit_bzero|v?snprintf|__(mem|str|v?sn)\w+_chk|__isoc\d+_\w+"
    r"|sig(fill|empty|add)set|pthread_(cond|mutex)?attr_\w+|pthread_(once|atfork|setcancelstate)"
    r"|qsort|madvise|geteuid|fgetxattr|getaddrinfo|freeaddrinfo|gai_strerror|inet_ntop|inet_pton"
    r"|stderr|__errno_location|__tls_get_addr|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__cpu_\w+"
    r"|__(asan|ubsan|tsan|sanitizer|gcov|llvm)_\w+|mangle_path|sml_\w+|sim_\w+)$")
MEMBERS_OF_EACH = ("core", "quant", "ctl", "engine", "aggd", "process", "meet", "lib")


def link_command(build, target):
    ninja = shutil.which("ninja") or shutil.which("samu") or "ninja"
    path = os.path.relpath(os.path.realpath(target), os.path.realpath(build))
    out = subprocess.run([ninja, "-C", build, "-t", "commands", "-s", path], text=True, check=True,
                         stdout=subprocess.PIPE).stdout
    return shlex.split(out.strip().splitlines()[-1])


def linked_objects(build, target):
    """{"core/x.c.o": (archive or file, member)} of what goes into the target, and the names that --wrap hides."""
    command = link_command(build, target)
    with tempfile.TemporaryDirectory() as folder:
        command[command.index("-o") + 1] = os.path.join(folder, "again")
        out = subprocess.run(command + ["-Wl,--trace"], cwd=build, text=True, check=True,
                             stdout=subprocess.PIPE).stdout
    objects = {}
    for line in out.splitlines():
        match = OBJECT.search(line.strip())
        if match:
            folder, name = match.groups()
            objects[f"{folder}/{name}"] = line.strip()
    wrapped = {arg.split("=", 2)[1] for arg in command if arg.startswith("-Wl,--wrap=")}
    return objects, wrapped


def path_of(build, entry):
    """The file of an object, of a thin archive's member too."""
    match = re.match(r"(.*\.a)\((.*)\)$", entry)
    path = os.path.join(os.path.dirname(match.group(1)), match.group(1).rsplit("/", 1)[-1] + ".p",
                        os.path.basename(match.group(2))) if match else entry
    return os.path.realpath(os.path.join(build, path))


def asks_for(path):
    symbols = subprocess.run(["nm", "-u", "--format=posix", path], text=True, check=True,
                             stdout=subprocess.PIPE).stdout
    return {line.split()[0].split("@")[0] for line in symbols.splitlines()}


def main():
    build, simulator, products = sys.argv[1], sys.argv[2], sys.argv[3:]
    simulated, wrapped = linked_objects(build, simulator)
    problems = {"same_objects": [], "nothing_missing": [], "system_is_simulated": []}
    shipped = {}
    for product in products:
        shipped.update(linked_objects(build, product)[0])
    for name, entry in sorted(shipped.items()):
        if REPLACED.match(name):
            continue
        if name not in simulated:
            problems["nothing_missing"].append(f"{name} of the product is not in the simulator")
        elif path_of(build, simulated[name]) != path_of(build, entry):
            problems["same_objects"].append(f"{name}: {simulated[name]} in the simulator, {entry} in the product")
    for name in sorted(set(simulated) - set(shipped) - ONLOOKERS):
        problems["same_objects"].append(f"{name} is in the simulator only")
    for folder in MEMBERS_OF_EACH:
        if not any(name.startswith(folder + "/") and name in simulated for name in shipped):
            problems["nothing_missing"].append(f"no object of {folder} was found: the check sees nothing")
    for name, entry in sorted(simulated.items()):
        if UNREACHED.match(name):
            continue
        for symbol in sorted(asks_for(path_of(build, entry)) - wrapped):
            if not HARMLESS.match(symbol):
                problems["system_is_simulated"].append(f"{name} asks the real system for {symbol}")
    print(f"1..{len(problems)}")
    for number, (what, found) in enumerate(problems.items(), 1):
        print(f"{'not ok' if found else 'ok'} {number} - {what}")
        for problem in found:
            print(f"# {problem}")
    ours = ", ".join(sorted(name for name in wrapped if name.startswith("sml_")))
    print(f"# our own functions that are replaced or looked at: {ours}")
    print(f"# {len(simulated)} objects in the simulator, {len(shipped)} in the products, {len(wrapped)} functions simulated")
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
