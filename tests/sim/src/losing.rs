//! Processes that crash, with their store and without: one home that stays, servers with lanes whose bytes go with them, and the coordinator that
//! says since when a slot is complete. By the pure crates: [`ramlace_cluster`] decides maps, [`ramlace_slot`] lanes, [`ramlace_namespace`] sizes.
//!
//! What holds: bytes that a writer was told of are read again, or an error is when they went with a store, and never zeros or what was before;
//! a lost chunk is written whole or not at all, and then it is there again; what was never written is zeros, or an error in a lane that has lost
//! something. A [`LossBug`] planted in what a
//! server must do for the pure crates must be found.

mod lanes;
mod model;

use ramlace_base::{Epoch, InodeId, Name, Sequence, ServerId, SessionId, Slot, Timestamp};
use ramlace_cluster::{Coordinator, CoordinatorConfig, Input};
use ramlace_namespace::{Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin, Reply, Room};
use ramlace_slot::{SlotBirth, SlotChange, SlotValue};
use ramlace_wire::cluster::JoinPool;
use ramlace_wire::peer::{InodeAnswer, QueryInode};
use ramlace_wire::{ClusterMap, HostId, Layout, PoolId, ServerEntry};

use crate::dice::Dice;
use crate::pool::WHO;
use crate::tally::tally;
use lanes::Server;
use model::{Cutting, File};

/// The pool's servers; the first has the files' home, and stays.
const SERVERS: u16 = 4;
const SLOTS: u32 = 64;
const HOME: Slot = Slot(0);
/// Bytes of a chunk, of which the simulator has two numbers: one for each half.
const CHUNK_BYTES: u64 = 1 << 16;
/// Chunks of a file.
const CHUNKS: u64 = 9;
const STEPS: u32 = 250;
const SESSION: SessionId = SessionId([7; 16]);

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossBug {
    /// None.
    None,
    /// A store that comes back empty is said to be what it was.
    SaysThatItKeptItsStore,
    /// A server that has a slot anew goes by the map that it had before.
    GoesByAnOldMap,
    /// A write of half a chunk is taken, whatever the chunk has lost.
    WritesHalfOfWhatIsLost,
    /// What is lost is read as what is in the store.
    ReadsWhatIsLost,
    /// A lane that begins again forgets that it has lost something.
    BeginsWithoutItsLoss,
    /// A lane is cut, and the bytes behind its end stay.
    KeepsBytesBehindTheEnd,
}

impl LossBug {
    /// All that can be planted.
    pub const ALL: [LossBug; 6] = [
        LossBug::SaysThatItKeptItsStore,
        LossBug::GoesByAnOldMap,
        LossBug::WritesHalfOfWhatIsLost,
        LossBug::ReadsWhatIsLost,
        LossBug::BeginsWithoutItsLoss,
        LossBug::KeepsBytesBehindTheEnd,
    ];
}

tally! {
    /// How much has happened.
    LossTally {
        /// Chunks that were written, whole or half.
        written,
        /// Reads of what was there.
        read,
        /// Reads of what nobody has written.
        holes,
        /// Reads and writes of what was lost.
        lost,
        /// Chunks that were lost, and written again.
        healed,
        /// Processes that died, and came back with their store.
        deaths,
        /// Stores that went.
        stores_lost,
        /// Servers whose slots went to others.
        forgotten,
    }
}

struct Run {
    dice: Dice,
    bug: LossBug,
    coordinator: Coordinator,
    home: SlotValue,
    servers: Vec<Server>,
    /// How often one of them has started: each time as another process.
    starts: u128,
    files: Vec<File>,
    /// A file that is being cut: answered when all of its lanes have acknowledged that.
    cutting: Option<Cutting>,
    sequence: u64,
    now: i64,
    tally: LossTally,
}

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first thing that is not as it must be, and at which step.
pub fn run_losing(seed: u64, bug: LossBug) -> Result<LossTally, String> {
    let config = CoordinatorConfig {
        pool: PoolId([1; 16]),
        hash_seed: 42,
        slots: SLOTS,
        servers_expected: SERVERS,
        coordinator: ServerId(0),
    };
    let mut run = Run {
        dice: Dice(seed),
        bug,
        coordinator: Coordinator::new(config).map_err(|error| error.to_string())?,
        home: SlotValue::new(HOME),
        servers: (0..SERVERS).map(|_| Server::default()).collect(),
        starts: 0,
        files: Vec::new(),
        cutting: None,
        sequence: 0,
        now: 1,
        tally: LossTally::default(),
    };
    let birth = SlotBirth {
        slots: SLOTS,
        began: Epoch(1),
        hash_seed: 42,
        owner: WHO.owner(),
        now: Timestamp { nanos: 1 },
    };
    run.home.apply(&SlotChange::Born(birth));
    // The first time they are told to ask again, for there is no map yet.
    for server in (0..SERVERS).chain(0..SERVERS) {
        run.joins(server, false)?;
    }
    run.everybody_hears();
    for step in 0..STEPS {
        run.step().map_err(|what| format!("at step {step}: {what}"))?;
    }
    Ok(run.tally)
}

impl Run {
    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        let server = 1 + self.dice.roll(u64::from(SERVERS) - 1) as u16;
        let which = self.dice.roll(self.files.len().max(1) as u64) as usize;
        match self.dice.roll(100) {
            0..=2 => self.dies(server),
            3..=11 => self.comes_back(server)?,
            12..=13 => self.loses_its_store(server),
            14 if self.dice.percent(15) => self.is_forgotten(server)?,
            15..=19 if self.files.len() < 4 => self.makes_a_file()?,
            20..=24 if !self.files.is_empty() => self.truncates(which)?,
            25..=59 if !self.files.is_empty() => self.writes(which)?,
            60.. if !self.files.is_empty() => self.reads(which)?,
            _ => {}
        }
        self.delivers()
    }

    fn map(&self) -> &ClusterMap {
        self.coordinator.map().expect("all have joined")
    }

    /// Servers receive a newer map, but for those that are not there.
    fn everybody_hears(&mut self) {
        let map = self.map().clone();
        for server in self.servers.iter_mut().filter(|server| server.is_up) {
            if self.bug != LossBug::GoesByAnOldMap || server.map.is_none() {
                server.map = Some(map.clone());
            }
        }
    }

    fn joins(&mut self, server: u16, keeps_store: bool) -> Result<(), String> {
        let entry = ServerEntry {
            server: ServerId(server),
            host: HostId([server as u8; 16]),
            tcp: format!("127.0.0.1:{}", 7000 + server),
            unix: format!("/run/{server}"),
            store_bytes: 1 << 30,
            forgotten: false,
        };
        let join = JoinPool { entry, keeps_store };
        self.starts += 1;
        self.coordinator
            .step(Input::Join { join, process: SessionId(self.starts.to_be_bytes()), holder_lives: false })
            .map_err(|error| format!("a server cannot join: {error}"))?;
        let of_server = &mut self.servers[usize::from(server)];
        (of_server.is_up, of_server.has_store) = (true, true);
        Ok(())
    }

    /// Its process ends; the store stays.
    fn dies(&mut self, server: u16) {
        let of_server = &mut self.servers[usize::from(server)];
        if of_server.is_up {
            self.tally.deaths += 1;
            of_server.dies();
        }
    }

    /// Its machine ends, with the store.
    fn loses_its_store(&mut self, server: u16) {
        if self.map().server(ServerId(server)).is_some_and(|entry| entry.forgotten) {
            return;
        }
        let slots: Vec<Slot> = ramlace_cluster::slots_of(self.map(), ServerId(server)).collect();
        self.tally.stores_lost += 1;
        self.servers[usize::from(server)] = Server::default();
        self.is_lost(&slots);
    }

    fn is_lost(&mut self, slots: &[Slot]) {
        for file in &mut self.files {
            file.loses(slots, SLOTS);
        }
    }

    fn comes_back(&mut self, server: u16) -> Result<(), String> {
        let of_server = &mut self.servers[usize::from(server)];
        let is_gone = self.coordinator.map().and_then(|map| map.server(ServerId(server)));
        if of_server.is_up || is_gone.is_some_and(|entry| entry.forgotten) {
            return Ok(());
        }
        let kept = of_server.begins()?;
        self.joins(server, kept || self.bug == LossBug::SaysThatItKeptItsStore)?;
        if !kept {
            // Of files that were made while it was away nobody knows that nothing of them was here.
            let slots: Vec<Slot> = ramlace_cluster::slots_of(self.map(), ServerId(server)).collect();
            self.is_lost(&slots);
        }
        self.everybody_hears();
        Ok(())
    }

    /// It is removed: others have its slots.
    fn is_forgotten(&mut self, server: u16) -> Result<(), String> {
        let map = self.map();
        let others = map.servers.iter().filter(|entry| !entry.forgotten && entry.server.0 > 0).count();
        if others < 2 || map.server(ServerId(server)).is_none_or(|entry| entry.forgotten) {
            return Ok(());
        }
        let slots: Vec<Slot> = ramlace_cluster::slots_of(map, ServerId(server)).collect();
        self.tally.forgotten += 1;
        self.servers[usize::from(server)] = Server::default();
        let forgets = Input::Forget { server: ServerId(server) };
        self.coordinator.step(forgets).map_err(|error| format!("a server cannot be forgotten: {error}"))?;
        self.everybody_hears();
        self.is_lost(&slots);
        Ok(())
    }

    /// The home carries out a change; what it answers.
    fn change(&mut self, op: Op) -> Result<Reply, String> {
        let (sequence, effects) = self.asks_for(op);
        reply_in(effects, sequence)?.ok_or_else(|| "the home does not answer".into())
    }

    fn asks_for(&mut self, op: Op) -> (Sequence, Vec<Effect>) {
        self.sequence += 1;
        let sequence = Sequence(self.sequence);
        // A change that is not answered is not acknowledged.
        let oldest = self.cutting.as_ref().map_or(sequence, |cutting| cutting.sequence);
        let origin = Origin::Client {
            session: SESSION,
            sequence,
            acknowledged_below: oldest,
            who: WHO,
            on_behalf: false,
        };
        (sequence, self.apply(origin, op))
    }

    fn apply(&mut self, origin: Origin, op: Op) -> Vec<Effect> {
        let command = Box::new(Command { now: Timestamp { nanos: self.now }, origin, op });
        self.home.apply(&SlotChange::Command { command, room: Room::ForInodes }).names
    }

    fn ask_home(&self, inode: InodeId, since: ramlace_base::Generation) -> Result<InodeAnswer, String> {
        let names = self.home.names().ok_or("the home has no names")?;
        names.query(&WHO, &QueryInode { inode, since }).map_err(|error| format!("the home answers {error:?}"))
    }

    /// What is pending from the home to lanes whose servers are there.
    fn delivers(&mut self) -> Result<(), String> {
        let names = self.home.names().ok_or("the home has no names")?;
        let pending: Vec<(DeliveryId, Delivery)> =
            names.open_deliveries().map(|(delivery, message)| (delivery, message.clone())).collect();
        for (delivery, message) in pending {
            // Messages are late at times.
            if self.dice.percent(60) && self.receives(&message)? {
                let op = Op::DeliveryDone { delivery, result: Ok(DeliveryAnswer::Done) };
                let effects = self.apply(Origin::Server, op);
                self.may_be_cut(effects)?;
            }
        }
        Ok(())
    }

    fn makes_a_file(&mut self) -> Result<(), String> {
        let name = Name::new(format!("f{}", self.now).as_bytes()).expect("a name");
        let layout = Layout {
            stripe_unit: CHUNK_BYTES,
            width: 3,
            base_slot: Slot(self.dice.roll(u64::from(SLOTS)) as u16),
            stride: 1 + self.dice.roll(u64::from(SLOTS) / 3 - 1) as u16,
            copies: 1,
            created: self.map().epoch,
        };
        let reply = self.change(model::create(name, layout))?;
        let Reply::Opened(opened) = reply else { return Err(format!("a file is made by {reply:?}")) };
        let inode = opened.info.attributes.inode;
        let promote =
            ramlace_wire::inline::Promote { inode, first_page: ramlace_wire::inline::FirstPage::Locked };
        let reply = self.change(Op::Promote { request: promote, epoch: self.map().epoch })?;
        let Reply::Promoted(promoted) = reply else { return Err(format!("it is promoted by {reply:?}")) };
        let generation = promoted.size.generation;
        let (chunks, lost_lanes) = Default::default();
        self.files.push(File { inode, layout, generation, size: 0, chunks, lost_lanes });
        Ok(())
    }
}

/// The answer to a request among what a change has come to.
fn reply_in(effects: Vec<Effect>, sequence: Sequence) -> Result<Option<Reply>, String> {
    for effect in effects {
        if let Effect::Reply { token, outcome } = effect
            && token.sequence == sequence
        {
            return outcome.map(Some).map_err(|error| format!("the home refuses: {error}"));
        }
    }
    Ok(None)
}
