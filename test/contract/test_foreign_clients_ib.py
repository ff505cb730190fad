#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""contract/test_foreign_clients over the ib plugin on the emulated device: ten thousand silent clients, 64 listeners,
1024 files. Real peers connect and exchange messages, and the process can still open files of its own.

TEST-LIMIT: 90
TEST-READS: build/test/contract/test_foreign_clients build/lib/libnccl-net-ib.so build/lib/emu/libibverbs.so.1
"""
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from coll import BUILD  # noqa: E402

IB = BUILD / "lib/libnccl-net-ib.so"
if not IB.exists():
    print("1..1\nok 1 - ten_thousand_silent_clients # SKIP it is not built: no infiniband/verbs.h")
    sys.exit(0)
EMULATED = {"RAIL_TEST_PLUGIN": str(IB), "NCCL_IBVERBS_LIB": str(BUILD / "lib/emu/libibverbs.so.1"),
            "RAIL_EMU": "device emu0"}
PROGRAM = BUILD / "test/contract/test_foreign_clients"
sys.exit(subprocess.run([PROGRAM], env=os.environ | EMULATED, check=False).returncode)
