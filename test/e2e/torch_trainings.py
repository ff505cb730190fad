# SPDX-License-Identifier: Apache-2.0
"""Cases of torch_ranks.py that train a network, or keep one."""
import torch_parts
from torch_parts import dist, init, n, network, rank, replicated, same, sharded, store_path, torch


def training():
    """The same network under both backends: the losses are the same to the bit with two ranks."""
    init(backend="gloo")
    losses = {name: replicated(dist.new_group(backend=name), rank) for name in ("gloo", "railyard")}
    assert losses["gloo"] == losses["railyard"], losses
    assert losses["gloo"][-1] < losses["gloo"][0]


def sharded_training():
    losses = {}
    for name in ("gloo", "railyard"):
        torch_parts.case = f"sharded_{name}"  # the default group's, which others of its mesh come from
        init(backend=name)
        losses[name] = sharded(rank, n)
        dist.destroy_process_group()
    assert losses["gloo"] == losses["railyard"], losses


def compressed_training():
    """Each of this hook's callbacks begins an operation, and one waits for it."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    init()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
                             powerSGD_hook.powerSGD_hook)
    for step in range(4):
        model(torch.full((4, 100), float(rank + step))).sum().backward()
    gradients = [torch.zeros(100, 100) for _ in range(n)]
    dist.all_gather(gradients, model.module.weight.grad)
    same(gradients[0], gradients[1])


def sparse_gradients():
    """Of an embedding, of which each rank uses other rows; the same as with dense gradients."""
    init()
    weights = []
    for sparse in (True, False):
        torch.manual_seed(1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(50, 8, sparse=sparse))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.arange(rank, 10 * (rank + 1)) + step).square().sum().backward()
            assert model.module.weight.grad.is_sparse == sparse
            optimizer.step()
        weights.append(model.module.weight.detach())
    assert torch.allclose(weights[0], weights[1]), "sparse gradients gave other weights"
    assert not torch.equal(weights[0], torch.nn.Embedding(50, 8).weight)


def checkpoints():
    """What asks torch's group for its devices: a state that rank 0 alone has, and one that is written beside."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    init()
    model = network()
    if rank != 0:
        torch.nn.init.zeros_(model[0].weight)
    set_model_state_dict(model, get_model_state_dict(model) if rank == 0 else {}, options=StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True))
    same(model[0].weight.detach(), network()[0].weight.detach())
    checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=store_path + "saved").result()
    got = {"model": {name: torch.zeros_like(t) for name, t in model.state_dict().items()}}
    checkpoint.load(got, checkpoint_id=store_path + "saved")
    for name, t in model.state_dict().items():
        same(got["model"][name], t)
