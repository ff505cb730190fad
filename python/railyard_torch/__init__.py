# SPDX-License-Identifier: Apache-2.0
"""The backend "railyard" of torch.distributed: collectives of CPU tensors over librailyard.

    import railyard_torch
    torch.distributed.init_process_group("railyard")

docs/pytorch.md of the project says what it does and how fast that is.
"""
from .library import RailyardError

__version__ = "0.1.0"
__all__ = ["ProcessGroupRailyard", "RailyardError", "register"]


def register():
    """Makes the backend known, and loads nothing. Importing the package does it, and where it is installed every
    `import torch` of torch 2.5 and later (entry point torch.backends), which an error here would end."""
    import inspect

    from torch import distributed
    if not distributed.is_available() or "RAILYARD" in getattr(distributed.Backend, "_plugins", {}):
        return
    known = inspect.signature(distributed.Backend.register_backend).parameters
    more = {"devices": ["cpu"]} if "devices" in known else {}
    if python_backends():
        distributed.Backend.register_backend("railyard", _create, extended_api=True, **more)
    else:
        distributed.Backend.register_backend("railyard", _create_group, **more)


def python_backends():
    """Can a class of Python be one of several backends of a group ("cpu:railyard,cuda:nccl")? A torch that allows it
    also tells which group it makes one for."""
    from torch._C import _distributed_c10d as c10d
    return "__init__" in vars(getattr(c10d, "Backend", object)) and \
        hasattr(c10d._DistributedBackendOptions, "process_group")


def _create(options, _):
    from .group import create
    return create(options)


def _create_group(store, rank, size, timeout):
    from .group import ProcessGroupRailyard as create
    return create(store, rank, size, timeout)


def __getattr__(name):
    if name == "ProcessGroupRailyard":
        from .group import ProcessGroupRailyard
        return ProcessGroupRailyard
    raise AttributeError(f"module {__name__} has no attribute {name}")


register()
