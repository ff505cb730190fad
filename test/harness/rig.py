# SPDX-License-Identifier: Apache-2.0
"""What the scripts share that do something to running transfers: starting traffic processes (test/fault/traffic.c),
reading what they report, network namespaces joined by veth pairs, and the questions asked of a survivor.

All times are CLOCK_MONOTONIC nanoseconds, here as in the processes.
"""
import atexit
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from coll import BUILD, SOCKET, Skip, environment, main  # noqa: F401  (for those who import this)

TRAFFIC = str(BUILD / "test" / "fault" / "traffic")
PLUGIN = os.environ.get("RAIL_TEST_PLUGIN", SOCKET)
REMOTE_ERROR = 6
# Values of RAIL_SOCKET_ENGINE that the tests go through; none: what the plugin does by itself.
ENGINES = os.environ.get("RAIL_TEST_ENGINES", "").split()


def sanitizer():
    try:
        return re.search(r"^BUILT_SAN :=\s*(\S*)", (BUILD / "config.mk").read_text(), re.M).group(1)
    except (OSError, AttributeError):
        return ""


SLOW = 5 if sanitizer() else 1  # how much longer things may take in this build


def now():
    return time.monotonic_ns()


def at(ns):
    """Sleeps until then."""
    time.sleep(max(0, ns - now()) / 1e9)


# ---- processes ---------------------------------------------------------------

class Process:
    """One traffic process and everything it has said."""
    started = []

    def __init__(self, role, space=None, env=None, **options):
        words = [TRAFFIC, role, "--plugin", PLUGIN]
        for name, value in options.items():
            words += ["--" + name.replace("_", "-"), str(value)]
        if space:
            words = ["ip", "netns", "exec", space] + words
        variables = dict(env or {})
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS"):
            if name in os.environ:
                variables.setdefault(name, os.environ[name])
        self.role, self.events, self.news = role, [], threading.Condition()
        self.process = subprocess.Popen(words, env=environment(**variables), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.pid, self.ended = self.process.pid, False
        Process.started.append(self)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "text", "ns": now(), "text": line.rstrip()}
            with self.news:
                self.events.append(event)
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def all(self, name, **wanted):
        with self.news:
            return [e for e in self.events
                    if e["event"] == name and all(e.get(k) == v for k, v in wanted.items())]

    def first(self, name, **wanted):
        return next(iter(self.all(name, **wanted)), None)

    def wait(self, name, limit, **wanted):
        """The first such event; an assertion fails when it does not come."""
        deadline = time.monotonic() + limit * SLOW
        with self.news:
            while True:
                for e in self.events:
                    if e["event"] == name and all(e.get(k) == v for k, v in wanted.items()):
                        return e
                left = deadline - time.monotonic()
                if left <= 0 or self.ended:
                    break
                self.news.wait(left)
        raise AssertionError(f"{self} {'ended' if self.ended else f'did not in {limit * SLOW} s come'} without "
                             f"{name!r} {wanted or ''}\n{self.tail()}")

    def wait_bytes(self, amount, limit=10):
        """Until it reports that many bytes done."""
        deadline = time.monotonic() + limit * SLOW
        while not any(e["bytes"] >= amount for e in self.all("progress")):
            assert time.monotonic() < deadline and not self.ended, \
                f"{self} does not get to {amount} bytes\n{self.tail()}"
            time.sleep(0.02)

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its wait reports how

    def signal(self, number):
        if self.process.poll() is None:
            os.kill(self.pid, number)
        return now()

    def finish(self, limit=10):
        """Waits for its end. A process that does not come to one is a hang."""
        try:
            status = self.process.wait(limit * SLOW)
        except subprocess.TimeoutExpired:
            where = self.stack()
            self.kill()
            raise AssertionError(f"{self} hangs: no end after {limit * SLOW} s{where}\n{self.tail()}") from None
        self.reader.join(5)
        return status

    def stack(self):
        try:
            threads = os.listdir(f"/proc/{self.pid}/task")
            waits = [pathlib.Path(f"/proc/{self.pid}/task/{t}/wchan").read_text() for t in threads]
            return f" (its {len(threads)} threads are in: {', '.join(waits)})"
        except OSError:
            return ""

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join(5)

    def starved(self, since, until):
        """Seconds in between in which it did not come to run: while it waits it says so every 100 ms."""
        with self.news:
            times = [since, *(e["ns"] for e in self.events if since < e["ns"] < until), until]
        return sum(max(0, b - a - 200_000_000) for a, b in zip(times, times[1:])) / 1e9

    def tail(self, lines=14):
        with self.news:
            kept = [e for e in self.events if e["event"] not in ("progress", "handles") and e.get("level") != "INFO"]
            last = [e for e in self.events if e["event"] == "progress"][-1:]
            return "\n".join(f"  {self}: {json.dumps(e)}" for e in kept[-lines:] + last)

    def warnings(self):
        return [e for e in self.all("log") if e["level"] == "WARN"]

    def __str__(self):
        return f"{self.role} {self.pid}"


def kill_all():
    for p in Process.started:
        p.kill()
    Process.started.clear()


atexit.register(kill_all)


class Pair:
    """A receiver and a sender, connected unless told not to."""

    def __init__(self, spaces=(None, None), connect=True, env=None, recv_env=None, send_env=None, recv=None, send=None,
                 **options):
        self.recv = Process("recv", spaces[1], {**(env or {}), **(recv_env or {})}, **{**options, **(recv or {})})
        self.send = Process("send", spaces[0], {**(env or {}), **(send_env or {})}, **{**options, **(send or {})})
        self.both = (self.recv, self.send)
        if connect:
            self.connect()

    def listening(self):
        self.handles = self.recv.wait("handles", 30)["handles"]

    def connect(self, limit=15):
        if not hasattr(self, "handles"):
            self.listening()
        self.send.tell("handles " + self.handles)
        for p in self.both:
            p.wait("connected", limit)

    def other(self, p):
        return self.send if p is self.recv else self.recv

    def stop(self):
        self.send.tell("stop")

    def finish(self, limit=15):
        for p in self.both:
            p.finish(limit)

    def kill(self):
        for p in self.both:
            p.kill()


# ---- questions ---------------------------------------------------------------

def check_clean(p, pause=None):
    """It went through with no error and nothing wrong."""
    result = check_sound(p)
    assert result["errors"] == 0 and not p.first("error"), f"{p} had an error\n{p.tail()}"
    assert result["finished"] >= result["comms"], f"{p} did not finish\n{p.tail()}"
    if pause is not None:
        end, paused = result["pause_end_ns"], result["pause_ns"]
        # A call that does not return says nothing either: no more than the kernel says that it stood ready in vain.
        starved = max(min(q.starved(end - paused, end), (q.first("result") or {}).get("delay_ns", 0) / 1e9)
                      for q in Process.started)
        assert paused < (pause * SLOW + starved) * 1e9, \
            (f"{p} paused for {paused / 1e9:.2f} s, allowed are {pause * SLOW} s, and {starved:.2f} s that the machine "
             f"gave one of them no time\n{p.tail()}")
    return result


def end_clean(pair, limit=15):
    """Stops the traffic: both sides come to their end, with no error and nothing wrong. Returns their results."""
    pair.stop()
    pair.finish(limit)
    return [check_clean(p) for p in pair.both]


def check_sound(p, close=1.0):
    """Whatever happened: it came to its end, no byte was wrong, closing was quick, and nothing is left."""
    wrong = p.all("wrong")
    assert not wrong, f"{p}: WRONG BYTES: {wrong}\n{p.tail()}"
    broken = p.all("broken")
    assert not broken, f"{p} saw the contract broken: {broken}\n{p.tail()}"
    result, end = p.first("result"), p.first("end")
    assert result and end and end["ok"] and p.process.returncode == 0, \
        f"{p} ended with {p.process.returncode}\n{p.tail()}"
    assert end["close_ns"] < close * SLOW * 1e9, f"{p}: a close took {end['close_ns'] / 1e6:.0f} ms\n{p.tail()}"
    before, after = p.first("start"), p.first("stopped")
    for what in ("fds", "threads"):
        assert before[what] == after[what], f"{p}: {before[what]} {what} before, {after[what]} after\n{p.tail()}"
    return result


def check_failed(p, since, limit, peer=None, device=None, comms=1, code=REMOTE_ERROR):
    """Every connection of it ended in the error, in time, with a line that says who, where and how far. Returns how
    long the last took, in seconds."""
    errors = p.all("error")
    assert len(errors) >= comms, f"{p}: {len(errors)} of {comms} connections ended in an error\n{p.tail()}"
    for e in errors:
        assert code is None or e["code"] == code, f"{p}: error {e['code']}, expected {code}\n{p.tail()}"
    last = max(e["ns"] for e in errors)
    took, starved = (last - since) / 1e9, p.starved(since, last)
    assert took < limit * SLOW + starved, (f"{p}: the error came after {took:.2f} s, allowed are {limit * SLOW} s, and "
                                           f"{starved:.2f} s that the machine gave it no time\n{p.tail()}")
    if peer is not None:
        check_line(p, peer, device)
    return took


def check_line(p, peer, device, *more):
    """A warning names the peer's address, the device, and the progress made (and what else is asked for)."""
    needs = [re.escape(peer), re.escape(device), r"\d+ bytes", *more]
    lines = [e["text"] for e in p.warnings()]
    assert any(all(re.search(n, text) for n in needs) for text in lines), \
        f"{p}: no warning has all of {needs}: {lines}\n{p.tail()}"


# ---- two machines, several rails ------------------------------------------------

def ip(*words, check=True):
    done = subprocess.run(["ip", *[str(w) for w in words]], text=True, capture_output=True)
    if check and done.returncode != 0:
        raise OSError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Rails:
    """Two network namespaces joined by `count` veth pairs, one subnet each. Their addresses exist nowhere else."""

    def __init__(self, count, tag):
        if os.geteuid() != 0:
            raise Skip("network namespaces need root")
        if not shutil.which("ip"):
            raise Skip("there is no ip (Debian: iproute2)")
        self.count, me = count, os.getpid() % 100000
        self.spaces = [f"rail{os.getpid()}{tag}a", f"rail{os.getpid()}{tag}b"]
        self.names = [[f"r{me}{tag}{side}{i}" for i in range(count)] for side in "ab"]
        self.addresses = [[f"198.18.{64 + i}.{side}" for i in range(count)] for side in (1, 2)]
        atexit.register(self.remove)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that atexit runs
        try:
            for space in self.spaces:
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
            for i in range(count):
                ip("link", "add", self.names[0][i], "netns", self.spaces[0], "type", "veth", "peer", "name",
                   self.names[1][i], "netns", self.spaces[1])
                for side in (0, 1):
                    ip("-n", self.spaces[side], "addr", "add", f"{self.addresses[side][i]}/24", "dev",
                       self.names[side][i])
                    ip("-n", self.spaces[side], "link", "set", self.names[side][i], "up")
        except OSError as problem:
            raise Skip(f"network namespaces are not possible here: {problem}") from None
        self.restore()

    def shape(self, rates):
        """Gb/s per rail, both directions; token buckets."""
        for side in (0, 1):
            for i, rate in enumerate(rates):
                done = subprocess.run(["tc", "-n", self.spaces[side], "qdisc", "replace", "dev", self.names[side][i],
                                       "root", "tbf", "rate", f"{rate}gbit", "burst", "1mb", "latency", "10ms"],
                                      text=True, capture_output=True)
                if done.returncode != 0:
                    raise Skip(f"no token bucket filter here: {done.stderr.strip()}")

    def env(self, side, rails=None):
        chosen = self.names[side] if rails is None else [self.names[side][i] for i in rails]
        return {"NCCL_SOCKET_IFNAME": "=" + ",".join(chosen), "RAIL_NET_FUSE_NO_PCI": "1"}

    def up(self, side, i):
        ip("-n", self.spaces[side], "link", "set", self.names[side][i], "up")

    def down(self, side, i):
        ip("-n", self.spaces[side], "link", "set", self.names[side][i], "down")
        return now()

    def blackhole(self, i, sides=(0, 1)):
        """What these sides send over rail i goes to an address that no host has: no error anywhere, only silence."""
        for side in sides:
            ip("-n", self.spaces[side], "neigh", "replace", self.addresses[1 - side][i], "lladdr", "02:00:5e:00:53:01",
               "dev", self.names[side][i], "nud", "permanent")
        return now()

    def heal(self, i):
        for side in (0, 1):
            ip("-n", self.spaces[side], "neigh", "flush", "dev", self.names[side][i], "nud", "all", check=False)

    def reset(self, i):
        """The kernel aborts every connection over rail i, as an administrator may with ss -K. How many."""
        done = subprocess.run(["ip", "netns", "exec", self.spaces[0], "ss", "-HKt", "dst", self.addresses[1][i]],
                              text=True, capture_output=True)
        return len(done.stdout.splitlines())

    def restore(self):
        """As it was. The kernel takes up to a second until it believes in a carrier again."""
        for i in range(self.count):
            for side in (0, 1):
                self.up(side, i)
        deadline = time.monotonic() + 10
        for side, names in enumerate(self.names):
            for name in names:
                while "LOWER_UP" not in (flags := self.flags(side, name)) or "NO-CARRIER" in flags:
                    assert time.monotonic() < deadline, f"{name} does not come up: {flags}"
                    time.sleep(0.02)
        for i in range(self.count):
            self.heal(i)

    def flags(self, side, name):
        (link,) = json.loads(ip("-n", self.spaces[side], "-j", "link", "show", "dev", name))
        return link["flags"] + ([] if link["operstate"] == "UP" else ["NO-CARRIER"])

    def received(self, side, i):
        """Bytes that came in over a rail since it exists."""
        (link,) = json.loads(ip("-n", self.spaces[side], "-s", "-j", "link", "show", "dev", self.names[side][i]))
        return link["stats64"]["rx"]["bytes"]

    def pair(self, rails, env=None, engines=({}, {}), **options):
        """A pair over these rails, fused when they are several; the sender is in the first namespace. engines: more of
        the environment, the receiver's and the sender's."""
        for role, side in (("recv", 1), ("send", 0)):
            names = [self.names[side][i] for i in rails]
            choice = {"fuse": ",".join(names)} if len(rails) > 1 else {"dev": names[0]}
            options[role] = {**options.get(role, {}), **choice}
        return Pair(self.spaces, env=env, recv_env={**self.env(1, rails), **engines[0]},
                    send_env={**self.env(0, rails), **engines[1]}, **options)

    def remove(self):
        kill_all()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
