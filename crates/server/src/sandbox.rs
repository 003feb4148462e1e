//! Restricts what a server's child, and the daemon of a mount, can do while they serve: to the system calls
//! of their work, to the files that they need, and without root's capabilities over other processes, devices
//! and the network.
//!
//! An attacker who takes over the process by a bug has only these: no other program, no access to other
//! processes, and no file of its user except the pool's own. What is not on the lists is an error (`EPERM`)
//! and does not end the process: if a list lacks something that some system needs, one request fails and the
//! bytes stay, and an attacker gets no further either way.
//!
//! `RAMLACE_SANDBOX=off` disables it; `ramlace doctor` says what the machine supports, a server's log what it
//! lacks.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus,
};
use ramlace_base::{Error, ErrorKind, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Operation, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// The variable that disables it.
const SWITCH: &str = "RAMLACE_SANDBOX";
/// What a server may read besides its pool's files: the machine's configuration, and what is needed to look
/// up host names. Among devices, no disk and no memory of the machine.
const READABLE: [&str; 12] = [
    "/etc",
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/proc",
    "/sys",
    "/run",
    "/dev/shm",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
];
/// The capabilities that root's processes drop: addresses and routes, memory and ports of the machine,
/// modules, its clock, device files, and the memory of other processes.
const DROPPED: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::SYS_BOOT)
    .union(CapabilitySet::SYS_TIME)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::MKNOD);
/// The newest version of Landlock rules that is requested; an older kernel enforces those that it knows.
const LANDLOCK: ABI = ABI::V5;

/// Drops everything that a serving server does not need. To be called before the process has a second thread.
/// Returns what could not be dropped.
pub fn enter(secret_file: &Path, store: BorrowedFd<'_>) -> Vec<String> {
    if is_off() {
        return vec![format!("{SWITCH}=off: no sandbox")];
    }
    let own: Vec<PathBuf> =
        secret_file.parent().map(Path::to_owned).into_iter().chain(directory_of_log()).collect();
    drop_rights_but(&own, store)
}

/// The files that the daemon of a mount keeps access to.
#[derive(Clone, Debug, Default)]
pub struct MountFiles {
    /// Directories of its own.
    pub own: Vec<PathBuf>,
    /// Those that it reads.
    pub readable: Vec<PathBuf>,
}

/// Drops everything that the daemon of a mount does not need; without `files`, only system calls. To be
/// called before the process has a second thread, and after its porter was started. Returns what could not be
/// dropped although the machine supports it.
#[must_use]
pub fn enter_mount(files: Option<MountFiles>) -> Vec<String> {
    if is_off() {
        return Vec::new();
    }
    let files = files.filter(|_| landlock_version() > 0).map(|MountFiles { mut own, readable }| {
        // Each of its threads may open the device once more, and root sets how far the kernel reads ahead.
        own.extend(["/dev/fuse", "/sys/devices/virtual/bdi"].map(PathBuf::from));
        keep_to_files(&own, &readable, None)
    });
    lacking(files.into_iter().chain([drop_capabilities(), allowed_to_mounts().and_then(keep_to_calls)]))
}

fn is_off() -> bool {
    std::env::var_os(SWITCH).is_some_and(|word| word == "off")
}

fn drop_rights_but(own: &[PathBuf], store: BorrowedFd<'_>) -> Vec<String> {
    let calls = || allowed().and_then(keep_to_calls);
    lacking([keep_to_files(own, &[], Some(store)), drop_capabilities(), calls()].into_iter())
}

fn lacking(kept: impl Iterator<Item = Result<()>>) -> Vec<String> {
    kept.filter_map(|kept| kept.err().map(|error| error.message().to_owned())).collect()
}

/// The kernel's version of Landlock; less than 1: there is none.
#[must_use]
pub fn landlock_version() -> i64 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag and no attributes the kernel reads no memory, and returns its version.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) }
}

/// Restricts file access to these directories and devices, the store, and for reading those of the machine
/// and some more.
fn keep_to_files(own: &[PathBuf], readable: &[PathBuf], store: Option<BorrowedFd<'_>>) -> Result<()> {
    let refuse =
        |error: &dyn std::fmt::Display| Error::new(ErrorKind::Unsupported, format!("no Landlock: {error}"));
    let (all, reading) = (AccessFs::from_all(LANDLOCK), AccessFs::from_read(LANDLOCK) & !AccessFs::Execute);
    let rules = || -> std::result::Result<RulesetStatus, landlock::RulesetError> {
        let mut rules =
            Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all)?.create()?;
        if let Some(store) = store {
            rules = rules.add_rule(PathBeneath::new(store, all & !AccessFs::Execute))?;
        }
        // A path that does not exist needs no rule.
        for path in own {
            let Ok(place) = PathFd::new(path) else { continue };
            let rights = if path.is_dir() { all } else { AccessFs::from_file(LANDLOCK) };
            rules = rules.add_rule(PathBeneath::new(place, rights & !AccessFs::Execute))?;
        }
        let readable = READABLE.iter().map(Path::new).chain(readable.iter().map(PathBuf::as_path));
        for path in readable {
            let Ok(place) = PathFd::new(path) else { continue };
            let rights = if path.is_dir() { reading } else { AccessFs::ReadFile.into() };
            rules = rules.add_rule(PathBeneath::new(place, rights))?;
        }
        // The backtrace of a bug is read from the program itself.
        if let Some(program) = std::env::current_exe().ok().and_then(|path| PathFd::new(path).ok()) {
            rules = rules.add_rule(PathBeneath::new(program, AccessFs::ReadFile))?;
        }
        if let Ok(null) = PathFd::new("/dev/null") {
            rules = rules.add_rule(PathBeneath::new(null, AccessFs::from_file(LANDLOCK)))?;
        }
        Ok(rules.restrict_self()?.ruleset)
    };
    match rules() {
        Ok(RulesetStatus::NotEnforced) => Err(refuse(&"this kernel has none")),
        Ok(_) => Ok(()),
        Err(error) => Err(refuse(&error)),
    }
}

/// A program that this process might start gets none of them either: `no_new_privs` is set.
fn drop_capabilities() -> Result<()> {
    let less = |had: CapabilitySets| CapabilitySets {
        effective: had.effective - DROPPED,
        permitted: had.permitted - DROPPED,
        inheritable: had.inheritable - DROPPED,
    };
    capabilities(None)
        .and_then(|had| set_capabilities(None, less(had)))
        .map_err(|errno| Error::from_io(&errno.into(), "giving up capabilities"))
}

/// The directory of the server's log, if that is a file: a new log is made there when it is long.
fn directory_of_log() -> Option<PathBuf> {
    let path = rustix::fs::readlink("/proc/self/fd/2", Vec::new()).ok()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    (path.is_absolute() && path.is_file() && !path.starts_with("/dev"))
        .then(|| path.parent().map(Path::to_owned))?
}

fn no_seccomp(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no seccomp: {error}"))
}

/// Restricts the process to these system calls.
fn keep_to_calls(calls: Rules) -> Result<()> {
    let refuse = |error: &dyn std::fmt::Display| no_seccomp(error);
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| refuse(&error))?;
    for (rules, otherwise, matched) in [
        // Its flags lie in memory, which no filter can read: the C library then creates threads by the older
        // call.
        (
            BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
            SeccompAction::Allow,
            SeccompAction::Errno(libc::ENOSYS as u32),
        ),
        // Last, because it does not allow further filters.
        (calls, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow),
    ] {
        let filter =
            SeccompFilter::new(rules, otherwise, matched, architecture).map_err(|error| refuse(&error))?;
        let program: seccompiler::BpfProgram =
            filter.try_into().map_err(|error: seccompiler::BackendError| refuse(&error))?;
        seccompiler::apply_filter(&program).map_err(|error| refuse(&error))?;
    }
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// An argument that is one of these.
fn one_of(argument: u8, values: &[i64]) -> std::result::Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |value: &i64| {
        SeccompRule::new(vec![Condition::new(argument, Length::Dword, Operation::Eq, *value as u64)?])
    };
    values.iter().map(rule).collect()
}

/// Sockets of the network and of this machine; no raw packets.
fn sockets() -> std::result::Result<Vec<SeccompRule>, seccompiler::BackendError> {
    const TYPE: u64 = 0xf;
    let is = |family: libc::c_int, kind: libc::c_int| -> std::result::Result<_, seccompiler::BackendError> {
        Ok(vec![
            Condition::new(0, Length::Dword, Operation::Eq, family as u64)?,
            Condition::new(1, Length::Dword, Operation::MaskedEq(TYPE), kind as u64)?,
        ])
    };
    let mut rules = Vec::new();
    for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            rules.push(SeccompRule::new(is(family, kind)?)?);
        }
    }
    // The addresses of this machine, for which the C library asks before it looks up a name.
    let mut addresses = is(libc::AF_NETLINK, libc::SOCK_RAW)?;
    addresses.push(Condition::new(2, Length::Dword, Operation::Eq, libc::NETLINK_ROUTE as u64)?);
    rules.push(SeccompRule::new(addresses)?);
    Ok(rules)
}

/// The flags that put a thread into another namespace.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// Commands of `fcntl`, without those that send signals.
const OF_DESCRIPTORS: [libc::c_int; 13] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];
/// Names of threads and of memory, for people.
const NAMES: [libc::c_int; 3] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];
/// Whether a descriptor is ready, and how much data there is; of devices and terminals only their kind or
/// number.
const ASKED: [libc::Ioctl; 6] =
    [libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::TCGETS, libc::TIOCGWINSZ, SIOCGIFINDEX];
/// The number of a network interface, which addresses such as `fe80::1%eth0` name (`linux/sockios.h`).
const SIOCGIFINDEX: libc::Ioctl = 0x8933;
/// Lets a thread's allocations not wait for write-back (`linux/prctl.h`).
const IO_FLUSHER: libc::c_int = 57;
/// Another descriptor of a mount's connection, and passthrough of files (`linux/fuse.h`).
const FUSE: [u32; 3] = [0x8004_e500, 0x4010_e501, 0x4004_e502];

/// The system calls of a server's work.
fn allowed() -> Result<Rules> {
    rules_of_work(&NAMES, &[]).map_err(|error| no_seccomp(&error))
}

/// Those of a mount's daemon: the same, and the commands of the FUSE device.
fn allowed_to_mounts() -> Result<Rules> {
    let names: Vec<libc::c_int> = NAMES.into_iter().chain([IO_FLUSHER]).collect();
    rules_of_work(&names, &FUSE).map_err(|error| no_seccomp(&error))
}

fn rules_of_work(
    names: &[libc::c_int],
    devices: &[u32],
) -> std::result::Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = FILES
        .iter()
        .chain(MEMORY)
        .chain(SOCKETS)
        .chain(WAITING)
        .chain(ITSELF)
        .map(|call| (*call, Vec::new()))
        .collect();
    #[cfg(target_arch = "x86_64")]
    rules.extend(OLDER.iter().map(|call| (*call, Vec::new())));
    rules.insert(libc::SYS_socket, sockets()?);
    // Threads, in the namespaces of this process; and no processes.
    let (thread, looked_at) = (libc::CLONE_THREAD as u64, (libc::CLONE_THREAD | NAMESPACES) as u64);
    let is_thread = Condition::new(0, Length::Dword, Operation::MaskedEq(looked_at), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
    // Decrypted bytes are copied into a lane's memory by a system call, which may reach no other process. An
    // abort is a signal to a thread of this process; limits are those of this process.
    let itself = i64::from(rustix::process::getpid().as_raw_pid());
    for call in [libc::SYS_process_vm_writev, libc::SYS_process_vm_readv, libc::SYS_tgkill] {
        rules.insert(call, one_of(0, &[itself])?);
    }
    rules.insert(libc::SYS_prlimit64, one_of(0, &[0, itself])?);
    rules.insert(libc::SYS_fcntl, one_of(1, &OF_DESCRIPTORS.map(i64::from))?);
    let names: Vec<i64> = names.iter().copied().map(i64::from).collect();
    rules.insert(libc::SYS_prctl, one_of(0, &names)?);
    let asked = ASKED.iter().map(|number| *number as i64).chain(devices.iter().copied().map(i64::from));
    rules.insert(libc::SYS_ioctl, one_of(1, &asked.collect::<Vec<i64>>())?);
    Ok(rules)
}

/// Files of the store, of the pool, and of the machine.
const FILES: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_utimensat,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_memfd_create,
    libc::SYS_getcwd,
    libc::SYS_umask,
];

const MEMORY: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_brk,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_membarrier,
];

const SOCKETS: &[i64] = &[
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
];

const WAITING: &[i64] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
];

/// What every process does to itself.
const ITSELF: &[i64] = &[
    // This filter allows it; the other one makes it fail, so that the older call is used.
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
];

/// System calls that newer machines no longer have, and C libraries of this one still make.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Runs `work` in a thread that has dropped everything; other threads of the test's process have not.
    fn within<T: Send + 'static>(own: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (own, store) = ([own.to_owned()], std::fs::File::open(own).unwrap());
        let thread = std::thread::spawn(move || {
            assert_eq!(drop_rights_but(&own, store.as_fd()), [] as [String; 0]);
            work()
        });
        thread.join().unwrap()
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ramlace-sandbox-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        path
    }

    // SEMANTICS 132
    #[test]
    fn what_a_server_has_no_use_for_is_refused_and_it_lives_on() {
        let own = directory("calls");
        let refused = within(&own, || {
            // `asm-generic/fcntl.h`
            const F_SETSIG: libc::c_int = 10;
            let result = |result: i64| (result, std::io::Error::last_os_error().raw_os_error());
            // SAFETY: each of them is refused before it does anything, and none is given a pointer that it could use.
            unsafe {
                [
                    result(libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), 0, 0)),
                    result(libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_process_vm_readv, 1, 0, 0, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_kill, 0, 0)),
                    result(libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)),
                    result(libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_bpf, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_io_uring_setup, 1, 0)),
                    result(libc::syscall(libc::SYS_userfaultfd, 0)),
                    result(libc::syscall(libc::SYS_setuid, 0)),
                    result(libc::syscall(libc::SYS_keyctl, 0)),
                    result(libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_socket, libc::AF_PACKET, libc::SOCK_RAW, 0)),
                    result(libc::syscall(libc::SYS_fchmod, -1, 0)),
                    result(libc::syscall(libc::SYS_fchmodat, libc::AT_FDCWD, c"/there/is/none".as_ptr(), 0)),
                    result(libc::syscall(libc::SYS_fchown, -1, -1, -1)),
                    result(libc::syscall(
                        libc::SYS_fchownat,
                        libc::AT_FDCWD,
                        c"/there/is/none".as_ptr(),
                        -1,
                        -1,
                        0,
                    )),
                    // Another process: nothing would happen to it if it were allowed.
                    result(libc::syscall(libc::SYS_tgkill, libc::getppid(), libc::getppid(), 0)),
                    result(libc::syscall(libc::SYS_prlimit64, libc::getppid(), libc::RLIMIT_CPU, 0, 0)),
                    result(libc::syscall(libc::SYS_fcntl, 0, libc::F_SETOWN, libc::getppid())),
                    result(libc::syscall(libc::SYS_fcntl, 0, F_SETSIG, 0)),
                    result(libc::syscall(
                        libc::SYS_socket,
                        libc::AF_INET,
                        libc::SOCK_RAW,
                        libc::IPPROTO_ICMP,
                    )),
                    result(libc::syscall(
                        libc::SYS_socket,
                        libc::AF_NETLINK,
                        libc::SOCK_RAW,
                        libc::NETLINK_KOBJECT_UEVENT,
                    )),
                    // Without the memory that it is to share it would be invalid.
                    result(libc::syscall(
                        libc::SYS_clone,
                        libc::CLONE_THREAD | libc::CLONE_NEWNET,
                        0,
                        0,
                        0,
                        0,
                    )),
                ]
            }
        });
        assert_eq!(refused, [(-1, Some(libc::EPERM)); 25]);
        assert!(
            std::process::Command::new("true").status().unwrap().success(),
            "other threads go on as they were"
        );
        std::fs::remove_dir_all(own).unwrap();
    }

    // SEMANTICS 135.1
    #[test]
    fn the_daemon_of_a_mount_keeps_to_its_work_and_its_directories() {
        let [own, readable, other] = ["mount-own", "mount-keys", "mount-other"].map(directory);
        for place in [&readable, &other] {
            std::fs::write(place.join("key"), "a key").unwrap();
        }
        let places = [own.clone(), readable.clone(), other.clone()];
        let device = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
        let had_device = device();
        let thread = std::thread::spawn(move || {
            let [own, readable, other] = places;
            assert_eq!(
                enter_mount(Some(MountFiles { own: vec![own.clone()], readable: vec![readable.clone()] })),
                [] as [String; 0]
            );
            std::fs::write(own.join("mount-0-7"), "/mnt").unwrap();
            std::fs::remove_file(own.join("mount-0-7")).unwrap();
            std::fs::read(readable.join("key")).unwrap();
            std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let denied = |error: std::io::Error| error.raw_os_error() == Some(libc::EACCES);
            assert!(denied(std::fs::write(readable.join("key"), "x").unwrap_err()));
            assert!(denied(std::fs::read(other.join("key")).unwrap_err()));
            assert_eq!(device(), had_device);
            let result = |result: i64| (result, std::io::Error::last_os_error().raw_os_error());
            // SAFETY: each of them is refused before it does anything, and none is given a pointer that it could use.
            let refused = unsafe {
                [
                    result(libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), 0, 0)),
                    result(libc::syscall(libc::SYS_mount, 0, 0, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_umount2, c"/".as_ptr(), 0)),
                    result(libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_kill, 0, 0)),
                    result(libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0)),
                    result(libc::syscall(libc::SYS_fchmod, -1, 0)),
                    result(libc::syscall(libc::SYS_fchmodat, libc::AT_FDCWD, c"/there/is/none".as_ptr(), 0)),
                    result(libc::syscall(libc::SYS_fchown, -1, -1, -1)),
                    result(libc::syscall(libc::SYS_tgkill, libc::getppid(), libc::getppid(), 0)),
                    result(libc::syscall(libc::SYS_prlimit64, libc::getppid(), libc::RLIMIT_CPU, 0, 0)),
                    result(libc::syscall(libc::SYS_fcntl, 0, libc::F_SETOWN, libc::getppid())),
                    result(libc::syscall(
                        libc::SYS_socket,
                        libc::AF_INET6,
                        libc::SOCK_RAW,
                        libc::IPPROTO_ICMPV6,
                    )),
                ]
            };
            assert_eq!(refused, [(-1, Some(libc::EPERM)); 13]);
            // It has threads.
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        });
        thread.join().unwrap();
        for path in [own, readable, other] {
            std::fs::remove_dir_all(path).unwrap();
        }
    }

    // SEMANTICS 132
    #[test]
    fn a_server_reaches_its_pools_files_and_those_of_the_machine_and_no_others() {
        let (own, other) = (directory("own"), directory("other"));
        std::fs::write(other.join("private"), "a key").unwrap();
        let (here, there) = (own.clone(), other.clone());
        within(&own, move || {
            std::fs::write(here.join("secret.new"), "new").unwrap();
            std::fs::rename(here.join("secret.new"), here.join("secret")).unwrap();
            assert_eq!(std::fs::read_to_string(here.join("secret")).unwrap(), "new");
            std::fs::read_to_string("/proc/meminfo").unwrap();
            std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            std::fs::read_dir("/etc").unwrap();
            std::fs::File::open("/dev/urandom").unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            for set in ["CapInh:", "CapPrm:", "CapEff:"] {
                let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
                assert_eq!(u64::from_str_radix(line.trim(), 16).unwrap() & DROPPED.bits(), 0, "{set}");
            }
            let denied = |error: std::io::Error| error.raw_os_error() == Some(libc::EACCES);
            assert!(denied(std::fs::read(there.join("private")).unwrap_err()));
            assert!(denied(std::fs::write(there.join("more"), "x").unwrap_err()));
            assert!(denied(std::fs::write("/etc/ramlace-was-here", "x").unwrap_err()));
            // Where disks and memory of the machine are.
            assert!(denied(std::fs::read_dir("/dev").unwrap_err()));
            assert!(denied(std::fs::File::open("/dev/full").unwrap_err()));
            // A server has threads, and looks up names.
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            std::net::ToSocketAddrs::to_socket_addrs("localhost:1").unwrap();
            std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        });
        for path in [own, other] {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
}
