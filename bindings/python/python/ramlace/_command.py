"""Finds and runs the command ``ramlace``."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ramlace import _errors

# Environment variable that names the command.
BIN_VARIABLE = "RAMLACE_BIN"


def find() -> str:
    """Return the path of the command: ``RAMLACE_BIN``, else beside this Python, else in PATH.

    Raises ramlace.Error (ENOENT) that says what to do when there is none.
    """
    named = os.environ.get(BIN_VARIABLE)
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return named
        raise _errors.make(
            errno.ENOENT, "NotFound", f"{BIN_VARIABLE} names {named}, which is no program that can be run"
        )
    beside = Path(sys.executable).parent / "ramlace"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("ramlace")
    if found is None:
        raise _errors.make(
            errno.ENOENT,
            "NotFound",
            f"the command 'ramlace' is neither beside {sys.executable} nor in PATH; "
            f"build it by 'make build', or name it in {BIN_VARIABLE}",
        )
    return found


def run(*arguments: str) -> Any:
    """Run the command with ``--json`` and return what it printed, as Python objects (None for nothing).

    Raises ramlace.Error with the command's own sentence when it fails.
    """
    done = subprocess.run([find(), *arguments, "--json"], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise _failure(arguments, done)
    text = done.stdout.decode().strip()
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise _errors.make(
            errno.EPROTO, "Protocol", f"'ramlace {arguments[0]} --json' printed what is no JSON: {text[:200]!r}"
        ) from error


def _failure(arguments: tuple[str, ...], done: "subprocess.CompletedProcess[bytes]") -> _errors.Error:
    """Return the error that the command reported: as JSON on stdout or stderr, else in words."""
    words = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
    number, kind = errno.EIO, "Fatal"
    for stream in (done.stdout, done.stderr):
        try:
            report = json.loads(stream)["error"]
            words, kind, number = str(report["message"]), str(report["kind"]), int(report["errno"])
            break
        except (ValueError, KeyError, TypeError):
            continue
    if done.returncode < 0:
        words = f"killed by signal {-done.returncode}. {words}"
    return _errors.make(number, kind, f"'ramlace {arguments[0]}' failed: {words or 'without a word'}")
