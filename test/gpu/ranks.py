#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a command N times, as ranks 0 to N-1 of one job on this machine, with the variables that torch.distributed
and the MPI of test/gpu/mpi read. The first that fails ends the others; its status is ours.

    ranks.py -n N [--hosts] -- COMMAND...

--hosts gives each rank a host of its own as far as NCCL can see (NCCL_HOSTID): else it takes two ranks on one GPU
for a mistake.
"""
import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

NOTHING_THERE = 77  # a rank's status when it has said why it cannot run
GRACE = 5  # seconds for the others when one has failed


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def variables(rank, n, port, page, hosts):
    env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": port, "GPU_TEST_MPI_PAGE": page, "PYTHONUNBUFFERED": 1}
    if hosts:
        env["NCCL_HOSTID"] = f"railyard-{os.getpid()}-{rank}"
    return {**os.environ, **{k: str(v) for k, v in env.items()}}


def wait(processes):
    """The status of the first that fails, or 0."""
    status, deadline = 0, None
    while any(p.poll() is None for p in processes):
        for rank, p in enumerate(processes):
            if p.poll() and not status:
                status, deadline = p.returncode, time.monotonic() + GRACE
                if status != NOTHING_THERE:
                    print(f"# rank {rank} ended with {p.returncode}; the others have {GRACE} s", flush=True)
        if deadline and time.monotonic() > deadline:
            for p in processes:
                p.kill()
        time.sleep(0.02)
    return status or next((p.returncode for p in processes if p.returncode), 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command")
    port = free_port()
    with tempfile.NamedTemporaryFile(prefix="gpu-test-mpi.") as page:
        processes = [subprocess.Popen(command, env=variables(rank, args.n, port, page.name, args.hosts))
                     for rank in range(args.n)]
        status = wait(processes)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
