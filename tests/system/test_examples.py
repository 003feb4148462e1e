"""The examples in Python do what they say; those in C are in test_c_library.py, that in Rust in tests/examples.rs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pool import PATIENCE_SECONDS, Pool

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hello.py", "hello from a pool of memory\n"),
        ("shared_array.py", "".join(f"column {column}: {1000 * column}\n" for column in range(8))),
    ],
)
def test_an_example_does_what_it_says(shared_pool: Pool, name: str, said: str) -> None:
    environment = {**os.environ, "RAMLACE_POOL": shared_pool.name}
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert shared_pool.run("ls", "/").stdout == b""
