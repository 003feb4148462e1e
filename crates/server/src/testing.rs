//! What the tests of this crate share: a store of their own, and numbers from a seed.

use std::ops::{Deref, DerefMut};

use ramlace_store::{Backing, Store, StoreOptions, StoreRoot};

/// A store that gives its memory back when the test ends, also by a panic.
pub struct TestStore(Option<Store>);

impl TestStore {
    pub fn new() -> TestStore {
        let size_bytes = ramlace_base::limits::STORE_BYTES_MIN;
        let options = StoreOptions { size_bytes, backing: Backing::Auto, name: "test".into() };
        TestStore(Some(Store::open(StoreRoot::create(&options).unwrap()).unwrap()))
    }
}

impl Deref for TestStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        self.0.as_ref().expect("the store is there until drop")
    }
}

impl DerefMut for TestStore {
    fn deref_mut(&mut self) -> &mut Store {
        self.0.as_mut().expect("the store is there until drop")
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if let Some(store) = self.0.take() {
            store.into_root().remove().expect("removing a test's store");
        }
    }
}

/// Numbers that are the same for the same seed (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}
