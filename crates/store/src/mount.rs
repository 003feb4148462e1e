//! Mounts a tmpfs that nobody sees: a short-lived child makes it and passes its directory back.
//!
//! The child is needed because an ordinary user must enter a user namespace to mount, and a
//! process with several threads cannot. It is forked, so between fork and exit it may only make
//! system calls on memory that the parent has prepared: no allocation, no lock, no formatting.
//! The mount is never attached to any directory; it lives as long as descriptors of it do.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

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

/// A step of [`STEPS`] that failed, with its errno.
struct Failure {
    step: u8,
    errno: i32,
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
        // SAFETY: this is the child of the fork above; it only makes system calls.
        unsafe { child(plan, theirs.as_raw_fd()) }
    }
    if pid < 0 {
        return Err(Error::from_io(&io::Error::last_os_error(), "forking the child that mounts the store"));
    }
    drop(theirs);
    let answer = receive(&ours);
    wait_for(pid);
    let (attempt, directory) = answer?;
    let (huge, no_swap) = ATTEMPTS[attempt];
    Ok(PrivateMount { directory, huge, no_swap, user_namespace: plan.user_namespace })
}

/// Takes the child away. A parent that ignores SIGCHLD finds it gone, which is as good.
fn wait_for(pid: libc::pid_t) {
    loop {
        // SAFETY: waits for one child that this function's caller forked; a null status is allowed.
        let waited = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        if waited >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// The child's message: `[0, attempt]` with a descriptor, or `[1, step, errno as 4 bytes]`.
fn receive(socket: &OwnedFd) -> Result<(usize, OwnedFd)> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut bytes = [0u8; 8];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
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

/// The whole life of the forked child.
///
/// # Safety
/// Only for the child of a fork: it never returns. `plan` was prepared before the fork.
unsafe fn child(plan: &Plan, socket: RawFd) -> ! {
    // SAFETY: forwarded: system calls on prepared memory only.
    unsafe {
        match child_mount(plan) {
            Ok((attempt, directory)) => send(socket, &[0, attempt], Some(directory)),
            Err(failure) => {
                let errno = failure.errno.to_ne_bytes();
                send(socket, &[1, failure.step, errno[0], errno[1], errno[2], errno[3]], None);
            }
        }
        libc::_exit(0)
    }
}

/// Makes the namespaces, when asked, and the mount; says which attempt worked.
///
/// # Safety
/// As for [`child`].
unsafe fn child_mount(plan: &Plan) -> std::result::Result<(u8, RawFd), Failure> {
    // SAFETY: forwarded: system calls on prepared memory only.
    unsafe {
        if plan.user_namespace {
            check(0, c_long::from(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)))?;
            write_file(1, c"/proc/self/setgroups", c"deny")?;
            write_file(2, c"/proc/self/uid_map", &plan.uid_map)?;
            write_file(3, c"/proc/self/gid_map", &plan.gid_map)?;
        }
        let mut last = Failure { step: 4, errno: libc::EINVAL };
        for (index, (huge, no_swap)) in ATTEMPTS.iter().enumerate() {
            match mount_once(plan, *huge, *no_swap) {
                Ok(directory) => return Ok((index as u8, directory)),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }
}

const FSCONFIG_SET_FLAG: c_int = 0;
const FSCONFIG_SET_STRING: c_int = 1;
const FSCONFIG_CMD_CREATE: c_int = 6;
const FSOPEN_CLOEXEC: c_int = 1;
const FSMOUNT_CLOEXEC: c_int = 1;
/// MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC.
const MOUNT_ATTRIBUTES: c_int = 2 | 4 | 8;

/// One tmpfs by the new mount calls (Linux 5.2), attached to nothing.
///
/// # Safety
/// As for [`child`].
unsafe fn mount_once(plan: &Plan, huge: bool, no_swap: bool) -> std::result::Result<RawFd, Failure> {
    // SAFETY: all strings end with NUL and outlive the calls.
    unsafe {
        let context = check(4, libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC))?;
        set(context, c"size", &plan.size)?;
        set(context, c"mode", c"0700")?;
        if huge {
            set(context, c"huge", c"advise")?;
        }
        if no_swap {
            let key = c"noswap".as_ptr();
            let none = std::ptr::null::<u8>();
            check(5, libc::syscall(libc::SYS_fsconfig, context, FSCONFIG_SET_FLAG, key, none, 0))?;
        }
        let none = std::ptr::null::<u8>();
        check(5, libc::syscall(libc::SYS_fsconfig, context, FSCONFIG_CMD_CREATE, none, none, 0))?;
        let mount = check(6, libc::syscall(libc::SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTRIBUTES))?;
        // The descriptor of fsmount is a path only; the directory itself can be read and synced.
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let directory = libc::openat(mount as c_int, c".".as_ptr(), flags);
        check(7, c_long::from(directory)).map(|directory| directory as RawFd)
    }
}

/// Sets one option of a mount to be.
///
/// # Safety
/// As for [`child`].
unsafe fn set(context: c_long, key: &CStr, value: &CStr) -> std::result::Result<c_long, Failure> {
    // SAFETY: both strings end with NUL and outlive the call.
    let done = unsafe {
        libc::syscall(libc::SYS_fsconfig, context, FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr(), 0)
    };
    check(5, done)
}

/// Writes a small file of `/proc`.
///
/// # Safety
/// As for [`child`].
unsafe fn write_file(step: u8, path: &CStr, text: &CStr) -> std::result::Result<(), Failure> {
    // SAFETY: the path ends with NUL; the text's bytes are readable for their whole length.
    unsafe {
        let file = check(step, c_long::from(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC)))?;
        let bytes = text.to_bytes();
        check(step, libc::write(file as c_int, bytes.as_ptr().cast(), bytes.len()) as c_long)?;
        libc::close(file as c_int);
        Ok(())
    }
}

/// A negative result becomes the failure of this step.
fn check(step: u8, result: c_long) -> std::result::Result<c_long, Failure> {
    if result >= 0 {
        return Ok(result);
    }
    // SAFETY: reads this thread's errno, which the failed call has just set.
    Err(Failure { step, errno: unsafe { *libc::__errno_location() } })
}

/// Sends the message and at most one descriptor; a parent that is gone needs no answer.
///
/// # Safety
/// As for [`child`].
unsafe fn send(socket: RawFd, bytes: &[u8], descriptor: Option<RawFd>) {
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        descriptor: RawFd,
        padding: u32,
    }
    const RIGHTS_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<RawFd>();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid header of a message and of a control message.
    let (mut message, mut control): (libc::msghdr, Control) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(descriptor) = descriptor {
        control.header.cmsg_len = RIGHTS_BYTES as _;
        control.header.cmsg_level = libc::SOL_SOCKET;
        control.header.cmsg_type = libc::SCM_RIGHTS;
        control.descriptor = descriptor;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = RIGHTS_BYTES as _;
    }
    // SAFETY: message, part and control live on this stack and describe readable memory.
    unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) };
}

/// Takes a descriptor number that this process was given across exec.
///
/// Errors: `BadHandle` when nothing is open there.
pub(crate) fn adopt(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: F_SETFD only looks at the descriptor table; it sets close-on-exec on what was inherited.
    let set = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if number <= 2 || set < 0 {
        return Err(Error::new(
            ErrorKind::BadHandle,
            format!("descriptor {number} does not hold an inherited store"),
        ));
    }
    // SAFETY: the number is open, and by the contract of from_inherited nobody else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
