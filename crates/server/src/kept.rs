//! Limits the memory for replies that are kept until their sessions acknowledge them: for one session that never
//! acknowledges, and for many such sessions together.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};

/// Bytes of kept replies, over all slots of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    of: BTreeMap<SessionId, u64>,
    total: u64,
}

impl Kept {
    /// A slot keeps more, or fewer, bytes for a session than before.
    pub fn change(&mut self, session: SessionId, change: i64) {
        if change == 0 {
            return;
        }
        let of = self.of.entry(session).or_default();
        let before = *of;
        *of = before.checked_add_signed(change).expect("a slot gives back what it has told");
        self.total = self.total - before + *of;
        if *of == 0 {
            self.of.remove(&session);
        }
    }

    /// Checks whether one more mutation of a session may be taken, which acknowledges this many bytes.
    ///
    /// Errors: `TooMany`; nothing has happened, and a mutation that acknowledges more is taken.
    pub fn check(&self, session: SessionId, acknowledged_bytes: u64) -> Result<()> {
        let of = self.of.get(&session).copied().unwrap_or(0).saturating_sub(acknowledged_bytes);
        let total = self.total.saturating_sub(acknowledged_bytes);
        let small = limits::KEPT_REPLIES_ALWAYS_BYTES as u64;
        if of > limits::KEPT_REPLIES_PER_SESSION_BYTES_MAX as u64 {
            return Err(refusal(of, "this session", limits::KEPT_REPLIES_PER_SESSION_BYTES_MAX));
        }
        if of > small && total > limits::KEPT_REPLIES_PER_SERVER_BYTES_MAX as u64 {
            return Err(refusal(total, "all sessions", limits::KEPT_REPLIES_PER_SERVER_BYTES_MAX));
        }
        Ok(())
    }

    /// Bytes of all sessions.
    #[cfg(test)]
    pub fn total(&self) -> u64 {
        self.total
    }
}

fn refusal(bytes: u64, whose: &str, limit: usize) -> Error {
    let text = format!(
        "the server keeps {} of replies that {whose} did not acknowledge, its limit is {}; acknowledge answers, or \
         close the session",
        format_bytes(bytes),
        format_bytes(limit as u64)
    );
    Error::new(ErrorKind::TooMany, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SessionId = SessionId([1; 16]);
    const MOST: i64 = limits::KEPT_REPLIES_PER_SESSION_BYTES_MAX as i64;

    // SEMANTICS 113.2
    #[test]
    fn a_session_that_acknowledges_nothing_comes_to_an_end() {
        let mut kept = Kept::default();
        kept.change(ONE, MOST);
        kept.check(ONE, 0).unwrap();
        kept.change(ONE, 1);
        let refused = kept.check(ONE, 0).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TooMany);
        assert!(refused.message().contains("did not acknowledge"), "{refused}");
        // To acknowledge is what helps.
        kept.check(ONE, 1).unwrap();
        kept.check(SessionId([2; 16]), 0).unwrap();
        kept.change(ONE, -(MOST + 1));
        kept.check(ONE, 0).unwrap();
        assert_eq!(kept.total(), 0);
    }

    #[test]
    fn many_sessions_share_an_end_and_those_that_keep_little_go_on() {
        let mut kept = Kept::default();
        let count = limits::KEPT_REPLIES_PER_SERVER_BYTES_MAX / limits::KEPT_REPLIES_PER_SESSION_BYTES_MAX;
        let sessions: Vec<_> = (0..=count as u8).map(|number| SessionId([number; 16])).collect();
        sessions.iter().for_each(|session| kept.change(*session, MOST));
        assert_eq!(kept.check(sessions[0], 0).unwrap_err().kind(), ErrorKind::TooMany);
        let honest = SessionId([99; 16]);
        kept.change(honest, limits::KEPT_REPLIES_ALWAYS_BYTES as i64);
        kept.check(honest, 0).unwrap();
        sessions.iter().for_each(|session| kept.change(*session, -MOST));
        kept.change(honest, -(limits::KEPT_REPLIES_ALWAYS_BYTES as i64));
        assert_eq!((kept.total(), kept.of.len()), (0, 0));
    }
}
