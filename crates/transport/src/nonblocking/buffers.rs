//! Buffers that connections borrow while they work, so that idle ones cost none.

use std::cell::RefCell;

use crate::input::INPUT_BYTES;
use crate::raw::{Cursor, Ferry};

/// Buffers kept for the next connection that needs one.
const SPARE_BUFFERS_MAX: usize = 32;

#[derive(Default)]
struct Spare {
    input: Vec<Vec<u8>>,
    ferry: Option<Ferry>,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

/// A buffer of [`INPUT_BYTES`].
pub(super) fn borrow_input() -> Vec<u8> {
    SPARE.with_borrow_mut(|spare| spare.input.pop()).unwrap_or_else(|| vec![0; INPUT_BYTES])
}

pub(super) fn return_input(buffer: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| {
        if spare.input.len() < SPARE_BUFFERS_MAX {
            spare.input.push(buffer);
        }
    });
}

/// Copies bytes to the cursor by system calls.
///
/// # Safety
/// As for [`crate::raw::receive`].
pub(super) unsafe fn carry(bytes: &[u8], cursor: &mut Cursor<'_>) -> std::io::Result<()> {
    let ferry = match SPARE.with_borrow_mut(|spare| spare.ferry.take()) {
        Some(ferry) => ferry,
        None => Ferry::new()?,
    };
    // SAFETY: the caller's promise is passed on.
    unsafe { ferry.carry(bytes, cursor) }?;
    // Only an empty ferry is used again.
    SPARE.with_borrow_mut(|spare| spare.ferry = Some(ferry));
    Ok(())
}
