//! Locks of files: whoever asks gets one, and may not be told.

use ramlace_base::ServerId;
use ramlace_wire::locks::{CancelLock, LockAnswer, LockOutcome, LockedFile, SetLock};
use ramlace_wire::{Header, Kind, decode_body};

use super::{Done, State, body};

impl State {
    /// Answers requests about locks.
    pub(super) fn locks(&mut self, id: ServerId, header: &Header, bytes: &[u8]) -> Done {
        let (inode, outcome) = if header.kind == Kind::SetLock {
            let request = decode_body::<SetLock>(header.kind, bytes)?;
            self.locks.retain(|_, held| request.kind.is_some() || held.inode != request.inode);
            if request.settled_below > request.number && request.kind.is_some() {
                self.misuses.push(format!("{request:?} is settled"));
            }
            if request.kind.is_some() {
                self.locks.insert(request.number, request);
            }
            let is_queued = request.waits && self.locks_queue;
            (request.inode, if is_queued { LockOutcome::Queued } else { LockOutcome::Granted })
        } else {
            let request = decode_body::<CancelLock>(header.kind, bytes)?;
            let held = self.locks.contains_key(&request.number);
            if request.take_back {
                self.locks.remove(&request.number);
            }
            let kept = held && !request.take_back;
            (request.inode, if kept { LockOutcome::Granted } else { LockOutcome::Refused })
        };
        let attributes = &self.inode(id, inode)?.info.attributes;
        let (size, generation, changed) = (attributes.size, attributes.generation, attributes.changed);
        let file = LockedFile { size, generation, changed, may_change_unnoticed: false };
        body(&LockAnswer { outcome, file })
    }
}
