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
    /// Writes them for a call of a program. The kernel may have them locked until it is answered, but for calls that
    /// write directly.
    Through,
    /// Such a call has failed, and what write-backs left out because of it is being written.
    LeftOut,
    /// That is written. The kernel may have the call's pages locked until it is answered.
    Failed,
    /// Truncates the file: the kernel writes back no page of it until this is answered, and so drops none
    /// that programs have stored into.
    Cut,
}

/// How the bytes that a program writes by a call come to the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// By pages that the kernel keeps, and has locked where they are not whole.
    InPages,
    /// Straight from the program: the kernel has none of its pages locked, and the bytes are in none of them.
    Directly,
}

/// One of them.
#[derive(Debug)]
struct InFlightRequest {
    number: u64,
    kind: Kind,
    range: ByteRange,
    written: Written,
}

/// The requests of one file, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    requests: Vec<InFlightRequest>,
    /// By call: what was left out of write-backs because of it, in order.
    left_out: Vec<(u64, LeftOut)>,
}

/// What requests under way keep of pages that are to be dropped, until they are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldPages {
    /// Those that the kernel may have locked for them, without bytes: nobody reads them.
    pub(crate) locked: Vec<ByteRange>,
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
        self.begin_write(number, kind, range, Written::InPages);
    }

    /// The same for a program's call that writes.
    pub(crate) fn begin_write(&mut self, number: u64, kind: Kind, range: ByteRange, written: Written) {
        self.requests.push(InFlightRequest { number, kind, range, written });
    }

    pub(crate) fn end(&mut self, number: u64) {
        self.requests.retain(|request| request.number != number);
        self.left_out.retain(|(other, _)| *other != number);
    }

    /// The bytes that calls are writing now are left out of a write-back, and kept until the outcome of the
    /// calls is known: then either the call has written these places, or these bytes are written. They take
    /// as much memory as the calls write, for each write-back. `is_left_out`: whether the pages may be older than
    /// a call that writes in them; than one that writes directly they always may be. Returns what is to be written.
    pub(crate) fn leave_out(
        &mut self,
        offset: u64,
        bytes: &[u8],
        is_left_out: impl Fn(ByteRange) -> bool,
    ) -> Vec<ByteRange> {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        let mut written = Vec::new();
        for call in self.requests.iter().filter(|request| request.kind == Kind::Through) {
            let (number, part) = (call.number, call.range.intersection(range));
            if part.is_empty() || (call.written == Written::InPages && !is_left_out(part)) {
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
            |request: &&mut InFlightRequest| request.number == number && request.kind == Kind::Through;
        for InFlightRequest { range, written, .. } in self.requests.iter_mut().filter(is_this) {
            let behind = ByteRange { start: end.clamp(range.start, range.end), end: range.end };
            range.end = behind.start;
            failed.push(InFlightRequest { number, kind: Kind::LeftOut, range: behind, written: *written });
        }
        self.requests.extend(failed);
        self.requests.retain(|request| request.number != number || !request.range.is_empty());
        let of = self.left_out.extract_if(.., |(other, _)| *other == number);
        let behind = |(_, left): (u64, LeftOut)| {
            let skipped = (end.saturating_sub(left.offset) as usize).min(left.bytes.len());
            LeftOut { offset: left.offset + skipped as u64, bytes: left.bytes[skipped..].to_vec() }
        };
        of.map(behind).filter(|left| !left.bytes.is_empty()).collect()
    }

    /// What write-backs had left out because of a failed call is written.
    pub(crate) fn left_out_is_written(&mut self, number: u64) {
        for request in &mut self.requests {
            if request.number == number && request.kind == Kind::LeftOut {
                request.kind = Kind::Failed;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a request of this kind that began before `number` touches the same pages.
    pub(crate) fn has(&self, kind: Kind, range: ByteRange, before: u64) -> bool {
        self.of(kind).any(|(number, of)| number < before && share_a_page(of, range))
    }

    /// The parts of these pages that requests may hold locked until they are answered. A page that is just being
    /// read is not among them: the kernel reads none that it has locked for a call.
    pub(crate) fn held(&self, range: ByteRange) -> Vec<ByteRange> {
        let holds = |request: &&InFlightRequest| {
            let writes = matches!(request.kind, Kind::Through | Kind::LeftOut | Kind::Failed);
            writes && request.written == Written::InPages
        };
        let pages = whole_pages(range);
        let held = self.requests.iter().filter(holds);
        let parts = held.map(|of| whole_pages(of.range).intersection(pages)).filter(|part| !part.is_empty());
        let unread = |part| without(part, self.of(Kind::Read).map(|(_, of)| whole_pages(of)));
        parts.flat_map(unread).collect()
    }

    /// Whether the file is being truncated: pages that programs have stored into are not dropped meanwhile.
    pub(crate) fn is_cut(&self) -> bool {
        self.of(Kind::Cut).next().is_some()
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = (u64, ByteRange)> {
        let of_kind = self.requests.iter().filter(move |request| request.kind == kind);
        of_kind.map(|request| (request.number, request.range))
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
        let left = in_flight.leave_out(150, &[7; 3946], |_| true);
        assert_eq!(left, [range(200, 4096)]);
        in_flight.end(2);
        assert!(in_flight.held(range(0, 1)).is_empty() && in_flight.left_out.is_empty());
    }

    // SEMANTICS 116
    #[test]
    fn a_call_that_writes_directly_holds_no_page_and_is_left_out_of_every_write_back() {
        let mut in_flight = InFlight::default();
        in_flight.begin_write(1, Kind::Through, range(100, 200), Written::Directly);
        assert_eq!(in_flight.held(range(0, 4096)), []);
        let left = in_flight.leave_out(0, &[7; 4096], |_| false);
        assert_eq!(left, [range(0, 100), range(200, 4096)]);
        assert_eq!(in_flight.fail(1, 150), [LeftOut { offset: 150, bytes: vec![7; 50] }]);
        assert_eq!(in_flight.held(range(0, 4096)), [], "nor behind its failure");
        assert!(in_flight.has(Kind::LeftOut, range(150, 151), 9), "newer stores wait for the older ones");
        in_flight.end(1);
        assert!(in_flight.is_empty());
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
