"""What a mount keeps, when a change of its own may be done yet, or bytes move while it reads them."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import ramlace
from conftest import NewPool
from mount import NewMount
from pool import eventually, frozen
from test_mount_kept import FILES, least_asked, needs_names
from test_mount_leases import OVER_SECONDS, know, told, truth


# SEMANTICS 138.4
@needs_names
def test_what_a_cancelled_change_had_put_in_doubt_is_kept_again(new_pool: NewPool, new_mount: NewMount) -> None:
    """As soon as its server has been told that nobody waits for it; until then it may be done."""
    pool = new_pool(1)
    mount = new_mount(pool)
    files = [mount / f"f{number}" for number in range(FILES)]
    for file in files:
        file.write_bytes(b"some bytes")
    know(*files)
    with frozen(pool.process("child", 0)), pytest.raises(OSError, match=r"timed out"):
        files[0].chmod(0o600)

    def look(_: int) -> None:
        time.sleep(OVER_SECONDS)
        for file in files:
            assert file.stat().st_size == 10

    assert eventually(lambda: least_asked(pool, look)[0] < FILES / 3)
    with pool.connect() as connected:
        assert told(files[0]) == truth(connected, "/f0")


# SEMANTICS 138.5
def test_bytes_that_were_read_on_their_way_to_their_lanes_are_dropped(new_pool: NewPool, new_mount: NewMount) -> None:
    """A small file grows while its first lane's server is slow; what reads it meanwhile sees what is written later."""
    pool = new_pool(2, 32)
    names = [f"file-{number}" for number in range(24)]
    mount = new_mount(pool)
    with pool.connect() as connected, ThreadPoolExecutor(1) as threads:
        connected.set_layout("/", width=1)
        for name in names:
            with connected.open(f"/{name}", "wb", buffering=0) as file:
                file.write(b"a" * 3000)
        # The inode is with server 0, which has the root directory; its lane with the other.
        names = [name for name in names if pool.lane_servers(f"/{name}") == [1]]
        moved = 0
        for name in names:
            with connected.open(f"/{name}", "r+b", buffering=0) as file:
                with frozen(pool.process("child", 1)):
                    growing = threads.submit(file.pwrite, b"b", 5000)
                    time.sleep(0.2)
                    reader = (mount / name).open("rb", buffering=0)
                    assert os.pread(reader.fileno(), 4, 0) == b"aaaa"
                with reader:
                    if has_moved(growing.exception()):
                        moved += 1
                        file.pwrite(b"c", 0)
                        assert os.pread(reader.fileno(), 4, 0) == b"caaa", name
        assert moved, "the servers are too slow"


def has_moved(error: BaseException | None) -> bool:
    """Return whether a file has grown, or its server was silent for too long."""
    if error is not None and not isinstance(error, ramlace.Error):
        raise error
    return error is None
