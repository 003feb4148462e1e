"""Files of a pool as Python's own file objects."""

import io
import operator
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, TypedDict, overload

from ramlace import _errors

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ramlace import _native

# Bytes that a buffered file reads ahead and gathers: a call to a server costs tens of
# microseconds, so that larger buffers than a local file's pay.
BUFFER_BYTES_DEFAULT = 1 << 20


class Open(TypedDict):
    """How the native module opens a file; from the permissions to the copies it is about a new one."""

    read: bool
    write: bool
    append: bool
    create: bool
    exclusive: bool
    truncate: bool
    permissions: int
    umask: int
    stripe_unit: int | None
    width: int | None
    copies: int | None
    sharing: "_native.SharingMode | None"


class Mode(NamedTuple):
    """What the letters of ``open``'s mode mean."""

    read: bool
    write: bool
    append: bool
    create: bool
    exclusive: bool
    truncate: bool
    text: bool
    given: str

    @staticmethod
    def parse(mode: str) -> "Mode":
        """Read a mode such as ``rb`` or ``r+``; ValueError as the built-in open raises it."""
        letters = set(mode)
        if not letters <= set("rwaxbt+") or len(letters) != len(mode):
            raise ValueError(f"invalid mode: {mode!r}")
        if len(letters & set("rwax")) != 1:
            raise ValueError("must have exactly one of create/read/write/append mode")
        if {"t", "b"} <= letters:
            raise ValueError("can't have text and binary mode at once")
        update = "+" in letters
        return Mode(
            read="r" in letters or update,
            write="r" not in letters or update,
            append="a" in letters,
            create="r" not in letters,
            exclusive="x" in letters,
            truncate="w" in letters,
            text="b" not in letters,
            given=mode,
        )


class RawFile(io.RawIOBase):
    """A file of a pool without a buffer: each call goes to the servers.

    Positions and sizes are bytes. Calls that use or move the position have their turn one after the other, so that
    several threads that read or write one file get different bytes. Beside the usual methods there are ``pread_into``
    and ``pwrite``, which leave the position alone and may be called by several threads at once.
    Errors are ramlace.Error with errno set. There is no file descriptor: ``fileno`` raises
    io.UnsupportedOperation.
    """

    def __init__(self, native: "_native.File", name: str, mode: Mode) -> None:
        super().__init__()
        self._native = native
        self._mode = mode
        self._position = 0
        # By process: in a forked child the thread that has its turn in the parent is not there to end it.
        self._turns: dict[int, threading.RLock] = {}
        self.name = name

    @property
    def mode(self) -> str:
        """The mode as io.FileIO tells it."""
        if self._mode.exclusive:
            return "xb+" if self._mode.read else "xb"
        if self._mode.append:
            return "ab+" if self._mode.read else "ab"
        if self._mode.write:
            return "rb+" if self._mode.read else "wb"
        return "rb"

    def _turn(self) -> "threading.RLock":
        """Return the lock of the position; a handler of signals may use a file that its own thread uses."""
        process = os.getpid()
        return self._turns.get(process) or self._turns.setdefault(process, threading.RLock())

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _check_reading(self) -> None:
        self._check()
        if not self._mode.read:
            raise io.UnsupportedOperation("not open for reading")

    def readable(self) -> bool:
        """Whether it was opened for reading."""
        self._check()
        return self._mode.read

    def writable(self) -> bool:
        """Whether it was opened for writing."""
        self._check()
        return self._mode.write

    def seekable(self) -> bool:
        """Return True."""
        self._check()
        return True

    def readinto(self, buffer: "Buffer", /) -> int:
        """Read into ``buffer`` from the position on; return the bytes read, 0 at the end."""
        with self._turn():
            count = self.pread_into(buffer, self._position)
            self._position += count
        return count

    def readall(self) -> bytes:
        """Read everything from the position to the end."""
        self._check_reading()
        with self._turn():
            return self._readall()

    def _readall(self) -> bytes:
        rest = max(self.size() - self._position, 0)
        pieces = bytearray(rest)
        done = 0
        while True:
            while done < len(pieces):
                with memoryview(pieces) as view, view[done:] as tail:
                    count = self.readinto(tail)
                if count == 0:
                    del pieces[done:]
                    return bytes(pieces)
                done += count
            # The file may have grown while it was read.
            more = self.size() - self._position
            if more <= 0:
                return bytes(pieces)
            pieces.extend(bytes(more))

    def write(self, data: "Buffer", /) -> int:
        """Write ``data`` at the position (in append mode at the end); return the bytes written.

        Those are fewer than ``data`` has in a full pool alone. In append mode it is all or nothing.
        """
        self._check()
        if not self._mode.write:
            raise io.UnsupportedOperation("not open for writing")
        with self._turn():
            if not self._mode.append:
                count = self._native.write_at(data, self._position)
                self._position += count
                return count
            offset, count = self._native.append(data)
            # As in a local file: who writes nothing stays where it is.
            if count:
                self._position = offset + count
            return count

    def pread_into(self, buffer: "Buffer", offset: int) -> int:
        """Read into ``buffer`` from byte ``offset`` on; return the bytes read: fewer only at the end."""
        self._check_reading()
        return self._native.read_into(buffer, _offset(offset))

    def pwrite(self, data: "Buffer", offset: int) -> int:
        """Write ``data`` at byte ``offset``; return the bytes written: fewer than ``data`` has in a full pool alone.

        In append mode it is written at the end, as by ``os.pwrite`` on Linux, and ``offset`` means nothing.
        """
        self._check()
        if not self._mode.write:
            raise io.UnsupportedOperation("not open for writing")
        return self._native.write_at(data, _offset(offset))

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position; return it. One beyond the end is allowed; one below 0 is EINVAL, and a ValueError too.

        ``os.SEEK_DATA`` and ``os.SEEK_HOLE`` move it to the next data or hole at or behind ``offset``; an OSError
        (ENXIO) where there is none before the end.
        """
        self._check()
        wanted = operator.index(offset)
        with self._turn():
            if whence in (os.SEEK_DATA, os.SEEK_HOLE):
                self._position = self._native.seek_data_or_hole(_offset(wanted), whence == os.SEEK_DATA)
                return self._position
            starts = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._position, os.SEEK_END: self.size}
            if whence not in starts:
                raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
            self._position = _offset(starts[whence]() + wanted)
            return self._position

    def tell(self) -> int:
        """Return the position."""
        self._check()
        return self._position

    def size(self) -> int:
        """Return the file's size now."""
        self._check()
        return self._native.size()

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, to the position unless told otherwise; return it. The position stays."""
        self._check()
        if not self._mode.write:
            raise io.UnsupportedOperation("File not open for writing")
        wanted = self._position if size is None else _offset(size)
        self._native.truncate(wanted)
        return wanted

    @property
    def sharing(self) -> "_native.SharingMode":
        """The mode in which it sees what others change: as it was opened, or the file's own where that is stricter."""
        self._check()
        return self._native.sharing()

    def refresh(self, offset: int = 0, length: int = 0) -> None:
        """See what others have changed of ``length`` bytes from ``offset`` on (0: all that follow).

        Of use in relaxed mode alone (``Pool.open``): else reads ask. Of what has not changed no bytes are fetched.
        """
        self._check()
        start = _offset(offset)
        self._native.refresh(start, start + _offset(length) if length else (1 << 63) - 1)

    def sync(self) -> None:
        """Wait until the servers have size and times (``os.fsync`` for a pool's file)."""
        self._check()
        self._native.sync()

    @overload
    def lock(
        self, offset: int = 0, length: int = 0, *, exclusive: bool = True, timeout: None = None
    ) -> "RangeLock": ...

    @overload
    def lock(
        self, offset: int = 0, length: int = 0, *, exclusive: bool = True, timeout: float
    ) -> "RangeLock | None": ...

    def lock(
        self, offset: int = 0, length: int = 0, *, exclusive: bool = True, timeout: float | None = None
    ) -> "RangeLock | None":
        """Lock ``length`` bytes from ``offset`` on (0: all that follow), and return what unlocks them.

        ``with file.lock(0, 100): ...`` unlocks at its end. The lock is this open file's: it stands against every
        other open file of any process and machine, and against programs that lock by fcntl on a mount.
        Others may hold shared locks (``exclusive=False``) of the same bytes; an exclusive one needs a file that is
        open for writing. It waits its turn, for at most ``timeout`` seconds (ramlace.Error with ETIMEDOUT);
        with 0 it does not wait, and returns None when others are in the way. Bytes in a buffer of Python are not
        in the pool: lock ``file.raw``, and flush before you unlock.
        """
        self._check()
        start = _offset(offset)
        end = start + _offset(length) if length else 0
        if not self._native.lock(start, end, exclusive, timeout):
            return None
        return RangeLock(self._native, start, end)

    def fetch_add(self, offset: int, number: int = 1, *, signed: bool = False) -> int:
        """Add to the cell at ``offset``, modulo 2**64, and return what it held before.

        A cell is 8 bytes at a multiple of 8 within the file: a number in little endian, of which ``signed`` says how
        it is returned. Whatever else changes it by these calls, each change counts once. The file is open for
        reading and writing, and long enough (``truncate``).
        """
        self._check()
        return _shown(self._native.fetch_add(_offset(offset), _cell(number)), signed)

    def compare_swap(self, offset: int, expected: int, new: int, *, signed: bool = False) -> int:
        """Put ``new`` into the cell at ``offset`` if it holds ``expected``; return what it held: ``expected`` then."""
        self._check()
        return _shown(self._native.compare_swap(_offset(offset), _cell(expected), _cell(new)), signed)

    def change_version(self, offset: int = 0, length: int = 0) -> "_native.ChangeVersion":
        """Take the version of ``length`` bytes from ``offset`` on (0: all that follow).

        Take it before you read the bytes, and give it to ``wait_for_change``: then no change is missed.
        """
        self._check()
        start = _offset(offset)
        return self._native.change_version(start, start + _offset(length) if length else 0)

    def wait_for_change(self, since: "_native.ChangeVersion", timeout: float | None = None) -> "_native.ChangeVersion":
        """Wait until bytes of the version's range were written, cut off or published by anybody, and return the next.

        Waits for at most ``timeout`` seconds (TimeoutError), for ever without. May also return when nothing has
        changed: after a server was started again, and after many changes close by.
        """
        self._check()
        return self._native.wait_for_change(since, timeout)

    def isatty(self) -> bool:
        """Return False."""
        self._check()
        return False

    def close(self) -> None:
        """Give the file back to its servers; nothing happens the second time."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._native.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode={self.mode!r}"
        return f"<ramlace.RawFile name={self.name!r} {state}>"


class RangeLock:
    """Bytes of a file that are locked; ``unlock``, or the end of a ``with``, gives them back."""

    def __init__(self, native: "_native.File", start: int, end: int) -> None:
        self._native: _native.File | None = native
        self._range = (start, end)

    def unlock(self) -> None:
        """Unlock the bytes; nothing happens the second time, or when the file is closed."""
        native, self._native = self._native, None
        if native is not None:
            with suppress(ValueError):
                native.unlock(*self._range)

    def __enter__(self) -> "RangeLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()


def _cell(number: int) -> int:
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"a cell has 64 bits, and {number} has more")
    return number % (1 << 64)


def _shown(number: int, signed: bool) -> int:
    return number - (1 << 64) if signed and number >> 63 else number


def _offset(value: SupportsIndex) -> int:
    # Numpy's integers would go on with their own few bits.
    number = operator.index(value)
    if number < 0:
        raise _errors.invalid(f"negative offset or size: {number}")
    return number


def wrap(
    raw: RawFile, mode: Mode, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> RawFile | io.BufferedIOBase | io.TextIOWrapper:
    """Put the buffer and the decoder on a raw file that the built-in open would put there.

    A file that is opened for appending begins at its end, as the built-in one does.
    """
    if mode.append:
        raw.seek(0, os.SEEK_END)
    if buffering == 0:
        return raw
    size = BUFFER_BYTES_DEFAULT if buffering < 2 else buffering
    buffered: io.BufferedRandom | io.BufferedWriter | io.BufferedReader
    if mode.read and mode.write:
        buffered = io.BufferedRandom(raw, size)
    elif mode.write:
        buffered = io.BufferedWriter(raw, size)
    else:
        buffered = io.BufferedReader(raw, size)
    if not mode.text:
        return buffered
    text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
    # As the built-in open does: the class itself has none.
    text.mode = mode.given  # type: ignore[misc]
    return text


def check_arguments(mode: Mode, buffering: int, encoding: str | None, errors: str | None, newline: str | None) -> None:
    """Refuse what the built-in open refuses, before anything is created; ValueError."""
    if mode.text and buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    if not mode.text:
        for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
            if value is not None:
                raise ValueError(f"binary mode doesn't take {name!r}")
    if newline not in (None, "", "\n", "\r", "\r\n"):
        raise ValueError(f"illegal newline value: {newline!r}")
