# SPDX-License-Identifier: Apache-2.0
"""Collectives of every kind, each with what it must give, for the ranks of torch_test.py."""
import datetime

from torch_ranks import error_text


def sums(torch, dist, rank, size, group=None, ranks=None):
    """Eligible calls of every shape, against the exact answer. Returns how many there were."""
    num_calls, ranks = 0, list(range(size)) if ranks is None else ranks
    total = sum(r + 1 for r in ranks)
    for count in (0, 1, 7, 255, 256, 257, 4096, 100_003):
        pattern = torch.arange(count, dtype=torch.int64) % 1000
        for dtype, op, divisor in ((torch.float32, dist.ReduceOp.SUM, 1), (torch.int32, dist.ReduceOp.SUM, 1),
                                   (torch.float32, dist.ReduceOp.AVG, len(ranks))):
            tensor = (pattern * (rank + 1)).to(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            expected = ((pattern * total).double() / divisor).to(dtype)
            assert torch.equal(tensor, expected), (count, dtype, op)
            num_calls += 1
    shapes = [torch.ones(6, 8).t(), torch.ones(4, 4)[:, 1], torch.ones(3, 3)[1:2], torch.tensor(1.0),
              torch.ones(2, 2, requires_grad=True)]
    for tensor in shapes:
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full_like(tensor, len(ranks))), tensor
        num_calls += 1
    column = torch.zeros(4, 4)
    dist.all_reduce(column[:, 1].add_(1), group=group)
    assert column.sum() == 4 * len(ranks) and column[:, 1].sum() == column.sum()
    return num_calls + 1


def gloo_takes(torch, dist, dtype):
    """Whether a Gloo group of this rank sums it. That of Debian's torch 2.14 takes no float16, and 1.13's no bfloat16."""
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=datetime.timedelta(seconds=10))
    return not error_text(lambda: alone.allreduce([torch.ones(1, dtype=dtype)]).wait())


def gloo_calls(torch, dist, rank, size):
    """Everything that is no all-reduce of SwitchML's gives what Gloo gives. Returns how many SwitchML does nevertheless."""
    op, num_calls = dist.ReduceOp, 3  # three of those after the next ones
    for dtype in (torch.float64, torch.float16, torch.int64, torch.uint8, torch.int8):
        for reduction, expected in ((op.SUM, sum(range(1, size + 1))), (op.MAX, size), (op.MIN, 1)):
            tensor = torch.full((5,), rank + 1, dtype=dtype)
            text = error_text(dist.all_reduce, tensor, op=reduction)
            num_calls += reduction != op.SUM and (dtype != torch.float16 or not gloo_takes(torch, dist, dtype))
            assert torch.equal(tensor, torch.full_like(tensor, expected)) and not text, (dtype, reduction, text)
    for dtype, reduction, value, expected in (
            (torch.float32, op.MAX, rank, size - 1), (torch.float32, op.PRODUCT, 2, 2 ** size),
            (torch.int32, op.MIN, rank, 0), (torch.int32, op.BOR, 1 << rank, (1 << size) - 1),
            (torch.float64, op.AVG, rank, (size - 1) / 2), (torch.float16, op.AVG, rank, (size - 1) / 2)):
        tensor = torch.full((9,), value, dtype=dtype)
        dist.all_reduce(tensor, op=reduction)
        assert torch.equal(tensor, torch.full_like(tensor, expected)), (dtype, reduction)
    everyone = torch.arange(size, dtype=torch.float32)
    tensor = everyone[rank:rank + 1].clone()
    gathered = [torch.empty(1) for _ in range(size)]
    dist.all_gather(gathered, tensor)
    assert torch.equal(torch.cat(gathered), everyone)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, src=size - 1)
    assert torch.equal(tensor, torch.full((3,), size - 1.0))
    for reduction, expected in ((op.SUM, sum(range(size))), (op.AVG, sum(range(size)) / size)):
        tensor = torch.full((3,), float(rank))
        dist.reduce(tensor, dst=1, op=reduction)
        assert rank != 1 or torch.equal(tensor, torch.full((3,), float(expected)))
    gathered = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(everyone[rank:rank + 1].clone(), gathered, dst=0)
    assert rank != 0 or torch.equal(torch.cat(gathered), everyone)
    tensor = torch.empty(1)
    dist.scatter(tensor, [everyone[r:r + 1].clone() for r in range(size)] if rank == 0 else None, src=0)
    assert tensor.item() == rank
    tensor = torch.empty(size)
    dist.all_to_all_single(tensor, torch.full((size,), float(rank)))
    assert torch.equal(tensor, everyone)
    for dtype in (torch.float32, torch.bool, torch.int16, torch.bfloat16, torch.complex64):
        if rank == 0:
            dist.send(torch.ones(4, dtype=dtype), dst=1)
        elif rank == 1:
            tensor = torch.zeros(4, dtype=dtype)
            dist.recv(tensor, src=0)
            assert torch.equal(tensor, torch.ones(4, dtype=dtype)), tensor
    columns = torch.zeros(4, 4)
    dist.broadcast(columns[:, 2].add_(rank), src=size - 1)
    assert columns[:, 2].sum() == columns.sum() == 4 * (size - 1)
    sparse = torch.eye(3).to_sparse()
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.eye(3) * size)
    dist.barrier()
    return num_calls + 2 + 2 * (size > 2) + 3  # reduces; broadcasts; all-gathers, two of them of objects


def refusals(torch, dist):
    """What neither can do is refused before anything is sent; the group works on."""
    op = dist.ReduceOp
    texts = [error_text(dist.all_reduce, torch.ones(2, dtype=dtype), op=reduction) for dtype, reduction in (
        (torch.int32, op.AVG), (torch.int64, op.AVG), (torch.float32, op.BAND), (torch.int16, op.SUM))]
    assert all(text.startswith("RuntimeError: switchml: ") for text in texts), texts
    dist.barrier()
