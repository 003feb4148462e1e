//! What the agent does on its host: the pool's directory, its servers, and undoing both.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result, ServerId};
use ramlace_client::{PoolDirectory, PoolFile, PoolFileServer, Secret};
use ramlace_server::ServeOptions;

use crate::agent_protocol::{Answer, Prepare};
use crate::claim::clear_stale;
use crate::daemon::{Daemon, wait_until};
use crate::lingering::lingering_note;
use crate::lock::DirectoryLock;
use crate::plan::{inodes_of_server, share_memory};
use crate::stop::{remove_directory, remove_stale_stores, stop_servers};

/// How long another `up` or `down` on this host may hold the pool's directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two checks of the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The servers of this host, as far as they are started.
pub struct Site {
    told: Prepare,
    program: PathBuf,
    directory: PoolDirectory,
    /// None where `up` itself runs in the same directory: then that is its, and it clears it away.
    lock: Option<DirectoryLock>,
    notes: Vec<String>,
    store_bytes: u64,
    daemons: Vec<Daemon>,
    /// pool.json is written.
    pub committed: bool,
}

impl Site {
    /// Makes the pool's directory this pool's own.
    pub fn enter(told: Prepare, program: &Path) -> Result<Site> {
        let secret = Secret::from_hex(&told.secret.0)?;
        let directory = PoolDirectory::locate(&told.pool)?;
        let mut notes = Vec::new();
        let lock = match lock(&directory, &secret)? {
            Some(lock) => {
                notes = clear_stale(&directory)?;
                // What `clear_stale` leaves is a secret that is not in use.
                Some(renew(&directory, &secret, lock)?)
            }
            None => None,
        };
        Ok(Site {
            told,
            program: program.to_owned(),
            directory,
            lock,
            notes,
            store_bytes: 0,
            daemons: Vec::new(),
            committed: false,
        })
    }

    /// Checks the memory.
    pub fn prepare(&mut self) -> Result<Answer> {
        let count = u16::try_from(self.told.servers.len()).unwrap_or(u16::MAX);
        if count == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a host without servers"));
        }
        let machine = ramlace_store::machine_memory()?;
        self.store_bytes = share_memory(self.told.memory, count, &machine).map_err(|error| {
            let wanted = self.told.memory.map_or(String::new(), |memory| {
                format!(" (this host's share is {}; memory= in the hosts file sets it)", format_bytes(memory))
            });
            Error::new(error.kind(), format!("{}{wanted}", error.message()))
        })?;
        // Where `up` itself runs in the same directory it says so itself.
        if self.lock.is_some() {
            self.notes.extend(lingering_note(&self.directory));
        }
        Ok(Answer::Prepared {
            store_bytes: self.store_bytes,
            shared: self.lock.is_none(),
            notes: std::mem::take(&mut self.notes),
        })
    }

    /// Starts the server with the coordinator, and says where others reach it.
    pub fn start_first(&mut self, watch: &[BorrowedFd<'_>]) -> Result<Answer> {
        let daemon = Daemon::start(&self.program, &self.options(0, None)?, &self.log(0))?;
        self.daemons.push(daemon);
        let end = self.end();
        wait_until(&mut self.daemons, end, watch, |daemon| daemon.address.is_some())?;
        Ok(Answer::Listening { address: self.address(&self.daemons[0]) })
    }

    /// Starts the others; when all are ready, returns what pool.json contains of them.
    pub fn start(&mut self, coordinator: &str, watch: &[BorrowedFd<'_>]) -> Result<Answer> {
        for place in self.daemons.len()..self.told.servers.len() {
            let options = self.options(place, Some(coordinator.to_owned()))?;
            self.daemons.push(Daemon::start(&self.program, &options, &self.log(place))?);
        }
        let end = self.end();
        wait_until(&mut self.daemons, end, watch, |daemon| daemon.ready)?;
        let servers = self.daemons.iter().map(|daemon| PoolFileServer {
            server: daemon.server,
            tcp: self.address(daemon),
            unix: Some(self.directory.socket_path(ServerId(daemon.server))),
            supervisor_pid: daemon.supervisor.id(),
            host: Some(self.told.host.clone()),
        });
        Ok(Answer::Ready { servers: servers.collect() })
    }

    /// Writes pool.json, in which this host's servers have Unix sockets.
    pub fn commit(&mut self, mut file: PoolFile) -> Result<Answer> {
        for server in &mut file.servers {
            let here = self.told.servers.contains(&server.server);
            server.unix = here.then(|| self.directory.socket_path(server.id()));
        }
        if let Some(hosts) = &mut file.hosts {
            hosts.here = Some(self.told.host.clone());
        }
        if self.lock.is_some() {
            self.directory.write_pool_file(&file)?;
        }
        self.committed = true;
        Ok(Answer::Committed)
    }

    /// Stops what was started and removes what was made; how many servers that were.
    pub fn undo(self) -> Result<(usize, Vec<String>)> {
        let (servers, notes) = stop_servers(&self.directory)?;
        remove_stale_stores(&self.directory)?;
        if self.lock.is_some() {
            remove_directory(&self.directory)?;
        }
        Ok((servers, notes))
    }

    fn end(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.told.patience_millis)
    }

    fn log(&self, place: usize) -> PathBuf {
        self.directory.log_path(ServerId(self.told.servers[place]))
    }

    /// The options of the server at this place among this host's servers.
    fn options(&self, place: usize, coordinator: Option<String>) -> Result<ServeOptions> {
        let told = &self.told;
        let wrong =
            || Error::new(ErrorKind::Invalid, format!("'{}' is no address to listen on", told.listen));
        let (address, port) = told.listen.rsplit_once(':').ok_or_else(wrong)?;
        let first: u16 = port.parse().map_err(|_| wrong())?;
        let port = if first == 0 { 0 } else { usize::from(first) + place };
        let server = told.servers[place];
        let options = ServeOptions {
            // The name becomes part of the store's, which takes no dots; `serve` sees to that.
            pool_name: told.pool.clone(),
            pool_id: told.pool_id.clone(),
            server,
            servers: told.servers_total,
            slots: told.slots,
            coordinator,
            listen: format!("{address}:{port}"),
            advertise: Some(format!("{}:{port}", told.advertise)),
            unix: self.directory.socket_path(ServerId(server)),
            secret_file: self.directory.secret_path(),
            store_bytes: self.store_bytes,
            inodes_max: inodes_of_server(told.inodes, told.servers_total, self.store_bytes),
            backing: told.backing.clone(),
            reserve: told.reserve,
            root_squash: told.root_squash,
            trust_network: told.trust_network,
            metrics: told.metrics.as_ref().map(|metrics| metrics.of_server(server)),
        };
        options.check()?;
        Ok(options)
    }

    /// As what others know a server that listens.
    fn address(&self, daemon: &Daemon) -> String {
        let listening = daemon.address.as_deref().unwrap_or_default();
        let port = listening.rsplit_once(':').map_or("0", |(_, port)| port);
        format!("{}:{port}", self.told.advertise)
    }
}

/// Locks the pool's directory. None where it is locked by the pool that is being started: this is
/// the machine on which `up` runs, or has two names in the hosts file.
fn lock(directory: &PoolDirectory, secret: &Secret) -> Result<Option<DirectoryLock>> {
    let end = Instant::now() + LOCK_PATIENCE;
    loop {
        // A directory that is not there yet is made with the right secret.
        if !directory.exists()? {
            directory.create_with(secret)?;
        }
        match DirectoryLock::take(directory) {
            Ok(lock) => return Ok(Some(lock)),
            Err(error) if error.kind() != ErrorKind::Busy => return Err(error),
            Err(_) if directory.read_secret().is_ok_and(|found| found == *secret) => return Ok(None),
            Err(error) if Instant::now() >= end => return Err(error),
            Err(_) => std::thread::sleep(LOCK_PAUSE),
        }
    }
}

/// Replaces a secret that a start of long ago has left; nothing runs with it.
fn renew(directory: &PoolDirectory, secret: &Secret, lock: DirectoryLock) -> Result<DirectoryLock> {
    match directory.create_with(secret) {
        Ok(()) => Ok(lock),
        Err(error) if error.kind() == ErrorKind::Exists => {
            let path = directory.secret_path();
            std::fs::remove_file(&path)
                .map_err(|error| Error::from_io(&error, format!("removing {}", path.display())))?;
            directory.create_with(secret)?;
            Ok(lock)
        }
        Err(error) => Err(error),
    }
}
