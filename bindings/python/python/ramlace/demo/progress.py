"""Progress on stderr: a bar where a person watches, lines where a file does."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
BAR_CELLS = 30
SECONDS_BETWEEN = 0.1


def say(text: str) -> None:
    """Print a line for the user who waits."""
    print(text, file=sys.stderr, flush=True)


def bar(items: Iterable[Item], count: int, title: str) -> Iterator[Item]:
    """Yield ``items`` and show how many of ``count`` are done."""
    if not sys.stderr.isatty():
        say(title)
        yield from items
        return
    shown = 0.0
    for done, item in enumerate(items):
        if time.monotonic() - shown > SECONDS_BETWEEN:
            cells = BAR_CELLS * done // count
            print(f"\r{title} [{'#' * cells:<{BAR_CELLS}}] {done}/{count}", end="", file=sys.stderr, flush=True)
            shown = time.monotonic()
        yield item
    print(f"\r{title} [{'#' * BAR_CELLS}] {count}/{count}", file=sys.stderr, flush=True)
