"""Shared arrays: files of a pool whose bytes are an array's, nothing else."""

import errno
import math
import operator
import os
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ramlace import _errors, _later, _native, _paths, _umask
from ramlace._described import Described, Order, Shape, checked_shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import DTypeLike, NDArray

    from ramlace._paths import PathLike
    from ramlace._pool import Pool

    # What an element, or some of them, are called by.
    Index = Any

# Bytes of one read or write when content is copied.
COPY_BYTES = 64 << 20
# For how long an array may stand still while another process creates it.
STILL_SECONDS_MAX = 4.0
# How often that is looked at: first soon, for a small one, and then less and less often.
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.002, 0.1


class Array:
    """A shared array; made by ``Pool.array`` and ``Pool.from_numpy``.

    Its bytes lie in the pool. ``view()`` is a numpy array over them: where they are in this machine's
    memory it *is* them, and every process of the machine sees a store at once. Elsewhere it is
    a copy that ``publish()`` and ``refresh()`` keep in step. Pickling an Array sends its name; the other
    process opens it there.
    """

    def __init__(self, pool: "Pool", path: bytes, native: _native.File, described: Described) -> None:
        self._pool = pool
        self._path = path
        self._native = native
        self._described = described
        self._mapping: _native.Mapping | None = None
        self._mapped = False
        # By process: what a forked child has of its parent's copy is memory that nobody keeps in step.
        self._copies: dict[int, _native.Copy] = {}
        self._closed = False

    # How one comes to be

    @classmethod
    def _open(
        cls,
        pool: "Pool",
        path: "PathLike",
        shape: Shape | None,
        dtype: "DTypeLike | None",
        order: Order | None,
        stripe_unit: int | None,
        width: int | None,
    ) -> "Array":
        encoded = pool._path(path)
        name = _paths.decode(encoded)
        wanted = None if shape is None else Described.of(shape, dtype, order or "C")
        try:
            found = pool._client.open_array(encoded)
        except FileNotFoundError:
            if wanted is None:
                raise
            try:
                return cls._create(pool, encoded, wanted, stripe_unit, width)
            except FileExistsError:
                # Another process was faster: several workers may open the same array at once.
                found = pool._client.open_array(encoded)
        try:
            described = Described.read(found, name)
            described.check(name, None if shape is None else checked_shape(shape), dtype, order)
            _await_full(found, described, name)
        except BaseException:
            found.close()
            raise
        return cls(pool, encoded, found, described)

    @classmethod
    def _create(
        cls, pool: "Pool", path: bytes, described: Described, stripe_unit: int | None, width: int | None
    ) -> "Array":
        kind = described.shape, described.dtype_str, described.order == "F"
        native = pool._client.create_array(path, *kind, stripe_unit, width, 0o666, _umask.current())
        return cls(pool, path, native, described)

    @classmethod
    def _from_numpy(
        cls, pool: "Pool", path: "PathLike", values: Any, stripe_unit: int | None, width: int | None
    ) -> "Array":
        import numpy as np

        source = np.asanyarray(values)
        if isinstance(source, np.ma.MaskedArray):
            raise TypeError("a masked array has no place for its mask in a pool; pass values.filled(...)")
        fortran = source.flags.f_contiguous and not source.flags.c_contiguous
        order: Order = "F" if fortran else "C"
        array = cls._create(pool, pool._path(path), Described.of(source.shape, source.dtype, order), stripe_unit, width)
        try:
            array.write(source)
        except BaseException:
            array.close()
            pool._client.unlink(array._path)
            raise
        return array

    # What it is

    @property
    def name(self) -> str:
        """The path it was opened by."""
        return _paths.decode(self._path)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self._described.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The type of its elements."""
        return self._described.dtype

    @property
    def order(self) -> Order:
        """C: the last index runs fastest; F: the first."""
        return self._described.order

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._described.nbytes

    @property
    def is_shared(self) -> bool:
        """Whether ``view()`` is the pool's own memory (True) or a fetched copy (False)."""
        return self.nbytes == 0 or self._map() is not None

    @property
    def layout(self) -> _native.Layout:
        """Where its bytes lie."""
        return self._open_file.layout()

    def describe(self) -> str:
        """Return in words how it is reached, such as "shared memory, 2 MiB chunks on 3 lanes"."""
        layout = self.layout
        how = "shared memory" if self.is_shared else "a fetched copy"
        return f"{how}, {(layout.stripe_unit or 0) / (1 << 20):g} MiB chunks on {layout.width} lanes"

    def __repr__(self) -> str:
        return f"<ramlace.Array {self.name!r} shape={self.shape} dtype={self.dtype} order={self.order}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "NDArray[Any]":
        import numpy as np

        view = self.view()
        if dtype is not None and np.dtype(dtype) != view.dtype:
            if copy is False:
                raise ValueError(f"an array of {dtype} cannot be made of {view.dtype} without a copy")
            return view.astype(dtype)
        return view.copy(order="K") if copy else view

    # Its content

    def view(self) -> "NDArray[Any]":
        """Return a writable numpy array of ``shape``, ``dtype`` and ``order`` with the content.

        Over shared memory (``is_shared``) stores are seen at once by every process of this machine. Otherwise it
        is a fetched copy, the same one at each call of a process: stores are sent by ``publish()``. A forked child gets
        a copy of its own when it calls this; views that it has of its parent's are in step with nothing.
        """
        import numpy as np

        if self.nbytes == 0:
            return np.empty(self.shape, self.dtype, order=self.order)
        mapping = self._map()
        if mapping is not None:
            return np.ndarray(self.shape, self.dtype, buffer=memoryview(mapping), order=self.order)
        copy = self._copies.get(os.getpid())
        if copy is None:
            # Merged element by element: half an element of one machine and half of another make none.
            fetched = self._open_file.copy(self.nbytes, self.dtype.itemsize)
            # Another thread may have been faster: both have the copy that is published.
            copy = self._copies.setdefault(os.getpid(), fetched)
        return np.ndarray(self.shape, self.dtype, buffer=memoryview(copy), order=self.order)

    def publish(self, key: "Index" = ...) -> None:
        """Make your stores visible to others: all of them, or those into the elements ``view()[key]``.

        ``key`` is an index of integers, slices, None and Ellipsis, such as ``numpy.s_[:, 3]``; IndexError beyond the
        bounds, TypeError for lists and masks. What lies in memory between the first and the last of these elements may
        be published as well. A fetched copy sends the elements that you changed, no others; where ``is_shared``
        processes of this machine have seen them already.

        ramlace.Error (ENOSPC) where the pool has no room for them: what was not sent counts as changed still. In a
        forked child that has a fetched copy of its parent alone: ramlace.Error (EBADF); call ``view()`` there.
        """
        self._check()
        copy = self._own_copy()
        start, end = self._span(key)
        if copy is not None:
            copy.publish(start, end)
        elif self._mapping is not None:
            self._open_file.publish(start, end)

    def change_version(self) -> _native.ChangeVersion:
        """Take the version of the elements: before you read them, so that ``wait_for_change`` misses nothing."""
        self._check()
        return self._open_file.change_version(0, max(self.nbytes, 1))

    def wait_for_change(self, since: _native.ChangeVersion, timeout: float | None = None) -> _native.ChangeVersion:
        """Wait until somebody has published or written since, for at most ``timeout`` seconds; return the next version.

        TimeoutError when nobody has. May also return when nothing has changed, as ``RawFile.wait_for_change``.
        A fetched copy shows the change after ``refresh()``.
        """
        self._check()
        return self._open_file.wait_for_change(since, timeout)

    def refresh(self, key: "Index" = ...) -> None:
        """Make others' published stores visible to you: all of them, or those into the elements ``view()[key]``.

        What you stored and did not publish stays. ``key`` is as for ``publish``, and what lies between these elements
        may be refreshed as well. Of what has not changed no bytes are fetched: that costs a message for each lane.
        In a forked child as ``publish``.
        """
        self._check()
        copy = self._own_copy()
        start, end = self._span(key)
        if copy is not None:
            copy.refresh(start, end)

    def publish_async(self, key: "Index" = ...) -> "Future[None]":
        """Begin ``publish(key)``, and return at once the future of its end (``asyncio.wrap_future`` awaits it).

        What you stored before the call is published when the future is done, what you store meanwhile perhaps. The
        array may be closed meanwhile.
        """
        self._check()
        copy = self._own_copy()
        start, end = self._span(key)
        if copy is not None:
            return _later.begin(copy.publish, start, end)
        if self._mapping is None:
            return _later.begin(lambda: None)
        # Taken now: this array may be closed when its turn comes.
        kept = self._open_file.kept()

        def publish() -> None:
            with closing(kept):
                kept.publish(start, end)

        return _later.begin(publish)

    def refresh_async(self, key: "Index" = ...) -> "Future[None]":
        """Begin ``refresh(key)``, and return at once the future of its end.

        What others had published before the call is there when the future is done, and may come piece by piece. What
        you store meanwhile stays.
        """
        self._check()
        copy = self._own_copy()
        start, end = self._span(key)
        if copy is not None:
            return _later.begin(copy.refresh, start, end)
        return _later.begin(lambda: None)

    def _own_copy(self) -> "_native.Copy | None":
        """Return the fetched copy of this process, or None where there is none; an error for its parent's alone."""
        copy = self._copies.get(os.getpid())
        if copy is None and self._copies:
            raise _errors.make(
                errno.EBADF,
                "BadHandle",
                f"{self.name}: its fetched copy is of the process that this one was forked from; view() makes one here",
            )
        return copy

    def _span(self, key: "Index") -> tuple[int, int]:
        """Return where the elements of an index begin and end, in bytes of the file."""
        import numpy as np

        if key is Ellipsis or self.nbytes == 0:
            return 0, self.nbytes
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if isinstance(part, bool) or not isinstance(part, int | np.integer | slice | type(...) | None):
                raise TypeError(f"{self.name}: an index has integers, slices, None and Ellipsis, and not {part!r}")
        view = self.view()
        # With an Ellipsis one element is an array, too, and lies where it does in the view.
        chosen = view[parts if any(part is Ellipsis for part in parts) else (*parts, ...)]
        if chosen.size == 0:
            return 0, 0
        start = chosen.__array_interface__["data"][0] - view.__array_interface__["data"][0]
        steps = [stride * (count - 1) for stride, count in zip(chosen.strides, chosen.shape, strict=True)]
        end = start + sum(step for step in steps if step > 0) + self.dtype.itemsize
        return start + sum(step for step in steps if step < 0), end

    def read(self, out: "NDArray[Any] | None" = None) -> "NDArray[Any]":
        """Read the published content by library calls into ``out``, or a new array; return it.

        ``out`` must have the array's shape and dtype, and be contiguous in its order;
        ValueError otherwise.
        """
        import numpy as np

        if out is None:
            out = np.empty(self.shape, self.dtype, order=self.order)
        contiguous = out.flags.f_contiguous if self.order == "F" else out.flags.c_contiguous
        if out.shape != self.shape or out.dtype != self.dtype or not contiguous or not out.flags.writeable:
            raise ValueError(
                f"{self.name}: out must be writable, contiguous in order {self.order}, of shape {self.shape} and "
                f"{self.dtype}; it has shape {out.shape} and {out.dtype}"
            )
        _each_part(out, self.order, self._read_part)
        return out

    def write(self, values: "NDArray[Any]") -> None:
        """Write all content and publish it: ``values`` has the array's shape, or is broadcast to it."""
        import numpy as np

        self._check()
        source = np.broadcast_to(np.asanyarray(values, dtype=self.dtype), self.shape)
        if self.nbytes == 0:
            return
        mapping = self._map()
        if mapping is not None:
            np.copyto(np.ndarray(self.shape, self.dtype, buffer=memoryview(mapping), order=self.order), source)
            # No server has seen these stores.
            self._open_file.publish(0, self.nbytes)
            return
        _each_part(np.asarray(source, order=self.order), self.order, self._write_part)
        copy = self._copies.get(os.getpid())
        if copy is not None:
            copy.fetch()

    def _read_part(self, part: memoryview, offset: int) -> None:
        count = self._open_file.read_into(part, offset)
        if count != len(part):
            raise _errors.make(
                errno.EIO, "Corrupt", f"{self.name}: {count} bytes at offset {offset} where {len(part)} belong"
            )

    def _write_part(self, part: memoryview, offset: int) -> None:
        done = 0
        while done < len(part):
            done += self._open_file.write_at(part[done:], offset + done)

    # Its life

    def close(self) -> None:
        """Give the array back. Views over shared memory stay valid; a fetched copy is published no more."""
        if not self._closed:
            self._closed = True
            self._mapping = None
            self._copies.clear()
            self._native.close()

    def __enter__(self) -> "Array":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> "tuple[Callable[..., Array], tuple[Any, ...]]":
        return _reopen, (self._pool, self.name, self._described)

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"{self.name}: this array is closed")

    @property
    def _open_file(self) -> _native.File:
        self._check()
        return self._native

    def _map(self) -> _native.Mapping | None:
        """Map the bytes once, where they can be mapped."""
        self._check()
        if not self._mapped and self.nbytes:
            self._mapping = self._native.map()
            self._mapped = True
        return self._mapping


def _reopen(pool: "Pool", name: str, described: Described) -> Array:
    array = pool.array(name)
    if array._described != described:
        array.close()
        raise ValueError(f"{name}: it was {described} when it was pickled, and is {array._described} now")
    return array


def _await_full(native: _native.File, described: Described, name: str) -> None:
    """Wait until the file has all its bytes: its creator may be taking their memory, which takes long for many."""
    import time

    taken, until, pause = -1, 0.0, LOOK_SECONDS_MIN
    while native.size() < described.nbytes:
        before, taken = taken, native.stat().st_blocks
        now = time.monotonic()
        if taken != before:
            until = now + STILL_SECONDS_MAX
        elif now > until:
            raise ValueError(
                f"{name}: the file has {native.size()} bytes, {described} needs {described.nbytes}, and for "
                f"{STILL_SECONDS_MAX:g} seconds no memory was taken for it: its creator stands still or has died, or "
                "it was truncated; where nobody creates it any more, remove it and create it again"
            )
        time.sleep(pause)
        pause = min(2 * pause, LOOK_SECONDS_MAX)


def _each_part(values: "NDArray[Any]", order: Order, work: "Callable[[memoryview, int], None]") -> None:
    """Call ``work(bytes, offset)`` for pieces of a contiguous array's memory."""
    if values.nbytes == 0:
        return
    flat = values.reshape(-1, order=order)
    whole = flat.view("u1").data
    for start in range(0, operator.index(values.nbytes), COPY_BYTES):
        work(whole[start : start + COPY_BYTES], start)
