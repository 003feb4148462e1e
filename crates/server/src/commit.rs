//! The only way to change a server's state: a record is logged and applied, and its effects are started.
//!
//! Invariant: a client learns of a mutation only after its record is in the log.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Epoch, Error, ErrorKind, Result, SessionId, Slot, limits};
use ramlace_namespace::{Command, DeliveryAnswer, Effect, Op, Origin, Repeated, Reply, Room};
use ramlace_slot::{SlotBirth, SlotChange};
use ramlace_wire::locks::Event;
use ramlace_wire::peer::Token;
use tokio::sync::oneshot;

use crate::clock;
use crate::deliveries::send_deliveries;
use crate::durable::Effects;
use crate::record::Record;
use crate::server::Server;
use crate::server::watched::Watched;

/// What the answer to a cancelled change takes, and that it is refused from now on: acknowledging more than this makes room. A change that
/// was answered is cancelled in any case: its own answer is what keeps others from being acknowledged.
const CANCELLED_BYTES: u64 = 256;
/// The pause before slots that were lost are handled again, if there was no room for it.
const NOTICE_PAUSE: Duration = Duration::from_millis(100);

impl Server {
    /// Logs a record, applies it, and starts its effects.
    pub fn commit(self: &Rc<Self>, record: &Record) -> Result<Vec<Effect>> {
        let watched = self.watched_by(record);
        let (at, effects) = {
            let mut store = self.store.borrow_mut();
            self.durable.borrow_mut().commit(&mut store, record, clock::instant())?
        };
        tracing::trace!(target: "ramlace::server", place = ?at.place, position = at.position.0, "commits");
        Ok(self.follow(&watched, effects))
    }

    /// Logs a record about the server alone: it has no effects.
    pub fn commit_own(&self, record: &Record) -> Result<()> {
        let committed = {
            let mut store = self.store.borrow_mut();
            self.durable.borrow_mut().commit(&mut store, record, clock::instant())
        };
        committed.map_err(|error| error.context(self.me))?;
        if self.durable.borrow().snapshot.is_some() {
            self.snapshot_began.notify_one();
        }
        Ok(())
    }

    /// Logs the end of a session, and starts its effects.
    pub fn commit_session_end(self: &Rc<Self>, session: SessionId) -> Result<()> {
        let watched = self.watched_by_all();
        let effects = {
            let mut store = self.store.borrow_mut();
            self.durable.borrow_mut().end_session(&mut store, session, clock::now(), clock::instant())?
        };
        self.follow(&watched, effects);
        Ok(())
    }

    /// Starts the effects of records; returns those that are not handled here.
    fn follow(self: &Rc<Self>, watched: &Watched, effects: Effects) -> Vec<Effect> {
        if self.durable.borrow().snapshot.is_some() {
            self.snapshot_began.notify_one();
        }
        self.note_homes(watched);
        for (slot, effect) in effects.lanes {
            self.note_effect(slot, effect);
        }
        let mut others = send_deliveries(self, effects.names);
        self.forget_knowers(&mut others);
        others.retain(|effect| {
            !self.leases.note(effect) && !self.answer_waiting(effect) && !self.tell_event(effect)
        });
        others
    }

    /// A session counts as knowing its own change only while it waits for the reply. If it no longer waits,
    /// it may have read the state from before the change, so it has to get recalls.
    fn forget_knowers(&self, effects: &mut [Effect]) {
        let waiting = self.waiting.borrow();
        let gone = |effect: &Effect| match effect {
            Effect::Reply { token, .. } if waiting.get(token).is_none_or(oneshot::Sender::is_closed) => {
                Some(token.session)
            }
            _ => None,
        };
        let gone: Vec<SessionId> = effects.iter().filter_map(gone).collect();
        for effect in effects {
            if let Effect::Changed { knows, .. } = effect {
                *knows = knows.filter(|session| !gone.contains(session));
            }
        }
    }

    /// Submits a command to a slot. A peer's command is answered at once; a client's answer goes to the
    /// request that waits for its token.
    pub fn submit(self: &Rc<Self>, slot: Slot, command: Command) -> Result<Option<Result<DeliveryAnswer>>> {
        self.ensure_slot(slot)?;
        // Room is reserved for what is promised under delegations.
        let promised = self.delegations.count() * limits::CHANGES_PER_MESSAGE_MAX as u64;
        let is_delegated = self.delegation(slot).is_some();
        let kept = if is_delegated {
            promised.saturating_sub(limits::CHANGES_PER_MESSAGE_MAX as u64)
        } else {
            promised
        };
        let full = self.durable.borrow().inodes().saturating_add(kept) >= self.config.options.inodes_max;
        let room = if full { Room::None } else { Room::ForInodes };
        self.withhold_from(is_delegated);
        let committed = self.commit(&Record::command(slot, command, room));
        self.withhold_from(false);
        let effects = committed?;
        Ok(effects.into_iter().find_map(|effect| match effect {
            Effect::PeerReply(outcome) => Some(outcome),
            _ => None,
        }))
    }

    /// Submits a client's command to a slot and waits for its answer, which may depend on other slots.
    pub async fn mutate(self: &Rc<Self>, slot: Slot, token: Token, command: Command) -> Result<Reply> {
        self.check_session(token.session)?;
        self.check_kept(slot, token, &command)?;
        let (sender, receiver) = oneshot::channel();
        // A retry replaces its first attempt, whose connection is gone.
        self.waiting.borrow_mut().insert(token, sender);
        if let Err(error) = self.submit(slot, command) {
            match self.without_record(slot, token, &error) {
                Some(Repeated::Waits) => {}
                Some(Repeated::Answered(outcome)) => {
                    self.waiting.borrow_mut().remove(&token);
                    return outcome;
                }
                None => {
                    self.waiting.borrow_mut().remove(&token);
                    return Err(error);
                }
            }
        }
        let superseded = || Error::new(ErrorKind::Retry, "a later attempt of the same request took over");
        receiver.await.unwrap_or_else(|_| Err(superseded()))
    }

    /// What a repetition comes to whose record has found no room: the log would have got no more by it than which answers its
    /// session has, and that comes again with the next change.
    fn without_record(&self, slot: Slot, token: Token, error: &Error) -> Option<Repeated> {
        let is_full = error.kind() == ErrorKind::NoSpace;
        self.durable.borrow().names(slot).filter(|_| is_full)?.repeated(token)
    }

    /// Refuses one more mutation of a session with too many unacknowledged replies.
    fn check_kept(&self, slot: Slot, token: Token, command: &Command) -> Result<()> {
        let Origin::Client { acknowledged_below, .. } = command.origin else { return Ok(()) };
        let durable = self.durable.borrow();
        match durable.names(slot) {
            // A repetition is answered from the kept reply.
            Some(state) if state.has_met(token) => Ok(()),
            Some(state) => {
                let acknowledged = state.kept_below(token.session, acknowledged_below);
                // A client that acknowledges much sends this.
                let makes_room = match &command.op {
                    Op::CancelChange(request) => {
                        let sequence = request.sequence;
                        let is_answered =
                            sequence < acknowledged_below || state.has_answered(Token { sequence, ..token });
                        is_answered || acknowledged > CANCELLED_BYTES
                    }
                    _ => false,
                };
                if makes_room { Ok(()) } else { durable.kept.check(token.session, acknowledged) }
            }
            None => durable.kept.check(token.session, 0),
        }
    }

    fn answer_waiting(&self, effect: &Effect) -> bool {
        let Effect::Reply { token, outcome } = effect else { return false };
        if let Some(sender) = self.waiting.borrow_mut().remove(token) {
            // The requester may be gone; a retry finds the answer in the slot's reply cache.
            let _ = sender.send(outcome.clone());
        }
        true
    }

    fn tell_event(&self, effect: &Effect) -> bool {
        let (session, event) = match *effect {
            Effect::LockGranted { session, inode, wait, file } => {
                (session, Event::LockGranted { inode, wait, file })
            }
            Effect::BarrierPassed { session, wait, round } => (session, Event::BarrierPassed { wait, round }),
            _ => return false,
        };
        self.events.push(session, event);
        true
    }

    /// To be called when the map has changed: drops what is held for slots that have moved away.
    pub fn notice_lost_slots(self: &Rc<Self>) -> Result<()> {
        let map = self.membership.map()?;
        let waits = self.notices_again.get().is_some_and(|at| clock::instant() < at);
        if self.noticed.get() == map.epoch || waits {
            return Ok(());
        }
        let began = |slot| map.chain(slot).map_or(map.epoch, |chain| chain.complete_since);
        let lost: Vec<(Slot, Slot, Epoch)> = self
            .durable
            .borrow()
            .all_names()
            .flat_map(|state| {
                state.lost_coordinators(began).into_iter().map(|(lost, began)| (state.slot(), lost, began))
            })
            .collect();
        self.count_delegations();
        for (slot, coordinator, began) in lost {
            let op = Op::CoordinatorLost { coordinator, began };
            match self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op }) {
                // Not even what ends something has room: others go on, and it is tried again.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    self.notices_again.set(Some(clock::instant() + NOTICE_PAUSE));
                    return Ok(());
                }
                submitted => submitted?,
            };
        }
        self.noticed.set(map.epoch);
        self.notices_again.set(None);
        Ok(())
    }

    /// A slot's state is created when something first happens in it.
    pub fn ensure_slot(self: &Rc<Self>, slot: Slot) -> Result<()> {
        if self.durable.borrow().names(slot).is_some() {
            return Ok(());
        }
        let map = self.membership.map()?;
        let chain = map
            .chain(slot)
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("this pool has no {slot}")))?;
        let birth = SlotBirth {
            slots: map.slots(),
            began: chain.complete_since,
            hash_seed: map.hash_seed,
            owner: self.owner.owner(),
            now: clock::now(),
        };
        self.commit(&Record::Slot { slot, change: SlotChange::Born(birth) }).map(drop)
    }
}
