"""The arithmetic of the demo, the same for every door, one column at a time.

Each block of 32,768 values (256 KiB, so that a second look at it comes from the processor's
cache) is summed by itself and the sums are added in order: wherever the bytes lie, the same
additions give the same bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCK_ITEMS = 32_768


class ColumnSum:
    """Sums columns and leaves out NaN, as numpy.nansum and R's ``sum(x, na.rm = TRUE)`` do."""

    def __init__(self) -> None:
        self._valid = np.empty(BLOCK_ITEMS, dtype=np.bool_)

    def __call__(self, column: Floats) -> float:
        """Return the sum of the values of ``column`` (shape (rows,)) that are not NaN; 0.0 for none."""
        total = 0.0
        # Infinities of both signs give NaN, as they should, without a warning.
        with np.errstate(invalid="ignore"):
            for start in range(0, len(column), BLOCK_ITEMS):
                block = column[start : start + BLOCK_ITEMS]
                part = float(block.sum())
                # NaN spreads through the sum: only then is a look for it needed.
                if part != part:
                    valid = self._valid[: len(block)]
                    np.equal(block, block, out=valid)
                    part = float(block[valid].sum())
                total += part
        return total


@dataclass(frozen=True)
class Weights:
    """How often each row was drawn, for some replicates of the bootstrap.

    ``counts`` is float64 of shape (replicates, rows); ``block_sums`` its sum over each block of
    rows, of shape (replicates, blocks).
    """

    counts: Floats
    block_sums: Floats

    @staticmethod
    def draw(rows: int, replicates: range, seed: int) -> "Weights":
        """Draw ``rows`` rows with replacement for each replicate; its number and the seed decide the outcome."""
        counts = np.empty((len(replicates), rows))
        for index, replicate in enumerate(replicates):
            generator = np.random.default_rng([seed, replicate])
            counts[index] = np.bincount(generator.integers(0, rows, rows), minlength=rows)
        starts = np.arange(0, rows, BLOCK_ITEMS)
        return Weights(counts, np.add.reduceat(counts, starts, axis=1))


class BootstrapMeans:
    """The mean of a column in each replicate, NaN left out."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._valid = np.empty(BLOCK_ITEMS, dtype=np.bool_)
        self._values = np.empty(BLOCK_ITEMS)
        self._ones = np.empty(BLOCK_ITEMS)

    def __call__(self, column: Floats) -> Floats:
        """Return the means of ``column`` (shape (rows,)): shape (replicates,), NaN where no value was drawn."""
        counts = self._weights.counts
        totals = np.zeros(len(counts))
        drawn = np.zeros(len(counts))
        for number, start in enumerate(range(0, len(column), BLOCK_ITEMS)):
            block = column[start : start + BLOCK_ITEMS]
            with np.errstate(invalid="ignore"):
                holes = bool(np.isnan(block.sum()))
            values = self._without_holes(block) if holes else block
            for replicate in range(len(counts)):
                part = counts[replicate, start : start + len(block)]
                totals[replicate] += np.dot(part, values)
                if holes:
                    drawn[replicate] += np.dot(part, self._ones[: len(block)])
                else:
                    drawn[replicate] += self._weights.block_sums[replicate, number]
        with np.errstate(invalid="ignore"):
            return np.divide(totals, drawn)

    def _without_holes(self, block: Floats) -> Floats:
        """Return the block with 0 for NaN, and set ``_ones`` to 1 for each value that is a number."""
        valid, values = self._valid[: len(block)], self._values[: len(block)]
        np.equal(block, block, out=valid)
        np.copyto(values, 0.0)
        np.copyto(values, block, where=valid)
        np.copyto(self._ones[: len(block)], valid)
        return values
