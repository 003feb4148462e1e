//! Bytes of lanes that are being sent, straight from the store, to sessions whose kernels keep them.
//!
//! Pages of a kernel are based on what the lane had when their lease was given: by that a write-back is told from what others
//! have written since. But bytes that are sent from the store are loaded over several turns of the event loop. So a change
//! that meets them ends the connection; the client reads again, and then lease and base are new. What that session reads of
//! the lane next is copied at once, so that it comes to an end beside others that change the bytes all the time.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use ramlace_base::{ByteRange, LaneId, SessionId};
use ramlace_transport::nonblocking::{Canceller, Connection};

/// Sessions that read again, each with the lane; beyond that they may be met once more.
const MET_MAX: usize = 4_096;

/// All such reads.
#[derive(Default)]
pub struct Outgoing {
    reads: RefCell<HashMap<LaneId, Vec<Rc<Sent>>>>,
    /// Whose reads were met by a change.
    met: RefCell<HashSet<(LaneId, SessionId)>>,
}

/// The bytes of a read.
struct Sent {
    session: SessionId,
    range: ByteRange,
    /// Stops the connection on which they are sent, since that began.
    canceller: RefCell<Option<Canceller>>,
    is_met: Cell<bool>,
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
        let sent = Rc::new(Sent { session, range, canceller: RefCell::default(), is_met: Cell::default() });
        self.reads.borrow_mut().entry(lane).or_default().push(sent.clone());
        PagesSent { outgoing: self.clone(), lane, sent }
    }

    /// Bytes of a lane are about to change. `by`: whose kernel's pages do not count.
    pub fn meet(&self, lane: LaneId, ranges: &[ByteRange], by: SessionId) {
        let reads = self.reads.borrow();
        for sent in reads.get(&lane).into_iter().flatten() {
            let meets = ranges.iter().any(|range| !range.intersection(sent.range).is_empty());
            if sent.session == by || !meets || sent.is_met.replace(true) {
                continue;
            }
            let mut met = self.met.borrow_mut();
            if met.len() < MET_MAX {
                met.insert((lane, sent.session));
            }
            if let Some(canceller) = &*sent.canceller.borrow() {
                canceller.cancel();
            }
        }
    }

    /// Whether what this session reads of a lane now is to be copied: its last read was met.
    pub fn was_met(&self, lane: LaneId, session: SessionId) -> bool {
        self.met.borrow_mut().remove(&(lane, session))
    }
}

impl PagesSent {
    /// The bytes are sent by this connection from now on; false when some of them have changed already.
    pub fn begin(&self, connection: &Connection) -> bool {
        self.sent.canceller.replace(Some(connection.canceller()));
        !self.sent.is_met.get()
    }
}

impl Drop for PagesSent {
    fn drop(&mut self) {
        let mut reads = self.outgoing.reads.borrow_mut();
        let Some(of_lane) = reads.get_mut(&self.lane) else { return };
        of_lane.retain(|other| !Rc::ptr_eq(other, &self.sent));
        if of_lane.is_empty() {
            reads.remove(&self.lane);
        }
    }
}
