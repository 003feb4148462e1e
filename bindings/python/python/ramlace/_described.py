"""What an array is: shape, dtype and order, as an attribute of its file."""

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from ramlace import _native

Order = Literal["C", "F"]
Shape = SupportsIndex | tuple[SupportsIndex, ...]

# Bytes of the largest file (the base crate's FILE_BYTES_MAX).
FILE_BYTES_MAX = 1 << 62
# Kinds of elements that mean the same in every language: bool, integers, floats, complex
# numbers, and bytes of fixed length.
KINDS = "biufcSV"


@dataclass(frozen=True)
class Described:
    """Shape, dtype (numpy's string for it, such as ``<f8``) and order of an array."""

    shape: tuple[int, ...]
    dtype_str: str
    order: Order

    @staticmethod
    def of(shape: Shape, dtype: "DTypeLike | None", order: str) -> "Described":
        """Check and describe what a user asked for; ValueError or TypeError says what is wrong."""
        if order not in ("C", "F"):
            raise ValueError(f"order must be 'C' or 'F', not {order!r}")
        described = Described(checked_shape(shape), _plain(dtype).str, "F" if order == "F" else "C")
        if described.nbytes > FILE_BYTES_MAX:
            raise ValueError(f"{described} takes {described.nbytes} bytes, more than the largest file")
        return described

    @staticmethod
    def read(file: "_native.File", name: str) -> "Described":
        """Read what an array's file says of itself; ValueError when it is a plain file."""
        found = file.array_type()
        if found is None:
            raise ValueError(f"{name} is a file, but no array: open it by Pool.open, or choose another name")
        shape, dtype_str, order = found
        return Described(tuple(shape), dtype_str, order)

    @cached_property
    def dtype(self) -> "np.dtype[Any]":
        """The elements' type."""
        import numpy as np

        return np.dtype(self.dtype_str)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check(self, name: str, shape: tuple[int, ...] | None, dtype: "DTypeLike | None", order: Order | None) -> None:
        """Raise ValueError, which names both, when the array is another than the caller expects."""
        import numpy as np

        differences = []
        if shape is not None and shape != self.shape:
            differences.append(f"its shape is {self.shape}, not {shape}")
        if dtype is not None and np.dtype(dtype) != self.dtype:
            differences.append(f"its dtype is {self.dtype}, not {np.dtype(dtype)}")
        if order is not None and order != self.order:
            differences.append(f"its order is {self.order}, not {order}")
        if differences:
            raise ValueError(f"{name} is there already, and {' and '.join(differences)}")

    def __str__(self) -> str:
        return f"an array of shape {self.shape}, {self.dtype}, order {self.order}"


def checked_shape(shape: Shape) -> tuple[int, ...]:
    """Return a shape as a tuple of lengths; TypeError or ValueError when it is none."""
    lengths: tuple[int, ...]
    if isinstance(shape, SupportsIndex):
        lengths = (operator.index(shape),)
    else:
        lengths = tuple(operator.index(length) for length in shape)
    if any(length < 0 for length in lengths):
        raise ValueError(f"a shape has no negative lengths: {lengths}")
    return lengths


def _plain(dtype: "DTypeLike | None") -> "np.dtype[Any]":
    """Return a dtype that every language can read; TypeError or ValueError for others."""
    import numpy as np

    found = np.dtype("float64" if dtype is None else dtype)
    if found.hasobject:
        raise TypeError(f"dtype {found} holds Python objects, which live in one process; arrays hold plain values")
    if found.names is not None or found.subdtype is not None:
        raise TypeError(
            f"dtype {found} has fields; store one array for each field, or bytes of dtype 'V{found.itemsize}'"
        )
    if found.kind not in KINDS:
        hint = "view them as int64" if found.kind in "mM" else "encode them, for instance as 'S32'"
        raise TypeError(f"dtype {found} is none of numbers, bools and fixed bytes; {hint}")
    if found.itemsize == 0:
        raise ValueError(f"dtype {found} has no size; say how long its elements are, as in 'S8'")
    return found
