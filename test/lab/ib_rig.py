# SPDX-License-Identifier: Apache-2.0
"""Traffic over the ib plugin between the lab's hosts: harness/rig.py's processes, in the hosts' places."""
import os
import pathlib
import re
import sys

import lab
from lab import BUILD, hosts

IB = BUILD / "lib/libnccl-net-ib.so"
os.environ.setdefault("RAIL_TEST_PLUGIN", str(IB))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
import rig  # noqa: E402

FULL = os.environ.get("RAIL_LAB_FULL", "0") not in ("", "0")
rig.SLOW = 4  # an emulated machine


def place(host, nics=None):
    """What a process needs to be one of this host's."""
    _, env = lab.command(host, [])
    env = {name: env[name] for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")}
    return env | ({"NCCL_IB_HCA": "=" + ",".join(n.rdma for n in nics)} if nics else {})


def pair(send_env=None, recv_env=None, nics=(0,), sender=0, receiver=1, **options):
    """A sender on h0, a receiver on h1, over these NICs of each: fused when they are several."""
    sides = {}
    for role, index, more in (("send", sender, send_env), ("recv", receiver, recv_env)):
        host = hosts[index]
        chosen = [host.nics[i] for i in nics]
        sides[role] = host.netns or None
        names = ",".join(n.rdma if n.port == 1 else f"{n.rdma}:{n.port}" for n in chosen)
        options[role] = {**options.get(role, {}), **({"fuse": names} if len(chosen) > 1 else {})}
        options[f"{role}_env"] = place(host, chosen) | {"RAIL_NET_FUSE_NO_PCI": "1"} | (more or {})
    return rig.Pair((sides["send"], sides["recv"]), **options)


def address(process, both):
    """Of the other one's host, as lines name it."""
    return hosts[1 if process is both.send else 0].ip4


def told(process, both, *texts):
    """A warning names the peer's host and the device, and has all of these. None, or what is wrong."""
    host = hosts[0 if process is both.send else 1]
    needs = [re.escape(address(process, both)), re.escape(host.nics[0].rdma), *texts]
    lines = [e["text"] for e in process.warnings()]
    if any(all(re.search(n, text) for n in needs) for text in lines):
        return None
    return f"{process}: no warning has all of {needs}: {lines}\n{process.tail()}"


def check_told(process, both, *texts):
    wrong = told(process, both, *texts)
    assert not wrong, wrong
