#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 60
"""What runs the steps of make gpu-test, with programs that follow a script: they pass, fail, crash, hang, skip;
deadlines of a step and of the whole, nothing left behind, the end by a signal, table and JSON, after every step."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
GPU = HERE.parent / "gpu"
sys.path[:0] = [str(HERE), str(GPU)]
import steps  # noqa: E402
from coll import environment, main  # noqa: E402
from steps import CUT, FAILED, MISSED, OK, SKIPPED, Runner, Skip, Step, Verdict  # noqa: E402

ROOM = pathlib.Path(tempfile.mkdtemp(prefix="rail-test-gpu."))


def runner(name, budget=60.0):
    return Runner(ROOM / name, budget, say=lambda text: None, facts={"machine": "a test"}, least=0.1)


def do(r, name, script="", **more):
    step = Step("a part", name, more.pop("command", ["bash", "-c", script]), **more)
    r.do(step)
    return step


def check(step, result, *words):
    assert step.result == result, f"{step.name}: {step.result}: {step.note}"
    for word in words:
        assert word in step.note, f"{step.name}: its note lacks \"{word}\": {step.note}"


def commands(r):
    check(do(r, "fine", "echo 'ok 1 - a'; echo 'ok 2 - b # SKIP no b'"), OK, "1 cases, 1 skipped")
    check(do(r, "wrong", "echo 'ok 1 - a'; echo 'not ok 2 - b'"), FAILED, "1 of 2", "b")
    check(do(r, "wrong, and says so", "echo 'not ok 1 - c'; echo 1..1; exit 1"), FAILED, "status 1", "c")
    check(do(r, "silent", ":"), FAILED, "no case")
    check(do(r, "crash", "kill -SEGV $$"), FAILED, "status -11")
    check(do(r, "not there", command=[str(ROOM / "nowhere")]), FAILED, "cannot be started")
    check(do(r, "77", "echo there is no moon; exit 77"), SKIPPED, "there is no moon")
    check(do(r, "all skipped", "echo 'ok 1 - a # SKIP no a'"), SKIPPED, "no a")


def decisions(r):
    def late():
        raise Skip("late reason")
    check(do(r, "reason", "echo ok", skip="no reason"), SKIPPED, "no reason")
    check(do(r, "after fine", "echo ok 1", needs=("fine",)), OK)
    check(do(r, "after wrong", "echo ok 1", needs=("wrong",)), SKIPPED, "wrong", FAILED)
    check(do(r, "after reason", "echo ok 1", needs=("reason",)), SKIPPED, "no reason")
    check(do(r, "after nothing", "echo ok 1", needs=("never",)), SKIPPED, "not run")
    check(do(r, "late", command=late), SKIPPED, "late reason")
    check(do(r, "slow", "echo 3", judge=lambda text, step: Verdict("3 of 4", {"x": float(text)}, missed=True)), MISSED)
    check(do(r, "odd", "echo x", judge=lambda text, step: float(text)), FAILED, "cannot be judged")
    check(do(r, "figures", "echo '# figure f 2.5 GB/s'; echo 'ok 1 - f'"), OK)


def table_and_json():
    r = runner("outcomes")
    (r.logs / "02-wrong.net.7.log").write_text("what else it logged")
    commands(r)
    decisions(r)
    assert r.finish() == 1, "a run with failures ends with 0"
    out = ROOM / "outcomes"
    found = json.loads((out / "results.json").read_text())
    assert found["counts"] == {OK: 3, FAILED: 6, MISSED: 1, SKIPPED: 7, CUT: 0}, found["counts"]
    assert found["facts"]["machine"] == "a test", found["facts"]
    by_name = {s["name"]: s for s in found["steps"]}
    assert by_name["figures"]["figures"] == {"f": 2.5} and by_name["slow"]["figures"] == {"x": 3.0}, by_name
    assert "not ok 2 - b" in (out / "logs" / by_name["wrong"]["log"]).read_text(), "the log lacks the output"
    whole = (out / "all.log").read_text()
    assert "not ok 2 - b" in whole and "what else it logged" in whole, "the whole log lacks a step's"
    table = (out / "results.md").read_text()
    assert "- machine: a test" in table and "| f | 2.5 |" in table, table
    rows = [line for line in table.splitlines() if line.startswith("  ")]
    assert len(rows) == len(found["steps"]), table
    for line, step in zip(rows, found["steps"]):
        assert line.split()[0] == step["result"] and step["name"] in line and line.endswith(step["note"]), line
    assert "3 passed, 6 failed, 1 too slow, 7 skipped" in table, table


def on_disk(out):
    """Steps in the JSON, rows of the table, and all.log."""
    names = [s["name"] for s in json.loads((out / "results.json").read_text())["steps"]]
    rows = [line for line in (out / "results.md").read_text().splitlines() if line.startswith("  ")]
    return names, len(rows), (out / "all.log").read_text()


def after_every_step():
    """A suite that is killed leaves the files of all steps done before, and the name of the step it was at."""
    r = runner("each")
    for n in (1, 2):
        do(r, f"step {n}", f"echo 'ok 1 - word {n}'")
        names, rows, whole = on_disk(r.out)
        assert names == [f"step {k}" for k in range(1, n + 1)] and rows == n, (names, rows)
        assert f"word {n}" in whole, whole
        assert "not at its end" in (r.out / "results.md").read_text(), "a run that goes on looks like one that ended"
    do(r, "looks", f"grep '\"at hand\": \"looks\"' {r.out}/results.json && echo ok 1")
    check(r.steps[2], OK)
    r.finish()
    assert "not at its end" not in (r.out / "results.md").read_text(), "a run that ended looks like one that goes on"
    left = sorted(p.name for p in r.out.iterdir())
    assert left == ["all.log", "logs", "results.json", "results.md"], left


def the_ends_of_large_logs():
    r = runner("large")
    do(r, "much", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo 'ok 1 - the end'")
    whole = (r.out / "all.log").read_text()
    assert "bytes before" in whole and "the end" in whole and len(whole) < 1200000, len(whole)


def figures_outlive_failures():
    r = runner("kept")
    check(do(r, "crash", "echo '# figure a 1 x'; kill -9 $$"), FAILED, "status -9")
    check(do(r, "hang", "echo '# figure b 2 x'; sleep 50", limit=0.5), FAILED, "still running")
    found = json.loads((r.out / "results.json").read_text())["steps"]
    assert [s["figures"] for s in found] == [{"a": 1.0}, {"b": 2.0}], found


def a_second_run():
    """Into the same folder: nothing of the first is counted, and what is not the suite's stays."""
    first = runner("twice")
    do(first, "one", "echo ok 1")
    for name in ("03-recorded.77.railtrace", "101-x.nccl.5.log", "notes.txt"):
        (first.logs / name).write_text(name)
    (first.out / "mine").write_text("mine")
    second = runner("twice")
    assert [p.name for p in second.logs.iterdir()] == ["notes.txt"], list(second.logs.iterdir())
    assert sorted(p.name for p in second.out.iterdir()) == ["logs", "mine"], list(second.out.iterdir())


def too_slow_is_no_failure():
    r = runner("well")
    do(r, "fine", "echo ok 1")
    do(r, "missed", "echo 3", judge=lambda text, step: Verdict(missed=True))
    do(r, "reason", skip="no reason")
    assert r.finish() == 0, "a run without failures ends with 1"


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def deadline():
    """The hanging step has children in process groups of their own, deaf to TERM."""
    r = runner("deadline")
    pids = ROOM / "pids"
    begin = time.monotonic()
    hang = f"trap '' TERM; set -m; sleep 300 & echo $! >{pids}; sleep 300 & echo $! >>{pids}; echo last words; wait"
    check(do(r, "hangs", hang, limit=1), FAILED, "still running after 1 s", "last words")
    assert time.monotonic() - begin < 8, "the deadline was not kept"
    check(do(r, "next", "echo ok 1"), OK)
    # The first process ends, its child goes on: nothing may be left.
    check(do(r, "leaves one", f"sleep 300 & echo $! >>{pids}; echo ok 1"), OK)
    numbers = [int(n) for n in pids.read_text().split()]
    assert len(numbers) == 3 and not any(alive(n) for n in numbers), f"left behind: {numbers}"


def budget():
    """What it cuts is neither a failure nor a skip, and the whole is not well."""
    r = runner("budget", budget=1.2)
    check(do(r, "long", "echo '# figure f 1 x'; sleep 60", limit=50), CUT, "by the budget after 1 of its 50 s")
    assert r.steps[0].figures == {"f": 1.0}, r.steps[0].figures
    check(do(r, "no time", "echo ok 1"), CUT, "not begun", "the 1 s of the whole are used up")
    check(do(r, "after long", "echo ok 1", needs=("long",)), CUT, "\"long\", which was cut")
    check(do(r, "elsewhere", skip="no reason"), SKIPPED)
    assert r.finish() == 1, "a run that was cut ends with 0"
    table = (r.out / "results.md").read_text()
    assert "0 passed, 0 failed, 0 too slow, 1 skipped, 3 CUT BY THE BUDGET of 1 s" in table, table


def budget_spent_before():
    """The time before the first step counts; so does what is kept for later steps."""
    r = Runner(ROOM / "spent", 100.0, say=lambda text: None, spent=99.0)
    check(do(r, "late", "echo ok 1"), CUT, "not begun", "the 100 s")
    r = runner("reserve", budget=20.0)
    check(do(r, "greedy", "sleep 60", limit=50, reserve=19.0), CUT, "by the budget after 1 of its 50 s")
    check(do(r, "none left", "echo ok 1", reserve=19.0), CUT, "19 s of them kept for later steps")
    check(do(r, "later", "echo ok 1"), OK)


def interrupted():
    """SIGTERM: the running step ends, the table is written all the same."""
    out = ROOM / "term"
    script = (f"import sys, signal; sys.path.insert(0, {str(GPU)!r}); import steps; r = steps.Runner({str(out)!r}, 60);"
              "signal.signal(signal.SIGTERM, r.interrupt); r.do(steps.Step('p', 'first', ['sleep', '50']));"
              "r.do(steps.Step('p', 'second', ['true'])); sys.exit(r.finish())")
    process = subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True,
                               env=environment())
    log, end = out / "logs" / "01-first.log", time.monotonic() + 20
    while not (log.exists() and log.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=30)
    found = json.loads((out / "results.json").read_text())["steps"]
    assert process.returncode == 1 and [s["result"] for s in found] == [FAILED, SKIPPED], said
    assert "interrupted by SIGTERM" in found[0]["note"] and "1 failed, 0 too slow, 1 skipped" in said, said


def variables():
    """A step has the variables that it sets, none of a launcher or library around us."""
    before = dict(os.environ)
    os.environ.update(NCCL_ALGO="Tree", RANK="7", LD_LIBRARY_PATH="/a")
    try:
        env = steps.environment({"+LD_LIBRARY_PATH": "/b", "NCCL_DEBUG": "INFO"})
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert "NCCL_ALGO" not in env and "RANK" not in env, "strange variables reach a step"
    assert env["LD_LIBRARY_PATH"] == "/b:/a" and env["NCCL_DEBUG"] == "INFO", env


try:
    main([("outcomes of steps, in table and JSON", table_and_json), ("too slow is no failure", too_slow_is_no_failure),
          ("all files after every step", after_every_step), ("the ends of large logs", the_ends_of_large_logs),
          ("figures of what failed", figures_outlive_failures), ("a second run into the same folder", a_second_run),
          ("a step that hangs, children left behind", deadline), ("the time of the whole", budget),
          ("time spent before, and kept for later", budget_spent_before),
          ("told to end", interrupted), ("variables of a step", variables)])
finally:
    shutil.rmtree(ROOM, ignore_errors=True)
