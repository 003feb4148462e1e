"""Files whose memory programs of one machine store into without asking, while mounts of others have their pages.

The library's views do that, and kernels that have files by passthrough (root).
"""

import signal
from collections.abc import Iterator

import numpy
import pytest

import ramlace
from conftest import NewPool
from mount import Mount, NewMount, Program, mapping
from passthrough import PassthroughPool, reading
from pool import KIB, MIB, eventually

PAGE = 4 * KIB
SIZE = MIB
PAGES = 24
# Each writer has bytes of its own in each page: its number, and so on.
STRIDE = 16
TURNS = 40
STORES = f"""
def stores(file, view, own):
    for turn in range(1, {TURNS} + 1):
        for page in range({PAGES}):
            for at in range(page * {PAGE} + own, (page + 1) * {PAGE}, {STRIDE}):
                view[at] = turn
        view.flush()

def writes(file, view, own):
    for turn in range(1, {TURNS} + 1):
        for page in range({PAGES}):
            for at in range(page * {PAGE} + own, (page + 1) * {PAGE}, {STRIDE}):
                if at % {PAGE} == own:
                    os.pwrite(file, bytes([turn]), at)
                else:
                    view[at] = turn
    view.flush()
"""


@pytest.fixture
def array(new_pool: NewPool, new_mount: NewMount) -> Iterator[tuple["ramlace.Array", Mount, Mount]]:
    """An array of this machine, and two mounts of its pool."""
    pool = new_pool(1, 64)
    mounts = new_mount(pool), new_mount(pool)
    with pool.connect() as connected, connected.array("/file", SIZE, "u1") as shared:
        assert shared.is_shared
        yield shared, *mounts


# SEMANTICS 8.3
def test_what_a_view_stores_is_seen_in_live_mappings_and_by_descriptors_that_have_read_before(
    array: tuple["ramlace.Array", Mount, Mount],
) -> None:
    shared, mount, _ = array
    view = shared.view()
    with Program(reading(mount / "file")) as program:
        for turn in range(1, 20):
            at = turn * 97_003 % SIZE
            seen = f"view[{at}], os.pread(file, 1, {at})[0]"
            assert program.ask(seen) == (0, 0)
            view[at] = turn
            shared.publish()
            assert program.ask(seen) == (turn, turn), turn
        view[7] = 99
        # Without that it takes a message or two.
        assert eventually(lambda: program.ask("view[7], os.pread(file, 1, 7)[0]") == (99, 99))


# SEMANTICS 8.7
@pytest.mark.parametrize("how", ["stores", "writes"])
def test_stores_of_a_view_and_of_mounts_into_one_page_all_survive(
    array: tuple["ramlace.Array", Mount, Mount], how: str
) -> None:
    shared, *mounts = array
    view = shared.view()
    with Program(mapping(mounts[0] / "file") + STORES) as one, Program(mapping(mounts[1] / "file") + STORES) as two:
        one.begin(f"{how}(file, view, 1)")
        two.begin(f"{how}(file, view, 2)")
        turn = 0
        while not (one.has_answered(0) and two.has_answered(0)):
            turn = turn % 255 + 1
            for page in range(PAGES):
                view[page * PAGE : (page + 1) * PAGE : STRIDE] = turn
        one.hear()
        two.hear()
        check(view[: PAGES * PAGE], {0: turn, 1: TURNS, 2: TURNS})
        shared.publish()
        for mount in mounts:
            check(numpy.fromfile(mount / "file", "u1", PAGES * PAGE), {0: turn, 1: TURNS, 2: TURNS})


# SEMANTICS 8.7
@pytest.mark.parametrize("mode", ["coherent", "relaxed"])
def test_what_mounts_have_stored_before_a_view_begins_is_there(
    new_pool: NewPool, new_mount: NewMount, mode: str
) -> None:
    pool = new_pool(1, 64)
    path = new_mount(pool, "--mode", mode) / "file"
    with pool.connect() as connected, connected.array("/file", SIZE, "u1") as shared, Program(mapping(path)) as program:
        program.run("view[1] = 1; view[-1] = 1")
        view = shared.view()
        assert (view[1], view[-1]) == (1, 1), "the kernel has given its pages back"
        view[0] = view[-2] = 5
        program.run("view[2] = 2; view.flush()")
        assert view[:3].tolist() == [5, 1, 2]
        assert eventually(lambda: program.ask("list(view[:3]), list(view[-2:])") == ([5, 1, 2], [5, 1]))


# SEMANTICS 118.1, 118.2
def test_a_view_waits_for_a_mount_that_does_not_answer_for_a_while(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 64)
    mount = new_mount(pool)
    with pool.connect() as connected, connected.array("/file", SIZE, "u1") as shared:
        assert numpy.fromfile(mount / "file", "u1").sum() == 0
        mount.daemon.send(signal.SIGSTOP)
        try:
            view = shared.view()
            view[7] = 7
        finally:
            mount.daemon.send(signal.SIGCONT)
        # It has not received the recall yet, perhaps; its open asks.
        assert numpy.fromfile(mount / "file", "u1").sum() == 7


# SEMANTICS 8.7
def test_kernels_keep_pages_again_when_the_view_has_ended(array: tuple["ramlace.Array", Mount, Mount]) -> None:
    shared, mount, _ = array
    view = shared.view()
    view[:] = 5
    with Program(reading(mount / "file")) as program:
        assert program.ask("sum(view[:])") == 5 * SIZE
        del view
        shared.close()
        assert program.ask("sum(view[:])") == 5 * SIZE
        before = read_bytes(mount)
        assert program.ask("sum(view[:])") == 5 * SIZE
        assert read_bytes(mount) == before, "it reads its own pages"


# SEMANTICS 131.1
def test_doctor_says_who_stores_without_asking(array: tuple["ramlace.Array", Mount, Mount]) -> None:
    shared, mount, _ = array
    view = shared.view()
    [place] = mount.pool.json("doctor", "/file")["places"]
    [who] = place["storers"]
    assert who.endswith("]"), "it has a session"
    assert not place["passed_through"]
    said = mount.pool.run("doctor", "/file").stdout.decode()
    assert f"{who} stores into its memory without asking" in said, said
    everywhere = mount.pool.json("status", "--leases")["leases"]["places"]
    assert [found["storers"] for found in everywhere if found["inode"] == place["inode"]] == [[who]]
    del view
    shared.close()
    assert eventually(lambda: not mount.pool.json("doctor", "/file")["places"])
    assert "no program stores into its memory" in mount.pool.run("doctor", "/file").stdout.decode()


# SEMANTICS 131.1
@pytest.mark.needs_root
def test_doctor_says_that_a_kernel_stores_without_asking(passthrough: PassthroughPool) -> None:
    passthrough.make()
    with Program(mapping(passthrough.here / "file")):
        [place] = passthrough.pool.json("doctor", "/file")["places"]
        assert (place["storers"], place["passed_through"]) == ([], True)
        assert (
            "a mount with --passthrough stores into its memory"
            in passthrough.pool.run("doctor", "/file").stdout.decode()
        )


# SEMANTICS 90.4, 90.5
@pytest.mark.needs_root
def test_so_it_is_with_what_programs_store_into_a_file_that_a_kernel_has(passthrough: PassthroughPool) -> None:
    content = passthrough.make()
    (passthrough.there / "file").read_bytes()
    with (
        Program(mapping(passthrough.here / "file") + STORES) as direct,
        Program(mapping(passthrough.there / "file") + STORES) as other,
    ):
        assert other.ask("view[100], os.pread(file, 1, 100)[0]") == (content[100],) * 2
        direct.run(f"view[100] = {content[100] ^ 1}; os.fsync(file)")
        assert other.ask("view[100], os.pread(file, 1, 100)[0]") == (content[100] ^ 1,) * 2
        # What leaves no trace in a time.
        direct.run(f"view[100] = {content[100] ^ 2}; os.fsync(file)")
        assert other.ask("view[100], os.pread(file, 1, 100)[0]") == (content[100] ^ 2,) * 2
        direct.run("view[100] = 0")
        assert eventually(lambda: other.ask("view[100], os.pread(file, 1, 100)[0]") == (0, 0))
        direct.begin("stores(file, view, 1)")
        other.begin("stores(file, view, 2)")
        direct.hear()
        other.hear()
        check(numpy.frombuffer(passthrough.bytes_of()[: PAGES * PAGE], "u1"), {1: TURNS, 2: TURNS})


def check(found: "numpy.ndarray[tuple[int], numpy.dtype[numpy.uint8]]", expected: dict[int, int]) -> None:
    """Check that the bytes of each writer are what it stored last."""
    for own, last in expected.items():
        wrong = numpy.flatnonzero(found[own::STRIDE] != last)
        assert not wrong.size, f"{wrong.size} bytes of {own} are lost, the first in page {wrong[0] * STRIDE // PAGE}"


def read_bytes(mount: Mount) -> int:
    """Return the bytes that the pool's servers have sent."""
    return sum(int(server["read_bytes"]) for server in mount.pool.status())
