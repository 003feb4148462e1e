//! What the handles of C programs stand for.
//!
//! A handle is a number that looks like a pointer. It is never used twice and never dereferenced:
//! a handle that was closed, invented, or of another kind is an error instead of a crash.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, Result};

use crate::fork;

/// Numbers grow by this, so that none is another one with a small offset.
const STEP: usize = 16;

/// Everything that handles stand for, by number; and what memory belongs to, by its first address.
pub(crate) struct Table {
    last: usize,
    things: BTreeMap<usize, Arc<dyn Any + Send + Sync>>,
    memories: BTreeMap<usize, Box<dyn Any + Send + Sync>>,
}

/// What is kept under a handle.
pub(crate) trait Kept: Any + Send + Sync {
    /// What the header calls it.
    const NAME: &'static str;
}

impl Table {
    pub(crate) const fn new() -> Table {
        Table { last: 0, things: BTreeMap::new(), memories: BTreeMap::new() }
    }
}

/// Keeps a thing and returns its handle.
pub(crate) fn keep<T: Kept, H>(thing: T) -> *mut H {
    let mut table = fork::write();
    table.last += STEP;
    let number = table.last;
    table.things.insert(number, Arc::new(thing));
    std::ptr::without_provenance_mut(number)
}

/// The thing of a handle; it lives on while a call uses it, also when another thread closes the handle.
pub(crate) fn find<T: Kept, H>(handle: *mut H) -> Result<Arc<T>> {
    let thing = fork::read().things.get(&handle.addr()).cloned();
    thing.and_then(|thing| thing.downcast().ok()).ok_or_else(|| unknown::<T, H>(handle))
}

/// Takes the thing of a handle out; the handle is over.
pub(crate) fn take<T: Kept, H>(handle: *mut H) -> Result<Arc<T>> {
    let mut table = fork::write();
    let is_it = table.things.get(&handle.addr()).is_some_and(|thing| thing.is::<T>());
    let thing = if is_it { table.things.remove(&handle.addr()) } else { None };
    drop(table);
    thing.and_then(|thing| thing.downcast().ok()).ok_or_else(|| unknown::<T, H>(handle))
}

fn unknown<T: Kept, H>(handle: *mut H) -> Error {
    let text = if handle.is_null() {
        format!("the ramlace_{} is a null pointer", T::NAME)
    } else {
        format!("{:#x} is no open ramlace_{}: closed already, or never one", handle.addr(), T::NAME)
    };
    Error::new(ErrorKind::BadHandle, text)
}

/// Keeps what memory belongs to: a mapping, or a copy. It lives until it is taken.
pub(crate) fn keep_memory(start: *mut u8, owner: impl Any + Send + Sync) {
    fork::write().memories.insert(start.addr(), Box::new(owner));
}

/// What the memory belongs to that begins at an address.
pub(crate) fn take_memory(start: usize) -> Option<Box<dyn Any + Send + Sync>> {
    fork::write().memories.remove(&start)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    impl Kept for u8 {
        const NAME: &'static str = "byte";
    }

    impl Kept for String {
        const NAME: &'static str = "string";
    }

    #[test]
    fn a_handle_means_one_thing_until_it_is_closed_and_nothing_afterwards() {
        let byte: *mut c_void = keep(7u8);
        let text: *mut c_void = keep("text".to_owned());
        assert_eq!(*find::<u8, _>(byte).unwrap(), 7);
        assert_eq!(*find::<String, _>(text).unwrap(), "text");
        assert_eq!(find::<u8, _>(text).unwrap_err().kind(), ErrorKind::BadHandle);
        assert_eq!(take::<u8, _>(text).unwrap_err().kind(), ErrorKind::BadHandle);
        assert_eq!(*take::<u8, _>(byte).unwrap(), 7);
        assert!(take::<u8, _>(byte).unwrap_err().message().ends_with("closed already, or never one"));
        assert_ne!(keep::<u8, c_void>(8), byte);
        assert!(take::<u8, c_void>(std::ptr::null_mut()).unwrap_err().message().contains("null pointer"));
        assert_eq!(*find::<String, _>(text).unwrap(), "text");
    }

    #[test]
    fn a_forked_child_finds_the_table_unlocked_whatever_threads_did() {
        fork::watch();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        drop(take::<u8, c_void>(keep(1u8)));
                    }
                });
            }
            for _ in 0..100 {
                // SAFETY: the child looks at the table and ends; it allocates, which glibc's
                // own fork handlers allow.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let found = take::<u8, c_void>(keep(5u8)).map(|byte| *byte);
                    // SAFETY: ends the child without running the parent's exit handlers.
                    unsafe { libc::_exit(i32::from(found != Ok(5))) };
                }
                let mut status = -1;
                // SAFETY: waits for the child just made.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!((waited, status), (child, 0));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
