//! The pages of this machine's kernel that a transfer touches, and what has to be done because of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ramlace_base::ServerId;
use ramlace_wire::chunk::{Keep, WriteOrigin};
use ramlace_wire::inline::FirstPage;

use crate::session::places::OnTurn;
use crate::session::sequences::NumberFor;

/// The result of a read for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRead {
    /// As [`crate::File::read_at`] returns them.
    pub bytes: usize,
    /// A request was repeated after its connection was lost: a server may still process the first copy, and
    /// then assumes that these pages are as new as that read. So they must not be cached.
    pub repeated: bool,
}

/// By server: the newest data recall that write-backs have caused and did not wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecallsMade(BTreeMap<ServerId, u64>);

impl RecallsMade {
    /// Notes a server's answer to a write-back; 0: it caused no recall.
    pub(crate) fn note(&mut self, server: ServerId, recall: u64) {
        if recall > 0 {
            // Answers come in any order. A restarted server's numbers are different ones: to wait for more
            // than the own recalls does no harm.
            let newest = self.0.entry(server).or_default();
            *newest = recall.max(*newest);
        }
    }

    /// Adds those of later write-backs.
    pub fn add(&mut self, later: &RecallsMade) {
        later.iter().for_each(|(server, recall)| self.note(server, recall));
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The servers, and the newest recall of each.
    pub fn iter(&self) -> impl Iterator<Item = (ServerId, u64)> + '_ {
        self.0.iter().map(|(server, recall)| (*server, *recall))
    }
}

impl FromIterator<(ServerId, u64)> for RecallsMade {
    fn from_iter<I: IntoIterator<Item = (ServerId, u64)>>(recalls: I) -> RecallsMade {
        RecallsMade(recalls.into_iter().collect())
    }
}

/// What is noted during a read of bytes that will be cached.
#[derive(Default)]
pub(crate) struct Noted<'a> {
    /// A request was repeated.
    pub(crate) repeated: Cell<bool>,
    /// They came from the inode, and not from lanes.
    pub(crate) inline: Cell<bool>,
    /// All that is asked for lies below the file's end, as it is known here.
    pub(crate) is_whole: Cell<bool>,
    /// Is told when the request for all bytes waits for its turn.
    pub(crate) on_turn: Option<OnTurn<'a>>,
}

/// How a transfer's bytes relate to the pages of this machine's kernel.
#[derive(Clone, Copy)]
pub(crate) enum Pages<'a> {
    /// Not at all.
    None,
    /// The kernel caches what is read, in this way.
    Keep(Keep, &'a Noted<'a>),
    /// The kernel caches what a program writes.
    Through,
    /// A program's write goes past what the kernel caches of these bytes: that is recalled, as from others.
    Beside,
    /// Pages are written back, as programs have stored into them.
    Back(&'a RefCell<RecallsMade>),
}

impl Pages<'_> {
    /// Whether a kernel will cache what is read, and how.
    pub(crate) fn keep(&self) -> Keep {
        match self {
            Pages::Keep(keep, _) => *keep,
            Pages::None | Pages::Through | Pages::Beside | Pages::Back(_) => Keep::No,
        }
    }

    /// Whether a strict mount reads: then other kernels may have to drop the pages first.
    pub(crate) fn are_strict(&self) -> bool {
        matches!(self.keep(), Keep::Strict | Keep::Own)
    }

    /// Whether a server gives a lease.
    pub(crate) fn are_kept(&self) -> bool {
        matches!(self, Pages::Keep(..) | Pages::Through)
    }

    pub(crate) fn origin(&self) -> WriteOrigin {
        match self {
            Pages::None | Pages::Keep(..) => WriteOrigin::Program,
            Pages::Through => WriteOrigin::Through,
            Pages::Beside => WriteOrigin::Beside,
            Pages::Back(_) => WriteOrigin::Back,
        }
    }

    /// What the kernel may have of a file's first page while a write promotes the file.
    pub(crate) fn first_page(&self) -> FirstPage {
        if matches!(self, Pages::Beside) { FirstPage::Free } else { FirstPage::Locked }
    }

    /// What a write's number is for, in a lane.
    pub(crate) fn number_for(&self) -> NumberFor {
        if self.origin() == WriteOrigin::Back { NumberFor::LanePages } else { NumberFor::Program }
    }

    /// The flag to set when a request is repeated: the first copy may be processed later than its repetition.
    pub(crate) fn repeated(&self) -> Option<&Cell<bool>> {
        match self {
            Pages::Keep(_, noted) => Some(&noted.repeated),
            Pages::None | Pages::Through | Pages::Beside | Pages::Back(_) => None,
        }
    }

    /// Whether all that a read asks for lies below the file's end, as it is known here. If not, its result depends on a size
    /// that may be outdated when its turn comes.
    pub(crate) fn note_whole(&self, is_whole: bool) {
        if let Pages::Keep(_, noted) = self {
            noted.is_whole.set(is_whole);
        }
    }

    /// What is told when the one request for all bytes of a read waits for its turn.
    pub(crate) fn on_turn(&self) -> Option<OnTurn<'_>> {
        match self {
            Pages::Keep(_, noted) => noted.on_turn.filter(|_| noted.is_whole.get()),
            Pages::None | Pages::Through | Pages::Beside | Pages::Back(_) => None,
        }
    }

    /// The bytes came from the inode.
    pub(crate) fn note_inline(&self) {
        if let Pages::Keep(_, noted) = self {
            noted.inline.set(true);
        }
    }

    /// A request is repeated.
    pub(crate) fn note_repeated(&self) {
        if let Some(repeated) = self.repeated() {
            repeated.set(true);
        }
    }

    /// A server has answered a write.
    pub(crate) fn note_recall(&self, server: ServerId, recall: u64) {
        if let Pages::Back(made) = self {
            made.borrow_mut().note(server, recall);
        }
    }
}
