//! Delivers the slots' messages to each other (their outbox): at least once, in order for each server,
//! retried until they are answered.
//!
//! There is a task for each server with pending deliveries; it ends when there are none. If a server cannot
//! be reached, operations that wait for it are notified at once, and the deliveries stay pending.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Redirect, ServerId, Slot};
use ramlace_namespace::{Command, Delivery, DeliveryAnswer, DeliveryId, Effect, Op, Origin};
use ramlace_wire::peer::{Ascend, BeginLane, LaneCut, QueryInode};
use ramlace_wire::{ErrorBody, Request, encode_body};

use crate::cause;
use crate::clock;
use crate::server::delivery_queues::{Pending, Queue};
use crate::server::{Outcome, Refusal, Server};
use crate::stop::BugEndsProcess;

/// The pause between two attempts when the other side answers Retry.
const RETRY_PAUSE: Duration = Duration::from_millis(2);
/// The pause after a delivery that was refused but is still pending, for example because a store is full.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// The pause between two attempts while a server cannot be reached.
const UNREACHABLE_PAUSE: Duration = Duration::from_millis(500);

/// Attempts one after the other at a delivery that gets Retry. Then those behind it have their turn: what it waits
/// for may last, and need not concern them.
const ATTEMPTS_AT_ONCE: u32 = 8;

enum Attempt {
    Answered,
    Again,
    Refused,
    Unreachable,
}

/// The result of a delivery where it arrives.
pub enum Accepted {
    /// The answer for the sending slot.
    Answer(DeliveryAnswer),
    /// The lane is cut; the sending slot gets its answer when the recalls are over.
    Cut(LaneCut),
}

impl Accepted {
    /// The body of the reply on the wire.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Accepted::Answer(answer) => answer.encode(),
            Accepted::Cut(cut) => encode_body(cut),
        }
    }
}

impl Server {
    /// Queues every delivery that was open when the last incarnation ended.
    pub fn resume_deliveries(self: &Rc<Self>) {
        let open: Vec<(Slot, DeliveryId, Delivery)> = self
            .durable
            .borrow()
            .all_names()
            .flat_map(|state| {
                state.open_deliveries().map(|(id, delivery)| (state.slot(), id, delivery.clone()))
            })
            .collect();
        for (from, id, delivery) in open {
            self.send_delivery(from, id, delivery);
        }
    }

    /// Queues a delivery for the server that holds its slot.
    pub fn send_delivery(self: &Rc<Self>, from: Slot, id: DeliveryId, delivery: Delivery) {
        self.queue(Pending { from, id, delivery, cause: cause::now() });
    }

    /// The same of one that was queued before.
    pub fn queue(self: &Rc<Self>, pending: Pending) {
        let (from, id) = (pending.from, pending.id);
        let target = match self.primary(pending.delivery.slot()) {
            Ok(target) => target,
            Err(error) => {
                // Slots come from checked layouts and the map: without a map nothing is served.
                eprintln!("ramlace: a delivery of {from} leads nowhere: {error}");
                return;
            }
        };
        let mut queues = self.deliveries.queues.borrow_mut();
        let idle = !queues.contains_key(&target);
        let queue = queues.entry(target).or_default();
        queue.pending.push_back(pending);
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
        let mut attempts = 0;
        loop {
            let next = {
                let mut queues = self.deliveries.queues.borrow_mut();
                let Some(queue) = queues.get_mut(&target) else { return };
                match queue.pending.pop_front() {
                    Some(pending) => pending,
                    None => {
                        queues.remove(&target);
                        return;
                    }
                }
            };
            if !self.is_pending(&next) {
                // A later delivery has replaced it, or its operation was aborted.
                continue;
            }
            if self.primary(next.delivery.slot()).is_ok_and(|primary| primary != target) {
                // The slot has moved meanwhile.
                self.queue(next);
                continue;
            }
            let attempt = cause::within(next.cause, pin!(self.deliver(target, &next))).await;
            attempts = if matches!(attempt, Attempt::Again) { attempts + 1 } else { 0 };
            match attempt {
                Attempt::Answered => self.mark_reached(target),
                Attempt::Again => {
                    self.mark_reached(target);
                    tokio::time::sleep(RETRY_PAUSE).await;
                    if attempts < ATTEMPTS_AT_ONCE {
                        self.with_queue(target, |queue| queue.pending.push_front(next));
                    } else {
                        attempts = 0;
                        self.with_queue(target, |queue| queue.pending.push_back(next));
                    }
                }
                Attempt::Refused => {
                    self.mark_reached(target);
                    self.with_queue(target, |queue| queue.pending.push_back(next));
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
                Attempt::Unreachable => {
                    self.with_queue(target, |queue| queue.pending.push_front(next));
                    self.tell_unreachable(target);
                    tokio::time::sleep(UNREACHABLE_PAUSE).await;
                    // Otherwise a file that is truncated again and again would fill the queue.
                    self.with_queue(target, |queue| queue.pending.retain(|pending| self.is_pending(pending)));
                    // The server may have been forgotten: then its slots have a new primary. If the
                    // coordinator does not answer either, the delivery stays queued.
                    let _ = self.refresh_map().await;
                }
            }
        }
    }

    async fn deliver(self: &Rc<Self>, target: ServerId, pending: &Pending) -> Attempt {
        let outcome = self.carry(&pending.delivery).await;
        let result = match outcome {
            Ok(Accepted::Cut(cut)) if !cut.recalls.is_empty() => {
                self.await_cut(target, pending.clone(), cut);
                return Attempt::Answered;
            }
            Ok(Accepted::Cut(_)) => Ok(DeliveryAnswer::Done),
            Ok(Accepted::Answer(answer)) => Ok(answer),
            Err(refusal) => match refusal.error.kind() {
                ErrorKind::Retry => return Attempt::Again,
                ErrorKind::Redirect(Redirect::Moved) => {
                    self.adopt_if_newer(refusal);
                    return Attempt::Again;
                }
                ErrorKind::HostDown | ErrorKind::TimedOut => return Attempt::Unreachable,
                _ => Err(ErrorBody::new(&refusal.error)),
            },
        };
        // A refusal without a waiting operation changes nothing.
        let matters = match &result {
            Ok(_) => true,
            Err(body) => {
                let gone = [ErrorKind::Stale, ErrorKind::Lost].map(ErrorKind::number);
                gone.contains(&body.kind) || self.is_awaited(pending.from, pending.id)
            }
        };
        if matters {
            self.report(pending.from, Op::DeliveryDone { delivery: pending.id, result });
            if let Delivery::FillLane(filled) = &pending.delivery {
                self.recall_left(filled.lane.inode);
            }
        }
        // A refused delivery may still be pending: memory must be freed, prepared participants be decided.
        if self.is_pending(pending) { Attempt::Refused } else { Attempt::Answered }
    }

    /// A lane is cut, and no kernel has pages of what was cut off.
    pub fn delivery_is_done(self: &Rc<Self>, pending: &Pending) {
        self.report(
            pending.from,
            Op::DeliveryDone { delivery: pending.id, result: Ok(DeliveryAnswer::Done) },
        );
        if self.is_pending(pending) {
            // There was no room for that.
            self.queue(pending.clone());
        }
    }

    pub fn is_pending(&self, pending: &Pending) -> bool {
        let durable = self.durable.borrow();
        durable.names(pending.from).is_some_and(|state| state.open_delivery(pending.id).is_some())
    }

    /// Notifies the operation that waits for a delivery that its server cannot be reached now.
    fn tell_waiting(self: &Rc<Self>, slot: Slot, delivery: DeliveryId) {
        if self.is_awaited(slot, delivery) {
            self.report(slot, Op::DeliveryUnreachable { delivery });
        }
    }

    fn is_awaited(&self, slot: Slot, delivery: DeliveryId) -> bool {
        self.durable.borrow().names(slot).is_some_and(|state| state.is_awaited(delivery))
    }

    /// Takes a delivery to its slot, on this server or another.
    async fn carry(self: &Rc<Self>, delivery: &Delivery) -> Outcome<Accepted> {
        let slot = delivery.slot();
        if self.primary(slot)? == self.me {
            return self.accept_own(delivery.clone()).await;
        }
        let done = |()| DeliveryAnswer::Done;
        let answer = match delivery {
            Delivery::CutLane(request) => return self.call_peer(slot, request).await.map(Accepted::Cut),
            Delivery::Prepare(request) => {
                self.call_peer(slot, &**request).await.map(DeliveryAnswer::Prepared)
            }
            Delivery::Decide(request) => self.call_peer(slot, request).await.map(done),
            Delivery::Ascend(request) => self.call_peer(slot, request).await.map(DeliveryAnswer::Ascended),
            Delivery::DropLane(request) => self.call_peer(slot, request).await.map(done),
            Delivery::TrimLane(request) => self.call_peer(slot, request).await.map(done),
            Delivery::FillLane(request) => self.call_peer(slot, request).await.map(done),
        };
        answer.map(Accepted::Answer)
    }

    /// The answer to a delivery between this server's own slots waits for recalls as others do, although it
    /// does not leave by a connection: the operation must not continue, and perhaps end, while a client still
    /// relies on the state from before.
    async fn accept_own(self: &Rc<Self>, delivery: Delivery) -> Outcome<Accepted> {
        let waits = matches!(delivery, Delivery::Prepare(_) | Delivery::Decide(_)).then(|| delivery.slot());
        let accepted = self.accept(delivery).await;
        self.leases.pass(&self.leases.recalled(waits.into_iter(), false)).await;
        accepted
    }

    /// Does what a delivery asks here, from whichever server it came.
    pub async fn accept(self: &Rc<Self>, delivery: Delivery) -> Outcome<Accepted> {
        self.check_coordinator(&delivery)?;
        let done = |()| Accepted::Answer(DeliveryAnswer::Done);
        let op = match delivery {
            Delivery::CutLane(request) => return self.cut_lane(request).await.map(Accepted::Cut),
            Delivery::DropLane(request) => return self.drop_lane(request).await.map(done),
            Delivery::TrimLane(request) => return self.trim_lane(request).map(done),
            Delivery::FillLane(request) => return self.fill_lane(request).await.map(done),
            Delivery::Ascend(request) => return self.ascend(request).map(Accepted::Answer),
            Delivery::Prepare(request) => {
                self.await_undelegated_for_peer(request.slot).await?;
                (request.slot, Op::Prepare(request))
            }
            Delivery::Decide(request) => {
                self.await_undelegated_for_peer(request.slot).await?;
                (request.slot, Op::Decide(request))
            }
        };
        let (slot, op) = op;
        let command = Command { now: clock::now(), origin: Origin::Peer, op };
        self.submit(slot, command)?
            .unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Fatal, "a slot left a peer's message unanswered; this is a bug"))
            })
            .map(Accepted::Answer)
            .map_err(Refusal::from)
    }

    /// Checks that the operation's coordinator is a slot of this pool.
    fn check_coordinator(&self, delivery: &Delivery) -> ramlace_base::Result<()> {
        let coordinator = match delivery {
            Delivery::Prepare(request) => request.stamp.coordinator,
            Delivery::Decide(request) => request.stamp.coordinator,
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

    /// Follows parents towards the root as far as the directories live in the slot. Changes nothing.
    fn ascend(self: &Rc<Self>, request: Ascend) -> Outcome<DeliveryAnswer> {
        Ok(DeliveryAnswer::Ascended(self.query(&self.owner, request.inode.slot(), &request)?))
    }

    /// Asks a file's home about the file, on this server or another.
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

    /// The same for a lane that is about to begin, which the home notes, and for which an empty file may be promoted.
    pub async fn begin_at_home(
        self: &Rc<Self>,
        request: BeginLane,
    ) -> Outcome<ramlace_wire::peer::InodeAnswer> {
        let slot = request.lane.inode.slot();
        if self.primary(slot)? == self.me {
            return self.begin_lane(request);
        }
        self.call_peer(slot, &request).await
    }

    pub async fn call_peer<R: Request>(self: &Rc<Self>, slot: Slot, request: &R) -> Outcome<R::Reply> {
        let map = self.membership.map()?;
        let target = self.primary(slot)?;
        self.peers.call(&map, target, request).await.map_err(Refusal::from)
    }

    /// Reports the outcome of a delivery to its slot. If even that finds no room in the log, the delivery
    /// stays open and is repeated.
    fn report(self: &Rc<Self>, slot: Slot, op: Op) {
        let command = Command { now: clock::now(), origin: Origin::Server, op };
        match self.submit(slot, command) {
            Err(error) if error.kind() != ErrorKind::NoSpace => crate::durable::fatal(&error),
            _ => {}
        }
    }

    /// Changes the queue of a server to which its task is delivering.
    fn with_queue(&self, target: ServerId, change: impl FnOnce(&mut Queue)) {
        change(self.deliveries.queues.borrow_mut().entry(target).or_default());
    }

    /// Whether deliveries to this server are pending because it does not answer.
    pub fn is_unreachable(&self, server: ServerId) -> bool {
        self.deliveries.queues.borrow().get(&server).is_some_and(|queue| queue.unreachable)
    }

    fn mark_reached(&self, target: ServerId) {
        if let Some(queue) = self.deliveries.queues.borrow_mut().get_mut(&target) {
            queue.unreachable = false;
        }
    }

    /// Operations that wait for this server continue without it.
    fn tell_unreachable(self: &Rc<Self>, target: ServerId) {
        let waiting: Vec<(Slot, DeliveryId)> = {
            let mut queues = self.deliveries.queues.borrow_mut();
            let Some(queue) = queues.get_mut(&target) else { return };
            if std::mem::replace(&mut queue.unreachable, true) {
                return;
            }
            queue.pending.iter().map(|pending| (pending.from, pending.id)).collect()
        };
        for (slot, delivery) in waiting {
            self.tell_waiting(slot, delivery);
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

/// Queues the deliveries among some effects, and spreads directories that have grown; returns the others.
pub fn send_deliveries(server: &Rc<Server>, effects: Vec<(Slot, Effect)>) -> Vec<Effect> {
    let (mut others, mut crowded) = (Vec::new(), Vec::new());
    for (slot, effect) in effects {
        match effect {
            Effect::Send { delivery, message } => server.send_delivery(slot, delivery, message),
            Effect::Crowded { directory } => crowded.push(directory),
            other => others.push(other),
        }
    }
    crowded.into_iter().for_each(|directory| server.spread(directory));
    others
}
