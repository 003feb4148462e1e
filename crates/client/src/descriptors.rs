//! The socket descriptors of a session, kept where a forked child can read them without a lock.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// No descriptor is noted here.
const FREE: i32 = -1;
/// Somebody is about to note one.
const TAKEN: i32 = -2;

struct Node {
    descriptor: AtomicI32,
    /// The socket's inode number: the program may have closed our descriptor and used its number.
    socket: AtomicU64,
    next: *mut Node,
}

/// A list that only grows; places are used again, so it is as long as there were ever
/// connections at once.
#[derive(Default)]
pub(crate) struct Descriptors {
    head: AtomicPtr<Node>,
}

// SAFETY: nodes are shared through atomics alone, and freed when nobody has the list any more.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

/// One noted descriptor; forgotten when this is dropped, which must be before it is closed.
pub(crate) struct Noted {
    node: *const Node,
    /// Keeps the list, and with it the node, alive.
    _list: std::sync::Arc<Descriptors>,
}

// SAFETY: the node is reached through its atomic alone.
unsafe impl Send for Noted {}
// SAFETY: as above.
unsafe impl Sync for Noted {}

impl Descriptors {
    pub(crate) fn note(self: &std::sync::Arc<Descriptors>, descriptor: RawFd) -> Noted {
        let node = self.free_node().unwrap_or_else(|| self.new_node());
        // SAFETY: nodes live as long as the list.
        let place = unsafe { &*node };
        place.socket.store(inode_of(descriptor).unwrap_or(0), Ordering::Release);
        place.descriptor.store(descriptor, Ordering::Release);
        Noted { node, _list: self.clone() }
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        let mut next: *const Node = self.head.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: published nodes live as long as the list, and their `next` never changes.
            let node = unsafe { next.as_ref() }?;
            next = node.next;
            Some(node)
        })
    }

    fn free_node(&self) -> Option<*const Node> {
        let take = |node: &&Node| {
            node.descriptor.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.nodes().find(take).map(ptr::from_ref)
    }

    fn new_node(&self) -> *const Node {
        let node = Box::into_raw(Box::new(Node {
            descriptor: AtomicI32::new(TAKEN),
            socket: AtomicU64::new(0),
            next: ptr::null_mut(),
        }));
        loop {
            let head = self.head.load(Ordering::Acquire);
            // SAFETY: until the exchange succeeds, this thread alone has the node.
            unsafe { (*node).next = head };
            if self.head.compare_exchange(head, node, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return node;
            }
        }
    }

    /// Closes every noted descriptor, in a child that will never use the connections.
    pub(crate) fn close_inherited(&self) {
        for node in self.nodes() {
            let descriptor = node.descriptor.swap(FREE, Ordering::AcqRel);
            if descriptor >= 0 && inode_of(descriptor) == Some(node.socket.load(Ordering::Acquire)) {
                // SAFETY: the number was noted by the parent for a connection that owns it, and
                // in this process nothing uses or drops that connection: it is only our copy.
                unsafe { libc::close(descriptor) };
            }
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // SAFETY: `_list` keeps the node alive.
        unsafe { &*self.node }.descriptor.store(FREE, Ordering::Release);
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let mut next = *self.head.get_mut();
        while !next.is_null() {
            // SAFETY: nobody shares the list any more, and every node came from a box.
            let node = unsafe { Box::from_raw(next) };
            next = node.next;
        }
    }
}

/// The inode number behind a descriptor, if it is open.
fn inode_of(descriptor: RawFd) -> Option<u64> {
    // SAFETY: `stat` is plain memory that the call fills; a number that is no descriptor is an
    // error of the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(descriptor, &raw mut stat) == 0).then_some(stat.st_ino)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn noted_descriptors_are_closed_and_places_used_again() {
        let list = Arc::new(Descriptors::default());
        let (kept, gone) = rustix::pipe::pipe().unwrap();
        drop(list.note(kept.as_raw_fd()));
        let noted = list.note(gone.into_raw_fd());
        assert_eq!(list.nodes().count(), 1);
        list.close_inherited();
        // The reader sees the end only if the writer was closed.
        assert_eq!(rustix::io::read(&kept, &mut [0; 1]).unwrap(), 0);
        drop(noted);
        list.close_inherited();
    }
}
