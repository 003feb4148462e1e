//! Operations across two slots, at the slot that is asked: the second half of mkdir and rmdir.
//!
//! Messages may come twice, late, and out of order. What has happened to each numbered operation
//! is remembered until its coordinator says that it is settled on both sides (`open_from`); what
//! is older than that is a late duplicate and changes nothing.

use std::collections::BTreeMap;

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_wire::peer::{
    DirectoryPrepared, IntentStamp, PrepareDirectory, SealDirectory, SettleDirectory, SettleSeal,
};
use serde::{Deserialize, Serialize};

use crate::command::{Effect, ErrandAnswer, Op};
use crate::directory::Phase;
use crate::inode::Body;
use crate::intent::prepared_inode;
use crate::state::SlotState;

/// What a slot remembers of another that coordinated operations with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Coordinator {
    /// Every operation below is settled.
    settled_below: u64,
    halves: BTreeMap<u64, Half>,
}

/// What has happened here to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Half {
    /// mkdir: the inode is made.
    Prepared(InodeId),
    /// rmdir: the directory takes no entries.
    Sealed(InodeId),
    /// It is decided.
    Settled,
}

impl SlotState {
    pub(crate) fn peer_step(&mut self, op: &Op, effects: &mut Vec<Effect>) -> Result<ErrandAnswer> {
        match op {
            Op::PrepareDirectory(message) => self.prepare_directory(message),
            Op::SettleDirectory(message) => self.settle_directory(*message),
            Op::SealDirectory(message) => self.seal_directory(*message),
            Op::SettleSeal(message) => self.settle_sealed(*message, effects),
            other => panic!("{other:?} does not come from a peer"),
        }
    }

    /// What is known of an operation; an error when it is a late duplicate of a settled one.
    fn half(&mut self, stamp: IntentStamp) -> Result<Option<Half>> {
        self.forget_settled(stamp);
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        let half = coordinator.halves.get(&stamp.number).copied();
        if stamp.number < coordinator.settled_below || half == Some(Half::Settled) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("operation {} of {} is settled already", stamp.number, stamp.coordinator),
            ));
        }
        Ok(half)
    }

    fn set_half(&mut self, stamp: IntentStamp, half: Half) {
        self.coordinators.entry(stamp.coordinator).or_default().halves.insert(stamp.number, half);
    }

    /// Forgets what the coordinator knows to be settled. What it does not even remember, because
    /// it was lost and began anew with larger numbers, is aborted.
    fn forget_settled(&mut self, stamp: IntentStamp) {
        let coordinator = self.coordinators.entry(stamp.coordinator).or_default();
        if stamp.open_from <= coordinator.settled_below {
            return;
        }
        coordinator.settled_below = stamp.open_from;
        let open = coordinator.halves.split_off(&stamp.open_from);
        for half in std::mem::replace(&mut coordinator.halves, open).into_values() {
            match half {
                Half::Prepared(inode) => _ = self.inodes.remove(&inode),
                Half::Sealed(inode) => self.set_phase(inode, Phase::Live),
                Half::Settled => {}
            }
        }
    }

    fn set_phase(&mut self, inode: InodeId, phase: Phase) {
        if let Some(Body::Directory(directory)) = self.inodes.get_mut(&inode).map(|inode| &mut inode.body) {
            directory.phase = phase;
        }
    }

    fn prepare_directory(&mut self, message: &PrepareDirectory) -> Result<ErrandAnswer> {
        assert!(message.slot == self.slot, "a directory for {} was sent to {}", message.slot, self.slot);
        let inode = match self.half(message.stamp)? {
            Some(Half::Prepared(inode)) => inode,
            _ => {
                let inode = self.allocate()?;
                self.inodes.insert(inode, Box::new(prepared_inode(message)));
                self.set_half(message.stamp, Half::Prepared(inode));
                inode
            }
        };
        Ok(ErrandAnswer::Prepared(DirectoryPrepared { inode }))
    }

    fn settle_directory(&mut self, message: SettleDirectory) -> Result<ErrandAnswer> {
        assert!(message.slot == self.slot, "a directory of {} was settled in {}", message.slot, self.slot);
        let Ok(half) = self.half(message.stamp) else { return Ok(ErrandAnswer::Done) };
        match half {
            Some(Half::Prepared(inode)) if message.keep => self.set_phase(inode, Phase::Live),
            Some(Half::Prepared(inode)) => _ = self.inodes.remove(&inode),
            _ => {}
        }
        self.set_half(message.stamp, Half::Settled);
        Ok(ErrandAnswer::Done)
    }

    fn seal_directory(&mut self, message: SealDirectory) -> Result<ErrandAnswer> {
        self.assert_mine(message.inode);
        if self.half(message.stamp)? == Some(Half::Sealed(message.inode)) {
            return Ok(ErrandAnswer::Done);
        }
        let gone = || Error::new(ErrorKind::Stale, format!("directory {} is gone", message.inode));
        let directory = self.inode(message.inode)?.directory(message.inode)?;
        match directory.phase {
            Phase::Live if directory.entries.is_empty() && directory.busy.is_empty() => {}
            Phase::Live => {
                return Err(Error::new(
                    ErrorKind::NotEmpty,
                    format!(
                        "it still has {} entries, and {} are just being made",
                        directory.entries.len(),
                        directory.busy.len()
                    ),
                ));
            }
            // Sealed by another rmdir, whose end has not been heard of yet.
            Phase::Prepared | Phase::Sealed => {
                return directory.check_live(message.inode).map(|()| ErrandAnswer::Done);
            }
            Phase::Removed => return Err(gone()),
        }
        self.set_phase(message.inode, Phase::Sealed);
        self.set_half(message.stamp, Half::Sealed(message.inode));
        Ok(ErrandAnswer::Done)
    }

    fn settle_sealed(&mut self, message: SettleSeal, effects: &mut Vec<Effect>) -> Result<ErrandAnswer> {
        self.assert_mine(message.inode);
        let Ok(half) = self.half(message.stamp) else { return Ok(ErrandAnswer::Done) };
        match half {
            Some(Half::Sealed(inode)) if message.remove => {
                self.set_phase(inode, Phase::Removed);
                self.inode_mut(inode)?.links = 0;
                self.retire_if_unused(inode, effects);
            }
            Some(Half::Sealed(inode)) => self.set_phase(inode, Phase::Live),
            _ => {}
        }
        self.set_half(message.stamp, Half::Settled);
        Ok(ErrandAnswer::Done)
    }
}
