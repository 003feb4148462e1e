"""What programs have stored by mappings, and published to nobody, beside a server's process that dies."""

import os
import time
from contextlib import suppress

import pytest

import ramlace
from conftest import NewPool
from mount import NewMount, Program, fails, mapping, stopped
from pool import KIB, eventually

PAGE = 4 * KIB
UNIT = 64 * KIB
# Longer than anybody believes names and attributes by leases that the last life gave.
LATE_SECONDS = 1.2


# SEMANTICS 119.2, 128.4
@pytest.mark.parametrize("mode", ["coherent", "strict"])
@pytest.mark.parametrize("size", [100, 2 * PAGE])
def test_what_was_stored_before_a_server_died_is_there_however_late_a_mount_hears_of_it(
    new_pool: NewPool, new_mount: NewMount, mode: str, size: int
) -> None:
    pool = new_pool(1)
    one, other = new_mount(pool, "--mode", mode), new_mount(pool, "--mode", mode)
    (one / "file").write_bytes(b"0" * size)
    with Program(mapping(one / "file")) as holder, Program(mapping(other / "file")) as changer:
        holder.run("view[0:4] = b'kept'")
        with stopped(one):
            pool.kill_child(0)
            pool.await_restart(0, 1)
            # It waits for the other machine, in its store or when it publishes that.
            changer.begin("view[50:54] = b'late'; view.flush()")
            time.sleep(LATE_SECONDS)
        changer.hear()
        holder.run("view.flush()")
        assert holder.ask("view[0:4], view[50:54]") == (b"kept", b"late")
    assert pool.run("cat", "/file").stdout[:54] == b"kept" + b"0" * 46 + b"late"


# SEMANTICS 119.2
def test_who_does_not_hear_of_a_new_life_in_time_is_told_what_is_lost(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1)
    one, other = new_mount(pool), new_mount(pool)
    (one / "file").write_bytes(b"0" * 2 * PAGE)
    with Program(mapping(one / "file")) as holder:
        holder.run("view[0:4] = b'lost'")
        with stopped(one):
            pool.kill_child(0)
            pool.await_restart(0, 1)
            file = os.open(other / "file", os.O_RDWR)
            # It is answered when the other one's time is over.
            assert os.pwrite(file, b"kept", 50) == 4
            os.close(file)
        fails(5, holder.run, "view.flush()")
    assert pool.run("cat", "/file").stdout[:54] == b"0" * 50 + b"kept"


# SEMANTICS 119.4
def test_pages_of_a_server_that_was_forgotten_are_dropped(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    names = [f"file-{number}" for number in range(24)]
    with pool.connect() as connected:
        connected.set_layout("/", stripe_unit=UNIT, width=1)
        for name in names:
            with connected.open(f"/{name}", "wb", buffering=0) as file:
                file.write(b"a" * UNIT)
    names = [name for name in names if pool.lane_servers(f"/{name}") == [1]]
    mount = new_mount(pool)
    with Program("import os") as program, pool.connect() as other:
        program.run(f"files = {{name: os.open(f'{mount.directory}/{{name}}', os.O_RDONLY) for name in {names}}}")
        read = "{name: os.pread(file, 4, 0) for name, file in files.items()}"
        assert program.ask(read) == dict.fromkeys(names, b"aaaa")
        pool.kill_server(1)
        pool.run("forget", "1")
        written = {}
        for name in names:
            # What has its name on the other server can be written anew.
            with suppress(ramlace.Error), other.open(f"/{name}", "r+b", buffering=0) as file:
                file.pwrite(b"b" * UNIT, 0)
                written[name] = b"bbbb"
        assert written
        program.run(f"files = {{name: files[name] for name in {list(written)}}}")
        # Nobody can notify the mount: it learns of it when it looks for the server.
        assert eventually(lambda: program.ask(read) == written)
