//! The bases of kernels' pages: kept from a recall until its holder has dropped the pages, so that of what is
//! written back only the programs' stores are applied.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, Result, SessionId, limits};

use super::{Change, DataLeases, Pending, ReadNow};
use crate::pages::{PAGE_BYTES, WHOLE, edges, hull, inner_pages, page_at, pages_of, whole_pages};
use crate::watches::Place;

/// The base of a page.
#[derive(Debug)]
pub(super) struct Base {
    /// The recall by which the page is dropped.
    pub(super) recall: u64,
    copy: Rc<PageCopy>,
}

impl Base {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.copy.bytes
    }
}

/// The bytes of a page, shared by all sessions whose kernels have this version. Counted once, as long as one of
/// them needs it.
#[derive(Debug)]
struct PageCopy {
    bytes: Vec<u8>,
    counted: Rc<Cell<usize>>,
}

impl PageCopy {
    fn new(bytes: Vec<u8>, counted: &Rc<Cell<usize>>) -> Rc<PageCopy> {
        counted.set(counted.get() + 1);
        Rc::new(PageCopy { bytes, counted: counted.clone() })
    }
}

impl Drop for PageCopy {
    fn drop(&mut self) {
        self.counted.set(self.counted.get() - 1);
    }
}

impl DataLeases {
    /// Bytes that the kept copies of pages take.
    #[must_use]
    pub fn base_bytes(&self) -> usize {
        self.copies.get() * PAGE_BYTES as usize + self.bases.len() * limits::DATA_BASE_HOLDER_BYTES
    }

    /// Keeps the bases of pages that others still have to drop.
    pub(super) fn keep_bases(
        &mut self,
        place: Place,
        by: SessionId,
        ranges: &[ByteRange],
        change: Change,
        read: ReadNow<'_>,
        now: u64,
    ) -> Result<()> {
        let mut kept: BTreeMap<u64, Rc<PageCopy>> = BTreeMap::new();
        let mut may_fence = true;
        // The newest first: a page that was read anew after an older recall belongs to the newer one.
        let changed = ranges.iter().map(|range| whole_pages(*range));
        for number in self.numbers_at(place, hull(changed)).into_iter().rev() {
            let pending = self.recalls.get_mut(&number).expect("a number at a place is a recall");
            if pending.holder == by || pending.fenced {
                continue;
            }
            let (holder, recalled) = (pending.holder, pending.range);
            let first = ranges.partition_point(|range| whole_pages(*range).end <= recalled.start);
            let met = ranges[first..].iter().take_while(|range| whole_pages(**range).start < recalled.end);
            if change == Change::Erase {
                met.clone()
                    .for_each(|range| pending.erased.insert(inner_pages(*range).intersection(recalled)));
            }
            let changed: Vec<ByteRange> =
                met.clone().map(|range| whole_pages(*range).intersection(recalled)).collect();
            let mut pages: Vec<ByteRange> = Vec::new();
            for range in met {
                let part = whole_pages(*range).intersection(recalled);
                match change {
                    Change::Write => pages.extend(pages_of(part)),
                    Change::Stored => {}
                    Change::Erase => {
                        pages.extend(edges(*range).filter(|page| !page.intersection(part).is_empty()))
                    }
                }
            }
            if change != Change::Stored {
                changed.into_iter().for_each(|part| self.note_outdated(number, part));
            }
            for page in pages {
                let erased = self.recalls.get(&number).is_some_and(|pending| pending.erased.covers(page));
                let key = (place, holder, page.start / PAGE_BYTES);
                if erased || self.bases.contains_key(&key) {
                    continue;
                }
                while may_fence && !self.has_room_for_base() {
                    may_fence = self.fence_for_room(by, now);
                }
                if self.recalls.get(&number).is_none_or(|pending| pending.fenced) {
                    break;
                }
                let copy = match kept.get(&key.2) {
                    Some(copy) => copy.clone(),
                    None => PageCopy::new(read(page)?, &self.copies),
                };
                kept.insert(key.2, copy.clone());
                self.bases.insert(key, Base { recall: number, copy });
            }
        }
        Ok(())
    }

    fn has_room_for_base(&self) -> bool {
        let one = PAGE_BYTES as usize + limits::DATA_BASE_HOLDER_BYTES;
        self.base_bytes() + one <= limits::DATA_BASE_BYTES_HARD_MAX
    }

    /// There are too many copies: of the holders with copies, the one that was asked first is fenced.
    /// Returns whether there was one. A holder that is asked by this very change has had no time to answer, and
    /// what `by` writes back is based on its own copies; a holder that itself waits goes last.
    pub(super) fn fence_for_room(&mut self, by: SessionId, now: u64) -> bool {
        let may_go = |pending: &&Pending| {
            let of_holder = (pending.place, pending.holder, 0)..=(pending.place, pending.holder, u64::MAX);
            let is_meant = !pending.fenced && pending.holder != by && pending.began < now;
            is_meant && self.bases.range(of_holder).next().is_some()
        };
        let asked = || self.recalls.values().filter(may_go);
        let oldest = asked().find(|pending| !self.is_excused(pending)).or_else(|| asked().next());
        let Some((place, holder)) = oldest.map(|pending| (pending.place, pending.holder)) else {
            return false;
        };
        for number in self.numbers_at(place, WHOLE) {
            if let Some(pending) = self.recalls.get_mut(&number).filter(|pending| pending.holder == holder) {
                pending.set_fenced();
            }
        }
        self.fence(place, holder, now);
        true
    }

    /// Checks that the base of these pages is known.
    ///
    /// Errors: `Stale` if it is not.
    pub fn check_base(&self, place: Place, session: SessionId, range: ByteRange) -> Result<()> {
        if self.had_alone(place, session, range) {
            return Ok(());
        }
        let pages = whole_pages(range);
        // A session with a lease, or with one when the pages were recalled, got it in this incarnation, or
        // was asked before they changed.
        let has_had = self.has_lease(place, session) || self.is_recalled(place, session, pages);
        let is_late = || self.is_fenced(place, session) || self.returning.is_worthless(place, session);
        let unknown = self.unknown.meets(place, session, pages) || (!has_had && is_late());
        if !unknown {
            return Ok(());
        }
        let text = format!(
            "others have changed inode {} while this mount did not answer; what was stored in its pages is not written",
            place.0
        );
        Err(Error::new(ErrorKind::Stale, text))
    }

    /// The recall of a small file's page that others have changed since, if it is of that page alone: its drop waits for no
    /// request that holds another page.
    #[must_use]
    pub fn small_with_base(&self, place: Place, session: SessionId) -> Option<u64> {
        let recall = self.bases.get(&(place, session, 0))?.recall;
        self.recalls.get(&recall).is_some_and(|pending| pending.range.end <= PAGE_BYTES).then_some(recall)
    }

    /// Whether what a session writes back of a small file, whose bytes have gone, may be taken where they are now: there
    /// the page's base is not known if others had changed it before.
    ///
    /// Errors: `Stale` if it may not.
    pub fn check_small(&self, place: Place, session: SessionId) -> Result<()> {
        self.check_base(place, session, ByteRange { start: 0, end: PAGE_BYTES })?;
        if !self.bases.contains_key(&(place, session, 0)) {
            return Ok(());
        }
        let text = format!(
            "others have changed inode {} before it grew, and this mount was late; what was stored in its first page is not written",
            place.0
        );
        Err(Error::new(ErrorKind::Stale, text))
    }

    /// Replaces the bytes of each base of these pages, or removes the base.
    pub(super) fn each_base(
        &mut self,
        place: Place,
        session: SessionId,
        pages: ByteRange,
        mut change: impl FnMut((u64, &[u8])) -> Option<Vec<u8>>,
    ) {
        if self.bases.is_empty() || pages.is_empty() {
            return;
        }
        let keys =
            (place, session, pages.start / PAGE_BYTES)..(place, session, pages.end.div_ceil(PAGE_BYTES));
        let found: Vec<(u64, Option<Vec<u8>>)> =
            self.bases.range(keys).map(|((.., page), base)| (*page, change((*page, base.bytes())))).collect();
        for (page, bytes) in found {
            match bytes {
                Some(bytes) => {
                    let base = self.bases.get_mut(&(place, session, page)).expect("it was found");
                    base.copy = PageCopy::new(bytes, &self.copies);
                }
                None => _ = self.bases.remove(&(place, session, page)),
            }
        }
    }
}

/// The page, with the bytes of a write where the write has some of it.
pub(super) fn with_bytes((page, base): (u64, &[u8]), offset: u64, bytes: &[u8]) -> Vec<u8> {
    let range = ByteRange { start: offset, end: offset + bytes.len() as u64 };
    let part = page_at(page).intersection(range);
    let mut changed = base.to_vec();
    if !part.is_empty() {
        let inside = (part.start - page * PAGE_BYTES) as usize;
        let from = (part.start - offset) as usize;
        let length = part.length() as usize;
        changed[inside..inside + length].copy_from_slice(&bytes[from..from + length]);
    }
    changed
}

/// Copies into `here` what differs from the base; without a base, `here` is the base. Returns whether that
/// changes anything.
pub(super) fn merge(base: Option<&[u8]>, bytes: &[u8], here: &mut [u8]) -> bool {
    let Some(base) = base else {
        let differs = here != bytes;
        here.copy_from_slice(bytes);
        return differs;
    };
    let mut changed = 0;
    for ((base, byte), here) in base.iter().zip(bytes).zip(here) {
        let new = if base == byte { *here } else { *byte };
        changed |= *here ^ new;
        *here = new;
    }
    changed != 0
}
