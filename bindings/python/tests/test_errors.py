"""Errors go to other processes, and come out as what they were."""

import copy
import errno
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

import ramlace
from ramlace import _errors

NUMBERS = sorted({*_errors._BY_ERRNO, errno.EIO, errno.EINVAL})


def same(left, right):
    """Whether all is equal that programs look at."""
    assert type(left) is type(right)
    assert (left.errno, left.strerror, left.kind, str(left)) == (right.errno, right.strerror, right.kind, str(right))
    assert left.__dict__ == right.__dict__


# SEMANTICS 147.1
@pytest.mark.parametrize("number", NUMBERS)
def test_an_error_is_pickled_as_what_it_is(number):
    error = _errors.make(number, "Retry", "/f: a sentence")
    error.add_note("said by a program")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        same(other, error)


# SEMANTICS 147.1
def test_errors_that_programs_make_are_pickled_too():
    made = [ramlace.Error("a word"), ramlace.Error(errno.EIO, "a word", "/name"), _errors.invalid("below zero")]
    for error in made:
        other = pickle.loads(pickle.dumps(error))
        same(other, error)
        assert (other.args, other.filename) == (error.args, error.filename)


# SEMANTICS 147.1
def test_an_error_of_a_worker_comes_back(pool):
    with ProcessPoolExecutor(1) as workers, pytest.raises(FileNotFoundError, match="/nothing") as caught:
        workers.submit(pool.stat, "/nothing").result()
    assert isinstance(caught.value, ramlace.Error)
    assert caught.value.kind == "NotFound"
