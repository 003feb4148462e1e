"""File objects behave as Python's own, whatever the servers do."""

import contextlib
import errno
import io
import os
import signal
import threading
import time
import zipfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standin import MemoryFile

from ramlace import _file


def opened(mode, native, buffering=-1, **text):
    parsed = _file.Mode.parse(mode)
    arguments = (text.get("encoding"), text.get("errors"), text.get("newline"))
    _file.check_arguments(parsed, buffering, *arguments)
    return _file.wrap(_file.RawFile(native, "/f", parsed), parsed, buffering, *arguments)


@pytest.mark.parametrize("mode", ["", "rr", "rw", "rx", "b", "t", "rbt", "z", "r++", "U", "+"])
def test_modes_that_the_built_in_open_refuses_are_refused(mode, tmp_path):
    with pytest.raises(ValueError):
        (tmp_path / "f").open(mode)
    with pytest.raises(ValueError):
        _file.Mode.parse(mode)


@pytest.mark.parametrize(
    ("mode", "buffering", "options"),
    [("r", 0, {}), ("rb", -1, {"encoding": "utf-8"}), ("rb", -1, {"newline": "\n"}), ("r", -1, {"newline": "x"})],
)
def test_arguments_that_make_no_sense_are_refused(mode, buffering, options):
    with pytest.raises(ValueError):
        opened(mode, MemoryFile(), buffering, **options)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("rb", io.BufferedReader), ("wb", io.BufferedWriter), ("r+b", io.BufferedRandom), ("r", io.TextIOWrapper)],
)
def test_the_wrapping_is_the_built_in_one(mode, kind):
    file = opened(mode, MemoryFile(b"x"))
    assert type(file) is kind
    file.close()


def test_text_comes_back_as_it_went():
    native = MemoryFile()
    with opened("w", native, encoding="utf-8", newline="\r\n") as file:
        file.write("Grüße\nzwei\n")
    assert bytes(native.content) == "Grüße\r\nzwei\r\n".encode()
    with opened("r", native, encoding="utf-8") as file:
        assert list(file) == ["Grüße\n", "zwei\n"]
    assert native.closed == 2


def test_a_buffered_writer_goes_on_after_short_writes():
    native = MemoryFile(write_bytes_max=7)
    with opened("wb", native) as file:
        file.write(bytes(range(100)))
    assert bytes(native.content) == bytes(range(100))


def test_what_the_mode_forbids_is_unsupported():
    reader, writer = opened("rb", MemoryFile(b"x"), 0), opened("wb", MemoryFile(), 0)
    for call in (lambda: reader.write(b"x"), lambda: reader.truncate(0), lambda: writer.read(1), reader.fileno):
        with pytest.raises(io.UnsupportedOperation):
            call()


def test_a_closed_file_says_so_and_closes_once():
    native = MemoryFile(b"abc")
    file = opened("rb", native, 0)
    file.close()
    file.close()
    assert native.closed == 1
    for call in (file.read, file.tell, file.size, file.readable, lambda: file.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_positions_below_zero_are_refused():
    file = opened("r+b", MemoryFile(b"abc"), 0)
    for call in (
        lambda: file.seek(-1),
        lambda: file.seek(-4, 2),
        lambda: file.truncate(-1),
        lambda: file.seek(0, 9),
    ):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: file.pread_into(bytearray(1), -1), lambda: file.pwrite(b"", -1)):
        with pytest.raises(ValueError):
            call()


# SEMANTICS 147.2
def test_a_position_below_zero_is_einval_as_in_a_local_file(tmp_path):
    ours = opened("r+b", MemoryFile(b"abc"), 0)
    with (tmp_path / "f").open("w+b", buffering=0) as theirs:
        for file in (ours, theirs):
            for call in (lambda: file.seek(-1), lambda: file.seek(-4, 2), lambda: file.truncate(-1)):  # noqa: B023
                with pytest.raises(OSError) as caught:
                    call()
                assert caught.value.errno == errno.EINVAL
            assert file.tell() == 0


# SEMANTICS 147.2
@pytest.mark.parametrize("buffering", [0, -1])
def test_an_archive_is_begun_in_an_empty_file(buffering):
    native = MemoryFile()
    with opened("w+b", native, buffering) as file, zipfile.ZipFile(file, "a") as archive:
        archive.writestr("name", b"content")
    with opened("rb", native, buffering) as file:
        assert zipfile.is_zipfile(file)
        file.seek(0)
        assert zipfile.ZipFile(file).read("name") == b"content"
    assert not zipfile.is_zipfile(opened("rb", MemoryFile(b"short"), buffering))


# SEMANTICS 147.3
def test_positions_are_any_integers_and_nothing_else():
    file = opened("r+b", native := MemoryFile(b"abc"), 0)
    seen = []
    native.read_into = lambda _, offset: seen.append(offset) or 0
    native.write_at = lambda _, offset: seen.append(offset) or 1
    far = np.int32(2**31 - 1)
    assert file.seek(far) == far
    for _ in range(2):
        file.write(b"x")
    assert file.seek(far, os.SEEK_CUR) == 2**32
    file.pread_into(bytearray(1), far)
    file.pwrite(b"x", far)
    assert seen == [2**31 - 1, 2**31, 2**31 - 1, 2**31 - 1]
    file.refresh = native.refresh = lambda start, end: seen.append((start, end))
    _file.RawFile.refresh(file, far, far)
    assert seen[-1] == (2**31 - 1, 2**32 - 2)
    assert {type(one) for one in (file.tell(), *seen[:-1], *seen[-1])} == {int}
    calls = (file.seek, file.truncate, lambda at: file.pread_into(bytearray(1), at), lambda at: file.pwrite(b"x", at))
    for call in calls:
        for wrong in (1.5, "1"):
            with pytest.raises(TypeError):
                call(wrong)


def test_a_text_file_has_the_mode_it_was_opened_by(tmp_path):
    for mode in ("w", "r", "rt", "r+", "+tr", "a"):
        with opened(mode, MemoryFile()) as ours, (tmp_path / "f").open(mode) as theirs:
            assert ours.mode == theirs.mode
            assert ours.buffer.raw.mode == theirs.buffer.raw.mode


class SlowFile(MemoryFile):
    """One whose calls let other threads run before they return."""

    def read_into(self, buffer, offset):
        count = super().read_into(buffer, offset)
        time.sleep(0.001)
        return count

    def write_at(self, data, offset):
        count = super().write_at(data, offset)
        time.sleep(0.001)
        return count


def together(*works):
    """Run each in a thread of its own, until all are done."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# SEMANTICS 147.4
def test_threads_that_share_a_position_lose_no_bytes():
    file = opened("w+b", native := SlowFile(), 0)
    letters = (b"a", b"b", b"c")
    together(*(lambda letter=letter: [file.write(letter * 7) for _ in range(20)] for letter in letters))
    assert sorted(bytes(native.content)) == sorted(b"".join(letter * 140 for letter in letters))
    assert file.tell() == 420
    file.seek(0)
    pieces = []
    together(*(lambda: pieces.extend(file.read(7) for _ in range(20)) for _ in letters))
    assert sorted(pieces) == sorted(letter * 7 for letter in letters for _ in range(20))
    file.seek(0)
    whole = []
    together(*(lambda: whole.append(file.read()) for _ in range(3)))
    assert sorted(map(len, whole)) == [0, 0, 420]
    file.seek(0)
    together(*(lambda: [file.seek(1, os.SEEK_CUR) for _ in range(500)] for _ in letters))
    assert file.tell() == 1500


# SEMANTICS 147.4
def test_a_forked_child_waits_for_no_thread_of_its_parent():
    begun, go = threading.Event(), threading.Event()

    class Standing(MemoryFile):
        """A file whose writes stand still until they may go on."""

        def write_at(self, data, offset):
            begun.set()
            go.wait()
            return super().write_at(data, offset)

    file = opened("w+b", Standing(b"abc"), 0)
    writer = threading.Thread(target=file.write, args=(b"x",))
    writer.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            signal.alarm(20)
            os._exit(0 if file.seek(1) == 1 and file.read(2) == b"bc" else 1)
        os._exit(2)
    go.set()
    writer.join()
    assert os.waitpid(child, 0)[1] == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=40)),
        st.tuples(st.just("read"), st.integers(-1, 50)),
        st.tuples(st.just("seek"), st.integers(0, 60)),
        st.tuples(st.just("end"), st.integers(-5, 20)),
        st.tuples(st.just("truncate"), st.none() | st.integers(0, 60)),
    ),
    max_size=30,
)


@given(
    mode=st.sampled_from(["w+b", "ab", "a+b"]),
    before=st.binary(max_size=50),
    steps=steps,
    buffering=st.sampled_from([0, -1, 8]),
    short=st.sampled_from([None, 3]),
)
@example(mode="ab", before=b"kept", steps=[("truncate", None)], buffering=-1, short=None)
@example(mode="a+b", before=b"kept", steps=[("read", -1)], buffering=0, short=None)
@example(mode="a+b", before=b"kept", steps=[("seek", 1), ("write", b""), ("truncate", None)], buffering=0, short=None)
def test_any_steps_do_what_a_local_file_does(mode, before, steps, buffering, short, tmp_path_factory):
    native = MemoryFile(b"" if "w" in mode else before, write_bytes_max=short if buffering else None)
    path = tmp_path_factory.mktemp("local") / "f"
    path.write_bytes(before)
    with opened(mode, native, buffering) as ours, path.open(mode, buffering=buffering) as theirs:
        assert ours.tell() == theirs.tell()
        for step, argument in steps:
            results = []
            for file in (ours, theirs):
                try:
                    if step == "end":
                        results.append(file.seek(argument, 2))
                    else:
                        results.append(getattr(file, step)(argument))
                except (ValueError, OSError) as error:
                    results.append("refused")
                    assert step == "end" or (mode, step) == ("ab", "read"), error
            assert results[0] == results[1], (step, argument)
            assert ours.tell() == theirs.tell()
    assert bytes(native.content) == path.read_bytes()


def test_reading_all_of_a_growing_file_reads_what_came():
    native = MemoryFile(b"abc")
    sizes = iter([3, 5, 5])

    def size():
        wanted = next(sizes)
        native.content.extend(b"z" * (wanted - len(native.content)))
        return wanted

    native.size = size
    assert opened("rb", native, 0).readall() == b"abczz"
