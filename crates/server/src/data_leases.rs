//! Leases on bytes: the rules are in [`DataLeases`], this code applies them. It provides the bytes of lanes
//! and inodes and the time, and wakes waiting tasks.
//!
//! A change of bytes announces itself ([`Server::before_change`]) in the step that does it; its call then
//! waits at the gate for the recalls that this made. Write-backs are answered at once: a kernel holds their
//! pages.

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, LaneId, Result, SessionId, limits};
use ramlace_lanes::{Change, DataLeases, Place, Stored};
use ramlace_store::Store;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::inline::{Bytes, BytesPlace, FirstPage, InlineMode, Promote, WriteInline};
use ramlace_wire::leases::{EndRecalls, WaitPublished};
use ramlace_wire::peer::{InodeAnswer, QueryPages};

use crate::chunk::checked_range;
use crate::gate::Call;
use crate::origin::{gives_lease, promoted_by, spared_by};
use crate::record::Record;
use crate::server::data_desk::place_of;
use crate::server::{Outcome, Server};

impl Server {
    /// A session reads bytes of a place for its kernel's pages; an empty range only asks for a lease. Returns
    /// whether it had a lease on all of the place before.
    ///
    /// Errors: those of [`Server::note_leases`]; `Stale` for a session that has ended.
    pub fn keep_pages(self: &Rc<Self>, place: Place, session: SessionId, range: ByteRange) -> Result<bool> {
        self.check_session(session)?;
        self.note_leases(session, false)?;
        let now = self.data.now();
        // If the table is full, another's lease is recalled.
        Ok(self.data.change_leases(|leases| match range.is_empty() {
            true => leases.keep_whole(place, session, now),
            false => leases.keep(place, session, range, now),
        }))
    }

    /// Bytes of a lane are about to change, in this very step: `by` is the session that changes them, and
    /// `call` waits for the clients that have pages of them.
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

    /// The same for ranges that ascend and do not overlap.
    pub fn before_changes(
        &self,
        call: Option<&Call>,
        by: SessionId,
        lane: LaneId,
        ranges: &[ByteRange],
        change: Change,
    ) -> Result<()> {
        let recalls = self.recall_before(by, lane, ranges, change)?;
        self.wait_for(call, recalls);
        self.log_pages()
    }

    /// Bytes of a lane are about to be cut off, in this very step. Returns the recalls that the truncation
    /// has to wait for.
    pub fn before_cut(&self, by: SessionId, lane: LaneId, length: u64) -> Result<Vec<u64>> {
        let behind = ByteRange { start: length, end: u64::MAX };
        // What goes away is no longer there for whoever cuts it, either.
        let read = |range| read_lane(&mut self.store.borrow_mut(), lane, range);
        self.lane_desk.outgoing.meet(lane, &[behind], SessionId::NONE, read)?;
        let recalls = self.recall_before(by, lane, &[behind], Change::Erase)?;
        if !recalls.is_empty() {
            self.data.changed.notify_waiters();
        }
        self.log_pages()?;
        Ok(recalls)
    }

    /// The same; the caller logs and tells it. Returns the recalls that have to be waited for.
    pub fn recall_before(
        &self,
        by: SessionId,
        lane: LaneId,
        ranges: &[ByteRange],
        change: Change,
    ) -> Result<Vec<u64>> {
        let mut store = self.store.borrow_mut();
        self.lane_desk.outgoing.meet(lane, ranges, by, |range| read_lane(&mut store, lane, range))?;
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> =
            &mut |range| read_lane(&mut store, lane, range);
        let (place, now) = (place_of(lane), self.data.now());
        self.data.change_leases(|leases| leases.before_changes(place, by, ranges, change, read, now))
    }

    /// Logs which pages are about to change in this step while others still have to drop them, and which were
    /// dropped.
    pub fn log_pages(&self) -> Result<()> {
        if !self.data.leases.borrow().has_news() {
            return Ok(());
        }
        let mut news = self.data.leases.borrow_mut().take_news().into_iter();
        while let Some(next) = news.next() {
            if !self.durable.borrow().pages.is_news(&next) {
                continue;
            }
            let Err(error) = self.commit_own(&Record::Pages(next)) else { continue };
            let mut leases = self.data.leases.borrow_mut();
            if !leases.may_wait(&next) {
                leases.put_news_back(std::iter::once(next).chain(news).collect());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Logs that a session has pages, which must be known after a restart.
    ///
    /// Errors: those of a commit without room in the log. Then the session must not get any.
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

    /// Whether a write may be received into its place: no other client has pages of these bytes, and no base
    /// of the session's own pages has to be noted.
    pub fn is_alone(
        &self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        origin: WriteOrigin,
    ) -> Result<bool> {
        let spared = spared_by(session, origin);
        self.data.leases.borrow().is_alone(place, spared, range, origin == WriteOrigin::Back)
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

    /// Bytes that a session's kernel caches are in place; `bytes` are empty if no other client had pages of
    /// them. A session that has ended meanwhile gets no lease by this: nothing would ever remove it.
    pub fn note_written(
        &self,
        place: Place,
        session: SessionId,
        range: ByteRange,
        bytes: &[u8],
        origin: WriteOrigin,
    ) {
        if self.check_session(session).is_err() {
            return;
        }
        let now = self.data.now();
        let mut leases = self.data.leases.borrow_mut();
        match origin {
            WriteOrigin::Program | WriteOrigin::Beside => {}
            WriteOrigin::Through => leases.wrote_through(place, session, range, bytes, now),
            WriteOrigin::Back => leases.wrote_back(place, session, range.start, bytes, now),
        }
    }

    /// The newest recall that a session's write-backs of a place have made; 0: none that is waited for.
    pub fn newest_recall(&self, place: Place, session: SessionId) -> u64 {
        self.data.leases.borrow().newest_at(place, session).unwrap_or(0)
    }

    /// A lane was dropped for ever.
    pub fn forget_leases(&self, lane: LaneId) {
        self.data.leases.borrow_mut().forget(place_of(lane));
        self.data.changed.notify_waiters();
    }

    /// A holder has dropped its pages, or cannot do so yet.
    ///
    /// Errors: `Invalid` if the request has more numbers than one message may acknowledge.
    pub fn end_recalls(&self, session: SessionId, request: &EndRecalls) -> Result<()> {
        let EndRecalls { done, blocked, relaxed, life: _ } = request;
        let count = done.len() + blocked.len() + relaxed.len();
        let most = limits::DATA_RECALLS_PER_MESSAGE_MAX;
        if count > most {
            let text = format!("one message acknowledges at most {most} recalls, not {count}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut leases = self.data.leases.borrow_mut();
        let mut changed = leases.acknowledge(session, request);
        drop(leases);
        if request.life == self.data.life {
            changed |= self.has_returned(session);
        }
        if changed {
            self.data.changed.notify_waiters();
        }
        // If there is no room in the log now, it is logged later: until then a restarted server would trust
        // fewer pages than it could.
        let _ = self.log_pages();
        Ok(())
    }

    /// A session has dropped everything from before this incarnation of the server.
    fn has_returned(&self, session: SessionId) -> bool {
        self.data.leases.borrow_mut().has_returned(session)
    }

    /// Answers when all clients see what a session has written back.
    pub async fn wait_published(&self, session: SessionId, request: WaitPublished) {
        let made = self.data.leases.borrow().of_others(session, request.recall);
        self.data.pass_published(&made).await;
    }

    /// Inline bytes are about to change. From a write-back only what programs have stored is taken, and the
    /// rest is left as it is here; what its kernel has then is noted when that is done
    /// ([`Server::note_written`]).
    pub fn before_inline_write(&self, call: &Call, request: &mut WriteInline) -> Result<()> {
        let place = (request.inode, None);
        let Some((size, here)) = self.inline_now(request.inode) else { return Ok(()) };
        let start = match request.mode {
            InlineMode::End => size,
            InlineMode::At | InlineMode::Within => request.offset,
        };
        // The slot refuses invalid ranges.
        let Ok(range) = checked_range(start, request.bytes.0.len() as u64) else { return Ok(()) };
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> = &mut |range| Ok(part_of(&here, range));
        let (session, now) = (call.session, self.data.now());
        self.check_session(session)?;
        if gives_lease(request.origin) {
            self.note_leases(session, false)?;
        }
        if request.origin != WriteOrigin::Back {
            let spared = spared_by(session, request.origin);
            let before = |leases: &mut DataLeases| {
                leases.before_change(place, spared, range, Change::Write, read, now)
            };
            let recalls = self.data.change_leases(before)?;
            self.log_pages()?;
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
            Ok(merged)
        })?;
        self.log_pages()?;
        if let Some(merged) = merged {
            request.bytes = Bytes(merged);
        }
        Ok(())
    }

    /// A file may be about to become shorter. What others cache of its bytes is recalled, and that is logged,
    /// before any bytes are gone; what they write back is dropped once the truncation is certain.
    pub fn before_inline_cut(&self, call: &Call, inode: InodeId, size: u64) -> Result<()> {
        let gone = ByteRange { start: size, end: limits::INLINE_BYTES_MAX as u64 };
        if gone.is_empty() || self.inline_now(inode).is_none() {
            return Ok(());
        }
        self.before_inline_change(Some(call), call.session, inode, gone, Change::Write)
    }

    /// Inline bytes are about to change other than by a `WriteInline`.
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

    /// Inline bytes were changed by an earlier attempt of the request: clients that had pages of them then
    /// may still have them. `by`: whose pages do not count.
    pub fn changed_inline_before(&self, call: &Call, by: SessionId, inode: InodeId) -> Result<()> {
        let all = ByteRange { start: 0, end: limits::INLINE_BYTES_MAX as u64 };
        self.before_inline_change(Some(call), by, inode, all, Change::Stored)
    }

    /// Bytes are about to move from an inode to the file's lanes. Other clients have to drop their pages of
    /// them first, and so has the requester if it can, else soon: a lease belongs to the place where the bytes are.
    pub async fn before_promotion(self: &Rc<Self>, call: &Call, request: &Promote) -> Outcome<()> {
        let (place, all) = ((request.inode, None), ByteRange { start: 0, end: u64::MAX });
        let is_reading = request.first_page == FirstPage::Read;
        let _promoting = is_reading.then(|| Promoting::begin(self, place, call.session));
        loop {
            let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> = &mut |_| Ok(Vec::new());
            let now = self.data.now();
            let mut recalls = self.data.leases.borrow_mut().before_change(
                place,
                promoted_by(call.session, request.first_page),
                all,
                Change::Stored,
                read,
                now,
            )?;
            // What the requester has stored can be merged with what others have changed as long as the base is here.
            recalls.extend(self.data.leases.borrow().small_with_base(place, call.session));
            // Sessions whose kernels wait for the promotion to read the page have none.
            recalls.retain(|number| self.data.is_any_waited(&[*number]));
            if recalls.is_empty() {
                break;
            }
            self.data.changed.notify_waiters();
            self.data.pass(&recalls).await;
            self.admit_slot(call, place.0.slot()).await?;
        }
        let is_recalled = request.first_page == FirstPage::Free;
        if !is_recalled && self.data.leases.borrow_mut().recall_from(place, call.session, self.data.now()) {
            self.data.changed.notify_waiters();
        }
        Ok(())
    }

    /// The bytes of a file have left its inode. Clients that have read them during the move have a lease on a
    /// place where they no longer are: changes in lanes would not recall it.
    pub fn recall_left(&self, inode: InodeId) {
        let all = ByteRange { start: 0, end: limits::INLINE_BYTES_MAX as u64 };
        let recalled = self.before_inline_change(None, SessionId::NONE, inode, all, Change::Stored);
        // The recall is made even if it finds no room in the log.
        recalled.unwrap_or_else(|error| eprintln!("ramlace: {error}"));
    }

    /// The sessions that have yet to drop pages of a file's inline bytes. While these go to lane 0, those count that had
    /// them before this server's restart.
    pub fn late_with_inline(&self, inode: InodeId, place: BytesPlace) -> Vec<SessionId> {
        let (inline, all) = ((inode, None), ByteRange { start: 0, end: u64::MAX });
        let now = self.data.now();
        let late = self.data.change_leases(|leases| {
            if place == BytesPlace::Leaving {
                leases.recalled_before(inline, SessionId::NONE, all, now);
            }
            leases.late_at(inline)
        });
        late.into_iter().take(limits::KEPT_BY_SESSIONS_MAX).collect()
    }

    /// A lane begins, and kernels have yet to drop pages of the file from when its bytes were in its inode: whoever
    /// changes bytes of the lane asks the home about nothing, and recalls them here. From a session that does not listen
    /// here nothing can be recalled; the one that promotes a file does ([`ramlace_wire::inline::Promote`]).
    pub fn keep_from_home(&self, lane: LaneId, answer: &InodeAnswer) -> Result<()> {
        let length = ramlace_layout::lane_length(&answer.layout, lane.lane, answer.size);
        for session in answer.kept_by.iter().filter(|session| length > 0 && self.events.listens(**session)) {
            self.note_leases(*session, false)?;
            let now = self.data.now();
            self.data.change_leases(|leases| leases.keep_below(place_of(lane), *session, length, now));
        }
        Ok(())
    }

    /// Pages are written back to a lane, and may be from when the file was inline: then its home has recalled
    /// them, perhaps in vain, and only the home knows what others have changed since.
    pub async fn ask_for_small(
        self: &Rc<Self>,
        session: SessionId,
        lane: LaneId,
        range: ByteRange,
    ) -> Outcome<()> {
        let place = place_of(lane);
        if !self.data.leases.borrow().may_be_small(place, session, range) {
            return Ok(());
        }
        let (slot, request) = (lane.inode.slot(), QueryPages { inode: lane.inode, session });
        match self.primary(slot)? == self.me {
            true => self.query_pages(request)?,
            false => self.call_peer(slot, &request).await?,
        }
        self.data.leases.borrow_mut().is_not_small(place, session, range);
        Ok(())
    }

    /// Whether a session may write back the pages that it has from when the file was inline.
    ///
    /// Errors: `Stale` when others have changed it since, or the session has ended.
    pub fn query_pages(&self, request: QueryPages) -> Result<()> {
        self.check_session(request.session)?;
        self.data.leases.borrow().check_small((request.inode, None), request.session)
    }

    /// The size and bytes of an inline file; `None`: it has lanes.
    fn inline_now(&self, inode: InodeId) -> Option<(u64, Vec<u8>)> {
        let durable = self.durable.borrow();
        let (size, bytes) = durable.names(inode.slot())?.inline_now(inode)?;
        Some((size, bytes.to_vec()))
    }
}

/// Held while a session's kernel reads a page of an inode whose bytes have to be moved to lanes first.
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
pub fn read_lane(store: &mut Store, lane: LaneId, range: ByteRange) -> Result<Vec<u8>> {
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
