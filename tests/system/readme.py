"""The fenced blocks of README.md, and how to run them as a reader would.

All of them run in order in one fresh directory that looks like a checkout. Blocks of `sh` share one
environment, as in one terminal; every block of `python` or `r` is a program of its own. A line
`#> text` says what is printed there.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pool import BUILT, PATIENCE_SECONDS, binary

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# Where Debian's packages put R's; a look at it is cheaper than starting R.
BIGMEMORY = "library(bigmemory)"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the line of README.md on which it begins, and its text."""

    language: str
    line: int
    text: str

    @property
    def promised(self) -> list[str]:
        """What it says that it prints."""
        return [line.removeprefix("#>").strip() for line in self.text.splitlines() if line.startswith("#>")]


def blocks(readme: Path = README) -> list[Block]:
    """Return the blocks in their order."""
    text = readme.read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    made = [Block(match[1], text.count("\n", 0, match.start()) + 1, match[2]) for match in found]
    assert len(made) * 2 == len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)), "a fence of README.md is odd"
    return made


def why_no_r() -> str:
    """Return why R with bigmemory cannot be run here, or nothing when it can."""
    if not shutil.which("Rscript"):
        return "Rscript is missing (Debian's package r-base-core)"
    done = subprocess.run(["Rscript", "-e", BIGMEMORY], capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    return "" if done.returncode == 0 else "R has no bigmemory (Debian's package r-cran-bigmemory)"


class Terminal:
    """A fresh directory that looks like a checkout, and the environment that its shell has."""

    def __init__(self, directory: Path, runtime: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime)}
        programs = directory / ".venv/bin"
        programs.mkdir(parents=True)
        (programs / "ramlace").symlink_to(binary())
        # What is tested stands where a reader has it.
        (directory / "target").mkdir()
        for name, place in ("examples", ROOT / "examples"), ("target/release", BUILT):
            if place.is_dir():
                (directory / name).symlink_to(place)

    def run(self, block: Block) -> str:
        """Run a block to its end; return what it printed. One that fails is an assertion."""
        if block.language == "sh":
            return self._shell(block)
        script = self.directory / f"block-{block.line}"
        script.write_text(block.text)
        return self._run(block, [sys.executable if block.language == "python" else "Rscript", str(script)])

    def _shell(self, block: Block) -> str:
        state = self.directory / ".environment"
        said = self._run(block, ["bash", "-euo", "pipefail", "-c", f"{block.text}\nenv -0 >{state}"])
        pairs = (pair.split("=", 1) for pair in state.read_text().split("\0") if pair)
        self.environment = {name: value for name, value in pairs if name not in ("_", "SHLVL")}
        return said

    def _run(self, block: Block, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        said = done.stdout.decode()
        where = f"README.md, line {block.line}"
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{said}\n{done.stderr.decode()}"
        lines = iter(line.strip() for line in said.splitlines())
        for promised in block.promised:
            # What is printed first is looked for first: a line found is not found again.
            assert promised in lines, f"{where} says that it prints {promised!r}; it printed\n{said}"
        return said
