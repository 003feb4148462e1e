"""ramlace laces the memory of many machines into one pool of files and shared arrays.

>>> import ramlace
>>> pool = ramlace.up(servers=3, memory="1GiB")  # doctest: +SKIP
>>> array = pool.array("/matrix", (1000, 20), "float64", order="F")  # doctest: +SKIP
>>> array.view()[:, 0] = 1.0  # doctest: +SKIP

Importing this package starts nothing and needs no running server; numpy is imported when
the first array is used.
"""

from ramlace._array import Array
from ramlace._errors import Error
from ramlace._file import RangeLock, RawFile
from ramlace._native import Capacity, ChangeVersion, DirEntry, Layout, ServerReport, Stat, __version__
from ramlace._pool import Entry, Pool, connect, up

__all__ = [
    "Array",
    "Capacity",
    "ChangeVersion",
    "DirEntry",
    "Entry",
    "Error",
    "Layout",
    "Pool",
    "RangeLock",
    "RawFile",
    "ServerReport",
    "Stat",
    "__version__",
    "connect",
    "up",
]
