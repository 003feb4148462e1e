//! The client against a fake pool: what it does when the network or the pool misbehaves.

mod arrays;
mod bytes;
mod closing;
mod damage;
mod failures;
mod inline;
mod kept;
mod local;
mod locks;
mod names;
mod pages;
mod permits;
mod runs;
mod sessions;
#[path = "../../wire/tests/wire/common/mod.rs"]
mod wire_samples;

use std::sync::atomic::Ordering;

use ramlace_wire::LayoutHints;

use crate::{File, OpenOptions, Pool, RecallsMade};

const UNIT: u64 = 64 << 10;

fn striped(width: u16) -> OpenOptions {
    let hints = LayoutHints {
        stripe_unit: Some(UNIT),
        width: Some(width),
        copies: Some(1),
        ..LayoutHints::default()
    };
    OpenOptions { hints, ..OpenOptions::creating() }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed | 1).collect()
}

/// Less than a busy machine may need for one call: for calls that need not succeed.
const SHORT_MILLIS: u32 = 300;

/// Gives calls a short deadline while `act` runs; before and after it they have enough time.
fn in_haste<T>(client: &Pool, millis: u32, act: impl FnOnce() -> T) -> T {
    let session = client.session().unwrap();
    let deadline = &session.settings.deadline_millis;
    let usual = deadline.swap(millis, Ordering::Relaxed);
    let done = act();
    deadline.store(usual, Ordering::Relaxed);
    done
}

fn write_all(file: &File, bytes: &[u8], offset: u64) {
    assert_eq!(file.write_at(bytes, offset).unwrap(), bytes.len());
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; length];
    let read = file.read_at(&mut buffer, offset).unwrap();
    buffer.truncate(read);
    buffer
}

/// Writes pages back, and ignores the recalls that this makes.
fn back(file: &File, bytes: &[u8], offset: u64) -> ramlace_base::Result<usize> {
    file.write_back(bytes, offset, &mut RecallsMade::default())
}
