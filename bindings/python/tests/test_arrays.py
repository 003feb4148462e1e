"""Shared arrays of a running pool: views over shared memory here, fetched copies without it."""

import asyncio
import errno
import multiprocessing
import os
import pickle
import stat
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ramlace
from ramlace import _later
from ramlace._described import KINDS

plain = hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in KINDS and dtype.itemsize)
arrays = plain.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=6)))


def same(left, right):
    """Bit for bit, NaN and padding included."""
    return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_new_array_is_zeros_of_its_shape(pool, place, order):
    array = pool.array(f"{place}/a", (100, 7), "float64", order=order)
    assert (array.shape, array.dtype, array.order) == ((100, 7), np.float64, order)
    assert (array.nbytes, array.size, array.ndim, len(array)) == (5600, 700, 2, 100)
    view = array.view()
    assert view.flags.writeable
    assert view.flags.f_contiguous if order == "F" else view.flags.c_contiguous
    assert not view.any()


# SEMANTICS 147.7
@pytest.mark.parametrize(("umask", "expected"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_a_new_array_obeys_the_umask_as_a_file_does(pool, place, umask, expected):
    before = os.umask(umask)
    try:
        pool.array(f"{place}/a", 10).close()
        pool.from_numpy(f"{place}/b", np.arange(10)).close()
        pool.open(f"{place}/c", "wb").close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(pool.stat(f"{place}/{name}").st_mode) for name in "abc"] == [expected] * 3


def test_sharing_is_as_the_connection_says(pool, place):
    assert pool.array(f"{place}/a", 10).is_shared == pool.local


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=arrays, order=st.sampled_from("CF"))
def test_every_array_comes_back_bit_for_bit(pool, place, values, order):
    stored = np.asarray(values, order=order)
    with pool.from_numpy(f"{place}/a", stored) as array:
        assert same(array.view(), stored)
        assert same(array.read(), stored)
    with pool.array(f"{place}/a") as again:
        assert same(again.view(), stored)
    pool.remove(f"{place}/a")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24).reshape(4, 6)[::-1, ::-2],
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.broadcast_to(np.arange(5), (3, 5)),
        np.float32(3.5),
        np.array(7, dtype=">i4"),
        np.zeros((0, 3)),
        np.array([], dtype="S3"),
    ],
    ids=["negative", "transposed", "broadcast", "scalar", "big-endian", "no-rows", "nothing"],
)
def test_strides_scalars_and_empty_ones(pool, place, values):
    with pool.from_numpy(f"{place}/a", values) as array:
        assert same(array.view(), np.asarray(values))
        assert array.dtype == values.dtype


def test_masked_arrays_and_objects_are_refused_and_leave_nothing(pool, place):
    for values in (np.ma.array([1, 2], mask=[0, 1]), np.array([{}])):
        with pytest.raises(TypeError):
            pool.from_numpy(f"{place}/a", values)
    with pytest.raises(TypeError, match="Python objects"):
        pool.array(f"{place}/a", 3, object)
    assert pool.listdir(place) == []


def test_an_array_of_another_shape_dtype_or_order_is_refused_with_both_named(pool, place):
    pool.array(f"{place}/a", (3, 4), "int32", order="F").close()
    pool.array(f"{place}/a").close()
    pool.array(f"{place}/a", (3, 4)).close()
    for arguments, words in [
        (((4, 3),), r"\(3, 4\), not \(4, 3\)"),
        (((3, 4), "float64"), "int32, not float64"),
        (((3, 4), "int32", "C"), "F, not C"),
    ]:
        with pytest.raises(ValueError, match=words):
            pool.array(f"{place}/a", *arguments)
    pool.open(f"{place}/plain", "wb").close()
    with pytest.raises((ValueError, OSError), match=r"not an array|no array"):
        pool.array(f"{place}/plain")
    with pytest.raises(FileNotFoundError, match="gone"):
        pool.array(f"{place}/gone")
    with pytest.raises(FileExistsError):
        pool.from_numpy(f"{place}/a", np.zeros(3))


def test_an_array_that_does_not_fit_is_refused_and_leaves_nothing(pool, place):
    free = pool.statfs().free_bytes
    with pytest.raises(OSError) as caught:
        pool.array(f"{place}/big", free // 8 + (64 << 17))
    assert caught.value.errno == 28
    assert pool.listdir(place) == []
    assert pool.statfs().free_bytes > free - (32 << 20)


def test_stores_are_seen_by_others_after_publish_and_refresh(pool, pool_name, place):
    mine = pool.array(f"{place}/a", 1000)
    with ramlace.connect(pool_name, local=False) as elsewhere:
        theirs = elsewhere.array(f"{place}/a")
        assert not theirs.is_shared
        view = theirs.view()
        mine.view()[10:20] = 1.0
        mine.publish()
        theirs.refresh()
        assert view.sum() == 10
        view[0], view[999] = 5.0, 7.0
        theirs.publish()
        mine.refresh()
        assert (mine.view()[0], mine.view()[999], mine.view().sum()) == (5.0, 7.0, 22.0)
        theirs.close()


# SEMANTICS 8.5
def test_what_a_view_has_stored_is_there_for_copies_when_it_ends(pool_name, place):
    with ramlace.connect(pool_name, local=True) as here, ramlace.connect(pool_name, local=False) as elsewhere:
        mine = here.array(f"{place}/a", 1000)
        theirs = elsewhere.array(f"{place}/a")
        copy = theirs.view()
        view = mine.view()
        view[17] = 5.0
        mine.close()
        del view
        theirs.refresh()
        assert copy[17] == 5.0
        theirs.close()


# SEMANTICS 8.5, 85.1
def test_what_is_written_into_an_array_is_told_and_fetched(pool, pool_name, place):
    with ramlace.connect(pool_name, local=False) as elsewhere, pool.array(f"{place}/a", (100, 30)) as mine:
        theirs = elsewhere.array(f"{place}/a")
        copy = theirs.view()
        since = theirs.change_version()
        mine.write(7.0)
        theirs.wait_for_change(since, timeout=20)
        theirs.refresh()
        assert (copy == 7.0).all()
        theirs.close()


def test_threads_that_view_an_array_first_have_the_same_copy(pool_name, place):
    with ramlace.connect(pool_name, local=False) as elsewhere:
        for turn in range(5):
            with elsewhere.array(f"{place}/{turn}", 200_000) as array:
                together = threading.Barrier(4)

                def store(number, array=array, together=together):
                    together.wait()
                    array.view()[number] = number + 1.0

                threads = [threading.Thread(target=store, args=(number,)) for number in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                array.publish()
                assert array.read()[:4].tolist() == [1.0, 2.0, 3.0, 4.0]


# SEMANTICS 8.4
@pytest.mark.parametrize("order", ["C", "F"])
def test_some_elements_are_published_and_refreshed(pool, pool_name, place, order):
    pool.array(f"{place}/a", (40, 30), order=order).close()
    keys = (
        np.s_[3, 4],
        np.s_[5],
        np.s_[:, 7],
        np.s_[..., 8],
        np.s_[30:20:-2, 9],
        np.s_[-1, -1],
        np.s_[None, np.int64(6)],
    )
    with ramlace.connect(pool_name, local=False) as elsewhere:
        mine, theirs = elsewhere.array(f"{place}/a"), elsewhere.array(f"{place}/a")
        mine.view()[0, 0] = theirs.view()[20, 15] = 500.0
        for number, key in enumerate(keys, 1):
            mine.view()[key] = number
            mine.publish(key)
            theirs.refresh(key)
            assert (theirs.view()[key] == number).all(), key
        assert theirs.view()[20, 15] == 500.0
        mine.publish(np.s_[3, 4])
        assert theirs.read()[20, 15] == 0.0, "nobody has published it"
        for key in (np.s_[:0], np.s_[5:5, 3]):
            before = mine.read()
            mine.view()[20, 20] = 7.0
            mine.publish(key)
            assert np.array_equal(mine.read(), before)
        for wrong, error in (([1, 2], TypeError), (True, TypeError), ("x", TypeError), (np.s_[40], IndexError)):
            with pytest.raises(error):
                mine.publish(wrong)
            with pytest.raises(error):
                mine.refresh(wrong)
        mine.close()
        theirs.close()
        with pytest.raises(ValueError, match="closed"):
            theirs.refresh(np.s_[1])


# SEMANTICS 144.1
def test_some_elements_are_published_and_refreshed_beside_the_program(pool, pool_name, place):
    pool.array(f"{place}/a", (40, 30)).close()
    with ramlace.connect(pool_name, local=False) as elsewhere:
        mine, theirs = elsewhere.array(f"{place}/a"), elsewhere.array(f"{place}/a")
        mine.view()[0, 0] = theirs.view()[20, 15] = 500.0
        for number in range(1, 20):
            mine.view()[number] = number
            assert mine.publish_async(np.s_[number]).result() is None
            assert theirs.refresh_async(np.s_[number]).result() is None
            assert (theirs.view()[number] == number).all()
        assert theirs.view()[0, 0] == 0.0, "nobody has published it"
        assert theirs.view()[20, 15] == 500.0

        async def together() -> None:
            mine.view()[:] = 7.0
            await asyncio.gather(*(asyncio.wrap_future(mine.publish_async(np.s_[row])) for row in range(40)))
            await asyncio.wrap_future(theirs.refresh_async())

        asyncio.run(together())
        assert (theirs.read() == 7.0).all()
        expected = np.full((40, 30), 7.0)
        expected[20, 15] = 500.0
        assert np.array_equal(theirs.view(), expected)
        with pytest.raises(IndexError):
            mine.publish_async(np.s_[40])
        mine.close()
        theirs.close()
        with pytest.raises(ValueError, match="closed"):
            theirs.refresh_async()
    # Where it is the pool's own memory, there is nothing to fetch.
    with pool.array(f"{place}/a") as shared:
        shared.view()[0] = 9.0
        shared.publish_async().result()
        shared.refresh_async().result()


# SEMANTICS 144.1
def test_an_array_is_closed_before_its_publish_begins(pool, pool_name, place):
    pool.array(f"{place}/a", 1000).close()
    with ramlace.connect(pool_name, local=False) as elsewhere, elsewhere.array(f"{place}/a") as theirs:
        copy = theirs.view()
        mine = pool.array(f"{place}/a")
        view, ready = mine.view(), threading.Event()
        view[17] = 5.0
        # Nothing else begins meanwhile.
        busy = [_later.begin(ready.wait) for _ in range(_later.THREADS_MAX)]
        publishing = mine.publish_async()
        mine.close()
        ready.set()
        assert publishing.result() is None
        assert [other.result() for other in busy] == [None] * _later.THREADS_MAX
        theirs.refresh()
        assert copy[17] == 5.0
        del view


def test_two_copies_that_store_to_different_elements_do_not_undo_each_other(pool_name, pool, place):
    pool.array(f"{place}/a", 64, "int8").close()
    with ramlace.connect(pool_name, local=False) as remote:
        left, right = remote.array(f"{place}/a"), remote.array(f"{place}/a")
        left.view()[::2] = 1
        right.view()[1::2] = 2
        left.publish()
        right.publish()
        assert left.read().tolist() == [1, 2] * 32
        # What was not published stays at a refresh.
        left.view()[0] = 9
        left.refresh()
        assert left.view()[:4].tolist() == [9, 2, 1, 2]


def test_a_view_outlives_its_array_and_its_pool(pool_name, place, pool):
    with ramlace.connect(pool_name, local=pool.local) as other:
        array = other.from_numpy(f"{place}/a", np.arange(1000.0))
        view = array.view()
        array.close()
    assert view.sum() == 499_500
    with pytest.raises(ValueError, match="closed"):
        array.view()


def test_read_checks_where_it_reads_to(pool, place):
    array = pool.from_numpy(f"{place}/a", np.asfortranarray(np.arange(12.0).reshape(3, 4)))
    out = np.empty((3, 4), order="F")
    assert array.read(out) is out
    assert out[2, 3] == 11
    for wrong in (np.empty((3, 4)), np.empty((4, 3), order="F"), np.empty((3, 4), "f4", order="F")):
        with pytest.raises(ValueError, match="out must be"):
            array.read(wrong)


def test_numpy_takes_an_array_as_it_is(pool, place):
    array = pool.from_numpy(f"{place}/a", np.arange(10))
    assert np.sum(array) == 45
    assert np.asarray(array, dtype=float).dtype == float
    assert np.array(array).flags.owndata


def _sum_in_worker(array, queue):
    queue.put((array.view().sum(), array.is_shared))
    array.view()[0] = 100.0
    array.publish()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_arrays_travel_to_other_processes_by_name(pool, place, method):
    array = pool.from_numpy(f"{place}/a", np.arange(10.0))
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=_sum_in_worker, args=(array, queue))
    process.start()
    total, shared = queue.get()
    process.join()
    assert process.exitcode == 0
    assert (total, shared) == (45.0, pool.local)
    array.refresh()
    assert array.view()[0] == 100.0


def _use_copy_of_parent(array, queue):
    for call in (array.publish, array.refresh, array.publish_async, array.refresh_async):
        with pytest.raises(ramlace.Error, match="forked") as refused:
            call()
        assert refused.value.errno == errno.EBADF
    view = array.view()
    assert view[:3].tolist() == [1.0, 0.0, 0.0], "the parent has not published the second one"
    view[2] = 3.0
    array.publish()
    queue.put(array.read()[:3].tolist())


def test_a_forked_child_has_a_fetched_copy_of_its_own(pool_name, place):
    with ramlace.connect(pool_name, local=False) as elsewhere, elsewhere.array(f"{place}/a", 1000) as array:
        view = array.view()
        view[0] = 1.0
        array.publish()
        view[1] = 2.0
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=_use_copy_of_parent, args=(array, queue))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert queue.get() == [1.0, 0.0, 3.0]
        array.publish()
        array.refresh()
        assert view[:3].tolist() == array.read()[:3].tolist() == [1.0, 2.0, 3.0]


def test_a_pickled_array_that_was_replaced_is_refused(pool, place):
    pickled = pickle.dumps(pool.array(f"{place}/a", 3))
    pool.remove(f"{place}/a")
    pool.array(f"{place}/a", 4).close()
    with pytest.raises(ValueError, match=r"\(3,\).*\(4,\)"):
        pickle.loads(pickled)


def test_several_processes_may_open_or_create_the_same_array_at_once(pool_name, place):
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as workers:
        shapes = workers.starmap(_open_or_create, [(pool_name, f"{place}/race")] * 8)
    assert set(shapes) == {(1000, 30)}


def _open_or_create(pool_name, path):
    with ramlace.connect(pool_name) as pool, pool.array(path, (1000, 30)) as array:
        return array.view().shape
