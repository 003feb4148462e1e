"""What programs on two mounts see of each other's stores, writes and names, and what they never see, mode by mode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from litmus import COHERENT, FORBIDDEN, LONG, MODES, PUBLISHED, STRICT, build, forbidden, race
from mount import Mount
from pool import Pool

pytestmark = pytest.mark.both

RUNS = 3_000 if LONG else 100


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The races, compiled."""
    return build(tmp_path_factory.mktemp("litmus"))


@pytest.fixture(scope="module")
def pairs(fuse: None, shared_pool: Pool) -> Iterator[dict[str, tuple[Mount, Mount]]]:
    """Two mounts of each mode."""
    mounts: list[Mount] = []
    try:
        for mode in (STRICT, STRICT, COHERENT, COHERENT):
            mounts.append(Mount(shared_pool, "--mode", mode))
        strict, coherent = (mounts[0], mounts[1]), (mounts[2], mounts[3])
        yield {STRICT: strict, COHERENT: coherent, PUBLISHED: coherent}
    finally:
        for mount in mounts:
            mount.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("test", FORBIDDEN)
def test_no_outcome_is_seen_that_the_mode_forbids(
    pairs: dict[str, tuple[Mount, Mount]], program: Path, place: str, test: str, mode: str
) -> None:
    first, second = pairs[mode]
    for mount in (first, second):
        mount.daemon.watch()
    here, there = first / place / "file", second / place / "file"
    seen = race(program, test, RUNS, here, there, publishes=mode == PUBLISHED)
    print(f"litmus | {test} | {mode} | {seen}")
    assert not forbidden(test, mode) & set(seen), f"{mode} forbids {sorted(forbidden(test, mode))}, and saw {seen}"


def test_each_mode_says_what_it_forbids() -> None:
    for test in FORBIDDEN:
        assert forbidden(test, STRICT) >= forbidden(test, PUBLISHED) >= forbidden(test, COHERENT)
        assert all(forbidden(test, mode) for mode in MODES[:1])
