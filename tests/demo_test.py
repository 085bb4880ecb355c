#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The demo, the trainings and the network bed: that they work, and that they leave nothing behind. SML_SOAK=1
interrupts the demo at many more moments."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import tap

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DEMO, TRAINING, NETBED = (os.path.join(ROOT, path) for path in ("demo/run", "demo/training", "bench/netbed"))
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
OURS = re.compile(r"sml-|switchml|torch")
WITHOUT_END = 2000  # steps: minutes. A rank holds the images of all of them, so no more
os.environ["SML_DEMO_TEST_IMAGES"] = "500"  # the accuracy is computed, nobody asks how good it is

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench"))
import netbed  # pylint: disable=wrong-import-position  # bench/netbed.py


def need_torch():
    find = "import importlib.util as u; raise SystemExit(not getattr(u.find_spec('torch'), 'origin', None))"  # to import it takes seconds
    if subprocess.run([PYTHON, "-P", "-c", find], check=False).returncode != 0:
        raise tap.Skip("PyTorch is not installed (Debian: python3-torch)")
    if not os.path.isdir("/usr/share/datasets/fashion-mnist"):
        raise tap.Skip("Fashion-MNIST is not installed (Debian: dataset-fashion-mnist)")


def need_namespaces():
    reason = netbed.why_unavailable()
    if reason:
        raise tap.Skip(reason)


def marked_processes(marker):
    """The processes, wherever they are now, that inherited this mark. Ports end with the processes that
    hold them, and with their namespaces."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                if marker.encode() in environ.read():
                    found.append((int(pid), cmdline.read().replace(b"\0", b" ").decode()))
        except OSError:
            pass
    return found


def traces(pid):
    """Namespaces of this run of the demo, and our kind of files in shared places."""
    namespaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    files = [os.path.join(folder, name) for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)
             if OURS.search(name) and os.lstat(os.path.join(folder, name)).st_uid == os.getuid()]
    return {name for name in namespaces if name.startswith(f"sml-p{pid}-")}, set(files)


def start_demo(marker, *arguments, **more):
    environment = {**os.environ, "SML_DEMO_TEST": marker, **more}
    return subprocess.Popen([PYTHON, DEMO, *arguments], env=environment, stdin=subprocess.DEVNULL, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def interrupt_at(moment_s, numbers, *arguments):
    """Starts the demo, interrupts it, and looks for what it left."""
    marker = uuid.uuid4().hex
    files_before = traces(0)[1]
    process = start_demo(marker, "--workers", "2", "--steps", str(WITHOUT_END), "--batch", "1", *arguments)
    time.sleep(moment_s)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    told = f"at {moment_s:.2f} s: exit {process.returncode}\n{out[-800:]}\n{err[-2000:]}"
    # Before the demo has its handlers, Python's own answer to the signal is as good.
    assert process.returncode in (128 + numbers[0], -numbers[0], 1 if moment_s < 1 else 130), told
    assert time.monotonic() - began < 30, told
    namespaces, files = traces(process.pid)
    assert not namespaces, f"{namespaces} {told}"
    left = marked_processes(marker)
    assert not left, f"{left} {told}"  # and so no port of theirs
    files = {name for name in files - files_before if str(process.pid) in name or "switchml-bench" not in name}
    assert not [name for name in files if os.path.exists(name) and "torch_" in name], f"{files} {told}"


def test_demo_on_loopback():
    need_torch()
    marker = uuid.uuid4().hex
    process = start_demo(marker, "--loopback", "--workers", "2", "--steps", "4", "--batch", "16",
                         SML_DEMO_TEST_WIDTH="64")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert "nothing is to be gained" in out and re.search(r"test accuracy +0\.\d+ +0\.\d+", out), out
    assert re.search(r"hold the same parameters +yes +yes", out), out
    assert not marked_processes(marker)


def test_trainings():
    """Both backends, in little; a second run has nothing left to do."""
    need_torch()
    with tempfile.TemporaryDirectory(prefix="switchml-trainings-") as folder:
        def run(*more):
            return subprocess.run([PYTHON, TRAINING, "--loopback", "--workers", "2", "--model", "cnn", "--steps", "4",
                                   "--seeds", "1", "--output", folder, *more], capture_output=True, text=True,
                                  check=False, timeout=240)
        both = run()
        assert both.returncode == 0, both
        assert all(f"cnn  seed 1  {name:>8}  step 4/4" in both.stdout for name in ("SwitchML", "Gloo")), both
        again = run()
        assert again.returncode == 0 and "step 4/4" not in again.stdout, again
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            ours, theirs = json.load(file)
        assert all(rank["offloaded_calls"] >= 4 and rank["fallback_calls"] == 0 for rank in ours["ranks"]), ours
        assert len({rank["digest"] for rank in ours["ranks"]}) == len({rank["digest"] for rank in theirs["ranks"]}) == 1
        assert len(ours["curve"]) == len(theirs["curve"]) == 2 and ours["curve"][-1]["step"] == 4, ours
        assert abs(ours["curve"][-1]["loss"] - theirs["curve"][-1]["loss"]) < 1e-3, (ours, theirs)
        assert "Gloo's time over SwitchML's" in both.stdout, both
        assert not os.path.isdir("/usr/share/doc/python3-matplotlib") or os.path.exists(
            os.path.join(folder, "cnn-loopback.png")), os.listdir(folder)


def test_demo_refuses_nonsense():
    for arguments in (["--workers", "1"], ["--steps", "0", "--workers", "0"], ["--unknown"]):
        result = subprocess.run([PYTHON, DEMO, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert result.returncode == 2 and "error" in result.stderr, result


def test_interrupted_demo_leaves_nothing():
    need_torch()
    need_namespaces()
    is_soak = bool(os.environ.get("SML_SOAK"))
    moments = random.Random(11)
    interrupt_at(0.5 + moments.random(), [signal.SIGINT])                     # while the bed is made
    interrupt_at(2 + 2 * moments.random(), [signal.SIGINT, signal.SIGINT])    # while workers start; twice
    interrupt_at(5 + 2 * moments.random(), [signal.SIGTERM])                  # while they join or train
    for _ in range(20 if is_soak else 0):
        interrupt_at(moments.random() ** 2 * 15, [moments.choice([signal.SIGINT, signal.SIGTERM])])


def test_interrupted_demo_on_loopback_leaves_nothing():
    need_torch()
    interrupt_at(4, [signal.SIGINT], "--loopback")


def test_netbed_up_exec_down():
    need_namespaces()
    name = f"test{os.getpid()}"

    def call(*arguments):
        return subprocess.run([PYTHON, NETBED, *arguments], capture_output=True, text=True, check=False, timeout=60)
    try:
        assert call("up", "--name", name, "--workers", "2", "--mtu", "9000").returncode == 0
        again = call("up", "--name", name, "--workers", "2")
        assert again.returncode == 1 and "is up already" in again.stderr, again
        sizes = call("exec", "--name", name, "1", "ip", "-br", "addr", "show", "eth0")
        assert sizes.returncode == 0 and netbed.Netbed.worker_address(1) in sizes.stdout, sizes
        sleeper = subprocess.Popen([PYTHON, NETBED, "exec", "--name", name, "agg", "sleep", "1000"])
        time.sleep(0.5)
        assert call("down", "--name", name).returncode == 0
        assert sleeper.wait(20) != 0
        assert call("down", "--name", name).returncode == 0
        missing = call("exec", "--name", name, "0", "true")
        assert missing.returncode == 1 and "there is no" in missing.stderr, missing
        assert not [each for each in os.listdir("/run/netns") if name in each]
    finally:
        netbed.remove(name)
    for arguments in (["--workers", "0"], ["--workers", "2", "--mtu", "9"], ["--workers", "2", "--name", "a b"],
                      ["--workers", "2", "--rate", "fast", "--name", name]):
        refused = call("up", *arguments)
        assert refused.returncode == 1 and refused.stderr.startswith("netbed: "), refused
        assert not [each for each in os.listdir("/run/netns") if name in each]


if __name__ == "__main__":
    tap.main(globals())
