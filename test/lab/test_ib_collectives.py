#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 400
"""Collectives over the ib plugin, every result checked: ranks on up to four hosts, each with devices of its own."""
import sys

sys.dont_write_bytecode = True
import lab
from coll import COLL, environment, launch_ranks
from lab import Skip, hosts, main
from ib_rig import FULL, IB, place

MOST = "4M" if FULL else "256K"
port = 20100


def launch(n, *args, limit=60, per_host=1, nics=0, sides=None, **changes):
    """n ranks, filling one host after the other, with so many of its NICs (0: all); `sides`: what differs in the hosts'
    environment. Rank 0's results, and the bytes that each first NIC has sent."""
    global port
    used = hosts[:(n + per_host - 1) // per_host]
    if len(used) * per_host < n:
        raise Skip(f"{len(hosts)} hosts, {n} ranks")
    port += 1
    before = [lab.bytes_sent(h.nics[0]) for h in used] if lab.controllable else []
    jobs = []
    for rank in range(n):
        host = used[rank // per_host]
        env = environment(RANK=rank, WORLD_SIZE=n, LOCAL_RANK=rank % per_host, LOCAL_WORLD_SIZE=per_host,
                          NCCL_HOSTID=host.name, NCCL_NET_PLUGIN=IB, NCCL_SHM_DISABLE=1,
                          NCCL_COMM_ID=f"{hosts[0].ip4}:{port}", RAIL_BOOTSTRAP_TIMEOUT=60,
                          **place(host, nics and host.nics[:nics]), **changes,
                          **(sides[rank // per_host] if sides else {}))
        argv, _ = lab.command(host, [COLL, *args, "-c", 1, "-n", 2, "-w", 1, "--json", "-"])
        jobs.append((argv, env))
    result = launch_ranks(jobs, limit)
    for rank in result["ranks"]:
        assert rank["net_plugin"] == str(IB) and rank["transports"].startswith("NET/"), rank
    return result, [lab.bytes_sent(h.nics[0]) - b for h, b in zip(used, before)]


def two_ranks():
    """Each rank gets every array at least once."""
    _, sent = launch(2, "all_reduce", "-b", 8, "-e", MOST, "-f", 32)
    for moved in sent:
        assert moved > 200 << 10, f"only {sent} bytes left the NICs"


def ring():
    launch(4, "all_reduce", "-b", "4K", "-e", "64K", "-f", 16)


def all_to_all():
    launch(3, "alltoall", "-b", "192", "-e", "48K", "-f", 16)


def two_on_a_host():
    """They share the host's device, and reach each other over it. (With two each takes one: rails do not meet.)"""
    launch(4, "all_gather", "-b", "4K", "-e", "64K", "-f", 16, per_host=2, nics=1)


def queue_pairs():
    launch(2, "all_reduce", "-b", "64K", "-e", MOST, "-f", 4, NCCL_IB_QPS_PER_CONNECTION=4, NCCL_IB_SPLIT_DATA_ON_QPS=1)


def fused():
    """Every host's two NICs are one device of the communicator: both carry the bytes of one channel."""
    pairs = [host.nics[:2] for host in hosts[:2]]
    if any(len(nics) < 2 for nics in pairs):
        raise Skip("one device a host")
    sent = [lab.bytes_sent(nic) for nics in pairs for nic in nics] if lab.controllable else []
    launch(2, "all_reduce", "-b", MOST, "-e", MOST, RAIL_NET_FUSE_NO_PCI=1,
           sides=[{"NCCL_NET_FORCE_MERGE": ",".join(f"{nic.rdma}:{nic.port}" for nic in nics)} for nics in pairs])
    if lab.controllable:
        moved = [lab.bytes_sent(nic) - b for nic, b in zip((nic for nics in pairs for nic in nics), sent)]
        assert min(moved) > 0.1 * sum(moved), f"the NICs sent {moved} bytes"


if __name__ == "__main__":
    main([("all_reduce, 2 ranks", two_ranks), ("all_reduce, a ring of 4", ring), ("alltoall, 3 ranks", all_to_all),
          ("all_gather, 2 ranks on each of 2 hosts", two_on_a_host), ("all_reduce, 4 queue pairs, split", queue_pairs),
          ("all_reduce, 2 NICs fused", fused)])
