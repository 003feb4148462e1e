//! Delegations: one session answers for a slot, and sends what it has promised there later. No other request
//! to the slot is answered before the holder has given it back, or its time to do so is over: then what it
//! had promised is refused.
//!
//! The delegation is part of the slot's state and in the log: a holder's promises survive a restart of the
//! server.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, InodeId, Result, Sequence, SessionId, Slot, limits};
use ramlace_namespace::{Command, Delegation, Op, Origin, SlotState};
use ramlace_wire::delegation::Delegated;
use ramlace_wire::namespace::GetAttributes;
use ramlace_wire::{Credentials, FileKind};
use tokio::time::{sleep_until, timeout};

use crate::clock;
use crate::server::Server;

/// How long a peer waits for an answer here: less than it waits for this server at all.
const PEER_WAIT_MAX: Duration = Duration::from_millis(1_000);

impl Server {
    /// The delegation of a slot, if there is one.
    pub fn delegation(&self, slot: Slot) -> Option<Delegation> {
        self.durable.borrow().names(slot)?.delegation()
    }

    fn delegation_of_another(&self, slot: Slot, session: SessionId) -> Option<Delegation> {
        self.delegation(slot).filter(|held| held.session != session)
    }

    /// Waits until a slot is not delegated to any other session.
    pub async fn await_undelegated(self: &Rc<Self>, slot: Slot, session: SessionId) -> Result<()> {
        while let Some(held) = self.delegation_of_another(slot, session) {
            let until = self.delegations.want(slot, held, clock::instant());
            // Nothing else runs between the check and this: the server has one thread.
            tokio::select! {
                () = self.delegations.changed.notified() => {}
                () = sleep_until(until.into()) => {
                    eprintln!(
                        "ramlace: session {} did not give {slot} back in time: what it has promised there is refused",
                        held.session
                    );
                    self.end_delegations_of(held.session)?;
                }
            }
        }
        Ok(())
    }

    /// The same for another server, which must not take this one for dead meanwhile: what it delivers comes again.
    pub async fn await_undelegated_for_peer(self: &Rc<Self>, slot: Slot) -> Result<()> {
        let waited = timeout(PEER_WAIT_MAX, self.await_undelegated(slot, SessionId::NONE)).await;
        let text = || format!("{slot} is delegated to a client, which is asked to give it back");
        waited.unwrap_or_else(|_| Err(Error::new(ErrorKind::Retry, text())))
    }

    /// A session that did not give one slot back in time loses all, so that others need not wait for each of
    /// them.
    fn end_delegations_of(self: &Rc<Self>, session: SessionId) -> Result<()> {
        let held: Vec<(Slot, Delegation)> = {
            let durable = self.durable.borrow();
            let of_slots = durable.all_names().filter_map(|names| Some((names.slot(), names.delegation()?)));
            of_slots.filter(|(_, held)| held.session == session).collect()
        };
        held.into_iter().try_for_each(|(slot, held)| self.end_delegation(slot, held, Sequence(0)))
    }

    /// If there is less room, or there are fewer numbers, than holders may need, asks them to give their slots back.
    pub fn recall_without_room(&self, slot: Slot) {
        let has_numbers =
            self.durable.borrow().names(slot).is_none_or(|names| names.has_numbers_for_promises(2));
        if let Some(held) = self.delegation(slot)
            && !(has_numbers && self.has_room_for_delegations(self.delegations.count(), 8))
        {
            self.delegations.want(slot, held, clock::instant());
        }
    }

    /// Ends a delegation, whose holder has the answers of its changes below a number.
    pub fn end_delegation(
        self: &Rc<Self>,
        slot: Slot,
        held: Delegation,
        acknowledged_below: Sequence,
    ) -> Result<()> {
        if self.delegation(slot) != Some(held) {
            return Ok(());
        }
        self.submit_own(slot, Op::EndDelegation { number: held.number, acknowledged_below })?;
        self.delegations.is_over(slot, held);
        self.note_delegations(self.delegations.count().saturating_sub(1));
        Ok(())
    }

    /// Delegates the slot of a directory to a session, or keeps it so, if no other session is involved.
    pub fn delegate(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        directory: InodeId,
    ) -> Option<Delegated> {
        let slot = directory.slot();
        let before = self.delegation(slot);
        if before.is_none() {
            if !self.may_delegate(session, slot)
                || !self.has_room_for_delegations(self.delegations.count() + 1, 4)
            {
                return None;
            }
            // Without room in the log it is not delegated.
            self.submit_own(slot, Op::Delegate { session }).ok()?;
            self.note_delegations(self.delegations.count() + 1);
        }
        let held = self.delegation(slot).filter(|held| held.session == session)?;
        let delegated = self.delegated(who, held, directory);
        if delegated.is_none() && before.is_none() {
            // If this finds no room in the log, the slot is recalled when another session wants it.
            let _ = self.end_delegation(slot, held, Sequence(0));
        }
        delegated
    }

    fn may_delegate(&self, session: SessionId, slot: Slot) -> bool {
        let durable = self.durable.borrow();
        let is_at_rest = durable.names(slot).is_some_and(SlotState::may_be_delegated);
        let leases = self.leases.leases.borrow();
        is_at_rest
            && leases.listens(session)
            && !leases.others_hold(slot, session, self.leases.now())
            && leases.newest_pending(slot).is_none()
            && !self.delegations.rests(slot, clock::instant())
    }

    /// What the holder of a delegation must know of a directory; `None` for one that is not all here.
    fn delegated(
        self: &Rc<Self>,
        who: &Credentials,
        held: Delegation,
        directory: InodeId,
    ) -> Option<Delegated> {
        let slot = directory.slot();
        let info = self.query(who, slot, &GetAttributes { inode: directory }).ok()?;
        let durable = self.durable.borrow();
        let names = durable.names(slot)?;
        let fits = info.attributes.kind == FileKind::Directory
            && names.has_all_names(directory)
            && info.attributes.size < limits::DELEGATED_ENTRIES_MAX;
        let next = names.next_inode();
        fits.then(|| Delegated {
            number: held.number,
            directory: info,
            who: who.clone(),
            next,
            now: clock::now(),
        })
    }

    /// Whether the store has room for everything that this many holders may promise, and 1/`part` of its size to
    /// spare.
    fn has_room_for_delegations(&self, count: u64, part: u64) -> bool {
        let usage = self.store.borrow().usage();
        let inodes_max = self.config.options.inodes_max;
        let inodes = count * limits::CHANGES_PER_MESSAGE_MAX as u64;
        let bytes = count * limits::DELEGATION_BYTES_WITHHELD;
        count <= limits::DELEGATIONS_PER_SERVER_MAX as u64
            && inodes <= inodes_max / limits::DELEGATIONS_FRACTION
            && bytes <= usage.size_bytes / limits::DELEGATIONS_FRACTION
            && usage.free_for_lanes_bytes >= usage.size_bytes / part
            && self.durable.borrow().inodes() + inodes <= inodes_max - inodes_max / part
            && self.has_inline_room()
    }

    /// Sets the number of delegations: what they may take is kept from lanes.
    fn note_delegations(&self, count: u64) {
        self.delegations.set_count(count);
        self.store.borrow().withhold(count * limits::DELEGATION_BYTES_WITHHELD);
    }

    /// Chooses from which requests reserved room is withheld: from those for one of the delegated slots, or from others.
    pub fn withhold_from(&self, is_delegated: bool) {
        let all = self.delegations.count();
        if all == 0 {
            return;
        }
        let count = all.saturating_sub(u64::from(is_delegated));
        self.store.borrow().withhold(count * limits::DELEGATION_BYTES_WITHHELD);
    }

    /// Counts the slots' delegations anew: after a start, and when a session has ended.
    pub fn count_delegations(&self) {
        let count = self.durable.borrow().all_names().filter(|names| names.delegation().is_some()).count();
        self.note_delegations(count as u64);
    }

    fn submit_own(self: &Rc<Self>, slot: Slot, op: Op) -> Result<()> {
        self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op }).map(drop)
    }
}
