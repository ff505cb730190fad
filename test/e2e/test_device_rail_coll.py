#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 200
# TEST-SAN: none
"""rail-coll with buffers on GPUs, over the driver without a GPU: every collective, type and operator, memory of each
kind and ranks of different kinds, each transport, graphs; and what it says where there is no GPU."""
import os
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import BUILD, SOCKET, Skip, coll, expect, main, results

COLLECTIVES = "all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter".split()
REDUCING = {"all_reduce", "reduce", "reduce_scatter"}
IN_PLACE = set(COLLECTIVES) - {"sendrecv", "alltoall"}
IMAGE = tempfile.NamedTemporaryFile()
IMAGE.write(b"fakegpu image\n")
IMAGE.flush()
GPU = {"RAIL_CUDA_LIB": BUILD / "test" / "libfakegpu.so", "RAIL_CUDA_KERNELS": IMAGE.name}
QUICK = ("-n", 2, "-w", 1)


def run(*args, **env):
    """The JSON of a run whose elements are all right; of each rank the memory's kind and the transports."""
    found = results(*args, *QUICK, **{**GPU, **env})
    assert found["summary"]["wrong"] == found["summary"]["outside"] == 0 and found["rows"], found["summary"]
    for row in found["rows"]:
        assert (row["in_place"] is not None) == (found["config"]["collective"] in IN_PLACE), row
    return found, [rank["memory"] for rank in found["ranks"]], {rank["transports"] for rank in found["ranks"]}


def collective(name):
    def case():
        types = ("-d", "all", "-o", "all") if name in REDUCING else ("-d", "uint8,float,double")
        found, memory, over = run(name, "-r", 3, "--memory", "device", "-b", 1000, "-e", 1000, "--root", 2, *types)
        assert memory == ["device"] * 3 and over == {"P2P"}, found["ranks"]
        assert [r["gpu"] for r in found["ranks"]] == ["ghost GPU 0"] * 3 and len(found["rows"]) >= 3, found
        run(name, "-r", 2, "--memory", "device", "-b", 4, "-e", 40004, "-i", 20000, "--offset", 8)
    return case


def several_ranks_in_a_process():
    """As threads, and several of one thread, on one GPU and on two."""
    for args in (("-t", 3), ("-g", 3), ("-r", 2, "-g", 2), ("-t", 2, "-g", 2)):
        found, _, over = run("all_reduce", *args, "--memory", "device", "-b", 64, "-e", "16K", "-f", 16,
                             GHOST_DEVICES=2)
        assert [r["device"] for r in found["ranks"]] == [0, 1, 0, 1][:len(found["ranks"])], found["ranks"]
        assert over == {"P2P"}, over


def each_transport():
    for args, env, over in (((), {"NCCL_P2P_DISABLE": 1}, "SHM"),
                            (("--plugin", SOCKET), {"NCCL_SHM_DISABLE": 1}, "NET")):
        for name in ("all_reduce", "alltoall"):
            _, _, used = run(name, "-r", 2, "--memory", "device", "-b", 64, "-e", "64K", "-f", 32, *args, **env)
            assert len(used) == 1 and used.pop().startswith(over), used


def kinds_of_memory():
    _, memory, _ = run("all_reduce", "-r", 2, "--memory", "managed", "-b", 64, "-e", "4K", "-f", 8)
    assert memory == ["managed"] * 2
    _, memory, _ = run("all_gather", "-g", 3, "--memory", "device,managed", "-b", 64, "-e", "4K", "-f", 8)
    assert memory == ["device", "managed", "device"], memory


def modes():
    for args in (("-m", 3), ("-z", 1), ("-R", 1), ("--in-place",), ("--device", 1), ("-G", 3), ("-G", 2, "-m", 2)):
        args = (*args, "--memory", "device", "-b", 1024, "-e", 4096)
        found = results("all_reduce", "-r", 2, "-n", 2, *args, **GPU, GHOST_DEVICES=2)
        assert found["summary"]["wrong"] == 0, found
        assert found["ranks"][0]["device"] == (1 if "--device" in args else 0), found["ranks"]
    found, _, _ = run("alltoall", "-g", 2, "--memory", "device", "-G", 2, "-b", 64, "-e", 64)
    assert found["config"]["cudagraph"] == 2 and found["rows"][0]["out_of_place"]["time_us"] > 0


def the_table_names_gpus():
    done = coll("all_reduce", "-r", 4, "--memory", "managed,device", "-b", 64, "-e", 64, *QUICK, **GPU)
    expect(done, 0)
    ranks = [line for line in done.stdout.splitlines() if line.startswith("#  Rank ")]
    assert all("ghost GPU" in line for line in ranks), ranks
    assert "#  Buffers in memory of kind: device (ranks 1, 3), managed (ranks 0, 2)\n" in done.stdout, done.stdout


def damage_is_found():
    """What a kernel wrote and nobody should have: the copy on the host is no proof, the device's memory is."""
    for kind, rank in (("result", 0), ("outside", 1), ("input", 1)):
        done = coll("all_reduce", "-r", 2, "--memory", "device", "-b", 512, "-e", 512, "-n", 0, **GPU,
                    LD_PRELOAD=BUILD / "test" / "libcorrupt.so", CORRUPT_KIND=kind, CORRUPT_RANK=rank,
                    CORRUPT_COUNT=128)
        expect(done, 1)
        assert "FAILED" in done.stdout, done.stdout


def errors():
    device = ("all_reduce", "-r", 2, "--memory", "device", "-e", 64)
    none = {**GPU, "RAIL_CUDA_LIB": "/nonexistent/libcuda.so.1"}
    for args, env, status, said in [
        (("all_reduce", "--memory", "gpu"), {}, 2, ("--memory", "'gpu'", "host, device or managed")),
        (("all_reduce", "--memory", "host,"), {}, 2, ("--memory",)),
        (("all_reduce", "--memory", "host,device"), {}, 2, ("--memory", "host", "one kind")),
        (("all_reduce", "--device", "x"), {}, 2, ("--device", "auto")),
        (("all_reduce", "-G", "1"), {}, 2, ("--cudagraph", "--memory device")),
        (("all_reduce", "-G", "1", "--memory", "device", "-z", "1"), {}, 2, ("--cudagraph", "--blocking")),
        (device, none, 3, ("no CUDA driver here", "/nonexistent/libcuda.so.1")),
        ((*device, "--device", 2), {**GPU, "GHOST_DEVICES": 2}, 3, ("--device", "no CUDA device 2", "0 to 1")),
        (device, {**GPU, "GHOST_FAIL": "cuDeviceGetCount:1"}, 3, ("driver cannot be used",)),
        (device, {**GPU, "GHOST_FAIL": "cuMemAlloc_v2:1"}, 3, ("device memory (-e)", "CUDA device 0")),
        (device, {**GPU, "GHOST_FAIL": "cuStreamCreate:1"}, 3, ("cuStreamCreate", "CUDA device 0")),
        (device, {**GPU, "GHOST_FAIL": "cuMemcpyDtoH_v2:1"}, 3, ("copying the result back",)),
        ((*device, "-G", "1", "-n", 1), {**GPU, "GHOST_FAIL": "cuStreamEndCapture:1"}, 3, ("capturing",)),
        ((*device, "-G", "1", "-n", 1), {**GPU, "GHOST_FAIL": "cuGraphLaunch:1"}, 3, ("launching the graph",)),
    ]:
        expect(coll(*args, **env), status, *said)


def with_driver(case):
    def run_case():
        if not GPU["RAIL_CUDA_LIB"].exists():
            raise Skip("no C++17 compiler here, so there is no driver without a GPU")
        case()
    return run_case


main([(name, with_driver(case)) for name, case in [(f"{name} on a device", collective(name)) for name in COLLECTIVES]
      + [("several ranks in a process", several_ranks_in_a_process), ("each transport", each_transport),
        ("kinds of memory", kinds_of_memory), ("modes", modes), ("the table names GPUs", the_table_names_gpus),
        ("damage is found", damage_is_found), ("errors", errors)]])
