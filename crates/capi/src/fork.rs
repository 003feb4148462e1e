//! A lock of the table that no fork can leave behind locked.

use std::cell::UnsafeCell;
use std::sync::Once;

use ramlace_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::table::Table;

static TABLE: RwLock<Table> = RwLock::new(Table::new());
static WATCH: Once = Once::new();

/// The lock's guard while a fork is under way.
struct Held(UnsafeCell<Option<RwLockWriteGuard<'static, Table>>>);

// SAFETY: the cell is touched between `before` and `after` alone, by the thread that forks and
// that holds the table's lock for writing all that time, or by its only thread in the child.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before() {
    let guard = write();
    // SAFETY: the guard just taken makes this thread the cell's only user.
    unsafe { *HELD.0.get() = Some(guard) };
}

extern "C" fn after() {
    // SAFETY: `before` ran in this thread, or in the thread of which this one is the copy.
    drop(unsafe { (*HELD.0.get()).take() });
}

/// Makes forks wait for the table from now on, so that the child finds it whole and unlocked.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the handlers live as long as the library, which is never unloaded.
        let result = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
        assert_eq!(result, 0, "the C library has no memory for a fork handler");
    });
}

pub(crate) fn read() -> RwLockReadGuard<'static, Table> {
    TABLE.read()
}

pub(crate) fn write() -> RwLockWriteGuard<'static, Table> {
    TABLE.write()
}
