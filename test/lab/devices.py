#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command with RDMA devices of this machine as the lab's: devices.py DEV[:PORT][,DEV[:PORT]] COMMAND…

Two "hosts", both of them this machine: h0 has the first device, h1 the second, or
the same one again (loopback). Their TCP is lo. Nothing of the devices is changed.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SYSFS = pathlib.Path("/sys/class/infiniband")


def fail(text):
    sys.exit(f"lab: {text}")


def read(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def addresses(netdev):
    """The netdev's own ones: (IPv4, IPv6), each "" where there is none."""
    if not netdev:
        return "", ""
    argv = ["ip", "-j", "addr", "show", "dev", netdev, "scope", "global"]
    done = subprocess.run(argv, capture_output=True, text=True)
    found = [a for link in json.loads(done.stdout or "[]") for a in link.get("addr_info", [])]
    return tuple(next((a["local"] for a in found if a.get("family") == f), "") for f in ("inet", "inet6"))


def nic(word):
    device, _, port = word.partition(":")
    port = port or "1"
    place = SYSFS / device / "ports" / port
    if not device or not place.is_dir():
        there = ", ".join(sorted(p.name for p in SYSFS.glob("*"))) or "none"
        fail(f"DEV={word}: no such RDMA port; devices here: {there}")
    state = read(place / "state")
    if not state.endswith("ACTIVE"):
        fail(f"DEV={word}: its port is {state or 'in no readable state'}, not ACTIVE")
    netdev = next((name for f in sorted((place / "gid_attrs/ndevs").glob("*")) if (name := read(f))), "")
    ip4, ip6 = addresses(netdev)
    return {"rdma": device, "port": int(port), "netdev": netdev, "switch_port": "", "rail": 0, "ip4": ip4, "ip6": ip6}


def main():
    if len(sys.argv) < 3:
        fail("usage: devices.py DEV[:PORT][,DEV[:PORT]] COMMAND…")
    words = sys.argv[1].split(",")
    if len(words) > 2:
        fail(f"DEV={sys.argv[1]}: one device (loopback) or two")
    hosts = [{"name": f"h{i}", "netns": "", "ifname": "lo", "ip4": "127.0.0.1", "ip6": "::1", "nics": [nic(word)]}
             for i, word in enumerate([words[0], words[-1]])]
    with tempfile.TemporaryDirectory(prefix="rail-lab-") as scratch:
        path = pathlib.Path(scratch)
        (path / "topology.json").write_text(json.dumps(hosts))
        (path / "out").mkdir()
        env = os.environ | {"RAIL_LAB_TOPOLOGY": str(path / "topology.json"), "RAIL_LAB_HOSTS": "h0 h1"}
        env |= {"RAIL_LAB_OUT": os.environ.get("RAIL_LAB_OUT", str(path / "out"))}
        env |= {f"RAIL_LAB_HCA_{h['name']}": f"={h['nics'][0]['rdma']}:{h['nics'][0]['port']}" for h in hosts}
        sys.exit(subprocess.run(sys.argv[2:], env=env).returncode)


if __name__ == "__main__":
    main()
