//! Changes that were not answered in time: their slot is told when its server answers again, and before anything else is changed there.
//! What it has not met by then is not done any more, and of what is done later its session counts as knowing nothing. Until then whatever
//! the slot says may be outdated without a word ([`crate::hearers::Doubt`]). What one of them has opened is asked with that: nobody could
//! close it, and a file that is unlinked would keep its bytes until the session ends.

use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Result, Slot};
use ramlace_wire::namespace::{GiveUp, GivenUp};
use ramlace_wire::{Request, Shows};

use crate::hearers::Doubt;
use crate::session::Session;
use crate::session::owed::{Heard, Message, Subject};
use crate::session::retry::{is_in_doubt, is_unheard};
use crate::session::sequences::{Kept, Ticket};

impl Session {
    /// A change was answered, or is given up: then it may be done yet, where an answer was `lost` or comes too late. Bytes of lanes are
    /// nothing that anybody keeps for that.
    pub(crate) fn answered<R: Request, T>(
        &self,
        ticket: Ticket<'_>,
        lost: bool,
        answer: Result<T>,
    ) -> Result<T> {
        let of_lane = R::KIND.row().shows == Shows::Bytes;
        if !of_lane && answer.as_ref().is_err_and(|error| is_in_doubt(error, lost)) && !self.is_ended() {
            self.doubts(ticket.slot(), Doubt::Begins);
            let kept = ticket.keep();
            // What goes beyond the limit stays open, and in doubt, until the session ends.
            if !self.owe(Message::GiveUp(kept)) {
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

    /// The number of a mutation in `slot`, which has heard of everything that was given up there.
    pub(crate) fn ticket(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<Ticket<'_>> {
        self.tell(Subject::GivenUp(slot), deadline)?;
        self.sequences.take(slot, deadline)
    }

    /// The same where one is free now: for who has a number of another slot, on which those may wait who have this slot's.
    pub(crate) fn ticket_now(
        self: &Arc<Session>,
        slot: Slot,
        deadline: Instant,
    ) -> Result<Option<Ticket<'_>>> {
        self.tell(Subject::GivenUp(slot), deadline)?;
        Ok(self.sequences.try_take(slot))
    }

    /// Tells a slot of one change that was given up.
    pub(crate) fn tell_given_up(self: &Arc<Session>, kept: Kept, deadline: Instant) -> Result<Heard> {
        // Those that are kept fill the slot's window; this makes room in it.
        let ticket = self.sequences.take_beyond(kept.slot);
        let request = GiveUp { sequence: kept.sequence };
        match self.change_with(&ticket, &[], kept.slot, &request, deadline) {
            Ok(GivenUp { opened: Some(inode) }) => _ = self.owe(Message::CloseOpened(inode)),
            Err(error) if is_unheard(&error) => return Err(error),
            // A slot that says no knows nothing of it any more.
            Ok(GivenUp { opened: None }) | Err(_) => {}
        }
        self.sequences.release(kept);
        if !self.is_ended() {
            self.doubts(kept.slot, Doubt::Ends);
        }
        Ok(Heard::Yes)
    }
}
