#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 300
# TEST-SAN: asan
"""Recording and replaying: rail-coll over railtrace over a plugin, what is in the files, and the files made again on
other plugins, through every version of the interface, and on plugins that are wrong."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from coll import BUILD, COLL, SOCKET, coll, environment, expect, main, run

KIT = str(BUILD / "bin" / "rail-kit")
TRACE = str(BUILD / "lib" / "libnccl-net-railtrace.so")
REFERENCE = str(BUILD / "test" / "broken" / "libnccl-net-ref.so")
ROOM = tempfile.mkdtemp(prefix="rail-test-trace.")
# A busy machine makes calls slow: that rule has its test elsewhere.
WATCH = {"RAIL_TRACE_SLOW": "60s"}


def broken(defect):
    path = str(BUILD / "test" / "broken" / f"libnccl-net-broken-{defect}.so")
    assert os.path.exists(path), f"{path} is not built (make tests)"
    return path


def record(name, command, plugin=SOCKET, status=0, **changes):
    """Runs a command with the wrapper's variables; returns the files."""
    pattern = os.path.join(ROOM, f"{name}.%p.railtrace")
    done = run(command, RAIL_TRACE_PLUGIN=plugin, RAIL_TRACE_FILE=pattern, **(WATCH | changes))
    said = f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert status is None or done.returncode == status, said
    files = sorted(glob.glob(os.path.join(ROOM, f"{name}.*.railtrace")))
    assert files, f"nothing was recorded: {said}"
    return files


def trace(*args, status=0):
    done = run([KIT, "trace", *args])
    assert done.returncode == status, f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def events(file):
    return json.loads(trace("--json", "-", file).stdout)[0]


def summary(file):
    done = run([KIT, "trace", "--summary", "--json", "-", file])
    return json.loads(done.stdout)[0]


def replay(files, plugin, *args, status=0, **changes):
    done = run([KIT, "replay", *files, "--plugin", plugin, *args], **changes)
    assert done.returncode == status, f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def a_recording():
    """Three ranks, once for all cases."""
    if not a_recording.files:
        a_recording.files = record("coll", [COLL, "all_reduce", "-r", 3, "-b", 8, "-e", "256K", "-f", 32, "-n", 2,
                                            "-w", 1, "--net-only", "--plugin", TRACE])
    return a_recording.files


a_recording.files = []


def check_complete(file):
    """Every request was done, and everything that was made was given back."""
    found = events(file)
    assert found["ended"] and not found["limited"] and found["dropped"] == 0, found
    posted, done, open_comms, open_mrs = set(), set(), set(), set()
    for e in found["events"]:
        call = e["call"]
        assert call != "finding", e
        if call in ("isend", "irecv") and e.get("made"):
            posted.add((e["comm"], e["made"]))
        elif call == "test" and e["done"]:
            assert (e["comm"], e["request"]) in posted and (e["comm"], e["request"]) not in done, e
            done.add((e["comm"], e["request"]))
        elif call in ("listen", "connect", "accept"):
            open_comms.add(e["made"])
        elif call.startswith("close"):
            open_comms.remove(e["comm"])
        elif call == "regMr":
            open_mrs.add(e["made"])
        elif call == "deregMr":
            open_mrs.remove(e["mr"])
    assert posted and posted == done, f"{file}: {len(posted - done)} of {len(posted)} requests were never done"
    assert not open_comms and not open_mrs, (open_comms, open_mrs)
    times = [e["ns"] for e in found["events"]]
    assert times == sorted(times)
    return found


def the_trace_is_complete():
    files = a_recording()
    assert len(files) == 3, files
    sent = received = 0
    for file in files:
        found = check_complete(file)
        assert found["plugin"] == "RailSocket" and found["plugin_path"].endswith("libnccl-net-socket.so"), found
        assert found["caller_version"] == found["plugin_version"] == 12
        for e in found["events"]:
            sent += sum(b["size"] for b in e["buffers"]) if e["call"] == "isend" else 0
            received += sum(b["size"] for b in e["buffers"]) if e["call"] == "test" and "buffers" in e else 0
    # tests report sizes of sends, too
    assert received == 2 * sent > 0, (sent, received)


def summaries_add_up():
    for file in a_recording():
        found, sums = events(file)["events"], summary(file)
        for call in ("isend", "irecv", "test", "regMr", "connect"):
            assert sums["calls"][call]["count"] == sum(e["call"] == call for e in found), call
        bytes_sent = sum(e["buffers"][0]["size"] for e in found if e["call"] == "isend")
        assert sum(c["bytes"] for c in sums["comms"] if c["made_by"] == "connect") == bytes_sent
        assert all(c["unfinished"] == 0 and sum(s["count"] for s in c["sizes"]) == c["messages"] for c in sums["comms"])
        assert sums["findings"] == {}
    text = trace("--summary", *a_recording()).stdout
    assert text.count("no findings") == 3 and "isend" in text, text


def filters_choose():
    file = a_recording()[0]
    lines = trace(file, "--call", "isend,irecv").stdout.splitlines()
    assert lines and all(line.startswith("#") or " isend " in line or " irecv " in line for line in lines), lines[:9]
    comm = next(e["made"] for e in events(file)["events"] if e["call"] == "connect")
    lines = [line for line in trace(file, "--comm", comm).stdout.splitlines() if not line.startswith("#")]
    assert lines and all(f"comm {comm}" in line for line in lines), lines[:9]
    assert not [line for line in trace(file, "--from", 9999).stdout.splitlines() if not line.startswith("#")]
    assert not [line for line in trace(file, "--thread", 4000).stdout.splitlines() if not line.startswith("#")]


def options_that_would_be_ignored_are_refused():
    """And no file is touched then."""
    file, kept = a_recording()[0], os.path.join(ROOM, "kept.json")
    with open(kept, "w", encoding="utf-8") as f:
        f.write("kept")
    picture = os.path.join(ROOM, "refused.svg")
    for args in (["--plot", picture, "--json", kept], ["--plot", picture, "--summary"],
                 ["--plot", picture, "--comm", 1], ["--plot", picture, "--from", 1], ["--summary", "--call", "isend"],
                 ["--summary", "--json", kept, "--thread", 1], ["--call", "isnd"],
                 ["--plot", os.path.join(ROOM, "picture.txt")]):
        done = trace(file, *args, status=2)
        assert args[0] in done.stderr and not done.stdout, (args, done)
    assert not os.path.exists(picture) and open(kept, encoding="utf-8").read() == "kept"


def pictures():
    target = os.path.join(ROOM, "picture.svg")
    done = run([KIT, "trace", "--plot", target, *a_recording()])
    if done.returncode == 0:
        with open(target, encoding="utf-8") as file:
            assert "<svg" in file.read(1000)
    else: # one line that says what is missing
        assert done.stderr.count("\n") == 1 and "matplotlib" in done.stderr, done.stderr


def replays(plugin, *args):
    def case():
        done = replay(a_recording(), plugin, "--json", "-", *args)
        found = json.loads(done.stdout)
        assert found["end"] == "fine" and len(found["files"]) == 3, found
        for one in found["files"]:
            recorded = summary(one["file"])
            assert one["messages"] == sum(c["messages"] for c in recorded["comms"]) > 0
            assert one["checked"] == sum(c["messages"] for c in recorded["comms"] if c["made_by"] == "accept")
            assert one["left_out"] == one["contents_unknown"] == one["recorded_errors"] == 0, one
        return found["files"]
    return case


def at_the_recorded_times():
    """Each call at its time; how long the last ones then take is another matter. Where the machine stood still before
    the first call, the others' times have passed and they follow at once: one replay of three has to show it."""
    for last in (False, False, True):
        short = []
        for one in replays(SOCKET, "--speed", "1")():
            posts = [e["ns"] for e in events(one["file"])["events"] if e["call"] in ("isend", "irecv")]
            short += [(posts[-1] - posts[0], one)] if one["replayed_ns"] <= 0.7 * (posts[-1] - posts[0]) else []
        if not short:
            return
        assert not last, short


def version(number):
    """Made again through this version, and recorded while that happens; then that recording on the reference."""
    def case():
        files = record(f"v{number}", [KIT, "replay", *a_recording(), "--plugin", TRACE, "--abi", number])
        assert len(files) == 3, files
        for file in files:
            found = check_complete(file)
            assert found["caller_version"] == found["plugin_version"] == number, found
        done = replay(files, REFERENCE, "--compare", "--abi", number)
        assert done.stdout.count("all as recorded") == 3 and "ratio" in done.stdout, done.stdout
    return case


def grouped_receives():
    """Tags in any order, several operations on one comm, sends that were done early: as the kit's checks make them."""
    checks = "every_order_of_tags,three_hundred_random_groups,operations_share_a_comm,the_group_shrinks"
    files = record("grouped", [KIT, "conform", TRACE, "--only", ",".join(f"grouped.{c}" for c in checks.split(","))])
    assert any(len(e["buffers"]) > 1 for f in files for e in events(f)["events"] if e["call"] == "irecv")
    for plugin in (SOCKET, REFERENCE):
        found = json.loads(replay(files, plugin, "--json", "-").stdout)["files"]
        assert sum(one["checked"] for one in found) > 100, found
        assert all(one["left_out"] == one["contents_unknown"] == 0 for one in found), found


def wrong_plugins_are_seen():
    for defect, rule in (("no_done", "done_unwritten"), ("sizes_overrun", "sizes_too_many"),
                         ("listen_close_error", "close_error")):
        files = record(defect, [KIT, "replay", *a_recording(), "--plugin", TRACE], plugin=broken(defect), status=None)
        for file in files:
            assert rule in summary(file)["findings"], f"{defect}: {summary(file)['findings']} has no {rule}"
            assert rule in trace("--summary", file, status=1).stdout


def wrong_plugins_differ():
    """Two messages that change places may be of different sizes: then the longer one does not fit."""
    for defect, said in (("corrupt_byte", "sent was"), ("messages_swapped", "sent was|a message is too large"),
                         ("listen_close_error", "recorded was success")):
        done = replay(a_recording(), broken(defect), status=1)
        found = done.stdout + done.stderr
        assert re.search(said, found) and "differs" in done.stdout, f"{defect}: {found}"


def the_wrapper_keeps_the_contract():
    """What the kit checks of any plugin holds with the wrapper in front, too; docs/trace.md has the whole list."""
    for number in (6, 8, 12):
        done = run([KIT, "conform", TRACE, "--abi", number, "--only", "properties,requests,grouped,optional,attrs"],
                   RAIL_TRACE_PLUGIN=SOCKET, RAIL_TRACE_FILE="none", **WATCH)
        assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout


def useless_plugins_differ():
    """One that moves no bytes and says that it did; one that is not there."""
    done = replay(a_recording(), str(BUILD / "test" / "libtracefix.so"), "--limit", 30, status=1)
    assert "differs" in done.stdout and "wrong" in done.stdout, done.stdout
    done = replay(a_recording(), "/nowhere/lib.so", status=3)
    assert "/nowhere/lib.so" in done.stderr, done


def one_end_alone_is_nothing_to_compare():
    first = a_recording()[0]
    for files in [first], [first, first]:
        done = replay(files, SOCKET, status=3)
        assert "nothing was replayed" in done.stderr and "as recorded" not in done.stdout, done.stdout + done.stderr


def broken_files_are_told():
    good = a_recording()[0]
    with open(good, "rb") as file:
        data = file.read()
    bad = os.path.join(ROOM, "bad.bin")

    def told(content, text, status=3):  # of a replay, which reads only as far as it plays
        with open(bad, "wb") as file:
            file.write(content)
        for command in (["trace", bad], ["trace", "--summary", bad]):
            expect(run([KIT, *command]), 3, text)
        done = replay([bad], SOCKET, status=status)
        assert text in done.stdout + done.stderr, done

    told(data[:len(data) // 2], f"offset {len(data) // 2}", 1)
    told(data[:1000] + b"\x55" + data[1001:], "checksum")
    told(b"", "not a trace")
    told(b"RAILTRCE" + b"\xff" * 200, "offset 8")
    done = run([KIT, "trace", bad + ".none"])
    expect(done, 3, "No such file")
    done = run([KIT, "trace", good, bad + ".none"])
    expect(done, 3, "No such file")
    assert not done.stdout, done.stdout[:300]


def a_killed_process_leaves_its_calls():
    pattern = os.path.join(ROOM, "killed.%p.railtrace")
    process = subprocess.Popen([COLL, "all_reduce", "-r", "2", "-b", "64K", "-e", "64K", "-n", "100000000",
                                "--net-only", "--plugin", TRACE], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True,
                               env=environment(RAIL_TRACE_PLUGIN=SOCKET, RAIL_TRACE_FILE=pattern, **WATCH))
    try:
        deadline = time.monotonic() + 60
        while sum(os.path.getsize(f) > 100000 for f in glob.glob(pattern.replace("%p", "*"))) < 2:
            assert time.monotonic() < deadline and process.poll() is None, "the ranks do not come to record"
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for file in glob.glob(pattern.replace("%p", "*")):
        done = run([KIT, "trace", "--summary", file])
        assert "the file has no end" in done.stdout and " isend " in done.stdout.replace("\n", " "), done.stdout
        assert done.returncode == 0 or "ends within the chunk" in done.stderr, done.stderr


def selected_by_name():
    files = record("name", [COLL, "broadcast", "-r", 2, "-b", 64, "-e", 64, "-n", 1, "--net-only"],
                   NCCL_NET_PLUGIN=TRACE, NCCL_NET="railsocket+TRACE")
    assert len(files) == 2
    done = coll("broadcast", "-r", 2, "-b", 64, "-e", 64, "-n", 1, "--net-only", "--plugin", TRACE)
    # the runtime goes on without it
    assert "set RAIL_TRACE_PLUGIN" in done.stderr and "no device" in done.stderr, done


def warnings_come_once():
    """However many modules of Railyard's a process has: the runtime, railtrace, the plugin."""
    small = ("broadcast", "-r", 1, "-b", 64, "-e", 64, "-n", 1, "--net-only", "--plugin", TRACE)
    done = coll(*small, RAIL_TRACE_PLUGIN=SOCKET, RAIL_TRACE_FILE="none", RAIL_CHUNKK="1", RAIL_SOCKET_STREMS="1")
    for name, meant in ("RAIL_CHUNKK", "RAIL_CHUNK"), ("RAIL_SOCKET_STREMS", "RAIL_SOCKET_STREAMS"):
        lines = [line for line in done.stderr.splitlines() if f"{name} is no variable" in line]
        assert len(lines) == 1 and f"did you mean {meant}?" in lines[0], done.stderr
    done = coll(*small, RAIL_TRACE_PLUGIN="nosuch")
    lines = [line for line in done.stderr.splitlines() if "RAIL_TRACE_PLUGIN=nosuch cannot be loaded" in line]
    assert len(lines) == 1 and "/../" not in lines[0], done.stderr
    assert lines[0].count("libnccl-net-nosuch.so: cannot open") == 2, lines  # by its name, and beside railtrace


try:
    main([("warnings come once", warnings_come_once),
          ("the trace is complete", the_trace_is_complete), ("summaries add up", summaries_add_up),
          ("filters choose", filters_choose),
          ("options that would be ignored are refused", options_that_would_be_ignored_are_refused),
          ("pictures", pictures),
          ("made again on the same plugin", replays(SOCKET)),
          ("at the recorded times", at_the_recorded_times),
          ("on another plugin", replays(REFERENCE))]
         + [(f"through version {n}", version(n)) for n in range(6, 13)]
         + [("grouped receives", grouped_receives),
            ("wrong plugins are seen", wrong_plugins_are_seen), ("wrong plugins differ", wrong_plugins_differ),
            ("the wrapper keeps the contract", the_wrapper_keeps_the_contract),
            ("useless plugins differ", useless_plugins_differ),
            ("one end alone is nothing to compare", one_end_alone_is_nothing_to_compare),
            ("broken files are told", broken_files_are_told),
            ("a killed process leaves its calls", a_killed_process_leaves_its_calls),
            ("selected by name", selected_by_name)])
finally:
    shutil.rmtree(ROOM, ignore_errors=True)
