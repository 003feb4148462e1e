//! `--metrics ADDRESS:PORT` of a pool: each of its servers has a port of its own.

use std::str::FromStr;

use ramlace_base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Where the servers serve their metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsAddress {
    host: String,
    port: u16,
}

impl MetricsAddress {
    /// Server n takes the port + n.
    pub fn of_server(&self, server: u16) -> String {
        format!("{}:{}", self.host, usize::from(self.port) + usize::from(server))
    }
}

impl FromStr for MetricsAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<MetricsAddress> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        match parts {
            Some((host, port)) if !host.is_empty() && port > 0 => {
                Ok(MetricsAddress { host: host.to_owned(), port })
            }
            _ => {
                Err(Error::new(ErrorKind::Invalid, "write ADDRESS:PORT with a port, such as 127.0.0.1:9464"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_ports_one_after_the_other() {
        let address: MetricsAddress = "[::1]:9464".parse().unwrap();
        assert_eq!((address.of_server(0), address.of_server(3)), ("[::1]:9464".into(), "[::1]:9467".into()));
        for wrong in ["", "9464", ":9464", "a:", "a:0", "a:65536", "a:b"] {
            assert!(wrong.parse::<MetricsAddress>().is_err(), "{wrong}");
        }
    }
}
