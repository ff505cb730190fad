# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_torch.py, forks (torch_forks.py) with the command line CASE[,CASE...] RANK RANKS STORE. Each prints
what a case is to show, or a traceback."""
import datetime
import os
import sys
import time
import weakref

sys.dont_write_bytecode = True
import torch_forks

torch_forks.become_a_rank()
import torch_parts  # noqa: E402
from torch_parts import (  # noqa: E402
    combined, dist, everybody, init, meet, n, raises, rank, replicated, same, torch, values)

import torch_failures  # noqa: E402
import torch_trainings  # noqa: E402
from railyard_torch import RailyardError  # noqa: E402

TYPES = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
COUNTS = [1, 3000, 200001]


def reductions():
    init()
    reductions_of(TYPES)
    t = torch.tensor([rank == 0, True, False])
    dist.all_reduce(t)  # as NCCL has it: or
    same(t, torch.tensor([True, True, False]))
    whole = values(rank, 12 * n)
    out = torch.empty(12)
    dist.reduce_scatter(out, [piece.clone() for piece in whole.chunk(n)])  # far apart in memory
    same(out, combined(everybody(12 * n), "SUM").chunk(n)[rank])
    out.zero_()
    dist.reduce_scatter(out, list(whole.chunk(n)))  # one behind the other
    same(out, combined(everybody(12 * n), "SUM").chunk(n)[rank])
    out.zero_()
    dist._reduce_scatter_base(out, whole)
    same(out, combined(everybody(12 * n), "SUM").chunk(n)[rank])
    many = [values(rank, 3), values(rank, 500)]
    dist.all_reduce_coalesced(many)
    same(many[0], combined(everybody(3), "SUM"))
    same(many[1], combined(everybody(500), "SUM"))
    twice = 2 * [values(rank, 3)] if rank == 0 else [values(rank, 3), values(rank, 3)]
    dist.all_reduce_coalesced(twice)  # rank 0 gives one tensor twice, which is reduced once
    same(twice[1], combined(everybody(3), "SUM"))


def reductions_of(types):
    for dtype in types:
        for op in ("SUM", "PRODUCT", "MIN", "MAX") + (() if dtype.is_floating_point else ("BAND", "BOR", "BXOR")):
            for count in COUNTS if op == "SUM" else COUNTS[1:2]:
                want = combined(everybody(count, dtype), op)
                t = values(rank, count, dtype)
                dist.all_reduce(t, getattr(dist.ReduceOp, op))
                same(t, want)
                t = values(rank, count, dtype)
                dist.reduce(t, n - 1, getattr(dist.ReduceOp, op))
                if rank == n - 1:
                    same(t, want)
        if dtype.is_floating_point:
            t = torch.full((5,), float(rank), dtype=dtype)
            dist.all_reduce(t, dist.ReduceOp.AVG)
            same(t, torch.full((5,), (n - 1) / 2, dtype=dtype))


def sparse_tensors():
    """Each rank has other elements, as many as its number, one of them twice; the result has those of all."""
    init()
    for dense in ((), (3,)):
        at = torch.tensor([[rank + 1, 7], [0, 2]]).repeat(1, rank)
        given = torch.sparse_coo_tensor(at, torch.ones(2 * rank, *dense) * (rank + 1), (10, 4, *dense))
        want = torch.zeros(10, 4, *dense)
        for r in range(n):
            for x, y in ((r + 1, 0), (7, 2)):
                want[x, y] += r * (r + 1)
        for turn in range(2):
            t = given.clone()
            work = dist.all_reduce(t, async_op=True)
            work.wait()
            assert t.layout is torch.sparse_coo and work.result()[0] is t
            same(t.to_dense(), want)
    same(given.to_dense().sum(), torch.tensor(2.0 * rank * (rank + 1) * 3))
    none = torch.sparse_coo_tensor(size=(5,))
    dist.all_reduce(none)
    same(none.to_dense(), torch.zeros(5))
    raises(ValueError, ["sparse", "SUM"], dist.all_reduce, t, dist.ReduceOp.MAX)
    if n > 1:
        for other in (torch.sparse_coo_tensor(size=(5 + rank,)), torch.sparse_coo_tensor(size=(5,) * (1 + rank % 2)),
                      torch.sparse_coo_tensor(size=(5,), dtype=(torch.float32, torch.float64)[rank % 2])):
            raises(ValueError, ["sparse", "of one shape"], dist.all_reduce, other)
    dist.barrier()


def movements():
    init()
    for dtype in TYPES + [torch.bool, torch.int16, torch.complex64]:
        for count in COUNTS:
            all_of = everybody(count, dtype)
            for root in {0, n - 1}:
                t = values(rank, count, dtype)
                dist.broadcast(t, root)
                same(t, all_of[root])
                out = [torch.zeros(count, dtype=dtype) for _ in range(n)] if rank == root else None
                dist.gather(values(rank, count, dtype), out, root)
                for got, want in zip(out or [], all_of):
                    same(got, want)
                t = torch.zeros(count, dtype=dtype)
                dist.scatter(t, all_of if rank == root else None, root)
                same(t, all_of[rank])
            out = [torch.zeros(count, dtype=dtype) for _ in range(n)]
            dist.all_gather(out, values(rank, count, dtype))
            for got, want in zip(out, all_of):
                same(got, want)
            out = torch.zeros(n * count, dtype=dtype)
            dist._all_gather_base(out, values(rank, count, dtype))
            same(out, torch.cat(all_of))
            out.zero_()
            dist.all_gather(list(out.chunk(n)), values(rank, count, dtype))
            same(out, torch.cat(all_of))
            t = torch.cat([values(rank * n + r, count, dtype) for r in range(n)])
            out = torch.zeros(n * count, dtype=dtype)
            dist.all_to_all_single(out, t)
            same(out, torch.cat([values(r * n + rank, count, dtype) for r in range(n)]))
    # Rank r sends r + q + 1 elements to rank q; to rank 0 none.
    sizes = [0 if q == 0 else rank + q + 1 for q in range(n)]
    back = [0 if rank == 0 else r + rank + 1 for r in range(n)]
    out = torch.zeros(sum(back))
    dist.all_to_all_single(out, torch.full((sum(sizes),), float(rank)), back, sizes)
    same(out, torch.cat([torch.full((k,), float(r)) for r, k in enumerate(back)]))
    out = [torch.zeros(k) for k in back]
    dist.all_to_all(out, [torch.full((k,), float(rank)) for k in sizes])
    same(torch.cat(out), torch.cat([torch.full((k,), float(r)) for r, k in enumerate(back)]))
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (rank * 1000)})
    assert [o["rank"] for o in objects] == list(range(n)) and len(objects[-1]["text"]) == 1000 * (n - 1)
    one = [["of", "rank", 0]] if rank == 0 else [None]
    dist.broadcast_object_list(one, 0)
    assert one == [["of", "rank", 0]]


def not_contiguous():
    """What all-gather and gather take and give, and the pieces of scatter and reduce-scatter, may be columns."""
    init()

    def columns(of=None):
        return list((torch.zeros(3, n) if of is None else torch.stack(of, 1)).unbind(1))
    all_of = everybody(3)
    out = columns()
    dist.all_gather(out, columns(all_of)[rank])
    same(torch.stack(out), torch.stack(all_of))
    out = columns() if rank == n - 1 else None
    dist.gather(columns(all_of)[rank], out, n - 1)
    for got, want in zip(out or [], all_of):
        same(got, want)
    t = torch.zeros(3)
    dist.scatter(t, columns(all_of) if rank == 0 else None, 0)
    same(t, all_of[rank])
    dist.reduce_scatter(t, columns(all_of))
    same(t, n * all_of[rank])


def empty_tensors():
    init()
    none, nones = torch.empty(0), [torch.empty(0) for _ in range(n)]
    group = dist.distributed_c10d._get_default_group()
    for work in (group._allgather_base(none, none), group._reduce_scatter_base(none, none),
                 group.gather_single(none, none), group.allgather(nones, none), group.reduce_scatter(none, nones),
                 group.scatter(none, nones if rank == 0 else [], 0), group.alltoall(nones, nones),
                 group.allreduce(none), group.broadcast(none, 0)):
        work.wait()
    t = torch.ones(1)
    dist.all_reduce(t)
    same(t, torch.full((1,), float(n)))


def forms_of_calls():
    """A tensor in place of a list of one, no options or their values, as torch's ProcessGroup takes them; and the names
    and coalesced calls that not every torch comes by."""
    init()
    group, all_of, summed = dist.distributed_c10d._get_default_group(), everybody(6), combined(everybody(6), "SUM")
    largest, root, limit = combined(all_of, "MAX"), n - 1, datetime.timedelta(seconds=200)
    for call, want in ((lambda t: group.allreduce(t), summed), (lambda t: group.allreduce([t]), summed),
                       (lambda t: group.allreduce([t], dist.ReduceOp.MAX), largest),
                       (lambda t: group.allreduce(t, op=dist.ReduceOp.MAX, timeout=limit), largest),
                       (lambda t: group.allreduce_coalesced([t]), summed),
                       (lambda t: group.broadcast([t]), all_of[0]), (lambda t: group.broadcast(t, root), all_of[root]),
                       (lambda t: group.broadcast(t, root=root), all_of[root])):
        t = values(rank, 6)
        call(t).wait()
        same(t, want)
    t, out = values(rank, 6), [torch.zeros(6) for _ in range(n)]
    group.reduce(t, root, dist.ReduceOp.MAX).wait()
    same(t, largest if rank == root else values(rank, 6))
    for call in (lambda: group.allgather(out, values(rank, 6)), lambda: group.allgather([out], [values(rank, 6)]),
                 lambda: group.allgather_coalesced([[x] for x in out], [values(rank, 6)])):
        for x in out:
            x.zero_()
        call().wait()
        same(torch.cat(out), torch.cat(all_of))
    whole = torch.zeros(6 * n)
    group.gather(out if rank == root else [], t, root).wait()
    group.gather_single(whole, values(rank, 6)).wait()
    same(whole, torch.cat(all_of) if rank == 0 else torch.zeros(6 * n))
    group.scatter(t, everybody(6) if rank == root else [], root).wait()
    same(t, all_of[rank])
    group.reduce_scatter(t, [values(rank, 6)] * n).wait()
    same(t, summed)
    for call in (group.allgather_into_tensor_coalesced, group.all_gather_single_coalesced):
        wholes = [torch.zeros(6 * n), torch.zeros(6 * n)]
        call(wholes, [values(rank, 6), 2 * values(rank, 6)]).wait()
        same(wholes[0], torch.cat(all_of))
        same(wholes[1], 2 * torch.cat(all_of))
    for call in (group.reduce_scatter_tensor_coalesced, group.reduce_scatter_single_coalesced):
        parts = [torch.zeros(2), torch.zeros(3)]
        call(parts, [values(rank, 2 * n), values(rank, 3 * n)]).wait()
        same(parts[0], combined(everybody(2 * n), "SUM").chunk(n)[rank])
        same(parts[1], combined(everybody(3 * n), "SUM").chunk(n)[rank])
    for call in (group._allgather_base, group.all_gather_single):
        call(whole, values(rank, 6)).wait()
        same(whole, torch.cat(all_of))
    for call in (group._reduce_scatter_base, group.reduce_scatter_single):
        call(t, whole).wait()
        same(t, n * all_of[rank])
    for call in (group.alltoall_base, group.all_to_all_single):
        call(whole, torch.cat(n * [values(rank, 6)]), [], []).wait()
        same(whole, torch.cat(all_of))
    group.barrier(limit).wait()


def inference_mode():
    """Whichever thread completes the call."""
    init()
    with torch.inference_mode():
        out = [torch.zeros(3) for _ in range(n)]
        work = dist.all_gather(out, values(rank, 3), async_op=True)
        future = work.get_future()
    future.wait()
    for got, want in zip(out, everybody(3)):
        assert torch.equal(got, want), f"rank {rank}: {got}, not {want}"


def asynchronous():
    init()
    t = [torch.full((1000,), float(rank + i)) for i in range(50)]
    works = [dist.all_reduce(x, async_op=True) for x in t]
    for work in reversed(works):
        work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
    for i, x in enumerate(t):
        same(x, torch.full((1000,), float(n * i + sum(range(n)))))
    x = torch.ones(100000)
    work = dist.all_reduce(x, async_op=True)
    deadline = time.monotonic() + 60
    while not work.is_completed():  # nobody waits for it
        assert time.monotonic() < deadline
        time.sleep(0.001)
    same(x, torch.full((100000,), float(n)))
    x = torch.ones(10)
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    same(future.wait(), torch.full((10,), 2.0 * n))
    for _ in range(3):
        work = dist.barrier(async_op=True)
    work.wait()
    dropped = torch.ones(5)
    dist.all_reduce(dropped, async_op=True)
    dist.barrier()
    same(dropped, torch.full((5,), float(n)))


def callbacks_that_wait():
    """For another operation: for its future, for one that only another thread can complete, for its work."""
    init()

    def begun():
        return dist.all_reduce(torch.ones(3), async_op=True)
    for other in (lambda _: begun().get_future().wait()[0],
                  lambda _: begun().get_future().then(lambda f: f.value()[0]).wait(),
                  lambda _: begun().wait() and torch.full((3,), float(n))):
        same(begun().get_future().then(other).wait(), torch.full((3,), float(n)))
    work, told = begun(), []
    work.get_future().then(told.append)
    work.wait()  # as Gloo's, it waits for the callbacks
    assert len(told) == 1


def memory_given_back():
    """A result that the caller has dropped."""
    init()
    for call in (lambda t: dist.all_reduce(t), lambda t: dist.all_reduce(t, async_op=True).get_future().wait()):
        t = torch.ones(10)
        held = weakref.ref(t)
        call(t)
        del t
        deadline = time.monotonic() + 60
        while held() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def given_back_when_destroyed():
    """The threads and descriptors of a group that has used tags."""
    init()
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()  # the process has its own threads
    dist.barrier()

    def has():
        return [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
    before = has()
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    for tag in range(2):
        (dist.send if rank == 0 else dist.recv)(torch.ones(1), 1 - rank, tag=tag, group=group)
    assert has()[0] > before[0] and has()[1] > before[1]
    dist.destroy_process_group(group)
    del group  # PyTorch 1.13 tells the group by its last reference only
    deadline = time.monotonic() + 60
    while any(now > then for now, then in zip(has(), before)):
        assert time.monotonic() < deadline, f"threads, descriptors: before {before}, now {has()}"
        time.sleep(0.05)
    meet(n)


def results():
    """What a work and its future give are the outputs; the inputs are kept until the library is done, and no longer."""
    init()
    t, out = values(rank, 300), [torch.zeros(300) for _ in range(n)]
    held = weakref.ref(t)
    dist.all_gather(out, torch.zeros(300))  # the first one connects the ranks, and waits for them
    if rank == 0:
        work = dist.all_gather(out, t, async_op=True)
        del t
        assert held() is not None and not work.is_completed()
        meet(n)
    else:
        meet(n)  # rank 0 has begun, and nobody else
        work = dist.all_gather(out, t, async_op=True)
        del t
    got = work.get_future().wait()
    assert held() is None
    for given in (got, work.result()):
        assert len(given) == n and all(a.data_ptr() == b.data_ptr() for a, b in zip(given, out))
    for a, want in zip(out, everybody(300)):
        same(a, want)
    part, mixed = torch.zeros(3), torch.zeros(n)
    for work, output in (
            (dist.reduce_scatter(part, list(values(rank, 3 * n).chunk(n)), async_op=True), part),
            (dist._reduce_scatter_base(part, values(rank, 3 * n), async_op=True), part),
            (dist.all_to_all_single(mixed, values(rank, n), async_op=True), mixed)):
        work.wait()
        result = work.result()
        assert len(result) == 1 and result[0].data_ptr() == output.data_ptr()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.result() == []


def destroyed_while_working():
    """What was begun before ends, and its results are placed."""
    init()
    group, size, peer = dist.new_group(), 300000, rank ^ 1
    out, got = [torch.zeros(size) for _ in range(n)], torch.zeros(size)
    works = [dist.isend(values(rank, size), peer, group=group), dist.irecv(got, peer, group=group)]
    works += [dist.all_gather(out, values(rank, size), group=group, async_op=True)]
    if rank == 1:
        time.sleep(0.3)  # the other waits in shutdown
    group.shutdown()
    assert all(work.is_completed() and work.is_success() for work in works)
    same(got, values(peer, size))
    for a, want in zip(out, everybody(size)):
        same(a, want)
    raises(RailyardError, ["allgather", "destroyed"], dist.all_gather, out, values(rank, size), group=group)
    raises(RailyardError, ["send", "destroyed"], dist.send, got, peer, group=group)


def beside_another_backend():
    """Torch's own group, whose CPU tensors are railyard's, and another backend has those of CUDA, as NCCL would."""
    init(backend="cpu:railyard,cuda:gloo")
    group = dist.distributed_c10d._get_default_group()
    names = {device: group._get_backend(torch.device(device)).name() for device in ("cpu", "cuda")}
    assert names == {"cpu": "railyard", "cuda": "gloo"}, names
    reductions_of(TYPES[:1])
    t = values(rank, 6)
    same(dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait(),
         2 * combined(everybody(6), "SUM"))
    whole = torch.zeros(6 * n)
    dist.all_gather_into_tensor(whole, values(rank, 6))
    same(whole, torch.cat(everybody(6)))
    dist.barrier()
    losses = [replicated(dist.new_group(backend=name), rank) for name in ("gloo", "cpu:railyard,cuda:gloo")]
    assert losses[0] == losses[1], losses
    raises(ValueError, ["allreduce", "int16", "allowed"], dist.all_reduce, torch.ones(3, dtype=torch.int16))
    group.set_timeout(datetime.timedelta(seconds=200))
    assert group._get_backend(torch.device("cpu")).seconds == 200
    dist.distributed_c10d._abort_process_group()


def groups():
    """Every rank in two groups of two and in the world, at once."""
    init()
    rings = [dist.new_group([r, (r + 1) % n]) for r in range(n)]
    alone = [dist.new_group([r]) for r in range(n)]
    for turn in range(20):
        mine = [r for r in range(n) if rank in (r, (r + 1) % n)]
        t = {r: torch.full((100,), float(rank + 10 * r + turn)) for r in mine}
        world = torch.full((100,), float(rank))
        works = [dist.all_reduce(t[r], group=rings[r], async_op=True) for r in mine]
        works += [dist.all_reduce(world, async_op=True)]
        lone = torch.full((3,), float(rank))
        dist.all_reduce(lone, group=alone[rank])
        for work in works:
            work.wait()
        for r in mine:
            same(t[r], torch.full((100,), float(r + (r + 1) % n + 2 * (10 * r + turn))))
        same(world, torch.full((100,), float(sum(range(n)))))
        same(lone, torch.full((3,), float(rank)))
    dist.destroy_process_group(rings[0])
    t = torch.ones(1)
    dist.all_reduce(t)
    same(t, torch.full((1,), float(n)))


def messages():
    """Both send first, then receive; and take tags in another order than they were sent in."""
    init()
    peer, size = (rank + 1) % n, 3000000
    for turn in range(3):
        got = torch.empty(size)
        works = [dist.isend(torch.full((size,), float(rank + turn)), peer), dist.irecv(got, (rank - 1) % n)]
        for work in works:
            work.wait(datetime.timedelta.max)
        same(got, torch.full((size,), float((rank - 1) % n + turn)))
    if rank == 0:
        sent = [dist.isend(torch.full((1000,), float(tag)), 1, tag=tag) for tag in range(4)]
        for work in sent:
            work.wait()
    if rank == 1:
        for tag in (2, 0, 3, 1):
            t = torch.empty(1000)
            dist.recv(t, 0, tag=tag)
            same(t, torch.full((1000,), float(tag)))
    ops = [dist.P2POp(dist.isend, torch.full((9,), float(rank)), peer),
           dist.P2POp(dist.irecv, torch.empty(9), (rank - 1) % n)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(ops[1].tensor, torch.full((9,), float((rank - 1) % n)))


def bad_arguments():
    init()
    t = torch.ones(4, 4)
    raises(ValueError, ["allreduce", "not contiguous"], dist.all_reduce, t.t()[1:])
    raises(ValueError, ["allreduce", "int16", "allowed"], dist.all_reduce, torch.ones(3, dtype=torch.int16))
    raises(ValueError, ["allreduce", "bitwise"], dist.all_reduce, t, dist.ReduceOp.BAND)
    raises((ValueError, RuntimeError), ["allgather"], dist.all_gather, [torch.ones(3) for _ in range(n)], torch.ones(2))
    raises(ValueError, ["all_to_all_single", "pieces"], dist.all_to_all_single, torch.ones(n), torch.ones(n + 1),
           None, [1] * (n + 1))
    raises(RailyardError, ["any rank"], dist.recv, torch.ones(1))
    for call in (dist.broadcast, dist.reduce, dist.send, dist.recv):
        raises(ValueError, [f"rank {n}", f"0 to {n - 1}"], call, t, n)
    raises(ValueError, ["scatter", f"rank {n}"], dist.scatter, t, None, n)
    raises(ValueError, ["gather", f"rank {n}"], dist.gather, t, None, n)
    group = dist.distributed_c10d._get_default_group()
    raises(ValueError, ["itself"], group.recv, [t], rank, 0)
    for view in (torch.ones(3, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(3))):
        raises(ValueError, ["broadcast", "resolve_conj"], group.broadcast, [view])
    texts = ["1 outputs, 2 inputs"]
    for call in (group.allgather_into_tensor_coalesced, group.reduce_scatter_tensor_coalesced):
        raises(ValueError, texts, call, [torch.ones(n)], [torch.ones(1), torch.ones(1)])
    raises(ValueError, texts, group.allgather_coalesced, n * [[torch.ones(1)]], [torch.ones(1), torch.ones(1)])
    dist.all_reduce(t)  # none of them did harm
    same(t, torch.full((4, 4), float(n)))


for case in sys.argv[1].split(","):
    torch_parts.case = case
    (globals().get(case) or getattr(torch_failures, case, None) or getattr(torch_trainings, case))()
    if dist.is_initialized():
        dist.destroy_process_group()
