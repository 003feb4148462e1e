"""The command as mount.ramlace and mount.fuse.ramlace: what mount(8), fstab and automount run."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mount import fails, is_mounted
from pool import PATIENCE_SECONDS, Pool, binary

NAMES = ("mount.ramlace", "mount.fuse.ramlace")
EXIT_USAGE, EXIT_FAILED = 1, 32


class Helper:
    """The helper by one of its names, a pool, and an empty directory."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self.pool = pool
        self.directory = directory / "empty"
        self.directory.mkdir()
        self._links = directory
        for name in NAMES:
            (directory / name).symlink_to(binary())

    def run(self, *words: str, spec: str = "", name: str = NAMES[0]) -> "subprocess.CompletedProcess[str]":
        """Run `NAME SPEC DIR WORDS` to its end."""
        command = [str(self._links / name), spec or f"ramlace:{self.pool.name}", str(self.directory), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)

    def mounts(self, *words: str, spec: str = "", name: str = NAMES[0]) -> str:
        """Run it; it must mount. Return what it says."""
        done = self.run(*words, spec=spec, name=name)
        assert (done.returncode, done.stdout) == (0, ""), done
        assert is_mounted(self.directory)
        return done.stderr

    def refuses(self, code: int, *words: str, spec: str = "") -> str:
        """Run it; it must end with this code and mount nothing. Return what it says."""
        done = self.run(*words, spec=spec)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert not is_mounted(self.directory)
        assert done.stderr.startswith("mount.ramlace: ")
        return done.stderr

    def flags(self) -> set[str]:
        """Return the flags that the kernel has for the mount."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        (line,) = (line.split() for line in lines if line.split()[4] == str(self.directory))
        return set(line[5].split(","))

    def unmount(self) -> None:
        """Take it away, if it is there."""
        if is_mounted(self.directory):
            self.pool.run("unmount", str(self.directory))


@pytest.fixture
def helper(shared_pool: Pool, tmp_path: Path, fuse: None) -> Iterator[Helper]:
    """Make a helper whose mount is taken away."""
    made = Helper(shared_pool, tmp_path)
    yield made
    made.unmount()


# Called as mount(8) calls it.


@pytest.mark.both
@pytest.mark.parametrize("name", NAMES)
def test_it_mounts_what_fstab_names_and_says_nothing(helper: Helper, name: str) -> None:
    for spec in (f"ramlace:{helper.pool.name}", helper.pool.name, f"ramlace://{helper.pool.addresses[0]}"):
        assert helper.mounts("-o", "rw", spec=spec, name=name) == ""
        (helper.directory / "file").write_bytes(b"content")
        assert {"rw", "nosuid", "nodev"} <= helper.flags()
        helper.unmount()
    assert helper.pool.run("cat", "/file").stdout == b"content"
    helper.pool.run("rm", "/file")


@pytest.mark.both
def test_generic_options_are_the_kernels(helper: Helper) -> None:
    said = helper.mounts("-n", "-v", "-o", "ro,noexec,noatime,_netdev,nofail,x-systemd.automount,user=me")
    assert f"ramlace:{helper.pool.name} mounted on {helper.directory}" in said
    assert {"ro", "noexec", "noatime", "nosuid", "nodev"} <= helper.flags()
    fails(errno.EROFS, (helper.directory / "file").write_bytes, b"")


@pytest.mark.both
def test_ramlace_mount_takes_the_same_list(helper: Helper) -> None:
    helper.pool.run("mount", "-o", "ro,noexec", "-o", "no_locks", str(helper.directory))
    assert {"ro", "noexec", "nosuid", "nodev"} <= helper.flags()
    helper.unmount()
    assert "frob" in helper.pool.refused("mount", "-o", "ro,frob=1", str(helper.directory))
    assert "mount(8)" in helper.pool.refused("mount", "-o", "remount,ro", str(helper.directory))


# SEMANTICS 106.2
@pytest.mark.both
def test_an_option_that_nobody_knows_is_named(helper: Helper) -> None:
    assert "'frob=1'" in helper.refuses(EXIT_USAGE, "-o", "ro,frob=1,noexec")
    assert "secret_file=/path" in helper.refuses(EXIT_USAGE, "-o", "secret_file")
    helper.mounts("-s", "-o", "ro,frob=1")
    assert "ro" in helper.flags()


@pytest.mark.both
def test_what_cannot_be_mounted_is_told_with_the_code_of_mount(helper: Helper) -> None:
    assert "whole pool" in helper.refuses(EXIT_USAGE, spec=f"ramlace://{helper.pool.name}/data")
    assert "/dev/sda1" in helper.refuses(EXIT_USAGE, spec="/dev/sda1")
    assert "nosuchpool" in helper.refuses(EXIT_FAILED, spec="ramlace:nosuchpool")
    helper.directory.rmdir()
    assert "does not exist" in helper.refuses(EXIT_FAILED)
    helper.directory.mkdir()
    helper.mounts()
    done = helper.run()
    assert done.returncode == EXIT_FAILED
    assert "already a mount" in done.stderr


@pytest.mark.both
def test_fake_mounts_nothing(helper: Helper) -> None:
    assert helper.run("-f", "-o", "ro").returncode == 0
    assert not is_mounted(helper.directory)
    assert "frob" in helper.refuses(EXIT_USAGE, "-f", "-o", "frob")


@pytest.mark.both
def test_a_secret_that_an_option_names_lets_it_in(
    helper: Helper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, elsewhere = tmp_path / "my, secret", tmp_path / "runtime"
    elsewhere.mkdir(mode=0o700)
    secret.write_bytes((helper.pool.directory / "secret").read_bytes())
    secret.chmod(0o600)
    spec = f"ramlace://{helper.pool.addresses[0]}"
    with monkeypatch.context() as patch:
        # Here the pool is a stranger.
        patch.setenv("XDG_RUNTIME_DIR", str(elsewhere))
        assert "secret" in helper.refuses(EXIT_FAILED, spec=spec)
        helper.mounts("-o", f'ro,secret_file="{secret}"', spec=spec)
        assert list(helper.directory.iterdir()) == []
        helper.unmount()
        options = ["--pool", spec, "--secret-file", str(secret)]
        helper.pool.run("mount", *options, str(helper.directory), check=True)


@pytest.mark.both
def test_who_may_not_is_told(helper: Helper) -> None:
    if os.geteuid() != 0:
        for word in ("suid", "dev", "passthrough"):
            assert "only root" in helper.refuses(EXIT_USAGE, "-o", word)
        helper.mounts()
        done = helper.run("-o", "remount,ro")
        assert (done.returncode, "only root may remount" in done.stderr) == (EXIT_USAGE, True), done
        return
    helper.mounts("-o", "suid,dev")
    assert not {"nosuid", "nodev"} & helper.flags()


# By mount(8) itself, in a namespace of mounts where its directory of helpers has ours.

NAMESPACE = """
ours=/mnt/helpers; sbin=$(realpath /sbin)
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir $ours $ours/sbin $ours/pool $ours/user
install -m 755 "$COMMAND" $ours/ramlace
mount --bind $sbin $ours/sbin
mount -t tmpfs -o mode=755 tmpfs $sbin
ln -s $ours/sbin/* $sbin
ln -s $ours/ramlace $sbin/mount.ramlace
ln -s $ours/ramlace $sbin/mount.fuse.ramlace
pool=$ours/pool
trap 'for each in $pool $ours/user/pool; do ! mountpoint -q $each || umount -l $each; done' EXIT
flags() { findmnt -n -o OPTIONS $pool; }
refused() { if bash -c "$1" 2>said; then echo "not refused: $1" >&2; exit 1; else cat said; fi; }
cd $ours
"""


def in_namespace(pool: Pool, steps: str) -> list[str]:
    """Run steps of a shell there, where `$pool` is an empty directory; return the lines that they print."""
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c", NAMESPACE + steps],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "COMMAND": binary(),
            "POOL": f"ramlace:{pool.name}",
            "ADDRESS": pool.addresses[0],
            "SECRET": str(pool.directory / "secret"),
        },
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done
    return done.stdout.splitlines()


# SEMANTICS 106.3
@pytest.mark.needs_root
@pytest.mark.parametrize("kind", ["ramlace", "fuse.ramlace"])
def test_mount_8_makes_it_read_only_and_writable_again(shared_pool: Pool, fuse: None, kind: str) -> None:
    said = in_namespace(
        shared_pool,
        f"""
        mount -t {kind} $POOL $pool -o noatime
        echo one >$pool/file
        mount -o remount,ro $pool
        refused 'echo two >$ours/pool/file' | sed 's/.*: //'
        refused 'mkdir $ours/pool/directory' | sed 's/.*: //'
        cat $pool/file
        flags
        mount -o remount,rw $pool
        echo three >$pool/file
        cat $pool/file
        mount -t ramlace -o remount,noexec $POOL $pool
        flags
        rm $pool/file
        umount $pool
        """.replace("$ours/pool/", "/mnt/helpers/pool/"),
    )
    assert [line.partition(",user_id")[0] for line in said] == [
        "Read-only file system",
        "Read-only file system",
        "one",
        "ro,nosuid,nodev,noatime",
        "three",
        "rw,nosuid,nodev,noexec,noatime",
    ]


# SEMANTICS 106.3
@pytest.mark.needs_root
def test_it_is_not_made_read_only_while_a_program_writes(shared_pool: Pool, fuse: None) -> None:
    said = in_namespace(
        shared_pool,
        """
        mount -t ramlace $POOL $pool
        exec 7>$pool/open
        refused 'mount -o remount,ro /mnt/helpers/pool'
        echo still >&7
        exec 7>&-
        mount -o remount,ro $pool
        cat $pool/open
        mount -o remount,rw $pool
        rm $pool/open
        """,
    )
    assert "open for writing" in said[0]
    assert said[-1] == "still"


# SEMANTICS 106.1
@pytest.mark.needs_root
def test_a_line_of_fstab_mounts_once(shared_pool: Pool, fuse: None) -> None:
    said = in_namespace(
        shared_pool,
        """
        echo "$POOL $pool ramlace defaults,_netdev,nofail,noexec,allow_other,x-systemd.automount 0 0" >fstab
        mount -a -T fstab
        mount -a -T fstab
        grep -c " $pool " /proc/self/mountinfo
        flags
        mount -T fstab -o remount,ro $pool
        flags
        umount $pool
        mount -T fstab $pool
        umount $pool
        """,
    )
    assert said[0] == "1"
    assert said[1].startswith("rw,nosuid,nodev,noexec")
    assert "allow_other" in said[1]
    assert said[2].startswith("ro,nosuid,nodev,noexec")


# SEMANTICS 106.1
@pytest.mark.needs_root
def test_automount_mounts_as_it_mounts_everything(shared_pool: Pool, fuse: None) -> None:
    # What its generic module runs: sloppy, with the options of the map.
    for kind in ("ramlace", "fuse.ramlace"):
        said = in_namespace(
            shared_pool,
            f"""
            mount -n -t {kind} -s -o rw,allow_other,fscache,secret_file=$SECRET ramlace://$ADDRESS $pool
            findmnt -n -o SOURCE,FSTYPE $pool
            umount $pool
            """,
        )
        assert said[0].split() == [f"ramlace://{shared_pool.addresses[0]}", "fuse.ramlace"]


# SEMANTICS 106.1
@pytest.mark.needs_root
def test_it_mounts_in_the_namespace_that_mount_8_names(shared_pool: Pool, fuse: None) -> None:
    said = in_namespace(
        shared_pool,
        """
        unshare --mount --propagation private sleep 60 & there=$!
        while [ /proc/$there/ns/mnt -ef /proc/self/ns/mnt ]; do sleep 0.02; done
        mount -N /proc/$there/ns/mnt -t ramlace $POOL $pool
        if mountpoint -q $pool; then echo "mounted here" >&2; exit 1; fi
        nsenter --mount --target $there mountpoint $pool
        nsenter --mount --target $there umount $pool
        kill $there
        """,
    )
    assert said == ["/mnt/helpers/pool is a mountpoint"]


# SEMANTICS 106.1
@pytest.mark.needs_root
def test_a_user_mounts_what_fstab_lets_him(shared_pool: Pool, fuse: None) -> None:
    shared_pool.run("cp", "-", "ramlace:/mine", stdin=b"mine\n")
    said = in_namespace(
        shared_pool,
        """
        mkdir user/pool
        install -m 600 $SECRET user/secret
        chown -R 65534:65534 user
        echo "ramlace://$ADDRESS $ours/user/pool ramlace user,noauto,secret_file=$ours/user/secret 0 0" >fstab
        mount --bind fstab /etc/fstab
        mknod -m 666 fuse c 10 229
        mount --bind fuse /dev/fuse
        as_user() {
            setpriv --reuid=65534 --regid=65534 --clear-groups env XDG_RUNTIME_DIR=$ours/user "$@"
        }
        as_user mount $ours/user/pool
        as_user cat $ours/user/pool/mine
        findmnt -n -o OPTIONS $ours/user/pool
        as_user umount $ours/user/pool
        if mountpoint -q $ours/user/pool; then exit 1; fi
        """,
    )
    shared_pool.run("rm", "/mine")
    assert said[0] == "mine"
    assert "user_id=65534" in said[1]
    assert said[1].startswith("rw,nosuid,nodev,noexec")
