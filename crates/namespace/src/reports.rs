//! What became of errands.

use ramlace_base::{Error, ErrorKind, Redirect, Timestamp};
use ramlace_wire::ErrorBody;
use ramlace_wire::peer::{Part, Prepared};

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
            Ok(answer) => Report::Done(answer.clone()),
            Err(body) => {
                let error = body.clone().into_error();
                match error.kind() {
                    ErrorKind::Retry | ErrorKind::Redirect(Redirect::Moved) => Report::Again,
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

            (Errand::Prepare(message), Report::Done(ErrandAnswer::Prepared(answer))) => {
                self.part_held(message, answer, now, effects);
            }
            // What was lost with its server needs no leave: its entry may go.
            (Errand::Prepare(message), Report::Refused(why)) if is_lost(&message.part, why.kind()) => {
                self.part_held(message, Prepared::Ready, now, effects);
            }
            (Errand::Prepare(message), Report::Refused(why))
                if matches!(message.part, Part::MakeDirectory { .. }) =>
            {
                self.home_refused(message, why, now, effects);
            }
            (Errand::Prepare(message), Report::Unreachable(why) | Report::Refused(why)) => {
                self.question_failed(message.token, &why, now, effects);
            }
            (Errand::Ascend(message), Report::Done(ErrandAnswer::Ascended(answer))) => {
                self.ascended(message, answer, now, effects);
            }
            (Errand::Ascend(message), Report::Unreachable(why) | Report::Refused(why)) => {
                self.question_failed(message.token, &why, now, effects);
            }
            (Errand::Prepare(_) | Errand::Ascend(_), Report::Done(answer)) => {
                panic!("errand {} is answered with {answer:?}", errand.0);
            }

            (Errand::TrimLane(message), report) => {
                // Advice: when it cannot be given now, the next last close gives it again.
                self.outbox.remove(errand);
                let inode = self.inodes.get_mut(&message.lane.inode);
                if let (false, Some(Body::File(file))) = (done(&report), inode.map(|inode| &mut inode.body)) {
                    file.untrimmed = true;
                }
            }

            (Errand::FillLane(message), report) => {
                let refused = match report {
                    Report::Unreachable(_) => return self.fill_unreachable(message.lane.inode, effects),
                    Report::Refused(why) => Some(why),
                    _ => None,
                };
                self.fill_reported(errand, message.lane.inode, refused, effects);
            }
            (Errand::CutLane(message), report) => {
                if done(&report) {
                    self.outbox.remove(errand);
                }
                self.cut_reported(message.lane, done(&report), effects);
            }
            (Errand::Settle(message), report) if done(&report) => {
                self.outbox.remove(errand);
                self.settled(message, effects);
            }
            (Errand::DropLane(_), report) if done(&report) => self.outbox.remove(errand),
            // Still owed: it stays open until it is done.
            (Errand::Settle(_) | Errand::DropLane(_), _) => {}
        }
    }
}

/// Whether a refusal says that what the part is to take away, or to tell, was lost.
fn is_lost(part: &Part, why: ErrorKind) -> bool {
    match part {
        Part::SealDirectory { .. } | Part::LowerLinks { .. } => is_gone(why),
        Part::SealPartition { .. } | Part::SetPartition { .. } => {
            why == ErrorKind::Redirect(Redirect::Spread)
        }
        _ => false,
    }
}

/// Whether the errand has had its effect; what is gone needs none.
fn done(report: &Report) -> bool {
    match report {
        Report::Done(_) => true,
        Report::Refused(why) => is_gone(why.kind()),
        Report::Again | Report::Unreachable(_) => false,
    }
}

/// Whether an inode is not there, and never will be again.
fn is_gone(why: ErrorKind) -> bool {
    matches!(why, ErrorKind::Stale | ErrorKind::Lost)
}
