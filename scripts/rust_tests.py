"""Link the test programs of the workspace, and run several at once.

usage: rust_tests.py [--link-only] [--package=NAME...]

cargo runs test programs one after the other; many of them wait for real processes. Each program runs as cargo
would run it: in its package's directory. One line tells of each; what it printed is shown where it fails.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROFILE = Path(os.environ.get("RAMLACE_BUILT", "target/quick")).name
AT_ONCE = 3
# What takes longest begins first, so that no processor waits for it at the end.
LONGEST = ("sim", "server", "client", "lanes", "locks", "cli", "wire", "namespace")
LONG = bool(os.environ.get("RAMLACE_TEST_LONG"))


@dataclass
class Program:
    """A test program that cargo has linked."""

    name: str
    path: str
    directory: str

    def run(self) -> tuple[bool, str]:
        """Run it; return whether its tests passed, and what to print."""
        began = time.monotonic()
        options = ["--quiet"] + (["--include-ignored"] if LONG else [])
        done = subprocess.run(
            [self.path, *options],
            cwd=self.directory,
            env={**os.environ, "CARGO_MANIFEST_DIR": self.directory},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        results = [line for line in done.stdout.splitlines() if line.startswith("test result: ")]
        passed = done.returncode == 0 and bool(results)
        line = f"{time.monotonic() - began:7.1f} s  {self.name}: {results[-1][13:] if results else 'no result'}"
        return passed, line if passed else f"{done.stdout}\n{line} (exit code {done.returncode})"


def cargo(*words: str) -> list[str]:
    """Return a command of cargo with the profile of all."""
    locked = os.environ.get("LOCKED", "--locked").split()
    return ["cargo", "test", f"--profile={PROFILE}", *locked, *words]


def linked(selection: list[str]) -> Iterator[Program]:
    """Let cargo link the test programs, and yield them; SystemExit when it cannot."""
    command = cargo(*selection, "--no-run", "--message-format=json-render-diagnostics", "--quiet")
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        directory = str(Path(message["manifest_path"]).parent)
        target = message["target"]
        kind = "" if "test" in target["kind"] else " (unit tests)"
        yield Program(f"{Path(directory).name}/{target['name']}{kind}", message["executable"], directory)


def rank(program: Program) -> int:
    """Return the place of a program among those that take long; the others come behind them."""
    package = program.name.partition("/")[0]
    return LONGEST.index(package) if package in LONGEST else len(LONGEST)


def run_all(programs: list[Program]) -> bool:
    """Run programs; return whether the tests of all passed."""
    good, count = True, 0
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for passed, said in threads.map(Program.run, programs):
            print(said, flush=True)
            good = good and passed
            count += int(said.partition(" passed")[0].rpartition(" ")[2]) if passed else 0
    print(f"{count} tests of {len(programs)} programs passed")
    return good


def main(words: list[str]) -> int:
    """Link and run; return the exit code."""
    selection = [word for word in words if word.startswith("--package=")] or ["--workspace"]
    programs = list(linked(selection))
    if not programs:
        print("cargo has linked no test programs", file=sys.stderr)
        return 1
    if "--link-only" in words:
        print(f"{len(programs)} test programs")
        return 0
    # Examples in documentation are programs, too; cargo alone can run them.
    documented = subprocess.Popen(cargo(*selection, "--doc", "--quiet"), cwd=ROOT)
    good = run_all(sorted(programs, key=rank))
    return 0 if documented.wait() == 0 and good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
