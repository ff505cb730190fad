#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over the ib plugin on the scripted libibverbs: every check that runs in one process, for the
library's QPs reach each other there only. The rest runs on real devices and in the lab.

TEST-LIMIT: 420
TEST-SAN: asan tsan
"""
import concurrent.futures
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/e2e"))
from coll import BUILD, report  # noqa: E402
from test_conform import SANITIZED, VERSIONS, conform, lines  # noqa: E402

IB = BUILD / "lib/libnccl-net-ib.so"
FAKE = BUILD / "test/libfakeverbs.so"
ROW = re.compile(r'\{"[0-9.]+", "([a-z_.0-9]+)", KIT_[A-Z]+, KIT_ONE,')
# What measures the machine, or takes its time, once is enough.
ONCE = "cost,sizes.*gigabyte*,leaks,processes,wakeups,connect.dead_port_is_noticed"


def in_one_process():
    return [name for file in sorted((ROOT / "kit/conform").glob("*.c")) for name in ROW.findall(file.read_text())]


def cases():
    if not IB.exists():
        yield "the ib plugin # SKIP it is not built: no infiniband/verbs.h", ""
        return
    os.environ |= {"NCCL_IBVERBS_LIB": str(FAKE), "FAKEVERBS": "device fake0; device fake1 ports=2"}
    names = in_one_process()
    yield "there are such checks", "" if len(names) > 100 else f"only {len(names)} found"
    options = {v: ["--skip", ONCE, "--level", "must"] for v in VERSIONS}
    if not SANITIZED:
        options[VERSIONS[0]] = ["--skip", "cost"]
    with concurrent.futures.ThreadPoolExecutor(1 if SANITIZED else 2) as pool:
        run = lambda v: conform(IB, v, "--only", ",".join(names), *options[v])  # noqa: E731
        for version, result in zip(VERSIONS, pool.map(run, VERSIONS)):
            yield from lines(IB, version, *result)


if __name__ == "__main__":
    sys.exit(report(cases()))
