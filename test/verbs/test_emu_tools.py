#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs on the emulated device, as their users start them: rail-kit with --verbs emu, libibverbs' and perftest's.

TEST-LIMIT: 300
TEST-SAN: none
"""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, Skip, main  # noqa: E402

KIT = BUILD / "bin/rail-kit"
IB = BUILD / "lib/libnccl-net-ib.so"
LIBRARY = BUILD / "lib/emu"
LIMIT = 120


def run(argv, **env):
    done = subprocess.run([str(a) for a in argv], env=os.environ | env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT)
    return done.returncode, done.stdout


def kit(*argv, **env):
    if not IB.exists():
        raise Skip("the ib plugin is not built: no infiniband/verbs.h")
    status, said = run([KIT, *argv], **env)
    assert status == 0, said
    return said


def conform():
    assert "2 passed" in kit("conform", "--verbs", "emu", IB, "--only", "order.any_order,flood.from_another_process")


def adversary():
    """What a network may do, at random: nothing of it is an error."""
    kit("conform", "--verbs", "emu", IB, "--only", "order.any_order,grouped.every_order_of_tags,tear.ll128_short",
        RAIL_EMU="device emu0; device emu1; adversary 5")


def fault():
    kit("fault", "--verbs", "emu", IB, "--only", "kill.connecting_listener,kill.connecting_dialler", "--level", "must")


def unknown():
    status, said = run([KIT, "conform", "--verbs", "hardware", IB])
    assert status == 2 and "emu" in said, said


def installed(name):
    if not shutil.which(name):
        raise Skip(f"{name} is not installed")
    return name


def device_info():
    status, said = run([installed("ibv_devinfo"), "-d", "emu1"], LD_LIBRARY_PATH=str(LIBRARY),
                       RAIL_EMU="device emu0; device emu1 ports=2 link=ib mtu=4")
    assert status == 0 and said.count("PORT_ACTIVE") == 2 and "InfiniBand" in said and "2048" in said, said


def pci_paths():
    """Devices that stand for PCI devices of this machine: the same ones in two processes."""
    there = sorted(p.name for p in pathlib.Path("/sys/bus/pci/devices").glob("*"))
    if not there:
        raise Skip("this machine has no PCI device")
    said = kit("conform", "--verbs", "emu", IB, "--only", "properties.*", "--verbose",
               RAIL_EMU=f"device emu0 pci={there[0]}; device emu1 pci={there[-1]}")
    assert "all 2 devices have a PCI path" in said and "/sys/devices/" in said, said


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def meet(server_argv, client_argv, is_ready=None):
    """A server and a client. The client is started when the server is ready; without a sign of that it is tried until
    it is."""
    env = os.environ | {"LD_LIBRARY_PATH": str(LIBRARY)}
    with subprocess.Popen(server_argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            end = time.monotonic() + LIMIT / 2
            while is_ready and not is_ready() and server.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            while True:
                client = subprocess.run(client_argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, timeout=LIMIT)
                if client.returncode == 0 or is_ready or server.poll() is not None or time.monotonic() > end:
                    break
                time.sleep(0.2)
            assert client.returncode == 0, f"the client ended with {client.returncode}: {client.stdout}"
            said, _ = server.communicate(timeout=LIMIT)
            assert server.returncode == 0, f"the server ended with {server.returncode}: {said}"
        finally:
            server.kill()


def pair(name, *options):
    """perftest, or libibverbs' examples."""
    argv = [installed(name), "-d", "emu0", "-p", free_port(), *options]
    meet(argv, [*argv, "127.0.0.1"])


def meet_over_cm(name, port, server, client):
    """A program over the RDMA CM. It is ready when a socket listens that stands for this port."""
    if not (LIBRARY / "librdmacm.so.1").exists():
        raise Skip("the emulated librdmacm is not built: no rdma/rdma_cma.h")
    listens = re.compile(rf" 00010000 .*@rail-emu-cm\.\d+\.\w+\.\w+\.{port}\.")
    argv = [installed(name)]
    meet([*argv, *server], [*argv, *client],
         lambda: any(map(listens.search, pathlib.Path("/proc/net/unix").read_text().splitlines())))


def again_where_it_says(sign, attempt):
    """A program with a defect of its own that it meets now and then, which its output shows."""
    for _ in range(10):
        try:
            return attempt()
        except AssertionError as e:
            if not re.search(sign, str(e)):
                raise
    raise AssertionError(f"ten times in turn: {sign}")


def rping():
    """Before rdma-core 61 its thread for events reads what main has freed, if DISCONNECTED is the last thing it did."""
    def attempt():
        common = ["-a", "10.77.1.1", "-p", free_port(), "-C", "50", "-V"]
        meet_over_cm("rping", common[3], [*common, "-s"], [*common, "-c"])
    again_where_it_says("ended with -11: (client|server) DISCONNECT EVENT", attempt)


def ucmatose():
    common = ["-p", free_port(), "-c", "20", "-C", "10"]
    meet_over_cm("ucmatose", common[1], [*common, "-b", "10.77.0.1"], [*common, "-s", "10.77.0.1"])


def udaddy():
    with tempfile.TemporaryDirectory(prefix="rail-emu.", dir="/dev/shm") as own:  # its port is always the same
        os.environ["RAIL_EMU_DIR"] = own
        try:
            meet_over_cm("udaddy", 7174, ["-c", "3", "-C", "10", "-b", "10.77.0.1"],
                         ["-c", "3", "-C", "10", "-s", "10.77.0.1"])
        finally:
            del os.environ["RAIL_EMU_DIR"]


def perftest_over_cm():
    """Its server does not listen for a moment between its two connections, and its client ends when it comes then."""
    def attempt():
        common = ["-R", "-d", "emu0", "-p", free_port(), "-F", "-n", "500"]
        meet_over_cm("ib_write_bw", common[4], common, [*common, "10.77.0.1"])
    again_where_it_says("RDMA_CM_EVENT_REJECTED", attempt)


def libfabric():
    """Its verbs provider finds ports by the addresses of interfaces, and passes over loopback."""
    ofi = BUILD / "lib/libnccl-net-ofi.so"
    if not ofi.exists() or not (LIBRARY / "librdmacm.so.1").exists():
        raise Skip("the ofi plugin or the emulated librdmacm is not built")
    others = [p for p in pathlib.Path("/sys/class/net").iterdir()
              if p.name != "lo" and (p / "operstate").read_text().strip() == "up"]
    if not others:
        raise Skip("no interface but loopback is up: libfabric finds no address of a verbs device")
    env = {"LD_LIBRARY_PATH": str(LIBRARY), "FI_PROVIDER": "verbs;ofi_rxm", "RAIL_OFI_PROVIDER": "verbs;ofi_rxm"}
    status, said = run([KIT, "inspect", ofi], **env)
    if "emu0" not in said:
        raise Skip("the installed libfabric has no verbs provider")
    chosen = "order.any_order,grouped.every_order_of_tags,flood.from_another_process,sizes.against_guard_pages"
    status, said = run([KIT, "conform", ofi, "--only", chosen, "--level", "must"], **env)
    assert status == 0 and " 0 failed" in said, said


def bench(name, *options):
    """What make bench-emu prints; a busy machine's figures are no verdict."""
    program = BUILD / "bench" / name
    if not program.exists():
        raise Skip(f"{program} is not built: no infiniband/verbs.h or rdma/rdma_cma.h")
    status, said = run([program, *options])
    assert status == 0, said
    print("".join(f"# {line}\n" for line in said.splitlines()), end="")
    return said


def rates_and_connections():
    said = bench("emu_rate")
    assert "8 B, write with immediate" in said and "4,096 connections of a process" in said, said


def a_thousand_peers():
    said = bench("emu_peers", "1000")
    assert "1000 processes connect to one at once" in said and "all are closed" in said, said


def peers_of_the_plugin():
    """What breaks with many peers shows with 64; the program checks every byte, and that nothing is left."""
    if not IB.exists():
        raise Skip("the ib plugin is not built: no infiniband/verbs.h")
    said = bench("ib_peers", "64")
    assert "64 processes load the ib plugin" in said and "all other processes have ended" in said, said


def net_ib():
    """NCCL's own transport, in two processes."""
    plugin = os.environ.get("RAIL_TEST_NET_IB")
    if not plugin:
        raise Skip("RAIL_TEST_NET_IB names no libnccl-net-netib.so; docs/net-ib.md has how to build one")
    chosen = "order.any_order,sizes.against_guard_pages,flood.from_another_process,peer_death.*kill*"
    status, said = run([KIT, "conform", "--verbs", "emu", plugin, "--only", chosen, "--level", "must"],
                       NCCL_IB_GID_INDEX="3", NCCL_SOCKET_IFNAME="lo")
    assert status == 0 and " 0 failed" in said, said


def perftest(name, *options):
    return lambda: pair(name, "-x", "3", "-F", *options)


if __name__ == "__main__":
    sys.exit(main([
        ("rail-kit conform --verbs emu", conform),
        ("rail-kit conform on a network at its worst", adversary),
        ("rail-kit fault --verbs emu", fault),
        ("--verbs takes nothing else", unknown),
        ("PCI paths", pci_paths),
        ("ibv_devinfo", device_info),
        ("ibv_rc_pingpong", lambda: pair("ibv_rc_pingpong", "-g", "3", "-n", "100")),
        ("ibv_ud_pingpong", lambda: pair("ibv_ud_pingpong", "-g", "3", "-n", "100")),
        ("ib_write_bw", perftest("ib_write_bw", "-n", "1000")),
        ("ib_read_bw", perftest("ib_read_bw", "-n", "500")),
        ("ib_send_bw, with events", perftest("ib_send_bw", "-n", "500", "-e")),
        ("ib_send_lat", perftest("ib_send_lat", "-n", "1000")),
        ("ib_atomic_bw", perftest("ib_atomic_bw", "-n", "1000")),
        ("rping", rping),
        ("ucmatose", ucmatose),
        ("udaddy", udaddy),
        ("ib_write_bw -R", perftest_over_cm),
        ("our ofi plugin over libfabric's verbs provider", libfabric),
        ("NCCL's net_ib", net_ib),
        ("rates, and 4,096 connections of a process", rates_and_connections),
        ("1,000 processes that connect at once", a_thousand_peers),
        ("64 processes that connect at once over the ib plugin", peers_of_the_plugin),
    ]))
