//! The fetched copies of an open file.

use std::sync::{Arc, Weak};

use ramlace_base::Result;
use ramlace_client::{Copy, PerFork};
use ramlace_sync::{Mutex, MutexGuard};

/// The fetched copies that were made of an open file and are still there. A forked child has none: what it has of its parent's is memory
/// that nobody keeps in step.
pub(crate) struct Copies(PerFork<Mutex<Vec<Weak<Copy>>>>);

impl Copies {
    pub(crate) fn none() -> Copies {
        Copies(PerFork::with(Mutex::default()))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Vec<Weak<Copy>>>> {
        let copies = self.0.get_or_make(|| Ok(Mutex::default()))?;
        Ok(copies.lock())
    }

    pub(crate) fn add(&self, copy: &Arc<Copy>) -> Result<()> {
        let mut copies = self.lock()?;
        copies.retain(|copy| copy.strong_count() > 0);
        copies.push(Arc::downgrade(copy));
        Ok(())
    }

    pub(crate) fn all(&self) -> Result<Vec<Arc<Copy>>> {
        Ok(self.lock()?.iter().filter_map(Weak::upgrade).collect())
    }
}
