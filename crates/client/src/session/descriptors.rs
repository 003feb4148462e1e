//! The socket descriptors of a session, kept where a forked child can read them without a lock.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::list::List;

/// The place is free.
const FREE: i32 = -1;
/// The place is about to be used.
const TAKEN: i32 = -2;

struct Place {
    descriptor: AtomicI32,
    /// The socket's inode number, to recognise it: the program may have closed our descriptor and reused its
    /// number.
    socket: AtomicU64,
}

/// Places are reused, so there are as many as there were connections at most at the same time.
#[derive(Default)]
pub(crate) struct Descriptors {
    places: List<Place>,
}

/// A noted descriptor; removed when this is dropped, which must be before the descriptor is closed.
pub(crate) struct Noted {
    place: *const Place,
    /// Keeps the list, and so the place, alive.
    _list: std::sync::Arc<Descriptors>,
}

// SAFETY: the place is reached through its atomics alone.
unsafe impl Send for Noted {}
// SAFETY: as above.
unsafe impl Sync for Noted {}

impl Descriptors {
    pub(crate) fn note(self: &std::sync::Arc<Descriptors>, descriptor: RawFd) -> Noted {
        let place = self.free_place().unwrap_or_else(|| {
            self.places.push(Place { descriptor: AtomicI32::new(TAKEN), socket: AtomicU64::new(0) })
        });
        place.socket.store(inode_of(descriptor).unwrap_or(0), Ordering::Release);
        place.descriptor.store(descriptor, Ordering::Release);
        Noted { place, _list: self.clone() }
    }

    fn free_place(&self) -> Option<&Place> {
        let take = |place: &&Place| {
            place.descriptor.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.places.iter().find(take)
    }

    /// Closes every noted descriptor, in a child that will never use the connections.
    pub(crate) fn close_inherited(&self) {
        for place in self.places.iter() {
            let descriptor = place.descriptor.swap(FREE, Ordering::AcqRel);
            if descriptor >= 0 && inode_of(descriptor) == Some(place.socket.load(Ordering::Acquire)) {
                // SAFETY: the number was noted by the parent for a connection that owns it, and in this
                // process nothing uses or drops that connection: it is only our copy.
                unsafe { libc::close(descriptor) };
            }
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // SAFETY: `_list` keeps the place alive.
        unsafe { &*self.place }.descriptor.store(FREE, Ordering::Release);
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
        assert_eq!(list.places.iter().count(), 1);
        list.close_inherited();
        // The reader sees the end only if the writer was closed.
        assert_eq!(rustix::io::read(&kept, &mut [0; 1]).unwrap(), 0);
        drop(noted);
        list.close_inherited();
    }
}
