#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two unequal links fused into one device: their bandwidths add up, the loss of one costs a moment and no byte, and it
is taken back when it returns.

TEST-LIMIT: 240
TEST-ALONE
TEST-SAN: none
"""
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
from rig import Rails, check_clean, check_failed, check_sound, main

GBITS = [2, 8]
SUM = sum(GBITS) / 8 * 0.9565  # GB/s of payload: TCP over Ethernet with timestamps carries 1448 of 1514 bytes
REACH = 0.65  # of what both carry alone, on whatever machine this runs; on a quiet one it is above 0.95
PAUSE = 1.0
net = None


def network():
    global net
    if net is None:
        net = Rails(2, "r")
        net.shape(GBITS)
    net.restore()
    return net


def measure(seconds, chosen, size=4 << 20, **options):
    """GB/s of payload between the first and the last report within the middle of a run, and the share of each rail."""
    rails = network()
    pair = rails.pair(chosen, mix="fixed", max=size, window=8, direct=1, idle="sleep", **options)
    time.sleep(1.0)
    before = [rails.received(1, i) for i in range(2)]
    first = pair.recv.all("progress")[-1]
    time.sleep(seconds)
    last = pair.recv.all("progress")[-1]
    after = [rails.received(1, i) for i in range(2)]
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p)
    carried = [a - b for a, b in zip(after, before)]
    return (last["bytes"] - first["bytes"]) / (last["ns"] - first["ns"]), [c / sum(carried) for c in carried]


def bandwidth():
    alone = [measure(1.5, [i])[0] for i in range(2)]
    both, shares = measure(3, [0, 1])
    print(f"# alone {alone[0]:.2f} and {alone[1]:.2f} GB/s; fused {both:.2f} GB/s, {both / SUM:.2f} of what the links "
          f"have, {both / sum(alone):.2f} of both alone; the first rail carried {shares[0]:.2f} of it")
    assert both > REACH * sum(alone) and both > max(alone), \
        f"{both:.2f} GB/s over both rails, alone they do {alone}, the links {SUM:.2f}"
    assert shares[0] > 0.08, f"the slower rail carried only {shares[0]:.3f} of the bytes"


def messages_as_steps():
    """As large as a collective's steps: each is two chunks, and the rail that is free first takes the next."""
    alone, _ = measure(1, [1], size=128 << 10)
    both, shares = measure(2, [0, 1], size=128 << 10)
    print(f"# 128 KiB: {both:.2f} GB/s, {both / SUM:.2f} of what they have, the faster alone {alone:.2f}; "
          f"the first rail carried {shares[0]:.2f}")
    assert both > REACH * alone and min(shares) > 0.08, f"{both:.2f} GB/s, the faster alone {alone:.2f}, {shares}"


def speed_and_name():
    """The fused device says what it is."""
    rails = network()
    pair = rails.pair([0, 1], mix="small", max=4096)
    for p, side in ((pair.send, 0), (pair.recv, 1)):
        device = p.first("device")
        for i in range(2):
            assert rails.names[side][i] in device["name"], f"{device} does not name {rails.names[side][i]}"
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p)


def lose(rails, how, i):
    {"sender": lambda: rails.down(0, i), "receiver": lambda: rails.down(1, i), "silence": lambda: rails.blackhole(i),
     "one way": lambda: rails.blackhole(i, [0]), "reset": lambda: rails.reset(i)}[how]()


def grows(rails, i, amount, limit):
    """Seconds until that many more bytes have come in over a rail; None: not in time."""
    start, before = time.monotonic(), rails.received(1, i)
    while time.monotonic() - start < limit:
        time.sleep(0.05)
        if rails.received(1, i) - before >= amount:
            return time.monotonic() - start
    return None


def loss(how, i, pause=PAUSE, back=15):
    """One rail goes while messages flow, and comes back."""
    rails = network()
    pair = rails.pair([0, 1], mix="mixed", max=4 << 20, window=8, comms=2, idle="sleep",
                      env={"RAIL_SOCKET_DEADLINE": "10s"})
    try:
        for p in pair.both:
            p.wait_bytes(32 << 20)
        assert grows(rails, i, 1 << 20, 5), f"rail {i} is not used"
        lose(rails, how, i)
        time.sleep(2.5)
        before = pair.recv.all("progress")[-1]["bytes"]
        time.sleep(0.5)
        assert pair.recv.all("progress")[-1]["bytes"] > before, f"nothing flows without rail {i}\n{pair.recv.tail()}"
        rails.restore()
        returned = grows(rails, i, 8 << 20, back)
        assert returned is not None, f"rail {i} is back, but carries nothing after {back} s\n{pair.send.tail()}"
    finally:
        rails.restore()
    pair.stop()
    pair.finish()
    paused = max(check_clean(p, pause)["pause_ns"] for p in pair.both) / 1e9
    print(f"# rail {i}, {how}: longest pause {paused:.2f} s, back in use {returned:.2f} s after it returned")


def empty_messages():
    """A rail is dead, but as yet one side only knows it, and of one stream only: what is left goes over the other rail,
    and the receiver, which has all, closes. A message without bytes is announced on all streams and has arrived with
    the first of them; a sender that waits for the others gets an error at the end. Which side knows first is a
    race of two timers, so it is tried some times."""
    rails = network()
    for _ in range(8):
        pair = rails.pair([0, 1], mix="mixed", max=65536, window=32, comms=2, env={"RAIL_SOCKET_STREAMS": "4"})
        try:
            pair.recv.wait_bytes(1 << 20)
            rails.blackhole(0)
            time.sleep(0.3)
            pair.stop()
            pair.finish()
        finally:
            rails.restore()
        for p in pair.both:
            check_clean(p, 4.0)


def both_lost():
    """No rail left: that is an error, in time."""
    rails = network()
    deadline = 2.0
    pair = rails.pair([0, 1], max=300000, env={"RAIL_SOCKET_DEADLINE": f"{int(deadline * 1000)}ms"})
    try:
        pair.recv.wait_bytes(8 << 20)
        rails.down(0, 0)
        since = rails.down(0, 1)
        pair.finish()
    finally:
        rails.restore()
    for p, mine, other in ((pair.send, 0, 1), (pair.recv, 1, 0)):
        check_sound(p)
        check_failed(p, since, deadline + 1.5, "198.18.6", rails.names[mine][0][:-1])


def dead_at_the_end():
    """What the receiver says over the first rail is lost, and nobody knows; then it has all there is, and closes. Its
    sender hears of that over the other rail."""
    rails = network()
    for _ in range(3):
        pair = rails.pair([0, 1], max=300000)
        try:
            pair.recv.wait_bytes(4 << 20)
            rails.blackhole(0, [1])
            pair.stop()
            pair.finish()
        finally:
            rails.restore()
        for p in pair.both:
            check_clean(p, 4.0)


def in_turns():
    """Each rail goes and comes back while the other carries, several times."""
    rails = network()
    pair = rails.pair([0, 1], mix="mixed", max=1 << 20, comms=2, env={"RAIL_SOCKET_DEADLINE": "10s"})
    try:
        pair.recv.wait_bytes(8 << 20)
        for turn in range(4):
            rails.down(turn % 2, turn % 2)
            time.sleep(1.0)
            rails.restore()
            assert grows(rails, turn % 2, 1 << 20, 15), f"rail {turn % 2} is not taken back in turn {turn}"
    finally:
        rails.restore()
    pair.stop()
    pair.finish()
    for p in pair.both:
        check_clean(p, PAUSE)


def case(*args, **options):
    return lambda: loss(*args, **options)


main([("the fused device names both", speed_and_name), ("bandwidths add up", bandwidth),
      ("messages of 128 KiB use both rails", messages_as_steps),
      ("the faster rail goes down at the sender", case("sender", 1)),
      ("the faster rail goes down at the receiver", case("receiver", 1)),
      ("the slower rail goes down at the sender", case("sender", 0)),
      ("the slower rail goes down at the receiver", case("receiver", 0)),
      ("the faster rail's connections are reset", case("reset", 1)),
      ("the faster rail falls silent", case("silence", 1, pause=4.0)),
      ("the slower rail falls silent one way", case("one way", 0, pause=4.0)),
      ("rails go and return in turns", in_turns),
      ("messages without bytes, and a rail that is dead without anybody's knowing", empty_messages),
      ("both rails are lost", both_lost),
      ("the first rail dies silently, and the receiver, who has all, closes", dead_at_the_end)])
