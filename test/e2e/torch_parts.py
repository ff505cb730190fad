# SPDX-License-Identifier: Apache-2.0
"""What the cases of torch_ranks.py are made of: values, their reduction, trainings, which return losses."""
import torch
from torch.nn.parallel import DistributedDataParallel


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
    """None: torch has no fully_shard."""
    try:
        from torch.distributed.fsdp import fully_shard
    except (ImportError, ValueError):  # of 1.13, which also wants a Python before 3.11
        return None
    mesh, model = torch.distributed.device_mesh.init_device_mesh("cpu", (n,)), network()
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return train(model, rank, 5)
