//! Mounting, unmounting, and what is said when it cannot be done.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::toy::{Dir, Mount, Toy, alone, has_fusermount};
use ramlace_base::ErrorKind;
use ramlace_fuse::{Ended, MountMethod, MountOptions, Session, Workers, mounts, run_porter, unmount};

fn source(name: &str) -> MountOptions {
    MountOptions { source: name.into(), ..MountOptions::default() }
}

#[test]
fn a_mount_is_listed_until_it_is_unmounted() {
    let Some(_alone) = alone() else { return };
    let mut mount = Mount::with(Toy::default(), &source("ramlace:a pool, one\\two"), Workers::default());
    let listed = mounts().unwrap();
    let ours: Vec<_> = listed.iter().filter(|listed| listed.dir == mount.dir()).collect();
    assert_eq!(ours.len(), 1);
    assert_eq!(
        (ours[0].kind.as_str(), ours[0].source.as_str()),
        ("fuse.ramlace", "ramlace:a pool, one\\two")
    );
    let device = std::fs::metadata(mount.dir()).unwrap().dev();
    assert_eq!(ours[0].device, (rustix::fs::major(device), rustix::fs::minor(device)));
    unmount(mount.dir(), false).unwrap();
    assert_eq!(mount.ended(), Ended::Unmounted);
    assert!(mount.toy.look().destroyed);
    assert!(mounts().unwrap().iter().all(|listed| listed.dir != mount.dir()));
}

#[test]
fn a_busy_mount_says_so_and_goes_lazily() {
    let Some(_alone) = alone() else { return };
    let mut mount = Mount::new(Toy::with_files(&["file"]));
    let file = std::fs::File::open(mount.path("file")).unwrap();
    let error = unmount(mount.dir(), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    unmount(mount.dir(), true).unwrap();
    assert_eq!(unmount(mount.dir(), true).unwrap_err().kind(), ErrorKind::NotFound);
    let mut bytes = [0; 4];
    assert_eq!(rustix::io::pread(&file, &mut bytes, 0).unwrap(), 4, "who has it open keeps it");
    drop(file);
    assert_eq!(mount.ended(), Ended::Unmounted);
}

#[test]
fn a_daemon_that_ended_before_it_heard_of_its_mount_leaves_none() {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    let Some(_alone) = alone() else { return };
    let dir = Dir::new();
    let (daemon, porter) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // The request that mounts; the answer comes when nobody reads it any more.
    send(&daemon, b"m", SendFlags::empty()).unwrap();
    drop(daemon);
    // That the daemon has gone may show as an error of the socket.
    let _ = run_porter(porter, dir.path(), &MountOptions::default(), Box::new(|| Command::new("true")));
    let is_left = mounts().unwrap().iter().any(|mount| mount.dir == dir.path());
    if is_left {
        unmount(dir.path(), true).unwrap();
    }
    assert!(!is_left, "nothing answers there");
}

#[test]
fn the_read_ahead_is_set_or_the_reason_is_told() {
    let Some(_alone) = alone() else { return };
    let dir = Dir::new();
    let session =
        Session::mount(dir.path(), &MountOptions { read_ahead_bytes: 3 << 20, ..Default::default() })
            .unwrap();
    match session.read_ahead_problem() {
        None => assert_eq!(session.read_ahead_bytes(), Some(3 << 20)),
        Some(problem) => assert!(problem.contains("3072 KiB"), "{problem}"),
    }
    assert!(session.protocol_minor() >= 31 && session.request_bytes_max() >= 4096);
    drop(session);
    assert!(mounts().unwrap().iter().all(|mount| mount.dir != dir.path()), "dropping takes the mount away");
}

#[test]
fn what_cannot_be_mounted_says_what_to_do() {
    let Some(_alone) = alone() else { return };
    let (dir, options) = (Dir::new(), MountOptions::default());
    let refused = |path: &Path| Session::mount(path, &options).unwrap_err();
    let error = refused(&dir.path().join("missing"));
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("mkdir -p"), "{error}");
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    assert_eq!(refused(&file).kind(), ErrorKind::NotDirectory);
    assert_eq!(refused(dir.path()).kind(), ErrorKind::NotEmpty);
    std::fs::remove_file(&file).unwrap();
    let mount = Mount::with(Toy::default(), &source("ramlace:first"), Workers::default());
    let error = refused(mount.dir());
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.message().contains("ramlace:first") && error.message().contains("ramlace unmount"),
        "{error}"
    );
}

#[test]
fn mounts_of_others_are_never_unmounted() {
    for path in ["/proc", "/", "/no/such/directory"] {
        assert_eq!(unmount(Path::new(path), true).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
    }
    assert!(Path::new("/proc/self").exists());
}

#[test]
fn fusermount_mounts_and_unmounts() {
    let Some(_alone) = alone() else { return };
    if !has_fusermount() {
        return eprintln!("skipped: fusermount3 is not installed (Debian's package fuse3)");
    }
    let options = MountOptions { method: MountMethod::Fusermount, ..source("ramlace:a,b") };
    let mut mount = Mount::with(Toy::with_files(&["file"]), &options, Workers::default());
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"some bytes");
    assert!(
        mounts().unwrap().iter().any(|listed| listed.dir == mount.dir() && listed.source == "ramlace:a,b")
    );
    let mode = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mode.lines().find(|line| line.contains(mount.dir().to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
    unmount(mount.dir(), false).unwrap();
    assert_eq!(mount.ended(), Ended::Unmounted);
}

/// The null file system in a process of its own; ended at the end of the test.
struct Null(Child);

impl Null {
    fn start(command: &mut Command, dir: &Path) -> Result<Null, String> {
        let mut child = command.arg(dir).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.starts_with("mounted") {
            return Ok(Null(child));
        }
        let output = child.wait_with_output().unwrap();
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for Null {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Cargo builds examples beside the tests.
fn null_program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().and_then(Path::parent).unwrap().join("examples/null")
}

#[test]
fn a_killed_programs_mount_is_dead_and_can_be_taken_away() {
    let Some(_alone) = alone() else { return };
    let dir = Dir::new();
    let mut null = Null::start(&mut Command::new(null_program()), dir.path()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("8KiB")).unwrap(), [0; 8192]);
    null.0.kill().unwrap();
    null.0.wait().unwrap();
    assert_eq!(rustix::fs::statfs(dir.path()).unwrap_err(), rustix::io::Errno::NOTCONN);
    let error = Session::mount(dir.path(), &MountOptions::default()).unwrap_err();
    assert!(
        error.message().contains("a dead mount") && error.message().contains("ramlace unmount"),
        "{error}"
    );
    unmount(dir.path(), false).unwrap();
    assert!(std::fs::metadata(dir.path()).unwrap().is_dir());
}

#[test]
fn an_ordinary_user_mounts_by_fusermount() {
    let Some(_alone) = alone() else { return };
    if !has_fusermount() || !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root, who becomes an ordinary user, and fusermount3");
    }
    const USER: u32 = 65_534;
    const FOR_ALL: u32 = 0o006;
    if std::fs::metadata("/dev/fuse").unwrap().mode() & FOR_ALL != FOR_ALL {
        return eprintln!("skipped: /dev/fuse of this machine is closed to ordinary users");
    }
    let dir = Dir::new();
    std::os::unix::fs::chown(dir.path(), Some(USER), Some(USER)).unwrap();
    // The program is copied to where that user may reach it.
    let program = std::env::temp_dir().join(format!("ramlace-null-{}", std::process::id()));
    std::fs::copy(null_program(), &program).unwrap();
    let user = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
    };
    let for_others = ["-c", "exec \"$0\" \"$1\" --allow-other yes"];
    let refused = Null::start(user().arg("sh").args(for_others).arg(&program), dir.path());
    let mounted = Null::start(user().arg(&program), dir.path());
    std::fs::remove_file(&program).unwrap();
    let mut null = mounted.unwrap();
    let refused = refused.err().expect("/etc/fuse.conf does not allow that unless told");
    assert!(refused.contains("let root add the line `user_allow_other`"), "{refused}");
    let listing = user().arg("ls").arg("-l").arg(dir.path().join("4KiB")).output().unwrap();
    assert!(String::from_utf8_lossy(&listing.stdout).contains("4096"), "{listing:?}");
    let pid = rustix::process::Pid::from_child(&null.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(null.0.wait().unwrap().success());
    assert!(mounts().unwrap().iter().all(|mount| mount.dir != dir.path()), "it took its mount away");
}
