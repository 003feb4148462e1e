//! Part of family 0x01: the pool's key book, which has its secrets, and says which keys of hosts were made and revoked.
//!
//! The coordinator's server keeps the book and sends a newer one to every other server until that has answered.

use std::fmt;

use ramlace_base::{Error, ErrorKind, Result, ServerId, SessionId, Timestamp, limits, numbered_variants};
use serde::{Deserialize, Deserializer, Serialize};

use crate::types::numbered;
use crate::{Kind, Request};

/// Longest name of a host key: what Linux lets a machine be called, within 64 bytes with the serial number.
pub const HOST_KEY_NAME_BYTES_MAX: usize = 60;

/// The name of a host key: letters, digits and `._-`, a letter or digit first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HostKeyName(String);

impl HostKeyName {
    /// The key that lies beside the secret in the pool's directory.
    pub const DEFAULT: &str = "default";

    /// Checks a name.
    ///
    /// Errors: `Invalid`.
    pub fn new(name: impl Into<String>) -> Result<HostKeyName> {
        let name = name.into();
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !first || !name.bytes().all(allowed) || name.len() > HOST_KEY_NAME_BYTES_MAX {
            let text = format!(
                "'{name}' cannot name a host key: it has 1 to {HOST_KEY_NAME_BYTES_MAX} letters, digits and '._-', \
                 a letter or digit first"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(HostKeyName(name))
    }

    /// The name of the key that lies beside the secret.
    #[must_use]
    pub fn shared() -> HostKeyName {
        HostKeyName(Self::DEFAULT.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for HostKeyName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<HostKeyName, D::Error> {
        HostKeyName::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for HostKeyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// One key of a host: a name that is given again after a revocation has another number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostKeyId {
    /// The key's name.
    pub name: HostKeyName,
    /// Counts the keys of this name, from 1.
    pub serial: u32,
}

/// What the book says of a name: its newest key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKeyEntry {
    /// The newest key; those of the same name with a smaller number were revoked.
    pub key: HostKeyId,
    /// When it was made.
    pub made: Timestamp,
    /// When it was revoked.
    pub revoked: Option<Timestamp>,
}

impl HostKeyEntry {
    /// Whether the book takes this key of its name back.
    #[must_use]
    pub fn revokes(&self, serial: u32) -> bool {
        serial < self.key.serial || (serial == self.key.serial && self.revoked.is_some())
    }
}

/// A secret: nothing shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretBytes(pub [u8; 32]);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretBytes(..)")
    }
}

/// The pool's secret, and another one while it is changed. All of them are accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSecrets {
    /// What lies in the secret's file, and what servers use for what they begin.
    pub current: SecretBytes,
    /// The one to come: not every server has received it.
    pub next: Option<SecretBytes>,
    /// The one before: clients that still have it are accepted until the owner ends that.
    pub previous: Option<SecretBytes>,
}

impl PoolSecrets {
    /// One alone.
    #[must_use]
    pub fn of(current: SecretBytes) -> PoolSecrets {
        PoolSecrets { current, next: None, previous: None }
    }

    /// All accepted secrets, the current one first.
    pub fn all(&self) -> impl Iterator<Item = &SecretBytes> {
        std::iter::once(&self.current).chain(&self.next).chain(&self.previous)
    }

    /// How far a change has come.
    #[must_use]
    pub fn rotation(&self) -> Rotation {
        match (&self.next, &self.previous) {
            (Some(_), _) => Rotation::Coming,
            (None, Some(_)) => Rotation::Going,
            (None, None) => Rotation::Over,
        }
    }
}

numbered! {
    /// How far a change of the pool's secret has come.
    Rotation {
        /// There is one secret.
        Over = 0,
        /// Not every server has received the new one, so that it is not used yet.
        Coming = 1,
        /// The new one is in use; the old one still lets in.
        Going = 2,
    }
}

/// The pool's secrets, and which keys of hosts were made and revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyBook {
    /// Counts the changes.
    pub version: u64,
    /// What all keys are worked out from.
    pub secrets: PoolSecrets,
    /// At most [`limits::HOST_KEYS_MAX`], in the order of their names, each once.
    pub hosts: Vec<HostKeyEntry>,
}

impl KeyBook {
    /// What it says of a name.
    #[must_use]
    pub fn host(&self, name: &HostKeyName) -> Option<&HostKeyEntry> {
        let found = self.hosts.binary_search_by(|entry| entry.key.name.cmp(name));
        found.ok().map(|at| &self.hosts[at])
    }

    /// Whether this key was revoked. One that the book does not have was made by the secret's owner all the same.
    #[must_use]
    pub fn revokes(&self, key: &HostKeyId) -> bool {
        self.host(&key.name).is_some_and(|entry| entry.revokes(key.serial))
    }

    /// Whether some pool can have it.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let ascend = self.hosts.is_sorted_by(|one, next| one.key.name < next.key.name);
        let one_other = self.secrets.next.is_none() || self.secrets.previous.is_none();
        ascend
            && one_other
            && self.hosts.len() <= limits::HOST_KEYS_MAX
            && self.hosts.iter().all(|entry| entry.key.serial >= 1)
    }
}

/// What the pool's owner changes in the book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// A key for a host; the one that there is, when it was not revoked.
    MakeHost(HostKeyName),
    /// The newest key of this name is no longer accepted.
    RevokeHost(HostKeyName),
}

numbered_variants! { KeyChange:
    0 MakeHost(body);
    1 RevokeHost(body);
}

/// The pool's owner changes the key book. To the coordinator's server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeKeys {
    /// What.
    pub change: KeyChange,
}

/// Text that is a key: nothing shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyText(pub String);

impl fmt::Debug for KeyText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeyText(..)")
    }
}

/// The book is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysChanged {
    /// What the book says of the host that was named.
    pub entry: HostKeyEntry,
    /// Of a key that was made: the line of its file.
    pub line: Option<KeyText>,
    /// Servers that have not answered yet; they get the book as soon as they do.
    pub untold: Vec<ServerId>,
}

impl Request for ChangeKeys {
    const KIND: Kind = Kind::ChangeKeys;
    type Reply = KeysChanged;
}

/// A server asks the coordinator's for the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetKeyBook {}

impl Request for GetKeyBook {
    const KIND: Kind = Kind::GetKeyBook;
    type Reply = KeyBook;

    fn fits(&self, reply: &KeyBook) -> bool {
        reply.is_possible()
    }
}

/// The coordinator's server sends another the book. Answered when it is in force there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptKeyBook {
    /// The book.
    pub book: KeyBook,
}

impl Request for AdoptKeyBook {
    const KIND: Kind = Kind::AdoptKeyBook;
    type Reply = ();
}

/// The pool's owner asks a server for its book and for the keys of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListKeys {}

/// A session of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSession {
    /// The key that opened it.
    pub key: HostKeyId,
    /// The session.
    pub session: SessionId,
}

/// What a server knows of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysListed {
    /// At most [`limits::HOST_KEYS_MAX`].
    pub hosts: Vec<HostKeyEntry>,
    /// At most [`limits::SESSIONS_OF_HOSTS_MAX`].
    pub sessions: Vec<HostSession>,
}

impl Request for ListKeys {
    const KIND: Kind = Kind::ListKeys;
    type Reply = KeysListed;

    fn fits(&self, reply: &KeysListed) -> bool {
        reply.hosts.len() <= limits::HOST_KEYS_MAX && reply.sessions.len() <= limits::SESSIONS_OF_HOSTS_MAX
    }
}

/// The pool's owner changes the pool's secret. To the coordinator's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateSecret {
    /// The previous secret is no longer accepted; otherwise a new one is made.
    pub finish: bool,
}

/// How far the change has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRotated {
    /// How far.
    pub rotation: Rotation,
    /// The secret that counts from now on, or still.
    pub secret: SecretBytes,
    /// Servers that have not received it yet, or could not write it into its file; it is sent to them until
    /// they have.
    pub untold: Vec<ServerId>,
}

impl Request for RotateSecret {
    const KIND: Kind = Kind::RotateSecret;
    type Reply = SecretRotated;
}
