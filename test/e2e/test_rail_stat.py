#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: asan
"""rail-stat as a user meets it: beside programs that count, on a terminal, read by Prometheus' own parser."""
import contextlib
import glob
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import rig
from coll import BUILD, expect, main, run

STAT = str(BUILD / "bin" / "rail-stat")
COUNT = str(BUILD / "test" / "e2e" / "stat_count")
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"')


@contextlib.contextmanager
def counting(*args, kill=False):
    """The pid of a program that counts; its page goes with it."""
    p = subprocess.Popen([COUNT, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == "ready\n", "the program did not get ready"
        yield p.pid
    finally:
        if kill:
            p.kill()
        p.stdin.close()
        p.wait(30)
        p.stdout.close()
        for left in glob.glob(f"/dev/shm/rail-stat.{p.pid}.*") if kill else []:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)


def stat(*args, **changes):
    return run([STAT, *args], **changes)


def good(*args):
    done = stat(*args)
    assert done.returncode == 0, f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def once():
    with counting("Counted", "3") as pid:
        table = good("--once", "--interval", "0.3", "--pid", pid)
        assert re.search(rf"^Counted in stat_count, pid {pid}, for .*; 3 comms; 1 stream; 1 odd$", table, re.M), table
        peers = re.findall(r"^  send 10\.0\.0\.(\d):4711 ", table, re.M)
        assert peers == ["3", "2", "1"], f"not sorted by rate: {table}"
        rows = [line.split() for line in table.splitlines() if "4711" in line]
        assert all(row[3].endswith("B") and float(row[2]) > 0 for row in rows), table
        assert "\n  stream " not in table, table
        assert "18446744073709551615" in table and "never" in table, table  # the group that nobody knows
        assert "\n  stream " in good("--once", "--interval", "0.05", "--pid", pid, "--streams")
        # Without a terminal --once is what it does.
        assert re.search(r"^Counted in", good("--interval", "0.05", "--pid", pid), re.M)


def columns_by_plugin():
    """The ib plugin's connections have other columns than those of all the others."""
    with counting("RailIB", "1") as ib, counting("RailOther", "1") as other:
        of_ib, of_other = (good("--once", "--interval", "0.05", "--pid", pid) for pid in (ib, other))
    assert re.search(r"^  comm +bytes/s +msgs/s +outst +progress +writes/s +no cts/s +no room/s +bytes$", of_ib, re.M)
    assert re.search(r"^  comm +bytes/s +msgs/s +outst +stalls +progress +failovers ", of_other, re.M), of_other


def several_pages_and_processes():
    with counting("A") as a, counting("B") as b:
        listed = good("--list")
        for pid, name in ((a, "A"), (b, "B")):
            assert re.search(rf"^{pid} +live +4  stat_count +rail-stat\.{pid}\.{name}$", listed, re.M), listed
        only = good("--list", "-p", b)
        assert f"rail-stat.{b}.B" in only and f".{a}." not in only, only
        pages = json.loads(good("--json", "-p", a, "-p", b))["pages"]
        assert sorted((p["pid"], p["plugin"]) for p in pages) == sorted([(a, "A"), (b, "B")])


def page_in_json():
    with counting("Json", "1") as pid:
        first = json.loads(good("--json", "--pid", pid))["pages"][0]
        time.sleep(0.05)
        second = json.loads(good("--json", "--pid", pid))["pages"][0]
    assert first["process"] == "stat_count" and first["opened_ns"] == second["opened_ns"] <= first["read_ns"]
    comm, stream, odd = first["groups"]
    assert [g["name"] for g in (comm, stream, odd)] == ["comm", "stream", "odd"]
    assert comm["counters"][3] == {"name": "outstanding", "kind": "gauge", "doc": "Requests outstanding."}
    record = comm["records"][0]
    assert record["label"] == {"side": "send", "peer": "10.0.0.1:4711"}
    assert 0 < record["values"]["progress_time"] <= first["read_ns"]
    assert second["groups"][0]["records"][0]["values"]["sent_bytes"] > record["values"]["sent_bytes"]
    assert odd["records"][0]["values"]["things_total"] == 2**64 - 1
    assert odd["records"][0]["label"]["quote"] == '"q"' and odd["records"][0]["label"]["label"] == "alone"


def parse_strictly(text):
    """The text format, as its specification has it, and no more: {metric: (type, help, {labels: value})}."""
    metrics, current = {}, None
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if m := re.fullmatch(r"# HELP (\w+) (.*)", line):
            current = m.group(1)
            assert current not in metrics, f"{current} comes twice"
            assert re.fullmatch(r"(?:[^\\]|\\[\\n])*", m.group(2)), line
            metrics[current] = [None, m.group(2), {}]
        elif m := re.fullmatch(r"# TYPE (\w+) (counter|gauge)", line):
            assert m.group(1) == current and metrics[current][0] is None and not metrics[current][2], line
            metrics[current][0] = m.group(2)
        else:
            m = SAMPLE.fullmatch(line)
            assert m and m.group(1) == current, f"not a sample of {current}: {line}"
            pairs = LABEL.findall(m.group(2))
            assert ",".join(f'{k}="{v}"' for k, v in pairs) == m.group(2), line
            keys = [k for k, _ in pairs]
            assert len(set(keys)) == len(keys) and not any(k.startswith("__") for k in keys), line
            labels = frozenset((k, re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1], v)) for k, v in pairs)
            assert labels not in metrics[current][2], f"a series is there twice: {line}"
            metrics[current][2][labels] = float(m.group(3))
    return metrics


def prometheus():
    with counting("Prom") as a, counting("Prom") as b:
        before = time.time()
        text = good("--prometheus", "--pid", a, "--pid", b)
        after = time.time()
    metrics = parse_strictly(text)
    kind, doc, series = metrics["rail_comm_sent_bytes_total"]
    assert kind == "counter" and doc == "Bytes sent." and len(series) == 4, text
    assert {dict(s)["pid"] for s in series} == {str(a), str(b)} and {dict(s)["plugin"] for s in series} == {"Prom"}
    assert {dict(s)["peer"] for s in series} == {"10.0.0.1:4711", "10.0.0.2:4711"}
    assert {dict(s)["process"] for s in series} == {"stat_count"}
    assert metrics["rail_comm_outstanding"][0] == "gauge"
    assert metrics["rail_comm_messages_total"][1] == 'Messages; a \\\\ and?a "line".'
    kind, _, series = metrics["rail_comm_progress_time_seconds"]
    assert kind == "gauge" and all(before - 5 < value < after + 5 for value in series.values()), series
    assert not metrics["rail_odd_seen_seconds"][2], "a time that never was has a sample"
    kind, _, series = metrics["rail_odd_things_total"]
    labels = dict(next(iter(series)))
    assert labels["label_pid"] == "1" and labels["pid"] in (str(a), str(b))
    assert labels["label_9bad_key"] == "back\\slash"
    assert labels["quote"] == '"q"' and labels["label___x"] == "?line" and labels["label"] == "alone"
    # The system's python has the parser of Debian's package; this one may be another.
    check = ("import sys; from prometheus_client.parser import text_string_to_metric_families as parse\n"
             "f = {m.name: m for m in parse(sys.stdin.read())}\n"
             "print(f['rail_comm_sent_bytes'].type, len(f['rail_comm_sent_bytes'].samples),"
             " f['rail_odd_things'].samples[0].labels['label_9bad_key'])\n")
    done = subprocess.run(["/usr/bin/python3", "-c", check], input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr}\n(make test brings python3-prometheus-client)"
    assert done.stdout == "counter 4 back\\slash\n", done.stdout


def dead_pages_are_named_and_cleaned():
    with tempfile.TemporaryDirectory() as other:
        with counting("Dead", kill=True) as pid:
            page = f"/dev/shm/rail-stat.{pid}.Dead"
            shutil.copy(page, other)
            with open(f"{other}/rail-stat.1.Bad", "w", encoding="ascii") as f:
                f.write("nothing of ours " * 100)
            assert "removed 0 pages" in good("--clean", "--dir", other)
        page = f"{other}/rail-stat.{pid}.Dead"
        done = stat("--once", "--interval", "0.05", "--dir", other)
        expect(done, 0, "1 page left by processes that are dead; rail-stat --clean removes it",
               "rail-stat.1.Bad is not shown: it is no page of counters")
        assert done.stdout == "no process counts here\n", done.stdout
        assert done.stderr.count("left by") == 1, "it is said twice"
        listed = good("--list", "--dir", other)
        assert re.search(rf"^{pid} +dead ", listed, re.M) and re.search(r"^1 +unread .*no page", listed, re.M), listed
        assert stat("--prometheus", "--dir", other).stdout == ""
        assert json.loads(stat("--json", "--dir", other).stdout)["pages"] == []
        assert good("--clean", "--dir", other) == f"removed 1 page of dead processes from {other}\n"
        assert not os.path.exists(page) and os.path.exists(f"{other}/rail-stat.1.Bad")


def bad_arguments():
    for words, texts in (
            (["--interval", "0"], ["--interval", "'0'", "0.05 to 3600"]),
            (["--interval", "nan"], ["--interval", "'nan'"]),
            (["--pid", "0"], ["--pid", "'0'", "1 to 2147483647"]),
            (["--pid", "12x"], ["'12x'"]),
            (["--pid"], ["a value is missing", "--pid"]),
            (["--dir", ""], ["--dir", "a directory"]),
            (["--once", "--json"], ["--json", "only one of"]),
            (["--clean", "--pid", "1"], ["--pid"]),
            (["--once=yes"], ["takes no value", "--once=yes"]),
            (["--nonsense"], ["no such option", "--nonsense"]),
            (["-x"], ["no such option", "-x"]),
            (["more"], ["takes options only", "more"])):
        expect(stat(*words), 2, *texts)
    expect(stat("--json", "--dir", "/nowhere/at/all"), 3, "/nowhere/at/all", "No such file")
    expect(stat("--json", "--pid", "2147483647"), 1, "process 2147483647 has no page")
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([STAT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "standard output" in done.stderr, done
    assert good("--help").startswith("usage: rail-stat") and re.match(r"rail-stat \d", good("-V"))


class Screen:
    """rail-stat on a terminal of its own."""

    def __init__(self, *args):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(STAT, [STAT, *map(str, args)])

    def wait_for(self, text, limit=30):
        """Reads until the text shows; returns what was read since the last time."""
        deadline = time.monotonic() + limit
        start = self.seen
        self.seen = ""
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not show: {(start + self.seen)[-1500:]!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 65536).decode(errors="replace")
        return self.seen

    def end(self, limit=30):
        deadline = time.monotonic() + limit
        rest = ""
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if select.select([self.fd], [], [], 0.1)[0]:
                    rest += os.read(self.fd, 65536).decode(errors="replace")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                with contextlib.suppress(OSError):
                    while chunk := os.read(self.fd, 65536):
                        rest += chunk.decode(errors="replace")
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status), rest
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("it did not end")


def live():
    with counting("Live", "2") as pid:
        screen = Screen("--interval", "0.1", "--pid", pid)
        shown = screen.wait_for("send 10.0.0.1:4711")
        assert "\033[?1049h" in shown and "q: quit" in shown and "\n  stream " not in shown, shown
        screen.wait_for(" kB ")  # a second look has rates
        os.write(screen.fd, b"s")
        screen.wait_for("\n  stream ")
        os.write(screen.fd, b"q")
        status, rest = screen.end()
        assert status == 0 and "\033[?1049l" in rest and "\033[?25h" in rest, (status, rest)

        screen = Screen("--interval", "3600", "--pid", pid)  # signals end it the same way
        screen.wait_for("send 10.0.0.1:4711")
        os.kill(screen.pid, signal.SIGTERM)
        status, rest = screen.end()
        assert status == 0 and "\033[?1049l" in rest, (status, rest)


def records(pid, group):
    """[(label, values)] of the plugin's page, as rail-stat tells them."""
    (page,) = [p for p in json.loads(good("--json", "--pid", pid))["pages"] if p["plugin"] == "RailSocket"]
    (found,) = [g["records"] for g in page["groups"] if g["name"] == group]
    return [(r["label"], r["values"]) for r in found]


def until(what, limit=10):
    """Calls it until it no longer fails."""
    deadline = time.monotonic() + limit * rig.SLOW
    while True:
        try:
            return what()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def the_plugin():
    """Two processes, two connections of two streams: what their counters say while data flows, when the peer is
    stopped, and when all is quiet again."""
    pair = rig.Pair(env={"RAIL_SOCKET_STREAMS": 2, "RAIL_SOCKET_STALL_WARN": "500ms"}, comms=2, max=300000)
    for p in pair.both:
        p.wait_bytes(1 << 20)
    sender, receiver = pair.send.pid, pair.recv.pid

    def flowing():
        table = good("--once", "--interval", "0.3", "--pid", sender, "--streams")
        assert re.search(r"^RailSocket in traffic, .*; 2 comms; 4 streams; 1 device$", table, re.M), table
        rates = re.findall(r"^  send \S+ \S+ \S+ +(\S+ \w?B) ", table, re.M)
        assert len(rates) == 2 and all(not r.startswith("0 ") for r in rates), table
        for pid, side in ((sender, "send"), (receiver, "receive")):
            for label, values in records(pid, "comm"):
                assert label["side"] == side and re.match(r"\S+:\d+$", label["peer"]), label
                assert values["eager_messages"] and values["granted_messages"] and values["control_frames"], values
                assert values["system_calls"] and values["outstanding"] and not values["errors"], values
            assert all(v["alive"] == 1 and v["bytes"] and v["chunks"] for _, v in records(pid, "stream"))
            assert len(records(pid, "stream")) == 4
    until(flowing)

    pair.recv.signal(signal.SIGSTOP)

    def stalled():
        for _, values in records(sender, "comm"):
            age = time.monotonic_ns() - values["progress_time"]
            assert values["stalls"] >= 1 and values["outstanding"] > 0 and age > 4e8, (values, age)
    until(stalled)
    pair.recv.signal(signal.SIGCONT)
    time.sleep(0.5)
    pair.send.tell("hold 60000")

    def settled():
        sums = []
        for pid, name in ((sender, "sent_bytes"), (receiver, "received_bytes")):
            comms, streams = records(pid, "comm"), records(pid, "stream")
            ((_, device),) = records(pid, "device")
            sums.append({label["comm"]: (v[name], v["messages"]) for label, v in comms})
            moved = sum(v[name] for _, v in comms)
            assert moved == sum(v["bytes"] for _, v in streams) == device["bytes"], (comms, streams, device)
            assert device["messages"] == sum(v["messages"] for _, v in comms) and device["comms"] == 2, device
            if pid == sender:
                assert all(v["outstanding"] == 0 for _, v in comms), comms
                assert sum(b for b, _ in sums[0].values()) == pair.send.all("progress")[-1]["bytes"], comms
        assert sums[0] == sums[1], sums
    until(settled)
    for p in pair.both:
        p.tell("quit")
    pair.finish()


main([("once", once), ("the_plugin", the_plugin), ("columns_by_plugin", columns_by_plugin),
      ("several_pages_and_processes", several_pages_and_processes), ("page_in_json", page_in_json),
      ("prometheus", prometheus),
      ("dead_pages_are_named_and_cleaned", dead_pages_are_named_and_cleaned), ("bad_arguments", bad_arguments),
      ("live", live)])
