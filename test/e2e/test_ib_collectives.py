#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 120
# TEST-SAN: none
# TEST-READS: build/lib/emu/lib*.so.1 build/lib/libnccl-net-ib.so
"""Collectives of the runtime over the ib plugin on emulated devices, every result checked: RoCE, with queue pairs set
up over TCP and by the RDMA CM, and iWARP."""
import json
import sys

sys.dont_write_bytecode = True
from coll import BUILD, Skip, coll, expect, main

IB, EMU = BUILD / "lib" / "libnccl-net-ib.so", BUILD / "lib" / "emu"
USUAL = {"NCCL_IBVERBS_LIB": EMU / "libibverbs.so.1", "RAIL_IB_RDMACM_LIB": EMU / "librdmacm.so.1",
         "NCCL_IB_QPS_PER_CONNECTION": 2}
SET_UPS = {"RoCE, tcp": ("RoCE", {"RAIL_IB_CM": "tcp"}),
           "RoCE, rdmacm": ("RoCE by the RDMA CM", {"RAIL_IB_CM": "rdmacm"}),
           "iWARP": ("iWARP by the RDMA CM", {"RAIL_EMU": "device r0 transport=iwarp; device r1 transport=iwarp"})}


def check(set_up, ranks, *args):
    if not IB.exists():
        raise Skip("built without libibverbs' and librdmacm's headers")
    words, env = SET_UPS[set_up]
    done = coll(*args, "-r", ranks, "--net-only", "--plugin", IB, "-c", 1, "-n", 2, "-w", 1, "--json", "-",
                NCCL_DEBUG="INFO", **USUAL | env)
    expect(done, 0)
    found = json.loads(done.stdout)
    assert found["summary"]["wrong"] == 0 and found["rows"], found["summary"]
    for rank in found["ranks"]:
        assert rank["net_plugin"] == str(IB) and rank["transports"].startswith("NET/"), rank
    assert f"{words}, " in done.stderr, done.stderr[-4000:]
    assert ("by the RDMA CM" in words) == (", by the RDMA CM" in done.stderr), done.stderr[-4000:]
    assert ("iWARP" in words) == (", parts reported by SEND" in done.stderr), done.stderr[-4000:]


def cases():
    for set_up in SET_UPS:
        yield f"all_reduce, 3 ranks, {set_up}", lambda s=set_up: check(
            s, 3, "all_reduce", "-b", 8, "-e", "2M", "-f", 64, "-o", "sum,max", "-d", "float,int8")
        yield f"alltoall, 2 ranks, {set_up}", lambda s=set_up: check(s, 2, "alltoall", "-b", 192, "-e", "48K", "-f", 16)


main(list(cases()))
