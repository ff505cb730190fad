#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 200
# TEST-SAN: none
"""rail-coll under Open MPI's mpirun: ranks from its environment, one unique id without MPI calls."""
import json
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import COLL, SOCKET, Skip, expect, main, run


def mpirun(np, *args, program=(COLL,), **changes):
    if not shutil.which("mpirun"):
        raise Skip("there is no mpirun (Debian: openmpi-bin)")
    # Its own connections stay on loopback too, and it counts cores that we do not need one each of.
    launch = ["mpirun", "-np", np, "--oversubscribe", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo"]
    if os.geteuid() == 0:
        launch.append("--allow-run-as-root")
    return run([*launch, *program, *args], **changes)


def found(np, *args, **changes):
    done = mpirun(np, *args, "--json", "-", **changes)
    expect(done, 0)
    return json.loads(done.stdout)


def four_ranks():
    result = found(4, "all_reduce", "-b", 8, "-e", "1M", "-f", 8, "-n", 3)
    assert result["config"]["launch"] == "openmpi", result["config"]
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1, 2, 3]
    assert len({rank["pid"] for rank in result["ranks"]}) == 4
    assert len(result["rows"]) == 6 and result["summary"]["wrong"] == 0


def over_the_plugin():
    result = found(4, "all_reduce", "-b", 8, "-e", "1M", "-f", 8, "-n", 3,
                   NCCL_NET_PLUGIN=SOCKET, NCCL_SHM_DISABLE=1)
    for rank in result["ranks"]:
        assert rank["net_plugin"] == SOCKET and "NET" in rank["transports"], rank
    assert result["summary"]["wrong"] == 0


def jobs_after_and_beside_each_other():
    """The id of one job is never taken for another's."""
    for _ in range(3):
        assert found(2, "all_gather", "-b", 64, "-e", 64, "-n", 1)["summary"]["wrong"] == 0


def ranks_started_by_a_script():
    """Each rank's parent is a shell of its own."""
    script = ["bash", "-c", '"$@"; exit $?', "bash", COLL]
    done = mpirun(2, "all_gather", "-b", 64, "-e", 64, "-n", 1, program=script)
    expect(done, 0)


def id_through_a_directory():
    with tempfile.TemporaryDirectory() as store:
        for _ in range(2):  # what the first job left there does no harm
            assert found(3, "broadcast", "-b", 64, "-e", 64, "-n", 1, RAIL_STORE=store)["summary"]["wrong"] == 0


def one_table_and_one_error():
    done = mpirun(3, "reduce_scatter", "-b", 96, "-e", 96, "-n", 1)
    expect(done, 0)
    assert done.stdout.count("# Avg bus bandwidth") == 1, done.stdout
    done = mpirun(3, "broadcast", "-e", 8, "--root", 3)
    assert done.returncode != 0 and done.stderr.count("3 is no rank for --root") == 1, done.stderr


main([("four ranks", four_ranks), ("over the plugin", over_the_plugin),
      ("one job after another", jobs_after_and_beside_each_other),
      ("ranks started by a script", ranks_started_by_a_script),
      ("the id through a directory", id_through_a_directory), ("one table and one error", one_table_and_one_error)])
