//! How servers compute permits ([`Permit`]): a MAC under a key that the pool's secret gives, and no host has.
//!
//! HMAC-SHA-256 of the inode, the session, the pool and the host's key. Its first 8 bytes prove the right to
//! read, the next 8 that to write: a client that has one half learns nothing of the other. A client that
//! guesses is refused 2^63 times before one guess is right on average, each time by a server that was asked;
//! that is why 8 bytes are enough.

use ramlace_base::{InodeId, SessionId};
use ramlace_wire::keys::HostKeyId;
use ramlace_wire::{OpenedFor, Permit, PoolId};
use ring::hmac;

use crate::keys::{KEY_BYTES, derive};

/// The label that is hashed with the secret into the key of permits.
const PERMIT_WORDS: &[u8] = b"ramlace permit key";
/// The bytes that the MAC covers, except the name: inode, session, pool, and the number of the host's key.
const FIXED_BYTES: usize = 8 + 16 + 16 + 4;

/// The host's session that a permit is for.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The pool, by its number: another one begins its inodes' numbers anew, and may have the same secret.
    pub pool: PoolId,
    /// The session that has the file open.
    pub session: SessionId,
    /// The key that has opened it: a session's number alone could occur again.
    pub host: &'a HostKeyId,
}

/// The key of permits that one secret gives.
pub(crate) struct PermitKey(hmac::Key);

impl PermitKey {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES]) -> PermitKey {
        PermitKey(hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, PERMIT_WORDS)))
    }

    /// Both halves.
    pub(crate) fn whole(&self, holder: Holder<'_>, inode: InodeId) -> Permit {
        let name = holder.host.name.as_str().as_bytes();
        let mut said = [0; FIXED_BYTES + ramlace_wire::keys::HOST_KEY_NAME_BYTES_MAX];
        said[..8].copy_from_slice(&inode.0.to_le_bytes());
        said[8..24].copy_from_slice(&holder.session.0);
        said[24..40].copy_from_slice(&holder.pool.0);
        said[40..FIXED_BYTES].copy_from_slice(&holder.host.serial.to_le_bytes());
        said[FIXED_BYTES..][..name.len()].copy_from_slice(name);
        let tag = hmac::sign(&self.0, &said[..FIXED_BYTES + name.len()]);
        let half = |at: usize| tag.as_ref()[at..at + 8].try_into().expect("8 of 32 bytes");
        Permit { read: half(0), write: half(8) }
    }

    /// Which rights a permit proves.
    pub(crate) fn proved(&self, holder: Holder<'_>, inode: InodeId, permit: Permit) -> OpenedFor {
        let whole = self.whole(holder, inode);
        OpenedFor { read: is_same(permit.read, whole.read), write: is_same(permit.write, whole.write) }
    }
}

/// In the same time whatever they are.
fn is_same(one: [u8; 8], other: [u8; 8]) -> bool {
    u64::from_ne_bytes(one) ^ u64::from_ne_bytes(other) == 0
}

#[cfg(test)]
mod tests {
    use ramlace_wire::keys::HostKeyName;

    use super::*;

    fn host(name: &str, serial: u32) -> HostKeyId {
        HostKeyId { name: HostKeyName::new(name).unwrap(), serial }
    }

    // SEMANTICS 130.1
    #[test]
    fn a_permit_is_for_one_inode_one_session_one_pool_and_one_key_and_any_flipped_bit_ends_its_half() {
        const BOTH: OpenedFor = OpenedFor { read: true, write: true };
        let key = PermitKey::of_secret(&[7; 32]);
        let alpha = host("alpha", 1);
        let (session, inode) = (SessionId([1; 16]), InodeId(77));
        let holder = Holder { pool: PoolId([3; 16]), session, host: &alpha };
        let whole = key.whole(holder, inode);
        assert_eq!(key.proved(holder, inode, whole), BOTH);
        let none = OpenedFor::default();
        assert_eq!(key.proved(holder, InodeId(78), whole), none);
        assert_eq!(key.proved(Holder { session: SessionId([2; 16]), ..holder }, inode, whole), none);
        assert_eq!(key.proved(Holder { pool: PoolId([4; 16]), ..holder }, inode, whole), none);
        for other in [host("alpha", 2), host("alph", 1), host("beta", 1)] {
            assert_eq!(key.proved(Holder { host: &other, ..holder }, inode, whole), none);
        }
        assert_eq!(PermitKey::of_secret(&[8; 32]).proved(holder, inode, whole), none);
        assert_eq!(key.proved(holder, inode, Permit::default()), none);
        let swapped = Permit { read: whole.write, write: whole.read };
        assert_eq!(key.proved(holder, inode, swapped), none);
        for bit in 0..64 {
            let mut flipped = whole;
            flipped.read[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.proved(holder, inode, flipped), OpenedFor { read: false, write: true });
            flipped = whole;
            flipped.write[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.proved(holder, inode, flipped), OpenedFor { read: true, write: false });
        }
    }

    #[test]
    fn a_permit_has_the_halves_that_the_file_was_opened_for() {
        let key = PermitKey::of_secret(&[7; 32]);
        let alpha = host("alpha", 1);
        let holder = Holder { pool: PoolId([3; 16]), session: SessionId([1; 16]), host: &alpha };
        for (read, write) in [(false, false), (false, true), (true, false), (true, true)] {
            let opened = OpenedFor { read, write };
            let permit = key.whole(holder, InodeId(5)).of(opened);
            assert_eq!(key.proved(holder, InodeId(5), permit), opened);
        }
    }
}
