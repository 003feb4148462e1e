//! The requests of the kernel, as a file system handles them.

use crate::{FileLock, Scratch, Time};

/// The caller: the program's ids as the kernel gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The file system user id.
    pub uid: u32,
    /// The file system group id.
    pub gid: u32,
    /// The process, or 0 when it is out of sight (another pid namespace, the kernel itself).
    pub pid: u32,
}

/// One request of the kernel; `operation` borrows from the buffer that it was read into.
#[derive(Debug)]
pub struct Request<'a> {
    /// The number that interrupts name.
    pub unique: u64,
    /// The node that the request is about; for operations with names, the directory.
    pub node: u64,
    /// The program that makes the request.
    pub caller: Caller,
    /// What is asked.
    pub operation: Operation<'a>,
    /// Memory of this worker for the reply's data; what an earlier request left is still in it.
    pub scratch: &'a mut Scratch,
}

/// A time that a program sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the file system's clock.
    Now,
    /// This time.
    At(Time),
}

/// What a SETATTR changes; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The open file through which the change is made (ftruncate).
    pub handle: Option<u64>,
    /// New size in bytes.
    pub size: Option<u64>,
    /// New mode; only the permission bits (07777) may change.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New time of last access.
    pub accessed: Option<SetTime>,
    /// New time of last modification.
    pub modified: Option<SetTime>,
    /// New time of last status change.
    pub changed: Option<Time>,
    /// Owner of the locks of the program that truncates.
    pub lock_owner: Option<u64>,
    /// The file system shall clear set-user-id and set-group-id bits.
    pub kill_suid: bool,
}

/// What is asked. Names have no NUL; offsets and sizes are the kernel's and not checked against any file.
///
/// Flags are Linux's numbers (`O_*`, `RENAME_*`, `XATTR_*`, `FALLOC_FL_*`, `SEEK_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields carry the names of the system calls' arguments")]
pub enum Operation<'a> {
    /// Reply: `entry`, `negative_entry` or an error.
    Lookup { name: &'a [u8] },
    /// Reply: `attributes`.
    GetAttributes { handle: Option<u64> },
    /// Reply: `attributes`.
    SetAttributes(SetAttributes),
    /// Reply: `data` (the target).
    ReadLink,
    /// Reply: `entry`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Reply: `entry`. `mode` has the kind; `umask` is already applied unless the mount has access lists.
    MakeNode { name: &'a [u8], mode: u32, device: u32, umask: u32 },
    /// Reply: `entry`.
    MakeDirectory { name: &'a [u8], mode: u32, umask: u32 },
    /// Reply: `ok`.
    Unlink { name: &'a [u8] },
    /// Reply: `ok`.
    RemoveDirectory { name: &'a [u8] },
    /// RENAME and RENAME2. Reply: `ok`.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// A new name in the request's node for the inode `node`. Reply: `entry`.
    Link { node: u64, name: &'a [u8] },
    /// Reply: `opened`. `flags` may have O_TRUNC; `kill_suid`: clear the set-id bits with it.
    Open { flags: u32, kill_suid: bool },
    /// Create and open. Reply: `created`.
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, kill_suid: bool },
    /// An unnamed file in the directory (O_TMPFILE). Reply: `created`.
    TemporaryFile { flags: u32, mode: u32, umask: u32 },
    /// Reply: `data` or `data_parts`; fewer bytes than `length` mean the end of the file.
    Read { handle: u64, offset: u64, length: u32, flags: u32, lock_owner: Option<u64> },
    /// Reply: `written`. `cached`: the kernel writes back mapped pages and guessed the handle; `caller` is not the writer.
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        lock_owner: Option<u64>,
        cached: bool,
        kill_suid: bool,
    },
    /// Reply: `statfs`.
    StatFs,
    /// The last reference of an open file is gone. Reply: `ok`; nobody waits for it.
    Release { handle: u64, flags: u32, lock_owner: u64, flush: bool, flock_unlock: bool },
    /// Reply: `ok`.
    Fsync { handle: u64, data_only: bool },
    /// Reply: `ok`.
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32 },
    /// Reply: `xattr_size` when `size` is 0, else `data`, or ERANGE when that is too small.
    GetXattr { name: &'a [u8], size: u32 },
    /// Reply as for `GetXattr`; the data are names, each ended by a NUL.
    ListXattr { size: u32 },
    /// Reply: `ok`.
    RemoveXattr { name: &'a [u8] },
    /// One descriptor of an open file is being closed; its error is what close returns. Reply: `ok`.
    Flush { handle: u64, lock_owner: u64 },
    /// Reply: `opened`.
    OpenDirectory { flags: u32 },
    /// Reply: `directory` (plain entries); an empty one is the end.
    ReadDirectory { handle: u64, offset: u64, size: u32 },
    /// Reply: `directory` (entries with attributes); every entry but `.` and `..` counts as a lookup.
    ReadDirectoryPlus { handle: u64, offset: u64, size: u32 },
    /// Reply: `ok`.
    ReleaseDirectory { handle: u64, flags: u32 },
    /// Reply: `ok`.
    FsyncDirectory { handle: u64, data_only: bool },
    /// Reply: `lock`: the lock that is in the way, or one of kind `Unlock`.
    GetLock { handle: u64, owner: u64, lock: FileLock, is_flock: bool },
    /// Reply: `ok`, or EAGAIN when it conflicts; `wait`: answered when it is granted.
    SetLock { handle: u64, owner: u64, lock: FileLock, wait: bool, is_flock: bool },
    /// Reply: `ok` or EACCES. Not sent with `default_permissions`.
    Access { mask: u32 },
    /// Reply: `ok`.
    Allocate { handle: u64, offset: u64, length: u64, mode: u32 },
    /// Reply: `seeked`. Only SEEK_DATA (3) and SEEK_HOLE (4) are sent.
    Seek { handle: u64, offset: u64, whence: u32 },
    /// From the request's node to another. Reply: `copied`.
    CopyFileRange {
        handle: u64,
        offset: u64,
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        length: u64,
        flags: u64,
    },
    /// Reply: `ioctl`.
    Ioctl { handle: u64, flags: u32, command: u32, argument: u64, input: &'a [u8], output_size: u32 },
    /// Reply: `poll`.
    Poll { handle: u64, kernel_handle: u64, schedule_notify: bool, events: u32 },
    /// Reply: `statx`; ENOSYS makes the kernel use GETATTR ever after.
    StatX { handle: Option<u64>, flags: u32, mask: u32 },
    /// Reply: `ok`.
    SyncFs,
    /// Something this crate does not know. Reply: ENOSYS.
    Unknown { opcode: u32 },
}
