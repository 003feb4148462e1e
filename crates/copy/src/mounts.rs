//! Where pools are mounted on this machine: a file that is reached by a mount is the same as by its pool.

use ramlace_base::InodeId;
use ramlace_wire::PoolId;

use crate::side::Identity;

/// The devices of mounts, and the pools that are mounted there.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Vec<(u64, PoolId)>);

impl Mounts {
    /// Each device is as `st_dev` has it.
    pub fn new(mounts: impl IntoIterator<Item = (u64, PoolId)>) -> Mounts {
        Mounts(mounts.into_iter().collect())
    }

    /// What is on a mount is in its pool.
    pub fn known(&self, identity: Identity) -> Identity {
        let Identity::Local(device, inode) = identity else { return identity };
        let pool = self.0.iter().find(|mount| mount.0 == device);
        // The mount shows the numbers of inodes as they are.
        pool.map_or(identity, |(_, pool)| Identity::Pool(*pool, InodeId(inode)))
    }

    /// Whether two things are one.
    pub fn are_one(&self, one: Identity, other: Identity) -> bool {
        self.known(one) == self.known(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 111.3
    #[test]
    fn what_is_on_a_mount_is_known_again_in_its_pool() {
        let (pool, other) = (PoolId([1; 16]), PoolId([2; 16]));
        let mounts = Mounts::new([(51, pool), (52, other)]);
        let inode = InodeId(7);
        assert!(mounts.are_one(Identity::Local(51, 7), Identity::Pool(pool, inode)));
        assert!(mounts.are_one(Identity::Pool(other, inode), Identity::Local(52, 7)));
        assert!(mounts.are_one(Identity::Local(1, 7), Identity::Local(1, 7)));
        for (one, two) in [
            (Identity::Local(51, 8), Identity::Pool(pool, inode)),
            (Identity::Local(51, 7), Identity::Pool(other, inode)),
            (Identity::Local(53, 7), Identity::Pool(pool, inode)),
            (Identity::Local(51, 7), Identity::Local(52, 7)),
        ] {
            assert!(!mounts.are_one(one, two), "{one:?} {two:?}");
        }
    }
}
