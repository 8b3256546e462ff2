"""A process for functions that may never return: it is killed at its time limit and started again.

The file is also the program of that process, so it imports nothing heavy.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any


class WorkerError(RuntimeError):
    """The function raised, or its process died; the message says which."""


class WorkerDiedError(WorkerError):
    """The process of a worker ended in the middle of a call: out of memory, or crashed."""


class Worker:
    """Runs functions given as 'module:name' in one process that lives on from call to call.

    A call that takes longer than its limit raises `TimeoutError`, and the process is killed whatever it is
    doing; the next call starts another. Importing the function's module is not counted. The process may use
    at most `memory` bytes of address space, so that an exploding computation raises `MemoryError` there and
    not here. Calls from several threads take turns. Not a sandbox: the process has the rights of its
    parent.
    """

    def __init__(self, memory: int | None = None) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def call(self, path: str, *arguments: Any, limit: float, startup: float = 120.0) -> Any:
        """The value of the function `path` at `arguments` (all picklable), within `limit` seconds.

        Raises:
            TimeoutError: the limit has passed, or importing took longer than `startup` seconds.
            WorkerError: the function raised, or (WorkerDiedError) the process ended.
        """
        with self._lock:
            connection = self._connection or self._start()
            self._ask(connection, (path, None, 0.0), startup, f"importing {path!r}")
            return self._ask(connection, (path, arguments, limit), limit, f"{path!r}")

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._stop()

    def _ask(self, connection: Connection[Any, Any], message: Any, limit: float, what: str) -> Any:
        try:
            connection.send(message)
            if not connection.poll(limit):
                self._stop()
                raise TimeoutError(f"{what} gave no result within {limit:g} s")
            failed, result = connection.recv()
        except (EOFError, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            self._stop()
            raise WorkerDiedError(f"{what}: its process died") from error
        except (
            BaseException
        ):  # an interrupt between question and answer: the next answer must not be this one
            self._stop()
            raise
        if failed:
            raise WorkerError(f"{what} raised {result}")
        return result

    def _start(self) -> Connection[Any, Any]:
        ours, theirs = Pipe()
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), str(self._memory or 0)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(
            command,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the run in order; it must not end this process first
        )
        theirs.close()
        self._connection = ours
        return ours

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(descriptor: int, memory: int) -> None:
    """Answer (path, arguments, limit) until the other end closes; arguments None: only import."""
    os.dup2(2, 1)  # what functions print must not be mistaken for anything: it goes to stderr
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    connection: Connection[Any, Any] = Connection(descriptor)
    while True:
        try:
            path, arguments, limit = connection.recv()
        except EOFError:
            return
        if limit:  # should the parent die meanwhile, the alarm ends this process: nothing spins on for ever
            signal.alarm(math.ceil(limit) + 1)
        try:
            function = _load(path)
            answer = (False, None if arguments is None else function(*arguments))
        except Exception as error:  # sent to the parent, which raises it
            answer = (True, f"{type(error).__name__}: {error}"[:2000])
        finally:
            signal.alarm(0)
        connection.send(answer)


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
