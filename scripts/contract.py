"""What the documents say of the code and its tests, held to what is there.

usage: contract.py

Prints what is wrong, and exits with 1 when there is anything.

* Each numbered clause of docs/SEMANTICS.md names tests, these exist and cite it, and no other does (promises.py).
* docs/SECURITY.md names tests, these exist, and each cell of its table of threats names one, or says what is open.
* Each path that a document names exists.
* A comment that cites a decision cites a page of docs/records/ that exists.
* docs/OPERATIONS.md explains every line that a server or a mount, its daemon's command too, writes into its log.
* docs/ENVIRONMENT.md has every environment variable that the source reads, and no other.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import promises

SOURCES = {".py", ".rs", ".c", ".h", ".sh"}
# Paths that a document names are below one of these, or are written as from one of them.
BASES = ("", "crates", "docs", "tests", "bindings/python", "crates/wire/src")
# `crates/base`, `client/src/coordination/events.rs`, `records/x.md`: with a slash, and of letters that names have.
PATH = re.compile(r"`((?:\.?[a-z0-9_-]+/)+[A-Za-z0-9_.-]*|[A-Za-z0-9_-]+\.(?:rs|py|md|sh|toml))`")
# What looks like a path of the repository, and is one of a machine or of what is built.
ELSEWHERE = ("target/", "bench/out", "lib/", "include/", "share/", "bin/", "application/", "text/", "fs/fuse")
# How the name of an environment variable stands in the source: ramlace's own anywhere, but for what the compiler reads
# while it builds (env!); others where they are read.
READS = (
    re.compile(r'(?<!env!\()"(RAMLACE_[A-Z_]*[A-Z])"'),
    re.compile(r"\$\{?(RAMLACE_[A-Z_]*[A-Z])"),
    re.compile(r'env::var(?:_os)?\(\s*"([A-Z_]+)"'),
    re.compile(r'\benv = "([A-Z_]+)"'),
    re.compile(r'os\.(?:environ(?:\.get\(|\[)|getenv\()"([A-Z_]+)"'),
)
READS_IN_C = (re.compile(r'\bgetenv\("([A-Z_]+)"'),)
# Variables that the standard library reads for the program.
READ_BY_CALLS = {"TMPDIR": "env::temp_dir()"}
# A test in a document, among other names of code: it has a sentence for a name.
SENTENCE = re.compile(r"`((?:[a-z0-9]+_){3,}[a-z0-9]+)`")
# Cells of the table of threats that need no test: who owns the pool may do everything, and nothing is nothing.
UNTESTED = ("it is the owner", "-", "no, likewise")
CITED = re.compile(r"\bdecisions? (?:\d+|`[^`]*`)")


def problems(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield what is wrong with the documents among the files of a checkout."""
    found = [path for path in found if path.is_file()]
    yield from promises.problems(root, found)
    yield from unheld_threats(root, found)
    yield from missing_files(root, found)
    yield from uncited_decisions(root, found)
    yield from wrong_variables(root, found)
    yield from unexplained_lines(root, found)


def text_of(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield files with what is in them."""
    for path in paths:
        yield path, path.read_text(errors="replace")


def unheld_threats(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield the cells of the table of threats that no test holds and that do not say what is open."""
    sources = text_of(path for path in found if path.suffix in {".py", ".rs"})
    functions = [function for path, source in sources for function in promises.functions_of(path, source)]
    tests = {function.name for function in functions if function.is_test}
    others = {function.name for function in functions} - tests
    text = (root / "docs/SECURITY.md").read_text()
    for test in sorted(set(SENTENCE.findall(text)) - tests):
        why = "is no test" if test in others else "does not exist"
        yield f"docs/SECURITY.md: names the test {test}, which {why}"
    table = text.partition("## Who can do what")[2].partition("\n## ")[0]
    rows = [line.strip("|\n ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    for who, *cells in rows[1:]:
        if len(cells) != len(rows[0]) - 1:
            yield f"docs/SECURITY.md: the row of '{who}' has {len(cells)} cells"
        for cell in cells:
            if not (SENTENCE.search(cell) or "open: " in cell or cell in UNTESTED):
                yield f"docs/SECURITY.md: no test holds '{cell}' of '{who}', and it does not say what is open"


def missing_files(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield the files and directories that documents name and that do not exist."""
    names = {path.name for path in found}
    for path, text in text_of(path for path in found if path.suffix == ".md" and path.name != "CHANGELOG.md"):
        for name in sorted(set(PATH.findall(text))):
            if name.startswith(ELSEWHERE):
                continue
            bases = (root / base for base in BASES)
            if not any((base / name).exists() for base in (path.parent, *bases)) and name not in names:
                yield f"{path.relative_to(root)}: names {name}, which does not exist"


def unexplained_lines(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield lines for logs of which docs/OPERATIONS.md has no words."""
    traced, _, logged = (root / "docs/OPERATIONS.md").read_text().partition("## Lines in logs")
    explained = re.findall(r"`([^`]+)`", logged)
    rooms = tuple(f"crates/{room}/src/" for room in ("server", "store", "mount", "fuse", "transport", "cli"))
    for path, text in text_of(path for path in found if path.suffix == ".rs"):
        name = str(path.relative_to(root))
        if not name.startswith(rooms):
            continue
        for line in re.findall(r'eprintln!\(\s*"((?:[^"\\]|\\.)*)"', text):
            words = re.sub(r"^ramlace[a-z -]*: ", "", re.sub(r"\\\n\s*", "", line))
            # What is values and a word was said elsewhere.
            pieces = [piece.strip() for piece in re.split(r"\{\w*\}", words) if len(piece.split()) >= 2]
            if pieces and not any(piece in told or told in words for piece in pieces for told in explained):
                yield f"{name}: docs/OPERATIONS.md does not explain the line '{line}'"
    for path, text in text_of(path for path in found if path.suffix == ".rs"):
        for line in re.findall(r'tracing::(?:trace|debug|info|warn|error)!\([^;]*?"([^"]+)"\s*\)', text):
            if not re.search(rf"(`|: ){line}(`| )", traced):
                yield f"{path.relative_to(root)}: docs/OPERATIONS.md does not explain the traced line '{line}'"


def uncited_decisions(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield the comments that cite a decision by a number, and the pages of docs/records/ that do not exist."""
    for path, text in text_of(path for path in found if path.suffix in SOURCES):
        if path == Path(__file__):
            continue
        for cited in CITED.findall(text):
            yield f"{path.relative_to(root)}: cites '{cited}': name the page of docs/records/ that it is in"
        for page in set(re.findall(r"docs/records/([a-z0-9-]+\.md)", text)):
            if not (root / "docs/records" / page).is_file():
                yield f"{path.relative_to(root)}: cites docs/records/{page}, which does not exist"


def wrong_variables(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield how docs/ENVIRONMENT.md differs from the environment variables that Rust, C, Python and shell here read."""
    read: set[str] = set()
    sources = (path for path in found if path.suffix in SOURCES or path.name == "Makefile")
    for path, text in text_of(sources):
        if path == Path(__file__):
            continue
        patterns = READS_IN_C if path.suffix in {".c", ".h"} else READS
        read.update(name for pattern in patterns for name in pattern.findall(text))
        read.update(name for name, call in READ_BY_CALLS.items() if call in text)
    page = (root / "docs/ENVIRONMENT.md").read_text()
    told = set(re.findall(r"^\| `([A-Z_]+)` \|", page, flags=re.MULTILINE))
    for name in sorted(read - told):
        yield f"docs/ENVIRONMENT.md: {name} is read and not described"
    for name in sorted(told - read):
        yield f"docs/ENVIRONMENT.md: {name} is described, and nothing reads it"


def main() -> int:
    """Check the checkout that this file is in; return the exit code."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    wrong = list(problems(root, [root / name for name in listed.split("\0") if name]))
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
