# SPDX-License-Identifier: Apache-2.0
"""One worker of test_torch_launch.py, started by torchrun. Its argument: a folder."""
import os
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from railyard_torch import library


def late(rank):
    """Rank 1, which comes after rank 0. The time in which the library connects begins with the id: it is made when all
    have come."""
    began, comes = (Path(sys.argv[1], name) for name in ("began", "comes"))
    if rank == 0:
        get_id = library.lib.ncclGetUniqueId

        def checked(at):
            assert comes.exists(), "an id is made before rank 1 has come"
            return get_id(at)
        library.lib.ncclGetUniqueId = checked
        began.touch()
    else:
        while not began.exists():
            time.sleep(0.01)
        time.sleep(1)
        comes.touch()


def uneven(rank, group):
    """A training in which rank 1 has more to do than rank 0. In each step a rank uses one branch, and DDP asks which
    ones were used at all."""
    torch.manual_seed(1)
    parts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = parts

        def forward(self, x, step):
            return self.parts[(step + rank) % 2](x)
    model = DistributedDataParallel(Branches(), process_group=group, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    with model.join():
        for step in range(3 + 4 * rank):
            optimizer.zero_grad()
            model(torch.randn(4, 8), step).square().mean().backward()
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def main():
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torchrun's store is the same in the second turn; torch 1.13 itself cannot use it twice.
    for turn in range(1 if torch.__version__ < "2" else 2):
        if turn == 0:
            late(rank)
        elif rank == 0:
            time.sleep(1)  # the other one finds what turn 0 has left
        dist.init_process_group("railyard")
        trained = {name: uneven(rank, dist.new_group(backend=name)) for name in ("gloo", "railyard")}
        assert torch.equal(trained["gloo"], trained["railyard"]), f"rank {rank}, turn {turn}: not what Gloo trains"
        everybody = [torch.empty_like(trained["railyard"]) for _ in range(n)]
        dist.all_gather(everybody, trained["railyard"])
        assert all(torch.equal(other, trained["railyard"]) for other in everybody)
        dist.destroy_process_group()
    print(f"rank {rank} of {n} trained", flush=True)


main()
