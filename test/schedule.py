# SPDX-License-Identifier: Apache-2.0
"""Which test programs run beside which.

Of each is known how many cores it keeps busy (durations.py), and programs run side by side as long as that adds up. The
long ones begin, so that none is left for the end.
"""
import queue
import threading

REPORTED = object()  # the outcome of one that has reported by itself
SPARE = 0.5  # of a core: a busy program waits now and then, and one that only waits may always be beside it


def rounds(programs, cores):
    """[(programs, the cores that they may use together)], one after the other: whatever keeps the machine busy, then
    what must not be kept waiting for a core, then what must have the machine for itself."""
    alone = [p for p in programs if p.alone]
    quiet = [p for p in programs if p.quiet and not p.alone]
    rest = [p for p in programs if not p.quiet and not p.alone]
    return [(rest, cores + SPARE), (quiet, cores), *[([p], cores) for p in alone]]


def fits(program, taken, cores):
    return not taken or sum(taken) + program.cores <= cores + 1e-6


def side_by_side(programs, cores, run, finish):
    """Calls finish(program, outcome) here, as each ends, and run(program, ended) in threads; ended() is for that to
    say that the program's processes are gone and only questions are left, which need no core."""
    waiting, results = sorted(programs, key=lambda p: -p.seconds), queue.SimpleQueue()
    holding, going, number = {}, 0, 0

    def one(key, program):
        try:
            outcome = run(program, lambda: results.put((key, program, None)))
        except BaseException as e:  # for the thread that waits, not for this one
            outcome = e
        results.put((key, program, outcome))

    while waiting or going:
        for program in list(waiting):
            if fits(program, holding.values(), cores):
                waiting.remove(program)
                number, going = number + 1, going + 1
                holding[number] = program.cores
                threading.Thread(target=one, args=(number, program)).start()
        key, program, outcome = results.get()
        holding.pop(key, None)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            going -= 1
            if outcome is not REPORTED:
                finish(program, outcome)
