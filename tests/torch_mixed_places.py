# SPDX-License-Identifier: Apache-2.0
"""For the ranks of torch_mixed_test.py: where the tensors of their programs lie, what must be there, and how calls
begin and end, which torch_mixed_calls.py makes."""
import collections
import datetime
import math
import os
import random
import time

import torch
import torch.distributed as dist

COUNTS = [0, 1, 2, 3, 5, 64, 127, 128, 129, 255, 256, 257, 1000, 1365, 1366, 4096, 5000, 20_001, 70_001, 300_007]
WEIGHTS = [2, 4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 6, 2, 2, 3, 5, 2, 1, 0.4]

Group = collections.namedtuple("Group", "handle ranks")


def made(dtype, count, most, rank, key):
    """Small whole numbers, others on each rank."""
    numbers = (torch.arange(count) * 7919 + (rank + 1) * 104_729 * (key + 1)) % 1_000_003 % (2 * most + 1) - most
    return numbers > 0 if dtype is torch.bool else numbers.to(dtype)


class Memory:
    """What all ranks must have in it, and what this one has."""

    def __init__(self, dtype, count, size, rank):
        self.dtype, self.count, self.rank = dtype, count, rank
        self.right = [made(dtype, count, 50, other, 17) for other in range(size)]
        self.own = self.right[rank].clone()


class Place:
    """A tensor in a memory. Where in it, and with which strides, may differ between ranks."""

    def __init__(self, memory, shape, layouts):
        self.memory, self.shape, self.layouts = memory, shape, layouts  # (offset, strides) of each rank

    def of(self, base, rank):
        offset, strides = self.layouts[rank]
        return base.as_strided(self.shape, strides, offset)

    def own(self):
        return self.of(self.memory.own, self.memory.rank)

    def right(self, rank):
        return self.of(self.memory.right[rank], rank)

    def put(self, rank, flat):
        """That rank must have this there now."""
        self.right(rank).copy_(flat.reshape(self.shape))

    def part(self, index, ranks, count):
        """(offset, strides) of what its rank has there of as many elements as each of the ranks."""
        offset, strides = self.layouts[ranks[index]]
        return offset + index * count * strides[0], strides

    def meets(self, other, rank):
        """Whether both have an element in common there."""
        if self.memory is not other.memory or 0 in self.shape or 0 in other.shape:
            return False
        (low, high), (its_low, its_high) = self._bounds(rank), other._bounds(rank)
        if low > its_high or its_low > high:
            return False
        marks = torch.zeros(self.memory.count, dtype=torch.bool)
        self.of(marks, rank).fill_(True)
        return bool(other.of(marks, rank).any())

    def _bounds(self, rank):
        offset, strides = self.layouts[rank]
        return offset, offset + sum((length - 1) * stride for length, stride in zip(self.shape, strides))


class Begun:
    """A call that has not ended, as far as this rank knows."""

    def __init__(self, number, what, group, places, is_ours, is_in_range=False, is_message=False):
        self.number, self.what, self.group, self.places, self.is_ours = number, what, group, places, is_ours
        self.is_in_range, self.is_message, self.work = is_in_range, is_message, None

    def may_be_followed_by(self, new):
        """On the same memory without a wait: SwitchML keeps the order of a group's calls, but for those in ranges."""
        return self.is_ours and self.group is new.group and not new.is_in_range and not new.is_message

    def meets(self, new, ranks):
        return any(one.meets(other, rank) for one in self.places for other in new.places for rank in ranks)


def same(own, right, where):
    ours, theirs = (torch.empty(each.numel(), dtype=each.dtype).copy_(each.reshape(-1)).view(torch.uint8)
                    for each in (own, right))
    if not torch.equal(ours, theirs):
        wrong = (own != right).reshape(-1).nonzero().reshape(-1)
        ours, theirs = own.reshape(-1)[wrong[:4]].tolist(), right.reshape(-1)[wrong[:4]].tolist()
        raise AssertionError(f"{len(wrong)} of {right.numel()} elements are wrong {where}: at {wrong[:4].tolist()} "
                             f"{ours}, not {theirs}")


class Base:
    """Where tensors lie, and how calls begin and end."""

    def __init__(self, seed, timeout_s):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.draw, self.own = random.Random(seed), random.Random(f"{seed} {self.rank}")
        self.memories, self.pending, self.dropped = [], [], []  # dropped: calls whose handles were, on all ranks
        self.number, self.log, self.is_in_range, self.num_begun = 0, [], False, 0
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.groups = [Group(dist.group.WORLD, list(range(self.size)))]
        self.begin_group(self.groups[0])
        for _ in range(self.draw.choice([0, 1, 2, 3])):
            self.another_group(None)

    def another_group(self, _group):
        ranks = sorted(self.draw.sample(range(self.size), self.draw.randint(1, self.size)))
        self.groups.append(Group(dist.new_group(ranks, timeout=self.timeout), ranks))
        self.begin_group(self.groups[-1])

    def begin_group(self, group):
        """Ranks that look for a switchmld in vain take their time for it, which others wait for before they go on."""
        if os.environ.get("CASE_BEGIN") == "1":
            if self.rank in group.ranks:
                dist.all_reduce(torch.ones(1), group=group.handle)
            store, self.num_begun = dist.distributed_c10d._get_default_store(), self.num_begun + 1
            store.add(f"begun {self.num_begun}", 1)
            while store.add(f"begun {self.num_begun}", 0) < self.size:
                time.sleep(0.005)

    def note(self, what):
        self.log.append(f"{self.number}: {what}")

    # ---- Places ----------------------------------------------------------------------------------------------

    def count(self, least=0, most=1 << 30):
        while True:
            count = self.draw.choices(COUNTS, WEIGHTS)[0]
            if least <= count <= most:
                return count

    def shape(self, least=0):
        count, divisor = self.count(least), self.draw.choice([2, 3, 5])
        if count == 1 and self.draw.random() < 0.3:
            return ()
        return (count // divisor, divisor) if count > divisor and self.draw.random() < 0.4 else (count,)

    def strides(self, shape):
        """Without gaps, of each second element, the other way round, or of some columns."""
        kind = self.draw.choice(["dense"] * 3 + ["step", "turned", "rows"])
        dense = tuple(math.prod(shape[index + 1:]) for index in range(len(shape)))
        if kind == "step":
            return tuple(2 * each for each in dense)
        return {"turned": (1, shape[0]), "rows": (shape[1] + 3, 1)}.get(kind, dense) if len(shape) == 2 else dense

    def place(self, dtype, shape, memory=None, may_be_strided=True):
        """Mostly in a memory that is there."""
        usual = self.strides(shape) if may_be_strided else (1,)
        of_ranks = [self.strides(shape) if may_be_strided and self.draw.random() < 0.3 else usual
                    for _ in range(self.size)]
        spans = [1 + sum((length - 1) * stride for length, stride in zip(shape, each)) if 0 not in shape else 0
                 for each in of_ranks]
        widest = max(spans)
        fitting = [each for each in self.memories if each.dtype is dtype and each.count >= widest]
        if memory is None and fitting and self.draw.random() < 0.8:
            memory = self.draw.choice(fitting)
        if memory is None:
            memory = self.memory(dtype, widest + self.draw.choice([0, 1, 7, widest, 3 * widest]))
        offset = self.draw.choice([0, memory.count - widest, self.draw.randint(0, memory.count - widest)])
        is_alike = self.draw.random() < 0.7
        return Place(memory, shape, [(offset if is_alike else self.draw.randint(0, memory.count - span), each)
                                     for span, each in zip(spans, of_ranks)])

    def memory(self, dtype, count):
        self.memories.append(Memory(dtype, count, self.size, self.rank))
        return self.memories[-1]

    def apart(self, dtype, count, others, **keywords):
        """A place of so many elements that none of the others meets, on any rank."""
        for _ in range(5):
            place = self.place(dtype, (count,), **keywords)
            if not any(place.meets(other, rank) for other in others for rank in range(self.size)):
                return place
        return self.place(dtype, (count,), memory=self.memory(dtype, 2 * count + 10), may_be_strided=False)

    def several_apart(self, dtype, counts, others=()):
        places = []
        for count in counts:
            places.append(self.apart(dtype, count, [*others, *places]))
        return places

    def fill(self, place, most):
        self.note("fill")
        self.make_room(Begun(self.number, "fill", None, [place], False))
        key = self.draw.randrange(1000)
        for rank in range(self.size):
            place.put(rank, made(place.memory.dtype, math.prod(place.shape), most, rank, key))
        place.own().copy_(place.right(self.rank))

    # ---- Beginning and waiting -------------------------------------------------------------------------------

    def begin(self, group, what, places, is_ours, call, written, is_message=False, must_wait=False):
        """One call: call(async_op) makes it; written() notes what it gives on all ranks."""
        new = Begun(self.number, what, group, places, is_ours, self.is_in_range, is_message)
        where = "; ".join(f"{each.memory.dtype} {list(each.shape)} in memory {self.memories.index(each.memory)} at "
                          f"{each.layouts}" for each in places)
        self.note(f"{what}, group {group.ranks}, {'ours' if is_ours else 'Gloo'}{', in a range' * self.is_in_range}, "
                  f"{where}")
        self.make_room(new)
        is_dropped = not (is_message or must_wait or self.is_in_range) and self.draw.random() < 0.12
        may_be_async = self.draw.random() < 0.85 if self.is_in_range else self.own.random() < 0.6
        is_mine, is_async = self.rank in group.ranks, is_dropped or may_be_async and not must_wait
        work = call(is_async) if is_mine else None
        written()
        if is_dropped:
            self.dropped.append(new)
        elif work is not None and is_async:
            new.work = work
            self.pending.append(new)
            if not self.is_in_range and self.own.random() < 0.3:
                self.wait(self.own.choice(self.pending))
        elif is_mine:
            self.check(places)

    def make_room(self, new):
        """Waits for calls on the same memory, where the order of calls is not enough."""
        for each in list(self.dropped):
            if each in self.dropped and not each.may_be_followed_by(new) and each.meets(new, each.group.ranks):
                self.barrier(each.group)
        for each in list(self.pending):
            ranks = each.group.ranks if self.is_in_range else [self.rank]  # within one all ranks wait alike
            if not each.may_be_followed_by(new) and each.meets(new, ranks):
                self.wait(each)

    def wait(self, one):
        way = "wait" if self.is_in_range or one.is_message else self.own.choice(["wait", "wait", "future", "poll"])
        if way == "future" and hasattr(one.work, "get_future"):
            one.work.get_future().wait()
        elif way == "poll" and hasattr(one.work, "is_completed"):
            deadline = time.monotonic() + self.timeout.total_seconds()
            while not one.work.is_completed():
                assert time.monotonic() < deadline, f"call {one.number} ({one.what}) does not end"
                time.sleep(0.0005)
        one.work.wait()
        self.pending.remove(one)
        self.check(one.places)

    def barrier(self, group):
        """Which ends what was dropped."""
        self.note(f"barrier, group {group.ranks}")
        if self.rank in group.ranks:
            work = dist.barrier(group=group.handle, async_op=self.own.random() < 0.5)
            if work is not None:
                work.wait()
        ended = [each for each in self.dropped if each.group is group]
        self.dropped = [each for each in self.dropped if each.group is not group]
        for each in ended if self.rank in group.ranks else ():
            self.check(each.places)

    def check(self, places):
        for place in places:
            if not any(other.meets(place, self.rank) for each in self.pending + self.dropped for other in each.places):
                same(place.own(), place.right(self.rank), "of a call")

    def rest(self):
        """Everything has ended."""
        while self.dropped:
            self.barrier(self.dropped[0].group)
        self.own.shuffle(self.pending)
        while self.pending:
            self.wait(self.pending[-1])
        for number, memory in enumerate(self.memories):
            same(memory.own, memory.right[self.rank], f"in memory {number} of {memory.dtype}")
