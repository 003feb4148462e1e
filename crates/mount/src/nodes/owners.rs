//! The owners of `fcntl` locks of a file, and the open files through which they may have locked.

use std::collections::{HashMap, HashSet};

/// The owners, if there are any.
#[derive(Default)]
pub(crate) struct Owners(Option<Box<Files>>);

#[derive(Default)]
struct Files {
    by_owner: HashMap<u64, HashSet<u64>>,
}

impl Owners {
    pub(crate) fn note(&mut self, owner: u64, handle: u64) {
        self.0.get_or_insert_default().by_owner.entry(owner).or_default().insert(handle);
    }

    pub(crate) fn may_hold(&self, owner: u64) -> bool {
        self.0.as_ref().is_some_and(|files| files.by_owner.contains_key(&owner))
    }

    /// An owner is gone; returns whether it was known.
    pub(crate) fn end(&mut self, owner: u64) -> bool {
        let Some(files) = &mut self.0 else { return false };
        let known = files.by_owner.remove(&owner).is_some();
        self.0.take_if(|files| files.by_owner.is_empty());
        known
    }

    /// An open file is gone; returns the owners that may have locked through it alone.
    pub(crate) fn end_file(&mut self, handle: u64) -> Vec<u64> {
        let Some(files) = &mut self.0 else { return Vec::new() };
        let left = files.by_owner.extract_if(|_, handles| handles.remove(&handle) && handles.is_empty());
        let left = left.map(|(owner, _)| owner).collect();
        self.0.take_if(|files| files.by_owner.is_empty());
        left
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_end_with_the_last_file_by_which_they_have_locked() {
        let (mut owners, mut others) = (Owners::default(), Owners::default());
        for (owner, handle) in [(1, 10), (1, 11), (2, 10)] {
            owners.note(owner, handle);
        }
        others.note(1, 20);
        assert!(owners.end_file(12).is_empty());
        assert_eq!(owners.end_file(10), [2]);
        assert!(!owners.end(2) && others.end(1));
        assert!(owners.may_hold(1) && !owners.may_hold(2));
        assert_eq!(owners.end_file(11), [1]);
        assert!(owners.is_blank() && others.is_blank());
    }
}
