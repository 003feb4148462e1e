"""Starting and stopping a pool where `/proc` hides processes from an ordinary user (`hidepid`).

Servers let nobody inspect them, so that they are hidden from their own user, too.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pool import MIB, PATIENCE_SECONDS, Pool, binary, eventually
from test_start import server_above_a_free_port

# Only root mounts /proc anew, in namespaces of mounts that nobody else sees, and becomes another user.
pytestmark = pytest.mark.needs_root

USER = 65534
SCRIPT = """
set -eu
hidden=$1 user=$2
shift 2
mount -t proc -o hidepid="$hidden" proc /proc
exec setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"
"""
KINDS = ("noaccess", "invisible", "ptraceable")


class Hidden:
    """A pool of an ordinary user, from whom `/proc` hides what it may not inspect."""

    def __init__(self, root: Path, hidden: str) -> None:
        self.hidden = hidden
        self.program = root / "ramlace"
        shutil.copy(binary(), self.program)
        self.program.chmod(0o755)
        runtime = root / "run"
        runtime.mkdir(mode=0o700)
        os.chown(runtime, USER, USER)
        # As root sees it, from whom nothing is hidden.
        self.pool = Pool(f"d{os.getpid()}", runtime, 32 * MIB, 2)

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of ramlace as the user."""
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh", self.hidden, str(USER)]
        runtime = str(self.pool.runtime)
        environment = {"PATH": os.environ["PATH"], "HOME": runtime, "TMPDIR": runtime, "XDG_RUNTIME_DIR": runtime}
        return subprocess.run(
            [*command, str(self.program), "--pool", self.pool.name, *words],
            capture_output=True,
            check=False,
            cwd="/",
            env=environment,
            text=True,
            timeout=PATIENCE_SECONDS,
        )

    def up(self, *words: str) -> Any:
        done = self.run("up", "--servers", "2", "--memory", "32MiB", "--no-reserve", "--json", *words)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def is_gone(self) -> bool:
        return not self.pool.processes() and not self.pool.directory.exists()


@pytest.fixture(params=KINDS)
def hidden(request: pytest.FixtureRequest) -> Iterator[Hidden]:
    # A short name: paths of sockets are short.
    root = Path(tempfile.mkdtemp(prefix="rd-"))
    root.chmod(0o755)
    made = Hidden(root, request.param)
    yield made
    left = made.pool.processes()
    for process in left:
        process.send(signal.SIGKILL)
    shutil.rmtree(root)
    assert not left, f"left running: {left}"


# SEMANTICS 40.6
def test_a_pool_is_found_and_stopped_whose_processes_are_out_of_sight(hidden: Hidden) -> None:
    assert len(hidden.up()["servers"]) == 2
    processes = [process.pid for process in hidden.pool.processes()]
    assert len(processes) == 4
    (found,) = json.loads(hidden.run("pools", "--json").stdout)
    assert (found["name"], found["state"]) == (hidden.pool.name, "running")
    done = hidden.run("up", "--memory", "32MiB")
    assert done.returncode == 1, done
    assert "is running already (2 servers)" in done.stderr, done
    assert [process.pid for process in hidden.pool.processes()] == processes
    done = hidden.run("down")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert f"Pool '{hidden.pool.name}' is down." in done.stdout, done
    assert hidden.is_gone()


# SEMANTICS 40.6
def test_a_server_out_of_sight_that_has_lost_its_supervisor_is_ended(hidden: Hidden) -> None:
    hidden.up()
    supervisor = hidden.pool.process("supervisor", 1)
    supervisor.send(signal.SIGKILL)
    assert eventually(lambda: supervisor.pid not in [process.pid for process in hidden.pool.processes()])
    done = hidden.run("down")
    assert done.returncode == 0, done
    assert "server 1 had lost its supervisor; it was killed" in done.stderr, done
    assert hidden.is_gone()


# SEMANTICS 40.6
@pytest.mark.long
def test_a_server_out_of_sight_that_does_not_listen_is_ended(hidden: Hidden) -> None:
    hidden.up()
    hidden.pool.process("child", 0).send(signal.SIGSTOP)
    done = hidden.run("down")
    assert done.returncode == 0, done
    assert "did not stop within 5 seconds; it was killed" in done.stderr, done
    assert hidden.is_gone()


# SEMANTICS 40.6
def test_a_start_that_fails_leaves_no_server_out_of_sight(hidden: Hidden) -> None:
    # The port of the second server alone is taken.
    with server_above_a_free_port() as other:
        address = f"127.0.0.1:{other.getsockname()[1] - 1}"
        done = hidden.run("up", "--servers", "2", "--memory", "32MiB", "--no-reserve", "--listen", address)
    assert done.returncode == 1, done
    assert "another program has the port" in done.stderr, done
    assert eventually(hidden.is_gone)


# SEMANTICS 40.7
def test_down_keeps_the_directory_of_a_server_that_it_cannot_end(hidden: Hidden) -> None:
    hidden.up()
    # Nothing says any more who had started the server, and that process has ended.
    (hidden.pool.directory / "pool.json").unlink()
    hidden.pool.process("supervisor", 0).send(signal.SIGKILL)
    assert eventually(lambda: [one.role for one in hidden.pool.processes() if one.server == 0] == ["child"])
    done = hidden.run("down")
    assert done.returncode == 1, done
    socket = hidden.pool.directory / "server-0.sock"
    assert f"server 0 runs and accepts connections at {socket}" in done.stderr, done
    assert f"'ss -xlp src {socket}' names its processes" in done.stderr, done
    assert (hidden.pool.directory / "secret").exists()
    # What the message said to do.
    hidden.pool.process("child", 0).send(signal.SIGKILL)
    assert eventually(lambda: not hidden.pool.processes())
    done = hidden.run("down")
    assert done.returncode == 0, done
    assert hidden.is_gone()
