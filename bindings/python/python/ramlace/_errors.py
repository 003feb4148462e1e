"""The one error of ramlace, which is also the built-in OSError of its errno."""

import errno as _errno


class Error(OSError):
    """An operation that failed.

    ``errno`` is set as the operating system would, and errors that Python has a class for are
    of that class too: ``except FileNotFoundError`` works. ``kind`` is ramlace's own word for
    what can be done about it, such as ``Retry``, ``NoSpace`` or ``Lost``.
    """

    kind: str = "Fatal"


class _NotFoundError(Error, FileNotFoundError): ...


class _ExistsError(Error, FileExistsError): ...


class _NotDirectoryError(Error, NotADirectoryError): ...


class _IsDirectoryError(Error, IsADirectoryError): ...


class _DeniedError(Error, PermissionError): ...


class _TimedOutError(Error, TimeoutError): ...


class _AgainError(Error, BlockingIOError): ...


_BY_ERRNO: dict[int, type[Error]] = {
    _errno.ENOENT: _NotFoundError,
    _errno.EEXIST: _ExistsError,
    _errno.ENOTDIR: _NotDirectoryError,
    _errno.EISDIR: _IsDirectoryError,
    _errno.EACCES: _DeniedError,
    _errno.EPERM: _DeniedError,
    _errno.ETIMEDOUT: _TimedOutError,
    _errno.EAGAIN: _AgainError,
}

# A traceback shows the one name that users know.
for _class in set(_BY_ERRNO.values()):
    _class.__name__ = _class.__qualname__ = "Error"
    _class.__module__ = "ramlace"
Error.__module__ = "ramlace"


def make(number: int, kind: str, message: str) -> Error:
    """Return the error for an errno, a kind and a sentence; the native module calls this."""
    error = _BY_ERRNO.get(number, Error)(number, message)
    error.kind = kind
    return error
