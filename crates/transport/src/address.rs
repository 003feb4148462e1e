//! Where a server listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ramlace_base::{Error, ErrorKind, Result};

/// An address of a server: written `tcp:host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`; the host is a name, an IPv4 address, or an IPv6 address in brackets.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `tcp:host:port`, `unix:/path`, or a bare `host:port`.
    ///
    /// Errors: `Invalid`, with what is missing.
    pub fn parse(text: &str) -> Result<Address> {
        let refuse = |what: &str| {
            Err(Error::new(
                ErrorKind::Invalid,
                format!("'{}' {what}; write tcp:HOST:PORT or unix:PATH", text.escape_debug()),
            ))
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => refuse("names no socket"),
                path => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        let place = text.strip_prefix("tcp:").unwrap_or(text);
        let Some((host, port)) = place.rsplit_once(':') else {
            return refuse("has no port");
        };
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (host.contains(':') && !bracketed) || host.contains(char::is_whitespace) {
            return refuse("has no proper host");
        }
        if port.parse::<u16>().is_err() {
            return refuse("has no port from 0 to 65535");
        }
        Ok(Address::Tcp(place.to_owned()))
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        Address::parse(text)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(place) => write!(formatter, "tcp:{place}"),
            Address::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were_written() {
        for text in ["tcp:localhost:7000", "tcp:[::1]:7000", "tcp:127.0.0.1:0", "unix:/run/pool/0.sock"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Address::parse("host:1").unwrap(), Address::Tcp("host:1".into()));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "unix:", "tcp:", "host", "host:", ":1", "host:65536", "::1:80", "a b:1", "tcp:host:x"]
        {
            assert_eq!(Address::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }
}
