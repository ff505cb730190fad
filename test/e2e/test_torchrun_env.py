#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
# TEST-SAN: none
"""rail-coll with the variables that torchrun gives its workers, and Slurm's; neither is needed for it."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from coll import COLL, environment, free_port, main


def torchrun(rank, n, port, **more):
    return {"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": n, "GROUP_RANK": 0,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": f"job{port}"} | more


def slurm(rank, n, job, **more):
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": n, "SLURM_NPROCS": n, "SLURM_LOCALID": rank, "SLURM_JOB_ID": job,
            "SLURM_JOBID": job, "SLURM_STEP_ID": 0, "SLURM_STEPID": 0, "SLURM_NODEID": 0, "SLURM_NNODES": 1,
            "SLURM_JOB_NUM_NODES": 1, "SLURM_TASKS_PER_NODE": n, "SLURM_STEP_TASKS_PER_NODE": n,
            "SLURM_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost", "SLURM_STEP_NODELIST": "localhost"} | more


def launch(variables, *args, order=None, limit=100):
    """One process per rank, started in the given order; all must end well. Rank 0's results."""
    args = args or ("all_reduce", "-b", "8", "-e", "64K", "-f", "16", "-n", "3")
    ranks = [None] * len(variables)
    try:
        for rank in order or range(len(variables)):
            ranks[rank] = subprocess.Popen([COLL, *args, "--json", "-"], env=environment(**variables[rank]), text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if order:
                time.sleep(0.3)  # late ones are waited for; if the order is lost, the test is only easier
        ended = [rank.communicate(timeout=limit) for rank in ranks]
    finally:
        for rank in ranks:
            if rank and rank.poll() is None:
                rank.kill()
                rank.communicate()
    for rank, (out, err) in enumerate(ended):
        assert ranks[rank].returncode == 0, f"rank {rank} ended with {ranks[rank].returncode}:\n{out}{err}"
        assert rank == 0 or out == "", f"rank {rank} printed {out}"
    return json.loads(ended[0][0])


def check(result, n, source):
    assert result["config"]["launch"] == source, result["config"]
    assert [rank["rank"] for rank in result["ranks"]] == list(range(n))
    assert result["rows"] and result["summary"]["wrong"] == 0


def torchruns_variables():
    port = free_port()
    check(launch([torchrun(rank, 4, port) for rank in range(4)]), 4, "torchrun")


def rank_0_comes_last():
    port = free_port()
    check(launch([torchrun(rank, 3, port) for rank in range(3)], order=[2, 1, 0]), 3, "torchrun")


def the_agent_keeps_the_port():
    """torchrun's agent itself listens on MASTER_PORT, for its store; the ranks must still meet."""
    with socket.socket() as agent:
        port = free_port()
        agent.bind(("127.0.0.1", port))
        agent.listen()
        variables = [torchrun(rank, 4, port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=0)
                     for rank in range(4)]
        check(launch(variables), 4, "torchrun")


def torchrun_wins_over_slurm():
    """torchrun inside a Slurm job: one Slurm task, several ranks."""
    port = free_port()
    check(launch([slurm(0, 1, port) | torchrun(rank, 2, port) for rank in range(2)]), 2, "torchrun")


def comm_id_by_address():
    at = f"127.0.0.1:{free_port()}"
    check(launch([torchrun(rank, 4, 1, NCCL_COMM_ID=at) for rank in range(4)]), 4, "torchrun")


def store_in_a_directory():
    with tempfile.TemporaryDirectory() as store:
        for _ in range(2):
            check(launch([torchrun(rank, 3, 1, RAIL_STORE=store) for rank in range(3)]), 3, "torchrun")


def slurms_variables():
    check(launch([slurm(rank, 3, 4000000 + os.getpid()) for rank in range(3)]), 3, "slurm")


def a_rank_that_never_comes():
    """A deadline, and a line that says what is missing, instead of a hang."""
    port = free_port()
    variables = [torchrun(rank, 3, port, RAIL_BOOTSTRAP_TIMEOUT=3) for rank in range(2)]
    ranks = [subprocess.Popen([COLL, "all_reduce", "-e", "8"], env=environment(**v), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for v in variables]
    try:
        for rank in ranks:
            _, err = rank.communicate(timeout=60)
            assert rank.returncode == 3, (rank.returncode, err)
            assert "rail-coll: rank" in err, err
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
                rank.communicate()


main([("torchrun's variables", torchruns_variables), ("rank 0 comes last", rank_0_comes_last),
      ("the agent keeps the port", the_agent_keeps_the_port), ("torchrun wins over Slurm", torchrun_wins_over_slurm),
      ("NCCL_COMM_ID", comm_id_by_address), ("RAIL_STORE", store_in_a_directory),
      ("Slurm's variables", slurms_variables),
      ("a rank that never comes", a_rank_that_never_comes)])
