//! Decodes the kernel's bytes into requests. Pure: no I/O, and no panic whatever the bytes are.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{self, InHeader, fattr, flag, opcode};
use crate::operation::{Caller, Operation, SetAttributes, SetTime};
use crate::{FileLock, LockKind};

/// What one read of the device brought.
#[derive(Debug)]
pub struct Message<'a> {
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub caller: Caller,
    pub body: Body<'a>,
}

/// What kind of message it is.
#[derive(Debug)]
pub enum Body<'a> {
    /// To be answered.
    Request(Operation<'a>),
    /// To be answered before anything else.
    Init(Init),
    /// Not answered: the node loses lookups.
    Forget { lookups: u64 },
    /// Not answered: many nodes lose lookups.
    BatchForget(Forgets<'a>),
    /// Not answered: this request's program has a signal.
    Interrupt { target: u64 },
    /// The file system goes away.
    Destroy,
    /// Not answered: bytes that nobody asked for.
    NotifyReply,
}

/// Nodes and the lookups that each loses.
#[derive(Debug)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// The nodes and their lookups, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let records = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        records.filter_map(|bytes| {
            let one = abi::ForgetOne::read_from_bytes(bytes).ok()?;
            Some((one.nodeid, one.nlookup))
        })
    }
}

/// The kernel's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    pub read_ahead_bytes: u32,
    pub flags: u64,
}

/// Bytes that make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The request that they were, when that much could be read and an answer is due.
    pub unique: Option<u64>,
    /// Its operation's number, or 0.
    pub opcode: u32,
}

/// Reads one message.
pub fn decode(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    let (header, rest) =
        InHeader::read_from_prefix(bytes).map_err(|_| Malformed { unique: None, opcode: 0 })?;
    let answered = !matches!(
        header.opcode,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY
    );
    let unique = (answered && header.unique != 0).then_some(header.unique);
    let malformed = Malformed { unique, opcode: header.opcode };
    let extension_bytes = usize::from(header.extension_words) * 8;
    if header.len as usize != bytes.len() || extension_bytes > rest.len() {
        return Err(malformed);
    }
    let mut arguments = Arguments(&rest[..rest.len() - extension_bytes]);
    let body = body(header.opcode, &mut arguments).ok_or(malformed)?;
    let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
    Ok(Message { opcode: header.opcode, unique: header.unique, node: header.nodeid, caller, body })
}

fn body<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Body<'a>> {
    Some(match code {
        opcode::INIT => Body::Init(init(arguments)?),
        opcode::FORGET => Body::Forget { lookups: arguments.take::<abi::ForgetIn>()?.nlookup },
        opcode::BATCH_FORGET => Body::BatchForget(batch_forget(arguments)?),
        opcode::INTERRUPT => Body::Interrupt { target: arguments.take::<abi::InterruptIn>()?.unique },
        opcode::DESTROY => Body::Destroy,
        opcode::NOTIFY_REPLY => Body::NotifyReply,
        _ => Body::Request(operation(code, arguments)?),
    })
}

fn init(arguments: &mut Arguments<'_>) -> Option<Init> {
    let greeting = arguments.take::<abi::InitIn>()?;
    let mut flags = u64::from(greeting.flags);
    if flags & abi::init::INIT_EXT != 0 {
        flags |= u64::from(arguments.take::<u32>()?) << 32;
    }
    let abi::InitIn { major, minor, max_readahead, .. } = greeting;
    Some(Init { major, minor, read_ahead_bytes: max_readahead, flags })
}

fn batch_forget<'a>(arguments: &mut Arguments<'a>) -> Option<Forgets<'a>> {
    let count = arguments.take::<abi::BatchForgetIn>()?.count;
    let bytes = count.checked_mul(size_of::<abi::ForgetOne>() as u32)?;
    arguments.bytes(bytes).map(Forgets)
}

fn operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    match code {
        opcode::LOOKUP..=opcode::LINK | opcode::RENAME2 => name_operation(code, arguments),
        opcode::SETXATTR..=opcode::REMOVEXATTR => xattr_operation(code, arguments),
        opcode::OPENDIR..=opcode::FSYNCDIR | opcode::READDIRPLUS => directory_operation(code, arguments),
        opcode::GETLK..=opcode::SETLKW => lock_operation(code, arguments),
        _ => file_operation(code, arguments),
    }
}

fn name_operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::LOOKUP => Operation::Lookup { name: arguments.name()? },
        opcode::GETATTR => {
            let get: abi::GetattrIn = arguments.take()?;
            Operation::GetAttributes { handle: (get.flags & flag::GETATTR_FH != 0).then_some(get.fh) }
        }
        opcode::SETATTR => Operation::SetAttributes(set_attributes(&arguments.take()?)),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::Symlink { name: arguments.name()?, target: arguments.text()? },
        opcode::MKNOD => {
            let abi::MknodIn { mode, rdev, umask, .. } = arguments.take()?;
            Operation::MakeNode { name: arguments.name()?, mode, device: rdev, umask }
        }
        opcode::MKDIR => {
            let abi::MkdirIn { mode, umask } = arguments.take()?;
            Operation::MakeDirectory { name: arguments.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink { name: arguments.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: arguments.name()? },
        opcode::RENAME => {
            let new_parent = arguments.take::<abi::RenameIn>()?.newdir;
            Operation::Rename { name: arguments.name()?, new_parent, new_name: arguments.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let abi::Rename2In { newdir, flags, .. } = arguments.take()?;
            Operation::Rename {
                name: arguments.name()?,
                new_parent: newdir,
                new_name: arguments.name()?,
                flags,
            }
        }
        opcode::LINK => {
            Operation::Link { node: arguments.take::<abi::LinkIn>()?.oldnodeid, name: arguments.name()? }
        }
        _ => Operation::Unknown { opcode: code },
    })
}

fn xattr_operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::SETXATTR => {
            let abi::SetxattrIn { size, flags } = arguments.take()?;
            Operation::SetXattr { name: arguments.text()?, value: arguments.bytes(size)?, flags }
        }
        opcode::GETXATTR => {
            let size = arguments.take::<abi::GetxattrIn>()?.size;
            Operation::GetXattr { name: arguments.text()?, size }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: arguments.take::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: arguments.text()? },
        _ => Operation::Unknown { opcode: code },
    })
}

fn directory_operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::OPENDIR => Operation::OpenDirectory { flags: arguments.take::<abi::OpenIn>()?.flags },
        opcode::READDIR => {
            let abi::ReadIn { fh, offset, size, .. } = arguments.take()?;
            Operation::ReadDirectory { handle: fh, offset, size }
        }
        opcode::READDIRPLUS => {
            let abi::ReadIn { fh, offset, size, .. } = arguments.take()?;
            Operation::ReadDirectoryPlus { handle: fh, offset, size }
        }
        opcode::RELEASEDIR => {
            let abi::ReleaseIn { fh, flags, .. } = arguments.take()?;
            Operation::ReleaseDirectory { handle: fh, flags }
        }
        opcode::FSYNCDIR => {
            let abi::FsyncIn { fh, flags, .. } = arguments.take()?;
            Operation::FsyncDirectory { handle: fh, data_only: flags & flag::FSYNC_FDATASYNC != 0 }
        }
        _ => Operation::Unknown { opcode: code },
    })
}

fn lock_operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    let abi::LkIn { fh: handle, owner, lock, flags, .. } = arguments.take()?;
    let kind = match lock.kind {
        0 => LockKind::Read,
        1 => LockKind::Write,
        2 => LockKind::Unlock,
        _ => return None,
    };
    let lock = FileLock { start: lock.start, end: lock.end, kind, pid: lock.pid };
    let is_flock = flags & flag::LK_FLOCK != 0;
    Some(match code {
        opcode::GETLK => Operation::GetLock { handle, owner, lock, is_flock },
        _ => Operation::SetLock { handle, owner, lock, wait: code == opcode::SETLKW, is_flock },
    })
}

fn file_operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::OPEN => {
            let abi::OpenIn { flags, open_flags } = arguments.take()?;
            Operation::Open { flags, kill_suid: open_flags & flag::OPEN_KILL_SUIDGID != 0 }
        }
        opcode::CREATE => {
            let abi::CreateIn { flags, mode, umask, open_flags } = arguments.take()?;
            let kill_suid = open_flags & flag::OPEN_KILL_SUIDGID != 0;
            Operation::Create { name: arguments.name()?, flags, mode, umask, kill_suid }
        }
        opcode::TMPFILE => {
            // A name follows, which the kernel made up; nobody will ever ask for it.
            let abi::CreateIn { flags, mode, umask, .. } = arguments.take()?;
            Operation::TemporaryFile { flags, mode, umask }
        }
        opcode::READ => {
            let read: abi::ReadIn = arguments.take()?;
            let lock_owner = (read.read_flags & flag::READ_LOCKOWNER != 0).then_some(read.lock_owner);
            let abi::ReadIn { fh, offset, size, flags, .. } = read;
            Operation::Read { handle: fh, offset, length: size, flags, lock_owner }
        }
        opcode::WRITE => write(&arguments.take()?, arguments)?,
        opcode::STATFS => Operation::StatFs,
        opcode::RELEASE => {
            let abi::ReleaseIn { fh, flags, release_flags, lock_owner } = arguments.take()?;
            let flush = release_flags & flag::RELEASE_FLUSH != 0;
            let flock_unlock = release_flags & flag::RELEASE_FLOCK_UNLOCK != 0;
            Operation::Release { handle: fh, flags, lock_owner, flush, flock_unlock }
        }
        opcode::FSYNC => {
            let abi::FsyncIn { fh, flags, .. } = arguments.take()?;
            Operation::Fsync { handle: fh, data_only: flags & flag::FSYNC_FDATASYNC != 0 }
        }
        opcode::FLUSH => {
            let abi::FlushIn { fh, lock_owner, .. } = arguments.take()?;
            Operation::Flush { handle: fh, lock_owner }
        }
        _ => return rare_operation(code, arguments),
    })
}

fn rare_operation<'a>(code: u32, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::ACCESS => Operation::Access { mask: arguments.take::<abi::AccessIn>()?.mask },
        opcode::FALLOCATE => {
            let abi::FallocateIn { fh, offset, length, mode, .. } = arguments.take()?;
            Operation::Allocate { handle: fh, offset, length, mode }
        }
        opcode::LSEEK => {
            let abi::LseekIn { fh, offset, whence, .. } = arguments.take()?;
            Operation::Seek { handle: fh, offset, whence }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let copy: abi::CopyFileRangeIn = arguments.take()?;
            Operation::CopyFileRange {
                handle: copy.fh_in,
                offset: copy.off_in,
                to_node: copy.nodeid_out,
                to_handle: copy.fh_out,
                to_offset: copy.off_out,
                length: copy.len,
                flags: copy.flags,
            }
        }
        opcode::IOCTL => {
            let abi::IoctlIn { fh, flags, cmd, arg, in_size, out_size } = arguments.take()?;
            let input = arguments.bytes(in_size)?;
            Operation::Ioctl { handle: fh, flags, command: cmd, argument: arg, input, output_size: out_size }
        }
        opcode::POLL => {
            let abi::PollIn { fh, kh, flags, events } = arguments.take()?;
            let schedule_notify = flags & flag::POLL_SCHEDULE_NOTIFY != 0;
            Operation::Poll { handle: fh, kernel_handle: kh, schedule_notify, events }
        }
        opcode::STATX => {
            let abi::StatxIn { getattr_flags, fh, flags, mask, .. } = arguments.take()?;
            Operation::StatX { handle: (getattr_flags & flag::GETATTR_FH != 0).then_some(fh), flags, mask }
        }
        opcode::SYNCFS => Operation::SyncFs,
        _ => Operation::Unknown { opcode: code },
    })
}

fn write<'a>(write: &abi::WriteIn, arguments: &mut Arguments<'a>) -> Option<Operation<'a>> {
    Some(Operation::Write {
        handle: write.fh,
        offset: write.offset,
        data: arguments.bytes(write.size)?,
        flags: write.flags,
        lock_owner: (write.write_flags & flag::WRITE_LOCKOWNER != 0).then_some(write.lock_owner),
        cached: write.write_flags & flag::WRITE_CACHE != 0,
        kill_suid: write.write_flags & flag::WRITE_KILL_SUIDGID != 0,
    })
}

fn set_attributes(set: &abi::SetattrIn) -> SetAttributes {
    let has = |bit: u32| set.valid & bit != 0;
    let time = |now: u32, at: u32, seconds: u64, nanos: u32| match (has(now), has(at)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At((seconds.cast_signed(), nanos))),
        (false, false) => None,
    };
    SetAttributes {
        handle: has(fattr::FH).then_some(set.fh),
        size: has(fattr::SIZE).then_some(set.size),
        mode: has(fattr::MODE).then_some(set.mode),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        accessed: time(fattr::ATIME_NOW, fattr::ATIME, set.atime, set.atimensec),
        modified: time(fattr::MTIME_NOW, fattr::MTIME, set.mtime, set.mtimensec),
        changed: has(fattr::CTIME).then_some((set.ctime.cast_signed(), set.ctimensec)),
        lock_owner: has(fattr::LOCKOWNER).then_some(set.lock_owner),
        kill_suid: has(fattr::KILL_SUIDGID),
    }
}

/// The bytes of a request that are not read yet.
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn bytes(&mut self, count: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Bytes up to a NUL, at least one.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        (!text.is_empty()).then_some(text)
    }

    /// The name of an entry: a text without a slash.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.text().filter(|name| !name.contains(&b'/'))
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
