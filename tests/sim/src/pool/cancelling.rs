//! Changes that clients have cancelled: their outbox tells it to slots, and what has become of it.

use ramlace_base::{Result as Outcome, Slot, limits};
use ramlace_client::Doubt as OfSlot;
use ramlace_client::pure::{Home, Kept, Message as Pending, Subject, is_unacknowledged};
use ramlace_namespace::Reply;
use ramlace_wire::peer::Token;

use super::calls::{Call, Caller, What};
use super::client::{Doing, Doubt};
use super::network::Stands;
use super::{Bug, Event, SLOTS, World};
use crate::calling::PATIENCE_MILLIS_MAX;

/// How often a heart looks whether something is due.
const LOOKS_MILLIS: u64 = 50;

impl World {
    /// The next message of those that are taken up, or what comes behind them.
    pub(super) fn tells_next(&mut self, client: usize, slot: Slot, round: Option<u64>) -> Result<(), String> {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let caller = &mut self.clients[client].caller;
        let subject = Subject::CancelledChanges(slot);
        match caller.pending.next_of(subject, round) {
            Some(Pending::CancelChange(kept)) => {
                let own = caller.sequences.take_beyond(slot).keep();
                let times = match round {
                    Some(_) => (now, now + PATIENCE_MILLIS_MAX),
                    None => (caller.began, caller.began + u64::from(limits::DEADLINE_MILLIS_DEFAULT)),
                };
                self.begins_call(client, What::Cancels(kept, round), own, times);
                Ok(())
            }
            Some(other) => Err(format!("{other:?} is pending, and nobody sends that")),
            None => {
                caller.pending.put_down(subject, false, instant);
                match round {
                    Some(_) => Ok(()),
                    None => self.goes_on(client),
                }
            }
        }
    }

    /// Nobody waits any more for a change that may be done yet.
    pub(super) fn cancels(&mut self, client: usize, doing: Doing, kept: Kept) {
        let instant = self.agenda.instant();
        self.tally.doubted += 1;
        let of_client = &mut self.clients[client];
        let session = of_client.session();
        of_client.doubts.push(Doubt { doing, kept, session, acknowledged: false });
        if self.bug != Bug::DoubtsNothing {
            of_client.mount.doubts(kept.slot, OfSlot::Begins);
        }
        of_client.caller.pending.add(Pending::CancelChange(kept), instant);
        self.heart_will_look(client);
    }

    fn heart_will_look(&mut self, client: usize) {
        let looks = &mut self.clients[client].caller.looks;
        if !std::mem::replace(looks, true) {
            self.agenda.after(LOOKS_MILLIS, Event::Tells(client));
        }
    }

    /// A slot knows that a change was cancelled, or does not.
    pub(super) fn has_cancelled(
        &mut self,
        client: usize,
        call: &Call,
        kept: Kept,
        round: Option<u64>,
        outcome: Outcome<Reply>,
    ) -> Result<(), String> {
        let (instant, subject) = (self.agenda.instant(), Subject::CancelledChanges(call.slot));
        let forgets = self.bug == Bug::ForgetsUnacknowledgedCancels;
        let caller = &mut self.clients[client].caller;
        caller.sequences.release(call.kept);
        if outcome.err().is_none_or(|error| !is_unacknowledged(&error) || forgets) {
            caller.pending.acknowledged(subject);
            caller.sequences.release(kept);
            self.is_acknowledged(client, kept)?;
            return self.tells_next(client, call.slot, round);
        }
        if self.bug != Bug::KeepsSubjects {
            caller.pending.put_down(subject, true, instant);
        }
        if round.is_none() {
            // The operation that it was in the way of was not asked for.
            self.is_not_done(client);
        }
        Ok(())
    }

    /// Of a change that was cancelled its slot says what has become of it, but where other slots have yet to answer.
    fn is_acknowledged(&mut self, client: usize, kept: Kept) -> Result<(), String> {
        let of_client = &mut self.clients[client];
        let token = Token { session: of_client.session(), sequence: kept.sequence };
        let is_it = |doubt: &Doubt| doubt.kept == kept && doubt.session == token.session;
        let at = of_client.doubts.iter().position(is_it).ok_or("something is cancelled that nobody did")?;
        of_client.doubts[at].acknowledged = true;
        if self.bug != Bug::DoubtsNothing {
            of_client.mount.doubts(kept.slot, OfSlot::Ends);
        }
        if self.done.contains_key(&token) || !self.received.contains(&token) {
            return self.resolve(client, at);
        }
        Ok(())
    }

    fn resolve(&mut self, client: usize, at: usize) -> Result<(), String> {
        let of_client = &mut self.clients[client];
        let Doubt { doing, kept, session, .. } = of_client.doubts.swap_remove(at);
        let token = Token { session, sequence: kept.sequence };
        let is_unheard = session != of_client.session() && self.received.contains(&token);
        let reply = match self.done.get(&token) {
            Some(reply) => Some(reply.clone()),
            None if is_unheard => self.seen_of(client, &doing)?,
            None => None,
        };
        let of_client = &mut self.clients[client];
        let Some(reply) = reply else { return self.never_will_be(client, token) };
        let opens = matches!(doing, Doing::Create { .. });
        of_client.take(doing, reply)?;
        let goes_on = session == of_client.session();
        if let Some(file) = of_client.files.last_mut().filter(|_| opens) {
            file.is_open = goes_on;
        }
        Ok(())
    }

    /// What became of everything that was cancelled, once nothing is in flight.
    pub(super) fn resolve_doubts(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            while let Some(at) = self.clients[client].doubts.len().checked_sub(1) {
                self.resolve(client, at)?;
            }
        }
        Ok(())
    }

    /// A client relies on it that a change was not done.
    pub(super) fn never_will_be(&mut self, client: usize, token: Token) -> Result<(), String> {
        self.cancelled.insert(token);
        match self.done.get(&token) {
            Some(reply) => Err(format!("client {client}: {token:?} is not done for it, and was: {reply:?}")),
            None => Ok(()),
        }
    }

    /// A slot has answered a change for the first time.
    pub(super) fn is_done(&mut self, token: Token, outcome: &Outcome<Reply>) -> Result<(), String> {
        let Ok(reply) = outcome else { return Ok(()) };
        if self.cancelled.contains(&token) {
            return Err(format!("{token:?} was cancelled for good, and is done"));
        }
        self.done.entry(token).or_insert_with(|| reply.clone());
        Ok(())
    }

    /// Heartbeats tell which servers answer.
    pub(super) fn beats(&mut self, client: usize) {
        let instant = self.agenda.instant();
        for server in 0..self.servers.len() {
            let answers = matches!(self.stands(server), Stands::Answers);
            self.clients[client].caller.servers[server].beats(answers);
        }
        let caller = &mut self.clients[client].caller;
        if self.bug != Bug::NeverNotesLife {
            caller.pending.note_signs_of_life(instant);
        }
        self.agenda.after(limits::HEARTBEAT_MILLIS, Event::Beats(client));
    }

    /// The heart tells what is pending, one subject after the other.
    pub(super) fn tells(&mut self, client: usize) -> Result<(), String> {
        let instant = self.agenda.instant();
        let homes: Vec<usize> = (0..SLOTS).map(|slot| self.home(Slot(slot))).collect();
        let Caller { pending, servers: known, calls, looks, .. } = &mut self.clients[client].caller;
        *looks = false;
        if pending.count() == 0 {
            return Ok(());
        }
        let is_telling = calls.iter().any(|call| matches!(call.what, What::Cancels(_, Some(_))));
        let is_due = pending.wake_at().is_some_and(|at| at <= instant);
        let taken = (!is_telling && is_due).then(|| {
            let round = pending.begin_round();
            let is_silent =
                |home| matches!(home, Home::Slot(slot) if known[homes[usize::from(slot.0)]].failing);
            Some((pending.take_up_next(round, instant, is_silent)?, round))
        });
        self.heart_will_look(client);
        match taken.flatten() {
            Some((Subject::CancelledChanges(slot), round)) => self.tells_next(client, slot, Some(round)),
            _ => Ok(()),
        }
    }
}
