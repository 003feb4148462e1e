"""Check every text file that git would take: no blanks at line ends, no conflict markers.

Check also that each numbered sentence of docs/SEMANTICS.md names a test, and that it exists.

usage: hygiene.py

Prints `file:line: what is wrong` and exits with 1 when there is anything. Outside a git
checkout (a source archive) it says so and exits with 0.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Bytes of one file; what is larger does not belong into a source repository.
FILE_BYTES_MAX = 1 << 20
CONFLICTS = (b"<" * 7 + b" ", b">" * 7 + b" ")
BINARY_SUFFIXES = {".png", ".bin"}


def files() -> list[Path] | None:
    """Return the files git would take, or None outside a git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        return None
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def problems(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, what is wrong) for one file."""
    content = path.read_bytes()
    if len(content) > FILE_BYTES_MAX:
        yield 1, f"{len(content)} bytes, more than {FILE_BYTES_MAX}"
        return
    if path.suffix in BINARY_SUFFIXES or b"\0" in content:
        return
    if content and not content.endswith(b"\n"):
        yield content.count(b"\n") + 1, "no newline at the end"
    if content.endswith(b"\n\n"):
        yield content.count(b"\n"), "blank line at the end"
    for number, line in enumerate(content.split(b"\n"), 1):
        if line != line.rstrip():
            yield number, "blanks at the end of the line"
        if line.startswith(CONFLICTS):
            yield number, "a conflict marker"


def broken_promises(found: list[Path]) -> Iterator[str]:
    """Yield what is wrong with the sentences of docs/SEMANTICS.md and the tests behind them."""
    tests = "".join(
        path.read_text(errors="replace") for path in found if path.suffix in {".py", ".rs"} and path.is_file()
    )
    sentences = re.split(r"^(\d+)\. ", (ROOT / "docs/SEMANTICS.md").read_text(), flags=re.MULTILINE)
    for expected, (number, text) in enumerate(zip(sentences[1::2], sentences[2::2], strict=True), 1):
        if int(number) != expected:
            yield f"docs/SEMANTICS.md: sentence {number} stands where {expected} belongs"
        # A sentence ends where the next section or the appendix begins.
        named = re.findall(r"`([a-z0-9_]{12,})`", text.split("\n## ")[0])
        if not named:
            yield f"docs/SEMANTICS.md: sentence {number} names no test"
        for test in named:
            if not re.search(rf"\b(def|fn) {test}\b", tests):
                yield f"docs/SEMANTICS.md: sentence {number} names the test {test}, which does not exist"


def main() -> int:
    """Check all files; return the exit code."""
    found = files()
    if found is None:
        print("hygiene: skipped, this is no git checkout")
        return 0
    count = 0
    for path in found:
        if path.is_file() and not path.is_symlink():
            for line, what in problems(path):
                print(f"{path.relative_to(ROOT)}:{line}: {what}")
                count += 1
    for problem in broken_promises(found):
        print(problem)
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
