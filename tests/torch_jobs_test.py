#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The PyTorch backend with real processes on loopback: many groups, the hook for DDP, time limits, handles of calls."""
import datetime
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import tap
import torch_ranks
from ports import fixed_port
from torch_ranks import Daemon, Ranks, built, ends_as_interpreters_do, error_text, leave, report, run_ranks, start

NUM_GROUPS = 40


def start_with(backend, timeout_s=60):
    """As start(), with another backend for the world."""
    import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
    return torch, dist, switchml.torch, dist.get_rank(), dist.get_world_size()


def bits(torch, tensor):
    return tensor.detach().contiguous().view(torch.uint8)


def train(torch, model, ddp, rank, size, num_steps=8):
    """Steps on data of which each rank has its own; returns all parameters."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(99)
    for step in range(num_steps):
        inputs = torch.randn(8 * size, 20, generator=data)
        optimizer.zero_grad()
        ddp(inputs[rank::size], step).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def branching_model(torch):
    """Each step leaves one branch out: DDP finds that out with an all-reduce that it calls, and waits for, in C++."""
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.nn.Linear(20, 300)
            self.branches = torch.nn.ModuleList([torch.nn.Linear(300, 300) for _ in range(2)])

        def forward(self, values, step):
            return self.branches[step % 2](self.base(values).relu())
    torch.manual_seed(7)
    return Branching()


def in_pair(torch, dist, sml, group, wrap):
    """A model of two ranks, with a hook of their own."""
    model, state = branching_model(torch), sml.DDPHookState(group)
    ddp = wrap(model, process_group=group, find_unused_parameters=True)
    ddp.register_comm_hook(state, sml.ddp_hook)
    ours = train(torch, model, ddp, dist.get_rank(group), 2, 2)
    both = [torch.empty_like(ours) for _ in range(2)]
    dist.all_gather(both, ours, group=group)
    assert torch.equal(bits(torch, both[0]), bits(torch, both[1]))
    return state.stats()


def case_hook():
    """DDP over gloo with the hook, over the backend, over gloo alone, and with the hook and other buckets, from the same
    start."""
    torch, dist, sml, rank, size = start_with("gloo")
    wrap = torch.nn.parallel.DistributedDataParallel
    ours = dist.new_group(backend="switchml")
    pair = dist.new_group([0, 2])
    state = sml.DDPHookState()
    results, models = [], [branching_model(torch) for _ in range(4)]
    for model, group, bucket_mb in zip(models, (None, ours, None, None), (0.2, 0.2, 0.2, 25)):
        ddp = wrap(model, process_group=group, bucket_cap_mb=bucket_mb, find_unused_parameters=True)
        if len(results) in (0, 3):
            ddp.register_comm_hook(state, sml.ddp_hook)
        results.append(train(torch, model, ddp, rank, size))
    of_pair = in_pair(torch, dist, sml, pair, wrap) if rank != 1 else {}
    report(is_equal=torch.equal(bits(torch, results[0]), bits(torch, results[3])),
           difference=max((result - results[2]).abs().max().item() for result in results[:2]), # Gloo's bits depend on buckets
           stats=state.stats(), of_backend=sml.stats(ours), of_pair=of_pair)
    state.close()
    dist.barrier()
    leave(dist, dist.distributed_c10d._get_default_group())


def case_hook_within():
    """Two ranks a host sum by another backend, which stands in for NCCL; hosts sum by SwitchML."""
    torch, dist, sml, rank, size = start_with("gloo")
    texts = [error_text(sml.DDPHookState, within="gloo", ranks_per_host=number) for number in (3, None)]
    state, plain = sml.DDPHookState(within="gloo", ranks_per_host=2), sml.DDPHookState()
    results, models = [], [branching_model(torch) for _ in range(3)]
    for model, hook_state in zip(models, (state, plain, None)):
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2, find_unused_parameters=True)
        if hook_state is not None:
            ddp.register_comm_hook(hook_state, sml.ddp_hook)
        results.append(train(torch, model, ddp, rank, size))
    everybody = [torch.empty_like(results[0]) for _ in range(size)]
    dist.all_gather(everybody, results[0])
    report(is_equal=all(torch.equal(bits(torch, other), bits(torch, results[0])) for other in everybody),
           difference=(results[0] - results[2]).abs().max().item(), texts=texts, stats=state.stats(), of_plain=plain.stats())
    state.close()
    plain.close()
    dist.barrier()
    leave(dist, dist.distributed_c10d._get_default_group())


def case_hook_killed():
    torch, dist, sml, rank, size = start_with("gloo")
    torch.manual_seed(7)
    model, state = torch.nn.Linear(20, 300), sml.DDPHookState()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(state, sml.ddp_hook)
    for _ in range(2):  # the second orders DDP's buckets anew, with the other backend
        ddp(torch.ones(2, 20)).sum().backward()
    dist.barrier()  # no rank lacks that sum any more
    loss = ddp(torch.ones(2, 20)).sum()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    text = error_text(loss.backward)
    report(text=text, ranks=state.error().ranks)
    os._exit(0)  # the other backend need not end by itself


def status_of(*address):
    """Of an aggregator: that of this rank's environment, or the one named."""
    return json.loads(subprocess.run([built("src/cli/switchml", "bin/switchml"), "status", "--json", "--interval", "0",
                                      *address], stdout=subprocess.PIPE, check=False).stdout)


def wait_for_jobs(num_jobs):
    """Until the aggregator has that many; returns the slots in use."""
    deadline = time.monotonic() + 20
    while len(status_of()["jobs"]) != num_jobs:
        assert time.monotonic() < deadline, status_of()
        time.sleep(0.05)
    return sum(lane["slots_used"] for lane in status_of()["lanes"])


@ends_as_interpreters_do
def case_many_groups():
    """Each a job of its own, all on one context; what ends gives its slots back."""
    torch, dist, sml, rank, size = start()
    groups = [dist.new_group() for _ in range(NUM_GROUPS)]
    for group in groups[::-1]:
        dist.all_reduce(torch.ones(1), group=group)
    num_threads = len(os.listdir("/proc/self/task"))
    dist.all_reduce(torch.ones(1))
    more_threads = len(os.listdir("/proc/self/task")) - num_threads
    works = []
    for round_ in range(3):  # in one order in each group, but not among the groups
        for index in (range(NUM_GROUPS) if rank else range(NUM_GROUPS - 1, -1, -1)):
            tensor = torch.full((1000 + 331 * index,), float(rank + index + round_))
            works.append((dist.all_reduce(tensor, group=groups[index], async_op=True), tensor, index + round_))
    for work, tensor, value in works:
        work.wait()
        assert torch.equal(tensor, torch.full_like(tensor, value * size + sum(range(size))))
    offloaded = [sml.stats(group)["offloaded_calls"] for group in groups]
    del work
    works.clear()
    slots = [wait_for_jobs(NUM_GROUPS + 1)]
    dist.barrier()
    for group in groups[:NUM_GROUPS // 2]:
        dist.destroy_process_group(group)
    del group
    groups = groups[NUM_GROUPS // 2:]
    slots.append(wait_for_jobs(NUM_GROUPS // 2 + 1))
    tensor = torch.ones(5000)
    dist.all_reduce(tensor, group=groups[0])
    assert torch.equal(tensor, torch.full_like(tensor, size))
    dist.barrier()
    dist.destroy_process_group()
    groups.clear()
    slots.append(wait_for_jobs(0))
    report(offloaded=offloaded, slots=slots, more_threads=more_threads)


def case_ended_groups():
    """Nothing of a destroyed group waits for Python's collection of garbage: threads, sockets, the store of a world."""
    torch, dist, _, rank, _ = start()
    gc.collect()
    gc.disable()
    dist.all_reduce(torch.ones(1))
    num_threads = len(os.listdir("/proc/self/task"))
    for _ in range(3):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group)
        dist.barrier(group=group)
        dist.destroy_process_group(group)
        del group
    deadline = time.monotonic() + 20
    while len(os.listdir("/proc/self/task")) > num_threads:
        assert time.monotonic() < deadline, (len(os.listdir("/proc/self/task")), num_threads)
        time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()
    while rank == 0 and socket.socket().connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"]))) == 0:
        assert time.monotonic() < deadline, "the store is still there"
        time.sleep(0.01)
    report(is_done=True)


def elastic_rank(folder):
    """One of a generation: ten steps, each saved; rank 1 of the first generation is killed in the sixth."""
    torch, dist, sml, rank, size = start()
    checkpoint = os.path.join(folder, "checkpoint")
    weights, step = torch.zeros(5000), 0
    if os.path.exists(checkpoint):
        weights, step = torch.load(checkpoint)
    generation, first_step = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), step
    began, joined_s = time.monotonic(), None
    while step < 10:
        gradient = torch.full_like(weights, float(rank + step))
        if generation == 0 and rank == 1 and step == 5:
            with open(os.path.join(folder, "killed"), "w", encoding="ascii") as file:
                json.dump({"at": time.time(), "jobs": status_of()["jobs"]}, file)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(gradient)
        joined_s = joined_s or time.monotonic() - began
        weights, step = weights + gradient, step + 1
        if rank == 0:
            torch.save((weights, step), checkpoint + ".new")
            os.rename(checkpoint + ".new", checkpoint)
    assert torch.equal(weights, torch.full_like(weights, float(sum(s * size + sum(range(size)) for s in range(10)))))
    with open(os.path.join(folder, f"done{rank}"), "w", encoding="ascii") as file:
        ended = time.time()
        time.sleep(0.5)  # what a status says may be 0.35 s old, and the other generation that young
        json.dump({"generation": generation, "first_step": first_step, "joined_s": joined_s, "ended": ended,
                   "jobs": status_of()["jobs"], "stats": sml.stats()}, file)
    dist.barrier()
    dist.destroy_process_group()


@ends_as_interpreters_do
def case_elastic():
    """What torchrun does after it has read its arguments, but for the way that ranks start: they are forked."""
    import torch.distributed.launcher.api as launcher  # pylint: disable=import-outside-toplevel
    config = launcher.LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=1, monitor_interval=0.05, start_method="fork",
        run_id="none", rdzv_backend="static", rdzv_endpoint="127.0.0.1:" + os.environ["MASTER_PORT"],
        rdzv_configs={"rank": 0, "timeout": 60})
    launcher.elastic_launch(config, elastic_rank)(os.environ["FOLDER"])
    report()


def timed_error(sml, of_group, function, *arguments, **keywords):
    began = time.monotonic()
    text = error_text(function, *arguments, **keywords)
    error = sml.error(of_group)
    return {"text": text, "took_s": time.monotonic() - began, "ranks": list(error.ranks) if error else [],
            "status": error.status if error else ""}


def case_timeouts():
    """Rank 1 stays away from a call of each group, and is named at the group's time limit."""
    torch, dist, sml, rank, _ = start()
    limits = {"first": 2, "later": 3, "late": 60}
    groups = {name: dist.new_group(timeout=datetime.timedelta(seconds=limit)) for name, limit in limits.items()}
    tensor = torch.ones(1000)
    for name in ("later", "late"):
        dist.all_reduce(tensor, group=groups[name])
    results = {}
    if rank != 1:
        work = dist.all_reduce(tensor, group=groups["late"], async_op=True)
        results["wait"] = timed_error(sml, groups["late"], work.wait, datetime.timedelta(seconds=0.5))
        assert not work.is_completed() and not work.is_success() and work.exception() is None
        other = dist.all_reduce(tensor, group=groups["later"], async_op=True)
        for name in ("first", "later"):
            results[name] = timed_error(sml, groups[name], dist.all_reduce, torch.ones(10), group=groups[name])
        assert other.is_completed() and not other.is_success() and "[rank 1]" in str(other.exception())
        assert "[rank 1]" in error_text(other.get_future().wait) and "[rank 1]" in error_text(other.result)
    dist.barrier()
    if rank == 1:
        work = dist.all_reduce(torch.ones(1000) * 2, group=groups["late"], async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.result()[0] is not None
    report(**results)
    dist.barrier()
    dist.destroy_process_group()


def step_by_hand(torch, optimizer, scale):
    """What GradScaler does on a GPU, which is all that it is for on torch 1.13: the new scale."""
    parameters = optimizer.param_groups[0]["params"]
    found = [not bool(torch.isfinite(parameter.grad).all()) for parameter in parameters]
    assert len(set(found)) == 1, found
    for parameter in parameters:
        parameter.grad.div_(scale)
    if not any(found):
        optimizer.step()
    return scale / 2 if any(found) else scale


def case_scaler():
    """Scaled gradients: an Inf or NaN of one rank stops the step of all, and of this step alone."""
    torch, dist, sml, rank, size = start()
    results = []
    for dtypes in ((torch.float32, torch.float16), (torch.float32,)):
        parameters = [torch.nn.Parameter(torch.full((1000,), 2.0, dtype=dtype)) for dtype in dtypes]
        optimizer, scaler, steps, scale = torch.optim.SGD(parameters, lr=1.0), None, [], 4.0
        if len(dtypes) == 1 and hasattr(torch.amp, "GradScaler"):
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
            scaler.scale(torch.ones(1))  # it is lazy
        for step, spoiled in enumerate([None, float("inf"), float("nan"), float("-inf"), None]):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 0.25 * scale / size)
                if spoiled is not None and rank == step % size:
                    parameter.grad[step * 7] = spoiled
                dist.all_reduce(parameter.grad)
            before = parameters[0][0].item()
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
                scale = scaler.get_scale()
            else:
                scale = step_by_hand(torch, optimizer, scale)
            steps.append(before != parameters[0][0].item())
        results.append({"steps": steps, "scale": scale, "values": [parameter[0].item() for parameter in parameters]})
    report(results=results, stats=sml.stats())
    dist.destroy_process_group()


def test_hook_gives_the_same_with_any_buckets():
    with Daemon() as daemon:
        for rank, result in enumerate(run_ranks("hook", 3, daemon.address, SWITCHML_REQUIRE="1")):
            assert result["is_equal"] and 0 < result["difference"] < 1e-4, result
            for stats, least in ((result["stats"], 8), (result["of_backend"], 8), (result["of_pair"], 2)):
                if rank != 1 or stats:
                    assert stats["offloaded_calls"] >= least and stats["fallback_calls"] == 0, result
                    assert stats["tx_bytes"] > least * 90_000 * 4, result


def test_hook_without_offload_is_the_other_backend():
    for result in run_ranks("hook", 3, SWITCHML_DISABLE="1"):
        assert result["difference"] == 0, result
        assert result["stats"]["offloaded_calls"] == 0 and result["stats"]["fallback_calls"] >= 8, result


def test_hook_sums_within_a_host_first():
    with Daemon() as daemon:
        for result in run_ranks("hook_within", 4, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["is_equal"] and 0 < result["difference"] < 1e-4, result
            assert all("LOCAL_WORLD_SIZE" in text for text in result["texts"]), result["texts"]
            assert result["stats"]["fallback_calls"] == 0 and result["stats"]["offloaded_calls"] >= 8, result
            assert result["stats"]["tx_bytes"] < 0.6 * result["of_plain"]["tx_bytes"], result  # half of the gradients


def test_hook_names_a_killed_rank():
    with Daemon() as daemon:
        results = Ranks("hook_killed", 3, daemon.address, SWITCHML_REQUIRE="1").wait(but=(1,))
        for rank in (0, 2):
            assert results[rank]["ranks"] == [1] and "[rank 1]" in results[rank]["text"], results[rank]


def test_tens_of_groups_share_one_context():
    with Daemon() as daemon:
        for result in run_ranks("many_groups", 2, daemon.address, SWITCHML_REQUIRE="1"):
            assert result["offloaded"] == [4] * NUM_GROUPS, result
            assert result["slots"][0] > result["slots"][1] > result["slots"][2] == 0, result["slots"]
            assert result["more_threads"] <= 2, result  # the group's own, and at most one of Gloo's; no engine


def test_nothing_of_ended_groups_stays():
    for result in run_ranks("ended_groups", 2):
        assert result["is_done"], result


def test_group_timeouts_name_the_missing_rank():
    with Daemon() as daemon:
        results = run_ranks("timeouts", 3, daemon.address, SWITCHML_REQUIRE="1")
    for rank in (0, 2):
        for name, limit in (("first", 2), ("later", 3)):
            result = results[rank][name]
            assert result["ranks"] == [1] and result["status"] == "timed out" and "rank 1" in result["text"], results
        # The later group's 3 s began with its first call, just before the first group's 2 s; maybe on another rank.
        first_s, later_s = (results[rank][name]["took_s"] for name in ("first", "later"))
        assert 1.9 < first_s and 2.5 < first_s + later_s, results
        assert "0.5 s of this wait" in results[rank]["wait"]["text"] and not results[rank]["wait"]["ranks"], results


def test_gradient_scaling_sees_infinities_of_other_ranks():
    with Daemon() as daemon:
        for rank in run_ranks("scaler", 3, daemon.address, SWITCHML_REQUIRE="1"):
            for result in rank["results"]:
                assert result["steps"] == [True, False, False, False, True] and result["scale"] == 0.5, result
                assert set(result["values"]) == {1.5}, result
            assert rank["stats"]["offloaded_calls"] == 15, rank


def test_elastic_restart_after_a_kill():
    """The launcher starts all ranks anew. They join a new job, at a new epoch, although the aggregator, whose slots are few,
    had the old one a moment ago; nobody waits for leases; training goes on from its checkpoint."""
    if torch_ranks.torch_major() >= 2:
        raise tap.Skip("the launcher of Debian 13 does not start: its PyTorch was built without libuv")
    with Daemon("--slots", "64") as daemon, tempfile.TemporaryDirectory() as folder:
        run_ranks("elastic", 1, daemon.address, SWITCHML_REQUIRE="1", FOLDER=folder)
        with open(os.path.join(folder, "killed"), encoding="ascii") as file:
            killed = json.load(file)
        for rank in range(2):
            with open(os.path.join(folder, f"done{rank}"), encoding="ascii") as file:
                result = json.load(file)
            assert result["generation"] == 1 and result["first_step"] == 5, result
            assert result["stats"]["offloaded_calls"] == 5 and result["stats"]["fallback_calls"] == 0, result
            assert result["joined_s"] < 5, result
        old, new = ([job["name"] for job in each["jobs"]] for each in (killed, result))
        assert len(old) == len(new) == 1 and old != new, (old, new)
        print(f"# {result['ended'] - killed['at']:.1f} s from the kill to the end, of which joining "
              f"{result['joined_s']:.2f} s")
        events = status_of(daemon.address)["events"]
        assert events["job_started"] == 2, events

RECORD = """
import sys, torch, switchml.torch
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 4), torch.nn.Flatten(), torch.nn.Linear(24, 2, bias=False))
def step():
    model.zero_grad()
    model(torch.zeros(3, 6, dtype=torch.long)).sum().backward()
switchml.torch.record(sys.argv[1], model, step, 3)
"""


def test_a_model_of_ones_own_is_recorded():
    """Its layers in their order, FLOPs of a sample, and a table that the command takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mine.txt")
        subprocess.run([torch_ranks.PYTHON, "-P", "-c", RECORD, path], check=True, env={**os.environ, "PYTHONPATH": torch_ranks.PYTHONPATH})
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        assert lines[1:3] + lines[4:] == ["parameters 164", "batch 3", "layer 0 0 weight=80", f"layer 1 {2 * 32 * 6} weight=32 bias=4",
                                          "layer 3 96 weight=48"], lines
        done = subprocess.run([built("src/cli/switchml", "bin/switchml"), "bench", "training", "--predict", "--gpu", "own",
                               "--model-file", path, "--ranks", "4"], stdout=subprocess.PIPE, text=True, check=True)
        assert "own" in done.stdout, done.stdout


if __name__ == "__main__":
    torch_ranks.main(globals())
