# SPDX-License-Identifier: Apache-2.0
"""Runs of rail-kit conform as TAP: what the contract tests of our plugins share."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, report  # noqa: E402

SANITIZED = BUILD.name in ("asan", "tsan")
BRIEF = "--newest" in sys.argv[1:]  # make check: one pass through the newest version of the vtable
VERSIONS = ["12"] if SANITIZED or BRIEF else ["12", "11", "10", "9", "8", "7", "6"]
# What measures the machine, or waits for its own sake, once is enough.
MEASURES = "cost,sizes.*gigabyte*,connect.dead_port_is_noticed"
ONCE = (f"{MEASURES},wakeups,peer_death.*stop*,peer_death.no_busy_wait,leaks.idle*,connect.dead_port,"
        "connect.one_process_at_a_time,connect.set_up_rate,close.many_come_and_go")
# … and what an older version of the vtable has no part in: strangers, processes, threads, what is left behind.
NEWEST_ONLY = f"{ONCE},leaks,listen,peer_death,processes,threads"
PARTS = 4  # of a brief pass, side by side: most of its checks wait


def checks(*options):
    """Those that these options choose."""
    command = [str(BUILD / "bin/rail-kit"), "conform", "-", "--list", "--json", "-", *options]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def conform(plugin, version, options, env):
    command = [str(BUILD / "bin/rail-kit"), "conform", str(plugin), "--abi", version, "--json", "-", *options]
    done = subprocess.run(command, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace")
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


def cases(plugin, runs, env=None):
    """runs: (version, options) of each; env: changes. Two at a time; a sanitizer keeps both cores busy by itself."""
    at_a_time = 1 if SANITIZED else 2
    if BRIEF:
        (version, options), at_a_time = runs[0], PARTS
        chosen = [c["name"] for c in checks(*options)]
        runs = [(version, ["--only", ",".join(chosen[i::PARTS])]) for i in range(PARTS)]
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        results = pool.map(lambda run: conform(plugin, *run, env or {}), runs)
        for (version, _), result in zip(runs, results):
            yield from lines(plugin, version, *result)
