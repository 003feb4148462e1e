"""What the daemon of a mount gives up, and what goes on all the same; as root and as an ordinary user."""

import functools
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import NewPool
from mount import Mount, NewMount, Program, children_of, is_mounted
from pool import Pool, binary, eventually, pattern


def about(pid: int) -> dict[str, str]:
    """What /proc says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines) if rest.split()}


def has_mode(pid: int, mode: str) -> bool:
    """Whether the kernel filters a process's system calls in this mode."""
    return about(pid)["Seccomp"] == mode


def doctor(pool: Pool, name: str) -> dict[str, str]:
    """Return one line of `ramlace doctor`."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(pool.runtime)}
    done = subprocess.run([binary(), "doctor", "--json"], capture_output=True, check=False, env=environment)
    return next(check for check in json.loads(done.stdout)["checks"] if check["name"] == name)


def has_seccomp(pool: Pool) -> bool:
    """Whether this machine's kernel filters system calls."""
    return doctor(pool, "system calls of servers")["state"] == "ok"


# SEMANTICS 135.1
@pytest.mark.both
def test_a_mounts_daemon_serves_in_a_sandbox(shared_pool: Pool, new_mount: NewMount) -> None:
    mount = new_mount(shared_pool)
    daemon = mount.daemon.pid
    (porter,) = children_of(daemon)
    (guard,) = children_of(porter)
    filtered = "2" if has_seccomp(shared_pool) else about(os.getpid())["Seccomp"]
    for process in (daemon, guard):
        assert eventually(functools.partial(has_mode, process, filtered))
        assert about(process)["NoNewPrivs"] == "1"
        assert re.search(r"Max core file size +[01] +[01] ", Path(f"/proc/{process}/limits").read_text())
    # A guard that has to begin anew, files and locks: all of it is reached.
    (mount / "file").write_bytes(pattern(1, 3 << 20))
    assert (mount / "file").read_bytes() == pattern(1, 3 << 20)
    take = f"file = os.open({str(mount / 'file')!r}, os.O_RDWR); fcntl.lockf(file, fcntl.LOCK_EX)"
    with Program(take) as holder, Program() as waiter:
        waiter.begin(take)
        holder.run("fcntl.lockf(file, fcntl.LOCK_UN)")
        waiter.hear()
    os.kill(guard, signal.SIGKILL)
    other = new_mount(shared_pool)
    (other / "file").write_bytes(b"other")
    assert eventually(lambda: (mount / "file").read_bytes() == b"other")
    assert eventually(lambda: set(children_of(porter)) - {guard})
    # A user who asks the daemon to end has the directory back.
    os.kill(daemon, signal.SIGTERM)
    assert eventually(lambda: not is_mounted(mount.directory))


# SEMANTICS 135.2
@pytest.mark.both
def test_doctor_says_what_processes_have_dropped(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(2, 32)
    mount = new_mount(pool)
    if not has_seccomp(pool):
        pytest.skip("this kernel filters no system calls")
    (porter,) = children_of(mount.daemon.pid)
    looks = {
        "processes of servers": [pool.process("child", server).pid for server in range(2)],
        "processes of mounts": [mount.daemon.pid],
        "guards of mounts": children_of(porter),
    }
    for name, own in looks.items():
        # Of other tests' pools, too.
        found = doctor(pool, name)["found"]
        assert not any(f"process {pid} keeps" in found for pid in own), found
        # With others that keep something, only those are named.
        looked_at = re.match(r"(\d+) (servers?|mounts?|guards?): no core dump", found)
        assert int(looked_at[1]) >= len(own) if looked_at else " keeps " in found, found


# SEMANTICS 135.1
@pytest.mark.both
def test_the_sandbox_of_a_mount_can_be_switched_off(new_pool: NewPool, new_mount: NewMount) -> None:
    pool = new_pool(1, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMLACE_SANDBOX", "off")
        mount = new_mount(pool)
    (mount / "file").write_bytes(b"bytes")
    # As this test, which has what its container or session gave it.
    assert about(mount.daemon.pid)["Seccomp"] == about(os.getpid())["Seccomp"]
    found = doctor(pool, "processes of mounts")
    assert f"process {mount.daemon.pid} keeps all system calls" in found["found"]
    assert found["state"] == "absent"


# SEMANTICS 135.3
def test_no_program_of_the_same_user_looks_into_a_mount_or_a_server(shared_pool: Pool, new_mount: NewMount) -> None:
    mount: Mount = new_mount(shared_pool)
    (porter,) = children_of(mount.daemon.pid)
    processes = [mount.daemon.pid, porter, *children_of(porter)]
    processes += [shared_pool.process(role, 0).pid for role in ("supervisor", "child")]
    assert len(processes) == 5
    for pid in processes:
        # What /proc has of a process that is not dumpable belongs to root: as root this shows nothing, and has no mark.
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                Path(f"/proc/{pid}/maps").read_bytes()


# SEMANTICS 135.4
@pytest.mark.both
def test_a_mount_writes_beside_its_note_nothing_of_its_pool(shared_pool: Pool, new_mount: NewMount) -> None:
    mount = new_mount(shared_pool)
    directory = shared_pool.directory
    device = mount.directory.stat().st_dev
    note = directory / "mounts" / f"mount-{os.major(device)}-{os.minor(device)}"
    assert note.read_bytes() == str(mount.directory).encode()
    assert [file.name for file in directory.iterdir() if file.name.startswith("mount")] == ["mounts"]
    mount.unmount()
    assert eventually(lambda: not note.exists())
