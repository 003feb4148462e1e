//! The values that replies consist of: attributes of an inode, entries, times, open flags.

use std::time::Duration;

/// Seconds and nanoseconds since 1970; the nanoseconds are always added, so −0.5 s is (−1, 500,000,000).
pub type Time = (i64, u32);

/// What a program sees of an inode by stat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number that programs see.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Memory taken, in units of 512 bytes.
    pub blocks: u64,
    /// Time of last access.
    pub accessed: Time,
    /// Time of last modification.
    pub modified: Time,
    /// Time of last status change.
    pub changed: Time,
    /// Kind (`S_IFMT`) and permission bits.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device file.
    pub rdev: u32,
    /// Size of a request that suits the file, in bytes.
    pub block_size: u32,
}

/// A name that was found, or made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The number by which the kernel will name this inode; it counts one lookup until forgotten.
    pub node: u64,
    /// Tells apart two inodes that bear the same node number one after the other.
    pub generation: u64,
    /// Its attributes.
    pub attributes: Attributes,
    /// How long the kernel may believe the name.
    pub entry_valid: Duration,
    /// How long the kernel may believe the attributes.
    pub attributes_valid: Duration,
}

/// What statfs reports; in units of `block_size` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for this caller.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes of a block, and of a request that suits the file system.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

/// What a file lock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Shared (F_RDLCK).
    Read,
    /// Exclusive (F_WRLCK).
    Write,
    /// None: gives up, or reports that nothing is in the way (F_UNLCK).
    Unlock,
}

/// A lock on bytes `start..=end`; `end` is `i64::MAX` for "to the end".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, itself locked.
    pub end: u64,
    /// What it does.
    pub kind: LockKind,
    /// The process that holds it or asks for it.
    pub pid: u32,
}

/// What statx reports beyond the attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatX {
    /// The usual attributes.
    pub attributes: Attributes,
    /// Time of creation.
    pub created: Option<Time>,
}

/// How the kernel shall treat an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent flags of the protocol")]
pub struct OpenFlags {
    /// Reads and writes bypass the page cache.
    pub direct_io: bool,
    /// The open leaves cached pages valid.
    pub keep_cache: bool,
    /// The file cannot be sought in.
    pub nonseekable: bool,
    /// Direct writes of one file may run at once.
    pub parallel_direct_writes: bool,
    /// The kernel may cache the directory's entries.
    pub cache_dir: bool,
    /// Closing sends no FLUSH.
    pub no_flush: bool,
    /// The file has no position.
    pub stream: bool,
    /// Reads and writes go to this registered backing file without asking (needs CAP_SYS_ADMIN).
    pub passthrough: Option<u32>,
}
