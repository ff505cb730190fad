#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random rounds of rail-kit fault on the socket plugin, with several streams to a connection and with each of its
engines: whatever happens, no process hangs, no byte is wrong, and every survivor gets an error.

TEST-LIMIT: 300
TEST-QUIET
TEST-SAN: asan tsan

    python3 test/fault/test_kit_rounds.py [case...]     RAIL_TEST_SEED=N repeats, RAIL_TEST_ROUNDS=N of each
"""
import json
import os
import pathlib
import random
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import BUILD, PLUGIN, SLOW, main, sanitizer
from coll import run

KIT = str(BUILD / "bin" / "rail-kit")
SEED = int(os.environ.get("RAIL_TEST_SEED", time.time_ns() & 0xffffff))
ROUNDS = int(os.environ.get("RAIL_TEST_ROUNDS", 12 if SLOW > 1 else 40))
ENGINES = os.environ.get("RAIL_TEST_ENGINES", "inline epoll").split()
SANITIZERS = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS")


def rounds(engine, streams):
    """Failing calls have sweeps of their own, which are complete (test_failnth_socket)."""
    env = {name: os.environ[name] for name in SANITIZERS if name in os.environ}
    done = run([KIT, "fault", PLUGIN, "--seed", SEED, "--rounds", ROUNDS, "--skip", "fail", "--json", "-"], limit=250,
               RAIL_SOCKET_ENGINE=engine, RAIL_SOCKET_STREAMS=streams, **env)
    assert done.returncode in (0, 1), f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    results = json.loads(done.stdout)["results"]
    assert len(results) == ROUNDS, f"{len(results)} rounds of {ROUNDS}\n{done.stderr}"
    for r in results:
        said = "\n".join([r["seen"], *r["notes"], *r["log"]])
        assert not r["bad"], f"{r['name']} ended with {r['status']}: {said}\nRAIL_SOCKET_ENGINE={engine} " \
                             f"RAIL_SOCKET_STREAMS={streams} {r['again']}\n{done.stderr}"
    ran = sum(r["status"] != "skip" for r in results)
    assert ran > ROUNDS / 2, f"only {ran} of {ROUNDS} rounds could be run"
    print(f"# {ran} rounds, seed {SEED}{', ' + sanitizer() if sanitizer() else ''}")


def case(engine, streams):
    return lambda: rounds(engine, streams)


chance = random.Random(SEED)
main([(f"engine {engine}", case(engine, chance.choice([1, 2, 4]))) for engine in ENGINES])
