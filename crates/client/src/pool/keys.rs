//! Administration of the pool's keys, by the pool's owner: making, listing and revoking host keys, and
//! changing the secret.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, ServerId, SessionId};
use ramlace_transport::blocking::Connection;
use ramlace_transport::{Address, HostKey, Secret};
use ramlace_wire::keys::{
    ChangeKeys, HostKeyEntry, HostKeyId, HostKeyName, KeyChange, KeysChanged, KeysListed, ListKeys,
    RotateSecret, Rotation, SecretRotated,
};

use crate::pool::Pool;

/// A host key as the pool's owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeyReport {
    /// The key, when it was made, and when it was revoked.
    pub entry: HostKeyEntry,
    /// Its present sessions, over all servers that answered.
    pub sessions: usize,
}

/// The outcome of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The key.
    pub entry: HostKeyEntry,
    /// Servers that have not acknowledged it yet; the pool notifies them as soon as they answer.
    pub untold: Vec<ServerId>,
}

/// The progress of a change of the pool's secret.
#[derive(Debug)]
pub struct SecretRotation {
    /// The step that it has reached.
    pub rotation: Rotation,
    /// Servers that do not know of it yet, or could not write it into its file; the pool goes on notifying
    /// them.
    pub untold: Vec<ServerId>,
    /// The secret's file here, which has the current one; or why it does not.
    pub file: Result<PathBuf>,
}

/// Whether the server behind this socket of this machine accepts the owner by this secret.
#[must_use]
pub fn lets_owner_in(socket: &Path, secret: &Secret, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    Connection::connect(&Address::Unix(socket.to_owned()), &secret.owner_key(), None, deadline).is_ok()
}

impl Pool {
    /// The key of the host with this name; made, if there is none or it was revoked.
    ///
    /// Errors: `Denied` to callers other than the pool's owner; `TooMany`.
    pub fn make_host_key(&self, name: HostKeyName) -> Result<(HostKeyEntry, HostKey)> {
        let changed = self.change_keys(KeyChange::MakeHost(name))?;
        let line = changed.line.ok_or_else(|| {
            Error::new(ErrorKind::Protocol, "the server made a host key and did not say which")
        })?;
        Ok((changed.entry, HostKey::from_line(&line.0)?))
    }

    /// Revokes the key of the host with this name, at once at every server that answers: its sessions end,
    /// and the key is refused from then on.
    ///
    /// Errors: `NotFound` when no such key was made; `Denied`.
    pub fn revoke_host_key(&self, name: HostKeyName) -> Result<Revoked> {
        let KeysChanged { entry, untold, .. } = self.change_keys(KeyChange::RevokeHost(name))?;
        Ok(Revoked { entry, untold })
    }

    /// Every host key of the pool, ordered by name, and the servers that did not answer.
    pub fn host_keys(&self) -> Result<(Vec<HostKeyReport>, Vec<ServerId>)> {
        let coordinator = self.map()?.coordinator;
        let listed = self.ask_server(coordinator, &ListKeys {})?;
        let mut sessions: BTreeMap<HostKeyId, BTreeSet<SessionId>> = BTreeMap::new();
        let silent = self.collect_sessions(&listed, coordinator, &mut sessions)?;
        let report = |entry: HostKeyEntry| {
            let sessions = sessions.get(&entry.key).map_or(0, BTreeSet::len);
            HostKeyReport { entry, sessions }
        };
        Ok((listed.hosts.into_iter().map(report).collect(), silent))
    }

    fn collect_sessions(
        &self,
        first: &KeysListed,
        coordinator: ServerId,
        sessions: &mut BTreeMap<HostKeyId, BTreeSet<SessionId>>,
    ) -> Result<Vec<ServerId>> {
        let map = self.map()?;
        let others = map.servers.iter().filter(|entry| !entry.forgotten && entry.server != coordinator);
        let mut add = |listed: &KeysListed| {
            for open in &listed.sessions {
                sessions.entry(open.key.clone()).or_default().insert(open.session);
            }
        };
        add(first);
        let mut silent = Vec::new();
        // One thread for each: dead servers then cost one deadline together.
        std::thread::scope(|scope| {
            let asked: Vec<_> = others
                .map(|entry| (entry.server, scope.spawn(|| self.ask_server(entry.server, &ListKeys {}))))
                .collect();
            for (server, asked) in asked {
                match asked.join().expect("asking does not panic") {
                    Ok(listed) => add(&listed),
                    Err(_) => silent.push(server),
                }
            }
        });
        Ok(silent)
    }

    /// Changes the pool's secret while the pool runs: first every server accepts the new one too, then all
    /// use it and write it into their secret's file, and so does this client. The old one is accepted until
    /// `finish`.
    ///
    /// Errors: `Denied` to callers other than the pool's owner; `Busy` when another step has to come first.
    pub fn rotate_secret(&self, finish: bool) -> Result<SecretRotation> {
        let coordinator = self.map()?.coordinator;
        let rotated = self.ask_server(coordinator, &RotateSecret { finish })?;
        let path = self.settings().key.path();
        let kept = match rotated.rotation {
            Rotation::Coming => Ok(()),
            Rotation::Going | Rotation::Over => Secret::of(&rotated.secret).replace_in(path),
        };
        let SecretRotated { rotation, untold, .. } = rotated;
        Ok(SecretRotation { rotation, untold, file: kept.map(|()| path.to_owned()) })
    }

    fn change_keys(&self, change: KeyChange) -> Result<KeysChanged> {
        let coordinator = self.map()?.coordinator;
        self.ask_server(coordinator, &ChangeKeys { change })
    }
}
