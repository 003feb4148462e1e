//! Encodes replies into bytes for the kernel. Pure: no I/O.

use std::time::Duration;

use crate::abi::{self, fopen};
use crate::{Attributes, Entry, FileLock, LockKind, OpenFlags, StatFs, StatX, Time};

pub fn attr(attributes: &Attributes) -> abi::Attr {
    abi::Attr {
        ino: attributes.ino,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.accessed.0.cast_unsigned(),
        mtime: attributes.modified.0.cast_unsigned(),
        ctime: attributes.changed.0.cast_unsigned(),
        atimensec: attributes.accessed.1,
        mtimensec: attributes.modified.1,
        ctimensec: attributes.changed.1,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.rdev,
        blksize: attributes.block_size,
        flags: 0,
    }
}

pub fn entry_out(entry: &Entry) -> abi::EntryOut {
    abi::EntryOut {
        nodeid: entry.node,
        generation: entry.generation,
        entry_valid: entry.entry_valid.as_secs(),
        attr_valid: entry.attributes_valid.as_secs(),
        entry_valid_nsec: entry.entry_valid.subsec_nanos(),
        attr_valid_nsec: entry.attributes_valid.subsec_nanos(),
        attr: attr(&entry.attributes),
    }
}

pub fn attr_out(attributes: &Attributes, valid: Duration) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        dummy: 0,
        attr: attr(attributes),
    }
}

pub fn open_out(handle: u64, flags: OpenFlags) -> abi::OpenOut {
    let bits = [
        (flags.direct_io, fopen::DIRECT_IO),
        (flags.keep_cache, fopen::KEEP_CACHE),
        (flags.nonseekable, fopen::NONSEEKABLE),
        (flags.cache_dir, fopen::CACHE_DIR),
        (flags.stream, fopen::STREAM),
        (flags.no_flush, fopen::NOFLUSH),
        (flags.parallel_direct_writes, fopen::PARALLEL_DIRECT_WRITES),
        (flags.passthrough.is_some(), fopen::PASSTHROUGH),
    ];
    let open_flags = bits.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
    abi::OpenOut { fh: handle, open_flags, backing_id: flags.passthrough.unwrap_or(0) }
}

pub fn statfs_out(statfs: &StatFs) -> abi::StatFsOut {
    abi::StatFsOut {
        blocks: statfs.blocks,
        bfree: statfs.blocks_free,
        bavail: statfs.blocks_available,
        files: statfs.files,
        ffree: statfs.files_free,
        bsize: statfs.block_size,
        namelen: statfs.name_bytes_max,
        frsize: statfs.block_size,
        ..Default::default()
    }
}

pub fn lock_out(lock: &FileLock) -> abi::Lock {
    let kind = match lock.kind {
        LockKind::Read => 0,
        LockKind::Write => 1,
        LockKind::Unlock => 2,
    };
    abi::Lock { start: lock.start, end: lock.end, kind, pid: lock.pid }
}

/// STATX_BASIC_STATS of `linux/stat.h`.
const STATX_BASIC: u32 = 0x7ff;
/// STATX_BTIME of `linux/stat.h`.
const STATX_CREATED: u32 = 0x800;

pub fn statx_out(statx: &StatX, valid: Duration) -> abi::StatxOut {
    let time = |(sec, nsec): Time| abi::StatxTime { sec, nsec, reserved: 0 };
    let Attributes { rdev, .. } = statx.attributes;
    let stat = abi::StatxBody {
        mask: STATX_BASIC | if statx.created.is_some() { STATX_CREATED } else { 0 },
        blksize: statx.attributes.block_size,
        nlink: statx.attributes.links,
        uid: statx.attributes.uid,
        gid: statx.attributes.gid,
        // Kind and permissions fit 16 bits.
        mode: (statx.attributes.mode & 0xffff) as u16,
        ino: statx.attributes.ino,
        size: statx.attributes.size,
        blocks: statx.attributes.blocks,
        atime: time(statx.attributes.accessed),
        btime: time(statx.created.unwrap_or_default()),
        ctime: time(statx.attributes.changed),
        mtime: time(statx.attributes.modified),
        // The kernel's own 32-bit form of a device number: minor bits around twelve major bits.
        rdev_major: rdev >> 8 & 0xfff,
        rdev_minor: rdev & 0xff | rdev >> 12 & 0xfff00,
        ..Default::default()
    };
    abi::StatxOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        stat,
        ..Default::default()
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
