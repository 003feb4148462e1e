"""What the daemon of a mount gives up, and what goes on all the same; as root and as an ordinary user."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount, is_mounted
from pool import Pool, binary, eventually, pattern


def about(pid: int) -> dict[str, str]:
    """What /proc says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines) if rest.split()}


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def doctor(pool: Pool, name: str) -> dict[str, str]:
    """Return one line of `ramlace doctor`."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(pool.runtime)}
    done = subprocess.run([binary(), "doctor", "--json"], capture_output=True, check=False, env=environment)
    return next(check for check in json.loads(done.stdout)["checks"] if check["name"] == name)


def has_seccomp(pool: Pool) -> bool:
    """Whether this machine's kernel filters system calls."""
    return doctor(pool, "system calls of servers")["state"] == "ok"


# SEMANTICS 135.1
def test_a_mounts_daemon_serves_in_a_sandbox(shared_pool: Pool, new_mount: NewMount) -> None:
    mount = new_mount(shared_pool)
    daemon = mount.daemon.pid
    filtered = "2" if has_seccomp(shared_pool) else "0"
    assert (about(daemon)["Seccomp"], about(daemon)["NoNewPrivs"]) == (filtered, "1")
    assert re.search(r"Max core file size +[01] +[01] ", Path(f"/proc/{daemon}/limits").read_text())
    # A guard that has to begin anew, files and locks: all of it is reached.
    (mount / "file").write_bytes(pattern(1, 3 << 20))
    assert (mount / "file").read_bytes() == pattern(1, 3 << 20)
    porter = children_of(daemon)
    assert len(porter) == 1
    (guard,) = children_of(porter[0])
    os.kill(guard, signal.SIGKILL)
    other = new_mount(shared_pool)
    (other / "file").write_bytes(b"other")
    assert eventually(lambda: (mount / "file").read_bytes() == b"other")
    # Whoever asks the daemon to end has the directory back.
    os.kill(daemon, signal.SIGTERM)
    assert eventually(lambda: not is_mounted(mount.directory))


# SEMANTICS 135.2
def test_doctor_says_what_processes_have_given_up(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    if not has_seccomp(pool):
        return
    for name in ("processes of servers", "processes of mounts"):
        # Of other tests' pools, too.
        found = doctor(pool, name)["found"]
        own = [mount.daemon.pid] if "mounts" in name else [pool.process("child", server).pid for server in range(2)]
        assert not any(f"process {pid} keeps" in found for pid in own), found
        assert "no core dump" in found or "keeps" in found


# SEMANTICS 135.1
def test_the_sandbox_of_a_mount_can_be_switched_off(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMLACE_SANDBOX", "off")
        mount = new_mount(pool)
    (mount / "file").write_bytes(b"bytes")
    assert about(mount.daemon.pid)["Seccomp"] == "0"
    found = doctor(pool, "processes of mounts")
    assert f"process {mount.daemon.pid} keeps all system calls" in found["found"]
    assert found["state"] == "absent"


# SEMANTICS 135.3
def test_no_program_of_the_same_user_looks_into_a_mount_or_a_server(shared_pool: Pool, new_mount: NewMount) -> None:
    mount: Mount = new_mount(shared_pool)
    processes = [mount.daemon.pid, *children_of(mount.daemon.pid)]
    processes += [shared_pool.process(role, 0).pid for role in ("keeper", "child")]
    for pid in processes:
        # What /proc has of a process that is not dumpable belongs to root.
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                Path(f"/proc/{pid}/maps").read_bytes()
