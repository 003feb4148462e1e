"""Workers start together, and a worker that dies is an error that names it, never a wait."""

import os
import signal
import time
from dataclasses import dataclass

import pytest

from ramlace.demo.problem import DemoError
from ramlace.demo.team import Team


@dataclass(frozen=True)
class Job:
    """Does something before the clock, and something while it runs."""

    before: str = ""
    during: str = ""
    answer: int = 0

    def __call__(self):
        _do(self.before)

        def work():
            _do(self.during)
            return (self.answer, time.monotonic())

        return work


def _do(what):
    if what == "fail":
        raise ValueError("no such column")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave":
        os._exit(3)
    if what.startswith("sleep"):
        time.sleep(float(what.removeprefix("sleep")))


def test_results_come_in_order_and_the_slowest_counts():
    with Team(3) as team:
        timed = team.run([Job(during="sleep0.3", answer=1), Job(answer=2), Job(answer=3)])
        assert [answer for answer, _ in timed.results] == [1, 2, 3]
        assert timed.seconds >= 0.3
        # A team goes on, also with fewer.
        assert team.run([Job(answer=9)]).results[0][0] == 9


def test_preparation_is_waited_for_and_not_timed():
    with Team(2) as team:
        timed = team.run([Job(before="sleep0.5"), Job(during="sleep0.01")])
        ends = [end for _, end in timed.results]
    # Worker 1 was ready at once, and did not start before worker 0 was.
    assert abs(ends[0] - ends[1]) < 0.4
    assert timed.seconds < 0.4


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("fail", r"worker 1 \(pid \d+\) failed: ValueError: no such column"),
        ("die", r"worker 1 \(pid \d+\) was killed by SIGKILL"),
        ("leave", r"worker 1 \(pid \d+\) ended with exit code 3"),
    ],
)
def test_a_worker_that_fails_or_dies_is_named_and_nobody_waits(when, what, words):
    with Team(3) as team:
        pids = team.pids
        with pytest.raises(DemoError, match=words):
            team.run([Job(during="sleep60"), Job(**{when: what}), Job()])
        # What still works is ended with the team.
        for process, _ in team._workers:
            process.kill()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_killed_between_two_runs_is_named():
    with Team(2) as team:
        team.run([Job(), Job()])
        os.kill(team.pids[0], signal.SIGKILL)
        with pytest.raises(DemoError, match=r"worker 0 .* was killed by SIGKILL"):
            team.run([Job(), Job()])
            team.run([Job(), Job()])


def test_leaving_a_team_ends_its_processes():
    with Team(2) as team:
        pids = team.pids
        team.run([Job(), Job()])
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
