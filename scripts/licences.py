"""Check the licences of all crates that Cargo.lock names, and that each comes from a registry.

usage: licences.py

Prints what is wrong and exits with 1 when there is anything. A crate passes when its expression (SPDX) can be met
with the licences that are accepted here.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Those that ask for nothing but that their text goes along.
ACCEPTED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
# Weaker terms than those above, for what is used while building or testing and is in nothing that is handed on.
BUILD_ONLY = {"cbindgen": "MPL-2.0"}


def is_met(expression: str, accepted: set[str]) -> bool:
    """Whether an SPDX expression can be met; ValueError when it is none."""
    words = re.findall(r"\(|\)|[^\s()/]+|/", expression.replace(" WITH ", "\0"))
    words = ["OR" if word == "/" else word.replace("\0", " WITH ") for word in words]

    def either() -> bool:
        met = both()
        while words and words[0] == "OR":
            words.pop(0)
            met = both() or met
        return met

    def both() -> bool:
        met = one()
        while words and words[0] == "AND":
            words.pop(0)
            met = one() and met
        return met

    def one() -> bool:
        if not words:
            raise ValueError(expression)
        word = words.pop(0)
        if word == "(":
            met = either()
            if not words or words.pop(0) != ")":
                raise ValueError(expression)
            return met
        return word in accepted

    met = either()
    if words:
        raise ValueError(expression)
    return met


def problems(packages: list[dict[str, str | None]]) -> Iterator[str]:
    """Yield what is wrong with the packages of `cargo metadata`."""
    for package in packages:
        name = f"{package['name']} {package['version']}"
        source = package["source"]
        if source is not None and not source.startswith(("registry+", "sparse+")):
            yield f"{name} comes from no registry: {source}"
        licence = package["license"]
        accepted = ACCEPTED | {BUILD_ONLY.get(str(package["name"]), "MIT")}
        if not licence:
            yield f"{name} names no licence"
        elif not is_met(licence, accepted):
            yield f"{name} is under {licence}, which is not accepted here (scripts/licences.py)"


def main() -> int:
    """Check all crates; return the exit code."""
    locked = os.environ.get("LOCKED", "--locked").split()
    command = ["cargo", "metadata", *locked, "--format-version", "1"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = list(problems(json.loads(done.stdout)["packages"]))
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
