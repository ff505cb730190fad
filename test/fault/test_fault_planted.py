#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tests in this folder can fail: planted defects of test/broken/ are noticed by those that are about them.

TEST-LIMIT: 300
TEST-QUIET
"""
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import BUILD, main

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = ["test_torture.py", "--seed", "7", "--rounds", "4", "--stop-at", "1", "--only"]

# library → what must fail on it, and what that says; more of them: test_kit_fault.py. The reference has no deadline.
DEFECTS = {
    "ref": ([*ROUNDS, "halt"], "hangs"),
    "broken-corrupt_byte": ([*ROUNDS, "slow"], "WRONG BYTES"),
    "broken-fd_leak": ([*ROUNDS, "slow"], "fds before"),
    "broken-thread_leak": ([*ROUNDS, "slow"], "threads before"),
    "broken-close_error": ([*ROUNDS, "slow"], "contract broken"),
    "broken-idle_spin": (["test_idle.py", "100 idle connections use no CPU"], "s of CPU in"),
    "broken-memory_leak": (["test_idle.py", "nothing is kept of closed connections"], "grew by"),
}


# … and what must not fail on the reference, which has no defect.
SOUND = ("slow",)


def run(library, command):
    env = dict(os.environ, RAIL_TEST_PLUGIN=str(BUILD / "test/broken" / f"libnccl-net-{library}.so"))
    done = subprocess.run([sys.executable, str(HERE / command[0]), *command[1:]], env=env, text=True,
                          capture_output=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def planted(defect, command, says):
    status, said = run(defect, command)
    assert status == 1, f"{defect} goes unnoticed, status {status}:\n{said}"
    assert any(text in said for text in says.split("|")), f"{defect} is noticed, but not by {says!r}:\n{said}"


def sound(kind):
    status, said = run("ref", [*ROUNDS, kind])
    assert status == 0, f"with no defect it ends with {status}:\n{said}"


def case(function, *args):
    return lambda: function(*args)


main([(f"{d} is noticed", case(planted, d, *DEFECTS[d])) for d in DEFECTS] +
     [(f"{kind} without a defect", case(sound, kind)) for kind in SOUND])
