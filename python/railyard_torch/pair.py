# SPDX-License-Identifier: Apache-2.0
"""Sends from one rank to another with one tag.

Gloo's sends and receives wait for nothing but each other, whatever their order. A communicator runs its operations in
their order, so each (source, target, tag) has one of its own, made when it is first used, and a thread that waits in
it.
"""
import queue
import threading
import time

from .library import SUCCESS, UINT8, RailyardError, error_text, late_error, lib, new_comm
from .work import Work

GRACE = 10  # s that the thread has to come back from the library once its communicator was revoked


class Pair:
    def __init__(self, group, source, target, tag):
        self.name = (f"railyard: rank {group.me} of {group.n}: messages from rank {source} to rank {target} with tag "
                     f"{tag}")
        self.store, self.seconds, self.sends = group.store, group.seconds, group.me == source
        self.process = group.process
        self.ranks = (source, target)
        self.key = f"railyard/{source}/{target}/{tag}"
        self.lock = threading.Condition()  # notified when a work is complete
        self.queue = queue.SimpleQueue()
        self.current = None  # the work that the thread is at
        self.comm, self.error, self.thread, self.ended = None, None, None, False

    def begin(self, name, tensor):
        work = Work(self, name, [] if self.sends else [tensor], [tensor])
        with self.lock:
            if self.error is not None:
                raise RailyardError(*self.error.args)
            if self.ended:
                raise RailyardError(f"{self.name}: {name}: the group was destroyed")
            if self.thread is None:
                thread = threading.Thread(target=self._run, name="railyard-pair", daemon=True)
                thread.start()  # raises RuntimeError at the limit of threads
                self.thread = thread
            self.queue.put(work)
        return work

    def poll(self):
        pass

    def wait(self, work, seconds):
        with self.lock:
            if not self.lock.wait_for(lambda: work.done, seconds):
                self._give_up(work, seconds)

    def check_deadline(self, now):
        """The watcher's, for a work that nobody waits for, but somebody polls or has the future of."""
        with self.lock:
            work = self.current
            if work is not None and work.asked and not work.done and now > work.began + work.seconds:
                self._give_up(work, work.seconds)

    def _give_up(self, work, seconds):
        """Under the lock."""
        self.abort(late_error(self.name, work.name, seconds, f"rank {self.ranks[1 if self.sends else 0]}"))
        work.complete(self.error)

    def abort(self, error):
        """Revoking ends what the thread is at; every later work of the pair gets the same error."""
        with self.lock:
            if self.error is None and self.comm is not None:
                lib.ncclCommRevoke(self.comm, 0)
            self._fail(error)

    def _fail(self, error):
        with self.lock:
            self.error = self.error or error

    def _move(self, name, tensor):
        if self.comm is None:
            comm = new_comm(self.store, self.key, 0 if self.sends else 1, self.ranks, self.seconds, self.name,
                            stopped=lambda: self.error is not None)
            with self.lock:
                self.comm = comm
                if self.error is not None:  # wait() gave up meanwhile
                    return
        call, peer = (lib.ncclSend, 1) if self.sends else (lib.ncclRecv, 0)
        result = call(tensor.data_ptr(), tensor.numel() * tensor.element_size(), UINT8, peer, self.comm, None)
        result = result or lib.railCommWait(self.comm)
        if result != SUCCESS:
            raise RailyardError(f"{self.name}: {name}: {error_text(result, self.comm, self.ranks)}")

    def _do(self, work):
        with self.lock:
            tensor = work.keep[0] if work.keep else None  # held here until the library is done, even when given up
            self.current = work
        try:
            if self.error is None:
                self._move(work.name, tensor)
        except RailyardError as e:
            self._fail(e)
        except BaseException as e:  # the thread goes on: every work that it was given must complete
            self._fail(RailyardError(f"{self.name}: {work.name}: {type(e).__name__}: {e}"))
        with self.lock:
            self.current = None
            if not work.done:
                work.complete(self.error)
            self.lock.notify_all()

    def _run(self):
        while (work := self.queue.get()) is not None:
            self._do(work)
            del work
        with self.lock:
            comm, self.comm = self.comm, None
        if comm is not None:
            (lib.ncclCommDestroy if self.error is None else lib.ncclCommAbort)(comm)

    def end(self, deadline):
        """Lets what was begun end, until the deadline, or until an error; then revokes it, and waits for the thread: if
        that is in torch's code when the interpreter ends, so does the process, by abort()."""
        with self.lock:
            if self.thread is None or self.thread is threading.current_thread():
                return
            if not self.ended:
                self.ended = True
                self.queue.put(None)
        self.thread.join(max(0, deadline - time.monotonic()) if self.error is None else 0)
        with self.lock:
            if self.thread.is_alive() and self.current is not None and not self.current.done:
                self._give_up(self.current, time.monotonic() - self.current.began)
        self.thread.join(GRACE)
