# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other before there is a job, so that all of them decide alike."""
import ctypes
import json
import os
import time
import warnings

from . import gloo
from .api import ALLGATHER, JobOptions, SML_MAX_NAMED_RANKS
from .library import SwitchMLError
from .process import Process

_SETTLE_S = 5
_ON, _OFF = ("1", "yes", "true", "on"), ("0", "no", "false", "off")


class Exchange:
    """All-gather of small byte strings over the group's store. It polls: a blocking wait would hold the
    lock of the store's only connection, and with it every other user of the store in this process."""

    def __init__(self, store, rank, size, timeout_s):
        self.store, self.rank, self.size, self.timeout_s = store, rank, size, timeout_s
        self.num_rounds = 0
        self.is_cancelled = False
        self.error = None

    def gather(self, data):
        try:
            return self._gather(data)
        except SwitchMLError:
            raise
        except RuntimeError as problem:  # torch's of a store
            text = (f"the store of this job does not answer ({problem}): the process that has it, rank 0 or the "
                    "launcher on its host, has ended or is stopped; see there why, and start all ranks again")
            raise SwitchMLError(text) from problem

    def _gather(self, data):
        base = f"{self.num_rounds}/"
        self.num_rounds += 1
        self.store.set(base + str(self.rank), data.hex())
        self.store.add(f"{base}here{self.rank}", 1)
        self.store.add(base + "n", 1)
        deadline, pause_s = time.monotonic() + self.timeout_s, 0.0005
        while self.store.add(base + "n", 0) < self.size:
            if self.is_cancelled:
                raise SwitchMLError("the process is ending")
            if time.monotonic() > deadline:
                raise self._someone_is_missing(base)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        gathered = [bytes.fromhex(self.store.get(base + str(rank)).decode()) for rank in range(self.size)]
        self.store.add(base + "read", 1)
        return gathered

    def _someone_is_missing(self, base):
        missing = [rank for rank in range(self.size) if self.store.add(f"{base}here{rank}", 0) == 0][:SML_MAX_NAMED_RANKS]
        who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        return SwitchMLError(f"{who} of the group's {self.size} did not make this call within the group's timeout of "
                             f"{self.timeout_s:g} s; do all ranks make the same collective calls?", "timed out",
                             missing)

    def settle(self):
        """Before an error that may end this process, and with it the store: lets the others read, too."""
        deadline = time.monotonic() + _SETTLE_S
        try:
            while (self.store.add(f"{self.num_rounds - 1}/read", 0) < self.size and time.monotonic() < deadline):
                time.sleep(0.002)
        except RuntimeError:
            pass  # the store is gone already

    def callback(self):
        """This exchange as switchml.h's sml_allgather_fn."""
        def allgather(_user, data_in, data_out, num_bytes):
            try:
                gathered = self.gather(ctypes.string_at(data_in, num_bytes))
                if any(len(data) != num_bytes for data in gathered):
                    raise SwitchMLError("ranks sent different amounts in the exchange before the join; "
                                        "do all ranks run the same version of SwitchML?")
                ctypes.memmove(data_out, b"".join(gathered), num_bytes * self.size)
                return 0
            except Exception as error:  # pylint: disable=broad-except  # must not leave through C
                self.error = error
                return 1
        return ALLGATHER(allgather)


def agree(exchange):
    """The same on all ranks of a group: why it does not offload, or ""; whether it must; whether float64, too; and the
    ranks' addresses on the way to rank 0's host."""
    mine = {"disable": False, "require": True, "one_way": True, "problem": "",
            "aggregator": os.environ.get("SWITCHML_AGGREGATOR", ""), "lease": os.environ.get("SWITCHML_LEASE", ""),
            "bits": [os.environ.get(name, "") for name in ("SWITCHML_FLOAT_BITS", "SWITCHML_FLOAT64_BITS", "SWITCHML_EXACT")],
            "address": gloo.own_address(os.environ.get("MASTER_ADDR", "localhost"))}
    try:
        mine["require"] = is_set("SWITCHML_REQUIRE")  # a word that is neither on nor off is required to be mended
        mine["disable"], mine["one_way"] = is_set("SWITCHML_DISABLE"), is_set("SWITCHML_ONE_WAY", "1")
        Process.load()
    except SwitchMLError as error:
        mine["problem"] = str(error)
    ranks = [json.loads(data) for data in exchange.gather(json.dumps(mine).encode())]
    is_required, why_off = any(rank["require"] for rank in ranks), _why_off(ranks)
    if why_off and is_required:
        exchange.settle()
        raise SwitchMLError(f"SWITCHML_REQUIRE=1, but {why_off}")
    if why_off and exchange.rank == 0 and not any(rank["disable"] for rank in ranks):
        warnings.warn(f"switchml: all-reduce goes through Gloo: {why_off}", RuntimeWarning, stacklevel=4)
    has_float64 = ranks[0]["bits"][1] not in ("", "0") or ranks[0]["bits"][2] == "1"
    return why_off, is_required, has_float64, all(rank["one_way"] for rank in ranks), [rank["address"] for rank in ranks]


def _why_off(ranks):
    def those(test):
        found = [str(number) for number, rank in enumerate(ranks) if test(rank)]
        return "all ranks" if len(found) == len(ranks) else "rank " + ", ".join(found[:SML_MAX_NAMED_RANKS])
    if any(rank["disable"] for rank in ranks):
        return f"SWITCHML_DISABLE=1 is set on {those(lambda rank: rank['disable'])}"
    for number, rank in enumerate(ranks):
        if rank["problem"]:
            return f"on rank {number} {rank['problem']}"
    for name, setting in (("SWITCHML_AGGREGATOR", lambda rank: rank["aggregator"]),
                          ("SWITCHML_LEASE", lambda rank: rank["lease"]),
                          ("SWITCHML_FLOAT_BITS", lambda rank: rank["bits"][0]),
                          ("SWITCHML_FLOAT64_BITS", lambda rank: rank["bits"][1]),
                          ("SWITCHML_EXACT", lambda rank: rank["bits"][2])):
        if len({setting(rank) for rank in ranks}) > 1:
            others = those(lambda rank, setting=setting: setting(rank) != setting(ranks[0]))
            return f"{name} is not what it is on rank 0 on {others}; set it to the same on all ranks, or on none"
    return ""


def is_set(name, default="0"):
    text = os.environ.get(name) or default
    word = text.lower()
    if word not in _ON + _OFF:
        raise SwitchMLError(f"{name}={text}: set 1 or 0")
    return word in _ON
