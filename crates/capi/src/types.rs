//! The structures of the header, and how they are filled.
//!
//! They have fixed widths and padding of their own, unlike struct stat, whose sizes depend on
//! the C library, the machine and _FILE_OFFSET_BITS: bindings in any language can write them down.

use std::ffi::c_char;

use ramlace_base::Timestamp;
use ramlace_client::Capacity;
use ramlace_wire::namespace::{DirectoryEntry, InodeInfo};
use ramlace_wire::{DeviceNumbers, FileKind, Layout, LayoutHints};

use crate::pass::{Count, Items, Text};

/// A connected pool. Any number of threads may use one at once.
pub struct ramlace_pool {
    _opaque: [u8; 0],
}

/// An open file. Any number of threads may use one at once; they share its position.
pub struct ramlace_file {
    _opaque: [u8; 0],
}

/// A directory being listed. Threads that share one get different entries.
pub struct ramlace_directory {
    _opaque: [u8; 0],
}

/// A publish or a refresh that goes on beside the program. One thread waits for it.
pub struct ramlace_request {
    _opaque: [u8; 0],
}

/// How to connect. Set all with RAMLACE_OPTIONS_INIT, then what shall differ: what is 0 or NULL
/// is as usual, and a program stays right when later versions add fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ramlace_options {
    /// sizeof(struct ramlace_options): which fields the program knows.
    pub size: usize,
    /// Milliseconds that one operation may take before it fails; 0: 4000; at most 600000. A large
    /// transfer takes as long as it moves: its deadline counts from its last progress.
    pub deadline_millis: u32,
    /// Unix sockets and shared memory with servers on this machine: 1 on, -1 off, 0 as usual (on,
    /// unless the environment says RAMLACE_LOCAL=off).
    pub local: i32,
    /// Path of the file with the pool's secret; NULL: what the environment's RAMLACE_SECRET_FILE
    /// names, else the one in the pool's own directory.
    pub secret_file: Text,
    /// What this client is called, for people: shown by `ramlace status`; NULL: the program's name.
    pub label: Text,
    /// Bytes that are read in small pieces and may be kept for the next reads, as long as their file is open; 0: none, else at
    /// least 65,536. A call that changes them, by this program too, returns when they are dropped. Stores into mapped
    /// memory are seen when they are published. Bytes of a server that the pool forgets may be read for four seconds more, and
    /// while a write is under way one read may bring its bytes and the next those of before.
    pub cache_bytes: u64,
}

/// Where the bytes of new files shall lie. Set all with RAMLACE_HINTS_INIT, then what shall
/// differ: what is 0 is taken from the directory, else as usual.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ramlace_hints {
    /// sizeof(struct ramlace_hints): which fields the program knows.
    pub size: usize,
    /// Bytes of a chunk: a power of two, 65536 to 2^30; usually 2 MiB.
    pub stripe_unit: u64,
    /// Number of lanes, which lie on different servers; narrowed when there are fewer; usually
    /// one for each server.
    pub width: u32,
    /// Copies of each chunk.
    pub copies: u32,
    /// Not 0: all bytes of a new file lie on servers of this machine, where it has any that answer;
    /// those of a file of at most 4 KiB are where its inode is. Directories hand nothing of this, nor of
    /// what follows, down; and no two of these three go together.
    pub local: u32,
    /// Not 0: one more than the number of the server that has the first chunk, where there is one
    /// and it answers.
    pub first_server: u32,
    /// Parts of a new file, from its beginning, and the machines that they shall lie on: each on one
    /// server of its machine, as far as that can be. Without a stripe_unit, it is what holds the
    /// largest part.
    pub parts: Items<ramlace_part>,
    /// How many, at most 65536.
    pub part_count: Count<usize>,
    /// A RAMLACE_MODE: the file's own mode, on every mount; 0: what the directory hands down, else as
    /// each mount has it.
    pub mode: u32,
    /// 1: what makes the file longer takes the memory of all that is new, or is ENOSPC, by every door; 0: what the
    /// directory hands down.
    pub reserve: u32,
}

/// Bytes of a new file, from where the part before ends, and which machine uses them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ramlace_part {
    /// How many.
    pub bytes: u64,
    /// The machine, as ramlace_machine() returns it there.
    pub machine: [u8; 16],
}

/// A moment, since 1970-01-01 UTC.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ramlace_time {
    /// Whole seconds, rounded down; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second, 0 to 999999999.
    pub nanoseconds: u32,
    /// 0; a call refuses anything else.
    pub reserved: u32,
}

/// What an inode is and has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ramlace_stat {
    /// Bytes of a file or of a link's target; entries of a directory.
    pub size: u64,
    /// Number of the inode; unique in its pool, never used again.
    pub inode: u64,
    /// Units of 512 bytes of memory that a file holds: less than its size where it has holes. While a
    /// server of it does not answer, its part counts as if it had none.
    pub blocks: u64,
    /// Bytes of a chunk; of a directory what its new files inherit, 0: as usual; of a link 0.
    pub stripe_unit: u64,
    /// Raised by every truncation of the file.
    pub generation: u64,
    /// Type and permissions as in <sys/stat.h>: S_ISREG(mode), S_ISDIR(mode), S_ISLNK(mode).
    pub mode: u32,
    /// Entries that lead to it; of a directory 2 and one for each subdirectory.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of lanes; of a directory what its new files inherit, 0: as usual; of a link 0.
    pub width: u32,
    /// Copies of each chunk; of a directory what its new files inherit, 0: as usual; of a link 0.
    pub copies: u32,
    /// Last read. Reads are not counted: when it was created, or set.
    pub accessed: ramlace_time,
    /// Last change of content.
    pub modified: ramlace_time,
    /// Last change of content or attributes.
    pub changed: ramlace_time,
    /// Creation.
    pub created: ramlace_time,
    /// Major number of a device; 0 for others.
    pub device_major: u32,
    /// Minor number of a device; 0 for others.
    pub device_minor: u32,
    /// 0; room for what comes.
    pub reserved: [u64; 3],
}

/// Equal runs of a file's bytes at equal distances: a column of a matrix, a tile's rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ramlace_run {
    /// Where the first one begins, in bytes.
    pub offset: i64,
    /// Bytes of each.
    pub length: i64,
    /// From one's beginning to the next one's, in bytes; not looked at when there is one.
    pub stride: i64,
    /// How many.
    pub count: i64,
}

/// A pattern of runs that comes again and again at equal distances: the planes of a block of an array of
/// three dimensions.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ramlace_tile {
    /// Where the first one begins, in bytes.
    pub offset: i64,
    /// The runs of each, whose offsets count from its beginning.
    pub runs: Items<ramlace_run>,
    /// How many descriptions.
    pub run_count: Count<usize>,
    /// From one's beginning to the next one's, in bytes; not looked at when there is one.
    pub stride: i64,
    /// How many.
    pub count: i64,
}

/// Where the bytes of a file lie, or of the files that are made in a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ramlace_layout {
    /// Bytes of a chunk; 0 (directories only): as usual.
    pub stripe_unit: u64,
    /// Number of lanes; 0 (directories only): as usual.
    pub width: u32,
    /// Copies of each chunk; 0 (directories only): as usual.
    pub copies: u32,
    /// 1: fixed, the layout of a file; 0: what a directory hands down.
    pub fixed: u32,
    /// One more than the number of the server that has the first chunk of a file; of a directory 0.
    pub first_server: u32,
    /// A RAMLACE_MODE: the file's own; 0: as each mount has it.
    pub mode: u32,
    /// 1: what makes the file longer takes the memory of all that is new.
    pub reserve: u32,
    /// 0; room for what comes.
    pub reserved: [u32; 4],
}

/// What a pool holds, over the servers that answered.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ramlace_statfs {
    /// Bytes lent.
    pub total_bytes: u64,
    /// Bytes taken by files and names.
    pub used_bytes: u64,
    /// Bytes not taken.
    pub free_bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Servers that did not answer; what they hold is not in these sums.
    pub silent_servers: u32,
    /// Bytes of the longest name.
    pub name_bytes_max: u32,
    /// Inodes that there may be.
    pub inodes_max: u64,
    /// Bytes that one more file can have whose lanes lie on all servers, as usual: the one with the
    /// least room counts for each, and what is kept for the servers' logs is not in it.
    pub file_bytes: u64,
    /// Files that one more directory can have at the least.
    pub directory_inodes: u64,
    /// 0; room for what comes.
    pub reserved: u64,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ramlace_entry {
    /// Number of the inode it leads to.
    pub inode: u64,
    /// What that is: S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO, S_IFSOCK, S_IFCHR or S_IFBLK of <sys/stat.h>.
    pub type_bits: u32,
    /// Bytes of the name, 1 to 255, without its NUL.
    pub name_length: u32,
    /// The name: any bytes but '/' and NUL, in no known encoding; a NUL follows.
    pub name: [c_char; 256],
    /// 0; room for what comes.
    pub reserved: [u64; 2],
}

impl From<Timestamp> for ramlace_time {
    fn from(time: Timestamp) -> ramlace_time {
        ramlace_time { seconds: time.seconds(), nanoseconds: time.subsecond_nanos(), reserved: 0 }
    }
}

impl From<&InodeInfo> for ramlace_stat {
    fn from(info: &InodeInfo) -> ramlace_stat {
        let attributes = &info.attributes;
        let layout = ramlace_layout::from(info);
        let device = DeviceNumbers::of(attributes.device);
        ramlace_stat {
            size: attributes.size,
            inode: attributes.inode.0,
            blocks: match attributes.kind {
                FileKind::File => attributes.allocated.unwrap_or(attributes.size).div_ceil(512),
                _ => 0,
            },
            stripe_unit: layout.stripe_unit,
            generation: attributes.generation.0,
            mode: attributes.kind.type_bits() | u32::from(attributes.mode),
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            width: layout.width,
            copies: layout.copies,
            accessed: attributes.accessed.into(),
            modified: attributes.modified.into(),
            changed: attributes.changed.into(),
            created: attributes.created.into(),
            device_major: device.major,
            device_minor: device.minor,
            reserved: [0; 3],
        }
    }
}

impl From<&InodeInfo> for ramlace_layout {
    fn from(info: &InodeInfo) -> ramlace_layout {
        let mode = info.hints.rules.mode.map_or(0, |mode| u8::from(mode).into());
        let reserve = info.hints.rules.reserve.into();
        let none = ramlace_layout { mode, reserve, ..ramlace_layout::default() };
        if let Some(Layout { stripe_unit, width, copies, .. }) = info.layout {
            return ramlace_layout {
                stripe_unit,
                width: width.into(),
                copies: copies.into(),
                fixed: 1,
                ..none
            };
        }
        let LayoutHints { stripe_unit, width, copies, .. } = info.hints;
        ramlace_layout {
            stripe_unit: stripe_unit.unwrap_or(0),
            width: width.unwrap_or(0).into(),
            copies: copies.unwrap_or(0).into(),
            ..none
        }
    }
}

impl From<Capacity> for ramlace_statfs {
    fn from(capacity: Capacity) -> ramlace_statfs {
        ramlace_statfs {
            total_bytes: capacity.total_bytes,
            used_bytes: capacity.used_bytes,
            free_bytes: capacity.free_bytes,
            inodes: capacity.inodes,
            inodes_max: capacity.inodes_max,
            silent_servers: capacity.silent_servers,
            name_bytes_max: ramlace_base::limits::NAME_BYTES_MAX as u32,
            file_bytes: capacity.file_bytes,
            directory_inodes: capacity.directory_inodes,
            reserved: 0,
        }
    }
}

impl From<&DirectoryEntry> for ramlace_entry {
    fn from(entry: &DirectoryEntry) -> ramlace_entry {
        let bytes = entry.name.as_bytes();
        let mut name = [0; 256];
        for (to, from) in name.iter_mut().zip(bytes) {
            *to = *from as c_char;
        }
        ramlace_entry {
            inode: entry.inode.0,
            type_bits: entry.kind.type_bits(),
            name_length: bytes.len() as u32,
            name,
            reserved: [0; 2],
        }
    }
}
