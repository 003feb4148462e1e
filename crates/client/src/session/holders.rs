//! Answers that wait for machines whose kernels have the bytes: they may take longer than any other call.

use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind};
use ramlace_wire::{Kind, Request};

use crate::session::Session;
use crate::session::lines::{Line, Unanswered};
use crate::session::patience::HOLDERS_WAIT_MAX;
use crate::session::places::Purpose;

/// Who waits for an answer looks so often whether nobody wants it any more.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// By when a server has to answer, as it is told.
pub(crate) fn answered_by(kind: Kind, deadline: Instant) -> Instant {
    if kind.row().waits_for_holders { deadline + HOLDERS_WAIT_MAX } else { deadline }
}

impl Session {
    /// Waits for an answer that waits for others, and tells by when it has to be there; any other by its deadline.
    pub(crate) fn await_answer<R: Request>(
        &self,
        line: &mut Line,
        deadline: Instant,
    ) -> std::result::Result<Instant, Unanswered> {
        if !R::KIND.row().waits_for_holders {
            return Ok(deadline);
        }
        self.await_holders(line, deadline)?;
        Ok(deadline.max(self.deadline()))
    }

    /// Waits until a reply begins to arrive: a change of bytes is answered when others have dropped them, and a read when nobody
    /// has them alone, which may take longer than any other call. As long as the server shows signs of life it is waited for.
    ///
    /// When all waits are over, a change still has the time of any other call: it may be what programs stored.
    pub(crate) fn await_holders(
        &self,
        line: &mut Line,
        deadline: Instant,
    ) -> std::result::Result<(), Unanswered> {
        let over = Instant::now() + HOLDERS_WAIT_MAX;
        let reads = matches!(line.purpose(), Purpose::Pages | Purpose::StrictReads);
        let goes_on = || !self.waits_are_over() || !reads && Instant::now() < deadline;
        let mut until = deadline;
        loop {
            let look = until.min(Instant::now() + LOOK_PAUSE);
            if line.is_answered_by(look)? {
                return Ok(());
            }
            if look < until && goes_on() {
                continue;
            }
            if Instant::now() < over && goes_on() && self.lives(line.server()) {
                until = self.deadline();
                continue;
            }
            line.close();
            let text = "waiting for a reply: no answer within the deadline";
            return Err(Unanswered::lost(Error::new(ErrorKind::TimedOut, text)));
        }
    }
}
