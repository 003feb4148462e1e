"""Paths in a pool as Python gives them: text, bytes or path objects."""

import os

PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def encode(path: PathLike) -> bytes:
    """Return the bytes of a path; ValueError for a NUL, TypeError for what is no path."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("embedded null byte in a path")
    return encoded


def decode(name: bytes) -> str:
    """Return a name as text; bytes that are no UTF-8 come back by ``encode`` as they were."""
    return os.fsdecode(name)
