# SPDX-License-Identifier: Apache-2.0
"""One run of the benchmarks: rounds interleaved over the contenders, a row for each, and the report, written as they come."""
import csv
import json
import os
import statistics
import subprocess
import sys
import time

import machine
import netbed
import report
from contenders import SwitchML
from places import BenchError

# Others may keep this share of a core busy before a round is measured again, and so many more rounds are tried.
MAX_FOREIGN_CORES, MAX_REPEATS = 0.3, 2
FAILURES = (BenchError, netbed.NetbedError, subprocess.SubprocessError, OSError, ValueError, KeyError, IndexError)


class Session:
    expected = FAILURES  # of which one ends a measurement, not the run

    def __init__(self, options, tools, processes, facts):
        self.options, self.tools, self.processes, self.facts = options, tools, processes, facts
        self.rows, self.pilots, self.failures, self.notes = [], [], [], []
        self.scenario, self.started_s, self.is_over = "", time.monotonic(), False

    # -- what is chosen ------------------------------------------------------------------------------

    def pick(self, name, full, quick):
        """What --n, --mtu or --sizes said, else the values of the full or of the quick form."""
        return getattr(self.options, name, None) or (quick if self.options.quick else full)

    def rounds(self):
        return self.options.rounds or (2 if self.options.quick else 5)

    def wants(self, family):
        return family in self.options.peers

    # -- what is said --------------------------------------------------------------------------------

    def say(self, text):
        print(f"[{time.monotonic() - self.started_s:5.0f} s] {self.scenario}: {text}", file=sys.stderr, flush=True)

    def fail(self, what, error):
        text = str(error) or type(error).__name__
        self.failures.append({"scenario": self.scenario, "what": what, "error": text})
        self.say(f"{what}: FAILED: {text}")
        self.save()

    def note(self, text):
        """Something that was not measured, and why."""
        self.notes.append({"scenario": self.scenario, "note": text})
        self.say(text)

    # -- measuring -----------------------------------------------------------------------------------

    def best(self, place, candidates, runs, type_name="float32"):
        """The fastest of some settings of a peer, by one all-reduce of each; None if none works."""
        timed = []
        for each in candidates:
            try:
                each.start(place)
                results = each.round(runs, type_name)
                time_s = sum(result["median_s"] / result["bytes"] for result in results)
                timed.append((time_s, len(timed), each))
                self.pilots.append({"scenario": self.scenario, "contender": each.title, "ranks": each.num_ranks,
                                    "type": type_name, "times": {r["bytes"]: r["median_s"] for r in results}})
            except FAILURES as error:
                self.note(f"{each.title} was tried and failed: {error}")
            finally:
                self._stop(each)
        return min(timed)[2] if timed else None

    def _stop(self, contender):
        try:
            contender.stop()
        except FAILURES as error:
            self.fail(contender.title, error)

    def _start(self, place, contenders):
        started = []
        for each in contenders:
            try:
                each.start(place)
                started.append(each)
            except FAILURES as error:
                self.fail(each.title, error)
                self._stop(each)
        return started

    def _round(self, contender, runs, type_name):
        """A round during which the machine was ours, or the last of those that were tried."""
        for repeat in range(MAX_REPEATS + 1):
            with machine.ForeignLoad(self.processes.pids, time.monotonic) as load:
                results = contender.round(runs, type_name)
                machine.reap_orphans([each.pid for each in self.processes.running], time.monotonic() + 1)
            if load.cores <= MAX_FOREIGN_CORES or repeat == MAX_REPEATS or self.options.quick:
                break
        for result in results:
            result["foreign_cores"], result["interrupt_cores"] = load.cores, load.interrupt_cores
        return results

    def measure(self, place, contenders, runs, case, type_name="float32"):
        """Interleaved rounds. case: what the rows have in common; bound(row): gives a row its bound. The rows."""
        samples = {}
        running = self._start(place, contenders)
        try:
            for number in range(self.rounds()):
                for each in list(running):
                    self.say(f"n {each.num_ranks}  round {number + 1}/{self.rounds()}  {each.title}")
                    try:
                        for result in self._round(each, runs, type_name):
                            samples.setdefault((each, result["bytes"]), []).append(result)
                    except FAILURES as error:
                        self.fail(f"{each.title}, n {each.num_ranks}", error)
                        running.remove(each)
                        self._stop(each)
        finally:
            for each in running:
                self._stop(each)
        rows = [self._row(each, size, results, case, type_name) for (each, size), results in samples.items()]
        self.add(rows)
        return rows

    def _row(self, contender, size, results, case, type_name):
        medians = [result["median_s"] for result in results]
        row = {"scenario": self.scenario, "contender": contender.title, "family": contender.family,
               "ranks": contender.num_ranks, "bytes": size, "type": type_name, **case, "command": contender.command,
               "rounds": len(medians), "time_s": statistics.median(medians), "fastest_s": min(medians),
               "slowest_s": max(medians)}
        for key in sorted({key for result in results for key in result} - {"bytes", "median_s"}):
            values = [result[key] for result in results if result.get(key) is not None]
            row[key] = statistics.median(values) if values else None
        row["algbw_GBps"] = size / row["time_s"] / 1e9
        row["busbw_GBps"] = row["algbw_GBps"] * 2 * (contender.num_ranks - 1) / contender.num_ranks
        row["cpu_s_per_GB"] = row["cpu_s"] / size * 1e9
        row["is_starved"] = row["foreign_cores"] > MAX_FOREIGN_CORES
        return row

    def add(self, rows):
        """Takes rows, compared with ours of the same case, and writes what there is by now."""
        ours = {self._key(row): row["time_s"] for row in reversed(rows)
                if row["contender"] == SwitchML.title and row.get("time_s")}
        for row in rows:
            if row.get("time_s") and self._key(row) in ours:
                row["times_ours"] = row["time_s"] / ours[self._key(row)]
        self.rows += rows
        self.save()

    @staticmethod
    def _key(row):
        return tuple(row.get(key) for key in ("scenario", "collective", "ranks", "bytes", "type", "mtu", "aggregator_rate"))

    # -- writing -------------------------------------------------------------------------------------

    def as_json(self):
        return {"machine": self.facts, "quick": self.options.quick, "is_over": self.is_over, "results": self.rows, "pilots": self.pilots,
                "failures": self.failures, "notes": self.notes}

    def save(self):
        folder = self.options.output
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "results.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.as_json(), file, indent=1)
        os.replace(path + ".new", path)
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        with open(os.path.join(folder, "results.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        report.write(folder, self.as_json())
