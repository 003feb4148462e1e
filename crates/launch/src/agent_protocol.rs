//! What `up` and `down` say to the agent on another host, and what it answers: JSON, one message
//! on each line, over the transport command's standard input and output.
//!
//! The agent sends first, so that nothing secret goes to another program. Every order has one answer, but
//! `Leave`, which has none. The end of the input means `Abort`.

use std::fmt;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{PoolFile, PoolFileServer};
use serde::{Deserialize, Serialize};

use crate::metrics_address::MetricsAddress;

/// Raised whenever a message changes.
pub const AGENT_PROTOCOL: u32 = 3;
/// Longest message: a pool file of 4,096 servers.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The pool's secret in hexadecimal digits; never shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SecretText")
    }
}

/// From the machine on which `up` or `down` runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Make the pool's directory and check that the memory is there. Answer: `Prepared`.
    Prepare(Box<Prepare>),
    /// Start the first server, which has the coordinator. Answer: `Listening`.
    StartFirst,
    /// Start the other servers of this host and wait until all are ready. Answer: `Ready`.
    Start {
        /// Where the coordinator is.
        coordinator: String,
    },
    /// Write pool.json. Answer: `Committed`.
    Commit {
        /// What it shall say; the agent adds what is true of its host alone.
        file: Box<PoolFile>,
    },
    /// The pool is up: end, and let the servers run.
    Leave,
    /// Stop what was started and remove what was made. Answer: `Stopped`.
    Abort,
    /// Check that no program uses a mount of a pool, and change nothing; `Stop` may follow. Answer: `Unused`.
    Check {
        /// Its name.
        pool: String,
        /// Only the pool with this id is meant,
        pool_id: String,
        /// or with this secret.
        secret: SecretText,
    },
    /// Stop a pool that runs. Answer: `Stopped`.
    Stop {
        /// Its name.
        pool: String,
        /// Only the pool with this id is meant,
        pool_id: String,
        /// or with this secret.
        secret: SecretText,
        /// Take its mounts from programs that use them.
        force: bool,
    },
}

/// What a host shall run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Prepare {
    /// The pool's name.
    pub pool: String,
    /// Its id, 32 hexadecimal digits.
    pub pool_id: String,
    /// Its secret.
    pub secret: SecretText,
    /// The host's own name in the hosts file.
    pub host: String,
    /// Numbers of the servers of this host.
    pub servers: Vec<u16>,
    /// Servers of the pool.
    pub servers_total: u16,
    /// Slots of the pool.
    pub slots: u32,
    /// What the first of them listens on; the next ones take the next ports, unless it is 0.
    pub listen: String,
    /// The name by which others reach this host.
    pub advertise: String,
    /// Bytes of all of them together; `None`: half of what is available.
    pub memory: Option<u64>,
    /// Inodes that all servers of the pool may hold; `None`: as usual.
    pub inodes: Option<u64>,
    /// Where the memory comes from.
    pub backing: String,
    /// Take the whole memory at once.
    pub reserve: bool,
    /// The super-user of a mount for all users acts as nobody.
    pub root_squash: bool,
    /// Bulk data cross the network without a key.
    pub trust_network: bool,
    /// Where server 0 serves its metrics; server n takes that port + n.
    pub metrics: Option<MetricsAddress>,
    /// How long servers may take to become ready, in milliseconds.
    pub patience_millis: u64,
}

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The first line of all.
    Hello {
        /// Version of ramlace there.
        version: String,
        /// The agent's protocol.
        protocol: u32,
    },
    /// The directory is made, and the memory is there.
    Prepared {
        /// Bytes of each server.
        store_bytes: u64,
        /// The directory is that of the machine on which `up` runs: this is the same machine.
        shared: bool,
        /// What was found on the way.
        notes: Vec<String>,
    },
    /// The first server listens.
    Listening {
        /// As what others know it.
        address: String,
    },
    /// All servers of this host are ready.
    Ready {
        /// What pool.json says of them.
        servers: Vec<PoolFileServer>,
    },
    /// pool.json is written.
    Committed,
    /// No program uses a mount of the pool here.
    Unused,
    /// Nothing runs here any more.
    Stopped {
        /// How many servers were running.
        servers: usize,
        /// What went otherwise than it should.
        notes: Vec<String>,
    },
    /// The order was not carried out, and what had been begun is undone.
    Error {
        /// The number of the kind of error.
        kind: u16,
        /// The sentence.
        message: String,
    },
}

impl From<&Error> for Answer {
    fn from(error: &Error) -> Answer {
        Answer::Error { kind: error.kind().number(), message: error.message().to_owned() }
    }
}

impl Answer {
    /// A reported error, as an error; every other answer as it is.
    pub fn into_result(self) -> Result<Answer> {
        match self {
            Answer::Error { kind, message } => {
                Err(Error::new(ErrorKind::from_number(kind).unwrap_or(ErrorKind::Fatal), message))
            }
            other => Ok(other),
        }
    }
}

/// One line for a message, with its end.
pub fn line_of<M: Serialize>(message: &M) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message can be written as JSON");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_each_and_come_back() {
        let (pool, pool_id) = ("lab".into(), "0123".into());
        let order = Order::Stop { pool, pool_id, secret: SecretText("c0de".into()), force: false };
        let line = line_of(&order);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let Ok(Order::Stop { pool, pool_id, secret, force: false }) = serde_json::from_slice(&line) else {
            panic!()
        };
        assert_eq!((&pool[..], &pool_id[..], &secret.0[..]), ("lab", "0123", "c0de"));
        assert!(!format!("{order:?}").contains("c0de"), "{order:?}");
        let error = Error::new(ErrorKind::NoSpace, "two\nlines");
        let line = line_of(&Answer::from(&error));
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let answer: Answer = serde_json::from_slice(&line).unwrap();
        assert_eq!(answer.into_result().unwrap_err(), error);
    }
}
