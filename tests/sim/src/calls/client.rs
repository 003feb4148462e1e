//! The clients: what `Session::call` does by the rule, in events.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Name, SessionId, Slot, limits};
use ramlace_client::pure::{
    Backoff, Home, Kept, MapAsked, Message, NumberFor, OnRetry, PendingMessages, Sequences, Subject, TakenUp,
    Verdict, is_in_doubt, is_unacknowledged,
};
use ramlace_namespace::{Op, Reply};
use ramlace_wire::Layout;
use ramlace_wire::namespace::{CancelChange, Create, LayoutWish};

use super::server::{Does, Request};
use super::{CallBug, Event, Map, Reported, Run, SERVERS, SILENT_COSTS_MILLIS_MAX, TROUBLE_MILLIS};
use crate::calling::{ENDS_WITHIN_MILLIS, Failure, Known, PATIENCE_MILLIS_MAX, SIGN_OF_LIFE_MILLIS_MAX};

/// There is one slot.
const SLOT: Slot = Slot(0);

enum What {
    Makes(Name),
    Cancels(Kept),
}

/// A call that is under way.
struct Call {
    what: What,
    kept: Kept,
    began: u64,
    deadline: u64,
    backoff: Backoff,
    /// The attempt's, and when it was sent.
    asked: Map,
    lost: bool,
    /// The server was suspected before: by which map it was asked, and since when.
    met_silent: Option<(Map, u64)>,
}

pub(super) struct Client {
    sequences: Sequences,
    pending: PendingMessages,
    map: Map,
    servers: [Known; SERVERS],
    call: Option<Call>,
    /// The program's, while what was cancelled is told first: when it began.
    behind: Option<u64>,
    attempt: u64,
    names: u64,
}

pub(super) fn session(client: usize) -> SessionId {
    SessionId([client as u8 + 1; 16])
}

impl Client {
    pub(super) fn new() -> Client {
        Client {
            sequences: Sequences::default(),
            pending: PendingMessages::default(),
            map: Map { epoch: 1, server: 0 },
            servers: Default::default(),
            call: None,
            behind: None,
            attempt: 0,
            names: 0,
        }
    }

    pub(super) fn count_pending(&self) -> usize {
        self.pending.count()
    }

    /// The attempt that is under way by a connection to that process.
    pub(super) fn is_asking(&self, server: usize, life: u64) -> Option<u64> {
        let asks = self.call.as_ref()?.asked.server == server;
        (asks && self.servers[server].connection == Some(life)).then_some(self.attempt)
    }

    fn adopt(&mut self, map: Map) {
        if map.epoch > self.map.epoch {
            self.map = map;
        }
    }
}

impl Run {
    /// A program makes a call: what was cancelled is told first.
    pub(super) fn calls(&mut self, client: usize) -> Result<(), String> {
        if self.agenda.now > TROUBLE_MILLIS + 5_000 {
            return Ok(());
        }
        if self.clients[client].call.is_some() {
            self.agenda.after(20, Event::Calls(client));
            return Ok(());
        }
        self.goes_on(client, self.agenda.now)
    }

    fn goes_on(&mut self, client: usize, began: u64) -> Result<(), String> {
        let of_client = &mut self.clients[client];
        match of_client.pending.take_up(Subject::CancelledChanges(SLOT)) {
            TakenUp::ByCaller => {
                of_client.behind = Some(began);
                self.tells_next(client, began + u64::from(limits::DEADLINE_MILLIS_DEFAULT), None)
            }
            TakenUp::ByAnother => Err("a client with one thread tells something already".into()),
            TakenUp::Nothing => {
                of_client.names += 1;
                let name = Name::new(format!("c{client}n{}", of_client.names).as_bytes()).expect("a name");
                let Some(ticket) = of_client.sequences.try_take(SLOT, NumberFor::Program) else {
                    return Err("a slot's window is full".into());
                };
                let kept = ticket.keep();
                let deadline = began + u64::from(limits::DEADLINE_MILLIS_DEFAULT);
                self.begins(client, What::Makes(name), kept, began, deadline)
            }
        }
    }

    /// The next message of those that are taken up, or what comes behind them.
    fn tells_next(&mut self, client: usize, deadline: u64, round: Option<u64>) -> Result<(), String> {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let of_client = &mut self.clients[client];
        let subject = Subject::CancelledChanges(SLOT);
        match of_client.pending.next_of(subject, round) {
            Some(Message::CancelChange(kept)) => {
                let own = of_client.sequences.take_beyond(SLOT).keep();
                self.begins(client, What::Cancels(kept), own, now, deadline)
            }
            Some(other) => Err(format!("{other:?} is pending, and nobody sends that")),
            None => {
                of_client.pending.put_down(subject, false, instant);
                match of_client.behind.take() {
                    Some(began) => self.goes_on(client, began),
                    None => Ok(()),
                }
            }
        }
    }

    fn begins(
        &mut self,
        client: usize,
        what: What,
        kept: Kept,
        began: u64,
        deadline: u64,
    ) -> Result<(), String> {
        let backoff = Backoff::new(self.agenda.instant_of(deadline));
        let of_client = &mut self.clients[client];
        let asked = of_client.map;
        let suspect = of_client.servers[asked.server].suspect;
        let met_silent = suspect.then_some((asked, self.agenda.now));
        let call = Call { what, kept, began, deadline, backoff, asked, lost: false, met_silent };
        of_client.call = Some(call);
        of_client.attempt += 1;
        let attempt = of_client.attempt;
        self.tries(client, attempt)
    }

    /// An attempt begins: its server shows a sign of life if it is suspected, and greets if there is no connection.
    pub(super) fn tries(&mut self, client: usize, attempt: u64) -> Result<(), String> {
        let now = self.agenda.now;
        let of_client = &mut self.clients[client];
        let Some(call) = of_client.call.as_mut().filter(|_| of_client.attempt == attempt) else {
            return Ok(());
        };
        if self.bug == CallBug::RenewsDeadlines {
            call.deadline = now + u64::from(limits::DEADLINE_MILLIS_DEFAULT);
            call.backoff = Backoff::new(self.agenda.instant_of(call.deadline));
        }
        if now > call.began + 4 * ENDS_WITHIN_MILLIS {
            return Err("a call goes on for ever".into());
        }
        call.asked = of_client.map;
        let (server, deadline) = (call.asked.server, call.deadline);
        let known = &mut of_client.servers[server];
        let does = self.servers[server].does;
        if known.suspect && self.bug != CallBug::AsksSuspects {
            let wait = match does {
                Does::Serves => {
                    (known.suspect, known.failing) = (false, false);
                    0
                }
                Does::Refuses => 1,
                Does::Restarts | Does::Nothing => SIGN_OF_LIFE_MILLIS_MAX.min(deadline.saturating_sub(now)),
            };
            if wait > 0 {
                self.agenda.after(wait, Event::Fails { client, attempt, failure: Failure::silent() });
                return Ok(());
            }
        }
        if known.connection.is_some() {
            self.sends(client, attempt);
            return Ok(());
        }
        let until = deadline.min(now + limits::HANDSHAKE_MILLIS_MAX);
        self.greets(client, attempt, until);
        Ok(())
    }

    /// A new connection, when its server greets.
    pub(super) fn greets(&mut self, client: usize, attempt: u64, until: u64) {
        let now = self.agenda.now;
        let of_client = &mut self.clients[client];
        let Some(call) = of_client.call.as_ref().filter(|_| of_client.attempt == attempt) else { return };
        let server = call.asked.server;
        match self.servers[server].does {
            Does::Serves => {
                of_client.servers[server].connection = Some(self.servers[server].life);
                self.sends(client, attempt);
            }
            Does::Refuses => {
                self.agenda.after(1, Event::Fails { client, attempt, failure: Failure::silent() })
            }
            _ if now >= until => {
                let failure = Failure::lost(ErrorKind::HostDown);
                self.agenda.after(0, Event::Fails { client, attempt, failure });
            }
            _ => self.agenda.at((now + 10).min(until), Event::Greets { client, attempt, until }),
        }
    }

    fn sends(&mut self, client: usize, attempt: u64) {
        let delay = self.delay();
        // A connection is lost now and then, with the request or behind it.
        let cut = !self.is_calm() && self.dice.percent(4);
        let (reaches, cut_after) = (!cut || self.dice.percent(60), 1 + self.dice.roll(50));
        let of_client = &mut self.clients[client];
        let Some(call) = &mut of_client.call else { return };
        if self.bug == CallBug::RetriesWithANewNumber {
            of_client.sequences.release(call.kept);
            call.kept = of_client.sequences.take_beyond(SLOT).keep();
        }
        let server = call.asked.server;
        let life = of_client.servers[server].connection.unwrap_or_default();
        let op = match &call.what {
            What::Makes(name) => create(name.clone()),
            What::Cancels(kept) => Op::CancelChange(CancelChange { sequence: kept.sequence }),
        };
        let (sequence, outstanding) = (call.kept.sequence, of_client.sequences.outstanding_of(call.kept));
        let deadline = call.deadline;
        let failure = Failure::lost(ErrorKind::TimedOut);
        self.agenda.at(deadline, Event::Fails { client, attempt, failure });
        if life != self.servers[server].life {
            let failure = Failure::lost(ErrorKind::HostDown);
            return self.agenda.after(1, Event::Fails { client, attempt, failure });
        }
        if reaches {
            let request = Request { client, attempt, server, life, sequence, outstanding, op };
            self.agenda.after(delay, Event::Arrives(request));
        }
        if cut {
            let failure = Failure::lost(ErrorKind::HostDown);
            self.agenda.after(cut_after, Event::Fails { client, attempt, failure });
        }
    }

    pub(super) fn answered(
        &mut self,
        client: usize,
        attempt: u64,
        told: Result<Reply, Error>,
        map: Option<Map>,
    ) -> Result<(), String> {
        let of_client = &mut self.clients[client];
        let is_mine = of_client.attempt == attempt || self.bug == CallBug::MistakesAnswers;
        let Some(call) = of_client.call.as_ref().filter(|_| is_mine) else { return Ok(()) };
        let known = &mut of_client.servers[call.asked.server];
        match told {
            Ok(reply) => {
                (known.failing, known.suspect) = (false, false);
                self.ends(client, Ok(reply))
            }
            Err(error) => {
                let failure = Failure::told(error, map.is_some());
                if let Some(map) = map {
                    of_client.adopt(map);
                }
                let attempt = of_client.attempt;
                self.fails(client, attempt, failure);
                Ok(())
            }
        }
    }

    /// An attempt has no reply: what makes another one promising is done.
    pub(super) fn fails(&mut self, client: usize, attempt: u64, failure: Failure) {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let of_client = &mut self.clients[client];
        let Some(call) = of_client.call.as_mut().filter(|_| of_client.attempt == attempt) else { return };
        // Nothing else comes of this attempt.
        of_client.attempt += 1;
        let attempt = of_client.attempt;
        call.lost |= !failure.failed.from_server && self.bug != CallBug::ForgetsLostAnswers;
        let remedy = failure.failed.remedy(instant, self.agenda.instant_of(call.deadline));
        let server = call.asked.server;
        let known = &mut of_client.servers[server];
        known.note(remedy, self.bug == CallBug::KeepsDeadConnections);
        let deadline = call.deadline;
        let asks = remedy.asks_for_map.filter(|_| self.bug != CallBug::NeverAsksForMap);
        let (wait, map) = match asks {
            None => (0, None),
            Some(asks) => {
                let silent = (asks == MapAsked::OtherServers).then_some(server);
                self.newest_map(client, silent, deadline.saturating_sub(now))
            }
        };
        self.agenda.after(wait, Event::Judged { client, attempt, failure, map });
    }

    /// The map by the server that answers first, and how long that takes.
    fn newest_map(&self, client: usize, silent: Option<usize>, left: u64) -> (u64, Option<Map>) {
        let of_client = &self.clients[client];
        let mut waited = 0;
        for (id, known) in of_client.servers.iter().enumerate() {
            if Some(id) == silent || known.failing && id != 0 {
                continue;
            }
            let soon = SIGN_OF_LIFE_MILLIS_MAX.min(left.saturating_sub(waited));
            match self.servers[id].does {
                Does::Serves if soon > 2 => return (waited + 2, Some(self.map)),
                Does::Serves | Does::Refuses => waited += soon.min(1),
                Does::Restarts | Does::Nothing => waited += soon,
            }
            if waited >= left {
                break;
            }
        }
        (waited, Some(of_client.map))
    }

    pub(super) fn judged(
        &mut self,
        client: usize,
        attempt: u64,
        failure: &Failure,
        map: Option<Map>,
    ) -> Result<(), String> {
        let (instant, share) = (self.agenda.instant(), 0.5 + self.dice.roll(50) as f32 / 100.0);
        let of_client = &mut self.clients[client];
        if of_client.attempt != attempt {
            return Ok(());
        }
        if let Some(map) = map {
            of_client.adopt(map);
        }
        let newest = map.map(|_| of_client.map);
        let Some(call) = &mut of_client.call else { return Ok(()) };
        let same_map = newest.is_some_and(|newest| newest.epoch == call.asked.epoch);
        let again = failure.failed.verdict(OnRetry::Repeat, same_map) == Verdict::Again;
        let mut pause = call.backoff.next(instant, share).filter(|_| again);
        if again && self.bug == CallBug::PausesForEver {
            pause = Some(pause.unwrap_or(std::time::Duration::from_millis(20)));
        }
        match pause {
            Some(pause) => {
                self.tally.repeated += 1;
                self.agenda.after(pause.as_millis() as u64, Event::Tries { client, attempt });
                Ok(())
            }
            None => self.ends(client, Err(failure.error.clone())),
        }
    }

    /// A call is over.
    fn ends(&mut self, client: usize, outcome: Result<Reply, Error>) -> Result<(), String> {
        let now = self.agenda.now;
        let of_client = &mut self.clients[client];
        of_client.attempt += 1;
        let Some(call) = of_client.call.take() else { return Ok(()) };
        let took = now - call.began;
        if took > ENDS_WITHIN_MILLIS {
            return Err(format!("client {client}: a call took {took} ms, and came to {outcome:?}"));
        }
        if let (Some((silent, since)), Err(_)) = (call.met_silent, &outcome) {
            let server = &self.servers[silent.server];
            self.tally.met_silent += 1;
            // By a newer map it is asked once more.
            let still = call.asked == silent && server.does != Does::Serves && server.since < since;
            if still && now - since > SILENT_COSTS_MILLIS_MAX {
                return Err(format!("client {client}: a suspected server took {} ms", now - since));
            }
        }
        match call.what {
            What::Makes(name) => self.has_made(client, name, call.kept, call.lost, outcome),
            What::Cancels(kept) => self.has_cancelled(client, kept, call.kept, call.deadline, outcome),
        }
    }

    fn has_made(
        &mut self,
        client: usize,
        name: Name,
        kept: Kept,
        lost: bool,
        outcome: Result<Reply, Error>,
    ) -> Result<(), String> {
        let instant = self.agenda.instant();
        let of_client = &mut self.clients[client];
        let told = match outcome {
            Ok(Reply::Opened(opened)) => {
                self.tally.answered += 1;
                of_client.sequences.release(kept);
                Reported::Made(opened.info.attributes.inode)
            }
            Ok(other) => return Err(format!("client {client}: {name:?} was made by {other:?}")),
            Err(error) if self.gentle => {
                return Err(format!("client {client}: servers only restart, and {name:?} fails: {error}"));
            }
            Err(error) => {
                self.tally.failed += 1;
                if is_in_doubt(&error, lost) {
                    self.tally.doubted += 1;
                    of_client.pending.add(Message::CancelChange(kept), instant);
                    Reported::Cancelled { sequence: kept.sequence, was_there: None }
                } else {
                    of_client.sequences.release(kept);
                    Reported::No
                }
            }
        };
        self.reported.push((client, name, told));
        let pause = 1 + self.dice.roll(120);
        self.agenda.after(pause, Event::Calls(client));
        Ok(())
    }

    fn has_cancelled(
        &mut self,
        client: usize,
        kept: Kept,
        own: Kept,
        deadline: u64,
        outcome: Result<Reply, Error>,
    ) -> Result<(), String> {
        let instant = self.agenda.instant();
        let of_client = &mut self.clients[client];
        of_client.sequences.release(own);
        let error = outcome
            .err()
            .filter(|error| is_unacknowledged(error) && self.bug != CallBug::ForgetsUnacknowledgedCancels);
        if error.is_none() {
            of_client.pending.acknowledged(Subject::CancelledChanges(SLOT));
            of_client.sequences.release(kept);
            let is_it = |(of, _, told): &(usize, Name, Reported)| {
                *of == client
                    && matches!(told, Reported::Cancelled { sequence, .. } if *sequence == kept.sequence)
            };
            let Some(at) = self.reported.iter().position(is_it) else {
                return Err("something is cancelled that nobody did".into());
            };
            let there = self.lookup(&self.reported[at].1).is_some();
            if let Reported::Cancelled { was_there, .. } = &mut self.reported[at].2 {
                *was_there = Some(there);
            }
            return self.tells_next(client, deadline, None);
        }
        of_client.pending.put_down(Subject::CancelledChanges(SLOT), true, instant);
        if of_client.behind.take().is_some() {
            // The call that it was in the way of has asked nothing.
            self.tally.failed += 1;
            if self.gentle {
                return Err(format!("client {client}: servers only restart, and nothing can be cancelled"));
            }
            let pause = 1 + self.dice.roll(120);
            self.agenda.after(pause, Event::Calls(client));
        }
        Ok(())
    }

    /// Heartbeats tell which servers answer.
    pub(super) fn beats(&mut self, client: usize) {
        let instant = self.agenda.instant();
        for (id, known) in self.clients[client].servers.iter_mut().enumerate() {
            known.beats(self.servers[id].does == Does::Serves);
        }
        self.clients[client].pending.note_signs_of_life(instant);
        self.agenda.after(limits::HEARTBEAT_MILLIS, Event::Beats(client));
    }

    /// The heart tells what is pending, while no program calls.
    pub(super) fn tells(&mut self, client: usize) -> Result<(), String> {
        self.agenda.after(50, Event::Tells(client));
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let of_client = &mut self.clients[client];
        if of_client.call.is_some() || of_client.pending.wake_at().is_none_or(|at| at > instant) {
            return Ok(());
        }
        let round = of_client.pending.begin_round();
        let failing = of_client.servers[of_client.map.server].failing;
        let taken =
            of_client.pending.take_up_next(round, instant, |home| failing && home == Home::Slot(SLOT));
        match taken {
            Some(_) => self.tells_next(client, now + PATIENCE_MILLIS_MAX, Some(round)),
            None => Ok(()),
        }
    }
}

fn create(name: Name) -> Op {
    let layout =
        Layout { stripe_unit: 1 << 16, width: 1, base_slot: SLOT, stride: 1, copies: 1, created: Epoch(1) };
    Op::Create(Create {
        parent: InodeId::ROOT,
        name,
        mode: 0o644.into(),
        exclusive: true,
        read: true,
        write: true,
        layout: Some(layout),
        wish: LayoutWish::default(),
        named: Vec::new(),
    })
}
