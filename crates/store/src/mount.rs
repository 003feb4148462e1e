//! Mounts a tmpfs that is visible nowhere: a short-lived child makes it and passes its directory back.
//!
//! The child is needed because an ordinary user must enter a user namespace to mount, and a
//! process with several threads cannot. It is forked, so between fork and exit it may only make
//! system calls on memory that the parent has prepared: no allocation, no lock, no formatting.
//! The mount is never attached to any directory; it lives as long as descriptors of it do.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, WaitOptions};
use rustix::thread::UnshareFlags;

/// How a tmpfs came about.
#[derive(Debug)]
pub(crate) struct PrivateMount {
    /// The root directory, open for reading.
    pub(crate) directory: OwnedFd,
    /// Whether mapped memory with MADV_HUGEPAGE gets huge pages.
    pub(crate) huge: bool,
    /// Whether the kernel promised not to swap it.
    pub(crate) no_swap: bool,
    /// Whether a user namespace was needed.
    pub(crate) user_namespace: bool,
}

/// What one attempt asks for, best first. `noswap` exists since Linux 6.4 and for root only.
const ATTEMPTS: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// The steps of the child, for the message about the one that failed.
const STEPS: [&str; 8] = [
    "making a user and mount namespace (unshare)",
    "writing the namespace's setgroups",
    "writing the namespace's uid_map",
    "writing the namespace's gid_map",
    "preparing a tmpfs (fsopen)",
    "setting the size and mode of the tmpfs (fsconfig)",
    "mounting the tmpfs (fsmount)",
    "opening the directory of the tmpfs",
];

/// A step of [`STEPS`] that failed.
struct Failure {
    step: u8,
    errno: Errno,
}

/// What a step came to.
fn step<T>(step: u8, done: rustix::io::Result<T>) -> std::result::Result<T, Failure> {
    done.map_err(|errno| Failure { step, errno })
}

/// Everything the child needs, prepared before the fork.
struct Plan {
    size: CString,
    uid_map: CString,
    gid_map: CString,
    user_namespace: bool,
}

/// Mounts a private tmpfs of `size_bytes` (a multiple of the page).
///
/// First with the rights this process has, then in a user namespace of its own.
///
/// Errors: `NotPermitted` or `Denied` where namespaces are forbidden, `TooMany` where there may be no more,
/// else what the kernel said, with the step that failed.
pub(crate) fn mount_private(size_bytes: u64) -> Result<PrivateMount> {
    let plan = |user_namespace| Plan {
        size: number_text(size_bytes, ""),
        uid_map: map_text(rustix::process::getuid().as_raw()),
        gid_map: map_text(rustix::process::getgid().as_raw()),
        user_namespace,
    };
    match run_child(&plan(false)) {
        Err(error) if matches!(error.kind(), ErrorKind::NotPermitted | ErrorKind::Denied) => {
            run_child(&plan(true))
        }
        done => done,
    }
}

fn number_text(number: u64, suffix: &str) -> CString {
    CString::new(format!("{number}{suffix}")).expect("digits hold no NUL")
}

/// The map that names the caller's own id and nothing else.
fn map_text(id: u32) -> CString {
    CString::new(format!("{id} {id} 1\n")).expect("digits hold no NUL")
}

/// Forks, lets the child mount, and takes the directory out of its message.
fn run_child(plan: &Plan) -> Result<PrivateMount> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| Error::from_io(&errno.into(), "making a socket pair for the mounting child"))?;
    // SAFETY: the child makes system calls on memory prepared above and ends by _exit; it never
    // returns into Rust code that could allocate or take a lock held by another thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child(plan, &theirs);
    }
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        return Err(Error::from_io(&io::Error::last_os_error(), "forking the child that mounts the store"));
    };
    drop(theirs);
    let answer = receive(&ours);
    // Takes the child away. A parent that ignores SIGCHLD finds it gone, which is as good.
    let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), WaitOptions::empty()));
    let (attempt, directory) = answer?;
    let (huge, no_swap) = ATTEMPTS[attempt];
    Ok(PrivateMount { directory, huge, no_swap, user_namespace: plan.user_namespace })
}

/// The child's message: `[0, attempt]` with a descriptor, or `[1, step, errno as 4 bytes]`.
fn receive(socket: &OwnedFd) -> Result<(usize, OwnedFd)> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut bytes = [0u8; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from_io(&errno.into(), "hearing from the mounting child")),
            Ok(message) => break message.bytes,
        }
    };
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (&bytes[..received], descriptor) {
        ([0, attempt], Some(directory)) => Ok((usize::from(*attempt), directory)),
        ([1, step, errno @ ..], None) if errno.len() == 4 => {
            let errno = i32::from_ne_bytes([errno[0], errno[1], errno[2], errno[3]]);
            if *step == 0 && errno == libc::ENOSPC {
                // Not memory: the kernel counts namespaces, and a machine may allow none at all.
                return Err(Error::new(
                    ErrorKind::TooMany,
                    "this machine allows no more user namespaces (see the sysctl user.max_user_namespaces)",
                ));
            }
            Err(Error::from_io(&io::Error::from_raw_os_error(errno), STEPS[usize::from(*step)]))
        }
        _ => Err(Error::new(ErrorKind::Fatal, "the child that mounts the store ended without a word")),
    }
}

/// The whole life of the forked child: system calls on what the parent has prepared.
fn child(plan: &Plan, socket: &OwnedFd) -> ! {
    match child_mount(plan) {
        Ok((attempt, directory)) => send(socket, &[0, attempt], Some(directory.as_fd())),
        Err(failure) => {
            let errno = failure.errno.raw_os_error().to_ne_bytes();
            send(socket, &[1, failure.step, errno[0], errno[1], errno[2], errno[3]], None);
        }
    }
    // SAFETY: ends this process at once; what the parent's other threads held when it forked is not touched.
    unsafe { libc::_exit(0) }
}

/// Makes the namespaces, when asked, and the mount; says which attempt worked.
fn child_mount(plan: &Plan) -> std::result::Result<(u8, OwnedFd), Failure> {
    if plan.user_namespace {
        let namespaces = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
        // SAFETY: the child has one thread, and shares no table of descriptors that this would part.
        step(0, unsafe { rustix::thread::unshare_unsafe(namespaces) })?;
        step(1, write_file(c"/proc/self/setgroups", c"deny"))?;
        step(2, write_file(c"/proc/self/uid_map", &plan.uid_map))?;
        step(3, write_file(c"/proc/self/gid_map", &plan.gid_map))?;
    }
    let mut last = Failure { step: 4, errno: Errno::INVAL };
    for (index, (huge, no_swap)) in ATTEMPTS.iter().enumerate() {
        match mount_once(plan, *huge, *no_swap) {
            Ok(directory) => return Ok((index as u8, directory)),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

/// One tmpfs by the new mount calls (Linux 5.2), attached to nothing.
fn mount_once(plan: &Plan, huge: bool, no_swap: bool) -> std::result::Result<OwnedFd, Failure> {
    use rustix::mount::{fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen};
    let context = step(4, fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC))?;
    let context = context.as_fd();
    step(5, fsconfig_set_string(context, c"size", plan.size.as_c_str()))?;
    step(5, fsconfig_set_string(context, c"mode", c"0700"))?;
    if huge {
        step(5, fsconfig_set_string(context, c"huge", c"advise"))?;
    }
    if no_swap {
        step(5, fsconfig_set_flag(context, c"noswap"))?;
    }
    step(5, fsconfig_create(context))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = step(6, fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes))?;
    // The descriptor of fsmount is a path only; the directory itself can be read and synced.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    step(7, rustix::fs::openat(mount, c".", flags, Mode::empty()))
}

/// Writes a small file of `/proc`.
fn write_file(path: &CStr, text: &CStr) -> rustix::io::Result<()> {
    let file = rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, text.to_bytes()).map(drop)
}

/// Sends the message and at most one descriptor; a parent that is gone needs no answer.
fn send(socket: &OwnedFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let _ = rustix::net::sendmsg(socket, &[io::IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

/// Takes a descriptor number that this process was given across exec.
///
/// Errors: `BadHandle` when nothing is open there.
pub(crate) fn adopt(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: F_SETFD changes only the descriptor table; it sets close-on-exec on what was inherited.
    let set = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if number <= 2 || set < 0 {
        return Err(Error::new(
            ErrorKind::BadHandle,
            format!("descriptor {number} does not hold an inherited store"),
        ));
    }
    // SAFETY: the number is open, and by the contract of from_inherited nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
