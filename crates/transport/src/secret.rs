//! The pool's secret: 256 random bits that every process of the pool's owner can read.

use std::fmt;

use ramlace_base::{Error, ErrorKind, Result};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

/// What is hashed with the secret into the host key.
const HOST_KEY_WORDS: &[u8] = b"ramlace host key";
/// Length of a secret.
const SECRET_BYTES: usize = 32;

/// A pool's secret. Nothing prints it but [`Secret::to_hex`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A new secret from a source of entropy that fills what it is given.
    pub fn generate(entropy: &mut dyn FnMut(&mut [u8])) -> Secret {
        let mut bytes = [0; SECRET_BYTES];
        entropy(&mut bytes);
        assert!(bytes != [0; SECRET_BYTES], "the source of entropy gave nothing");
        Secret(bytes)
    }

    /// The secret with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// Reads one line of 64 hexadecimal digits; a line feed at its end does no harm.
    ///
    /// Errors: `Invalid`, without a word of what was read.
    pub fn from_hex(text: &str) -> Result<Secret> {
        let digits = text.trim_end_matches(['\r', '\n']).as_bytes();
        let mut bytes = [0; SECRET_BYTES];
        if digits.len() != 2 * SECRET_BYTES {
            return Err(refuse());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or_else(refuse);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Ok(Secret(bytes))
    }

    /// 64 hexadecimal digits, without a line feed.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The host key of the pool with this secret: HMAC-BLAKE2s of `ramlace host key`. Who has the
    /// secret has both; who is given the host key alone cannot work out the secret.
    #[must_use]
    pub fn host_key(&self) -> Secret {
        let mut hash = DefaultResolver.resolve_hash(&HashChoice::Blake2s).expect("BLAKE2s is built in");
        let mut bytes = [0; SECRET_BYTES];
        hash.hmac(&self.0, HOST_KEY_WORDS, &mut bytes);
        Secret(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
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

    /// The number is Python's: `hmac.new(bytes([1]) * 32, b"ramlace host key", "blake2s")`.
    #[test]
    fn the_host_key_is_another_key() {
        let (secret, other) = (Secret::from_bytes([1; 32]), Secret::from_bytes([2; 32]));
        let expected = "0ba5fabd304b38f2a7ea2641dffdbf11c5ff5ab3fd80af4836d93684ea5e71ec";
        assert_eq!(secret.host_key().to_hex(), expected);
        assert_ne!(secret.host_key(), other.host_key());
        assert_ne!(secret.host_key(), secret);
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
