"""Clients in processes of their own: what they run, and how a test learns of it.

Each function here is the whole life of one client. It gets a `Line` to the test: it says
"ready" when it is connected, goes on until it is told to stop where it has no end of its own,
and returns what the test shall check.

Clients are forked from a process that has imported what they need, and has no thread and no
pool: to start an interpreter for each took several times as long as most of them live.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import ramlace
from pool import KIB, PATIENCE_SECONDS, await_stopped, pattern

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


class Line:
    """A client's end of the line to its test."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe

    def ready(self) -> None:
        """Say that the work begins, when the test says go."""
        self._pipe.send(("ready", None))
        self._pipe.recv()

    def told_to_stop(self) -> bool:
        """Return whether the test wants the client to end."""
        return self._pipe.poll()


class Client:
    """A running client."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_live, args=(theirs, dict(os.environ), work, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def await_ready(self) -> None:
        """Wait until it is connected."""
        assert self._hear() == ("ready", None)

    def go(self) -> None:
        """Let it begin."""
        self._pipe.send("go")

    def stop(self) -> None:
        """Ask it to end."""
        self._pipe.send("stop")

    def send(self, number: signal.Signals) -> None:
        """Signal it. When it is to stop, it has."""
        assert self.process.pid
        os.kill(self.process.pid, number)
        if number == signal.SIGSTOP:
            await_stopped(self.process.pid)

    def result(self) -> Any:
        """Return what it returned; AssertionError with its traceback when it failed."""
        word, value = self._hear()
        assert word == "done", value
        self.process.join(PATIENCE_SECONDS)
        return value

    def _hear(self) -> tuple[str, Any]:
        assert self._pipe.poll(PATIENCE_SECONDS), f"client {self.process.pid} says nothing"
        word, value = self._pipe.recv()
        assert word != "failed", value
        return word, value

    def end(self) -> None:
        """End it, whatever it does."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(PATIENCE_SECONDS)


def _live(
    pipe: "Connection[Any, Any]", environment: dict[str, str], work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    # The process that forks has that of the first test with clients.
    os.environ.clear()
    os.environ.update(environment)
    try:
        pipe.send(("done", work(Line(pipe), *arguments)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


@contextmanager
def running(*works: tuple[Any, ...]) -> Iterator[list[Client]]:
    """Run clients, begun together; each is a function of this module and its arguments."""
    clients = [Client(work, *arguments) for work, *arguments in works]
    try:
        for client in clients:
            client.await_ready()
        for client in clients:
            client.go()
        yield clients
    finally:
        for client in clients:
            client.end()


def run_all(*works: tuple[Any, ...]) -> list[Any]:
    """Run clients to their ends and return what they returned."""
    with running(*works) as clients:
        return [client.result() for client in clients]


# What clients do.


def write_every_nth(line: Line, pool: str, local: bool, path: str, nth: int, of: int, piece: int, pieces: int) -> None:
    """Write each `of`-th piece of a file, the `nth` first."""
    with ramlace.connect(pool, local=local) as connected, connected.open(path, "r+b", buffering=0) as file:
        line.ready()
        for index in range(nth, pieces, of):
            assert file.pwrite(pattern(index, piece), index * piece) == piece


def write_one_letter(
    line: Line, pool: str, local: bool, path: str, letter: int, ranges: list[tuple[int, int]], seconds: float
) -> int:
    """Fill ranges (offset, length) with one letter, again and again; return the number of writes."""
    blocks = [(offset, bytes([letter]) * length) for offset, length in ranges]
    count = 0
    with ramlace.connect(pool, local=local) as connected, connected.open(path, "r+b", buffering=0) as file:
        line.ready()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for offset, block in blocks:
                assert file.pwrite(block, offset) == len(block)
                count += 1
    return count


def watch_letters(
    line: Line, pool: str, local: bool, path: str, ranges: list[tuple[int, int]], seconds: float, cache_bytes: int = 0
) -> dict[int, int]:
    """Read ranges while others fill them; each must be of one letter. Return how often each was seen."""
    seen: dict[int, int] = {}
    buffers = [(offset, bytearray(length)) for offset, length in ranges]
    connecting = ramlace.connect(pool, local=local, cache_bytes=cache_bytes)
    with connecting as connected, connected.open(path, buffering=0) as file:
        line.ready()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for offset, buffer in buffers:
                assert file.pread_into(buffer, offset) == len(buffer)
                letter = buffer[0]
                mixed = len(buffer) - buffer.count(letter)
                assert mixed == 0, f"{mixed} of {len(buffer)} bytes at {offset} are not {letter}: {set(buffer)}"
                seen[letter] = seen.get(letter, 0) + 1
    return seen


def record(writer: int, number: int) -> bytes:
    """Return one appended record: writer, number and length, then bytes that belong to it."""
    length = (writer * 7919 + number * 104_729) % 150_000 if number % 3 == 0 else (number * 37) % 300
    head = writer.to_bytes(2, "little") + number.to_bytes(4, "little") + length.to_bytes(4, "little")
    return head + pattern(writer * 1000 + number, length)


def hold_without_name(line: Line, pool: str, path: str, length: int) -> None:
    """Write a file, unlink it, and keep it open until told to stop."""
    with ramlace.connect(pool) as connected, connected.open(path, "wb", buffering=0) as file:
        file.write(pattern(1, length))
        connected.remove(path)
        line.ready()
        while not line.told_to_stop():
            time.sleep(0.01)


def outlive_a_session(line: Line, pool: str, path: str) -> list[int]:
    """Keep a file open, and when told to stop use it and the pool; return the errors' numbers, 0 for none.

    The test stops this process in between, for longer than a session lives that says nothing.
    """
    with ramlace.connect(pool) as connected:
        file = connected.open(path, "r+b", buffering=0)
        # Every server knows the session: one that does not cannot know of its end.
        connected.statfs()
        line.ready()
        while not line.told_to_stop():
            time.sleep(0.01)
        uses: list[Callable[[], object]] = [
            lambda: file.pwrite(b"late", 0),
            lambda: file.pread_into(bytearray(4), 0),
            lambda: connected.mkdir("/made-after-the-end"),
            lambda: connected.stat(path),
        ]
        return [_error_of(use) for use in uses]


def _error_of(use: Callable[[], object]) -> int:
    try:
        use()
    except OSError as error:
        return error.errno or -1
    return 0


def append_records(line: Line, pool: str, local: bool, path: str, writer: int, count: int) -> None:
    """Append records."""
    with ramlace.connect(pool, local=local) as connected, connected.open(path, "ab", buffering=0) as file:
        line.ready()
        for number in range(count):
            data = record(writer, number)
            assert file.write(data) == len(data)


def append_same(line: Line, pool: str, path: str, length: int, count: int) -> None:
    """Append the same bytes again and again."""
    with ramlace.connect(pool) as connected, connected.open(path, "ab", buffering=0) as file:
        line.ready()
        for _ in range(count):
            assert file.write(b"a" * length) == length


def keep_truncating(line: Line, pool: str, path: str) -> int:
    """Truncate a file to nothing until told to stop; return how often."""
    count = 0
    with ramlace.connect(pool) as connected:
        line.ready()
        while not line.told_to_stop():
            connected.truncate(path, 0)
            count += 1
    return count


def fill_until_full(line: Line, pool: str, local: bool, path: str, piece: int) -> tuple[int, int]:
    """Append to a file until the pool is full; return the bytes that were acknowledged, and the errno."""
    done = 0
    with (
        ramlace.connect(pool, local=local) as connected,
        connected.open(path, "wb", buffering=0, stripe_unit=64 * KIB) as file,
    ):
        line.ready()
        while True:
            try:
                # After a write that was cut short: the rest of it.
                done += file.pwrite(pattern(done // piece, piece)[done % piece :], done)
            except ramlace.Error as error:
                return done, error.errno or 0


def keep_writing(line: Line, pool: str, local: bool, directory: str, length: int) -> list[str]:
    """Make files, append to a journal, read back and remove some, until told to stop.

    Return the paths of the files that were acknowledged: file n holds `pattern(n, length)`.
    Every error is a failure.
    """
    acknowledged: list[str] = []
    with ramlace.connect(pool, local=local) as connected:
        connected.mkdir(directory)
        with connected.open(f"{directory}/journal", "ab", buffering=0) as journal:
            line.ready()
            number = 0
            while not line.told_to_stop():
                path = f"{directory}/{number}"
                with connected.open(path, "xb", buffering=0, stripe_unit=64 * KIB) as file:
                    assert file.write(pattern(number, length)) == length
                assert journal.write(number.to_bytes(8, "little")) == 8
                acknowledged.append(path)
                check_file(connected, acknowledged[number // 2], number // 2, length)
                # Removed and made again under the next number's name: each exactly once.
                connected.symlink(path, f"{directory}/link")
                connected.remove(f"{directory}/link")
                number += 1
    return acknowledged


def check_file(connected: ramlace.Pool, path: str, number: int, length: int) -> None:
    """Check that file `number` holds what `keep_writing` wrote."""
    with connected.open(path, buffering=0) as file:
        content = file.readall()
    assert content == pattern(number, length), f"{path} has other bytes than were acknowledged"


def keep_reading(line: Line, pool: str, local: bool, path: str, seed: int, length: int) -> int:
    """Read a whole file and check it, until told to stop; return how often."""
    count, expected = 0, pattern(seed, length)
    with ramlace.connect(pool, local=local) as connected, connected.open(path, buffering=0) as file:
        line.ready()
        while not line.told_to_stop():
            file.seek(0)
            assert file.readall() == expected
            count += 1
    return count


def write_for_ever(line: Line, pool: str, local: bool, path: str, length: int) -> None:
    """Write a file over and over, to be killed in the middle of it."""
    data = pattern(1, length)
    with (
        ramlace.connect(pool, local=local) as connected,
        connected.open(path, "wb", buffering=0, stripe_unit=64 * KIB) as file,
    ):
        line.ready()
        while True:
            file.pwrite(data, 0)


def line_of(writer: int, number: int) -> bytes:
    """Return one line of a log, some 50 bytes."""
    return f"{writer} {number} ".encode() + b"x" * (10 + (writer * 31 + number * 7) % 80)


def append_lines(line: Line, pool: str, local: bool, path: str, writer: int, count: int) -> None:
    """Append short lines."""
    with ramlace.connect(pool, local=local) as connected, connected.open(path, "ab", buffering=0) as file:
        line.ready()
        for number in range(count):
            text = line_of(writer, number) + b"\n"
            assert file.write(text) == len(text)


def grow_files(line: Line, pool: str, local: bool, directory: str) -> list[int]:
    """Grow files piece by piece across 4 KiB until told to stop; file n holds `pattern(n, size)`. Return the sizes."""
    sizes: list[int] = []
    with ramlace.connect(pool, local=local) as connected:
        connected.mkdir(directory)
        line.ready()
        while not line.told_to_stop():
            number = len(sizes)
            size = 3000 + number * 397 % 4000
            data = pattern(number, size)
            with connected.open(f"{directory}/{number}", "xb", buffering=0) as file:
                for at in range(0, size, 1500):
                    piece = data[at : at + 1500]
                    assert file.write(piece) == len(piece)
            assert connected.open(f"{directory}/{number}").read() == data
            sizes.append(size)
    return sizes
