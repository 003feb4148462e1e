//! The kernel's structures, in the machine's byte order; names and numbers follow `linux/fuse.h` (7.45).

use std::mem::size_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version whose messages are known here (Linux 6.18).
pub const MINOR_MAX: u32 = 45;
/// Oldest minor version that is spoken (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// First minor version with an epoch of names (Linux 6.16).
pub const EPOCH_MINOR_MIN: u32 = 44;
/// The smallest buffer that the kernel accepts for reading a request.
pub const READ_BUFFER_BYTES_MIN: usize = 8192;
/// The largest structure before the data of a WRITE: header and arguments.
pub const WRITE_HEADER_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, PartialEq, Eq)]
            #[repr(C)]
            pub struct $name { $(pub $field: $kind),* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
    };
}

structures! {
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        extension_words: u16, padding: u16,
    }
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: u32 }
    WriteOut = 8 { size: u32, padding: u32 }
    StatFsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    XattrOut = 8 { size: u32, padding: u32 }
    Lock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    PollOut = 8 { revents: u32, padding: u32 }
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    StatxTime = 16 { sec: i64, nsec: u32, reserved: u32 }
    StatxBody = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: StatxBody }

    ForgetIn = 8 { nlookup: u64 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    GetattrIn = 16 { flags: u32, dummy: u32, fh: u64 }
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, flags: u32, mask: u32 }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    FsyncIn = 16 { fh: u64, flags: u32, padding: u32 }
    // Without FUSE_SETXATTR_EXT, which is not asked for, this is all of it.
    SetxattrIn = 8 { size: u32, flags: u32 }
    GetxattrIn = 8 { size: u32, padding: u32 }
    LkIn = 48 { fh: u64, owner: u64, lock: Lock, flags: u32, padding: u32 }
    AccessIn = 8 { mask: u32, padding: u32 }
    InterruptIn = 8 { unique: u64 }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    PollIn = 24 { fh: u64, kh: u64, flags: u32, events: u32 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    // The part that kernels before 7.36 send; later ones add flags2 and reserved words.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }

    InvalidateInodeOut = 24 { ino: u64, off: i64, len: i64 }
    InvalidateEntryOut = 16 { parent: u64, namelen: u32, flags: u32 }
    DeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    PruneOut = 16 { count: u32, padding: u32, spare: u64 }
    StoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }

    // Of the device's ioctls.
    BackingMap = 16 { fd: i32, flags: u32, padding: u64 }
}

macro_rules! numbers {
    ($name:ident: $kind:ty { $($item:ident = $value:expr),* $(,)? }) => {
        #[allow(missing_docs, unused, reason = "the kernel's own names")]
        pub mod $name {
            $(pub const $item: $kind = $value;)*
            /// All of them.
            pub const NAMES: &[($kind, &str)] = &[$(($item, stringify!($item))),*];
        }
    };
}

numbers!(opcode: u32 {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10,
    RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20,
    SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27,
    READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35,
    INTERRUPT = 36, BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42,
    FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51,
    STATX = 52, COPY_FILE_RANGE_64 = 53,
});

numbers!(init: u64 {
    ASYNC_READ = 1 << 0, POSIX_LOCKS = 1 << 1, ATOMIC_O_TRUNC = 1 << 3, BIG_WRITES = 1 << 5, DONT_MASK = 1 << 6,
    FLOCK_LOCKS = 1 << 10, AUTO_INVAL_DATA = 1 << 12, DO_READDIRPLUS = 1 << 13, READDIRPLUS_AUTO = 1 << 14,
    ASYNC_DIO = 1 << 15, PARALLEL_DIROPS = 1 << 18, POSIX_ACL = 1 << 20, MAX_PAGES = 1 << 22, CACHE_SYMLINKS = 1 << 23,
    EXPLICIT_INVAL_DATA = 1 << 25, HANDLE_KILLPRIV_V2 = 1 << 28, INIT_EXT = 1 << 30,
    DIRECT_IO_ALLOW_MMAP = 1 << 36, PASSTHROUGH = 1 << 37, REQUEST_TIMEOUT = 1 << 42,
});

numbers!(fattr: u32 {
    MODE = 1 << 0, UID = 1 << 1, GID = 1 << 2, SIZE = 1 << 3, ATIME = 1 << 4, MTIME = 1 << 5, FH = 1 << 6,
    ATIME_NOW = 1 << 7, MTIME_NOW = 1 << 8, LOCKOWNER = 1 << 9, CTIME = 1 << 10, KILL_SUIDGID = 1 << 11,
});

numbers!(fopen: u32 {
    DIRECT_IO = 1 << 0, KEEP_CACHE = 1 << 1, NONSEEKABLE = 1 << 2, CACHE_DIR = 1 << 3, STREAM = 1 << 4,
    NOFLUSH = 1 << 5, PARALLEL_DIRECT_WRITES = 1 << 6, PASSTHROUGH = 1 << 7,
});

numbers!(flag: u32 {
    GETATTR_FH = 1, OPEN_KILL_SUIDGID = 1, READ_LOCKOWNER = 2, WRITE_CACHE = 1, WRITE_LOCKOWNER = 2,
    WRITE_KILL_SUIDGID = 4, RELEASE_FLUSH = 1, RELEASE_FLOCK_UNLOCK = 2, LK_FLOCK = 1, FSYNC_FDATASYNC = 1,
    POLL_SCHEDULE_NOTIFY = 1, EXPIRE_ONLY = 1,
});

numbers!(notify: i32 { INVAL_INODE = 2, INVAL_ENTRY = 3, STORE = 4, DELETE = 6, INC_EPOCH = 8, PRUNE = 9 });
