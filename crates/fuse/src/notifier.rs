//! What the file system tells the kernel unasked.

use std::io::IoSlice;
use std::sync::{Arc, Weak};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{self, OutHeader, notify};
use crate::delays::{Delays, Kind, Moment};
use crate::device::Device;
use crate::dropped::{Answering, AnsweringEnd, Dropped, Size};
use crate::guard::Guard;

/// Tells the kernel what to forget. Its methods answer `false` when the kernel did not know the node or the name,
/// or when the mount is gone: then there is nothing to forget.
///
/// Never call one from inside a handler of the same inode or directory, nor from the only worker: the kernel waits
/// for locks that a request under way holds, and for dirty pages to be written back.
///
/// # Errors
/// When the kernel refuses the message: one that this kernel does not know, or one without sense.
#[derive(Clone, Debug)]
pub struct Notifier {
    pub(crate) channel: Channel,
    pub(crate) delays: Option<Arc<Delays>>,
    pub(crate) dropped: Arc<Dropped>,
}

/// By which process notifications are written to the device.
#[derive(Clone, Debug)]
pub(crate) enum Channel {
    /// By the thread that calls: a process that is killed meanwhile may not end.
    Here(Weak<Device>),
    /// By another process ([`crate::guard`]).
    Guarded(Weak<Guard>),
}

impl Channel {
    /// What the kernel says.
    fn tell(&self, parts: &[IoSlice<'_>]) -> Result<std::result::Result<(), Errno>> {
        let gone = || Ok(Err(Errno::NODEV));
        match self {
            Channel::Here(device) => device.upgrade().map_or_else(gone, |device| Ok(device.write(parts))),
            Channel::Guarded(guard) => guard.upgrade().map_or_else(gone, |guard| guard.tell(parts)),
        }
    }
}

impl Notifier {
    /// Drops cached attributes, and the pages of `length` bytes from `offset`.
    ///
    /// `offset` below 0: attributes only. `length` 0 or below: to the end. Live mappings lose their pages and fault
    /// them again; dirty ones are written back first.
    pub fn invalidate_inode(&self, node: u64, offset: i64, length: i64) -> Result<bool> {
        let body = abi::InvalidateInodeOut { ino: node, off: offset, len: length };
        let delays = self.delays.as_ref().filter(|_| offset >= 0);
        if let Some(delays) = delays {
            delays.wait(Kind::DROP, Moment::Before);
        }
        if let Some(size) = self.dropped.begin(node) {
            self.show_size(node, size);
        }
        let told = self.tell(notify::INVAL_INODE, "drop an inode's pages", &[body.as_bytes()]);
        match told {
            Ok(false) => self.dropped.forget(node),
            // What is answered next may have been asked meanwhile.
            _ => self.dropped.end(node),
        }
        if let Some(delays) = delays {
            delays.wait(Kind::DROP, Moment::After);
        }
        told
    }

    /// The kernel is about to be answered that a file has this size. It shall believe that also where it is told to drop something of the file
    /// since it asked, for which it ignores the answer: without it a read would end where the file ended before. Unlike the others this may be
    /// called by a handler: it waits for a moment at most.
    ///
    /// `may_be_longer`: programs here write the file, and so the kernel may know it to be longer than it was answered.
    ///
    /// `false`: it was answered since that the file has a newer size. This answer is not to be given: who asks again has a newer one.
    #[must_use]
    pub fn answering_size(&self, node: u64, size: Size, may_be_longer: bool) -> bool {
        let drops = match self.dropped.answer(node, size, may_be_longer) {
            Answering::IsOld => return false,
            Answering::Plain => return true,
            Answering::Show(drops) => drops,
            Answering::Renew(drops) => {
                let body = abi::InvalidateInodeOut { ino: node, off: -1, len: 0 };
                self.tell_for_a_moment(notify::INVAL_INODE, body.as_bytes(), 0);
                self.dropped.voided(node, size);
                drops + 1
            }
        };
        self.show_size(node, size.bytes);
        self.dropped.shown(node, drops);
        true
    }

    /// The kernel is about to be given an entry that leads to a file of this size.
    pub fn giving_entry(&self, node: u64, bytes: u64) {
        self.dropped.entry(node, bytes);
    }

    /// A read for pages is about to be answered that the file ends before them: a kernel that takes it for longer believes that, and ignores what it
    /// is answered meanwhile. Until what is returned is dropped, after the answer, sizes are shown as beside a drop. What the read found has to be
    /// found after this call: another answer may have been given before.
    #[must_use]
    pub fn answering_end(&self, node: u64) -> AnsweringEnd {
        AnsweringEnd::begin(&self.dropped, node)
    }

    /// This program has changed the size itself: what was answered is no more.
    pub fn size_changed(&self, node: u64) {
        self.dropped.forget_answer(node);
    }

    /// The kernel does not know the node any more.
    pub fn forgotten(&self, node: u64) {
        self.dropped.forget(node);
    }

    /// Attributes cannot be told unasked. But a kernel that is given bytes for pages behind the end takes the file for longer first, and
    /// only then looks at the bytes: there are none, and no page changes. A file that is as long already stays so.
    ///
    /// The first of these pages is in the kernel's cache then, without bytes, where it was not: it is read by itself. That is never the last one of
    /// several, which has to be read together with what lies behind it: where the kernel takes the file for longer than it is, the answer to that read
    /// says where it ends.
    fn show_size(&self, node: u64, size: u64) {
        if size == 0 {
            return;
        }
        let page = rustix::param::page_size() as u64;
        let offset = ((size - 1) / page * page).saturating_sub(page);
        let bytes = (size - offset) as u32;
        let body = abi::StoreOut { nodeid: node, offset, size: bytes, padding: 0 };
        self.tell_for_a_moment(notify::STORE, body.as_bytes(), bytes);
    }

    /// Tells what the kernel does without waiting for pages. `absent` bytes of the message lie nowhere.
    fn tell_for_a_moment(&self, code: i32, body: &[u8], absent: u32) {
        let len = (size_of::<OutHeader>() + body.len()) as u32 + absent;
        let header = OutHeader { len, error: code, unique: 0 };
        if let Channel::Guarded(guard) = &self.channel
            && let Some(guard) = guard.upgrade()
        {
            guard.tell_for_a_moment(&[header.as_bytes(), body].concat());
        }
    }

    /// Drops a cached name.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> Result<bool> {
        let body = abi::InvalidateEntryOut { parent, namelen: length(name)?, flags: 0 };
        self.tell(notify::INVAL_ENTRY, "drop a name", &[body.as_bytes(), name, b"\0"])
    }

    /// The name was removed by someone else: it goes, and programs that watch it are told.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<bool> {
        let body = abi::DeleteOut { parent, child, namelen: length(name)?, padding: 0 };
        self.tell(notify::DELETE, "delete a name", &[body.as_bytes(), name, b"\0"])
    }

    /// Puts bytes into the page cache, at most the session's largest request at once, and 8 KiB by a guard.
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> Result<bool> {
        let body = abi::StoreOut { nodeid: node, offset, size: length(data)?, padding: 0 };
        self.tell(notify::STORE, "store pages", &[body.as_bytes(), data])
    }

    /// Every cached name is looked up again before it is believed (Linux 6.16).
    pub fn increment_epoch(&self) -> Result<bool> {
        self.tell(notify::INC_EPOCH, "increment the epoch of names", &[])
    }

    /// The kernel forgets the node, unless a program has it open or mapped (Linux 6.18).
    pub fn prune(&self, node: u64) -> Result<bool> {
        let body = abi::PruneOut { count: 1, padding: 0, spare: 0 };
        self.tell(notify::PRUNE, "forget a node", &[body.as_bytes(), node.as_bytes()])
    }

    fn tell(&self, code: i32, doing: &str, parts: &[&[u8]]) -> Result<bool> {
        let bytes = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(bytes).map_err(|_| too_large(bytes))?;
        let header = OutHeader { len, error: code, unique: 0 };
        let mut list = vec![IoSlice::new(header.as_bytes())];
        list.extend(parts.iter().map(|part| IoSlice::new(part)));
        match self.channel.tell(&list)? {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => Ok(false),
            // A name that is kept because a file below it is open is believed no longer all the same.
            Err(Errno::NOTEMPTY | Errno::BUSY) if code == notify::DELETE => Ok(false),
            Err(errno) => Err(Error::from_io(&errno.into(), format_args!("the kernel would not {doing}"))),
        }
    }
}

fn length(bytes: &[u8]) -> Result<u32> {
    u32::try_from(bytes.len()).map_err(|_| too_large(bytes.len()))
}

fn too_large(bytes: usize) -> Error {
    Error::new(ErrorKind::TooLarge, format!("{bytes} bytes are too many for one message to the kernel"))
}
