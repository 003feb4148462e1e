//! What outlives the process of the pages that kernels have: whose kernels have some, and which of them others have changed and their
//! holders have yet to drop.

use std::collections::BTreeMap;

use ramlace_base::{ByteRange, SessionId, limits};
use ramlace_lanes::{DataLeases, News, Place};

use crate::record::Record;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageHolders {
    /// Sessions that have got leases on bytes, and whether they are of strict mounts.
    strict: BTreeMap<SessionId, bool>,
    /// By the recalls that were not acknowledged.
    outdated: BTreeMap<u64, Outdated>,
}

/// Pages that others have changed, and that a session has yet to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outdated {
    session: SessionId,
    place: Place,
    pages: Vec<ByteRange>,
}

impl PageHolders {
    /// Whether it is known that a session has pages, as of a strict mount or any.
    pub fn knows(&self, session: SessionId, strict: bool) -> bool {
        self.strict.get(&session).is_some_and(|is| *is >= strict)
    }

    /// A session gets its first lease, or its first as a strict mount.
    pub fn note(&mut self, session: SessionId, strict: bool) {
        *self.strict.entry(session).or_default() |= strict;
    }

    /// Pages are about to change, or are dropped.
    pub fn note_news(&mut self, news: &News) {
        match *news {
            News::Outdated { number, place, session, pages } => {
                let outdated =
                    self.outdated.entry(number).or_insert(Outdated { session, place, pages: Vec::new() });
                outdated.pages.push(pages);
                if outdated.pages.len() > limits::DATA_LEASE_HOLES_MAX {
                    outdated.pages = vec![hull(&outdated.pages)];
                }
            }
            News::Dropped { number } => _ = self.outdated.remove(&number),
        }
    }

    /// Whether there is something to be logged of it: what was dropped may never have been.
    pub fn is_news(&self, news: &News) -> bool {
        match news {
            News::Outdated { .. } => true,
            News::Dropped { number } => self.outdated.contains_key(number),
        }
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.strict.remove(&session);
        self.outdated.retain(|_, outdated| outdated.session != session);
    }

    /// Recalls of a session that were not acknowledged.
    pub fn numbers_of(&self, session: SessionId) -> Vec<u64> {
        let of = self.outdated.iter().filter(|(_, outdated)| outdated.session == session);
        of.map(|(number, _)| *number).collect()
    }

    /// The same as records.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let holders = self
            .strict
            .iter()
            .map(|(session, strict)| Record::SessionKeepsPages { session: *session, strict: *strict });
        let outdated = self.outdated.iter().flat_map(|(number, Outdated { session, place, pages })| {
            let news = |pages: &ByteRange| News::Outdated {
                number: *number,
                place: *place,
                session: *session,
                pages: *pages,
            };
            pages.iter().map(move |pages| Record::Pages(news(pages)))
        });
        holders.chain(outdated)
    }

    /// What the next life begins with.
    pub fn leases_after(&self) -> DataLeases {
        let mut leases = DataLeases::after(self.strict.iter().map(|(session, strict)| (*session, *strict)));
        for Outdated { session, place, pages } in self.outdated.values() {
            pages.iter().for_each(|pages| leases.outdate(*place, *session, *pages));
        }
        leases
    }
}

fn hull(ranges: &[ByteRange]) -> ByteRange {
    let start = ranges.iter().map(|range| range.start).min().unwrap_or_default();
    let end = ranges.iter().map(|range| range.end).max().unwrap_or_default();
    ByteRange { start, end }
}
