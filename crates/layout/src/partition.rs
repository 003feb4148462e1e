//! Which partition of a spread directory holds a name.

use ramlace_base::{Name, limits};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bits of hash in a cookie; below them lie [`COLLISION_BITS`].
pub const HASH_BITS: u32 = 60;
/// Bits of a cookie that tell entries with equal hashes apart.
pub const COLLISION_BITS: u32 = 3;

const PARTITION_BITS: u32 = limits::DIRECTORY_PARTITIONS.ilog2();
const _: () = assert!(limits::DIRECTORY_PARTITIONS.is_power_of_two());

/// The order of a directory's entries: xxh3 with the pool's seed, its upper bits.
#[must_use]
pub fn name_hash(seed: u64, name: &Name, bits: u32) -> u64 {
    // Never 0, so that no cookie is 0, which means "before the first".
    (xxh3_64_with_seed(name.as_bytes(), seed) >> (64 - bits)).max(1)
}

/// The partition of a hash of so many bits: its prefix, so that partitions follow each other as
/// cookies do.
#[must_use]
pub fn partition_of_hash(hash: u64, bits: u32) -> usize {
    (hash >> bits.saturating_sub(PARTITION_BITS)) as usize
}

/// The partition of a name.
#[must_use]
pub fn partition_of_name(seed: u64, name: &Name) -> usize {
    partition_of_hash(name_hash(seed, name, HASH_BITS), HASH_BITS)
}

/// The partition in which a listing continues after a cookie; `None` after the last.
#[must_use]
pub fn partition_behind(cookie: u64, bits: u32) -> Option<usize> {
    let partition = partition_of_hash(cookie.checked_add(1)? >> COLLISION_BITS, bits);
    (partition < limits::DIRECTORY_PARTITIONS).then_some(partition)
}

/// The last cookie that a partition can have, with hashes of so many bits.
#[must_use]
pub fn last_cookie(partition: usize, bits: u32) -> u64 {
    ((partition as u64 + 1) << bits.saturating_sub(PARTITION_BITS) << COLLISION_BITS) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_follow_each_other_as_cookies_do() {
        assert_eq!(partition_behind(0, HASH_BITS), Some(0));
        for partition in 0..limits::DIRECTORY_PARTITIONS {
            let last = last_cookie(partition, HASH_BITS);
            assert_eq!(partition_behind(last - 1, HASH_BITS), Some(partition));
            let next = partition + 1;
            assert_eq!(
                partition_behind(last, HASH_BITS),
                (next < limits::DIRECTORY_PARTITIONS).then_some(next)
            );
        }
        assert_eq!(partition_behind(u64::MAX, HASH_BITS), None);
        assert_eq!(last_cookie(limits::DIRECTORY_PARTITIONS - 1, HASH_BITS), (1 << 63) - 1);
    }

    #[test]
    fn names_go_to_the_partition_of_their_cookie() {
        let mut seen = [0; limits::DIRECTORY_PARTITIONS];
        for number in 0..1000 {
            let name = Name::new(format!("file-{number}")).unwrap();
            let cookie = name_hash(7, &name, HASH_BITS) << COLLISION_BITS;
            let partition = partition_of_name(7, &name);
            assert_eq!(partition_behind(cookie - 1, HASH_BITS), Some(partition));
            assert!(cookie <= last_cookie(partition, HASH_BITS));
            seen[partition] += 1;
        }
        assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
    }
}
