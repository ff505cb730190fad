# SPDX-License-Identifier: Apache-2.0
"""The guest's network: who is there, and the script that makes it.

Rails. Every RDMA port is one end of a veth pair in the initial namespace (the
kernel's rxe listens for UDP only there), with a Soft-RoCE device of the same
name on it: h0r0 is host 0's port on rail 0. The other end, h0r0p, is the port of
a switch: the bridge rail0 in the namespace `switch`, one per rail. So a packet
between two devices passes two veth pairs and a bridge although both addresses
are this machine's own; what makes it do so is `policy` below.

Hosts. h0, h1, … are network namespaces with an interface eth0 each, joined by a
bridge of their own in the same namespace `switch`. Processes of a host run in
there and have TCP of their own; the RDMA devices are visible in all namespaces,
and a host's are recognized by their names.

The script is made outside: an emulated processor needs seconds to start Python.
"""
SWITCH = "switch"


def topology(hosts, nics):
    """What test/lab/lab.py reads inside."""
    def nic(h, r):
        name = f"h{h}r{r}"
        return {"rdma": name, "port": 1, "netdev": name, "switch_port": f"{name}p", "rail": r,
                "ip4": f"10.80.{r}.{h + 1}", "ip6": f"fd80:{r + 1}::{h + 1}"}
    return [{"name": f"h{h}", "netns": f"h{h}", "ifname": "eth0", "ip4": f"10.77.0.{h + 1}", "ip6": f"fd77::{h + 1}",
             "nics": [nic(h, r) for r in range(nics)]} for h in range(hosts)]


def batch(tool, lines):
    return "\n".join([f"{tool} - <<'END'", *lines, "END"])


def settings(nics):
    """Before the links go up. A packet from one local address to another is taken only where accept_local is set."""
    lines = []
    for scope in ["all", "default"] + [nic["netdev"] for nic in nics]:
        for name, value in {"rp_filter": 0, "accept_local": 1, "arp_ignore": 1, "arp_announce": 2}.items():
            lines.append(f"echo {value} >/proc/sys/net/ipv4/conf/{scope}/{name}")
        for name, value in {"accept_dad": 0, "keep_addr_on_down": 1}.items():
            lines.append(f"echo {value} >/proc/sys/net/ipv6/conf/{scope}/{name}")
    return "\n".join(lines)


def links(hosts, nics, mtu):
    """Lines for ip, for here and for the switch."""
    here, there = ["link set lo up"], ["link add net0 type bridge", "link set net0 up"]
    for r in range(nics):
        there += [f"link add rail{r} type bridge", f"link set rail{r} mtu {mtu} up"]
    for host in hosts:
        h = host["name"]
        here.append(f"link add {h}net netns {SWITCH} type veth peer name eth0 netns {h}")
        there.append(f"link set {h}net master net0 up")
        for nic in host["nics"]:
            dev, port = nic["netdev"], nic["switch_port"]
            here.append(f"link add {dev} mtu {mtu} type veth peer name {port} mtu {mtu} netns {SWITCH}")
            there.append(f"link set {port} master rail{nic['rail']} up")
    return here, there


def addresses(nic):
    dev = nic["netdev"]
    return [f"addr add {nic['ip4']}/24 dev {dev}", f"addr add {nic['ip6']}/64 dev {dev} nodad", f"link set {dev} up"]


def policy(number, nic):
    """Local addresses are reached over the wire. IPv4 does so by itself: rxe asks for a route out of its own device,
    and the local route is another device's. IPv6 takes local routes of any device, so what leaves by a port is looked
    up in the main table first; only a port's way to itself stays local. Rules, for a link that goes down takes routes
    along that are not the kernel's own."""
    return [f"rule add pref {100 + number} from {nic['ip6']} to {nic['ip6']} table local",
            f"rule add pref {200 + number} oif {nic['netdev']} table main"]


def own(host):
    return ["link set lo up", f"addr add {host['ip4']}/24 dev eth0", f"addr add {host['ip6']}/64 dev eth0 nodad",
            "link set eth0 up"]


def script(hosts, mtu):
    """For bash -e, in the guest."""
    nics = [nic for host in hosts for nic in host["nics"]]
    here, there = links(hosts, len(hosts[0]["nics"]), mtu)
    parts = [batch("ip -batch", [f"netns add {name}" for name in [SWITCH] + [h["netns"] for h in hosts]]),
             batch("ip -batch", here), settings(nics), batch(f"ip -n {SWITCH} -batch", there),
             batch("ip -batch", [line for nic in nics for line in addresses(nic)]),
             batch("ip -6 -batch", [line for number, nic in enumerate(nics) for line in policy(number, nic)])]
    parts.append(batch("ip -6 -batch", ["rule add pref 1000 table local", "rule del pref 0"]))
    parts += [batch(f"ip -n {host['netns']} -batch", own(host)) for host in hosts]
    parts.append(batch("rdma -b", [f"link add {n['rdma']} type rxe netdev {n['netdev']}" for n in nics]))
    return "\n".join(parts) + "\n"
