//! What is known of spread directories: the slot of each partition, and which partitions were lost.

use std::collections::HashMap;
use std::sync::Arc;

use ramlace_base::{InodeId, Slot, limits};
use ramlace_sync::{Mutex, MutexGuard};

/// The slot of each partition of a directory; `None` for one that is whole.
pub(crate) type Partitions = Option<Arc<[Slot]>>;

/// What is known of spread directories.
#[derive(Default)]
pub(crate) struct Spreads {
    known: Mutex<HashMap<InodeId, Spread>>,
}

struct Spread {
    slots: Arc<[Slot]>,
    /// A bit for each partition that listings have found to be lost.
    lost: u64,
}
const _: () = assert!(limits::DIRECTORY_PARTITIONS <= u64::BITS as usize);

impl Spreads {
    pub(crate) fn get(&self, directory: InodeId) -> Partitions {
        self.lock().get(&directory).map(|spread| spread.slots.clone())
    }

    pub(crate) fn has_lost(&self, directory: InodeId) -> bool {
        self.lock().get(&directory).is_some_and(|spread| spread.lost != 0)
    }

    pub(crate) fn set_lost(&self, directory: InodeId, partition: usize, lost: bool) {
        if let Some(spread) = self.lock().get_mut(&directory) {
            let bit = 1 << partition;
            spread.lost = if lost { spread.lost | bit } else { spread.lost & !bit };
        }
    }

    pub(crate) fn put(&self, directory: InodeId, partitions: &Partitions) {
        let mut known = self.lock();
        match partitions {
            None => _ = known.remove(&directory),
            Some(partitions) => {
                if known.len() >= limits::DIRECTORIES_REMEMBERED_MAX && !known.contains_key(&directory) {
                    // Relearning one costs two requests, so it hardly matters which one is dropped.
                    if let Some(other) = known.keys().next().copied() {
                        known.remove(&other);
                    }
                }
                let lost = match known.get(&directory) {
                    Some(before) if before.slots == *partitions => before.lost,
                    _ => 0,
                };
                known.insert(directory, Spread { slots: partitions.clone(), lost });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<InodeId, Spread>> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_spread_directories_are_remembered() {
        let spreads = Spreads::default();
        let directory = |number| InodeId::new(Slot(1), number);
        let slots: Partitions = Some(Arc::from([Slot(1); limits::DIRECTORY_PARTITIONS]));
        let most = limits::DIRECTORIES_REMEMBERED_MAX as u64;
        (0..most + 3).for_each(|number| spreads.put(directory(number), &slots));
        assert_eq!(spreads.lock().len() as u64, most);
        let last = directory(most + 2);
        spreads.set_lost(last, 3, true);
        spreads.put(last, &slots);
        assert!(spreads.has_lost(last), "what is known already takes nobody's place");
        assert_eq!(spreads.lock().len() as u64, most);
    }
}
