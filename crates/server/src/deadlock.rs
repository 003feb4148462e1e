//! Finds deadlocks: cycles of lock owners that wait for each other, across files of all servers.
//!
//! When a wait lasts longer than most, its client asks the server of slot 0, which searches for one cycle
//! after the other: of several waits that close the same cycle exactly one is refused. It notes where the
//! owner waits, so a search only asks the homes of the waits that it meets, and no other server: each lasting
//! wait is asked about sooner or later, and a cycle is found with the last of its waits. The servers' answers
//! are from different times, so a cycle counts only when each of its waits is found a second time: a wait
//! ends only by its grant, and its owner can do nothing else meanwhile.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use ramlace_base::{Error, Result, ServerId, Slot, limits};
use ramlace_namespace::{Command, Effect, Op, Origin, Room};
use ramlace_wire::ClusterMap;
use ramlace_wire::locks::{
    DeadlockFound, EndLockWait, FindDeadlock, ListLockWaits, LockOwner, LockWait, LockWaitEnded, LockWaits,
};

use crate::cause;
use crate::clock;
use crate::record::Record;
use crate::server::known_waits::KnownWaits;
use crate::server::{Outcome, Server};

/// One wait of a cycle, and the owner that it waits for.
struct Edge {
    wait: LockWait,
    blocker: LockOwner,
}

impl Server {
    /// Whether a wait closes a cycle; if so, the wait is refused.
    pub async fn find_deadlock(
        self: &Rc<Self>,
        map: &ClusterMap,
        session: ramlace_base::SessionId,
        request: FindDeadlock,
    ) -> Outcome<DeadlockFound> {
        // One search at a time.
        let mut known = self.deadlocks.lock().await;
        let owner = LockOwner { session, owner: request.owner };
        known.note(owner, request.inode);
        let is_it = |wait: &LockWait| wait.inode == request.inode && wait.wait == request.wait;
        let first = self.waits_of(map, &mut known, vec![owner]).await?;
        let Some(first) = first.into_iter().find(is_it) else {
            return Ok(DeadlockFound { found: false, waits: false });
        };
        let Some(cycle) = self.search(map, &mut known, first).await? else {
            return Ok(DeadlockFound { found: false, waits: true });
        };
        if !self.stands(map, &mut known, &cycle).await? {
            return Ok(DeadlockFound { found: false, waits: true });
        }
        let end = EndLockWait { inode: request.inode, session, wait: request.wait };
        let found = self.end_wait_at_home(map, end).await?;
        Ok(DeadlockFound { found, waits: false })
    }

    /// Follows waits from owner to owner, until one waits for the first.
    async fn search(
        self: &Rc<Self>,
        map: &ClusterMap,
        known: &mut KnownWaits,
        first: LockWait,
    ) -> Result<Option<Vec<Edge>>> {
        let start = first.owner;
        // The wait by which each owner was reached.
        let mut reached: HashMap<LockOwner, LockWait> = HashMap::new();
        let mut next = VecDeque::new();
        let mut found = vec![first];
        loop {
            for wait in found.drain(..) {
                for blocker in &wait.blockers {
                    if *blocker == start {
                        return Ok(Some(cycle_to(&reached, wait.clone(), start)));
                    }
                    if reached.len() < limits::DEADLOCK_SEARCH_OWNERS_MAX && !reached.contains_key(blocker) {
                        reached.insert(*blocker, wait.clone());
                        next.push_back(*blocker);
                    }
                }
            }
            if next.is_empty() {
                return Ok(None);
            }
            let owners = next.drain(..next.len().min(limits::DEADLOCK_OWNERS_MAX)).collect();
            found = self.waits_of(map, known, owners).await?;
        }
    }

    /// Whether every wait of a cycle still exists, for the same owner.
    async fn stands(
        self: &Rc<Self>,
        map: &ClusterMap,
        known: &mut KnownWaits,
        cycle: &[Edge],
    ) -> Result<bool> {
        for edges in cycle.chunks(limits::DEADLOCK_OWNERS_MAX) {
            let owners = edges.iter().map(|edge| edge.wait.owner).collect();
            let waits = self.waits_of(map, known, owners).await?;
            let stands = |edge: &Edge| {
                waits.iter().any(|wait| {
                    (wait.owner, wait.inode, wait.wait) == (edge.wait.owner, edge.wait.inode, edge.wait.wait)
                        && wait.blockers.contains(&edge.blocker)
                })
            };
            if !edges.iter().all(stands) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The waits of these owners, as far as their homes are known: asks all of these at once.
    async fn waits_of(
        self: &Rc<Self>,
        map: &ClusterMap,
        known: &mut KnownWaits,
        owners: Vec<LockOwner>,
    ) -> Result<Vec<LockWait>> {
        let mut by_server: BTreeMap<ServerId, Vec<LockOwner>> = BTreeMap::new();
        for (owner, slot) in known.homes(&owners) {
            let Some(home) = map.primary(slot) else { continue };
            let there = by_server.entry(home).or_default();
            if there.last() != Some(&owner) {
                there.push(owner);
            }
        }
        let (mut waits, mut asked) = (Vec::new(), Vec::new());
        for (home, owners) in by_server {
            let request = ListLockWaits { owners };
            if home == self.me {
                waits.extend(self.lock_waits(&request).waits);
                continue;
            }
            let (server, map) = (self.clone(), map.clone());
            let ask = cause::kept(async move { server.peers.call(&map, home, &request).await });
            asked.push(tokio::task::spawn_local(ask));
        }
        for answer in asked {
            let answered = answer.await.expect("asking a peer does not panic");
            waits.extend(answered.map_err(|failure| failure.error)?.waits);
        }
        known.learn(&owners, &waits);
        Ok(waits)
    }

    /// The waits of these owners in this server's slots.
    pub fn lock_waits(&self, request: &ListLockWaits) -> LockWaits {
        let owners = &request.owners[..request.owners.len().min(limits::DEADLOCK_OWNERS_MAX)];
        let durable = self.durable.borrow();
        let waits = durable.all_names().flat_map(|state| state.lock_waits(owners));
        LockWaits { waits: waits.take(limits::DEADLOCK_WAITS_MAX).collect() }
    }

    async fn end_wait_at_home(self: &Rc<Self>, map: &ClusterMap, end: EndLockWait) -> Outcome<bool> {
        let home = self.primary(end.inode.slot())?;
        if home == self.me {
            return Ok(self.end_lock_wait(end)?.ended);
        }
        Ok(self.peers.call(map, home, &end).await?.ended)
    }

    /// Refuses a wait in this server's slots that closes a cycle.
    pub fn end_lock_wait(self: &Rc<Self>, end: EndLockWait) -> Result<LockWaitEnded> {
        let slot: Slot = end.inode.slot();
        if self.durable.borrow().names(slot).is_none() {
            return Ok(LockWaitEnded { ended: false });
        }
        let command = Command { now: clock::now(), origin: Origin::Server, op: Op::EndLockWait(end) };
        let ended =
            self.commit(&Record::command(slot, command, Room::ForInodes))?.into_iter().find_map(|effect| {
                match effect {
                    Effect::LockWaitEnded { ended } => Some(ended),
                    _ => None,
                }
            });
        ended.map(|ended| LockWaitEnded { ended }).ok_or_else(|| {
            Error::new(ramlace_base::ErrorKind::Fatal, "a slot did not say whether a wait has ended")
        })
    }
}

/// The waits that lead from `start` to the owner that waits for it.
fn cycle_to(reached: &HashMap<LockOwner, LockWait>, last: LockWait, start: LockOwner) -> Vec<Edge> {
    let (mut cycle, mut wait, mut blocker) = (Vec::new(), last, start);
    loop {
        let owner = wait.owner;
        cycle.push(Edge { wait, blocker });
        if owner == start {
            return cycle;
        }
        blocker = owner;
        wait = reached[&owner].clone();
    }
}
