//! What the tests of the store share.
#![allow(dead_code)] // Each test binary uses a part of it.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, LaneId, Slot};
use ramlace_store::{Backing, Store, StoreOptions, StoreRoot};

pub const MIB: u64 = 1 << 20;
pub const HUGE: u64 = 2 * MIB;

/// A store that removes its memory when the test ends, also by a panic.
pub struct TestStore {
    store: Option<Store>,
}

impl Deref for TestStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        self.store.as_ref().expect("the store is there until drop")
    }
}

impl DerefMut for TestStore {
    fn deref_mut(&mut self) -> &mut Store {
        self.store.as_mut().expect("the store is there until drop")
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if let Some(store) = self.store.take() {
            store.into_root().remove().expect("removing a test's store");
        }
    }
}

impl TestStore {
    pub fn new(root: StoreRoot) -> TestStore {
        TestStore { store: Some(Store::open(root).expect("opening a store")) }
    }

    /// Closes the store and opens it again on the same memory, as a restarted child does.
    pub fn reopen(&mut self) {
        let root = self.store.take().expect("the store is there until drop").into_root();
        self.store = Some(Store::open(root).expect("reopening a store"));
    }
}

pub fn options(size_bytes: u64, backing: Backing) -> StoreOptions {
    StoreOptions { size_bytes, backing, name: "test".into() }
}

/// Whether this machine lets this user make a private tmpfs; says so when not.
pub fn private_works(test: &str) -> bool {
    match StoreRoot::create(&options(16 * MIB, Backing::PrivateTmpfs)) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped for the private tmpfs: {test}: {error}");
            false
        }
    }
}

/// Runs a test on every backing that works here.
pub fn on_each_backing(test: &str, size_bytes: u64, body: impl Fn(&mut TestStore)) {
    if private_works(test) {
        body(&mut TestStore::new(StoreRoot::create(&options(size_bytes, Backing::PrivateTmpfs)).unwrap()));
    }
    body(&mut TestStore::new(StoreRoot::create(&options(size_bytes, Backing::SharedMemory)).unwrap()));
}

pub fn lane(number: u64) -> LaneId {
    LaneId { inode: InodeId::new(Slot((number % 7) as u16), number), lane: (number % 3) as u16 }
}

/// Creates a lane and writes `bytes` at `offset`.
pub fn write(store: &mut Store, id: LaneId, offset: u64, bytes: &[u8]) -> ramlace_base::Result<()> {
    if !store.has_lane(id) {
        store.create_lane(id)?;
    }
    store.prepare_write(id, offset, bytes.len() as u64)?;
    store.write_staged(id, offset, bytes)
}

pub fn read(store: &mut Store, id: LaneId, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    store.read_staged(id, offset, &mut bytes).expect("reading a lane");
    bytes
}

/// The store's books are the kernel's. Only while no reservation is at work.
pub fn assert_counted(store: &Store) {
    let usage = store.usage();
    assert_eq!(usage.used_bytes + usage.reserved_bytes, store.kernel_usage().unwrap(), "{usage:?}");
    assert_eq!(usage.used_bytes, usage.lanes_bytes + usage.meta_bytes);
    assert_eq!(usage.free_bytes, usage.size_bytes - usage.used_bytes);
}

/// Waits until something is so; a minute is for a machine that stands still, not a measure.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
