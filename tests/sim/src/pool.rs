//! A whole pool: the values of slots that servers run ([`ramlace_slot`]), the deliveries between them, clients that repeat what
//! they were not answered, a network that delays, loses, repeats and cuts, and servers that die at any moment and begin again from snapshots
//! and logs. Servers have the tables of leases and a gate for answers ([`ramlace_namespace::leases`]), clients a mount that keeps and a
//! kernel that believes ([`ramlace_mount::believed`], [`ramlace_client::pure`]).
//!
//! What holds: a client's names and bytes are in the end what it was told, whatever was lost or came twice; a server that begins again is
//! what it was; nobody believes what an answer that has left contradicts, whoever dies or is stopped meanwhile, and no answer waits
//! for holders for more than 750 ms; when everybody has left, nothing is owed, held or forgotten, and `ramlace check` finds nothing.
//! A [`Bug`] planted in what a server or a client owes the code that decides must be found.

mod bug;
mod client;
mod delivering;
mod finish;
mod gate;
mod lanes;
mod mount;
mod server;

use std::collections::BTreeMap;

use ramlace_base::{
    Epoch, Error, ErrorKind, InodeId, Result as Outcome, Sequence, SessionId, Slot, Timestamp,
};
use ramlace_mount::believed::Asked;
use ramlace_namespace::{
    AskedBy, Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Query, Reply, Room,
};
use ramlace_slot::{Effects, SlotBirth, SlotChange};
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::leases::LeasesRenewed;
use ramlace_wire::{Attributes, Credentials};

use crate::agenda::Agenda;
use crate::dice::Dice;
use crate::tally::tally;
pub use bug::Bug;
use client::Client;
use mount::News;
use server::Server;

/// Slots of the pool.
pub const SLOTS: u16 = 8;
/// Whose pool it is.
pub const WHO: Credentials = Credentials::new(1000, 1000);
/// After so long a client asks again, and a server delivers again.
const PATIENCE_MILLIS: u64 = 200;
/// The longest way of a message.
const DELAY_MILLIS_MAX: u64 = 80;
/// A process lives at least so long, and up to so much longer.
const DEATH_MILLIS_MIN: u64 = 500;
const DEATH_MILLIS_MORE: u64 = 5_000;
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
        /// Messages that were lost.
        lost,
        /// Messages that came twice.
        repeated,
        /// Servers that died.
        deaths,
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
        /// Connections on which a client listened that were cut.
        cut,
    }
}

/// A message on its way.
#[derive(Clone)]
pub enum Message {
    /// A client asks for a change of names.
    Ask { client: usize, slot: Slot, sequence: Sequence, op: Box<Op> },
    /// A client writes into a lane.
    Write { client: usize, target: LaneTarget, sequence: Sequence, offset: usize, byte: u8, life: u64 },
    /// A client is answered.
    Answered { client: usize, sequence: Sequence, outcome: Box<Outcome<Reply>>, of_lane: bool },
    /// A slot owes another this.
    Owed { from: Slot, delivery: DeliveryId, message: Box<Delivery> },
    /// What became of it.
    Done { from: Slot, delivery: DeliveryId, answer: Box<DeliveryAnswer> },
    /// A client asks for attributes, with a lease.
    Read { client: usize, inode: InodeId, asked: Asked },
    /// They come.
    Shown { client: usize, session: SessionId, attributes: Box<Attributes>, leased: bool, asked: Asked },
    /// A client asks a server to renew its leases.
    Renew { client: usize, server: usize, left: u64 },
    /// It does, or not.
    Renewed { client: usize, session: SessionId, server: usize, told: LeasesRenewed, left: u64 },
    /// A client asks for news, and has done recalls up to a number. It goes by a connection to one life; by which it has heard from another.
    Listen { client: usize, server: usize, connection: u64, to_life: u64, acknowledged: u64, life: u64 },
    /// What there is.
    News { client: usize, server: usize, connection: u64, life: u64, recalls: Vec<(u64, InodeId)> },
}

enum Event {
    Arrives(Message),
    /// A client polls whether it was answered.
    Polls {
        client: usize,
        sequence: Sequence,
    },
    /// A server delivers what its slots owe still.
    Delivers(usize),
    Dies(usize),
    Begins(usize),
    Snapshot(usize),
    /// A server looks whom it has waited for long enough.
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
    servers: Vec<Server>,
    clients: Vec<Client>,
    agenda: Agenda<Event>,
    /// Messages that will arrive.
    on_their_way: u64,
    /// Nothing is lost, comes twice or dies any more.
    calm: bool,
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
            servers: (0..servers).map(|_| Server::default()).collect(),
            clients: (0..clients).map(Client::new).collect(),
            agenda: Agenda::default(),
            on_their_way: 0,
            calm: false,
            states: BTreeMap::new(),
            changed: Vec::new(),
            shown: BTreeMap::new(),
            tally: Tally::default(),
            dice,
        };
        for server in 0..servers {
            world.servers[server].slots = Some(BTreeMap::new());
            world.agenda.after(PATIENCE_MILLIS, Event::Delivers(server));
            let (death, snapshot) =
                (DEATH_MILLIS_MIN + world.dice.roll(DEATH_MILLIS_MORE), 50 + world.dice.roll(200));
            world.agenda.after(death, Event::Dies(server));
            world.agenda.after(snapshot, Event::Snapshot(server));
        }
        for slot in 0..SLOTS {
            let (began, owner) = (Epoch(1), WHO.owner());
            let birth =
                SlotBirth { slots: SLOTS.into(), began, hash_seed: 42, owner, now: Timestamp { nanos: 1 } };
            world.commit(Slot(slot), &SlotChange::Born(birth)).expect("nobody waits yet");
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

    /// A message leaves: it arrives, is lost, or comes twice.
    pub(super) fn send(&mut self, message: Message) {
        if !self.calm && self.dice.percent(12) {
            self.tally.lost += 1;
            return;
        }
        if !self.calm && self.dice.percent(15) {
            self.tally.repeated += 1;
            let delay = 1 + self.dice.roll(6 * DELAY_MILLIS_MAX);
            self.arrives_after(delay, message.clone());
        }
        let delay = self.delay();
        self.arrives_after(delay, message);
    }

    fn delay(&mut self) -> u64 {
        1 + self.dice.roll(DELAY_MILLIS_MAX)
    }

    fn arrives_after(&mut self, delay: u64, message: Message) {
        self.on_their_way += 1;
        self.agenda.after(delay, Event::Arrives(message));
    }

    /// Clients do what they have to do, until all are done.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            self.go_on(client);
            (0..self.servers.len()).for_each(|server| self.connects(client, server));
            self.agenda.after(1, Event::Looks { client });
        }
        while self.clients.iter().any(|client| !client.is_done()) {
            self.step()?;
        }
        Ok(())
    }

    /// The network is good, everybody is there, and everything that is on its way arrives.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.calm = true;
        for server in 0..self.servers.len() {
            self.begin(server)?;
        }
        let end = self.now() + END_MILLIS_MAX;
        while self.is_busy() {
            if self.now() > end {
                return Err("it never comes to rest: something is owed for ever".into());
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
    }

    fn step(&mut self) -> Result<(), String> {
        let event = self.agenda.next().ok_or("nothing happens any more")?;
        self.tally.events += 1;
        if self.tally.events > EVENTS_MAX {
            return Err("somebody asks for ever".into());
        }
        match event {
            Event::Arrives(message) => {
                self.on_their_way -= 1;
                self.arrive_awake(message)?;
            }
            Event::Polls { client, sequence } => self.poll(client, sequence),
            Event::Delivers(server) => {
                self.deliver(server);
                self.agenda.after(PATIENCE_MILLIS, Event::Delivers(server));
            }
            Event::Dies(server) => {
                if !self.calm {
                    self.tally.deaths += 1;
                    self.dies(server);
                    let away = 1 + self.dice.roll(400);
                    self.agenda.after(away, Event::Begins(server));
                    let death = away + DEATH_MILLIS_MIN + self.dice.roll(DEATH_MILLIS_MORE);
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
            Event::Wakes(server) => self.wakes(server)?,
            Event::Connects { client, server } => self.connects(client, server),
            Event::Looks { client } => self.looks(client)?,
            Event::Handles { client, news } => self.handles(client, news),
            Event::DropsLate { client, inode } => self.drops_late(client, inode),
        }
        Ok(())
    }

    /// A process ends, with its answers and its connections.
    fn dies(&mut self, server: usize) {
        self.servers[server].die();
        for client in 0..self.clients.len() {
            self.agenda.after(1, Event::Connects { client, server });
        }
    }

    fn begin(&mut self, server: usize) -> Result<(), String> {
        if self.servers[server].is_up() {
            return Ok(());
        }
        let now = self.now();
        self.tally.replayed += self.servers[server].begin(now, self.bug)?;
        self.deliver(server);
        Ok(())
    }

    /// A client polls whether it was answered, and asks again.
    fn poll(&mut self, client: usize, sequence: Sequence) {
        let Some(asked) = self.clients[client].under_way(sequence) else { return };
        let stopped_until = self.clients[client].mount.stopped_until;
        if self.now() < stopped_until {
            return self.agenda.at(stopped_until, Event::Polls { client, sequence });
        }
        let message =
            if self.bug == Bug::RetriesWithANewNumber { self.clients[client].renumber() } else { asked };
        self.ask(client, message);
    }

    pub(super) fn ask(&mut self, client: usize, mut message: Message) {
        if let Message::Write { target, life, .. } = &mut message {
            *life = self.servers[self.home(target.slot)].life;
        }
        let sequence = self.clients[client].sequence();
        self.send(message);
        self.agenda.after(PATIENCE_MILLIS, Event::Polls { client, sequence });
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
        for effect in names {
            self.recall(home, &effect);
            match effect {
                Effect::Reply { token, outcome } => {
                    let client = self.clients.iter().position(|client| client.session() == token.session);
                    let Some(client) = client else { continue };
                    // Of what the client has had the answer to before, this is a copy; and of other slots it shows what it has
                    // changed there, but not what others have since.
                    let is_news = outcome.is_ok() && token.sequence == self.clients[client].sequence();
                    let changing = self.clients[client].mount.changing.iter();
                    let changes = changing.filter(|inode| is_news && inode.slot() == slot);
                    let shows = self.as_they_are(changes);
                    let (sequence, outcome) = (token.sequence, Box::new(outcome));
                    self.answer(
                        slot,
                        Message::Answered { client, sequence, outcome, of_lane: false },
                        shows,
                    )?;
                }
                Effect::Send { delivery, message } => {
                    let is_order = matches!(message, Delivery::Decide(_) | Delivery::DropLane(_));
                    self.servers[home].owed.insert((slot, delivery));
                    self.send(Message::Owed { from: slot, delivery, message: Box::new(message) });
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

    /// What comes to a client whose process is stopped waits there.
    fn arrive_awake(&mut self, message: Message) -> Result<(), String> {
        let client = match message {
            Message::Answered { client, .. }
            | Message::Shown { client, .. }
            | Message::Renewed { client, .. }
            | Message::News { client, .. } => Some(client),
            _ => None,
        };
        let until = client.map_or(0, |client| self.clients[client].mount.stopped_until);
        if self.now() < until {
            self.on_their_way += 1;
            self.agenda.at(until, Event::Arrives(message));
            return Ok(());
        }
        self.arrive(message)
    }

    fn arrive(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::Ask { client, slot, sequence, op } => self.asked(client, slot, sequence, *op),
            Message::Write { .. } => self.written(&message),
            Message::Answered { client, sequence, outcome, .. } => self.answered(client, sequence, *outcome),
            Message::Owed { from, delivery, message } => self.arrives_owed(from, delivery, *message),
            Message::Done { from, delivery, answer } => {
                let home = self.home(from);
                let names = self.servers[home].value(from).and_then(|value| value.names());
                if names.is_some_and(|names| names.open_delivery(delivery).is_some()) {
                    let op = Op::DeliveryDone { delivery, result: Ok(*answer) };
                    self.commit(from, &self.server_command(op))?;
                }
                Ok(())
            }
            Message::Read { client, inode, asked } => self.reads(client, inode, asked),
            Message::Shown { client, session, attributes, leased, asked } => {
                if leased && self.clients[client].session() == session {
                    self.is_shown(client, &attributes, asked);
                }
                Ok(())
            }
            Message::Renew { client, server, left } => {
                if self.servers[server].is_up() {
                    self.renews(client, server, left);
                }
                Ok(())
            }
            Message::Renewed { client, session, server, told, left } => {
                if self.clients[client].session() == session {
                    self.is_renewed(client, server, told, left);
                }
                Ok(())
            }
            Message::Listen { client, server, connection, to_life, acknowledged, life } => {
                if to_life != self.life(server) || !self.is_connected(client, server, connection) {
                    return Ok(());
                }
                self.listens(client, server, (connection, acknowledged, life))
            }
            Message::News { client, server, connection, life, recalls } => {
                if self.is_connected(client, server, connection) {
                    self.hears(client, News { server, connection, life, recalls });
                }
                Ok(())
            }
        }
    }

    fn asked(&mut self, client: usize, slot: Slot, sequence: Sequence, op: Op) -> Result<(), String> {
        let (session, home) = (self.clients[client].session(), self.home(slot));
        if !self.servers[home].is_up() || self.servers[home].ended.contains(&session) {
            return Ok(());
        }
        // One operation after the other: whoever asks has seen all answers before.
        let origin =
            Origin::Client { session, sequence, acknowledged_below: sequence, who: WHO, on_behalf: false };
        let command = Box::new(Command { now: self.stamp(), origin, op });
        self.commit(slot, &SlotChange::Command { command, room: Room::ForInodes }).map(drop)
    }

    fn answered(&mut self, client: usize, sequence: Sequence, outcome: Outcome<Reply>) -> Result<(), String> {
        let is_mine = self.clients[client].under_way(sequence).is_some();
        if !is_mine && (self.bug != Bug::MistakesAnswers || self.clients[client].is_done()) {
            return Ok(());
        }
        if let Err(error) = &outcome
            && matches!(error.kind(), ErrorKind::Retry | ErrorKind::HostDown | ErrorKind::Busy)
        {
            // Nothing has happened: the same comes again.
            return Ok(());
        }
        self.tally.answered += 1;
        let known = self.clients[client].knows_itself();
        self.clients[client].mount.has_changed(&known);
        self.clients[client].take(outcome)?;
        self.go_on(client);
        Ok(())
    }

    fn go_on(&mut self, client: usize) {
        if let Some(message) = self.clients[client].next(&mut self.dice) {
            self.ask(client, message);
        }
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
