# SPDX-License-Identifier: Apache-2.0
"""The calls of a process group: what each is given is checked, and the library's call made."""
import functools
import zlib

import torch
from torch._C._distributed_c10d import (AllgatherOptions, AllreduceCoalescedOptions, AllreduceOptions, AllToAllOptions,
                                        BarrierOptions, BroadcastOptions, GatherOptions, ReduceOp, ReduceOptions,
                                        ReduceScatterOptions, ScatterOptions)

from .library import AVG, MAX, MIN, PROD, SUCCESS, SUM, UINT8, RailyardError, check_process, lib
from .pair import Pair

TYPES = {torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.int64: 4, torch.float16: 6, torch.float32: 7,
         torch.float64: 8, torch.bfloat16: 9}
OPERATORS = [(ReduceOp.SUM, SUM), (ReduceOp.PRODUCT, PROD), (ReduceOp.MAX, MAX), (ReduceOp.MIN, MIN),
             (ReduceOp.AVG, AVG)]
BITWISE = [(ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or), (ReduceOp.BXOR, torch.bitwise_xor)]
FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}  # of the options, as arguments are called


def forms(options, count, *values, lists=True):
    """The forms that a call of torch's ProcessGroup has. After `count` arguments of tensors it takes options, or none,
    or their `values` and a timeout; and where it takes lists, also a tensor for a list of one."""
    def decorate(method):
        @functools.wraps(method)
        def call(self, *given, opts=None, **named):
            if len(given) == count + 1 and type(given[count]) is options:  # what torch.distributed itself passes
                return method(self, *given)
            tensors, more = given[:count], given[count:]
            if more and hasattr(more[0], "timeout"):
                opts, more = more[0], more[1:]
            if len(more) > len(values) + 1:
                raise TypeError(f"railyard: {method.__name__}: {len(given)} arguments; allowed: {count}, then options")
            opts = opts or options()
            for name, value in (*zip((*values, "timeout"), more), *((f, named.pop(f)) for f in FIELDS if f in named)):
                if value is not None:
                    setattr(opts, FIELDS[name], value)
            if lists and any(isinstance(t, torch.Tensor) for t in tensors):
                tensors = [[t] for t in tensors]
            return method(self, *tensors, opts=opts, **named)
        return call
    return decorate


def check(name, tensors, contiguous=True):
    """Everything that is passed to the library is dense, contiguous memory of the host. What is copied first may lie
    anyhow."""
    for t in tensors:
        if t.layout is not torch.strided or t.device.type != "cpu" or contiguous and not t.is_contiguous():
            raise ValueError(f"railyard: {name}: a tensor is {str(t.layout).replace('torch.', '')}, on {t.device}, "
                             f"{'' if t.layout is not torch.strided or t.is_contiguous() else 'not '}contiguous; "
                             "allowed: dense contiguous tensors on cpu")
        if t.is_conj() or t.is_neg():  # whose memory does not hold the values
            raise ValueError(f"railyard: {name}: a tensor is a conjugate or negative view; allowed: those that "
                             "resolve_conj() and resolve_neg() give")
    return tensors


def one(name, tensors, contiguous=True):
    if len(tensors) != 1:
        raise ValueError(f"railyard: {name}: {len(tensors)} tensors; allowed: one for each rank")
    return check(name, tensors, contiguous)[0]


def size_of(tensor):
    return tensor.numel() * tensor.element_size()


def same(name, tensors, n, like):
    """`n` tensors, each of the type and size of `like`, contiguous or not."""
    if len(tensors) != n or any(t.dtype != like.dtype or t.numel() != like.numel() for t in tensors):
        raise ValueError(f"railyard: {name}: {len(tensors)} tensors of {[tuple(t.shape) for t in tensors]}; allowed: "
                         f"one for each of the {n} ranks, each of {like.numel()} elements of {like.dtype}")
    return check(name, tensors, contiguous=False)


def adjoining(tensors):
    """Do they lie one behind the other, in this order, as pieces of one buffer do?"""
    at = tensors[0].data_ptr()
    for t in tensors:
        if t.data_ptr() != at or not t.is_contiguous():
            return False
        at += size_of(t)
    return True


def apart(tensors):
    """A copy in place of a tensor that was there before: it is reduced once, and every rank reduces as many."""
    seen, result = set(), []
    for t in tensors:
        result.append(t.clone() if t.data_ptr() in seen else t)
        seen.add(t.data_ptr())
    return result


def place(parts, outputs):
    for output, part in zip(outputs, parts):
        output.copy_(part.view(output.shape))


def zipped(name, outputs, inputs):
    if len(outputs) != len(inputs):
        raise ValueError(f"railyard: {name}: {len(outputs)} outputs, {len(inputs)} inputs; allowed: as many of both")
    return zip(outputs, inputs)


def together(works):
    """The last one for all: the others are complete before it."""
    if not works:
        raise ValueError("railyard: no tensors; allowed: one or more")
    works[-1].outputs = [output for work in works for output in work.outputs]
    return works[-1]


def find(table, op):
    return next((value for key, value in table if op == key), None)


def reduction(name, op, tensor):
    """(type, operator) of the library."""
    operator, kind = find(OPERATORS, op), TYPES.get(tensor.dtype)
    if tensor.dtype is torch.bool and operator in (SUM, PROD, MAX, MIN):  # or, and
        return UINT8, MAX if operator in (SUM, MAX) else MIN
    if operator is None or kind is None:
        raise ValueError(f"railyard: {name}: {op} of {tensor.dtype}; allowed: SUM, AVG, PRODUCT, MIN, MAX of "
                         f"{', '.join(str(t).replace('torch.', '') for t in TYPES)}; and without AVG of bool")
    return kind, operator


MOST_DIMENSIONS = 64  # of a tensor, in PyTorch


class Calls:
    """Of a group of `n` ranks, of which this is `me`."""

    # ---- all to all ranks ---------------------------------------------------

    @forms(AllreduceOptions, 1, "op")
    def allreduce(self, tensors, opts):
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            return self._allreduce_sparse(tensors[0], opts)
        t = one("allreduce", tensors)
        bitwise = find(BITWISE, opts.reduceOp)
        if bitwise:
            return self._bitwise("allreduce", opts, t, bitwise, True)
        kind, operator = reduction("allreduce", opts.reduceOp, t)
        at = t.data_ptr()
        return self._begin("allreduce", opts, lambda: lib.ncclAllReduce(at, at, t.numel(), kind, operator, self.comm,
                                                                        None), tensors)

    def _allreduce_sparse(self, t, opts):
        """Every rank takes the elements of all, as many from each as the one with most has. Waits for the others' calls
        to learn how many those are."""
        check("allreduce", [t._values()])
        if opts.reduceOp != ReduceOp.SUM:
            raise ValueError(f"railyard: allreduce: {opts.reduceOp} of a sparse tensor; allowed: SUM")
        whole = t.coalesce()
        at, values = whole.indices(), whole.values()
        mine = torch.zeros(4 + MOST_DIMENSIONS, dtype=torch.int64)  # of one length, whatever the others have
        told = [values.shape[0], zlib.crc32(str(t.dtype).encode()), at.shape[0], t.dim(), *t.shape]
        mine[:len(told)] = torch.tensor(told)
        all_of = [torch.empty_like(mine) for _ in range(self.n)]
        self.allgather([all_of], [mine], opts).wait()
        if any(not torch.equal(m[1:], mine[1:]) for m in all_of):
            raise ValueError("railyard: allreduce: sparse tensors of "
                             f"{[tuple(m[4:4 + int(m[3])].tolist()) for m in all_of]}; "
                             "allowed: of one shape and type, sparse in as many dimensions")
        counts = [int(m[0]) for m in all_of]
        given = [torch.zeros((max(counts), *x.shape[1:]), dtype=x.dtype) for x in (at.t(), values)]
        for padded, x in zip(given, (at.t(), values)):
            padded[:x.shape[0]] = x
        taken = [torch.empty((self.n, *x.shape), dtype=x.dtype) for x in given]

        def gather(x, to):
            return lib.ncclAllGather(x.data_ptr(), to.data_ptr(), size_of(x), UINT8, self.comm, None)

        def finish():  # elements of one place are added in the order of the ranks
            rows, parts = (torch.cat([x[rank, :count] for rank, count in enumerate(counts)]) for x in taken)
            t.copy_(torch.sparse_coo_tensor(rows.t(), parts, t.shape).coalesce())
        return self._begin("allreduce", opts, lambda: self._grouped([(gather, x, to) for x, to in zip(given, taken)]),
                           [t], (given, taken), finish)

    @forms(AllreduceCoalescedOptions, 1, lists=False)
    def allreduce_coalesced(self, tensors, opts):
        check("allreduce_coalesced", tensors)
        kinds = [reduction("allreduce_coalesced", opts.reduceOp, t) for t in tensors]
        distinct = apart(tensors)

        def enqueue(t, kind, operator):
            return lib.ncclAllReduce(t.data_ptr(), t.data_ptr(), t.numel(), kind, operator, self.comm, None)
        return self._begin("allreduce_coalesced", opts, lambda: self._grouped(
            [(enqueue, t, *kind) for t, kind in zip(distinct, kinds)]), tensors, distinct)

    def _grouped(self, calls):
        """Enqueues calls as one operation."""
        result = lib.ncclGroupStart()
        for call, *arguments in calls:
            result = result or call(*arguments)
        return lib.ncclGroupEnd() or result

    def _bitwise(self, name, opts, t, combine, everywhere):
        """NCCL has no such operators: every rank takes all, and combines them in the order of the ranks."""
        if t.dtype.is_floating_point or t.dtype.is_complex:
            raise ValueError(f"railyard: {name}: a bitwise operator of {t.dtype}; allowed: of integers and bool")
        parts = torch.empty((self.n, t.numel()), dtype=t.dtype)

        def finish():
            if everywhere:
                result = parts[0]
                for part in parts[1:]:
                    result = combine(result, part)
                t.view(-1).copy_(result)
        return self._begin(name, opts, lambda: lib.ncclAllGather(t.data_ptr(), parts.data_ptr(), size_of(t), UINT8,
                                                                 self.comm, None), [t], parts, finish)

    @forms(AllgatherOptions, 2)
    def allgather(self, output_tensors, input_tensors, opts):
        t = one("allgather", input_tensors, contiguous=False).contiguous()
        outputs = same("allgather", output_tensors[0], self.n, t)
        whole = None if adjoining(outputs) else torch.empty((self.n, t.numel()), dtype=t.dtype)
        to = outputs[0].data_ptr() if whole is None else whole.data_ptr()
        return self._begin("allgather", opts, lambda: lib.ncclAllGather(
            t.data_ptr(), to, size_of(t), UINT8, self.comm, None), outputs, (t, whole),
                           None if whole is None else lambda: place(whole, outputs))

    @forms(AllgatherOptions, 2, lists=False)
    def _allgather_base(self, output, t, opts):
        check("all_gather_into_tensor", [output, t])
        if output.numel() != self.n * t.numel() or output.dtype != t.dtype:
            raise ValueError(f"railyard: all_gather_into_tensor: {output.numel()} elements of {output.dtype} from "
                             f"{t.numel()} of {t.dtype}; allowed: {self.n} times as many, of one type")
        return self._begin("all_gather_into_tensor", opts, lambda: lib.ncclAllGather(
            t.data_ptr(), output.data_ptr(), size_of(t), UINT8, self.comm, None), [output], t)

    @forms(AllgatherOptions, 2, lists=False)
    def allgather_coalesced(self, output_lists, input_list, opts):
        for outputs in output_lists:
            zipped("all_gather_coalesced", outputs, input_list)
        return together([self.allgather([[outputs[i] for outputs in output_lists]], [t], opts)
                         for i, t in enumerate(input_list)])

    @forms(AllgatherOptions, 2, lists=False)
    def allgather_into_tensor_coalesced(self, outputs, inputs, opts):
        return together([self._allgather_base(output, t, opts)
                         for output, t in zipped("all_gather_into_tensor_coalesced", outputs, inputs)])

    def _reduce_scatter(self, name, opts, output, inputs):
        kind, operator = reduction(name, opts.reduceOp, output)
        source = inputs[0].data_ptr() if adjoining(inputs) else None
        whole = None if source else torch.cat([t.reshape(-1) for t in inputs])
        source = source or whole.data_ptr()
        return self._begin(name, opts, lambda: lib.ncclReduceScatter(source, output.data_ptr(), output.numel(), kind,
                                                                     operator, self.comm, None), [output],
                           (whole, inputs))

    @forms(ReduceScatterOptions, 2, "op")
    def reduce_scatter(self, output_tensors, input_tensors, opts):
        output = one("reduce_scatter", output_tensors)
        inputs = same("reduce_scatter", input_tensors[0], self.n, output)
        return self._reduce_scatter("reduce_scatter", opts, output, inputs)

    @forms(ReduceScatterOptions, 2, lists=False)
    def _reduce_scatter_base(self, output, t, opts):
        check("reduce_scatter_tensor", [output, t])
        if t.numel() != self.n * output.numel() or output.dtype != t.dtype:
            raise ValueError(f"railyard: reduce_scatter_tensor: {output.numel()} elements of {output.dtype} from "
                             f"{t.numel()} of {t.dtype}; allowed: from {self.n} times as many, of one type")
        return self._reduce_scatter("reduce_scatter_tensor", opts, output, [t])

    @forms(ReduceScatterOptions, 2, lists=False)
    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts):
        return together([self._reduce_scatter_base(output, t, opts)
                         for output, t in zipped("reduce_scatter_tensor_coalesced", outputs, inputs)])

    @forms(AllToAllOptions, 4, lists=False)
    def alltoall_base(self, output, t, output_sizes, input_sizes, opts):
        check("all_to_all_single", [output, t])
        if output.dtype != t.dtype:
            raise ValueError(f"railyard: all_to_all_single: from {t.dtype} to {output.dtype}; allowed: one type")
        pieces = [list(x.split(sizes or x.shape[0] // self.n)) if x.shape[0] else [x] * self.n
                  for x, sizes in ((output, output_sizes), (t, input_sizes))]
        if any(len(p) != self.n for p in pieces):
            raise ValueError(f"railyard: all_to_all_single: {tuple(t.shape)} in pieces {input_sizes or 'of one size'}, "
                             f"{tuple(output.shape)} in {output_sizes or 'those of one size'}; "
                             f"allowed: {self.n} pieces")
        return self._alltoall("all_to_all_single", opts, pieces[0], pieces[1], [output])

    @forms(AllToAllOptions, 2, lists=False)
    def alltoall(self, outputs, inputs, opts):
        for tensors in (outputs, inputs):
            if len(tensors) != self.n:
                raise ValueError(f"railyard: all_to_all: {len(tensors)} tensors; allowed: one for each of {self.n} "
                                 "ranks")
            check("all_to_all", tensors)
        return self._alltoall("all_to_all", opts, outputs, inputs, outputs)

    def _alltoall(self, name, opts, outputs, inputs, result):
        def send(t, peer):
            return lib.ncclSend(t.data_ptr(), size_of(t), UINT8, peer, self.comm, None)

        def receive(t, peer):
            return lib.ncclRecv(t.data_ptr(), size_of(t), UINT8, peer, self.comm, None)
        calls = [(send, t, peer) for peer, t in enumerate(inputs) if t.numel()]
        calls += [(receive, t, peer) for peer, t in enumerate(outputs) if t.numel()]
        return self._begin(name, opts, lambda: self._grouped(calls), result, (outputs, inputs))

    @forms(BarrierOptions, 0)
    def barrier(self, opts):
        at = self.token.data_ptr()
        return self._begin("barrier", opts, lambda: lib.ncclAllReduce(at, at, 1, UINT8, MAX, self.comm, None), [])

    # Torch 2.15's names for them.
    all_gather_single, all_gather_single_coalesced = _allgather_base, allgather_into_tensor_coalesced
    reduce_scatter_single, reduce_scatter_single_coalesced = _reduce_scatter_base, reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- from or to one rank --------------------------------------------------

    def _rank(self, name, rank):
        if not 0 <= rank < self.n:
            raise ValueError(f"railyard: {name}: rank {rank}; allowed: 0 to {self.n - 1}")
        return rank

    @forms(BroadcastOptions, 1, "root")
    def broadcast(self, tensors, opts):
        t = one("broadcast", tensors)
        at, root = t.data_ptr(), self._rank("broadcast", opts.rootRank)
        return self._begin("broadcast", opts, lambda: lib.ncclBroadcast(at, at, size_of(t), UINT8, root, self.comm,
                                                                        None), tensors)

    @forms(ReduceOptions, 1, "root", "op")
    def reduce(self, tensors, opts):
        t, root = one("reduce", tensors), self._rank("reduce", opts.rootRank)
        bitwise = find(BITWISE, opts.reduceOp)
        if bitwise:
            return self._bitwise("reduce", opts, t, bitwise, self.me == root)
        kind, operator = reduction("reduce", opts.reduceOp, t)
        at = t.data_ptr()
        return self._begin("reduce", opts, lambda: lib.ncclReduce(at, at, t.numel(), kind, operator, root, self.comm,
                                                                  None), tensors)

    @forms(GatherOptions, 2, "root")
    def gather(self, output_tensors, input_tensors, opts):
        t, root = one("gather", input_tensors, contiguous=False).contiguous(), self._rank("gather", opts.rootRank)
        outputs = same("gather", output_tensors[0], self.n, t) if self.me == root else []
        whole = torch.empty((self.n, t.numel()), dtype=t.dtype) if outputs and not adjoining(outputs) else None
        to = None if not outputs else outputs[0].data_ptr() if whole is None else whole.data_ptr()
        return self._begin("gather", opts, lambda: lib.ncclGather(
            t.data_ptr(), to, size_of(t), UINT8, root, self.comm, None), outputs, (t, whole),
                           None if whole is None else lambda: place(whole, outputs))

    @forms(GatherOptions, 2, lists=False)
    def gather_single(self, output, t, opts):
        parts = []
        if self.me == opts.rootRank:
            check("gather_single", [output])
            if output.numel() != self.n * t.numel():
                raise ValueError(f"railyard: gather_single: {output.numel()} elements from {t.numel()} of each rank; "
                                 f"allowed: {self.n} times as many")
            parts = output.view(self.n, t.numel()).unbind()
        work = self.gather([list(parts)], [t], opts)
        work.outputs = [output] if self.me == opts.rootRank else []
        return work

    @forms(ScatterOptions, 2, "root")
    def scatter(self, output_tensors, input_tensors, opts):
        output, root = one("scatter", output_tensors), self._rank("scatter", opts.rootRank)
        inputs = same("scatter", input_tensors[0], self.n, output) if self.me == root else []
        whole = torch.cat([t.reshape(-1) for t in inputs]) if inputs and not adjoining(inputs) else None
        source = None if not inputs else inputs[0].data_ptr() if whole is None else whole.data_ptr()
        return self._begin("scatter", opts, lambda: lib.ncclScatter(
            source, output.data_ptr(), size_of(output), UINT8, root, self.comm, None), [output], (whole, inputs))

    # ---- from rank to rank ------------------------------------------------------

    def _pair(self, source, target, tag):
        check_process(self.process)
        if source == target:
            raise ValueError(f"railyard: send, recv: from rank {source} to itself; allowed: between two ranks")
        with self.lock:
            if self.comm is None:
                raise RailyardError("railyard: send, recv: the group was destroyed")
            key = (source, target, tag)
            if key not in self.pairs:
                self.pairs[key] = Pair(self, *key)
            return self.pairs[key]

    def send(self, tensors, target, tag):
        return self._pair(self.me, self._rank("send", target), tag).begin("send", one("send", tensors))

    def recv(self, tensors, source, tag):
        return self._pair(self._rank("recv", source), self.me, tag).begin("recv", one("recv", tensors))

    def recv_anysource(self, tensors, tag):
        raise RailyardError("railyard: recv from any rank is not supported; name the source")
