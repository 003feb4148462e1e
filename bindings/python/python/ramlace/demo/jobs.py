"""What the workers do: a part of the column sums, or a part of the bootstrap's replicates."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ramlace.demo.doors import Door
from ramlace.demo.kernels import BootstrapMeans, ColumnSum, Weights

Floats = NDArray[np.float64]


def share(count: int, workers: int, number: int) -> range:
    """Return worker ``number``'s part of ``count`` things: runs in order that differ by one at most."""
    return range(count * number // workers, count * (number + 1) // workers)


@dataclass(frozen=True)
class SumJob:
    """Sums some columns: the result is float64 of shape (len(columns),)."""

    door: Door
    columns: range

    def __call__(self) -> Callable[[], Floats]:
        """Connect; return the work."""
        open_matrix = self.door.connect()
        add = ColumnSum()

        def work() -> Floats:
            opened = open_matrix()
            sums = np.array([add(opened.column(index)) for index in self.columns])
            opened.close()
            return sums

        return work


@dataclass(frozen=True)
class BootstrapJob:
    """Bootstraps the mean of every column: the result is float64 of shape (len(replicates), cols).

    Each replicate draws as many rows as there are, with replacement. Drawing them does not
    depend on where the bytes live, and is part of the preparation.
    """

    door: Door
    replicates: range
    seed: int

    def __call__(self) -> Callable[[], Floats]:
        """Connect and draw the rows; return the work."""
        open_matrix = self.door.connect()
        mean = BootstrapMeans(Weights.draw(self.door.rows, self.replicates, self.seed))

        def work() -> Floats:
            opened = open_matrix()
            means = np.stack([mean(opened.column(index)) for index in range(self.door.cols)], axis=1)
            opened.close()
            return means

        return work
