"""The pool as a directory for the demo's programs: mounted where the machine can, unmounted at the end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramlace import Error, _command

# Setting this attribute of a file on a mount drops the kernel's pages of it.
REFRESH_ATTRIBUTE = "user.ramlace.refresh"
# How the command fails where FUSE, fusermount3 or the right to mount is missing; all else is a fault.
MISSING_KINDS = ("Unsupported", "NotPermitted", "Denied")


class NoMountError(Exception):
    """Nothing can be mounted here by this user; the sentence says what is missing."""


@contextmanager
def mounted(pool: str) -> Iterator[Path]:
    """Mount a pool on a directory of its own; unmount it at the end, whatever happens.

    Raises NoMountError where the machine has no FUSE for this user.
    """
    directory = Path(tempfile.mkdtemp(prefix="ramlace-demo-"))
    try:
        try:
            _command.run("mount", "--pool", pool, str(directory))
        except Error as error:
            if error.kind in MISSING_KINDS:
                raise NoMountError(str(error)) from error
            raise
        try:
            yield directory
        finally:
            # Also while a worker that failed still has the file mapped: its mount goes when it ends.
            _command.run("unmount", str(directory))
    finally:
        # Never more than an empty directory: a mount that stayed would lose the pool's files.
        directory.rmdir()


def drop_pages(path: Path) -> None:
    """Drop the kernel's pages of a file on a mount."""
    os.setxattr(path, REFRESH_ATTRIBUTE, b"1")
