"""What may be an array, and what may not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ramlace._described import KINDS, Described

plain = hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in KINDS and dtype.itemsize)


@given(shape=hnp.array_shapes(min_dims=0, min_side=0), dtype=plain, order=st.sampled_from("CF"))
def test_a_description_keeps_shape_dtype_and_order(shape, dtype, order):
    described = Described.of(shape, dtype, order)
    assert (described.shape, described.dtype, described.order) == (shape, dtype, order)
    assert described.nbytes == np.empty(shape, dtype).nbytes


@pytest.mark.parametrize("dtype", [object, np.dtype([("a", "f8"), ("b", "O")])])
def test_objects_are_refused(dtype):
    with pytest.raises(TypeError, match="Python objects"):
        Described.of(3, dtype, "C")


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ([("a", "f8")], "has fields"),
        (("f8", (2,)), "has fields"),
        ("U4", "encode them"),
        ("datetime64[ns]", "view them as int64"),
        ("timedelta64[s]", "view them as int64"),
    ],
)
def test_what_other_languages_cannot_read_is_refused_with_a_way_out(dtype, words):
    with pytest.raises(TypeError, match=words):
        Described.of(3, np.dtype(dtype), "C")


@pytest.mark.parametrize("dtype", ["S", "V"])
def test_a_dtype_without_a_size_is_refused(dtype):
    with pytest.raises(ValueError, match="no size"):
        Described.of(3, dtype, "C")


@pytest.mark.parametrize(("shape", "error"), [((-1,), ValueError), ((2.0, 3), TypeError), ("ab", TypeError)])
def test_shapes_that_are_none_are_refused(shape, error):
    with pytest.raises(error):
        Described.of(shape, "f8", "C")


def test_too_large_ones_and_unknown_orders_are_refused():
    with pytest.raises(ValueError, match="more than the largest file"):
        Described.of((1 << 40, 1 << 40), "f8", "C")
    with pytest.raises(ValueError, match="'A'"):
        Described.of(1, "f8", "A")


def test_another_shape_dtype_or_order_is_named_beside_the_one_that_is_there():
    described = Described.of((2, 3), "f8", "F")
    described.check("/x", (2, 3), "float64", "F")
    described.check("/x", None, None, None)
    with pytest.raises(ValueError, match=r"/x is there already.*\(2, 3\), not \(3, 2\).*float64, not int32.*F, not C"):
        described.check("/x", (3, 2), "i4", "C")
