#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend under what PyTorch 2 builds on groups: functional collectives, distributed tensors, checkpoints in
the background, ranges of calls, and groups of several backends. Skipped on PyTorch 1."""
import datetime
import os
import runpy
import sys
import tempfile

import tap
import torch_ranks
from torch_ranks import Daemon, Ranks, ends_as_interpreters_do, error_text, report, run_ranks, start

NUM_IN_RANGE, NUM_FSDP_STEPS, NUM_OVERLAPPED_STEPS = 8, 30, 20


def case_functional():
    torch, dist, sml, rank, size = start()
    from torch.distributed import _functional_collectives as functional  # pylint: disable=import-outside-toplevel
    group = dist.group.WORLD
    assert torch.device("cpu") in group._device_types, group._device_types
    own = torch.full((1000,), rank + 1.0)
    total = functional.all_reduce(own, "sum", group)
    assert torch.equal(functional.wait_tensor(total), torch.full_like(own, size * (size + 1) / 2)), total
    gathered = functional.all_gather_tensor(own[:2], 0, group)
    assert gathered.tolist() == [rank + 1.0 for rank in range(size) for _ in range(2)], gathered
    part = functional.reduce_scatter_tensor(torch.arange(2.0 * size), "sum", 0, group)
    assert part.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size], part
    swapped = functional.all_to_all_single(torch.full((size,), float(rank)), None, None, group)
    assert swapped.tolist() == list(range(size)), swapped
    several = functional.all_reduce_coalesced([torch.ones(3), torch.ones(5)], "sum", group)
    assert all(each.sum().item() == size * each.numel() for each in several)
    assert torch.equal(functional.broadcast(own, 0, group), torch.ones(1000))
    report(stats=sml.stats())
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_functional_failure():
    """Rank 1 dies. C++ waits for what functional collectives began, and says why it has not ended."""
    torch, dist, sml, rank, _ = start()
    from torch.distributed import _functional_collectives as functional  # pylint: disable=import-outside-toplevel
    functional.wait_tensor(functional.all_reduce(torch.ones(9), "sum", dist.group.WORLD))
    dist.barrier()
    if rank == 1:
        os._exit(7)
    texts = [error_text(lambda: functional.wait_tensor(functional.all_reduce(torch.ones(9), "sum", dist.group.WORLD))),
             error_text(lambda: functional.wait_tensor(functional.broadcast(torch.ones(9), 0, dist.group.WORLD)))]
    report(texts=texts, ranks=list(sml.error().ranks))


def case_behind():
    """Collectives of Gloo's behind a call that has not ended, those whose Work has no future among them."""
    torch, dist, sml, rank, size = start()
    for _ in range(20):
        dist.all_reduce(torch.ones(100_000), async_op=True)
        part = torch.empty(2)
        work = dist.reduce_scatter_tensor(part, torch.arange(2.0 * size), async_op=True)
        gathered = torch.empty(2 * size)
        dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
        work.wait()
        assert part.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size], part
        assert gathered.tolist() == [float(rank) for rank in range(size) for _ in range(2)], gathered
    report(stats=sml.stats())
    dist.destroy_process_group()


def case_stand_in():
    """What functional collectives return stands for the tensor of a call that may not have ended."""
    torch, dist, sml, rank, size = start()
    from torch.distributed import _functional_collectives as functional  # pylint: disable=import-outside-toplevel
    total = functional.all_reduce(torch.full((500,), rank + 1.0), "sum", dist.group.WORLD)
    for each in functional.all_gather_tensor(torch.full((2,), rank + 1.0), 0, dist.group.WORLD), total:
        dist.all_reduce(each)
    assert torch.equal(total * 1, torch.full((500,), size * size * (size + 1) / 2)), total
    report(stats=sml.stats())
    dist.destroy_process_group()


def case_dtensor():
    torch, dist, sml, rank, size = start()
    from torch.distributed.device_mesh import init_device_mesh  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # pylint: disable=import-outside-toplevel
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    left, right = torch.randn(40, 60), torch.randn(60, 30)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    whole = product.redistribute(mesh, [Replicate()]).to_local()
    assert torch.allclose(whole, left @ right, atol=1e-4)
    assert torch.equal(distribute_tensor(left, mesh, [Shard(0)]).full_tensor(), left)
    report(stats=sml.stats(), rank=rank)
    dist.destroy_process_group()


def trained_by_fsdp(torch, dist, rank, size):
    """All parameters after some steps, the same on all ranks."""
    from torch.distributed.fsdp import FullyShardedDataParallel  # pylint: disable=import-outside-toplevel

    def shard(module):
        return FullyShardedDataParallel(module, device_id=torch.device("cpu"))
    torch.manual_seed(5)
    layers = [torch.nn.Sequential(torch.nn.Linear(20, 301), torch.nn.ReLU()), torch.nn.Linear(301, 300),
              torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(300, 3))]
    model = shard(torch.nn.Sequential(*map(shard, layers)))
    optimizer, data = torch.optim.Adam(model.parameters(), lr=0.01), torch.Generator().manual_seed(9)
    for _ in range(NUM_FSDP_STEPS):
        inputs = torch.randn(8 * size, 20, generator=data)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[rank::size]), (inputs.sum(dim=1) > 0).long()[rank::size]).backward()
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(each.view(torch.int32), flat.view(torch.int32)) for each in everyone)
    return flat


def case_fsdp():
    """Parameters sharded, twice: with our reduce-scatter, and with all-reduce and slice in its place."""
    torch, dist, sml, rank, size = start()
    group_type, num_calls = type(dist.distributed_c10d._get_default_group()), []
    name = "reduce_scatter_single" if hasattr(dist.ProcessGroup, "reduce_scatter_single") else "_reduce_scatter_base"
    ours = getattr(group_type, name)

    def all_reduce_and_slice(group, output, given, *_):
        whole = given.clone()
        work = group.allreduce([whole])
        work.wait()
        output.copy_(whole[group.rank() * len(output):][:len(output)])
        return work

    def counted(*given):
        num_calls.append(1)
        return ours(*given)

    setattr(group_type, name, counted)
    flat = trained_by_fsdp(torch, dist, rank, size)
    setattr(group_type, name, all_reduce_and_slice)
    other = trained_by_fsdp(torch, dist, rank, size)
    assert torch.equal(flat.view(torch.int32), other.view(torch.int32))
    report(stats=sml.stats(), num_calls=len(num_calls))
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_fsdp2():
    """examples/pytorch/fsdp2.py in its short form. Counts its reduce-scatters and all-gathers."""
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch as sml  # pylint: disable=import-outside-toplevel
    if not hasattr(torch.cpu.Stream, "record_event"):
        return
    end, found = dist.destroy_process_group, {}
    dist.destroy_process_group = lambda: (found.update(sml.stats()), end())
    sys.argv = ["fsdp2.py", "--steps", str(NUM_FSDP_STEPS)]
    runpy.run_path(os.path.join(torch_ranks.ROOT, "examples/pytorch/fsdp2.py"), run_name="__main__")
    report(stats=found)


def case_fsdp2_overlapped():
    """Steps of FSDP2 whose collectives are under way at once end in the bits of all-reduces with slices, one after the other."""
    torch, dist, sml, rank, size = start()
    if not hasattr(torch.cpu.Stream, "record_event"):
        return
    import switchml.fsdp  # pylint: disable=import-outside-toplevel
    from torch.distributed.fsdp import fully_shard  # pylint: disable=import-outside-toplevel,no-name-in-module

    class AllReduceAndSlice:
        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            dist.all_reduce(input_tensor, op, group)
            output_tensor.copy_(input_tensor[rank * len(output_tensor):][:len(output_tensor)])

    def trained(is_overlapped):
        torch.manual_seed(1)
        model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(96, 96), torch.nn.Tanh())],
                                    torch.nn.Linear(96, 3))
        mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
        for layer in model[::2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if is_overlapped:
            switchml.fsdp.overlap(model)
        for layer in () if is_overlapped else model[::2]:
            layer.set_custom_reduce_scatter(AllReduceAndSlice())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        drawn = torch.Generator().manual_seed(rank)
        for step in range(NUM_OVERLAPPED_STEPS):
            for _ in range(1 + step % 2):  # gradients of two passes add up
                model(torch.randn(4, 96, generator=drawn)).square().sum().backward()
            assert all(type(each.grad._local_tensor) is torch.Tensor for each in model.parameters())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([each.detach().full_tensor().flatten() for each in model.parameters()])

    flat, other = trained(True), trained(False)
    assert torch.equal(flat.view(torch.int32), other.view(torch.int32))
    everyone = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(each.view(torch.int32), flat.view(torch.int32)) for each in everyone)
    report(stats=sml.stats())
    dist.destroy_process_group()


def case_fsdp2_lost():
    """Rank 1 dies within a backward pass: the others' ends with its name."""
    torch, dist, sml, rank, size = start()
    dist.barrier()  # else who returns now is gone while others still connect
    if not hasattr(torch.cpu.Stream, "record_event"):
        return
    import switchml.fsdp  # pylint: disable=import-outside-toplevel
    from torch.distributed.fsdp import fully_shard  # pylint: disable=import-outside-toplevel,no-name-in-module
    model = torch.nn.Sequential(*[torch.nn.Linear(96, 96) for _ in range(4)])
    for layer in model:
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))
    switchml.fsdp.overlap(model)
    result = model(torch.ones(4, 96)).square().sum()
    dist.barrier()
    if rank == 1:
        os._exit(7)
    report(text=error_text(result.backward), ranks=list(sml.error().ranks))


@ends_as_interpreters_do
def case_async_save():
    torch, dist, sml, rank, size = start()
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    folder, state = os.environ["CASE_FOLDER"], {"weights": torch.arange(1000.0)}
    saved = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group())  # whose calls take turns with no others
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    saved.result()
    dist.barrier()
    loaded = {"weights": torch.zeros(1000)}
    dcp.load(loaded, checkpoint_id=folder)
    assert torch.equal(loaded["weights"], state["weights"]) and tensor[0].item() == size
    report(stats=sml.stats(), rank=rank)
    dist.destroy_process_group()


def case_ranges():
    torch, dist, sml, rank, size = start()
    manager = dist.distributed_c10d._coalescing_manager
    for arguments in ({"device": torch.device("cpu")}, {}):
        for is_async in (False, True):
            tensors = [torch.full((10,), float(rank + number)) for number in range(NUM_IN_RANGE)]
            with manager(async_ops=is_async, **arguments) as range_of_calls:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            if is_async:
                assert range_of_calls.works
                range_of_calls.wait()
            for number, tensor in enumerate(tensors):
                assert tensor[0].item() == sum(range(size)) + number * size, (arguments, is_async, number, tensor)
    # Calls that torch does not put together; the names that torch 2.14 calls the range by; and Gloo's calls within.
    group = dist.group.WORLD
    group.start_coalescing(torch.device("cpu"))
    tensors = [torch.full((10 + number,), 1.0) for number in range(NUM_IN_RANGE)]
    for tensor in tensors:
        group.allreduce([tensor])
    gathered = torch.empty(2 * size)
    group.all_gather_single(gathered, torch.full((2,), float(rank)))
    work = group.end_coalescing(torch.device("cpu"))
    work.wait()
    assert all(tensor.sum().item() == size * tensor.numel() for tensor in tensors)
    assert gathered.tolist() == [float(rank) for rank in range(size) for _ in range(2)]
    part = torch.empty(2)
    group.reduce_scatter_single(part, torch.arange(2.0 * size)).wait()
    assert part.tolist() == [2.0 * rank * size, (2.0 * rank + 1) * size]
    if hasattr(dist, "gather_single"):  # torch 2.14
        texts = []
        for each in dist.new_group(backend="gloo"), group:
            gathered = torch.zeros(2 * size) if rank == 0 else None
            texts.append(error_text(dist.gather_single, torch.full((2,), float(rank)), gathered, 0, each))
            assert rank or texts[-1] or gathered.tolist() == [float(rank) for rank in range(size) for _ in range(2)]
        assert bool(texts[0]) == bool(texts[1]), texts
    report(stats=sml.stats())
    dist.destroy_process_group()


def case_devices():
    """A backend for another kind of device beside ours: torch's `meta`, whose tensors any machine has."""
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch as sml  # pylint: disable=import-outside-toplevel
    made = []

    def make(store, rank, size, timeout):
        made.append(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))
        return made[-1]

    dist.Backend.register_backend("others", make, devices=["cuda"])
    dist.init_process_group(os.environ["CASE_NAME"])
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    assert len(made) == 1 and group._get_backend(torch.device("cuda")) is made[0], made
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    calls = []
    group.others["meta"] = (type("Other", (), {"allreduce": lambda self, *given: calls.append(given)})(), "others")
    group.allreduce([torch.empty(3, device="meta")])
    tensor = torch.full((500,), rank + 1.0)
    dist.all_reduce(tensor)
    assert len(calls) == 1 and tensor[0].item() == size * (size + 1) / 2 and sml.stats()["offloaded_calls"] == 1
    dist.destroy_process_group()
    report(is_done=True)


def case_nccl():
    """A stand-in for NCCL, which Debian's PyTorch has not: its class, under which there is a group of Gloo's."""
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch as sml  # pylint: disable=import-outside-toplevel
    made = []

    class Kind(type):
        def __instancecheck__(cls, instance):
            return any(instance is group for _, group in made)

    class Nccl(metaclass=Kind):
        class Options:
            global_ranks_in_group = group_name = _timeout = None

        def __new__(cls, store, rank, size, options, **_):
            made.append((options, dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)))
            return made[-1][1]

    dist.ProcessGroupNCCL = dist.distributed_c10d.ProcessGroupNCCL = Nccl
    dist.distributed_c10d._NCCL_AVAILABLE = True
    dist.init_process_group(os.environ["CASE_NAME"], timeout=datetime.timedelta(seconds=50))
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.group.WORLD, dist.new_group([1, 0])]
    assert len(made) == 2, made
    for group, (options, nccl) in zip(groups, made):
        assert group._get_backend(torch.device("cuda")) is nccl
        assert list(options.global_ranks_in_group) in ([0, 1], []) and options.group_name == group.group_name
        tensor = torch.full((500,), rank + 1.0)
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == size * (size + 1) / 2 and sml.stats(group)["offloaded_calls"] == 1
    dist.distributed_c10d._NCCL_AVAILABLE = False  # or torch ends the groups as NCCL's
    dist.destroy_process_group()
    report(is_done=True)


def skip_unless_torch_2():
    if torch_ranks.torch_major() < 2:
        raise tap.Skip("this PyTorch is older than 2")


def on_torch_2(case, num_ranks, min_offloaded, **environment):
    skip_unless_torch_2()
    with Daemon() as daemon:
        for result in run_ranks(case, num_ranks, daemon.address, SWITCHML_REQUIRE="1", **environment):
            assert min_offloaded == 0 or result["stats"]["offloaded_calls"] >= min_offloaded, result


def test_functional_collectives():
    on_torch_2("functional", 3, 2)


def test_functional_collectives_say_why_they_failed():
    skip_unless_torch_2()
    with Daemon() as daemon:
        results = Ranks("functional_failure", 3, daemon.address, SWITCHML_REQUIRE="1").wait(but=(1,))
    for rank in (0, 2):
        assert all("rank 1" in text for text in results[rank]["texts"]) and results[rank]["ranks"] == [1], results


def test_collectives_of_gloo_behind_calls():
    on_torch_2("behind", 2, 20)


def test_tensors_that_stand_for_others():
    on_torch_2("stand_in", 2, 1)


def test_distributed_tensors():
    on_torch_2("dtensor", 2, 1)


def test_sharded_parameters():
    skip_unless_torch_2()
    with Daemon() as daemon:
        for result in run_ranks("fsdp", 3, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["num_calls"] >= 3 * NUM_FSDP_STEPS, result  # three modules of parameters each time
            assert result["stats"]["offloaded_calls"] >= 2 * result["num_calls"], result


def test_example_of_fsdp2():
    """Each step has a reduce-scatter of each of two layers and of what is around them; an all-gather of each goes through
    SwitchML where it goes one way."""
    skip_unless_torch_2()
    with Daemon() as daemon:
        for one_way, num_calls in ("0", 3), (None, 6):
            for result in run_ranks("fsdp2", 3, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_ONE_WAY=one_way):
                if "stats" not in result:
                    raise tap.Skip("this PyTorch has FSDP2 for GPUs only")
                assert result["stats"]["offloaded_calls"] >= num_calls * NUM_FSDP_STEPS, result


def test_overlapped_fsdp2():
    skip_unless_torch_2()
    with Daemon() as daemon:
        for aggregator, one_way in (daemon.address, None), (daemon.address, "0"), (None, None):
            for result in run_ranks("fsdp2_overlapped", 3, aggregator, SWITCHML_REQUIRE="1", SWITCHML_ONE_WAY=one_way,
                                    SWITCHML_SLOTS="16"):
                if "stats" not in result:
                    raise tap.Skip("this PyTorch has FSDP2 for GPUs only")
                assert result["stats"]["offloaded_calls"] >= 2 * 5 * NUM_OVERLAPPED_STEPS, result


def test_a_rank_lost_by_overlapped_fsdp2():
    skip_unless_torch_2()
    with Daemon() as daemon:
        results = Ranks("fsdp2_lost", 3, daemon.address, SWITCHML_LEASE="2").wait(but=(1,))
        for result in results[0], results[2]:
            if "text" not in result:
                raise tap.Skip("this PyTorch has FSDP2 for GPUs only")
            assert result["ranks"] == [1] and "rank 1" in result["text"], result


def test_checkpoints_in_the_background():
    with tempfile.TemporaryDirectory() as folder:
        on_torch_2("async_save", 2, 1, CASE_FOLDER=folder)


def test_ranges_of_calls_have_a_work():
    on_torch_2("ranges", 2, 5)


def test_backends_of_other_devices_are_made():
    for name in "cpu:switchml,cuda:others", "cuda:others,cpu:switchml":
        on_torch_2("devices", 2, 0, CASE_NAME=name)


def test_nccl_is_made_beside_switchml():
    for name in "cpu:switchml,cuda:nccl", "cuda:nccl,cpu:switchml":
        on_torch_2("nccl", 2, 0, CASE_NAME=name)


if __name__ == "__main__":
    torch_ranks.main(globals())
