//! The memory itself: made by a server's small parent, inherited by its child.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};
use rustix::io::FdFlags;

use crate::{machine, mount, probe, shared, sys};

/// Where the memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A private tmpfs, else shared memory; [`StoreRoot::notes`] says which and why.
    Auto,
    /// A tmpfs that only this server and its clients can reach, with huge pages where the machine has them.
    PrivateTmpfs,
    /// A directory in `/dev/shm`: no limit by the kernel, 4 KiB pages, visible to the same user.
    SharedMemory,
}

/// What a store should be.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Memory to lend, in bytes; rounded down to whole huge pages (2 MiB).
    pub size_bytes: u64,
    /// Where it comes from.
    pub backing: Backing,
    /// A word for the pool and the server in names that people see: letters, digits, `-` and `_`.
    pub name: String,
}

/// The memory of one server. It lives while this, or an inherited copy of its descriptor, is open.
#[derive(Debug)]
pub struct StoreRoot {
    directory: OwnedFd,
    kind: RootKind,
    size_bytes: u64,
    notes: Vec<String>,
}

/// What stands behind a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RootKind {
    Private { huge: bool },
    Shared { path: String },
}

impl StoreRoot {
    /// Makes the memory. May be called from a process with several threads.
    ///
    /// Errors: `Invalid` for a size below `limits::STORE_BYTES_MIN` or a bad name; `NoSpace` when
    /// the machine cannot hold it; what the kernel said when `backing` names one way and it fails.
    pub fn create(options: &StoreOptions) -> Result<StoreRoot> {
        check_name(&options.name)?;
        machine::check_size(options.size_bytes)?;
        let size_bytes = options.size_bytes / limits::HUGE_PAGE_BYTES * limits::HUGE_PAGE_BYTES;
        match options.backing {
            Backing::PrivateTmpfs => create_private(size_bytes),
            Backing::SharedMemory => create_shared(size_bytes, &options.name),
            Backing::Auto => create_private(size_bytes).or_else(|refused| {
                let mut root = create_shared(size_bytes, &options.name)?;
                root.notes.insert(0, format!("No private memory file system could be made: {refused}."));
                Ok(root)
            }),
        }
    }

    /// The directory's descriptor, to be inherited by the server's child.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Lets the descriptor live across exec, or not (the state after `create`).
    ///
    /// Errors: `Fatal` when the kernel refuses, which it has no reason to.
    pub fn set_inheritable(&self, inheritable: bool) -> Result<()> {
        let flags = if inheritable { FdFlags::empty() } else { FdFlags::CLOEXEC };
        sys::tell(rustix::io::fcntl_setfd(&self.directory, flags), "marking the store's descriptor")
    }

    /// The text from which [`StoreRoot::from_inherited`] rebuilds this root: one argument without spaces.
    #[must_use]
    pub fn inherited_args(&self) -> String {
        match &self.kind {
            RootKind::Private { huge: true } => format!("private-huge:{}:", self.size_bytes),
            RootKind::Private { huge: false } => format!("private:{}:", self.size_bytes),
            RootKind::Shared { path } => format!("shared:{}:{path}", self.size_bytes),
        }
    }

    /// Takes over descriptor `number`, inherited across exec, with the text of [`StoreRoot::inherited_args`].
    ///
    /// Call it once for a number that nothing else in this process owns.
    /// Errors: `Invalid` for another text, `BadHandle` when the descriptor is no such directory.
    pub fn from_inherited(number: RawFd, args: &str) -> Result<StoreRoot> {
        let (kind, size_bytes) = parse_args(args).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("'{args}' does not describe an inherited store"))
        })?;
        let directory = mount::adopt(number)?;
        let stat = sys::tell(rustix::fs::fstat(&directory), "looking at the inherited store")?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Directory {
            return Err(Error::new(
                ErrorKind::BadHandle,
                format!("descriptor {number} is no directory, so it holds no store"),
            ));
        }
        Ok(StoreRoot { directory, kind, size_bytes, notes: Vec::new() })
    }

    /// What was found on this machine, in sentences for people; empty for an inherited root.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What it is: `PrivateTmpfs` or `SharedMemory`, never `Auto`.
    #[must_use]
    pub fn backing(&self) -> Backing {
        match self.kind {
            RootKind::Private { .. } => Backing::PrivateTmpfs,
            RootKind::Shared { .. } => Backing::SharedMemory,
        }
    }

    /// Whether chunks get huge pages.
    #[must_use]
    pub fn has_huge_pages(&self) -> bool {
        self.kind == RootKind::Private { huge: true }
    }

    /// Memory that it lends, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Gives everything back. A private tmpfs goes with its last descriptor anyway; a directory of
    /// shared memory must be removed, or it stays until [`crate::remove_stale`] finds it.
    pub fn remove(self) -> Result<()> {
        match &self.kind {
            RootKind::Private { .. } => Ok(()),
            RootKind::Shared { path } => shared::remove_tree(path),
        }
    }

    pub(crate) fn is_private(&self) -> bool {
        matches!(self.kind, RootKind::Private { .. })
    }
}

fn create_private(size_bytes: u64) -> Result<StoreRoot> {
    let mount = mount::mount_private(size_bytes)?;
    let way =
        if mount.user_namespace { "in a user namespace of its own" } else { "with this user's own rights" };
    let mut notes =
        vec![format!("The store is a private tmpfs of {}, made {way}.", format_bytes(size_bytes))];
    let huge = mount.huge && probe::gets_huge_pages(&mount.directory)?;
    notes.push(match (huge, mount.huge) {
        (true, _) => "Chunks get huge pages (2 MiB).".into(),
        (false, true) => "The tmpfs takes huge=advise, but a trial page was not huge: memory is fragmented, or huge \
                          pages are off in /sys/kernel/mm/transparent_hugepage. Chunks use 4 KiB pages, which is slower."
            .into(),
        (false, false) => "This kernel's tmpfs has no huge pages. Chunks use 4 KiB pages, which is slower.".into(),
    });
    notes.push(if mount.no_swap {
        "The store is never swapped (noswap).".into()
    } else {
        "The store could be swapped if this machine has swap: noswap needs root and Linux 6.4.".into()
    });
    Ok(StoreRoot { directory: mount.directory, kind: RootKind::Private { huge }, size_bytes, notes })
}

fn create_shared(size_bytes: u64, name: &str) -> Result<StoreRoot> {
    let (directory, path) = shared::create(size_bytes, name)?;
    let notes = vec![
        format!(
            "The store is the directory {path} of {}, in the machine's shared memory.",
            format_bytes(size_bytes)
        ),
        "Its size is kept by ramlace's own counting, its pages are 4 KiB (slower), and it may be swapped."
            .into(),
    ];
    Ok(StoreRoot { directory, kind: RootKind::Shared { path }, size_bytes, notes })
}

/// The name becomes part of a file name.
fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "'{}' cannot name a store; use 1 to 64 letters, digits, '-' or '_'",
                name.escape_default()
            ),
        ));
    }
    Ok(())
}

fn parse_args(args: &str) -> Option<(RootKind, u64)> {
    let mut fields = args.splitn(3, ':');
    let (kind, size, path) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
    let kind = match (kind, path) {
        ("private-huge", "") => RootKind::Private { huge: true },
        ("private", "") => RootKind::Private { huge: false },
        ("shared", path) if !path.is_empty() => RootKind::Shared { path: path.to_owned() },
        _ => return None,
    };
    (size >= limits::STORE_BYTES_MIN).then_some((kind, size))
}
