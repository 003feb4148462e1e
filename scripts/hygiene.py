"""Check every text file that git would take: no blanks at line ends, no conflict markers.

Check also that what the documents say exists (contract.py), and that no enum of the product is written down by the
order of its variants.

usage: hygiene.py

Prints `file:line: what is wrong` and exits with 1 when there is anything. Outside a git
checkout (a source archive) it says so and exits with 0.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import contract

ROOT = Path(__file__).resolve().parent.parent
# Bytes of one file; what is larger does not belong into a source repository.
FILE_BYTES_MAX = 1 << 20
CONFLICTS = (b"<" * 7 + b" ", b">" * 7 + b" ")
BINARY_SUFFIXES = {".png", ".bin"}
# An enum that derives how it is written: its attributes, and its name.
DERIVED_ENUM = re.compile(
    r"((?:^[ \t]*#\[[^\n]*\n)*^[ \t]*#\[derive\([^)]*\b(?:Serialize|Deserialize)\b[^)]*\)\]\n(?:[ \t]*#\[[^\n]*\n)*)"
    r"[ \t]*(?:pub(?:\([^)]*\))? )?enum (\$?\w+)",
    re.MULTILINE,
)
# It is written by the names of its variants, or as another type.
WRITTEN_BY_NAME = re.compile(r"#\[serde\([^\n]*\b(?:tag|try_from) = ")


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


def enums_by_order(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, what is wrong) for each enum of a Rust file that is numbered by the order of its variants."""
    text = path.read_text()
    for found in DERIVED_ENUM.finditer(text):
        attributes, name = found.groups()
        if not WRITTEN_BY_NAME.search(attributes):
            line = text.count("\n", 0, found.end()) + 1
            yield line, f"{name} is written by the order of its variants: give it numbers (numbered_variants!)"


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
        if re.match(r"crates/\w+/src/.*\.rs$", str(path.relative_to(ROOT))) and path.is_file():
            for line, what in enums_by_order(path):
                print(f"{path.relative_to(ROOT)}:{line}: {what}")
                count += 1
    for problem in contract.problems(ROOT, found):
        print(problem)
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
