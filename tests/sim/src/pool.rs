//! A whole pool: the values of slots that servers run ([`ramlace_slot`]), the deliveries between them, clients that repeat by the product's rule
//! what they were not answered, and tell by its outbox what they have cancelled ([`ramlace_client::pure`]), a network that delays, loses, repeats
//! and cuts, and servers that are stopped, or die at any moment and begin again from snapshots and logs, one of them at times without its store.
//! Servers have the tables of sessions ([`ramlace_server::pure`]) and leases and a gate for answers ([`ramlace_namespace::leases`]), clients a mount
//! that keeps and a kernel that believes ([`ramlace_mount::believed`], [`ramlace_client::pure`]).
//!
//! What holds: a client's names and bytes are in the end what it was told, whatever was lost or came twice; a server that begins again is
//! what it was; a call ends within 5 s, and what was cancelled is done, or never will be; nobody believes what an answer that has left
//! contradicts, whichever process dies or is stopped meanwhile, and no answer waits for holders for more than 750 ms; a session ends 10 s after its last sign
//! of life, and not before; bytes that went with a store are an error, and never zeros or what was before; when everybody has
//! left, nothing is pending, held or forgotten, and `ramlace check` finds nothing else.
//! A [`Bug`] planted in what a server or a client must do for the code that decides must be found.

mod bug;
mod calls;
mod cancelling;
mod client;
mod delivering;
mod finish;
mod gate;
mod lanes;
mod losing;
mod mount;
mod network;
mod server;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Error, ErrorKind, InodeId, Result as Outcome, SessionId, Slot, Timestamp, limits};
use ramlace_namespace::{AskedBy, Command, Delivery, DeliveryAnswer, Effect, Op, Origin, Query, Reply, Room};
use ramlace_slot::{Effects, SlotChange};
use ramlace_wire::peer::Token;
use ramlace_wire::{Attributes, ClusterMap, Credentials};

use crate::agenda::Agenda;
use crate::calling::Failure;
use crate::dice::Dice;
use crate::tally::tally;
pub use bug::Bug;
use calls::Numbered;
use client::Client;
use mount::News;
use network::Message;
use server::Server;

/// Slots of the pool.
pub const SLOTS: u16 = 8;
/// Whose pool it is.
pub const WHO: Credentials = Credentials::new(1000, 1000);
/// After so long a server delivers again.
const PATIENCE_MILLIS: u64 = 200;
/// How long a server is away: mostly for a moment.
const AWAY_MILLIS_MAX: u64 = 400;
const AWAY_LONG_MILLIS_MAX: u64 = 7_000;
/// A process lives at least so long, and mostly up to so much longer; some live for longer than a session that says nothing.
const DEATH_MILLIS_MIN: u64 = 500;
const DEATH_MILLIS_MORE: u64 = 5_000;
const DEATH_MILLIS_LONG: u64 = 25_000;
/// How often the store of the last server goes with it.
const LOSES_STORE_PERCENT: u64 = 20;
/// Nothing takes longer than this once the network is good.
const END_MILLIS_MAX: u64 = 60_000;
/// More than this happens only where somebody repeats itself for ever.
const EVENTS_MAX: u64 = 200_000;

tally! {
    /// How much has happened.
    Tally {
        /// Things that arrived, or that somebody's clock did.
        events,
        /// Operations of clients that were answered.
        answered,
        /// Attempts beside the first of each call.
        asked_again,
        /// Operations that have failed.
        failed,
        /// Of these, changes that might have been done.
        doubted,
        /// Messages that were lost.
        lost,
        /// Messages that came twice.
        repeated,
        /// Servers that died.
        deaths,
        /// Stores that went with their server.
        stores_lost,
        /// Operations that were refused because of that.
        lost_bytes,
        /// Servers that were stopped for a while.
        stops,
        /// Records that a life has read again.
        replayed,
        /// Times that something was believed without a request.
        believed,
        /// The same by a renewal.
        renewed,
        /// Answers that waited for a holder.
        waited,
        /// Recalls that were told.
        recalled,
        /// Sessions that have ended for want of a sign of life, one for each server.
        expired,
        /// Clients whose session had ended.
        begun_anew,
        /// Connections on which a client listened that were cut.
        cut,
    }
}

enum Event {
    Arrives(Message),
    /// A program begins its next operation.
    Acts {
        client: usize,
    },
    /// It looks whether that may be asked for.
    GoesOn {
        client: usize,
    },
    /// The next attempt of a call begins.
    Tries {
        client: usize,
        attempt: u64,
    },
    /// A server that has yet to greet is looked at again.
    Greets {
        client: usize,
        attempt: u64,
        until: u64,
    },
    /// An attempt has no reply.
    Fails {
        client: usize,
        attempt: u64,
        failure: Failure,
    },
    /// What could be done about that is done.
    Judged {
        client: usize,
        attempt: u64,
        failure: Failure,
    },
    /// A client's heart beats.
    Beats(usize),
    /// It looks whether somebody is to be told something.
    Tells(usize),
    /// A server delivers what is still pending in its slots.
    Delivers(usize),
    Dies(usize),
    Begins(usize),
    Snapshot(usize),
    /// A server looks whether sessions have said nothing for too long.
    Expires {
        server: usize,
        due: u64,
    },
    /// A server looks for which sessions it has waited long enough.
    Wakes(usize),
    /// A client listens on a new connection.
    Connects {
        client: usize,
        server: usize,
    },
    /// A program looks at attributes.
    Looks {
        client: usize,
    },
    /// A client has dropped what it was told to drop.
    Handles {
        client: usize,
        news: News,
    },
    /// It drops what it should have dropped before: a bug.
    DropsLate {
        client: usize,
        inode: InodeId,
    },
}

/// Everything.
pub struct World {
    dice: Dice,
    bug: Bug,
    /// What was lost since when; everybody knows the newest.
    map: ClusterMap,
    servers: Vec<Server>,
    clients: Vec<Client>,
    agenda: Agenda<Event>,
    /// Messages that will arrive.
    on_their_way: u64,
    /// Nothing is lost, comes twice or dies any more.
    calm: bool,
    /// All clients have ended their sessions.
    have_left: bool,
    /// Changes that have come to their slot, those that are done, and those of which a client relies on it that they never will be.
    received: BTreeSet<Token>,
    done: BTreeMap<Token, Reply>,
    cancelled: BTreeSet<Token>,
    /// The states that inodes have had, of those that somebody has read; `None`: it is gone.
    states: BTreeMap<InodeId, Vec<Option<Attributes>>>,
    /// Those that the last records have changed.
    changed: Vec<InodeId>,
    /// The newest state of each that an answer which has left shows.
    shown: BTreeMap<InodeId, usize>,
    tally: Tally,
}

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run(seed: u64, bug: Bug) -> Result<Tally, String> {
    let mut world = World::new(seed, bug);
    world.run().and_then(|()| world.finish()).map_err(|what| format!("at {} ms: {what}", world.now()))?;
    Ok(world.tally())
}

impl World {
    /// A pool with its root, and clients that have yet to begin.
    #[must_use]
    pub fn new(seed: u64, bug: Bug) -> World {
        let mut dice = Dice(seed);
        let servers = 2 + dice.roll(3) as usize;
        let clients = 2 + dice.roll(3);
        let mut world = World {
            bug,
            map: losing::first_map(servers),
            servers: (0..servers).map(|_| Server::default()).collect(),
            clients: (0..clients).map(|client| Client::new(client, servers)).collect(),
            agenda: Agenda::default(),
            on_their_way: 0,
            calm: false,
            have_left: false,
            received: BTreeSet::new(),
            done: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            states: BTreeMap::new(),
            changed: Vec::new(),
            shown: BTreeMap::new(),
            tally: Tally::default(),
            dice,
        };
        for server in 0..servers {
            world.servers[server].slots = Some(BTreeMap::new());
            world.agenda.after(PATIENCE_MILLIS, Event::Delivers(server));
            world.looks_at_sessions(server, 1);
            let (death, snapshot) = (world.lives_for(), 50 + world.dice.roll(200));
            world.agenda.after(death, Event::Dies(server));
            world.agenda.after(snapshot, Event::Snapshot(server));
        }
        for slot in 0..SLOTS {
            world.bear(Slot(slot)).expect("nobody waits yet");
        }
        world
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.agenda.now
    }

    /// How much has happened.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    pub(super) fn home(&self, slot: Slot) -> usize {
        usize::from(slot.0) % self.servers.len()
    }

    pub(super) fn stamp(&self) -> Timestamp {
        Timestamp { nanos: 1 + self.agenda.now as i64 * 1_000_000 }
    }

    /// Clients do what they have to do, until all are done.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            self.agenda.after(1, Event::Acts { client });
            self.agenda.after(limits::HEARTBEAT_MILLIS, Event::Beats(client));
            (0..self.servers.len()).for_each(|server| self.connects(client, server));
            self.agenda.after(1, Event::Looks { client });
        }
        while self.clients.iter().any(|client| !client.is_done()) {
            self.step()?;
        }
        Ok(())
    }

    /// The network is good, everybody is there, and everything that is in flight arrives.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.calm = true;
        for server in 0..self.servers.len() {
            self.begin(server)?;
        }
        let end = self.now() + END_MILLIS_MAX;
        while self.is_busy() {
            if self.now() > end {
                return Err("it never comes to rest: something is pending for ever".into());
            }
            self.step()?;
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        let values = self.servers.iter().flat_map(|server| server.slots.iter().flatten());
        let mut names = values.filter_map(|(_, value)| value.names());
        names.any(|names| names.open_deliveries().next().is_some())
            || self.on_their_way > 0
            || self.servers.iter().any(|server| !server.gate.is_empty())
            || self.clients.iter().any(|client| !client.caller.is_at_rest())
            || (!self.have_left && self.sessions_are_ending())
    }

    fn step(&mut self) -> Result<(), String> {
        let event = self.agenda.next().ok_or("nothing happens any more")?;
        self.tally.events += 1;
        if self.tally.events > EVENTS_MAX {
            return Err("somebody asks for ever".into());
        }
        let stopped_until = self.stopped_until(&event);
        if self.now() < stopped_until {
            if let Event::Wakes(server) = event {
                self.servers[server].wakes_at = Some(stopped_until);
            }
            self.agenda.at(stopped_until, event);
            return Ok(());
        }
        match event {
            Event::Arrives(message) => {
                self.on_their_way -= 1;
                self.arrive(message)?;
            }
            Event::Acts { client } => self.acts(client)?,
            Event::GoesOn { client } => self.goes_on(client)?,
            Event::Tries { client, attempt } => self.tries(client, attempt),
            Event::Greets { client, attempt, until } => self.greets(client, attempt, until),
            Event::Fails { client, attempt, failure } => self.fails(client, attempt, failure),
            Event::Judged { client, attempt, failure } => self.judged(client, attempt, &failure)?,
            Event::Beats(client) => self.beats(client),
            Event::Tells(client) => self.tells(client)?,
            Event::Delivers(server) => {
                self.deliver(server);
                self.agenda.after(PATIENCE_MILLIS, Event::Delivers(server));
            }
            Event::Dies(server) => {
                if !self.calm && self.dice.percent(12) {
                    self.tally.stops += 1;
                    let stopped = self.dice.roll(AWAY_LONG_MILLIS_MAX);
                    let until = self.now() + stopped;
                    (self.servers[server].stopped_until, self.servers[server].there_since) = (until, until);
                    let death = self.lives_for();
                    self.agenda.after(death, Event::Dies(server));
                } else if !self.calm {
                    self.tally.deaths += 1;
                    self.dies(server);
                    if server == self.lender() && self.dice.percent(LOSES_STORE_PERCENT) {
                        self.loses_store(server);
                    }
                    let is_long = self.dice.percent(10);
                    self.servers[server].refuses = is_long && self.dice.percent(50);
                    let away =
                        1 + self.dice.roll(if is_long { AWAY_LONG_MILLIS_MAX } else { AWAY_MILLIS_MAX });
                    self.agenda.after(away, Event::Begins(server));
                    let death = away + self.lives_for();
                    self.agenda.after(death, Event::Dies(server));
                }
            }
            Event::Begins(server) => self.begin(server)?,
            Event::Snapshot(server) => {
                let (which, keeps_log, bug) = (self.dice.roll(1000), self.dice.percent(30), self.bug);
                self.servers[server].write_snapshot(which, keeps_log, bug);
                let next = 20 + self.dice.roll(200);
                self.agenda.after(next, Event::Snapshot(server));
            }
            Event::Expires { server, due } => self.expires(server, due)?,
            Event::Wakes(server) => self.wakes(server)?,
            Event::Connects { client, server } => self.connects(client, server),
            Event::Looks { client } => self.looks(client)?,
            Event::Handles { client, news } => self.handles(client, &news),
            Event::DropsLate { client, inode } => self.drops_late(client, inode),
        }
        Ok(())
    }

    fn lives_for(&mut self) -> u64 {
        let more = if self.dice.percent(15) { DEATH_MILLIS_LONG } else { DEATH_MILLIS_MORE };
        DEATH_MILLIS_MIN + self.dice.roll(more)
    }

    /// A process ends, with its answers and its connections.
    fn dies(&mut self, server: usize) {
        self.servers[server].die();
        for client in 0..self.clients.len() {
            self.agenda.after(1, Event::Connects { client, server });
            self.cuts_calls(client, server);
        }
    }

    fn begin(&mut self, server: usize) -> Result<(), String> {
        if self.servers[server].is_up() {
            return Ok(());
        }
        let now = (self.now(), self.agenda.instant());
        self.tally.replayed += self.servers[server].begin(now, self.bug)?;
        let slots = (0..SLOTS).map(Slot).filter(|slot| self.home(*slot) == server);
        for slot in slots.collect::<Vec<_>>() {
            if self.servers[server].value(slot).is_none() {
                self.bear(slot)?;
            }
        }
        self.deliver(server);
        self.looks_at_sessions(server, self.now() + 1);
        Ok(())
    }

    /// Writes a record of a slot whose server is there, and sends what follows from it; what a peer is answered.
    pub(super) fn commit(
        &mut self,
        slot: Slot,
        change: &SlotChange,
    ) -> Result<Option<Outcome<DeliveryAnswer>>, String> {
        let home = self.home(slot);
        let Effects { names, .. } = self.servers[home].commit(slot, change, self.bug);
        self.note_states(slot);
        let mut answer = None;
        let unaware = self.forgotten_knowers(home, &names);
        for effect in names {
            self.recall(home, &effect, &unaware);
            match effect {
                Effect::Reply { token, outcome } => {
                    self.is_done(token, &outcome)?;
                    if !self.servers[home].waiting.remove(&token) {
                        continue;
                    }
                    let client = self.clients.iter().position(|client| client.session() == token.session);
                    let Some(client) = client else { continue };
                    // Of what the client has had the answer to before, this is a copy; and of other slots it shows what it has
                    // changed there, but not what others have since.
                    let changes = self.clients[client].learns_of(token.sequence);
                    let changes = changes.iter().filter(|inode| outcome.is_ok() && inode.slot() == slot);
                    let shows = self.as_they_are(changes);
                    self.answer(
                        slot,
                        Message::Answered { client, token, outcome: Box::new(outcome), of_lane: false },
                        shows,
                    )?;
                }
                Effect::Send { delivery, message } => {
                    let is_order = matches!(message, Delivery::Decide(_) | Delivery::DropLane(_));
                    self.servers[home].pending.insert((slot, delivery));
                    self.send(Message::Delivery { from: slot, delivery, message: Box::new(message) });
                    if self.bug == Bug::BelievesDeliveries && is_order {
                        let op = Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) };
                        self.commit(slot, &self.server_command(op))?;
                    }
                }
                Effect::PeerReply(outcome) => answer = Some(outcome),
                _ => {}
            }
        }
        Ok(answer)
    }

    fn server_command(&self, op: Op) -> SlotChange {
        let command = Box::new(Command { now: self.stamp(), origin: Origin::Server, op });
        SlotChange::Command { command, room: Room::ForInodes }
    }

    fn asked(&mut self, client: usize, slot: Slot, numbered: Numbered, op: Op) -> Result<(), String> {
        let home = self.home(slot);
        let Numbered { token, below, life } = numbered;
        let Token { session, sequence } = token;
        let server = &self.servers[home];
        // What it comes by goes with the process.
        if !server.is_up() || server.life != life || !self.is_open(home, client, session)? {
            return Ok(());
        }
        let server = &mut self.servers[home];
        server.waiting.insert(token);
        match op {
            Op::CancelChange(request) if self.bug != Bug::KnowsWhatWasCancelled => {
                server.waiting.remove(&Token { session, sequence: request.sequence });
            }
            _ => {}
        }
        self.received.insert(token);
        let op = self.completed(op);
        let origin =
            Origin::Client { session, sequence, acknowledged_below: below, who: WHO, on_behalf: false };
        let command = Box::new(Command { now: self.stamp(), origin, op });
        self.commit(slot, &SlotChange::Command { command, room: Room::ForInodes }).map(drop)
    }

    /// As `crates/server/src/changes.rs` completes what clients ask: the home says since when lanes have what they are given.
    fn completed(&self, op: Op) -> Op {
        match op {
            Op::Create(mut request) => {
                request.layout.iter_mut().for_each(|layout| layout.created = self.map.epoch);
                Op::Create(request)
            }
            Op::Promote { request, .. } => Op::Promote { request, epoch: self.map.epoch },
            op => op,
        }
    }

    /// A session that does not wait any more for the answer to a change may know what was before, and is notified as others are.
    fn forgotten_knowers(&self, home: usize, effects: &[Effect]) -> Vec<SessionId> {
        let waiting = &self.servers[home].waiting;
        let gone = |effect: &Effect| match effect {
            Effect::Reply { token, .. } if !waiting.contains(token) => Some(token.session),
            _ => None,
        };
        effects.iter().filter_map(gone).collect()
    }

    pub(super) fn query<Q: Query>(&self, slot: Slot, query: &Q) -> Outcome<Q::Reply> {
        self.query_by(SessionId::NONE, slot, query)
    }

    pub(super) fn query_by<Q: Query>(&self, session: SessionId, slot: Slot, query: &Q) -> Outcome<Q::Reply> {
        let value = self.servers[self.home(slot)].value(slot);
        let names = value.and_then(|value| value.names()).ok_or_else(away)?;
        names.query(AskedBy { who: &WHO, session }, query)
    }
}

fn away() -> Error {
    Error::new(ErrorKind::HostDown, "no process runs there")
}

impl Event {
    /// The client whose process does it, or receives it.
    fn client(&self) -> Option<usize> {
        match self {
            Event::Acts { client }
            | Event::GoesOn { client }
            | Event::Tries { client, .. }
            | Event::Greets { client, .. }
            | Event::Fails { client, .. }
            | Event::Judged { client, .. }
            | Event::Beats(client)
            | Event::Tells(client)
            | Event::Handles { client, .. } => Some(*client),
            Event::Arrives(
                Message::Answered { client, .. }
                | Message::Shown { client, .. }
                | Message::Renewed { client, .. }
                | Message::Ended { client, .. }
                | Message::News { client, .. },
            ) => Some(*client),
            _ => None,
        }
    }

    /// The server whose process does it, or receives it.
    fn server(&self, world: &World) -> Option<usize> {
        match self {
            Event::Delivers(server)
            | Event::Snapshot(server)
            | Event::Wakes(server)
            | Event::Expires { server, .. } => Some(*server),
            Event::Arrives(message) => message.server(world),
            _ => None,
        }
    }
}
