#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend: what comes after what, and who may wait where. Calls whose handles nobody keeps, collectives
behind them that go through Gloo, handles that only C++ holds, waits inside of callbacks, and the end of a program."""
import datetime
import math
import os
import signal
import threading
import time

import torch_ranks
from torch_ranks import Daemon, ends_as_interpreters_do, error_text, leave, report, run_ranks, start

NUM_ROUNDS, NUM_DROPPED = 20, 20


def small_model(torch, rank):
    torch.manual_seed(7 + rank)
    return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))


def step(torch, ddp, optimizer, inputs):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(inputs), (inputs.sum(dim=1) > 0).long())
    loss.backward()
    optimizer.step()
    return loss.item()


def is_equal_everywhere(torch, dist, model, size):
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    gathered = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(gathered, flat)
    return all(torch.equal(other.view(torch.int32), flat.view(torch.int32)) for other in gathered)


@ends_as_interpreters_do
def case_dropped():
    """Whose handle is dropped is there after a barrier, and before whatever collective follows."""
    torch, dist, sml, rank, size = start()
    missing, total = 0, sum(range(1, size + 1))
    for number in range(NUM_ROUNDS):
        tensors = [torch.full((1000 + number,), rank + 1.0) for _ in range(NUM_DROPPED)]
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        missing += sum(tensor[-1].item() != total for tensor in tensors)
    early = 0
    for number in range(NUM_ROUNDS):
        tensor = torch.full((50_000,), rank + 1.0)
        dist.all_reduce(tensor, async_op=True)
        gathered = [torch.empty(50_000) for _ in range(size)]
        works = [dist.all_gather(gathered, tensor, async_op=True)]
        product = torch.tensor([rank + 1.0])
        works.append(dist.all_reduce(product, op=dist.ReduceOp.PRODUCT, async_op=True))  # a second one that Gloo does
        for work in works:
            work.wait()
        early += sum(not torch.equal(other, torch.full_like(other, total)) for other in gathered)
        assert product.item() == math.factorial(size)
    report(missing=missing, early=early, stats=sml.stats())
    dist.destroy_process_group()


def case_one_tensor():
    """Calls on one tensor, or views of it, of which nobody has waited for the first: each begins with the result of those
    before. Other parts of the same storage stay apart."""
    torch, dist, _, rank, size = start()
    storage = torch.empty(300_000, 2)
    for tensor in storage.view(-1), storage[:, 0], storage[100_000:]:
        storage.fill_(1)
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(6)]
        for work in works:
            work.wait()
        assert torch.equal(tensor, torch.full_like(tensor, float(size ** 6))), (tensor.min(), tensor.max())
    storage.fill_(rank)
    works = [dist.broadcast(storage, size - 1, async_op=True), dist.all_reduce(storage[7:], async_op=True),
             dist.all_reduce_coalesced([storage[200_000:200_001], storage[-1:]], async_op=True)]
    for work in works:
        work.wait()
    for part, factor in ((storage[:7], 1), (storage[7:200_000], size), (storage[200_001:-1], size), (storage[-1:], size * size)):
        assert torch.equal(part, torch.full_like(part, (size - 1.0) * factor)), (factor, part.min(), part.max())
    report(is_done=True)
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_copied_back():
    """What is left to do when Gloo has ended, copies into strided tensors and divisions, is done before a barrier ends."""
    torch, dist, _, rank, size = start()
    early = 0
    for number in range(NUM_ROUNDS):
        columns = torch.zeros(200_000 + number, 2)
        received, sent = columns[:size * 50_000, 0], torch.full((size * 50_000,), rank + 1.0)
        mean = torch.full((100_000,), rank + 1.0, dtype=torch.float64)
        dist.all_to_all_single(received, sent, async_op=True)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True)
        dist.barrier()
        early += received[-1].item() != size or mean[-1].item() != (size + 1) / 2
    report(early=early)
    dist.destroy_process_group()


def case_ranges():
    """Within a range a call that Gloo does can be waited for, too; and where its packets end no rank decides alone."""
    torch, dist, _, rank, size = start(timeout_s=20)
    group = dist.distributed_c10d._get_default_group()
    few, doubles = [torch.full((10,), rank + 1.0) for _ in range(6)], torch.full((10,), rank + 1.0, dtype=torch.float64)
    group._start_coalescing()
    dist.all_reduce(few[0], async_op=True)
    dist.all_reduce(doubles)
    dist.all_reduce(few[1], async_op=True)
    dist.barrier()
    group._end_coalescing()
    long = torch.ones(2_000_000)
    works = [dist.all_reduce(long, async_op=True) for _ in range(2)]  # the second begins when the first has ended
    group._start_coalescing()
    works.append(dist.all_reduce(few[2], async_op=True))
    time.sleep(rank)
    works[1].wait()  # begun on rank 1 alone
    dist.all_reduce(few[3])
    works.append(dist.reduce(long, 0, async_op=True))
    time.sleep(rank)
    works.append(dist.all_reduce(doubles, async_op=True))  # on rank 0 there are calls before it yet
    works.append(dist.all_reduce(few[4], async_op=True))
    works[-3].wait()
    works.append(dist.all_reduce(few[5], async_op=True))
    group._end_coalescing()
    for work in works:
        work.wait()
    dist.barrier()
    assert all(torch.equal(each, torch.full_like(each, size * (size + 1) / 2)) for each in few), few
    report(is_done=True)
    dist.destroy_process_group()


def case_failing():
    """What Gloo was to do behind a call that fails ends with the reason of that."""
    torch, dist, _, rank, size = start(timeout_s=3)
    store, texts = dist.distributed_c10d._get_default_store(), []
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    if rank == 0:
        works = [dist.all_reduce(torch.ones(3), async_op=True),  # rank 1 does not call it
                 dist.all_to_all_single(torch.empty(size), torch.ones(size), async_op=True)]
        texts = [error_text(work.wait, datetime.timedelta(seconds=12)) for work in works]
        store.set("over", "1")
        time.sleep(1)  # it has the store
    else:
        store.set_timeout(datetime.timedelta(seconds=60))
        store.wait(["over"])
    report(texts=texts)


def case_beside():
    """Groups begin with Gloo at the same time, in another order on each rank."""
    torch, dist, _, rank, size = start(timeout_s=20)
    groups = [dist.new_group(timeout=datetime.timedelta(seconds=20)) for _ in range(6)]
    tensors = [torch.full((10,), rank + 1.0) for _ in groups]
    works = [dist.all_reduce(tensor, group=group, async_op=True)
             for tensor, group in list(zip(tensors, groups))[::1 if rank == 0 else -1]]
    for work in works:
        work.wait()
    assert all(torch.equal(tensor, torch.full_like(tensor, size * (size + 1) / 2)) for tensor in tensors), tensors
    report(is_done=True)
    leave(dist, groups)


def case_store_in_use():
    """A group's first call goes on while this process waits in the script's store, for a rank that waits for the call."""
    torch, dist, _, rank, size = start(timeout_s=20)
    store, tensor = dist.distributed_c10d._get_default_store(), torch.full((10,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        store.wait(["the call has ended"], datetime.timedelta(seconds=15))
    work.wait()
    if rank > 0:
        store.set("the call has ended", "1")
    assert torch.equal(tensor, torch.full_like(tensor, size * (size + 1) / 2)), tensor
    report(is_done=True)
    dist.destroy_process_group()


def case_alone():
    """A group of one rank leaves nothing behind either."""
    torch, dist, _, rank, size = start()
    figures = []
    for _ in range(4):
        groups = [dist.new_group([other]) for other in range(size)]
        dist.all_reduce(torch.ones(3, dtype=torch.float64), group=groups[rank])  # Gloo's
        dist.destroy_process_group(groups[rank])
        del groups
        dist.barrier()
        figures.append(len(os.listdir("/proc/self/task")))
    report(figures=figures)
    dist.destroy_process_group()


def case_forked():
    """A handle is of no use in a forked process, and says so."""
    torch, dist, _, rank, size = start()
    tensor = torch.full((10,), rank + 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    child = os.fork()
    if child == 0:
        print(error_text(work.wait), flush=True)
        os._exit(0 if "forked" in error_text(work.wait) else 1)
    assert os.waitpid(child, 0)[1] == 0
    work.wait()
    assert tensor[0].item() == size * (size + 1) / 2
    dist.destroy_process_group()


def case_alarm():
    """A signal handler that raises breaks off the wait, and not the call, whose tensors the library still has."""
    torch, dist, _, rank, size = start()
    dist.all_reduce(torch.ones(1))

    def handler(_signal, _frame):
        raise TimeoutError("the alarm")
    signal.signal(signal.SIGALRM, handler)
    tensors, texts = [torch.full((100_000,), rank + 1.0) for _ in range(2)], []
    for tensor, is_async in zip(tensors, (True, False)):
        if rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
        else:
            time.sleep(1.5)
        try:
            work = dist.all_reduce(tensor, async_op=is_async)
            work = work and work.wait()
        except TimeoutError as error:
            texts.append(str(error))
    dist.barrier()
    assert all(torch.equal(tensor, torch.full_like(tensor, size * (size + 1) / 2)) for tensor in tensors)
    report(texts=texts)
    dist.destroy_process_group()


def case_broken_off():
    """The same where it comes between this thread's taking up the oldest call and its completing it, with the lock or
    without."""
    torch, dist, _, rank, size = start()
    offload, texts = dist.distributed_c10d._get_default_group()._offload, []

    def breaks_off(*arguments):
        if threading.current_thread() is not threading.main_thread():
            return type(offload)._complete(offload, *arguments)
        del offload._complete
        offload.changed.acquire()
        raise TimeoutError("the alarm")
    tensors = [torch.full((1000,), rank + 1.0) for _ in range(50)]
    for tensor in tensors:
        if rank == 0:
            offload._complete = breaks_off
        try:
            dist.all_reduce(tensor)
        except TimeoutError as error:
            texts.append(str(error))
            assert not offload.changed._is_owned()
    offload.__dict__.pop("_complete", None)
    dist.barrier()
    assert all(torch.equal(tensor, torch.full_like(tensor, size * (size + 1) / 2)) for tensor in tensors)
    report(texts=texts)
    dist.destroy_process_group()


def case_between():
    """A message between two ranks is no collective: it may be what the other rank waits for before it calls."""
    torch, dist, _, rank, size = start()
    for _ in range(5):
        tensor = torch.full((1000,), rank + 1.0)
        if rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            gathered = [torch.empty(1) for _ in range(size)]
            later = dist.all_gather(gathered, torch.ones(1), async_op=True)
            for other in range(1, size):
                dist.send(torch.ones(4), dst=other)
            work.wait()
            later.wait()
        else:
            dist.recv(torch.empty(4), src=0)
            dist.all_reduce(tensor)
            gathered = [torch.empty(1) for _ in range(size)]
            dist.all_gather(gathered, torch.ones(1))
        assert tensor[0].item() == size * (size + 1) / 2
        assert sum(each.item() for each in gathered) == size
    report(is_done=True)
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_nobody_waits():
    """Calls that nobody waits for end as fast as others, not one in a while."""
    torch, dist, sml, rank, _ = start()
    dist.all_reduce(torch.ones(4))
    tensors = [torch.full((4,), float(rank)) for _ in range(400)]
    began = time.monotonic()
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    while sml.stats()["offloaded_calls"] < 401 and time.monotonic() < began + 60:
        time.sleep(0.01)
    report(took_s=time.monotonic() - began)
    dist.destroy_process_group()


def case_join():
    """DDP's join(): it hands a Work to C++, and keeps nothing of it."""
    torch, dist, sml, rank, size = start()
    data, losses = torch.Generator().manual_seed(3), []
    for divides_by_all in (True, False):
        model = small_model(torch, rank)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        with ddp.join(divide_by_initial_world_size=divides_by_all):
            for _ in range(4 + 3 * rank):  # uneven inputs
                losses.append(step(torch, ddp, optimizer, torch.randn(8, 20, generator=data)))
        assert is_equal_everywhere(torch, dist, model, size)
    report(losses=len(losses), offloaded=sml.stats()["offloaded_calls"])
    dist.destroy_process_group()


def case_powersgd():
    """Its hook waits for all-reduces within callbacks of others."""
    torch, dist, sml, rank, size = start()
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook  # pylint: disable=import-outside-toplevel
    data = torch.Generator().manual_seed(5 + rank)
    for state, hook in ((powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2),
                         powerSGD_hook.powerSGD_hook), (None, default_hooks.fp16_compress_hook)):
        model = small_model(torch, rank)
        ddp = torch.nn.parallel.DistributedDataParallel(model)  # of one bucket: see case_callbacks
        ddp.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
        losses = [step(torch, ddp, optimizer, torch.randn(64, 20, generator=data)) for _ in range(12)]
        assert is_equal_everywhere(torch, dist, model, size) and losses[-1] < losses[0], losses
    report(offloaded=sml.stats()["offloaded_calls"])
    dist.destroy_process_group()


def case_callbacks():
    """A callback may wait for later calls of its group, also where several do, and within callbacks of those."""
    torch, dist, _, rank, size = start()

    def summed(tensor):
        return dist.all_reduce(tensor, async_op=True).get_future()

    def again(depth):
        def callback(done):
            tensor = done.value()[0]
            if depth == 0:
                dist.all_reduce(tensor)  # waits, too
                return tensor
            return summed(tensor).then(again(depth - 1)).wait()
        return callback

    # One after the other: when a callback runs, among the calls that the script makes meanwhile, differs from rank to rank.
    for number in range(3):
        for depth in range(4):
            future = summed(torch.full((100,), 1.0)).then(again(depth))
            assert future.wait()[0].item() == float(size) ** (depth + 2), (number, depth)
    # Callbacks run in the order of their calls: always, if a callback that the machine stops for a while is waited for.
    from switchml import offload  # pylint: disable=import-outside-toplevel
    patience_s, offload._PATIENCE_S = offload._PATIENCE_S, 100
    seen = []
    futures = [summed(torch.full((10,), float(number))).then(lambda _, number=number: seen.append(number))
               for number in range(300)]
    for future in futures:
        future.wait()
    assert seen == list(range(300)), seen
    offload._PATIENCE_S = patience_s
    # A callback that waits for the future of a call that was made before it ran
    first, second = summed(torch.ones(100_000)), summed(torch.full((10,), 3.0))
    first = first.then(lambda _: second.wait()[0])
    assert first.wait()[0].item() == 3.0 * size
    report(rank=rank)
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_kept():
    """What a thread of Gloo may still hold at exit: tensors that the script has dropped, and none before them."""
    torch, dist, _, _, _ = start()
    from switchml import gloo  # pylint: disable=import-outside-toplevel
    held = []
    for number in range(40):
        tensor = torch.full((8,), float(number), requires_grad=True)
        held.append((tensor * tensor).grad_fn)  # C++ holds the tensor on, as a thread of Gloo does
        with torch.no_grad():
            dist.all_reduce(tensor)
        del tensor
    report(num_kept=gloo.end())
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_soon_over():
    """The program ends just when the thread of its destroyed group does, which is the last to hold Gloo's group."""
    torch, dist, _, _, _ = start()
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    time.sleep(float(os.environ["SLEEP_S"]))


# ---- The tests -----------------------------------------------------------------------------------------

def test_a_barrier_comes_after_calls_whose_handles_are_dropped():
    for shared_memory in "01":
        with Daemon() as daemon:
            for result in run_ranks("dropped", 3, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_ONE_WAY="0",
                                    SWITCHML_SHARED_MEMORY=shared_memory):
                assert result["missing"] == 0 and result["early"] == 0, result
                assert result["stats"]["offloaded_calls"] == NUM_ROUNDS * (NUM_DROPPED + 1), result


def test_calls_on_one_tensor_follow_each_other():
    for shared_memory in "01":
        with Daemon() as daemon:
            run_ranks("one_tensor", 3, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY=shared_memory)


def test_a_barrier_comes_after_what_is_left_to_do_behind_gloo():
    for shared_memory in "01":
        for result in run_ranks("copied_back", 2, SWITCHML_SHARED_MEMORY=shared_memory):
            assert result["early"] == 0, result


def test_waits_within_ranges():
    for shared_memory in "01":
        with Daemon() as daemon:
            run_ranks("ranges", 2, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY=shared_memory)


def test_what_stands_behind_a_call_that_fails_ends():
    texts = run_ranks("failing", 2)[0]["texts"]
    assert len(texts) == 2 and all("rank 1" in text for text in texts), texts


def test_groups_begin_with_gloo_beside_each_other():
    """No job can be had: to try again, ranks want a switchmld."""
    run_ranks("beside", 2, SWITCHML_RETRY="20")


def test_first_call_goes_on_while_a_script_waits_in_the_store():
    for environment in {}, {"SWITCHML_RETRY": "20"}:  # the second can have no job
        run_ranks("store_in_use", 2, **environment)


def test_groups_of_one_rank_leave_nothing():
    for result in run_ranks("alone", 2):
        assert result["figures"][-1] <= result["figures"][1], result


def test_handles_are_of_no_use_in_forked_processes():
    run_ranks("forked", 2)


def test_an_alarm_breaks_off_a_wait_and_no_call():
    for shared_memory in "01":
        results = run_ranks("alarm", 2, SWITCHML_SHARED_MEMORY=shared_memory)
        assert [result["texts"] for result in results] == [["the alarm"] * 2, []], results
    results = run_ranks("broken_off", 2)
    assert results[0]["texts"] and not results[1]["texts"], results


def test_messages_between_ranks_wait_for_no_collective():
    with Daemon() as daemon:
        run_ranks("between", 3, daemon.address, SWITCHML_REQUIRE="1")


def test_calls_that_nobody_waits_for_end():
    with Daemon() as daemon:
        for result in run_ranks("nobody_waits", 2, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["took_s"] < 10, result  # one in 50 ms would be 20 s


def test_join_hands_works_to_cpp():
    with Daemon() as daemon:
        for result in run_ranks("join", 2, daemon.address):
            assert result["losses"] > 0 and result["offloaded"] > 0, result


def test_hooks_that_wait_in_callbacks():
    with Daemon() as daemon:
        for result in run_ranks("powersgd", 2, daemon.address):
            assert result["offloaded"] > 0, result


def test_callbacks_may_wait():
    with Daemon() as daemon:
        run_ranks("callbacks", 2, daemon.address, SWITCHML_REQUIRE="1")


def test_a_program_may_end_just_after_its_group():
    for sleep_s in "0.001", "0.003", "0.01":
        run_ranks("soon_over", 3, SLEEP_S=sleep_s, SWITCHML_SHARED_MEMORY="1")


def test_tensors_of_the_last_calls_outlive_the_interpreter():
    for result in run_ranks("kept", 2, SWITCHML_DISABLE="1"):
        assert result["num_kept"] == 16, result


if __name__ == "__main__":
    torch_ranks.main(globals())
