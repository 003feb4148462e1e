//! The state of one lane that is kept over a restart: its generation, what was lost, and its passthrough.

use std::cmp::Ordering;

use ramlace_base::{ByteRange, Error, ErrorKind, Generation, LaneId, Result};
use serde::{Deserialize, Serialize};

use crate::residency::{Loss, Residency};

/// The part of a lane that is kept over a restart. A lane is *known* from its first write on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The newest generation that it has received.
    pub generation: Generation,
    /// Set when the lane began on a server that does not have the file's older bytes.
    pub loss: Option<Loss>,
    /// Kernels have its file since this passthrough, which was the last: then it has no holes. 0: no kernel has
    /// it.
    pub passthrough: u64,
    /// Passthroughs up to this one have ended, even if a late message says otherwise.
    pub passthroughs_over: u64,
    /// Some kernel that has its file may store into it.
    pub passthrough_stores: bool,
}

/// How a request's generation compares with a lane's. If they differ, one side has not received a truncation
/// (`docs/records/generations.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lane has had no write yet.
    Unknown,
    /// Both agree.
    Current,
    /// The requester knows of a truncation that the lane has not received.
    Behind,
}

impl Lane {
    /// A lane that begins.
    #[must_use]
    pub fn new(generation: Generation, loss: Option<Loss>) -> Lane {
        Lane { generation, loss, passthrough: 0, passthroughs_over: 0, passthrough_stores: false }
    }

    /// Compares the requester's generation with the lane's. Retry when the requester is behind.
    pub fn standing(&self, generation: Generation) -> Result<Standing> {
        match generation.cmp(&self.generation) {
            Ordering::Equal => Ok(Standing::Current),
            Ordering::Greater => Ok(Standing::Behind),
            Ordering::Less => {
                Err(Error::new(ErrorKind::Retry, "the file was truncated meanwhile; ask its home again"))
            }
        }
    }

    /// Whether some of these bytes are lost.
    #[must_use]
    pub fn has_lost(&self, range: ByteRange) -> bool {
        self.loss.as_ref().is_some_and(|loss| loss.touches(range))
    }

    /// Where these bytes are; `stored`: the store has some of them.
    #[must_use]
    pub fn residency(&self, range: ByteRange, stored: bool) -> Residency {
        match stored {
            _ if self.has_lost(range) => Residency::Lost,
            true => Residency::Here,
            false => Residency::Hole,
        }
    }

    /// Whether a kernel may map it: then it has no holes.
    #[must_use]
    pub fn has_passthrough(&self) -> bool {
        self.passthrough != 0
    }

    /// Whether a kernel may have it by this passthrough.
    pub(crate) fn check_passthrough(&self, id: LaneId, number: u64) -> Result<()> {
        if number > self.passthroughs_over {
            return Ok(());
        }
        // It comes late: its sender has stopped waiting.
        Err(Error::new(ErrorKind::Unsupported, format!("passthrough {number} of lane {id} is over")))
    }

    pub(crate) fn begin_passthrough(&mut self, number: u64, stores: bool) {
        self.passthrough = self.passthrough.max(number);
        self.passthrough_stores |= stores;
    }

    pub(crate) fn cut(&mut self, generation: Generation, length: Option<u64>) {
        self.generation = generation;
        if let (Some(loss), Some(length)) = (&mut self.loss, length) {
            loss.cut(length);
        }
    }

    pub(crate) fn end_passthroughs(&mut self, number: u64) {
        self.passthroughs_over = self.passthroughs_over.max(number);
        if self.passthrough <= number {
            (self.passthrough, self.passthrough_stores) = (0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_generation_is_told_to_ask_again() {
        let lane = Lane::new(Generation(3), None);
        assert!(matches!(lane.standing(Generation(3)), Ok(Standing::Current)));
        assert!(matches!(lane.standing(Generation(5)), Ok(Standing::Behind)));
        assert_eq!(lane.standing(Generation(2)).err().unwrap().kind(), ErrorKind::Retry);
    }
}
