#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test/arm64/run.py BUILD [--only PATTERN]: what make arm64 built, under qemu-user.

The unit tests, the socket plugin's conformance through the newest vtable, small collectives. What emulation cannot do,
or takes minutes for, is skipped by name, with the reason. Runs where test/arm64/qemu-user.sh has made it possible.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "test"))
from outcome import Outcome, parse  # noqa: E402

LIMIT, CONFORM_LIMIT = 300, 1200  # seconds

SLOW = "takes minutes under emulation; it has no code that is arm64's own"
START_TIME = "the start time in qemu-user's /proc/self/stat is not the kernel's: the page seems to be a dead process's"
NAMESPACE = "another user is needed, and the namespace with qemu-user has only one"
# Program, or program and case → why it is left out.
SKIPPED = {
    "test_device_block": SLOW,
    "test_device_native": SLOW,
    "test_device_reduce": SLOW,
    "test_fd_receiver another_user_is_refused": NAMESPACE,
    "test_fd_receiver garbage_is_dropped": "qemu-user leaves descriptors open that a short control buffer cuts off",
    "test_ib_cost a_thousand": "it measures the processor's time, which is the emulator's",
    "test_ib_data_random": SLOW,
    "test_ib_stats records_and_labels": START_TIME,
    "test_oob_watch start_and_stop": "qemu-user's threads end after pthread_join has returned, which it counts",
    "test_program ll_near_2_to_the_33": SLOW,
    "test_sk_ports traffic_class": "qemu-user does not know IP_PKTOPTIONS",
    "test_stats fork_leaves_the_page_to_the_parent": START_TIME,
    "test_stats lives_and_halves_are_never_mixed": START_TIME,
    "test_store personal_directories": NAMESPACE,
}
# Of rail-kit's checks: those that measure time or CPU, those that take long, and what qemu-user lacks.
CONFORM_SKIPPED = ("cost,wakeups,leaks,sizes.*gigabyte*,peer_death.*stop*,peer_death.no_busy_wait,connect.dead_port*,"
                   "connect.one_process_at_a_time,connect.set_up_rate,close.many_come_and_go")


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "RAIL_"))}
    return kept | {"NCCL_SOCKET_IFNAME": "lo"}


# Each with shared memory of its own: by START_TIME they would remove each other's pages of counters.
ALONE = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$0" "$@"']


def run(argv, outcome, limit=LIMIT, **more):
    """Exit status and output; None when it had to be killed."""
    since = time.monotonic()
    try:
        done = subprocess.run(ALONE + argv, env=environment() | more, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=limit,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        return None, (e.stdout or b"").decode(errors="replace")
    finally:
        outcome.seconds = time.monotonic() - since


def ended(outcome, status, output):
    if status is None:
        outcome.add("time limit", "fail", f"no end after {outcome.seconds:.0f} s, killed", output.splitlines()[-20:])
    elif status != 0 and not outcome.count("fail"):
        outcome.add("exit status", "fail", f"exit status {status}", output.splitlines()[-20:])


def unit(build, name):
    outcome = Outcome()
    if reason := SKIPPED.get(name):
        outcome.add("all", "skip", reason)
        return outcome
    cases = re.findall(r"TEST_CASE\((\w+)\)", (ROOT / f"test/unit/{name}.c").read_text())
    skipped = {c: SKIPPED[f"{name} {c}"] for c in cases if f"{name} {c}" in SKIPPED}
    for case, reason in skipped.items():
        outcome.add(case, "skip", reason)
    chosen = [c for c in cases if c not in skipped] if skipped else []
    status, output = run([build / "test/unit" / name, *chosen], outcome)
    fault = parse(output, outcome)
    if fault and status is not None:
        outcome.add("plan", "fail", f"{fault}; exit status {status}", output.splitlines()[-20:])
    ended(outcome, status, output)
    return outcome


def conform(build, _):
    outcome = Outcome()
    for check in CONFORM_SKIPPED.split(","):
        outcome.add(check, "skip", "measures time or CPU, or takes minutes, under emulation")
    plugin = build / "lib/libnccl-net-socket.so"
    status, output = run([build / "bin/rail-kit", "conform", plugin, "--abi", "12", "--json", "-", "--skip",
                          CONFORM_SKIPPED], outcome, CONFORM_LIMIT)
    results = []
    if status is not None:
        results = json.loads(output[output.index("{"):])["results"] if "{" in output else []
    for r in results:
        verdict = "fail" if r["bad"] else "skip" if r["status"] == "skip" else "pass"
        outcome.add(r["name"], verdict, r["seen"], [*r["log"], r["again"]] if r["bad"] else ())
    if not results:
        outcome.add("report", "fail", "there is none", output.splitlines()[-20:])
    ended(outcome, status, output)
    return outcome


def collective(build, name):
    what, ranks, way = name.split()
    outcome = Outcome()
    plugin = build / "lib/libnccl-net-socket.so"
    over = {"NCCL_SHM_DISABLE": "1", "NCCL_NET_PLUGIN": str(plugin)} if way == "socket" else {}
    status, output = run([build / "bin/rail-coll", what, "-r", ranks, "-b", "8", "-e", "64K", "-f", "16", "-n", "2",
                          "-w", "1", *(["-d", "half"] if what == "reduce_scatter" else [])], outcome, **over)
    right = status == 0 and "# Out of bounds values : 0 OK" in output
    outcome.add(name, "pass" if right else "fail", "" if right else "wrong, or no result", output.splitlines()[-20:])
    ended(outcome, status, output)
    return outcome


def jobs(build):
    """(label, function, name), the long ones first."""
    yield "contract/conform socket v12", conform, ""
    for source in sorted((ROOT / "test/unit").glob("test_*.c"), key=lambda s: s.stem != "test_reduce"):
        if source.stem in SKIPPED or (build / "test/unit" / source.stem).exists():
            yield f"unit/{source.stem}", unit, source.stem
    collectives = ("all_reduce 2", "all_reduce 4", "all_gather 3", "reduce_scatter 2", "alltoall 4")
    for name in (f"{what} {way}" for way in ("shm", "socket") for what in collectives):
        yield f"e2e/rail-coll {name}", collective, name


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", action="append", metavar="PATTERN", help="only those whose name has this")
    args = parser.parse_args()
    build, only = args.build.resolve(), args.only or [""]
    chosen = [j for j in jobs(build) if any(fnmatch.fnmatch(j[0], f"*{p}*") for p in only)]
    counts = dict.fromkeys(("pass", "fail", "skip"), 0)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (label, _, _), o in zip(chosen, pool.map(lambda j: j[1](build, j[2]), chosen)):
            print(f"{'FAIL' if o.count('fail') else 'ok  '} {label:<44} {len(o.cases):4d} cases {o.seconds:8.2f} s",
                  flush=True)
            for name, verdict, reason in o.cases:
                counts[verdict] += 1
                if verdict != "pass":
                    print(f"     {verdict} {name}: {reason}", flush=True)
            for name, lines in o.evidence:
                if o.count("fail"):
                    print("".join(f"     | {name}: {line}\n" for line in lines), end="", flush=True)
    print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 1 if counts["fail"] or not counts["pass"] else 0


if __name__ == "__main__":
    sys.exit(main())
