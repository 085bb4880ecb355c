#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs in the PyTorch backend: the order of copies, sums and kernels, the bound of pinned memory, failures.

Without a GPU a stand-in takes the place of CUDA (cuda_standin.py); with SML_TEST_DEVICE=cuda (`make check-cuda`) the same
tests run on the GPU, which the ranks share. Seeded mistakes of order (mutants/list, torch_cuda_*) must be found on the
stand-in."""
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time

import cuda_standin
import tap
import torch_ranks
from torch_ranks import ROOT, Ranks, error_text, report, run_ranks

IS_REAL = os.environ.get("SML_TEST_DEVICE") == "cuda"
NUM_GROUPS = int(os.environ.get("SML_TEST_GROUPS", "20"))
PAGE_BYTES = 64 << 10
PACKAGE = os.path.join(ROOT, "integrations/pytorch/switchml")


class Bench:
    """What a case works with: torch, the group, the device, and the problems that it finds."""

    def __init__(self, timeout_s=60, is_eager=False, num_pages=16):
        if "CASE_PACKAGE" in os.environ:  # a copy of the package with a mistake in it
            sys.path.insert(0, os.environ["CASE_PACKAGE"])
        import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
        import torch.distributed as dist  # pylint: disable=import-outside-toplevel
        from switchml import pinned, staging  # pylint: disable=import-outside-toplevel
        import switchml.torch as sml  # pylint: disable=import-outside-toplevel
        torch.set_num_threads(1)
        pinned.PAGE_BYTES = staging.PIECE_BYTES = PAGE_BYTES  # so that small tensors have many pieces
        os.environ["SWITCHML_PINNED_MIB"] = str(-(-num_pages * PAGE_BYTES // (1 << 20)))
        pinned.pool.max_pages = num_pages
        self.torch, self.dist, self.sml, self.pinned = torch, dist, sml, pinned
        self.device = cuda_standin.device_for_tests(is_eager)
        dist.init_process_group("switchml", timeout=datetime.timedelta(seconds=timeout_s))
        self.rank, self.size, self.problems = dist.get_rank(), dist.get_world_size(), []
        self.num_pages_beside = 0  # of pools that a check made
        self.total = self.size * (self.size + 1) // 2

    def expect(self, is_so, what):
        if not is_so:
            self.problems.append(what)

    def expect_filled(self, tensor, value, what):
        seen = self.device.look(tensor)
        if not bool((seen == value).all()):
            wrong = (seen != value).nonzero()[0].tolist()
            self.problems.append(f"{what}: {seen[tuple(wrong)].item()} at {wrong}, not {value}")

    def added(self, count, value, device=0, dtype=None):
        """A tensor into which a kernel adds value + 1 + rank, some time later."""
        tensor = self.device.tensor(self.torch.zeros(count, dtype=dtype or self.torch.float32), device)
        self.device.kernel(device, lambda: tensor.add_(value + 1 + self.rank))
        return tensor

    def sum_of(self, value):
        return self.size * value + self.total

    def end(self, **more):
        pages = [*self.pinned.pool.shared, *self.pinned.pool.spare]
        self.expect(not self.pinned.pool.reserved and all(page.is_free() for page in pages), "pinned memory was not given back")
        bound = (self.pinned.pool.max_pages + self.num_pages_beside) * PAGE_BYTES
        self.expect(self.device.num_pinned_bytes <= bound, "pinned memory grew beyond its bound")
        self.problems += self.device.problems()
        report(problems=self.problems, pinned_bytes=self.device.num_pinned_bytes, **more)


# ---- Order ---------------------------------------------------------------------------------------------------

SIZES = 1, 1000, 16_384, 100_003  # elements: one piece, and several


def check_inference(bench):
    """What a script makes in inference mode is written to by threads that are not in it; nor are later calls."""
    for is_in_mode in True, False:
        with bench.torch.inference_mode(is_in_mode):
            tensors = [bench.device.tensor(bench.torch.full((300, 400), bench.rank + 1, dtype=dtype))
                       for dtype in (bench.torch.float32, bench.torch.float32, bench.torch.uint8)]
            works = [bench.dist.all_reduce(tensors[0], async_op=True),
                     bench.dist.all_reduce(tensors[1].t(), async_op=True),
                     bench.dist.all_reduce(tensors[1].t(), async_op=True),
                     bench.dist.all_reduce(tensors[2], op=bench.dist.ReduceOp.MAX, async_op=True)]
        while not all(work.is_completed() for work in works):
            time.sleep(0.001)
        for work in works:
            work.wait()
        for tensor, expected in zip(tensors, (bench.total, bench.total * bench.size, bench.size)):
            bench.expect_filled(tensor, expected, f"what was called {'in' if is_in_mode else 'after'} inference mode")


def check_waits(bench):
    """A wait orders the caller's stream: kernels before the call are in the sum, kernels after the wait see it."""
    for count in SIZES:
        for op, expected in ((bench.dist.ReduceOp.SUM, bench.total), (bench.dist.ReduceOp.AVG, bench.total / bench.size)):
            tensor = bench.added(count, 0)
            bench.dist.all_reduce(tensor, op=op)
            bench.device.kernel(0, lambda tensor=tensor: tensor.mul_(2))
            bench.expect_filled(tensor, 2 * expected, f"all_reduce of {count} that should give {expected}")


def check_handles(bench):
    """The same by handles and by futures, of calls that are under way together; and nobody looks before the last."""
    waited = []
    for round_number in range(3):
        works = []
        for number, count in enumerate(SIZES):
            tensor = bench.added(count, 10 * number)
            works.append((bench.dist.all_reduce(tensor, async_op=True), tensor, bench.sum_of(10 * number)))
        for work, tensor, expected in works:
            if round_number == 1:
                bench.device.wait_for_future(work)
            else:
                work.wait()
            bench.device.kernel(0, lambda tensor=tensor: tensor.add_(1))
            waited.append((tensor, expected + 1))
    for number, (tensor, expected) in enumerate(waited):
        bench.expect_filled(tensor, expected, f"call {number} of many, of {tensor.numel()}")


def check_one_tensor(bench):
    """Calls on one tensor, or on views of it, of which nobody has waited for the first: each begins with the result of those
    before, also where the host knows of its end and the device has not come to it."""
    for count in SIZES:
        tensor = bench.added(count, 0)
        works = [bench.dist.all_reduce(tensor, async_op=True) for _ in range(3)]
        while not works[-1].is_completed():
            time.sleep(0.001)
        works.append(bench.dist.all_reduce(tensor, async_op=True))
        works[-1].wait()
        bench.expect_filled(tensor, bench.total * bench.size ** 3, f"four sums of one tensor of {count}")
    matrix = bench.added(60_000, 0).view(200, 300)
    works = [bench.dist.all_reduce(each, async_op=True) for each in (matrix, matrix.t()[7:], matrix[:, 299:], matrix[3])]
    for work in works:
        work.wait()
    for part, power, what in ((matrix[:3, :7], 0, "one"), (matrix[4:, 7:299], 1, "two"), (matrix[4:, 299], 2, "three"),
                              (matrix[3, 299:], 3, "four"), (matrix[3, :7], 1, "two others")):
        bench.expect_filled(part, bench.total * bench.size ** power, f"what {what} of four views have")


def check_memory_again(bench):
    """Host memory is used again while results are still to be copied back from it, on streams that wait for no other."""
    tensors, followers = [], []
    for number in range(20):
        with bench.device.as_current(bench.device.side_stream(0)):
            tensors.append(bench.added(PAGE_BYTES // 4, 10 * number))
            bench.dist.all_reduce(tensors[-1])
            followers.append(bench.device.follower(0))
    for follow in followers:
        follow()
    for number, tensor in enumerate(tensors):
        bench.expect_filled(tensor, bench.sum_of(10 * number), f"tensor {number} of as many as share pages")


def check_streams(bench):
    """A stream of the script's own is followed, and ordered, whatever the other streams have."""
    stream = bench.device.side_stream(0)
    with bench.device.as_current(stream):
        tensor = bench.added(50_000, 3)
        work = bench.dist.all_reduce(tensor, async_op=True)
    bench.device.kernel(0, lambda: None)
    with bench.device.as_current(stream):
        work.wait()
        bench.device.kernel(0, lambda: tensor.add_(1))
        bench.expect_filled(tensor, bench.sum_of(3) + 1, "a stream of the script's own")


def check_shapes(bench):
    matrix = bench.device.tensor(bench.torch.zeros(200, 300))
    bench.device.kernel(0, lambda: matrix.add_(bench.rank + 1))
    bench.dist.all_reduce(matrix.t()[1:])  # several pieces, strided
    bench.expect_filled(matrix[:, 1:], bench.total, "a strided tensor")
    bench.expect_filled(matrix[:, :1], bench.rank + 1, "what is beside a strided tensor")
    bench.dist.all_reduce(bench.device.tensor(bench.torch.zeros(0)))
    for dtype in (bench.torch.float16, bench.torch.bfloat16, bench.torch.int32, bench.torch.int64):
        tensor = bench.added(40_000, 1, dtype=dtype)
        bench.dist.all_reduce(tensor)
        bench.expect_filled(tensor, bench.sum_of(1), f"{dtype}")
    several = [bench.added(count, count % 7) for count in (3, 20_000, 5, 1, 70_000, 2)]
    bench.dist.all_reduce_coalesced(several)
    for tensor in several:
        bench.expect_filled(tensor, bench.sum_of(tensor.numel() % 7), f"a coalesced tensor of {tensor.numel()}")


def check_devices(bench):
    """Two devices at the same time, whose streams know nothing of each other, and a tensor of the host between them."""
    works = []
    for number in range(4):
        tensor = bench.added(30_000, number, device=number % 2)
        works.append((bench.dist.all_reduce(tensor, async_op=True), tensor, bench.sum_of(number)))
    host = bench.device.host_tensor(bench.torch.full((9000,), bench.rank + 1.0))
    bench.dist.all_reduce(host)
    bench.expect(bool((host == bench.total).all()), "a tensor of the host between those of devices")
    for number, (work, tensor, expected) in enumerate(works):
        work.wait()
        bench.expect_filled(tensor, expected, f"a tensor of device {number % 2}")


def check_gloo(bench):
    """What Gloo does behind such calls begins after what the caller's stream had, and is waited for on it."""
    group, stream = bench.dist.distributed_c10d._get_default_group(), bench.device.side_stream(0)
    group._inner = bench.device.gloo(group._inner)
    with bench.device.as_current(stream):
        for is_behind in True, False:
            first = bench.added(100_000, 0)
            if bench.rank == 1 and is_behind:
                time.sleep(0.3)  # the others' calls cannot end meanwhile
            work = bench.dist.all_reduce(first, async_op=True)
            if not is_behind:
                work.wait()
            second = bench.added(1000, 5)
            bench.dist.broadcast(second, 0, async_op=True).wait()
            bench.expect_filled(second, 6, f"Gloo's broadcast {'behind a call' if is_behind else 'alone'}")
            work.wait()
            bench.expect_filled(first, bench.total, "the call before it")
    for is_alone in True, False:
        tensor = bench.added(50_000, 0)
        works = []
        for op in bench.dist.ReduceOp.SUM, bench.dist.ReduceOp.PRODUCT:
            works.append(bench.dist.all_reduce(tensor, op=op, async_op=True))
            while is_alone and not works[-1].is_completed():
                time.sleep(0.001)
        works[-1].wait()
        bench.expect_filled(tensor, bench.total ** bench.size, "Gloo's product of a sum")


def check_memory(bench):
    """A page whose parts were given back in any order waits for the last event of each stream."""
    for order in (0, 1), (1, 0):
        pool = bench.pinned.Pool()
        pool.max_pages = 2
        parts = [pool.take("group", PAGE_BYTES // 2) for _ in range(2)]
        for event, index in enumerate(order):
            pool.give(parts[index], "stream", event)
        after = pool.take("group", PAGE_BYTES).after
        bench.expect([event for _, event in after.values()] == [1], f"a page waits for {after} of events 0 and 1")
        bench.num_pages_beside += 1


CHECKS = (check_inference, check_memory, check_memory_again, check_waits, check_handles, check_one_tensor, check_streams,
          check_shapes, check_devices, check_gloo)


def case_order():
    bench = Bench()
    for check in CHECKS:
        check(bench)
    stats = bench.sml.stats()
    bench.expect(stats["offloaded_calls"] > 30 and stats["fallback_calls"] == 0, f"{stats}")
    bench.end()
    bench.dist.destroy_process_group()


# ---- Pinned memory ---------------------------------------------------------------------------------------------

def case_bound():
    """Two groups fill all memory in different orders on different ranks, and both end; memory does not grow."""
    bench = Bench(num_pages=4)
    groups = [bench.dist.new_group() for _ in range(2)]
    for group in groups:  # they join, which ranks do in one order
        bench.dist.all_reduce(bench.added(10, 0), group=group)
    works = []
    for group in groups if bench.rank == 0 else reversed(groups):
        for number in range(3):
            tensor = bench.added(200_000, number)
            works.append((bench.dist.all_reduce(tensor, group=group, async_op=True), tensor, bench.sum_of(number)))
    for work, tensor, expected in works:
        work.wait()
        bench.expect_filled(tensor, expected, "groups that share little memory")
    bench.end()
    bench.dist.destroy_process_group()


def case_exhausted():
    """Others hold all memory of rank 1: its call ends with a reason, and so does that of the other ranks."""
    bench = Bench(timeout_s=4, num_pages=2)
    bench.dist.all_reduce(bench.added(10, 0))
    held = []
    if bench.rank == 1:
        held = [bench.pinned.pool.take("another group", PAGE_BYTES) for _ in range(2)]
        bench.expect(None not in held and bench.pinned.pool.take("another group", 1) is None, "memory beyond the bound")
    text = error_text(bench.dist.all_reduce, bench.added(10_000, 0))
    for memory in held:
        bench.pinned.pool.give(memory)
    bench.end(text=text)
    os._exit(0)


def case_growth():
    """Groups that come and go leave no pinned memory, nor memory of the device."""
    bench = Bench()
    sizes = []
    for number in range(NUM_GROUPS):
        group = bench.dist.new_group()
        tensor = bench.added(60_000, number)
        bench.dist.all_reduce(tensor, group=group)
        bench.expect_filled(tensor, bench.sum_of(number), f"group {number}")
        bench.dist.destroy_process_group(group)
        del group, tensor
        if IS_REAL:
            bench.torch.cuda.synchronize()
        sizes.append([bench.device.num_pinned_bytes, bench.torch.cuda.memory_reserved() if IS_REAL else 0])
    bench.expect(sizes[NUM_GROUPS // 10 + 1] == sizes[-1], f"memory grew from {sizes[NUM_GROUPS // 10 + 1]} to {sizes[-1]}")
    bench.end(num_groups=NUM_GROUPS, sizes=sizes[-1])
    bench.dist.destroy_process_group()


# ---- Failures --------------------------------------------------------------------------------------------------

def case_broken():
    """The CASE_COPY-th copy of rank 1 fails: an error on every rank, with the reason, and no memory is lost. CASE_FAILS: how
    late: "late" is when rank 0 has the first call's sum."""
    bench = Bench(timeout_s=30, num_pages=int(os.environ["CASE_PAGES"]))
    from switchml import cuda  # pylint: disable=import-outside-toplevel
    bench.dist.all_reduce(bench.added(10, 0))
    bench.dist.barrier()
    copy, num_copies, store = cuda.api.copy, [0], bench.dist.distributed_c10d._get_default_store()

    def failing(stream, to, source):
        num_copies[0] += 1
        if num_copies[0] == int(os.environ["CASE_COPY"]):
            if os.environ["CASE_FAILS"] == "late":
                store.wait(["rank 0 has its sum"])
            raise RuntimeError("CUDA error: an illegal memory access was encountered (a test)")
        copy(stream, to, source)
    if bench.rank == 1:
        cuda.api.copy = failing
    texts, tensor = [], bench.added(150_000, 0)
    for call in (lambda: bench.dist.all_reduce(tensor, async_op=True).wait(), lambda: bench.dist.all_reduce(bench.added(1000, 0))):
        texts.append(error_text(call))
        if bench.rank == 0 and texts == [""]:
            bench.expect_filled(tensor, bench.sum_of(0), "a sum that its rank was given before another failed")
            store.set("rank 0 has its sum", "")
    bench.end(texts=texts, ranks=list(bench.sml.error().ranks))
    os._exit(0)


def case_killed():
    bench = Bench()
    store = bench.dist.distributed_c10d._get_default_store()
    for _ in range(3):
        bench.dist.all_reduce(bench.added(100_000, 0))
    if bench.rank == 1: # it has all sums; the others may still need its part of the last one
        store.wait(["sums of rank 0", "sums of rank 2"])
        os.kill(os.getpid(), signal.SIGKILL)
    store.set(f"sums of rank {bench.rank}", "")
    started = time.monotonic()
    text = error_text(bench.dist.all_reduce, bench.added(100_000, 0))
    took_s = time.monotonic() - started
    bench.end(text=text, ranks=list(bench.sml.error().ranks), took_s=took_s)
    os._exit(0)


# ---- The tests ---------------------------------------------------------------------------------------------------

def run(case, num_ranks=2, but=(), **environment):
    """The ranks' reports, none of which may have found a problem."""
    results = Ranks(case, num_ranks, SWITCHML_REQUIRE="1", **environment).wait(but=but)
    problems = [f"rank {rank}: {problem}" for rank, result in enumerate(results) for problem in result.get("problems", [])]
    assert not problems, "\n".join(problems)
    return [result for rank, result in enumerate(results) if rank not in but]


def test_copies_sums_and_kernels_keep_their_order():
    run("order")


def test_the_same_in_one_hosts_memory():
    run("order", 3, SWITCHML_SHARED_MEMORY="1")


def test_the_same_without_offload():
    """Gloo sums what was staged, piece by piece, where a group's job could not be had."""
    results = run_ranks("fallback", 2, "127.0.0.1:9", SML_TEST_DEVICE=os.environ.get("SML_TEST_DEVICE"))
    assert not [problem for result in results for problem in result["problems"]], results


def case_fallback():
    bench = Bench(timeout_s=20)
    check_waits(bench)
    check_handles(bench)
    bench.expect(bench.sml.stats()["fallback_calls"] > 10, "no call went to Gloo")
    bench.end()
    bench.dist.destroy_process_group()


def test_pieces_begin_with_blocks_of_their_tensors():
    code = """
import itertools, random
from switchml.staging import block_cuts
for seed in range(300):
    draw = random.Random(seed)
    starts = [0, *itertools.accumulate(draw.randrange(1, draw.choice([10, 700, 9000])) for _ in range(50))]
    size, count = starts[-1] + draw.randrange(1, 9000), 256 * draw.randrange(3, 20)
    edges = [0, *block_cuts(starts, size, count), size]
    for begin, end in zip(edges, edges[1:]):
        assert (begin - max(start for start in starts if start <= begin)) % 256 == 0, (seed, begin)
        assert 0 < end - begin < count + 256, (seed, begin, end)
"""
    subprocess.run([torch_ranks.PYTHON, "-c", code], check=True, env={**os.environ, "PYTHONPATH": torch_ranks.PYTHONPATH})


def test_groups_share_bounded_memory():
    run("bound")


def test_memory_that_others_hold_is_an_error_in_time():
    results = run("exhausted")
    assert all(text in results[1]["text"] for text in ("no pinned memory", "SWITCHML_PINNED_MIB")), results
    assert "rank 1" in results[0]["text"], results


def test_groups_come_and_go_without_growth():
    for result in run("growth"):
        print(f"# {result['num_groups']} groups: {result['sizes'][0]} bytes pinned, {result['sizes'][1]} on the device")


def test_a_failed_copy_is_an_error_on_every_rank():
    # To the host at once; half way; and back, while rank 1 has no memory for pieces that rank 0 waits for.
    for copy, pages in (1, 16), (3, 16), (3, 2):
        for result in run("broken", CASE_COPY=str(copy), CASE_PAGES=str(pages), CASE_FAILS="soon"):
            assert all("rank 1" in text for text in result["texts"]) and result["ranks"] == [1], (copy, result)
            assert "illegal memory access" in result["texts"][0], (copy, result)


def test_a_copy_back_that_fails_late_is_an_error_of_the_next_call():
    """Rank 0 has all of the sum. Nothing can tell it of rank 1's last copy but its next call."""
    of_ranks = run("broken", CASE_COPY="20", CASE_PAGES="16", CASE_FAILS="late")
    for result, num_right in zip(of_ranks, (1, 0)):
        right, failed = result["texts"][:num_right], result["texts"][num_right:]
        assert right == [""] * num_right and all("rank 1" in text for text in failed) and result["ranks"] == [1], result
        assert "illegal memory access" in failed[0], result


def test_a_killed_rank_is_named():
    for result in run("killed", 3, but=(1,)):
        assert result["ranks"] == [1] and "1" in result["text"], result
        assert result["took_s"] < (3 if IS_REAL else 20), result


def mistaken(mutant, folder):
    """A copy of the package with the seeded mistake."""
    sys.path.insert(0, os.path.join(ROOT, "mutants"))
    import apply  # pylint: disable=import-outside-toplevel,import-error
    import shutil  # pylint: disable=import-outside-toplevel
    shutil.copytree(PACKAGE, os.path.join(folder, "switchml"), ignore=shutil.ignore_patterns("__pycache__"))
    path = os.path.join(folder, "switchml", os.path.basename(mutant.file))
    with open(path, encoding="utf-8") as source:
        text = apply.mutate(mutant, source.read())
    with open(path, "w", encoding="utf-8") as output:
        output.write(text)


def seeded_mistakes():
    sys.path.insert(0, os.path.join(ROOT, "mutants"))
    import apply  # pylint: disable=import-outside-toplevel,import-error
    return [mutant for mutant in apply.read_list() if mutant.name.startswith("torch_cuda_")]


def test_seeded_mistakes_of_order_are_found():
    if IS_REAL:
        raise tap.Skip("on a GPU a mistake of order may do no harm by luck; the stand-in's tests look for them")
    mistakes = seeded_mistakes()
    assert len(mistakes) >= 10, len(mistakes)
    mistakes = [mutant for mutant in mistakes if mutant.name in os.environ.get("SML_TEST_MISTAKES", mutant.name).split(",")]
    lived = []
    for mutant in mistakes:
        with tempfile.TemporaryDirectory() as folder:
            mistaken(mutant, folder)
            results = Ranks("order", 2, SWITCHML_REQUIRE="1", CASE_PACKAGE=folder).wait()
        problems = [problem for result in results for problem in result["problems"]]
        print(f"# {mutant.name} ({mutant.what}): {problems[0] if problems else 'NOT FOUND'}", flush=True)
        lived += [] if problems else [mutant.name]
    assert not lived, lived


if __name__ == "__main__":
    torch_ranks.main(globals())
