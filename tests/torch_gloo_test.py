#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend answers as Gloo does: each case runs on Gloo first, then on ours. And ranks that call different
things, or a rank that fails, are named on all ranks, whichever way the calls went."""
import datetime
import os
import sys
import time

import torch_ranks
from torch_ranks import Daemon, Ranks, ends_as_interpreters_do, error_text, report, run_ranks

NAMED_WITHIN_S = 20  # of a timeout of 60: on a loaded machine; alone it is 0.1


def start(timeout_s=60):
    import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    dist.set_debug_level_from_env()  # torch was there before this rank's environment
    dist.init_process_group(os.environ["CASE_BACKEND"], timeout=datetime.timedelta(seconds=timeout_s))
    return torch, dist, switchml.torch, dist.get_rank(), dist.get_world_size()


def end(dist):
    """On Gloo, whose threads may abort a process that ends, without an end."""
    if os.environ["CASE_BACKEND"] == "gloo":
        sys.stdout.flush()
        os._exit(0)
    dist.destroy_process_group()


def default_group(dist):
    return dist.distributed_c10d._get_default_group()


def case_sequence_numbers():
    torch, dist, _, _, size = start()
    group = default_group(dist)
    if hasattr(group, "_set_sequence_number_for_group"):
        group._set_sequence_number_for_group()
    numbers = [group._get_sequence_number_for_group()]
    tensor = torch.ones(4)
    for call in (lambda: dist.all_reduce(tensor), lambda: dist.broadcast(tensor, 0), dist.barrier,
                 lambda: dist.all_reduce(tensor, async_op=True).wait(),
                 lambda: dist.all_gather([torch.empty(4) for _ in range(size)], tensor),
                 lambda: dist.all_reduce(tensor, op=dist.ReduceOp.PRODUCT)):
        call()
        numbers.append(group._get_sequence_number_for_group())
    report(steps=[later - first for first, later in zip(numbers, numbers[1:])])
    end(dist)


@ends_as_interpreters_do
def case_works():
    """Waits with a limit, and results before the end."""
    torch, dist, _, rank, size = start()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if rank == 0:
        works = [dist.all_reduce(tensor, async_op=True), dist.broadcast(torch.ones(3), 1, async_op=True)]
        texts = [error_text(work.result).partition("\n")[0] for work in works]
        limits = [bool(error_text(work.wait, datetime.timedelta(milliseconds=30))) for work in works]
        dist.distributed_c10d._get_default_store().set("go", "1")
        waits = [work.wait(datetime.timedelta(seconds=50)) for work in works]
    else:
        dist.distributed_c10d._get_default_store().wait(["go"])
        works = [dist.all_reduce(tensor, async_op=True), dist.broadcast(torch.ones(3), 1, async_op=True)]
        texts, limits, waits = [], [], [work.wait() for work in works]
    assert tensor[0].item() == size * size
    report(texts=texts, limits=limits, waits=waits, results=[work.result()[0].shape[0] for work in works[:1]])
    end(dist)


def case_futures():
    """What the futures of collectives have in them, strided tensors, too, and behind calls that have not ended."""
    torch, dist, _, rank, size = start()
    group, found = default_group(dist), []

    def shape(value):
        return [shape(item) for item in value] if isinstance(value, (list, tuple)) else list(value.shape)

    for is_behind in (False, True):
        if is_behind:
            dist.all_reduce(torch.ones(300_000), async_op=True)
        gathered = [torch.empty(2) for _ in range(size)]
        works = [dist.all_gather(gathered, torch.full((2,), float(rank)), async_op=True),
                 dist.all_reduce_coalesced([torch.ones(3), torch.ones(4)], async_op=True),
                 dist.broadcast(torch.ones(5), 0, async_op=True),
                 dist.gather(torch.ones(2), [torch.empty(2) for _ in range(size)] if rank == 0 else None, 0, async_op=True),
                 dist.scatter(torch.empty(2), [torch.ones(2) for _ in range(size)] if rank == 0 else None, 0, async_op=True),
                 dist.reduce(torch.ones(6), 0, async_op=True),
                 dist.all_to_all_single(torch.empty(size), torch.ones(size), async_op=True)]
        found += [shape((work.get_future() if hasattr(work, "get_future") else work).wait()) for work in works]
        columns = torch.zeros(size, 3, 2)
        work = dist.all_gather([columns[index, :, 0] for index in range(size)], torch.full((3,), float(rank)), async_op=True)
        value = work.get_future().wait()
        assert dist.get_backend() == "gloo" or value[0].data_ptr() == columns.data_ptr()
        assert len(value) == size and group.size() == size
    report(found=found)
    end(dist)


def case_refusals():
    """What both refuse is the same kind of error, before anything is sent."""
    torch, dist, _, _, _ = start()
    dist.barrier()  # rank 0 has the store: it stays until all have begun
    op = dist.ReduceOp
    cases = [(torch.ones(2, dtype=torch.int32), op.AVG), (torch.ones(2), op.BAND), (torch.ones(2, dtype=torch.int16), op.SUM),
             (torch.ones(1).expand(5), op.SUM), (torch.ones(3, 1).expand(3, 400), op.SUM)]
    kinds = []
    for tensor, reduction in cases if dist.get_backend() != "gloo" else cases[:3]:
        try:
            dist.all_reduce(tensor, op=reduction)
            kinds.append("")
        except Exception as error:  # pylint: disable=broad-except
            kinds.append(type(error).__mro__[-4].__name__)
    tensor = torch.ones(1)
    if dist.get_backend() != "gloo":
        dist.all_reduce(tensor)
        assert tensor.item() == dist.get_world_size()  # the refused sums were never begun
        # An expanded tensor is no fault where it is only read.
        gathered = [torch.empty(4) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, torch.ones(1).expand(4))
        assert all(each.sum() == 4 for each in gathered)
    report(kinds=kinds)
    end(dist)


def case_functional():
    """Collectives of autograd."""
    torch, dist, _, rank, size = start()
    from torch.distributed.nn import functional  # pylint: disable=import-outside-toplevel
    own = torch.full((3,), rank + 1.0, requires_grad=True)
    gathered = functional.all_gather(own)
    sum((index + 1) * each.sum() for index, each in enumerate(gathered)).backward()
    parts = [torch.full((2,), float(10 * rank + index), requires_grad=True) for index in range(size)]
    received = functional.all_to_all([torch.empty(2) for _ in range(size)], parts)
    sum((rank + 1) * each.sum() for each in received).backward()
    report(gradients=[own.grad.tolist(), [part.grad.tolist() for part in parts]],
           received=[each.tolist() for each in received])
    end(dist)


def case_monitored_barrier():
    torch, dist, _, rank, _ = start()
    dist.all_reduce(torch.ones(3), async_op=True)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
    text = ""
    if rank != 1:
        text = error_text(dist.monitored_barrier, timeout=datetime.timedelta(seconds=1), wait_all_ranks=True)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["over0"])
    store.set(f"over{rank}", "1")
    if rank == 0:  # which has the store
        store.wait(["over1", "over2"])
    report(is_named=rank != 0 or "1" in text, is_error=bool(text))
    os._exit(0)


def case_monitored_late():
    """Behind a call that rank 1 does not make: ends in its own time, or with the reason of a group that failed."""
    torch, dist, sml, rank, _ = start(timeout_s=6)
    dist.all_reduce(torch.ones(3))
    took_s, texts = [], []
    work = dist.all_reduce(torch.ones(3), async_op=True) if rank != 1 else None
    for timeout_s in (1, 12):
        began = time.monotonic()
        texts.append(error_text(dist.monitored_barrier, timeout=datetime.timedelta(seconds=timeout_s)) if rank != 1 else "")
        took_s.append(time.monotonic() - began)
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(datetime.timedelta(seconds=60))
    if rank == 1:
        store.wait(["over0", "over2"])
    store.set(f"over{rank}", "1")
    if rank == 0:  # which has the store
        store.wait(["over1", "over2"])
    report(took_s=took_s, texts=texts, is_under_way=work is not None)
    os._exit(0)


def case_late_for_gloo():
    """Rank 1 does not make a call of Gloo's in time."""
    torch, dist, sml, rank, size = start(timeout_s=3)
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    if rank == 1:
        time.sleep(6)  # alive, in no call
    text = error_text(dist.all_to_all_single, torch.empty(size), torch.ones(size)) if rank != 1 else ""
    report(text=text, ranks=list(sml.error().ranks) if text else [], status=sml.error().status if text else "")
    time.sleep(1 if rank == 0 else 0)  # it has the store
    os._exit(0)


def case_debug_detail():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: what differs is named before it is sent."""
    torch, dist, _, rank, size = start()
    tensor = torch.full((9,), float(rank))
    dist.all_reduce(tensor)
    dist.barrier()
    assert tensor[0].item() == sum(range(size))
    text = error_text(lambda: dist.broadcast(torch.ones(8), 0) if rank == 1 else dist.all_reduce(torch.ones(8)))
    report(is_named="Detected mismatch between collectives on ranks" in text)
    os._exit(0)


# ---- Across the border of the offload ----------------------------------------------------------------------

def case_border():
    """Rank 1 calls something else, all others a float32 sum."""
    torch, dist, sml, rank, _ = start()
    if os.environ.get("CASE_IS_FIRST") != "1":
        dist.all_reduce(torch.ones(5))
        dist.barrier()
    other = {"float64": lambda: dist.all_reduce(torch.ones(1000, dtype=torch.float64)),
             "product": lambda: dist.all_reduce(torch.ones(1000), op=dist.ReduceOp.PRODUCT),
             "broadcast": lambda: dist.broadcast(torch.ones(1000), 0),
             "barrier": dist.barrier}[os.environ["CASE_OTHER"]]
    began = time.monotonic()
    text = error_text(other if rank == 1 else lambda: dist.all_reduce(torch.ones(1000)))
    took_s = time.monotonic() - began
    later = error_text(dist.barrier)
    report(text=text, took_s=took_s, later=later, ranks=list(getattr(sml.error(), "ranks", ())))


def case_same_reason():
    """Rank 2 dies, and the others are in Gloo's hands."""
    torch, dist, _, rank, _ = start()
    dist.all_reduce(torch.ones(5))
    dist.barrier()
    if rank == 2:
        os._exit(7)
    report(text=error_text(dist.barrier))


def case_store_gone():
    """Rank 0, which has the store, ends before the first collective."""
    torch, dist, _, rank, size = start()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"begun {rank}", "1")
    if rank == 0:
        store.wait([f"begun {other}" for other in range(size)])
    report(texts=[error_text(dist.all_reduce, torch.ones(5)) for _ in range(2)] if rank else [])


def case_store_gone_late():
    """The others call different things. Rank 0 ends while the finder waits for what it is in."""
    torch, dist, _, rank, size = start()
    dist.all_reduce(torch.ones(5))
    dist.barrier()
    if rank == 0:
        store = default_group(dist)._calls.store
        while store.add("failure done", 0) == 0:
            time.sleep(0.005)
        os._exit(7)
    root = 1 if rank == 1 else 0
    text = error_text(dist.scatter, torch.ones(9), [torch.ones(9)] * size if rank == root else None, root)
    report(text=text)


@ends_as_interpreters_do
def case_cpp_wait():
    """Rank 0 calls something else, or rank 1 dies; C++ waits on all others: in DDP, for its buffers or what it asks first."""
    torch, dist, sml, rank, _ = start()
    own = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = torch.nn.parallel.DistributedDataParallel(own)
    for _ in range(2):
        model(torch.randn(8, 4)).sum().backward()
    dist.barrier()
    if os.environ["CASE_OTHER"] == "calls":
        def forward():
            model(torch.randn(8, 4))
        text = error_text((lambda: dist.all_reduce(torch.ones(1000))) if rank == 0 else forward)
    elif rank == 1:
        os._exit(7)
    else:
        text = error_text(torch.nn.parallel.DistributedDataParallel, own)
    report(text=text, ranks=list(getattr(sml.error(), "ranks", ())))


# ---- The tests -----------------------------------------------------------------------------------------

def on_both(case, num_ranks, **environment):
    theirs = run_ranks(case, num_ranks, CASE_BACKEND="gloo", **environment)
    with Daemon() as daemon:
        ours = run_ranks(case, num_ranks, daemon.address, CASE_BACKEND="switchml", SWITCHML_REQUIRE="1", **environment)
    for rank, (gloos, result) in enumerate(zip(theirs, ours)):
        for each in gloos, result:
            del each["stderr"]
        yield rank, gloos, result


def test_sequence_numbers():
    for _, gloos, ours in on_both("sequence_numbers", 2):
        assert ours == gloos and len(ours["steps"]) == 6, (gloos, ours)


def test_works_wait_with_a_limit_and_have_no_result_before_the_end():
    for rank, gloos, ours in on_both("works", 2):
        assert ours == gloos and (rank or (all(ours["limits"]) and all(ours["texts"]))), (gloos, ours)


def test_futures_have_the_outputs():
    for _, gloos, ours in on_both("futures", 3):
        assert ours == gloos and len(ours["found"]) == 14, (gloos, ours)


def test_refusals_are_runtime_errors_before_the_sum():
    for _, gloos, ours in on_both("refusals", 2):
        assert set(gloos["kinds"]) == {"RuntimeError"} == set(ours["kinds"]) and len(ours["kinds"]) == 5, (gloos, ours)


def test_functional_collectives_have_gradients():
    for _, gloos, ours in on_both("functional", 3):
        assert ours == gloos, (gloos, ours)


def test_monitored_barrier_names_who_is_missing():
    for _, gloos, ours in on_both("monitored_barrier", 3):
        assert ours == gloos and ours["is_named"], (gloos, ours)


def test_monitored_barrier_behind_a_call_that_does_not_end():
    for result in run_ranks("monitored_late", 3, CASE_BACKEND="switchml")[::2]:
        assert result["took_s"][0] < 4 and "all_reduce(SUM) of float32[3] has not ended within the 1 s" in result["texts"][0], result
        assert result["took_s"][1] < 12 and "timed out" in result["texts"][1] and "rank 1" in result["texts"][1], result


def test_debug_detail_names_a_mismatch():
    for _, gloos, ours in on_both("debug_detail", 2, TORCH_DISTRIBUTED_DEBUG="DETAIL"):
        assert ours == gloos and ours["is_named"], (gloos, ours)


def test_mismatch_across_the_border_is_named():
    with Daemon() as daemon:
        for other, words in (("float64", "all_reduce(SUM) of float64[1000]"), ("product", "all_reduce(PRODUCT) of float32[1000]"),
                             ("broadcast", "broadcast of float32[1000] of rank 0"), ("barrier", "barrier")):
            for is_first in "01":
                results = run_ranks("border", 3, daemon.address, CASE_BACKEND="switchml", CASE_OTHER=other,
                                    CASE_IS_FIRST=is_first)
                for result in results:
                    assert result["text"] == results[0]["text"] and result["ranks"] == [1], results
                    assert f"ranks 0, 2: all_reduce(SUM) of float32[1000]; rank 1: {words}" in result["text"], results
                    assert result["took_s"] < NAMED_WITHIN_S and result["later"], results
                print(f"# {other}: named after {max(result['took_s'] for result in results):.2f} s", flush=True)


def test_a_lost_rank_is_the_reason_on_all():
    with Daemon() as daemon:
        results = Ranks("same_reason", 4, daemon.address, CASE_BACKEND="switchml").wait(but=(2,))
        for rank in (0, 1, 3):
            assert "rank 2" in results[rank]["text"], results


def test_a_rank_that_is_late_for_gloo_is_named():
    for result in run_ranks("late_for_gloo", 3, CASE_BACKEND="switchml")[::2]:
        assert "rank 1 gave no answer" in result["text"] and (result["ranks"], result["status"]) == ([1], "timed out"), result


def test_a_lost_store_is_the_reason():
    for result in run_ranks("store_gone", 3, CASE_BACKEND="switchml")[1:]:
        assert all("the process that has it, rank 0 or the launcher" in text for text in result["texts"]), result
    for result in Ranks("store_gone_late", 3, CASE_BACKEND="switchml").wait(but=(0,))[1:]:
        assert result["text"], result


def test_waits_in_cpp_have_the_same_reason():
    with Daemon() as daemon:
        results = run_ranks("cpp_wait", 3, daemon.address, CASE_BACKEND="switchml", CASE_OTHER="calls")
        for result in results:
            assert "rank 0: all_reduce(SUM) of float32[1000]; ranks 1, 2: broadcast of " in result["text"], results
            assert result["ranks"] == [0], results
        results = Ranks("cpp_wait", 3, daemon.address, CASE_BACKEND="switchml", CASE_OTHER="dies").wait(but=(1,))
        for rank in (0, 2):
            assert "rank 1" in results[rank]["text"], results


if __name__ == "__main__":
    torch_ranks.main(globals())
