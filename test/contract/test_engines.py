#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The contract holds whoever moves the data: a choice of the contract programs under each engine.

TEST-LIMIT: 300
TEST-SAN: asan tsan
"""
import os
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, main, run

ENGINES = os.environ.get("RAIL_TEST_ENGINES", "epoll uring").split()
PROGRAMS = ["wakeups", "sizes", "order", "grouped", "close", "mr", "requests", "processes"]
THREADS = {"order": 3}  # more than one thread is another way to move things past each other


def contract(program, engine):
    done = run([BUILD / "test" / "contract" / f"test_{program}"], limit=250, RAIL_SOCKET_ENGINE=engine,
               RAIL_SOCKET_THREADS=THREADS.get(program, 1))
    assert done.returncode == 0, f"{program} ended with {done.returncode}\n{done.stdout}{done.stderr}"


def case(program, engine):
    return lambda: contract(program, engine)


main([(f"{program} with engine {engine}", case(program, engine)) for engine in ENGINES for program in PROGRAMS])
