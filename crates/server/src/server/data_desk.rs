//! A server's leases on bytes, and the tasks that wait for them: see [`crate::data_leases`].

use std::cell::RefCell;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, InodeId, LaneId, Result, SessionId, limits};
use ramlace_lanes::{Asked, DataLeases, Held, Place, Ticket};
use ramlace_wire::leases::DataRecall;
use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::clock;
use crate::server::staging_room::StagingRoom;

/// All leases on bytes of a server, and the tasks that wait for them.
pub struct DataDesk {
    pub leases: RefCell<DataLeases>,
    began: Instant,
    /// This incarnation of the server: the number is unique.
    pub life: u64,
    /// Notified when a recall begins or ends.
    pub changed: Notify,
    /// Room for bytes that wait.
    pub staging: StagingRoom,
}

impl DataDesk {
    /// At the start of a server, with what its last incarnation has left.
    pub fn new(leases: DataLeases, life: u64, now: Instant) -> DataDesk {
        DataDesk {
            leases: RefCell::new(leases.counting_from(life >> 1)),
            began: now,
            life: life.max(1),
            changed: Notify::new(),
            staging: StagingRoom::default(),
        }
    }

    /// Milliseconds since this incarnation began.
    pub fn now(&self) -> u64 {
        clock::instant().saturating_duration_since(self.began).as_millis() as u64
    }

    /// A session has ended.
    pub fn end_session(&self, session: SessionId) {
        self.leases.borrow_mut().end_session(session);
        self.changed.notify_waiters();
    }

    /// Whether there are no leases.
    pub fn is_idle(&self) -> bool {
        self.leases.borrow().is_idle()
    }

    /// The recalls above a number that a session still has to acknowledge; but those that may wait for a moment.
    pub fn unacknowledged(&self, session: SessionId, above: u64) -> Vec<DataRecall> {
        self.leases.borrow().told_by(session, above, self.now())
    }

    /// When it is told of the next.
    pub fn tells_at(&self, session: SessionId, above: u64) -> Option<Instant> {
        let at = self.leases.borrow().told_at(session, above)?;
        Some(self.began + Duration::from_millis(at))
    }

    /// Whether an answer has to wait for one of these.
    pub fn is_any_waited(&self, numbers: &[u64]) -> bool {
        let leases = self.leases.borrow();
        numbers.iter().any(|number| leases.is_waited(*number))
    }

    /// Fences the holders whose time is over. The tasks that wait here do it by themselves: this is for what is
    /// asked from outside, by those who wait elsewhere.
    pub fn end_late(&self) {
        if self.leases.borrow_mut().pass(self.now()) {
            self.changed.notify_waiters();
        }
    }

    /// Whether no answer has to wait for any of these, now.
    pub fn is_over(&self, numbers: &[u64]) -> bool {
        self.end_late();
        !self.is_any_waited(numbers)
    }

    /// Waits until no answer to a change has to wait for these any more.
    pub async fn pass(&self, numbers: &[u64]) {
        self.pass_while(numbers, DataLeases::is_waited).await;
    }

    /// Waits until these are over, whoever else has to wait for them.
    pub async fn pass_all(&self, numbers: &[u64]) {
        self.pass_while(numbers, DataLeases::is_left).await;
    }

    /// Waits until no answer to a publisher has to wait for these any more.
    pub async fn pass_published(&self, numbers: &[u64]) {
        self.pass_while(numbers, DataLeases::is_waited_by_publishers).await;
    }

    async fn pass_while(&self, numbers: &[u64], is_waited: impl Fn(&DataLeases, u64) -> bool) {
        let is_any_waited = || {
            let leases = self.leases.borrow();
            numbers.iter().any(|number| is_waited(&leases, *number))
        };
        while is_any_waited() {
            if self.leases.borrow_mut().resend_waited(numbers, self.now()) {
                self.changed.notify_waiters();
            }
            self.next_change().await;
        }
    }

    /// Waits until there is room for copies of pages, because others have dropped theirs. `through`: a
    /// session whose kernel may have pages locked until then. If the session has to drop some of these it
    /// cannot, and the copies kept because of that may be what takes the room: then this does not wait.
    pub async fn room_for_bases(&self, through: Option<(Place, SessionId, ByteRange)>) {
        let is_awaited =
            || through.is_some_and(|(place, session, of)| self.has_yet_to_drop(place, session, of));
        while self.leases.borrow().base_bytes() > limits::DATA_BASE_BYTES_MAX && !is_awaited() {
            self.next_change().await;
        }
    }

    /// Whether a session still has to drop some of these bytes.
    pub fn has_yet_to_drop(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        self.leases.borrow().has_yet_to_drop(place, session, range)
    }

    /// Bytes that a session's kernel caches begin to arrive.
    pub fn begin_through(&self, place: Place, session: SessionId, range: ByteRange) {
        let now = self.now();
        self.change_leases(|leases| leases.begin_through(place, session, range, now));
    }

    /// Changes the leases, and wakes the waiting tasks and the sessions that have to drop something because
    /// of it.
    pub fn change_leases<T>(&self, change: impl FnOnce(&mut DataLeases) -> T) -> T {
        let mut leases = self.leases.borrow_mut();
        let before = leases.notices();
        let changed = change(&mut leases);
        let is_news = leases.notices() != before;
        drop(leases);
        if is_news {
            self.changed.notify_waiters();
        }
        changed
    }

    /// The holders and the waiting claims, of one file or of all.
    pub fn held(&self, inode: Option<InodeId>) -> Vec<Held> {
        self.leases.borrow().held(inode)
    }

    /// Whether strict mounts use a place.
    pub fn is_strict(&self, place: Place) -> bool {
        self.leases.borrow().is_strict(place)
    }

    /// Whether the claim may be granted in this step. Clients that have to drop pages for it are notified.
    pub fn claim(&self, asked: &Asked, ticket: &mut Ticket) -> Result<bool> {
        let mut leases = self.leases.borrow_mut();
        let (notices, before) = (leases.notices(), *ticket);
        let granted = leases.claim(asked, ticket, self.now());
        // Others need not wait for a client that has begun to wait itself.
        if leases.notices() != notices || *ticket != before {
            self.changed.notify_waiters();
        }
        granted
    }

    /// A claim has ended.
    pub fn end_claim(&self, place: Place, ticket: Ticket) {
        if self.leases.borrow_mut().end_claim(place, ticket) {
            self.changed.notify_waiters();
        }
    }

    /// A write through a kernel's pages waits before its bytes are received.
    pub fn comes(&self, place: Place, session: SessionId, range: ByteRange) {
        self.leases.borrow_mut().comes(place, session, range);
        self.changed.notify_waiters();
    }

    /// The bytes are received, or the write has ended.
    pub fn has_come(&self, place: Place, session: SessionId, range: ByteRange) {
        self.leases.borrow_mut().has_come(place, session, range);
    }

    /// Waits until something is acknowledged, or a holder's time is over.
    pub async fn next_change(&self) {
        let end = self.leases.borrow().next_end();
        // The clock is read in whole milliseconds: one more is certainly later.
        let end = self.began + Duration::from_millis(end.map_or(self.now() + 1_000, |end| end + 1));
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep_until(end.into()) => self.end_late(),
        }
    }
}

/// The place of a lane's bytes.
pub fn place_of(lane: LaneId) -> Place {
    (lane.inode, Some(lane.lane))
}

#[cfg(test)]
mod tests {
    use ramlace_lanes::Change;

    use super::*;
    use crate::testing::run;

    const PLACE: Place = (InodeId(70), Some(0));

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    fn change(desk: &DataDesk, range: ByteRange) {
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> =
            &mut |range| Ok(vec![0; range.length() as usize]);
        desk.change_leases(|leases| leases.before_change(PLACE, session(2), range, Change::Write, read, 1))
            .unwrap();
    }

    // SEMANTICS 114.5
    #[test]
    fn whoever_asks_from_elsewhere_whether_a_recall_is_over_waits_for_no_holder_whose_time_is_over() {
        let age = Duration::from_millis(limits::DATA_RECALL_MILLIS);
        let desk = DataDesk::new(DataLeases::default(), 1, clock::instant() - age);
        let whole = ByteRange { start: 0, end: u64::MAX };
        let recall = |session, now| {
            let mut leases = desk.leases.borrow_mut();
            leases.keep(PLACE, session, whole, now);
            assert!(leases.recall_from(PLACE, session, now));
            leases.unacknowledged(session, 0)[0].number
        };
        let (late, in_time) = (recall(session(1), 0), recall(session(3), desk.now()));
        // No task of this server waits for them.
        assert!(desk.is_over(&[late]));
        assert!(!desk.is_over(&[late, in_time]));
    }

    // SEMANTICS 117.6
    #[test]
    fn a_write_to_pages_that_its_kernel_is_to_drop_waits_for_no_room_that_these_take() {
        run(async {
            let desk = DataDesk::new(DataLeases::default(), 1, clock::instant());
            let whole = ByteRange { start: 0, end: u64::MAX };
            desk.leases.borrow_mut().keep(PLACE, session(1), whole, 0);
            change(&desk, ByteRange { start: 0, end: limits::DATA_BASE_BYTES_MAX as u64 });
            let page = |at| ByteRange { start: at, end: at + 100 };
            let waits = async |through| {
                tokio::select! {
                    biased;
                    () = desk.room_for_bases(through) => false,
                    () = tokio::task::yield_now() => true,
                }
            };
            assert!(waits(None).await);
            assert!(waits(Some((PLACE, session(3), page(4096)))).await, "another kernel has dropped none");
            let (before, behind) = (page(4096), page(1 << 40));
            assert!(!waits(Some((PLACE, session(1), before))).await);
            // Pages that it need not drop delay nothing, until it has to drop them as well.
            assert!(waits(Some((PLACE, session(1), behind))).await);
            let asked = async {
                tokio::task::yield_now().await;
                change(&desk, behind);
            };
            tokio::join!(desk.room_for_bases(Some((PLACE, session(1), behind))), asked);
        });
    }
}
