#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The contract holds with every engine: a choice of rail-kit's checks under each engine.

TEST-LIMIT: 300
TEST-SAN: asan tsan
"""
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, main, run

ENGINES = os.environ.get("RAIL_TEST_ENGINES", "epoll").split()
AREAS = ["wakeups", "wakeups in small buffers", "sizes", "order", "grouped", "close", "mr", "requests", "processes"]
SMALL = {"NCCL_SOCKET_SNDBUF": "8K", "NCCL_SOCKET_RCVBUF": "8K"}
# More than one thread is another way to move things past each other, also those of one connection with several streams;
# sockets that are full, to be left with work to do.
TOGETHER = {"RAIL_SOCKET_THREADS": 3, "RAIL_SOCKET_STREAMS": 4}
MORE = {"wakeups": TOGETHER, "order": TOGETHER, "sizes": TOGETHER, "wakeups in small buffers": SMALL}
# The checks of close receive into the same memory from several connections: two threads do so at the same time.
if BUILD.name != "tsan":
    MORE["close"] = TOGETHER


def contract(area, engine):
    done = run([BUILD / "bin/rail-kit", "conform", BUILD / "lib/libnccl-net-socket.so", "--only", area.split()[0],
                "--skip", "sizes.*gigabyte*"], limit=250, RAIL_SOCKET_ENGINE=engine, **MORE.get(area, {}))
    assert done.returncode == 0, f"{area} ended with {done.returncode}\n{done.stdout}{done.stderr}"


def case(area, engine):
    return lambda: contract(area, engine)


main([(f"{area} with engine {engine}", case(area, engine)) for engine in ENGINES for area in AREAS])
