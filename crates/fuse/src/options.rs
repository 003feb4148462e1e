//! Options of a mount and of its workers.

use std::time::Duration;

use crate::flags::Flags;
use crate::init::request_pages_limit;

/// How the mount is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountMethod {
    /// By the system call where this process may, else by fusermount3.
    #[default]
    Automatic,
    /// By the system call only.
    SystemCall,
    /// By fusermount3 only.
    Fusermount,
}

/// What drops cached pages of a file besides the file system's own word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Invalidation {
    /// Nothing: new attributes with a smaller size cut off the pages beyond it, and that is all.
    #[default]
    Explicit,
    /// New attributes with another size.
    SizeChange,
    /// New attributes with another size or modification time.
    AnyChange,
}

/// The options of a mount. `Default` is what a mount of ramlace wants.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent options of the kernel")]
pub struct MountOptions {
    /// What `mount` shows as the device, such as `ramlace:POOL`.
    pub source: String,
    /// The file system is shown as `fuse.SUBTYPE`; `mounts` and `unmount` know subtypes that begin with `ramlace`.
    pub subtype: String,
    /// Other users than the one that mounts may come in (an ordinary user needs `user_allow_other` in /etc/fuse.conf).
    pub allow_other: bool,
    /// The kernel checks modes and owners before it asks.
    pub default_permissions: bool,
    /// What the kernel keeps of every mount: no writing, no set-user-id bits, no device files.
    pub flags: Flags,
    /// The directory may have entries, which the mount hides.
    pub allow_nonempty: bool,
    /// How the mount is made.
    pub method: MountMethod,
    /// Largest READ and WRITE asked for; the machine's limit may make it smaller (`Session::request_bytes_max`).
    pub request_bytes_max: usize,
    /// Read-ahead of the mount, set in the backing device's entry in sysfs where that is allowed.
    pub read_ahead_bytes: usize,
    /// Requests that nobody waits for (read-ahead, write-back) under way at once.
    pub background_requests_max: u16,
    /// READDIR may bring attributes along, when the kernel finds that useful.
    pub readdir_plus: bool,
    /// Advisory locks are asked from the file system; without it they are local to this machine.
    pub remote_locks: bool,
    /// What drops cached pages besides [`crate::Notifier::invalidate_inode`] and an open without `keep_cache`.
    pub invalidation: Invalidation,
    /// READLINK replies are cached.
    pub cache_symlinks: bool,
    /// Files opened with `direct_io` may be mapped (Linux 6.6).
    pub direct_io_mmap: bool,
    /// The file system has POSIX access control lists: the kernel asks for them and checks by them, as by modes, and the
    /// file system applies the umask where a directory has no default list.
    pub access_lists: bool,
    /// Open files may be passed through to a backing file (Linux 6.9, CAP_SYS_ADMIN).
    pub passthrough: bool,
    /// How long the kernel waits for a reply before it ends the connection; zero is for ever (Linux 6.14).
    pub request_timeout: Duration,
}

impl MountOptions {
    /// With requests as large as this machine allows: the kernel is given the same limit twice, at the mount and in the
    /// greeting.
    pub(crate) fn within_limits(&self) -> MountOptions {
        let page_bytes = rustix::param::page_size();
        let pages = self.request_bytes_max.div_ceil(page_bytes).clamp(1, request_pages_limit());
        MountOptions { request_bytes_max: pages * page_bytes, ..self.clone() }
    }
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "ramlace".into(),
            subtype: "ramlace".into(),
            allow_other: false,
            default_permissions: true,
            flags: Flags::default(),
            allow_nonempty: false,
            method: MountMethod::Automatic,
            request_bytes_max: 1 << 20,
            read_ahead_bytes: 1 << 20,
            background_requests_max: 64,
            readdir_plus: true,
            remote_locks: true,
            invalidation: Invalidation::Explicit,
            cache_symlinks: false,
            direct_io_mmap: true,
            access_lists: false,
            passthrough: false,
            request_timeout: Duration::ZERO,
        }
    }
}

/// How many threads answer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Idle threads beyond these end, after a while.
    pub idle_threads_min: usize,
    /// Threads at most; each may be waiting for a server.
    pub threads_max: usize,
    /// Threads beyond these for what other requests wait for ([`Urgency`]), of each kind.
    pub reserved_threads: usize,
}

/// What waits for a request. However many requests of one kind are blocked, those of the next kind are still answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The program that makes it.
    #[default]
    Usual,
    /// Others as well: all that need the pages that it fills.
    Reads,
    /// Others as well: all that need the pages that it writes back, on other machines too.
    WritesBack,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers { idle_threads_min: 4, threads_max: 32, reserved_threads: 0 }
    }
}
