# SPDX-License-Identifier: Apache-2.0
"""Cases of torch_ranks.py in which something goes wrong, or ends before its time."""
import datetime
import gc
import multiprocessing
import os
import pathlib
import threading
import time
import weakref

from torch_parts import dist, init, meet, n, raises, rank, same, store_path, torch, values

from railyard_torch import ProcessGroupRailyard, RailyardError, library, pair


def seconds(number):
    return datetime.timedelta(seconds=number)


def destroyed_too_late():
    """What is not complete in time has ended in the library before its tensors are given back."""
    init()
    group = dist.new_group()
    dist.barrier(group=group)  # a machine may stand still for seconds while it connects
    group.seconds = 3
    if rank == 0:
        t, out, wait, kept = values(rank, 300), [torch.zeros(300) for _ in range(n)], library.lib.railCommWait, []
        held = weakref.ref(t)
        work = dist.all_gather(out, t, group=group, async_op=True)
        del t
        library.lib.railCommWait = lambda comm: kept.append(held() is not None) or wait(comm)
        group.shutdown()
        library.lib.railCommWait = wait
        assert work.is_completed() and "allgather is not complete after its timeout of 3.0 s" in str(work.exception())
        assert kept == [True] and held() is None, kept
    meet(n)
    os._exit(0)


def thread_that_fails():
    """Whatever goes wrong in the thread of a pair reaches those who wait."""
    init()
    new_comm, begun = pair.new_comm, threading.Event()

    def broken(*_, **_options):
        assert begun.wait(20)
        raise KeyError("the planted one")
    pair.new_comm = broken
    works = [dist.irecv(torch.ones(1), rank ^ 1) for _ in range(2)]
    begun.set()
    for work in works:
        raises(RailyardError, ["recv", "KeyError", "the planted one"], work.wait, datetime.timedelta(seconds=20))
    pair.new_comm = new_comm
    dist.barrier()


def rank_that_does_not_call():
    init()
    dist.barrier()
    if rank == 0:
        meet(n)
        os._exit(0)
    began = time.monotonic()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    raises(RailyardError, [f"rank {rank} of {n}", "allreduce", "3.0 s"], work.wait, datetime.timedelta(seconds=3))
    took = time.monotonic() - began
    raises(RailyardError, ["allreduce"], dist.all_reduce, torch.ones(1))  # for good
    print(f"after {took:.1f} s", flush=True)
    meet(n)
    os._exit(0)


def barriers_of_a_group_made_anew():
    """Over the store of the group before: who came to a barrier of that has not come to one of this."""
    init()
    store = dist.PrefixStore("anew", dist.distributed_c10d._get_default_group().store)
    for made in range(2):
        group = ProcessGroupRailyard(store, rank, n, seconds(60))
        if made == 0 and rank == 1:
            raises(RailyardError, ["no answer"], group.monitored_barrier, seconds(0.2))
        if made == 1 and rank == 0:
            raises(RailyardError, ["Rank 1 failed to pass"], group.monitored_barrier, seconds(1))
        meet(n, f"made{made}")
        group.shutdown()


def monitored_barriers():
    """Rank 0 learns who has not come, the others that somebody has not; the group goes on."""
    init()
    group = dist.distributed_c10d._get_default_group()
    barrier = group.monitored_barrier
    for wait_all in (False, True):
        barrier(seconds(60), wait_all_ranks=wait_all)
    barrier()
    for wait_all, names in ((False, "Rank 1 failed"), (True, "Ranks 1, 3 failed")):
        if rank == 0:
            raises(RailyardError, ["rank 0 of 4", "2000 ms", f"{names} to pass monitoredBarrier"], barrier, 2, wait_all)
        elif rank == 2:
            raises(RailyardError, ["Rank 2 successfully reached monitoredBarrier", "Rank"], barrier, seconds(60))
        meet(n, f"meet{wait_all}")
        if rank in (1, 3):  # late: told at once
            raises(RailyardError, [names], barrier, seconds(60))
    if rank == 0:
        raises(RailyardError, ["0 ms: Rank 0 timed out in monitoredBarrier"], barrier, seconds(0))
    else:
        raises(RailyardError, ["Rank 0 timed out"], barrier, seconds(60))
    barrier(seconds(60))
    dist.barrier()
    try:
        dist.monitored_barrier()
    except RuntimeError as e:  # PyTorch 1 and early ones of 2 allow it for Gloo alone
        assert "only implemented for GLOO" in str(e) and torch.__version__ < "2.15", e


def first_call_that_nobody_joins():
    """It connects before it is enqueued."""
    init()
    if rank == 0:
        dist.distributed_c10d._get_default_group().seconds = 3
        raises(RailyardError, [f"rank 0 of {n}", "allreduce", "3.0 s"], dist.all_reduce, torch.ones(1))
    meet(n)
    os._exit(0)


def message_that_never_comes():
    init()
    if rank == 1:
        work = dist.irecv(torch.ones(1), 0, tag=5)
        texts = ["rank 0 to rank 1 with tag 5", "recv", "2.0 s"]
        raises(RailyardError, texts, work.wait, datetime.timedelta(seconds=2))
    dist.barrier()


def rank_that_dies():
    init()
    t = torch.ones(1000)
    dist.all_reduce(t)
    if rank == n - 1:
        os._exit(9)
    began = time.monotonic()
    try:
        while time.monotonic() < began + 60:
            dist.all_reduce(t)
    except RailyardError as e:
        assert f"rank {n - 1}" in str(e), str(e)
        print(f"after {time.monotonic() - began:.1f} s: {e}", flush=True)
        os._exit(0)
    raise AssertionError("nothing was noticed")


def message_from_a_rank_that_dies():
    """The pair's communicator has ranks of its own; the error names the group's."""
    init()
    t = torch.ones(1000)
    if rank == n - 1:
        dist.send(t, n - 2)
        os._exit(9)
    if rank == n - 2:
        dist.recv(t, n - 1)
        raises(RailyardError, [f"messages from rank {n - 1} to rank {n - 2}", f": rank {n - 1} "], dist.recv, t, n - 1)
    os._exit(0)


def future_that_never_comes():
    init(3)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        raises(RuntimeError, ["rank 0 has not called it", "recv", "3.0 s"],
               dist.irecv(torch.ones(1), 0).get_future().wait)
    meet(n)
    os._exit(0)


def rank_that_never_comes():
    if rank == n - 1:
        meet(n)
        return
    raises(RailyardError, [f"rank {rank} of {n}: ", f"rank {n - 1} has not come"], init, 2)
    meet(n)
    os._exit(0)


def polled_in_vain():
    """The limit counts, too, where is_completed is asked for, while a callback of the caller's takes long."""
    init()
    free, group = threading.Event(), dist.new_group()
    dist.barrier(group=group)
    slow = dist.barrier(async_op=True)
    slow.get_future().then(lambda _: free.wait(150))
    if rank == 0:
        dist.send(torch.ones(1), 1, group=group)
    else:
        dist.recv(torch.ones(1), 0, group=group)
    group.set_timeout(seconds(1))
    if rank == 1:
        for work in (dist.irecv(torch.ones(1), 0, group=group), dist.all_reduce(torch.ones(1), group=group,
                                                                                async_op=True)):
            deadline = time.monotonic() + 60
            while not work.is_completed():
                assert time.monotonic() < deadline, "it has no limit"
                time.sleep(0.01)
            assert "1.0 s" in str(work.exception()), work.exception()
    free.set()
    slow.wait()
    meet(n)
    os._exit(0)


class Interrupted(Exception):
    """What a signal's handler raises when a call of the library returns."""


def interrupted(call):
    def instead(*args):
        if call:
            call(*args)
        raise Interrupted
    return instead


def interrupted_calls():
    """No limit stays that ends the group later, and what the library works with is kept."""
    init()
    dist.barrier()
    if rank == 0:
        wait, gather = library.lib.railCommWait, library.lib.ncclAllGather
        work = dist.all_reduce(torch.ones(1), async_op=True)
        library.lib.railCommWait = interrupted(None)
        raises(Interrupted, [], work.wait, seconds(0.5))
        library.lib.railCommWait = wait
        time.sleep(2)  # for the watcher to look
        t = values(rank, 300)
        held = weakref.ref(t)
        library.lib.ncclAllGather = interrupted(gather)
        raises(Interrupted, [], dist.all_gather, [torch.zeros(300) for _ in range(n)], t)
        library.lib.ncclAllGather = gather
        del t
        gc.collect()
        assert held() is not None
        meet(n)
    else:
        meet(n)
        dist.all_reduce(torch.ones(1))
        dist.all_gather([torch.zeros(300) for _ in range(n)], values(rank, 300))
    dist.barrier()


def two_threads_that_wait():
    """The shorter limit counts, whoever was first."""
    init()
    dist.barrier()
    if rank == 0:
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
        first = threading.Thread(target=raises, args=(RailyardError, ["allreduce"], works[0].wait))
        first.start()
        group = dist.distributed_c10d._get_default_group()
        while not group.waits:
            time.sleep(0.01)
        raises(RailyardError, ["1.0 s"], works[1].wait, seconds(1))
        first.join()
    meet(n)
    os._exit(0)


def used_after_a_fork():
    """An error, not a call that never ends; a group of its own it may have."""
    init()
    dist.barrier()
    work = dist.irecv(torch.ones(1), rank ^ 1)

    def forked():
        for call in (lambda: dist.all_reduce(torch.ones(1)), lambda: dist.send(torch.ones(1), rank ^ 1), work.wait,
                     work.is_completed):
            raises(RailyardError, [f"by process {os.getppid()}", "forked"], call)
        group, t = ProcessGroupRailyard(dist.HashStore(), 0, 1, seconds(60)), torch.ones(1)
        same(group.allreduce(t).get_future().wait()[0], torch.ones(1))
        group.shutdown()
    process = multiprocessing.get_context("fork").Process(target=forked)
    process.start()
    process.join(60)
    assert process.exitcode == 0, process.exitcode
    dist.send(torch.ones(1), rank ^ 1)
    work.wait()


def made_again():
    """With the store of the group before, and its keys. Rank 0, which makes the id, comes last."""
    store = dist.FileStore(f"{store_path}made_again", n)
    for size in (1, 2, 2, 1, 2):
        if rank == 0:
            time.sleep(0.3)
        if rank < size:
            group = ProcessGroupRailyard(store, rank, size, seconds(60))
            t = torch.ones(1)
            group.allreduce(t).wait()
            same(t, torch.full((1,), float(size)))
            group.shutdown()


def aborted():
    """Nobody is waited for; who waits here learns it, and the other rank, too."""
    init()
    group = dist.new_group()
    dist.barrier(group=group)
    if rank == 0:
        works = [dist.all_reduce(torch.ones(1), group=group, async_op=True), dist.irecv(torch.ones(1), 1, group=group)]
        errors = []

        def wait():
            try:
                works[0].wait()
            except RailyardError as e:
                errors.append(e)
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not group.waits:
            time.sleep(0.01)
        group.abort()
        waiting.join(60)
        assert len(errors) == 1
        for work in works:
            raises(RailyardError, ["rank 0 of 2", "aborted"], work.wait)
        raises(RailyardError, ["aborted"], dist.all_reduce, torch.ones(1), group=group)
        meet(n)
    else:
        meet(n)  # rank 0 did not wait for this one

        def twice():  # rank 0 may have sent all of its own before it gave up
            for _ in range(2):
                dist.all_reduce(torch.ones(1), group=group)
        raises(RailyardError, ["rank 0"], twice)
    dist.barrier()  # the other group goes on


def new_limit():
    """Of what is begun after it is set."""
    init()
    dist.barrier()
    group = dist.distributed_c10d._get_default_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        group.set_timeout(seconds(1))
        time.sleep(2.5)
        assert not work.is_completed()
        meet(n)
        work.wait()
        raises(RailyardError, ["1.0 s"], dist.barrier)
    else:
        meet(n)
        dist.all_reduce(torch.ones(1))
    meet(n, "end")


def ends_by_an_exception():
    """Nothing is waited for then: the other rank does not call before this one's process is gone."""
    init()
    dist.barrier()
    where = pathlib.Path(f"{store_path}process")
    if rank == 0:
        works = [dist.all_reduce(torch.ones(1), async_op=True), dist.irecv(torch.ones(1), 1)]
        where.write_text(str(os.getpid()))
        meet(n)
        raise KeyError(f"the planted one, with {len(works)} works")
    meet(n)
    deadline = time.monotonic() + 150
    while os.path.exists(f"/proc/{where.read_text()}"):
        assert time.monotonic() < deadline, "rank 0 has not ended"
        time.sleep(0.05)
    os._exit(0)


def forked_process_that_ends():
    """Of two processes that multiprocessing forked one ends, its group not destroyed, before the other receives."""
    def forked():
        init()
        dist.barrier()
        if rank == 1:
            meet(2)
        t = torch.full((10,), float(rank))
        dist.broadcast(t, 0)
        same(t, torch.zeros(10))
    process = multiprocessing.get_context("fork").Process(target=forked, daemon=True)
    process.start()
    process.join(400)
    assert process.exitcode == 0, f"the forked process of rank {rank} ended with {process.exitcode}"
    if rank == 0:
        meet(2)
