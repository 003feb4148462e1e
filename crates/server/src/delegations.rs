//! Delegations: one session answers for a slot, and sends what it has promised there later. Nobody else is answered out of
//! the slot before the holder has given it back, or was not heard in time: then what it had promised is refused.
//!
//! To whom a slot is delegated is part of its state and in the log: what a holder has promised outlives the server's process.

use std::rc::Rc;

use ramlace_base::{InodeId, Result, SessionId, Slot, limits};
use ramlace_namespace::{Command, Delegation, Op, Origin};
use ramlace_wire::delegation::Delegated;
use ramlace_wire::namespace::GetAttributes;
use ramlace_wire::{Credentials, FileKind};
use tokio::time::sleep_until;

use crate::clock;
use crate::server::Server;

impl Server {
    /// To whom a slot is delegated.
    pub fn delegation(&self, slot: Slot) -> Option<Delegation> {
        self.durable.borrow().names(slot)?.delegation()
    }

    fn delegation_of_another(&self, slot: Slot, session: SessionId) -> Option<Delegation> {
        self.delegation(slot).filter(|held| held.session != session)
    }

    /// Waits until a slot is delegated to nobody else than this session.
    pub async fn await_undelegated(self: &Rc<Self>, slot: Slot, session: SessionId) -> Result<()> {
        while let Some(held) = self.delegation_of_another(slot, session) {
            let until = self.delegations.want(slot, held, clock::instant());
            // Nothing else runs between the look and this: the server has one thread.
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

    /// Whoever did not give one slot back in time gives none: nobody waits for each.
    fn end_delegations_of(self: &Rc<Self>, session: SessionId) -> Result<()> {
        let held: Vec<(Slot, Delegation)> = {
            let durable = self.durable.borrow();
            let of_slots = durable.all_names().filter_map(|names| Some((names.slot(), names.delegation()?)));
            of_slots.filter(|(_, held)| held.session == session).collect()
        };
        held.into_iter().try_for_each(|(slot, held)| self.end_delegation(slot, held))
    }

    /// Once there is less room than holders may need, they are asked to give back.
    pub fn recall_without_room(&self, slot: Slot) {
        if let Some(held) = self.delegation(slot)
            && !self.has_room_for_delegations(self.delegations.count(), 8)
        {
            self.delegations.want(slot, held, clock::instant());
        }
    }

    /// A delegation ends.
    pub fn end_delegation(self: &Rc<Self>, slot: Slot, held: Delegation) -> Result<()> {
        if self.delegation(slot) != Some(held) {
            return Ok(());
        }
        self.submit_own(slot, Op::EndDelegation { number: held.number })?;
        self.delegations.is_over(slot, held);
        self.note_delegations(self.delegations.count().saturating_sub(1));
        Ok(())
    }

    /// The slot of a directory becomes, or stays, the session's alone, as far as nobody else has to do with it.
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
            // Without room in the log there is none.
            self.submit_own(slot, Op::Delegate { session }).ok()?;
            self.note_delegations(self.delegations.count() + 1);
        }
        let held = self.delegation(slot).filter(|held| held.session == session)?;
        let told = self.delegated(who, held, directory);
        if told.is_none() && before.is_none() {
            // Should this find no room, the holder is asked for it when somebody wants the slot.
            let _ = self.end_delegation(slot, held);
        }
        told
    }

    fn may_delegate(&self, session: SessionId, slot: Slot) -> bool {
        let durable = self.durable.borrow();
        let is_at_rest = durable.names(slot).is_some_and(|names| !names.is_operating());
        let leases = self.leases.leases.borrow();
        is_at_rest
            && leases.listens(session)
            && !leases.others_hold(slot, session, self.leases.now())
            && leases.newest_pending(slot).is_none()
            && !self.delegations.rests(slot, clock::instant())
    }

    /// What the holder of a delegation must know of a directory; nothing of one that is not all here.
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
        let is_told = info.attributes.kind == FileKind::Directory
            && names.has_all_names(directory)
            && info.attributes.size < limits::DELEGATED_ENTRIES_MAX;
        let next = names.next_inode();
        is_told.then(|| Delegated {
            number: held.number,
            directory: info,
            who: who.clone(),
            next,
            now: clock::now(),
        })
    }

    /// Whether what so many holders may promise still fits when it comes, with one part in so many of the store to spare.
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

    /// There are so many: what they may take is kept from lanes.
    fn note_delegations(&self, count: u64) {
        self.delegations.set_count(count);
        self.store.borrow().withhold(count * limits::DELEGATION_BYTES_WITHHELD);
    }

    /// What is withheld is for one of the slots that are delegated, or for none of them.
    pub fn withhold_from(&self, is_delegated: bool) {
        let all = self.delegations.count();
        if all == 0 {
            return;
        }
        let count = all.saturating_sub(u64::from(is_delegated));
        self.store.borrow().withhold(count * limits::DELEGATION_BYTES_WITHHELD);
    }

    /// Counts what the slots know of: after a start, and when a session has ended.
    pub fn count_delegations(&self) {
        let count = self.durable.borrow().all_names().filter(|names| names.delegation().is_some()).count();
        self.note_delegations(count as u64);
    }

    fn submit_own(self: &Rc<Self>, slot: Slot, op: Op) -> Result<()> {
        self.submit(slot, Command { now: clock::now(), origin: Origin::Server, op }).map(drop)
    }
}
