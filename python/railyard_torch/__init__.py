# SPDX-License-Identifier: Apache-2.0
"""The backend "railyard" of torch.distributed: collectives of CPU tensors over librailyard.

    import railyard_torch
    torch.distributed.init_process_group("railyard")

docs/pytorch.md of the project says what it does and how fast that is.
"""
__version__ = "0.1.0"
__all__ = ["ProcessGroupRailyard", "RailyardError", "register"]


def register():
    """Makes the backend known. Importing the package does it. Where it is installed torch 2.5 and later call this while
    they are imported themselves (entry point torch.backends), maybe by the lines below: so it comes before them."""
    import inspect

    from torch.distributed import Backend

    from .group import ProcessGroupRailyard as create
    if "RAILYARD" in getattr(Backend, "_plugins", {}):
        return
    devices = {"devices": ["cpu"]} if "devices" in inspect.signature(Backend.register_backend).parameters else {}
    Backend.register_backend("railyard", create, **devices)


register()
from .group import ProcessGroupRailyard  # noqa: E402
from .library import RailyardError  # noqa: E402
