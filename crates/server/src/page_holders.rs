//! What a server keeps over a restart about pages that kernels cache: which sessions have some, and which pages
//! were changed by other sessions and not dropped by their holders yet.

use std::collections::BTreeMap;

use ramlace_base::SessionId;
use ramlace_lanes::{DataLeases, News, Outdated};

use crate::record::Record;

/// The sessions with pages, and their outdated pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageHolders {
    /// Sessions that got leases on bytes, and whether they are of strict mounts.
    strict: BTreeMap<SessionId, bool>,
    /// Pages that others have changed, and that their holders still have to drop.
    outdated: Outdated,
}

impl PageHolders {
    /// Whether it is known that a session has pages, as a strict mount or at all.
    pub fn knows(&self, session: SessionId, strict: bool) -> bool {
        self.strict.get(&session).is_some_and(|is| *is >= strict)
    }

    /// A session gets its first lease, or its first one as a strict mount.
    pub fn note(&mut self, session: SessionId, strict: bool) {
        *self.strict.entry(session).or_default() |= strict;
    }

    /// Pages are about to change, or are dropped.
    pub fn note_news(&mut self, news: &News) {
        self.outdated.note(news);
    }

    /// Whether this has to be logged: what was dropped may never have been logged as outdated.
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

    /// The leases with which the next incarnation begins.
    pub fn leases_after(&self) -> DataLeases {
        let mut leases = DataLeases::after(self.strict.iter().map(|(session, strict)| (*session, *strict)));
        self.outdated.news().for_each(|news| leases.note_before(&news));
        leases
    }
}
