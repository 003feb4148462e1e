"""What programs on two mounts see of each other's stores, writes and names, and what they never see, mode by mode."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from litmus import COHERENT, FORBIDDEN, LONG, MODES, PUBLISHED, RELAXED, STRICT, build, calls_of, forbidden, race
from mount import Mount
from pool import Pool

pytestmark = [pytest.mark.both, pytest.mark.lengthy]

RUNS = 100
# So often; where programs refresh again and again each run takes longer.
TURNS = 30 if LONG else 1
TURNS_RELAXED = 6 if LONG else 1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The races, compiled."""
    return build(tmp_path_factory.mktemp("litmus"))


@pytest.fixture(scope="module")
def pairs(fuse: None, shared_pool: Pool) -> Iterator[dict[str, tuple[Mount, Mount]]]:
    """Two mounts of each mode."""
    mounts: list[Mount] = []
    try:
        for mode in (STRICT, STRICT, COHERENT, COHERENT, RELAXED, RELAXED):
            mounts.append(Mount(shared_pool, "--mode", mode))
        strict, coherent, relaxed = ((mounts[at], mounts[at + 1]) for at in (0, 2, 4))
        yield {STRICT: strict, COHERENT: coherent, PUBLISHED: coherent, RELAXED: relaxed}
    finally:
        for mount in mounts:
            mount.close()


# SEMANTICS 124.1, 136.4
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("test", FORBIDDEN)
def test_no_outcome_is_seen_that_the_mode_forbids(
    pairs: dict[str, tuple[Mount, Mount]], program: Path, place: str, test: str, mode: str
) -> None:
    first, second = pairs[mode]
    here, there = first / place / "file", second / place / "file"
    seen = Counter[str]()
    for _ in range(TURNS_RELAXED if mode == RELAXED else TURNS):
        # Those of the other modes wait meanwhile.
        for mount in itertools.chain(*pairs.values()):
            mount.daemon.watch()
        seen.update(race(program, test, RUNS, here, there, calls=calls_of(mode)))
    print(f"litmus | {test} | {mode} | {dict(seen)}")
    assert not forbidden(test, mode) & set(seen), f"{mode} forbids {sorted(forbidden(test, mode))}, and saw {seen}"


def test_each_mode_says_what_it_forbids() -> None:
    for test in FORBIDDEN:
        assert forbidden(test, STRICT) >= forbidden(test, PUBLISHED) >= forbidden(test, COHERENT)
        assert all(forbidden(test, mode) for mode in MODES[:1])
