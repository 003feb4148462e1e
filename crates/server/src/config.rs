//! The options of a server, and what the supervisor passes to the child.

use std::path::PathBuf;

use ramlace_base::{Error, ErrorKind, Result, limits, units};
use ramlace_store::Backing;
use ramlace_transport::Secret;
use serde::{Deserialize, Serialize};

/// The options of `ramlace serve`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServeOptions {
    /// Name of the pool, for people and for the store's name.
    pub pool_name: String,
    /// The pool's id, 32 hex digits.
    pub pool_id: String,
    /// This server's number, from 0.
    pub server: u16,
    /// How many servers the pool begins with.
    pub servers: u16,
    /// Slots of the pool.
    pub slots: u32,
    /// `host:port` of the coordinator's server; `None`: the coordinator is embedded here.
    pub coordinator: Option<String>,
    /// `address:port` to listen on; port 0 lets the system choose.
    pub listen: String,
    /// `host:port` under which others shall reach this server; port 0 stands for the port on which it
    /// listens. `None`: the address on which it listens.
    pub advertise: Option<String>,
    /// Path of the Unix socket.
    pub unix: PathBuf,
    /// File with the pool's secret.
    pub secret_file: PathBuf,
    /// Bytes of memory to lend.
    pub store_bytes: u64,
    /// Files, directories and links that it may be home to.
    pub inodes_max: u64,
    /// `auto`, `private-tmpfs` or `shared-memory`.
    pub backing: String,
    /// Allocate the whole memory from the machine in the background.
    pub reserve: bool,
    /// The super-user of a host's session acts as nobody.
    pub root_squash: bool,
    /// Bulk data are sent over the network unencrypted.
    pub trust_network: bool,
    /// `address:port` on which it serves its metrics, without authentication.
    pub metrics: Option<String>,
}

impl ServeOptions {
    /// Refuses options that cannot work, before anything is created.
    pub fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if self.servers == 0 || self.server >= self.servers {
            return refuse(format!(
                "server number {} does not exist in a pool of {} (they count from 0)",
                self.server,
                units::count(self.servers.into(), "server")
            ));
        }
        if self.slots > limits::SLOTS_MAX
            || self.slots < u32::from(self.servers) * limits::SLOTS_PER_SERVER_MIN
        {
            return refuse(format!(
                "{} do not fit {}: at least {} for each server, at most {} in all",
                units::count(self.slots.into(), "slot"),
                units::count(self.servers.into(), "server"),
                limits::SLOTS_PER_SERVER_MIN,
                limits::SLOTS_MAX
            ));
        }
        if self.store_bytes < limits::STORE_BYTES_MIN {
            return refuse(format!(
                "a server lends at least {}, not {}",
                units::format_bytes(limits::STORE_BYTES_MIN),
                units::format_bytes(self.store_bytes)
            ));
        }
        if self.inodes_max == 0 {
            return refuse("a server that may hold no file or directory is of no use".into());
        }
        if self.coordinator.is_none() && self.server != 0 {
            return refuse(format!(
                "server {} needs --coordinator HOST:PORT, the address of server 0",
                self.server
            ));
        }
        self.parsed_backing().map(drop)
    }

    /// The backing that `backing` names.
    pub fn parsed_backing(&self) -> Result<Backing> {
        match self.backing.as_str() {
            "auto" => Ok(Backing::Auto),
            "private-tmpfs" => Ok(Backing::PrivateTmpfs),
            "shared-memory" => Ok(Backing::SharedMemory),
            other => Err(Error::new(
                ErrorKind::Invalid,
                format!("'{other}' is no kind of store; choose auto, private-tmpfs or shared-memory"),
            )),
        }
    }

    /// Reads the secret; a missing or damaged one is an error: there is no access by default.
    pub fn secret(&self) -> Result<Secret> {
        let shown = self.secret_file.display();
        let text = std::fs::read_to_string(&self.secret_file).map_err(|error| {
            Error::new(
                ErrorKind::Denied,
                format!("a server without a secret does not start; cannot read {shown}: {error}"),
            )
        })?;
        Secret::from_hex(text.trim()).map_err(|error| error.context(shown))
    }
}

/// Everything the child needs: the options, the inherited descriptors and the number of restarts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildConfig {
    /// As given to the supervisor.
    pub options: ServeOptions,
    /// Descriptor of the listening TCP socket.
    pub tcp_fd: i32,
    /// Where that socket listens.
    pub tcp_address: String,
    /// Descriptor of the listening Unix socket.
    pub unix_fd: i32,
    /// Descriptor of the store's directory.
    pub store_fd: i32,
    /// The arguments to rebuild the store's root from that descriptor.
    pub store_arguments: String,
    /// Sentences about how the store was made.
    pub store_notes: Vec<String>,
    /// The supervisor writes one byte into it when the server shall stop.
    pub stop_fd: i32,
    /// Where to report that the server is ready; only the first child has it.
    pub ready_fd: Option<i32>,
    /// How often the child was started again.
    pub restarts: u32,
    /// The supervisor's process id.
    pub supervisor_pid: u32,
}
