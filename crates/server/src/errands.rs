//! Delivers what slots owe each other: at least once, in order for each server, again and again
//! until it is answered.
//!
//! One task for each server that something is owed to; it ends when nothing is owed. While a
//! server cannot be reached, whoever waits for it is told at once and the errands stay.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Redirect, ServerId, Slot};
use ramlace_namespace::{Answer, Command, Effect, Errand, ErrandAnswer, ErrandId, Op, Origin, Query};
use ramlace_wire::peer::{Ascend, QueryInode};
use ramlace_wire::{ErrorBody, Request};

use crate::clock;
use crate::server::{Outcome, Refusal, Server};
use crate::stop::BugEndsProcess;

/// Pauses between two attempts, when the other side asks for patience.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// Pause after an errand that was refused though it is owed, such as by a full store.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Pauses between two attempts, while a server cannot be reached.
const UNREACHABLE_PAUSE: Duration = Duration::from_millis(500);

struct Owed {
    from: Slot,
    id: ErrandId,
    errand: Errand,
}

#[derive(Default)]
struct Queue {
    owed: VecDeque<Owed>,
    unreachable: bool,
}

/// What is owed, by server.
#[derive(Default)]
pub struct Errands {
    queues: RefCell<HashMap<ServerId, Queue>>,
}

enum Delivery {
    Answered,
    Again,
    Refused,
    Unreachable,
}

impl Server {
    /// Takes over every errand that stood open when the last life ended.
    pub fn resume_errands(self: &Rc<Self>) {
        let open: Vec<(Slot, ErrandId, Errand)> = self
            .durable
            .borrow()
            .all_names()
            .flat_map(|state| state.open_errands().map(|(id, errand)| (state.slot(), id, errand.clone())))
            .collect();
        for (from, id, errand) in open {
            self.owe(from, id, errand);
        }
    }

    /// Queues an errand for the server that holds its slot.
    pub fn owe(self: &Rc<Self>, from: Slot, id: ErrandId, errand: Errand) {
        let target = match self.primary(errand.slot()) {
            Ok(target) => target,
            Err(error) => {
                // Slots come from checked layouts and the map: without a map nothing is served.
                eprintln!("ramlace: an errand of {from} leads nowhere: {error}");
                return;
            }
        };
        let mut queues = self.errands.queues.borrow_mut();
        let idle = !queues.contains_key(&target);
        let queue = queues.entry(target).or_default();
        queue.owed.push_back(Owed { from, id, errand });
        let unreachable = queue.unreachable;
        drop(queues);
        if idle {
            let server = self.clone();
            tokio::task::spawn_local(async move { server.deliver_all(target).await });
        } else if unreachable {
            self.tell_waiting(from, id);
        }
    }

    async fn deliver_all(self: Rc<Self>, target: ServerId) {
        let _bug = BugEndsProcess;
        loop {
            let next = {
                let mut queues = self.errands.queues.borrow_mut();
                let Some(queue) = queues.get_mut(&target) else { return };
                match queue.owed.pop_front() {
                    Some(owed) => owed,
                    None => {
                        queues.remove(&target);
                        return;
                    }
                }
            };
            if !self.is_owed(&next) {
                // A later errand took its place, or what it was for was given up.
                continue;
            }
            if self.primary(next.errand.slot()).is_ok_and(|primary| primary != target) {
                // The slot has changed hands since.
                self.owe(next.from, next.id, next.errand);
                continue;
            }
            match self.deliver(&next).await {
                Delivery::Answered => self.mark_reached(target),
                Delivery::Again => {
                    self.mark_reached(target);
                    tokio::time::sleep(RETRY_PAUSE).await;
                    self.with_queue(target, |queue| queue.owed.push_front(next));
                }
                Delivery::Refused => {
                    self.mark_reached(target);
                    self.with_queue(target, |queue| queue.owed.push_back(next));
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
                Delivery::Unreachable => {
                    self.with_queue(target, |queue| queue.owed.push_front(next));
                    self.tell_unreachable(target);
                    tokio::time::sleep(UNREACHABLE_PAUSE).await;
                    // Otherwise the same file truncated again and again would fill the queue.
                    self.with_queue(target, |queue| queue.owed.retain(|owed| self.is_owed(owed)));
                    // The server may have been forgotten: then its slots have a new primary. Where
                    // the coordinator does not answer either, the errand waits on.
                    let _ = self.refresh_map().await;
                }
            }
        }
    }

    async fn deliver(self: &Rc<Self>, owed: &Owed) -> Delivery {
        let outcome = self.carry(&owed.errand).await;
        let result = match outcome {
            Ok(answer) => Ok(answer),
            Err(refusal) => match refusal.error.kind() {
                ErrorKind::Retry => return Delivery::Again,
                ErrorKind::Redirect(Redirect::Moved) => {
                    self.adopt_if_newer(refusal);
                    return Delivery::Again;
                }
                ErrorKind::HostDown | ErrorKind::TimedOut => return Delivery::Unreachable,
                _ => Err(ErrorBody::new(&refusal.error)),
            },
        };
        // A refusal that nobody waits for changes nothing.
        let matters = match &result {
            Ok(_) => true,
            Err(body) => {
                let gone = [ErrorKind::Stale, ErrorKind::Lost].map(ErrorKind::number);
                gone.contains(&body.kind) || self.is_awaited(owed.from, owed.id)
            }
        };
        if matters {
            self.settle(owed.from, Op::ErrandDone { errand: owed.id, result });
        }
        // What was refused may be owed all the same: memory must be freed, halves be settled.
        if self.is_owed(owed) { Delivery::Refused } else { Delivery::Answered }
    }

    fn is_owed(&self, owed: &Owed) -> bool {
        let durable = self.durable.borrow();
        durable.names(owed.from).is_some_and(|state| state.open_errand(owed.id).is_some())
    }

    /// Tells whoever waits for an errand that its server cannot be reached now.
    fn tell_waiting(self: &Rc<Self>, slot: Slot, errand: ErrandId) {
        if self.is_awaited(slot, errand) {
            self.settle(slot, Op::ErrandUnreachable { errand });
        }
    }

    fn is_awaited(&self, slot: Slot, errand: ErrandId) -> bool {
        self.durable.borrow().names(slot).is_some_and(|state| state.is_awaited(errand))
    }

    /// Takes an errand to its slot, here or elsewhere.
    async fn carry(self: &Rc<Self>, errand: &Errand) -> Outcome<ErrandAnswer> {
        if self.primary(errand.slot())? == self.me {
            return self.accept_own(errand.clone()).await;
        }
        let done = |()| ErrandAnswer::Done;
        match errand {
            Errand::Prepare(request) => {
                self.call_peer(errand.slot(), &**request).await.map(ErrandAnswer::Prepared)
            }
            Errand::Settle(request) => self.call_peer(errand.slot(), request).await.map(done),
            Errand::Ascend(request) => {
                self.call_peer(errand.slot(), request).await.map(ErrandAnswer::Ascended)
            }
            Errand::CutLane(request) => self.call_peer(errand.slot(), request).await.map(done),
            Errand::DropLane(request) => self.call_peer(errand.slot(), request).await.map(done),
            Errand::TrimLane(request) => self.call_peer(errand.slot(), request).await.map(done),
            Errand::FillLane(request) => self.call_peer(errand.slot(), request).await.map(done),
        }
    }

    /// The answer to an errand of this server's own slots waits as others do, though no connection brings it: an
    /// operation goes on, and may end, when nobody believes any more what was before this part of it.
    async fn accept_own(self: &Rc<Self>, errand: Errand) -> Outcome<ErrandAnswer> {
        let waits = matches!(errand, Errand::Prepare(_) | Errand::Settle(_)).then(|| errand.slot());
        let accepted = self.accept(errand).await;
        self.leases.pass(&self.leases.recalled(waits.into_iter(), false)).await;
        accepted
    }

    /// Does here what an errand asks, whoever brought it.
    pub async fn accept(self: &Rc<Self>, errand: Errand) -> Outcome<ErrandAnswer> {
        self.check_coordinator(&errand)?;
        let op = match errand {
            Errand::CutLane(request) => return self.cut_lane(request).await.map(|()| ErrandAnswer::Done),
            Errand::DropLane(request) => return self.drop_lane(request).await.map(|()| ErrandAnswer::Done),
            Errand::TrimLane(request) => return self.trim_lane(request).map(|()| ErrandAnswer::Done),
            Errand::FillLane(request) => return self.fill_lane(request).await.map(|()| ErrandAnswer::Done),
            Errand::Ascend(request) => return self.ascend(request),
            Errand::Prepare(request) => (request.slot, Op::Prepare(request)),
            Errand::Settle(request) => (request.slot, Op::Settle(request)),
        };
        let (slot, op) = op;
        let command = Command { now: clock::now(), origin: Origin::Peer, op };
        self.submit(slot, command)?
            .unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Fatal, "a slot left a peer's message unanswered; this is a bug"))
            })
            .map_err(Refusal::from)
    }

    /// An operation across slots is begun by a slot of this pool.
    fn check_coordinator(&self, errand: &Errand) -> ramlace_base::Result<()> {
        let coordinator = match errand {
            Errand::Prepare(request) => request.stamp.coordinator,
            Errand::Settle(request) => request.stamp.coordinator,
            _ => return Ok(()),
        };
        match self.membership.map()?.chain(coordinator) {
            Some(_) => Ok(()),
            None => {
                let text = format!("an operation of {coordinator} came, which this pool does not have");
                Err(Error::new(ErrorKind::Protocol, text))
            }
        }
    }

    /// Walks towards the root as far as the directories live in the slot. It changes nothing.
    fn ascend(self: &Rc<Self>, request: Ascend) -> Outcome<ErrandAnswer> {
        match self.query(&self.owner, request.inode.slot(), &Query::Ascend(request))? {
            Answer::Ascended(body) => Ok(ErrandAnswer::Ascended(body)),
            _ => {
                let text = "a walk towards the root was answered with something else; this is a bug";
                Err(Error::new(ErrorKind::Fatal, text).into())
            }
        }
    }

    /// Asks a file's home about the file, here or elsewhere.
    pub async fn query_home(
        self: &Rc<Self>,
        request: QueryInode,
    ) -> Outcome<ramlace_wire::peer::InodeAnswer> {
        let slot = request.inode.slot();
        if self.primary(slot)? == self.me {
            return self.query_inode(request);
        }
        self.call_peer(slot, &request).await
    }

    pub async fn call_peer<R: Request>(self: &Rc<Self>, slot: Slot, request: &R) -> Outcome<R::Reply> {
        let map = self.membership.map()?;
        let target = self.primary(slot)?;
        self.peers.call(&map, target, request).await.map_err(Refusal::from)
    }

    /// Tells a slot what became of its errand. Where even that finds no room, the errand stays
    /// open and is delivered again.
    fn settle(self: &Rc<Self>, slot: Slot, op: Op) {
        let command = Command { now: clock::now(), origin: Origin::Server, op };
        match self.submit(slot, command) {
            Err(error) if error.kind() != ErrorKind::NoSpace => crate::durable::fatal(&error),
            _ => {}
        }
    }

    /// Does something with the queue of a server to which its task is delivering.
    fn with_queue(&self, target: ServerId, change: impl FnOnce(&mut Queue)) {
        change(self.errands.queues.borrow_mut().entry(target).or_default());
    }

    /// Whether errands wait for this server because it does not answer.
    pub fn is_unreachable(&self, server: ServerId) -> bool {
        self.errands.queues.borrow().get(&server).is_some_and(|queue| queue.unreachable)
    }

    fn mark_reached(&self, target: ServerId) {
        if let Some(queue) = self.errands.queues.borrow_mut().get_mut(&target) {
            queue.unreachable = false;
        }
    }

    /// Whoever waits for this server goes on without it.
    fn tell_unreachable(self: &Rc<Self>, target: ServerId) {
        let waiting: Vec<(Slot, ErrandId)> = {
            let mut queues = self.errands.queues.borrow_mut();
            let Some(queue) = queues.get_mut(&target) else { return };
            if std::mem::replace(&mut queue.unreachable, true) {
                return;
            }
            queue.owed.iter().map(|owed| (owed.from, owed.id)).collect()
        };
        for (slot, errand) in waiting {
            self.tell_waiting(slot, errand);
        }
    }

    fn adopt_if_newer(&self, refusal: Refusal) {
        if let Some(map) = refusal.map
            && let Err(error) = self.membership.adopt(&mut self.store.borrow_mut(), (*map).clone())
        {
            eprintln!("ramlace: a peer's map was refused: {error}");
        }
    }
}

#[cfg(test)]
impl Errands {
    /// How many wait for a server.
    pub fn queued(&self, target: ServerId) -> usize {
        self.queues.borrow().get(&target).map_or(0, |queue| queue.owed.len())
    }
}

/// Queues the errands among some effects, and spreads directories that have grown; the others come back.
pub fn owe_errands(server: &Rc<Server>, effects: Vec<(Slot, Effect)>) -> Vec<Effect> {
    let (mut others, mut crowded) = (Vec::new(), Vec::new());
    for (slot, effect) in effects {
        match effect {
            Effect::Send { errand, message } => server.owe(slot, errand, message),
            Effect::Crowded { directory } => crowded.push(directory),
            other => others.push(other),
        }
    }
    crowded.into_iter().for_each(|directory| server.spread(directory));
    others
}
