//! What is known of the kernel's pages of one file: see [`crate::pages`].

use ramlace_base::ByteRange;
use ramlace_client::{RecallsMade, Turn};
use ramlace_wire::Layout;

use crate::in_flight::{HeldPages, InFlight, Kind, LeftOut};
use crate::reads::{Held, Reads};

/// A file that was read or written.
#[derive(Default)]
pub(crate) struct File {
    layout: Option<Layout>,
    /// The kernel may have pages with bytes of it.
    has_pages: bool,
    in_flight: InFlight,
    drops_begun: u64,
    drops_over: u64,
    /// The number of drops that were over when the last write through pages was answered.
    drops_met: u64,
    /// What was read since then, if it may have been after a drop.
    read: Reads,
    /// The recalls from other clients that write-backs have made, and that were not waited for yet.
    made: RecallsMade,
    /// How often all leases on one of its lanes have ended.
    leases_ended: u64,
}

impl File {
    /// A request begins. Returns how many drops had begun before.
    pub(crate) fn begin(&mut self, number: u64, kind: Kind, range: ByteRange) -> u64 {
        self.in_flight.begin(number, kind, range);
        self.drops_begun
    }

    /// A program's write through pages begins. A page that it fills is kept by the kernel, and so is one that was there
    /// before; another one has no bytes, neither before the write nor behind it. Returns whether pages of it may be kept.
    pub(crate) fn keeps(&mut self, range: ByteRange) -> bool {
        self.has_pages |= fills_a_page(range);
        self.has_pages
    }

    /// A request is over.
    pub(crate) fn end(&mut self, number: u64) {
        self.in_flight.end(number);
    }

    /// Whether requests of a kind that touch the same pages are under way, and began before this number.
    pub(crate) fn has(&self, kind: Kind, range: ByteRange, before: u64) -> bool {
        self.in_flight.has(kind, range, before)
    }

    /// Pages are being read, for this request of the kernel if programs may write the file.
    pub(crate) fn note_read(&mut self, layout: &Layout, range: ByteRange, unique: Option<u64>) {
        self.layout.get_or_insert(*layout);
        self.has_pages = true;
        if self.may_have_been_dropped() {
            let drops_over = (self.drops_over == self.drops_begun).then_some(self.drops_over);
            self.read.note(range, unique, drops_over);
        }
    }

    /// A write through pages is about to be answered. Returns whether these may have been dropped and read
    /// again since the last one was.
    pub(crate) fn wrote(&mut self, layout: &Layout, range: ByteRange) -> bool {
        self.layout.get_or_insert(*layout);
        let suspect = self.is_suspect(range);
        if !suspect {
            self.write_answered();
        }
        suspect
    }

    /// Whether the kernel holds the last page of a write: see [`Reads::hold`].
    pub(crate) fn hold(&self, range: ByteRange, unique: u64, drops_begun: u64) -> Held {
        self.read.hold(range, unique, drops_begun)
    }

    /// The bytes of a write-back that are to be written: without those that calls are writing where the page
    /// may be older.
    pub(crate) fn leave_out(&mut self, offset: u64, bytes: &[u8]) -> Vec<ByteRange> {
        let File { in_flight, drops_begun, drops_met, read, .. } = self;
        let is_suspect = |part| drops_begun != drops_met && read.meet(part);
        in_flight.leave_out(offset, bytes, is_suspect)
    }

    /// A write has written nothing from `end` on: returns what was left out for it there.
    pub(crate) fn fail(&mut self, number: u64, end: u64) -> Vec<LeftOut> {
        self.in_flight.fail(number, end)
    }

    /// That was written.
    pub(crate) fn left_out_is_written(&mut self, number: u64) {
        self.in_flight.left_out_is_written(number);
    }

    /// What requests under way may hold of these pages.
    pub(crate) fn held(&self, parts: &[ByteRange]) -> HeldPages {
        let locked = parts.iter().flat_map(|part| self.in_flight.held(*part)).collect();
        HeldPages { locked, unsent: self.unsent(parts), is_cut: self.in_flight.is_cut() }
    }

    /// The parts of these pages that are locked for reads that are not sent yet.
    pub(crate) fn unsent(&self, parts: &[ByteRange]) -> Vec<ByteRange> {
        parts.iter().flat_map(|part| self.in_flight.unsent(*part)).collect()
    }

    /// A read waits for its turn to be sent, or its turn has come.
    pub(crate) fn note_turn(&mut self, number: u64, turn: Turn) {
        match turn {
            Turn::Waits => self.in_flight.note_unsent(number),
            Turn::Comes => self.in_flight.note_sent(number),
        }
    }

    /// The parts that are not just being read.
    pub(crate) fn unread(&self) -> Vec<ByteRange> {
        self.in_flight.unread()
    }

    /// A write through pages is answered.
    pub(crate) fn write_answered(&mut self) {
        self.drops_met = self.drops_over;
        self.read.clear();
    }

    pub(crate) fn drop_begins(&mut self) {
        self.drops_begun += 1;
    }

    pub(crate) fn drop_is_over(&mut self) {
        // The kernel may have forgotten the file in between.
        self.drops_over = (self.drops_over + 1).min(self.drops_begun);
    }

    /// A drop is over that does not count.
    pub(crate) fn drop_was_not(&mut self) {
        self.drops_begun = self.drops_begun.saturating_sub(1).max(self.drops_over);
    }

    pub(crate) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    pub(crate) fn note_leases_ended(&mut self) {
        self.leases_ended += 1;
    }

    pub(crate) fn leases_ended(&self) -> u64 {
        self.leases_ended
    }

    /// Recalls that were not waited for yet.
    pub(crate) fn made(&mut self) -> &mut RecallsMade {
        &mut self.made
    }

    /// The kernel has read and written nothing of it, and is not about to.
    pub(crate) fn is_blank(&self) -> bool {
        let counts = [self.drops_begun, self.drops_over, self.leases_ended];
        self.layout.is_none()
            && !self.has_pages
            && self.in_flight.is_empty()
            && self.made.is_empty()
            && counts == [0; 3]
    }

    /// Whether a drop has begun since the last write through pages was answered, or was going on then.
    fn may_have_been_dropped(&self) -> bool {
        self.drops_begun != self.drops_met
    }

    /// Whether these pages may have been dropped and read again since the last write through pages was
    /// answered.
    fn is_suspect(&self, range: ByteRange) -> bool {
        self.may_have_been_dropped() && self.read.meet(range)
    }
}

fn fills_a_page(range: ByteRange) -> bool {
    let page = rustix::param::page_size() as u64;
    range.start.next_multiple_of(page).saturating_add(page) <= range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 114.3
    #[test]
    fn what_fills_no_page_of_a_file_without_pages_is_kept_nowhere() {
        let range = |start, end| ByteRange { start, end };
        let mut file = File::default();
        assert!(!file.keeps(range(0, 4095)) && !file.keeps(range(1, 8191)) && !file.keeps(range(4095, 4097)));
        assert!(file.is_blank());
        assert!(file.keeps(range(1, 8192)), "the second page");
        assert!(file.keeps(range(0, 1)) && !file.is_blank(), "it may be in one that is there");
        assert!(File::default().keeps(range(0, 4096)));
    }
}
