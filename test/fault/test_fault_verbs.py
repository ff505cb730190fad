#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""librail-fault.so and libibverbs: calls of a plugin that opens the library itself are counted and fail, those over a
context's own table too; those of other libraries do not.

TEST-SAN: none
"""
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, SOCKET, Skip, main, run

KIT = BUILD / "bin/rail-kit"
IB = BUILD / "lib/libnccl-net-ib.so"
PRELOAD = BUILD / "lib/railyard/librail-fault.so"
CHECK = "grouped.same_tags_in_many_groups"  # in one process, whose calls are counted; with many messages


LOOKS_UP = """
import ctypes, os
c, m = ctypes.CDLL(None), ctypes.CDLL("libm.so.6")
assert c.getpid() == os.getpid()
m.cos.restype = ctypes.c_double
assert m.cos(ctypes.c_double(0)) == 1
for f, words in ((c.dlsym, 2), (c.dlvsym, 3)):
    f.restype, f.argtypes = ctypes.c_void_p, [ctypes.c_void_p] + [ctypes.c_char_p] * (words - 1)
assert c.dlvsym(None, b"getpid", b"GLIBC_2.99") is None
assert c.dlsym(None, b"ibv_open_device") and not c.dlsym(None, b"no_such_name")
print("fine")
"""


def counted(plugin, kind, nth=0):
    """One check in which call `nth` of a kind fails: (exit status, what it printed, the count file's lines)."""
    with tempfile.TemporaryDirectory() as folder:
        counts = pathlib.Path(folder, "counts")
        done = run([KIT, "conform", plugin, "--only", CHECK], LD_PRELOAD=PRELOAD, RAIL_FAIL_NTH=nth,
                   RAIL_FAIL_KIND=kind, RAIL_FAIL_COUNT_FILE=counts, RAIL_FAIL_VERBOSE=1, RAIL_EMU="device emu0",
                   NCCL_IBVERBS_LIB=BUILD / "lib/emu/libibverbs.so.1")
        return done.returncode, done.stdout + done.stderr, [line.split() for line in counts.read_text().splitlines()]


def most(lines):
    return max(int(seen) for _, seen, _, _ in lines)


def need_ib():
    if not IB.exists():
        raise Skip("the ib plugin is not built: no infiniband/verbs.h")


def looked_up():
    need_ib()
    status, said, lines = counted(IB, "verbs")
    assert status == 0, said
    assert most(lines) > 15, lines
    failed = set()
    for nth in (1, 3, most(lines) // 2, most(lines) - 3):
        status, said, lines = counted(IB, "verbs", nth)
        names = {name for _, _, n, name in lines if n == "1"}
        assert names and all(name.startswith("ibv_") for name in names), (nth, lines, said)
        assert "fails with errno" in said and str(IB.name) in said, said
        assert "crash" not in said and "hung" not in said, said
        failed |= names
    assert len(failed) > 2, failed


def posted_and_polled():
    need_ib()
    status, said, lines = counted(IB, "post")
    assert status == 0, said
    assert most(lines) > 100, lines
    for nth in (1, most(lines) // 2, most(lines) // 2 + 1, most(lines) // 2 + 2):
        status, said, lines = counted(IB, "post", nth)
        names = {name for _, _, n, name in lines if n == "1"}
        assert names and names <= {"ibv_post_send", "ibv_post_recv", "ibv_poll_cq"}, (nth, lines, said)
        assert status == 1 and "crash" not in said and "hung" not in said, said


def others():
    status, said, lines = counted(SOCKET, "verbs", 1)
    assert status == 0 and all(int(seen) == 0 for _, seen, _, _ in lines), (said, lines)


def looking_up_goes_on():
    """dlsym is the system's for everybody else: the loader's own rules for RTLD_NEXT and versions hold."""
    done = run([sys.executable, "-c", LOOKS_UP], LD_PRELOAD=PRELOAD)
    assert done.returncode == 0 and "fine" in done.stdout, done.stdout + done.stderr


main([("functions that a plugin looks up", looked_up), ("posts and polls", posted_and_polled),
      ("a plugin without verbs", others), ("everybody else's dlsym", looking_up_goes_on)])
