//! Changes that were not answered in time: they are told to their slot before anything else is changed there
//! ([`crate::session::given_up`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, Slot};
use ramlace_wire::namespace::GiveUp;
use ramlace_wire::{Request, Shows};

use crate::hearers::Doubt;
use crate::session::Session;
use crate::session::given_up::Teller;
use crate::session::retry::is_unheard;
use crate::session::sequences::Ticket;

/// How long the heart waits for one answer.
const PATIENCE_MILLIS_MAX: u64 = 250;

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
        let in_doubt = |error: &Error| error.kind() == ErrorKind::TimedOut || lost && is_unheard(error);
        if !of_lane && answer.as_ref().is_err_and(in_doubt) && !self.is_ended() {
            self.doubts(ticket.slot(), Doubt::Begins);
            self.given_ups.note(ticket);
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
        if self.given_ups.any() {
            self.hear_given_up(slot, deadline)?;
        }
        self.sequences.take(slot, deadline)
    }

    /// Returns when the slot has heard of all that was given up there; whoever comes while another tells it has the same answer.
    fn hear_given_up(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<()> {
        while self.given_ups.first_of(slot).is_some() {
            match self.given_ups.teller(slot) {
                Teller::Me(mut telling) => {
                    let told = self.tell_given_up(slot, deadline);
                    // Others have more time, perhaps.
                    if !told.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
                        telling.share(told.clone());
                    }
                    return told;
                }
                Teller::Another(telling) => {
                    if let Some(Err(error)) = telling.wait(slot, deadline) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn tell_given_up(self: &Arc<Session>, slot: Slot, deadline: Instant) -> Result<()> {
        while let Some(kept) = self.given_ups.first_of(slot) {
            // Those that are kept fill the slot's window; this makes room in it.
            let ticket = self.sequences.take_beyond(slot);
            let request = GiveUp { sequence: kept.sequence };
            let opened = match self.change_with(&ticket, &[], slot, &request, deadline) {
                Ok(given_up) => given_up.opened,
                Err(error) if is_unheard(&error) => return Err(error),
                // A slot that says no knows nothing of it any more.
                Err(_) => None,
            };
            self.given_ups.is_told(kept, opened);
            self.sequences.release(kept);
            if !self.is_ended() {
                self.doubts(slot, Doubt::Ends);
            }
        }
        Ok(())
    }

    /// Tells the slots whose servers answer again; returns what was opened, and is owed a close.
    pub(crate) fn tell_all_given_up(self: &Arc<Session>) -> Vec<InodeId> {
        for slot in self.given_ups.slots() {
            // What another thread tells it is told; what fails stays given up.
            if self.answers(slot)
                && let Teller::Me(_telling) = self.given_ups.teller(slot)
            {
                let soon = Instant::now() + Duration::from_millis(PATIENCE_MILLIS_MAX);
                let _ = self.tell_given_up(slot, soon);
            }
        }
        self.given_ups.take_opened()
    }
}
