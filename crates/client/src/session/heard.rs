//! For how long a process may believe that it has heard of all recalls of a server.
//!
//! A server that changes bytes waits for those who cache them, and not for ever: after [`limits::DATA_RECALL_MILLIS`] it
//! goes on without them. A process that was stopped, or cut off from the server, does not hear of that. So it counts the
//! time since the last moment of which it knows that nothing was recalled that has not arrived.

use std::time::{Duration, Instant};

use ramlace_base::limits;

/// How long that holds. The rest is the time to drop what is cached, and a margin for clocks that run at different
/// rates.
pub(crate) const HOLDS: Duration = Duration::from_millis(limits::DATA_RECALL_MILLIS - 750);

/// What was last heard of one server.
#[derive(Default)]
pub(crate) struct Heard {
    /// All that it recalled before has arrived; `None`: nothing of it was ever cached.
    as_of: Option<Instant>,
    /// What was cached of its bytes was last dropped then because nothing was heard. What was read since may be cached.
    given_up: Option<Instant>,
}

impl Heard {
    /// Something is about to be cached: if it is the first, there was nothing to recall before this moment.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.as_of.get_or_insert(now);
    }

    /// All that the server recalled before this moment has arrived, and is being dropped.
    pub(crate) fn note(&mut self, as_of: Instant) {
        self.as_of = self.as_of.max(Some(as_of));
    }

    /// Whether the server still waits for this process before it changes what is cached here.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        self.as_of.is_none_or(|as_of| now < as_of + HOLDS)
    }

    /// When what is cached has to go; `None`: nothing is.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        self.as_of.max(self.given_up).map(|last| last + HOLDS)
    }

    /// Whether what is cached has to go now; then it is dropped.
    pub(crate) fn gives_up(&mut self, now: Instant) -> bool {
        let gives_up = self.ends_at().is_some_and(|at| at <= now);
        if gives_up {
            self.given_up = Some(now);
        }
        gives_up
    }

    /// Nothing will be heard any more: returns whether something may be cached.
    pub(crate) fn end(&mut self) -> bool {
        std::mem::take(self).as_of.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 118.5
    #[test]
    fn what_a_server_has_said_holds_for_less_than_it_waits_and_is_given_up_in_time() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let mut heard = Heard::default();
        assert!(heard.holds(begun) && !heard.gives_up(after(60_000)) && !heard.end(), "nothing is cached");
        heard.begin(begun);
        let last = HOLDS.as_millis() as u64 - 1;
        assert!(
            last < limits::DATA_RECALL_MILLIS && heard.holds(after(last)) && !heard.gives_up(after(last))
        );
        // What comes late says nothing of a later time, and what is cached beside other bytes neither.
        heard.note(after(100));
        heard.note(after(50));
        heard.begin(after(90));
        assert!(heard.holds(after(last + 100)) && !heard.holds(after(last + 101)));
        assert_eq!(heard.ends_at(), Some(after(last + 101)));
        assert!(heard.gives_up(after(last + 101)) && !heard.gives_up(after(last + 102)));
        assert!(!heard.holds(after(last + 102)));
        // Pages that were read meanwhile go as well.
        assert!(!heard.gives_up(after(2 * last + 101)) && heard.gives_up(after(2 * last + 102)));
        heard.note(after(20_000));
        assert!(heard.holds(after(20_001)) && heard.ends_at() == Some(after(20_001 + last)));
        assert!(heard.end() && heard.ends_at().is_none());
    }
}
