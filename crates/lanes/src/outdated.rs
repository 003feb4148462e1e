//! What the server's next life has to know of pages: those that others have changed, and that their holder has yet to drop. What that kernel
//! writes back of them then cannot be told from what was there before the change.

use ramlace_base::{ByteRange, SessionId};

use super::{DataLeases, News};
use crate::watches::Place;

impl DataLeases {
    /// What the log has not been told yet.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// The log could not be told: it is to be, before anything else.
    pub fn put_news_back(&mut self, mut news: Vec<News>) {
        news.append(&mut self.news);
        self.news = news;
    }

    /// Whether there are any.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Whether a recall of this life was not acknowledged.
    #[must_use]
    pub fn is_pending(&self, number: u64) -> bool {
        self.recalls.contains_key(&number)
    }

    /// In the life before, others have changed pages that a session had, and it has not dropped them.
    pub fn outdate(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        self.unknown.begin(place, session, pages);
    }

    /// Pages of a recall that was not acknowledged are about to change.
    pub(super) fn note_outdated(&mut self, number: u64, pages: ByteRange) {
        let Some(pending) = self.recalls.get_mut(&number) else { return };
        if pages.is_empty() || pending.outdated.covers(pages) {
            return;
        }
        pending.outdated.insert(pages);
        let (place, session) = (pending.place, pending.holder);
        self.news.push(News::Outdated { number, place, session, pages });
    }
}
