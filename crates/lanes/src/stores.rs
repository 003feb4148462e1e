//! How bytes from kernels' pages are applied: a write through pages, or a write-back.

use ramlace_base::{ByteRange, Result, SessionId};

use super::bases::{merge, with_bytes};
use super::{DataLeases, ReadNow, Stored};
use crate::pages::{PAGE_BYTES, WHOLE, inner_pages, pages_of, whole_pages};
use crate::ranges::RangeSet;
use crate::watches::Place;

impl DataLeases {
    /// Whether some of these bytes, which a session writes back, may be on a page that it has since the file was small.
    #[must_use]
    pub fn may_be_small(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        self.firsts.may_be_small(place, session, range)
    }

    /// They are not, or they were not changed since.
    pub fn is_not_small(&mut self, place: Place, session: SessionId, range: ByteRange) {
        self.firsts.read(place, session, range);
    }

    /// Bytes that a session's kernel caches begin to arrive: if some of them are changed before all are
    /// there, the session is asked to drop its pages.
    pub fn begin_through(&mut self, place: Place, session: SessionId, range: ByteRange, now: u64) {
        if self.is_fenced(place, session) {
            return;
        }
        if !self.has_lease(place, session) {
            self.give(place, session, self.holes_of_new(place, session), now);
        }
        if let Some(holes) = self.leases.get_mut(&place).and_then(|leases| leases.get_mut(&session)) {
            holes.remove(whole_pages(range));
        }
        self.limit_holes(place, session, whole_pages(range), now);
    }

    /// A session has written these bytes through pages that its kernel caches, so these pages contain them.
    /// `bytes` are empty if no copy of its pages' base had to be kept.
    pub fn wrote_through(
        &mut self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        bytes: &[u8],
        now: u64,
    ) {
        let offset = range.start;
        self.begin_through(place, session, range, now);
        if !self.is_fenced(place, session) {
            self.unknown.wrote(place, session, range);
            self.note_drops(place, session);
        }
        self.each_base(place, session, whole_pages(range), |base| Some(with_bytes(base, offset, bytes)));
        // A small file's home may yet refuse the write.
        if place.1.is_some() {
            self.wrote_whole(place, session, inner_pages(range));
        }
    }

    /// Of pages that are written whole nothing is from before: an older recall's end must not take their base along.
    fn wrote_whole(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        if pages.is_empty() {
            return;
        }
        self.each_base(place, session, pages, |_| None);
        for number in self.numbers_at(place, pages) {
            if let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == session) {
                pending.erased.remove(pages);
            }
        }
    }

    /// Whether no other session has pages of these bytes, and the base of the session's own is what is there.
    ///
    /// Errors: `Stale` when that base is not known.
    pub fn is_alone(
        &self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        writes_back: bool,
    ) -> Result<bool> {
        if writes_back {
            self.check_base(place, session, range)?;
        }
        Ok(self.pending_at(place, whole_pages(range)).next().is_none()
            && !self.others_hold(place, session, range))
    }

    /// The programs' stores in these pages, which a session's kernel writes back.
    ///
    /// Errors: `Stale` when the pages' base is not known.
    pub fn stored(
        &mut self,
        place: Place,
        session: SessionId,
        offset: u64,
        bytes: &[u8],
        read: ReadNow<'_>,
        now: u64,
    ) -> Result<Stored> {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        self.check_base(place, session, range)?;
        let mut erased = RangeSet::default();
        for number in self.numbers_at(place, WHOLE) {
            let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == session)
            else {
                continue;
            };
            pending.progress = now;
            if !pending.erased.is_empty() {
                let gone = pages_of(range).filter(|page| pending.erased.covers(*page));
                gone.for_each(|page| erased.insert(page));
            }
        }
        let own = (place, session, range.start / PAGE_BYTES)..=(place, session, range.end / PAGE_BYTES);
        let alone = erased.is_empty() && self.bases.range(own).next().is_none();
        if alone && !self.others_hold(place, session, range) {
            // Everything that differs from what is here was stored by this session.
            return Ok(Stored { ranges: vec![range], merged: None });
        }
        let mut merged = read(range)?;
        let mut ranges: Vec<ByteRange> = Vec::new();
        for page in pages_of(range).filter(|page| !erased.covers(*page)) {
            let part = range.intersection(page);
            let (from, to) = ((part.start - offset) as usize, (part.end - offset) as usize);
            let base = self.bases.get(&(place, session, page.start / PAGE_BYTES));
            let inside = (part.start - page.start) as usize;
            let base = base.map(|base| base.bytes()[inside..inside + to - from].to_vec());
            if !merge(base.as_deref(), &bytes[from..to], &mut merged[from..to]) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => ranges.push(part),
            }
        }
        Ok(Stored { ranges, merged: Some(merged) })
    }

    /// The parts of what a session's kernel writes back that its programs have stored, to a byte: all of a page whose base
    /// is not known.
    #[must_use]
    pub fn runs_stored(&self, place: Place, session: SessionId, offset: u64, bytes: &[u8]) -> Vec<ByteRange> {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        let mut runs: Vec<ByteRange> = Vec::new();
        let mut add = |start, end| match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(ByteRange { start, end }),
        };
        for page in pages_of(range) {
            let part = range.intersection(page);
            let Some(base) = self.bases.get(&(place, session, page.start / PAGE_BYTES)) else {
                add(part.start, part.end);
                continue;
            };
            let base = &base.bytes()[(part.start - page.start) as usize..];
            let came = &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            let differs = (part.start..).zip(came.iter().zip(base)).filter(|(_, (came, base))| came != base);
            differs.for_each(|(at, _)| add(at, at + 1));
        }
        runs
    }

    /// These pages of a session were written back: its kernel has them so now.
    pub fn wrote_back(&mut self, place: Place, session: SessionId, offset: u64, bytes: &[u8], now: u64) {
        let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
        let had = self.has_lease(place, session) || self.had_alone(place, session, range);
        if !had && !self.is_fenced(place, session) {
            self.give(place, session, self.holes_of_new(place, session), now);
        }
        self.each_base(place, session, whole_pages(range), |base| Some(with_bytes(base, offset, bytes)));
    }
}
