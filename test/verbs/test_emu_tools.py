#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs on the emulated device, as their users start them: rail-kit with --verbs emu, libibverbs' and perftest's.

TEST-LIMIT: 300
TEST-SAN: none
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
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


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def pair(name, *options):
    """A server and a client of perftest or libibverbs' examples; the client is tried until the server listens."""
    env = os.environ | {"LD_LIBRARY_PATH": str(LIBRARY)}
    argv = [installed(name), "-d", "emu0", "-p", free_port(), *options]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            end = time.monotonic() + LIMIT / 2
            while True:
                client = subprocess.run([*argv, "127.0.0.1"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, timeout=LIMIT)
                if client.returncode == 0 or server.poll() is not None or time.monotonic() > end:
                    break
                time.sleep(0.2)
            assert client.returncode == 0, client.stdout
            said, _ = server.communicate(timeout=LIMIT)
            assert server.returncode == 0, said
        finally:
            server.kill()


def perftest(name, *options):
    return lambda: pair(name, "-x", "3", "-F", *options)


if __name__ == "__main__":
    sys.exit(main([
        ("rail-kit conform --verbs emu", conform),
        ("rail-kit conform on a network at its worst", adversary),
        ("rail-kit fault --verbs emu", fault),
        ("--verbs takes nothing else", unknown),
        ("ibv_devinfo", device_info),
        ("ibv_rc_pingpong", lambda: pair("ibv_rc_pingpong", "-g", "3", "-n", "100")),
        ("ibv_ud_pingpong", lambda: pair("ibv_ud_pingpong", "-g", "3", "-n", "100")),
        ("ib_write_bw", perftest("ib_write_bw", "-n", "1000")),
        ("ib_read_bw", perftest("ib_read_bw", "-n", "500")),
        ("ib_send_bw, with events", perftest("ib_send_bw", "-n", "500", "-e")),
        ("ib_atomic_bw", perftest("ib_atomic_bw", "-n", "1000")),
    ]))
