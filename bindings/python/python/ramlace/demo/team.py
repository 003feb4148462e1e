"""Worker processes that start together and are watched: a dead one is an error, never a wait."""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

from ramlace.demo.problem import DemoError

Result = TypeVar("Result")
# A job's preparation is not timed; what it returns is called when all are ready, and timed.
Job = Callable[[], Callable[[], Result]]

# Seconds that a worker has to end when it is asked, before it is killed.
END_SECONDS_MAX = 5.0


@dataclass(frozen=True)
class Timed(Generic[Result]):
    """What the workers returned, in their order, and the seconds from the first start to the last end."""

    seconds: float
    results: list[Result]


class Team:
    """``count`` processes, started afresh (spawn), that do jobs at the same time.

    Use it as a context manager: leaving it ends the processes.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers: list[tuple[BaseProcess, Connection]] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), name=f"worker {number}", daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def __enter__(self) -> "Team":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid or 0 for process, _ in self._workers]

    def run(self, jobs: Sequence[Job[Result]]) -> Timed[Result]:
        """Give job k to worker k, start them together when all are prepared, and collect.

        Raises DemoError that names the worker when one fails or dies.
        """
        workers = self._workers[: len(jobs)]
        for (process, connection), job in zip(workers, jobs, strict=True):
            self._send(process, connection, job)
        self._collect(workers)
        for process, connection in workers:
            self._send(process, connection, None)
        answers = self._collect(workers)
        started = min(answer[0] for answer in answers)
        ended = max(answer[1] for answer in answers)
        return Timed(ended - started, [answer[2] for answer in answers])

    def close(self) -> None:
        """End the processes: they are asked, then killed."""
        for _, connection in self._workers:
            connection.close()
        until = time.monotonic() + END_SECONDS_MAX
        for process, _ in self._workers:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._workers = []

    def _send(self, process: BaseProcess, connection: Connection, message: object) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._death(process) from error

    def _collect(self, workers: list[tuple[BaseProcess, Connection]]) -> list[Any]:
        """Return one answer of each worker; wait for their ends as well as for their words."""
        answers: dict[int, Any] = {}
        while len(answers) < len(workers):
            open_ones = {workers[number][1]: number for number in range(len(workers)) if number not in answers}
            for ready in wait(list(open_ones)):
                number = open_ones[ready]  # type: ignore[index]
                process, connection = workers[number]
                try:
                    problem, answer = connection.recv()
                except (EOFError, OSError) as error:
                    raise self._death(process) from error
                if problem is not None:
                    raise DemoError(f"{process.name} (pid {process.pid}) failed: {problem}")
                answers[number] = answer
        return [answers[number] for number in range(len(workers))]

    @staticmethod
    def _death(process: BaseProcess) -> DemoError:
        process.join(END_SECONDS_MAX)
        code = process.exitcode
        if code is not None and code < 0:
            return DemoError(f"{process.name} (pid {process.pid}) was killed by {signal.Signals(-code).name}")
        return DemoError(f"{process.name} (pid {process.pid}) ended with exit code {code} in the middle of its work")


def _serve(connection: Connection) -> None:
    """Do jobs until the other side closes the pipe."""
    # Ctrl-C reaches the whole group: the parent decides, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        try:
            work = job()
            connection.send((None, None))
            connection.recv()
            started = time.monotonic()
            result = work()
            connection.send((None, (started, time.monotonic(), result)))
        except (EOFError, BrokenPipeError):
            return
        except Exception as error:
            if os.environ.get("RAMLACE_DEMO_TRACE"):
                traceback.print_exc(file=sys.stderr)
            connection.send((f"{type(error).__name__}: {error}", None))
