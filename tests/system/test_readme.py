"""Every line that README.md prints is run, in order, as a reader would."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mount import is_mounted, why_not
from pool import BUILT, PATIENCE_SECONDS, binary
from readme import README, ROOT, Block, Terminal, blocks, why_no_r

pytestmark = pytest.mark.skipif(not README.is_file(), reason="no README.md here: this is no checkout")

# Stands in for ssh: the other machine is this one, with a runtime directory of its own.
TRANSPORT = """#!/bin/sh
export XDG_RUNTIME_DIR="$XDG_RUNTIME_DIR/$1"
mkdir -p -m 700 "$XDG_RUNTIME_DIR"
shift
exec sh -c "$*"
"""


def missing(block: Block, mounted: bool) -> str:
    """Return what a block needs and this machine lacks, or nothing."""
    if block.language == "r" and (reason := why_no_r()):
        return reason
    if "pkg-config" in block.text:
        for name in ("cc", "pkg-config"):
            if not shutil.which(name):
                return f"{name} is missing"
        if not (BUILT / "pkgconfig/ramlace.pc").is_file():
            return f"{BUILT}/pkgconfig is missing (make build)"
    # In a block that starts the pool the mount is one line; `without_mount` leaves that out.
    if not mounted and ("pool/" in block.text or 'pool"' in block.text) and "ramlace up" not in block.text:
        return why_not()
    return ""


def without_mount(block: Block) -> Block:
    """The block for a machine that mounts nothing: its lines that mount or unmount are left out."""
    kept = [
        line.replace(" --mount pool", "")
        for line in block.text.splitlines()
        if not re.match(r"ramlace (un)?mount", line)
    ]
    return Block(block.language, block.line, "\n".join(kept))


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal in a fresh checkout; whatever its blocks leave running is taken down."""
    # Paths of sockets are short.
    runtime = Path(tempfile.mkdtemp(prefix="rl-"))
    directory = tmp_path / "checkout"
    directory.mkdir()
    transport = tmp_path / "transport"
    transport.write_text(TRANSPORT)
    transport.chmod(0o755)
    monkeypatch.setenv("RAMLACE_TRANSPORT", str(transport))
    for name in ("RAMLACE_POOL", "RAMLACE_SECRET_FILE", "RAMLACE_LOCAL"):
        monkeypatch.delenv(name, raising=False)
    yield Terminal(directory, runtime)
    mount = directory / "pool"
    for words in (["unmount", str(mount)], ["down"], ["down", "--pool", "lab", "--force"]):
        if words[0] != "unmount" or is_mounted(mount):
            environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
            command = [binary(), *words]
            subprocess.run(command, env=environment, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    assert not is_mounted(mount)
    shutil.rmtree(runtime)


def test_every_block_does_what_it_says(terminal: Terminal) -> None:
    mounted = not why_not()
    ran, skipped = 0, []
    for block in blocks():
        if block.language == "make":
            continue
        if reason := missing(block, mounted):
            skipped.append(f"README.md, line {block.line}: not run, {reason}")
            continue
        terminal.run(block if mounted else without_mount(block))
        ran += 1
    print(*skipped, sep="\n")
    assert ran >= (9 if mounted and not skipped else 3), skipped
    # The blocks take down what they have started.
    left = list(Path(terminal.environment["XDG_RUNTIME_DIR"]).rglob("pool.json"))
    assert left == []
    assert not is_mounted(terminal.directory / "pool")
    if skipped:
        pytest.skip("the rest ran; " + "; ".join(skipped))


def test_every_block_is_in_a_language_that_is_run() -> None:
    languages = [block.language for block in blocks()]
    assert set(languages) == {"make", "sh", "python", "r"}
    assert languages.count("r") == 2


def test_the_targets_of_make_are_there() -> None:
    if not (ROOT / "Makefile").is_file():
        pytest.skip("no Makefile here: this is no checkout")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks():
        if block.language == "make":
            for line in block.text.splitlines():
                assert re.fullmatch(r"make ([a-z-]+) +# .*", line), line
                assert line.split()[1] in targets


def test_what_is_named_is_there() -> None:
    for name in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("text", ["false", "echo one\n#> two", "echo 2; echo 1\n#> 1\n#> 2", "false | true"])
def test_a_block_that_fails_or_prints_something_else_is_noticed(terminal: Terminal, text: str) -> None:
    with pytest.raises(AssertionError, match=r"README\.md, line 7"):
        terminal.run(Block("sh", 7, text))


def test_blocks_of_the_shell_share_one_environment(terminal: Terminal) -> None:
    terminal.run(Block("sh", 1, "export PLACE=here"))
    assert terminal.run(Block("sh", 2, "echo $PLACE\n#> here")) == "here\n"
