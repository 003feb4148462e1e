//! References to inodes: open, close, the end of a session, and the end of an inode.

use std::collections::btree_map::Entry;

use ramlace_base::{Error, ErrorKind, InodeId, LaneId, Result, SessionId, Timestamp, limits};
use ramlace_wire::namespace::{Close, Open};
use ramlace_wire::peer::{DropLane, TrimLane};
use ramlace_wire::{FileKind, Layout, OpenedFor};

use crate::command::{Delivery, Effect, Reply};
use crate::state::inode::{Body, right};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn open(&mut self, caller: Caller, request: Open) -> Step {
        let inode = self.inode(request.inode)?;
        match &inode.body {
            Body::File(_) => {}
            Body::Directory(directory) => {
                if request.write || request.run {
                    return Err(Error::new(
                        ErrorKind::IsDirectory,
                        format!("directory {} cannot be opened for writing, nor be run", request.inode),
                    ));
                }
                directory.check_undisturbed(request.inode)?;
            }
            Body::Special(_) => return Err(no_bytes(inode.kind(), request.inode)),
            Body::Symlink(_) => {
                return Err(Error::new(
                    ErrorKind::Loop,
                    format!("inode {} is a symbolic link; open what it points to", request.inode),
                ));
            }
        }
        // Where no kernel of a host stands in between, the caller itself gets the bytes: running a file then
        // needs the right to read it, except for the owner, who can grant that at any time.
        let runs = request.run && (caller.on_behalf || caller.who.uid == inode.uid);
        let rights = [
            (request.read || (request.run && !runs), right::READ),
            (request.write, right::WRITE),
            (runs, right::RUN),
        ];
        let rights = rights.iter().filter(|(asked, _)| *asked).fold(0, |all, (_, right)| all | right);
        inode.check_allows(caller.who, rights)?;
        // A kernel that runs it reads it.
        let opened = OpenedFor { read: request.read || request.run, write: request.write };
        self.reference(caller, request.inode, opened)?;
        Ok(Some(self.opened(request.inode, false)?))
    }

    /// Gives the session its one reference to the inode, or widens the one it has.
    pub(crate) fn reference(&mut self, caller: Caller, inode: InodeId, opened: OpenedFor) -> Result<()> {
        let session = self.session_mut(caller);
        session.check_may_open(inode)?;
        match session.open.entry(inode) {
            Entry::Occupied(mut before) => *before.get_mut() = before.get().and(opened),
            Entry::Vacant(free) => {
                free.insert(opened);
                self.inode_mut(inode)?.opens += 1;
            }
        }
        if let (true, Body::File(file)) = (opened.write, &mut self.inode_mut(inode)?.body) {
            file.untrimmed = true;
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, caller: Caller, request: Close, effects: &mut Vec<Effect>) -> Step {
        self.assert_mine(request.inode);
        let Some(OpenedFor { write, .. }) = self.session_mut(caller).open.remove(&request.inode) else {
            return Err(Error::new(
                ErrorKind::BadHandle,
                format!("the session does not have inode {} open", request.inode),
            ));
        };
        self.drop_locks(caller.token.session, request.inode, effects);
        let wrote = self.end_passthrough(request.inode, caller.token.session, true, effects);
        let inode = self.inode_mut(request.inode)?;
        if let Some(modified) = request.modified.filter(|_| write) {
            inode.modified = inode.modified.after_write(modified, caller.now);
            inode.changed = caller.now;
            inode.content_changed_by(caller.who);
        } else if wrote {
            // It is not known whether its kernel has written since the times were reported last.
            inode.changed = caller.now;
        }
        self.release(request.inode, effects);
        Ok(Some(Reply::Done))
    }

    /// One session less has the inode open.
    fn release(&mut self, id: InodeId, effects: &mut Vec<Effect>) {
        let inode = self.inodes.get_mut(&id).expect("an open inode lives");
        inode.opens -= 1;
        if inode.opens == 0 && inode.links > 0 {
            self.trim(id, effects);
        }
        self.retire_if_unused(id, effects);
    }

    /// Whether memory of a file is freed when those close it that have it open.
    #[must_use]
    pub fn awaits_last_close(&self, id: InodeId) -> bool {
        self.inodes.get(&id).is_some_and(|inode| {
            inode.opens > 0
                && match &inode.body {
                    Body::File(file) => inode.links == 0 || (file.untrimmed && file.inline.is_none()),
                    _ => false,
                }
        })
    }

    /// Makes the lanes of a file that may have been written free the memory beyond its end.
    fn trim(&mut self, id: InodeId, effects: &mut Vec<Effect>) {
        let Some(Body::File(file)) = self.inodes.get_mut(&id).map(|inode| &mut inode.body) else { return };
        if !std::mem::take(&mut file.untrimmed) || file.inline.is_some() {
            return;
        }
        let (layout, size, lanes_begun) = (file.layout, file.size, file.lanes_begun);
        for lane in (0..lanes_begun).filter(|lane| has_tail(&layout, *lane, size)) {
            let slot = ramlace_layout::lane_slot(&layout, lane, self.slots);
            let message = TrimLane { lane: LaneId { inode: id, lane }, slot, passthroughs_over: 0 };
            self.outbox.send(Delivery::TrimLane(message), effects);
        }
    }

    /// Drops an inode that neither an entry nor a session holds; lanes of it that may have begun are dropped, too.
    pub(crate) fn retire_if_unused(&mut self, id: InodeId, effects: &mut Vec<Effect>) {
        let unused =
            self.inodes.get(&id).is_some_and(|inode| inode.links == 0 && inode.opens == 0 && !inode.held);
        if !unused {
            return;
        }
        let inode = self.inodes.remove(&id).expect("just seen");
        let Body::File(mut file) = inode.body else { return };
        self.passthroughs.remove(&id);
        let (layout, lanes_begun) = (file.layout, file.lanes_begun);
        self.inline_bytes -= file.inline.as_ref().map_or(0, |bytes| bytes.len() as u64);
        if let Some((delivery, waiting)) = file.take_leaving() {
            self.outbox.remove(delivery);
            if let Some(token) = waiting {
                self.conclude(token, Err(self.not_here(id)), effects);
            }
        }
        let (cuts, answers) = file.into_unfinished();
        for cut in cuts {
            self.outbox.remove(cut);
        }
        for answer in answers {
            let reply = Reply::Attributes(Box::new(answer.attributes));
            self.conclude(answer.token, Ok(Some(reply)), effects);
        }
        for lane in 0..lanes_begun {
            let slot = ramlace_layout::lane_slot(&layout, lane, self.slots);
            let message = DropLane { lane: LaneId { inode: id, lane }, slot };
            self.outbox.send(Delivery::DropLane(message), effects);
        }
    }

    /// Forgets a session: its replies are dropped, its open inodes closed, its reservations become holes.
    /// Operations that it began run to their end without an answer.
    pub(crate) fn end_session(&mut self, id: SessionId, now: Timestamp, effects: &mut Vec<Effect>) {
        self.end_delegation_if(|delegation| delegation.session == id);
        let Some(session) = self.sessions.remove(&id) else { return };
        self.end_locks(id, session.locked.into_keys().collect(), effects);
        self.end_barriers(id, session.barriers);
        for file_id in session.appending {
            // A hole at the end of a file that a kernel maps has no memory.
            let gap = self.has_passthrough(file_id);
            if let Some(inode) = self.inodes.get_mut(&file_id)
                && let Body::File(file) = &mut inode.body
                && file.abandon(id, gap)
            {
                inode.touch(now);
            }
            self.outdate_given_back(file_id, effects);
        }
        for inode in session.open.into_keys() {
            if self.end_passthrough(inode, id, false, effects) {
                self.inodes.get_mut(&inode).expect("an open inode lives").changed = now;
            }
            self.release(inode, effects);
        }
    }
}

/// A kernel opens pipes and devices itself, through a mount.
pub(crate) fn no_bytes(kind: FileKind, inode: InodeId) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "inode {inode} is {}, which has no bytes in the pool; open it through a mount",
            kind.described()
        ),
    )
}

/// Whether a lane may have taken memory beyond its end: while it is small it takes single pages, and afterwards
/// whole huge pages.
fn has_tail(layout: &Layout, lane: u16, size: u64) -> bool {
    let length = ramlace_layout::lane_length(layout, lane, size);
    length >= limits::EXACT_PAGES_BYTES_MAX && !length.is_multiple_of(limits::HUGE_PAGE_BYTES)
}
