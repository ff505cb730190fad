# SPDX-License-Identifier: Apache-2.0
"""What a test inside the lab knows and can do: hosts, their processes, their cables.

    from lab import hosts, run
    run(hosts[0], ["ibv_devinfo"])

Inside the guest all of it works. On real devices (make test-rdma) there are hosts
too, all of them this machine, but `controllable` is False: what changes a link,
its MTU or its quality raises NotHere.
"""
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, Skip, expect, main, report  # noqa: E402, F401  (the latter for those who import this)

HERE = pathlib.Path(__file__).resolve().parent
SWITCH = "switch"


class NotHere(Skip):
    """Only the guest's software devices can do that."""


def _load():
    path = os.environ.get("RAIL_LAB_TOPOLOGY")
    if not path:
        return []
    found = json.loads(pathlib.Path(path).read_text(), object_hook=lambda d: types.SimpleNamespace(**d))
    for host in found:
        for nic in host.nics:
            nic.host = host
    return found


# Each host: name, netns (None: the machine's own), ifname, ip4, ip6, nics. Each NIC: rdma (the device's name), port,
# netdev, switch_port, rail, ip4, ip6, host.
hosts = _load()
nics = [nic for host in hosts for nic in host.nics]
controllable = bool(os.environ.get("RAIL_LAB_GUEST"))


def _do(*argv):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=60)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


IP, SWITCH_IP, TC = ("ip", "-o"), ("ip", "-o", "-n", SWITCH), ("tc",)
LOOPBACK = {"ip": ("link show lo", "1: lo:"), "tc": ("qdisc show dev lo", "qdisc noqueue")}  # a command, its answer
_running = {}


def _control(tool, *words):
    """A command of iproute2, by a process that reads them from its standard input: the emulated processor takes a tenth
    of a second to start a program, and a test that breaks a path has to know when that was."""
    if not controllable:
        raise NotHere(f"{tool[0]} on devices that are not the lab's")
    if tool not in _running:
        _running[tool] = subprocess.Popen([*tool, "-force", "-batch", "-"], text=True, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    command, answer = LOOPBACK[tool[0]]
    stdin, stdout = _running[tool].stdin, _running[tool].stdout
    said = ""
    try:
        print(*words, file=stdin)
        print(command, file=stdin, flush=True)
        while not (line := stdout.readline()).startswith(answer):
            said += line
            if not line:
                raise OSError(f"{' '.join(tool)} has ended: {said.strip()}")
    except OSError:
        del _running[tool]
        raise
    if "Command failed" in said:
        raise OSError(f"{' '.join([*tool, *words])}: {said.strip()}")


# ---- processes of a host -------------------------------------------------

def command(host, argv, env=None):
    """(argv, env) of a process on that host: its own TCP network, its own RDMA devices by NCCL_IB_HCA."""
    own = {"NCCL_SOCKET_IFNAME": f"={host.ifname}", "NCCL_IB_HCA": os.environ[f"RAIL_LAB_HCA_{host.name}"]}
    prefix = ["ip", "netns", "exec", host.netns] if host.netns else []
    return [*prefix, *map(str, argv)], os.environ | own | (env or {})


def run(host, argv, env=None, timeout=60, **more):
    """Runs it to its end; a CompletedProcess with text in stdout and stderr."""
    argv, env = command(host, argv, env)
    return subprocess.run(argv, env=env, timeout=timeout, **{"text": True, "capture_output": True} | more)


def start(host, argv, env=None, **more):
    """A Popen; its caller ends it."""
    argv, env = command(host, argv, env)
    defaults = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(argv, env=env, **defaults | more)


# ---- cables --------------------------------------------------------------

def cable(nic, plugged):
    """Pulls or plugs the cable: the port goes DOWN, its peers' ports stay up, addresses stay.

    A veth pair has no queue, so a packet without a way out is an error to rxe, which tries again without pause, in
    softirq, until the kernel has seen that the carrier is gone; on a busy machine it does not get to that for seconds.
    A NIC's queue drops such packets, and so does netem, which takes the place of what netem() had put there."""
    if not plugged:
        netem(nic, "loss", "100%")
    _control(SWITCH_IP, "link", "set", nic.switch_port, "up" if plugged else "down")
    if plugged:
        netem_clear(nic)


def link(nic, up):
    """What an administrator does on the host itself."""
    _control(IP, "link", "set", nic.netdev, "up" if up else "down")


def reachable(host, on):
    """Off: all of the host's networks drop what is sent to it and by it, as when it lost its power."""
    for nic in host.nics:
        cable(nic, on)
    _control(SWITCH_IP, "link", "set", f"{host.name}net", "up" if on else "down")


def netem(nic, *words):
    """What the NIC sends is treated so: netem(nic, "loss", "1%", "delay", "1ms"). Replaces what was there."""
    _control(TC, "qdisc", "replace", "dev", nic.netdev, "root", "netem", "limit", "10000", *words)


def netem_clear(nic):
    with contextlib.suppress(OSError):  # there is none
        _control(TC, "qdisc", "del", "dev", nic.netdev, "root")


def set_mtu(mtu, which=None):
    """Of all NICs or of these, with their ports at the switch. 1500 gives RDMA 1024, 9000 gives 4096."""
    for nic in which or nics:
        _control(SWITCH_IP, "link", "set", nic.switch_port, "mtu", str(mtu))
        _control(IP, "link", "set", nic.netdev, "mtu", str(mtu))
    for rail in {nic.rail for nic in which or nics}:  # a bridge passes what its own MTU allows
        largest = max(_mtu(n) for n in nics if n.rail == rail)
        _control(SWITCH_IP, "link", "set", f"rail{rail}", "mtu", str(largest))


def _mtu(nic):
    return int(pathlib.Path(f"/sys/class/net/{nic.netdev}/mtu").read_text())


def heal():
    """Everything as it was at the start: cables in, links up, no netem."""
    for nic in nics:
        link(nic, True)
    for host in hosts:
        reachable(host, True)


def greet():
    """Every NIC learns the addresses of its rail: the driver takes up to a second for that in the middle of a call, and
    forgets them when a cable is pulled. For tests that time calls."""
    pairs = [(a, b) for a in nics for b in nics if a.rail == b.rail and a is not b] if controllable else []
    deadline = time.monotonic() + 10
    while pairs and time.monotonic() < deadline:
        for a, b in pairs:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, a.netdev.encode())
                s.sendto(b"", (b.ip4, 9))
        time.sleep(0.1)
        pairs = [(a, b) for a, b in pairs if not _knows(a, b)]
    assert not pairs, f"no answer to ARP: {[(a.netdev, b.ip4) for a, b in pairs]}"


def _knows(nic, other):
    found = json.loads(_do("ip", "-j", "neigh", "show", other.ip4, "dev", nic.netdev) or "[]")
    return any("lladdr" in n for n in found)


# ---- what can be seen ----------------------------------------------------

def port(nic):
    """state ("ACTIVE", "DOWN"), active_mtu, gids [(index, address)] as ibv_devinfo tells them."""
    text = _do("ibv_devinfo", "-v", "-d", nic.rdma, "-i", str(nic.port))
    words = dict(line.strip().split(":", 1) for line in text.splitlines() if ":" in line and "GID[" not in line)
    gids = [(int(line[line.index("[") + 1:line.index("]")]), line.split(":", 1)[1].split(",")[0].strip())
            for line in text.splitlines() if "GID[" in line]
    return types.SimpleNamespace(state=words["state"].split()[0].removeprefix("PORT_"), gids=gids,
                                 active_mtu=int(words["active_mtu"].split()[0]))


def resources():
    """{device: {"qp": 1, "cq": …, "mr": …, "pd": …}} of all processes, as `rdma resource show` counts them."""
    return {d["ifname"]: {k: v for k, v in d.items() if isinstance(v, int) and k != "ifindex"}
            for d in json.loads(_do("rdma", "-j", "resource", "show"))}


def bytes_sent(nic):
    return int(pathlib.Path(f"/sys/class/net/{nic.netdev}/statistics/tx_bytes").read_text())


def hw_counter(nic, name):
    return int(pathlib.Path(f"/sys/class/infiniband/{nic.rdma}/ports/{nic.port}/hw_counters/{name}").read_text())
