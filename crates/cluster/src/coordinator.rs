//! The embedded coordinator: which servers are in the pool, and which server holds which slot.
//!
//! A slot's `complete_since` is the first epoch from which on nothing was lost in it. A store that
//! comes back empty, or a slot that goes to another server, raises it to the new epoch.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::units::count;
use ramlace_base::{Epoch, Error, ErrorKind, Result, ServerId, SessionId, limits, numbered_variants};
use ramlace_wire::cluster::JoinPool;
use ramlace_wire::{Chain, ClusterMap, PoolId, ServerEntry};
use serde::{Deserialize, Serialize};

/// What a pool is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoordinatorConfig {
    /// The pool.
    pub pool: PoolId,
    /// Keys the order of directory entries.
    pub hash_seed: u64,
    /// Slots; at least 16 for each server, at most 65,536.
    pub slots: u32,
    /// Servers numbered from 0 that make up the pool; the map waits for all of them.
    pub servers_expected: u16,
    /// The server that embeds the coordinator.
    pub coordinator: ServerId,
}

/// What the coordinator is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A server joins or comes back.
    Join {
        /// What it says.
        join: JoinPool,
        /// The process that says so: each start of a server has another one.
        process: SessionId,
        /// Whether the process that joined under this number before, at other addresses, was seen within
        /// its session's expiry: then this is a second one and is refused.
        holder_lives: bool,
    },
    /// A server's slots go to the others; its bytes are lost.
    Forget {
        /// The server.
        server: ServerId,
    },
}

numbered_variants! { Input:
    0 Join { join, process, holder_lives };
    1 Forget { server };
}

/// The result of an input. All but `Unchanged` must be in the store before it is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Noted, but there is no map before these servers have joined as well: answer Retry.
    Waiting {
        /// The missing servers, in order.
        missing: Vec<ServerId>,
    },
    /// Nothing is new, neither in the map nor in the coordinator.
    Unchanged,
    /// The map is the same; the coordinator knows that the server, or another process of it, has seen it.
    Confirmed,
    /// There is a new map, with a new epoch.
    NewMap,
}

/// Decides the cluster map of one pool.
///
/// A server takes its first map from the answer to its `JoinPool`, never from elsewhere: until
/// it was answered it holds nothing, so that asking again with an empty store is no loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coordinator {
    config: CoordinatorConfig,
    /// Servers that have joined before there is a map; empty afterwards.
    gathered: BTreeMap<ServerId, ServerEntry>,
    /// Servers of the map whose join was not answered with a map yet.
    unanswered: BTreeSet<ServerId>,
    /// The process that joined last under each number. A process asks again until it has got the answer, and holds
    /// nothing before: so if it has no store still, that is no second loss.
    processes: BTreeMap<ServerId, SessionId>,
    map: Option<ClusterMap>,
}

impl Coordinator {
    /// A coordinator that no server has joined yet. Fails with `Invalid` when the numbers do not fit.
    pub fn new(config: CoordinatorConfig) -> Result<Coordinator> {
        let servers = u32::from(config.servers_expected);
        let needed = servers * limits::SLOTS_PER_SERVER_MIN;
        if servers == 0 || config.slots > limits::SLOTS_MAX || config.slots < needed {
            let (least, most) = (limits::SLOTS_PER_SERVER_MIN, limits::SLOTS_MAX);
            return refuse(
                ErrorKind::Invalid,
                format!(
                    "{} do not fit {}: at least {least} for each server, at most {most} in all",
                    count(config.slots.into(), "slot"),
                    count(servers.into(), "server")
                ),
            );
        }
        if config.coordinator.0 >= config.servers_expected {
            let text = format!(
                "{} cannot coordinate a pool of {}",
                config.coordinator,
                count(servers.into(), "server")
            );
            return refuse(ErrorKind::Invalid, text);
        }
        let (gathered, unanswered) = (BTreeMap::new(), BTreeSet::new());
        Ok(Coordinator { config, gathered, unanswered, processes: BTreeMap::new(), map: None })
    }

    /// What the pool was made with.
    #[must_use]
    pub fn config(&self) -> &CoordinatorConfig {
        &self.config
    }

    /// The newest map; `None` until every expected server has joined.
    #[must_use]
    pub fn map(&self) -> Option<&ClusterMap> {
        self.map.as_ref()
    }

    /// Servers that have not joined, in order; empty once there is a map.
    #[must_use]
    pub fn missing(&self) -> Vec<ServerId> {
        let expected = (0..self.config.servers_expected).map(ServerId);
        let waiting = self.map.is_none();
        expected.filter(|server| waiting && !self.gathered.contains_key(server)).collect()
    }

    /// Decides one input. After an error nothing has changed.
    pub fn step(&mut self, input: Input) -> Result<Decision> {
        match input {
            Input::Join { join, process, holder_lives } => self.join(join, process, holder_lives),
            Input::Forget { server } => self.forget(server),
        }
    }

    fn join(&mut self, join: JoinPool, process: SessionId, holder_lives: bool) -> Result<Decision> {
        let server = join.entry.server;
        if server.0 >= self.config.servers_expected {
            let text = format!(
                "{server} is not expected: the pool was made with {}, numbered from 0, and cannot grow yet",
                count(self.config.servers_expected.into(), "server")
            );
            return refuse(ErrorKind::NotPermitted, text);
        }
        let entry = ServerEntry { forgotten: false, ..join.entry };
        match self.known(server) {
            Some(known) => check_successor(known, &entry, join.keeps_store, holder_lives)?,
            None if join.keeps_store => return refuse_older_store(server),
            None => {}
        }
        let asked_before = self.processes.get(&server) == Some(&process);
        let first_answer = self.unanswered.contains(&server);
        let lost = self.map.is_some() && !join.keeps_store && !first_answer && !asked_before;
        if lost {
            self.check_may_lose()?;
        }
        self.processes.insert(server, process);
        Ok(match self.map {
            Some(_) => self.come_back(entry, lost, asked_before),
            None => self.gather(entry),
        })
    }

    /// The server that joined last under this number, also before there is a map: the one that [`Input::Join`]
    /// asks about.
    #[must_use]
    pub fn known(&self, server: ServerId) -> Option<&ServerEntry> {
        match &self.map {
            Some(map) => map.server(server),
            None => self.gathered.get(&server),
        }
    }

    fn gather(&mut self, entry: ServerEntry) -> Decision {
        let server = entry.server;
        self.gathered.insert(server, entry);
        let missing = self.missing();
        if !missing.is_empty() {
            return Decision::Waiting { missing };
        }
        self.unanswered = self.gathered.keys().copied().filter(|other| *other != server).collect();
        self.map = Some(self.first_map());
        self.gathered.clear();
        Decision::NewMap
    }

    fn first_map(&self) -> ClusterMap {
        let epoch = Epoch(1);
        let by_machines =
            ClusterMap::slots_by_machines(self.config.slots, self.config.servers_expected.into());
        let order = servers_by_machines(self.gathered.values());
        let home = |slot: u32| match slot % u32::from(self.config.servers_expected) {
            turn if by_machines.contains(&slot) => order[turn as usize],
            turn => ServerId(turn as u16),
        };
        let chain = |slot| Chain { servers: vec![home(slot)], complete_since: epoch };
        ClusterMap {
            pool: self.config.pool,
            epoch,
            hash_seed: self.config.hash_seed,
            coordinator: self.config.coordinator,
            servers: self.gathered.values().cloned().collect(),
            chains: (0..self.config.slots).map(chain).collect(),
        }
    }

    /// A server of the map asks again, moved to other addresses, or lost its store. `asked_before`: so did this very
    /// process, whose loss is counted.
    fn come_back(&mut self, entry: ServerEntry, lost: bool, asked_before: bool) -> Decision {
        let server = entry.server;
        let first_answer = self.unanswered.remove(&server);
        let map = self.map.as_mut().expect("the caller has seen the map");
        let known = &mut map.servers[usize::from(server.0)];
        if *known == entry && !lost {
            return if first_answer || !asked_before { Decision::Confirmed } else { Decision::Unchanged };
        }
        *known = entry;
        map.epoch = map.epoch.next();
        if lost {
            lose_store(map, server);
        }
        Decision::NewMap
    }

    fn forget(&mut self, server: ServerId) -> Result<Decision> {
        let Some(map) = &self.map else {
            let text = "the pool is not complete yet; nobody can be forgotten before it is";
            return refuse(ErrorKind::Retry, text.into());
        };
        let Some(entry) = map.servers.get(usize::from(server.0)) else {
            return refuse(ErrorKind::NotFound, format!("the pool has no {server}; nothing was forgotten"));
        };
        if entry.forgotten {
            return refuse(ErrorKind::Stale, format!("{server} was forgotten before"));
        }
        if server == map.coordinator {
            let text = format!("{server} holds the pool's coordinator and cannot be forgotten");
            return refuse(ErrorKind::NotPermitted, text);
        }
        self.check_may_lose()?;
        let map = self.map.as_mut().expect("just seen");
        map.servers[usize::from(server.0)].forgotten = true;
        map.epoch = map.epoch.next();
        leave_chains(map, server);
        self.unanswered.remove(&server);
        Ok(Decision::NewMap)
    }

    /// Whether slots may begin anew in the next map: a slot counts from its epoch, and there is an end of numbers.
    fn check_may_lose(&self) -> Result<()> {
        let epoch = self.map.as_ref().map_or(Epoch(0), |map| map.epoch);
        if epoch < Epoch::LAST_BIRTH {
            return Ok(());
        }
        let text = format!(
            "the pool's map has changed {} times, and no slot can begin anew any more; copy out what is left, end \
             the pool with `ramlace down` and start it anew",
            epoch.0
        );
        refuse(ErrorKind::NotPermitted, text)
    }
}

/// May this process follow the one that joined under the same number before?
fn check_successor(
    known: &ServerEntry,
    new: &ServerEntry,
    keeps_store: bool,
    holder_lives: bool,
) -> Result<()> {
    let server = known.server;
    if known.forgotten {
        let text = format!("{server} was forgotten; its number is not used again in this pool");
        return refuse(ErrorKind::NotPermitted, text);
    }
    let same_process = (known.host, &known.tcp, &known.unix) == (new.host, &new.tcp, &new.unix);
    if !same_process && holder_lives {
        let text = format!(
            "{server} is there already, at {}; the process at {} must have another number or wait until it has ended",
            known.tcp, new.tcp
        );
        return refuse(ErrorKind::Busy, text);
    }
    if known.host != new.host && keeps_store {
        let text = format!(
            "{server} says that it kept its store, but its machine is another one or was restarted; memory does not survive that"
        );
        return refuse(ErrorKind::Invalid, text);
    }
    Ok(())
}

/// A new map would take the bytes of an older one for its own, and read what was lost as zeros.
fn refuse_older_store(server: ServerId) -> Result<Decision> {
    let text = format!(
        "{server} holds bytes of a map that this coordinator does not know: the coordinator has lost its store; end the pool with `ramlace down` and start it anew"
    );
    refuse(ErrorKind::Stale, text)
}

/// The server's store came back empty. Replicas take over where there are any; where there are
/// none the server stays, complete from the new epoch on.
fn lose_store(map: &mut ClusterMap, server: ServerId) {
    for chain in map.chains.iter_mut().filter(|chain| chain.servers.contains(&server)) {
        if chain.servers.len() > 1 {
            chain.servers.retain(|other| *other != server);
        } else {
            chain.complete_since = map.epoch;
        }
    }
}

/// All servers, machine by machine, in the order of the first of each.
fn servers_by_machines<'entries>(entries: impl Iterator<Item = &'entries ServerEntry>) -> Vec<ServerId> {
    let mut first = BTreeMap::new();
    let mut servers: Vec<(ServerId, ServerId)> =
        entries.map(|entry| (*first.entry(entry.host).or_insert(entry.server), entry.server)).collect();
    servers.sort_unstable();
    servers.into_iter().map(|(_, server)| server).collect()
}

/// The server is out of every chain. Replicas take over where there are any; the other slots go
/// round the servers that are left, empty.
fn leave_chains(map: &mut ClusterMap, server: ServerId) {
    let rest: Vec<ServerId> =
        map.servers.iter().filter(|entry| !entry.forgotten).map(|entry| entry.server).collect();
    let mut next = rest.iter().cycle();
    for chain in map.chains.iter_mut().filter(|chain| chain.servers.contains(&server)) {
        chain.servers.retain(|other| *other != server);
        if chain.servers.is_empty() {
            chain.servers.extend(next.next());
            chain.complete_since = map.epoch;
        }
    }
}

fn refuse<T>(kind: ErrorKind, text: String) -> Result<T> {
    Err(Error::new(kind, text))
}

#[cfg(test)]
#[path = "coordinator_tests.rs"]
mod tests;
