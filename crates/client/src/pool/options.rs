//! How to reach a pool, and what a session may use.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_transport::blocking::resolve;

use crate::bytes::blocks::BLOCK_BYTES;
use crate::pool::directory::{HOST_KEY_FILE_VARIABLE, PoolDirectory, SECRET_FILE_VARIABLE};
use crate::pool::key_source::KeySource;
use crate::pool::locator::{self, Locator, PoolName};
use crate::session::settings::{Seed, Settings};

/// Environment variable that switches the local shortcuts off when it is `off`.
pub const LOCAL_VARIABLE: &str = "RAMLACE_LOCAL";

/// How to reach a pool. `ConnectOptions::default()` means this user's default pool.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The pool, in any form that [`PoolName::parse`] reads; `None`: `RAMLACE_POOL`, else "default".
    pub pool: Option<String>,
    /// `host:port` of several servers, for a pool that lives elsewhere; then `pool` is not used.
    pub addresses: Vec<String>,
    /// Where the secret lies; `None`: `RAMLACE_SECRET_FILE`, else the pool's directory.
    pub secret_file: Option<PathBuf>,
    /// Where the host key lies, for `for_users`; `None`: `RAMLACE_HOST_KEY_FILE`, else the pool's directory.
    pub host_key_file: Option<PathBuf>,
    /// Act for the users of this machine ([`crate::acting_for`]), by the pool's host key. Requests outside of
    /// that are made as nobody.
    pub for_users: bool,
    /// Whether Unix sockets and mappings may be used with servers on this machine.
    pub local: bool,
    /// How long one operation may take before it fails, in milliseconds. For bytes that other machines'
    /// kernels have, operations wait longer, as long as their server lives.
    pub deadline_millis: u32,
    /// A label for this client, for people: shown by `ramlace status`.
    pub label: String,
    /// How many bytes of small reads may be cached for the next reads, as long as their file is open; 0:
    /// none, else at least 65,536. The cache takes a second session. A call that changes these bytes, also of
    /// this process, returns when they are dropped. Stores of programs into mapped memory are seen when they
    /// are published, and SEMANTICS 139 names what else differs from reads without a cache.
    pub cache_bytes: u64,
    /// Creates of files one after the other, in directories that no other client uses, are sent a moment
    /// later, many in one message (SEMANTICS 142). For callers that handle recalls, and promises that could
    /// not be kept.
    pub behind: bool,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        let program = std::env::args_os().next().map(PathBuf::from);
        let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
        ConnectOptions {
            pool: None,
            addresses: Vec::new(),
            secret_file: None,
            host_key_file: None,
            for_users: false,
            local: std::env::var_os(LOCAL_VARIABLE).is_none_or(|value| value != "off"),
            deadline_millis: limits::DEADLINE_MILLIS_DEFAULT,
            label: program.to_string_lossy().into_owned(),
            cache_bytes: 0,
            behind: false,
        }
    }
}

impl ConnectOptions {
    /// The pool of a locator; `named` (from `--pool`) decides for `ramlace:/path`.
    #[must_use]
    pub fn for_locator(locator: &Locator, named: Option<&str>) -> ConnectOptions {
        let options = ConnectOptions::default();
        match &locator.pool {
            PoolName::Default => ConnectOptions { pool: named.map(str::to_owned), ..options },
            PoolName::Named(name) => ConnectOptions { pool: Some(name.clone()), ..options },
            PoolName::At(address) => ConnectOptions { addresses: vec![address.clone()], ..options },
        }
    }

    /// Finds addresses and secret, and checks the rest. Also returns how the pool was named: by its name or
    /// an address; a default is resolved.
    pub(crate) fn resolve(&self) -> Result<(Settings, PoolName)> {
        if self.deadline_millis == 0 || self.deadline_millis > limits::DEADLINE_MILLIS_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("a deadline lies between 1 and {} milliseconds", limits::DEADLINE_MILLIS_MAX),
            ));
        }
        if (1..BLOCK_BYTES).contains(&self.cache_bytes) {
            let text = format!(
                "a cache of {} bytes keeps nothing; it takes 0, or at least {BLOCK_BYTES}",
                self.cache_bytes
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let reached = match self.addresses.first() {
            Some(address) => PoolName::At(address.clone()),
            None => PoolName::meant(self.pool.as_deref())?,
        };
        let (seeds, pool, key) = match &reached {
            PoolName::At(_) if !self.addresses.is_empty() => self.resolve_elsewhere(&self.addresses)?,
            PoolName::At(address) => self.resolve_elsewhere(std::slice::from_ref(address))?,
            named => self.resolve_here(&named.to_string())?,
        };
        let settings = Settings {
            seeds,
            pool,
            key,
            for_users: self.for_users,
            local: self.local,
            deadline_millis: self.deadline_millis.into(),
            label: self.label.clone(),
            behind: self.behind && !self.for_users,
            waits_are_over: AtomicBool::new(false),
            ends: AtomicBool::new(false),
        };
        Ok((settings, reached))
    }

    fn resolve_here(&self, name: &str) -> Result<(Vec<Seed>, Option<String>, KeySource)> {
        let directory = PoolDirectory::locate(name)?;
        let file = directory.read_pool_file()?;
        let key = match self.key_path() {
            Some(path) => self.read_key(&path)?,
            None => self.key_of(&directory)?,
        };
        let seeds = file.servers.into_iter().map(|server| Seed {
            server: Some(server.id()),
            tcp: server.tcp,
            unix: server.unix,
        });
        Ok((seeds.collect(), Some(file.pool), key))
    }

    fn resolve_elsewhere(&self, addresses: &[String]) -> Result<(Vec<Seed>, Option<String>, KeySource)> {
        if let Some(wrong) = addresses.iter().find(|address| !locator::is_address(address)) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("'{}' is no address of a server; write host:port", wrong.escape_debug()),
            ));
        }
        let key = match self.key_path() {
            Some(path) => self.read_key(&path)?,
            None => self.key_of_known_pool(addresses)?,
        };
        let seeds = addresses.iter().map(|tcp| Seed { server: None, tcp: tcp.clone(), unix: None });
        Ok((seeds.collect(), None, key))
    }

    /// An address may belong to a pool of this user on this machine: then its secret is known.
    fn key_of_known_pool(&self, addresses: &[String]) -> Result<KeySource> {
        for directory in PoolDirectory::list()? {
            let Ok(file) = directory.read_pool_file() else { continue };
            if file.servers.iter().any(|server| addresses.contains(&server.tcp)) {
                return self.key_of(&directory);
            }
        }
        self.find_host(addresses)?;
        let (key, file, variable) = match self.for_users {
            true => ("host key", "host-key", HOST_KEY_FILE_VARIABLE),
            false => ("secret", "secret", SECRET_FILE_VARIABLE),
        };
        Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "the {key} of the pool at {} is not known here; where the pool was started it lies at \
                 $XDG_RUNTIME_DIR/ramlace/POOL/{file}, or /tmp/ramlace-UID/POOL/{file} ('ramlace pools' there says \
                 which): copy it and name the copy in {variable}",
                addresses.join(", ")
            ),
        ))
    }

    /// A host that does not exist is reported as that, before advice to copy its secret.
    fn find_host(&self, addresses: &[String]) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(self.deadline_millis.into());
        let mut last = None;
        for address in addresses {
            match resolve(address, deadline) {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(error.context(address)),
            }
        }
        last.map_or(Ok(()), Err)
    }

    fn key_of(&self, directory: &PoolDirectory) -> Result<KeySource> {
        self.read_key(&if self.for_users { directory.host_key_path() } else { directory.secret_path() })
    }

    fn read_key(&self, path: &Path) -> Result<KeySource> {
        KeySource::read(path, self.for_users)
    }

    /// The key's file, if one was named.
    fn key_path(&self) -> Option<PathBuf> {
        let named = if self.for_users { &self.host_key_file } else { &self.secret_file };
        let variable = if self.for_users { HOST_KEY_FILE_VARIABLE } else { SECRET_FILE_VARIABLE };
        named
            .clone()
            .or_else(|| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from))
    }
}
