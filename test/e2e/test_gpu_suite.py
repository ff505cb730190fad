#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 120
"""make gpu-test's machinery with programs that follow a script: steps that pass, fail, hang, skip; deadlines, table, JSON;
what reads the programs' output; the ranks' launcher; and gpu_coll itself, on librailyard over a driver without a GPU."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu")]
from coll import BUILD, LOCAL, SOCKET, environment, expect, main, run  # noqa: E402
import steps  # noqa: E402
from steps import FAILED, MISSED, OK, SKIPPED, Failed, Runner, Skip, Step, Verdict  # noqa: E402

ROOM = pathlib.Path(tempfile.mkdtemp(prefix="rail-test-gpu."))
COLL = str(BUILD / "test" / "gpu" / "gpu_coll")
RAILYARD = str(BUILD / "lib" / "nccl" / "libnccl.so.2")


def shell(script):
    return ["bash", "-c", script]


def runner(name, budget=60):
    said = []
    r = Runner(ROOM / name, budget, say=said.append, facts={"machine": "a test"})
    r.said = said
    return r


def do(r, name, script=None, **more):
    step = Step("part", name, shell(script) if script is not None else None, **more)
    r.do(step)
    return step


def expect_step(step, result, *words):
    expect(step.result == result, f"{step.name}: {step.result}: {step.note}")
    for word in words:
        expect(word in step.note, f"{step.name}: its note lacks \"{word}\": {step.note}")


def outcomes():
    r = runner("outcomes")
    expect_step(do(r, "fine", "echo 'ok 1 - a'; echo 'ok 2 - b # SKIP no b'"), OK, "1 cases, 1 skipped")
    expect_step(do(r, "wrong", "echo 'ok 1 - a'; echo 'not ok 2 - b'"), FAILED, "1 of 2", "b")
    expect_step(do(r, "wrong, and says so", "echo 'not ok 1 - c'; echo 1..1; exit 1"), FAILED, "status 1", "c")
    expect_step(do(r, "silent", ":"), FAILED, "no case")
    expect_step(do(r, "crash", "kill -SEGV $$"), FAILED, "status -11")
    expect_step(do(r, "not there", None, command=[str(ROOM / "nowhere")]), FAILED, "cannot be started")
    expect_step(do(r, "77", "echo there is no moon; exit 77"), SKIPPED, "there is no moon")
    expect_step(do(r, "all skipped", "echo 'ok 1 - a # SKIP no a'"), SKIPPED, "no a")
    expect_step(do(r, "reason", "echo ok", skip="no reason"), SKIPPED, "no reason")
    expect_step(do(r, "after fine", "echo ok 1", needs=("fine",)), OK)
    expect_step(do(r, "after wrong", "echo ok 1", needs=("wrong",)), SKIPPED, "wrong", FAILED)
    expect_step(do(r, "after nothing", "echo ok 1", needs=("never",)), SKIPPED, "not run")

    def late():
        raise Skip("late reason")
    expect_step(do(r, "late", None, command=late), SKIPPED, "late reason")
    expect_step(do(r, "slow", "echo 3", judge=lambda text, step: Verdict("3 of 4", {"x": float(text)}, missed=True)), MISSED)
    expect_step(do(r, "odd", "echo x", judge=lambda text, step: float(text)), FAILED, "cannot be judged")
    expect_step(do(r, "figures", "echo '# figure f 2.5 GB/s'; echo 'ok 1 - f'"), OK)
    expect(r.finish() == 1, "a run with failures ends with 0")
    found = json.loads((ROOM / "outcomes" / "results.json").read_text())
    expect(found["counts"] == {OK: 3, FAILED: 6, MISSED: 1, SKIPPED: 6}, found["counts"])
    expect(found["facts"]["machine"] == "a test", found["facts"])
    by_name = {s["name"]: s for s in found["steps"]}
    expect(by_name["figures"]["figures"] == {"f": 2.5}, by_name["figures"])
    expect(by_name["slow"]["figures"] == {"x": 3.0}, by_name["slow"])
    log = ROOM / "outcomes" / "logs" / by_name["wrong"]["log"]
    expect("not ok 2 - b" in log.read_text(), "the log lacks the output")
    table = (ROOM / "outcomes" / "table.txt").read_text()
    for s in found["steps"]:
        expect(table.count(s["name"]) >= 1 and s["note"] in table, f"the table lacks {s['name']}")
    expect("3 passed, 6 failed, 1 too slow, 6 skipped" in table, table)
    expect("not ok 2 - b" in (ROOM / "outcomes" / "all.log").read_text(), "the whole log lacks a step's")


def all_well():
    r = runner("well")
    do(r, "fine", "echo ok 1")
    do(r, "missed", "echo 3", judge=lambda text, step: Verdict(missed=True))
    do(r, "reason", skip="no reason")
    expect(r.finish() == 0, "a run without failures ends with 1")


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def deadline():
    r = runner("deadline")
    pids = ROOM / "pids"
    begin = time.monotonic()
    # Children in process groups of their own, deaf to TERM; the step's own limit is too short for them.
    hang = f"trap '' TERM; set -m; sleep 300 & echo $! >{pids}; sleep 300 & echo $! >>{pids}; echo last words; wait"
    expect_step(do(r, "hangs", hang, limit=3), FAILED, "still running after 3 s", "last words")
    expect(time.monotonic() - begin < 10, "the deadline was not kept")
    expect_step(do(r, "next", "echo ok 1"), OK)
    # The first process ends, its child goes on: nothing may be left.
    expect_step(do(r, "leaves one", f"sleep 300 & echo $! >>{pids}; echo ok 1"), OK)
    numbers = [int(n) for n in pids.read_text().split()]
    expect(len(numbers) == 3 and not any(alive(n) for n in numbers), f"left behind: {numbers}")


def whole_budget():
    r = runner("budget", budget=5)
    expect_step(do(r, "long", "sleep 60", limit=50), FAILED, "still running after 5 s")
    expect_step(do(r, "no time", "echo ok 1"), SKIPPED, "the 5 s of the whole are used up")


def interrupted():
    """The suite is told to end: the table is written all the same."""
    script = (f"import sys, signal; sys.path.insert(0, {str(HERE.parent / 'gpu')!r}); import steps;"
              f"r = steps.Runner({str(ROOM / 'term')!r}, 60); signal.signal(signal.SIGTERM, r.interrupt);"
              "r.do(steps.Step('p', 'first', ['sleep', '50'])); r.do(steps.Step('p', 'second', ['true'])); sys.exit(r.finish())")
    process = subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True, env=environment())
    log = ROOM / "term" / "logs" / "01-first.log"
    end = time.monotonic() + 20
    while not (log.exists() and log.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    expect(process.returncode == 1, f"status {process.returncode}\n{out}")
    found = json.loads((ROOM / "term" / "results.json").read_text())["steps"]
    expect([s["result"] for s in found] == [FAILED, SKIPPED], found)
    expect("interrupted by SIGTERM" in found[0]["note"], found)
    expect("0 passed, 1 failed, 0 too slow, 1 skipped" in out, out)


def variables():
    """A step has the variables that it sets, none of a launcher or library around us."""
    before = dict(os.environ)
    os.environ.update(NCCL_ALGO="Tree", RANK="7", LD_LIBRARY_PATH="/a")
    try:
        env = steps.environment({"+LD_LIBRARY_PATH": "/b", "NCCL_DEBUG": "INFO"})
    finally:
        os.environ.clear()
        os.environ.update(before)
    expect("NCCL_ALGO" not in env and "RANK" not in env, "strange variables reach a step")
    expect(env["LD_LIBRARY_PATH"] == "/b:/a" and env["NCCL_DEBUG"] == "INFO", env)
