//! A list that only grows and is read without a lock, so that a forked child may read it, whatever the
//! threads of its parent were doing.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

/// Values in the order from the newest to the oldest; each lives as long as the list.
pub(crate) struct List<T> {
    head: AtomicPtr<Node<T>>,
}

// SAFETY: the values are owned and given out as shared references only, so the list is as
// sendable and as shareable as what it owns.
unsafe impl<T: Send + Sync> Send for List<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for List<T> {}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List { head: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T> List<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let mut next = self.head.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: published nodes are never changed, and live as long as `self`.
            let node = unsafe { next.as_ref() }?;
            next = node.next;
            Some(&node.value)
        })
    }

    pub(crate) fn push(&self, value: T) -> &T {
        self.push_unless(value, || None)
    }

    /// Adds a value unless `found` finds an equivalent one; returns the value that is in the list. `found` is
    /// called again whenever another thread has added something.
    pub(crate) fn push_unless<'a>(&'a self, value: T, found: impl Fn() -> Option<&'a T>) -> &'a T {
        let node = Box::into_raw(Box::new(Node { value, next: ptr::null_mut() }));
        loop {
            let head = self.head.load(Ordering::Acquire);
            if let Some(found) = found() {
                // SAFETY: the node was made above and never published.
                drop(unsafe { Box::from_raw(node) });
                return found;
            }
            // SAFETY: until the exchange succeeds, this thread alone has the node.
            unsafe { (*node).next = head };
            if self.head.compare_exchange(head, node, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // SAFETY: published nodes live as long as `self`.
                return unsafe { &(*node).value };
            }
        }
    }

    /// Takes all values out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        let mut next = std::mem::replace(self.head.get_mut(), ptr::null_mut());
        std::iter::from_fn(move || {
            if next.is_null() {
                return None;
            }
            // SAFETY: `&mut self` proves that there is no reader; every node came from a box.
            let node = *unsafe { Box::from_raw(next) };
            next = node.next;
            Some(node.value)
        })
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        self.drain().for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn values_of_many_threads_are_all_there_and_dropped_once() {
        let (list, witness) = (List::default(), Arc::new(()));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (list, witness) = (&list, &witness);
                scope.spawn(move || {
                    for round in 0..100 {
                        let pushed = list.push((thread * 100 + round, witness.clone()));
                        assert_eq!(pushed.0, thread * 100 + round);
                    }
                });
            }
        });
        let mut numbers: Vec<i32> = list.iter().map(|value| value.0).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..400).collect::<Vec<i32>>());
        assert_eq!(Arc::strong_count(&witness), 401);
        let first = list.iter().next().unwrap();
        assert!(ptr::eq(list.push_unless((0, witness.clone()), || Some(first)), first));
        assert_eq!(list.iter().count(), 400);
        drop(list);
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
