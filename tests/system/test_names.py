"""Names, paths, offsets and layouts that make no sense: the errno POSIX names, and nothing changed."""

import errno
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ramlace
from conftest import NewPool
from pool import KIB, MIB, Pool, pattern

STRANGE = [
    b" ",
    b"-",
    b"--help",
    b"...",
    b"*?[]{}$HOME`id`",
    b"new\nline",
    b"tab\tbell\a",
    b"\x1b[31mred",
    b"\xff\xfe not utf-8 \x80",
    "grün \N{HOT BEVERAGE} \u202e".encode(),
    b"back\\slash",
    b'"quoted"',
    b"\x01",
    b"\x7f",
    b"trailing ",
    b"ramlace:",
    b"x" * 255,
    b"\xf0\x9f\x92\xa9" * 63,
]


def names(pool: ramlace.Pool, path: str = "/") -> set[bytes]:
    return {os.fsencode(name) for name in pool.listdir(path)}


def fails(number: int, operation: Callable[[], object]) -> ramlace.Error:
    with pytest.raises(ramlace.Error) as failed:
        operation()
    assert failed.value.errno == number, f"{failed.value} instead of {errno.errorcode[number]}"
    assert "\0" not in str(failed.value)
    return failed.value


# SEMANTICS 11
def test_strange_names_are_kept_exactly(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as near, shared_pool.connect(local=False) as far:
        for number, name in enumerate(STRANGE):
            path = place.encode() + b"/" + name
            with near.open(path, "xb", buffering=0) as file:
                file.write(pattern(number, 100))
            assert far.stat(path).st_size == 100
            assert far.open(path).read() == pattern(number, 100)
        assert names(far, place) == set(STRANGE)
        listed = json.loads(shared_pool.run("ls", "--json", place).stdout)
        assert len(listed) == len(STRANGE)
        for number, name in enumerate(STRANGE):
            path = place.encode() + b"/" + name
            assert shared_pool.run("cat", path).stdout == pattern(number, 100)
            assert shared_pool.run("cp", b"ramlace:" + path, "-").stdout == pattern(number, 100)
        shown = shared_pool.run("ls", "-l", place).stdout
        # Nothing that a name says moves a reader's cursor or begins a line.
        assert len(shown.splitlines()) == len(STRANGE)
        assert not any(byte < 32 and byte != 10 for byte in shown), shown
        for name in STRANGE[:9]:
            shared_pool.run("rm", place.encode() + b"/" + name)
        assert names(near, place) == set(STRANGE[9:])


def test_strange_names_survive_a_copy_of_a_tree(shared_pool: Pool, place: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number, name in enumerate(STRANGE):
        (Path(os.fsdecode(source)) / os.fsdecode(name)).write_bytes(pattern(number, number * 1000))
    shared_pool.run("cp", "-r", str(source), f"ramlace:{place}/tree")
    shared_pool.run("cp", "-r", f"ramlace:{place}/tree", str(tmp_path / "back"))
    assert {os.fsencode(entry.name) for entry in (tmp_path / "back").iterdir()} == set(STRANGE)
    for number, name in enumerate(STRANGE):
        assert (tmp_path / "back" / os.fsdecode(name)).read_bytes() == pattern(number, number * 1000)


def test_names_that_are_none_are_refused_by_everything_that_takes_one(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool:
        pool.open(f"{place}/file", "xb", buffering=0).close()
        before = names(pool, place)
        makers: list[Callable[[bytes], object]] = [
            lambda path: pool.open(path, "wb", buffering=0).close(),
            lambda path: pool.open(path, "xb", buffering=0).close(),
            pool.mkdir,
            lambda path: pool.symlink("target", path),
            lambda path: pool.array(path, (10,), "uint8"),
        ]
        for make in makers:
            fails(errno.ENAMETOOLONG, partial(make, place.encode() + b"/" + b"x" * 256))
            fails(errno.ENAMETOOLONG, partial(make, place.encode() + b"/" + b"x" * 256 + b"/y"))
            fails(errno.ENAMETOOLONG, partial(make, b"/x" * 3000))
            fails(errno.ENOENT, partial(make, place.encode() + b"/nowhere/x"))
            fails(errno.ENOTDIR, partial(make, place.encode() + b"/file/x"))
            with pytest.raises((ramlace.Error, ValueError)):
                make(place.encode() + b"/nul\0nul")
            with pytest.raises((ramlace.Error, ValueError)):
                make(b"")
            for dots in (b"/.", b"/.."):
                with pytest.raises(ramlace.Error) as refused:
                    make(place.encode() + dots)
                assert refused.value.errno in (errno.EEXIST, errno.EISDIR, errno.EINVAL), refused.value
        assert names(pool, place) == before


def test_dots_lead_where_they_do_elsewhere_and_never_above_the_root(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool:
        pool.makedirs(f"{place}/a/b")
        with pool.open(f"{place}/a/../a/./b/..//b/x", "xb", buffering=0) as file:
            file.write(b"here")
        assert pool.open(f"{place}/a/b/x").read() == b"here"
        assert pool.open(f"/../../..{place}/a/b/x").read() == b"here"
        # `..` of a file is no way around it, and what is not there has no parent.
        fails(errno.ENOTDIR, lambda: pool.stat(f"{place}/a/b/x/.."))
        fails(errno.ENOENT, lambda: pool.stat(f"{place}/nowhere/.."))
        fails(errno.ENOTDIR, lambda: pool.open(f"{place}/a/b/x/"))
        # Through a link, `..` is the parent of where the link leads.
        pool.symlink(f"{place}/a/b", f"{place}/link")
        assert pool.stat(f"{place}/link/..").st_ino == pool.stat(f"{place}/a").st_ino
        for last in (".", ".."):
            with pytest.raises(ramlace.Error):
                pool.rmdir(f"{place}/a/{last}")
            with pytest.raises(ramlace.Error):
                pool.remove(f"{place}/a/{last}")
        assert names(pool, f"{place}/a") == {b"b"}


def test_what_is_wrong_with_a_path_has_posix_errno(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool:
        pool.mkdir(f"{place}/full")
        pool.open(f"{place}/full/file", "xb", buffering=0).close()
        pool.symlink("loop", f"{place}/loop")
        pool.symlink("nowhere", f"{place}/dangling")
        file, full = f"{place}/full/file", f"{place}/full"
        for number, operation in [
            (errno.ENOENT, lambda: pool.open(f"{place}/none")),
            (errno.ENOENT, lambda: pool.remove(f"{place}/none")),
            (errno.ENOENT, lambda: pool.open(f"{place}/dangling")),
            (errno.EEXIST, lambda: pool.open(file, "xb")),
            (errno.EEXIST, lambda: pool.open(f"{place}/dangling", "xb")),
            (errno.EEXIST, lambda: pool.mkdir(full)),
            (errno.EEXIST, lambda: pool.mkdir("/")),
            (errno.EEXIST, lambda: pool.symlink("x", file)),
            (errno.EISDIR, lambda: pool.open(full)),
            (errno.EISDIR, lambda: pool.open(full, "wb")),
            (errno.EISDIR, lambda: pool.remove(full)),
            (errno.EISDIR, lambda: pool.truncate(full, 0)),
            (errno.ENOTDIR, lambda: pool.rmdir(file)),
            (errno.ENOTDIR, lambda: pool.listdir(file)),
            (errno.ENOTEMPTY, lambda: pool.rmdir(full)),
            (errno.ELOOP, lambda: pool.open(f"{place}/loop")),
            (errno.EINVAL, lambda: pool.readlink(file)),
            (errno.ENOENT, lambda: pool.symlink("", f"{place}/empty")),
            (errno.ENAMETOOLONG, lambda: pool.symlink("x" * 5000, f"{place}/long")),
        ]:
            error = fails(number, operation)
            assert len(str(error)) > 15, error
        assert names(pool, place) == {b"full", b"loop", b"dangling"}
        assert names(pool, full) == {b"file"}


def test_deep_trees_are_made_walked_and_removed(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool:
        path = place + "/d" * 150
        pool.makedirs(path)
        with pool.open(f"{path}/x", "xb", buffering=0) as file:
            file.write(b"deep")
        assert shared_pool.run("cat", f"{path}/x").stdout == b"deep"
        fails(errno.ENAMETOOLONG, lambda: pool.stat("/d" * 2100))
        assert shared_pool.run("rm", "-r", f"{place}/d").returncode == 0
        assert names(pool, place) == set()


HUGE = [(1 << 62) - 5, 1 << 62, (1 << 63) - 1, (1 << 64) - 1]


@pytest.mark.parametrize("local", [True, False], ids=["local", "tcp"])
def test_offsets_beyond_the_largest_file_change_nothing(shared_pool: Pool, place: str, local: bool) -> None:
    with shared_pool.connect(local=local) as pool:
        with pool.open(f"{place}/x", "w+b", buffering=0) as file:
            file.write(b"content")
            for offset in HUGE:
                fails(errno.EFBIG, partial(file.pwrite, b"x" * 10, offset))
                # As everywhere: there is nothing beyond the end.
                assert file.pread_into(bytearray(10), offset) == 0
            for size in HUGE[1:]:
                if size > 1 << 62:
                    fails(errno.EFBIG, partial(file.truncate, size))
            for wrong in (-1, 1 << 64):
                with pytest.raises((ValueError, OverflowError)):
                    file.pwrite(b"x", wrong)
            assert file.size() == 7
            file.seek(0)
            assert file.readall() == b"content"
            # The largest file there can be, and back.
            file.truncate(1 << 62)
            assert file.pread_into(bytearray(10), (1 << 62) - 4) == 4
            file.truncate(7)
            assert file.pread_into(bytearray(10), 0) == 7
        with pool.open(f"{place}/x", "ab", buffering=0) as file:
            assert file.write(b"!") == 1
        pool.truncate(f"{place}/x", 1 << 62)
        with pool.open(f"{place}/x", "ab", buffering=0) as file:
            fails(errno.EFBIG, lambda: file.write(b"x"))
        assert pool.stat(f"{place}/x").st_size == 1 << 62


@pytest.mark.parametrize("unit", [0, 1, 4096, 64 * KIB - 1, 65 * KIB, 100_000, 3 * MIB, 2 << 30, 1 << 63])
def test_a_stripe_unit_that_makes_no_sense_is_refused(shared_pool: Pool, place: str, unit: int) -> None:
    with shared_pool.connect() as pool:
        makers: list[Callable[[], object]] = [
            lambda: pool.open(f"{place}/x", "wb", stripe_unit=unit),
            lambda: pool.array(f"{place}/x", (10,), "uint8", stripe_unit=unit),
            lambda: pool.set_layout(place, stripe_unit=unit),
        ]
        for make in makers:
            assert "stripe unit" in str(fails(errno.EINVAL, make)).lower()
        said = shared_pool.refused("cp", "--stripe-unit", str(unit), "/etc/hostname", f"ramlace:{place}/x")
        assert "stripe" in said, said
        said = shared_pool.refused("layout", "set", place, "--stripe-unit", str(unit))
        assert "stripe" in said, said
        assert names(pool, place) == set()
        pool.open(f"{place}/usual", "wb").close()
        assert pool.layout(f"{place}/usual").stripe_unit == 2 * MIB


def test_a_width_that_makes_no_sense_is_refused_and_a_wide_one_narrowed(shared_pool: Pool, place: str) -> None:
    with shared_pool.connect() as pool:
        fails(errno.EINVAL, lambda: pool.open(f"{place}/x", "wb", width=0))
        with pytest.raises((ramlace.Error, OverflowError)):
            pool.array(f"{place}/x", (10,), "uint8", width=1 << 16)
        assert names(pool, place) == set()
        # More lanes than servers: as many as there are.
        pool.open(f"{place}/x", "wb", width=4000).close()
        assert pool.layout(f"{place}/x").width == 3


def test_the_command_refuses_what_makes_no_sense_and_says_why(shared_pool: Pool, place: str) -> None:
    shared_pool.run("cp", "-", f"ramlace:{place}/x", stdin=b"content")
    long = "x" * 256
    for words, told in [
        (("cat", f"{place}/{long}"), "255"),
        (("mkdir", f"{place}/{long}"), "255"),
        (("cp", "/etc/hostname", f"ramlace:{place}/{long}"), "255"),
        (("cat", f"{place}/none"), "none"),
        (("cat", place), "directory"),
        (("cat", f"{place}/x/y"), "directory"),
        (("ls", f"{place}/none"), "none"),
        (("rm", place), "directory"),
        (("rm", f"{place}/none"), "none"),
        (("mkdir", f"{place}/x"), "x"),
        (("mkdir", f"{place}/a/b"), "a/b"),
        (("cp", f"{place}/x", f"{place}/y"), "neither side is in a pool"),
        (("cp", f"ramlace:{place}/none", "-"), "none"),
        (("cp", "/none", f"ramlace:{place}/y"), "/none"),
        (("cp", f"ramlace:{place}/x", "/none/y"), "/none/y"),
        (("cp", "/etc/hostname", f"ramlace:{place}/none/y"), "none"),
        (("cp", "/usr", f"ramlace:{place}/y"), "-r"),
        (("ls", "relative"), "begins with a slash"),
        (("ls", "ramlace:relative"), "slash"),
        (("ls", "ramlace://"), ""),
        (("ls", "ramlace://host:99999/"), ""),
        (("ls", ""), ""),
        (("cp", "--width", "0", "/etc/hostname", f"ramlace:{place}/y"), "0"),
        (("layout", "set", f"{place}/x", "--width", "2"), "directory"),
        (("nonsense",), "nonsense"),
    ]:
        said = shared_pool.refused(*words)
        assert told in said, f"{words}: {said}"
        assert said.strip(), words
    with shared_pool.connect() as pool:
        assert names(pool, place) == {b"x"}
        assert pool.open(f"{place}/x").read() == b"content"


def test_a_failure_as_json_has_kind_errno_and_message(shared_pool: Pool, place: str) -> None:
    report = json.loads(shared_pool.refused("cat", f"{place}/none", "--json"))["error"]
    assert (report["kind"], report["errno"], report["errno_name"]) == ("NotFound", errno.ENOENT, "ENOENT")
    assert f"{place}/none" in report["message"]


def test_denials_name_paths_and_no_inodes(new_pool: NewPool, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root is denied nothing; an ordinary user runs this")
    pool = new_pool(3)
    for words in (("mkdir", "-p", "/d/e"), ("cp", "-", "ramlace:/f"), ("cp", "-", "ramlace:/d/f")):
        pool.run(*words, stdin=b"bytes")
    denied = 0
    for mode in ("000", "500"):
        pool.run("chmod", mode, "/d", "/f")
        for line in [
            "cat /f",
            "cat /d/f",
            "ls /d",
            "ls /d/e",
            "stat /d/f",
            "find /d",
            "du /d",
            "mkdir /d/x",
            "rm /d/f",
            "rm -r /d",
            "ln /f /d/x",
            "ln /d/f /g",
            "ln -s x /d/y",
            "mv ramlace:/d/f ramlace:/g",
            "mv ramlace:/f ramlace:/d/f",
            "cp - ramlace:/f",
            "cp - ramlace:/d/x",
            "chmod 700 /d/f",
            "chown 0 /f",
            "touch /d/x",
            "xattr set /f user.x 1",
            "xattr get /f user.x",
            "layout get /d/f",
        ]:
            done = pool.run(*line.split(), check=False)
            if done.returncode == 0:
                # The mode lets them look.
                continue
            denied += 1
            said = done.stderr.decode()
            assert re.search(r"[0-9a-f]{16}", said) is None, (line, said)
            assert "/d" in said or "/f" in said, (line, said)
    assert denied > 30
    pool.run("chmod", "700", "/d", "/f")
