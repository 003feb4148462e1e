//! Bytes of lanes that are being sent, straight from the store, to sessions whose kernels keep them.
//!
//! Pages of a kernel are based on what the lane had when their lease was given: by that a write-back is told from what others
//! have written since. But bytes that are sent from the store are loaded over several turns of the event loop. So a change
//! that meets them copies them first, and the rest is sent from the copy. Where there are too many copies it ends the
//! connection: the client reads again, and then lease and base are new.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use ramlace_base::{ByteRange, LaneId, Result, SessionId, limits};
use ramlace_transport::nonblocking::{Canceller, Connection};

/// All such reads.
#[derive(Default)]
pub struct Outgoing {
    reads: RefCell<HashMap<LaneId, Vec<Rc<Sent>>>>,
    copied_bytes: Cell<usize>,
}

/// The bytes of a read.
struct Sent {
    session: SessionId,
    range: ByteRange,
    /// What they were before a change met them.
    copy: OnceCell<Vec<u8>>,
    /// Stops the connection on which they are sent, since that began.
    canceller: OnceCell<Canceller>,
    is_over: Cell<bool>,
}

/// A read whose bytes were not all sent yet, until this is dropped.
pub struct PagesSent {
    outgoing: Rc<Outgoing>,
    lane: LaneId,
    sent: Rc<Sent>,
}

impl Outgoing {
    /// A session's kernel is about to be sent these bytes, which it has a lease on.
    pub fn begin(self: &Rc<Outgoing>, lane: LaneId, session: SessionId, range: ByteRange) -> PagesSent {
        let (copy, canceller, is_over) = Default::default();
        let sent = Rc::new(Sent { session, range, copy, canceller, is_over });
        self.reads.borrow_mut().entry(lane).or_default().push(sent.clone());
        PagesSent { outgoing: self.clone(), lane, sent }
    }

    /// Whether these bytes could be copied; others are better copied when they are read.
    pub fn has_room(&self, range: ByteRange) -> bool {
        self.copied_bytes.get() as u64 + range.length() <= limits::SENT_COPIES_BYTES_MAX as u64
    }

    /// Bytes of a lane are about to change. `by`: whose kernel's pages do not count; `read`: the present bytes.
    pub fn meet(
        &self,
        lane: LaneId,
        ranges: &[ByteRange],
        by: SessionId,
        mut read: impl FnMut(ByteRange) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let reads = self.reads.borrow();
        for sent in reads.get(&lane).into_iter().flatten() {
            let meets = ranges.iter().any(|range| !range.intersection(sent.range).is_empty());
            if sent.session == by || !meets || sent.is_over.get() || sent.copy.get().is_some() {
                continue;
            }
            if !self.has_room(sent.range) {
                sent.is_over.set(true);
                sent.canceller.get().into_iter().for_each(Canceller::cancel);
                continue;
            }
            let copy = read(sent.range)?;
            self.copied_bytes.set(self.copied_bytes.get() + copy.len());
            let _ = sent.copy.set(copy);
        }
        Ok(())
    }
}

impl PagesSent {
    /// The bytes are sent by this connection from now on; false when they can no longer be.
    pub fn begin(&self, connection: &Connection) -> bool {
        let _ = self.sent.canceller.set(connection.canceller());
        !self.sent.is_over.get()
    }

    /// From where they are sent instead, once that is there.
    pub fn copy(&self) -> &OnceCell<Vec<u8>> {
        &self.sent.copy
    }
}

impl Drop for PagesSent {
    fn drop(&mut self) {
        let (outgoing, sent) = (&self.outgoing, &self.sent);
        let copied_bytes = sent.copy.get().map_or(0, Vec::len);
        outgoing.copied_bytes.set(outgoing.copied_bytes.get() - copied_bytes);
        let mut reads = outgoing.reads.borrow_mut();
        let Some(of_lane) = reads.get_mut(&self.lane) else { return };
        of_lane.retain(|other| !Rc::ptr_eq(other, sent));
        if of_lane.is_empty() {
            reads.remove(&self.lane);
        }
    }
}
