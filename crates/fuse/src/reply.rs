//! The answer to one request.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{self, OutHeader, opcode};
use crate::delays::{Delays, Kind, Moment};
use crate::device::Device;
use crate::inflight::InFlight;
use crate::{Attributes, DirectoryBuffer, Entry, FileLock, OpenFlags, StatFs, StatX, encode};

/// Parts that one writev takes (UIO_MAXIOV), less the header.
const PARTS_MAX: usize = 1023;
/// Parts that are sent without a list on the heap.
const FEW_PARTS_MAX: usize = 8;
/// The largest errno that the kernel accepts is below this.
const ERRNO_END: i32 = 512;

/// The channel by which requests that one descriptor brings are answered.
#[derive(Debug)]
pub struct Channel {
    pub device: Arc<Device>,
    pub inflight: Arc<InFlight>,
    pub delays: Option<Arc<Delays>>,
}

impl Channel {
    /// Waits where a test wants it.
    pub fn delay(&self, kind: Kind, moment: Moment) {
        if let Some(delays) = &self.delays {
            delays.wait(kind, moment);
        }
    }
}

/// The answer to one request: given once, by any thread. Dropped unanswered, it answers EIO and says so on stderr.
///
/// Each method returns whether the kernel still wanted the answer. When it did not, what was opened or looked up
/// for it shall be undone, since no RELEASE and no FORGET will come.
#[derive(Debug)]
pub struct Reply {
    unique: u64,
    opcode: u32,
    kind: Kind,
    answered: bool,
    channel: Arc<Channel>,
}

impl Reply {
    /// Enters the request as unanswered.
    pub(crate) fn new(channel: &Arc<Channel>, unique: u64, opcode: u32) -> Reply {
        channel.inflight.begin(unique);
        Reply::entered(channel, unique, opcode)
    }

    /// The answer to a request that is entered already.
    pub(crate) fn entered(channel: &Arc<Channel>, unique: u64, opcode: u32) -> Reply {
        let kind = Kind::of_request(opcode, false);
        Reply { unique, opcode, kind, answered: false, channel: Arc::clone(channel) }
    }

    /// What kind of request it answers, where its number says less.
    pub(crate) fn of(mut self, kind: Kind) -> Reply {
        self.kind = kind;
        self
    }

    /// The number of the request.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// The program that waits has a signal: see [`crate::FileSystem::interrupt`].
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.channel.inflight.interrupted(self.unique)
    }

    /// Done, nothing to report.
    pub fn ok(self) -> bool {
        self.data(&[])
    }

    /// It failed with this errno (positive; anything else becomes EIO).
    pub fn error(mut self, errno: i32) -> bool {
        self.send_error(errno)
    }

    /// The name was found or made.
    pub fn entry(self, entry: &Entry) -> bool {
        self.data(encode::entry_out(entry).as_bytes())
    }

    /// There is no such name, and the kernel may believe that for so long.
    pub fn negative_entry(self, valid: Duration) -> bool {
        self.entry(&Entry { entry_valid: valid, ..Entry::default() })
    }

    /// The attributes, and how long the kernel may believe them.
    pub fn attributes(self, attributes: &Attributes, valid: Duration) -> bool {
        self.data(encode::attr_out(attributes, valid).as_bytes())
    }

    /// The answer to STATX.
    pub fn statx(self, statx: &StatX, valid: Duration) -> bool {
        self.data(encode::statx_out(statx, valid).as_bytes())
    }

    /// The file or directory is open under this handle.
    pub fn opened(self, handle: u64, flags: OpenFlags) -> bool {
        self.data(encode::open_out(handle, flags).as_bytes())
    }

    /// Created and opened.
    pub fn created(self, entry: &Entry, handle: u64, flags: OpenFlags) -> bool {
        let (entry, open) = (encode::entry_out(entry), encode::open_out(handle, flags));
        self.data_parts(&[IoSlice::new(entry.as_bytes()), IoSlice::new(open.as_bytes())])
    }

    /// Bytes: of a file, a link's target, an attribute's value, a list of names.
    pub fn data(self, data: &[u8]) -> bool {
        self.data_parts(&[IoSlice::new(data)])
    }

    /// The same from several places, in order; nothing is copied but by the kernel, from there to its reader.
    pub fn data_parts(mut self, parts: &[IoSlice<'_>]) -> bool {
        self.send(parts)
    }

    /// So many bytes were written.
    pub fn written(self, bytes: u32) -> bool {
        self.data(abi::WriteOut { size: bytes, padding: 0 }.as_bytes())
    }

    /// So many bytes were copied; the kernel asks for what is missing.
    pub fn copied(self, bytes: u64) -> bool {
        if self.opcode == opcode::COPY_FILE_RANGE_64 {
            return self.data(bytes.as_bytes());
        }
        // The older request has 32 bits for the answer; what is left out is asked for again, from whole pages on.
        let told = u32::try_from(bytes).unwrap_or(!0xfff);
        self.written(told)
    }

    /// Entries of a directory.
    pub fn directory(self, entries: &DirectoryBuffer) -> bool {
        self.data(entries.as_bytes())
    }

    /// The answer to STATFS.
    pub fn statfs(self, statfs: &StatFs) -> bool {
        self.data(encode::statfs_out(statfs).as_bytes())
    }

    /// The size of an attribute or of the list of names.
    pub fn xattr_size(self, bytes: u32) -> bool {
        self.data(abi::XattrOut { size: bytes, padding: 0 }.as_bytes())
    }

    /// The offset that was sought.
    pub fn seeked(self, offset: u64) -> bool {
        self.data(offset.as_bytes())
    }

    /// The lock that is in the way, or one of kind `Unlock`.
    pub fn lock(self, lock: &FileLock) -> bool {
        self.data(encode::lock_out(lock).as_bytes())
    }

    /// The answer to IOCTL: its return value and what it writes.
    pub fn ioctl(self, result: i32, output: &[u8]) -> bool {
        let head = abi::IoctlOut { result, ..Default::default() };
        self.data_parts(&[IoSlice::new(head.as_bytes()), IoSlice::new(output)])
    }

    /// The events that are ready.
    pub fn poll(self, events: u32) -> bool {
        self.data(abi::PollOut { revents: events, padding: 0 }.as_bytes())
    }

    fn send_error(&mut self, errno: i32) -> bool {
        let errno = if (1..ERRNO_END).contains(&errno) { errno } else { libc::EIO };
        let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -errno, unique: self.unique };
        self.answered = true;
        self.channel.delay(self.kind, Moment::After);
        self.channel.device.write(&[IoSlice::new(header.as_bytes())]).is_ok()
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> bool {
        let bytes = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let Ok(len) = u32::try_from(bytes) else { return self.refused(Errno::MSGSIZE, bytes) };
        let header = OutHeader { len, error: 0, unique: self.unique };
        let header = IoSlice::new(header.as_bytes());
        self.answered = true;
        self.channel.delay(self.kind, Moment::After);
        let written = if parts.len() <= FEW_PARTS_MAX {
            let mut list = [header; FEW_PARTS_MAX + 1];
            list[1..=parts.len()].copy_from_slice(parts);
            self.channel.device.write(&list[..=parts.len()])
        } else {
            self.write_many(header, parts)
        };
        match written {
            Ok(()) => true,
            // The request was taken back, or the mount is gone.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => false,
            Err(errno) => self.refused(errno, bytes),
        }
    }

    fn write_many(&self, header: IoSlice<'_>, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let (direct, beyond) = parts.split_at(parts.len().min(PARTS_MAX - 1));
        // Beyond what one writev takes, a copy is the only way to send one message.
        let gathered: Vec<u8> = beyond.iter().flat_map(|part| part.iter().copied()).collect();
        let mut list = Vec::with_capacity(direct.len() + 2);
        list.push(header);
        list.extend_from_slice(direct);
        list.push(IoSlice::new(&gathered));
        self.channel.device.write(&list)
    }

    /// The kernel finds the answer wrong (a bug of the file system): the program shall not wait for ever.
    fn refused(&mut self, errno: Errno, bytes: usize) -> bool {
        eprintln!(
            "ramlace-fuse: the kernel refused an answer of {bytes} bytes to request {}: {errno}",
            self.opcode
        );
        self.send_error(libc::EIO);
        false
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            eprintln!("ramlace-fuse: request {} (operation {}) was not answered", self.unique, self.opcode);
            self.send_error(libc::EIO);
        }
        self.channel.inflight.end(self.unique);
    }
}
