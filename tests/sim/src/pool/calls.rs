//! How clients call servers: by the product's rule for what is repeated, its numbers, and its outbox of changes that were cancelled.

use ramlace_base::{ErrorKind, Result as Outcome, Sequence, Slot, limits};
use ramlace_client::pure::{
    Backoff, Kept, MapAsked, NumberFor, OnRetry, PendingMessages, Sequences, Subject, TakenUp, Verdict,
    is_in_doubt, is_unacknowledged,
};
use ramlace_namespace::{Op, Reply};
use ramlace_wire::namespace::CancelChange;
use ramlace_wire::peer::Token;

use super::client::Doing;
use super::network::{Message, Stands};
use super::{Bug, Event, World};
use crate::calling::{ENDS_WITHIN_MILLIS, Failure, Known, SIGN_OF_LIFE_MILLIS_MAX};

/// How often a program looks whether what another thread tells is told.
const LOOKS_MILLIS: u64 = 50;
/// How often a server that does not greet is looked at again.
const GREETS_MILLIS: u64 = 20;
/// The longest that a program does nothing.
const THINKS_MILLIS_MAX: u64 = 150;

/// What a request says of itself: its number, below which numbers of its session its slot's answers have come, and by a connection to which process it comes.
#[derive(Clone, Copy, Debug)]
pub struct Numbered {
    pub(super) token: Token,
    pub(super) below: Sequence,
    pub(super) life: u64,
}

/// A call that is under way.
pub(super) struct Call {
    pub(super) what: What,
    pub(super) slot: Slot,
    pub(super) kept: Kept,
    attempt: u64,
    began: u64,
    deadline: u64,
    backoff: Backoff,
    /// A reply to it was lost.
    lost: bool,
}

#[derive(Clone, Copy)]
pub(super) enum What {
    /// What the program does.
    Does,
    /// A change is cancelled: in the heart's round, or because the program must not say anything newer before.
    Cancels(Kept, Option<u64>),
}

/// What a client's threads have in common.
pub(super) struct Caller {
    pub(super) sequences: Sequences,
    pub(super) pending: PendingMessages,
    pub(super) servers: Vec<Known>,
    pub(super) calls: Vec<Call>,
    attempts: u64,
    /// When the program's operation began.
    pub(super) began: u64,
    /// The heart will look whether something is due.
    pub(super) looks: bool,
}

impl Caller {
    pub(super) fn new(servers: usize) -> Caller {
        Caller {
            sequences: Sequences::default(),
            pending: PendingMessages::default(),
            servers: vec![Known::default(); servers],
            calls: Vec::new(),
            attempts: 0,
            began: 0,
            looks: false,
        }
    }

    /// What is asked and pending goes with the session; what the program has asked for.
    pub(super) fn begins_anew(&mut self) -> Option<Kept> {
        let program = self.calls.iter().find(|call| matches!(call.what, What::Does)).map(|call| call.kept);
        let servers = vec![Known::default(); self.servers.len()];
        (self.sequences, self.pending, self.servers) =
            (Sequences::default(), PendingMessages::default(), servers);
        self.calls.clear();
        program
    }

    /// Nothing is asked, and nothing is pending.
    pub(super) fn is_at_rest(&self) -> bool {
        self.calls.is_empty() && self.pending.count() == 0
    }

    fn call(&mut self, attempt: u64) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.attempt == attempt)
    }

    /// The attempt of the call with this number.
    fn attempt_of(&self, sequence: Sequence) -> Option<u64> {
        self.calls.iter().find(|call| call.kept.sequence == sequence).map(|call| call.attempt)
    }

    /// The number of what the program does, if that is asked for.
    pub(super) fn number_of_program(&self) -> Option<Sequence> {
        let mut calls = self.calls.iter();
        calls.find(|call| matches!(call.what, What::Does)).map(|call| call.kept.sequence)
    }

    /// The program asks for what it does, or for what must be told before.
    fn is_asking(&self) -> bool {
        self.calls.iter().any(|call| !matches!(call.what, What::Cancels(_, Some(_))))
    }

    /// The change that the request with this number cancels.
    pub(super) fn cancelled_by(&self, sequence: Sequence) -> Option<Kept> {
        self.calls.iter().find(|call| call.kept.sequence == sequence).and_then(|call| match call.what {
            What::Does => None,
            What::Cancels(kept, _) => Some(kept),
        })
    }

    /// Nothing else comes of an attempt; the next one has another number.
    fn goes_past(&mut self, attempt: u64) -> Option<&mut Call> {
        self.attempts += 1;
        let next = self.attempts;
        let call = self.call(attempt)?;
        call.attempt = next;
        Some(call)
    }
}

impl World {
    /// A program begins its next operation.
    pub(super) fn acts(&mut self, client: usize) -> Result<(), String> {
        self.clients[client].caller.began = self.agenda.now;
        match self.clients[client].chooses(&mut self.dice) {
            true => self.goes_on(client),
            false => Ok(()),
        }
    }

    fn acts_later(&mut self, client: usize) {
        let thinks = 1 + self.dice.roll(THINKS_MILLIS_MAX);
        self.agenda.after(thinks, Event::Acts { client });
    }

    /// What the program does is asked for, once its slot knows of everything that was cancelled there.
    pub(super) fn goes_on(&mut self, client: usize) -> Result<(), String> {
        let of_client = &mut self.clients[client];
        let Some(slot) = of_client.slot_asked().filter(|_| !of_client.caller.is_asking()) else {
            return Ok(());
        };
        let caller = &mut of_client.caller;
        let deadline = caller.began + u64::from(limits::DEADLINE_MILLIS_DEFAULT);
        match caller.pending.take_up(Subject::CancelledChanges(slot)) {
            TakenUp::ByCaller => self.tells_next(client, slot, None),
            TakenUp::ByAnother if self.agenda.now >= deadline => {
                self.is_not_done(client);
                Ok(())
            }
            TakenUp::ByAnother => {
                self.agenda.after(LOOKS_MILLIS, Event::GoesOn { client });
                Ok(())
            }
            TakenUp::Nothing => {
                let ticket =
                    caller.sequences.try_take(slot, NumberFor::Program).ok_or("a slot's window is full")?;
                let (kept, began) = (ticket.keep(), caller.began);
                self.begins_call(client, What::Does, kept, (began, deadline));
                Ok(())
            }
        }
    }

    pub(super) fn begins_call(
        &mut self,
        client: usize,
        what: What,
        kept: Kept,
        (began, deadline): (u64, u64),
    ) {
        let backoff = Backoff::new(self.agenda.instant_of(deadline));
        let caller = &mut self.clients[client].caller;
        caller.attempts += 1;
        let (attempt, slot) = (caller.attempts, kept.slot);
        caller.calls.push(Call { what, slot, kept, attempt, began, deadline, backoff, lost: false });
        self.tries(client, attempt);
    }

    /// An attempt begins: its server shows a sign of life if it is suspected, and greets if there is no connection.
    pub(super) fn tries(&mut self, client: usize, attempt: u64) {
        let now = self.agenda.now;
        let late = self.agenda.instant_of(now + u64::from(limits::DEADLINE_MILLIS_DEFAULT));
        let Some(server) = self.server_asked(client, attempt) else { return };
        let (bug, stands) = (self.bug, self.stands(server));
        let caller = &mut self.clients[client].caller;
        let Some(call) = caller.call(attempt) else { return };
        if bug == Bug::RenewsDeadlines {
            call.deadline = now + u64::from(limits::DEADLINE_MILLIS_DEFAULT);
            call.backoff = Backoff::new(late);
        }
        let deadline = call.deadline;
        let known = &mut caller.servers[server];
        if known.suspect {
            let wait = match stands {
                Stands::Answers => 0,
                Stands::Refuses => 1,
                Stands::Silent => SIGN_OF_LIFE_MILLIS_MAX.min(deadline.saturating_sub(now)),
            };
            if wait > 0 {
                return self.agenda.after(wait, Event::Fails { client, attempt, failure: Failure::silent() });
            }
            known.beats(true);
        }
        match known.connection {
            Some(life) => self.sends(client, attempt, life),
            None => self.greets(client, attempt, deadline.min(now + limits::HANDSHAKE_MILLIS_MAX)),
        }
    }

    /// The server that a call asks.
    fn server_asked(&self, client: usize, attempt: u64) -> Option<usize> {
        let mut calls = self.clients[client].caller.calls.iter();
        calls.find(|call| call.attempt == attempt).map(|call| self.home(call.slot))
    }

    /// A new connection, when its server greets.
    pub(super) fn greets(&mut self, client: usize, attempt: u64, until: u64) {
        let now = self.agenda.now;
        let Some(server) = self.server_asked(client, attempt) else { return };
        match self.stands(server) {
            Stands::Answers => {
                let life = self.servers[server].life;
                self.clients[client].caller.servers[server].connection = Some(life);
                self.sends(client, attempt, life);
            }
            Stands::Silent if now < until => {
                let next = (now + GREETS_MILLIS).min(until);
                self.agenda.at(next, Event::Greets { client, attempt, until });
            }
            Stands::Silent => {
                let failure = Failure::lost(ErrorKind::HostDown);
                self.agenda.after(1, Event::Fails { client, attempt, failure });
            }
            Stands::Refuses => {
                self.agenda.after(1, Event::Fails { client, attempt, failure: Failure::silent() });
            }
        }
    }

    /// A request leaves, and its connection is lost now and then, with the request or behind it.
    fn sends(&mut self, client: usize, attempt: u64, life: u64) {
        let again = self.clients[client].caller.call(attempt).is_some_and(|call| call.lost);
        let renumbers = again && self.bug == Bug::RetriesWithANewNumber;
        let of_client = &mut self.clients[client];
        let caller = &mut of_client.caller;
        let Some(at) = caller.calls.iter().position(|call| call.attempt == attempt) else { return };
        if renumbers {
            caller.sequences.release(caller.calls[at].kept);
            caller.calls[at].kept = caller.sequences.take_beyond(caller.calls[at].slot).keep();
        }
        let Call { what, slot, kept, deadline, .. } = caller.calls[at];
        let below = kept.sequence.0 - u64::from(caller.sequences.outstanding_of(kept));
        let token = Token { session: of_client.session(), sequence: kept.sequence };
        let numbered = Numbered { token, below: Sequence(below), life };
        let message = match what {
            What::Does => of_client.message(numbered),
            What::Cancels(cancelled, _) => {
                let op = Box::new(Op::CancelChange(CancelChange { sequence: cancelled.sequence }));
                Some(Message::Ask { client, slot, numbered, op })
            }
        };
        let Some(message) = message else { return };
        self.agenda
            .at(deadline, Event::Fails { client, attempt, failure: Failure::lost(ErrorKind::TimedOut) });
        let server = &self.servers[self.home(slot)];
        if !server.is_up() || server.life != life || !self.send(message) {
            let cut_after = 1 + self.dice.roll(50);
            let failure = Failure::lost(ErrorKind::HostDown);
            self.agenda.after(cut_after, Event::Fails { client, attempt, failure });
        }
    }

    /// The connection by which an answer was to come is lost.
    pub(super) fn loses_answer(&mut self, client: usize, token: Token) {
        if token.session != self.clients[client].session() {
            return;
        }
        let delay = 1 + self.dice.roll(50);
        if let Some(attempt) = self.clients[client].caller.attempt_of(token.sequence) {
            let failure = Failure::lost(ErrorKind::HostDown);
            self.agenda.after(delay, Event::Fails { client, attempt, failure });
        }
    }

    /// A server's process has ended: a client that asks it learns that.
    pub(super) fn cuts_calls(&mut self, client: usize, server: usize) {
        for call in &self.clients[client].caller.calls {
            if self.home(call.slot) == server
                && self.clients[client].caller.servers[server].connection.is_some()
            {
                let (attempt, failure) = (call.attempt, Failure::lost(ErrorKind::HostDown));
                self.agenda.after(1, Event::Fails { client, attempt, failure });
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        client: usize,
        sequence: Sequence,
        outcome: Outcome<Reply>,
    ) -> Result<(), String> {
        let caller = &mut self.clients[client].caller;
        let mistaken =
            caller.number_of_program().filter(|_| self.bug == Bug::MistakesAnswers).unwrap_or(sequence);
        let Some(attempt) = caller.attempt_of(sequence).or_else(|| caller.attempt_of(mistaken)) else {
            return Ok(());
        };
        match outcome {
            Ok(reply) => {
                if let Some(server) = self.server_asked(client, attempt) {
                    self.clients[client].caller.servers[server].beats(true);
                }
                self.ends(client, attempt, Ok(reply))
            }
            Err(error) => {
                self.fails(client, attempt, Failure::told(error, false));
                Ok(())
            }
        }
    }

    /// An attempt has no reply: what makes another one promising is done.
    pub(super) fn fails(&mut self, client: usize, attempt: u64, failure: Failure) {
        let (now, bug, servers) = (self.agenda.instant(), self.bug, self.servers.len());
        let Some(server) = self.server_asked(client, attempt) else { return };
        let caller = &mut self.clients[client].caller;
        let Some(call) = caller.goes_past(attempt) else { return };
        call.lost |= !failure.failed.from_server;
        let attempt = call.attempt;
        let remedy = failure.failed.remedy(now, self.agenda.instant_of(call.deadline));
        caller.servers[server].note(remedy, bug == Bug::KeepsDeadConnections);
        // All have the same map: any server that answers sends it.
        let others = (0..servers)
            .filter(|other| *other != server || remedy.asks_for_map == Some(MapAsked::AllServers));
        let answers = others.into_iter().any(|other| matches!(self.stands(other), Stands::Answers));
        let wait = match remedy.asks_for_map {
            None => 0,
            Some(_) if answers => 2,
            Some(_) => SIGN_OF_LIFE_MILLIS_MAX,
        };
        self.agenda.after(wait, Event::Judged { client, attempt, failure });
    }

    pub(super) fn judged(&mut self, client: usize, attempt: u64, failure: &Failure) -> Result<(), String> {
        let (instant, share) = (self.agenda.instant(), 0.5 + self.dice.roll(50) as f32 / 100.0);
        let Some(call) = self.clients[client].caller.call(attempt) else { return Ok(()) };
        let again = failure.failed.verdict(OnRetry::Repeat, true) == Verdict::Again;
        match call.backoff.next(instant, share).filter(|_| again) {
            Some(pause) => {
                self.tally.asked_again += 1;
                self.agenda.after(pause.as_millis() as u64, Event::Tries { client, attempt });
                Ok(())
            }
            None => self.ends(client, attempt, Err(failure.error.clone())),
        }
    }

    /// A call is over.
    fn ends(&mut self, client: usize, attempt: u64, outcome: Outcome<Reply>) -> Result<(), String> {
        let now = self.agenda.now;
        let of_client = &mut self.clients[client];
        let calls = &mut of_client.caller.calls;
        let Some(at) = calls.iter().position(|call| call.attempt == attempt) else { return Ok(()) };
        let call = calls.swap_remove(at);
        let was_stopped = of_client.mount.stopped_until > call.began;
        if now - call.began > ENDS_WITHIN_MILLIS && !was_stopped {
            return Err(format!(
                "client {client}: a call took {} ms, and came to {outcome:?}",
                now - call.began
            ));
        }
        match call.what {
            What::Does => self.has_done(client, &call, outcome),
            What::Cancels(kept, round) => self.has_cancelled(client, &call, kept, round, outcome),
        }
    }

    /// What the program has done, or failed to do.
    fn has_done(&mut self, client: usize, call: &Call, outcome: Outcome<Reply>) -> Result<(), String> {
        let session = self.clients[client].session();
        let is_ending = self.servers.iter().any(|server| server.ended.contains(&session));
        let of_client = &mut self.clients[client];
        let doubted = outcome.as_ref().is_err_and(|error| is_in_doubt(error, call.lost));
        let is_write = matches!(of_client.doing, Some(Doing::Write { .. }));
        if !doubted || is_write || self.bug == Bug::ForgetsLostAnswers {
            of_client.caller.sequences.release(call.kept);
        }
        match outcome {
            Ok(reply) => {
                self.tally.answered += 1;
                let known = of_client.knows_itself();
                of_client.mount.has_changed(&known);
                let doing = of_client.doing.take().ok_or("something is done that nobody does")?;
                of_client.take(doing, reply)?;
                self.acts_later(client);
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Lost && of_client.may_have_lost() => {
                self.tally.lost_bytes += 1;
            }
            // It has yet to learn that what it had open is closed.
            Err(error) if error.kind() == ErrorKind::Stale && is_write && is_ending => self.tally.failed += 1,
            Err(error) if !doubted && !is_unacknowledged(&error) && error.kind() != ErrorKind::Busy => {
                let doing = &of_client.doing;
                return Err(format!("client {client}: {doing:?} is answered with {error}"));
            }
            Err(_) => self.tally.failed += 1,
        }
        match of_client.doing.clone() {
            // What the lane has of it is seen when it is written again.
            Some(Doing::Write { file, offset, byte }) => of_client.doubts_byte(file, offset, byte),
            Some(doing) if doubted && self.bug != Bug::ForgetsLostAnswers => {
                self.cancels(client, doing, call.kept);
            }
            _ => {
                let session = self.clients[client].session();
                self.never_will_be(client, Token { session, sequence: call.kept.sequence })?;
            }
        }
        self.is_not_done(client);
        Ok(())
    }

    /// The program goes on without what it was to do.
    pub(super) fn is_not_done(&mut self, client: usize) {
        self.clients[client].doing = None;
        self.clients[client].mount.changing.clear();
        self.acts_later(client);
    }
}
