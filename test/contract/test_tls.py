#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encrypted connections (RAIL_SOCKET_TLS=psk) keep the contract, whatever happens to their processes: all MUSTs of
rail-kit conform, those about moving data with an engine and with several streams too, and rounds of rail-kit fault.

TEST-LIMIT: 600
TEST-SAN: asan tsan

    python3 test/contract/test_tls.py [case...]    RAIL_TEST_ROUNDS=N of rail-kit fault; RAIL_TEST_VERSIONS="12 11 …" of
                                                   the vtable
"""
import json
import os
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, main, run

KIT, PLUGIN = BUILD / "bin/rail-kit", BUILD / "lib/libnccl-net-socket.so"
SANITIZED = BUILD.name in ("asan", "tsan")
VERSIONS = os.environ.get("RAIL_TEST_VERSIONS", "12").split()
ROUNDS = int(os.environ.get("RAIL_TEST_ROUNDS", 6 if SANITIZED else 24))
# What measures the machine, or waits for its own sake, is shown without TLS.
SKIP = "cost,sizes.*gigabyte*,wakeups,leaks.idle*,peer_death.no_busy_wait,connect.dead_port*,connect.set_up_rate"
if SANITIZED:  # nor what has no part in encryption
    SKIP += ",leaks,lifecycle,listen,properties,attrs,optional,mr.odd*"
MOVING = "sizes,order,grouped,close,requests,processes"
# Run with an engine and without one, over several streams each; a third time, over one, by the plain build only.
AGAIN = ",grouped,requests,processes" if SANITIZED else ""
# What libcrypto allocates once, and keeps, some 400 KiB, is no leak of the plugin's.
HEAP = re.compile(r"SHOULD: side \d.*: (\d+) KiB more of the heap are in use after finalize than before")
LIBCRYPTO_KIB = 512


def with_tls(folder, command, limit=280, **env):
    """Ends with what was run, and its output, which must say that the connections were encrypted."""
    key = pathlib.Path(folder) / "key"
    key.touch(mode=0o600)
    key.write_text("a key of sixteen bytes and more\n", encoding="ascii")
    return run([KIT, *command], limit=limit, RAIL_SOCKET_TLS="psk", RAIL_SOCKET_AUTH_FILE=key, **env)


def conform(*options, **env):
    with tempfile.TemporaryDirectory() as folder:
        done = with_tls(folder, ["conform", PLUGIN, "--level", "must", *options], **env)
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    passed = int(re.search(r"^(\d+) passed", done.stdout, re.M).group(1))
    assert passed > 20, f"only {passed} checks\n{done.stdout}"
    print(f"# {passed} checks")


def musts(version):
    return lambda: conform("--abi", version, "--skip", SKIP + AGAIN)


def engine():
    conform("--only", MOVING, "--skip", SKIP, RAIL_SOCKET_ENGINE="epoll", RAIL_SOCKET_STREAMS=3)


def small_buffers():
    conform("--only", MOVING, "--skip", SKIP, RAIL_SOCKET_STREAMS=2, NCCL_SOCKET_SNDBUF="8K", NCCL_SOCKET_RCVBUF="8K")


def only_heap_of_libcrypto(seen):
    lines = [HEAP.fullmatch(line) for line in seen.splitlines()]
    return bool(lines) and all(line and int(line.group(1)) <= LIBCRYPTO_KIB for line in lines)


def faults():
    with tempfile.TemporaryDirectory() as folder:
        done = with_tls(folder, ["fault", PLUGIN, "--rounds", str(ROUNDS), "--skip", "fail", "--json", "-"])
    assert done.returncode in (0, 1), f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    results = json.loads(done.stdout)["results"]
    for r in results:
        said = "\n".join([r["seen"], *r["notes"], *r["log"]])
        assert not r["bad"] or only_heap_of_libcrypto(r["seen"]), \
            f"{r['name']} ended with {r['status']}: {said}\n{r['again']}\n{done.stderr}"
    ran = sum(r["status"] != "skip" for r in results)
    assert ran > ROUNDS / 2, f"only {ran} of {ROUNDS} rounds could be run"
    print(f"# {ran} rounds")


main([*[(f"all MUSTs, version {v}", musts(v)) for v in VERSIONS], ("engine epoll, three streams", engine),
      ("two streams in small buffers", small_buffers), ("faults", faults)])
