# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous call returns, and the thread that completes what nobody waits for."""
import threading
import time
import weakref

import torch
from torch._C._distributed_c10d import Work as _Work

from .library import RailyardError

POLL = 0.0001  # s between two looks at a communicator with operations that somebody has a future of
TICK = 0.1     # s between two looks at the deadlines


class Work(_Work):
    """One operation. `run` is what completes it: the group, or the pair of a send or receive. `outputs` is what
    result() and the future give. `keep` are the other tensors that the library reads or writes until the operation is
    complete. `finish` places the results, where they arrive in another shape than the caller's. `seconds`: its limit,
    if it is not that of `run`. Its lock is that of `run`."""

    def __init__(self, run, name, outputs, keep=(), finish=None, seconds=None):
        super().__init__()
        self.run, self.name, self.outputs, self.keep, self.finish = run, name, list(outputs), keep, finish
        self.done, self.error, self.future = False, None, None
        self.began, self.seconds = time.monotonic(), seconds or run.seconds

    def complete(self, error):
        """Called when the library is done with the tensors, or by a Pair that gave up: its thread holds its own
        reference until then."""
        finish, self.finish, self.keep = self.finish, None, ()
        try:
            if error is None and finish:
                with torch.inference_mode():  # in which results of any mode may be written, by any thread
                    finish()
        except Exception as e:
            error = RailyardError(f"railyard: {self.name}: the results cannot be placed: {e}")
        self.error, self.done = error, True
        if self.future is not None:
            self._tell(self.future)

    def _tell(self, future):
        if self.error is None:
            future.set_result(self.outputs)
        else:
            future.set_exception(self.error)

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout else 0
        self.run.wait(self, seconds or self.seconds)
        if self.error is not None:
            raise self.error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if not self.done:
            self.run.poll()
        return self.done

    def is_success(self):
        return self.done and self.error is None

    def exception(self):
        return self.error

    def result(self):
        return self.outputs

    def get_future(self):
        with self.run.lock:
            if self.future is None:
                self.future = torch.futures.Future()
                if self.done:
                    self._tell(self.future)
                else:
                    watcher.look_soon()
            return self.future


class Watcher:
    """A thread of the process: completes operations that have a future, and ends those that take too long."""

    def __init__(self):
        self.groups = weakref.WeakSet()
        self.soon = threading.Event()
        self.lock = threading.Lock()
        self.thread = None

    def add(self, group):
        with self.lock:
            self.groups.add(group)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="railyard-watch", daemon=True)
                self.thread.start()

    def look_soon(self):
        self.soon.set()

    def _run(self):
        next_tick = 0.0
        while True:
            with self.lock:
                groups = list(self.groups)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK
                for group in groups:
                    group.check_deadline(now)
            if any([group.poll_futures() for group in groups]):
                time.sleep(POLL)
                continue
            del groups
            self.soon.clear()
            self.soon.wait(TICK)


watcher = Watcher()
