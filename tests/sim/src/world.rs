//! The servers, the clients, and what is on its way between them.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, Error, ErrorKind, Result as Outcome, Sequence, SessionId, Slot, Timestamp};
use ramlace_lanes::{CutPlan, LaneChange, LaneTable};
use ramlace_layout::lane_slot;
use ramlace_namespace::{
    AskedBy, Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Query, Reply, Room,
};
use ramlace_slot::{Effects, SlotBirth, SlotChange};
use ramlace_wire::Credentials;
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::peer::{InodeAnswer, QueryInode};

use crate::Tally;
use crate::client::Client;
use crate::dice::Dice;
use crate::server::Server;

/// Slots of the pool.
pub const SLOTS: u16 = 8;
/// Whose pool it is.
pub const WHO: Credentials = Credentials::new(1000, 1000);
/// After so long a client asks again, and a server delivers again.
const PATIENCE: u64 = 120;
/// The longest way of a message.
const DELAY_MAX: u64 = 80;
/// Nothing takes longer than this once the network is good.
const END_MAX: u64 = 60_000;
/// More than this happens only where somebody repeats itself for ever.
const EVENTS_MAX: u64 = 200_000;

/// Something that somebody owes the pure crates, and does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// None.
    None,
    /// A server answers, and then writes the record.
    AnswersBeforeTheLog,
    /// A new life applies records that the snapshot has.
    ReplaysWhatTheSnapshotHas,
    /// A snapshot lets go of records that it does not have.
    SnapshotIsOld,
    /// A client gives its second attempt a number of its own.
    RetriesWithANewNumber,
    /// A server sends a delivery once.
    DeliversOnce,
    /// A new life forgets what its slots owe.
    ForgetsDeliveries,
    /// A delivery counts as done when it was sent.
    BelievesDeliveries,
    /// A lane is said to be dropped, and stays.
    KeepsLanes,
    /// Bytes of a write that comes late are taken.
    TakesLateWrites,
    /// The end of a session is told to one of the slots that know it.
    EndsSessionsInOneSlot,
    /// What a file had inline fills its lane again when the message comes twice.
    FillsTwice,
    /// A client believes the answer to an operation for that to the next.
    MistakesAnswers,
}

impl Bug {
    /// All that can be planted.
    pub const ALL: [Bug; 12] = [
        Bug::AnswersBeforeTheLog,
        Bug::ReplaysWhatTheSnapshotHas,
        Bug::SnapshotIsOld,
        Bug::RetriesWithANewNumber,
        Bug::DeliversOnce,
        Bug::ForgetsDeliveries,
        Bug::BelievesDeliveries,
        Bug::KeepsLanes,
        Bug::TakesLateWrites,
        Bug::EndsSessionsInOneSlot,
        Bug::FillsTwice,
        Bug::MistakesAnswers,
    ];
}

/// A message on its way.
#[derive(Clone)]
pub enum Message {
    /// A client asks for a change of names.
    Ask { client: usize, slot: Slot, sequence: Sequence, op: Box<Op> },
    /// A client writes into a lane.
    Write { client: usize, target: LaneTarget, sequence: Sequence, offset: usize, byte: u8, life: u64 },
    /// A client is answered.
    Answered { client: usize, sequence: Sequence, outcome: Box<Outcome<Reply>> },
    /// A slot owes another this.
    Owed { from: Slot, delivery: DeliveryId, message: Box<Delivery> },
    /// What became of it.
    Done { from: Slot, delivery: DeliveryId, answer: Box<DeliveryAnswer> },
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
}

/// Everything.
pub struct World {
    pub(crate) dice: Dice,
    pub(crate) bug: Bug,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    events: BTreeMap<(u64, u64), Event>,
    numbered: u64,
    now: u64,
    /// Nothing is lost, comes twice or dies any more.
    calm: bool,
    tally: Tally,
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
            events: BTreeMap::new(),
            numbered: 0,
            now: 1,
            calm: false,
            tally: Tally::default(),
            dice,
        };
        for server in 0..servers {
            world.servers[server].slots = Some(BTreeMap::new());
            world.at(PATIENCE, Event::Delivers(server));
            let (death, snapshot) = (200 + world.dice.roll(2000), 50 + world.dice.roll(200));
            world.at(death, Event::Dies(server));
            world.at(snapshot, Event::Snapshot(server));
        }
        for slot in 0..SLOTS {
            let (began, owner) = (Epoch(1), WHO.owner());
            let birth =
                SlotBirth { slots: SLOTS.into(), began, hash_seed: 42, owner, now: Timestamp { nanos: 1 } };
            world.commit(Slot(slot), &SlotChange::Born(birth));
        }
        world
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// How much has happened.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    pub(crate) fn home(&self, slot: Slot) -> usize {
        usize::from(slot.0) % self.servers.len()
    }

    pub(crate) fn stamp(&self) -> Timestamp {
        Timestamp { nanos: self.now as i64 }
    }

    fn at(&mut self, delay: u64, event: Event) {
        self.numbered += 1;
        self.events.insert((self.now + delay, self.numbered), event);
    }

    /// A message leaves: it arrives, is lost, or comes twice.
    pub(crate) fn send(&mut self, message: Message) {
        if !self.calm && self.dice.percent(12) {
            self.tally.lost += 1;
            return;
        }
        if !self.calm && self.dice.percent(15) {
            self.tally.repeated += 1;
            let delay = 1 + self.dice.roll(6 * DELAY_MAX);
            self.at(delay, Event::Arrives(message.clone()));
        }
        let delay = 1 + self.dice.roll(DELAY_MAX);
        self.at(delay, Event::Arrives(message));
    }

    /// Clients do what they have to do, until all are done.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            self.go_on(client);
        }
        while self.clients.iter().any(|client| !client.is_done()) {
            self.step()?;
        }
        Ok(())
    }

    /// The network is good, everybody is there, and everything that is on its way arrives.
    pub(crate) fn calm_down(&mut self) -> Result<(), String> {
        self.calm = true;
        for server in 0..self.servers.len() {
            self.begin(server)?;
        }
        let end = self.now + END_MAX;
        while self.is_busy() {
            if self.now > end {
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
            || self.events.values().any(|event| matches!(event, Event::Arrives(_)))
    }

    fn step(&mut self) -> Result<(), String> {
        let ((at, _), event) = self.events.pop_first().ok_or("nothing happens any more")?;
        self.now = at;
        self.tally.events += 1;
        if self.tally.events > EVENTS_MAX {
            return Err("somebody asks for ever".into());
        }
        match event {
            Event::Arrives(message) => self.arrive(message)?,
            Event::Polls { client, sequence } => self.poll(client, sequence),
            Event::Delivers(server) => {
                self.deliver(server);
                self.at(PATIENCE, Event::Delivers(server));
            }
            Event::Dies(server) => {
                if !self.calm {
                    self.tally.deaths += 1;
                    self.servers[server].die();
                    let away = 1 + self.dice.roll(400);
                    self.at(away, Event::Begins(server));
                    let death = away + 200 + self.dice.roll(3000);
                    self.at(death, Event::Dies(server));
                }
            }
            Event::Begins(server) => self.begin(server)?,
            Event::Snapshot(server) => {
                let (which, keeps_log, bug) = (self.dice.roll(1000), self.dice.percent(30), self.bug);
                self.servers[server].write_snapshot(which, keeps_log, bug);
                let next = 20 + self.dice.roll(200);
                self.at(next, Event::Snapshot(server));
            }
        }
        Ok(())
    }

    fn begin(&mut self, server: usize) -> Result<(), String> {
        if self.servers[server].is_up() {
            return Ok(());
        }
        self.tally.replayed += self.servers[server].begin(self.bug)?;
        self.deliver(server);
        Ok(())
    }

    /// What slots owe still is sent, again and again.
    fn deliver(&mut self, server: usize) {
        if self.bug == Bug::DeliversOnce {
            return;
        }
        let (values, known) = (self.servers[server].slots.iter().flatten(), &self.servers[server].owed);
        let forgets = self.bug == Bug::ForgetsDeliveries;
        let owed: Vec<Message> = values
            .filter_map(|(slot, value)| Some((*slot, value.names()?)))
            .flat_map(|(from, names)| {
                let owed = move |(delivery, message): (DeliveryId, &Delivery)| Message::Owed {
                    from,
                    delivery,
                    message: Box::new(message.clone()),
                };
                let known = move |(delivery, _): &(DeliveryId, &Delivery)| {
                    !forgets || known.contains(&(from, *delivery))
                };
                names.open_deliveries().filter(known).map(owed)
            })
            .collect();
        owed.into_iter().for_each(|message| self.send(message));
    }

    /// A client polls whether it was answered, and asks again.
    fn poll(&mut self, client: usize, sequence: Sequence) {
        let Some(asked) = self.clients[client].under_way(sequence) else { return };
        let message =
            if self.bug == Bug::RetriesWithANewNumber { self.clients[client].renumber() } else { asked };
        self.ask(client, message);
    }

    pub(crate) fn ask(&mut self, client: usize, mut message: Message) {
        if let Message::Write { target, life, .. } = &mut message {
            *life = self.servers[self.home(target.slot)].life;
        }
        let sequence = self.clients[client].sequence();
        self.send(message);
        self.at(PATIENCE, Event::Polls { client, sequence });
    }

    /// Writes a record of a slot whose server is there, and sends what follows from it; what a peer is answered.
    pub(crate) fn commit(&mut self, slot: Slot, change: &SlotChange) -> Option<Outcome<DeliveryAnswer>> {
        let home = self.home(slot);
        let Effects { names, .. } = self.servers[home].commit(slot, change, self.bug);
        let mut answer = None;
        for effect in names {
            match effect {
                Effect::Reply { token, outcome } => {
                    let client = self.clients.iter().position(|client| client.session() == token.session);
                    if let Some(client) = client {
                        let outcome = Box::new(outcome);
                        self.send(Message::Answered { client, sequence: token.sequence, outcome });
                    }
                }
                Effect::Send { delivery, message } => {
                    let is_order = matches!(message, Delivery::Decide(_) | Delivery::DropLane(_));
                    self.servers[home].owed.insert((slot, delivery));
                    self.send(Message::Owed { from: slot, delivery, message: Box::new(message) });
                    if self.bug == Bug::BelievesDeliveries && is_order {
                        let op = Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) };
                        self.commit(slot, &self.server_command(op));
                    }
                }
                Effect::PeerReply(outcome) => answer = Some(outcome),
                _ => {}
            }
        }
        answer
    }

    fn server_command(&self, op: Op) -> SlotChange {
        let command = Box::new(Command { now: self.stamp(), origin: Origin::Server, op });
        SlotChange::Command { command, room: Room::ForInodes }
    }

    fn arrive(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::Ask { client, slot, sequence, op } => {
                self.asked(client, slot, sequence, *op);
                Ok(())
            }
            Message::Write { .. } => {
                self.written(&message);
                Ok(())
            }
            Message::Answered { client, sequence, outcome } => self.answered(client, sequence, *outcome),
            Message::Owed { from, delivery, message } => {
                if self.servers[self.home(message.slot())].is_up()
                    && let Ok(answer) = self.receive(*message)
                {
                    self.send(Message::Done { from, delivery, answer: Box::new(answer) });
                }
                Ok(())
            }
            Message::Done { from, delivery, answer } => {
                let home = self.home(from);
                let names = self.servers[home].value(from).and_then(|value| value.names());
                if names.is_some_and(|names| names.open_delivery(delivery).is_some()) {
                    let op = Op::DeliveryDone { delivery, result: Ok(*answer) };
                    self.commit(from, &self.server_command(op));
                }
                Ok(())
            }
        }
    }

    fn asked(&mut self, client: usize, slot: Slot, sequence: Sequence, op: Op) {
        let (session, home) = (self.clients[client].session(), self.home(slot));
        if !self.servers[home].is_up() || self.servers[home].ended.contains(&session) {
            return;
        }
        // One operation after the other: whoever asks has seen all answers before.
        let origin =
            Origin::Client { session, sequence, acknowledged_below: sequence, who: WHO, on_behalf: false };
        let command = Box::new(Command { now: self.stamp(), origin, op });
        self.commit(slot, &SlotChange::Command { command, room: Room::ForInodes });
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
        self.clients[client].take(outcome)?;
        self.go_on(client);
        Ok(())
    }

    fn go_on(&mut self, client: usize) {
        if let Some(message) = self.clients[client].next(&mut self.dice) {
            self.ask(client, message);
        }
    }

    /// What a server does with what a slot owes another.
    fn receive(&mut self, message: Delivery) -> Outcome<DeliveryAnswer> {
        let slot = message.slot();
        let op = match message {
            Delivery::Prepare(message) => Op::Prepare(message),
            Delivery::Decide(message) => Op::Decide(message),
            Delivery::Ascend(message) => {
                return self.query(message.inode.slot(), &message).map(DeliveryAnswer::Ascended);
            }
            Delivery::CutLane(message) => {
                let plan =
                    self.lanes(slot, |lanes| lanes.cut(message.lane, message.generation, message.length));
                match plan {
                    // No server of these pools is forgotten, so no slot has lost bytes.
                    CutPlan::Nothing | CutPlan::BeginIfLost => {}
                    CutPlan::Cut(change) => self.change_lane(slot, change),
                    CutPlan::AskHome(since) => {
                        let answer = self.ask_home(QueryInode { inode: message.lane.inode, since })?;
                        self.change_lane(slot, LaneTable::cut_as_answered(message.lane, &answer));
                    }
                }
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::DropLane(message) => {
                let known = self.lanes(slot, |lanes| lanes.get(message.lane).is_some());
                if known && self.bug != Bug::KeepsLanes {
                    self.change_lane(slot, LaneChange::Dropped { lane: message.lane });
                }
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::TrimLane(message) => {
                let change =
                    self.lanes(slot, |lanes| lanes.end_passthroughs(message.lane, message.passthroughs_over));
                change.into_iter().for_each(|change| self.change_lane(slot, change));
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::FillLane(message) => {
                let wanted = self.lanes(slot, |lanes| lanes.wants_fill(message.lane, message.generation));
                if wanted || self.bug == Bug::FillsTwice {
                    let since = Default::default();
                    let answer = self.ask_home(QueryInode { inode: message.lane.inode, since })?;
                    let fill = LaneTable::fill(message.lane, message.generation, &answer);
                    let again =
                        LaneChange::Begun { lane: message.lane, generation: message.generation, loss: None };
                    if let Some(change) = fill.or((self.bug == Bug::FillsTwice).then_some(again)) {
                        let home = self.home(slot);
                        self.servers[home].store.insert(message.lane, message.bytes.0);
                        self.change_lane(slot, change);
                    }
                }
                return Ok(DeliveryAnswer::Done);
            }
        };
        let command = Box::new(Command { now: self.stamp(), origin: Origin::Peer, op });
        let answer = self.commit(slot, &SlotChange::Command { command, room: Room::ForInodes });
        answer.expect("a peer is answered at once")
    }

    pub(crate) fn query<Q: Query>(&self, slot: Slot, query: &Q) -> Outcome<Q::Reply> {
        self.query_by(SessionId::NONE, slot, query)
    }

    pub(crate) fn query_by<Q: Query>(&self, session: SessionId, slot: Slot, query: &Q) -> Outcome<Q::Reply> {
        let value = self.servers[self.home(slot)].value(slot);
        let names = value.and_then(|value| value.names()).ok_or_else(away)?;
        names.query(AskedBy { who: &WHO, session }, query)
    }

    fn ask_home(&self, request: QueryInode) -> Outcome<InodeAnswer> {
        self.query(request.inode.slot(), &request)
    }

    fn lanes<T>(&mut self, slot: Slot, ask: impl FnOnce(&LaneTable) -> T) -> T {
        let home = self.home(slot);
        ask(self.servers[home].value_mut(slot).lanes())
    }

    fn change_lane(&mut self, slot: Slot, change: LaneChange) {
        self.commit(slot, &SlotChange::Lane(change));
    }

    /// A write into a lane: done once, and never when its client has gone on.
    fn written(&mut self, message: &Message) {
        let Message::Write { client, target, sequence, offset, byte, life } = *message else { return };
        let (home, session) = (self.home(target.slot), self.clients[client].session());
        // Bytes come by a connection, which dies with the process.
        let is_there = self.servers[home].is_up() && self.servers[home].life == life;
        if !is_there || self.servers[home].ended.contains(&session) {
            return;
        }
        // One operation after the other, as with names.
        let below = sequence;
        let done = self.servers[home].value_mut(target.slot).is_done(session, sequence, below);
        match done {
            Ok(true) => {}
            Ok(false) => {
                if self.write(&target, session, sequence, offset, byte).is_err() {
                    return;
                }
            }
            Err(_) if self.bug == Bug::TakesLateWrites => {
                let bytes = self.servers[home].store.entry(target.lane).or_default();
                put(bytes, offset, byte);
                return;
            }
            Err(_) => return,
        }
        self.send(Message::Answered { client, sequence, outcome: Box::new(Ok(Reply::Done)) });
    }

    fn write(
        &mut self,
        target: &LaneTarget,
        session: SessionId,
        sequence: Sequence,
        offset: usize,
        byte: u8,
    ) -> Outcome<()> {
        let missed = self.lanes(target.slot, |lanes| lanes.missed_since(target.lane, target.generation));
        if let Some(since) = missed {
            let answer = self.ask_home(QueryInode { inode: target.lane.inode, since })?;
            assert_eq!(lane_slot(&answer.layout, target.lane.lane, SLOTS.into()), target.slot);
            let absent = ramlace_cluster::Absent::Hole;
            let change =
                self.lanes(target.slot, |lanes| lanes.bring_up(target, &answer, SLOTS.into(), absent))?;
            self.change_lane(target.slot, change);
        }
        self.lanes(target.slot, |lanes| lanes.standing(target.lane, target.generation))?;
        let home = self.home(target.slot);
        put(self.servers[home].store.entry(target.lane).or_default(), offset, byte);
        let range = ramlace_base::ByteRange { start: offset as u64, end: offset as u64 + 1 };
        let change = self.lanes(target.slot, |lanes| lanes.finish(target, range, (session, sequence)))?;
        self.change_lane(target.slot, change);
        Ok(())
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, byte: u8) {
    if bytes.len() <= offset {
        bytes.resize(offset + 1, 0);
    }
    bytes[offset] = byte;
}

fn away() -> Error {
    Error::new(ErrorKind::HostDown, "no process runs there")
}
