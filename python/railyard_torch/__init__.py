# SPDX-License-Identifier: Apache-2.0
"""The backend "railyard" of torch.distributed: collectives of CPU tensors over librailyard.

    import railyard_torch
    torch.distributed.init_process_group("railyard")

docs/pytorch.md of the project says what it does and how fast that is.
"""
import inspect

from torch.distributed import Backend

from .group import ProcessGroupRailyard
from .library import RailyardError

__version__ = "0.1.0"
__all__ = ["ProcessGroupRailyard", "RailyardError", "register"]


def register():
    """Makes the backend known. Importing the package does it; torch 2.5 and later do it by themselves where the package
    is installed (entry point torch.backends)."""
    if "RAILYARD" in getattr(Backend, "_plugins", {}):
        return
    devices = {"devices": ["cpu"]} if "devices" in inspect.signature(Backend.register_backend).parameters else {}
    Backend.register_backend("railyard", ProcessGroupRailyard, **devices)


register()
