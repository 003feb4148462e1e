//! Buffers that connections borrow while they work, so that idle ones cost none.

use std::cell::RefCell;

use crate::input::INPUT_BYTES;
use crate::seal::Record;

/// Buffers kept for the next connection that needs one.
const SPARE_BUFFERS_MAX: usize = 32;

#[derive(Default)]
struct Spare {
    input: Vec<Vec<u8>>,
    records: Vec<Vec<u8>>,
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

/// Gives a record memory, if it has none.
pub(super) fn lend_record(record: &mut Record) {
    if record.buffer.capacity() == 0 {
        record.buffer = SPARE.with_borrow_mut(|spare| spare.records.pop()).unwrap_or_default();
    }
}

/// Takes the memory of a record that is used up.
pub(super) fn return_record(record: &mut Record) {
    let buffer = std::mem::take(record).buffer;
    SPARE.with_borrow_mut(|spare| {
        if buffer.capacity() > 0 && spare.records.len() < SPARE_BUFFERS_MAX {
            spare.records.push(buffer);
        }
    });
}
