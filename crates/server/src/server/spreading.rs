//! When each directory was last tried to be spread, so that failed attempts are not repeated at once: see
//! [`crate::spread`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use ramlace_base::InodeId;

/// The pause before the next attempt to spread a directory, after a server did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// When it was last tried to spread directories.
#[derive(Default)]
pub struct Spreading {
    tried: RefCell<HashMap<InodeId, Instant>>,
}

impl Spreading {
    /// Whether to try now; if so, notes the attempt.
    pub fn may_try(&self, directory: InodeId, now: Instant) -> bool {
        let mut tried = self.tried.borrow_mut();
        tried.retain(|_, at| now.saturating_duration_since(*at) < PAUSE);
        match tried.get(&directory) {
            Some(_) => false,
            None => tried.insert(directory, now).is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::Slot;

    use super::*;
    use crate::clock;

    #[test]
    fn a_directory_that_could_not_be_spread_is_tried_again_after_a_pause() {
        let (spreading, begin) = (Spreading::default(), clock::instant());
        let tries = |number, later| spreading.may_try(InodeId::new(Slot(0), number), begin + later);
        assert!(tries(1, Duration::ZERO) && tries(2, PAUSE / 2));
        assert!(!tries(1, PAUSE / 2) && !tries(2, PAUSE));
        assert!(tries(1, PAUSE));
    }
}
