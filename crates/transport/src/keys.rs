//! What each side of a greeting proves: keys derived from the pool's secret, one for each role.
//!
//! A server proves the pool's *server key*, an X25519 key pair whose private half only the secret gives. A
//! client that connects proves the key of a role; each host has one of its own, by its name and a number, and
//! says in its greeting which. The holder of a host key has that key and the public half of the server key: it
//! can distinguish a server from an impostor, and cannot be a server, the owner or another host.

use std::fmt;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId};
use ramlace_wire::keys::{
    HOST_KEY_NAME_BYTES_MAX, HostKeyId, HostKeyName, KeyBook, PoolSecrets, SecretBytes,
};
use ramlace_wire::{LaneRight, OpenedFor, Permit};
use snow::params::{DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Dh, Hash};

use crate::permits::{Holder, PermitKey};
use crate::seal::Protection;

/// Length of each key.
pub(crate) const KEY_BYTES: usize = 32;
/// Length of the id that distinguishes secrets.
const SECRET_ID_BYTES: usize = 8;
/// Length of a claim: the secret's id, the number and the name of a host's key, padded with zeros.
pub(crate) const CLAIM_BYTES: usize = SECRET_ID_BYTES + 4 + HOST_KEY_NAME_BYTES_MAX;
/// The label that is hashed with the secret into its id.
const SECRET_ID_WORDS: &[u8] = b"ramlace secret id";
/// The label that is hashed with the secret into the private half of the server key.
const SERVER_WORDS: &[u8] = b"ramlace server key";

/// The role in which a connection is made. The greeting is bound to it, and each role has a key of its own.
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

    /// The label that is hashed with the secret into its key.
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

/// Which of the pool's secrets a key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretId([u8; SECRET_ID_BYTES]);

impl SecretId {
    fn of_secret(secret: &[u8; KEY_BYTES]) -> SecretId {
        let derived = derive(secret, SECRET_ID_WORDS);
        SecretId(derived[..SECRET_ID_BYTES].try_into().expect("the first of 32 bytes"))
    }
}

/// Which key a client is about to prove: the bytes between its preamble and message 1, in plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    secret: SecretId,
    host: Option<HostKeyId>,
}

impl Claim {
    pub(crate) fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..SECRET_ID_BYTES].copy_from_slice(&self.secret.0);
        if let Some(host) = &self.host {
            let (serial, name) = bytes[SECRET_ID_BYTES..].split_at_mut(4);
            serial.copy_from_slice(&host.serial.to_le_bytes());
            name[..host.name.as_str().len()].copy_from_slice(host.name.as_str().as_bytes());
        }
        bytes
    }

    /// Errors: `Protocol` for a claim that does not exist in this role.
    pub(crate) fn decode(bytes: &[u8; CLAIM_BYTES], role: Role) -> Result<Claim> {
        let (secret, rest) = bytes.split_at(SECRET_ID_BYTES);
        let secret = SecretId(secret.try_into().expect("it was cut there"));
        let host = match role {
            Role::Host => Some(decode_host(rest)),
            _ if rest.iter().all(|byte| *byte == 0) => None,
            _ => Some(None),
        };
        match host {
            None => Ok(Claim { secret, host: None }),
            Some(Some(host)) => Ok(Claim { secret, host: Some(host) }),
            Some(None) => {
                Err(Error::new(ErrorKind::Protocol, "the client's greeting names a key that cannot be"))
            }
        }
    }
}

fn decode_host(bytes: &[u8]) -> Option<HostKeyId> {
    let (serial, name) = bytes.split_first_chunk::<4>()?;
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let (name, padding) = name.split_at(length);
    let name = HostKeyName::new(std::str::from_utf8(name).ok()?).ok()?;
    padding.iter().all(|byte| *byte == 0).then(|| HostKeyId { name, serial: u32::from_le_bytes(*serial) })
}

/// The key of one host: of the key of all hosts, its number (4 bytes, little endian) and its name.
fn key_of_host(of_hosts: &[u8; KEY_BYTES], host: &HostKeyId) -> [u8; KEY_BYTES] {
    derive(of_hosts, &[&host.serial.to_le_bytes(), host.name.as_str().as_bytes()].concat())
}

/// The key that a connecting side proves, and the one that it asks the server to prove.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientKey {
    role: Role,
    claim: Claim,
    key: [u8; KEY_BYTES],
    server_public: [u8; KEY_BYTES],
}

impl ClientKey {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES], role: Role) -> ClientKey {
        let server_public = public_half(&derive(secret, SERVER_WORDS));
        let claim = Claim { secret: SecretId::of_secret(secret), host: None };
        ClientKey { role, claim, key: derive(secret, role.words()), server_public }
    }

    /// The role in which it connects.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
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

/// The key of one machine that acts for its users: it opens sessions of hosts and nothing else.
/// Nothing prints it but [`HostKey::to_line`].
#[derive(Clone, PartialEq, Eq)]
pub struct HostKey(ClientKey);

impl HostKey {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES], host: HostKeyId) -> HostKey {
        let of_hosts = ClientKey::of_secret(secret, Role::Host);
        let key = key_of_host(&of_hosts.key, &host);
        HostKey(ClientKey { key, claim: Claim { host: Some(host), ..of_hosts.claim }, ..of_hosts })
    }

    /// Reads one line: the key's name, its number, and 144 hexadecimal digits (which secret it comes from, the key,
    /// the public half of the server key).
    ///
    /// Errors: `Invalid`, without a word of what was read.
    pub fn from_line(text: &str) -> Result<HostKey> {
        Self::parse(text).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "this is no host key: a host key is one line that 'ramlace host-key NAME' has printed",
            )
        })
    }

    fn parse(text: &str) -> Option<HostKey> {
        let mut words = text.trim_end_matches(['\r', '\n']).split(' ');
        let (name, serial, digits) = (words.next()?, words.next()?, words.next()?);
        let host = HostKeyId { name: HostKeyName::new(name).ok()?, serial: serial.parse().ok()? };
        let bytes: [u8; SECRET_ID_BYTES + 2 * KEY_BYTES] = from_hex(digits)?;
        let (secret, keys) = bytes.split_first_chunk::<SECRET_ID_BYTES>()?;
        let (key, server_public) = keys.split_first_chunk::<KEY_BYTES>()?;
        let claim = Claim { secret: SecretId(*secret), host: Some(host) };
        let server_public = server_public.try_into().ok()?;
        let key = HostKey(ClientKey { role: Role::Host, claim, key: *key, server_public });
        words.next().is_none().then_some(key)
    }

    /// The line, without a line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        let host = self.0.claim.host.as_ref().expect("a host's key names it");
        let digits = [&self.0.claim.secret.0[..], &self.0.key, &self.0.server_public].concat();
        format!("{} {} {}", host.name, host.serial, to_hex(&digits))
    }

    /// The key that a machine proves with it.
    #[must_use]
    pub fn client_key(&self) -> ClientKey {
        self.0.clone()
    }

    /// The host key's id.
    #[must_use]
    pub fn id(&self) -> &HostKeyId {
        self.0.claim.host.as_ref().expect("a host's key names it")
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HostKey(..)")
    }
}

/// The identity that a client has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    /// The role in which it connects.
    pub role: Role,
    /// Of a host: the id of its key.
    pub host: Option<HostKeyId>,
    /// Which of the pool's secrets its key comes from.
    pub secret: SecretId,
}

/// The keys that one secret gives.
struct OfSecret {
    id: SecretId,
    /// The private half of the server key.
    private: [u8; KEY_BYTES],
    roles: [(Role, [u8; KEY_BYTES]); 3],
    permits: PermitKey,
}

impl OfSecret {
    fn new(secret: &[u8; KEY_BYTES]) -> OfSecret {
        let roles = [Role::Owner, Role::Host, Role::Peer].map(|role| (role, derive(secret, role.words())));
        let permits = PermitKey::of_secret(secret);
        OfSecret { id: SecretId::of_secret(secret), private: derive(secret, SERVER_WORDS), roles, permits }
    }

    fn of(&self, role: Role) -> &[u8; KEY_BYTES] {
        let (_, key) = self.roles.iter().find(|(of, _)| *of == role).expect("every role has a key");
        key
    }
}

/// The keys with which a server answers one greeting.
pub(crate) struct AnswerKeys {
    /// The private half of the server key.
    pub(crate) private: [u8; KEY_BYTES],
    /// The key that the client has to prove.
    pub(crate) key: [u8; KEY_BYTES],
    /// The identity that it has proved then.
    pub(crate) proved: Proved,
}

/// The key that a server proves, and the keys of the clients that it accepts.
pub struct ServerKeys {
    server: ServerId,
    /// One for each secret of the book.
    secrets: Vec<OfSecret>,
    book: KeyBook,
    trusts_network: bool,
}

impl ServerKeys {
    pub(crate) fn of_secret(secret: &[u8; KEY_BYTES], server: ServerId) -> ServerKeys {
        let secrets = PoolSecrets::of(SecretBytes(*secret));
        Self::by_book(KeyBook { version: 0, secrets, hosts: Vec::new() }, server)
    }

    /// The keys of a server that uses this book.
    #[must_use]
    pub fn by_book(book: KeyBook, server: ServerId) -> ServerKeys {
        let secrets = book.secrets.all().map(|secret| OfSecret::new(&secret.0)).collect();
        ServerKeys { server, secrets, book, trusts_network: false }
    }

    /// Bulk data over TCP go as they are, when this is set: the pool's network is trusted.
    #[must_use]
    pub fn trusting_the_network(self, trusts_network: bool) -> ServerKeys {
        ServerKeys { trusts_network, ..self }
    }

    /// The permit that proves to every lane of a file for what a session of a host has it open.
    #[must_use]
    pub fn permit(&self, holder: Holder<'_>, inode: InodeId, opened: OpenedFor) -> Permit {
        // The current secret's; the others know it as well, as the one before or the next.
        self.secrets[0].permits.whole(holder, inode).of(opened)
    }

    /// Whether a permit is enough. One that comes from the secret before, or from the next, is as good.
    #[must_use]
    pub fn permits(&self, holder: Holder<'_>, inode: InodeId, permit: Permit, right: LaneRight) -> bool {
        let mut keys = self.secrets.iter().map(|secret| &secret.permits);
        keys.any(|key| right.is_within(key.proved(holder, inode, permit)))
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

    /// The book it uses.
    #[must_use]
    pub fn book(&self) -> &KeyBook {
        &self.book
    }

    /// The keys for answering a greeting with this claim. Errors: `Denied`.
    pub(crate) fn for_claim(&self, role: Role, claim: Claim) -> Result<AnswerKeys> {
        let secret = self.secrets.iter().find(|secret| secret.id == claim.secret).ok_or_else(wrong_secret)?;
        let of_role = secret.of(role);
        let key = claim.host.as_ref().map_or(*of_role, |host| key_of_host(of_role, host));
        let proved = Proved { role, host: claim.host, secret: claim.secret };
        Ok(AnswerKeys { private: secret.private, key, proved })
    }

    /// Whether this was proved by the secret that is used now, or that will be.
    #[must_use]
    pub fn is_newest(&self, proved: &Proved) -> bool {
        let secrets = &self.book.secrets;
        let newest = std::iter::once(&secrets.current).chain(&secrets.next);
        newest.into_iter().any(|secret| SecretId::of_secret(&secret.0) == proved.secret)
    }

    /// Whether a client that has proved this is accepted.
    ///
    /// Errors: `Denied`, with the key's name when it was revoked, or because the pool has another secret by now.
    pub fn check(&self, proved: &Proved) -> Result<()> {
        match &proved.host {
            _ if self.secrets.iter().all(|secret| secret.id != proved.secret) => Err(wrong_secret()),
            Some(host) if self.book.revokes(host) => {
                let text = format!(
                    "the host key '{}' was revoked; the pool's owner can make another with 'ramlace host-key {}'",
                    host.name, host.name
                );
                Err(Error::new(ErrorKind::Denied, text))
            }
            _ => Ok(()),
        }
    }
}

/// The error for a client without a key of this pool.
pub(crate) fn wrong_secret() -> Error {
    Error::new(ErrorKind::Denied, "the client's secret is not this pool's; check which pool it was given")
}

/// Reads exactly `BYTES` bytes in hexadecimal digits; a line feed at the end is ignored.
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

    fn named(name: &str, serial: u32) -> HostKeyId {
        HostKeyId { name: HostKeyName::new(name).unwrap(), serial }
    }

    /// The numbers are Python's: `h = lambda key, words: hmac.digest(key, words, "blake2s")`, `s = bytes([1]) * 32`,
    /// `h(s, b"ramlace secret id")[:8]`, `h(h(s, b"ramlace host key"), b"\x02\0\0\0node7")`, and RFC 7748's X25519 of the
    /// server key's private half and 9.
    #[test]
    fn every_role_and_every_host_has_a_key_of_its_own() {
        let secret = [1; 32];
        let host = HostKey::of_secret(&secret, named("node7", 2));
        assert_eq!(
            host.to_line(),
            "node7 2 3a1f5da847b9c83b\
             4007beb2ef5122b35a06c633a46e28ef9832a70dd115704d8e54b14ac0e0f02c\
             6c328a444889d2dddcecfc1ee70771c93d4bee306febd02d908aac2e8d2bbd44"
        );
        let of = |role| *ClientKey::of_secret(&secret, role).key();
        assert_ne!(of(Role::Owner), of(Role::Host));
        assert_ne!(of(Role::Owner), of(Role::Peer));
        assert_ne!(of(Role::Owner), secret);
        for other in [named("node7", 1), named("node8", 2), named("node", 2)] {
            assert_ne!(HostKey::of_secret(&secret, other).0.key, host.0.key);
        }
        assert_ne!(HostKey::of_secret(&[2; 32], named("node7", 2)).0.key, host.0.key);
    }

    #[test]
    fn a_host_key_comes_back_from_its_line_and_nothing_else_shows_it() {
        let host = HostKey::of_secret(&[7; 32], named("node7", 3));
        let line = host.to_line();
        assert_eq!(HostKey::from_line(&format!("{line}\n")).unwrap(), host);
        assert_eq!(format!("{host:?} {:?}", host.client_key()), "HostKey(..) ClientKey(Host, ..)");
        for wrong in ["", "00", &"0".repeat(128), "node7 3", &line[1..line.len() - 1], &format!("{line} x")] {
            assert_eq!(HostKey::from_line(wrong).unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
        }
    }

    #[test]
    fn claims_come_back_and_what_cannot_be_one_is_refused() {
        let longest = "n".repeat(HOST_KEY_NAME_BYTES_MAX);
        for host in [named("a", 0), named(&longest, u32::MAX)] {
            let claim = HostKey::of_secret(&[7; 32], host).0.claim;
            assert_eq!(Claim::decode(&claim.encode(), Role::Host).unwrap(), claim);
            assert!(Claim::decode(&claim.encode(), Role::Owner).is_err(), "the owner is no host");
        }
        let owner = ClientKey::of_secret(&[7; 32], Role::Owner).claim;
        assert_eq!(Claim::decode(&owner.encode(), Role::Peer).unwrap(), owner);
        assert!(Claim::decode(&owner.encode(), Role::Host).is_err(), "a host has a name");
        let mut gap = HostKey::of_secret(&[7; 32], named("a", 1)).0.claim.encode();
        gap[CLAIM_BYTES - 1] = b'b';
        assert!(Claim::decode(&gap, Role::Host).is_err(), "nothing stands behind a name");
    }
}
