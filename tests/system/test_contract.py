"""What scripts/contract.py and promises.py find in documents that do not agree with the code and its tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import contract
import promises

SENTENCES = """# Semantics

## Bytes

1. A single promise. `test_of_one_promise`
2. Two of them:
    - 2.1 The first.
      `test_of_two_promises`, `a_test_in_the_other_language`
    - 2.2 The second. `test_of_two_promises`

What is said of several sentences names `a_test_that_is_cited_by_nobody`.

## Appendix: by hand

3. `posix_fallocate` is no test.
"""
PYTHON = """# SEMANTICS 1
def test_of_one_promise() -> None:
    assert True


# SEMANTICS 2.1, 2.2
@pytest.mark.parametrize(
    "size", [1, 2]
)
def test_of_two_promises(size: int) -> None:
    assert size
"""
RUST = """mod tests {
    // SEMANTICS 2.1
    /// What it is about.
    #[test]
    fn a_test_in_the_other_language() {}
}
"""
Edit = tuple[str, str, str]


class Checkout:
    """A directory with a contract, and a test file in each language."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {"docs/SEMANTICS.md": SENTENCES, "tests/test_a.py": PYTHON, "crates/a.rs": RUST}

    def problems(self, *edits: Edit) -> Iterator[str]:
        """Write the files, with words replaced in some, and yield what is wrong with the promises."""
        files = dict(self.files)
        for name, old, new in edits:
            assert old in files[name]
            files[name] = files[name].replace(old, new)
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        yield from promises.problems(self.root, [self.root / name for name in files])


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a checkout that is in order."""
    return Checkout(tmp_path)


def test_a_contract_and_tests_that_cite_it_are_in_order(checkout: Checkout) -> None:
    assert list(checkout.problems()) == []


DOCUMENT, TESTS, OTHERS = "docs/SEMANTICS.md", "tests/test_a.py", "crates/a.rs"


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        # From the contract to its tests.
        ((DOCUMENT, "2. Two", "4. Two"), f"{DOCUMENT}: sentence 4 stands where 2 belongs"),
        ((DOCUMENT, "2.2 The", "2.3 The"), f"{DOCUMENT}: clause 2.3 stands where 2.2 belongs"),
        ((DOCUMENT, "The second. `test_of_two_promises`", "The second."), f"{DOCUMENT}: 2.2 names no test"),
        ((DOCUMENT, " `test_of_one_promise`", ""), f"{DOCUMENT}: 1 names no test"),
        (
            (DOCUMENT, "Two of them:", "Two of them: `test_of_one_promise`"),
            f"{DOCUMENT}: sentence 2 is divided, and names a test of no clause",
        ),
        (
            (DOCUMENT, "`a_test_in_the_other_language`", "`a_test_in_no_language`"),
            f"{DOCUMENT}: 2.1 names the test a_test_in_no_language, which does not exist",
        ),
        (
            (TESTS, "# SEMANTICS 1\n", ""),
            f"{TESTS}:1: test_of_one_promise does not cite the clause that names it: SEMANTICS 1",
        ),
        (
            (OTHERS, "    // SEMANTICS 2.1\n", ""),
            f"{OTHERS}:4: a_test_in_the_other_language does not cite the clause that names it: SEMANTICS 2.1",
        ),
        (
            (OTHERS, "    #[test]\n", ""),
            f"{OTHERS}:4: a_test_in_the_other_language is no test, and SEMANTICS 2.1 names it as one",
        ),
        # And back.
        (
            (TESTS, "2.1, 2.2", "1, 2.1, 2.2"),
            f"{TESTS}:10: test_of_two_promises cites SEMANTICS 1, which does not name it",
        ),
        (
            (OTHERS, "SEMANTICS 2.1", "SEMANTICS 2.1, 7"),
            f"{OTHERS}:5: a_test_in_the_other_language cites SEMANTICS 7, which does not name it",
        ),
        (
            (TESTS, "# SEMANTICS 1\n", "# SEMANTICS 1\n\n"),
            f"{TESTS}:1: cites SEMANTICS, and no test follows",
        ),
    ],
)
def test_what_does_not_agree_is_found_in_both_directions(checkout: Checkout, edit: Edit, found: str) -> None:
    assert found in list(checkout.problems(edit))


def test_a_citation_is_of_the_next_function_alone(checkout: Checkout) -> None:
    """A function behind it has none, and one that the contract does not name needs none."""
    helper = "def a_helper_of_tests() -> None:\n    return\n"
    assert list(checkout.problems((TESTS, "# SEMANTICS 2.1", f"{helper}\n\n# SEMANTICS 2.1"))) == []
    moved = (TESTS, "# SEMANTICS 1\n", f"# SEMANTICS 1\n{helper}\n\n")
    assert sorted(checkout.problems(moved)) == [
        f"{TESTS}:2: a_helper_of_tests cites SEMANTICS 1, which does not name it",
        f"{TESTS}:6: test_of_one_promise does not cite the clause that names it: SEMANTICS 1",
    ]


def test_other_documents_are_held_to_what_is_there(checkout: Checkout) -> None:
    """Paths that a page names, pages that a comment cites, and lines for logs that nobody explains."""
    list(checkout.problems())
    gone = "records/gone.md"
    page, source = checkout.root / "docs/PAGE.md", checkout.root / "crates/server/src/a.rs"
    source.parent.mkdir(parents=True)
    operations = checkout.root / "docs/OPERATIONS.md"
    operations.write_text("## Lines in logs\n\n`the log is whole again`\n")
    page.write_text("See `crates/a.rs` and `crates/gone.rs`.\n")
    source.write_text(
        f"// docs/{gone}\n"
        'fn say() { eprintln!("ramlace: the log is whole again"); eprintln!("ramlace: nobody knows this"); }\n'
    )
    found = [page, source, operations]
    assert list(contract.missing_files(checkout.root, found)) == [
        "docs/PAGE.md: names crates/gone.rs, which does not exist"
    ]
    assert list(contract.uncited_decisions(checkout.root, found)) == [
        f"crates/server/src/a.rs: cites docs/{gone}, which does not exist"
    ]
    # A mount's daemon is the command; what has no log of its own, such as a library, is not asked.
    daemon, library = checkout.root / "crates/cli/src/a.rs", checkout.root / "crates/capi/src/a.rs"
    for path in (daemon, library):
        path.parent.mkdir(parents=True)
        path.write_text('fn say() { eprintln!("ramlace: {error}; nobody knows this either") }\n')
    assert list(contract.unexplained_lines(checkout.root, [*found, daemon, library])) == [
        "crates/server/src/a.rs: docs/OPERATIONS.md does not explain the line 'ramlace: nobody knows this'",
        "crates/cli/src/a.rs: docs/OPERATIONS.md does not explain the line "
        "'ramlace: {error}; nobody knows this either'",
    ]


def test_a_threat_is_held_by_tests_and_by_no_other_function(checkout: Checkout) -> None:
    list(checkout.problems())
    page, source = checkout.root / "docs/SECURITY.md", checkout.root / "crates/b.rs"
    page.write_text(
        "## Who can do what\n\n| who | reads |\n|---|---|\n| all | no: `one_helper_of_tests`, `no_such_test_here` |\n"
    )
    helper = "fn one_helper_of_tests() {}\n"
    source.write_text(helper)
    gone = "docs/SECURITY.md: names the test no_such_test_here, which does not exist"
    assert list(contract.unheld_threats(checkout.root, [source])) == [
        gone,
        "docs/SECURITY.md: names the test one_helper_of_tests, which is no test",
    ]
    source.write_text(f"#[tokio::test]\nasync {helper}")
    assert list(contract.unheld_threats(checkout.root, [source])) == [gone]
