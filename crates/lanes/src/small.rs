//! The sessions whose kernels certainly have the first page of a lane 0 from this lane, not from the file's inline
//! bytes.
//!
//! While a file is inline, its first page comes from its inode's slot, and that slot alone knows what other sessions
//! have changed since. So when a session that is not listed here writes such a page back, it is checked there first.

use std::collections::BTreeSet;

use ramlace_base::{ByteRange, SessionId, limits};

use crate::watches::Place;

/// All of them. One that is missing is asked about once more.
#[derive(Debug, Default)]
pub(super) struct FirstPages {
    of: BTreeSet<(Place, SessionId)>,
}

impl FirstPages {
    /// Whether some of these bytes, which a session writes back, may be on a page that it has since the file was small.
    pub(super) fn may_be_small(&self, place: Place, session: SessionId, range: ByteRange) -> bool {
        has_first(place, range) && !self.of.contains(&(place, session))
    }

    /// A session has read pages here, or those that it had before were not changed.
    pub(super) fn read(&mut self, place: Place, session: SessionId, pages: ByteRange) {
        if has_first(place, pages) {
            if self.of.len() >= limits::DATA_LEASES_PER_SERVER_MAX {
                self.of.clear();
            }
            self.of.insert((place, session));
        }
    }

    pub(super) fn end_session(&mut self, session: SessionId) {
        self.of.retain(|(_, of)| *of != session);
    }

    pub(super) fn forget_place(&mut self, place: Place) {
        self.of.retain(|(of, _)| *of != place);
    }
}

fn has_first(place: Place, range: ByteRange) -> bool {
    place.1 == Some(0) && range.start < limits::INLINE_BYTES_MAX as u64 && !range.is_empty()
}
