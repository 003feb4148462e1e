"""File objects behave as Python's own, whatever the servers do."""

import io

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
                    # A seek before the start is a ValueError here and EINVAL in a local file.
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
