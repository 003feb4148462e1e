//! The pool, its clients and what flies between the slots.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{
    Epoch, ErrorKind, Generation, InodeId, LaneId, Name, Result, Sequence, SessionId, Slot, Timestamp,
};
use ramlace_model::{Model, Node};
use ramlace_namespace::{Command, Effect, Errand, ErrandAnswer, ErrandId, Op, Origin, Reply, SlotState};
use ramlace_wire::peer::Token;
use ramlace_wire::{Credentials, ErrorBody};

use crate::host::Host;
use crate::wish::Wish;

pub const CLIENTS: u8 = 3;
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];
pub const ROOT_USER: Credentials = Credentials { uid: 0, gid: 0 };

/// One step of a run; numbers choose among what there is.
#[derive(Clone, Debug)]
pub enum Action {
    Wish { client: u8, what: u8, node: u8, name: u8, extra: u8 },
    Deliver { which: u8, again: bool },
    Lose { which: u8 },
    SendOpen { slot: u8 },
    Unreachable { slot: u8, which: u8 },
    Retry { client: u8, which: u8 },
    Acknowledge { client: u8 },
    Crash { slot: u8, snapshot: bool },
    EndSession { client: u8 },
    Settle,
}

/// What is on its way.
#[derive(Clone, Debug)]
pub enum Flight {
    Message { from: Slot, errand: ErrandId, message: Errand },
    Report { from: Slot, errand: ErrandId, result: std::result::Result<ErrandAnswer, ErrorBody> },
}

pub struct Client {
    pub session: SessionId,
    pub sequence: u64,
    pub sent: BTreeMap<Sequence, Sent>,
    pub open: BTreeSet<Node>,
}

/// A mutation whose answer the client has not acknowledged.
#[derive(Clone)]
pub struct Sent {
    pub slot: Slot,
    pub op: Op,
    pub wish: Wish,
    pub outcome: Option<Result<Reply>>,
    /// Something else was done since: an answer may tell of a moment before.
    pub disturbed: bool,
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
    /// mkdir and rmdir that are not decided.
    pub undecided: BTreeMap<Token, Wish>,
    pub committed: BTreeSet<Token>,
    pub unreachable: BTreeSet<Token>,
    pub prepared: BTreeMap<Token, InodeId>,
    pub cut: BTreeMap<LaneId, Generation>,
    pub dropped: BTreeSet<LaneId>,
    pub files: BTreeSet<InodeId>,
    /// Everything is settled: nobody may be told to wait.
    pub quiet: bool,
}

impl Pool {
    pub fn new(slots: u16, hash_bits: u32) -> Pool {
        let host = |slot| {
            let slots = u32::from(slots);
            let mut state = SlotState::new(Slot(slot), slots, Epoch(1), 42).with_hash_bits(hash_bits);
            if slot == 0 {
                state.install_root(ROOT_USER, Timestamp { nanos: 0 });
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
            committed: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            prepared: BTreeMap::new(),
            cut: BTreeMap::new(),
            dropped: BTreeSet::new(),
            files: BTreeSet::new(),
            quiet: false,
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
            Action::Wish { client, what, node, name, extra } => self.wish(client, what, node, name, extra),
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
            Action::Settle => self.settle(),
        }
        self.check_tree();
    }

    // ---- clients ----

    fn new_client(&mut self) -> Client {
        self.sessions += 1;
        let mut session = SessionId([0; 16]);
        session.0[..8].copy_from_slice(&self.sessions.to_le_bytes());
        Client { session, sequence: 0, sent: BTreeMap::new(), open: BTreeSet::new() }
    }

    fn wish(&mut self, client: u8, what: u8, node: u8, name: u8, extra: u8) {
        let nodes: Vec<Node> = self.inode_of.keys().copied().collect();
        let directories: Vec<Node> =
            nodes.iter().copied().filter(|node| self.model.read_directory(*node).is_ok()).collect();
        // Mostly directories that are there; sometimes a file, or something that is gone.
        let parent = if node >= 240 {
            nodes[usize::from(extra) % nodes.len()]
        } else {
            directories[usize::from(node) % directories.len()]
        };
        let node = nodes[usize::from(node) % nodes.len()];
        let name = Name::new(NAMES[usize::from(name) % NAMES.len()]).unwrap();
        let size = u64::from(extra) * 1000;
        let wish = match what % 16 {
            0..=2 => {
                Wish::Create { parent, name, exclusive: extra.is_multiple_of(2), base: u16::from(extra) }
            }
            3 => Wish::Symlink { parent, name },
            4 | 5 => Wish::Unlink { parent, name },
            6..=8 => Wish::MakeDirectory { parent, name, home: Slot(u16::from(extra) % self.slots()) },
            9 | 10 => Wish::RemoveDirectory { parent, name },
            11 => Wish::Open { node },
            12 => Wish::Close { node },
            13 => Wish::Extend { node, size },
            14 => Wish::Truncate { node, size },
            _ => Wish::SetMode { node, mode: u16::from(extra) },
        };
        self.send_wish(usize::from(client % CLIENTS), &wish);
    }

    pub fn send_wish(&mut self, client: usize, wish: &Wish) {
        let inode = self.inode_of[&wish.target()];
        let generation = self.info(inode).map_or(Generation::FIRST, |info| info.attributes.generation);
        let op = wish.op(inode, generation, self.slots());
        let sender = &mut self.clients[client];
        sender.sequence += 1;
        let sequence = Sequence(sender.sequence);
        let token = Token { session: sender.session, sequence };
        let sent = Sent { slot: inode.slot(), op, wish: wish.clone(), outcome: None, disturbed: false };
        sender.sent.insert(sequence, sent);
        if wish.has_two_slots() {
            self.undecided.insert(token, wish.clone());
        }
        let effects = self.transmit(client, sequence);
        if let Wish::Truncate { .. } = wish {
            self.truncate_on_model(wish, &effects);
        }
        let answered = effects.iter().any(|effect| matches!(effect, Effect::Reply { .. }));
        if wish.has_two_slots() && answered {
            self.undecided.remove(&token);
        }
        self.take_effects(inode.slot(), effects);
    }

    /// The state has the new size at once; the answer comes when the lanes have heard.
    fn truncate_on_model(&mut self, wish: &Wish, effects: &[Effect]) {
        match effects.iter().find_map(|effect| match effect {
            Effect::Reply { outcome: Err(error), .. } => Some(error.kind()),
            _ => None,
        }) {
            None => assert_eq!(wish.on_model(&mut self.model), Ok(None), "{wish:?}"),
            Some(_) if self.has_not_heard_of_its_end(wish.target()) => {}
            Some(kind) => {
                let expected = wish.on_model(&mut self.model.clone());
                assert_eq!(expected.map_err(|error| error.kind()), Err(kind), "{wish:?}");
            }
        }
    }

    fn transmit(&mut self, client: usize, sequence: Sequence) -> Vec<Effect> {
        let client = &self.clients[client];
        let sent = &client.sent[&sequence];
        let origin = Origin::Client {
            session: client.session,
            sequence,
            acknowledged_below: *client.sent.keys().next().unwrap(),
            who: ROOT_USER,
        };
        let command = Command { now: Timestamp { nanos: self.now }, origin, op: sent.op.clone() };
        self.hosts[usize::from(sent.slot.0)].apply(&command)
    }

    /// The same sequence again: nothing new happens, and an answer is the first one.
    fn retry(&mut self, client: u8, which: u8) {
        let client = usize::from(client % CLIENTS);
        let sequences: Vec<Sequence> = self.clients[client].sent.keys().copied().collect();
        let Some(at) = pick(sequences.len(), which) else { return };
        let slots = self.slots();
        let sent = self.clients[client].sent.get_mut(&sequences[at]).unwrap();
        if let Op::MakeDirectory { home, .. } = &mut sent.op {
            *home = Slot((home.0 + 1) % slots);
        }
        let first = sent.outcome.clone();
        let effects = self.transmit(client, sequences[at]);
        match first {
            None => assert_eq!(effects, [], "a retry of what is under way has effects"),
            Some(first) => {
                let token = Token { session: self.clients[client].session, sequence: sequences[at] };
                assert_eq!(
                    effects,
                    [Effect::Reply { token, outcome: first }],
                    "a retry is answered otherwise"
                );
            }
        }
    }

    fn acknowledge(&mut self, client: u8) {
        let client = &mut self.clients[usize::from(client % CLIENTS)];
        let open = client.sent.iter().find(|(_, sent)| sent.outcome.is_none()).map(|(sequence, _)| *sequence);
        client.sent = match open {
            Some(open) => client.sent.split_off(&open),
            None => BTreeMap::new(),
        };
    }

    pub fn end_session(&mut self, client: u8) {
        let fresh = self.new_client();
        let gone = std::mem::replace(&mut self.clients[usize::from(client % CLIENTS)], fresh);
        for slot in 0..self.slots() {
            let op = Op::EndSession { session: gone.session };
            self.server_command(Slot(slot), op);
        }
        for node in gone.open {
            self.model.close(node).unwrap();
        }
    }

    // ---- errands ----

    fn deliver(&mut self, which: u8, again: bool) {
        let Some(at) = pick(self.flying.len(), which) else { return };
        let flight = if again { self.flying[at].clone() } else { self.flying.swap_remove(at) };
        self.land(flight);
    }

    pub fn land(&mut self, flight: Flight) {
        match flight {
            Flight::Message { from, errand, message } => {
                let result = self.receive(&message).map_err(|error| ErrorBody::new(&error));
                self.flying.push(Flight::Report { from, errand, result });
            }
            Flight::Report { from, errand, result } => {
                let open = self.hosts[usize::from(from.0)].state.open_errand(errand);
                if let (Some(Errand::PrepareDirectory(message)), Ok(ErrandAnswer::Prepared(made))) =
                    (open, &result)
                {
                    self.prepared.insert(message.token, made.inode);
                }
                self.server_command(from, Op::ErrandDone { errand, result });
            }
        }
    }

    fn receive(&mut self, message: &Errand) -> Result<ErrandAnswer> {
        let op = match message.clone() {
            Errand::PrepareDirectory(message) => Op::PrepareDirectory(message),
            Errand::SettleDirectory(message) => Op::SettleDirectory(message),
            Errand::SealDirectory(message) => Op::SealDirectory(message),
            Errand::SettleSeal(message) => Op::SettleSeal(message),
            Errand::CutLane(message) => {
                assert!(!self.node_lives(message.lane.inode) || !self.dropped.contains(&message.lane));
                let known = self.cut.entry(message.lane).or_default();
                *known = message.generation.max(*known);
                return Ok(ErrandAnswer::Done);
            }
            Errand::DropLane(message) => {
                assert!(!self.node_lives(message.lane.inode), "a lane of a file that lives is dropped");
                self.dropped.insert(message.lane);
                return Ok(ErrandAnswer::Done);
            }
            Errand::TrimLane(_) => return Ok(ErrandAnswer::Done),
        };
        let command = Command { now: Timestamp { nanos: self.now }, origin: Origin::Peer, op };
        let effects = self.hosts[usize::from(message.slot().0)].apply(&command);
        match <[Effect; 1]>::try_from(effects) {
            Ok([Effect::PeerReply(answer)]) => answer,
            other => panic!("a peer's message has the effects {other:?}"),
        }
    }

    pub fn send_open(&mut self, slot: Slot) {
        let open = self.hosts[usize::from(slot.0)].state.open_errands();
        self.flying.extend(open.map(|(errand, message)| Flight::Message {
            from: slot,
            errand,
            message: message.clone(),
        }));
    }

    fn report_unreachable(&mut self, slot: u8, which: u8) {
        let slot = Slot(u16::from(slot) % self.slots());
        let open: Vec<(ErrandId, Errand)> = self.hosts[usize::from(slot.0)]
            .state
            .open_errands()
            .map(|(errand, message)| (errand, message.clone()))
            .collect();
        let Some(at) = pick(open.len(), which) else { return };
        let (errand, message) = &open[at];
        if let Errand::PrepareDirectory(ramlace_wire::peer::PrepareDirectory { token, .. })
        | Errand::SealDirectory(ramlace_wire::peer::SealDirectory { token, .. }) = message
        {
            self.unreachable.insert(*token);
        }
        let awaited = self.hosts[usize::from(slot.0)].state.is_awaited(*errand);
        let before = self.hosts[usize::from(slot.0)].state.clone();
        self.server_command(slot, Op::ErrandUnreachable { errand: *errand });
        let unchanged = before == self.hosts[usize::from(slot.0)].state;
        assert!(awaited || unchanged, "nobody waited for {message:?}, yet something changed");
    }

    fn server_command(&mut self, slot: Slot, op: Op) {
        let command = Command { now: Timestamp { nanos: self.now }, origin: Origin::Server, op };
        let effects = self.hosts[usize::from(slot.0)].apply(&command);
        self.take_effects(slot, effects);
    }

    // ---- effects ----

    fn take_effects(&mut self, slot: Slot, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { errand, message } => {
                    self.note_decision(&message);
                    self.flying.push(Flight::Message { from: slot, errand, message });
                }
                Effect::Reply { token, outcome } => self.answered(token, outcome),
                Effect::PeerReply(answer) => panic!("nobody asked for {answer:?}"),
            }
        }
    }

    /// An operation across two slots happens when the other slot is told that it has.
    fn note_decision(&mut self, message: &Errand) {
        let (token, happened) = match message {
            Errand::SettleDirectory(message) => (message.token, message.keep),
            Errand::SettleSeal(message) => (message.token, message.remove),
            _ => return,
        };
        let wish = self.undecided.remove(&token).expect("decided once");
        if happened {
            let made = wish.on_model(&mut self.model).unwrap_or_else(|error| panic!("{wish:?}: {error}"));
            if let Some(node) = made {
                self.bind(node, self.prepared[&token]);
            }
            self.committed.insert(token);
        }
        self.disturb();
    }

    fn disturb(&mut self) {
        for client in &mut self.clients {
            client.sent.values_mut().for_each(|sent| sent.disturbed = true);
        }
    }

    fn answered(&mut self, token: Token, outcome: Result<Reply>) {
        let client = self.clients.iter().position(|client| client.session == token.session);
        let client = client.expect("an ended session is not answered");
        let sent = self.clients[client].sent.get(&token.sequence).expect("answered before").clone();
        assert!(sent.outcome.is_none(), "{:?} is answered twice", sent.wish);
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Retry) {
            assert!(!self.quiet, "nothing is under way, yet {:?} is answered with {outcome:?}", sent.wish);
            self.clients[client].sent.remove(&token.sequence);
            return;
        }
        match &sent.wish {
            wish if wish.has_two_slots() => self.check_two_slots(token, &sent, &outcome),
            Wish::Truncate { .. } => {}
            wish => self.check_one_slot(client, wish, &outcome),
        }
        self.clients[client].sent.get_mut(&token.sequence).unwrap().outcome = Some(outcome);
    }

    fn check_two_slots(&self, token: Token, sent: &Sent, outcome: &Result<Reply>) {
        let committed = self.committed.contains(&token);
        let Err(error) = outcome else {
            return assert!(committed, "{:?} is answered but did not happen", sent.wish);
        };
        assert!(!committed, "{:?} happened but is answered with {error}", sent.wish);
        if error.kind() == ErrorKind::HostDown {
            return assert!(self.unreachable.contains(&token), "{:?}: {error}", sent.wish);
        }
        let expected = sent.wish.on_model(&mut self.model.clone());
        let same = expected.as_ref().is_err_and(|expected| expected.kind() == error.kind());
        let earlier = sent.disturbed && error.kind() == ErrorKind::NotEmpty;
        let inside = error.kind() == ErrorKind::NotEmpty && self.something_is_made();
        assert!(same || earlier || inside, "{:?}: {error}, but the model says {expected:?}", sent.wish);
    }

    /// A directory in which a directory is just being made is not empty.
    fn something_is_made(&self) -> bool {
        self.undecided.values().any(|wish| matches!(wish, Wish::MakeDirectory { .. }))
    }

    fn check_one_slot(&mut self, client: usize, wish: &Wish, outcome: &Result<Reply>) {
        if let Wish::Close { node } = wish
            && !self.clients[client].open.remove(node)
        {
            return assert_eq!(outcome.as_ref().unwrap_err().kind(), ErrorKind::BadHandle);
        }
        let expected = wish.on_model(&mut self.model);
        if expected.is_err() && self.has_not_heard_of_its_end(wish.target()) {
            return assert!(outcome.is_err(), "{wish:?} is done on what is gone");
        }
        let kinds = (
            outcome.as_ref().map(|_| ()).map_err(|e| e.kind()),
            expected.as_ref().map(|_| ()).map_err(|e| e.kind()),
        );
        assert_eq!(kinds.0, kinds.1, "{wish:?}: {outcome:?}, but the model says {expected:?}");
        if expected.is_ok() {
            self.disturb();
        }
        if let (Ok(reply), Ok(Some(node))) = (outcome, expected) {
            match reply {
                Reply::Opened(opened) => {
                    self.bind(node, opened.info.attributes.inode);
                    if opened.created {
                        self.files.insert(opened.info.attributes.inode);
                    }
                    if !self.clients[client].open.insert(node) {
                        self.model.close(node).unwrap(); // A session has one reference.
                    }
                }
                Reply::Attributes(attributes) => self.bind(node, attributes.inode),
                other => panic!("{wish:?} is answered with {other:?}"),
            }
        }
    }

    /// A directory that is removed, in the moment before its own slot knows.
    fn has_not_heard_of_its_end(&self, node: Node) -> bool {
        self.model.stat(node).is_err() && self.info(self.inode_of[&node]).is_ok()
    }

    /// The node and the inode are one from now on.
    fn bind(&mut self, node: Node, inode: InodeId) {
        assert_eq!(*self.inode_of.entry(node).or_insert(inode), inode);
        assert_eq!(*self.node_of.entry(inode).or_insert(node), node, "an inode number is used again");
    }
}

fn pick(length: usize, which: u8) -> Option<usize> {
    (length > 0).then(|| usize::from(which) % length)
}
