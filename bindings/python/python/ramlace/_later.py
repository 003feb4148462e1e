"""Calls that go on beside the program."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# They wait for servers, and move bytes without holding Python's lock.
THREADS_MAX = 4

_executors: dict[int, ThreadPoolExecutor] = {}


def begin(call: Callable[..., object], *arguments: object) -> "Future[None]":
    """Begin a call on another thread; return the future of its end."""
    # A forked child has no thread of its parent's.
    process = os.getpid()
    executor = _executors.get(process)
    if executor is None:
        executor = _executors.setdefault(process, ThreadPoolExecutor(THREADS_MAX, "ramlace"))

    def work() -> None:
        call(*arguments)

    return executor.submit(work)
