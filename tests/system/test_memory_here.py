"""Memory of a file that this machine maps itself: a client that asks for its bytes gets those of that moment."""

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

import ramlace
from conftest import NewPool
from mount import NewMount, Program, mapping
from passthrough import PassthroughPool
from pool import KIB, MIB, Pool, frozen, pattern

PAGE = 4 * KIB
SIZE = 2 * MIB + 100
Reader = Callable[[int, int], bytes]


def directly(path: Path, stack: ExitStack) -> Reader:
    """Open a file of a mount for reads past its kernel's pages."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    stack.callback(os.close, descriptor)
    buffer = stack.enter_context(mmap.mmap(-1, 2 * PAGE))

    def read(at: int, length: int) -> bytes:
        start = at // PAGE * PAGE
        os.preadv(descriptor, [buffer], start)
        return buffer[at - start : at - start + length]

    return read


def by_library(pool: ramlace.Pool, path: str, stack: ExitStack, **how: Any) -> Reader:
    """Open a file by the library."""
    file = stack.enter_context(pool.open(path, "rb", buffering=0, **how))

    def read(at: int, length: int) -> bytes:
        bytes_read = bytearray(length)
        return bytes(bytes_read[: file.pread_into(bytes_read, at)])

    return read


@contextmanager
def readers(pool: Pool, path: str, mounted: Path) -> Iterator[list[Reader]]:
    """Open a file by all doors that ask for each read, as another machine would."""
    with ExitStack() as stack:
        remote = stack.enter_context(ramlace.connect(pool.name, local=False))
        caching = stack.enter_context(ramlace.connect(pool.name, local=False, cache_bytes=8 * MIB))
        yield [
            by_library(remote, path, stack),
            by_library(caching, path, stack, sharing="strict"),
            directly(mounted, stack),
        ]


def check(read: list[Reader], store: Callable[[int, int], None]) -> None:
    """Store here and there, publish nothing, and look by all doors; they have read all of these places before."""
    for turn in range(1, 40):
        at = turn * 97_003 % (SIZE - 8)
        before = [door(at, 1) for door in read]
        assert len(set(before)) == 1
        store(at, before[0][0] ^ turn)
        assert [door(at, 1) for door in read] == [bytes([before[0][0] ^ turn])] * len(read)


# SEMANTICS 90.3
@pytest.mark.needs_root
def test_whoever_asks_sees_at_once_what_is_stored_into_a_file_that_a_kernel_has(passthrough: PassthroughPool) -> None:
    passthrough.make()
    with (
        readers(passthrough.pool, "file", passthrough.there / "file") as read,
        Program(mapping(passthrough.here / "file")) as program,
    ):
        check(read, lambda at, value: program.run(f"view[{at}] = {value}"))


# SEMANTICS 8.6
@pytest.mark.both
def test_whoever_asks_sees_at_once_what_is_stored_into_a_view(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 64)
    mount = new_mount(pool)
    with pool.connect() as here, here.array("/file", SIZE, "u1") as array:
        array.write(numpy.frombuffer(pattern(3, SIZE), "u1"))
        assert array.is_shared
        view = array.view()

        def store(at: int, value: int) -> None:
            view[at] = value

        with readers(pool, "/file", mount / "file") as read:
            check(read, store)


# SEMANTICS 147.6
def test_other_threads_run_while_a_mapping_is_given_back(new_pool: NewPool) -> None:
    """A thread lets the server go on that the end of the mapping waits for: it must come to run meanwhile."""
    pool, done = new_pool(1, 16), []
    server = pool.process("child", 0)
    with pool.connect() as connected, connected.array("/a", SIZE // 8) as array:
        mapping = array._native.map()
        assert mapping is not None

        def wake() -> None:
            time.sleep(0.2)
            done.append("woken")
            server.send(signal.SIGCONT)

        waker = threading.Thread(target=wake)
        with frozen(server):
            waker.start()
            del mapping
            done.append("given back")
        waker.join()
    assert done == ["woken", "given back"]
