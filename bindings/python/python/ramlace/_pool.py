"""A connected pool, and how to get one."""

import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, overload

from ramlace import _command, _file, _native, _paths, _umask
from ramlace._array import Array

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike, NDArray

    from ramlace._paths import PathLike

# The pool that is meant when none is named.
POOL_DEFAULT = "default"
POOL_VARIABLE = "RAMLACE_POOL"


class Entry(NamedTuple):
    """An entry of a directory: its name, its kind ("file", "directory" or "symlink") and its inode."""

    name: str
    kind: str
    inode: int


def up(name: str = POOL_DEFAULT, servers: int = 1, memory: int | str = "1GiB", *arguments: str) -> "Pool":
    """Start a pool on this machine and connect to it: ``ramlace up --pool NAME``.

    ``memory`` is what the ``servers`` lend together, in bytes or as text such as "512MiB". Further
    ``arguments`` go to the command as they are. The pool outlives this process: stop it by
    ``Pool.down()``.

    Raises ramlace.Error with the command's own words when it does not start: EINVAL for arguments that it does not
    take, others for instance because a pool of that name runs already or memory is missing.
    """
    wanted = ("--pool", name, "--servers", str(servers), "--memory", str(memory))
    _command.run("up", *wanted, *arguments)
    return connect(name)


def connect(
    pool: str | None = None, *, local: bool = True, deadline_seconds: float | None = None, cache_bytes: int = 0
) -> "Pool":
    """Connect to a running pool.

    ``pool`` is its name, ``host:port`` of one of its servers, or a locator such as ``ramlace://host:port/``; None means
    ``RAMLACE_POOL``, which has the same forms, else this user's default pool. With ``local=False`` all bytes go over
    TCP, also between processes of one machine. One operation may take ``deadline_seconds`` (default: 4; at most 600)
    before it fails with TimeoutError. A large transfer takes as long as it moves: its deadline counts from its last
    progress. Of what is read in small pieces up to ``cache_bytes``
    (0, or at least 65,536) are kept, as long as their file is open: reading them again costs hardly a message. Whoever
    changes them by a call, this program too, is answered when they are dropped. Stores into mapped memory are seen when
    they are published. Bytes of a server that the pool forgets may be read for four seconds more, and while a write is
    under way one read may bring its bytes and the next those of before.

    Raises ramlace.Error: FileNotFoundError when there is no such pool, PermissionError for a
    wrong secret, others when no server answers.
    """
    return Pool(pool, local=local, deadline_seconds=deadline_seconds, cache_bytes=cache_bytes)


class Pool:
    """A connected pool; made by ``up`` and ``connect``.

    Paths begin at the pool's root, with or without a slash, as text, bytes or path objects; ``ramlace:/path`` and the
    other locators of this pool mean the same.
    Every method raises ramlace.Error, which is the built-in OSError of its errno too:
    FileNotFoundError, FileExistsError, PermissionError and so on. A pool that is pickled, or
    used after a fork, connects anew in the other process. Leaving the context ends this
    connection; the pool itself runs on.
    """

    def __init__(self, pool: str | None, *, local: bool, deadline_seconds: float | None, cache_bytes: int = 0) -> None:
        named = pool or os.environ.get(POOL_VARIABLE) or POOL_DEFAULT
        self._arguments = (named, local, deadline_seconds, cache_bytes)
        millis = None if deadline_seconds is None else _millis(deadline_seconds)
        self._connected: _native.Pool | None = _native.Pool.connect(named, local, millis, cache_bytes)
        self._name = self._connected.name()

    @property
    def _client(self) -> _native.Pool:
        if self._connected is None:
            raise ValueError("the connection to this pool is closed")
        return self._connected

    @property
    def name(self) -> str | None:
        """The pool's name on this machine, or None when it was reached by an address."""
        return self._name

    @property
    def locator(self) -> str:
        """What ``connect`` and the command take to reach the pool: ``ramlace://name/`` or with host and port."""
        return f"ramlace://{self.name or self._client.address()}/"

    @property
    def local(self) -> bool:
        """Whether shared memory and Unix sockets may be used with servers on this machine."""
        return self._arguments[1]

    def _path(self, path: "PathLike") -> bytes:
        """Return the bytes of a path in this pool; of a locator, its path, when it means this pool."""
        encoded = _paths.encode(path)
        return self._client.path(encoded) if encoded.startswith(b"ramlace:") else encoded

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End this connection; files and arrays opened through it stay usable. The pool runs on."""
        self._connected = None

    def down(self) -> None:
        """Stop the pool: every byte in it is gone. Only for pools of this user on this machine."""
        if self.name is None:
            raise ValueError(f"{self.locator} was reached by an address; stop it where it was started: ramlace down")
        self.close()
        _command.run("down", "--pool", self.name)

    def __repr__(self) -> str:
        state = " closed" if self._connected is None else ""
        return f"<ramlace.Pool {self._arguments[0]!r}{'' if self.local else ' local=False'}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reconnect, self._arguments

    # Files

    @overload
    def open(
        self,
        path: "PathLike",
        mode: str = "rb",
        *,
        buffering: Literal[0],
        stripe_unit: int | None = None,
        width: int | None = None,
        permissions: int = 0o666,
        sharing: "_native.SharingMode | None" = None,
    ) -> _file.RawFile: ...
    @overload
    def open(
        self,
        path: "PathLike",
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        stripe_unit: int | None = None,
        width: int | None = None,
        permissions: int = 0o666,
        sharing: "_native.SharingMode | None" = None,
    ) -> Any: ...
    def open(
        self,
        path: "PathLike",
        mode: str = "rb",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        stripe_unit: int | None = None,
        width: int | None = None,
        permissions: int = 0o666,
        sharing: "_native.SharingMode | None" = None,
    ) -> Any:
        """Open a file as the built-in ``open`` does; the mode is ``rb`` unless told otherwise.

        ``mode`` is one of r, w, x, a, with + where wanted, and b for bytes; text without b.
        ``buffering=0`` gives the RawFile itself, other values the size of its buffer in bytes
        (default: 1 MiB; 1 in text mode: flush each line). A new file gets ``permissions`` less
        the process's umask, and chunks of ``stripe_unit`` bytes (a power of two, 64 KiB or more)
        that go round ``width`` servers; by default as its directory says.

        ``sharing`` is about this open file: ``"relaxed"`` sees what others have changed after ``refresh``, or when it
        locks these bytes, and what it has read in small pieces it reads again from what ``cache_bytes`` of ``connect``
        keep; with ``"strict"`` each read asks. Usually, and with ``"coherent"``, a read sees every write that has
        returned. Where the file's own mode is stricter, that counts.

        Raises ValueError for a wrong mode, ramlace.Error for the rest.
        """
        wanted = _file.Mode.parse(mode)
        _file.check_arguments(wanted, buffering, encoding, errors, newline)
        how: _file.Open = {
            "read": wanted.read,
            "write": wanted.write,
            "append": wanted.append,
            "create": wanted.create,
            "exclusive": wanted.exclusive,
            "truncate": wanted.truncate,
            "permissions": permissions & 0o7777,
            "umask": _umask.current(),
            "stripe_unit": stripe_unit,
            "width": width,
            "copies": None,
            "sharing": sharing,
        }
        encoded = self._path(path)
        raw = _file.RawFile(self._client.open(encoded, how), _paths.decode(encoded), wanted)
        try:
            return _file.wrap(raw, wanted, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise

    def ls(self, path: "PathLike" = "/") -> list[Entry]:
        """Return the entries of a directory, sorted by name."""
        return sorted(self.scandir(path))

    def scandir(self, path: "PathLike" = "/") -> Iterator[Entry]:
        """Yield the entries of a directory in the servers' order; of one that has lost some, first what is there."""
        entries, broken = self._client.read_directory(self._path(path))
        for entry in entries:
            yield Entry(_paths.decode(entry.name), entry.kind, entry.inode)
        if broken is not None:
            raise broken

    def listdir(self, path: "PathLike" = "/") -> list[str]:
        """Return the names in a directory, in no certain order."""
        return [entry.name for entry in self.scandir(path)]

    def stat(self, path: "PathLike", *, follow_symlinks: bool = True) -> _native.Stat:
        """Return the attributes of what the path leads to, under the names of os.stat_result."""
        return self._client.stat(self._path(path), follow_symlinks)

    def read_bytes(self, path: "PathLike") -> bytes:
        """Return all bytes of a file; those of a small one come without opening it, in one request."""
        return self._client.read(self._path(path))

    def exists(self, path: "PathLike") -> bool:
        """Return whether the path leads to something."""
        return self._client.exists(self._path(path))

    def mkdir(self, path: "PathLike", permissions: int = 0o777) -> None:
        """Make a directory, with ``permissions`` less the process's umask."""
        self._client.mkdir(self._path(path), permissions & 0o7777, _umask.current())

    def makedirs(self, path: "PathLike", permissions: int = 0o777, *, exist_ok: bool = False) -> None:
        """Make a directory and those above it that are missing; FileExistsError unless ``exist_ok``."""
        encoded = self._path(path)
        how = permissions & 0o7777, _umask.current()
        parent, _, name = encoded.rstrip(b"/").rpartition(b"/")
        if exist_ok or not name:
            self._client.mkdir_all(encoded, *how)
            return
        if parent:
            self._client.mkdir_all(parent, *how)
        self._client.mkdir(encoded, *how)

    def remove(self, path: "PathLike") -> None:
        """Remove a file or a link; an open file lives until its last close."""
        self._client.unlink(self._path(path))

    def remove_many(self, paths: "Iterable[PathLike]") -> list[Exception | None]:
        """Remove files and links, many by one message where they lie in one directory.

        Return for each path None, or the error that `remove` would raise: one that is missing keeps none of the
        others. A path that is given twice is removed once. They are removed in no certain order.
        """
        return self._client.unlink_many([self._path(path) for path in paths])

    def rmdir(self, path: "PathLike") -> None:
        """Remove an empty directory."""
        self._client.rmdir(self._path(path))

    def rmtree(self, path: "PathLike") -> None:
        """Remove a file, a link, or a directory with all that is in it; links are not followed."""
        self._client.remove_tree(self._path(path))

    def rename(self, old: "PathLike", new: "PathLike", *, overwrite: bool = True, exchange: bool = False) -> None:
        """Give a file, link or directory another name; no bytes move.

        What has the new name is replaced, as by ``os.replace``: a file by a file, an empty directory
        by a directory. With ``overwrite=False`` it is kept: FileExistsError. With
        ``exchange`` it must be there, and each gets the other's name.
        """
        if exchange and not overwrite:
            raise ValueError("an exchange has no use for overwrite=False")
        mode = 2 if exchange else 0 if overwrite else 1
        self._client.rename(self._path(old), self._path(new), mode)

    def replace(self, old: "PathLike", new: "PathLike") -> None:
        """Rename, replacing what has the new name: ``os.replace``."""
        self.rename(old, new)

    def link(self, old: "PathLike", new: "PathLike") -> None:
        """Give a file or a link one more name; it lives while it has one, or is open."""
        self._client.link(self._path(old), self._path(new))

    def symlink(self, target: "PathLike", path: "PathLike") -> None:
        """Make a symbolic link at ``path`` that points to ``target``."""
        self._client.symlink(_paths.encode(target), self._path(path))

    def readlink(self, path: "PathLike") -> str:
        """Return the target of a symbolic link."""
        return _paths.decode(self._client.read_link(self._path(path)))

    def setxattr(
        self, path: "PathLike", attribute: str | bytes, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        """Set an extended attribute, at most 64 KiB; ``flags`` are os.XATTR_CREATE and os.XATTR_REPLACE."""
        if flags not in (0, os.XATTR_CREATE, os.XATTR_REPLACE):
            raise ValueError(f"flags {flags} have no meaning")
        self._client.set_xattr(self._path(path), follow_symlinks, os.fsencode(attribute), bytes(value), flags)

    def getxattr(self, path: "PathLike", attribute: str | bytes, *, follow_symlinks: bool = True) -> bytes:
        """Return the value of an extended attribute; an error with errno ENODATA when there is none."""
        return self._client.get_xattr(self._path(path), follow_symlinks, os.fsencode(attribute))

    def listxattr(self, path: "PathLike", *, follow_symlinks: bool = True) -> list[str]:
        """Return the names of the extended attributes that this user may see."""
        return [os.fsdecode(name) for name in self._client.list_xattrs(self._path(path), follow_symlinks)]

    def removexattr(self, path: "PathLike", attribute: str | bytes, *, follow_symlinks: bool = True) -> None:
        """Remove an extended attribute."""
        self._client.remove_xattr(self._path(path), follow_symlinks, os.fsencode(attribute))

    def truncate(self, path: "PathLike", size: int) -> None:
        """Set the size of a file, in bytes; what is new reads as zeros."""
        if size < 0:
            raise ValueError(f"negative size: {size}")
        self._client.truncate(self._path(path), size)

    def layout(self, path: "PathLike") -> _native.Layout:
        """Return where a file's bytes lie and its own mode, or what a directory hands down to new files."""
        return self._client.layout(self._path(path))

    def set_layout(
        self,
        path: "PathLike",
        *,
        stripe_unit: int | None = None,
        width: int | None = None,
        mode: "_native.SharingMode | None" = None,
        reserve: bool = False,
    ) -> None:
        """Set what files that are made in a directory get: chunks of ``stripe_unit`` bytes on ``width`` servers.

        Of a file, ``mode`` and ``reserve`` can be set, while nobody has it open (else an error with errno EBUSY):
        when other machines see what programs store into the mapped file, on every mount; and whether what makes the
        file longer takes the memory of all that is new, or fails with errno ENOSPC. What is not named is
        as usual: as each mount has it, or the pool. NotADirectoryError for the rest of a file's
        layout, which was fixed when it was created.
        """
        self._client.set_layout(self._path(path), stripe_unit, width, None, mode, reserve)

    def statfs(self) -> _native.Capacity:
        """Return what the pool lends and holds, in bytes, over the servers that answered."""
        return self._client.statfs()

    def servers(self) -> list[_native.ServerReport]:
        """Return what each server says of itself; ``problem`` is set for one that does not answer."""
        return self._client.servers()

    def barrier(self, name: str | bytes, parties: int, member: int, timeout: float | None = None) -> int:
        """Come to the barrier ``name`` as member ``member`` of ``parties`` (from 0) and wait until all have come.

        Returns the number of the round, from 1. It needs nothing made beforehand, and can be used again at once.
        Waits for at most ``timeout`` seconds, for ever without: then TimeoutError names the members that have
        not come, with host and process where they came before, and this member counts as if it had not come.
        """
        return self._client.barrier(name.encode() if isinstance(name, str) else name, parties, member, timeout)

    # Arrays

    def array(
        self,
        path: "PathLike",
        shape: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
        dtype: "DTypeLike | None" = None,
        order: Literal["C", "F"] | None = None,
        *,
        stripe_unit: int | None = None,
        width: int | None = None,
    ) -> Array:
        """Open the shared array at ``path``; create it, filled with zeros, when it is not there.

        To create, ``shape`` is needed; ``dtype`` is float64 and ``order`` C (the last index runs
        fastest) unless told otherwise. It gets the permissions 0o666 less the process's umask.
        What is given when the array is there already must
        agree with it: ValueError names both. TypeError for a dtype that holds Python objects,
        FileNotFoundError when there is no array and no shape, OSError with ENOSPC when the
        pool has no room for all of it.
        """
        return Array._open(self, path, shape, dtype, order, stripe_unit, width)

    def from_numpy(
        self,
        path: "PathLike",
        values: "NDArray[Any] | numpy.generic",
        *,
        stripe_unit: int | None = None,
        width: int | None = None,
    ) -> Array:
        """Create a shared array with a numpy array's shape, dtype, order and content, and publish it.

        FileExistsError when the name is taken. An array that is contiguous in Fortran's order
        alone keeps that order; any other is stored in C order, whatever its strides.
        """
        return Array._from_numpy(self, path, values, stripe_unit, width)


def _reconnect(pool: str, local: bool, deadline_seconds: float | None, cache_bytes: int) -> Pool:
    return Pool(pool, local=local, deadline_seconds=deadline_seconds, cache_bytes=cache_bytes)


def _millis(seconds: float) -> int:
    if not 0.001 <= seconds <= 600:
        raise ValueError(f"a deadline lies between 0.001 and 600 seconds, not {seconds}")
    return int(seconds * 1000)
