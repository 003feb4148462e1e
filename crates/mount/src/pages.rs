//! What is known of the kernel's page cache of each file: which pages may be older than a write.
//!
//! When a program writes, the kernel copies the bytes into pages that are up to date, unlocks these, and only
//! then sends the write to the mount. If such a page is dropped and read again in between, the old bytes stay
//! in it, and the write is never seen here. So after a write through pages these are dropped once more if
//! they were read during a drop or after one (they are *suspect*). Nothing else can have brought old bytes: a
//! program's writes to one file come one at a time, and each copies after the answer to the last one.
//!
//! While such a write is in flight and its pages are suspect, write-backs of them leave its bytes out: the
//! page may have the old ones there, which look like stores. The write itself brings these bytes; if it
//! fails, what was left out is written after all, before the program gets the error. A write-back that began
//! before the write comes first. A store by a mapping of this mount to the very bytes of such a write counts as earlier
//! than it.
//!
//! Such a write is answered when its suspect pages are gone, since they would be written back with the old bytes, as if
//! they were stores. But it may hold one of them itself: one that it has not filled. A page that a later request
//! reads is held by nobody else. If the read came first, the write holds its last page only if that was dropped in
//! between: by this mount, and then it waits for a short time only; or by the kernel to get memory, which is so rare that
//! it waits for longer ([`crate::recalls`] has the times).
//!
//! What programs write past the pages ([`crate::handles::Writes::Beside`]) is not known here: servers recall the pages of it,
//! as if another machine had written it.
//!
//! The kernel also drops pages by itself, after an open that found another version ([`crate::versions`]), and may do so
//! late: when a later write has been copied into one. Such a drop counts as under way until the descriptor is used
//! ([`DropByOpen`]), and not at all if no other descriptor of this mount may write the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{ByteRange, InodeId};
use ramlace_client::{RecallsMade, Turn};
use ramlace_wire::Layout;

use crate::in_flight::{HeldPages, Kind, LeftOut};
use crate::nodes::pages::File;
use crate::nodes::{Nodes, Parts};
use crate::reads::Held;

/// A range of a lane is dropped exactly if it consists of at most so many parts of the file, and otherwise as
/// one range.
const PARTS_MAX: u64 = 16;

/// All bytes of a file.
pub(crate) const WHOLE: ByteRange = ByteRange { start: 0, end: u64::MAX };

/// The files of which the kernel may have pages: those that it knows and that were read or written.
pub(crate) struct Pages {
    nodes: Arc<Nodes>,
    /// The number of requests so far. Those of one file have theirs in order, for they get them under its
    /// node's lock.
    requests: AtomicU64,
}

/// The kernel may have older bytes in pages of this write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) range: ByteRange,
    /// Whether the kernel holds a lock on the last of these pages until the write is answered.
    pub(crate) held: Held,
}

/// A drop under way in the kernel, until this is dropped.
pub(crate) struct DropByOpen {
    pages: Arc<Pages>,
    inode: InodeId,
    is_void: bool,
}

impl DropByOpen {
    /// The drop is over, and no write can have begun before it that is still unanswered: it does not count.
    pub(crate) fn end_unseen(mut self) {
        self.is_void = true;
    }
}

impl Drop for DropByOpen {
    fn drop(&mut self) {
        if !self.is_void {
            return self.pages.drop_is_over(self.inode);
        }
        self.pages.nodes.find(self.inode, |node| {
            if let Some(file) = &mut node.pages {
                file.drop_was_not();
                node.pages.take_if(|file| file.is_blank());
            }
        });
    }
}

/// A request that is under way, until it is dropped.
pub(crate) struct Request {
    pages: Arc<Pages>,
    inode: InodeId,
    number: u64,
    /// The number of drops of the file that had begun before.
    drops_begun: u64,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.pages.find_and_wake(self.inode, |file| file.end(self.number));
    }
}

impl Pages {
    pub(crate) fn new(nodes: &Arc<Nodes>) -> Pages {
        Pages { nodes: nodes.clone(), requests: AtomicU64::new(0) }
    }

    /// Bytes are about to be read into pages, for a request of the kernel (`unique` is its number, if
    /// programs may write the file).
    pub(crate) fn begin_read(
        self: &Arc<Pages>,
        inode: InodeId,
        layout: &Layout,
        range: ByteRange,
        unique: Option<u64>,
    ) -> Request {
        let begun = self.change(inode, |file| {
            let begun = self.begin(file, Kind::Read, range);
            file.note_read(layout, range, unique);
            begun
        });
        self.request(inode, begun)
    }

    /// A read waits for its turn to be sent to a server, or its turn has come.
    pub(crate) fn note_turn(&self, read: &Request, turn: Turn) {
        self.find_and_wake(read.inode, |file| file.note_turn(read.number, turn));
    }

    /// The parts of these pages that are locked for reads that are not sent yet: whatever was recalled by now, nothing of
    /// before is in them, now or later.
    pub(crate) fn unsent(&self, inode: InodeId, parts: &[ByteRange]) -> Vec<ByteRange> {
        self.read(inode, |file| file.unsent(parts)).unwrap_or_default()
    }

    /// A truncation to any size begins: until it is answered the kernel writes back no page of the file.
    pub(crate) fn begin_cut(self: &Arc<Pages>, inode: InodeId) -> Request {
        let begun = self.change(inode, |file| self.begin(file, Kind::Cut, WHOLE));
        self.request(inode, begun)
    }

    /// A program's write through pages begins. Waits until write-backs of the same pages that are in flight
    /// are done; these wait for no other client. Also returns whether the kernel may keep pages of the write.
    pub(crate) fn begin_through(self: &Arc<Pages>, inode: InodeId, range: ByteRange) -> (Request, bool) {
        let begin = |file: &mut File| (self.begin(file, Kind::Through, range), file.keeps(range));
        let waits = |file: &File, (begun, _): &(Begun, bool)| file.has(Kind::Back, range, begun.number);
        let (begun, keeps) = self.change_after(inode, begin, waits, |_, begun| begun);
        (self.request(inode, begun), keeps)
    }

    /// A program's write through pages has come, and something else is done first. Waits for nothing.
    pub(crate) fn write_waits(self: &Arc<Pages>, inode: InodeId, range: ByteRange) -> Request {
        let begun = self.change(inode, |file| self.begin(file, Kind::Waits, range));
        self.request(inode, begun)
    }

    /// These bytes of pages are about to be written back; returns which of them are to be written.
    pub(crate) fn begin_back(
        self: &Arc<Pages>,
        inode: InodeId,
        offset: u64,
        bytes: &[u8],
    ) -> (Request, Vec<ByteRange>) {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        let begin = |file: &mut File| self.begin(file, Kind::Back, range);
        let waits = |file: &File, begun: &Begun| file.has(Kind::LeftOut, range, begun.number);
        let leave_out = |node: &mut Parts, begun: Begun| {
            (begun, node.pages.get_or_insert_default().leave_out(offset, bytes))
        };
        let (begun, parts) = self.change_after(inode, begin, waits, leave_out);
        (self.request(inode, begun), parts)
    }

    /// A program's write through pages has failed, and has written nothing from `end` on. Returns what
    /// write-backs have left out there, to be written now. Other write-backs of the same pages wait until
    /// [`Pages::left_out_is_written`].
    pub(crate) fn fail_through(&self, inode: InodeId, request: &Request, end: u64) -> Vec<LeftOut> {
        self.find(inode, |file| file.fail(request.number, end)).unwrap_or_default()
    }

    /// That was written, or could not be: from now on it is not waited for, although the write is still to be
    /// answered.
    pub(crate) fn left_out_is_written(&self, inode: InodeId, request: &Request) {
        self.find_and_wake(inode, |file| file.left_out_is_written(request.number));
    }

    fn begin(&self, file: &mut File, kind: Kind, range: ByteRange) -> Begun {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        Begun { number, drops_begun: file.begin(number, kind, range) }
    }

    fn request(self: &Arc<Pages>, inode: InodeId, begun: Begun) -> Request {
        let Begun { number, drops_begun } = begun;
        Request { pages: self.clone(), inode, number, drops_begun }
    }

    /// What requests under way may hold of these pages until they are answered.
    pub(crate) fn held(&self, inode: InodeId, parts: &[ByteRange]) -> HeldPages {
        self.read(inode, |file| file.held(parts)).unwrap_or_default()
    }

    /// A write through pages is about to be answered: returns the pages to be dropped, if there may be older
    /// bytes in them. Waits until all reads of these that are under way are done.
    pub(crate) fn wrote_through(
        &self,
        inode: InodeId,
        layout: &Layout,
        range: ByteRange,
        (unique, request): (u64, &Request),
    ) -> Option<Suspect> {
        let begin = |file: &mut File| {
            let before = self.requests.load(Ordering::Relaxed) + 1;
            file.wrote(layout, range).then_some(before)
        };
        let waits = |file: &File, before: &Option<u64>| {
            before.is_some_and(|before| file.has(Kind::Read, range, before))
        };
        self.change_after(inode, begin, waits, |node, suspect| {
            let file = node.pages.as_deref().filter(|_| suspect.is_some())?;
            Some(Suspect { range, held: file.hold(range, unique, request.drops_begun) })
        })
    }

    /// A write through pages is answered now that its pages were dropped.
    pub(crate) fn write_answered(&self, inode: InodeId) {
        self.find(inode, File::write_answered);
    }

    pub(crate) fn drop_begins(&self, inode: InodeId) {
        self.find(inode, File::drop_begins);
    }

    /// The kernel drops a file's pages by itself between the reply to an open and the program's getting the
    /// descriptor.
    pub(crate) fn drop_by_open(self: &Arc<Pages>, inode: InodeId) -> DropByOpen {
        self.change(inode, File::drop_begins);
        DropByOpen { pages: self.clone(), inode, is_void: false }
    }

    pub(crate) fn drop_is_over(&self, inode: InodeId) {
        self.find(inode, File::drop_is_over);
    }

    /// The parts of the file that make up a range of one of its lanes; the whole file if its layout is not
    /// known.
    pub(crate) fn parts(&self, inode: InodeId, lane: Option<u16>, range: ByteRange) -> Vec<ByteRange> {
        match (lane, self.layout(inode)) {
            (None, _) => vec![range],
            (Some(lane), Some(layout)) => parts(&layout, lane, range),
            (Some(_), None) => vec![WHOLE],
        }
    }

    /// The file's layout, if it is known.
    pub(crate) fn layout(&self, inode: InodeId) -> Option<Layout> {
        self.read(inode, File::layout).flatten()
    }

    /// The parts of a file that are not just being read: the kernel has pages locked that it reads, and a drop of all pages
    /// waits for each.
    pub(crate) fn unread(&self, inode: InodeId) -> Vec<ByteRange> {
        self.read(inode, File::unread).unwrap_or_default()
    }

    /// All leases on a lane have ended. Its server may no longer wait for this mount, or not know its leases:
    /// what a read under way got from it must not be shown.
    pub(crate) fn note_leases_ended(&self, inode: InodeId) {
        self.find(inode, File::note_leases_ended);
    }

    /// How often all leases on a lane of a file have ended.
    pub(crate) fn leases_ended(&self, inode: InodeId) -> u64 {
        self.read(inode, File::leases_ended).unwrap_or(0)
    }

    /// Write-backs have made recalls.
    pub(crate) fn made(&self, inode: InodeId, made: &RecallsMade) {
        if !made.is_empty() {
            self.change(inode, |file| file.made().add(made));
        }
    }

    /// The recalls that were not waited for yet.
    pub(crate) fn unpublished(&self, inode: InodeId) -> RecallsMade {
        self.find(inode, |file| file.made().clone()).unwrap_or_default()
    }

    /// These recalls were waited for; if there are newer ones, all stay.
    pub(crate) fn published(&self, inode: InodeId, made: &RecallsMade) {
        self.find(inode, |file| {
            if file.made() == made {
                *file.made() = RecallsMade::default();
            }
        });
    }

    /// All files of which the kernel may have pages.
    pub(crate) fn all(&self) -> Vec<InodeId> {
        self.nodes.all(|node| node.pages.is_some())
    }

    fn read<T>(&self, inode: InodeId, read: impl FnOnce(&File) -> T) -> Option<T> {
        self.nodes.read(inode, |node| node.pages.as_deref().map(read)).flatten()
    }

    fn find<T>(&self, inode: InodeId, change: impl FnOnce(&mut File) -> T) -> Option<T> {
        self.nodes.find(inode, |node| node.pages.as_deref_mut().map(change)).flatten()
    }

    /// The same, for the end of something that is waited for.
    fn find_and_wake(&self, inode: InodeId, change: impl FnOnce(&mut File)) {
        self.nodes.find_and_wake(inode, |node| {
            if let Some(file) = &mut node.pages {
                change(file);
            }
        });
    }

    fn change<T>(&self, inode: InodeId, change: impl FnOnce(&mut File) -> T) -> T {
        self.nodes.change(inode, |node| change(node.pages.get_or_insert_default()))
    }

    /// The same, and once more when nothing is there any more that it `waits` for.
    fn change_after<A, T>(
        &self,
        inode: InodeId,
        begin: impl FnOnce(&mut File) -> A,
        waits: impl Fn(&File, &A) -> bool,
        change: impl FnMut(&mut Parts, A) -> T,
    ) -> T {
        let begin = |node: &mut Parts| begin(node.pages.get_or_insert_default());
        let waits = |node: &Parts, begun: &A| node.pages.as_deref().is_some_and(|file| waits(file, begun));
        self.nodes.change_after(inode, begin, waits, change)
    }
}

/// A request that has begun.
#[derive(Clone, Copy)]
struct Begun {
    number: u64,
    /// The number of drops of the file that had begun before.
    drops_begun: u64,
}

/// The parts of the file that make up a range of a lane.
fn parts(layout: &Layout, lane: u16, range: ByteRange) -> Vec<ByteRange> {
    if layout.width == 1 {
        return vec![range];
    }
    let unit = layout.stripe_unit;
    let at = |offset| ramlace_layout::file_offset(layout, lane, offset);
    let chunks = range.end.div_ceil(unit) - range.start / unit;
    if chunks > PARTS_MAX {
        let end = if range.end == u64::MAX { u64::MAX } else { at(range.end - 1).saturating_add(1) };
        return vec![ByteRange { start: at(range.start), end }];
    }
    let mut parts = Vec::with_capacity(chunks as usize);
    let mut start = range.start;
    while start < range.end {
        let end = range.end.min((start / unit + 1) * unit);
        parts.push(ByteRange { start: at(start), end: at(start).saturating_add(end - start) });
        start = end;
    }
    parts
}

#[cfg(test)]
mod tests;
