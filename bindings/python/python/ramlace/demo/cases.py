"""Measures the cases, and compares what they computed."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ramlace.demo.doors import Door
from ramlace.demo.jobs import BootstrapJob, SumJob, share
from ramlace.demo.problem import DemoError
from ramlace.demo.team import Job, Team

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """Where the bytes live: a row of the table.

    ``prepare`` empties or fills the caches before each run and says how far that was verified; it
    is None for what lives in memory. ``once`` is for what is slow, and its runs alike. ``limit`` marks
    what is measured for comparison only.
    """

    key: str
    title: str
    servers: int
    door: Door
    prepare: Callable[[], str] | None = None
    once: bool = False
    limit: bool = False


@dataclass(frozen=True)
class Measured:
    """One figure: the runs in seconds, and the bytes of the matrix with which the workers were done in one run."""

    workers: int
    runs: list[float]
    nbytes: int

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return median(self.runs)

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes of the matrix done in a second: whatever takes longer has the lower rate."""
        return self.nbytes / self.seconds / 1e9


@dataclass(frozen=True)
class Row:
    """One line of the table: a place, sequentially and by several workers."""

    place: Place
    sequential: Measured
    parallel: Measured
    cache: str | None
    result: Floats


def measure_sums(team: Team, workers: int, place: Place, repeat: int) -> Row:
    """Sum all columns, in one process and split by columns; the result has shape (cols,)."""
    door = place.door

    def jobs(count: int) -> list[Job[Floats]]:
        return [SumJob(door, share(door.cols, count, number)) for number in range(count)]

    return _measure(team, workers, place, repeat, jobs)


def measure_bootstrap(team: Team, workers: int, place: Place, repeat: int, replicates: int, seed: int) -> Row:
    """Bootstrap the means, in one process and split by replicates; the result has shape (replicates, cols)."""
    door = place.door

    def jobs(count: int) -> list[Job[Floats]]:
        return [BootstrapJob(door, share(replicates, count, number), seed) for number in range(count)]

    return _measure(team, workers, place, repeat, jobs)


def _measure(
    team: Team,
    workers: int,
    place: Place,
    repeat: int,
    jobs: Callable[[int], list[Job[Floats]]],
) -> Row:
    nbytes = place.door.rows * place.door.cols * 8
    measured: list[Measured] = []
    results: list[Floats] = []
    caches: list[str] = []
    for count in (1, workers):
        runs: list[float] = []
        for _ in range(1 if place.once else repeat):
            if place.prepare and (cache := place.prepare()) not in caches:
                caches.append(cache)
            timed = team.run(jobs(count))
            runs.append(timed.seconds)
            results.append(np.concatenate(timed.results))
        measured.append(Measured(count, runs, nbytes))
    agree(place.title, results[0], *results[1:])
    return Row(place, measured[0], measured[1], "; ".join(caches) or None, results[0])


def agree(title: str, expected: Floats, *others: Floats) -> None:
    """Raise DemoError unless all results are exactly equal, NaN to NaN: the additions are the same."""
    for other in others:
        if expected.shape != other.shape:
            raise DemoError(f"{title}: {other.shape} results where {expected.shape} were expected")
        different = np.flatnonzero((expected != other) & ~(np.isnan(expected) & np.isnan(other)))
        if len(different):
            where = int(different[0])
            raise DemoError(
                f"{title}: the results DISAGREE in {len(different)} of {expected.size} values; number {where} "
                f"is {other.flat[where]!r} instead of {expected.flat[where]!r}. This is a bug: please report it"
            )
