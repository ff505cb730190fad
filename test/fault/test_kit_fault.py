#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rail-kit fault: our plugin comes through every scenario, planted defects are caught by the one that is about them,
and what is made to fail is the plugin's alone.

TEST-LIMIT: 300
TEST-QUIET
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, SOCKET, Skip, environment, expect, main, run

KIT = str(BUILD / "bin" / "rail-kit")
REFERENCE = str(BUILD / "test/broken/libnccl-net-ref.so")
SEED = os.environ.get("RAIL_TEST_SEED", "4242")

# Why a scenario may be left out, anywhere.
REASONS = ("network namespaces need root", "network namespaces are not possible here", "no netem here", "no tbf here",
           "the plugin makes no such call that could be caught")

# defect of test/broken → the scenarios that must catch it, the status they end with, what that says
DEFECTS = {
    "death_unnoticed": ("kill.both_ways,close.outstanding", "fail", "got no error within 1.0 s"),
    "death_other_error": ("kill.sender,kill.receiver", "fail", r"returned 2 \(system error\), not 6 \(remote error\)"),
    "reset_is_success": ("kill.receiver", "hang|fail|crash", "."),
    "test_after_error": ("close.dereg", "crash", "SIG(SEGV|ABRT|BUS) in test"),
    "sigpipe": ("kill.receiver", "crash", "SIGPIPE"),
    "close_error_after_death": ("kill.sender", "fail", "closeRecv returned 2"),
    "close_busy": ("close.outstanding", "fail", "close(Send|Recv) returned 3"),
    "close_slow": ("close.both", "fail", "a close took 1.5"),
    "dereg_lazy": ("close.dereg", "fail", "wrote to memory after deregMr|arrived wrong"),
    "foreign_blocks": ("foreign.silent", "fail", "until the foreign clients left|not all of"),
    "foreign_hangs": ("foreign.silent", "fail", "a call took 4"),
    "foreign_crashes": ("foreign.garbage", "crash", "SIG"),
    "foreign_accepted": ("foreign.garbage,foreign.crowd", "fail", "."),
    "foreign_leaks": ("foreign.reset", "fail", "file descriptors before.*: TCP port [0-9]"),
    "files_run_out": ("foreign.no_files", "fail", "accept returned 2"),
    "eintr_is_death": ("io.eintr", "fail", r"returned 6 \(remote error\)"),
    "accept_once_eintr": ("io.eintr", "fail", "accept returned 2"),
    "short_write": ("io.short_pieces", "fail", "."),
    "corrupt_byte": ("stop.short", "fail", "arrived wrong"),
    "one_byte_more": ("stop.short", "fail", "beyond its end"),
    "group_shifted": ("stop.short", "fail", "arrived wrong"),
    "fd_leak": ("stop.short", "fail", r"file descriptors before.*: anon_inode:\[eventfd\]"),
    "thread_leak": ("stop.short", "fail", "threads before"),
}


def fault(plugin, *args, limit=120, **changes):
    """Exit status, {name: [results]}, standard error."""
    done = run([KIT, "fault", plugin, "--seed", SEED, "--json", "-", *args], limit=limit, **changes)
    assert done.returncode in (0, 1), f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    report = {}
    for result in json.loads(done.stdout)["results"]:
        report.setdefault(result["name"], []).append(result)
    return done.returncode, report, done.stderr


def listed():
    return json.loads(run([KIT, "fault", "--list", "--json", "-"]).stdout)


def check_fine(report):
    for r in (r for results in report.values() for r in results):
        assert r["status"] in ("pass", "skip"), f"{r['name']}: {r['seen']}\n{r['again']}\n{r['notes']}\n{r['log']}"
        if r["status"] == "skip":
            assert any(r["seen"].startswith(reason) for reason in REASONS), f"{r['name']} was skipped: {r['seen']}"


def figures(result, name):
    return [f["value"] for f in result["figures"] if f["name"] == name]


def all_on_our_plugin():
    start = time.monotonic()
    status, report, _ = fault(SOCKET, limit=150)
    took = time.monotonic() - start
    check_fine(report)
    assert status == 0 and set(report) == {s["name"] for s in listed()}
    assert took < 60, f"all scenarios took {took:.1f} s"
    skipped = {name: r[0]["seen"] for name, r in report.items() if r[0]["status"] == "skip"}
    print(f"# {len(report)} scenarios in {took:.1f} s, skipped: {skipped}")
    told = figures(report["kill.both_ways"][0], "told_after")
    assert len(told) == 1 and 0 <= told[0] < 1, told
    assert figures(report["kill.both_ways"][0], "result") == [6]
    for name, key in (("foreign.crowd", "foreign_clients"), ("io.tiny_buffers", "calls_changed"),
                      ("io.short_pieces", "calls_changed"), ("io.eintr", "calls_changed"),
                      ("io.interrupted", "signals"), ("fail.sockets", "made_to_fail"), ("fail.memory", "made_to_fail")):
        assert sum(figures(report[name][0], key)) >= 2, f"nothing happened in {name}: {report[name][0]['figures']}"
    for name in ("stop.long", "link.down_long"):
        if report[name][0]["status"] != "skip":
            assert max(figures(report[name][0], "pause")) > 2.5, report[name][0]["figures"]


def the_reference_too():
    status, report, _ = fault(REFERENCE, "--skip", "*_long,stop.long")
    check_fine(report)
    assert status == 0


def planted(defect):
    only, wanted, text = DEFECTS[defect]
    status, report, _ = fault(str(BUILD / f"test/broken/libnccl-net-broken-{defect}.so"), "--only", only, "--patience",
                              "1")
    results = [r for name in report for r in report[name]]
    seen = "\n".join(f"{r['name']} {r['status']}: {r['seen']}" for r in results)
    assert status == 1, f"{defect} goes unnoticed: {seen}"
    for r in results:
        assert re.fullmatch(wanted, r["status"]) and re.search(text, r["seen"]), \
            f"{defect} was to be noticed by {wanted}, {text!r}: {seen}"
        assert f"--only {r['name']} --seed {r['seed']}" in r["again"], r["again"]


def fails_the_plugin_alone():
    """Every call that was made to fail came from the plugin's file; the kit's own were not counted."""
    done = run([KIT, "fault", SOCKET, "--seed", SEED, "--only", "fail", "--calls", "5"], RAIL_FAIL_VERBOSE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"rail-fault: call \d+, (\w+) from (\S+)\+0x", done.stderr)
    assert len(told) >= 15, f"only {len(told)} calls failed:\n{done.stdout}{done.stderr}"
    strange = [t for t in told if os.path.realpath(t[1]) != os.path.realpath(SOCKET)]
    assert not strange, strange
    names = {name for name, _ in told}
    assert names & {"malloc", "calloc", "aligned_alloc"} and names & {"socket", "bind", "connect", "setsockopt"}, names


def repeats():
    """--repeat counts the seed up; seed and name alone decide what happens, so that the line printed repeats it."""
    _, report, _ = fault(SOCKET, "--only", "kill.both_ways,kill.idle", "--repeat", "6")
    for results in report.values():
        assert [int(r["seed"], 16) for r in results] == [int(SEED) + i for i in range(6)]
    survivors = [f["side"] for r in report["kill.both_ways"] for f in r["figures"] if f["name"] == "told_after"]
    assert set(survivors) == {0, 1}, f"six times the same side survived: {survivors}"
    for r, side in zip(report["kill.both_ways"], survivors):
        again = r["again"].split()[1:]
        (other,) = json.loads(run([KIT, *again, "--json", "-"]).stdout)["results"]
        assert {f["side"] for f in other["figures"]} == {side}, (again, other)


def two_hosts():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{s.getsockname()[1]}"
    other = subprocess.Popen([KIT, "fault", SOCKET, "--listen", where, "--wait", "20"], env=environment(),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        status, report, _ = fault(SOCKET, "--connect", where, "--only",
                                  "kill.both_ways,stop.short,close.reset,foreign.garbage,fail.memory,link.mtu")
        assert other.wait(20) == 0, other.stderr.read()
    finally:
        other.kill()
        other.communicate()
    assert status == 0 and len(report) == 6
    assert report.pop("link.mtu")[0]["seen"] == "needs both sides on this host"
    check_fine(report)
    assert "--connect " + where in report["stop.short"][0]["again"]


def links_that_are_there():
    """Two namespaces stand for hosts with links of their own; what is done to these is undone."""
    spaces = [f"rkf{os.getpid()}{side}" for side in "ab"]
    ip = lambda *words: run(["ip", *words])
    if os.geteuid() != 0 or not shutil.which("ip") or ip("netns", "add", spaces[0]).returncode != 0:
        raise Skip("network namespaces cannot be made here")
    try:
        expect(ip("netns", "add", spaces[1]), 0)
        expect(ip("-n", spaces[0], "link", "add", "rkf0", "type", "veth", "peer", "rkf1", "netns", spaces[1]), 0)
        for i, space in enumerate(spaces):
            expect(ip("-n", space, "addr", "add", f"198.18.78.{i + 1}/24", "dev", f"rkf{i}"), 0)
            expect(ip("-n", space, "link", "set", f"rkf{i}", "mtu", "3000", "up"), 0)
        up = lambda: all("state UP" in ip("-n", s, "link", "show", f"rkf{i}").stdout for i, s in enumerate(spaces))
        deadline = time.monotonic() + 10
        while not up():
            assert time.monotonic() < deadline, "the link does not come up"
        named = ["--netns", ",".join(spaces), "--links", ",".join(f"{s}:rkf{i}" for i, s in enumerate(spaces)),
                 "--side-env", "0:NCCL_SOCKET_IFNAME==rkf0", "--side-env", "1:NCCL_SOCKET_IFNAME==rkf1"]
        status, report, _ = fault(SOCKET, "--only", "link.down_short,link.mtu,kill.sender", *named,
                                  NCCL_SOCKET_IFNAME="=rkfnowhere")  # as it is here: no side goes by it
        assert status == 0, report
        check_fine(report)
        assert "--side-env" in report["link.mtu"][0]["again"], report
        pauses = figures(report["link.down_short"][0], "pause")
        for _ in range(3):  # on a busy machine the messages may be through before the link is down
            if max(pauses) > 0.3:
                break
            _, again, _ = fault(SOCKET, "--only", "link.down_short", *named, NCCL_SOCKET_IFNAME="=rkfnowhere")
            check_fine(again)
            pauses = figures(again["link.down_short"][0], "pause")
        assert max(pauses) > 0.3, f"the link was not down: {pauses}"
        for i, space in enumerate(spaces):
            assert "mtu 3000" in ip("-n", space, "link", "show", f"rkf{i}").stdout
        status, report, _ = fault(SOCKET, "--only", "link.mtu", *named[:3], "rkfnone,rkfnone", *named[4:])
        assert "no interface rkfnone" in report["link.mtu"][0]["seen"], report
        mine = ["tc", "-n", spaces[0], "qdisc", "replace", "dev", "rkf0", "root", "pfifo", "limit", "77"]
        if run(mine).returncode == 0:
            _, report, _ = fault(SOCKET, "--only", "link.mtu", *named)
            assert "rkf0 has a qdisc" in report["link.mtu"][0]["seen"], report
            assert "limit 77" in run(["tc", "-n", spaces[0], "qdisc", "show", "dev", "rkf0"]).stdout, "it is gone"
        expect(ip("-n", spaces[0], "link", "add", "rkf2", "type", "veth", "peer", "rkf3"), 0)
        _, report, _ = fault(SOCKET, "--only", "link.mtu", *named[:3], f"{spaces[0]}:rkf2,{spaces[0]}:rkf3", *named[4:])
        assert "rkf2 is down" in report["link.mtu"][0]["seen"], report
    finally:
        for space in spaces:
            ip("netns", "del", space)


def without_root():
    if os.geteuid() != 0:
        raise Skip("this is not root: the other cases show it")
    done = subprocess.run([KIT, "fault", SOCKET, "--only", "link.mtu,kill.sender", "--json", "-"], text=True,
                          capture_output=True, env=environment(), user=65534, group=65534, cwd="/")
    if "Permission denied" in done.stderr + done.stdout:
        raise Skip("others may not read the build")
    report = {r["name"]: r for r in json.loads(done.stdout)["results"]}
    assert report["kill.sender"]["status"] == "pass", report
    assert (report["link.mtu"]["status"], report["link.mtu"]["seen"]) == ("skip", "network namespaces need root")


def nothing_is_left():
    before = run(["ip", "netns"]).stdout if os.path.exists("/sbin/ip") or os.path.exists("/usr/bin/ip") else ""
    process = subprocess.Popen([KIT, "fault", SOCKET, "--only", "link.down_long"], env=environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    process.terminate()
    process.wait(20)
    if before or os.path.exists("/usr/bin/ip"):
        assert f"railkit{process.pid}" not in run(["ip", "netns"]).stdout, "a network namespace is left"


def an_interrupted_run_is_no_failure():
    """A signal ends the scenario that is under way, and that is not the plugin's doing."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        process = subprocess.Popen([KIT, "fault", SOCKET, "--only", "stop.long", "--stop-time", "60", "--json", report],
                                   text=True, stdout=subprocess.PIPE, env=environment(), start_new_session=True)
        assert process.stdout.readline().startswith("rail-kit fault"), "it begins with what it does"
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:  # the processes of the scenario
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[0]
        assert process.returncode == 3, (process.returncode, said)
        results = json.loads(pathlib.Path(report).read_text())["results"]
        assert [(r["status"], r["seen"]) for r in results] == [("error", "interrupted by signal 2")], results


def junit_and_words():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "fault.xml"
        done = run([KIT, "fault", SOCKET, "--only", "kill.idle,fail.verbs", "--junit", path])
        assert done.returncode == 0 and "1.4    kill.idle" in done.stdout, done.stdout + done.stderr
        cases = xml.etree.ElementTree.parse(path).getroot().findall("testcase")
        assert [c.get("name") for c in cases] == ["kill.idle", "fail.verbs"]
        assert cases[1].find("skipped") is not None
    expect(run([KIT, "fault", SOCKET, "--only", "nonsense"]), 2, "--only", "nothing is called nonsense")
    expect(run([KIT, "fault", SOCKET, "--patience", "0"]), 2, "--patience")
    expect(run([KIT, "fault", SOCKET, "--links", "eth0"]), 2, "'eth0' is not allowed")
    expect(run([KIT, "fault", SOCKET, "--side-env", "2:A=b"]), 2, "--side-env")
    expect(run([KIT, "fault", SOCKET, "--netns", "a,b,c"]), 2, "--netns")
    expect(run([KIT, "fault"]), 2, "a plugin is missing")
    for plugin, status in (KIT, 1), ("/nonexistent/libx.so", 3):
        done = run([KIT, "fault", plugin, "--json", "-"])
        (result,) = json.loads(done.stdout)["results"]
        assert done.returncode == status and result["name"] == "plugin.usable", done.stdout + done.stderr
    assert all(s["level"] in ("MUST", "SHOULD", "OBSERVED") and s["what"] for s in listed())


def case(defect):
    return lambda: planted(defect)


main([("our plugin comes through all of them", all_on_our_plugin),
      ("the reference plugin, too", the_reference_too),
      *[(f"{defect} is caught by {DEFECTS[defect][0]}", case(defect)) for defect in DEFECTS],
      ("failing calls are the plugin's, not the kit's", fails_the_plugin_alone),
      ("a run can be repeated", repeats),
      ("two hosts", two_hosts),
      ("links that are there", links_that_are_there),
      ("without root links are left out, and said so", without_root),
      ("an interrupted run leaves no namespace", nothing_is_left),
      ("an interrupted run is no failure", an_interrupted_run_is_no_failure),
      ("JUnit, and what the command line refuses", junit_and_words)])
