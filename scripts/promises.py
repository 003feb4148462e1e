"""docs/SEMANTICS.md and the tests behind it, held to each other in both directions.

Sentences are numbered 1, 2, 3; one that promises several things is divided into clauses (7.1, 7.2). Each clause, or
sentence that is not divided, names the tests that hold it, and each of these cites it in a comment directly above the
function, its decorators, documentation and attributes: `# SEMANTICS 7.2` in Python, `// SEMANTICS 7.2, 17.1` in Rust.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEMANTICS = "docs/SEMANTICS.md"
# How a clause names a test, a test cites clauses, and a function begins.
TEST = re.compile(r"`([a-z0-9_]{12,})`")
CITATION = re.compile(r"\s*(?:#|//) SEMANTICS (\d+(?:\.\d+)?(?:, \d+(?:\.\d+)?)*)$")
FUNCTION = re.compile(r"\s*(?:pub(?:\([a-z]+\))? )?(?:const |async |unsafe )*(?:def|fn) ([a-z0-9_]+)\b")
# What makes a function of Rust a test. One of Python is a test by its name, in a file that is collected.
ATTRIBUTE = re.compile(r"\s*#\[(?:tokio::)?test\b")


@dataclass
class Function:
    """A function of a source file."""

    path: Path
    line: int
    name: str
    # The clauses that the comments directly above it cite.
    cited: set[str]
    is_test: bool


def problems(root: Path, found: list[Path]) -> Iterator[str]:
    """Yield what is wrong with the clauses of docs/SEMANTICS.md, the tests behind them, and what these tests cite."""
    clauses, wrong = clauses_of((root / SEMANTICS).read_text())
    yield from wrong
    functions: dict[str, list[Function]] = {}
    for path in found:
        # The tests of this make checkouts of their own.
        if path.suffix not in {".py", ".rs"} or path.name == "test_contract.py":
            continue
        text = path.read_text(errors="replace")
        for function in functions_of(path.relative_to(root), text):
            functions.setdefault(function.name, []).append(function)
        for line in citations_of_nothing(text):
            yield f"{path.relative_to(root)}:{line}: cites SEMANTICS, and no test follows"
    for clause, tests in clauses.items():
        for test in tests - functions.keys():
            yield f"{SEMANTICS}: {clause} names the test {test}, which does not exist"
        for test in tests & functions.keys():
            for function in functions[test]:
                at = f"{function.path}:{function.line}: {test}"
                if clause not in function.cited:
                    yield f"{at} does not cite the clause that names it: SEMANTICS {clause}"
                if not function.is_test:
                    yield f"{at} is no test, and SEMANTICS {clause} names it as one"
    for function in (function for places in functions.values() for function in places):
        at = f"{function.path}:{function.line}: {function.name}"
        for clause in sorted(function.cited):
            if function.name not in clauses.get(clause, ()):
                short = (
                    ""
                    if TEST.fullmatch(f"`{function.name}`")
                    else ": a test that is named there has 12 letters or more"
                )
                yield f"{at} cites SEMANTICS {clause}, which does not name it{short}"


def clauses_of(text: str) -> tuple[dict[str, set[str]], list[str]]:
    """Return the tests that each clause names, by its number (7, or 7.1 of a divided sentence), and what is wrong."""
    clauses: dict[str, set[str]] = {}
    wrong = []
    sentences = re.split(r"^(\d+)\. ", text.split("\n## Appendix")[0], flags=re.MULTILINE)
    for expected, (number, rest) in enumerate(zip(sentences[1::2], sentences[2::2], strict=True), 1):
        if int(number) != expected:
            wrong.append(f"{SEMANTICS}: sentence {number} stands where {expected} belongs")
        # It ends where a paragraph begins that is not indented: a heading, or what is said of several sentences.
        sentence = re.split(r"\n\n(?=\S)", rest)[0]
        whole, *parts = re.split(r"^ +- (\d+\.\d+) ", sentence, flags=re.MULTILINE)
        if not parts:
            clauses[number] = set(TEST.findall(whole))
        elif TEST.search(whole):
            wrong.append(f"{SEMANTICS}: sentence {number} is divided, and names a test of no clause")
        for place, (clause, part) in enumerate(zip(parts[::2], parts[1::2], strict=True), 1):
            if clause != f"{number}.{place}":
                wrong.append(f"{SEMANTICS}: clause {clause} stands where {number}.{place} belongs")
            clauses[clause] = set(TEST.findall(part))
    wrong += [f"{SEMANTICS}: {clause} names no test" for clause, tests in clauses.items() if not tests]
    return clauses, wrong


def functions_of(path: Path, text: str) -> Iterator[Function]:
    """Yield the functions of a source file, with what stands directly above them."""
    cited: set[str] = set()
    runs = False
    for number, line in enumerate(text.splitlines(), 1):
        if citation := CITATION.match(line):
            cited |= set(citation[1].split(", "))
        elif ATTRIBUTE.match(line):
            runs = True
        elif function := FUNCTION.match(line):
            name = function[1]
            collected = name.startswith("test_") and path.name.startswith("test_")
            yield Function(path, number, name, cited, runs if path.suffix == ".rs" else collected)
            cited, runs = set(), False
        elif not line.strip():
            cited, runs = set(), False


def citations_of_nothing(text: str) -> Iterator[int]:
    """Yield the lines of citations that are followed by a blank line, or the end, before a function."""
    waiting = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if CITATION.match(line):
            waiting = number
        elif FUNCTION.match(line):
            waiting = 0
        elif waiting and not line.strip():
            yield waiting
            waiting = 0
