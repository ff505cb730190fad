# SPDX-License-Identifier: Apache-2.0
"""The Python whose torch is tried: RAIL_TEST_PYTHON, else the system's, for which Debian's python3-torch is."""
import functools
import os
import subprocess

from coll import ROOT, Skip, environment

PYTHON = os.environ.get("RAIL_TEST_PYTHON", "/usr/bin/python3")


@functools.cache  # importing torch takes more than a second
def runs(code):
    return not subprocess.run([PYTHON, "-c", code], capture_output=True,
                              env=environment(PYTHONPATH=ROOT / "python")).returncode


def needs_torch(code=""):
    """Skips where this Python has no torch.distributed, or cannot run this."""
    if not runs("import torch.distributed as d; assert d.is_available()"):
        raise Skip(f"{PYTHON} has no torch.distributed (Debian: python3-torch)")
    if code and not runs(code):
        raise Skip(f"the torch of {PYTHON} is too old for: {code}")
