//! The requests of one file that are in flight and concern pages: which pages the kernel may hold locked for them,
//! and which of them have to wait for which.

use ramlace_base::ByteRange;

/// What a request does with its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Fills them: the kernel has them locked.
    Read,
    /// Writes them back, because programs have stored into them.
    Back,
    /// Writes them for a call of a program. The kernel may have them locked until it is answered.
    Through,
    /// Is such a call that has not begun: no thread handles it, or something else is asked first. Nothing waits for it.
    Waits,
    /// Such a call has failed, and what write-backs left out because of it is being written.
    LeftOut,
    /// That is written. The kernel may have the call's pages locked until it is answered.
    Failed,
    /// Truncates the file: the kernel writes back no page of it until this is answered, and so drops none
    /// that programs have stored into.
    Cut,
}

/// The requests of one file, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    requests: Vec<(u64, Kind, ByteRange)>,
    /// Reads that wait for their turn to be sent to a server, by their numbers.
    unsent: Vec<u64>,
    /// By call: what was left out of write-backs because of it, in order.
    left_out: Vec<(u64, LeftOut)>,
}

/// What requests under way keep of pages that are to be dropped, until they are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldPages {
    /// Those that the kernel may have locked for them, without bytes: nobody reads them.
    pub(crate) locked: Vec<ByteRange>,
    /// Those that are locked for reads that are not sent yet: nothing of before is in them, now or later.
    pub(crate) unsent: Vec<ByteRange>,
    /// The file is being truncated: the kernel drops no page that programs have stored into, wherever it lies.
    pub(crate) is_cut: bool,
}

/// Bytes that were left out of a write-back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

impl LeftOut {
    pub(crate) fn range(&self) -> ByteRange {
        ByteRange { start: self.offset, end: self.offset + self.bytes.len() as u64 }
    }
}

impl InFlight {
    pub(crate) fn begin(&mut self, number: u64, kind: Kind, range: ByteRange) {
        self.requests.push((number, kind, range));
    }

    pub(crate) fn end(&mut self, number: u64) {
        self.requests.retain(|(other, ..)| *other != number);
        self.note_sent(number);
        self.left_out.retain(|(other, _)| *other != number);
    }

    /// The bytes that calls are writing now are left out of a write-back, and kept until the outcome of the
    /// calls is known: then either the call has written these places, or these bytes are written. They take
    /// as much memory as the calls write, for each write-back. Returns what is to be written.
    pub(crate) fn leave_out(
        &mut self,
        offset: u64,
        bytes: &[u8],
        is_left_out: impl Fn(ByteRange) -> bool,
    ) -> Vec<ByteRange> {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        let calls: Vec<(u64, ByteRange)> = self.of(Kind::Through).collect();
        let mut written = Vec::new();
        for (number, of) in calls {
            let part = of.intersection(range);
            if part.is_empty() || !is_left_out(part) {
                continue;
            }
            let part_bytes = &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            // A page that is written back again includes what it had before.
            self.left_out
                .retain(|(other, left)| *other != number || left.range().intersection(part) != left.range());
            self.left_out.push((number, LeftOut { offset: part.start, bytes: part_bytes.to_vec() }));
            written.push(part);
        }
        without(range, written)
    }

    /// A call has written only what lies before `end`: from now on write-backs leave out only that. Returns
    /// what they have left out behind it.
    pub(crate) fn fail(&mut self, number: u64, end: u64) -> Vec<LeftOut> {
        let mut failed = Vec::new();
        let is_this =
            |(other, kind, _): &&mut (u64, Kind, ByteRange)| *other == number && *kind == Kind::Through;
        for (_, _, range) in self.requests.iter_mut().filter(is_this) {
            let behind = ByteRange { start: end.clamp(range.start, range.end), end: range.end };
            range.end = behind.start;
            failed.push((number, Kind::LeftOut, behind));
        }
        self.requests.extend(failed);
        self.requests.retain(|(other, _, range)| *other != number || !range.is_empty());
        let of = self.left_out.extract_if(.., |(other, _)| *other == number);
        let behind = |(_, left): (u64, LeftOut)| {
            let skipped = (end.saturating_sub(left.offset) as usize).min(left.bytes.len());
            LeftOut { offset: left.offset + skipped as u64, bytes: left.bytes[skipped..].to_vec() }
        };
        of.map(behind).filter(|left| !left.bytes.is_empty()).collect()
    }

    /// What write-backs had left out because of a failed call is written.
    pub(crate) fn left_out_is_written(&mut self, number: u64) {
        for (other, kind, _) in &mut self.requests {
            if *other == number && *kind == Kind::LeftOut {
                *kind = Kind::Failed;
            }
        }
    }

    /// A read waits for its turn to be sent.
    pub(crate) fn note_unsent(&mut self, number: u64) {
        self.unsent.push(number);
    }

    /// It is about to be sent.
    pub(crate) fn note_sent(&mut self, number: u64) {
        self.unsent.retain(|other| *other != number);
    }

    /// The pages of a range that are locked for reads that are not sent yet. The kernel has nothing of before in them, and
    /// what it gets will be newer than whatever was recalled by now.
    pub(crate) fn unsent(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        let pages = whole_pages(range);
        let reads = self.of(Kind::Read).filter(|(number, _)| self.unsent.contains(number));
        reads.map(move |(_, of)| whole_pages(of).intersection(pages)).filter(|part| !part.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a request of this kind that began before `number` touches the same pages. A read that is not sent yet does
    /// not count: it will bring what was written by now.
    pub(crate) fn has(&self, kind: Kind, range: ByteRange, before: u64) -> bool {
        let mut earlier =
            self.of(kind).filter(|(number, _)| *number < before && !self.unsent.contains(number));
        earlier.any(|(_, of)| share_a_page(of, range))
    }

    /// The parts of these pages that requests may hold locked until they are answered. A page that is just being
    /// read is not among them: the kernel reads none that it has locked for a call.
    pub(crate) fn held(&self, range: ByteRange) -> Vec<ByteRange> {
        let holds = |kind: &Kind| matches!(kind, Kind::Through | Kind::Waits | Kind::LeftOut | Kind::Failed);
        let pages = whole_pages(range);
        let held = self.requests.iter().filter(|(_, kind, _)| holds(kind));
        let parts = held.map(|(.., of)| whole_pages(*of).intersection(pages)).filter(|part| !part.is_empty());
        let unread = |part| without(part, self.of(Kind::Read).map(|(_, of)| whole_pages(of)));
        parts.flat_map(unread).collect()
    }

    /// The parts of the file of which no page is just being read.
    pub(crate) fn unread(&self) -> Vec<ByteRange> {
        let all = ByteRange { start: 0, end: u64::MAX };
        without(all, self.of(Kind::Read).map(|(_, of)| whole_pages(of)))
    }

    /// Whether the file is being truncated: pages that programs have stored into are not dropped meanwhile.
    pub(crate) fn is_cut(&self) -> bool {
        self.of(Kind::Cut).next().is_some()
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = (u64, ByteRange)> {
        let of_kind = self.requests.iter().filter(move |(_, of, _)| *of == kind);
        of_kind.map(|(number, _, range)| (*number, *range))
    }
}

/// Parts of a range that lie in none of `others`.
pub(crate) fn without(range: ByteRange, others: impl IntoIterator<Item = ByteRange>) -> Vec<ByteRange> {
    let mut parts = vec![range];
    for other in others {
        parts = parts
            .into_iter()
            .flat_map(|part| {
                let before = ByteRange { start: part.start, end: part.end.min(other.start) };
                let behind = ByteRange { start: part.start.max(other.end), end: part.end };
                [before, behind]
            })
            .filter(|part| part.start < part.end)
            .collect();
    }
    parts
}

fn share_a_page(one: ByteRange, other: ByteRange) -> bool {
    !whole_pages(one).intersection(whole_pages(other)).is_empty()
}

/// The pages that have bytes of a range.
pub(crate) fn whole_pages(range: ByteRange) -> ByteRange {
    let page = rustix::param::page_size() as u64;
    let end = range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    ByteRange { start: range.start / page * page, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn requests_meet_by_pages_and_in_order() {
        let mut in_flight = InFlight::default();
        in_flight.begin(1, Kind::Back, range(0, 4096));
        in_flight.begin(2, Kind::Through, range(100, 200));
        assert!(in_flight.has(Kind::Back, range(4000, 5000), 2));
        assert!(!in_flight.has(Kind::Back, range(4000, 5000), 1), "it began earlier itself");
        assert!(!in_flight.has(Kind::Back, range(4096, 5000), 9));
        assert_eq!(in_flight.held(range(4095, u64::MAX)), [range(0, 4096)]);
        assert_eq!(in_flight.held(range(4096, u64::MAX)), []);
        in_flight.begin(9, Kind::Waits, range(4100, 4200));
        assert_eq!(in_flight.held(range(4096, u64::MAX)), [range(4096, 8192)]);
        assert_eq!(in_flight.leave_out(4096, &[7; 4096], |_| true), [range(4096, 8192)], "it has not begun");
        in_flight.end(9);
        let left = in_flight.leave_out(150, &[7; 3946], |_| true);
        assert_eq!(left, [range(200, 4096)]);
        in_flight.begin(3, Kind::Read, range(5000, 5001));
        assert_eq!(in_flight.unread(), [range(0, 4096), range(8192, u64::MAX)]);
        in_flight.end(3);
        assert_eq!(in_flight.unread(), [range(0, u64::MAX)]);
        in_flight.end(2);
        assert!(in_flight.held(range(0, 1)).is_empty() && in_flight.left_out.is_empty());
    }

    // SEMANTICS 128.14
    #[test]
    fn a_read_is_unsent_between_its_wait_and_its_turn() {
        let mut in_flight = InFlight::default();
        let unsent = |in_flight: &InFlight, of| in_flight.unsent(of).collect::<Vec<_>>();
        in_flight.begin(1, Kind::Read, range(4096, 12_288));
        in_flight.begin(2, Kind::Through, range(0, 4096));
        assert_eq!(unsent(&in_flight, range(0, u64::MAX)), [], "it may be answered by now");
        in_flight.note_unsent(1);
        assert_eq!(unsent(&in_flight, range(0, u64::MAX)), [range(4096, 12_288)]);
        assert_eq!(unsent(&in_flight, range(8192, 8193)), [range(8192, 12_288)], "whole pages");
        assert_eq!(unsent(&in_flight, range(0, 4096)), []);
        assert!(!in_flight.has(Kind::Read, range(4096, 4097), 9), "it brings what was written by now");
        in_flight.note_sent(1);
        assert!(in_flight.has(Kind::Read, range(4096, 4097), 9));
        assert_eq!(unsent(&in_flight, range(0, u64::MAX)), []);
        in_flight.note_unsent(1);
        in_flight.end(1);
        in_flight.begin(1, Kind::Read, range(0, 1));
        assert_eq!(unsent(&in_flight, range(0, u64::MAX)), []);
    }

    #[test]
    fn what_is_left_of_a_range_lies_beside_the_others() {
        assert_eq!(without(range(0, 100), []), [range(0, 100)]);
        assert_eq!(
            without(range(0, 100), [range(10, 20), range(50, 60)]),
            [range(0, 10), range(20, 50), range(60, 100)]
        );
        assert_eq!(without(range(10, 100), [range(0, 20), range(90, 200)]), [range(20, 90)]);
        assert_eq!(without(range(10, 20), [range(0, 30)]), []);
    }
}
