#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend with real processes on loopback: training, collectives, failures, ends."""
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

import tap
import torch_ranks
from ports import fixed_port
from torch_calls import gloo_calls, refusals, sums
from torch_ranks import ROOT, Daemon, Ranks, built, ends_as_interpreters_do, error_text, leave, report, run_ranks, start

sys.path.insert(0, os.path.join(ROOT, "bench"))
import netbed  # pylint: disable=wrong-import-position

LARGE_ELEMENTS = 2 << 20
SWITCHES = ("SWITCHML_DISABLE", "SWITCHML_REQUIRE", "SWITCHML_ONE_WAY")


def link_bytes():
    """What this host's link has sent and received."""
    with open("/proc/net/dev", encoding="ascii") as devices:
        figures = next(line.split() for line in devices if line.split()[0] == "eth0:")
    return int(figures[9]), int(figures[1])


def trained(torch, group, rank, size, num_steps=12):
    """A small network with BatchNorm, started differently on each rank: DDP's broadcast matters."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(20, 700), torch.nn.BatchNorm1d(700), torch.nn.ReLU(),
                                torch.nn.Linear(700, 700), torch.nn.ReLU(), torch.nn.Linear(700, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(99)
    for _ in range(num_steps):
        inputs = torch.randn(8 * size, 20, generator=data)
        targets = (inputs.sum(dim=1) > 0).long() + (inputs[:, 0] > 1).long()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs[rank::size]), targets[rank::size])
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]), loss.item()


def case_ddp():
    torch, dist, sml, rank, size = start()
    plain = dist.new_group(backend="gloo")
    ours, loss = trained(torch, None, rank, size)
    theirs, gloo_loss = trained(torch, plain, rank, size)
    gathered = [torch.empty_like(ours) for _ in range(size)]
    dist.all_gather(gathered, ours)
    report(difference=(ours - theirs).abs().max().item(), losses=[loss, gloo_loss],
           is_equal=all(torch.equal(other.view(torch.int32), ours.view(torch.int32)) for other in gathered),
           stats=sml.stats())
    leave(dist, plain)


def case_collectives():
    torch, dist, sml, rank, size = start()
    num_calls = sums(torch, dist, rank, size)
    num_calls += gloo_calls(torch, dist, rank, size)
    refusals(torch, dist)
    wide = torch.full((300,), rank + 1.0, dtype=torch.bfloat16)  # torch 1.13's Gloo does not take it
    dist.all_reduce(wide, op=dist.ReduceOp.AVG)
    assert torch.equal(wide, torch.full_like(wide, (size + 1) / 2)), wide
    tensors = [torch.full((count,), float(rank)) for count in (3, 0, 1000)]
    dist.all_reduce_coalesced(tensors)
    assert all(torch.equal(tensor, torch.full_like(tensor, sum(range(size)))) for tensor in tensors)
    works = [(dist.all_reduce(tensor, async_op=True), tensor)
             for tensor in (torch.full((200_000,), float(rank + number)) for number in range(8))]
    for number, (work, tensor) in enumerate(works):
        work.wait()
        assert work.is_completed() and tensor[0].item() == sum(r + number for r in range(size))
    many = [torch.full((4,), float(number)) for number in range(1500)]  # more than the library takes at once
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in many]:
        work.wait()
    assert all(torch.equal(tensor, torch.full((4,), float(number * size))) for number, tensor in enumerate(many))
    future = dist.all_reduce(torch.full((3,), 2.0), async_op=True).get_future()
    assert torch.equal(future.then(lambda done: done.value()[0] * 10).wait(), torch.full((3,), 20.0 * size))
    with torch.inference_mode():
        columns = torch.full((3, 5), rank + 1.0).t()
        work = dist.all_reduce(columns, async_op=True)
        while not work.is_completed():  # by a thread of the group, which is in no such mode
            time.sleep(0.001)
        work.wait()
        assert torch.equal(columns, torch.full_like(columns, size * (size + 1) / 2)), columns
    complex_tensor = torch.full((4,), complex(rank, 1))
    dist.all_reduce(complex_tensor)
    assert complex_tensor[0] == complex(sum(range(size)), size)
    report(stats=sml.stats(), num_calls=num_calls + 1516)
    dist.destroy_process_group()
    assert error_text(sml.stats)


def check_type(torch, dist, dtype, op, values, rank, step):
    """The all-reduce of values[rank] is the exact result, within what fixed point in units of `step` may be off and one
    rounding to the type; and has the same bits on all ranks."""
    size, digits = len(values), {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.float64: 53}[dtype]
    divisor = size if op == dist.ReduceOp.AVG else 1
    tensor = values[rank].clone()
    dist.all_reduce(tensor, op=op)
    exact = torch.tensor([math.fsum(column) / divisor for column in torch.stack(values).double().t().tolist()],
                         dtype=torch.float64)
    bound = size * step / 2 / divisor + exact.abs() * 2.0 ** -digits + 2.0 ** -26  # the last: float16 next to 0
    error = (tensor.double() - exact).abs()
    assert bool((error <= bound).all()), (dtype, len(tensor), op, (error / bound).max())
    everybody = [torch.empty_like(tensor.view(torch.uint8)) for _ in range(size)]
    dist.all_gather(everybody, tensor.view(torch.uint8))
    assert all(torch.equal(other, everybody[0]) for other in everybody), (dtype, len(tensor))


def case_types():
    """Every type against the exact sum, within the bound of PROTOCOL.md for its bits on the wire: of values over many
    orders of magnitude, on both sides of the count up to which sums are exact."""
    torch, dist, sml, rank, size = start()
    bits_of_size, num_calls = (size - 1).bit_length(), 0
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        wire_bits = int(os.environ.get("SWITCHML_FLOAT_BITS", "32" if dtype == torch.float32 else "16"))
        for count in (1, 128, 129, 4099):
            made = torch.Generator().manual_seed(count)
            values = [(torch.randn(count, generator=made).double()
                       * 2.0 ** torch.randint(-9, 9, (count,), generator=made)).to(dtype) for _ in range(size)]
            largest = max(value.double().abs().max().item() for value in values)
            if dtype == torch.float64:  # two lanes of 31 bits less what n needs; the block's exponent in steps of 8
                step = 2 * largest * 2.0 ** (7 - 2 * (31 - bits_of_size))
            elif count <= 128:
                step = 0
            else:  # the power of two above the largest is one beyond the bits that there are
                step = 2 * largest * 2.0 ** (bits_of_size - {32: 30, 16: 15}[wire_bits])
            if dtype == torch.float32 and wire_bits == 16:  # the largest are cut, too, by up to a unit
                step *= 2
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
                check_type(torch, dist, dtype, op, values, rank, step)
                num_calls += 1
    for count in (1, 1365, 5000):
        made = torch.Generator().manual_seed(count)
        values = [torch.randint(-2 ** 63, 2 ** 63 - 1, (count,), generator=made) for _ in range(size)]
        tensor = values[rank].clone()
        dist.all_reduce(tensor)
        num_calls += 1
        assert torch.equal(tensor, sum(values)), count  # torch's wraps, too
    mixed = [torch.ones(40, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.int64)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in mixed]:
        work.wait()
    assert all(torch.equal(tensor, torch.full_like(tensor, size)) for tensor in mixed)
    report(num_calls=num_calls + 3, stats=sml.stats())
    dist.destroy_process_group()


def case_coalesced():
    """Small tensors of one call, or of one range, share packets: k of them are about one, not k."""
    torch, dist, sml, rank, size = start()
    from torch.distributed.distributed_c10d import _coalescing_manager  # pylint: disable=import-outside-toplevel
    group = dist.distributed_c10d._get_default_group()
    chunks = []

    def check(tensors, first_value, num_chunks):
        total = sum(range(size))
        assert all(torch.equal(tensor, torch.full_like(tensor, (first_value + index) * size + total))
                   for index, tensor in enumerate(tensors))
        chunks.append(sml.stats()["chunks_completed"])
        assert len(chunks) == 1 or chunks[-1] - chunks[-2] == num_chunks, (chunks, num_chunks)

    def make(num, count=1, dtype=torch.int32):
        return [torch.full((count,), rank + index, dtype=dtype) for index in range(num)]

    tensors = make(1)
    dist.all_reduce(tensors[0])
    check(tensors, 0, 1)
    tensors = make(50)
    dist.all_reduce_coalesced(tensors)
    check(tensors, 0, 1)
    tensors = make(130)  # batches of 64
    dist.all_reduce_coalesced(tensors)
    check(tensors, 0, 3)
    tensors = make(20, 1, torch.float32)  # 20 * 11 lanes: in shared memory, too, at most a block
    group.allreduce_coalesced(tensors).wait()
    check(tensors, 0, 1)
    if int(torch.__version__.split(".", maxsplit=1)[0]) < 2:  # later ones make one coalesced call of it
        works, tensors = [], make(30)
        with _coalescing_manager(None, works):
            works += [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        check(tensors, 0, 1)
        tensors = make(3)
        with _coalescing_manager(None, []):  # waits within
            dist.all_reduce(tensors[0])
            later = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[1:]]
        for work in later:
            work.wait()
        check(tensors, 0, 2)
        with _coalescing_manager(None, []):  # outlives nothing
            tensors = make(1500)
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            works[-1].wait()
        check(tensors, 0, 24)
    report(num_calls=sml.stats()["offloaded_calls"])
    dist.destroy_process_group()


def case_structs():
    """The sizes and offsets of the ctypes structs, as the C compiler would print them."""
    import ctypes  # pylint: disable=import-outside-toplevel
    from switchml import api  # pylint: disable=import-outside-toplevel
    lines = {}
    for name, struct in (("sml_job_options", api.JobOptions), ("sml_operation_options", api.OperationOptions),
                         ("sml_error", api.Error), ("sml_stats", api.Stats)):
        lines[name] = [ctypes.sizeof(struct)] + [[field, getattr(struct, field).offset] for field, _ in struct._fields_]
    report(**lines)


def case_groups():
    """Sub-groups, overlapping, each a job of its own; one that never makes an eligible call; one of one rank."""
    torch, dist, sml, rank, size = start()
    assert "nothing is recorded yet" in error_text(sml.dump_trace, "/nowhere")
    members = [[0, 1], [1, 2], list(range(size)), [size - 1]]
    groups = [dist.new_group(ranks) for ranks in members]
    dist.new_group([0, 1])  # never used
    num_calls = 0
    for group, ranks in list(zip(groups, members))[::1 if rank % 2 else -1]:
        if rank in ranks:  # in a different order on different ranks, all asynchronous
            tensor = torch.full((5000,), float(rank))
            num_calls += 1
            group.pending = (dist.all_reduce(tensor, group=group, async_op=True), tensor, float(sum(ranks)))
    for group, ranks in zip(groups, members):
        if rank in ranks:
            work, tensor, expected = group.pending
            work.wait()
            assert torch.equal(tensor, torch.full_like(tensor, expected))
            num_calls += sums(torch, dist, ranks.index(rank), len(ranks), group,
                              list(range(len(ranks))))
    offloaded = sum(sml.stats(group)["offloaded_calls"] for group, ranks in zip(groups, members) if rank in ranks)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert tensor[0] == size
    for group, ranks in zip(groups, members):
        if rank in ranks:
            dist.destroy_process_group(group)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"rank{rank}.trace")
        sml.dump_trace(path)
        shown = subprocess.run([built("src/cli/switchml"), "trace", "--event", "job_joined", path], text=True,
                               check=True, stdout=subprocess.PIPE).stdout
        assert "job_joined" in shown, shown
        assert "No such file" in error_text(sml.dump_trace, folder + "/not/there")
    report(num_calls=num_calls, offloaded=offloaded)
    dist.destroy_process_group()


def case_float64():
    """CASE_BITS: what rank 1 alone has set."""
    if os.environ["RANK"] == "1" and "CASE_BITS" in os.environ:
        os.environ["SWITCHML_FLOAT64_BITS"] = os.environ["CASE_BITS"]
    try:
        torch, dist, sml, rank, _ = start()
    except RuntimeError as error:
        report(error=str(error))
        return
    for dtype in (torch.float64, torch.float32):
        tensor = torch.full((9000,), rank + 1 + 2.0 ** -30, dtype=dtype)
        dist.all_reduce(tensor)
        assert dtype != torch.float64 or tensor[0].item() == 3 + 2.0 ** -29
    report(error="", stats=sml.stats())
    dist.destroy_process_group()


def case_mismatch():
    torch, dist, sml, rank, _ = start(timeout_s=20)
    from switchml import parts  # pylint: disable=import-outside-toplevel
    group, take_result = dist.new_group(), parts.Part.take_result
    if rank == 1:
        parts.Part.take_result = lambda _part: 1 / 0
    uncopied = error_text(dist.all_reduce, torch.ones(5), group=group)
    parts.Part.take_result = take_result
    dist.all_reduce(torch.ones(100))
    dist.barrier()  # through Gloo: the others' error must not come before this rank has looked at its sum
    # Rank 2 has a handle, whose wait says why. The others wait in the call.
    tensor = torch.ones(1000 if rank == 1 else 2000)
    first = error_text(lambda: dist.all_reduce(tensor, async_op=True).wait() if rank == 2 else dist.all_reduce(tensor))
    later = error_text(dist.all_reduce, torch.ones(10))
    other = error_text(dist.broadcast, torch.ones(10), 0)
    report(first=first, later=later, other=other, status=sml.error().status, ranks=sml.error().ranks, uncopied=uncopied)


def case_one_call():
    """One eligible call, whatever way it goes; reports how it went."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text, values = "", []
        try:
            torch, dist, sml, rank, _ = start(timeout_s=int(os.environ.get("CASE_TIMEOUT_S", "20")))
            tensors = [torch.full((1000,), rank + 1.0), torch.full((10,), float(rank))]
            for tensor in tensors:
                dist.all_reduce(tensor)
            average = torch.full((10,), float(rank))
            dist.all_reduce(average, op=dist.ReduceOp.AVG)
            values = [tensor[0].item() for tensor in tensors + [average]]
        except (RuntimeError, TypeError) as error:
            text = str(error)
        report(error=text, values=values, warnings=[str(warning.message) for warning in caught],
               stats=sml.stats() if values else {})


def case_one_call_apart():
    """Rank 1 has a setting that the others have not: CASE_SETTING, or an aggregator."""
    if os.environ["RANK"] == "1":
        name, _, value = os.environ.get("CASE_SETTING", "SWITCHML_AGGREGATOR=127.0.0.1:9").partition("=")
        os.environ[name] = value
    case_one_call()


def case_hosts():
    """Training and one large call: what hosts with links of their own do."""
    torch, dist, sml, rank, size = start()
    ours, _ = trained(torch, None, rank, size, num_steps=3)
    gathered = [torch.empty_like(ours) for _ in range(size)]
    dist.all_gather(gathered, ours)
    assert all(torch.equal(other, ours) for other in gathered)
    figures = [(sml.stats(), link_bytes())]
    for _ in range(3):
        large = torch.full((LARGE_ELEMENTS,), float(rank + 1))
        dist.all_reduce(large)
        assert bool((large == size * (size + 1) / 2).all())
        dist.all_reduce(torch.ones(1))  # then no shard has anything to send any more
        figures.append((sml.stats(), link_bytes()))
    report(figures=figures)
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_exit():
    """Ends without destroying the group."""
    torch, dist, _, _, _ = start()
    dist.all_reduce(torch.ones(10))
    report(is_done=True)


@ends_as_interpreters_do
def case_exit_outstanding():
    """Rank 0 ends with an operation that nobody else called, having kept the others waiting for nothing."""
    torch, dist, _, rank, _ = start()
    dist.all_reduce(torch.ones(10))
    if rank == 0:
        dist.all_reduce(torch.ones(10), async_op=True)
    else:
        time.sleep(1)
    report(ended_at=time.time())


@ends_as_interpreters_do
def case_loaders():
    """DataLoader workers are forked while the library's threads run."""
    torch, dist, sml, rank, size = start()
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    seen = 0.0
    for _ in range(2):
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork"):
            total = batch.sum().reshape(1)
            dist.all_reduce(total)
            seen += total.item()
    child = os.fork()
    if child == 0:
        text = error_text(dist.all_reduce, torch.ones(1))
        os._exit(0 if "forked" in text else 1)
    child_status = os.waitpid(child, 0)[1]
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    report(seen=seen, expected=2.0 * sum(range(64)) * size, child_status=child_status, last=tensor.item(),
           offloaded=sml.stats()["offloaded_calls"], rank=rank)


@ends_as_interpreters_do
def case_killed():
    torch, dist, sml, rank, size = start(timeout_s=60)
    tensor, store = torch.ones(1000), dist.distributed_c10d._get_default_store()
    dist.all_reduce(tensor)
    store.add("first call ended", 1)
    if rank == 2:
        while store.add("first call ended", 0) < size:  # a death ends calls that others have not ended yet
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    text = error_text(dist.all_reduce, tensor)
    report(text=text, took_s=time.monotonic() - began, ranks=sml.error().ranks, status=sml.error().status)


# ---- The tests -----------------------------------------------------------------------------------------

def test_structs_are_those_of_the_header():
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise tap.Skip("there is no C compiler")
    structs = run_ranks("structs", 1)[0]
    del structs["stderr"]
    for struct, (size, *fields) in structs.items():
        claims = [f"sizeof(struct {struct}) == {size}"] + [f"offsetof(struct {struct}, {name}) == {offset}" for name, offset in fields]
        source = "#include <switchml/switchml.h>\n" + "".join(f"_Static_assert({claim}, \"\");\n" for claim in claims)
        checked = subprocess.run([compiler, "-I", os.path.join(ROOT, "include"), "-x", "c", "-fsyntax-only", "-"],
                                 input=source, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_ddp_equals_gloo_and_ranks_agree():
    with Daemon() as daemon:
        for result in run_ranks("ddp", 3, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["is_equal"], "ranks hold different parameters"
            assert result["difference"] < 1e-4, result
            assert result["stats"]["offloaded_calls"] >= 20, result["stats"]
            assert result["stats"]["max_in_flight"] >= 2, result["stats"]  # two buckets at once
            assert result["stats"]["tx_bytes"] > 12 * 500_000 * 4, result["stats"]


def test_collectives():
    with Daemon() as daemon:
        # PYTHONMALLOC: Python says who uses its memory without its lock
        for result in run_ranks("collectives", 3, daemon.address, SWITCHML_REQUIRE="1", PYTHONMALLOC="debug"):
            stats = result["stats"]
            assert stats["offloaded_calls"] == result["num_calls"] and stats["fallback_calls"] == 0, result
            assert stats["failed_calls"] == 0 and stats["max_in_flight"] >= 2, stats


def test_every_type_within_its_bound():
    for name, float_bits, shared_memory in (("udp", None, "0"), ("memory, all floats in 16 bits", "16", "1")):
        with Daemon() as daemon:
            for result in run_ranks("types", 3, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_FLOAT64_BITS="64",
                                    SWITCHML_FLOAT_BITS=float_bits, SWITCHML_SHARED_MEMORY=shared_memory, SWITCHML_ONE_WAY="0"):
                stats = result["stats"]
                assert stats["offloaded_calls"] == result["num_calls"] and stats["fallback_calls"] == 0, (name, result)


def test_float64_is_not_offloaded_unless_asked_for():
    """Nor do ranks that want different bits sum anything."""
    with Daemon() as daemon:
        for num_taken, more in ((1, {}), (2, {"SWITCHML_EXACT": "1", "SWITCHML_REQUIRE": "1"})):
            for result in run_ranks("float64", 2, daemon.address, **more):
                assert result["error"] == "" and result["stats"]["offloaded_calls"] == num_taken, result
        for result in run_ranks("float64", 2, daemon.address, CASE_BITS="64", SWITCHML_REQUIRE="1"):
            assert "SWITCHML_FLOAT64_BITS is not what it is on rank 0 on rank 1" in result["error"], result


def test_collectives_in_shared_memory():
    with Daemon() as daemon:
        for result in run_ranks("collectives", 3, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY="1"):
            stats = result["stats"]
            assert stats["offloaded_calls"] == result["num_calls"] and stats["tx_packets"] == 0, result


def test_coalesced_tensors_share_packets():
    with Daemon() as daemon:
        for in_shared_memory in "01":
            run_ranks("coalesced", 2, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY=in_shared_memory)


def test_killed_rank_is_named_in_shared_memory():
    with Daemon() as daemon:
        results = Ranks("killed", 4, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY="1").wait(but=(2,))
        for rank in (0, 1, 3):
            assert results[rank]["ranks"] == [2] and "2" in results[rank]["text"], results[rank]


def test_collectives_with_offload_disabled():
    for result in run_ranks("collectives", 2, SWITCHML_DISABLE="1"):
        assert result["stats"]["offloaded_calls"] == 0 and result["stats"]["fallback_calls"] > 30, result


def test_groups_are_jobs_of_their_own():
    with Daemon() as daemon:
        for result in run_ranks("groups", 3, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["offloaded"] == result["num_calls"] > 0, result


def test_mismatched_sizes_are_an_error_on_all_ranks():
    with Daemon() as daemon:
        results = run_ranks("mismatch", 3, daemon.address)
        assert "rank 1 could not copy a result to the tensor that it is for: " in results[1]["uncopied"], results
        for result in results:
            assert result["status"] and result["first"], result
            assert result["later"] and result["other"], result
            assert "failed before" in result["other"] and 1 in result["ranks"], result


def test_different_aggregators_fall_back_with_one_warning():
    results = run_ranks("one_call_apart", 2)
    for result in results:
        assert result["values"] == [3.0, 1.0, 0.5] and result["stats"]["fallback_calls"] == 3, result
    told = [text for result in results for text in result["warnings"] if "switchml" in text]
    assert len(told) == 1 and "SWITCHML_AGGREGATOR" in told[0], told


def test_settings_of_no_use_are_an_error_when_required():
    for setting, why in {"SWITCHML_AGGREGATOR=127.0.0.1:9": "SWITCHML_AGGREGATOR is not what it is on rank 0 on rank 1",
                         "SWITCHML_LEASE=7": "SWITCHML_LEASE is not what it is on rank 0 on rank 1",
                         **{f"{name}=maybe": f"on rank 1 {name}=maybe: set 1 or 0" for name in SWITCHES}}.items():
        for result in run_ranks("one_call_apart", 2, SWITCHML_REQUIRE="1", CASE_SETTING=setting):
            assert f"SWITCHML_REQUIRE=1, but {why}" in result["error"], result


def test_no_aggregator_is_needed():
    for result in run_ranks("collectives", 3, SWITCHML_REQUIRE="1"):
        stats = result["stats"]
        assert stats["offloaded_calls"] == result["num_calls"] and stats["fallback_calls"] == 0, result
        assert stats["num_lanes"] == 3 and stats["tx_packets"] > 0, stats


def test_hosts_need_only_the_backends_name():
    """Three hosts, and nothing set but what every PyTorch program has: the hosts are the aggregator."""
    n, why = 3, netbed.why_unavailable()
    if why:
        raise tap.Skip(why)
    with netbed.Netbed(n, rate="none") as bed:
        results = run_ranks("hosts", n, bed=bed, MASTER_ADDR=bed.worker_address(0), GLOO_SOCKET_IFNAME=None,
                            SWITCHML_SHARED_MEMORY=None,
                            USE_LIBUV=None if torch_ranks.torch_major() < 2 else "0")  # Debian 13 has no libuv
    tensor_bytes = 4 * LARGE_ELEMENTS
    share = 2 * (n - 1) / n * tensor_bytes  # (n - 1)/n of it to the others' shards, as much from the own one
    for rank, result in enumerate(results):
        stats, links = zip(*result["figures"])
        assert stats[-1]["num_lanes"] == n and stats[-1]["fallback_calls"] == 0, stats
        assert stats[-1]["offloaded_calls"] - stats[0]["offloaded_calls"] == 6, stats
        # A busy machine asks again for what is only late: the best of the three calls counts.
        for figures, expected in (([each["tx_bytes"] for each in stats], tensor_bytes),
                                  ([sent for sent, _ in links], share), ([received for _, received in links], share)):
            num_bytes = min(after - before for before, after in zip(figures, figures[1:]))
            assert expected < num_bytes < 1.12 * expected, (rank, figures, expected)


def test_exit_and_forks_without_an_aggregator():
    for case in ("exit_outstanding", "loaders"):
        ranks = Ranks(case, 2, SWITCHML_REQUIRE="1")
        results = ranks.wait()
        assert ranks.took_s < tap.patience_s(30), ranks.took_s
        assert not any("Traceback" in result["stderr"] or "terminate called" in result["stderr"]
                       for result in results), results
        assert case != "loaders" or all(result["seen"] == result["expected"] for result in results), results


def test_unreachable_aggregator_falls_back_together():
    results = run_ranks("one_call", 2, f"127.0.0.1:{fixed_port()}", CASE_TIMEOUT_S="5")
    for result in results:
        assert result["values"] == [3.0, 1.0, 0.5] and result["stats"]["fallback_calls"] == 3, result
    assert [text for text in results[0]["warnings"] if "switchml" in text], results
    assert "summed 0 bytes in 0 collectives through SwitchML, and 3 through Gloo" in "".join(summary(results[0])), results


def test_unreachable_aggregator_is_an_error_when_required():
    for result in run_ranks("one_call", 2, f"127.0.0.1:{fixed_port()}", CASE_TIMEOUT_S="5",
                            SWITCHML_REQUIRE="1"):
        assert result["error"] and not result["values"], result


def test_missing_library_falls_back():
    results = run_ranks("one_call", 2, "127.0.0.1:9", SWITCHML_LIBRARY="/nowhere/libswitchml.so")
    for result in results:
        assert result["values"] == [3.0, 1.0, 0.5], result
    assert any("SWITCHML_LIBRARY" in text for text in results[0]["warnings"]), results


def summary(result):
    """What a rank says in the end: one line, on rank 0 alone; none where something failed, or nobody wants it."""
    return [line for line in result["stderr"].splitlines() if line.startswith("switchml: rank 0 summed")]


def test_exit_without_destroying_the_group():
    with Daemon() as daemon:
        for case, wanted, is_said in (("exit", "1", True), ("exit", "0", False), ("exit_outstanding", "1", False)):
            ranks = Ranks(case, 2, daemon.address, SWITCHML_REQUIRE="1", SWITCHML_SUMMARY=wanted)
            results = ranks.wait()
            assert ranks.took_s < tap.patience_s(30), ranks.took_s
            assert not any("Traceback" in result["stderr"] or "terminate called" in result["stderr"]
                           for result in results), results
            said = "".join(summary(results[0]))
            assert not summary(results[1]) and bool(said) == is_said, (case, results)
            assert not is_said or "summed 40 bytes in 1 collectives through SwitchML, and 0 through Gloo" in said, said


def test_data_loader_workers():
    with Daemon() as daemon:
        for result in run_ranks("loaders", 2, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["seen"] == result["expected"] and result["last"] == 2.0, result
            assert result["child_status"] == 0 and result["offloaded"] == 17, result


def test_killed_rank_is_named_on_the_others():
    with Daemon() as daemon:
        results = Ranks("killed", 4, daemon.address, SWITCHML_REQUIRE="1").wait(but=(2,))
        for rank in (0, 1, 3):
            assert results[rank]["ranks"] == [2] and "2" in results[rank]["text"], results[rank]
            assert results[rank]["took_s"] < 10, results[rank]


if __name__ == "__main__":
    torch_ranks.main(globals())
