"""The C library as C programs meet it: compiled against an installed tree, run against real pools."""

import os
import random
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from c_programs import STRICT, compile_c, flags
from conftest import NewPool
from pool import BUILT, MIB, PATIENCE_SECONDS, Pool

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# What capi_test does with the pool that the tests here share.
SHARED = [
    "files",
    "vectors",
    "runs",
    "space",
    "names",
    "strange_names",
    "lists",
    "layouts",
    "placing",
    "maps",
    "views",
    "beside",
    "sharing",
    "wrong",
    "threads",
    "forks",
    "locks",
    "coordination",
]

OVER_THE_NETWORK = [
    "files",
    "vectors",
    "runs",
    "threads",
    "forks",
    "strange_names",
    "coordination",
    "views",
    "beside",
    "sharing",
]


@dataclass
class Programs:
    """C programs built against an installed library, and that library."""

    prefix: Path
    directory: Path

    def build(self, name: str, sources: list[Path], *options: str) -> Path:
        """Build one against the installed tree alone; it finds the library there when it runs."""
        libraries = flags(self.prefix / "lib/pkgconfig")
        assert not any(str(ROOT) in flag for flag in libraries), libraries
        run_path = f"-Wl,-rpath,{self.prefix}/lib"
        return compile_c(self.directory / name, sources, *options, *libraries, run_path)

    def run(
        self, name: str, *words: str, pool: str | None = None, code: int = 0, runtime: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run one to its end; it must end with `code`."""
        environment = {**os.environ, **({"RAMLACE_POOL": pool} if pool else {})}
        if runtime:
            environment["XDG_RUNTIME_DIR"] = str(runtime)
        done = subprocess.run(
            [str(self.directory / name), *words],
            capture_output=True,
            check=False,
            env=environment,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == code, f"{name} {words} ended with {done.returncode}: {done.stderr}{done.stdout}"
        return done


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Install the library into a scratch directory, and build every C program against it."""
    base = tmp_path_factory.mktemp("c")
    made = Programs(base / "prefix", base)
    environment = {**os.environ, "PYTHON": sys.executable}
    install = [str(ROOT / "scripts/c_library.sh"), "install", str(made.prefix), str(BUILT)]
    subprocess.run(install, check=True, env=environment)
    made.build("capi_test", sorted((ROOT / "tests/system/c").glob("*.c")), "-pthread")
    for name in ("hello", "read_test"):
        made.build(name, [EXAMPLES / f"{name}.c"])
    for name in ("make_floats", "read_test_posix"):
        compile_c(base / name, [EXAMPLES / f"{name}.c"])
    yield made
    shutil.rmtree(base)


# SEMANTICS 98.5, 143.4, 143.5, 144.1, 144.2
@pytest.mark.parametrize("name", SHARED)
def test_every_function_does_what_the_header_says(programs: Programs, shared_pool: Pool, place: str, name: str) -> None:
    programs.run("capi_test", name, shared_pool.name, place)


# SEMANTICS 143.4, 143.5, 144.1, 144.2
@pytest.mark.parametrize("name", OVER_THE_NETWORK)
def test_it_does_the_same_over_the_network(
    programs: Programs, shared_pool: Pool, place: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMLACE_LOCAL", "off")
    programs.run("capi_test", name, f"ramlace://{shared_pool.addresses[0]}", place)


def test_locators_of_the_connected_pool_are_paths_and_others_are_refused(
    programs: Programs, shared_pool: Pool, new_pool: NewPool, place: str
) -> None:
    other = new_pool(1, 16)
    by_address = [f"ramlace://{address}" for address in shared_pool.addresses]
    strangers = [f"ramlace://{other.name}", f"ramlace://{other.addresses[0]}", "ramlace://nosuchpool"]
    own = f"ramlace://{shared_pool.name}"

    def check(case: str, reached: str, ours: list[str], others: list[str], environment: str | None = None) -> None:
        with shared_pool.connect() as pool:
            pool.mkdir(f"{place}/{case}")
        words = ("locators", reached, f"{place}/{case}", own, *ours, "--", *strangers, *others)
        programs.run("capi_test", *words, pool=environment)

    check("by-name", shared_pool.name, by_address, [])
    check("by-locator", own, by_address, [])
    check("by-address", by_address[1], by_address, [])
    check("by-host-and-port", shared_pool.addresses[1], by_address, [])
    # Reached by an address, `ramlace:/path` lies in the pool that the environment names.
    check("by-address-at-home", by_address[0], ["ramlace:"], [], shared_pool.name)
    check("by-address-abroad", by_address[0], [], ["ramlace:"], other.name)


def test_a_full_pool_is_enospc_and_keeps_what_was_written(programs: Programs, new_pool: NewPool) -> None:
    pool = new_pool(2, 16)
    with pool.connect() as connected:
        connected.mkdir("/c")
    programs.run("capi_test", "full", pool.name, "/c")


def test_calls_on_a_pool_that_was_killed_fail_within_their_deadline(programs: Programs, new_pool: NewPool) -> None:
    pool = new_pool(1, 16)
    with pool.connect() as connected:
        connected.mkdir("/c")
    client = subprocess.Popen(
        [str(programs.directory / "capi_test"), "gone", pool.name, "/c"],
        env={**os.environ, "RAMLACE_POOL": pool.name},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        pool.kill_server(0)
        said, errors = client.communicate("go\n", timeout=PATIENCE_SECONDS)
    finally:
        client.kill()
        client.wait()
    assert client.returncode == 0, errors
    texts = said.splitlines()
    assert len(texts) == 3
    assert all(pool.addresses[0] in text for text in texts), texts


def test_hello_says_hello_and_what_to_do_without_a_pool(programs: Programs, shared_pool: Pool, tmp_path: Path) -> None:
    assert programs.run("hello", pool=shared_pool.name).stdout == "hello from a pool of memory\n"
    said = programs.run("hello", pool="nosuchpool", code=1, runtime=tmp_path).stderr
    assert "nosuchpool" in said
    assert "ramlace up" in said


def make_floats(programs: Programs, count: int) -> bytes:
    """Return what make_floats writes."""
    return subprocess.run([str(programs.directory / "make_floats"), str(count)], capture_output=True, check=True).stdout


def test_read_test_prints_the_same_in_both_forms(
    programs: Programs, shared_pool: Pool, place: str, tmp_path: Path
) -> None:
    count = 5 * MIB // 4 + 3
    content = make_floats(programs, count)
    assert len(content) == count * 4
    for index in random.Random(1).sample(range(count), 100):
        expected = (index * 2654435761 % 2**32) >> 8
        assert struct.unpack_from("<f", content, index * 4) == (float(expected),)
    (tmp_path / "floats").write_bytes(content)
    with shared_pool.connect() as pool, pool.open(f"{place}/floats", "wb") as file:
        file.write(content)
    words = ("--repeats", "40", "--floats", "300000", "--seed", "7", "--check", "--sum")
    posix = programs.run("read_test_posix", *words, str(tmp_path / "floats"))
    native = programs.run("read_test", *words, f"ramlace://{shared_pool.name}{place}/floats")
    plain = programs.run("read_test", *words, f"{place}/floats", pool=shared_pool.name)
    assert posix.stdout == native.stdout == plain.stdout
    lines = posix.stdout.splitlines()
    assert len(set(lines)) == 41
    firsts = [int(line.split()[0]) for line in lines[:-1]]
    floats = [(index * 2654435761 % 2**32) >> 8 for index in range(count)]
    assert lines[-1] == f"sum {sum(sum(floats[first : first + 300_000]) for first in firsts)}"
    other = programs.run("read_test_posix", *words[:4], "--seed", "8", str(tmp_path / "floats"))
    assert other.stdout != posix.stdout
    quiet = programs.run("read_test", "--quiet", *words, f"{place}/floats", pool=shared_pool.name)
    assert quiet.stdout == lines[-1] + "\n"
    assert "40 reads of 1200000 bytes" in quiet.stderr
    assert "MB/s" in quiet.stderr


def test_read_test_notices_wrong_bytes_and_short_files(
    programs: Programs, shared_pool: Pool, place: str, tmp_path: Path
) -> None:
    content = bytearray(make_floats(programs, 1000))
    content[2001] ^= 1
    (tmp_path / "floats").write_bytes(content)
    with shared_pool.connect() as pool, pool.open(f"{place}/floats", "wb") as file:
        file.write(content)
    for name, path in (("read_test_posix", tmp_path / "floats"), ("read_test", Path(place) / "floats")):
        said = programs.run(name, "--floats", "1000", "--check", str(path), pool=shared_pool.name, code=1).stderr
        assert "float 500 is" in said
        said = programs.run(name, str(path), pool=shared_pool.name, code=1).stderr
        assert "fewer than the 2048000" in said
        for words in ([], ["--repeats"], ["--repeats", "x", "f"], ["--what", "f"], ["a", "b"], ["--floats", "0", "f"]):
            assert "usage" in programs.run(name, *words, code=2).stderr
        assert "missing" in programs.run(name, f"{path}-missing", pool=shared_pool.name, code=1).stderr


def test_a_program_builds_from_the_checkout_and_runs_anywhere(shared_pool: Pool, tmp_path: Path) -> None:
    hello = compile_c(tmp_path / "hello", [EXAMPLES / "hello.c"], *flags(BUILT / "pkgconfig"))
    done = subprocess.run(
        [str(hello)],
        env={**os.environ, "RAMLACE_POOL": shared_pool.name},
        cwd="/",
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == "hello from a pool of memory\n"


def test_what_is_installed_is_the_whole_and_nothing_else(programs: Programs) -> None:
    found = {str(path.relative_to(programs.prefix)) for path in programs.prefix.rglob("*") if not path.is_dir()}
    manual = {path for path in found if path.startswith("share/man/man")}
    assert {
        "share/man/man1/ramlace.1",
        "share/man/man8/mount.ramlace.8",
        "share/man/man8/mount.fuse.ramlace.8",
    } <= manual
    assert found - manual == {
        "bin/ramlace",
        "bin/.debug/ramlace.debug",
        "sbin/mount.ramlace",
        "sbin/mount.fuse.ramlace",
        "include/ramlace.h",
        "lib/libramlace.so",
        "lib/libramlace.so.0",
        "lib/.debug/libramlace.so.0.debug",
        "lib/pkgconfig/ramlace.pc",
    }
    assert (programs.prefix / "lib/libramlace.so").readlink() == Path("libramlace.so.0")
    command = programs.prefix / "bin/ramlace"
    assert subprocess.run([str(command), "--version"], check=True, capture_output=True).stdout.startswith(b"ramlace ")
    for name in ("mount.ramlace", "mount.fuse.ramlace"):
        assert (programs.prefix / "sbin" / name).readlink() == command


def test_the_command_is_small_and_what_debuggers_need_lies_beside_it(programs: Programs) -> None:
    command = programs.prefix / "bin/ramlace"
    assert command.stat().st_size <= 15 << 20
    for name, part in (("bin/ramlace", "ramlace_client"), ("lib/libramlace.so.0", "ramlace_client")):
        installed = programs.prefix / name
        debug = installed.parent / ".debug" / f"{installed.name}.debug"
        symbols = subprocess.run(["nm", "-C", str(debug)], capture_output=True, check=True, text=True).stdout
        code = next(line.split()[0] for line in symbols.splitlines() if re.search(rf" [tT] {part}::\w+::", line))
        found = subprocess.run(["addr2line", "-e", str(installed), code], capture_output=True, check=True, text=True)
        assert re.search(r"crates/\w+/src/\S+\.rs:\d+", found.stdout), found.stdout


def test_mount_finds_its_helpers_where_the_command_is_installed_for_all(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "DESTDIR": str(tmp_path)}
    subprocess.run(
        [str(ROOT / "scripts/c_library.sh"), "install", "/usr/local", str(BUILT)], check=True, env=environment
    )
    for name in ("mount.ramlace", "mount.fuse.ramlace"):
        assert (tmp_path / "sbin" / name).readlink() == Path("/usr/local/bin/ramlace")


def test_each_command_has_a_manual_page_with_all_its_options(programs: Programs) -> None:
    def said(*words: str) -> str:
        command = [str(programs.prefix / "bin/ramlace"), *words, "--help"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    pages = programs.prefix / "share/man/man1"
    names = re.findall(r"^  ([a-z-]+)  ", said().split("\nCommands:\n")[1].split("\n\n")[0], re.MULTILINE)
    assert {"up", "cp", "mount", "serve"} <= set(names)
    assert {path.name for path in pages.iterdir()} == {"ramlace.1", *(f"ramlace-{name}.1" for name in names)}
    for name in names:
        page = (pages / f"ramlace-{name}.1").read_text().replace("\\-", "-")
        assert page.startswith(f'.TH "RAMLACE-{name.upper()}" 1 ')
        options = set(re.findall(r"--[a-z][a-z-]+", said(name)))
        assert options and all(option in page for option in options), options
        if shutil.which("groff"):
            checked = ["groff", "-man", "-Tutf8", "-ww", "-z", str(pages / f"ramlace-{name}.1")]
            assert subprocess.run(checked, capture_output=True, check=True, text=True).stderr == ""
    helper = (programs.prefix / "share/man/man8/mount.ramlace.8").read_text().replace("\\-", "-")
    assert helper.startswith('.TH "MOUNT.RAMLACE" 8 ')
    assert all(word in helper for word in ("secret_file=", "/etc/fstab", "remount,ro", "autofs"))


def test_the_library_exports_its_functions_and_nothing_else(programs: Programs) -> None:
    header = (programs.prefix / "include/ramlace.h").read_text()
    symbols = Path(programs.prefix / "lib/libramlace.so.0")
    done = subprocess.run(["nm", "-D", "--defined-only", str(symbols)], capture_output=True, check=True, text=True)
    exported = {line.split()[-1] for line in done.stdout.splitlines()}
    assert len(exported) > 40
    for name in exported:
        assert name.startswith("ramlace_")
        assert f"{name}(" in header
    read = subprocess.run(["readelf", "-d", str(symbols)], capture_output=True, check=True, text=True).stdout
    assert "Library soname: [libramlace.so.0]" in read
    assert "NODELETE" in read


def layout_program(header: str) -> str:
    """Return a program that prints size and fields of every structure of the header."""
    lines = ["#include <ramlace.h>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for structure, fields in STRUCTURES.items():
        assert f"struct {structure} {{" in header
        lines.append(f'printf("{structure} %zu", sizeof(struct {structure}));')
        lines += [f'printf(" %zu", offsetof(struct {structure}, {field}));' for field in fields]
        lines.append("putchar('\\n');")
    return "\n".join([*lines, "return 0; }", ""])


# Fields in their order; the ABI is what bindings in other languages write down.
STRUCTURES = {
    "ramlace_options": ["size", "deadline_millis", "local", "secret_file", "label", "cache_bytes"],
    "ramlace_hints": [
        *("size", "stripe_unit", "width", "copies", "local", "first_server", "parts", "part_count", "mode", "reserve"),
    ],
    "ramlace_part": ["bytes", "machine"],
    "ramlace_time": ["seconds", "nanoseconds", "reserved"],
    "ramlace_stat": [
        *("size", "inode", "blocks", "stripe_unit", "generation", "mode", "links", "uid", "gid", "width", "copies"),
        *("accessed", "modified", "changed", "created", "device_major", "device_minor", "reserved"),
    ],
    "ramlace_run": ["offset", "length", "stride", "count"],
    "ramlace_layout": ["stripe_unit", "width", "copies", "fixed", "first_server", "mode", "reserve", "reserved"],
    "ramlace_statfs": [
        *(
            "total_bytes",
            "used_bytes",
            "free_bytes",
            "inodes",
            "silent_servers",
            "name_bytes_max",
            "inodes_max",
            "file_bytes",
            "directory_inodes",
            "reserved",
        ),
    ],
    "ramlace_entry": ["inode", "type_bits", "name_length", "name", "reserved"],
}
ABI = """\
ramlace_options 40 0 8 12 16 24 32
ramlace_hints 56 0 8 16 20 24 28 32 40 48 52
ramlace_part 24 0 8
ramlace_time 16 0 8 12
ramlace_stat 160 0 8 16 24 32 40 44 48 52 56 60 64 80 96 112 128 132 136
ramlace_run 32 0 8 16 24
ramlace_layout 48 0 8 12 16 20 24 28 32
ramlace_statfs 72 0 8 16 24 32 36 40 48 56 64
ramlace_entry 288 0 8 12 16 272
"""


def test_structures_lie_in_memory_as_the_abi_has_them(programs: Programs, tmp_path: Path) -> None:
    header = (programs.prefix / "include/ramlace.h").read_text()
    source = tmp_path / "layout.c"
    source.write_text(layout_program(header))
    programs.build("layout", [source])
    assert programs.run("layout").stdout == ABI


def test_the_header_is_good_c_and_good_cplusplus(programs: Programs, tmp_path: Path) -> None:
    source = tmp_path / "program.cc"
    source.write_text(
        "#include <ramlace.h>\n#include <ramlace.h>\n"
        "int main() { ramlace_options options = RAMLACE_OPTIONS_INIT; struct ramlace_stat stat;\n"
        "ramlace_hints hints = RAMLACE_HINTS_INIT; (void)hints;\n"
        'return ramlace_stat(ramlace_connect(nullptr, &options), "/", &stat); }\n'
    )
    include = f"-I{programs.prefix}/include"
    c_source = tmp_path / "program.c"
    c_source.write_text("#include <ramlace.h>\nint main(void) { return ramlace_abi_version(); }\n")
    for standard in ("c99", "c11", "gnu17"):
        subprocess.run(["cc", *STRICT[2:-1], f"-std={standard}", include, "-fsyntax-only", str(c_source)], check=True)
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed: the header is not tried as C++")
    options = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c++11", include, "-fsyntax-only"]
    subprocess.run(["g++", *options, str(source)], check=True)
