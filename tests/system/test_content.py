"""Every byte that is acknowledged is there, for every reader, by every door."""

import errno
import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import clients
import ramlace
import wire
from conftest import NewPool
from pool import KIB, MIB, Pool, pattern

LONG = bool(os.environ.get("RAMLACE_TEST_LONG"))
SECONDS = 10.0 if LONG else 1.0
LOCALS = {True: "local", False: "tcp"}


def borders(unit: int, width: int) -> list[int]:
    """Return sizes at, and beside, the borders of a page, of staged writes, chunks and stripes."""
    at = {4096, 64 * KIB, unit, 2 * unit, unit * width, 2 * unit * width}
    sizes = {0, 1, *(border + beside for border in at for beside in (-1, 0, 1)), unit * width + 4097}
    return sorted(sizes)


def test_disjoint_ranges_written_by_several_clients_are_all_there(shared_pool: Pool, place: str) -> None:
    piece, pieces = 40_003, 160
    path = f"{place}/disjoint"
    with shared_pool.connect() as pool:
        pool.open(path, "wb", buffering=0, stripe_unit=64 * KIB).close()
        name = shared_pool.name
        clients.run_all(
            *((clients.write_every_nth, name, nth % 2 == 0, path, nth, 4, piece, pieces) for nth in range(4))
        )
        expected = b"".join(pattern(index, piece) for index in range(pieces))
        for local in (True, False):
            with shared_pool.connect(local=local) as reader:
                assert reader.open(path).read() == expected, LOCALS[local]


# SEMANTICS 2
def test_a_write_of_64_kib_within_a_chunk_is_never_seen_half(shared_pool: Pool, place: str) -> None:
    path = f"{place}/letters"
    # A whole chunk, the end of another, a range across pages, and one that begins nowhere.
    ranges = [(0, 64 * KIB), (2 * 64 * KIB - 4097, 4097), (3 * 64 * KIB + 4095, 8194), (5 * 64 * KIB + 1, 40_001)]
    with shared_pool.connect() as pool:
        with pool.open(path, "wb", buffering=0, stripe_unit=64 * KIB) as file:
            file.pwrite(b"A" * (6 * 64 * KIB), 0)
        name = shared_pool.name
        *writes, seen_local, seen_tcp = clients.run_all(
            (clients.write_one_letter, name, True, path, ord("A"), ranges, SECONDS),
            (clients.write_one_letter, name, False, path, ord("B"), ranges, SECONDS),
            (clients.watch_letters, name, True, path, ranges, SECONDS),
            (clients.watch_letters, name, False, path, ranges, SECONDS),
        )
    assert min(writes) > 10
    for seen in (seen_local, seen_tcp):
        assert set(seen) == {ord("A"), ord("B")}, "the readers did not see both writers at work"


def test_a_write_that_arrives_in_pieces_is_not_seen_before_it_is_whole(shared_pool: Pool, place: str) -> None:
    path, chunk = f"{place}/pieces", 64 * KIB
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        with near.open(path, "wb", buffering=0, stripe_unit=chunk, width=1) as file:
            file.pwrite(b"A" * chunk, 0)
        found, layout = near.stat(path), near.layout(path)
        # By the Unix socket, where a frame has no key and can be cut anywhere.
        server = shared_pool.lane_servers(path)[0]
        with wire.Wire(shared_pool.directory / f"server-{server}.sock") as line:
            line.greet(shared_pool.secret)
            assert line.open_session().error == ""
            epoch = layout.created_epoch or 1
            body = wire.numbers(found.st_ino, 0, layout.base_slot or 0, found.generation, epoch, 0, 0, 1)
            line.send(wire.header(wire.WRITE_CHUNK, line.session, len(body), chunk, sequence=1, epoch=epoch), body)
            for _ in range(4):
                line.send(b"B" * (chunk // 8))
                time.sleep(0.02)
                for reader in (near, far):
                    assert set(reader.open(path).read()) == {ord("A")}
            line.send(b"B" * (chunk // 2))
            assert line.reply().error == ""
        for reader in (near, far):
            assert reader.open(path).read() == b"B" * chunk


# SEMANTICS 7.1
def test_appends_of_several_clients_leave_no_hole_and_no_overlap(shared_pool: Pool, place: str) -> None:
    path = f"{place}/log"
    count = 400 if LONG else 60
    with shared_pool.connect() as pool:
        pool.open(path, "wb", buffering=0, stripe_unit=64 * KIB).close()
        clients.run_all(
            *((clients.append_records, shared_pool.name, writer % 2 == 0, path, writer, count) for writer in range(4))
        )
        content = pool.open(path).read()
    next_number = [0] * 4
    at = 0
    while at < len(content):
        writer = int.from_bytes(content[at : at + 2], "little")
        assert writer < 4, f"no record begins at byte {at} of {len(content)}"
        expected = clients.record(writer, next_number[writer])
        assert content[at : at + len(expected)] == expected, f"writer {writer}'s next record is not at {at}"
        next_number[writer] += 1
        at += len(expected)
    assert next_number == [count] * 4


# SEMANTICS 7.4
def test_appends_beside_truncations_are_whole_or_cut_off(shared_pool: Pool, place: str) -> None:
    # Longer than what lives with an inode.
    path, length, count = f"{place}/log", 5000, 4000 if LONG else 800
    with shared_pool.connect() as pool:
        with pool.open(path, "wb") as file:
            file.write(bytes(length))
        append = (clients.append_same, shared_pool.name, path, length, count)
        with clients.running(append, (clients.keep_truncating, shared_pool.name, path)) as (appends, cuts):
            appends.result()
            cuts.stop()
            assert cuts.result() > 10
        content = pool.open(path).read()
    assert len(content) % length == 0
    assert set(content) <= {ord("a")}


@pytest.mark.parametrize("width", [1, 3])
def test_sizes_around_every_border_survive_every_door(
    shared_pool: Pool, place: str, tmp_path: Path, width: int
) -> None:
    sizes = borders(64 * KIB, width)
    source = tmp_path / "source"
    source.mkdir()
    for size in sizes:
        (source / str(size)).write_bytes(pattern(size, size))
    layout = ("--stripe-unit", "64KiB", "--width", str(width))
    for local, name in LOCALS.items():
        variables = {"RAMLACE_LOCAL": "on" if local else "off"}
        shared_pool.run("cp", "-r", *layout, str(source), f"ramlace:{place}/command-{name}", variables=variables)
        with shared_pool.connect(local=local) as pool:
            pool.mkdir(f"{place}/python-{name}")
            for size in sizes:
                where = f"{place}/python-{name}/{size}"
                with pool.open(where, "wb", buffering=0, stripe_unit=64 * KIB, width=width) as file:
                    assert file.write(pattern(size, size)) == size
    written = [f"{door}-{name}" for door in ("command", "python") for name in LOCALS.values()]
    for local, name in LOCALS.items():
        variables = {"RAMLACE_LOCAL": "on" if local else "off"}
        with shared_pool.connect(local=local) as pool:
            for directory in written:
                back = tmp_path / f"{directory}-{name}"
                shared_pool.run("cp", "-r", f"ramlace:{place}/{directory}", str(back), variables=variables)
                for size in sizes:
                    expected = pattern(size, size)
                    assert (back / str(size)).read_bytes() == expected, f"{directory}, command, {name}, {size}"
                    where = f"{place}/{directory}/{size}"
                    assert pool.open(where).read() == expected, f"{directory}, Python, {name}, {size}"
                    assert pool.stat(where).st_size == size
                shutil.rmtree(back)


@pytest.mark.parametrize("local", LOCALS, ids=LOCALS.values())
def test_arrays_of_sizes_around_borders_are_what_files_say(shared_pool: Pool, place: str, local: bool) -> None:
    with shared_pool.connect(local=local) as pool, shared_pool.connect(local=not local) as other:
        for size in [size for size in borders(64 * KIB, 3) if size]:
            values = np.frombuffer(pattern(size, size), dtype=np.uint8)
            array = pool.from_numpy(f"{place}/array-{size}", values, stripe_unit=64 * KIB)
            assert other.open(f"{place}/array-{size}").read() == values.tobytes(), size
            seen = other.array(f"{place}/array-{size}").view()
            assert np.array_equal(seen, values), size
            array.view()[-1] = 0
            array.publish()
            with other.open(f"{place}/array-{size}", buffering=0) as file:
                file.seek(size - 1)
                assert file.read(1) == b"\0", size


def test_a_file_is_what_a_plain_buffer_would_be(shared_pool: Pool, place: str) -> None:
    """Random reads, writes and truncations of one file by both doors against a bytearray."""
    chance = random.Random(20)
    unit, end = 64 * KIB, 7 * 64 * KIB
    edges = [border + beside for border in range(0, end, unit // 2) for beside in (-4097, -1, 0, 1, 4096)]
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        path = f"{place}/plain"
        near.open(path, "wb", buffering=0, stripe_unit=unit).close()
        files = [near.open(path, "r+b", buffering=0), far.open(path, "r+b", buffering=0)]
        model = bytearray()
        for step in range(3000 if LONG else 400):
            file = chance.choice(files)
            offset = max(0, chance.choice(edges))
            length = chance.choice([1, 4096, 10_000, unit - 1, unit, unit + 1, 3 * unit + 5])
            match chance.randrange(8):
                case 0:
                    size = chance.choice([offset, 0, len(model)])
                    file.truncate(size)
                    del model[size:]
                    model.extend(bytes(size - len(model)))
                case 1 | 2 | 3:
                    data = pattern(step, length)
                    assert file.pwrite(data, offset) == length
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + length] = data
                case _:
                    buffer = bytearray(length)
                    count = file.pread_into(buffer, offset)
                    expected = model[offset : offset + length]
                    assert buffer[:count] == expected, f"step {step}: {length} bytes at {offset}"
            assert file.size() == len(model), f"step {step}"
        for file in files:
            file.close()


# SEMANTICS 4.1, 4.2
@pytest.mark.parametrize("local", LOCALS, ids=LOCALS.values())
def test_holes_read_as_zeros_and_take_no_memory(shared_pool: Pool, place: str, local: bool) -> None:
    with shared_pool.connect(local=local) as pool:
        before = pool.statfs().used_bytes
        with pool.open(f"{place}/holes", "w+b", buffering=0) as file:
            file.pwrite(b"end", 1 << 40)
            file.pwrite(b"begin", 0)
            for offset, length in ((5, 100_000), (3 * MIB - 1, 5 * MIB), ((1 << 40) - 70_000, 70_000)):
                buffer = bytearray(b"\xff" * length)
                assert file.pread_into(buffer, offset) == length
                assert not any(buffer), (offset, length)
            assert file.size() == (1 << 40) + 3
        assert pool.statfs().used_bytes - before < 8 * MIB


# SEMANTICS 4.2
@pytest.mark.parametrize("local", LOCALS, ids=LOCALS.values())
def test_what_was_never_written_takes_no_memory_by_being_read(new_pool: NewPool, local: bool) -> None:
    """A file that is larger than its pool: not a page is taken for what nobody wrote."""
    running, size = new_pool(2, 16), 128 * MIB
    with running.connect(local=local) as pool, pool.open("/file", "w+b", buffering=0, stripe_unit=64 * KIB) as file:
        before = running.files_bytes()
        file.truncate(size)
        buffer = bytearray(MIB)
        for offset in range(0, size, MIB):
            buffer[:] = b"\xff" * MIB
            assert file.pread_into(buffer, offset) == MIB
            assert not any(buffer)
        assert running.files_bytes() == before
        # One byte takes a page in the first MiB of a lane, and a huge page behind it.
        assert file.pwrite(b"x", 100_000) == 1
        assert running.files_bytes() == before + 4 * KIB
        assert file.pwrite(b"x", size // 2) == 1
        assert running.files_bytes() <= before + 4 * KIB + 2 * MIB


# SEMANTICS 6.1
@pytest.mark.parametrize("size", [1, 4097, 64 * KIB, 64 * KIB + 1, 300_000])
def test_what_was_cut_off_reads_as_zeros_when_the_file_grows_again(shared_pool: Pool, place: str, size: int) -> None:
    whole = 500_000
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        path = f"{place}/cut"
        with near.open(path, "wb", buffering=0, stripe_unit=64 * KIB) as file:
            file.write(pattern(1, whole))
        far.truncate(path, size)
        near.truncate(path, whole)
        expected = pattern(1, size) + bytes(whole - size)
        assert far.open(path).read() == expected
        assert near.open(path).read() == expected
        assert shared_pool.run("cat", path).stdout == expected


# SEMANTICS 5
def test_memory_that_is_used_again_shows_nothing_of_its_past(new_pool: NewPool) -> None:
    running = new_pool(2, 16)
    with running.connect() as pool, running.connect(local=False) as far:
        with pool.open("/past", "wb", buffering=0, stripe_unit=64 * KIB) as file, pytest.raises(OSError) as full:
            offset = 0
            while True:
                offset += file.pwrite(b"\xff" * MIB, offset)
        assert full.value.errno == errno.ENOSPC
        pool.remove("/past")
        # Single bytes in every chunk: the pages around them are the old ones.
        with pool.open("/now", "w+b", buffering=0, stripe_unit=64 * KIB) as file:
            for offset in range(0, 8 * MIB, 50_000):
                file.pwrite(b"\x01", offset)
        content = far.open("/now").read()
        assert content.count(b"\x01") + content.count(b"\0") == len(content)
        assert content.count(b"\x01") == len(range(0, 8 * MIB, 50_000))
        pool.remove("/now")
        array = pool.array("/array", (20 * MIB,), "uint8")
        assert not array.view().any()
        assert not any(far.open("/array").read())


# SEMANTICS 1
def test_what_one_client_has_written_every_other_reads(shared_pool: Pool, place: str) -> None:
    """Strict mode: a completed write is seen by every later read, in mappings too."""
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        near.from_numpy(f"{place}/shared", np.zeros(100_000, np.uint8), stripe_unit=64 * KIB)
        mapped = near.array(f"{place}/shared").view()
        with far.open(f"{place}/shared", "r+b", buffering=0) as file:
            for step in range(1, 50):
                file.pwrite(bytes([step]), step * 1999)
                assert mapped[step * 1999] == step
                mapped[step * 1999 + 1] = step
                buffer = bytearray(1)
                file.pread_into(buffer, step * 1999 + 1)
                assert buffer[0] == step


# SEMANTICS 12.1
def test_an_unlinked_file_lives_until_its_last_close(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        with near.open(f"{place}/gone", "wb", buffering=0) as file:
            file.write(pattern(1, 3 * MIB))
        with near.open(f"{place}/gone", buffering=0) as kept:
            far.remove(f"{place}/gone")
            assert not far.exists(f"{place}/gone")
            assert kept.readall() == pattern(1, 3 * MIB)
        with pytest.raises(ramlace.Error) as gone:
            near.open(f"{place}/gone")
        assert gone.value.errno == errno.ENOENT
