//! What outlives the process of the pages that kernels have: whose kernels have some, and which of them others have changed and their
//! holders have yet to drop.

use std::collections::BTreeMap;

use ramlace_base::SessionId;
use ramlace_lanes::{DataLeases, News, Outdated};

use crate::record::Record;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageHolders {
    /// Sessions that have got leases on bytes, and whether they are of strict mounts.
    strict: BTreeMap<SessionId, bool>,
    /// Pages that others have changed, and that their holders have yet to drop.
    outdated: Outdated,
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
        self.outdated.note(news);
    }

    /// Whether there is something to be logged of it: what was dropped may never have been.
    pub fn is_news(&self, news: &News) -> bool {
        self.outdated.is_news(news)
    }

    /// A session has ended.
    pub fn end_session(&mut self, session: SessionId) {
        self.strict.remove(&session);
        self.outdated.end_session(session);
    }

    /// Whether a session has pages that others have changed.
    #[cfg(test)]
    pub fn has_outdated(&self, session: SessionId) -> bool {
        self.outdated.has(session)
    }

    /// The same as records.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let holders = self
            .strict
            .iter()
            .map(|(session, strict)| Record::SessionKeepsPages { session: *session, strict: *strict });
        holders.chain(self.outdated.news().map(Record::Pages))
    }

    /// What the next life begins with.
    pub fn leases_after(&self) -> DataLeases {
        let mut leases = DataLeases::after(self.strict.iter().map(|(session, strict)| (*session, *strict)));
        self.outdated.news().for_each(|news| leases.note_before(&news));
        leases
    }
}
