//! Leases on bytes: the rule is [`DataLeases`], this drives it. It brings the bytes of lanes and inodes and the
//! time, and wakes those who wait.
//!
//! A change of bytes names what it is about to do ([`Server::before_change`]) in the step that does it; its call then
//! waits at the gate for the recalls that this made. Write-backs are answered at once: a kernel holds their pages.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, LaneId, Result, SessionId, limits};
use ramlace_lanes::{Asked, Change, DataLeases, Held, News, Place, Stored, Ticket};
use ramlace_store::Store;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::inline::{Bytes, InlineMode, WriteInline};
use ramlace_wire::leases::{DataRecall, EndRecalls, WaitPublished};
use tokio::sync::Notify;
use tokio::time::sleep_until;

use crate::chunk::checked_range;
use crate::clock;
use crate::gate::Call;
use crate::record::Record;
use crate::server::{Outcome, Server};
use crate::staging::StagingRoom;

/// All leases on bytes of a server, and who waits for what.
pub struct DataDesk {
    leases: RefCell<DataLeases>,
    began: Instant,
    /// This life of the server: no other has this number.
    pub life: u64,
    /// A recall began, or is over.
    pub changed: Notify,
    /// For bytes that wait.
    pub staging: StagingRoom,
}

impl DataDesk {
    /// A server begins, with what its last life has left.
    pub fn new(leases: DataLeases, life: u64, now: Instant) -> DataDesk {
        DataDesk {
            leases: RefCell::new(leases.counting_from(life >> 1)),
            began: now,
            life: life.max(1),
            changed: Notify::new(),
            staging: StagingRoom::default(),
        }
    }

    /// Milliseconds since the server's life began.
    pub fn now(&self) -> u64 {
        clock::instant().saturating_duration_since(self.began).as_millis() as u64
    }

    /// A session has ended.
    pub fn end_session(&self, session: SessionId) {
        self.leases.borrow_mut().end_session(session);
        self.changed.notify_waiters();
    }

    /// Whether nobody has a lease.
    pub fn is_idle(&self) -> bool {
        self.leases.borrow().is_idle()
    }

    /// What a session has yet to acknowledge above a number.
    pub fn unacknowledged(&self, session: SessionId, above: u64) -> Vec<DataRecall> {
        self.leases.borrow().unacknowledged(session, above)
    }

    /// Whether an answer has to wait for one of these.
    pub fn is_any_waited(&self, numbers: &[u64]) -> bool {
        let leases = self.leases.borrow();
        numbers.iter().any(|number| leases.is_waited(*number))
    }

    /// Waits until no answer has to wait for these any more.
    pub async fn pass(&self, numbers: &[u64]) {
        while self.is_any_waited(numbers) {
            if self.leases.borrow_mut().retell_waited(numbers, self.now()) {
                self.changed.notify_waiters();
            }
            self.next_change().await;
        }
    }

    /// Waits until there is room for copies of pages: others have dropped theirs. `through`: whose kernel may have which pages locked
    /// until then. If it is to drop some of these it cannot, and what is kept for that may be what takes the room.
    pub async fn room_for_bases(&self, through: Option<(Place, SessionId, ByteRange)>) {
        let is_awaited =
            || through.is_some_and(|(place, session, of)| self.has_yet_to_drop(place, session, of));
        while self.leases.borrow().base_bytes() > limits::DATA_BASE_BYTES_MAX && !is_awaited() {
            self.next_change().await;
        }
    }

    /// Whether a session has yet to drop some of these bytes.
    pub fn has_yet_to_drop(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        self.leases.borrow().has_yet_to_drop(place, session, range)
    }

    /// Bytes that a session's kernel has in its pages begin to arrive.
    pub fn begin_through(&self, place: Place, session: SessionId, range: ByteRange) {
        let now = self.now();
        self.change_leases(|leases| leases.begin_through(place, session, range, now));
    }

    /// Whoever waits, or has something to drop, hears of what this changes for him.
    fn change_leases<T>(&self, change: impl FnOnce(&mut DataLeases) -> T) -> T {
        let mut leases = self.leases.borrow_mut();
        let before = leases.told();
        let changed = change(&mut leases);
        let is_news = leases.told() != before;
        drop(leases);
        if is_news {
            self.changed.notify_waiters();
        }
        changed
    }

    /// Who has what, and who waits, of one file or of all.
    pub fn held(&self, inode: Option<InodeId>) -> Vec<Held> {
        self.leases.borrow().held(inode)
    }

    /// Whether strict mounts are at a place.
    pub fn is_strict(&self, place: Place) -> bool {
        self.leases.borrow().is_strict(place)
    }

    /// Whether what is asked may be done in this step. Whoever has to drop pages for it hears of that.
    pub fn claim(&self, asked: &Asked, ticket: &mut Ticket) -> Result<bool> {
        let mut leases = self.leases.borrow_mut();
        let (told, before) = (leases.told(), *ticket);
        let granted = leases.claim(asked, ticket, self.now());
        // One that has begun to wait is one that others need not wait for.
        if leases.told() != told || *ticket != before {
            self.changed.notify_waiters();
        }
        granted
    }

    /// A claim is over.
    pub fn end_claim(&self, place: Place, ticket: Ticket) {
        if self.leases.borrow_mut().end_claim(place, ticket) {
            self.changed.notify_waiters();
        }
    }

    /// A write by way of a kernel's pages waits before its bytes are here.
    pub fn comes(&self, place: Place, session: SessionId, range: ByteRange) {
        self.leases.borrow_mut().comes(place, session, range);
        self.changed.notify_waiters();
    }

    /// They are here, or it is over.
    pub fn has_come(&self, place: Place, session: SessionId, range: ByteRange) {
        self.leases.borrow_mut().has_come(place, session, range);
    }

    /// Something is acknowledged, or somebody's time is over.
    pub async fn next_change(&self) {
        let end = self.leases.borrow().next_end();
        // The clock is read in whole milliseconds: one more is surely behind it.
        let end = self.began + Duration::from_millis(end.map_or(self.now() + 1_000, |end| end + 1));
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep_until(end.into()) => {
                if self.leases.borrow_mut().pass(self.now()) {
                    self.changed.notify_waiters();
                }
            }
        }
    }
}

/// Where the bytes of a lane are.
pub fn place_of(lane: LaneId) -> Place {
    (lane.inode, Some(lane.lane))
}

impl Server {
    /// A session reads bytes of a place for its kernel's pages, or none and wants a lease. Whether it had one on all of it before.
    ///
    /// Errors: those of [`Server::note_leases`].
    pub fn keep_pages(self: &Rc<Self>, place: Place, session: SessionId, range: ByteRange) -> Result<bool> {
        self.note_leases(session, false)?;
        let now = self.data.now();
        // A full table recalls another's.
        Ok(self.data.change_leases(|leases| match range.is_empty() {
            true => leases.keep_whole(place, session, now),
            false => leases.keep(place, session, range, now),
        }))
    }

    /// Bytes of a lane are about to change, in this very step: `by` whom, and which call waits for those who have pages of
    /// them.
    pub fn before_change(
        &self,
        call: Option<&Call>,
        by: SessionId,
        lane: LaneId,
        range: ByteRange,
        change: Change,
    ) -> Result<()> {
        self.before_changes(call, by, lane, &[range], change)
    }

    /// The same of ranges that ascend and do not overlap.
    pub fn before_changes(
        &self,
        call: Option<&Call>,
        by: SessionId,
        lane: LaneId,
        ranges: &[ByteRange],
        change: Change,
    ) -> Result<()> {
        let mut store = self.store.borrow_mut();
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> =
            &mut |range| read_lane(&mut store, lane, range);
        let (place, now) = (place_of(lane), self.data.now());
        let recalls =
            self.data.change_leases(|leases| leases.before_changes(place, by, ranges, change, read, now))?;
        drop(store);
        self.wait_for(call, recalls);
        self.log_pages()
    }

    /// The log hears of pages that are about to change in this step, and that others have yet to drop; and of those that were dropped.
    pub fn log_pages(&self) -> Result<()> {
        if !self.data.leases.borrow().has_news() {
            return Ok(());
        }
        let mut news = self.data.leases.borrow_mut().take_news().into_iter();
        while let Some(next) = news.next() {
            if !self.durable.borrow().pages.is_news(&next) {
                continue;
            }
            if let Err(error) = self.commit_own(&Record::Pages(next)) {
                let left = std::iter::once(next).chain(news).collect();
                self.data.leases.borrow_mut().put_news_back(left);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The next life has to know who has pages.
    ///
    /// Errors: those of a commit, where there is no room for that. Then there are to be none.
    pub fn note_leases(&self, session: SessionId, strict: bool) -> Result<()> {
        if self.durable.borrow().pages.knows(session, strict) {
            return Ok(());
        }
        self.commit_own(&Record::SessionKeepsPages { session, strict })
    }

    fn wait_for(&self, call: Option<&Call>, recalls: Vec<u64>) {
        if recalls.is_empty() {
            return;
        }
        self.data.changed.notify_waiters();
        if let Some(call) = call {
            call.waits_for(recalls);
        }
    }

    /// Whether a write may go to its place as it arrives: nobody else has pages of these bytes, and nobody has to be
    /// told what a session's own are based on.
    pub fn is_alone(
        &self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        origin: WriteOrigin,
    ) -> Result<bool> {
        self.data.leases.borrow().is_alone(place, session, range, origin == WriteOrigin::Back)
    }

    /// What programs have stored in pages that are written back to a lane.
    pub fn stored_in_pages(
        &self,
        session: SessionId,
        lane: LaneId,
        start: u64,
        bytes: &[u8],
    ) -> Result<Stored> {
        let mut store = self.store.borrow_mut();
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> =
            &mut |range| read_lane(&mut store, lane, range);
        self.data.leases.borrow_mut().stored(place_of(lane), session, start, bytes, read, self.data.now())
    }

    /// Bytes that a session's kernel has are in their place; `bytes` are empty where nobody else had pages of them.
    pub fn note_written(
        &self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        bytes: &[u8],
        origin: WriteOrigin,
    ) {
        let now = self.data.now();
        let mut leases = self.data.leases.borrow_mut();
        match origin {
            WriteOrigin::Program => {}
            WriteOrigin::Through => leases.wrote_through(place, session, range, bytes, now),
            WriteOrigin::Back => leases.wrote_back(place, session, range.start, bytes, now),
        }
    }

    /// The newest recall that a session's write-backs of a place have made; 0: none that is waited for.
    pub fn newest_recall(&self, place: Place, session: SessionId) -> u64 {
        self.data.leases.borrow().newest_at(place, session).unwrap_or(0)
    }

    /// A lane is gone for ever.
    pub fn forget_leases(&self, lane: LaneId) {
        self.data.leases.borrow_mut().forget(place_of(lane));
        self.data.changed.notify_waiters();
    }

    /// A holder has dropped its pages, or cannot yet.
    ///
    /// Errors: `Invalid` for more than one message may acknowledge.
    pub fn end_recalls(&self, session: SessionId, request: &EndRecalls) -> Result<()> {
        let (count, most) =
            (request.done.len() + request.blocked.len(), limits::DATA_RECALLS_PER_MESSAGE_MAX);
        if count > most {
            let text = format!("one message acknowledges at most {most} recalls, not {count}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut leases = self.data.leases.borrow_mut();
        let mut changed = leases.acknowledge(session, &request.done, &request.blocked);
        drop(leases);
        if request.life == self.data.life {
            changed |= self.has_returned(session);
        }
        if changed {
            self.data.changed.notify_waiters();
        }
        // Where there is no room for it now there is later: until then the next life believes less than it might.
        let _ = self.log_pages();
        Ok(())
    }

    /// A session has dropped all that it had from the last life.
    fn has_returned(&self, session: SessionId) -> bool {
        let mut leases = self.data.leases.borrow_mut();
        let of_before = self.durable.borrow().pages.numbers_of(session).into_iter();
        let dropped = of_before.filter(|number| !leases.is_pending(*number));
        let dropped = dropped.map(|number| News::Dropped { number }).collect();
        leases.put_news_back(dropped);
        leases.has_returned(session)
    }

    /// Answers when everybody sees what a session has written back.
    pub async fn wait_published(&self, session: SessionId, request: WaitPublished) {
        let made = self.data.leases.borrow().of_others(session, request.recall);
        self.data.pass(&made).await;
    }

    /// Bytes that live with an inode are about to change. A write-back keeps what programs have stored, and takes over the
    /// rest as it is here.
    pub fn before_inline_write(&self, call: &Call, request: &mut WriteInline) -> Result<()> {
        let place = (request.inode, None);
        let Some((size, here)) = self.inline_now(request.inode) else { return Ok(()) };
        let start = match request.mode {
            InlineMode::End => size,
            InlineMode::At | InlineMode::Within => request.offset,
        };
        // What makes no sense is refused by the slot.
        let Ok(range) = checked_range(start, request.bytes.0.len() as u64) else { return Ok(()) };
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> = &mut |range| Ok(part_of(&here, range));
        let (session, now) = (call.session, self.data.now());
        if request.origin != WriteOrigin::Back {
            let before = |leases: &mut DataLeases| {
                leases.before_change(place, session, range, Change::Write, read, now)
            };
            let recalls = self.data.change_leases(before)?;
            self.log_pages()?;
            if request.origin == WriteOrigin::Through {
                self.note_leases(session, false)?;
            }
            self.note_written(place, session, range, &request.bytes.0, request.origin);
            self.wait_for(Some(call), recalls);
            return Ok(());
        }
        let merged = self.data.change_leases(|leases| -> Result<Option<Vec<u8>>> {
            let Stored { ranges, merged } =
                leases.stored(place, session, start, &request.bytes.0, read, now)?;
            for changed in ranges {
                leases.before_change(place, session, changed, Change::Write, read, now)?;
            }
            leases.wrote_back(place, session, start, &request.bytes.0, now);
            Ok(merged)
        })?;
        self.log_pages()?;
        if let Some(merged) = merged {
            request.bytes = Bytes(merged);
        }
        Ok(())
    }

    /// Other bytes that live with an inode are about to change.
    pub fn before_inline_change(
        &self,
        call: Option<&Call>,
        by: SessionId,
        inode: InodeId,
        range: ByteRange,
        change: Change,
    ) -> Result<()> {
        let (_, here) = self.inline_now(inode).unwrap_or_default();
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> = &mut |range| Ok(part_of(&here, range));
        let now = self.data.now();
        let recalls = self
            .data
            .change_leases(|leases| leases.before_change((inode, None), by, range, change, read, now))?;
        self.wait_for(call, recalls);
        self.log_pages()
    }

    /// Bytes that live with an inode were changed when the request came before: whoever had pages of them then may have them still.
    pub fn changed_inline_before(&self, call: &Call, inode: InodeId) -> Result<()> {
        let all = ByteRange { start: 0, end: limits::INLINE_BYTES_MAX as u64 };
        self.before_inline_change(Some(call), call.session, inode, all, Change::Stored)
    }

    /// Bytes are about to go from an inode to the file's lanes: whoever has pages of them is to drop them first, and
    /// whoever asks, soon: leases are at the place where bytes are.
    pub async fn before_promotion(self: &Rc<Self>, call: &Call, place: Place) -> Outcome<()> {
        let all = ByteRange { start: 0, end: u64::MAX };
        let _promoting = Promoting::begin(self, place, call.session);
        loop {
            let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> = &mut |_| Ok(Vec::new());
            let now = self.data.now();
            let mut recalls = self.data.leases.borrow_mut().before_change(
                place,
                call.session,
                all,
                Change::Stored,
                read,
                now,
            )?;
            // Whoever wants the same drops what it has when that is done.
            recalls.retain(|number| self.data.is_any_waited(&[*number]));
            if recalls.is_empty() {
                break;
            }
            self.data.changed.notify_waiters();
            self.data.pass(&recalls).await;
            self.admit_slot(call, place.0.slot()).await?;
        }
        if self.data.leases.borrow_mut().recall_from(place, call.session, self.data.now()) {
            self.data.changed.notify_waiters();
        }
        Ok(())
    }

    /// The size of a file, and the bytes that live with its inode; `None`: it has lanes.
    fn inline_now(&self, inode: InodeId) -> Option<(u64, Vec<u8>)> {
        let durable = self.durable.borrow();
        let (size, bytes) = durable.names(inode.slot())?.inline_now(inode)?;
        Some((size, bytes.to_vec()))
    }
}

/// For as long as a session waits for an inode's bytes to be moved to lanes.
struct Promoting<'a> {
    server: &'a Server,
    place: Place,
    session: SessionId,
}

impl Promoting<'_> {
    fn begin(server: &Server, place: Place, session: SessionId) -> Promoting<'_> {
        server.data.leases.borrow_mut().begin_promotion(place, session);
        server.data.changed.notify_waiters();
        Promoting { server, place, session }
    }
}

impl Drop for Promoting<'_> {
    fn drop(&mut self) {
        self.server.data.leases.borrow_mut().end_promotion(self.place, self.session);
    }
}

/// Bytes of a lane; zeros where there are none.
fn read_lane(store: &mut Store, lane: LaneId, range: ByteRange) -> Result<Vec<u8>> {
    let mut bytes = vec![0; range.length() as usize];
    if store.has_lane(lane) {
        store.read_staged(lane, range.start, &mut bytes)?;
    }
    Ok(bytes)
}

fn part_of(bytes: &[u8], range: ByteRange) -> Vec<u8> {
    let start = bytes.len().min(range.start as usize);
    let end = bytes.len().min(range.end.min(bytes.len() as u64) as usize);
    let mut part = bytes[start..end].to_vec();
    part.resize(range.length() as usize, 0);
    part
}

#[cfg(test)]
mod tests {
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
            // Pages that it is not to drop hold nothing up, until it is to drop them as well.
            assert!(waits(Some((PLACE, session(1), behind))).await);
            let asked = async {
                tokio::task::yield_now().await;
                change(&desk, behind);
            };
            tokio::join!(desk.room_for_bases(Some((PLACE, session(1), behind))), asked);
        });
    }
}
