#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
# TEST-SAN: none
"""The backend "railyard" under torchrun, which gives the ranks its own store (TCPStore): a rank that comes late,
DistributedDataParallel with uneven inputs (join) beside Gloo, and a group that is destroyed and made again."""
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from coll import BUILD, free_port, main, run
from torch_python import PYTHON, needs_torch


def two_workers():
    needs_torch()
    with tempfile.TemporaryDirectory() as scratch:
        # The torchrun of 1.13 needs --redirects and --tee under Python 3.11.
        done = run([PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_addr", "127.0.0.1",
                    "--master_port", free_port(), "--redirects", 1, "--tee", 1, "--log_dir", f"{scratch}/log",
                    Path(__file__).with_name("torch_workers.py"), scratch], limit=250,
                   RAIL_LIBRARY=BUILD / "lib" / "librailyard.so.0", RAIL_BOOTSTRAP_TIMEOUT="240s", OMP_NUM_THREADS=1,
                   GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"rank {rank} of 2 trained" in done.stdout for rank in range(2)), done.stdout


main([("a late rank, uneven inputs, again", two_workers)])
