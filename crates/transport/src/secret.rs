//! The pool's secret: 256 random bits that every process of the pool's owner can read.

use std::fmt;

use ramlace_base::{Error, ErrorKind, Result, ServerId};
use ramlace_wire::keys::{HostKeyId, HostKeyName, SecretBytes};

use crate::keys::{self, ClientKey, HostKey, Role, ServerKeys};

/// Length of a secret.
const SECRET_BYTES: usize = 32;

/// A pool's secret. Nothing prints it but [`Secret::to_hex`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A new secret from a source of entropy that fills the given buffer.
    pub fn generate(entropy: &mut dyn FnMut(&mut [u8])) -> Secret {
        let mut bytes = [0; SECRET_BYTES];
        entropy(&mut bytes);
        assert!(bytes != [0; SECRET_BYTES], "the source of entropy gave nothing");
        Secret(bytes)
    }

    /// The secret of a message.
    #[must_use]
    pub fn of(bytes: &SecretBytes) -> Secret {
        Secret(bytes.0)
    }

    /// The secret with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The secret as messages carry it.
    #[must_use]
    pub fn to_bytes(&self) -> SecretBytes {
        SecretBytes(self.0)
    }

    /// Reads one line of 64 hexadecimal digits; a line feed at its end is ignored.
    ///
    /// Errors: `Invalid`, without any part of the text.
    pub fn from_hex(text: &str) -> Result<Secret> {
        keys::from_hex(text).map(Secret).ok_or_else(refuse)
    }

    /// 64 hexadecimal digits, without a line feed.
    #[must_use]
    pub fn to_hex(&self) -> String {
        keys::to_hex(&self.0)
    }

    /// The key that the pool's owner proves to its servers.
    #[must_use]
    pub fn owner_key(&self) -> ClientKey {
        ClientKey::of_secret(&self.0, Role::Owner)
    }

    /// The key that a server of the pool proves to the others.
    #[must_use]
    pub fn peer_key(&self) -> ClientKey {
        ClientKey::of_secret(&self.0, Role::Peer)
    }

    /// The key of a machine that acts for its users.
    #[must_use]
    pub fn host_key(&self, host: HostKeyId) -> HostKey {
        HostKey::of_secret(&self.0, host)
    }

    /// The host key that lies beside the secret in the pool's directory.
    #[must_use]
    pub fn shared_host_key(&self) -> HostKey {
        self.host_key(HostKeyId { name: HostKeyName::shared(), serial: 1 })
    }

    /// The key that the server with this number proves, and those that it accepts.
    #[must_use]
    pub fn server_keys(&self, server: ServerId) -> ServerKeys {
        ServerKeys::of_secret(&self.0, server)
    }
}

fn refuse() -> Error {
    Error::new(ErrorKind::Invalid, "this is no pool secret: a secret is one line of 64 hexadecimal digits")
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_comes_back_and_nothing_else_shows_it() {
        let mut next = 0;
        let secret = Secret::generate(&mut |bytes| {
            bytes.fill_with(|| {
                next += 1;
                next
            })
        });
        let hex = secret.to_hex();
        assert!(hex.starts_with("010203") && hex.len() == 64);
        assert_eq!(Secret::from_hex(&format!("{hex}\n")).unwrap(), secret);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn what_is_no_secret_is_refused_and_not_shown() {
        let almost = "g".repeat(64);
        for text in ["", "00", almost.as_str(), &"0".repeat(63), &"0".repeat(65), &"é".repeat(32)] {
            let error = Secret::from_hex(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(text.is_empty() || !error.message().contains(text) || text == "00");
        }
    }
}
