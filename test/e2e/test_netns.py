#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 200
# TEST-SAN: none
"""Ranks in two network namespaces joined by a veth pair: two machines, as far as the network goes."""
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from coll import COLL, SOCKET, Skip, environment, launch_ranks, main

NAME = f"rail{os.getpid()}"
SPACES = [f"{NAME}a", f"{NAME}b"]
VETH = [f"rv{os.getpid() % 1000000}a", f"rv{os.getpid() % 1000000}b"]
V4 = ["198.18.7.1", "198.18.7.2"]
V6 = ["fd00:7a11::1", "fd00:7a11::2"]
ready = None  # why it is not possible; "" when it is


def ip(*words):
    done = subprocess.run(["ip", *words], text=True, capture_output=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def remove():
    for space in SPACES:
        subprocess.run(["ip", "netns", "del", space], capture_output=True)
    subprocess.run(["ip", "link", "del", VETH[0]], capture_output=True)


def make():
    """Both namespaces, once. Their addresses exist nowhere else."""
    for space in SPACES:
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
    ip("link", "add", VETH[0], "netns", SPACES[0], "type", "veth", "peer", "name", VETH[1], "netns", SPACES[1])
    for i, space in enumerate(SPACES):
        ip("-n", space, "addr", "add", f"{V4[i]}/24", "dev", VETH[i])
        ip("-n", space, "addr", "add", f"{V6[i]}/64", "dev", VETH[i], "nodad")
        ip("-n", space, "link", "set", VETH[i], "up")


def need_namespaces():
    global ready
    if ready is None:
        if os.geteuid() != 0:
            ready = "network namespaces need root"
        elif not shutil.which("ip"):
            ready = "there is no ip (Debian: iproute2)"
        else:
            atexit.register(remove)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that atexit runs
            try:
                make()
                ready = ""
            except OSError as problem:
                ready = f"network namespaces are not possible here: {problem}"
    if ready:
        raise Skip(ready)


def second_link():
    """A pair of links between the two in a network of its own; their names."""
    need_namespaces()
    names = [f"{veth}2" for veth in VETH]
    if names[0] not in ip("-n", SPACES[0], "link", "show"):
        ip("link", "add", names[0], "netns", SPACES[0], "type", "veth", "peer", "name", names[1], "netns", SPACES[1])
        for i, space in enumerate(SPACES):
            ip("-n", space, "addr", "add", f"198.18.8.{i + 1}/24", "dev", names[i])
            ip("-n", space, "link", "set", names[i], "up")
    return names


def slow_down(space, link):
    """The processors are then no bottleneck, the link is."""
    done = subprocess.run(["tc", "-n", space, "qdisc", "replace", "dev", link, "root", "tbf", "rate", "1gbit", "burst",
                           "1mb", "latency", "10ms"], text=True, capture_output=True)
    if done.returncode != 0:
        raise Skip(f"no token bucket filter here: {done.stderr.strip()}")


def received_bytes(links=None):
    """What both ends of the pair have received since they exist."""
    total = 0
    for space, veth in zip(SPACES, links or VETH):
        (link,) = json.loads(ip("-n", space, "-s", "-j", "link", "show", "dev", veth))
        total += link["stats64"]["rx"]["bytes"]
    return total


def launch(n, *args, limit=90, sides=({}, {}), **changes):
    """n ranks, the first half in one namespace; `sides`: what differs in their environment. Rank 0's results."""
    need_namespaces()
    jobs = []
    for rank in range(n):
        side = rank * 2 // n
        env = environment(**{"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank % (n // 2), "LOCAL_WORLD_SIZE": n // 2,
                             "NCCL_HOSTID": SPACES[side], "NCCL_SOCKET_IFNAME": VETH[side], "NCCL_NET_PLUGIN": SOCKET,
                             "RAIL_BOOTSTRAP_TIMEOUT": 60, **changes, **sides[side]})
        jobs.append((["ip", "netns", "exec", SPACES[side], COLL, *args, "--json", "-"], env))
    return launch_ranks(jobs, limit)


def one_rank_each():
    need_namespaces()
    before = received_bytes()
    result = launch(2, "all_reduce", "-b", 8, "-e", "1M", "-f", 8, "-n", 5, NCCL_COMM_ID=f"{V4[0]}:20017")
    assert all(rank["transports"].startswith("NET/") for rank in result["ranks"]), result["ranks"]
    assert all(rank["net_plugin"] == SOCKET for rank in result["ranks"]), result["ranks"]
    # Each of two ranks gets every array once: five timed and one checked time, twice.
    moved = received_bytes() - before
    assert moved > 2 * 10 * 262144, f"only {moved} bytes crossed the veth pair"


def two_ranks_each():
    """Shared memory inside a namespace, the plugin between them."""
    result = launch(4, "all_reduce", "-b", 8, "-e", "256K", "-f", 8, "-n", 3, NCCL_COMM_ID=f"{V4[0]}:20018")
    kinds = {rank["transports"] for rank in result["ranks"]}
    assert any("SHM" in kind and "NET/" in kind for kind in kinds), kinds
    launch(4, "alltoall", "-b", 64, "-e", "64K", "-f", 8, "-n", 3, NCCL_COMM_ID=f"{V4[0]}:20019")


def id_through_a_directory():
    with tempfile.TemporaryDirectory() as store:
        launch(2, "all_gather", "-b", 64, "-e", "64K", "-f", 16, "-n", 3, RAIL_STORE=store)


def ipv6():
    with tempfile.TemporaryDirectory() as store:
        launch(2, "all_reduce", "-b", 64, "-e", "64K", "-f", 16, "-n", 3, RAIL_STORE=store,
               NCCL_SOCKET_FAMILY="AF_INET6")


def fused():
    """Two slow links, one device: both carry the bytes of one channel."""
    second = second_link()
    for space, *links in zip(SPACES, VETH, second):
        for link in links:
            slow_down(space, link)
    sides = [{"NCCL_SOCKET_IFNAME": f"={first},{other}", "NCCL_NET_FORCE_MERGE": f"{other},{first}"}
             for first, other in zip(VETH, second)]
    before = [received_bytes(links) for links in (VETH, second)]
    # A stream takes 256 KiB of a message before the next one gets any (RAIL_SOCKET_CHUNK).
    launch(2, "all_reduce", "-b", "1M", "-e", "4M", "-f", 4, "-n", 5, NCCL_COMM_ID=f"{V4[0]}:20020",
           RAIL_CHUNK="1M", NCCL_BUFFSIZE="8M", RAIL_NET_FUSE_NO_PCI=1, sides=sides)
    moved = [received_bytes(links) - b for links, b in zip((VETH, second), before)]
    assert min(moved) > 0.1 * sum(moved), f"the links carried {moved} bytes"


def not_fused():
    need_namespaces()
    sides = [{"NCCL_NET_FORCE_MERGE": f"{VETH[0]},eth77"}, {}]
    try:
        launch(2, "all_reduce", "-b", 8, "-e", 8, NCCL_COMM_ID=f"{V4[0]}:20021", sides=sides)
    except AssertionError as problem:
        assert 'has no device "eth77"' in str(problem), problem
    else:
        raise AssertionError("no error")


def not_fused_without_a_pci_path():
    """As under NCCL, whose init would fail with the fused device. The line says what allows it here."""
    second = second_link()
    sides = [{"NCCL_SOCKET_IFNAME": f"={first},{other}", "NCCL_NET_FORCE_MERGE": f"{first},{other}"}
             for first, other in zip(VETH, second)]
    try:
        launch(2, "all_reduce", "-b", 8, "-e", 8, NCCL_COMM_ID=f"{V4[0]}:20022", sides=sides)
    except AssertionError as problem:
        assert "has no PCI path" in str(problem) and "RAIL_NET_FUSE_NO_PCI=1" in str(problem), problem
    else:
        raise AssertionError("no error")


main([("one rank in each namespace", one_rank_each), ("two ranks in each namespace", two_ranks_each),
      ("the id through a directory", id_through_a_directory), ("IPv6", ipv6),
      ("two links fused", fused), ("a device that is not there", not_fused),
      ("two links that may not be fused", not_fused_without_a_pci_path)])
