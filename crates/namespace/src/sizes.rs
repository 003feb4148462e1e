//! Operations on sizes: truncate, extend, append.

use ramlace_base::{Error, ErrorKind, InodeId, LaneId, Redirect, Result, SessionId, limits};
use ramlace_wire::namespace::{
    AppendReserved, Extend, FinishAppend, NoteMemory, ReserveAppend, SizeInfo, Truncate,
};
use ramlace_wire::peer::{CutLane, Token};

use crate::command::{Delivery, Effect, Reply};
use crate::state::file::{File, TruncateAnswer};
use crate::state::inode::{Body, right};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn truncate(
        &mut self,
        caller: Caller,
        mut request: Truncate,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let id = request.inode;
        let file = self.file_to_write(caller, id)?;
        let (width, inline) = (file.layout.width, file.inline.is_some());
        let (size, unpublished) = (file.size, file.is_unpublished());
        let has_memory = request.allocated == Some(file.generation);
        check_size(request.size, id)?;
        check_reserved(file, request, has_memory)?;
        if inline {
            return self.truncate_inline(caller, request);
        }
        if request.size > size && self.has_passthrough(id) {
            if unpublished {
                // Two steps: this one cuts the unpublished bytes beyond the end, and the memory that the sender
                // has allocated there. The sender allocates again, and its retry makes the file longer.
                request.size = size;
            } else {
                self.check_may_grow(id, has_memory)?;
            }
        }
        self.outbox.check_room(width)?;
        let file = self.file_mut(id);
        let cut = file.truncate(request.size, id)?;
        if has_memory && cut.is_none() {
            file.fill(size, request.size);
        }
        let inode = self.inode_mut(id)?;
        inode.touch(caller.now);
        inode.content_changed_by(caller.who);
        let attributes = inode.attributes(id);
        let Some(kept) = cut else {
            return Ok(Some(Reply::Attributes(Box::new(attributes))));
        };
        self.file_mut(id).answer_later(caller.token, attributes);
        for lane in 0..width {
            self.cut_lane(LaneId { inode: id, lane }, kept, caller.token.session, effects);
        }
        Ok(None)
    }

    /// Sends a lane a truncation; a message about an older one is no longer pending.
    fn cut_lane(&mut self, lane: LaneId, kept: u64, by: SessionId, effects: &mut Vec<Effect>) {
        let slots = self.slots;
        let file = self.file_mut(lane.inode);
        // One message for several truncations belongs to no single session.
        let by = if file.is_being_cut(lane.lane) { SessionId::NONE } else { by };
        let message = CutLane {
            lane,
            slot: ramlace_layout::lane_slot(&file.layout, lane.lane, slots),
            generation: file.generation,
            length: ramlace_layout::lane_length(&file.layout, lane.lane, kept),
            by,
        };
        let delivery = self.outbox.send(Delivery::CutLane(message), effects);
        if let Some(older) = self.file_mut(lane.inode).cut_sent(lane.lane, delivery) {
            self.outbox.remove(older);
        }
    }

    /// The lane has confirmed its file's generation, or cannot be reached now.
    pub(crate) fn cut_reported(&mut self, lane: LaneId, confirmed: bool, effects: &mut Vec<Effect>) {
        let Some(Body::File(file)) = self.inodes.get_mut(&lane.inode).map(|inode| &mut inode.body) else {
            return;
        };
        let answers =
            if confirmed { file.cut_done(lane.lane) } else { file.lane_need_not_be_awaited(lane.lane) };
        for TruncateAnswer { token, attributes, .. } in answers {
            self.conclude(token, Ok(Some(Reply::Attributes(Box::new(attributes)))), effects);
        }
    }

    /// Whether a truncation waits for the lane.
    pub(crate) fn cut_is_awaited(&self, lane: LaneId) -> bool {
        match self.inodes.get(&lane.inode).map(|inode| &inode.body) {
            Some(Body::File(file)) => file.lane_is_awaited(lane.lane),
            _ => false,
        }
    }

    pub(crate) fn extend(&mut self, caller: Caller, request: Extend) -> Step {
        let id = request.inode;
        let file = self.file_to_write(caller, id)?;
        check_size(request.size, id)?;
        file.check_in_lanes(id)?;
        if request.generation < file.generation {
            return Err(Error::new(
                ErrorKind::Retry,
                format!("file {id} was truncated meanwhile; write the bytes again with {}", file.generation),
            ));
        }
        if request.generation > file.generation {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("file {id} has {}; {} is yet to come", file.generation, request.generation),
            ));
        }
        let file = self.file_mut(id);
        file.fill(request.from, request.size);
        let grew = file.extend(request.size);
        self.size_info(caller, id, grew)
    }

    /// A part of the file has memory now, or may have none.
    pub(crate) fn note_memory(&mut self, caller: Caller, request: NoteMemory) -> Step {
        let id = request.inode;
        let generation = self.file_to_write(caller, id)?.generation;
        let file = self.file_mut(id);
        if !request.taken {
            file.filled = file.filled.min(request.start);
        } else if request.generation == generation {
            file.fill(request.start, request.end.min(file.size));
            file.taken_to = file.taken_to.max(request.end);
        }
        Ok(Some(Reply::Done))
    }

    pub(crate) fn reserve_append(&mut self, caller: Caller, request: ReserveAppend) -> Step {
        let id = request.inode;
        let file = self.file_to_write(caller, id)?;
        let generation = file.generation;
        file.check_in_lanes(id)?;
        if request.length == 0 {
            return Err(Error::new(ErrorKind::Invalid, "an append has at least one byte"));
        }
        let offset = self.file_mut(id).reserve(caller.token, request.length, id)?;
        self.session_mut(caller).appending.insert(id);
        Ok(Some(Reply::Reserved(AppendReserved {
            inode: id,
            number: caller.token.sequence,
            offset,
            generation,
        })))
    }

    pub(crate) fn finish_append(
        &mut self,
        caller: Caller,
        request: FinishAppend,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let finished = self.end_reservation(caller, request, effects);
        // Also where it was gone already, by a truncation or with the file.
        self.forget_appending(caller.token.session, request.inode);
        finished
    }

    fn end_reservation(&mut self, caller: Caller, request: FinishAppend, effects: &mut Vec<Effect>) -> Step {
        let id = request.inode;
        self.inode(id)?.file(id)?.check_in_lanes(id)?;
        let gap = self.has_passthrough(id);
        let reservation = Token { session: caller.token.session, sequence: request.number };
        match self.file_mut(id).finish(reservation, request.failed, gap, id)? {
            Some(grew) => {
                self.outdate_given_back(id, effects);
                self.size_info(caller, id, grew)
            }
            // A reservation is what gives the right to this, and there is none.
            None => {
                let size = self.file_to_write(caller, id)?.size_info();
                Ok(Some(Reply::Size(size)))
            }
        }
    }

    /// Bytes that were reserved and given back may still come, late, and would overwrite what is reserved there next: they
    /// are made to meet a newer generation, as soon as no other append is under way that this would end. Until then, or
    /// where too many messages about truncations are pending, nothing is reserved there again.
    pub(crate) fn outdate_given_back(&mut self, id: InodeId, effects: &mut Vec<Effect>) {
        let Some(Body::File(file)) = self.inodes.get(&id).map(|inode| &inode.body) else { return };
        let width = file.layout.width;
        if !file.is_only_given_back() || self.outbox.check_room(width).is_err() {
            return;
        }
        let Some(kept) = self.file_mut(id).outdate(id) else { return };
        for lane in 0..width {
            self.cut_lane(LaneId { inode: id, lane }, kept, SessionId::NONE, effects);
        }
    }

    /// The session may have no reservation in the file any more, which may be gone.
    fn forget_appending(&mut self, session: SessionId, id: InodeId) {
        let file = self.inodes.get(&id).and_then(|inode| inode.file(id).ok());
        if !file.is_some_and(|file| file.reserved_by().any(|reserved_by| reserved_by == session))
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.appending.remove(&id);
        }
    }

    /// The session does not know that bytes were reserved for it: they become a hole, as if it had gone. Otherwise nothing
    /// behind them would be published as long as it lives.
    pub(crate) fn give_reservation_back(
        &mut self,
        caller: Caller,
        reserved: AppendReserved,
        effects: &mut Vec<Effect>,
    ) {
        let AppendReserved { inode: id, number, .. } = reserved;
        let reservation = Token { session: caller.token.session, sequence: number };
        let gap = self.has_passthrough(id);
        if let Some(inode) = self.inodes.get_mut(&id)
            && let Body::File(file) = &mut inode.body
            && file.finish(reservation, true, gap, id) == Ok(Some(true))
        {
            inode.touch(caller.now);
        }
        self.outdate_given_back(id, effects);
        self.forget_appending(caller.token.session, id);
    }

    fn size_info(&mut self, caller: Caller, id: InodeId, grew: bool) -> Step {
        if grew {
            self.inode_mut(id)?.touch(caller.now);
        }
        self.content_changed(caller, id);
        let file = self.inode(id)?.file(id)?;
        Ok(Some(Reply::Size(SizeInfo { size: file.size, generation: file.generation })))
    }

    /// A file that the caller has open for writing, or whose mode lets the caller write.
    pub(crate) fn file_to_write(&self, caller: Caller, id: InodeId) -> Result<&File> {
        let inode = self.inode(id)?;
        let file = inode.file(id)?;
        if !self.has_open_for_writing(caller, id) {
            inode.check_allows(caller.who, right::WRITE)?;
        }
        Ok(file)
    }

    /// Whether the caller has it open for writing, which is a right whatever the mode says now. For a host's
    /// session others may have opened it: only its kernel knows which user's descriptor it is.
    pub(crate) fn has_open_for_writing(&self, caller: Caller, id: InodeId) -> bool {
        !caller.on_behalf && self.session_writes(caller, id)
    }

    /// Whether the caller's session has it open for writing, for any user: enough to take set-id bits and
    /// capabilities from it, as a write does.
    pub(crate) fn session_writes(&self, caller: Caller, id: InodeId) -> bool {
        let session = self.sessions.get(&caller.token.session);
        session.and_then(|session| session.open.get(&id)).is_some_and(|opened| opened.write)
    }

    /// A file that is known to be one and to be here.
    pub(crate) fn file_mut(&mut self, id: InodeId) -> &mut File {
        match self.inodes.get_mut(&id).map(|inode| &mut inode.body) {
            Some(Body::File(file)) => file,
            _ => panic!("file {id} was looked up before"),
        }
    }
}

/// A file that reserves its memory may only be made longer by a caller that has allocated it. A caller that
/// knows the rule has done so before; another is refused, and repeats the request after allocating.
fn check_reserved(file: &File, request: Truncate, has_memory: bool) -> Result<()> {
    let Truncate { inode: id, size, .. } = request;
    // A file this small is inline.
    if !file.rules.reserve || has_memory || size <= file.size || size <= limits::INLINE_BYTES_MAX as u64 {
        return Ok(());
    }
    let text = format!("file {id} reserves its memory: take it first, then make the file longer");
    Err(Error::new(ErrorKind::Redirect(Redirect::Reserved), text))
}

pub(crate) fn check_size(size: u64, id: InodeId) -> Result<()> {
    if size > limits::FILE_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::TooBig,
            format!("file {id} cannot have {size} bytes; at most {} are possible", limits::FILE_BYTES_MAX),
        ));
    }
    Ok(())
}
