"""Groups of users on a machine whose /proc hides processes (`hidepid`)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import NewPool
from pool import PATIENCE_SECONDS, binary

# Only root mounts /proc anew, in a namespace of mounts that nobody else sees.
pytestmark = pytest.mark.needs_root

SCRIPT = """
set -eu
mount -t proc -o hidepid=ptraceable proc /proc
"$RAMLACE" --pool "$POOL" mount --allow-other "$DIRECTORY"
trap '"$RAMLACE" --pool "$POOL" unmount "$DIRECTORY"' EXIT
cd "$DIRECTORY"
"$PYTHON" -c "$READER" 3000
"$PYTHON" -c "$READER" 3001
cd /
"""

# As a user in one more group: what the file has, or why it may not be read.
READER = """
import os, sys
os.setgroups([int(sys.argv[1])])
os.setresgid(2001, 2001, 2001)
os.setresuid(1001, 1001, 1001)
try:
    print(open("file").read())
except OSError as error:
    print(error.errno)
"""


# SEMANTICS 49.3
def test_groups_count_where_proc_hides_processes(new_pool: NewPool, fuse: None, tmp_path: Path) -> None:
    pool = new_pool(1, 32)
    pool.run("cp", "-", "ramlace:/file", stdin=b"for the group")
    pool.run("chown", ":3000", "/file")
    pool.run("chmod", "640", "/file")
    directory = tmp_path / "mount"
    directory.mkdir()
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(pool.runtime),
        "RAMLACE": binary(),
        "POOL": pool.name,
        "DIRECTORY": str(directory),
        "PYTHON": sys.executable,
        "READER": READER,
    }
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT]
    done = subprocess.run(
        command, capture_output=True, check=False, env=environment, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line == "for the group" or line.isdigit()]
    assert told == ["for the group", "13"], done.stdout
