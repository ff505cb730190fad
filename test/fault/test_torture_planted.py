#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The torture can fail: planted defects of test/preload/brokenplug.c are noticed by the rounds that are about them.

TEST-LIMIT: 240
TEST-ALONE
"""
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import BUILD, SOCKET, main

TORTURE = str(pathlib.Path(__file__).resolve().parent / "test_torture.py")

# defect → the kind of round that must fail on it, and what that says
DEFECTS = {
    "none": ("kill", None),
    "corrupt_byte": ("freeze", "WRONG BYTES"),
    "one_byte_more": ("freeze", "beyond its end"),
    "early_done": ("freeze", "WRONG BYTES|hangs"),
    "messages_swapped": ("freeze", "WRONG BYTES"),
    "group_shifted": ("freeze", "WRONG BYTES"),
    "fd_leak": ("freeze", "fds before"),
    "thread_leak": ("freeze", "threads before"),
    "death_unnoticed": ("kill", "hangs"),
    "death_other_error": ("kill", "expected 6"),
    "dereg_lazy": ("dereg", "deregMr (memory written after it)|WRONG BYTES"),
    "close_error": ("leave", "contract broken"),
    "close_slow": ("leave", "a close took"),
}


def planted(defect, kind, says):
    env = dict(os.environ, RAIL_TEST_PLUGIN=str(BUILD / "test/libbrokenplug.so"), RAIL_BROKEN_REAL=SOCKET,
               RAIL_BROKEN=defect)
    command = [sys.executable, TORTURE, "--seed", "7", "--only", kind, "--rounds", "12", "--stop-at", "1"]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=120)
    said = done.stdout + done.stderr
    if says is None:
        assert done.returncode == 0, f"with no defect it ends with {done.returncode}:\n{said}"
        return
    assert done.returncode == 1, f"{defect} goes unnoticed, status {done.returncode}:\n{said}"
    assert any(text in said for text in says.split("|")), f"{defect} is noticed, but not by {says!r}:\n{said}"


def case(defect):
    return lambda: planted(defect, *DEFECTS[defect])


main([(f"{defect}: {kind}", case(defect)) for defect, (kind, _) in DEFECTS.items()])
