//! The order of a directory's entries.

use ramlace_base::Name;
use serde::{Deserialize, Serialize};

/// Bits of hash in a cookie; below them lie [`COLLISION_BITS`].
const HASH_BITS: u32 = 60;
/// Bits that tell entries with equal hashes apart.
pub(crate) const COLLISION_BITS: u32 = 3;

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
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), self.seed) >> (64 - self.bits);
        hash.max(1)
    }
}
