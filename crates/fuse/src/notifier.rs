//! Notifications: what the file system sends the kernel without being asked. They drop attributes, pages and names, and
//! show the size of a file.

use std::io::IoSlice;
use std::sync::{Arc, Weak};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{self, OutHeader, notify};
use crate::delays::{Delays, Kind, Moment};
use crate::device::Device;
use crate::dropped::{Answering, AnsweringEnd, AnsweringSet, Dropped, Size, SizeAsked};
use crate::guard::Guard;

/// Notifies the kernel of what to forget. Its methods answer `false` when the kernel did not know the node or the name,
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
    /// By the calling thread: if this process is killed meanwhile, it may not end.
    Here(Weak<Device>),
    /// By another process ([`crate::guard`]).
    Guarded(Weak<Guard>),
}

impl Channel {
    /// Writes a notification; returns the result of the write.
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

    /// To be called before a reply that contains this size of a file. Where the kernel may ignore the reply, it is shown the size as well
    /// ([`Dropped`]): otherwise a read would end where the file ended before. Unlike the other notifications this may be sent by the handler of
    /// a request: it waits for a short time at most.
    ///
    /// `may_be_longer`: programs here write the file, so the kernel may have a larger size than any reply contained. `asked`: what
    /// [`Notifier::asked_for_size`] has returned when the request was read.
    ///
    /// Returns `false` if a reply with a newer size was sent in between: then this one must not be sent, and the caller asks for the size again.
    #[must_use]
    pub fn answering_size(&self, node: u64, size: Size, may_be_longer: bool, asked: SizeAsked) -> bool {
        let drops = match self.dropped.answer(node, size, may_be_longer, asked) {
            Answering::IsOld => return false,
            Answering::Plain => return true,
            Answering::Show(drops) => drops,
            Answering::Renew(drops) => {
                let body = abi::InvalidateInodeOut { ino: node, off: -1, len: 0 };
                if !self.tell_for_a_moment(notify::INVAL_INODE, node, body.as_bytes(), 0) {
                    return true;
                }
                self.dropped.voided(node, size);
                drops + 1
            }
        };
        // Else the next answer shows it.
        if self.show_size(node, size.bytes) {
            self.dropped.shown(node, drops);
        }
        true
    }

    /// To be called when a request was read whose answer contains the size of a file. `thread`: which asks; 0 if it is not known.
    #[must_use]
    pub fn asked_for_size(&self, node: u64, thread: u32) -> SizeAsked {
        self.dropped.asks(node, thread)
    }

    /// To be called before a reply to SETATTR or LINK, or to CREATE of a file that was there before, with this size; the result is to be dropped after
    /// the reply. The kernel takes the size in whatever it was answered since it sent the request, so answers with a larger one wait until `thread`,
    /// to which this is the reply, has taken it in.
    ///
    /// `None`: a reply with a newer size was sent in between: then this one must not be sent, and the caller asks for the size again. That is
    /// never so where the request has set the size (`is_cut`).
    #[must_use]
    pub fn answering_set(&self, node: u64, size: Size, is_cut: bool, thread: u32) -> Option<AnsweringSet> {
        self.dropped.begin_setting(node, size, is_cut, thread)
    }

    /// To be called before a reply with an entry that leads to a file of this size.
    pub fn giving_entry(&self, node: u64, bytes: u64) {
        self.dropped.entry(node, bytes);
    }

    /// To be called before a read that may find that the file ends before the requested pages; the result is to be dropped after the reply. The
    /// kernel believes such a reply, and ignores other replies of that time. So until the result is dropped, sizes are shown as if something were
    /// being dropped. The read itself must come after this call, since another reply may have been sent before.
    #[must_use]
    pub fn answering_end(&self, node: u64) -> AnsweringEnd {
        AnsweringEnd::begin(&self.dropped, node)
    }

    /// This mount has changed the size itself: earlier replies with a size do not count any more.
    pub fn size_changed(&self, node: u64) {
        self.dropped.forget_answer(node);
    }

    /// The kernel does not know the node any more.
    pub fn forgotten(&self, node: u64) {
        self.dropped.forget(node);
    }

    /// Makes the kernel take a file for at least this long. There is no notification for attributes. But a STORE for pages behind the end raises
    /// the file's size before the kernel copies the bytes; the message contains none, so the copy fails and no page changes. A file that is as
    /// long already stays as it is.
    ///
    /// The STORE names the last page but one: where that was not cached, it is cached afterwards without content, and is read by itself. The last
    /// page has to be read together with what lies behind it: where the kernel takes the file for longer than it is, the reply to that read says
    /// where it ends.
    ///
    /// `false`: so many others of this file wait for that page that none was sent.
    fn show_size(&self, node: u64, size: u64) -> bool {
        if size == 0 {
            return true;
        }
        let page = rustix::param::page_size() as u64;
        let offset = ((size - 1) / page * page).saturating_sub(page);
        let bytes = (size - offset) as u32;
        let body = abi::StoreOut { nodeid: node, offset, size: bytes, padding: 0 };
        self.tell_for_a_moment(notify::STORE, node, body.as_bytes(), bytes)
    }

    /// Sends a notification about a node, and does not wait when the kernel waits for pages. The last `absent` bytes of the message are not
    /// readable memory. `false`: it was not sent ([`Guard::tell_for_a_moment`]).
    fn tell_for_a_moment(&self, code: i32, node: u64, body: &[u8], absent: u32) -> bool {
        let len = (size_of::<OutHeader>() + body.len()) as u32 + absent;
        let header = OutHeader { len, error: code, unique: 0 };
        match &self.channel {
            Channel::Guarded(guard) => guard
                .upgrade()
                .is_none_or(|guard| guard.tell_for_a_moment(node, &[header.as_bytes(), body].concat())),
            Channel::Here(_) => true,
        }
    }

    /// Drops a cached name.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> Result<bool> {
        let body = abi::InvalidateEntryOut { parent, namelen: length(name)?, flags: 0 };
        self.tell(notify::INVAL_ENTRY, "drop a name", &[body.as_bytes(), name, b"\0"])
    }

    /// The name was removed by someone else: it goes, and programs that watch it are notified.
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
