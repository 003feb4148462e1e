"""The demo's sums and means are numpy's, NaN and infinities included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ramlace.demo.jobs import share
from ramlace.demo.kernels import BLOCK_ITEMS, BootstrapMeans, ColumnSum, Weights

values = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(column=hnp.arrays(float, st.integers(0, 200), elements=values))
def test_sums_leave_nan_out(column):
    assert ColumnSum()(column) == pytest.approx(np.nansum(column), rel=1e-12, abs=1e-6)


@pytest.mark.parametrize("rows", [BLOCK_ITEMS - 1, BLOCK_ITEMS, BLOCK_ITEMS + 1, 3 * BLOCK_ITEMS + 17])
@pytest.mark.parametrize("gaps", [0.0, 0.1, 1.0])
def test_sums_and_means_across_blocks(rows, gaps):
    generator = np.random.default_rng(rows)
    column = generator.normal(5, 2, rows)
    column[generator.random(rows) < gaps] = np.nan
    assert ColumnSum()(column) == pytest.approx(np.nansum(column), rel=1e-12)
    weights = Weights.draw(rows, range(3), seed=7)
    means = BootstrapMeans(weights)(column)
    for index in range(3):
        drawn = np.repeat(column, weights.counts[index].astype(int))
        if gaps == 1.0:
            assert np.isnan(means[index])
        else:
            assert means[index] == pytest.approx(np.nanmean(drawn), rel=1e-12)


def test_infinities_count_and_cancel_to_nan():
    add = ColumnSum()
    assert add(np.array([1.0, np.inf, np.nan])) == np.inf
    assert np.isnan(add(np.array([-np.inf, np.inf])))
    assert add(np.full(5, np.nan)) == 0.0


def test_a_replicate_draws_the_same_rows_whoever_computes_it():
    together = Weights.draw(1000, range(4), seed=3)
    alone = Weights.draw(1000, range(2, 3), seed=3)
    np.testing.assert_array_equal(together.counts[2], alone.counts[0])
    assert together.counts.sum(axis=1).tolist() == [1000] * 4
    assert not np.array_equal(together.counts[0], together.counts[1])


def test_the_same_bytes_give_the_same_bits_wherever_they_lie():
    column = np.random.default_rng(1).normal(size=100_003)
    column[::7] = np.nan
    shifted = np.empty(len(column) + 1)[1:]
    shifted[:] = column
    add = ColumnSum()
    assert add(column) == add(shifted)
    mean = BootstrapMeans(Weights.draw(len(column), range(2), seed=1))
    assert mean(column).tobytes() == mean(shifted).tobytes()


@given(count=st.integers(0, 100), workers=st.integers(1, 9))
def test_shares_cover_everything_once(count, workers):
    parts = [list(share(count, workers, number)) for number in range(workers)]
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
