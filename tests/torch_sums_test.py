#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend's collectives that are sums, or can be one: reduce-scatter, reduce, broadcast, barrier; and its
reductions that are no sums."""
import functools
import os
import signal
import time

import torch_ranks
from torch_calls import gloo_takes
from torch_ranks import Daemon, Ranks, ends_as_interpreters_do, error_text, report, run_ranks, start

COUNTS = (0, 1, 2, 3, 5, 127, 129, 1001, 70_001)  # of elements: some are no multiple of 4 bytes
NUM_LARGE = 1 << 20


def has_bits_of(torch, one, other):
    return torch.equal(*(each.detach().contiguous().view(-1).view(torch.uint8) for each in (one, other)))


def values(torch, count, rank, dtype):
    made = torch.Generator().manual_seed(1000 * rank + count)
    return (torch.randn(count, generator=made) * 1000).to(dtype)


def broadcasts(torch, dist, rank, size):
    """Of any bits in any type, the NaNs that a float's sum would not keep among them."""
    num_calls = 0
    types = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
             torch.float64, torch.complex64, torch.complex128, torch.bool]
    for number, dtype in enumerate(types):
        for count in COUNTS[:5] if dtype is torch.complex128 else COUNTS:
            root = (number + count) % size
            of_root = torch.randint(0, 2 if dtype is torch.bool else 256, (count * torch.empty(0, dtype=dtype).element_size(),),
                                    generator=torch.Generator().manual_seed(count), dtype=torch.uint8).view(dtype)
            tensor = of_root.clone() if rank == root else torch.ones(count, dtype=dtype)
            dist.broadcast(tensor, root)
            assert has_bits_of(torch, tensor, of_root), (dtype, count)
            num_calls += 1
    for dtype in torch.int16, torch.float64:  # what is not dense
        table = torch.full((7, 5), rank, dtype=dtype)
        dist.broadcast(table[:, 3], size - 1)
        assert table.sum().item() == 28 * rank + 7 * (size - 1) and bool((table[:, 3] == size - 1).all()), table
    single = torch.full((1, 2), float(rank))
    dist.broadcast(single[:, 0], 1)  # dense, with a stride of 2
    assert single.tolist() == [[1.0, rank]], single
    swapped = torch.full((2, 3), complex(rank, rank + 1)).conj()
    text = error_text(dist.broadcast, swapped, 1)
    assert "view_as_real" in text or bool((swapped == complex(1, -2)).all()), (swapped, text)  # torch 2.14 refuses it
    objects = [{"rank": rank}, "x" * rank]
    dist.broadcast_object_list(objects, src=2)  # two broadcasts
    assert objects == [{"rank": 2}, "xx"], objects
    return num_calls + 5 + (not text)


def parts_of_sums(torch, dist, rank, size):
    """The bits of all-reduce and slice, and of the input none changes."""
    num_calls, op = 0, dist.ReduceOp
    for dtype, reduction in ((torch.float32, op.SUM), (torch.float32, op.AVG), (torch.bfloat16, op.SUM), (torch.int64, op.SUM)):
        for count in COUNTS:
            given = values(torch, count * size, rank, dtype)
            whole, kept, output = given.clone(), given.clone(), torch.empty(count, dtype=dtype)
            dist.all_reduce(whole, op=reduction)
            own = whole[rank * count:][:count]
            dist.reduce_scatter_tensor(output, given, op=reduction)
            assert has_bits_of(torch, output, own) and has_bits_of(torch, given, kept), (dtype, count)
            dist.reduce_scatter_tensor(given[rank * count:][:count], given, op=reduction)  # in place
            assert has_bits_of(torch, given[rank * count:][:count], own), (dtype, count)
            dist.reduce(kept, size - 1, op=reduction)
            assert has_bits_of(torch, kept, whole if rank == size - 1 else values(torch, count * size, rank, dtype)), count
            num_calls += 4
    given = [torch.full((index, 2), float(rank)) for index in range(size)]  # of another length each, rank 0's is empty
    output = torch.empty(2, rank).t()
    dist.reduce_scatter(output, given)
    assert torch.equal(output, torch.full((rank, 2), float(sum(range(size))))), output
    manager = dist.distributed_c10d._coalescing_manager
    if "device" in manager.__wrapped__.__code__.co_varnames:  # torch 2 has forms of several tensors
        given = [torch.full((size * count,), rank + 1.0) for count in (3, 5000)]
        outputs = [torch.empty(count) for count in (3, 5000)]
        with manager():
            for output, each in zip(outputs, given):
                dist.reduce_scatter_tensor(output, each)
        assert all(bool((output == size * (size + 1) / 2).all()) for output in outputs), outputs
        num_calls += 1
    text = error_text(dist.reduce_scatter_tensor, torch.empty(3), torch.empty(3 * size + 1))
    assert "a part for each of the" in text, text
    return num_calls + 1


def reductions(torch, dist, rank, size):
    """Of every type, and in other collectives than an all-reduce, too."""
    op, num_calls = dist.ReduceOp, 0
    either, both = torch.logical_or, torch.logical_and
    of_floats = [(op.MIN, torch.minimum), (op.MAX, torch.maximum)]
    of_integers = [*of_floats, (op.PRODUCT, torch.mul), (op.BAND, torch.bitwise_and), (op.BOR, torch.bitwise_or)]
    of_truths = [(op.SUM, either), (op.MAX, either), (op.BOR, either), (op.PRODUCT, both), (op.MIN, both), (op.BAND, both)]
    made = {**{dtype: of_integers for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64)},
            **{dtype: of_floats for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)},
            torch.bool: of_truths}
    for dtype, ways in made.items():
        is_wide = dtype in (torch.float16, torch.bfloat16) and not gloo_takes(torch, dist, dtype)
        for reduction, combine in ways:
            for count in COUNTS[1:]:
                of_ranks = [values(torch, count, other, torch.float32) > 0 if dtype is torch.bool else
                            values(torch, count, other, dtype) for other in range(size)]
                tensor, expected = of_ranks[rank].clone(), functools.reduce(combine, of_ranks)
                dist.all_reduce(tensor, op=reduction)
                assert torch.equal(tensor, expected), (dtype, reduction, count)
                num_calls += is_wide or dtype not in (torch.float16, torch.bfloat16) and (
                    reduction != op.PRODUCT or dtype not in (torch.int8, torch.uint8))
    columns = torch.full((4, 4), rank == 1)
    dist.all_reduce(columns[:, 2], op=op.MAX)
    assert columns.sum().item() == (16 if rank == 1 else 4), columns
    part = torch.empty(2, dtype=torch.int32)
    dist.reduce_scatter_tensor(part, torch.arange(2 * size, dtype=torch.int32) * (rank + 1), op=op.MAX)
    assert part.tolist() == [2 * rank * size, (2 * rank + 1) * size], part
    return num_calls + 2


def gathers(torch, dist, rank, size):
    """Bytes of any type, whose own part may lie in its place. Gloo's of torch 1.13 takes fewer types, and lists
    only, and divides by the number of elements."""
    is_one_way = os.environ.get("SWITCHML_ONE_WAY") != "0"
    for dtype in (torch.float32, torch.bool, torch.bfloat16) if is_one_way else (torch.float32,):
        for count in COUNTS if is_one_way else COUNTS[1:]:
            of_ranks = [values(torch, count, other, dtype) for other in range(size)]
            parts, everything = [torch.empty(count, dtype=dtype) for _ in range(size)], torch.cat(of_ranks)
            dist.all_gather(parts, of_ranks[rank])
            assert has_bits_of(torch, torch.cat(parts), everything), count
            if is_one_way or torch_ranks.torch_major() > 1:
                whole = torch.empty(size * count, dtype=dtype)
                dist.all_gather_into_tensor(whole, of_ranks[rank])
                assert has_bits_of(torch, whole, everything), count
                whole[:rank * count].fill_(0)
                whole[(rank + 1) * count:].fill_(0)
                dist.all_gather_into_tensor(whole, whole[rank * count:][:count])
                assert has_bits_of(torch, whole, everything), count
    if "device" in dist.distributed_c10d._coalescing_manager.__wrapped__.__code__.co_varnames:  # torch 2
        wholes = [torch.empty(size * count) for count in (3, 5000)]
        with dist.distributed_c10d._coalescing_manager():
            for whole in wholes:
                dist.all_gather_into_tensor(whole, torch.full((len(whole) // size,), float(rank)))
        for whole in wholes:
            assert torch.equal(whole, torch.arange(float(size)).repeat_interleave(len(whole) // size)), whole
    several = [[torch.empty(2) for _ in range(2 * size)] for _ in range(2)]
    dist.group.WORLD.allgather(several, [torch.full((2,), 2.0 * rank + number) for number in range(2)]).wait()
    assert all([each[0].item() for each in of_all] == list(range(2 * size)) for of_all in several), several
    takes_inference = is_one_way or torch_ranks.torch_major() > 1  # Gloo's of torch 1.13 does not
    with torch.inference_mode(takes_inference), torch.autograd.profiler.profile(record_shapes=True) as profile:
        parts = [torch.empty(5000) for _ in range(size)]
        dist.all_gather(parts, torch.full((5000,), float(rank)))
    assert torch.equal(torch.stack(parts)[:, 0], torch.arange(float(size))), parts
    if is_one_way:
        texts = [error_text(dist.all_gather_into_tensor, torch.empty(2 * size), torch.ones(2 * times, dtype=dtype))
                 for times, dtype in ((1, torch.int32), (2, torch.float16))]
        assert all(f"type, torch.{dtype}, not torch.float32" in text
                   for dtype, text in zip(("int32", "float16"), texts)), texts
        assert error_text(dist.all_gather, parts, torch.ones(5000, dtype=torch.int32))  # Gloo's
        with torch.inference_mode():
            whole = torch.empty(size, dtype=torch.uint8)
            work = dist.all_gather_into_tensor(whole, torch.full((1,), rank, dtype=torch.uint8), async_op=True)
            while not work.is_completed():  # by a thread of the group, which is in no such mode
                time.sleep(0.001)
            work.wait()
        assert whole.tolist() == list(range(size)), whole
    shapes = [event.input_shapes for event in profile.function_events if event.name.endswith(":all_gather")]
    assert shapes == [[[5000]]], shapes
    objects = [None] * size
    dist.all_gather_object(objects, "x" * rank)
    assert objects == ["x" * other for other in range(size)], objects


def orders(torch, dist, rank, size):
    """What is called behind calls that have not ended has what they give, and a barrier ends after all of them."""
    num_calls, total = 0, size * (size + 1) // 2
    for number in range(5):
        first, second = (torch.full((100_000 + number,), rank + 1.0) for _ in range(2))
        given, part = torch.full((1000 * size,), rank + 1.0), torch.empty(1000)
        gathered = [torch.empty(1000) for _ in range(size)]
        dist.all_reduce(first, async_op=True)
        dist.broadcast(first, number % size, async_op=True)    # of the sum
        dist.broadcast(second, number % size, async_op=True)   # beside it
        dist.all_reduce(given, async_op=True)
        dist.reduce_scatter_tensor(part, given, async_op=True)
        dist.all_gather(gathered, part, async_op=True)         # Gloo's
        dist.barrier()
        assert bool((first == total).all()) and bool((second == number % size + 1).all()), (first, second)
        assert all(bool((each == total * size).all()) for each in gathered), gathered
        num_calls += 5 + (size > 4)
    store = dist.distributed_c10d._get_default_store()
    for number in range(20):
        store.add(f"before {number}", 1)
        dist.barrier()
        assert store.add(f"before {number}", 0) == size
        num_calls += size > 4
    return num_calls


def forms(torch, dist, rank, size):
    """Of a group's methods, those that torch's functions do not use: one tensor, and names."""
    group, op = dist.group.WORLD, dist.ReduceOp
    tensor = torch.full((3,), float(rank))
    group.broadcast(tensor, root=1).wait()
    assert tensor.tolist() == [1.0] * 3, tensor
    tensor.fill_(rank)
    group.broadcast(tensor, 2).wait()
    assert tensor.tolist() == [2.0] * 3, tensor
    for call, expected in ((lambda: group.reduce(tensor, 0), size * (size - 1) / 2),
                           (lambda: group.reduce(tensor, root=0, op=op.MAX), size - 1.0)):
        tensor.fill_(rank)
        call().wait()
        assert rank != 0 or tensor.tolist() == [expected] * 3, tensor
    opts = dist.BroadcastOptions()
    opts.rootRank = size - 1
    tensor.fill_(rank)
    group.broadcast(opts=opts, tensors=[tensor]).wait()
    assert tensor.tolist() == [size - 1.0] * 3, tensor
    return 5


def case_sums():
    torch, dist, sml, rank, size = start(timeout_s=int(os.environ.get("CASE_TIMEOUT_S", "60")))
    num_calls = broadcasts(torch, dist, rank, size) + parts_of_sums(torch, dist, rank, size)
    num_calls += reductions(torch, dist, rank, size) + orders(torch, dist, rank, size)
    num_calls += forms(torch, dist, rank, size)
    gathers(torch, dist, rank, size)
    futures = [dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * size), async_op=True).get_future(),
               dist.broadcast(torch.full((4,), float(rank)), 1, async_op=True).get_future()]
    assert [future.wait()[0].tolist() for future in futures] == [[float(size)] * 3, [1.0] * 4]
    with torch.autograd.profiler.profile() as profile:
        dist.broadcast(torch.ones(6), 0)
    assert any(event.name.endswith(":broadcast") for event in profile.function_events)
    report(stats=sml.stats(), num_calls=num_calls + 3)
    dist.destroy_process_group()


def case_bytes():
    """What each rank sends, in units of the tensor."""
    torch, dist, sml, _, size = start()
    large, part, sent = torch.ones(NUM_LARGE), torch.empty(NUM_LARGE // size), []
    dist.all_reduce(torch.ones(1))
    for call in (lambda: dist.broadcast(large, 0), lambda: dist.reduce_scatter_tensor(part, large[:len(part) * size]),
                 lambda: dist.reduce(large, 1)):
        figures = []
        for _ in range(3):
            before = sml.stats()["tx_bytes"]
            call()
            dist.all_reduce(torch.ones(1))
            figures.append((sml.stats()["tx_bytes"] - before) / (4 * NUM_LARGE))
        sent.append(min(figures))
    report(sent=sent)
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_differ():
    """Rank 1 has another root, calls something else that sums alike, or has another length or type."""
    torch, dist, sml, rank, size = start(timeout_s=20)
    words, found = torch.ones(1000, dtype=torch.int32), []

    def broadcast(group, count=1000, root=0):
        dist.broadcast(words[:count], root, group=group)

    def all_gather(group, dtype=torch.int32):
        dist.all_gather([torch.empty(1000, dtype=dtype) for _ in range(size)], words.to(dtype), group=group)
    calls = [(functools.partial(broadcast, root=1), broadcast),
             (lambda group: dist.all_reduce(words, group=group), broadcast),
             (functools.partial(broadcast, count=999), broadcast),
             (functools.partial(all_gather, dtype=torch.float64), all_gather)]
    groups, store = [dist.new_group() for _ in calls], dist.distributed_c10d._get_default_store()
    for group, of_ranks in zip(groups, calls):
        store.add("ready", 1)  # a rank that came a second after the others would be named as one that calls nothing
        while store.add("ready", 0) < 3 * (len(found) + 1):
            time.sleep(0.005)
        text = error_text(of_ranks[rank != 1], group)
        found.append([text, list(getattr(sml.error(group), "ranks", ()))])
    report(found=found)


def case_killed():
    """Rank 2 dies, while the others are in another collective in each of several groups."""
    torch, dist, sml, rank, size = start()
    calls = [lambda group: dist.broadcast(torch.ones(100_000), 2, group=group),
             lambda group: dist.reduce_scatter_tensor(torch.empty(20_000), torch.ones(20_000 * size), group=group),
             lambda group: dist.reduce(torch.ones(100_000), 1, group=group), lambda group: dist.barrier(group=group)]
    groups, store = [dist.new_group() for _ in calls], dist.distributed_c10d._get_default_store()
    for group, call in zip(groups, calls):
        call(group)
    store.add("have called", 1)
    while rank == 2:
        if store.add("have called", 0) == size:
            os.kill(os.getpid(), signal.SIGKILL)
    report(texts=[error_text(call, group) for group, call in zip(groups, calls)],
           ranks=[list(sml.error(group).ranks) for group in groups])


def case_retry():
    """Each collective again and again, while the aggregator is killed in between: its bits are the same."""
    torch, dist, sml, rank, size = start()
    made, num_calls, deadline = torch.Generator().manual_seed(rank), 0, None
    while deadline is None or num_calls < deadline:
        given = torch.randn(40_000 * size, generator=made)
        whole, part, root = given.clone(), torch.empty(40_000), num_calls % size
        works = [dist.all_reduce(whole, async_op=True), dist.reduce_scatter_tensor(part, given, async_op=True),
                 dist.reduce(given, root, async_op=True)]
        for work in works:
            work.wait()
        assert has_bits_of(torch, part, whole[rank * 40_000:][:40_000])
        assert has_bits_of(torch, given, whole) == (rank == root)
        sent = whole.clone() if rank == root else torch.ones(len(whole))
        dist.broadcast(sent, root)
        assert has_bits_of(torch, sent, whole)
        dist.barrier()
        num_calls += 1
        rejoins = torch.tensor([sml.stats()["rejoins"]], dtype=torch.int32)
        dist.all_reduce(rejoins)
        if num_calls == 3 and rank == 0:
            print("ready", flush=True)
        if deadline is None and rejoins.item() >= size:
            deadline = num_calls + 3
    report(num_calls=num_calls, stats=sml.stats())
    dist.destroy_process_group()


def case_zero():
    """The optimizer that shards its state broadcasts parameters; DDP its first ones and its buffers."""
    torch, dist, sml, rank, size = start()
    from torch.distributed.optim import ZeroRedundancyOptimizer  # pylint: disable=import-outside-toplevel
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(20, 301), torch.nn.BatchNorm1d(301), torch.nn.ReLU(), torch.nn.Linear(301, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    data, losses, before = torch.Generator().manual_seed(1), [], sml.stats()["offloaded_calls"]
    for _ in range(6):
        inputs = torch.randn(16 * size, 20, generator=data)
        loss = torch.nn.functional.cross_entropy(ddp(inputs[rank::size]), (inputs.sum(dim=1) > 0).long()[rank::size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(each, flat) for each in everyone) and losses[-1] < losses[0], losses
    report(at_start=before, offloaded=sml.stats()["offloaded_calls"])
    dist.destroy_process_group()


# ---- The tests -----------------------------------------------------------------------------------------

def test_bits_and_order_over_the_network_in_memory_and_without_an_aggregator():
    with Daemon() as daemon:
        for num_ranks, aggregator, shared_memory in ((3, daemon.address, "0"), (5, daemon.address, "1"), (5, None, "0")):
            for result in run_ranks("sums", num_ranks, aggregator, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY=shared_memory,
                                    SWITCHML_ONE_WAY="0"):
                stats = result["stats"]
                assert stats["offloaded_calls"] == result["num_calls"] and stats["fallback_calls"] == 0, result


def test_all_gathers_where_they_go_one_way():
    with Daemon() as daemon:
        for aggregator in daemon.address, f"127.0.0.1:{torch_ranks.fixed_port()}":
            for result in run_ranks("sums", 3, aggregator, CASE_TIMEOUT_S="5"):
                stats = result["stats"]
                counter = "offloaded_calls" if aggregator == daemon.address else "fallback_calls"
                assert stats[counter] > result["num_calls"] + 3 * 3 * len(COUNTS) and stats["failed_calls"] == 0, result


def test_the_same_answers_where_gloo_stands_in():
    """The aggregator is not there: what a rank would have summed by SwitchML goes to Gloo, on all ranks."""
    for result in run_ranks("sums", 3, f"127.0.0.1:{torch_ranks.fixed_port()}", SWITCHML_ONE_WAY="0", CASE_TIMEOUT_S="5"):
        stats = result["stats"]
        assert stats["offloaded_calls"] == 0 and stats["fallback_calls"] == result["num_calls"], result


def test_each_rank_sends_a_tensor_once():
    """As sums. One way it sends what others want: of a broadcast the root all, of a reduction to rank 1 all others."""
    with Daemon() as daemon:
        for one_way in (None, "0"):
            for rank, result in enumerate(run_ranks("bytes", 3, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_ONE_WAY=one_way)):
                least = (1, 1, 1) if one_way == "0" else (rank == 0, 2 / 3, rank != 1)
                print(f"# sent, in units of the tensor: {result['sent']}", flush=True)
                assert all(share < sent < share + 0.12 for share, sent in zip(least, result["sent"])), (rank, result)


def test_ranks_that_differ_are_named():
    broadcast = "broadcast of int32[1000] of rank 0"
    words = [(broadcast, "broadcast of int32[1000] of rank 1"), (broadcast, "all_reduce(SUM) of int32[1000]"),
             (broadcast, "broadcast of int32[999] of rank 0"),
             ("all_gather of int32[1000]", "all_gather of float64[1000]")]
    with Daemon() as daemon:
        for result in run_ranks("differ", 3, daemon.address):
            assert len(result["found"]) == len(words), result
            for (text, ranks), (others, ours) in zip(result["found"], words):
                assert f"ranks 0, 2: {others}; rank 1: {ours}" in text and ranks == [1], result


def test_killed_rank_is_named_in_each():
    with Daemon() as daemon:
        results = Ranks("killed", 5, daemon.address, SWITCHML_REQUIRE="1").wait(but=(2,))
        for rank in (0, 1, 3, 4):
            assert results[rank]["ranks"] == [[2]] * 4 and all("rank 2" in text for text in results[rank]["texts"]), results


def test_the_same_bits_at_an_aggregators_successor():
    with Daemon() as daemon:
        ranks = Ranks("retry", 5, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_RETRY="60")
        deadline = time.monotonic() + torch_ranks.patience_s(60)
        while os.fstat(ranks.outputs[0].fileno()).st_size == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        daemon.process.kill()
        daemon.process.wait()
        daemon.process.stderr.close()
        daemon.process = daemon.started()
        for result in ranks.wait():
            assert result["stats"]["rejoins"] >= 1 and result["stats"]["failed_calls"] == 0, result


def test_sharded_optimizer_and_ddp():
    with Daemon() as daemon:
        for result in run_ranks("zero", 3, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["at_start"] > 0 and result["offloaded"] > result["at_start"] + 12, result


if __name__ == "__main__":
    torch_ranks.main(globals())
