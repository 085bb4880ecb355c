# SPDX-License-Identifier: Apache-2.0
"""What the ranks of torch_mixed_test.py do: a program of collectives that a seed draws.

All ranks draw the same calls (Program.draw), and each by itself how it waits for them (Program.own). A call's tensors
are Places in Memories. A memory has what each rank must have in it, computed by plain tensor functions as soon as a
call is made, and what this rank has. Both are compared when the call has ended, and as a whole whenever nothing is
under way. The first calls of a seed are the same in however long a program."""
import contextlib
import faulthandler
import os
import sys
import threading
import traceback

import torch
import torch.distributed as dist
import switchml.torch
from switchml import gloo, job

import torch_ranks
from torch_mixed_places import Base, Group

GLOOS_TYPES = [torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64]
TYPES = GLOOS_TYPES + [torch.float32, torch.float32, torch.bfloat16, torch.bool]
COUNTED = ["offloaded_calls", "fallback_calls", "failed_calls", "retransmissions"]
NUM_LOGGED = 8  # of the last calls, where one fails


def reduced(op, tensors):
    """By the functions of tensors alone."""
    dtype, count = tensors[0].dtype, len(tensors)
    if dtype is torch.bool:
        stacked = torch.stack(tensors)
        return stacked.any(0) if op in ("SUM", "MAX", "BOR") else stacked.all(0)
    if op in ("SUM", "AVG"):
        total = sum(each.double() if dtype.is_floating_point else each for each in tensors)
        return (total / count if op == "AVG" else total).to(dtype)
    combine = {"MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul, "BAND": torch.bitwise_and,
               "BOR": torch.bitwise_or}[op]
    result = tensors[0].float() if dtype in (torch.float16, torch.bfloat16) else tensors[0]
    for each in tensors[1:]:
        result = combine(result, each.to(result.dtype))
    return result.to(dtype)


class Program(Base):
    """The calls, each with what it must give."""

    def __init__(self, seed, timeout_s):
        super().__init__(seed, timeout_s)
        self.is_disabled = os.environ.get("SWITCHML_DISABLE") == "1"

    def run(self, num_calls):
        calls = {self.all_reduce: 12, self.all_reduce_coalesced: 4, self.range_of_calls: 4, self.broadcast: 8,
                 self.reduce: 6, self.reduce_scatter: 8, self.all_gather: 8, self.gather_or_scatter: 4,
                 self.all_to_all: 4, self.message: 5, self.objects: 1, self.refused: 1, self.barrier: 4,
                 self.another_group: 0.4}
        for self.number in range(num_calls):
            self.draw.choices(list(calls), list(calls.values()))[0](self.draw.choice(self.groups))
            if self.draw.random() < 0.05:
                self.rest()
        self.rest()

    def reduction(self, has_gloo=True):
        """(type, name, operation, whether SwitchML takes it) of one that SwitchML or Gloo does."""
        while True:
            dtype = self.draw.choice(TYPES)
            name = self.draw.choice(["SUM", "SUM", "SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR"])
            op, is_float = getattr(dist.ReduceOp, name), dtype.is_floating_point
            is_ours = not self.is_disabled and job.reduction_for([torch.empty(1, dtype=dtype)], op,
                                                                 dist.group.WORLD._has_float64) is not None
            is_gloos = gloo.takes(dtype) and (is_float or name != "AVG") and not (is_float and name in ("BAND", "BOR"))
            if is_ours or is_gloos and has_gloo:
                return dtype, name, op, is_ours

    def make_exact(self, places, op, ranks):
        """Fills anew what a sum of floats would have to round, and zeros of either sign."""
        for place in places:
            dtype = place.memory.dtype
            most = 2 if op == "PRODUCT" else 256 // len(ranks) if dtype is torch.bfloat16 else 256
            for rank in ranks if dtype.is_floating_point and 0 not in place.shape else ():
                values = place.right(rank).float()
                is_inexact = op in ("SUM", "AVG", "PRODUCT") and bool(
                    ((values.abs() > most) | (values != values.round())).any())
                if is_inexact or bool(((values == 0) & torch.signbit(values)).any()):
                    self.fill(place, min(most, 40))
                    break

    def all_reduce(self, group):
        dtype, name, op, is_ours = self.reduction()
        place = self.place(dtype, self.shape(0 if is_ours else 1))
        self.make_exact([place], name, group.ranks)
        self.begin(group, f"all_reduce({name})", [place], is_ours, lambda is_async: dist.all_reduce(
            place.own(), op=op, group=group.handle, async_op=is_async), lambda: self.sum_up([place], name, group))

    def all_reduce_coalesced(self, group):
        dtype, name, op, is_ours = self.reduction()
        places = self.several_apart(dtype, [self.count(0 if is_ours else 1, 1366 if index > 2 else 1 << 30)
                                            for index in range(self.draw.choice([1, 2, 3, 10, 70]))])
        self.make_exact(places, name, group.ranks)
        self.begin(group, f"all_reduce_coalesced({name})", places, is_ours, lambda is_async: dist.all_reduce_coalesced(
            [place.own() for place in places], op=op, group=group.handle, async_op=is_async),
            lambda: self.sum_up(places, name, group))

    @staticmethod
    def sum_up(places, name, group):
        for place in places:
            whole = reduced(name, [place.right(rank).clone() for rank in group.ranks])
            for rank in group.ranks:
                place.put(rank, whole)

    def range_of_calls(self, group):
        """Of one group's. What was dropped ends before; what is pending need not."""
        while self.dropped:
            self.barrier(self.dropped[0].group)
        with contextlib.ExitStack() as stack:
            if self.rank in group.ranks:
                stack.enter_context(dist.distributed_c10d._coalescing_manager(group.handle, []))
            self.is_in_range, num_calls, calls = True, self.draw.choice([1, 3, 8, 80]), [self.all_reduce] * 8
            if num_calls < 10:
                calls += [self.broadcast, self.reduce_scatter]
            for _ in range(num_calls):
                self.draw.choice(calls)(group)
            self.is_in_range = False

    def broadcast(self, group):
        dtype, root = self.draw.choice(TYPES), self.draw.choice(group.ranks)
        is_gloos = gloo.takes(dtype)
        is_ours = not self.is_disabled and (len(group.ranks) > switchml.torch._GLOO_BROADCAST or not is_gloos)
        if not is_ours and not is_gloos:
            return
        place = self.place(dtype, self.shape(0 if is_ours else 1))

        def written():
            of_root = place.right(root).clone()
            for rank in group.ranks:
                place.put(rank, of_root)
        self.begin(group, f"broadcast({root})", [place], is_ours, lambda is_async: dist.broadcast(
            place.own(), root, group=group.handle, async_op=is_async), written)

    def reduce(self, group):
        (dtype, name, op, is_ours), root = self.reduction(), self.draw.choice(group.ranks)
        place = self.place(dtype, self.shape(0 if is_ours else 1))
        self.make_exact([place], name, group.ranks)

        def written():
            place.put(root, reduced(name, [place.right(rank).clone() for rank in group.ranks]))
            if not is_ours and self.rank in group.ranks and self.rank != root:  # Gloo leaves anything there
                place.own().copy_(place.right(self.rank))
        self.begin(group, f"reduce({name}, {root})", [place], is_ours, lambda is_async: dist.reduce(
            place.own(), root, op=op, group=group.handle, async_op=is_async), written, must_wait=not is_ours)

    def reduce_scatter(self, group):
        """Of a list of tensors, which need not have one length, or of one, also in place."""
        if self.is_disabled:
            return
        (dtype, name, op, is_ours), ranks, is_list = self.reduction(False), group.ranks, self.draw.random() < 0.4
        if is_list:
            counts = [self.count(0, 20_001)] * len(ranks)
            if self.draw.random() < 0.5:
                counts = [self.count(0, 20_001) for _ in ranks]
            given = [self.place(dtype, (count,)) for count in counts]
            self.make_exact(given, name, ranks)
            outputs = [self.place(dtype, (count,)) if self.draw.random() < 0.5 else self.apart(dtype, count, given)
                       for count in counts]
        else:
            count, kind = self.count(0, 70_001), self.draw.random()
            given = [self.place(dtype, (count * len(ranks),), may_be_strided=self.draw.random() < 0.3)]
            counts = [count] * len(ranks)
            self.make_exact(given, name, ranks)
            output = self.apart(dtype, count, given) if kind < 0.4 else self.place(dtype, (count,))
            if kind > 0.6:  # in place
                output.memory = given[0].memory
                output.layouts = list(given[0].layouts)
                for index, rank in enumerate(ranks):
                    output.layouts[rank] = given[0].part(index, ranks, count)
            outputs = [output] * len(ranks)

        def written():
            wholes = [torch.cat([each.right(rank).reshape(-1) for each in given]) for rank in ranks]
            for rank, part, output in zip(ranks, reduced(name, wholes).split(counts), outputs):
                output.put(rank, part)

        def call(is_async):
            output, inputs = outputs[ranks.index(self.rank)].own(), [each.own() for each in given]
            if is_list:
                return dist.reduce_scatter(output, inputs, op=op, group=group.handle, async_op=is_async)
            return dist.reduce_scatter_tensor(output, inputs[0], op=op, group=group.handle, async_op=is_async)
        self.begin(group, f"reduce_scatter{'' if is_list else '_tensor'}({name}, {counts})",
                   given + list(dict.fromkeys(outputs)), is_ours, call, written)

    def all_gather(self, group):
        """Into a list of tensors or into one, also in place."""
        is_ours, ranks = dist.group.WORLD._has_one_way and not self.is_disabled, group.ranks
        dtype, is_list = self.draw.choice(TYPES if is_ours else GLOOS_TYPES), self.draw.random() < 0.5 or not is_ours
        count, kind = self.count(0 if is_ours else 1, 70_001), self.draw.random() if is_ours else 0.5
        if is_list:
            outputs = self.several_apart(dtype, [count] * len(ranks))
        else:
            outputs = [self.place(dtype, (count * len(ranks),), may_be_strided=self.draw.random() < 0.3)]
        given = self.place(dtype, (count,)) if kind < 0.3 else self.apart(dtype, count, outputs)
        if kind > 0.6 and all(each.memory is outputs[0].memory for each in outputs):  # in place
            given.memory, given.layouts = outputs[0].memory, list(outputs[0].layouts)
            for index, rank in enumerate(ranks):
                given.layouts[rank] = outputs[index].layouts[rank] if is_list else outputs[0].part(index, ranks, count)

        def written():
            parts = [given.right(rank).clone() for rank in ranks]
            for rank in ranks:
                for output, part in zip(outputs, parts if is_list else [torch.cat(parts)]):
                    output.put(rank, part)

        def call(is_async):
            tensors = [each.own() for each in outputs]
            if is_list:
                return dist.all_gather(tensors, given.own(), group=group.handle, async_op=is_async)
            return dist.all_gather_into_tensor(tensors[0], given.own(), group=group.handle, async_op=is_async)
        self.begin(group, f"all_gather{'' if is_list else '_into_tensor'}", [*outputs, given], is_ours, call, written)

    def gather_or_scatter(self, group):
        dtype, ranks, root = self.draw.choice(GLOOS_TYPES), group.ranks, self.draw.choice(group.ranks)
        count, is_gather = self.count(1, 20_001), self.draw.random() < 0.5
        many = self.several_apart(dtype, [count] * len(ranks))
        one = self.apart(dtype, count, many)

        def written():
            ones, parts = [one.right(rank).clone() for rank in ranks], [each.right(root).clone() for each in many]
            for rank, own, place, part in zip(ranks, ones, many, parts):
                if is_gather:
                    place.put(root, own)
                else:
                    one.put(rank, part)

        def call(is_async):
            tensors = [each.own() for each in many] if self.rank == root else None
            function = dist.gather if is_gather else dist.scatter
            return function(one.own(), tensors, root, group=group.handle, async_op=is_async)
        self.begin(group, f"{'gather' if is_gather else 'scatter'}({root})", [one, *many], False, call, written)

    def all_to_all(self, group):
        dtype, ranks, is_single = self.draw.choice(GLOOS_TYPES), group.ranks, self.draw.random() < 0.5
        sent = [[self.count(1, 5000)] * len(ranks)] * len(ranks)  # counts: [from][to]
        if self.draw.random() < 0.5:
            sent = [[self.count(1, 1000) for _ in ranks] for _ in ranks]
        got = [list(column) for column in zip(*sent)]
        room = self.apart(dtype, max(map(sum, sent)), [], may_be_strided=False)
        output = self.apart(dtype, max(map(sum, got)), [room], may_be_strided=False)

        def written():
            parts = [room.right(rank)[:sum(counts)].clone().split(counts) for rank, counts in zip(ranks, sent)]
            for index, rank in enumerate(ranks):
                output.right(rank)[:sum(got[index])].copy_(torch.cat([each[index] for each in parts]))

        def call(is_async):
            counts, out_counts = sent[ranks.index(self.rank)], got[ranks.index(self.rank)]
            given, result = room.own()[:sum(counts)], output.own()[:sum(out_counts)]
            if is_single:
                return dist.all_to_all_single(result, given, out_counts, counts, group=group.handle, async_op=is_async)
            return dist.all_to_all(list(result.split(out_counts)), list(given.split(counts)), group=group.handle,
                                   async_op=is_async)
        self.begin(group, f"all_to_all{'_single' * is_single}", [room, output], False, call, written)

    def message(self, group):
        if len(group.ranks) < 2:
            return
        (source, target), dtype, count = self.draw.sample(group.ranks, 2), self.draw.choice(TYPES), self.count(1)
        sent = self.place(dtype, (count,), may_be_strided=False)
        got = self.apart(dtype, count, [sent], may_be_strided=False)

        def call(is_async):
            if self.rank == source:
                return (dist.isend if is_async else dist.send)(sent.own(), target, group=group.handle)
            return (dist.irecv if is_async else dist.recv)(got.own(), source, group=group.handle)
        self.begin(Group(group.handle, [source, target]), f"message({source}, {target})", [sent, got], False, call,
                   lambda: got.put(target, sent.right(source).clone()), is_message=True)

    def objects(self, group):
        kind, root = self.draw.randrange(4 if len(group.ranks) == self.size else 3), self.draw.choice(group.ranks)
        self.note(f"objects {kind}, group {group.ranks}, root {root}")
        if self.rank not in group.ranks:
            return
        values = [{"rank": rank, "long": "x" * (rank * 100)} for rank in group.ranks]
        mine, of_root, got = values[group.ranks.index(self.rank)], values[group.ranks.index(root)], [None] * len(values)
        if kind == 0:
            dist.all_gather_object(got, mine, group=group.handle)
            assert got == values, got
        elif kind == 1:
            got = [mine, self.number] if self.rank == root else [None, None]
            dist.broadcast_object_list(got, root, group=group.handle)
            assert got == [of_root, self.number], got
        elif kind == 2:
            dist.gather_object(mine, got if self.rank == root else None, root, group=group.handle)
            assert self.rank != root or got == values, got
        else:
            got = [None]
            dist.scatter_object_list(got, values if self.rank == root else None, root, group=group.handle)
            assert got == [mine], got

    def refused(self, group):
        """What neither does."""
        dtype, name = self.draw.choice([(torch.bfloat16, "PRODUCT"), (torch.int32, "AVG"), (torch.float32, "BAND")])
        if self.rank in group.ranks:
            text = torch_ranks.error_text(dist.all_reduce, torch.ones(5, dtype=dtype), op=getattr(dist.ReduceOp, name),
                                          group=group.handle)
            assert "switchml: " in text, text


def end(program, show):
    """Of a rank that failed, at once: an interpreter's end waits for what the others do not do any more."""
    show()
    print("\n".join(program.log[-NUM_LOGGED:]), file=sys.stderr, flush=True)
    os._exit(3)


def run(seed, num_calls, timeout_s, limit_s):
    """One rank's program; what its groups counted. limit_s: then it hangs."""
    if os.environ.get("CASE_FEW_OF_GLOO") == "1":  # barriers and broadcasts of small groups go through SwitchML, too
        switchml.torch._GLOO_BARRIER = switchml.torch._GLOO_BROADCAST = 1
    torch_ranks.start(timeout_s=timeout_s)
    program = Program(seed, timeout_s)
    watch = threading.Timer(limit_s, end, [program, faulthandler.dump_traceback])
    watch.daemon = True
    watch.start()
    try:
        program.run(num_calls)
    except Exception:  # pylint: disable=broad-except
        end(program, traceback.print_exc)
    watch.cancel()
    watch.join()
    stats = [switchml.torch.stats(group.handle) for group in program.groups if program.rank in group.ranks]
    return {name: sum(each.get(name, 0) for each in stats) for name in COUNTED}
