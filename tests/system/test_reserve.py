"""Files that reserve their memory by their own rules: what makes them longer takes it, or is refused."""

import errno
import os

import pytest

from conftest import NewPool
from mount import NewMount, Program, fails, fill, mapping
from pool import MIB, Pool, eventually
from test_mount_stores import used_bytes

pytestmark = pytest.mark.both
RESERVE = "user.ramlace.reserve"


def reserving(new_pool: NewPool, width: int) -> Pool:
    """Start a pool of so many servers with a directory whose files reserve their memory."""
    pool = new_pool(width, 32)
    with pool.connect() as connected:
        connected.mkdir("/kept")
    pool.run("layout", "set", "/kept", "--reserve", "--width", str(width), "--stripe-unit", "64KiB")
    return pool


# SEMANTICS 145.1
@pytest.mark.parametrize("width", [1, 2])
def test_a_size_that_has_no_room_is_refused_on_any_mount(new_pool: NewPool, new_mount: NewMount, width: int) -> None:
    pool = reserving(new_pool, width)
    mount = new_mount(pool)
    before = used_bytes(pool)
    beyond = 64 * width * MIB
    with (mount / "kept/matrix").open("x+b", buffering=0) as file:
        fails(errno.ENOSPC, os.ftruncate, file.fileno(), beyond)
        fails(errno.ENOSPC, os.pwrite, file.fileno(), b"\0", beyond)
        assert os.fstat(file.fileno()).st_size == 0
    # What some servers took is given back, also of a program that has it not open, and cuts it by its path.
    fails(errno.ENOSPC, os.truncate, mount / "kept/matrix", beyond)
    assert (mount / "kept/matrix").stat().st_size == 0
    assert eventually(lambda: used_bytes(pool) < before + MIB)
    os.truncate(mount / "kept/matrix", 8 * MIB)
    with (mount / "kept/written").open("x+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"end", 4 * MIB)
    (mount / "kept/small").touch()
    os.truncate(mount / "kept/small", 100)
    # Beside it files have holes as ever.
    with (mount / "sparse").open("xb") as file:
        file.truncate(beyond)
    assert (mount / "kept/matrix").stat().st_blocks * 512 >= 8 * MIB
    assert (mount / "kept/written").stat().st_blocks * 512 >= 4 * MIB
    fill(mount)
    with Program(mapping(mount / "kept/matrix")) as program:
        program.run(f"view[:] = b's' * {8 * MIB}; view.flush()")
        assert program.end() == 0
    assert (mount / "kept/matrix").read_bytes() == b"s" * 8 * MIB
    assert not pool.check()


# SEMANTICS 145.1
@pytest.mark.parametrize("width", [1, 2])
def test_so_it_is_by_the_library_and_the_command(new_pool: NewPool, width: int) -> None:
    pool = reserving(new_pool, width)
    before = used_bytes(pool)
    beyond = 64 * width * MIB
    with pool.connect() as connected:
        with connected.open("/kept/matrix", "w+b", buffering=0) as file:
            fails(errno.ENOSPC, file.truncate, beyond)
            fails(errno.ENOSPC, file.pwrite, b"\0", beyond)
            assert file.size() == 0
            assert file.pwrite(b"content", 0) == 7
        assert eventually(lambda: used_bytes(pool) < before + MIB)
        fails(errno.ENOSPC, connected.truncate, "/kept/matrix", beyond)
        assert connected.read_bytes("/kept/matrix") == b"content"
        assert eventually(lambda: used_bytes(pool) < before + MIB)
        connected.truncate("/kept/matrix", 8 * MIB)
        assert connected.stat("/kept/matrix").st_blocks * 512 >= 8 * MIB
        # Down, and up again, while somebody else has it open.
        with connected.open("/kept/matrix", "r+b", buffering=0) as file, pool.connect() as other:
            other.truncate("/kept/matrix", MIB)
            file.truncate(6 * MIB)
            file.pwrite(b"end", 7 * MIB)
            assert connected.stat("/kept/matrix").st_blocks * 512 >= 7 * MIB
            fails(errno.ENOSPC, other.truncate, "/kept/matrix", beyond)
            assert file.size() == 7 * MIB + 3
    assert not pool.check()


# SEMANTICS 145.2, 145.3
def test_files_reserve_as_their_directory_hands_it_down(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = reserving(new_pool, 1)
    mount = new_mount(pool)
    (mount / "kept/below").mkdir()
    (mount / "kept/below/file").write_bytes(b"content")
    (mount / "before").write_bytes(b"content")

    def reserves(path: str) -> bool:
        told = pool.json("layout", "get", f"/{path}")["reserve"]
        with pool.connect() as connected:
            assert connected.layout(path).reserve == told
        try:
            value = os.getxattr(mount / path, RESERVE)
        except OSError as error:
            assert error.errno == errno.ENODATA
            value = b""
        assert (value == b"1") == told
        return bool(told)

    assert [reserves(path) for path in ("kept", "kept/below", "kept/below/file", "before")] == [True, True, True, False]
    assert "reserve" in pool.run("layout", "get", "/kept").stdout.decode()
    assert "reserve" in pool.run("stat", "/kept/below/file").stdout.decode()
    # Neither a rename nor what becomes of the directory changes a file's own.
    (mount / "kept/below/file").rename(mount / "moved")
    (mount / "kept/below/file").write_bytes(b"another")
    os.removexattr(mount / "kept/below", RESERVE)
    (mount / "kept/below/later").write_bytes(b"content")
    assert [reserves(path) for path in ("kept/below", "kept/below/later", "moved")] == [False, False, True]
    # It is set by the attribute, too, to 1 alone, and beside a mode.
    os.setxattr(mount / "kept/below", "user.ramlace.mode", b"relaxed")
    os.setxattr(mount / "kept/below", RESERVE, b"1", os.XATTR_CREATE)
    fails(errno.EEXIST, os.setxattr, mount / "kept/below", RESERVE, b"1", os.XATTR_CREATE)
    for wrong in (b"0", b"yes", b""):
        fails(errno.EINVAL, os.setxattr, mount / "kept/below", RESERVE, wrong)
    assert reserves("kept/below")
    assert os.getxattr(mount / "kept/below", "user.ramlace.mode") == b"relaxed"
    assert RESERVE not in os.listxattr(mount / "kept/below")
    # Of a file while nobody has it open: a program that has was told so.
    with (mount / "moved").open("rb") as file:
        fails(errno.EBUSY, os.removexattr, file.fileno(), RESERVE)
        os.setxattr(file.fileno(), RESERVE, b"1")

    def taken_away() -> bool:
        try:
            os.removexattr(mount / "moved", RESERVE)
        except OSError as error:
            assert error.errno == errno.EBUSY
            return False
        return True

    assert eventually(taken_away)
    os.truncate(mount / "moved", 256 * MIB)
    fails(errno.ENODATA, os.removexattr, mount / "moved", RESERVE)
    # It outlives the server's process.
    pool.kill_child(0)
    pool.await_restart(0, 1)
    assert [reserves(path) for path in ("kept", "kept/below/file", "moved")] == [True, True, False]
