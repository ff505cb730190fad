# SPDX-License-Identifier: Apache-2.0
"""A barrier that names who has not come. It goes by the group's store and not by the library, so that an operation in
which a rank hangs does not keep it from ending."""
import time

from .library import RailyardError, check_process, seconds_of, wait_for_count

KEY = "railyard/monitored"


def monitored_barrier(group, timeout, wait_all_ranks):
    """Rank 0 waits for all, then tells them. As Gloo's, whose words are in the errors: it ends at the first rank that
    is late, or, with `wait_all_ranks`, looks at all of them. The group is as good afterwards as before, and so is the
    barrier once all ranks have called it as often."""
    check_process(group.process)
    seconds = seconds_of(timeout) if timeout is not None else -1
    seconds = seconds if seconds >= 0 else group.seconds  # torch's mark of no timeout is negative
    deadline = time.monotonic() + seconds
    # Each rank counts its turns, which also says that it has come.
    key = f"{KEY}/{group.n}/{group.made}"
    turn = group.store.add(f"{key}/turns/{group.me}", 1)
    failure = (lead if group.me == 0 else follow)(group.store, key, group.me, group.n, turn,
                                                  lambda: time.monotonic() > deadline, wait_all_ranks)
    if failure:
        raise RailyardError(f"railyard: rank {group.me} of {group.n}: monitored_barrier of {seconds * 1000:.0f} ms: "
                            f"{failure}")


def lead(store, key, me, n, turn, late, wait_all_ranks):
    failed, failure = [], f"Rank {me} timed out in monitoredBarrier" if late() else None
    for rank in () if failure else range(1, n):
        if not wait_for_count(store, f"{key}/turns/{rank}", turn, late):
            failed.append(str(rank))
            failure = f"Rank{'s' if len(failed) > 1 else ''} {', '.join(failed)} failed to pass monitoredBarrier"
            if not wait_all_ranks:
                break
    store.set(f"{key}/{turn}", failure or "passed")
    store.add(f"{key}/{turn}/set", 1)
    return failure


def follow(store, key, me, n, turn, late, _):
    told = wait_for_count(store, f"{key}/{turn}/set", 1, late)
    said = store.get(f"{key}/{turn}").decode() if told else "no answer"
    return said != "passed" and (f"Rank {me} successfully reached monitoredBarrier, but received errors while waiting "
                                 f"for send/recv from rank 0: {said}")
