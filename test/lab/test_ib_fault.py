#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# TEST-LIMIT: 900
"""The ib plugin when something happens: peers killed and stopped, ports down for a moment and for good, cables pulled,
packets lost and late, pairs that do not fit. Which side gets which error, when, and that no byte is wrong."""
import contextlib
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import lab
from lab import BUILD, Skip, hosts, main
import ib_rig
from ib_rig import FULL, IB, check_told, pair, rig, told
from rig import check_failed, check_sound, end_clean

REMOTE, SYSTEM = 6, 2
RETRIES = 3.8  # seconds: 7 times 0.54; a crowded machine stops the guest for a second and more
SLACK = 3.0  # retries end in steps of the timeout's power of two, ticks come late, and the machine is slow
FLOW = {"comms": 2, "max": 100000, "window": 4, "idle": "sleep"}
# Soft-RoCE takes 7 retries for endless ones. Here they detect; what detects earlier has lab/test_ib_failover.py, and
# takes a path of a crowded machine for a dead one.
QUICK = {"NCCL_IB_TIMEOUT": "17", "NCCL_IB_RETRY_CNT": "6", "RAIL_IB_DEADLINE": "6s", "RAIL_IB_PATH_TIMEOUT": "0"}
SOON = {"RAIL_IB_DEADLINE": "3s", "RAIL_IB_PEER_WARN": "2s"}  # else half a minute, and 10 s
# What is lost is sent again after half a second, not four, and again when that is lost, too.
LOSSY = {"NCCL_IB_TIMEOUT": "17", "RAIL_IB_LINGER": "3s"}


def flowing(p, amount=200000):
    for process in p.both:
        process.wait_bytes(amount, 20)
    return p


def more(process, seconds=20):
    """It goes on."""
    before = process.all("progress")[-1]["bytes"] if process.all("progress") else 0
    process.wait_bytes(before + 100000, seconds)


def say(text):
    print(f"# {text}", flush=True)


# ---- processes ---------------------------------------------------------------

def killed(who):
    p = flowing(pair(**FLOW))
    victim = getattr(p, who)
    survivor = p.other(victim)
    since = victim.signal(signal.SIGKILL)
    survivor.finish(20)
    check_sound(survivor)
    took = check_failed(survivor, since, 1.0, comms=FLOW["comms"])
    check_told(survivor, p, "the oob connection broke", r"last progress \d")
    say(f"error after {took:.2f} s")


def stopped_for_a_while(env, seconds):
    """Longer than RAIL_IB_DEADLINE, which is for hosts that do not answer. One report by the other, whatever the
    number of connections; none by the one that was stopped, for which nothing was outstanding that it could see. The
    machine may stop one of them, too: who is kept waiting for a second may be reported."""
    p = flowing(pair(env=env, **FLOW))
    silent = r"no sign of life from the peer's process for \d+\.\d s, though its host answers"
    for victim in p.both:
        other, before = p.other(victim), [len(process.warnings()) for process in p.both]
        since = victim.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 20 + seconds * rig.SLOW
        while len(other.warnings()) == before[p.both.index(other)] and time.monotonic() < deadline:
            time.sleep(0.1)
        rig.at(since + seconds * 1_000_000_000)
        until = victim.signal(signal.SIGCONT)
        for process in p.both:
            more(process)
        reported = other.warnings()[before[p.both.index(other)]:]
        check_told(other, p, silent, "RAIL_IB_PEER_TIMEOUT")
        starved = other.starved(since, rig.now()) + victim.starved(until, rig.now())
        said = sum(len(process.warnings()) for process in p.both) - sum(before)
        assert said == 1 or starved > 1, f"{said} warnings\n{victim.tail()}\n{other.tail()}"
        say(f"{victim.role} stopped for {seconds} s: reported after {(reported[0]['ns'] - since) / 1e9:.1f} s: "
            f"{reported[0]['text']}")
    results = end_clean(p, 30)
    say(f"{results[0]['bytes']} bytes in {results[0]['messages']} messages, all right")


def stopped_for_good(who):
    """The HCA acknowledges for it; only the oob connection can tell."""
    deadline = 3.0
    p = flowing(pair(env={"RAIL_IB_PEER_TIMEOUT": f"{int(deadline * 1000)}ms"}, **FLOW))
    victim = getattr(p, who)
    survivor = p.other(victim)
    since = victim.signal(signal.SIGSTOP)
    survivor.finish(30)
    check_sound(survivor)
    took = check_failed(survivor, since, (deadline + SLACK) / rig.SLOW, comms=FLOW["comms"])
    check_told(survivor, p)
    first = (min(e["ns"] for e in survivor.all("error")) - since) / 1e9
    assert first > deadline * 0.6, f"already after {first:.2f} s\n{survivor.tail()}"
    say(f"error after {first:.2f} to {took:.2f} s, the deadline is {deadline} s")
    p.kill()


# ---- links -------------------------------------------------------------------

@contextlib.contextmanager
def broken(nic, how):
    """lab.cable or lab.link, taken away and given back."""
    how(nic, False)
    try:
        yield time.monotonic_ns()
    finally:
        how(nic, True)


def down_for_a_moment(how, seconds):
    """With default settings: the HCA sends again after 4.3 s each, half a minute long."""
    p = flowing(pair(**FLOW))
    nic = hosts[1].nics[0]
    futile = lab.hw_counter(nic, "send_err")
    with broken(nic, how):
        time.sleep(seconds)
    for process in p.both:
        more(process)
    # Before the end: a receiver whose last receives are not needed may tell of the sender's close.
    said = [line["text"] for process in p.both for line in process.warnings()]
    paused = max(result["pause_ns"] for result in end_clean(p, 30)) / 1e9
    assert paused > 0.75 * seconds, f"the longest pause was {paused:.2f} s: nothing was down"
    assert all(re.search(r"port \S+ (went down|is up)", text) for text in said), said
    assert lab.hw_counter(nic, "send_err") == futile, "rxe was in a loop of its own: lab.cable"
    say(f"longest pause {paused:.2f} s")


def down_for_good(how, own=(REMOTE,), limit=RETRIES + SLACK):
    """Both sides send something (data, or where to put it), so both find out by themselves or from the peer. own: the
    errors that the host of that port may get."""
    p = flowing(pair(env=QUICK, **FLOW))
    nic = hosts[1].nics[0]
    with broken(nic, how) as since:
        for process in p.both:
            process.finish(30)
    for process in p.both:
        check_sound(process)
        codes = {e["code"] for e in process.all("error")}
        assert codes <= set(own if process is p.recv else (REMOTE,)), f"{process}: errors {codes}\n{process.tail()}"
        took = check_failed(process, since, limit / rig.SLOW, comms=FLOW["comms"], code=None)
        first = (min(e["ns"] for e in process.all("error")) - since) / 1e9
        assert len(own) > 1 or first > 0.3 * RETRIES, f"{process}: already after {first:.2f} s\n{process.tail()}"
        say(f"{process.role}: error after {first:.2f} to {took:.2f} s, all retries take {RETRIES} s")
    if len(own) == 1:
        # A sender that waits for receives has nothing on the wire: then the receiver finds out, and closes.
        wrong = [told(process, p, r"isend of \d+ bytes" if process is p.send else "", r"RETRY_EXC_ERR, status 12",
                      r"retries: 6 after", r"last progress \d", r"check: ") for process in p.both]
        assert None in wrong, "\n".join(wrong)


def silence(nic, heard):
    """Its link stays up, and nothing leaves it."""
    if heard:
        lab.netem_clear(nic)
    else:
        lab.netem(nic, "loss", "100%")


def rail_gone(how, seconds):
    """One of two ports of a fused device: the connections go on, and say once each what they have lost."""
    if len(hosts[0].nics) < 2:
        raise Skip("hosts with one NIC each")
    p = flowing(pair(env=QUICK, nics=(0, 1), **FLOW))
    with broken(hosts[1].nics[1], how):
        time.sleep(seconds)
        for process in p.both:
            assert not p.send.all("error") and not p.recv.all("error"), f"{p.send.tail()}\n{p.recv.tail()}"
            more(process)
    results = end_clean(p, 30)
    for process in p.both:
        lines = [e["text"] for e in process.warnings() if "goes on without 1 of 2 queue pairs" in e["text"]]
        assert len(lines) <= FLOW["comms"], f"{process}\n{process.tail()}"
        for line in lines:
            say(f"{process.role}: {line}")
    said = [e["text"] for process in p.both for e in process.warnings()]
    assert sum("goes on without" in text for text in said) >= FLOW["comms"], said
    say(f"longest pause {max(r['pause_ns'] for r in results) / 1e9:.2f} s, all retries take {RETRIES} s")


def host_gone(env, deadline):
    """The HCA would take far longer to say so; the oob connection's deadline is shorter. What the host itself sees of
    it is another matter: its own ports are down."""
    p = flowing(pair(env=env, **FLOW))
    with broken(hosts[1], lab.reachable) as since:
        for process in p.both:
            process.finish(40)
    for process in p.both:
        check_sound(process)
        took = check_failed(process, since, (deadline + SLACK) / rig.SLOW, comms=FLOW["comms"], code=None)
        say(f"{process.role}: error after {took:.2f} s, RAIL_IB_DEADLINE is {deadline} s")
    check_told(p.send, p, "the peer's host has not answered for RAIL_IB_DEADLINE")
    first = (min(e["ns"] for e in p.send.all("error")) - since) / 1e9
    assert first > 0.6 * deadline, f"already after {first:.2f} s\n{p.send.tail()}"


def lossy(*words):
    """Also at the end: a closed receiver answers what comes once more because its acknowledgement was lost."""
    for host in hosts[:2]:
        lab.netem(host.nics[0], *words)
    try:
        p = flowing(pair(comms=2, max=30000, window=4, idle="sleep", env=LOSSY), 600000)
        end_clean(p, 30)
        for _ in range(6 if FULL else 1):
            p = pair(comms=2, max=3000, mix="small", window=4, idle="sleep", env=LOSSY)
            flowing(p, 1000)
            end_clean(p, 30)
    finally:
        for host in hosts[:2]:
            lab.netem_clear(host.nics[0])


# ---- pairs that do not fit ---------------------------------------------------

def refused(send_env, recv_env, *texts, both=True):
    """Neither side gets a connection, and each says why; both False: the one that connects, which does not dial."""
    p = pair(send_env=send_env, recv_env=recv_env, connect=False, comms=1)
    p.listening()
    p.send.tell("handles " + p.handles)
    error = p.send.wait("error", 20)
    assert error["call"] == "connect" and not p.send.first("connected"), p.send.tail()
    deadline = time.monotonic() + 10
    fits = lambda process: any(all(re.search(t, line["text"]) for t in texts) for line in process.warnings())  # noqa
    while not all(fits(process) for process in (p.both if both else (p.send,))):
        assert time.monotonic() < deadline, f"no line with {texts}\n{p.send.tail()}\n{p.recv.tail()}"
        time.sleep(0.1)
    assert not p.recv.first("connected"), p.recv.tail()
    for line in [line for process in p.both for line in process.warnings()]:
        say(line["text"])
    p.kill()


def families():
    if not all(n.ip4 and n.ip6 for h in hosts[:2] for n in h.nics[:1]):
        raise Skip("a device without an IPv4 or IPv6 GID")
    refused({"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, {"NCCL_IB_ADDR_FAMILY": "AF_INET"}, "IPv4", "IPv6",
            hosts[0].nics[0].rdma, hosts[1].nics[0].rdma)


@contextlib.contextmanager
def keys(*texts):
    with tempfile.TemporaryDirectory() as scratch:
        paths = [pathlib.Path(scratch) / f"key{i}" for i in range(len(texts))]
        for path, text in zip(paths, texts):
            path.write_text(text)
            os.chmod(path, 0o600)
        yield [{"RAIL_IB_AUTH_FILE": str(path)} for path in paths]


def other_key():
    with keys("one key, sixteen bytes", "another of that size") as (one, two):
        refused(one, two, "key")


def key_on_one_side():
    with keys("one key, sixteen bytes") as (one,):
        refused(one, {}, "RAIL_IB_AUTH_FILE is set here and not there", both=False)
        refused({}, one, "RAIL_IB_AUTH_FILE is set there and not here", both=False)


# ---- rail-kit fault ----------------------------------------------------------

def kit_fault():
    # link.*: after a loss Soft-RoCE sends all that is outstanding, again and again; this machine is too slow for that.
    few = "kill.both_ways,kill.connecting_listener,close.dereg"
    slow = "foreign.crowd"  # has to be over in a second
    argv = [BUILD / "bin/rail-kit", "fault", IB, "--json", "-", "--patience", "20"]
    argv += ["--skip", slow if lab.controllable else f"{slow},link"]
    for i, host in enumerate(hosts[:2]):
        argv += [w for name, value in ib_rig.place(host).items() for w in ("--side-env", f"{i}:{name}={value}")]
    if lab.controllable:
        argv += ["--netns", ",".join(h.netns for h in hosts[:2]),
                 "--links", ",".join(f"{lab.SWITCH}:{h.nics[0].switch_port}" for h in hosts[:2])]
    if not FULL:
        argv += ["--only", few]
    lab.greet()
    done = lab.run(hosts[0], argv, timeout=1500 if FULL else 120)
    assert done.returncode in (0, 1), f"{done.returncode}\n{done.stdout}{done.stderr}"
    results = json.loads(done.stdout)["results"]
    for r in results:
        say(f"{r['name']}: {r['status']} {r['seen']}")
    bad = [f"{r['name']}: {r['seen']}\n{r['again']}\n{r['notes']}\n{r['log']}" for r in results if r["bad"]]
    assert not bad and len(results) >= 3, "\n".join(bad)


def case(name, function, *args):
    return name, lambda: function(*args)


def guarded(name, function):
    """Whatever a case left behind is not the next one's."""
    def run():
        try:
            function()
        finally:
            rig.kill_all()
            if lab.controllable:
                lab.heal()
    return name, run


CASES = [
    case("sender killed", killed, "send"),
    case("receiver killed", killed, "recv"),
    case("stopped for a while", stopped_for_a_while, *(({}, 60) if FULL else (SOON, 5))),
    case("sender stopped for good", stopped_for_good, "send"),
    case("receiver stopped for good", stopped_for_good, "recv"),
    case("cable out for a moment", down_for_a_moment, lab.cable, 8),
    case("cable out for good", down_for_good, lab.cable),
    # Soft-RoCE has no packet wait for a port of its own that is down: an error, at once, if one is to be sent; but if
    # one before it is not acknowledged it forgets both, and RAIL_IB_DEADLINE / 3 and 4 times the retries have to pass.
    case("port down for good", down_for_good, lab.link, (REMOTE, SYSTEM), 2 + 4 * RETRIES + SLACK),
    case("one of two cables out", rail_gone, lab.cable, 6),
    case("one of two ports down", rail_gone, lab.link, 6),
    case("one of two ports silent", rail_gone, silence, 6),
    case("host gone", host_gone, *(({"NCCL_IB_TIMEOUT": "22"}, 30) if FULL else ({"RAIL_IB_DEADLINE": "6s"}, 6))),
    case("one packet in a hundred is lost", lossy, "loss", "1%"),
    case("delay", lossy, "delay", "3ms"),
    case("IPv4 against IPv6", families),
    case("different keys", other_key),
    case("a key on one side only", key_on_one_side),
    case("rail-kit fault", kit_fault),
]

if __name__ == "__main__":
    main([guarded(*c) for c in CASES])
