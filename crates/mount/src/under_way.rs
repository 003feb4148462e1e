//! Requests of one file that are under way and have to do with pages: who may hold which, and who has to know of whom.

use ramlace_base::ByteRange;

/// What a request does with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It fills them: the kernel has them locked.
    Read,
    /// Programs have stored into them, and they are written back.
    Back,
    /// A program has written by a call. The kernel may have them locked until it is answered.
    Through,
    /// A truncation: the kernel writes none of them back until it is answered.
    Cut,
}

/// Those of one file, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    requests: Vec<(u64, Kind, ByteRange)>,
}

impl UnderWay {
    pub(crate) fn begin(&mut self, number: u64, kind: Kind, range: ByteRange) {
        self.requests.push((number, kind, range));
    }

    pub(crate) fn end(&mut self, number: u64) {
        self.requests.retain(|(other, ..)| *other != number);
    }

    /// Whether one of a kind that began before `number` touches the same pages.
    pub(crate) fn has(&self, kind: Kind, range: ByteRange, before: u64) -> bool {
        self.of(kind).any(|(number, of)| number < before && share_a_page(of, range))
    }

    /// Whether one may hold some of these pages until it is answered.
    pub(crate) fn hold(&self, range: ByteRange) -> bool {
        [Kind::Through, Kind::Cut].iter().any(|kind| self.has(*kind, range, u64::MAX))
    }

    /// What calls are just writing of a range.
    pub(crate) fn written(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> {
        self.of(Kind::Through).map(move |(_, of)| of.intersection(range)).filter(|part| !part.is_empty())
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
    let page = rustix::param::page_size() as u64;
    let first = |range: ByteRange| range.start / page;
    let behind = |range: ByteRange| range.end.div_ceil(page);
    first(one) < behind(other) && first(other) < behind(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    #[test]
    fn requests_meet_by_pages_and_in_order() {
        let mut under_way = UnderWay::default();
        under_way.begin(1, Kind::Back, range(0, 4096));
        under_way.begin(2, Kind::Through, range(100, 200));
        assert!(under_way.has(Kind::Back, range(4000, 5000), 2));
        assert!(!under_way.has(Kind::Back, range(4000, 5000), 1), "it began earlier itself");
        assert!(!under_way.has(Kind::Back, range(4096, 5000), 9));
        assert!(under_way.hold(range(4095, u64::MAX)) && !under_way.hold(range(4096, u64::MAX)));
        assert_eq!(under_way.written(range(150, 4096)).collect::<Vec<_>>(), [range(150, 200)]);
        under_way.end(2);
        assert!(!under_way.hold(range(0, 1)));
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
