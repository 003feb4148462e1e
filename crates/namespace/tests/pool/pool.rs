//! The pool, its clients and what flies between the slots.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{
    Epoch, ErrorKind, Generation, InodeId, LaneId, Name, Result, Sequence, SessionId, Slot, Timestamp, limits,
};
use ramlace_model::{Model, Node};
use ramlace_namespace::{
    Answer, Command, Effect, Errand, ErrandAnswer, ErrandId, Op, Origin, Query, Reply, SlotState,
};
use ramlace_wire::inline::InlineOutcome;
use ramlace_wire::namespace::RenameMode;
use ramlace_wire::peer::{Prepared, Token};
use ramlace_wire::{Credentials, ErrorBody, FileKind};

use crate::host::Host;
use crate::listing::Listing;
use crate::wish::Wish;

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
    Clear { client: u8, which: u8, settled: bool },
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
    /// Partitions of directories, as it has heard of them.
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
    /// What it would have come to at each moment since it was sent.
    pub possible: BTreeSet<Outcome>,
}

/// What an operation comes to on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Done,
    /// Done, and everything is as it was.
    Nothing,
    Failed(ErrorKind),
}

/// What an operation under way changes bit by bit.
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
    /// Files of which somebody was told in this step that they are gone.
    pub gone: BTreeSet<Node>,
    /// Lanes that began with what their files had inline.
    pub filled: BTreeMap<LaneId, Generation>,
    /// Messages that have arrived.
    pub messages: usize,
    /// A listing under way.
    pub listing: Option<Listing>,
    /// Everything is settled: nobody may be told to wait.
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
            Action::Clear { client, which, settled } => self.clear(client, which, settled),
            Action::Settle => self.settle(),
        }
        self.forget_touched();
        self.note_lanes();
        self.check_gone();
        self.check_tree();
    }

    // ---- clients ----

    fn new_client(&mut self) -> Client {
        self.sessions += 1;
        let mut session = SessionId([0; 16]);
        session.0[..8].copy_from_slice(&self.sessions.to_le_bytes());
        Client { session, sequence: 0, sent: BTreeMap::new(), open: BTreeSet::new(), known: BTreeMap::new() }
    }

    fn wish(&mut self, client: u8, what: u8, node: u8, name: u8, extra: u8, other: u8) {
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
        let name_byte = name;
        let name = Name::new(NAMES[usize::from(name) % NAMES.len()]).unwrap();
        let size = u64::from(extra) * 1000;
        let new_parent = directories[usize::from(extra) % directories.len()];
        let new_name = Name::new(NAMES[usize::from(other) % NAMES.len()]).unwrap();
        let mode = match other / 4 % 6 {
            0 => RenameMode::Keep,
            1 | 2 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let kind = FileKind::ALL[usize::from(extra) % FileKind::ALL.len()];
        let wish = match what % 31 {
            0..=2 => {
                Wish::Create { parent, name, exclusive: extra.is_multiple_of(2), base: u16::from(extra) }
            }
            3 => Wish::Symlink { parent, name },
            24 => Wish::MakeNode { parent, name, kind },
            25 => Wish::CreateUnnamed { parent },
            26 => Wish::SetXattr { node, value: extra },
            27 => Wish::RemoveXattr { node },
            4 | 5 => Wish::Unlink { parent, name },
            6..=8 => Wish::MakeDirectory { parent, name, home: Slot(u16::from(extra) % self.slots()) },
            9 | 10 => Wish::RemoveDirectory { parent, name },
            11 => Wish::Open { node },
            12 => Wish::Close { node },
            13 | 28 | 29 if self.is_inline(node) => {
                let offset = (!other.is_multiple_of(3)).then_some(u64::from(extra) * 20);
                Wish::Write { node, offset, bytes: vec![name_byte | 1; usize::from(other) * 6 + 1] }
            }
            13 | 28 | 29 => Wish::Extend { node, size },
            30 => Wish::Spill { node },
            14 => Wish::Truncate { node, size },
            15..=20 => Wish::Rename { parent, name, new_parent, new_name, mode },
            21 | 22 => self.wish_link(nodes[usize::from(other) % nodes.len()], parent, name),
            _ => Wish::SetMode { node, mode: u16::from(extra) },
        };
        self.send_wish(usize::from(client % CLIENTS), &wish);
    }

    /// A file without a name that is linked from another slot, and closed meanwhile, lives: the link may count as
    /// earlier than the close, which the model does not see. Such links have a test of their own.
    fn wish_link(&self, node: Node, parent: Node, name: Name) -> Wish {
        let unnamed = self.model.stat(node).is_ok_and(|stat| stat.links == 0);
        let elsewhere = self.spreads || self.inode_of[&node].slot() != self.inode_of[&parent].slot();
        if unnamed && elsewhere { Wish::Open { node } } else { Wish::Link { node, parent, name } }
    }

    pub fn send_wish(&mut self, client: usize, wish: &Wish) {
        let inode = self.inode_of[&wish.target()];
        let possible = BTreeSet::new();
        let generation = self.info(inode).map_or(Generation::FIRST, |info| info.attributes.generation);
        let op = wish.op(&self.inode_of, generation, self.slots());
        let sender = &mut self.clients[client];
        sender.sequence += 1;
        let sequence = Sequence(sender.sequence);
        let sent = Sent { slot: inode.slot(), op, wish: wish.clone(), outcome: None, again: false, possible };
        sender.sent.insert(sequence, sent);
        self.attempt(client, sequence);
    }

    /// Sends a mutation for the first time, or anew when it came to nothing.
    fn attempt(&mut self, client: usize, sequence: Sequence) {
        let sender = &mut self.clients[client];
        let token = Token { session: sender.session, sequence };
        let sent = sender.sent.get_mut(&sequence).unwrap();
        sent.again = false;
        // What the first attempt has heard may be what a later one says.
        sent.possible.insert(outcome_on(&self.model, &sent.wish));
        let wish = &sent.wish.clone();
        let slot = match wish.entry() {
            Some((parent, name)) => self.slot_of(client, parent, name),
            None => self.inode_of[&wish.target()].slot(),
        };
        let new_slot = match wish {
            Wish::Rename { new_parent, new_name, .. } => Some(self.slot_of(client, *new_parent, new_name)),
            _ => None,
        };
        let sent = self.clients[client].sent.get_mut(&sequence).unwrap();
        sent.slot = slot;
        if let (Op::Rename(rename), Some(new_slot)) = (&mut sent.op, new_slot) {
            rename.new_slot = new_slot;
        }
        self.decided.remove(&token);
        if wish.has_several_slots() {
            self.undecided.insert(token, wish.clone());
        }
        if wish.counts_links() {
            self.touched.insert(token, (wish.clone(), Touched::default()));
            self.note_touched();
        }
        let effects = self.transmit(client, sequence);
        if let Wish::Truncate { .. } = wish {
            self.truncate_on_model(wish, &effects);
        }
        self.take_effects(slot, effects);
    }

    /// Removes a spread directory with what is in it; whatever has come to nothing comes again.
    fn clear(&mut self, client: u8, which: u8, settled: bool) {
        let mut places = Vec::new();
        for (parent, _) in self.model.nodes() {
            let entries = self.model.read_directory(parent).unwrap_or_default();
            places.extend(entries.into_iter().map(|(name, node, _)| (parent, name, node)));
        }
        places.retain(|(_, _, node)| {
            self.info(self.inode_of[node]).is_ok_and(|info| !info.partitions.is_empty())
        });
        let Some(at) = pick(places.len(), which) else { return };
        let (parent, name, node) = places.swap_remove(at);
        let client = usize::from(client % CLIENTS);
        for (name, _, kind) in self.model.read_directory(node).unwrap() {
            self.send_wish(
                client,
                &match kind {
                    FileKind::Directory => Wish::RemoveDirectory { parent: node, name },
                    _ => Wish::Unlink { parent: node, name },
                },
            );
        }
        for _ in 0..3 {
            if settled {
                self.deliver_all();
            }
            self.attempt_again(client);
        }
        self.send_wish(client, &Wish::RemoveDirectory { parent, name });
    }

    /// Where a client looks for a name.
    fn slot_of(&self, client: usize, parent: Node, name: &Name) -> Slot {
        let inode = self.inode_of[&parent];
        let partition = self.hosts[0].state.partition_of(name);
        self.clients[client].known.get(&inode).map_or(inode.slot(), |partitions| partitions[partition])
    }

    /// The client looked in the wrong slot: it asks the directories' homes.
    fn learn(&mut self, client: usize, wish: &Wish) {
        let parents: Vec<InodeId> = match wish {
            Wish::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
            other => vec![other.target()],
        }
        .into_iter()
        .map(|node| self.inode_of[&node])
        .collect();
        for inode in parents {
            let partitions = self.info(inode).map(|info| info.partitions).unwrap_or_default();
            let known = &mut self.clients[client].known;
            if partitions.is_empty() {
                known.remove(&inode)
            } else {
                known.insert(inode, partitions)
            };
        }
    }

    /// Sends what came to nothing once more.
    pub fn attempt_again(&mut self, client: usize) {
        let again: Vec<Sequence> =
            self.clients[client].sent.iter().filter(|(_, sent)| sent.again).map(|(at, _)| *at).collect();
        again.into_iter().for_each(|sequence| self.attempt(client, sequence));
    }

    /// The state has the new size at once; the answer comes when the lanes have heard.
    fn truncate_on_model(&mut self, wish: &Wish, effects: &[Effect]) {
        match effects.iter().find_map(|effect| match effect {
            Effect::Reply { outcome: Err(error), .. } => Some(error.kind()),
            _ => None,
        }) {
            None => assert_eq!(wish.on_model(&mut self.model), Ok(None), "{wish:?}"),
            Some(_) if self.has_not_heard_of_its_end(wish.target()) => {}
            Some(ErrorKind::Retry) => {}
            Some(ErrorKind::HostDown) => assert!(self.is_leaving(wish.target())),
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
            on_behalf: false,
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
        if sent.again {
            return self.attempt(client, sequences[at]);
        }
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
        self.disturb();
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
                self.messages += 1;
                let result = self.receive(&message).map_err(|error| ErrorBody::new(&error));
                self.flying.push(Flight::Report { from, errand, result });
            }
            Flight::Report { from, errand, result } => {
                let open = self.hosts[usize::from(from.0)].state.open_errand(errand);
                let walked = match (open, &result) {
                    (Some(Errand::Prepare(message)), Ok(ErrandAnswer::Prepared(Prepared::Made(inode)))) => {
                        self.prepared.insert(message.token, *inode);
                        None
                    }
                    (Some(Errand::Ascend(message)), _) => Some(message.token),
                    _ => None,
                };
                self.server_command(from, Op::ErrandDone { errand, result });
                self.note_silent_end(walked);
            }
        }
    }

    fn receive(&mut self, message: &Errand) -> Result<ErrandAnswer> {
        let op = match message.clone() {
            Errand::Prepare(message) => Op::Prepare(message),
            Errand::Settle(message) => Op::Settle(message),
            Errand::Ascend(message) => {
                return self.query(message.inode, &Query::Ascend(message)).map(|answer| match answer {
                    Answer::Ascended(body) => ErrandAnswer::Ascended(body),
                    other => panic!("a walk is answered with {other:?}"),
                });
            }
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
            Errand::FillLane(message) => return self.fill(&message).map(|()| ErrandAnswer::Done),
        };
        let command = Command { now: Timestamp { nanos: self.now }, origin: Origin::Peer, op };
        let mut effects = self.hosts[usize::from(message.slot().0)].apply(&command);
        let Some(Effect::PeerReply(answer)) = effects.pop() else { panic!("{effects:?} answer no peer") };
        // A file that nobody holds any more takes leave of its lanes.
        self.take_effects(message.slot(), effects);
        answer
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
        if let Some(token) = token_of(message) {
            self.unreachable.insert(token);
        }
        let walked = if let Errand::Ascend(message) = message { Some(message.token) } else { None };
        let awaited = self.hosts[usize::from(slot.0)].state.is_awaited(*errand);
        let before = self.hosts[usize::from(slot.0)].state.clone();
        self.server_command(slot, Op::ErrandUnreachable { errand: *errand });
        let unchanged = before == self.hosts[usize::from(slot.0)].state;
        assert!(awaited || unchanged, "nobody waited for {message:?}, yet something changed");
        self.note_silent_end(walked);
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
                Effect::Crowded { directory } => self.spread(slot, directory),
                Effect::PeerReply(answer) => panic!("nobody asked for {answer:?}"),
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

    /// An operation of several slots happens when the first other slot is told that it has.
    fn note_decision(&mut self, message: &Errand) {
        let Errand::Settle(message) = message else { return };
        if message.token.session == SessionId::NONE {
            return; // Nobody's wish: the names are as they were.
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

    /// A rename whose session has ended, and of which all but a walk was in one slot, ends without
    /// a word: its tree tells.
    fn note_silent_end(&mut self, walked: Option<Token>) {
        let Some(token) = walked.filter(|token| !self.has_open_errand(*token)) else { return };
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

    fn has_open_errand(&self, token: Token) -> bool {
        let mut open = self.hosts.iter().flat_map(|host| host.state.open_errands());
        open.any(|(_, message)| token_of(message) == Some(token))
    }

    /// The tree has changed: what is under way may come to something else.
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
            if !self.has_open_errand(token) {
                self.touched.remove(&token);
            }
        }
    }

    fn answered(&mut self, token: Token, outcome: Result<Reply>) {
        let client = self.clients.iter().position(|client| client.session == token.session);
        let client = client.expect("an ended session is not answered");
        let sent = self.clients[client].sent.get(&token.sequence).expect("answered before").clone();
        assert!(sent.outcome.is_none(), "{:?} is answered twice", sent.wish);
        if let Err(error) = &outcome
            && matches!(error.kind(), ErrorKind::Retry | ErrorKind::HostDown | ErrorKind::Spread)
        {
            let spread = error.kind() == ErrorKind::Spread;
            assert!(
                !self.quiet || spread,
                "nothing is under way, yet {:?} is answered with {outcome:?}",
                sent.wish
            );
            assert_ne!(self.decided.get(&token), Some(&true), "{:?} happened: {error}", sent.wish);
            let unreachable = self.unreachable.contains(&token) || self.is_leaving(sent.wish.target());
            assert!(error.kind() != ErrorKind::HostDown || unreachable, "{:?}: {error}", sent.wish);
            if spread {
                self.learn(client, &sent.wish);
            }
            self.undecided.remove(&token);
            return self.clients[client].sent.get_mut(&token.sequence).unwrap().again = true;
        }
        match &sent.wish {
            wish if wish.has_several_slots() => self.check_several_slots(client, token, &sent, &outcome),
            Wish::Truncate { .. } => {}
            Wish::Spill { node } => self.check_spill(*node, &outcome),
            wish => self.check_one_slot(client, wish, &outcome),
        }
        let done = outcome.is_ok();
        self.clients[client].sent.get_mut(&token.sequence).unwrap().outcome = Some(outcome);
        if let (Wish::SetMode { node, .. }, true) = (&sent.wish, done) {
            self.check_mode_everywhere(*node);
        }
    }

    /// A change of the mode that was answered has reached every partition, but for one that came later.
    fn check_mode_everywhere(&self, node: Node) {
        let mut waiting = self.clients.iter().flat_map(|client| client.sent.values());
        let another = waiting.any(|sent| {
            sent.outcome.is_none() && matches!(sent.wish, Wish::SetMode { node: other, .. } if other == node)
        });
        if !another {
            self.check_modes(node);
        }
    }

    fn check_several_slots(&mut self, client: usize, token: Token, sent: &Sent, outcome: &Result<Reply>) {
        self.undecided.remove(&token);
        let wish = &sent.wish;
        match (self.decided.get(&token), outcome) {
            (Some(true), Ok(_)) => {}
            (Some(true), Err(error)) => panic!("{wish:?} happened but is answered with {error}"),
            (None, Ok(_)) => self.check_one_slot(client, wish, outcome),
            (Some(false), Ok(_)) => assert!(sent.possible.contains(&Outcome::Nothing), "{wish:?}"),
            // A directory that went while it was asked, and did not know it yet.
            (_, Err(error))
                if error.kind() == ErrorKind::NotPermitted
                    && sent.possible.contains(&Outcome::Failed(ErrorKind::Stale)) => {}
            (_, Err(_)) if wish.takes().into_iter().any(|node| self.has_not_heard_of_its_end(node)) => {}
            (_, Err(error)) => assert!(
                sent.possible.contains(&Outcome::Failed(error.kind())),
                "{wish:?}: {error}, but the model says {:?}",
                sent.possible
            ),
        }
    }

    fn check_one_slot(&mut self, client: usize, wish: &Wish, outcome: &Result<Reply>) {
        if let Wish::Close { node } = wish
            && !self.clients[client].open.remove(node)
        {
            return assert_eq!(outcome.as_ref().unwrap_err().kind(), ErrorKind::BadHandle);
        }
        if let (Wish::Create { parent, name, exclusive: false, .. }, Err(error)) = (wish, outcome)
            && error.kind() == ErrorKind::Exists
        {
            let node = self.model.lookup(*parent, name).expect("it exists");
            assert_eq!(self.model.stat(node).unwrap().kind, FileKind::File);
            let slot = self.slot_of(client, *parent, name);
            return assert_ne!(self.inode_of[&node].slot(), slot, "it lives here");
        }
        if let (Wish::Write { node, .. }, Ok(Reply::WroteInline(written))) = (wish, outcome)
            && written.outcome != InlineOutcome::Written
        {
            assert_eq!(written.outcome == InlineOutcome::Full, self.is_inline(*node));
            return;
        }
        let expected = wish.on_model(&mut self.model);
        if expected.is_err() && self.has_not_heard_of_its_end(wish.target()) {
            // A write counts as earlier than the end, of which its home has not heard.
            let write = matches!(wish, Wish::Write { .. });
            return assert!(write || outcome.is_err(), "{wish:?} is done on what is gone");
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
    pub fn has_not_heard_of_its_end(&self, node: Node) -> bool {
        self.model.stat(node).is_err() && self.info(self.inode_of[&node]).is_ok()
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

fn token_of(message: &Errand) -> Option<Token> {
    match message {
        Errand::Prepare(message) => Some(message.token),
        Errand::Settle(message) => Some(message.token),
        Errand::Ascend(message) => Some(message.token),
        Errand::CutLane(_) | Errand::DropLane(_) | Errand::TrimLane(_) | Errand::FillLane(_) => None,
    }
}

fn pick(length: usize, which: u8) -> Option<usize> {
    (length > 0).then(|| usize::from(which) % length)
}
