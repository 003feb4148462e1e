//! The order of a directory's entries.

use ramlace_base::Name;
use ramlace_layout::{HASH_BITS, last_cookie, name_hash, partition_behind, partition_of_hash};
use serde::{Deserialize, Serialize};

/// A keyed hash of names: xxh3 with the pool's seed, its upper 60 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameHash {
    seed: u64,
    /// Fewer than 60 only in tests that want collisions.
    bits: u32,
}

impl NameHash {
    pub(crate) fn new(seed: u64) -> NameHash {
        NameHash { seed, bits: HASH_BITS }
    }

    pub(crate) fn narrowed(self, bits: u32) -> NameHash {
        assert!((1..=HASH_BITS).contains(&bits), "a hash has 1 to {HASH_BITS} bits, not {bits}");
        NameHash { bits, ..self }
    }

    /// 1 to 2^60 - 1: never 0, so that no cookie is 0, which means "before the first".
    pub(crate) fn of(self, name: &Name) -> u64 {
        name_hash(self.seed, name, self.bits)
    }

    /// The partition that holds a name, should the directory be spread.
    pub(crate) fn partition(self, name: &Name) -> usize {
        partition_of_hash(self.of(name), self.bits)
    }

    /// The partition in which a listing continues after a cookie.
    pub(crate) fn partition_behind(self, cookie: u64) -> Option<usize> {
        partition_behind(cookie, self.bits)
    }

    /// The last cookie that a partition can have.
    pub(crate) fn last_cookie(self, partition: usize) -> u64 {
        last_cookie(partition, self.bits)
    }
}
