//! Passthrough: files that kernels read and map without asking the server; which session has which, and what
//! follows for others.
//!
//! The server does not see stores into such a file. So a client must not cache its bytes by its times while it
//! may be written; and it must have no holes, for a store into one would take memory that was not promised. A
//! session that ends without closing the file leaves a kernel that cannot be asked any more: what that kernel
//! has stays *loose* for ever.

use ramlace_base::{Error, ErrorKind, InodeId, LaneId, Redirect, Result, SessionId};
use ramlace_wire::Mode;
use ramlace_wire::namespace::{BeginPassthrough, PassthroughBegun, SizeInfo};
use ramlace_wire::peer::TrimLane;

use crate::command::{Delivery, Effect, Reply};
use crate::state::passthrough::{Loose, Passthrough};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn begin_passthrough(
        &mut self,
        caller: Caller,
        request: BeginPassthrough,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let (id, session) = (request.inode, caller.token.session);
        let file = self.inode(id)?.file(id)?;
        let size = SizeInfo { size: file.size, generation: file.generation };
        if request.over {
            self.end_passthrough(id, session, true, effects);
            return Ok(Some(Reply::PassthroughBegun(PassthroughBegun { number: 0, size })));
        }
        file.check_in_lanes(id)?;
        if file.layout.width != 1 {
            let text =
                format!("file {id} has {} lanes; a kernel can have files of one lane", file.layout.width);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        if file.rules.mode == Some(Mode::Strict) {
            let text = format!(
                "file {id} is strict: the kernel cannot serve it by itself, because each store must be seen"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        match self.sessions.get(&session).and_then(|session| session.open.get(&id)) {
            Some(opened) if opened.write || !request.write => {}
            _ => {
                let text = format!("the session does not have inode {id} open for what its kernel shall do");
                return Err(Error::new(ErrorKind::BadHandle, text));
            }
        }
        self.passthrough_last += 1;
        let write = self.passthroughs.entry(id).or_default().sessions.entry(session).or_default();
        *write |= request.write;
        Ok(Some(Reply::PassthroughBegun(PassthroughBegun { number: self.passthrough_last, size })))
    }

    /// Whether a session's kernel has it.
    pub(crate) fn has_passthrough(&self, inode: InodeId) -> bool {
        self.passthroughs.contains_key(&inode)
    }

    /// Whether its bytes may change without notice.
    pub(crate) fn may_change_unnoticed(&self, inode: InodeId) -> bool {
        let may_write = |passthrough: &Passthrough| {
            passthrough.loose == Some(Loose::Writes) || passthrough.sessions.values().any(|write| *write)
        };
        self.passthroughs.get(&inode).is_some_and(may_write)
    }

    /// A file that a kernel has grows only with its memory: a load of a hole would take some that was not promised.
    pub(crate) fn check_may_grow(&self, inode: InodeId, has_memory: bool) -> Result<()> {
        if has_memory || !self.has_passthrough(inode) {
            return Ok(());
        }
        let text = format!("a kernel maps file {inode}: take the memory first, then make it longer");
        Err(Error::new(ErrorKind::Redirect(Redirect::Passthrough), text))
    }

    /// The session's kernel does not have the file any more, as the session `says`, or else as far as is known.
    /// Returns whether it may have written.
    pub(crate) fn end_passthrough(
        &mut self,
        inode: InodeId,
        session: SessionId,
        says: bool,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Some(passthrough) = self.passthroughs.get_mut(&inode) else { return false };
        let Some(write) = passthrough.sessions.remove(&session) else { return false };
        if !says {
            let loose = if write { Loose::Writes } else { Loose::Reads };
            passthrough.loose = passthrough.loose.max(Some(loose));
        }
        if passthrough.sessions.is_empty() && passthrough.loose.is_none() {
            self.passthroughs.remove(&inode);
            self.lane_is_free(inode, effects);
        }
        write
    }

    /// Passthroughs of a file up to this number have ended. A message about it that is late, or comes twice, ends
    /// no later one.
    pub(crate) fn passthroughs_over(&self, inode: InodeId) -> u64 {
        if self.has_passthrough(inode) { 0 } else { self.passthrough_last }
    }

    /// Notifies the only lane of a file that no kernel has it any more.
    fn lane_is_free(&mut self, inode: InodeId, effects: &mut Vec<Effect>) {
        let layout = self.file_mut(inode).layout;
        let lane = LaneId { inode, lane: 0 };
        let slot = ramlace_layout::lane_slot(&layout, lane.lane, self.slots);
        let message = TrimLane { lane, slot, passthroughs_over: self.passthroughs_over(inode) };
        // An earlier one that is still to be delivered says no more than this.
        self.outbox.remove_passthroughs_over(lane);
        self.outbox.send(Delivery::TrimLane(message), effects);
    }
}
