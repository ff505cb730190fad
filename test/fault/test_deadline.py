#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A peer that was killed is noticed within a second, with a line that names it. A peer that is merely slow is left
alone.

TEST-LIMIT: 240
TEST-ALONE
"""
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import ENGINES, SLOW, Pair, Rails, check_clean, check_failed, check_sound, main, now

DEADLINE = 2.0
ENV = {"RAIL_SOCKET_DEADLINE": f"{int(DEADLINE * 1000)}ms"}
FLOW = {"comms": 2, "max": 300000, "window": 8}
rails = None


def env(engine, **more):
    return {**ENV, **more, **({"RAIL_SOCKET_ENGINE": engine} if engine else {})}


def flowing(pair):
    for p in pair.both:
        p.wait_bytes(1 << 20)
    return pair


def killed(engine, who):
    pair = flowing(Pair(env=env(engine), **FLOW))
    victim = getattr(pair, who)
    survivor = pair.other(victim)
    since = victim.signal(signal.SIGKILL)
    survivor.finish()
    check_sound(survivor)
    took = check_failed(survivor, since, 1.0, "127.0.0.1", "lo", comms=FLOW["comms"])
    print(f"# error after {took * 1000:.0f} ms")


def network():
    global rails
    rails = rails or Rails(1, "d")
    rails.restore()
    return rails


def shortly_cut(engine):
    """Link down for half the deadline: no error."""
    net = network()
    pair = flowing(net.pair([0], env=env(engine), **FLOW))
    net.down(0, 0)
    time.sleep(DEADLINE / 2)
    net.restore()
    time.sleep(1.0)
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p)


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
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p)


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
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p)


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
         ("a link is down for half the deadline", shortly_cut),
         ("a receiver posts nothing for three deadlines", slow_receiver, "hold"),
         ("a receiver calls nothing for three deadlines", slow_receiver, "pause"),
         ("a sender posts nothing for three deadlines", slow_sender, "hold"),
         ("a sender calls nothing for three deadlines", slow_sender, "pause"),
         ("a peer accepts late", late_accept),
         ("close with everything outstanding", close_outstanding)]


def case(run, engine, *args):
    return lambda: run(engine, *args)


main([((f"engine {engine}: " if engine else "") + text, case(run, engine, *args))
      for engine in ENGINES or [None] for text, run, *args in CASES])
