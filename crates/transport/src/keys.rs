//! What each side of a greeting proves: keys worked out from the pool's secret, one for each role.
//!
//! A server proves the pool's *server key*, an X25519 key pair whose private half only the secret gives.
//! Whoever connects proves the key of a role. The holder of a host key has that role's key and the
//! public half of the server key: it can tell a server from an impostor, and cannot be either a server
//! or the owner.

use std::fmt;

use crate::seal::Protection;
use ramlace_base::{Error, ErrorKind, Result, ServerId};
use snow::params::{DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Dh, Hash};

/// Length of each key.
pub(crate) const KEY_BYTES: usize = 32;
/// What is hashed with the secret into the private half of the server key.
const SERVER_WORDS: &[u8] = b"ramlace server key";

/// As whom a connection is made. The greeting is bound to it, and each role has a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The pool's owner.
    Owner,
    /// A machine that acts for its users.
    Host,
    /// Another server of the pool.
    Peer,
}

impl Role {
    /// Its number in a client's preamble.
    pub(crate) fn number(self) -> u8 {
        match self {
            Role::Owner => 1,
            Role::Host => 2,
            Role::Peer => 3,
        }
    }

    pub(crate) fn by_number(number: u8) -> Option<Role> {
        [Role::Owner, Role::Host, Role::Peer].into_iter().find(|role| role.number() == number)
    }

    /// What is hashed with the secret into its key.
    fn words(self) -> &'static [u8] {
        match self {
            Role::Owner => b"ramlace owner key",
            Role::Host => b"ramlace host key",
            Role::Peer => b"ramlace peer key",
        }
    }
}

fn blake2s() -> Box<dyn Hash> {
    DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("BLAKE2s is built in")
}

/// HMAC-BLAKE2s of these words under the key.
pub(crate) fn derive(key: &[u8; KEY_BYTES], words: &[u8]) -> [u8; KEY_BYTES] {
    let mut derived = [0; KEY_BYTES];
    blake2s().hmac(key, words, &mut derived);
    derived
}

/// The public half of an X25519 key.
fn public_half(private: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
    let mut pair: Box<dyn Dh> =
        DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("X25519 is built in");
    pair.set(private);
    pair.pubkey().try_into().expect("a public key of X25519 has 32 bytes")
}

/// What a side that connects proves, and what it asks the server to prove.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientKey {
    role: Role,
    key: [u8; KEY_BYTES],
    server_public: [u8; KEY_BYTES],
}

impl ClientKey {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES], role: Role) -> ClientKey {
        let server_public = public_half(&derive(secret, SERVER_WORDS));
        ClientKey { role, key: derive(secret, role.words()), server_public }
    }

    /// As whom it connects.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn key(&self) -> &[u8; KEY_BYTES] {
        &self.key
    }

    pub(crate) fn server_public(&self) -> &[u8; KEY_BYTES] {
        &self.server_public
    }
}

impl fmt::Debug for ClientKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClientKey({:?}, ..)", self.role)
    }
}

/// The key of machines that act for their users: it opens sessions of hosts and nothing else.
/// Nothing prints it but [`HostKey::to_hex`].
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey(ClientKey);

impl HostKey {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES]) -> HostKey {
        HostKey(ClientKey::of_secret(secret, Role::Host))
    }

    /// Reads one line of 128 hexadecimal digits: the key, and the public half of the server key.
    ///
    /// Errors: `Invalid`, without a word of what was read.
    pub fn from_hex(text: &str) -> Result<HostKey> {
        let bytes: [u8; 2 * KEY_BYTES] = from_hex(text).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "this is no host key: a host key is one line of 128 hexadecimal digits",
            )
        })?;
        let half = |at: usize| bytes[at..at + KEY_BYTES].try_into().expect("half of the bytes");
        Ok(HostKey(ClientKey { role: Role::Host, key: half(0), server_public: half(KEY_BYTES) }))
    }

    /// 128 hexadecimal digits, without a line feed.
    #[must_use]
    pub fn to_hex(&self) -> String {
        to_hex(&self.0.key) + &to_hex(&self.0.server_public)
    }

    /// What a machine proves with it.
    #[must_use]
    pub fn client_key(&self) -> ClientKey {
        self.0.clone()
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HostKey(..)")
    }
}

/// What a server proves, and the keys of those it lets in.
pub struct ServerKeys {
    server: ServerId,
    private: [u8; KEY_BYTES],
    roles: [(Role, [u8; KEY_BYTES]); 3],
    trusts_network: bool,
}

impl ServerKeys {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES], server: ServerId) -> ServerKeys {
        let roles = [Role::Owner, Role::Host, Role::Peer].map(|role| (role, derive(secret, role.words())));
        ServerKeys { server, private: derive(secret, SERVER_WORDS), roles, trusts_network: false }
    }

    /// Bulk data over TCP go as they are, when this is set: the pool's network is trusted.
    #[must_use]
    pub fn trusting_the_network(self, trusts_network: bool) -> ServerKeys {
        ServerKeys { trusts_network, ..self }
    }

    /// How frames are protected on a connection.
    pub(crate) fn protection(&self, is_unix: bool) -> Protection {
        match (is_unix, self.trusts_network) {
            (true, _) => Protection::Nothing,
            (false, true) => Protection::Heads,
            (false, false) => Protection::Everything,
        }
    }

    /// The number of the server that has them.
    #[must_use]
    pub fn server(&self) -> ServerId {
        self.server
    }

    pub(crate) fn private(&self) -> &[u8; KEY_BYTES] {
        &self.private
    }

    pub(crate) fn of(&self, role: Role) -> &[u8; KEY_BYTES] {
        let (_, key) = self.roles.iter().find(|(of, _)| *of == role).expect("every role has a key");
        key
    }
}

/// Reads exactly so many bytes in hexadecimal digits; a line feed at the end does no harm.
pub(crate) fn from_hex<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let digits = text.trim_end_matches(['\r', '\n']).as_bytes();
    if digits.len() != 2 * BYTES {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(bytes)
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are Python's: `hmac.new(bytes([1]) * 32, b"ramlace host key", "blake2s")`, and RFC 7748's
    /// X25519 of the server key's private half and 9.
    #[test]
    fn every_role_has_a_key_of_its_own() {
        let secret = [1; 32];
        let host = HostKey::of_secret(&secret);
        assert_eq!(&host.to_hex()[..64], "0ba5fabd304b38f2a7ea2641dffdbf11c5ff5ab3fd80af4836d93684ea5e71ec");
        assert_eq!(&host.to_hex()[64..], "6c328a444889d2dddcecfc1ee70771c93d4bee306febd02d908aac2e8d2bbd44");
        let of = |role| *ClientKey::of_secret(&secret, role).key();
        assert_ne!(of(Role::Owner), of(Role::Host));
        assert_ne!(of(Role::Owner), of(Role::Peer));
        assert_ne!(of(Role::Owner), secret);
        assert_ne!(HostKey::of_secret(&[2; 32]), host);
    }

    #[test]
    fn a_host_key_comes_back_from_its_digits_and_nothing_else_shows_it() {
        let host = HostKey::of_secret(&[7; 32]);
        assert_eq!(HostKey::from_hex(&format!("{}\n", host.to_hex())).unwrap(), host);
        assert_eq!(format!("{host:?} {:?}", host.client_key()), "HostKey(..) ClientKey(Host, ..)");
        for wrong in ["", "00", &"0".repeat(64), &"g".repeat(128)] {
            assert_eq!(HostKey::from_hex(wrong).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
