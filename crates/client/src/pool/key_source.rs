//! The key by which a client proves its identity, and the key's file: a pool's secret may change while a
//! program runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_transport::{ClientKey, ConnectFailure};

use crate::pool::directory;

/// A key and its file. A forked child reads it without a lock.
pub(crate) struct KeySource {
    /// The key as it was when the pool was connected.
    key: ClientKey,
    path: PathBuf,
    /// It is a host's key, not the owner's.
    for_users: bool,
    /// Servers have refused `key`, but not what the file has now.
    is_old: AtomicBool,
}

impl KeySource {
    /// Reads the key from its file.
    pub(crate) fn read(path: &Path, for_users: bool) -> Result<KeySource> {
        // The program may change its directory later.
        let path = std::path::absolute(path)
            .map_err(|error| Error::from_io(&error, format!("finding {}", path.display())))?;
        let key = read(&path, for_users)?;
        Ok(KeySource { key, path, for_users, is_old: AtomicBool::new(false) })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Connects with this key. If a server refuses it, and the file has another one by now, connects with
    /// that.
    pub(crate) fn connect<T>(
        &self,
        connect: impl Fn(&ClientKey) -> std::result::Result<T, ConnectFailure>,
    ) -> std::result::Result<T, ConnectFailure> {
        let newer = || read(&self.path, self.for_users).ok().filter(|key| *key != self.key);
        if self.is_old.load(Ordering::Relaxed)
            && let Some(key) = newer()
        {
            return connect(&key);
        }
        let connected = connect(&self.key);
        match &connected {
            Err(failure) if failure.error.kind() == ErrorKind::Denied => {}
            _ => return connected,
        }
        let Some(key) = newer() else { return connected };
        let connected = connect(&key);
        if connected.is_ok() {
            self.is_old.store(true, Ordering::Relaxed);
        }
        connected
    }
}

fn read(path: &Path, for_users: bool) -> Result<ClientKey> {
    if for_users {
        return directory::read_host_key_file(path).map(|key| key.client_key());
    }
    directory::read_secret_file(path).map(|secret| secret.owner_key())
}
