//! The log records about pages that are about to change while a session has them, and about sessions that have
//! dropped such pages.

use ramlace_base::{ByteRange, SessionId, limits};

use super::DataLeases;
use crate::outdated::News;
use crate::pages::WHOLE;
use crate::ranges::RangeSet;
use crate::watches::Place;

impl DataLeases {
    /// The records that were not logged yet.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Logging has failed: these are to be logged first.
    pub fn put_news_back(&mut self, mut news: Vec<News>) {
        news.append(&mut self.news);
        self.news = news;
    }

    /// Whether such a record may be logged later if it cannot be logged now: until then a restart would keep
    /// fewer pages than it could.
    pub fn may_wait(&mut self, news: &News) -> bool {
        let still = match *news {
            News::Dropped { place, session, pages } => News::Outdated { place, session, pages },
            News::Returned { session } => News::Worthless { session },
            News::Outdated { .. } | News::Worthless { .. } => return false,
        };
        self.outdated.note(&still);
        true
    }

    /// Whether there are any.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Applies a record from before the restart.
    pub fn note_before(&mut self, news: &News) {
        match *news {
            News::Outdated { place, session, pages } => self.unknown.begin(place, session, pages),
            News::Worthless { session } => self.returning.note_worthless(session),
            News::Dropped { .. } | News::Returned { .. } => {}
        }
        self.outdated.note(news);
    }

    /// Pages of a recall that was not acknowledged are about to change.
    pub(super) fn note_outdated(&mut self, number: u64, pages: ByteRange) {
        let Some(pending) = self.recalls.get_mut(&number) else { return };
        if pages.is_empty() {
            return;
        }
        pending.outdated.insert(pages);
        pending.outdated.limit_runs(limits::DATA_LEASE_HOLES_MAX);
        let (place, session) = (pending.place, pending.holder);
        self.tell(News::Outdated { place, session, pages });
    }

    /// A session may have dropped pages, or read them anew: notes which of them the log need not know any more.
    pub(super) fn note_drops(&mut self, place: Place, session: SessionId) {
        let Some(known) = self.outdated.of(place, session) else { return };
        let mut left = RangeSet::default();
        self.unknown.of(place, session).for_each(|pages| left.insert(pages));
        for (_, pending) in self.pending_at(place, WHOLE).filter(|(_, pending)| pending.holder == session) {
            pending.outdated.iter().for_each(|pages| left.insert(pages));
        }
        let gone: Vec<ByteRange> = known.iter().flat_map(|known| left.gaps(known)).collect();
        gone.into_iter().for_each(|pages| self.tell(News::Dropped { place, session, pages }));
    }

    /// The same of all places where it had some.
    pub(super) fn note_all_drops(&mut self, session: SessionId) {
        self.outdated.places_of(session).into_iter().for_each(|place| self.note_drops(place, session));
    }

    /// A place is gone for ever.
    pub(super) fn forget_outdated(&mut self, place: Place) {
        for session in self.outdated.sessions_at(place) {
            self.tell(News::Dropped { place, session, pages: WHOLE });
        }
    }

    pub(super) fn tell(&mut self, news: News) {
        if self.outdated.is_news(&news) {
            self.outdated.note(&news);
            self.news.push(news);
        }
    }
}
