# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped for 300 of every 320 ms, with real processes: how many packets come for each sum. For
tools/trust.py; in virtual time it is sim_starved_*."""
import glob
import json
import signal
import subprocess
import time

import e2e

RUN_S, PERIOD_S = 0.02, 0.32
NEEDED, AT_MOST = 4, 6  # packets for each sum of four ranks
LEAST_SUMS = 500  # the first questions are as many whatever comes then
START_S = 60


def counts(address):
    """(packets, sums) of the only job, or (0, 0)."""
    text = subprocess.run([e2e.SWITCHML, "status", "--json", address], env=e2e.environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=START_S, check=False).stdout
    jobs = json.loads(text)["jobs"] if text.strip() else []
    return (jobs[0].get("packets") or 0, jobs[0].get("sums") or 0) if jobs else (0, 0)


def processor_s(pid):
    """Seconds that threads of a process ran, exact where the clock's ticks are longer than a turn."""
    ran_ns = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path, encoding="utf-8") as file:
            ran_ns += int(file.read().split()[0])
    return ran_ns / 1e9


def packets_a_sum(num_slots, seconds):
    with e2e.Daemon("--slots", "16384") as daemon:
        settings = {"SWITCHML_SHARED_MEMORY": 0, "SWITCHML_MAX_DATAGRAM": 1472, "SWITCHML_SLOTS": num_slots}
        with e2e.workers(daemon.address, NEEDED, "--sizes", "80M", **settings) as ranks:
            e2e.wait_until(lambda: counts(daemon.address)[1] > 0, "the ranks sum", START_S)
            first, begin = counts(daemon.address), time.monotonic()
            had_s, end = processor_s(ranks[3].process.pid), begin + seconds
            while time.monotonic() < end and ranks[3].process.poll() is None:
                ranks[3].process.send_signal(signal.SIGSTOP)
                time.sleep(PERIOD_S - RUN_S)
                ranks[3].process.send_signal(signal.SIGCONT)
                time.sleep(RUN_S)
            last, passed_s = counts(daemon.address), time.monotonic() - begin
            had_s = processor_s(ranks[3].process.pid) - had_s
    num_packets, num_sums = last[0] - first[0], last[1] - first[1]
    assert num_sums >= LEAST_SUMS, f"{num_slots} slots: {num_sums} sums and {num_packets} packets in {seconds} s"
    assert num_packets <= AT_MOST * num_sums, f"{num_slots} slots: {num_packets} packets came for {num_sums} sums"
    # How much rank 3's time allows is the machine's: shown, and not asserted. The time includes that for which it makes
    # its input and checks what was summed.
    print(f"    {num_slots} slots: {num_sums} sums in {passed_s:.1f} s, in which rank 3 had a processor for {had_s:.3f} s: "
          f"{num_sums / max(had_s, 1e-3):.0f} for each second of it", flush=True)
    return {f"packets a sum, {num_slots} slots": [num_packets / num_sums]}
