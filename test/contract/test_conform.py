#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit conform over every plugin of ours, through every version of the vtable; under a sanitizer the newest only.

TEST-LIMIT: 420
TEST-SAN: asan tsan
"""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RAIL_BUILD", ROOT / "build")).resolve()
SOCKET = BUILD / "lib/libnccl-net-socket.so"
RAILTRACE = BUILD / "lib/libnccl-net-railtrace.so"  # in front of the socket plugin
SANITIZED = BUILD.name in ("asan", "tsan")
VERSIONS = ["12"] if SANITIZED else ["12", "11", "10", "9", "8", "7", "6"]
# What measures the machine, or waits for its own sake, once is enough.
ONCE = "cost,sizes.*gigabyte*,connect.dead_port_is_noticed"


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
            yield True, f"{name} # SKIP {r['seen']}", ""
        else:
            why = "\n".join([f"{r['status']}: {r['seen']}", *r["log"], r["again"]])
            yield not r["bad"], name, why
    if not results or status not in (0, 1):
        yield False, f"{label} ends with a report", f"exit status {status}\n{errors}"
    elif errors.strip():
        yield False, f"{label} says nothing else", errors


def main():
    jobs = [(SOCKET, v, ["--skip", ONCE] if SANITIZED or v != VERSIONS[0] else []) for v in VERSIONS]
    jobs.append((RAILTRACE, VERSIONS[0], ["--skip", ONCE]))
    failed = number = 0
    with concurrent.futures.ThreadPoolExecutor(1 if SANITIZED else 2) as pool:
        for (plugin, version, _), result in zip(jobs, pool.map(lambda j: conform(j[0], j[1], *j[2]), jobs)):
            for ok, name, why in lines(plugin, version, *result):
                number += 1
                failed += not ok
                if not ok:
                    print("".join(f"# {line}\n" for line in why.splitlines()), end="")
                print(f"{'ok' if ok else 'not ok'} {number} - {name}", flush=True)
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
