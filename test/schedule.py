# SPDX-License-Identifier: Apache-2.0
"""Which test programs run beside which.

Of each is known how many cores it keeps busy (durations.py), and programs run side by side as long as that adds up.
Quiet ones begin, then the longest, so that none is left for the end.
"""
import queue
import threading

REPORTED = object()  # the outcome of one that has reported by itself
SPARE = 0.5  # of a core: a busy program waits now and then, and one that only waits may always be beside it


def rounds(programs):
    """Lists of programs, one after the other: whatever may have others beside it, then each that must have the machine
    for itself."""
    return [[p for p in programs if not p.alone], *[[p] for p in programs if p.alone]]


def may_start(program, beside, waiting, cores):
    """Quiet programs begin, and have none but quiet ones beside them. The rest begins when they have ended; the guest,
    which takes longer than all of them together, may go on beside it, and has the cores that it needs."""
    if not program.quiet and any(p.quiet and not p.guest for p in [*beside, *waiting]):
        return False
    if not program.quiet:
        cores += -SPARE / 2 if any(p.guest for p in beside) else SPARE
    return not beside or sum(p.cores for p in beside) + program.cores <= cores + 1e-6


def side_by_side(programs, cores, run, finish):
    """Calls finish(program, outcome) here, as each ends, and run(program, ended) in threads; ended() is for that to
    say that the program's processes are gone and only questions are left, which need no core."""
    waiting, results = sorted(programs, key=lambda p: (not p.quiet, -p.seconds)), queue.SimpleQueue()
    holding, going, number = {}, 0, 0

    def one(key, program):
        try:
            outcome = run(program, lambda: results.put((key, program, None)))
        except BaseException as e:  # for the thread that waits, not for this one
            outcome = e
        results.put((key, program, outcome))

    while waiting or going:
        for program in list(waiting):
            if may_start(program, holding.values(), waiting, cores):
                waiting.remove(program)
                number, going = number + 1, going + 1
                holding[number] = program
                threading.Thread(target=one, args=(number, program)).start()
        key, program, outcome = results.get()
        holding.pop(key, None)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            going -= 1
            if outcome is not REPORTED:
                finish(program, outcome)
