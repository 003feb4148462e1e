"""A mount whose machine loses its network for a while shows nothing that others have changed meanwhile.

Network namespaces are made by root.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from machines import Reached, joined
from mount import Program
from passthrough import reading
from pool import KIB

pytestmark = pytest.mark.needs_root

PAGE = 4 * KIB


@pytest.fixture
def pool(fuse: None, runtime: Path) -> Iterator[Reached]:
    """A pool of two servers, and two machines that can mount it."""
    root = runtime / "c"
    root.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root)
        network = stack.enter_context(joined(*(f"c{number}x{runtime.name[-8:]}" for number in range(4))))
        yield Reached(root, network, 2, stack)


# SEMANTICS 118.5
@pytest.mark.parametrize("mode", ["coherent", "strict"])
def test_a_mount_that_is_cut_off_shows_nothing_that_others_have_changed(pool: Reached, mode: str) -> None:
    one, other = (pool.mount(machine, "--mode", mode) for machine in pool.machines)
    (other / "file").write_bytes(b"old" * PAGE)
    seen = "(view[:3], os.pread(file, 3, 0))"
    with Program(reading(one / "file")) as program, Program(reading(one / "file")) as opened_again:
        assert program.ask(seen) == opened_again.ask(seen) == (b"old", b"old")
        opened_again.run("view.close(); os.close(file)")
        pool.network.cut(pool.machines[0])
        try:
            with (other / "file").open("r+b", buffering=0) as writer:
                # It waits for a while, and returns. The home does not know yet that the file has another version.
                os.pwrite(writer.fileno(), b"new", 0)
                program.begin(seen, "ask")
                opened_again.begin(f"{reading(one / 'file')}; assert {seen} == (b'new', b'new')")
                assert not program.has_answered(0.3)
                pool.network.mend(pool.machines[0])
                assert program.hear() == (b"new", b"new")
                opened_again.hear()
        finally:
            pool.network.mend(pool.machines[0])
