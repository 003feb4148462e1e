//! The permit of an open file, by which a host's session proves to the file's lanes what it may do
//! (`docs/records/permits.md`).

use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_wire::Permit;

/// The permit of an open inode. Opens for reading and for writing bring one half each; each half is valid by
/// itself, so both need not change atomically.
#[derive(Default)]
pub(crate) struct HeldPermit {
    read: AtomicU64,
    write: AtomicU64,
}

impl HeldPermit {
    pub(crate) fn get(&self) -> Option<Permit> {
        let half = |half: &AtomicU64| half.load(Ordering::Acquire).to_ne_bytes();
        Some(Permit { read: half(&self.read), write: half(&self.write) })
            .filter(|permit| *permit != Permit::default())
    }

    /// Whether the session may write: by the half for writing, or because it needs no permit.
    pub(crate) fn allows_writing(&self) -> bool {
        self.get().is_none_or(|permit| permit.write != [0; 8])
    }

    /// Learns the halves that the home has given.
    pub(crate) fn learn(&self, given: Option<Permit>) {
        let Some(given) = given else { return };
        for (half, given) in [(&self.read, given.read), (&self.write, given.write)] {
            if given != [0; 8] {
                half.store(u64::from_ne_bytes(given), Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_stays_until_another_one_comes() {
        let held = HeldPermit::default();
        assert_eq!((held.get(), held.allows_writing()), (None, true));
        let reader = HeldPermit::default();
        reader.learn(Some(Permit { read: [1; 8], write: [0; 8] }));
        assert!(!reader.allows_writing());
        held.learn(None);
        held.learn(Some(Permit { read: [1; 8], write: [0; 8] }));
        held.learn(Some(Permit { read: [0; 8], write: [2; 8] }));
        assert_eq!(held.get(), Some(Permit { read: [1; 8], write: [2; 8] }));
        held.learn(Some(Permit { read: [3; 8], write: [0; 8] }));
        assert_eq!(held.get(), Some(Permit { read: [3; 8], write: [2; 8] }));
    }
}
