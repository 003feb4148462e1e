//! Inline files, whose bytes live with their inode: `docs/records/inline-files.md`.
//!
//! A file begins inline and is promoted to its lanes once, when it grows beyond the limit of an inode or when
//! a client needs its lanes; it never becomes inline again. While it is inline no lane exists, and this slot
//! alone reads and changes its bytes. During the promotion (`Leaving`) it refuses changes, until lane 0 has
//! the bytes: no other client may write to a lane before.
//!
//! Invariant: the bytes end where the size does, or before; missing bytes are zero.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, LaneId, Result, SessionId, limits};
use ramlace_wire::OpenedFor;
use ramlace_wire::inline::{
    Bytes, BytesPlace, InlineMode, InlineOutcome, InlineRead, InlineWritten, Promote, Promoted, ReadInline,
    WriteInline,
};
use ramlace_wire::namespace::{SizeInfo, Truncate};
use ramlace_wire::peer::{FillLane, Token};

use crate::command::{Delivery, DeliveryId, Effect, Reply};
use crate::query::{AskedBy, Query};
use crate::sizes::check_size;
use crate::state::file::{File, Leaving};
use crate::state::inode::{Body, right};
use crate::state::{Caller, SlotState, Step};

impl File {
    pub(crate) fn place(&self) -> BytesPlace {
        match (&self.inline, self.leaving()) {
            (None, _) => BytesPlace::Lanes,
            (Some(_), None) => BytesPlace::Inode,
            (Some(_), Some(_)) => BytesPlace::Leaving,
        }
    }

    fn leaving(&self) -> Option<Leaving> {
        self.work.as_ref().and_then(|work| work.leaving)
    }

    pub(crate) fn inline_bytes(&self) -> u64 {
        self.inline.as_ref().map_or(0, |bytes| bytes.len() as u64)
    }

    /// Refuses an operation that needs lanes while the file is inline.
    pub(crate) fn check_in_lanes(&self, id: InodeId) -> Result<()> {
        match self.place() {
            BytesPlace::Lanes => Ok(()),
            BytesPlace::Leaving => self.check_not_leaving(id),
            BytesPlace::Inode => Err(Error::new(
                ErrorKind::Invalid,
                format!("the bytes of file {id} live with its inode; promote it first"),
            )),
        }
    }

    pub(crate) fn check_not_leaving(&self, id: InodeId) -> Result<()> {
        match self.leaving() {
            None => Ok(()),
            Some(Leaving { waiting: Some(_), .. }) => Err(Error::new(
                ErrorKind::Retry,
                format!("the bytes of file {id} are just going to another server"),
            )),
            Some(Leaving { waiting: None, .. }) => Err(out_of_reach(id)),
        }
    }

    pub(crate) fn size_info(&self) -> SizeInfo {
        SizeInfo { size: self.size, generation: self.generation }
    }

    fn promoted(&self) -> Reply {
        Reply::Promoted(Promoted { size: self.size_info(), since: self.layout.created })
    }

    /// Whether it can be promoted without a message to a lane: it has no bytes, and no lane can have begun. A
    /// lane that may have begun must be notified, even if it is to hold nothing.
    fn goes_to_lanes_alone(&self) -> bool {
        self.inline_bytes() == 0 && !self.refused
    }

    /// Promotes it without bytes: from this epoch on its lanes hold whatever is written.
    fn go_to_lanes_alone(&mut self, epoch: Epoch) {
        self.inline = None;
        self.layout.created = self.layout.created.max(epoch);
    }

    /// The delivery that carries the bytes away, and the token that waits for it.
    pub(crate) fn take_leaving(&mut self) -> Option<(DeliveryId, Option<Token>)> {
        let taken = self.work.as_mut().and_then(|work| work.leaving.take());
        taken.map(|leaving| (leaving.delivery, leaving.waiting))
    }

    /// Puts bytes where they belong; the file ends behind them at the least.
    pub(crate) fn put(&mut self, start: usize, bytes: &[u8]) {
        let inline = self.inline.take().unwrap_or_default();
        let end = start + bytes.len();
        let mut inline = if end > inline.len() {
            let mut longer = Vec::with_capacity(end);
            longer.extend_from_slice(&inline);
            longer.resize(end, 0);
            longer.into_boxed_slice()
        } else {
            inline
        };
        inline[start..end].copy_from_slice(bytes);
        self.inline = Some(inline);
        self.size = self.size.max(end as u64);
    }
}

impl Query for ReadInline {
    fn answer(&self, slot: &SlotState, by: AskedBy<'_>) -> Result<InlineRead> {
        let inode = slot.inode(self.inode)?;
        let file = inode.file(self.inode)?;
        let opened = slot.opened_for(by.session, self.inode);
        // A writer may ask, with length 0, for the size, and whether the file is inline.
        let is_enough = opened.read || (opened.write && self.length == 0);
        if !is_enough {
            inode.check_allows(by.who, right::READ)?;
        }
        // A kernel that keeps bytes needs the lease at the place where they lie, and these are about to move: it
        // retries. If lane 0 cannot be reached, no caller waits for the move and it may take long: then the bytes
        // are read here.
        if self.keep && file.leaving().is_some_and(|leaving| leaving.waiting.is_some()) {
            file.check_not_leaving(self.inode)?;
        }
        let part = |bytes: &[u8]| {
            let start = bytes.len().min(usize::try_from(self.offset).unwrap_or(usize::MAX));
            let end = bytes.len().min(start.saturating_add(self.length as usize));
            Bytes(bytes[start..end].to_vec())
        };
        Ok(InlineRead {
            size: file.size_info(),
            bytes: file.inline.as_deref().map(part),
            since: file.layout.created,
        })
    }
}

impl SlotState {
    /// A file's size, and the bytes that live with its inode; `None`: they live in its lanes, or there is no such file.
    #[must_use]
    pub fn inline_now(&self, id: InodeId) -> Option<(u64, &[u8])> {
        let file = self.inode(id).ok()?.file(id).ok()?;
        Some((file.size, file.inline.as_deref()?))
    }

    /// Changes an inline file's bytes. `room`: whether the server keeps more of them.
    pub(crate) fn write_inline(&mut self, caller: Caller, request: &WriteInline, room: bool) -> Step {
        let id = request.inode;
        let file = self.file_to_write(caller, id)?;
        let length = request.bytes.0.len();
        if length == 0 || length > limits::INLINE_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{length} bytes are no write to an inline file: it has 1 to {}",
                    limits::INLINE_BYTES_MAX
                ),
            ));
        }
        let start = if request.mode == InlineMode::End { file.size } else { request.offset };
        let answer = |file: &File, outcome| {
            let (size, since) = (file.size_info(), file.layout.created);
            Ok(Some(Reply::WroteInline(InlineWritten { outcome, offset: start, size, since, recall: 0 })))
        };
        match file.place() {
            BytesPlace::Lanes => return answer(file, InlineOutcome::InLanes),
            BytesPlace::Leaving => file.check_not_leaving(id)?,
            BytesPlace::Inode => {}
        }
        let mut end = start.saturating_add(length as u64);
        check_size(end, id)?;
        if request.mode == InlineMode::Within {
            end = end.min(file.size);
            if end <= start {
                return answer(file, InlineOutcome::Written);
            }
        }
        let more = end.saturating_sub(file.inline_bytes());
        if end > limits::INLINE_BYTES_MAX as u64 || (more > 0 && !room) {
            return answer(file, InlineOutcome::Full);
        }
        let start_at = start as usize;
        self.file_mut(id).put(start_at, &request.bytes.0[..end as usize - start_at]);
        self.inline_bytes += more;
        self.inode_mut(id)?.touch(caller.now);
        self.content_changed(caller, id);
        answer(self.inode(id)?.file(id)?, InlineOutcome::Written)
    }

    /// Sets an inline file's size. New bytes are zero and take no memory.
    pub(crate) fn truncate_inline(&mut self, caller: Caller, request: Truncate) -> Step {
        let id = request.inode;
        self.inode(id)?.file(id)?.check_not_leaving(id)?;
        let file = self.file_mut(id);
        let before = file.inline_bytes();
        if request.size < file.size {
            file.generation = file.generation.next();
            if request.size < before {
                let kept = file.inline.take().unwrap_or_default();
                file.inline = Some(kept[..request.size as usize].into());
            }
        }
        file.size = request.size;
        let less = before - file.inline_bytes();
        self.inline_bytes -= less;
        let inode = self.inode_mut(id)?;
        inode.touch(caller.now);
        inode.content_changed_by(caller.who);
        Ok(Some(Reply::Attributes(Box::new(inode.attributes(id)))))
    }

    /// Sends an inline file's bytes to lane 0. Its lanes begin in this epoch: bytes that a server has
    /// lost before were never in them.
    pub(crate) fn promote(
        &mut self,
        caller: Caller,
        request: Promote,
        epoch: Epoch,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let id = request.inode;
        let inode = self.inode(id)?;
        let file = inode.file(id)?;
        // It changes nothing that is visible: readers map files, too.
        let has_open = !caller.on_behalf && self.has_open(caller.token.session, id);
        if !has_open && !inode.allows(caller.who, right::READ) {
            inode.check_allows(caller.who, right::WRITE)?;
        }
        file.check_not_leaving(id)?;
        let Some(inline) = file.inline.as_deref() else {
            return Ok(Some(file.promoted()));
        };
        if file.goes_to_lanes_alone() {
            let file = self.file_mut(id);
            file.go_to_lanes_alone(epoch);
            return Ok(Some(file.promoted()));
        }
        let bytes = Bytes(inline.to_vec());
        self.outbox.check_room(1)?;
        let slots = self.slots;
        let file = self.file_mut(id);
        file.generation = file.generation.next();
        file.layout.created = file.layout.created.max(epoch);
        let message = FillLane {
            lane: LaneId { inode: id, lane: 0 },
            slot: ramlace_layout::lane_slot(&file.layout, 0, slots),
            generation: file.generation,
            bytes,
        };
        let delivery = self.outbox.send(Delivery::FillLane(message), effects);
        // It may begin although its answer is lost, or a refusal.
        let file = self.file_mut(id);
        file.lanes_begun = file.lanes_begun.max(1);
        file.work().leaving = Some(Leaving { delivery, waiting: Some(caller.token) });
        Ok(None)
    }

    /// A lane is about to begin: with a session's bytes an empty file goes to its lanes. A file that has bytes by
    /// now stays inline.
    pub(crate) fn begin_lane(&mut self, lane: LaneId, by: SessionId, epoch: Epoch) {
        if by != SessionId::NONE && self.begins_in_lanes(lane.inode) {
            self.file_mut(lane.inode).go_to_lanes_alone(epoch);
        }
        if self.is_new_lane(lane) {
            self.file_mut(lane.inode).lanes_begun = lane.lane + 1;
        }
    }

    /// Whether a file goes to its lanes with the first bytes that one of its lanes gets.
    #[must_use]
    pub fn begins_in_lanes(&self, inode: InodeId) -> bool {
        let file = self.inode(inode).and_then(|found| found.file(inode));
        file.is_ok_and(|file| file.place() == BytesPlace::Inode && file.goes_to_lanes_alone())
    }

    /// Whether it has to be noted that this lane of a file in its lanes begins.
    #[must_use]
    pub fn is_new_lane(&self, LaneId { inode, lane }: LaneId) -> bool {
        let file = self.inode(inode).and_then(|found| found.file(inode));
        let is_new = |file: &File| (file.lanes_begun..file.layout.width).contains(&lane);
        file.is_ok_and(|file| file.place() == BytesPlace::Lanes && is_new(file))
    }

    /// Lane 0 has the bytes, or has refused them for good: then they stay where they are.
    pub(crate) fn promotion_reported(
        &mut self,
        delivery: DeliveryId,
        inode: InodeId,
        refused: Option<Error>,
        effects: &mut Vec<Effect>,
    ) {
        self.outbox.remove(delivery);
        let Some(Body::File(file)) = self.inodes.get_mut(&inode).map(|inode| &mut inode.body) else { return };
        let Some((_, waiting)) = file.take_leaving() else { return };
        let step = match refused {
            Some(why) => {
                file.refused = true;
                Err(why)
            }
            None => {
                self.inline_bytes -= file.inline_bytes();
                file.filled = file.inline_bytes();
                file.inline = None;
                file.refused = false;
                file.untrimmed = true;
                Ok(Some(file.promoted()))
            }
        };
        file.forget_finished_work();
        if let Some(token) = waiting {
            self.conclude(token, step, effects);
        }
    }

    /// The server of lane 0 cannot be reached now. The bytes may have arrived there, so they count as under way
    /// until it answers; no caller waits for that.
    pub(crate) fn promotion_unreachable(&mut self, inode: InodeId, effects: &mut Vec<Effect>) {
        let Some(Body::File(file)) = self.inodes.get_mut(&inode).map(|inode| &mut inode.body) else { return };
        let leaving = file.work.as_mut().and_then(|work| work.leaving.as_mut());
        if let Some(token) = leaving.and_then(|leaving| leaving.waiting.take()) {
            self.conclude(token, Err(out_of_reach(inode)), effects);
        }
    }

    /// Bytes of inline files.
    #[must_use]
    pub fn inline_bytes(&self) -> u64 {
        self.inline_bytes
    }

    /// The access for which a session has an inode open.
    #[must_use]
    pub fn opened_for(&self, session: SessionId, inode: InodeId) -> OpenedFor {
        let opened = self.sessions.get(&session).and_then(|session| session.open.get(&inode));
        opened.copied().unwrap_or_default()
    }

    /// Whether a session has an inode open.
    #[must_use]
    pub fn has_open(&self, session: SessionId, inode: InodeId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.open.contains_key(&inode))
    }
}

fn out_of_reach(id: InodeId) -> Error {
    Error::new(
        ErrorKind::HostDown,
        format!("file {id} grows into its lanes, and the server of its first lane does not answer"),
    )
}
