# SPDX-License-Identifier: Apache-2.0
"""What the cases of torch_ranks.py and torch_failures.py are made of: this rank, values, their reduction, trainings,
which return losses."""
import datetime
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, n, store_path = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
case = None  # its name, set where it is run


def init(seconds=240, backend="railyard"):
    dist.init_process_group(backend, rank=rank, world_size=n, timeout=datetime.timedelta(seconds=seconds),
                            store=dist.FileStore(store_path + case, n))


def meet(ranks, where="meet"):
    """Without the backend."""
    store, deadline = dist.FileStore(f"{store_path}{case}.{where}", n), time.monotonic() + 80
    store.add("there", 1)
    while store.add("there", 0) < ranks:
        assert time.monotonic() < deadline, "the others have not come"
        time.sleep(0.02)


def same(got, want):
    assert got.dtype == want.dtype and torch.equal(got, want), f"rank {rank}: {got[:8]}, not {want[:8]}"


def raises(kind, texts, call, *args, **kw):
    try:
        call(*args, **kw)
    except kind as e:
        missing = [text for text in texts if text not in str(e)]
        assert not missing, f"\"{e}\" has none of {missing}"
        return
    raise AssertionError(f"no {kind.__name__}")


def everybody(count, dtype=torch.float32):
    return [values(r, count, dtype) for r in range(n)]


def values(of, count, dtype=torch.float32):
    """Small integers, exact in every type, different for each rank."""
    return ((torch.arange(count) * 7 + of * 5 + 1) % 3 + 1).to(dtype)


def combined(parts, op):
    result = parts[0].clone()
    for part in parts[1:]:
        result = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
                  "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op](result, part)
    return result


def train(model, rank, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 64)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
                               torch.nn.Linear(256, 10))


def replicated(group, rank):
    return train(DistributedDataParallel(network(), process_group=group, bucket_cap_mb=0.05), rank, 20)


def sharded(rank, n):
    from torch.distributed.fsdp import fully_shard
    mesh, model = dist.device_mesh.init_device_mesh("cpu", (n,)), network()
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return train(model, rank, 5)
