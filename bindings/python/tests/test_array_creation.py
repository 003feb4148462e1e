"""An array that another process is creating: how long an open waits for its memory."""

import time
from types import SimpleNamespace

import pytest

from ramlace import _array
from ramlace._described import Described

BYTES = 8_000_000


class Growing:
    """A file whose creator takes memory at these seconds; it has its size when all of it is taken."""

    def __init__(self, taken_at: list[float]) -> None:
        self.taken_at = taken_at
        self.now = 0.0

    def taken(self) -> int:
        return sum(second <= self.now for second in self.taken_at)

    def size(self) -> int:
        return BYTES if self.taken() == len(self.taken_at) else 0

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_blocks=self.taken())

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waits(taken_at, monkeypatch):
    """Wait for the file by its own clock; return how long that took."""
    native = Growing(taken_at)
    monkeypatch.setattr(time, "monotonic", lambda: native.now)
    monkeypatch.setattr(time, "sleep", native.sleep)
    _array._await_full(native, Described.of(BYTES // 8, "f8", "C"), "/a")
    return native.now


def test_a_large_array_is_waited_for_as_long_as_it_grows(monkeypatch):
    assert waits([3.0 * second for second in range(1, 21)], monkeypatch) == pytest.approx(60.0, abs=0.2)


def test_a_small_one_is_soon_there(monkeypatch):
    assert waits([0.001], monkeypatch) < 0.01


def test_one_that_stands_still_is_given_up(monkeypatch):
    with pytest.raises(ValueError, match=r"/a: .*stands still or has died.*where nobody creates it any more"):
        waits([1.0, 2.0, 7.0], monkeypatch)
