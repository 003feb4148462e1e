//! Replies that servers hold back until other machines' kernels have dropped bytes: such calls may take longer than
//! any other.

use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind};
use ramlace_wire::Kind;

use crate::session::Session;
use crate::session::lines::{Line, Unanswered};
use crate::session::patience::HOLDERS_WAIT_MAX;
use crate::session::places::Purpose;

/// How often a thread that waits for such a reply checks whether it is still wanted.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// The deadline that a server is given for its answer.
pub(crate) fn answered_by(kind: Kind, deadline: Instant) -> Instant {
    if kind.row().waits_for_holders { deadline + HOLDERS_WAIT_MAX } else { deadline }
}

impl Session {
    /// Waits for a reply that may wait for other machines, and returns by when it has to be complete; for
    /// other requests that is their deadline.
    pub(crate) fn await_answer(
        &self,
        kind: Kind,
        line: &mut Line,
        deadline: Instant,
    ) -> std::result::Result<Instant, Unanswered> {
        if !kind.row().waits_for_holders {
            return Ok(deadline);
        }
        self.await_holders(line, deadline)
    }

    /// Waits until a reply begins to arrive. A change of bytes is answered when other kernels have dropped
    /// them, and a read when no kernel owns them, which may take longer than any other call: the wait goes on
    /// as long as the server shows signs of life. Returns by when the reply has to be complete.
    ///
    /// After [`Session::waits_are_over`], a change still has the time of any other call: it may carry what
    /// programs have stored.
    pub(crate) fn await_holders(
        &self,
        line: &mut Line,
        deadline: Instant,
    ) -> std::result::Result<Instant, Unanswered> {
        let mut now = Instant::now();
        let over = now + HOLDERS_WAIT_MAX;
        let reads = matches!(line.purpose(), Purpose::Pages | Purpose::StrictReads);
        let mut until = deadline;
        loop {
            let look = until.min(now + LOOK_PAUSE);
            if line.is_answered_by(look)? {
                return Ok(deadline.max(now + self.patience()));
            }
            now = Instant::now();
            let goes_on = !self.waits_are_over() || !reads && now < deadline;
            if look < until && goes_on {
                continue;
            }
            if now < over && goes_on && self.lives(line.server()) {
                now = Instant::now();
                until = now + self.patience();
                continue;
            }
            line.close();
            let text = "waiting for a reply: no answer within the deadline";
            return Err(Unanswered::lost(Error::new(ErrorKind::TimedOut, text)));
        }
    }
}
