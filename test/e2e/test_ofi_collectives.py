#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 200
# TEST-SAN: none
# TEST-HIDE: /proc/kallsyms
"""Collectives of the runtime over the ofi plugin, every result checked: processes that reach each other by libfabric's
tcp;ofi_rxm with each protocol, and by shm."""
import json
import sys

sys.dont_write_bytecode = True
from coll import BUILD, Skip, coll, expect, main

OFI = BUILD / "lib" / "libnccl-net-ofi.so"
PROVIDERS = {"tcp, rma": {"FI_PROVIDER": "tcp", "RAIL_OFI_PROTOCOL": "rma"},
             "tcp, tagged": {"FI_PROVIDER": "tcp", "RAIL_OFI_PROTOCOL": "tagged"},
             "shm": {"FI_PROVIDER": "shm", "RAIL_OFI_PROVIDER": "shm"}}
# FI_UNIVERSE_SIZE: see plugin/ofi/conform.ini; without it each endpoint of tcp takes some 100 MB.
USUAL = {"FI_UNIVERSE_SIZE": 8}


def check(provider, ranks, *args):
    if not OFI.exists():
        raise Skip("built without libfabric's headers")
    done = coll(*args, "-r", ranks, "--net-only", "--plugin", OFI, "-c", 1, "-n", 2, "-w", 1, "--json", "-",
                **USUAL | PROVIDERS[provider])
    if "there are no devices" in done.stderr:
        raise Skip(done.stderr.strip().splitlines()[0])
    expect(done, 0)
    found = json.loads(done.stdout)
    assert found["summary"]["wrong"] == 0 and found["rows"], found["summary"]
    assert len(found["ranks"]) == ranks, found["ranks"]
    for rank in found["ranks"]:
        assert rank["net_plugin"] == str(OFI) and rank["transports"].startswith("NET/"), rank


def cases():
    for provider in PROVIDERS:
        yield f"all_reduce, 2 ranks, {provider}", lambda p=provider: check(p, 2, "all_reduce", "-b", 8, "-e", "2M",
                                                                           "-f", 8)
        yield f"all_reduce, 4 ranks, {provider}", lambda p=provider: check(
            p, 4, "all_reduce", "-b", 8, "-e", "256K", "-f", 32, "-o", "sum,max", "-d", "float,int8")
        yield f"alltoall, 3 ranks, {provider}", lambda p=provider: check(p, 3, "alltoall", "-b", 192, "-e", "48K", "-f",
                                                                         16)


main(list(cases()))
