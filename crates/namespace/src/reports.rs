//! The outcomes of deliveries.

use ramlace_base::{Error, ErrorKind, Redirect, Timestamp};
use ramlace_wire::ErrorBody;
use ramlace_wire::peer::{Part, Prepared};

use crate::command::{Delivery, DeliveryAnswer, DeliveryId, Effect};
use crate::state::SlotState;
use crate::state::inode::Body;

/// The meaning of an answer for the sender of the delivery.
enum Report {
    /// It has had its effect, or there is nothing left on which it could have one.
    Done(DeliveryAnswer),
    /// Deliver it again after a pause.
    Again,
    /// It cannot be delivered now.
    Unreachable(Error),
    /// It was refused.
    Refused(Error),
}

impl SlotState {
    /// Whether a caller waits for the delivery, or it is cancelled when it cannot be delivered: only then does
    /// a `DeliveryUnreachable` change anything.
    #[must_use]
    pub fn is_awaited(&self, delivery: DeliveryId) -> bool {
        match self.outbox.get(delivery) {
            Some(Delivery::Prepare(_) | Delivery::Ascend(_) | Delivery::FillLane(_)) => true,
            Some(Delivery::TrimLane(message)) => message.passthroughs_over == 0,
            Some(Delivery::CutLane(message)) => self.cut_is_awaited(message.lane),
            Some(Delivery::Decide(_) | Delivery::DropLane(_)) | None => false,
        }
    }

    pub(crate) fn delivery_done(
        &mut self,
        delivery: DeliveryId,
        result: &Result<DeliveryAnswer, ErrorBody>,
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
        self.delivery_reported(delivery, report, now, effects);
    }

    pub(crate) fn delivery_unreachable(
        &mut self,
        delivery: DeliveryId,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let error = Error::new(ErrorKind::HostDown, "its server does not answer");
        self.delivery_reported(delivery, Report::Unreachable(error), now, effects);
    }

    fn delivery_reported(
        &mut self,
        delivery: DeliveryId,
        report: Report,
        now: Timestamp,
        effects: &mut Vec<Effect>,
    ) {
        let Some(message) = self.outbox.get(delivery).cloned() else {
            return; // Answered before, or replaced.
        };
        match (&message, report) {
            (_, Report::Again) => {}

            (Delivery::Prepare(message), Report::Done(DeliveryAnswer::Prepared(answer))) => {
                self.part_held(message, answer, now, effects);
            }
            // An inode that was lost with its server needs no permission: its entry may be removed.
            (Delivery::Prepare(message), Report::Refused(why)) if is_lost(&message.part, why.kind()) => {
                self.part_held(message, Prepared::Ready, now, effects);
            }
            (Delivery::Prepare(message), Report::Refused(why))
                if matches!(message.part, Part::MakeDirectory { .. }) =>
            {
                self.home_refused(message, why, now, effects);
            }
            (Delivery::Prepare(message), Report::Unreachable(why) | Report::Refused(why)) => {
                self.request_failed(message.token, &why, now, effects);
            }
            (Delivery::Ascend(message), Report::Done(DeliveryAnswer::Ascended(answer))) => {
                self.ascended(message, answer, now, effects);
            }
            (Delivery::Ascend(message), Report::Unreachable(why) | Report::Refused(why)) => {
                self.request_failed(message.token, &why, now, effects);
            }
            (Delivery::Prepare(_) | Delivery::Ascend(_), Report::Done(answer)) => {
                panic!("delivery {} is answered with {answer:?}", delivery.0);
            }

            (Delivery::TrimLane(message), report) => {
                let inode = self.inodes.get_mut(&message.lane.inode);
                if message.passthroughs_over > 0 && inode.is_some() && !done(&report) {
                    // Nobody else tells the lane that no kernel has it any more: it stays open until it is done.
                    return;
                }
                // Advice: when it cannot be given now, the next last close gives it again.
                self.outbox.remove(delivery);
                if let (false, Some(Body::File(file))) = (done(&report), inode.map(|inode| &mut inode.body)) {
                    file.untrimmed = true;
                }
            }

            (Delivery::FillLane(message), report) => {
                let refused = match report {
                    Report::Unreachable(_) => return self.promotion_unreachable(message.lane.inode, effects),
                    Report::Refused(why) => Some(why),
                    _ => None,
                };
                self.promotion_reported(delivery, message.lane.inode, refused, effects);
            }
            (Delivery::CutLane(message), report) => {
                if done(&report) {
                    self.outbox.remove(delivery);
                }
                self.cut_reported(message.lane, done(&report), effects);
            }
            (Delivery::Decide(message), report) if done(&report) => {
                self.outbox.remove(delivery);
                self.decision_acknowledged(message, effects);
            }
            (Delivery::DropLane(_), report) if done(&report) => self.outbox.remove(delivery),
            // Still pending: it stays open until it is done.
            (Delivery::Decide(_) | Delivery::DropLane(_), _) => {}
        }
    }
}

/// Whether a refusal means that the inode to be removed, or notified, was lost.
fn is_lost(part: &Part, why: ErrorKind) -> bool {
    match part {
        Part::SealDirectory { .. } | Part::LowerLinks { .. } => is_gone(why),
        Part::SealPartition { .. } | Part::SetPartition { .. } => {
            why == ErrorKind::Redirect(Redirect::Spread)
        }
        _ => false,
    }
}

/// Whether the delivery has had its effect; an inode that is gone needs none.
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
