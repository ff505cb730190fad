#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A peer that is gone is noticed, however it went: killed within a second, stopped or cut off within the deadline, with
a line that names it. A peer that is merely slow is left alone.

TEST-LIMIT: 240
TEST-QUIET
"""
import os
import pathlib
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import ENGINES, SLOW, Pair, Rails, check_clean, check_failed, check_line, check_sound, end_clean, main, now

DEADLINE = 2.0
ENV = {"RAIL_SOCKET_DEADLINE": f"{int(DEADLINE * 1000)}ms", "RAIL_SOCKET_PEER_TIMEOUT": f"{int(DEADLINE * 1000)}ms"}
SLACK = 1.0  # the failure may come so much later: ticks, and a busy machine
AGE = r"\d+(\.\d+)? ?(ms|s)\b"
FLOW = {"comms": 2, "max": 300000, "window": 8}
FULL = {"comms": 1, "max": 8 << 20, "mix": "large", "window": 16}  # more than sockets hold
SMALL = {"comms": 2, "mix": "small", "window": 32}
MAX_RTO = os.path.exists("/proc/sys/net/ipv4/tcp_rto_max_ms")
rails = None


def env(engine, **more):
    return {**ENV, **more, **({"RAIL_SOCKET_ENGINE": engine} if engine else {})}


def flowing(pair):
    for p in pair.both:
        p.wait_bytes(1 << 20)
    return pair


def check_expired(p, since, peer, device):
    """Not before the deadline, or something else was wrong; and not much later."""
    took = check_failed(p, since, DEADLINE + SLACK, peer, device, comms=FLOW["comms"])
    first = (min(e["ns"] for e in p.all("error")) - since) / 1e9
    assert first > DEADLINE * 0.6, f"{p}: the error came after {first:.2f} s, the deadline is {DEADLINE} s\n{p.tail()}"
    check_line(p, peer, device, AGE)
    print(f"# {p.role}: error after {first:.2f} to {took:.2f} s")


def killed(engine, who):
    pair = flowing(Pair(env=env(engine), **FLOW))
    victim = getattr(pair, who)
    survivor = pair.other(victim)
    since = victim.signal(signal.SIGKILL)
    survivor.finish()
    check_sound(survivor)
    took = check_failed(survivor, since, 1.0, "127.0.0.1", "lo", comms=FLOW["comms"])
    print(f"# error after {took * 1000:.0f} ms")


def stopped(engine, who):
    """The process exists, its kernel acknowledges, but it does not run."""
    pair = flowing(Pair(env=env(engine, RAIL_SOCKET_DEADLINE="30s"), **FLOW))
    victim = getattr(pair, who)
    survivor = pair.other(victim)
    since = victim.signal(signal.SIGSTOP)
    survivor.finish()
    check_sound(survivor)
    check_expired(survivor, since, "127.0.0.1", "lo")
    check_line(survivor, "127.0.0.1", "lo", "RAIL_SOCKET_PEER_TIMEOUT")
    victim.signal(signal.SIGCONT)  # it wakes up alone, and must find that out
    victim.finish()
    assert check_sound(victim)["errors"] == FLOW["comms"], victim.tail()


def network():
    global rails
    rails = rails or Rails(1, "d")
    rails.restore()
    return rails


def cut(engine, how):
    """Link down on one side, or silence: both sides say so. One may know earlier than by the deadline."""
    net = network()
    pair = flowing(net.pair([0], env=env(engine, RAIL_SOCKET_PEER_TIMEOUT="300s"), **FLOW))
    try:
        since = {"sender's link": lambda: net.down(0, 0), "receiver's link": lambda: net.down(1, 0),
                 "blackhole": lambda: net.blackhole(0), "one way": lambda: net.blackhole(0, [0])}[how]()
        pair.finish()
    finally:
        net.restore()
    for p, mine, other in ((pair.send, 0, 1), (pair.recv, 1, 0)):
        check_sound(p)
        check_failed(p, since, DEADLINE + SLACK, net.addresses[other][0], net.names[mine][0], comms=FLOW["comms"])


def check_report(p, since, until, text):
    """One warning in that time, with this text."""
    lines = [e["text"] for e in p.warnings() if since < e["ns"] < until]
    assert len(lines) == 1 and re.search(text, lines[0]), f"{p}: {lines}, expected one with {text!r}\n{p.tail(40)}"


def paused(engine, who, options=FLOW, streams=1):
    """Stopped for three deadlines while its host answers: one report on each side, and all goes on. That of a receiver
    keeps its window shut, which TCP_USER_TIMEOUT would not bear."""
    pair = flowing(Pair(env=env(engine, RAIL_SOCKET_PEER_TIMEOUT="60s", RAIL_SOCKET_STALL_WARN="1s",
                                RAIL_SOCKET_STREAMS=streams), **options))
    victims = pair.both if who == "both" else [getattr(pair, who)]
    since = now()
    for victim in victims:
        victim.signal(signal.SIGSTOP)
    time.sleep(3 * DEADLINE)
    for victim in victims:
        victim.signal(signal.SIGCONT)
    time.sleep(1.5)
    until = now()
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p)
        check_report(p, since, until, "this process did not run for" if p in victims else
                      "no sign of life from the peer's process, though its host answers.*60.0 s .RAIL")


def cut_while_stopped(engine):
    """A host that is cut off while its process is stopped, and its window shut, is noticed all the same."""
    net = network()
    pair = flowing(net.pair([0], env=env(engine, RAIL_SOCKET_PEER_TIMEOUT="300s"), **FULL))
    pair.recv.signal(signal.SIGSTOP)
    time.sleep(2 * DEADLINE)
    assert not pair.send.first("error"), pair.send.tail()
    try:
        since = net.blackhole(0)
        pair.send.finish()
    finally:
        net.restore()
    check_sound(pair.send)
    # Without TCP_RTO_MAX_MS (Linux 6.15) the kernel asks a window that is shut ever more rarely.
    check_failed(pair.send, since, DEADLINE + SLACK + (0 if MAX_RTO else 6 * DEADLINE), net.addresses[1][0],
                 net.names[0][0], comms=FULL["comms"])
    check_line(pair.send, net.addresses[1][0], net.names[0][0], "RAIL_SOCKET_DEADLINE")
    pair.recv.kill()


def shortly_cut(engine):
    """Link down for half the deadline: no error."""
    net = network()
    pair = flowing(net.pair([0], env=env(engine), **FLOW))
    net.down(0, 0)
    time.sleep(DEADLINE / 2)
    net.restore()
    time.sleep(1.0)
    end_clean(pair)


def slow_receiver(engine, how):
    """Alive, but for three deadlines no receive is posted: because it has none to post, or calls nothing at all."""
    pair = flowing(Pair(env=env(engine), **FLOW))
    pair.recv.tell(f"{how} {int(3 * DEADLINE * 1000)}")
    time.sleep(3 * DEADLINE + 0.5)
    pair.stop()
    pair.finish()
    for p in pair.both:
        result = check_clean(p)
        assert result["pause_ns"] > 2.5 * DEADLINE * 1e9, f"{p} did not pause\n{p.tail()}"


def slow_sender(engine, how):
    """Receives are posted, and for three deadlines nothing is sent."""
    pair = flowing(Pair(env=env(engine), **FLOW))
    pair.send.tell(f"{how} {int(3 * DEADLINE * 1000)}")
    time.sleep(3 * DEADLINE + 0.5)
    end_clean(pair)


def far_behind(engine):
    """The receiver stays away, and many megabytes come in: they are taken in bit by bit, and any question for a sign of
    life lies behind them."""
    more = {"window": 32, "max": 1 << 20, "mix": "large", "comms": 1}
    pair = Pair(env=env(engine, RAIL_SOCKET_DEADLINE="1s", RAIL_SOCKET_STREAMS=1), **more)
    pair.recv.wait_bytes(200 << 20)  # the kernel has made its buffers large
    pair.send.tell("hold 700")
    time.sleep(0.4)  # all that was sent is received, and 32 buffers wait
    pair.recv.tell("pause 6000")
    time.sleep(6.0)
    end_clean(pair)


def late_accept(engine):
    """The peer is stopped before it accepts, and goes on after half the deadline: connected, sends outstanding, no
    error."""
    pair = Pair(env=env(engine), connect=False, **FLOW)
    pair.listening()
    pair.recv.signal(signal.SIGSTOP)
    pair.send.tell("handles " + pair.handles)
    pair.send.wait("connected", 10)
    time.sleep(DEADLINE / 2)
    pair.recv.signal(signal.SIGCONT)
    pair.recv.wait("connected", 10)
    time.sleep(0.3)
    end_clean(pair)


def stall_warning(engine):
    """Said once in a while, naming peer, device and age, long before the deadline."""
    pair = flowing(Pair(env=env(engine, RAIL_SOCKET_PEER_TIMEOUT="20s", RAIL_SOCKET_STALL_WARN="1s"), **FLOW))
    since = pair.recv.signal(signal.SIGSTOP)
    time.sleep(3.0)
    lines = [e for e in pair.send.warnings() if e["ns"] > since]
    assert lines, f"no warning 3 s after the peer was stopped\n{pair.send.tail()}"
    first = (lines[0]["ns"] - since) / 1e9
    assert first > 0.8, f"the warning came after {first:.2f} s, set is 1 s\n{pair.send.tail()}"
    # Since what moved last: on a busy machine the sender goes on filling buffers for a while.
    age = float(re.search(r"nothing has moved for ([0-9.]+) s", lines[0]["text"])[1])
    assert 0.8 < age < 2.0 * SLOW, f"the warning came after {age} s without movement, set is 1 s\n{pair.send.tail()}"
    assert len(lines) <= 4 * FLOW["comms"], f"{len(lines)} warnings in 3 s\n{pair.send.tail(40)}"
    check_line(pair.send, "127.0.0.1", "lo", AGE)
    assert not pair.send.first("error"), pair.send.tail()
    pair.recv.signal(signal.SIGCONT)
    end_clean(pair)


def close_outstanding(engine):
    """With everything outstanding and the peer stopped, closing takes less than a second, and so does finalize."""
    pair = flowing(Pair(env=env(engine), **FLOW))
    pair.recv.signal(signal.SIGSTOP)
    time.sleep(0.3)
    since = now()
    pair.send.tell("close")
    pair.send.finish(5)
    check_sound(pair.send)
    took = (pair.send.first("end")["ns"] - since) / 1e9
    end = pair.send.first("end")
    assert end["finalize_ns"] < 2e9 * SLOW, f"finalize took {end['finalize_ns'] / 1e9:.2f} s\n{pair.send.tail()}"
    print(f"# closed, finalized and unloaded after {took * 1000:.0f} ms")
    pair.recv.signal(signal.SIGCONT)
    pair.recv.finish()
    check_sound(pair.recv)
    check_failed(pair.recv, now(), 1.0, "127.0.0.1", "lo", comms=FLOW["comms"])


CASES = [("the receiver is killed", killed, "recv"), ("the sender is killed", killed, "send"),
         ("the receiver is stopped", stopped, "recv"), ("the sender is stopped", stopped, "send"),
         ("the sender's link goes down", cut, "sender's link"),
         ("the receiver's link goes down", cut, "receiver's link"),
         ("silence both ways", cut, "blackhole"), ("silence one way", cut, "one way"),
         ("a link is down for half the deadline", shortly_cut),
         ("the receiver is stopped for a while", paused, "recv", FULL),
         ("the sender is stopped for a while", paused, "send"),
         ("both are stopped for a while", paused, "both"),
         ("a receiver of small messages is stopped for a while", paused, "recv", SMALL),
         ("a receiver over four streams is stopped for a while", paused, "recv", FULL, 4),
         ("a stopped receiver's host is cut off", cut_while_stopped),
         ("a receiver posts nothing for three deadlines", slow_receiver, "hold"),
         ("a receiver calls nothing for three deadlines", slow_receiver, "pause"),
         ("a sender posts nothing for three deadlines", slow_sender, "hold"),
         ("a sender calls nothing for three deadlines", slow_sender, "pause"),
         ("a receiver calls nothing, and much is on its way to it", far_behind),
         ("a peer accepts late", late_accept), ("a stall is warned about", stall_warning),
         ("close with everything outstanding", close_outstanding)]


def case(run, engine, *args):
    return lambda: run(engine, *args)


main([((f"engine {engine}: " if engine else "") + text, case(run, engine, *args))
      for engine in ENGINES or [None] for text, run, *args in CASES])
