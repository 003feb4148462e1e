//! Several changes of one slot in one message, each done once, as if it had been sent alone.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result, Sequence, ServerId, Slot, Timestamp};
use ramlace_wire::delegation::{Change, ChangeMany, Changed};
use ramlace_wire::inline::Bytes;
use ramlace_wire::namespace::CancelChange;
use ramlace_wire::{Request, decode_reply, encode_body};

use crate::session::Session;
use crate::session::calls::Call;
use crate::session::lines::reply_without_data;
use crate::session::sequences::{NumberFor, Ticket};

/// Changes in one message: each of them may have to wait for another server.
const CHANGES_AT_ONCE_MAX: usize = 128;
/// Slots whose answers are acknowledged before a refused call is sent again: it has other things to do in its time.
const SLOTS_ACKNOWLEDGED_AT_ONCE: usize = 32;

impl Session {
    /// Makes changes in their order, and calls `done` with what became of each; `by` gives each message its deadline. Only for the pool's owner, and for
    /// messages that may come among many ([`ramlace_wire::Row::among_many`]).
    ///
    /// Errors: of a whole message; the changes for which `done` was not called are not made, or in doubt as a
    /// single one would be.
    pub(crate) fn change_many<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        requests: &[R],
        by: impl Fn() -> Instant,
        mut done: impl FnMut(Result<R::Reply>),
    ) -> Result<()> {
        let _direct = self.before_asking(slot, R::KIND, by())?;
        let mut tickets = VecDeque::new();
        let (mut at, mut last) = (0, None);
        while at < requests.len() {
            let some = &requests[at..requests.len().min(at + CHANGES_AT_ONCE_MAX)];
            let deadline = by();
            self.take_tickets(slot, some.len(), deadline, &mut tickets)?;
            let some = &some[..tickets.len()];
            let lost = Cell::new(false);
            match self.send_many(slot, some, &tickets, &lost, deadline) {
                Ok(changed) => {
                    at += changed.len();
                    last = tickets.get(changed.len() - 1).map(Ticket::sequence);
                    for (request, changed) in some.iter().zip(changed) {
                        let ticket = tickets.pop_front().expect("each change has one");
                        done(self.answered(R::KIND, ticket, lost.get(), reply_of(request, changed)));
                    }
                }
                Err(error) => {
                    for ticket in tickets {
                        let _ = self.answered::<()>(R::KIND, ticket, lost.get(), Err(error.clone()));
                    }
                    return Err(error);
                }
            }
        }
        if let Some(last) = last {
            self.unacknowledged.note(slot, last);
        }
        Ok(())
    }

    /// This server keeps too many answers of this session: acknowledges those of some of its slots that keep many. Returns
    /// whether any slot has learned of it; what becomes of the others does not concern the call that was refused.
    pub(crate) fn acknowledge_many(self: &Arc<Session>, server: ServerId, deadline: Instant) -> bool {
        let Some(map) = self.known_map() else { return false };
        let (mut any, mut after) = (false, None);
        for _ in 0..SLOTS_ACKNOWLEDGED_AT_ONCE {
            let of_server = |slot| map.primary(slot) == Some(server);
            let Some((slot, sequence)) = self.unacknowledged.take(after, of_server) else { break };
            after = Some(slot);
            // An older change of this slot still waits: nothing can be acknowledged yet.
            if self.sequences.acknowledged_below(slot) <= sequence {
                self.unacknowledged.note(slot, sequence);
                continue;
            }
            // That change was answered, so there is nothing to cancel: the number of this request is what says so.
            let ticket = self.sequences.take_beyond(slot);
            match self.change_with(&ticket, &[], slot, &CancelChange { sequence }, deadline) {
                Ok(_) => any = true,
                // So little is kept there that it makes no room.
                Err(error) if error.kind() == ErrorKind::TooMany => {}
                Err(_) => self.unacknowledged.note(slot, sequence),
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        any
    }

    /// At least one number, and no more than the slot has room for: to wait for more with some in hand would let
    /// callers wait for each other.
    fn take_tickets<'a>(
        self: &'a Arc<Session>,
        slot: Slot,
        wanted: usize,
        deadline: Instant,
        tickets: &mut VecDeque<Ticket<'a>>,
    ) -> Result<()> {
        if tickets.is_empty() {
            tickets.push_back(self.ticket(slot, deadline)?);
        }
        while tickets.len() < wanted
            && let Some(ticket) = self.sequences.try_take(slot, NumberFor::Program)
        {
            tickets.push_back(ticket);
        }
        Ok(())
    }

    /// What became of the first ones; at least of one.
    fn send_many<R: Request>(
        self: &Arc<Session>,
        slot: Slot,
        requests: &[R],
        tickets: &VecDeque<Ticket<'_>>,
        lost: &Cell<bool>,
        deadline: Instant,
    ) -> Result<Vec<Changed>> {
        let changes =
            requests.iter().zip(tickets).map(|(request, ticket)| one_of_many(request, ticket)).collect();
        let many = ChangeMany {
            delegation: 0,
            changes,
            wanted_for: None,
            gives_back: false,
            acknowledged_below: Sequence(0),
        };
        let call = Call { repeated: Some(lost), ..Call::of_slot(slot, deadline) };
        let changed = self.call(&many, &call, |_, received| reply_without_data(received))?.changed;
        if changed.is_empty() || changed.len() > tickets.len() {
            let text = format!("the answer is about {} changes of {}", changed.len(), tickets.len());
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        Ok(changed)
    }
}

/// A change that was not promised, as it stands among others.
pub(crate) fn one_of_many<R: Request>(request: &R, ticket: &Ticket<'_>) -> Change {
    Change {
        kind: R::KIND.number(),
        sequence: ticket.sequence(),
        outstanding: ticket.outstanding(),
        at: Timestamp { nanos: 0 },
        makes: None,
        body: Bytes(encode_body(request)),
    }
}

fn reply_of<R: Request>(request: &R, changed: Changed) -> Result<R::Reply> {
    match changed.error {
        Some(error) => Err(error.into_error()),
        None => decode_reply(request, &changed.body.0),
    }
}
