"""Share one array between processes: each adds up its own columns, nothing is copied or sent.

.venv/bin/python examples/shared_array.py
"""

from multiprocessing import get_context

import ramlace

WORKERS = 2
ROWS, COLUMNS = 1000, 8


def add_up(worker: int) -> list[float]:
    """Add up every second column; a process of its own with a connection of its own."""
    with ramlace.connect() as pool:
        matrix = pool.array("/matrix").view()
        return [float(matrix[:, column].sum()) for column in range(worker, COLUMNS, WORKERS)]


def main() -> None:
    """Make the array, let the workers add up, and print the sums."""
    with ramlace.connect() as pool:
        matrix = pool.array("/matrix", (ROWS, COLUMNS), "float64", order="F").view()
        for column in range(COLUMNS):
            matrix[:, column] = column
        with get_context("spawn").Pool(WORKERS) as workers:
            shares = workers.map(add_up, range(WORKERS))
        for column in range(COLUMNS):
            print(f"column {column}: {shares[column % WORKERS][column // WORKERS]:.0f}")
        del matrix
        pool.remove("/matrix")


if __name__ == "__main__":
    main()
