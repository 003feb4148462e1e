"""Files and directories of a running pool, with the machine's shortcuts and without."""

import ctypes
import errno
import io
import os
import pickle
import signal
import stat
import threading
import time

import numpy as np
import pytest

import ramlace

MIB = 1 << 20


def test_bytes_come_back_across_servers_and_chunks(pool, place):
    data = np.random.default_rng(1).bytes(5 * MIB + 12_345)
    with pool.open(f"{place}/f", "wb", stripe_unit=64 << 10, width=3) as file:
        file.write(data)
    with pool.open(f"{place}/f") as file:
        assert isinstance(file, io.BufferedReader)
        assert file.read() == data
        file.seek(-100, os.SEEK_END)
        assert file.read(200) == data[-100:]
    assert pool.stat(f"{place}/f").st_size == len(data)
    layout = pool.layout(f"{place}/f")
    assert (layout.stripe_unit, layout.width) == (64 << 10, 3)


def test_any_contiguous_memory_may_be_read_into_and_written_from(pool, place):
    matrix = np.arange(60_000, dtype=np.float64).reshape(200, 300)
    with pool.open(f"{place}/f", "w+b", buffering=0) as file:
        assert file.write(np.asfortranarray(matrix)) == matrix.nbytes
        back = np.empty((200, 300), order="F")
        assert file.pread_into(back, 0) == matrix.nbytes
        np.testing.assert_array_equal(back, matrix)
        with pytest.raises(BufferError, match="contiguous"):
            file.pread_into(back[::2, ::2], 0)
        with pytest.raises(TypeError, match="read-only"):
            file.pread_into(b"abc", 0)
        assert file.pread_into(bytearray(10), matrix.nbytes) == 0
        assert file.pread_into(bytearray(), 0) == 0


class Record(ctypes.Structure):
    """A structure as a program of C has it."""

    _fields_ = [("number", ctypes.c_int64), ("letters", ctypes.c_char * 8)]


# SEMANTICS 147.5
def test_memory_of_any_shape_is_written_and_read(pool, place):
    record, numbers = Record(7, b"letters"), (ctypes.c_int32 * 3)(1, 2, 3)
    moment = np.array(["2026-11-29T10:00"], dtype="datetime64[s]")
    whole = [record, numbers, np.array(2.5), moment, np.zeros((0, 3)), memoryview(b"abc")]
    with pool.open(f"{place}/f", "w+b", buffering=0) as file:
        for data in [*whole, np.float64(1.5), np.datetime64("2026-11-29", "D"), np.str_("ab")]:
            length = data.nbytes if hasattr(data, "nbytes") else ctypes.sizeof(data)
            assert file.pwrite(data, 0) == length
            back = bytearray(length)
            assert file.pread_into(back, 0) == length
            assert back == (data.tobytes() if hasattr(data, "tobytes") else bytes(data))
        for target in (Record(), (ctypes.c_int32 * 4)(), np.array(0.0), moment.copy()):
            size = target.nbytes if hasattr(target, "nbytes") else ctypes.sizeof(target)
            file.pwrite(content := bytes(range(1, 1 + size)), 0)
            assert file.pread_into(target, 0) == size
            assert (target.tobytes() if hasattr(target, "tobytes") else bytes(target)) == content
        frozen = np.zeros(4)
        frozen.flags.writeable = False
        for readonly in (frozen, np.float64(1.5), memoryview(b"abc"), b""):
            with pytest.raises(TypeError, match="read-only"):
                file.pread_into(readonly, 0)
        scattered = np.zeros((6, 6))[::2, ::2]
        for call in (file.pwrite, file.pread_into):
            for gaps in (scattered, memoryview(scattered), np.repeat(moment, 4)[::2]):
                with pytest.raises(BufferError, match="contiguous"):
                    call(gaps, 0)
            with pytest.raises(TypeError, match="bytes-like"):
                call("text", 0)
            released = memoryview(bytearray(3))
            released.release()
            with pytest.raises(ValueError, match="released"):
                call(released, 0)


def test_text_and_appending(pool, place):
    with pool.open(f"{place}/t", "w", encoding="utf-8") as file:
        file.write("größer\n")
    with pool.open(f"{place}/t", "a", encoding="utf-8") as file:
        file.write("zweite\n")
    with pool.open(f"{place}/t", "r", encoding="utf-8") as file:
        assert file.read() == "größer\nzweite\n"


def test_appending_begins_at_the_end(pool, place):
    for _ in range(2):
        with pool.open(f"{place}/t", "a", encoding="utf-16") as file:
            file.write("zeile\n")
    assert pool.read_bytes(f"{place}/t").decode("utf-16") == "zeile\nzeile\n", "there is one mark of the byte order"
    before = pool.read_bytes(f"{place}/t")
    for buffering in (0, -1):
        with pool.open(f"{place}/t", "a+b", buffering) as file:
            assert file.tell() == len(before)
            assert file.read() == b""
            assert file.truncate() == len(before)
    assert pool.read_bytes(f"{place}/t") == before
    with pool.open(f"{place}/t", "ab", 0) as file:
        assert file.pwrite(b"end", 0) == 3
    assert pool.read_bytes(f"{place}/t") == before + b"end"


@pytest.mark.parametrize("granted", ["before", "after"])
def test_a_signal_that_comes_with_a_lock_leaves_nothing_locked(pool, place, granted):
    """The lock is granted before the waiting call hears of the signal, and after."""

    class SignalledError(Exception):
        """What the handler raises, as that of Ctrl-C raises KeyboardInterrupt."""

    def handler(*_):
        if granted == "before":
            held.unlock()
        raise SignalledError

    def come():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        if granted == "after":
            held.unlock()

    path = f"{place}/f"
    pool.open(path, "wb").close()
    holder, waiting, other = files = [pool.open(path, "r+b", 0) for _ in range(3)]
    held, timer = holder.lock(), threading.Timer(0.25, come)
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SignalledError):
            timer.start()
            waiting.lock()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert other.lock(timeout=0) is not None
    for file in files:
        file.close()


# SEMANTICS 69.4
def test_a_lock_that_an_interrupt_ends_leaves_what_was_held_before(pool, place):
    """A reader waits to become a writer, and its handler lets it, and raises."""

    class SignalledError(Exception):
        """What the handler raises."""

    def handler(*_):
        held.unlock()
        time.sleep(0.3)
        raise SignalledError

    path = f"{place}/f"
    pool.open(path, "wb").close()
    holder, waiting, other = files = [pool.open(path, "r+b", 0) for _ in range(3)]
    held, kept = holder.lock(exclusive=False), waiting.lock(exclusive=False)
    timer = threading.Timer(0.25, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SignalledError):
            timer.start()
            waiting.lock()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert other.lock(timeout=0) is None, "it is a reader still"
    assert other.lock(exclusive=False, timeout=0) is not None, "and no writer"
    kept.unlock()
    assert holder.lock(timeout=0) is None
    for file in files:
        file.close()


def test_appends_of_several_threads_are_all_there(pool, place):
    def work(letter):
        with pool.open(f"{place}/log", "ab", buffering=0) as file:
            for _ in range(50):
                file.write(letter * 10 + b"\n")

    threads = [threading.Thread(target=work, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pool.open(f"{place}/log") as file:
        lines = file.read().splitlines()
    assert sorted(lines) == sorted([b"a" * 10] * 50 + [b"b" * 10] * 50 + [b"c" * 10] * 50)


def test_truncating_frees_and_holes_read_as_zeros(pool, place):
    with pool.open(f"{place}/f", "w+b", buffering=0) as file:
        file.write(b"x" * 1000)
        file.truncate(10)
        file.truncate(100_000)
        file.pwrite(b"end", 99_997)
        content = file.pread_into(buffer := bytearray(200_000), 0)
        assert content == 100_000
    assert bytes(buffer[:10]) == b"x" * 10
    assert bytes(buffer[10:99_997]) == bytes(99_987)
    assert bytes(buffer[99_997:100_000]) == b"end"
    pool.truncate(f"{place}/f", 3)
    assert pool.stat(f"{place}/f").st_size == 3


@pytest.mark.parametrize(
    ("mode", "error"), [("xb", FileExistsError), ("rb", None), ("r+b", None), ("wb", None), ("ab", None)]
)
def test_modes_on_a_file_that_is_there(pool, place, mode, error):
    pool.open(f"{place}/f", "wb").close()
    if error:
        with pytest.raises(error) as caught:
            pool.open(f"{place}/f", mode)
        assert isinstance(caught.value, ramlace.Error)
        assert f"{place}/f" in str(caught.value)
    else:
        pool.open(f"{place}/f", mode).close()


@pytest.mark.parametrize("mode", ["rb", "r+b", "r"])
def test_a_file_that_is_not_there_is_named(pool, place, mode):
    with pytest.raises(FileNotFoundError, match=f"{place}/gone"):
        pool.open(f"{place}/gone", mode)


def test_trees(pool, place):
    pool.makedirs(f"{place}/a/b/c")
    with pytest.raises(FileExistsError):
        pool.makedirs(f"{place}/a/b/c")
    pool.makedirs(f"{place}/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        pool.mkdir(f"{place}/a")
    pool.open(f"{place}/a/f", "wb").close()
    pool.symlink("f", f"{place}/a/link")
    assert [(entry.name, entry.kind) for entry in pool.ls(f"{place}/a")] == [
        ("b", "directory"),
        ("f", "file"),
        ("link", "symlink"),
    ]
    assert pool.readlink(f"{place}/a/link") == "f"
    assert pool.stat(f"{place}/a/link").kind == "file"
    link = pool.stat(f"{place}/a/link", follow_symlinks=False)
    assert link.kind == "symlink"
    assert stat.S_ISLNK(link.st_mode)
    with pytest.raises(OSError, match="a") as caught:
        pool.rmdir(f"{place}/a")
    assert caught.value.errno == 39
    with pytest.raises(IsADirectoryError):
        pool.remove(f"{place}/a/b")
    with pytest.raises(NotADirectoryError):
        pool.rmdir(f"{place}/a/f")
    pool.rmtree(f"{place}/a")
    assert not pool.exists(f"{place}/a")
    with pytest.raises(FileNotFoundError):
        pool.listdir(f"{place}/a")


def test_attributes_are_those_of_the_writer(pool, place):
    pool.open(f"{place}/f", "wb", permissions=0o640).close()
    found = pool.stat(f"{place}/f")
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) & ~0o640 == 0
    assert (found.st_uid, found.st_nlink, found.st_size) == (os.getuid(), 1, 0)
    assert found.st_mtime == pytest.approx(found.st_mtime_ns / 1e9)
    assert found.st_birthtime_ns <= found.st_ctime_ns


def test_names_are_bytes_kept_exactly(pool, place):
    name = os.fsdecode(b"caf\xe9 \xf0\x9f\x90\x91")
    pool.open(f"{place}/{name}", "wb").close()
    assert pool.listdir(place) == [name]
    pool.remove(os.fsencode(f"{place}/{name}"))
    for wrong in ("a\0b", b"a\0b"):
        with pytest.raises(ValueError, match="null"):
            pool.open(wrong)
    with pytest.raises(OSError) as caught:
        pool.open(f"{place}/{'n' * 256}", "wb")
    assert caught.value.errno == 36
    with pytest.raises(TypeError):
        pool.open(3)


@pytest.mark.parametrize("unit", [1, 3 << 20, 32 << 10, 1 << 40])
def test_stripe_units_that_make_no_sense_are_refused(pool, place, unit):
    with pytest.raises(OSError, match="stripe") as caught:
        pool.open(f"{place}/f", "wb", stripe_unit=unit)
    assert caught.value.errno == 22
    assert not pool.exists(f"{place}/f")


def test_files_inherit_the_layout_of_their_directory(pool, place):
    pool.set_layout(place, stripe_unit=128 << 10, width=2)
    assert (pool.layout(place).stripe_unit, pool.layout(place).width) == (128 << 10, 2)
    pool.open(f"{place}/f", "wb").close()
    layout = pool.layout(f"{place}/f")
    assert (layout.stripe_unit, layout.width) == (128 << 10, 2)
    with pytest.raises(NotADirectoryError):
        pool.set_layout(f"{place}/f", width=1)


def test_a_full_pool_says_so_and_deleting_frees(pool, place):
    free = pool.statfs().free_bytes
    with pytest.raises(OSError) as caught, pool.open(f"{place}/big", "wb", buffering=0) as file:
        block, offset = bytes(8 * MIB), 0
        while offset < free + 64 * MIB:
            count = file.pwrite(block, offset)
            assert count > 0
            offset += count
    assert caught.value.errno == 28
    pool.open(f"{place}/small", "wb").close()
    pool.remove(f"{place}/big")
    with pool.open(f"{place}/after", "wb") as file:
        file.write(bytes(16 * MIB))
    pool.remove(f"{place}/after")


def test_servers_tell_what_they_hold(pool):
    servers = pool.servers()
    assert [server.server for server in servers] == [0, 1, 2]
    assert all(server.problem is None and server.pid for server in servers)
    capacity = pool.statfs()
    assert capacity.silent_servers == 0
    assert capacity.total_bytes == sum(server.store_bytes for server in servers)
    assert capacity.free_bytes + capacity.used_bytes == capacity.total_bytes


def test_pools_are_pickled_by_name(pool, place):
    pool.open(f"{place}/f", "wb").close()
    other = pickle.loads(pickle.dumps(pool))
    assert other.listdir(place) == ["f"]
    assert (other.name, other.local) == (pool.name, pool.local)


def test_a_pool_is_reached_by_its_locator(pool, pool_name, place):
    assert pool.locator == f"ramlace://{pool_name}/"
    pool.open(f"{place}/f", "wb").close()
    with ramlace.connect(f"ramlace://{pool.servers()[0].tcp}/") as other:
        assert other.name is None
        assert other.listdir(place) == ["f"]
        with pytest.raises(ValueError, match="stop it where it was started"):
            other.down()
    with pytest.raises(ValueError, match="closed"):
        other.listdir(place)


# SEMANTICS 101.1
def test_a_pool_and_its_places_are_named_as_for_the_command(pool, pool_name, place, monkeypatch):
    pool.open(f"ramlace:{place}/f", "wb").close()
    address = pool.servers()[0].tcp
    for path in (f"ramlace://{pool_name}{place}", f"ramlace://{address}{place}"):
        assert pool.listdir(path) == ["f"]
    pool.rename(f"ramlace:{place}/f", f"{place}/g")
    with pytest.raises(ramlace.Error, match="another pool") as failed:
        pool.stat(f"ramlace://{pool_name}-none/x")
    assert failed.value.errno == errno.EINVAL
    for form in (address, f"ramlace://{address}/any/path", f"ramlace:{pool_name}", f"ramlace://{pool_name}"):
        with ramlace.connect(form) as other:
            assert other.listdir(place) == ["g"]
            assert other.name == (None if ":" in form.removeprefix("ramlace:") else pool_name)
        monkeypatch.setenv("RAMLACE_POOL", form)
        with ramlace.connect() as other:
            assert other.stat(f"ramlace:{place}/g").st_size == 0
    with pytest.raises(ramlace.Error, match="host:port"):
        ramlace.connect("no/pool")


def test_a_wrong_argument_of_up_is_einval():
    for words in ({"servers": "many"}, {"memory": "-1GiB"}):
        with pytest.raises(ramlace.Error) as failed:
            ramlace.up("never", **words)
        assert failed.value.errno == errno.EINVAL


def test_a_second_pool_of_the_same_name_is_refused(pool_name):
    with pytest.raises(ramlace.Error, match=pool_name):
        ramlace.up(pool_name)


def test_waiting_calls_let_other_threads_run(pool, place):
    """Python threads go on while one waits for a server: 8 readers finish, and a counter counts meanwhile."""
    with pool.open(f"{place}/f", "wb") as file:
        file.write(bytes(32 * MIB))
    counted, done = 0, threading.Event()
    failures = []

    def read():
        try:
            with pool.open(f"{place}/f", "rb", buffering=0) as file:
                buffer = bytearray(32 * MIB)
                assert file.pread_into(buffer, 0) == len(buffer)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    watcher = threading.Thread(target=lambda: ([thread.join() for thread in threads], done.set()))
    watcher.start()
    while not done.is_set():
        counted += 1
    watcher.join()
    assert failures == []
    assert counted > 100


def test_names_change_and_files_have_several(pool, place):
    for name in ("a", "b"):
        pool.mkdir(f"{place}/{name}")
        with pool.open(f"{place}/{name}/f", "wb", buffering=0) as file:
            file.write(name.encode())
    with pytest.raises(FileExistsError):
        pool.rename(f"{place}/a/f", f"{place}/b/f", overwrite=False)
    pool.rename(f"{place}/a/f", f"{place}/b/f", exchange=True)
    assert pool.open(f"{place}/a/f").read() == b"b"
    pool.replace(f"{place}/a/f", f"{place}/b/f")
    assert pool.open(f"{place}/b/f").read() == b"b"
    pool.link(f"{place}/b/f", f"{place}/a/g")
    assert pool.stat(f"{place}/a/g").st_nlink == 2
    pool.remove(f"{place}/b/f")
    assert pool.stat(f"{place}/a/g").st_nlink == 1
    with pytest.raises(PermissionError):
        pool.link(f"{place}/a", f"{place}/c")
    with pytest.raises(OSError, match="into itself"):
        pool.rename(f"{place}/a", f"{place}/a/inside")
    with pytest.raises(ValueError, match="overwrite"):
        pool.rename(f"{place}/a", f"{place}/b", overwrite=False, exchange=True)


def test_many_names_are_removed_by_one_call(pool, place):
    pool.makedirs(f"{place}/d/inner")
    names = [f"{place}/d/{number}" for number in range(100)]
    for name in names:
        pool.open(name, "wb").close()
    assert pool.remove_many(iter(names)) == [None] * 100
    missing, kept, gone = pool.remove_many([f"{place}/d/none", f"{place}/d/inner", f"ramlace:{place}/none/x"])
    assert isinstance(missing, FileNotFoundError)
    assert "/d/none" in str(missing)
    assert isinstance(kept, IsADirectoryError)
    assert isinstance(gone, FileNotFoundError)
    assert pool.listdir(f"{place}/d") == ["inner"]
    assert pool.remove_many([]) == []


# SEMANTICS 140.3
def test_modes_are_set_and_told(pool, place):
    pool.set_layout(place, stripe_unit=64 << 10, mode="strict")
    assert (pool.layout(place).mode, pool.layout(place).stripe_unit) == ("strict", 64 << 10)
    with pool.array(f"{place}/a", (4,), "u1") as array:
        assert array.layout.mode == "strict"
    with pool.open(f"{place}/f", "wb"):
        with pytest.raises(OSError, match="open") as refused:
            pool.set_layout(f"{place}/f", mode="relaxed")
        assert refused.value.errno == errno.EBUSY
    pool.set_layout(f"{place}/f", mode="relaxed")
    assert pool.layout(f"{place}/f").mode == "relaxed"
    assert "mode=relaxed" in repr(pool.layout(f"{place}/f"))
    pool.set_layout(f"{place}/f")
    assert pool.layout(f"{place}/f").mode is None
    with pytest.raises(ValueError, match="coherent, strict or relaxed"):
        pool.set_layout(place, mode="loose")
    assert pool.layout(place).mode == "strict"
