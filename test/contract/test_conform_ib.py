#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over the ib plugin on the scripted libibverbs: every check that runs in one process, for the
library's QPs reach each other there only. The rest runs on real devices and in the lab. Older versions of the vtable
are the same common/abi_vN.c as the socket plugin's, which test_conform.py walks; here the oldest stands for all.

TEST-LIMIT: 420
TEST-SAN: asan tsan
TEST-CHECK: --newest
TEST-READS: build/bin/rail-kit build/lib/libnccl-net-ib.so build/test/libfakeverbs.so
TEST-READS: test/contract/conformance.py test/e2e/coll.py
"""
import sys

sys.dont_write_bytecode = True
from conformance import BRIEF, BUILD, SANITIZED, VERSIONS, cases, checks, report  # noqa: E402

IB = BUILD / "lib/libnccl-net-ib.so"
FAKE = {"NCCL_IBVERBS_LIB": str(BUILD / "test/libfakeverbs.so"), "FAKEVERBS": "device fake0; device fake1 ports=2"}
# What measures the machine, or takes its time, once is enough.
ONCE = "cost,sizes.*gigabyte*,leaks,processes,wakeups,connect.dead_port_is_noticed"


def one_process():
    if not IB.exists():
        yield "the ib plugin # SKIP it is not built: no infiniband/verbs.h", ""
        return
    names = [c["name"] for c in checks() if c["processes"] == 1]
    yield "there are such checks", "" if len(names) > 100 else f"only {len(names)} found"
    older = ["--only", ",".join(names), "--skip", ONCE, "--level", "must"]
    newest = older if SANITIZED or BRIEF else ["--only", ",".join(names), "--skip", "cost"]
    yield from cases(IB, [(VERSIONS[0], newest), *[(v, older) for v in VERSIONS[1:][-1:]]], FAKE)


if __name__ == "__main__":
    sys.exit(report(one_process()))
