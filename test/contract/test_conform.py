#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over every plugin of ours, through every version of the vtable; under a sanitizer the newest only.
An older version's vtable is common/abi_vN.c: arguments and results in another shape, and nothing that keeps time or
threads. Checks that mostly wait, and ask for what happens between calls, are run through the newest only: ONCE.

TEST-LIMIT: 420
TEST-SAN: asan tsan
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, report  # noqa: E402

SOCKET = BUILD / "lib/libnccl-net-socket.so"
RAILTRACE = BUILD / "lib/libnccl-net-railtrace.so"  # in front of the socket plugin
SANITIZED = BUILD.name in ("asan", "tsan")
VERSIONS = ["12"] if SANITIZED else ["12", "11", "10", "9", "8", "7", "6"]
# What measures the machine, or waits for its own sake, once is enough.
MEASURES = "cost,sizes.*gigabyte*,connect.dead_port_is_noticed"
ONCE = (f"{MEASURES},wakeups,peer_death.*stop*,peer_death.no_busy_wait,leaks.idle*,connect.dead_port,"
        "connect.one_process_at_a_time,connect.set_up_rate,close.many_come_and_go")


def conform(plugin, version, *options):
    env = dict(os.environ)
    if plugin == RAILTRACE:
        env |= {"RAIL_TRACE_PLUGIN": str(SOCKET), "RAIL_TRACE_FILE": "/dev/null"}
    command = [str(BUILD / "bin/rail-kit"), "conform", str(plugin), "--abi", version, "--json", "-", *options]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace")
    try:
        return done.returncode, json.loads(done.stdout)["results"], done.stderr
    except (ValueError, KeyError):
        return done.returncode, [], f"{' '.join(command)}: no report\n{done.stdout}{done.stderr}"


def lines(plugin, version, status, results, errors):
    label = f"{plugin.stem.removeprefix('libnccl-net-')} v{version}"
    for r in results:
        name = f"{label} {r['name']}"
        if r["status"] == "skip":
            yield f"{name} # SKIP {r['seen']}", ""
        else:
            yield name, "\n".join([f"{r['status']}: {r['seen']}", *r["log"], r["again"]]) if r["bad"] else ""
    if not results or status not in (0, 1):
        yield f"{label} ends with a report", f"exit status {status}\n{errors}"
    elif errors.strip():
        yield f"{label} says nothing else", errors


def cases():
    jobs = [(SOCKET, VERSIONS[0], ["--skip", MEASURES] if SANITIZED else []),
            *[(SOCKET, v, ["--skip", ONCE]) for v in VERSIONS[1:]], (RAILTRACE, VERSIONS[0], ["--skip", MEASURES])]
    with concurrent.futures.ThreadPoolExecutor(1 if SANITIZED else 2) as pool:
        for (plugin, version, _), result in zip(jobs, pool.map(lambda j: conform(j[0], j[1], *j[2]), jobs)):
            yield from lines(plugin, version, *result)


if __name__ == "__main__":
    sys.exit(report(cases()))
