"""Check the documentation comments of the workspace's libraries, private items included; warnings are errors.

usage: rustdoc.py

`cargo doc` has every crate checked once more, those of others too, before it reads one comment. What `cargo build` has
compiled tells rustdoc as much: this hands it over. Pages are written below target/doc.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINTS = ("-D", "warnings", "-A", "rustdoc::private-intra-doc-links")
AT_ONCE = 2

# As cargo prints them; its own documents have the fields.
Package = dict[str, Any]


def cargo(*words: str) -> str:
    """Return what cargo prints; SystemExit when it fails."""
    locked = os.environ.get("LOCKED", "--locked").split()
    done = subprocess.run(["cargo", *words, *locked], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def compiled() -> dict[str, str]:
    """Return the file that is linked for each package's library, by the package's id."""
    files: dict[str, str] = {}
    kinds = {"lib", "rlib", "proc-macro"}
    for line in cargo("build", "--profile=quick", "--workspace", "--quiet", "--message-format=json").splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not kinds & set(message["target"]["kind"]):
            continue
        for file in message["filenames"]:
            if file.endswith((".rlib", ".so")) and not (message["package_id"] in files and file.endswith(".so")):
                files[message["package_id"]] = file
    return files


def library(package: Package) -> Package | None:
    """Return the target of a package's library, if it has one."""
    kinds = {"lib", "rlib", "cdylib"}
    return next((target for target in package["targets"] if kinds & set(target["kind"])), None)


def commands() -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command for each library of the workspace, and the variables that its source asks for."""
    metadata = json.loads(cargo("metadata", "--format-version=1"))
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    files = compiled()
    members = set(metadata["workspace_members"])
    for package in metadata["packages"]:
        target = library(package) if package["id"] in members else None
        if target is None:
            continue
        node = nodes[package["id"]]
        needs = [
            f"--extern={need['name']}={files[need['pkg']]}"
            for need in node["deps"]
            if any(kind["kind"] is None for kind in need["dep_kinds"]) and need["pkg"] in files
        ]
        words = ["rustdoc", f"--crate-name={target['name']}", f"--edition={target['edition']}", target["src_path"]]
        words += [f"--cfg=feature={json.dumps(feature)}" for feature in node["features"]]
        words += [*needs, f"-Ldependency={Path(metadata['target_directory']) / 'quick/deps'}", *LINTS]
        words += ["--document-private-items", f"--out-dir={Path(metadata['target_directory']) / 'doc'}"]
        variables = {
            "CARGO_MANIFEST_DIR": str(Path(package["manifest_path"]).parent),
            "CARGO_PKG_VERSION": package["version"],
        }
        yield words, variables


def document(command: tuple[list[str], dict[str, str]]) -> bool:
    """Run rustdoc; return whether it found nothing."""
    words, variables = command
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode == 0


def main() -> int:
    """Document all; return the exit code."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return 0 if all(list(threads.map(document, commands()))) else 1


if __name__ == "__main__":
    sys.exit(main())
