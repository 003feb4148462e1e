//! What became of errands.

use ramlace_base::{Error, ErrorKind, Timestamp};
use ramlace_wire::ErrorBody;

use crate::command::{Effect, Errand, ErrandAnswer, ErrandId};
use crate::inode::Body;
use crate::state::SlotState;

/// What an answer means to whoever sent the errand.
enum Report {
    /// It has had its effect, or there is nothing left on which it could have one.
    Done(ErrandAnswer),
    /// Deliver it again after a pause.
    Again,
    /// It cannot be delivered now.
    Unreachable(Error),
    /// It was refused.
    Refused(Error),
}

impl SlotState {
    pub(crate) fn errand_done(
        &mut self,
        errand: ErrandId,
        result: &Result<ErrandAnswer, ErrorBody>,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let report = match result {
            Ok(answer) => Report::Done(*answer),
            Err(body) => {
                let error = body.clone().into_error();
                match error.kind() {
                    ErrorKind::Retry | ErrorKind::Moved => Report::Again,
                    ErrorKind::HostDown | ErrorKind::TimedOut => Report::Unreachable(error),
                    _ => Report::Refused(error),
                }
            }
        };
        self.errand_reported(errand, report, now, effects);
    }

    pub(crate) fn errand_unreachable(&mut self, errand: ErrandId, now: Timestamp, effects: &mut Vec<Effect>) {
        let error = Error::new(ErrorKind::HostDown, "its server does not answer");
        self.errand_reported(errand, Report::Unreachable(error), now, effects);
    }

    fn errand_reported(
        &mut self,
        errand: ErrandId,
        report: Report,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(message) = self.outbox.get(errand).cloned() else {
            return; // Answered before, or replaced.
        };
        match (&message, report) {
            (_, Report::Again) => {}

            (Errand::PrepareDirectory(message), Report::Done(ErrandAnswer::Prepared(made))) => {
                self.directory_prepared(message, made.inode, now, effects);
            }
            (Errand::PrepareDirectory(_), Report::Done(ErrandAnswer::Done)) => {
                panic!("errand {} asked for a directory and was answered without one", errand.0);
            }
            (Errand::PrepareDirectory(message), Report::Unreachable(why) | Report::Refused(why)) => {
                self.abort_make(message, why, effects);
            }

            (Errand::SealDirectory(message), Report::Done(_)) => {
                self.directory_sealed(message, now, effects);
            }
            // The directory was lost with its server: its entry may go.
            (Errand::SealDirectory(message), Report::Refused(why)) if why.kind() == ErrorKind::Stale => {
                self.directory_sealed(message, now, effects);
            }
            (Errand::SealDirectory(message), Report::Unreachable(why) | Report::Refused(why)) => {
                self.abort_remove(message, why, effects);
            }

            (Errand::TrimLane(message), report) => {
                // Advice: when it cannot be given now, the next last close gives it again.
                self.outbox.remove(errand);
                let inode = self.inodes.get_mut(&message.lane.inode);
                if let (false, Some(Body::File(file))) = (done(&report), inode.map(|inode| &mut inode.body)) {
                    file.grown = true;
                }
            }

            (Errand::CutLane(message), report) => {
                if done(&report) {
                    self.outbox.remove(errand);
                }
                self.cut_reported(message.lane, done(&report), effects);
            }
            (Errand::SettleDirectory(message), report) if done(&report) => {
                self.outbox.remove(errand);
                self.settled(message.slot, message.stamp);
            }
            (Errand::SettleSeal(message), report) if done(&report) => {
                self.outbox.remove(errand);
                self.settled(message.inode.slot(), message.stamp);
            }
            (Errand::DropLane(_), report) if done(&report) => self.outbox.remove(errand),
            // Still owed: it stays open until it is done.
            (Errand::SettleDirectory(_) | Errand::SettleSeal(_) | Errand::DropLane(_), _) => {}
        }
    }
}

/// Whether the errand has had its effect; what is gone needs none.
fn done(report: &Report) -> bool {
    match report {
        Report::Done(_) => true,
        Report::Refused(why) => why.kind() == ErrorKind::Stale,
        Report::Again | Report::Unreachable(_) => false,
    }
}
