#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-SAN: asan
# TEST-LIMIT: 240
"""rail-kit conform as a user meets it: what it says of good and broken plugins, its files, its choice, two hosts."""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
# Crashes are wanted here: no report of the sanitizer's.
os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":handle_segv=0:handle_abort=0"
from coll import BUILD, SOCKET, Skip, environment, expect, main, run

KIT = str(BUILD / "bin" / "rail-kit")
REF = str(BUILD / "test/broken/libnccl-net-ref.so")


def broken(defect):
    return str(BUILD / f"test/broken/libnccl-net-broken-{defect}.so")


def kit(*args, **changes):
    return run([KIT, "conform", *args], **changes)


def report(plugin, *args, status=0, **changes):
    done = kit(plugin, *args, "--json", "-", **changes)
    assert done.returncode == status, f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def one(plugin, check, *args, status=1, **changes):
    (result,) = report(plugin, "--only", check, *args, status=status, **changes)["results"]
    return result


def a_good_plugin_passes():
    done = kit(REF, "--only", "close,requests")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^  12\.1 +close\.null +MUST +v12 +pass", done.stdout, re.M), done.stdout
    assert re.search(r"^\d+ passed, 0 failed, 0 skipped$", done.stdout, re.M), done.stdout


def a_fused_device():
    ib = BUILD / "lib/libnccl-net-ib.so"
    if not ib.exists():
        raise Skip("the ib plugin is not built")
    emulated = {"NCCL_IBVERBS_LIB": BUILD / "lib/emu/libibverbs.so.1", "RAIL_EMU": "device emu0 ports=2"}
    r = one(ib, "properties.fused_without_pci", status=0, **emulated)
    assert r["status"] == "pass" and "is refused with 4" in json.dumps(r), r
    emulated["RAIL_NET_FUSE_NO_PCI"] = "1"
    r = one(ib, "properties.fused_without_pci", **emulated)
    assert r["status"] == "fail" and "devices 0 and 1" in r["seen"] and "no PCI path" in r["seen"], r
    r = one(ib, "properties.what_it_says", "--fuse", "1,0", status=0, **emulated)
    assert "device 2 emu0:1+emu0:2" in json.dumps(r) and r["again"].endswith("--fuse 1,0"), r
    r = one(ib, "order.newest_first", "--abi", "8", "--fuse", "0,1", status=0, **emulated)
    assert r["status"] == "skip" and "v8 has no makeVDevice" in r["seen"], r
    r = one(ib, "listen.handles_differ", "--fuse", "0,7", **emulated)
    assert "makeVDevice of 2 devices returned" in r["seen"], r
    for wrong in ("0", "0,", ",1", "0,x", "0,1024", "0,1,2,3,4,5,6,7,8"):
        expect(kit(REF, "--fuse", wrong), 2, "--fuse", f"'{wrong}'", "2 to 8 device numbers")


def a_failure_says_what_was_seen_and_how_to_repeat_it():
    r = one(broken("close_null"), "close.null")
    assert r["status"] == "fail" and r["bad"] and r["level"] == "MUST", r
    assert "NULL" in r["seen"] and r["what"] and r["source"].startswith("src/"), r
    words = shlex.split(r["again"])
    assert words[0] == "rail-kit", r
    again = run([KIT, *words[1:], "--json", "-"])
    (second,) = json.loads(again.stdout)["results"]
    assert again.returncode == 1 and second["seen"] == r["seen"] and second["seed"] == r["seed"], again.stdout
    text = kit(broken("close_null"), "--only", "close.null").stdout
    assert all(re.search(rf"^ +{label} +\S", text, re.M) for label in ("seen", "wanted", "source", "again")), text


def results_have_names():
    r = one(broken("close_null"), "close.null")
    assert "returned 4 (invalid argument), 4 (invalid argument), 0 (success)" in r["seen"], r


def failures_are_listed_at_the_end():
    """By number, whatever order they came in; one line for a check that failed several times."""
    done = kit(broken("connect_dirty"), "--only", "connect.dead_port,connect.a_handle_of_junk,close.null",
               "--all-versions", "--repeat", "2")
    order = re.findall(r"^  (\S+) +\S+ +\S+ +v(\d+) +\S+ +\S+ s$", done.stdout, re.M)
    listed = done.stdout.split("\nfailed, the lowest number first:\n")[1]
    rows = re.findall(r"^  (\S+) +connect\.\S+ +\S+ +v(\d+) +FAIL, 2 times$", listed, re.M)
    assert rows == [(number, str(v)) for number in ("5.1", "5.4") for v in range(12, 5, -1)], listed
    assert order[0] == order[1] == ("5.1", "12") and order[-1][1] == "6", order
    assert "failed, the" not in kit(REF, "--only", "close.null,close.never_used").stdout


def it_ends_at_the_first_failure():
    checks = ("--only", "1.1,close.null,close.never_used")
    done = kit(broken("close_null"), *checks, "--fail-fast")
    assert done.returncode == 1 and "close.never_used" not in done.stdout, done.stdout
    assert done.stdout.endswith("\nended at the first failure: 1 of 3 were not run\n"), done.stdout
    stopped = report(broken("close_null"), *checks, "--fail-fast", status=1)
    assert [r["name"] for r in stopped["results"]] == ["lifecycle.symbols_of_all_versions", "close.null"], stopped
    assert stopped["summary"]["untried"] == 1, stopped
    whole = report(REF, *checks, "--fail-fast")
    assert len(whole["results"]) == 3 and whole["summary"]["untried"] == 0, whole


def figures_stand_above_the_command_that_repeats():
    text = kit(broken("connect_sleeps"), "--only", "connect.no_call_waits").stdout
    labels = re.findall(r"^ {8}([a-z]+) ", text, re.M)
    assert labels == ["seen", "wanted", "source", "figure", "again"], text


def a_crash_is_a_result():
    results = report(broken("foreign_crashes"), "--only", "listen.garbage,close.null", status=1)["results"]
    by_name = {r["name"]: r for r in results}
    crash = by_name["listen.garbage"]
    assert crash["status"] == "crash" and crash["seen"].endswith("in accept"), crash
    assert by_name["close.null"]["status"] == "pass", by_name


def a_hang_names_the_call():
    results = report(broken("foreign_hangs"), "--only", "listen.silence_does_not_delay,close.null", status=1,
                     RAIL_TEST_PATIENCE_MS=5000)["results"]
    by_name = {r["name"]: r for r in results}
    hang = by_name["listen.silence_does_not_delay"]
    assert hang["status"] == "hang" and re.search(r"still in accept, which had lasted \S+ s", hang["seen"]), hang
    assert by_name["close.null"]["status"] == "pass", by_name


def a_process_that_does_not_exit():
    """It has reported its end, and is not waited for until the check's limit."""
    if "asan" in str(BUILD):
        raise Skip("its deadline is five times as long there")
    r = one(broken("exit_hangs"), "close.null")
    assert r["status"] == "hang" and "does not exit: still at the end of the process" in r["seen"], r
    assert 10 <= r["seconds"] < 15, r


def what_cannot_be_loaded():
    with tempfile.TemporaryDirectory() as d:
        junk = pathlib.Path(d, "libnccl-net-junk.so")
        junk.write_bytes(b"\x7fELF junk")
        for plugin, status in (str(junk), 1), ("/nonexistent/libx.so", 3), (str(BUILD / "test/libnetfix_empty.so"), 1):
            result = report(plugin, status=status)["results"]
            assert [r["name"] for r in result] == ["plugin.usable"] and plugin in result[0]["seen"], result
    nothing = report(str(BUILD / "test/libnetfix_nodev.so"), status=1)["results"]
    assert nothing[0]["name"] == "plugin.usable" and "device" in nothing[0]["seen"], nothing


def all_versions():
    results = report(REF, "--only", "close.null", "--all-versions")["results"]
    assert [r["abi"] for r in results] == [12, 11, 10, 9, 8, 7, 6], results
    (r,) = report(REF, "--only", "close.null", "--abi", "7")["results"]
    assert r["abi"] == 7 and "--abi 7" in r["again"], r


def choice():
    listed = [line.split()[1] for line in kit("--list").stdout.splitlines()]
    assert len(listed) == len(set(listed)) > 100, listed
    numbers = [line.split()[0] for line in kit("--list").stdout.splitlines()]
    assert len(numbers) == len(set(numbers)), [n for n in numbers if numbers.count(n) > 1]
    close = [n for n in listed if n.startswith("close.")]
    got = [line.split()[1] for line in kit("--list", "--only", "close", "--skip", "close.null").stdout.splitlines()]
    assert got == [n for n in close if n != "close.null"], got
    assert [line.split()[1] for line in kit("--list", "--only", "12.1").stdout.splitlines()] == ["close.null"]
    must = kit("--list", "--level", "must").stdout.splitlines()
    assert must and all(" MUST " in line for line in must)
    asked = json.loads(kit("--list", "--json", "-").stdout)
    assert [c["name"] for c in asked] == listed and all(c["what"] and c["source"] for c in asked)
    assert re.search(r"^ +source: src/", kit("--list", "--verbose").stdout, re.M)


def reasons():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("# known\n\nclose.null  the vendor knows: ticket 17\nlisten.*   later\n")
        f.flush()
        results = report(broken("close_null"), "--only", "close.null,close.never_used", "--skip-file", f.name)
        by_name = {r["name"]: r for r in results["results"]}
        assert by_name["close.null"]["status"] == "skip" and "ticket 17" in by_name["close.null"]["seen"], by_name
        assert results["summary"]["skipped"] == 1 and by_name["close.never_used"]["status"] == "pass", results
        f.write("close.soon\n")
        f.flush()
        expect(kit(REF, "--skip-file", f.name), 2, f"{f.name}:5", "close.soon", "reason")
        f.truncate(0)
        f.seek(0)
        f.write("close.null " + "x" * 3000 + "\nno.such  never\n")
        f.flush()
        expect(kit(REF, "--skip-file", f.name), 2, f"{f.name}:1", "at most 1022 characters")
    expect(kit(REF, "--skip-file", "/nonexistent"), 2, "/nonexistent")


def files():
    with tempfile.TemporaryDirectory() as d:
        junit, out = pathlib.Path(d, "a&b.xml"), pathlib.Path(d, "r.json")
        done = kit(broken("close_null"), "--only", "close.null,close.never_used", "--junit", str(junit), "--json",
                   str(out))
        assert done.returncode == 1 and "close.null" in done.stdout, done
        suite = xml.parse(junit).getroot()
        cases = {c.get("name"): c for c in suite}
        assert suite.get("failures") == "1" and len(cases) == 2, suite.attrib
        assert cases["close.null"].find("failure").get("type") == "MUST", xml.tostring(suite)
        assert len(cases["close.never_used"]) == 0
        stored = json.loads(out.read_text())
        assert stored["format"] == 1 and stored["summary"]["failed_must"] == 1 and stored["date"].endswith("Z"), stored
    for option in "--json", "--junit":
        done = kit(REF, "--only", "close.null", option, "/nonexistent/x")
        expect(done, 3, "/nonexistent/x")
        assert "close.null" not in done.stdout, done.stdout


def junit_of_odd_plugins():
    """A file's name that is no UTF-8 leaves XML; what could not be run is an error, not a failure."""
    with tempfile.TemporaryDirectory() as d:
        odd, junit = os.fsdecode(os.fsencode(d) + b"/lib\xffnet\xef\xbf\xbf.so"), pathlib.Path(d, "r.xml")
        shutil.copy(SOCKET, odd)
        done = subprocess.run([KIT, "conform", odd, "--only", "close.null", "--junit", str(junit)], env=environment(),
                              stdout=subprocess.DEVNULL)
        assert done.returncode == 0, done
        suite = xml.parse(junit).getroot()
        assert suite.get("name").endswith("/lib\ufffdnet\ufffd.so"), suite.attrib
        expect(kit(f"{d}/none.so", "--junit", str(junit)), 3)
        suite = xml.parse(junit).getroot()
        assert (suite.get("failures"), suite.get("errors")) == ("0", "1"), suite.attrib
        assert suite[0].find("error") is not None, xml.tostring(suite)


def repeats_have_seeds_of_their_own():
    results = report(REF, "--only", "close.null", "--repeat", "3", "--seed", "0x100")["results"]
    assert [r["seed"] for r in results] == ["0x100", "0x101", "0x102"], results


def bad_arguments():
    expect(kit(), 2, "plugin")
    expect(kit(REF, SOCKET), 2, SOCKET)
    expect(kit(REF, "--abi", "5"), 2, "--abi", "5", "6", "12")
    expect(kit(REF, "--abi", "12", "--all-versions"), 2, "--all-versions", "--abi")
    expect(kit(REF, "--only", "no_such_check"), 2, "--only", "no_such_check")
    expect(kit(REF, "--only", "close.null,no_such_check"), 2, "--only", "nothing is called no_such_check")
    expect(kit(REF, "--only", "close.null", "--skip", "no.such"), 0, "--skip: nothing is called no.such")
    expect(kit(REF, "--only", "close.null", "--skip", "close"), 2, "nothing is left by --only close.null --skip close")
    expect(kit(REF, "--level", "musty"), 2, "musty", "must", "should", "observed")
    expect(kit(REF, "--repeat", "0"), 2, "--repeat", "0")
    expect(kit(REF, "--listen", "1", "--connect", "x:1"), 2, "--listen", "--connect")
    expect(kit(str(BUILD / "test/libnetfix_v8.so"), "--abi", "9", "--only", "close.null"), 2, "--abi 9", "v9")
    expect(run([KIT, "side"]), 2, "by hand")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def follower(plugin, *prefix, where, **changes):
    command = [*prefix, KIT, "conform", plugin, "--listen", where, "--wait", "60"]
    p = subprocess.Popen(command, env=environment(**changes), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    try:
        yield p
        out, _ = p.communicate(timeout=60)
        assert p.returncode == 0, out
    finally:
        p.kill()
        p.wait()


def two_parents():
    where = f"127.0.0.1:{free_port()}"
    with follower(REF, where=where):
        done = kit(REF, "--connect", where, "--only", "order.newest_first,close,peer_death.killed_*", "--json", "-")
    results = json.loads(done.stdout)["results"]
    assert done.returncode == 0 and len(results) > 10, done.stdout + done.stderr
    assert all(f"--connect {where}" in r["again"] for r in results)
    with follower(broken("death_unnoticed"), where=where):  # the follower's plugin is the follower's
        name = "peer_death.killed_sender_between_messages"
        done = kit(REF, "--connect", where, "--only", name, "--json", "-")
    (r,) = json.loads(done.stdout)["results"]
    assert done.returncode == 1 and r["seen"].startswith("side 1"), done.stdout


def two_namespaces():
    if os.geteuid() != 0 or not shutil.which("ip"):
        raise Skip("needs root and ip")
    names = [f"railkit{os.getpid()}{x}" for x in "ab"]
    with contextlib.ExitStack() as stack:
        for name in names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode:
                raise Skip(f"no network namespaces: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        inside = [["ip", "netns", "exec", name] for name in names]
        subprocess.run([*inside[0], "ip", "link", "add", "rail0", "type", "veth", "peer", "name", "rail0", "netns",
                        names[1]], check=True)
        for i, prefix in enumerate(inside):
            subprocess.run([*prefix, "ip", "addr", "add", f"10.99.7.{i + 1}/24", "dev", "rail0"], check=True)
            subprocess.run([*prefix, "ip", "link", "set", "rail0", "up"], check=True)
            subprocess.run([*prefix, "ip", "link", "set", "lo", "up"], check=True)
        stack.enter_context(follower(REF, *inside[1], where="10.99.7.2:7777", NCCL_SOCKET_IFNAME="rail0"))
        done = run([*inside[0], KIT, "conform", REF, "--connect", "10.99.7.2:7777", "--only",
                    "order.newest_first,close", "--json", "-"], NCCL_SOCKET_IFNAME="rail0")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(json.loads(done.stdout)["results"]) > 10, done.stdout


def under_a_launcher():
    port = free_port()
    ranks = [subprocess.Popen([KIT, "conform", REF, "--only", "order.newest_first", "--json", "-"],
                              env=environment(RANK=r, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for r in (0, 1)]
    out = [r.communicate(timeout=60)[0] for r in ranks]
    assert [r.returncode for r in ranks] == [0, 0] and json.loads(out[0])["summary"]["passed"] == 1 and not out[1], out
    one_check = [REF, "--only", "order.newest_first"]
    batch = {"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "MASTER_PORT": port}  # of a script that runs once
    assert kit(*one_check, "--alone", **batch).returncode == 0
    expect(kit(*one_check, "--wait", "1", **batch), 3, "SLURM_PROCID=0", "--alone", "no rail-kit has come")
    done = kit(*one_check, **{**batch, "SLURM_NTASKS": 3})
    assert done.returncode == 0 and "SLURM_PROCID is set, but the ranks are 3" in done.stderr, done


def the_other_host_is_somebody_else():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        p = subprocess.Popen([KIT, "conform", REF, "--connect", f"127.0.0.1:{s.getsockname()[1]}"], env=environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        c, _ = s.accept()
        c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        _, err = p.communicate(timeout=30)
        c.close()
    assert p.returncode == 3 and "not rail-kit" in err, err
    where = f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as s:
        p = subprocess.Popen([KIT, "conform", REF, "--connect", f"127.0.0.1:{s.getsockname()[1]}"], env=environment(),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with s.accept()[0] as c:
            hello = c.recv(1024)  # a magic number, the version, sizes
            c.sendall(hello[:8] + b"0.0.9".ljust(24, b"\0") + hello[32:])
            _, err = p.communicate(timeout=30)
    assert p.returncode == 3 and "rail-kit 0.0.9 of another build" in err, err
    with follower(REF, where=where):  # a foreign connection first, then the leader
        for _ in range(100):
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(where.split(":")).close()
                break
            time.sleep(0.05)
        done = kit(REF, "--connect", where, "--only", "order.newest_first")
    assert done.returncode == 0, done.stderr


def clients_that_say_nothing():
    """A scanner that came before the other host does not keep it out."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        follower_ = stack.enter_context(follower(REF, where=f"127.0.0.1:{port}"))
        while True:
            assert follower_.poll() is None, follower_.stdout.read()
            with contextlib.suppress(ConnectionRefusedError):
                silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(3)]
                break
            time.sleep(0.05)
        done = kit(REF, "--connect", f"127.0.0.1:{port}", "--only", "order.newest_first")
        assert done.returncode == 0 and len(silent) == 3, done.stdout + done.stderr


def the_other_host_goes_away():
    where = f"127.0.0.1:{free_port()}"
    p = subprocess.Popen([KIT, "conform", REF, "--listen", where], env=environment(), stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    leader = subprocess.Popen([KIT, "conform", REF, "--connect", where, "--only", "order", "--repeat", "1000", "--json",
                               "-"], env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    time.sleep(1.5)
    p.kill()
    p.wait()
    out, _ = leader.communicate(timeout=100)
    assert leader.returncode == 3 and "the other host is lost" in out, out[-2000:]


def joined(where, *args, limit_ms):
    """Both hosts, once their first results are there."""
    both = [subprocess.Popen([KIT, "conform", REF, option, where, *args], stdin=subprocess.DEVNULL, text=True,
                             env=environment(RAIL_TEST_PATIENCE_MS=limit_ms), stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT) for option in ("--listen", "--connect")]
    for line in both[1].stdout:
        if " order." in line:
            break
    return both


def the_leader_goes_away():
    follows, leads = joined(f"127.0.0.1:{free_port()}", "--only", "order", "--repeat", "1000", limit_ms=20000)
    leads.kill()
    leads.communicate()
    out, _ = follows.communicate(timeout=100)
    assert follows.returncode == 3 and "the other host is lost" in out, out


def the_other_host_is_silent():
    follows, leads = joined(f"127.0.0.1:{free_port()}", "--only", "order", "--repeat", "1000", limit_ms=2000)
    follows.send_signal(signal.SIGSTOP)
    out, _ = leads.communicate(timeout=100)
    follows.kill()
    follows.communicate()
    assert leads.returncode == 3 and "the other host is lost" in out, out[-2000:]


main([(f.__name__, f) for f in (
    a_good_plugin_passes, a_fused_device, a_failure_says_what_was_seen_and_how_to_repeat_it, results_have_names,
    failures_are_listed_at_the_end, it_ends_at_the_first_failure, figures_stand_above_the_command_that_repeats,
    a_crash_is_a_result, a_hang_names_the_call, a_process_that_does_not_exit, what_cannot_be_loaded, all_versions,
    choice, reasons, files, junit_of_odd_plugins, repeats_have_seeds_of_their_own, bad_arguments, two_parents,
    two_namespaces, under_a_launcher, the_other_host_is_somebody_else, clients_that_say_nothing,
    the_other_host_goes_away, the_leader_goes_away, the_other_host_is_silent)])
