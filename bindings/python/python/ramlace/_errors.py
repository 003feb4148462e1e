"""The one error of ramlace, which is also the built-in OSError of its errno."""

import errno as _errno
from typing import Any


class Error(OSError):
    """An operation that failed.

    ``errno`` is set as the operating system would, and errors that Python has a class for are
    of that class too: ``except FileNotFoundError`` works. ``kind`` is ramlace's own word for
    what can be done about it, such as ``Retry``, ``NoSpace`` or ``Lost``.
    """

    kind: str = "Fatal"

    def __reduce__(self) -> tuple[Any, ...]:
        made = super().__reduce__()
        own = _OWN_NAMES.get(type(self))
        # A class that a program has derived is found by its name.
        if own is None or isinstance(made, str):
            return made  # type: ignore[return-value]
        _, arguments, *state = made
        return (_again, (own, arguments), *state)


class _NotFoundError(Error, FileNotFoundError): ...


class _ExistsError(Error, FileExistsError): ...


class _NotDirectoryError(Error, NotADirectoryError): ...


class _IsDirectoryError(Error, IsADirectoryError): ...


class _DeniedError(Error, PermissionError): ...


class _TimedOutError(Error, TimeoutError): ...


class _AgainError(Error, BlockingIOError): ...


class _InvalidError(Error, ValueError): ...


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

# By which each is pickled: all have the same name afterwards.
_CLASSES: set[type[Error]] = {Error, _InvalidError, *_BY_ERRNO.values()}
_OWN_NAMES = {own: own.__name__ for own in _CLASSES}
_BY_OWN_NAME = {name: own for own, name in _OWN_NAMES.items()}

# A traceback shows the one name that users know.
for _class in _CLASSES:
    _class.__name__ = _class.__qualname__ = "Error"
    _class.__module__ = "ramlace"


def _again(own: str, arguments: tuple[Any, ...]) -> Error:
    """Return the error that was pickled; its state follows."""
    return _BY_OWN_NAME[own](*arguments)


def make(number: int, kind: str, message: str) -> Error:
    """Return the error for an errno, a kind and a sentence; the native module calls this."""
    error = _BY_ERRNO.get(number, Error)(number, message)
    error.kind = kind
    return error


def invalid(message: str) -> Error:
    """Return the error for a position or a size that no file has: ValueError too, as files of Python refuse it."""
    return _InvalidError(_errno.EINVAL, message)
