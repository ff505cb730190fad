#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rounds of transfers with content check, and in each one misfortune at a random moment that is the socket plugin's
own: its deadline, its rails. No process hangs, no byte is wrong, and every survivor gets an error that says what
happened. What may happen to any plugin is rail-kit fault's: test_kit_rounds.py.

TEST-LIMIT: 360
TEST-QUIET
TEST-SAN: asan tsan

    python3 test/fault/test_torture.py [--seed N] [--rounds N] [--round N] [--only KIND] [--verbose]

The seed is printed; --seed with --round repeats one round (as far as a race can be repeated).
"""
import argparse
import os
import pathlib
import random
import signal
import sys
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "harness"))
import rig
from rig import ENGINES, Pair, Rails, Skip, check_clean, check_failed, check_sound, end_clean

ROUNDS = 14 if rig.SLOW > 1 else 70
HERE = {"peer": "127.0.0.1", "device": "lo"}
STREAMS = [1, 2, 4]


class Round:
    """What all kinds draw from: the parameters of the transfers and of the moment."""
    rails = {}

    def __init__(self, seed, number):
        self.rng = rng = random.Random(f"{seed}/{number}")
        self.comms = rng.choice([1, 1, 2, 4])
        self.options = {
            "seed": rng.randrange(1 << 60), "comms": self.comms, "window": rng.choice([1, 4, 8, 32]),
            "group": rng.choice([1, 1, 8]), "mix": rng.choice(["mixed", "mixed", "small", "large"]),
            "max": rng.choice([4096, 65536, 300000, 1 << 20, 4 << 20]), "idle": rng.choice(["yield", "sleep"]),
            "churn": rng.choice([0, 0, 1])}
        if self.options["group"] * self.options["window"] * self.options["max"] > 64 << 20:
            self.options["window"] = 2
        self.env = {"RAIL_SOCKET_STREAMS": rng.choice(STREAMS)}
        self.engines = [{"RAIL_SOCKET_ENGINE": rng.choice(ENGINES)} if ENGINES else {} for _ in range(2)]

    def pair(self, **more):
        return Pair(env=self.env, recv_env=self.engines[0], send_env=self.engines[1], **self.options, **more)

    def wait(self, low=0.02, high=0.5):
        time.sleep(self.rng.uniform(low, high))

    def either(self, pair):
        """(the one it happens to, the other)"""
        victim = self.rng.choice(pair.both)
        return victim, pair.other(victim)

    @staticmethod
    def network(count):
        if count not in Round.rails:
            try:
                Round.rails[count] = Rails(count, f"t{count}")
            except Skip as reason:
                Round.rails[count] = reason
        if isinstance(Round.rails[count], Skip):
            raise Round.rails[count]
        return Round.rails[count]

    def __str__(self):
        words = {**self.options, **self.env, "receiver": self.engines[0], "sender": self.engines[1]}
        return ", ".join(f"{k} {v}" for k, v in words.items() if k != "seed")


# ---- kinds of misfortune -----------------------------------------------------------

DEADLINE = 1.0
SHORT = {name: f"{int(DEADLINE * 1000)}ms" for name in ("RAIL_SOCKET_DEADLINE", "RAIL_SOCKET_PEER_TIMEOUT")}


def halt(r):
    """A process is stopped for good: the other gives up at the deadline, and it itself when it wakes."""
    r.env |= SHORT
    pair = r.pair()
    r.wait()
    victim, survivor = r.either(pair)
    since = victim.signal(signal.SIGSTOP)
    survivor.finish()
    check_sound(survivor)
    check_failed(survivor, since, DEADLINE + 1.0, comms=r.comms, **HERE)
    victim.signal(signal.SIGCONT)
    victim.finish()
    assert check_sound(victim)["errors"] == r.comms, victim.tail()


def slow(r):
    """A process lives, but posts nothing, or calls nothing, for longer than the deadline: nothing has happened."""
    r.env |= SHORT
    pair = r.pair()
    r.wait()
    victim, _ = r.either(pair)
    victim.tell(f"{r.rng.choice(['hold', 'pause'])} {int(1500 * DEADLINE)}")
    time.sleep(1.5 * DEADLINE)
    r.wait(0.0, 0.2)
    end_clean(pair)


def cut(r):
    """The only link is gone for longer than the deadline: both sides give up, and name each other."""
    r.env |= SHORT
    rails = r.network(1)
    pair = rails.pair([0], env=r.env, engines=r.engines, **r.options)
    try:
        r.wait()
        side = r.rng.randrange(3)
        since = rails.blackhole(0) if side == 2 else rails.down(side, 0)
        pair.finish()
    finally:
        rails.restore()
    for p, mine, other in ((pair.send, 0, 1), (pair.recv, 1, 0)):
        check_sound(p)
        check_failed(p, since, DEADLINE + 1.0, rails.addresses[other][0], rails.names[mine][0], comms=r.comms)


def lose_rail(r):
    """One of two rails goes, and may come back: no error, no wrong byte, hardly a pause. Silence takes longer to be
    noticed than a link that is down."""
    rails = r.network(2)
    r.env |= {"RAIL_SOCKET_DEADLINE": "5s"}
    r.options["max"] = max(r.options["max"], 65536)
    pair = rails.pair([0, 1], env=r.env, engines=r.engines, **r.options)
    how, i = r.rng.choice(["down", "down", "silence", "reset"]), r.rng.randrange(2)
    try:
        r.wait()
        if how == "down":
            rails.down(r.rng.randrange(2), i)
        elif how == "silence":
            rails.blackhole(i, r.rng.choice([[0], [1], [0, 1]]))
        else:
            rails.reset(i)
        r.wait(0.1, 1.5)
        if r.rng.random() < 0.5:
            rails.restore()
            r.wait(0.0, 0.5)
        pair.stop()
        pair.finish()
    finally:
        rails.restore()
    for p in pair.both:
        check_clean(p, 3.0 if how == "silence" else 1.0)


# kind → how often it is drawn
KINDS = {halt: 3, slow: 2, cut: 3, lose_rail: 6}


# ---- the rounds ----------------------------------------------------------------------

def one(seed, number, only):
    """Runs a round. (its name, what failed or None, why it was skipped or None)"""
    r = Round(seed, number)
    names = {k.__name__: k for k in KINDS}
    kind = names[only] if only else r.rng.choices(list(KINDS), list(KINDS.values()))[0]
    name = f"round {number}: {kind.__name__}"
    try:
        kind(r)
        return name, None, None
    except Skip as reason:
        return name, None, str(reason)
    except Exception as problem:
        text = str(problem) if isinstance(problem, AssertionError) and str(problem) else traceback.format_exc()
        others = "".join(f"{p.tail()}\n" for p in rig.Process.started if p.tail() not in text)
        return name, f"{text}\n{others}{r}", None
    finally:
        rig.kill_all()


def nothing_left():
    """A killed process leaves shared memory behind; the next one that comes and goes has removed it. What is then still
    in /dev/shm is found by the runner."""
    p = rig.Process("loop", seconds=0.1)
    p.finish()
    check_clean(p)


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--seed", type=int, default=int(os.environ.get("RAIL_TEST_SEED", time.time_ns() & 0xffffff)))
    parse.add_argument("--rounds", type=int, default=ROUNDS)
    parse.add_argument("--round", type=int, help="only this one")
    parse.add_argument("--only", choices=[k.__name__ for k in KINDS], help="only this kind")
    parse.add_argument("--stop-at", type=int, default=5, help="after so many failed rounds")
    parse.add_argument("--verbose", action="store_true", help="print how long each round took")
    args = parse.parse_args()
    print(f"# seed {args.seed}", flush=True)
    failed, cases, spent = 0, 0, {}
    for number in [args.round] if args.round is not None else range(1, args.rounds + 1):
        start = time.monotonic()
        name, problem, skip = one(args.seed, number, args.only)
        took = time.monotonic() - start
        kind = name.split(": ")[1]
        spent[kind] = [a + b for a, b in zip(spent.get(kind, [0, 0]), [1, took])]
        cases += 1
        if problem:
            failed += 1
            print("".join(f"# {line}\n" for line in problem.splitlines()), end="")
            print(f"# repeat: --seed {args.seed} --round {number}" + (f" --only {args.only}" if args.only else ""))
        print(f"{'not ok' if problem else 'ok'} {cases} - {name}" + (f" # SKIP {skip}" if skip else ""), flush=True)
        if args.verbose:
            print(f"# {took:.2f} s", flush=True)
        if failed >= args.stop_at:
            print("# enough rounds have failed", flush=True)
            break
    cases += 1
    try:
        nothing_left()
        print(f"ok {cases} - and another one, undisturbed")
    except AssertionError as problem:
        failed += 1
        print("".join(f"# {line}\n" for line in str(problem).splitlines()), end="")
        print(f"not ok {cases} - and another one, undisturbed")
    print("# " + ", ".join(f"{k}: {n} in {t:.0f} s" for k, (n, t) in sorted(spent.items())))
    print(f"1..{cases}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
