#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trainings and figures of the PyTorch backend with tensors on a GPU that the ranks share: `make check-cuda`.

Without SML_TEST_DEVICE=cuda everything that can runs in short on the stand-in for CUDA, so that no line is wrong before a
GPU sees it."""
import datetime
import hashlib
import itertools
import json
import os
import statistics
import sys
import time

import cuda_standin
import tap
import torch_ranks
import torch_train_test as trainings
from torch_ranks import Ranks, leave, report

IS_REAL = os.environ.get("SML_TEST_DEVICE") == "cuda"
NUM_STEPS, NUM_RANKS, NUM_ROUNDS = (100, (2, 4), 15) if IS_REAL else (3, (2,), 3)
LARGE_BYTES = 64 << 20 if IS_REAL else 9 << 20
MOST_OF_A_STAGE = 1.15
BUCKET_MB = 1  # one piece each: sums have the bits of those of CPU tensors


def begin(backend="switchml"):
    """(torch, dist, switchml.torch, device, where tensors are made, rank, size)"""
    import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch as sml  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    device, place = cuda_standin.device_for_tests(is_eager=True), torch.device("cpu")
    if IS_REAL:
        place = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(place)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=100))
    return torch, dist, sml, device, place, dist.get_rank(), dist.get_world_size()


def wait_for_device(torch):
    if IS_REAL:
        torch.cuda.synchronize()


def bits_of(parameters):
    return hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in parameters)).hexdigest()


# ---- Training ------------------------------------------------------------------------------------------------

def case_train():
    """CASE_WAY: gradients as they are; through tensors of the host; or by Gloo."""
    torch, dist, sml, device, place, rank, size = begin()
    kind, way = os.environ["CASE_KIND"], os.environ["CASE_WAY"]
    group = dist.new_group(backend="gloo") if way == "gloo" else None
    torch.manual_seed(5)
    network = {"pictures": trainings.network_for_pictures, "text": trainings.network_for_text}[kind](torch).to(place)
    ddp = torch.nn.parallel.DistributedDataParallel(network, process_group=group, bucket_cap_mb=BUCKET_MB,
                                                    device_ids=[place] if IS_REAL else None)

    def through_host(_state, bucket):
        tensor = bucket.buffer().mul_(1 / size)
        host = device.host_tensor(tensor)
        dist.all_reduce(host)
        future = torch.futures.Future(devices=[place]) if IS_REAL else torch.futures.Future()
        future.set_result(tensor.copy_(host))
        return future
    if way == "host":
        ddp.register_comm_hook(None, through_host)
    optimizer, losses = torch.optim.Adam(ddp.parameters(), lr=0.003), []
    batches = {"pictures": trainings.batches_of_pictures, "text": trainings.batches_of_text}[kind]
    data = batches(torch, torch.Generator().manual_seed(50 + rank), rank, size)
    torch.manual_seed(100 + rank)
    wait_for_device(torch)
    began = time.monotonic()
    for inputs, labels in itertools.islice(data, NUM_STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(ddp(inputs.to(place)), labels.to(place))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    wait_for_device(torch)
    report(bits=bits_of(ddp.parameters()), losses=losses, took_s=time.monotonic() - began, stats=sml.stats())
    leave(dist, group)


def test_trainings_have_the_bits_of_cpu_tensors():
    for kind in "pictures", "text":
        for num_ranks in NUM_RANKS:
            bits, took = {}, {}
            for way in "device", "host", "gloo":
                results = Ranks("train", num_ranks, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY="1", CASE_KIND=kind,
                                CASE_WAY=way, CUBLAS_WORKSPACE_CONFIG=":4096:8").wait()
                assert len({result["bits"] for result in results}) == 1, (kind, way, "ranks hold different parameters")
                assert way == "gloo" or results[0]["stats"]["offloaded_calls"] >= NUM_STEPS, results[0]["stats"]
                bits[way], took[way] = results[0]["bits"], max(result["took_s"] for result in results)
            assert bits["device"] == bits["host"], (kind, num_ranks, "differs from the training through CPU tensors")
            print(f"# {kind}, {num_ranks} ranks, {NUM_STEPS} steps: {took['device']:.2f} s, through CPU tensors "
                  f"{took['host']:.2f} s, Gloo {took['gloo']:.2f} s", flush=True)


def case_scaler():
    """One rank's gradients are Inf in one step: all ranks leave that step out."""
    torch, dist, _, _, place, rank, _ = begin()
    torch.manual_seed(3)
    network = torch.nn.Linear(400, 300).to(place)
    ddp = torch.nn.parallel.DistributedDataParallel(network, device_ids=[place] if IS_REAL else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    if IS_REAL:
        scaler = torch.cuda.amp.GradScaler(init_scale=1024.0)
    elif hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    else:
        raise SystemExit(report(skip="this PyTorch has no GradScaler without a GPU"))
    bits, scales = [], []
    for step in range(5):
        optimizer.zero_grad()
        loss = ddp(torch.full((8, 400), 0.01 * (step + rank + 1), device=place)).square().mean()
        scaler.scale(loss * (float("inf") if step == 2 and rank == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        bits.append(bits_of(ddp.parameters()))
        scales.append(scaler.get_scale())
    report(bits=bits, scales=scales)
    dist.destroy_process_group()


def test_a_scaler_sees_infs_on_all_ranks():
    results = Ranks("scaler", 2, SWITCHML_REQUIRE="1").wait()
    if "skip" in results[0]:
        raise tap.Skip(results[0]["skip"])
    for result in results:
        bits = result["bits"]
        assert bits == results[0]["bits"] and bits[2] == bits[1] and len(set(bits)) == 4, result
        assert result["scales"] == [1024.0, 1024.0, 512.0, 512.0, 512.0], result


# ---- Groups by device ------------------------------------------------------------------------------------------

def case_named():
    """CASE_NAME: "cpu:gloo,cuda:switchml" or "cpu:switchml,cuda:nccl"."""
    torch, dist, sml, _, place, rank, size = begin(os.environ["CASE_NAME"])
    host, total = torch.full((5000,), rank + 1.0), size * (size + 1) / 2
    dist.all_reduce(host)
    tensor = torch.full((5000,), rank + 1.0, device=place)
    dist.all_reduce(tensor)
    assert host[0].item() == total and tensor.cpu()[0].item() == total, (host, tensor)
    num_offloaded = sml.stats()["offloaded_calls"]
    if IS_REAL and hasattr(torch, "compile"):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(place), device_ids=[place])
        torch.compile(model)(torch.ones(4, 64, device=place)).sum().backward()
        from torch.distributed.fsdp import FullyShardedDataParallel  # pylint: disable=import-outside-toplevel
        if os.environ["CASE_NAME"].endswith("nccl"):
            sharded = FullyShardedDataParallel(torch.nn.Linear(64, 64).to(place))
            sharded(torch.ones(4, 64, device=place)).sum().backward()
    report(offloaded=num_offloaded)
    dist.destroy_process_group()


def test_groups_by_device():
    if torch_ranks.torch_major() < 2:
        raise tap.Skip("this PyTorch is older than 2")
    for result in Ranks("named", 2, CASE_NAME="cpu:gloo,cuda:switchml").wait():
        assert result["offloaded"] == (1 if IS_REAL else 0), result
    if IS_REAL:  # NCCL takes one rank a GPU
        for result in Ranks("named", 1, CASE_NAME="cpu:switchml,cuda:nccl").wait():
            assert result["offloaded"] == 1, result


# ---- Figures -----------------------------------------------------------------------------------------------------

def timed(torch, dist, function):
    """The time of a call that all ranks begin together."""
    wait_for_device(torch)
    dist.barrier()
    began = time.perf_counter()
    function()
    wait_for_device(torch)
    return (time.perf_counter() - began) * 1e3


def case_stages():
    """Milliseconds of 64 MiB: each stage alone, all of it, Gloo's way; and when each piece came by."""
    torch, dist, _, device, place, rank, _ = begin()
    from switchml import cuda, staging  # pylint: disable=import-outside-toplevel
    count, by_gloo, trace = LARGE_BYTES // 4, dist.new_group(backend="gloo"), []
    tensor = torch.full((count,), rank + 1.0, device=place)
    host = cuda.api.pinned(LARGE_BYTES).view(torch.float32)
    host.fill_(rank + 1.0)
    functions = {"to_host": lambda: host.copy_(tensor, non_blocking=True), "sum": lambda: dist.all_reduce(host),
                 "to_device": lambda: tensor.copy_(host, non_blocking=True), "all": lambda: dist.all_reduce(tensor),
                 "gloo": lambda: dist.all_reduce(tensor, group=by_gloo)}
    times = {name: [] for name in functions}
    for number in range(NUM_ROUNDS + 1):
        if number == NUM_ROUNDS:
            follow_pieces(staging, trace)
        for name, function in functions.items():
            tensor.fill_(1.0)
            host.fill_(1.0)
            took_ms = timed(torch, dist, function)
            if 0 < number < NUM_ROUNDS:  # the first is to warm up, the last is for the trace
                times[name].append(took_ms)
    assert not device.problems(), device.problems()
    report(times=times, trace=trace)
    leave(dist, by_gloo)


def follow_pieces(staging, trace):
    """Notes when each piece of a call was begun, was there, and was sent back."""
    for name in "start", "is_ready", "start_back":
        def noted(piece, *given, name=name, method=getattr(staging.Piece, name)):
            answer = method(piece, *given)
            if answer is not False:
                trace.append([name, piece.part.storage_offset(), time.perf_counter() * 1e3])
            return answer
        setattr(staging.Piece, name, noted)


def test_stages_overlap():
    for num_ranks in NUM_RANKS:
        results = Ranks("stages", num_ranks, SWITCHML_REQUIRE="1", SWITCHML_SHARED_MEMORY="1").wait()
        rounds = {name: [max(each) for each in zip(*(result["times"][name] for result in results))]
                  for name in results[0]["times"]}
        times = {name: statistics.median(each) for name, each in rounds.items()}
        slowest = max(times[name] for name in ("to_host", "sum", "to_device"))
        print(f"# {num_ranks} ranks, {LARGE_BYTES >> 20} MiB, ms: " + ", ".join(f"{name} {value:.2f}" for name, value in
                                                                                 times.items())
              + f"; all is {times['all'] / slowest:.2f} times the slowest stage", flush=True)
        trace, first = results[0]["trace"], min(each[2] for each in results[0]["trace"])
        for name, offset, at in trace:
            print(f"#   {at - first:8.3f} ms  piece at {offset * 4 >> 20:3d} MiB  {name}")
        if "OUT" in os.environ:
            with open(os.path.join(os.environ["OUT"], f"stages-{num_ranks}.json"), "w", encoding="ascii") as output:
                json.dump({"times": rounds, "traces": [result["trace"] for result in results]}, output)
        begun = [at for name, _, at in trace if name == "start"]
        back = [at for name, _, at in trace if name == "start_back"]
        assert len(begun) == len(back) and len(back) >= 3, trace
        assert not IS_REAL or times["all"] <= MOST_OF_A_STAGE * slowest, times


if __name__ == "__main__":
    sys.argv = [argument for argument in sys.argv if argument != "--all"]
    torch_ranks.main(globals())
