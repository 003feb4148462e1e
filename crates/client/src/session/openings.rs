//! Changes that were not answered in time, and are cancelled. When their server answers again, the slot is asked to
//! cancel them (`CancelChange`) before any other change is made there. A change that the slot has not received by
//! then is never done. If it was done, the session counts as not knowing its effects. Until then any
//! answer of the slot may be outdated without a recall ([`crate::callbacks::Doubt`]). The reply to `CancelChange`
//! names an inode that such a change has opened, so that it can be closed: otherwise an unlinked file would
//! keep its bytes until the session ends.

use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{ErrorKind, Result, Slot};
use ramlace_wire::namespace::{CancelChange, ChangeCancelled};
use ramlace_wire::{Kind, Shows};

use crate::callbacks::Doubt;
use crate::session::Session;
use crate::session::pending::{Acknowledged, Message, Subject};
use crate::session::retry::{is_in_doubt, is_unacknowledged};
use crate::session::sequences::{Kept, NumberFor, Ticket};

impl Session {
    /// A change was answered, or is abandoned: in the second case it may still be done, if an answer was
    /// `lost` or comes too late. Changes of bytes in lanes are exempt: nothing is cached because of them.
    pub(crate) fn answered<T>(
        &self,
        kind: Kind,
        ticket: Ticket<'_>,
        lost: bool,
        answer: Result<T>,
    ) -> Result<T> {
        let of_lane = kind.row().shows == Shows::Bytes;
        if !of_lane && answer.as_ref().is_err_and(|error| is_in_doubt(error, lost)) && !self.is_ended() {
            self.doubts(ticket.slot(), Doubt::Begins);
            let kept = ticket.keep();
            // A change beyond the limit stays open, and in doubt, until the session ends.
            if !self.send_later(Message::CancelChange(kept)) {
                self.sequences.release(kept);
            }
        }
        answer
    }

    fn doubts(&self, slot: Slot, doubt: Doubt) {
        if let Some(above) = self.above() {
            above.doubts(slot, doubt);
        }
    }

    /// The number of a mutation in `slot`, once the slot knows of everything that was abandoned there.
    pub(crate) fn ticket(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<Ticket<'_>> {
        self.ticket_for(NumberFor::Program, slot, deadline)
    }

    /// The same, whatever it is for.
    pub(crate) fn ticket_for(
        self: &Arc<Session>,
        purpose: NumberFor,
        slot: Slot,
        deadline: Instant,
    ) -> Result<Ticket<'_>> {
        self.send_pending(Subject::CancelledChanges(slot), deadline)?;
        self.sequences.take(slot, purpose, deadline)
    }

    /// The same if a number is free now. For callers that hold a number of another slot: to wait could be a
    /// deadlock with those that hold this slot's and wait for that one.
    pub(crate) fn ticket_now(
        self: &Arc<Session>,
        slot: Slot,
        deadline: Instant,
    ) -> Result<Option<Ticket<'_>>> {
        self.send_pending(Subject::CancelledChanges(slot), deadline)?;
        Ok(self.sequences.try_take(slot, NumberFor::Program))
    }

    /// Asks a slot to abandon one change.
    pub(crate) fn tell_cancelled_change(
        self: &Arc<Session>,
        kept: Kept,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        // The numbers of abandoned changes fill the slot's window; this request makes room in it.
        let ticket = self.sequences.take_beyond(kept.slot);
        let request = CancelChange { sequence: kept.sequence };
        let tell = || self.change_with(&ticket, &[], kept.slot, &request, deadline);
        let mut told = tell();
        if is_too_many(&told) && self.acknowledge_beside(kept.slot, deadline) {
            told = tell();
        }
        match told {
            Ok(ChangeCancelled { opened: Some(inode) }) => _ = self.send_later(Message::CloseOpened(inode)),
            // With too many answers kept it was not even looked for.
            Err(error) if is_unacknowledged(&error) || error.kind() == ErrorKind::TooMany => {
                return Err(error);
            }
            // A slot that refuses does not know the change any more.
            Ok(ChangeCancelled { opened: None }) | Err(_) => {}
        }
        self.sequences.release(kept);
        if !self.is_ended() {
            self.doubts(kept.slot, Doubt::Ends);
        }
        Ok(Acknowledged::Yes)
    }

    /// Makes room for answers at the server of a slot, by acknowledging those that other slots keep. Returns whether it has
    /// learned of any.
    fn acknowledge_beside(self: &Arc<Session>, slot: Slot, deadline: Instant) -> bool {
        let server = self.known_map().and_then(|map| map.primary(slot));
        server.is_some_and(|server| self.acknowledge_many(server, deadline))
    }
}

fn is_too_many<T>(told: &Result<T>) -> bool {
    told.as_ref().is_err_and(|error| error.kind() == ErrorKind::TooMany)
}
