//! The pool, its clients and the messages between the slots.

mod answers;
mod clients;

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{
    Epoch, ErrorKind, Generation, InodeId, LaneId, Name, Redirect, Result, Sequence, SessionId, Slot,
    Timestamp, limits,
};
use ramlace_model::{Model, Node};
use ramlace_namespace::{
    Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Reply, SlotState,
};
use ramlace_wire::inline::InlineOutcome;
use ramlace_wire::namespace::RenameMode;
use ramlace_wire::peer::{Prepared, Token};
use ramlace_wire::{Credentials, ErrorBody, FileKind};

use crate::pools::host::Host;
use crate::pools::listing::Listing;
use crate::pools::wish::Wish;

pub const CLIENTS: u8 = 3;
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];
pub const ROOT_USER: Credentials = Credentials::new(0, 0);

/// One step of a run; numbers choose among what there is.
#[derive(Clone, Debug)]
pub enum Action {
    Wish { client: u8, what: u8, node: u8, name: u8, extra: u8, other: u8 },
    Deliver { which: u8, again: bool },
    Lose { which: u8 },
    SendOpen { slot: u8 },
    Unreachable { slot: u8, which: u8 },
    Retry { client: u8, which: u8 },
    Acknowledge { client: u8 },
    Crash { slot: u8, snapshot: bool },
    EndSession { client: u8 },
    List { which: u8, entries_max: u8 },
    Clear { client: u8, which: u8, deliver_first: bool },
    Quiesce,
}

/// A message under way.
#[derive(Clone, Debug)]
pub enum Flight {
    Message { from: Slot, delivery: DeliveryId, message: Delivery },
    Report { from: Slot, delivery: DeliveryId, result: std::result::Result<DeliveryAnswer, ErrorBody> },
}

pub struct Client {
    pub session: SessionId,
    pub sequence: u64,
    pub sent: BTreeMap<Sequence, Sent>,
    pub open: BTreeSet<Node>,
    /// Partitions of directories, as it knows them.
    pub known: BTreeMap<InodeId, Vec<Slot>>,
}

/// A mutation whose answer the client has not acknowledged.
#[derive(Clone)]
pub struct Sent {
    pub slot: Slot,
    pub op: Op,
    pub wish: Wish,
    pub outcome: Option<Result<Reply>>,
    /// It came to nothing, and may be sent again.
    pub again: bool,
    /// The outcomes that it could have had at any time since it was sent.
    pub possible: BTreeSet<Outcome>,
}

/// The outcome of an operation on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Done,
    /// Done, and everything is as it was.
    Nothing,
    Failed(ErrorKind),
}

/// The nodes that an operation under way changes bit by bit.
#[derive(Clone, Default)]
pub struct Touched {
    pub names: BTreeSet<(Node, Name)>,
    pub nodes: BTreeSet<Node>,
}

pub struct Pool {
    pub hosts: Vec<Host>,
    pub clients: Vec<Client>,
    pub flying: Vec<Flight>,
    pub now: i64,
    pub sessions: u64,
    pub model: Model,
    pub inode_of: BTreeMap<Node, InodeId>,
    pub node_of: BTreeMap<InodeId, Node>,
    /// Operations of several slots that are not decided.
    pub undecided: BTreeMap<Token, Wish>,
    /// Those that are, and whether they happened.
    pub decided: BTreeMap<Token, bool>,
    /// Those that some slot has yet to do its part of.
    pub touched: BTreeMap<Token, (Wish, Touched)>,
    pub unreachable: BTreeSet<Token>,
    pub prepared: BTreeMap<Token, InodeId>,
    pub cut: BTreeMap<LaneId, Generation>,
    pub dropped: BTreeSet<LaneId>,
    pub files: BTreeSet<InodeId>,
    /// Files that went to their lanes, and with which generation.
    pub in_lanes: BTreeMap<InodeId, Generation>,
    /// Files that were reported in this step as gone.
    pub gone: BTreeSet<Node>,
    /// Lanes that began with their files' inline bytes.
    pub filled: BTreeMap<LaneId, Generation>,
    /// Lanes that began otherwise.
    pub begun: BTreeSet<LaneId>,
    /// Messages that have arrived.
    pub messages: usize,
    /// A listing under way.
    pub listing: Option<Listing>,
    /// Everything is finished: no client may be told to wait.
    pub quiet: bool,
    /// Directories are spread when they grow.
    pub spreads: bool,
}

impl Pool {
    pub fn new(slots: u16, hash_bits: u32, whole_entries_max: u64) -> Pool {
        let host = |slot| {
            let slots = u32::from(slots);
            let mut state = SlotState::new(Slot(slot), slots, Epoch(1), 42)
                .with_hash_bits(hash_bits)
                .with_whole_entries(whole_entries_max);
            if slot == 0 {
                state.install_root(ROOT_USER.owner(), Timestamp { nanos: 0 });
            }
            Host::new(state)
        };
        let mut pool = Pool {
            hosts: (0..slots).map(host).collect(),
            clients: Vec::new(),
            flying: Vec::new(),
            now: 0,
            sessions: 0,
            model: Model::new(),
            inode_of: BTreeMap::new(),
            node_of: BTreeMap::new(),
            undecided: BTreeMap::new(),
            decided: BTreeMap::new(),
            touched: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            prepared: BTreeMap::new(),
            cut: BTreeMap::new(),
            dropped: BTreeSet::new(),
            files: BTreeSet::new(),
            in_lanes: BTreeMap::new(),
            gone: BTreeSet::new(),
            filled: BTreeMap::new(),
            begun: BTreeSet::new(),
            messages: 0,
            listing: None,
            quiet: false,
            spreads: whole_entries_max < u64::MAX,
        };
        pool.bind(Model::ROOT, InodeId::ROOT);
        for _ in 0..CLIENTS {
            let client = pool.new_client();
            pool.clients.push(client);
        }
        pool
    }

    pub fn act(&mut self, action: &Action) {
        self.now += 1;
        match *action {
            Action::Wish { client, what, node, name, extra, other } => {
                self.wish(client, what, node, name, extra, other);
            }
            Action::Deliver { which, again } => self.deliver(which, again),
            Action::Lose { which } => {
                if let Some(at) = pick(self.flying.len(), which) {
                    self.flying.remove(at);
                }
            }
            Action::SendOpen { slot } => self.send_open(Slot(u16::from(slot) % self.slots())),
            Action::Unreachable { slot, which } => self.report_unreachable(slot, which),
            Action::Retry { client, which } => self.retry(client, which),
            Action::Acknowledge { client } => self.acknowledge(client),
            Action::Crash { slot, snapshot } => {
                let slot = usize::from(slot) % self.hosts.len();
                let host = &mut self.hosts[slot];
                host.crash();
                if snapshot {
                    host.write_snapshot();
                }
            }
            Action::EndSession { client } => self.end_session(client),
            Action::List { which, entries_max } => self.list_on(which, entries_max),
            Action::Clear { client, which, deliver_first } => self.clear(client, which, deliver_first),
            Action::Quiesce => self.quiesce(),
        }
        self.forget_touched();
        self.note_lanes();
        self.check_gone();
        self.check_tree();
    }

    // ---- deliveries ----

    fn deliver(&mut self, which: u8, again: bool) {
        let Some(at) = pick(self.flying.len(), which) else { return };
        let flight = if again { self.flying[at].clone() } else { self.flying.swap_remove(at) };
        self.land(flight);
    }

    pub fn land(&mut self, flight: Flight) {
        match flight {
            Flight::Message { from, delivery, message } => {
                self.messages += 1;
                let result = self.receive(&message).map_err(|error| ErrorBody::new(&error));
                self.flying.push(Flight::Report { from, delivery, result });
            }
            Flight::Report { from, delivery, result } => {
                let open = self.hosts[usize::from(from.0)].state.open_delivery(delivery);
                let walked = match (open, &result) {
                    (
                        Some(Delivery::Prepare(message)),
                        Ok(DeliveryAnswer::Prepared(Prepared::Made(inode))),
                    ) => {
                        self.prepared.insert(message.token, *inode);
                        None
                    }
                    (Some(Delivery::Ascend(message)), _) => Some(message.token),
                    _ => None,
                };
                self.server_command(from, Op::DeliveryDone { delivery, result });
                self.note_silent_end(walked);
            }
        }
    }

    fn receive(&mut self, message: &Delivery) -> Result<DeliveryAnswer> {
        let op = match message.clone() {
            Delivery::Prepare(message) => Op::Prepare(message),
            Delivery::Decide(message) => Op::Decide(message),
            Delivery::Ascend(message) => {
                return self.query(message.inode, &message).map(DeliveryAnswer::Ascended);
            }
            Delivery::CutLane(message) => {
                assert!(!self.node_lives(message.lane.inode) || !self.dropped.contains(&message.lane));
                let known = self.cut.entry(message.lane).or_default();
                *known = message.generation.max(*known);
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::DropLane(message) => {
                assert!(!self.node_lives(message.lane.inode), "a lane of a file that lives is dropped");
                self.dropped.insert(message.lane);
                return Ok(DeliveryAnswer::Done);
            }
            Delivery::TrimLane(_) => return Ok(DeliveryAnswer::Done),
            Delivery::FillLane(message) => return self.fill(&message).map(|()| DeliveryAnswer::Done),
        };
        let command = Command { now: Timestamp { nanos: self.now }, origin: Origin::Peer, op };
        let mut effects = self.hosts[usize::from(message.slot().0)].apply(&command);
        let Some(Effect::PeerReply(answer)) = effects.pop() else { panic!("{effects:?} answer no peer") };
        // A file that no session holds any more sends a last message to its lanes.
        self.take_effects(message.slot(), effects);
        answer
    }

    pub fn send_open(&mut self, slot: Slot) {
        let open = self.hosts[usize::from(slot.0)].state.open_deliveries();
        self.flying.extend(open.map(|(delivery, message)| Flight::Message {
            from: slot,
            delivery,
            message: message.clone(),
        }));
    }

    fn report_unreachable(&mut self, slot: u8, which: u8) {
        let slot = Slot(u16::from(slot) % self.slots());
        let open: Vec<(DeliveryId, Delivery)> = self.hosts[usize::from(slot.0)]
            .state
            .open_deliveries()
            .map(|(delivery, message)| (delivery, message.clone()))
            .collect();
        let Some(at) = pick(open.len(), which) else { return };
        let (delivery, message) = &open[at];
        if let Some(token) = token_of(message) {
            self.unreachable.insert(token);
        }
        let walked = if let Delivery::Ascend(message) = message { Some(message.token) } else { None };
        let awaited = self.hosts[usize::from(slot.0)].state.is_awaited(*delivery);
        let before = self.hosts[usize::from(slot.0)].state.clone();
        self.server_command(slot, Op::DeliveryUnreachable { delivery: *delivery });
        let unchanged = before == self.hosts[usize::from(slot.0)].state;
        assert!(awaited || unchanged, "nobody waited for {message:?}, yet something changed");
        self.note_silent_end(walked);
    }

    pub fn server_command(&mut self, slot: Slot, op: Op) {
        let command = Command { now: Timestamp { nanos: self.now }, origin: Origin::Server, op };
        let effects = self.hosts[usize::from(slot.0)].apply(&command);
        self.take_effects(slot, effects);
    }

    // ---- effects ----

    fn take_effects(&mut self, slot: Slot, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { delivery, message } => {
                    self.note_decision(&message);
                    self.flying.push(Flight::Message { from: slot, delivery, message });
                }
                Effect::Reply { token, outcome } => self.answered(token, outcome),
                Effect::Crowded { directory } => self.spread(slot, directory),
                Effect::Changed { .. } => {}
                Effect::PeerReply(answer) => panic!("nobody asked for {answer:?}"),
                Effect::LockGranted { .. } | Effect::LockWaitEnded { .. } | Effect::BarrierPassed { .. } => {
                    panic!("nobody waits here")
                }
            }
        }
    }

    /// Mostly spreads a directory, over slots that depend on the moment.
    fn spread(&mut self, slot: Slot, directory: InodeId) {
        if self.now % 4 == 0 {
            return;
        }
        let slots = i64::from(self.slots());
        let partition = |at: i64| Slot(((self.now + at * (self.now / 3 + 1)) % slots) as u16);
        let partitions = (0..limits::DIRECTORY_PARTITIONS as i64).map(partition).collect();
        self.server_command(slot, Op::Spread { directory, partitions });
    }

    /// An operation of several slots happens when the first other slot receives the decision.
    fn note_decision(&mut self, message: &Delivery) {
        let Delivery::Decide(message) = message else { return };
        if message.token.session == SessionId::NONE {
            return; // No client's wish: the names are as they were.
        }
        let Some(wish) = self.undecided.remove(&message.token) else {
            let before = self.decided.get(&message.token);
            return assert!(before == Some(&message.commit), "{message:?} is decided twice");
        };
        if message.commit {
            self.happens(message.token, &wish);
        }
        self.decided.insert(message.token, message.commit);
    }

    fn happens(&mut self, token: Token, wish: &Wish) {
        let made = wish.on_model(&mut self.model).unwrap_or_else(|error| panic!("{wish:?}: {error}"));
        if let (Some(node), Wish::MakeDirectory { .. }) = (made, wish) {
            self.bind(node, self.prepared[&token]);
        }
        self.disturb();
    }

    /// A rename whose session has ended, and of which all but a walk was in one slot, ends without a message:
    /// the tree shows its result.
    fn note_silent_end(&mut self, walked: Option<Token>) {
        let Some(token) = walked else { return };
        // An earlier attempt of the same operation, which was aborted, may still be under way.
        let is_abort = |message: &Delivery| matches!(message, Delivery::Decide(decide) if !decide.commit);
        if !self.open_deliveries_of(token).all(is_abort) {
            return;
        }
        let Some(wish) = self.undecided.remove(&token) else { return };
        assert!(self.clients.iter().all(|client| client.session != token.session), "{wish:?} is forgotten");
        let mut changed = self.model.clone();
        let entries = |model: &Model| -> Vec<(Name, InodeId)> {
            let entries = model.read_directory(wish.target()).unwrap_or_default();
            entries.into_iter().map(|(name, node, _)| (name, self.inode_of[&node])).collect()
        };
        if wish.on_model(&mut changed).is_ok() && entries(&changed) != entries(&self.model) {
            let found = self.list(self.inode_of[&wish.target()]).map(|mut found| {
                found.sort();
                found
            });
            if found == Some(entries(&changed)) {
                self.happens(token, &wish);
            }
        }
    }

    fn has_open_delivery(&self, token: Token) -> bool {
        self.open_deliveries_of(token).next().is_some()
    }

    fn open_deliveries_of(&self, token: Token) -> impl Iterator<Item = &Delivery> {
        let open = self.hosts.iter().flat_map(|host| host.state.open_deliveries());
        open.map(|(_, message)| message).filter(move |message| token_of(message) == Some(token))
    }

    /// The tree has changed: operations under way may have another outcome.
    fn disturb(&mut self) {
        for client in &mut self.clients {
            for sent in client.sent.values_mut().filter(|sent| sent.outcome.is_none()) {
                if sent.wish.has_several_slots() {
                    sent.possible.insert(outcome_on(&self.model, &sent.wish));
                }
            }
        }
        self.note_touched();
        self.note_listing();
    }

    fn note_touched(&mut self) {
        for (wish, touched) in self.touched.values_mut() {
            touched.names.extend(wish.names());
            let leads_to = |(parent, name): &(Node, Name)| self.model.lookup(*parent, name).ok();
            touched.nodes.extend(wish.names().iter().filter_map(leads_to));
            touched.nodes.extend(wish.names().into_iter().map(|(parent, _)| parent));
            if let Wish::Link { node, .. } = wish {
                touched.nodes.insert(*node);
            }
        }
    }

    pub fn forget_touched(&mut self) {
        let tokens: Vec<Token> = self.touched.keys().copied().collect();
        for token in tokens {
            if !self.has_open_delivery(token) {
                self.touched.remove(&token);
            }
        }
    }

    /// The node and the inode are one from now on.
    fn bind(&mut self, node: Node, inode: InodeId) {
        assert_eq!(*self.inode_of.entry(node).or_insert(inode), inode);
        assert_eq!(*self.node_of.entry(inode).or_insert(node), node, "an inode number is used again");
    }
}

fn outcome_on(model: &Model, wish: &Wish) -> Outcome {
    let mut after = model.clone();
    match wish.on_model(&mut after) {
        Err(error) => Outcome::Failed(error.kind()),
        Ok(_) if after == *model => Outcome::Nothing,
        Ok(_) => Outcome::Done,
    }
}

fn token_of(message: &Delivery) -> Option<Token> {
    match message {
        Delivery::Prepare(message) => Some(message.token),
        Delivery::Decide(message) => Some(message.token),
        Delivery::Ascend(message) => Some(message.token),
        Delivery::CutLane(_) | Delivery::DropLane(_) | Delivery::TrimLane(_) | Delivery::FillLane(_) => None,
    }
}

fn pick(length: usize, which: u8) -> Option<usize> {
    (length > 0).then(|| usize::from(which) % length)
}
