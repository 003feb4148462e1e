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
//! A program that can only write ([`crate::handles::Writes::Directly`]) does so without pages: the kernel has none of them
//! locked and the bytes in none, drops those that it has before it sends the write, and again behind the answer. A page
//! that is read in between, and stored into, would be written back with the bytes of before. So write-backs leave such a
//! call's bytes out always, and it is answered when what was read beside it is dropped.
//!
//! The kernel also drops pages by itself, after an open that found another version ([`crate::versions`]), and may do so
//! late: when a later write has been copied into one. Such a drop counts as under way until the descriptor is used
//! ([`DropByOpen`]), and not at all if no other descriptor of this mount may write the file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{ByteRange, InodeId};
use ramlace_client::RecallsMade;
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
    /// Of a direct write: requests with smaller numbers may have read older bytes.
    direct_before: Option<u64>,
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
            file.note_read(layout, range, begun.number, unique);
            begun
        });
        self.request(inode, begun)
    }

    /// A truncation to any size begins: until it is answered the kernel writes back no page of the file.
    pub(crate) fn begin_cut(self: &Arc<Pages>, inode: InodeId) -> Request {
        let begun = self.change(inode, |file| self.begin(file, Kind::Cut, WHOLE));
        self.request(inode, begun)
    }

    /// A program's write through pages begins. Waits until write-backs of the same pages that are in flight
    /// are done; these wait for no other client. Also returns whether the kernel may keep pages of the write.
    pub(crate) fn begin_through(self: &Arc<Pages>, inode: InodeId, range: ByteRange) -> (Request, bool) {
        let begin = |file: &mut File| {
            let begun = self.begin(file, Kind::Through, range);
            (begun, file.keeps(begun.number, range))
        };
        let waits = |file: &File, (begun, _): &(Begun, bool)| file.has(Kind::Back, range, begun.number);
        let (begun, keeps) = self.change_after(inode, begin, waits, |_, begun| begun);
        (self.request(inode, begun), keeps)
    }

    /// A program's direct write begins. Waits as a write through pages does.
    pub(crate) fn begin_directly(self: &Arc<Pages>, inode: InodeId, range: ByteRange) -> Request {
        let begin = |file: &mut File| {
            let number = self.next_number();
            Begun { number, drops_begun: file.begin_directly(number, range) }
        };
        let waits = |file: &File, begun: &Begun| file.has(Kind::Back, range, begun.number);
        let begun = self.change_after(inode, begin, waits, |_, begun| begun);
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
        let number = self.next_number();
        Begun { number, drops_begun: file.begin(number, kind, range) }
    }

    fn next_number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
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
            let held = file.hold(range, unique, request.drops_begun);
            Some(Suspect { range, held, direct_before: None })
        })
    }

    /// The same for a direct write: nothing is held for it, and the kernel drops its pages in any case, but too late.
    pub(crate) fn wrote_directly(&self, inode: InodeId, range: ByteRange) -> Option<Suspect> {
        let begin = |file: &mut File| {
            let before = self.requests.load(Ordering::Relaxed) + 1;
            file.has_pages_beside(range).then_some(before)
        };
        let waits = |file: &File, before: &Option<u64>| {
            before.is_some_and(|before| file.has(Kind::Read, range, before))
        };
        self.change_after(inode, begin, waits, |_, before| {
            before.map(|before| Suspect { range, held: Held::No, direct_before: Some(before) })
        })
    }

    /// A write is answered now that its suspect pages were dropped.
    pub(crate) fn write_answered(&self, inode: InodeId, suspect: Suspect) {
        self.find(inode, |file| match suspect.direct_before {
            Some(number) => file.dropped_for_direct(suspect.range, number),
            None => file.write_answered(),
        });
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
        let layout = self.read(inode, File::layout).flatten();
        match (lane, layout) {
            (None, _) => vec![range],
            (Some(lane), Some(layout)) => parts(&layout, lane, range),
            (Some(_), None) => vec![WHOLE],
        }
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
mod tests {
    use ramlace_base::{ServerId, Slot};

    use super::*;

    const FILE: InodeId = InodeId(7);
    const PAGE: u64 = 4096;

    fn pages() -> Arc<Pages> {
        Arc::new(Pages::new(&Arc::default()))
    }

    fn forget(pages: &Pages) {
        pages.nodes.tell(FILE);
        pages.nodes.forget(FILE, 1);
    }

    fn layout(width: u16) -> Layout {
        Layout {
            stripe_unit: 16 * PAGE,
            width,
            base_slot: Slot(3),
            stride: 1,
            copies: 1,
            created: ramlace_base::Epoch(1),
        }
    }

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn page(at: u64) -> ByteRange {
        range(at * PAGE, (at + 1) * PAGE)
    }

    /// Writes a page; returns whether it has to be dropped.
    fn write(pages: &Arc<Pages>, at: u64) -> bool {
        let request = pages.begin_through(FILE, page(at)).0;
        let suspect = pages.wrote_through(FILE, &layout(1), page(at), (1, &request)).is_some();
        if suspect {
            pages.find(FILE, File::write_answered);
        }
        suspect
    }

    fn read(pages: &Arc<Pages>, at: u64) {
        drop(pages.begin_read(FILE, &layout(1), page(at), Some(1)));
    }

    fn back(pages: &Arc<Pages>, at: u64) -> (Request, Vec<ByteRange>) {
        pages.begin_back(FILE, at * PAGE, &[7; PAGE as usize])
    }

    fn dropped(pages: &Pages) {
        pages.drop_begins(FILE);
        pages.drop_is_over(FILE);
    }

    #[test]
    fn pages_that_were_dropped_and_read_again_before_a_write_are_suspect() {
        let pages = pages();
        read(&pages, 0);
        assert!(!write(&pages, 0), "nobody has dropped anything");
        dropped(&pages);
        assert!(!write(&pages, 0), "it was not read since");
        dropped(&pages);
        read(&pages, 0);
        assert!(!write(&pages, 1), "another page");
        assert!(!write(&pages, 0), "the program copied after the last answer");
        dropped(&pages);
        read(&pages, 0);
        assert!(write(&pages, 0));
        assert!(!write(&pages, 0));
        read(&pages, 0);
        assert!(!write(&pages, 0), "whoever is alone reads and writes in turns");
    }

    // SEMANTICS 116
    #[test]
    fn a_direct_write_is_answered_when_what_was_read_beside_it_is_dropped() {
        let pages = pages();
        let write = |at| {
            let request = pages.begin_directly(FILE, page(at));
            assert_eq!(pages.held(FILE, &[page(at)]), HeldPages::default());
            assert_eq!(back(&pages, at).1, [], "what is written back is older");
            let suspect = pages.wrote_directly(FILE, page(at));
            drop(request);
            suspect
        };
        drop(pages.begin_read(FILE, &layout(1), page(0), None));
        assert_eq!(write(0), None, "the kernel has dropped what it had before somebody could write");
        read(&pages, 0);
        let suspect = write(0).unwrap();
        assert_eq!((suspect.range, suspect.held), (page(0), Held::No));
        assert_eq!(write(1), None);
        assert!(write(0).is_some(), "it is still to be dropped");
        pages.write_answered(FILE, suspect);
        assert_eq!(write(0), None);
    }

    #[test]
    fn a_drop_that_was_going_on_when_the_last_write_was_answered_counts() {
        let pages = pages();
        read(&pages, 0);
        pages.drop_begins(FILE);
        assert!(!write(&pages, 0));
        pages.drop_is_over(FILE);
        read(&pages, 0);
        assert!(write(&pages, 0), "it may have taken the page after the program copied");
        // The write's own drop is over before its answer.
        pages.drop_begins(FILE);
        pages.drop_is_over(FILE);
        pages.find(FILE, File::write_answered);
        read(&pages, 0);
        assert!(!write(&pages, 0));
    }

    // SEMANTICS 116
    #[test]
    fn pages_are_suspect_until_the_drop_of_an_open_is_over_and_from_then_on_where_others_write() {
        let pages = pages();
        read(&pages, 0);
        let opened = pages.drop_by_open(FILE);
        assert!(!write(&pages, 0), "it was not read since");
        drop(opened);
        read(&pages, 0);
        assert!(write(&pages, 0), "the drop may have come behind the last answer");
        let opened = pages.drop_by_open(FILE);
        read(&pages, 0);
        opened.end_unseen();
        assert!(!write(&pages, 0), "nobody wrote meanwhile");
        forget(&pages);
        pages.drop_by_open(FILE).end_unseen();
        assert!(pages.all().is_empty(), "nothing to remember");
    }

    #[test]
    fn a_range_of_a_lane_is_dropped_as_parts_of_the_file() {
        let unit = 16 * PAGE;
        assert_eq!(parts(&layout(1), 0, page(5)), [page(5)]);
        assert_eq!(parts(&layout(1), 0, WHOLE), [WHOLE]);
        let striped = layout(3);
        assert_eq!(parts(&striped, 1, page(1)), [range(unit + PAGE, unit + 2 * PAGE)]);
        let two = [range(2 * unit - PAGE, 2 * unit), range(4 * unit, 4 * unit + PAGE)];
        assert_eq!(parts(&striped, 1, range(unit - PAGE, unit + PAGE)), two);
        assert_eq!(parts(&striped, 2, WHOLE), [range(2 * unit, u64::MAX)]);
        assert_eq!(parts(&striped, 0, range(0, 17 * unit)), [range(0, 49 * unit)]);
        assert_eq!(parts(&striped, 0, range(unit, 17 * unit)).len(), 16);
    }

    #[test]
    fn a_range_of_a_lane_is_parts_of_the_file_as_far_as_any_file_may_reach() {
        let most = ramlace_base::limits::FILE_BYTES_MAX;
        for width in [1, 2, ramlace_base::limits::WIDTH_LANES_MAX] {
            let layout = layout(width);
            for lane in [0, 1, width - 1, ramlace_base::limits::WIDTH_LANES_MAX - 1] {
                for (start, end) in [(0, 0), (most, most), (most - 1, most), (most, u64::MAX), (0, u64::MAX)]
                {
                    let parts = parts(&layout, lane, range(start, end));
                    assert!(parts.iter().all(|part| part.start <= part.end), "{width} {lane} {start} {end}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_known_is_dropped_whole() {
        let pages = pages();
        assert_eq!(pages.parts(FILE, Some(2), page(1)), [WHOLE]);
        assert_eq!(pages.parts(FILE, None, page(0)), [page(0)]);
        drop(pages.begin_read(FILE, &layout(2), page(0), Some(1)));
        assert_eq!(pages.parts(FILE, Some(1), page(0)), [page(16)]);
        assert_eq!(pages.all(), [FILE]);
        forget(&pages);
        assert_eq!(pages.parts(FILE, Some(1), page(0)), [WHOLE]);
    }

    #[test]
    fn writes_and_truncations_hold_their_pages_until_they_are_over() {
        let pages = pages();
        assert_eq!(pages.held(FILE, &[WHOLE]), HeldPages::default());
        let write = pages.begin_through(FILE, page(1)).0;
        let locked = || -> Vec<u64> {
            (0..4).filter(|at| !pages.held(FILE, &[page(*at)]).locked.is_empty()).collect()
        };
        assert_eq!(locked(), [1]);
        let read = pages.begin_read(FILE, &layout(1), range(0, 4 * PAGE), Some(1));
        assert!(locked().is_empty(), "nothing is read that is locked");
        drop(read);
        let cut = pages.begin_cut(FILE);
        assert_eq!(locked(), [1]);
        assert!(pages.held(FILE, &[page(3)]).is_cut, "whatever lies before the new end, too");
        drop((write, cut));
        assert_eq!(pages.held(FILE, &[WHOLE]), HeldPages::default());
    }

    #[test]
    fn what_is_written_back_leaves_out_what_a_call_writes_where_the_page_may_be_older() {
        let pages = pages();
        let middle = range(100, 200);
        let write = pages.begin_through(FILE, middle).0;
        assert_eq!(back(&pages, 0).1, [page(0)], "the call's bytes are in the page");
        dropped(&pages);
        read(&pages, 0);
        assert_eq!(back(&pages, 0).1, [range(0, 100), range(200, PAGE)]);
        assert_eq!(back(&pages, 1).1, [page(1)]);
        let suspect = Suspect { range: middle, held: Held::Perhaps, direct_before: None };
        assert_eq!(
            pages.wrote_through(FILE, &layout(1), middle, (2, &write)),
            Some(suspect),
            "the page was read before"
        );
        drop(write);
        assert_eq!(back(&pages, 0).1, [page(0)]);
    }

    // SEMANTICS 116
    #[test]
    fn what_was_left_out_for_a_call_that_fails_is_written_after_all() {
        let pages = pages();
        let write = pages.begin_through(FILE, range(100, 200)).0;
        dropped(&pages);
        read(&pages, 0);
        drop(back(&pages, 0));
        drop(pages.begin_back(FILE, 0, &[8; PAGE as usize]));
        let left = pages.fail_through(FILE, &write, 150);
        assert_eq!(left, [LeftOut { offset: 150, bytes: vec![8; 50] }], "what the page had last");
        let other = pages.clone();
        let next = std::thread::spawn(move || back(&other, 0).1);
        while pages.nodes.waiting(FILE) == 0 {
            std::thread::yield_now();
        }
        assert!(!next.is_finished(), "newer stores come behind it");
        assert_eq!(back(&pages, 1).1, [page(1)]);
        drop(write);
        assert_eq!(next.join().unwrap(), [page(0)]);
        assert_eq!(pages.fail_through(FILE, &pages.begin_through(FILE, page(0)).0, 0), []);
    }

    // SEMANTICS 128.5
    #[test]
    fn a_write_that_failed_in_part_holds_its_pages_and_no_write_backs() {
        let pages = pages();
        let write = pages.begin_through(FILE, range(100, 2 * PAGE)).0;
        dropped(&pages);
        read(&pages, 0);
        read(&pages, 1);
        assert_eq!(pages.fail_through(FILE, &write, 150), []);
        let other = pages.clone();
        let next = std::thread::spawn(move || back(&other, 1).1);
        while pages.nodes.waiting(FILE) == 0 {
            std::thread::yield_now();
        }
        pages.left_out_is_written(FILE, &write);
        assert_eq!(next.join().unwrap(), [page(1)], "it was not written by the call");
        assert_eq!(back(&pages, 0).1, [range(0, 100), range(150, PAGE)], "the call has written the rest");
        assert!([page(0), page(1)].iter().all(|page| !pages.held(FILE, &[*page]).locked.is_empty()));
        drop(write);
        assert_eq!(pages.held(FILE, &[WHOLE]), HeldPages::default());
    }

    #[test]
    fn a_write_waits_for_what_is_written_back_of_its_pages_already() {
        let pages = pages();
        let (back, elsewhere) = (back(&pages, 0).0, back(&pages, 9).0);
        let writer = pages.clone();
        let write = std::thread::spawn(move || drop(writer.begin_through(FILE, range(5, 6))));
        while pages.nodes.waiting(FILE) == 0 {
            std::thread::yield_now();
        }
        drop(elsewhere);
        assert!(!write.is_finished());
        drop(back);
        write.join().unwrap();
    }

    #[test]
    fn recalls_that_nobody_has_waited_for_stay() {
        let pages = pages();
        let none = RecallsMade::default();
        pages.made(FILE, &none);
        assert!(pages.all().is_empty(), "nothing to remember");
        let first: RecallsMade = [(ServerId(0), 1)].into_iter().collect();
        let second: RecallsMade = [(ServerId(0), 1), (ServerId(1), 4)].into_iter().collect();
        pages.made(FILE, &first);
        assert_eq!(pages.unpublished(FILE), first);
        pages.made(FILE, &second);
        pages.published(FILE, &first);
        assert_eq!(pages.unpublished(FILE), second, "there are newer ones");
        pages.published(FILE, &second);
        assert_eq!(pages.unpublished(FILE), none);
    }
}
