//! One server: values of slots in memory, and what outlives the process: snapshots, logs, and the bytes of lanes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ramlace_base::{LaneId, Position, SessionId, Slot};
use ramlace_lanes::StoreStep;
use ramlace_namespace::DeliveryId;
use ramlace_namespace::leases::{HOLD_MILLIS, Leases};
use ramlace_server::pure::{Acknowledged, Sessions};
use ramlace_slot::{Effects, SlotChange, SlotValue};
use ramlace_wire::peer::Token;

use super::Bug;
use super::gate::{Held, Listening};

/// What of a slot outlives the process.
#[derive(Default)]
pub struct Disk {
    snapshot: Option<Vec<u8>>,
    log: Vec<(Position, SlotChange)>,
}

#[derive(Default)]
pub struct Server {
    /// `None` while no process runs.
    pub slots: Option<BTreeMap<Slot, SlotValue>>,
    disk: BTreeMap<Slot, Disk>,
    /// How many processes there were.
    pub life: u64,
    /// Bytes of lanes.
    pub store: BTreeMap<LaneId, Vec<u8>>,
    /// Those that are open, and when each last sent something here; its own clock counts from when its process was there again.
    pub sessions: Sessions,
    pub heard: BTreeMap<SessionId, u64>,
    pub there_since: u64,
    /// When its process looks whether sessions are over.
    pub looks_at: u64,
    /// Sessions that have ended here.
    pub ended: BTreeSet<SessionId>,
    /// A client that tries to connect while no process runs is refused; else it waits, as by a supervisor that has the sockets.
    pub refuses: bool,
    /// Its process is stopped until then: what comes waits.
    pub stopped_until: u64,
    /// Changes of clients whose answers somebody waits for.
    pub waiting: BTreeSet<Token>,
    /// What this process knows that it has to deliver.
    pub pending: BTreeSet<(Slot, DeliveryId)>,
    /// Changes for which clients no longer wait, as this process knows.
    pub(super) acknowledged: Acknowledged,
    /// Of this process: leases, answers that wait, and requests for news by client.
    pub(super) leases: Leases,
    pub(super) gate: Vec<Held>,
    pub(super) listening: BTreeMap<usize, Listening>,
    /// When it looks next for which sessions it has waited long enough.
    pub(super) wakes_at: Option<u64>,
    /// A life has given leases: the next one knows that, and not on what.
    pub(super) had_given: bool,
    /// What the last life has given is over then.
    pub(super) quiet_until: u64,
    /// A record that was answered and not written: a bug.
    unwritten: Option<(Slot, Position, SlotChange)>,
    /// What the process was when it died.
    was: BTreeMap<Slot, SlotValue>,
}

impl Server {
    pub fn is_up(&self) -> bool {
        self.slots.is_some()
    }

    pub fn value(&self, slot: Slot) -> Option<&SlotValue> {
        self.slots.as_ref()?.get(&slot)
    }

    pub fn value_mut(&mut self, slot: Slot) -> &mut SlotValue {
        let slots = self.slots.as_mut().expect("a process runs");
        slots.entry(slot).or_insert_with(|| SlotValue::new(slot))
    }

    /// Logs a change, applies it, and does to the bytes of lanes what it says.
    pub fn commit(&mut self, slot: Slot, change: &SlotChange, bug: Bug) -> Effects {
        let position = self.value_mut(slot).position().next();
        if let Some((slot, position, change)) = self.unwritten.take() {
            self.disk.entry(slot).or_default().log.push((position, change));
        }
        if let Some(step) = change.frees() {
            self.perform(step);
        }
        if bug == Bug::AnswersBeforeTheLog {
            self.unwritten = Some((slot, position, change.clone()));
        } else {
            self.disk.entry(slot).or_default().log.push((position, change.clone()));
        }
        let effects = self.value_mut(slot).apply(change);
        if let Some(step) = effects.store {
            self.perform(step);
        }
        effects
    }

    fn perform(&mut self, step: StoreStep) {
        match step {
            StoreStep::Cut { lane, length } => {
                if let Some(bytes) = self.store.get_mut(&lane) {
                    bytes.truncate(length as usize);
                }
            }
            StoreStep::Remove { lane } => drop(self.store.remove(&lane)),
            StoreStep::Cell(_) => {}
        }
    }

    /// Writes one slot as it is now. Records before it go, or some of them: a snapshot may have been cut short.
    pub fn write_snapshot(&mut self, which: u64, keeps_log: bool, bug: Bug) {
        let Some(slots) = &self.slots else { return };
        let Some(value) = slots.values().nth(which as usize % slots.len().max(1)) else { return };
        let disk = self.disk.entry(value.slot()).or_default();
        let before = disk.snapshot.take();
        disk.snapshot = Some(postcard::to_stdvec(value).expect("every slot can be written"));
        if bug == Bug::SnapshotIsOld {
            disk.snapshot = before;
        }
        if !keeps_log {
            disk.log.retain(|(position, _)| *position > value.position());
        }
    }

    pub fn die(&mut self) {
        if let Some(slots) = self.slots.take() {
            self.was = slots;
            self.life += 1;
        }
        self.unwritten = None;
        self.acknowledged = Acknowledged::default();
        self.stopped_until = 0;
        self.pending.clear();
        self.waiting.clear();
        self.leases = Leases::default();
        self.gate.clear();
        self.wakes_at = None;
        self.listening.clear();
    }

    /// The process ends, and what it left behind goes, too.
    pub fn lose_store(&mut self) {
        self.die();
        self.disk.clear();
        self.store.clear();
        self.was.clear();
    }

    /// A new life: snapshots, and the records after them. How many records it took.
    ///
    /// # Errors
    /// The log does not fit, or the new life differs from the last.
    pub fn begin(&mut self, (now, instant): (u64, Instant), bug: Bug) -> Result<u64, String> {
        let (mut slots, mut replayed) = (BTreeMap::new(), 0);
        for (slot, disk) in &self.disk {
            let mut value = match &disk.snapshot {
                Some(bytes) => postcard::from_bytes(bytes).map_err(|error| format!("{slot}: {error}"))?,
                None => SlotValue::new(*slot),
            };
            for (position, change) in &disk.log {
                let next = value.position().next();
                if *position < next && bug != Bug::ReplaysWhatTheSnapshotHas {
                    continue;
                }
                if *position > next {
                    return Err(format!(
                        "{slot} has {}, and its log goes on with {position}",
                        value.position()
                    ));
                }
                value.apply(change);
                replayed += 1;
            }
            slots.insert(*slot, value);
        }
        for (slot, was) in self.was.iter().filter(|(_, was)| was.position() > Position(0)) {
            if slots.get(slot) != Some(was) {
                return Err(format!("{slot} is not what it was before its server died"));
            }
        }
        self.slots = Some(slots);
        self.there_since = now;
        self.sessions.note_all_alive(instant);
        self.quiet_until = if self.had_given { now + HOLD_MILLIS } else { now };
        Ok(replayed)
    }
}
