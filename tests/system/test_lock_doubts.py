"""Locks of which a program is told that it has not got them: what it held before it holds still, and nothing else."""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import NewPool
from mount import NewMount
from pool import Pool, eventually, frozen
from test_mount_locks import Locker


@pytest.fixture
def doubtful(new_pool: NewPool, new_mount: NewMount) -> Iterator[tuple[Pool, Locker, Locker]]:
    """Two programs on two mounts of a pool of their own, which have the same file open."""
    pool = new_pool(1)
    with ExitStack() as stack:
        one, two = (stack.enter_context(Locker(new_mount(pool) / "file")) for _ in range(2))
        yield pool, one, two


def is_refused(program: Locker) -> None:
    """It is told that it has no lock: not because of another lock."""
    with pytest.raises(OSError) as caught:
        program.hear()
    assert caught.value.errno not in (errno.EAGAIN, errno.EDEADLK)


def is_told(program: Locker) -> bool:
    """Whether the servers know everything that its mount has to tell them."""
    return not os.getxattr(program.path.parent, "user.ramlace.pending")


# SEMANTICS 69.4
def test_a_lock_that_is_not_answered_leaves_what_was_held_before(doubtful: tuple[Pool, Locker, Locker]) -> None:
    """A reader asks to become a writer while the server is silent, and is told that this has failed."""
    pool, one, two = doubtful
    one.run("posix(f, R)")
    with frozen(pool.process("child", 0)):
        one.begin("posix(f, W, wait=True)")
        is_refused(one)
    assert not two.takes("posix(f, W)")
    assert eventually(lambda: is_told(one))
    assert two.takes("posix(f, R)"), "it is no writer"
    two.run("posix(f, U)")
    assert not two.takes("posix(f, W)"), "it is a reader"
    one.run("posix(f, U)")
    assert two.takes("posix(f, W)")


# SEMANTICS 69.4
@pytest.mark.parametrize("held", ["nothing", "shared"])
def test_a_lock_without_waiting_that_is_not_answered_is_not_held(
    doubtful: tuple[Pool, Locker, Locker], held: str
) -> None:
    pool, one, two = doubtful
    if held == "shared":
        one.run("posix(f, R)")
    with frozen(pool.process("child", 0)):
        one.begin("posix(f, W)")
        is_refused(one)
    assert eventually(lambda: is_told(one))
    assert two.takes("posix(f, R)")
    two.run("posix(f, U)")
    assert two.takes("posix(f, W)") == (held == "nothing")


# SEMANTICS 69.4
def test_a_signal_while_the_server_is_silent_leaves_what_was_held_before(
    doubtful: tuple[Pool, Locker, Locker],
) -> None:
    """A wait ends by a signal; whether its home has granted it by then nobody knows."""
    pool, one, two = doubtful
    for program in (one, two):
        program.run("posix(f, R)")
    one.run("class Alarm(Exception): pass")
    one.run("def ring(*_): raise Alarm")
    one.run("signal.signal(signal.SIGUSR1, ring)")
    one.begin_waiting("\ntry:\n posix(f, W, wait=True)\nexcept Alarm: pass")
    assert eventually(lambda: sum(server["lock_waits"] for server in pool.status()) == 1)
    with frozen(pool.process("child", 0)):
        # It is granted when the server goes on, before that hears of the signal.
        two.begin("posix(f, U)")
        assert not two.has_answered(0.5)
        os.kill(one.pid, signal.SIGUSR1)
        one.hear()
    two.hear()
    assert eventually(lambda: is_told(one))
    assert two.takes("posix(f, R)")
    two.run("posix(f, U)")
    assert not two.takes("posix(f, W)"), "it is a reader still"


# SEMANTICS 66.2
def test_locks_that_would_be_free_close_no_cycle_of_waits(here: Path, there: Path) -> None:
    """One asks for a byte that nobody has, behind one that waits for another that waits for it."""
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(Locker(mount / "file")) for mount in (here, there, here))
        first.run("posix(f, W, 0, 1, ofd=True)")
        second.run("posix(f, W, 20, 1, ofd=True)")
        third.begin_waiting("posix(f, W, 10, 11, wait=True, ofd=True)")
        second.begin_waiting("posix(f, W, 0, 1, wait=True, ofd=True)")
        assert eventually(lambda: first.takes("posix(f, W, 10, 1, ofd=True)"), 5)
        first.run("posix(f, U, 0, 30, ofd=True)")
        second.hear()
        second.run("posix(f, U, 0, 30, ofd=True)")
        third.hear()
