"""Every test of a round, as much at once as two cores and the tests bear.

usage: round.py [--lint] [TEST...]

Two lanes run side by side. Real pools mostly wait, so their lane has more processes than there are cores, and the
machine's first attention:

* the system tests as an ordinary user; when this is root, it becomes one (scripts/test_as_user.sh);
* then as root those that need root (`needs_root`) or behave differently there (`both`), and beside them
  the tests of the Python package.

The other lane takes the processor time that is left: it links the test programs of Rust, beside that runs the lints
(with --lint), and runs the programs (scripts/rust_tests.py). When both are done the tests marked `alone` run: they
measure what a busy machine disturbs.

All stages run, whatever fails; the exit code is 1 when anything did. What a stage printed appears when it
ends. RAMLACE_TEST_LONG=1 means more cases for each property, the tests marked `long`, and every system
test both as root and as an ordinary user.

RAMLACE_BUILT names the directory of what is tested: target/quick, unless it is another profile's.

With TEST arguments only these run: a path below tests/ or bindings/ (pytest's own words, `::name` included), a file of
a crate's tests, or a crate of the workspace, each with or without `::name` (a filter of its tests). One that chooses no
test is a failure.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv/bin/python")
BUILT = Path(os.environ.get("RAMLACE_BUILT", ROOT / "target/quick"))
SYSTEM = "tests/system"
PACKAGE = "bindings/python/tests"
PYTEST = ("-q", "-p", "no:cacheprovider", "--strict-markers", "-c", "bindings/python/pyproject.toml", "--rootdir", ".")
# What pytest ends with when no test was chosen.
NO_TESTS = 5
# Real pools wait more than they compute: more processes than cores. The package's tests run beside those of root.
WORKERS, PACKAGE_WORKERS = 4, 2
LONG = bool(os.environ.get("RAMLACE_TEST_LONG"))
RUST = "scripts/run.sh"
LINTS_THAT_COMPILE = ("clippy", "rustdoc")
# Linking gives way to the pools; test programs give way a little.
LAST, LATER = ("nice", "-n", "19"), ("nice", "-n", "5")

Words = tuple[str, ...]


class Round:
    """The stages of a round; `failed` names those that did not succeed, `tests` counts what became of tests."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.tests = Counter[str]()
        self._printing = threading.Lock()

    def run(
        self, name: str, words: Words, variables: dict[str, str] | None = None, *, may_be_empty: bool = False
    ) -> None:
        """Run a stage to its end; print what it said, and keep its time for the summary of `.ci/run`."""
        began = time.monotonic()
        with self._printing:
            print(f"== {name}: begins", file=sys.stderr, flush=True)
        code, printed, processor = ended({**os.environ, **(variables or {})}, words)
        good = code == 0 or (may_be_empty and code == NO_TESTS)
        result = "ok" if good else f"failed ({code})"
        seconds = f"{time.monotonic() - began:.1f}"
        with self._printing:
            sys.stdout.write(printed)
            sys.stdout.flush()
            self.tests += counted(printed)
            print(f"== {name}: {result} in {seconds} s", file=sys.stderr, flush=True)
            if not good:
                self.failed.append(name)
            if stages := os.environ.get("RAMLACE_STAGES"):
                with Path(stages).open("a") as table:
                    table.write(f"{seconds}\t{processor:.1f}\t{result}\t{name}\n")


def ended(environment: dict[str, str], words: Words) -> tuple[int, str, float]:
    """Run a command to its end; return its exit code, what it printed, and the processor seconds that it took."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT
        )
        # The kernel counts those that the command itself has waited for, too: no daemon that has left it.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        return process.returncode, printed.read().decode(errors="replace"), used.ru_utime + used.ru_stime


def counted(printed: str) -> "Counter[str]":
    """Return how many tests passed, failed and were skipped, by the closing lines of pytest and of test programs."""
    counts = Counter[str]()
    for line in printed.splitlines():
        is_pytests = re.fullmatch(r"=*\s*(\d+ \w+(, )?)+ in [\d.]+s.*", line)
        is_programs = re.search(r": ok\. \d+ passed; |^test result: ", line)
        if is_pytests or is_programs:
            for number, word in re.findall(r"(\d+) (passed|failed|skipped|ignored|error)", line):
                counts[{"ignored": "skipped", "error": "failed"}.get(word, word)] += int(number)
    return counts


def can_become_a_user() -> bool:
    """Whether this is root, and scripts/test_as_user.sh can run tests as an ordinary user."""
    check = ["scripts/test_as_user.sh", "--can"]
    return subprocess.run(check, cwd=ROOT, check=False).returncode == 0


def marked(expression: str) -> Words:
    """Return pytest's words for the tests with such marks, without the long ones in the everyday round."""
    words = [f"({expression})"] + ([] if LONG else ["not long"])
    return ("-m", " and ".join(words), "--durations=25", "--durations-min=1")


def parallel(workers: int) -> Words:
    """Return pytest's words for so many processes: whole files, or parts (tests/system/conftest.py)."""
    return ("-n", str(workers), "--dist", "loadfile")


def pytest(*words: str) -> Words:
    """Return the command of pytest."""
    return (PYTHON, "-m", "pytest", *PYTEST, *words)


def as_user(*words: str) -> Words:
    """Return the command of pytest over the system tests as an ordinary user."""
    return ("scripts/test_as_user.sh", *PYTEST, *words)


def files_with(*marks: str) -> Words:
    """Return the files of system tests that name one of these marks; conftest.py sees to it that all with it do."""
    named = re.compile(rf"mark\.({'|'.join(marks)})\b")
    return tuple(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / SYSTEM).glob("test_*.py"))
        if named.search(path.read_text())
    )


def system_as_user(round_: Round, group: str, *words: str, files: Words = (SYSTEM,)) -> None:
    """Run a group of the system tests as an ordinary user, if this is one or can become one."""
    if os.geteuid() != 0:
        round_.run(f"system tests, {group}", pytest(*marked(group), *words, *files))
    elif can_become_a_user():
        round_.run(f"system tests, {group}, as an ordinary user", as_user(*marked(group), *words, *files))


def system_as_root(round_: Round, group: str, *words: str, files: Words = (SYSTEM,)) -> None:
    """Run of a group of the system tests as root what the ordinary user has not run, or what is different there."""
    if os.geteuid() != 0:
        return
    for_root = group
    if can_become_a_user() and not LONG:
        for_root = f"{group} and (needs_root or both)"
        files = tuple(file for file in files_with("needs_root", "both") if file in files or files == (SYSTEM,))
    # A group may have no test that needs root; the ordinary user has run it then.
    if files:
        words_for_root = pytest(*marked(for_root), *words, *files)
        round_.run(f"system tests, {group}, as root", words_for_root, may_be_empty=for_root != group)


def pools(round_: Round) -> None:
    """Run what starts real pools from Python."""
    system_as_user(round_, "not alone", *parallel(WORKERS))
    package = pytest(*marked("not alone"), *parallel(PACKAGE_WORKERS), PACKAGE)
    side_by_side(
        lambda: system_as_root(round_, "not alone", *parallel(WORKERS)),
        lambda: round_.run("tests of the Python package", package),
    )


def programs(round_: Round, *, lint: bool) -> None:
    """Link the tests of Rust, and run them; lints beside that, those that need cargo's lock when it is free."""
    link = (*LAST, RUST, PYTHON, "scripts/rust_tests.py", "--link-only")
    before, after = lints_of_round() if lint else ([], [])
    side_by_side(lambda: round_.run("link the Rust tests", link), lambda: lints(round_, before))
    side_by_side(lambda: rust_tests(round_), lambda: lints(round_, after))


def rust_tests(round_: Round) -> None:
    """Run the tests of Rust."""
    # Fewer cases of each property than proptest's own 256; the long round has many more.
    variables = {"PROPTEST_CASES": "96", **os.environ}
    if LONG:
        # The pure crates take 20,000 cases in minutes; what runs whole pools takes 400.
        variables = {
            "RAMLACE_FUZZ_ITERATIONS": "1000000",
            "RAMLACE_LIARS": "400",
            "RAMLACE_STORM_CASES": "400",
            "RAMLACE_STORM_SECONDS": "120",
            **os.environ,
            "PROPTEST_CASES": "400",
        }
    round_.run("Rust tests", (*LATER, RUST, PYTHON, "scripts/rust_tests.py"), variables)
    if LONG:
        pure = [f"--package=ramlace-{name}" for name in ("layout", "cluster", "namespace", "model")]
        words = (*LATER, RUST, PYTHON, "scripts/rust_tests.py", *pure)
        cases = os.environ.get("PROPTEST_CASES", "20000")
        round_.run("Rust tests, pure crates at length", words, {"PROPTEST_CASES": cases})


def lints_of_round() -> tuple[list[str], list[str]]:
    """Return the lints that can run while cargo compiles, and those that would wait for it.

    Clippy's is one only where the compiler has not linted already.
    """
    listed = subprocess.run(["scripts/lint.sh", "--list"], cwd=ROOT, capture_output=True, check=True, text=True)
    names = listed.stdout.split()
    if os.environ.get("CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER", "").endswith("/linting_rustc.sh"):
        names.remove("clippy")
    return [name for name in names if name not in LINTS_THAT_COMPILE], [
        name for name in names if name in LINTS_THAT_COMPILE
    ]


def lints(round_: Round, names: list[str]) -> None:
    """Run some lints, with warnings as errors."""
    for name in names:
        round_.run(f"lint: {name}", (*LAST, "scripts/lint.sh", name))


def chosen(round_: Round, tests: list[str]) -> None:
    """Run the tests that were named; a name that no test has is a failure."""
    for test in tests:
        before = sum(round_.tests.values())
        file, _, name = test.partition("::")
        if file.split("/")[0] in ("tests", "bindings") and not file.endswith(".rs"):
            round_.run(test, pytest("-v", test))
        else:
            words = ("cargo", "test", f"--profile={BUILT.name}", *locked(), *selected(file), "--", name)
            round_.run(test, (RUST, *words))
        if sum(round_.tests.values()) == before and test not in round_.failed:
            print(f"{test}: there is no such test", file=sys.stderr)
            round_.failed.append(test)


def selected(named: str) -> Words:
    """Return cargo's words for a crate of the workspace, or for a file of the tests of one."""
    if not named.endswith(".rs"):
        return ("-p", named if named.startswith("ramlace-") else f"ramlace-{named}")
    file = ROOT / named
    root = next((folder for folder in file.parents if (folder / "Cargo.toml").exists()), ROOT)
    package = tomllib.loads((root / "Cargo.toml").read_text()).get("package", {}).get("name")
    inside = file.relative_to(root).parts
    if not file.exists() or package is None or inside[0] != "tests":
        sys.exit(f"{named} is no file of a crate's tests")
    return ("-p", package, "--test", inside[1].removesuffix(".rs"))


def locked() -> Words:
    """Return the words by which cargo keeps to Cargo.lock; LOCKED is the Makefile's."""
    return tuple(os.environ.get("LOCKED", "--locked").split())


def status() -> str:
    """Return what git says of the checkout; nothing where there is no git."""
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout


def side_by_side(*lanes: Callable[[], None]) -> None:
    """Run lanes at once, to the end of all."""
    threads = [threading.Thread(target=lane) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(words: list[str]) -> int:
    """Run the round; return the exit code."""
    os.environ["RAMLACE_BUILT"] = str(BUILT)
    os.environ.setdefault("RAMLACE_BIN", str(BUILT / "ramlace"))
    os.environ.setdefault("RAMLACE_BENCH_BIN", str(BUILT / "ramlace-bench"))
    if (package := BUILT / "python").is_dir():
        os.environ["PYTHONPATH"] = str(package)
    # Each process of the tests would compile all of them again; beside the sources they would be in the way.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ |= {"PYTHONPYCACHEPREFIX": str(ROOT / "target/pycache")}
    lint, tests = "--lint" in words, [word for word in words if word != "--lint"]
    before = status()
    round_ = Round()
    if tests:
        chosen(round_, tests)
    else:
        side_by_side(lambda: pools(round_), lambda: programs(round_, lint=lint))
        alone = files_with("alone")
        system_as_user(round_, "alone", files=alone)
        system_as_root(round_, "alone", files=alone)
        round_.run("hygiene", (PYTHON, "scripts/hygiene.py"))
    if status() != before:
        print("the tests left something in the checkout (git status changed)", file=sys.stderr)
        round_.failed.append("a clean checkout")
    if round_.failed:
        print(f"failed: {', '.join(round_.failed)}", file=sys.stderr)
    # A stage that failed without a test to blame is a failure, too.
    failed = max(round_.tests["failed"], len(round_.failed))
    total = f"{round_.tests['passed']} passed, {failed} failed, {round_.tests['skipped']} skipped"
    print(total, flush=True)
    if totals := os.environ.get("RAMLACE_TOTALS"):
        Path(totals).write_text(f"{total}\n")
    return 1 if round_.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
