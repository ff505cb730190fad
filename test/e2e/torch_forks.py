# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not import torch each, which takes more than a second of a processor: forks of one process that has."""
import json
import os
import signal
import sys
import time

import torch  # noqa: F401
import torch.distributed  # noqa: F401
import torch.nn.parallel  # noqa: F401


def become_a_rank():
    """Runs jobs, a line of JSON on stdin each, and answers each with the exit statuses of its ranks. Returns only in
    the ranks, with the command line and environment that the job has for them; what they print is in scratch/RANK.out
    and RANK.err."""
    assert len(os.listdir("/proc/self/task")) == 1, "importing torch has started threads, which a fork would not have"
    for line in sys.stdin:
        job = json.loads(line)
        pids = []
        for rank in range(job["n"]):
            pids.append(os.fork())
            if pids[-1] == 0:
                return begin(job, rank)
        print(json.dumps(wait(pids, time.monotonic() + job["limit"])), flush=True)
    return sys.exit(0)


def begin(job, rank):
    os.environ.clear()
    os.environ.update(job["env"])
    files = [("/dev/null", os.O_RDONLY)]
    files += [(f"{job['scratch']}{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err")]
    for fd, (name, flags) in enumerate(files):
        opened = os.open(name, flags)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv[1:] = [job["names"], str(rank), str(job["n"]), job["scratch"]]


def wait(pids, deadline):
    """Exit statuses; "late" for those that had to be killed then."""
    statuses = [None] * len(pids)
    while None in statuses:
        late = time.monotonic() > deadline
        for rank, pid in enumerate(pids):
            if statuses[rank] is not None:
                continue
            if late:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if ended:
                statuses[rank] = "late" if late else os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return statuses
