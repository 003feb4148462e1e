//! Makes deferred closes when they are due ([`crate::names::deferred`]): several in one message, by the heartbeat
//! thread.
//!
//! A mount defers a close while it keeps the file's attributes under a lease. When they are recalled the close is
//! due at once: the file may have been removed, and its memory is free only when nobody has it open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, Slot, limits};
use ramlace_wire::leases::{Leased, Recall};
use ramlace_wire::namespace::{Close, Closed};

use crate::client::Client;
use crate::names::gates::OpenAnswer;
use crate::names::open_inode::OpenInode;
use crate::session::pending::Message;

/// Closes that are begun at once.
const CLOSES_AT_ONCE_MAX: usize = 128;
/// How long the heartbeat thread waits for one answer, as for other pending messages.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// How long a change that needs a file closed waits for others to close what they have deferred.
const OTHERS_CLOSE: Duration = Duration::from_millis(1_000);
/// The pause between two attempts of such a change.
const OTHERS_CLOSE_PAUSE: Duration = Duration::from_millis(50);

impl Client {
    /// Leaves the close of an inode's last file here for later. `false`: it is to be closed now.
    pub(crate) fn defer_close(&self, open: &OpenInode, answer: OpenAnswer) -> bool {
        let has_nothing_to_tell = open.written() == 0 && !open.with_kernel.load(Ordering::Acquire);
        // In a slot that is delegated a close is a promise, which costs nothing.
        let is_delegated = self.behind.version(open.inode.slot()).is_some();
        // One user alone has the session: a kernel that has checked by the same attributes asks for the same rights.
        let may = has_nothing_to_tell && !is_delegated && !self.settings.for_users && !self.is_ended();
        may && self.inodes.defer_close(open.inode, answer, Instant::now())
    }

    /// An inode is not to stay open for a deferred close: it was removed, or may have been.
    pub(crate) fn hasten_close(&self, inode: InodeId) {
        if self.inodes.hasten_close(inode) {
            self.heart.wake();
        }
    }

    /// The same for the inodes whose attributes were recalled; to be called when nothing is kept of them any more.
    pub(crate) fn hasten_recalled(&self, recalls: &[Recall]) {
        let recalled = recalls.iter().filter(|recall| recall.what == Leased::Attributes);
        recalled.for_each(|recall| self.hasten_close(recall.inode));
    }

    /// Closes what was removed by this session, if its close is deferred, before the caller's call returns. `None`: it
    /// is not known what was removed.
    pub(crate) fn close_removed(self: &Arc<Client>, removed: &[Option<InodeId>]) {
        let until = Instant::now() + PATIENCE;
        for inode in removed.iter().flatten() {
            // Others go along: whoever removes what was just read goes on with them.
            let together = self.inodes.take_close_with_others(*inode, CLOSES_AT_ONCE_MAX);
            self.close_all(together, &|| until, until);
        }
        let is_unknown = removed.iter().any(Option::is_none) && self.inodes.hasten_closes();
        if is_unknown || self.inodes.closes_due_at().is_some_and(|at| at <= until) {
            self.heart.wake();
        }
    }

    /// Closes what is due, as far as there is time until then. Returns when the next one is due.
    pub(crate) fn close_due(self: &Arc<Client>, until: Instant) -> Option<Instant> {
        self.close_all_due(&|| until.min(Instant::now() + PATIENCE), until);
        self.inodes.closes_due_at()
    }

    /// Repeats what found no room to open one more file, once what is open here for deferred closes is closed.
    pub(crate) fn with_room_to_open<T>(self: &Arc<Client>, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(error) if error.kind() == ErrorKind::TooMany && self.inodes.hasten_closes() => {
                let until = self.deadline();
                self.close_all_due(&|| until, until);
                self.heart.wake();
                open()
            }
            opened => opened,
        }
    }

    /// Repeats a change that some session's open file stands in the way of (`Busy`), for as long as others may need to close
    /// what they have deferred.
    pub(crate) fn once_closed<T>(&self, inode: InodeId, change: impl Fn() -> Result<T>) -> Result<T> {
        let mut until = None;
        loop {
            let changed = change();
            let is_busy = changed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy);
            let now = Instant::now();
            if !is_busy || now >= *until.get_or_insert(now + OTHERS_CLOSE) {
                return changed;
            }
            self.hasten_close(inode);
            std::thread::sleep(OTHERS_CLOSE_PAUSE);
        }
    }

    fn close_all_due(self: &Arc<Client>, by: &dyn Fn() -> Instant, until: Instant) {
        loop {
            let due = self.inodes.take_due_closes(Instant::now(), CLOSES_AT_ONCE_MAX);
            if due.is_empty() || !self.close_all(due, by, until) {
                return;
            }
        }
    }

    /// Closes these; `false`: time was over before.
    fn close_all(self: &Arc<Client>, inodes: Vec<InodeId>, by: &dyn Fn() -> Instant, until: Instant) -> bool {
        let mut slots = BTreeMap::<Slot, Vec<InodeId>>::new();
        inodes.into_iter().for_each(|inode| slots.entry(inode.slot()).or_default().push(inode));
        let mut in_time = true;
        for (slot, inodes) in slots {
            in_time &= Instant::now() < until;
            match in_time {
                true => self.close_together(slot, &inodes, by),
                false => self.inodes.defer_again(&inodes, PATIENCE),
            }
        }
        in_time
    }

    /// Closes inodes of one slot by one message. What that does not close is left to the outbox.
    fn close_together(self: &Arc<Client>, slot: Slot, inodes: &[InodeId], by: &dyn Fn() -> Instant) {
        if !self.answers(slot) {
            return self.inodes.defer_again(inodes, Duration::from_millis(limits::HEARTBEAT_MILLIS));
        }
        let mut later = BTreeSet::new();
        self.inodes.close_deferred(inodes, |inodes| {
            later.extend(inodes);
            let close = |inode: &InodeId| Close { inode: *inode, modified: None, leases: false };
            let (requests, mut next): (Vec<Close>, _) = (inodes.iter().map(close).collect(), inodes.iter());
            // What the message fails with concerns all that is left.
            let _ = self.change_many(slot, &requests, by, |closed| {
                if let Some(inode) = next.next().filter(|_| is_closed(&closed)) {
                    later.remove(inode);
                }
            });
            later.clone()
        });
        later.into_iter().for_each(|inode| _ = self.send_later(Message::Close(inode)));
    }
}

/// Whether the session does not have the inode open any more.
fn is_closed(closed: &Result<Closed>) -> bool {
    let is_gone =
        |error: &Error| matches!(error.kind(), ErrorKind::BadHandle | ErrorKind::NotFound | ErrorKind::Stale);
    closed.as_ref().map_or_else(is_gone, |_| true)
}
