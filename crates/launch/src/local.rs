//! A pool whose servers all run on this machine.

use std::path::Path;
use std::time::Instant;

use ramlace_base::units::{count, format_bytes};
use ramlace_base::{Result, ServerId};
use ramlace_client::{PoolDirectory, PoolFile, PoolFileServer};
use ramlace_server::ServeOptions;

use crate::cancel::Cancel;
use crate::daemon::{Daemon, wait_until};
use crate::plan::{Addresses, PoolOptions, inodes_of_server, random_pool_id, share_memory};
use crate::running::Running;
use crate::sentences::option_for;
use crate::stop::{remove_directory, remove_stale_stores, stop_servers};

/// The servers of a pool on this machine.
#[derive(Clone, Debug)]
pub struct LocalPlan {
    servers: u16,
    addresses: Addresses,
    store_bytes: u64,
    options: PoolOptions,
}

impl LocalPlan {
    /// So many servers with `memory` bytes together, or with half of what this machine has available. They listen at
    /// `listen`, which is `ADDRESS:PORT`: with a port other than 0, server n takes that port + n. Others know them by
    /// the host name `advertise`, else by the address.
    ///
    /// Errors: `Invalid` for what cannot work, `NoSpace` when the machine does not have the memory.
    pub fn new(
        servers: u16,
        memory: Option<u64>,
        listen: &str,
        advertise: Option<&str>,
        options: PoolOptions,
    ) -> Result<LocalPlan> {
        let addresses = Addresses::parse(listen, advertise, servers)?;
        let store_bytes = share_memory(memory, servers, &ramlace_store::machine_memory()?)?;
        Ok(LocalPlan { servers, addresses, store_bytes, options })
    }

    /// Bytes of all servers together.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.store_bytes * u64::from(self.servers)
    }

    /// Whether other machines may reach the servers.
    #[must_use]
    pub fn is_reachable_from_elsewhere(&self) -> bool {
        self.addresses.is_reachable_from_elsewhere()
    }

    fn options_of(
        &self,
        server: u16,
        coordinator: Option<String>,
        pool_id: &str,
        directory: &PoolDirectory,
    ) -> ServeOptions {
        let options = &self.options;
        ServeOptions {
            pool_name: directory.name().to_owned(),
            pool_id: pool_id.to_owned(),
            server,
            servers: self.servers,
            slots: options.slots_of(self.servers),
            coordinator,
            listen: self.addresses.listen(server),
            advertise: self.addresses.advertise(server),
            unix: directory.socket_path(ServerId(server)),
            secret_file: directory.secret_path(),
            store_bytes: self.store_bytes,
            inodes_max: inodes_of_server(options.inodes, self.servers, self.store_bytes),
            backing: options.backing.clone(),
            reserve: options.reserve,
            root_squash: options.root_squash,
            trust_network: options.trust_network,
            metrics: options.metrics.as_ref().map(|metrics| metrics.of_server(server)),
        }
    }
}

/// Starts the servers of a plan in a directory that was claimed, and writes `pool.json`. `program` is `ramlace`.
///
/// Server 0 first, for it has the coordinator; the others at once when it listens.
///
/// What runs already when this fails goes by [`undo_here`], which may take seconds and cannot be cancelled.
pub fn start_here(
    plan: &LocalPlan,
    directory: &PoolDirectory,
    program: &Path,
    cancel: Cancel<'_>,
) -> Result<PoolFile> {
    let pool_id = random_pool_id()?;
    let options = |server, coordinator| plan.options_of(server, coordinator, &pool_id, directory);
    let log = |server| directory.log_path(ServerId(server));
    let watch = [cancel.fd()];
    let first = options(0, None);
    first.check()?;
    let end = Instant::now() + plan.options.patience;
    let mut daemons = vec![Daemon::start(program, &first, &log(0))?];
    wait_until(&mut daemons, end, &watch, |daemon| daemon.address.is_some())?;
    let addresses = &plan.addresses;
    let coordinator = addresses.advertise(0).or_else(|| daemons[0].address.clone());
    for server in 1..plan.servers {
        daemons.push(Daemon::start(program, &options(server, coordinator.clone()), &log(server))?);
    }
    wait_until(&mut daemons, end, &watch, |daemon| daemon.ready)?;
    let servers = daemons.iter().map(|daemon| PoolFileServer {
        server: daemon.server,
        tcp: addresses.advertise(daemon.server).or_else(|| daemon.address.clone()).unwrap_or_default(),
        unix: Some(directory.socket_path(ServerId(daemon.server))),
        supervisor_pid: daemon.supervisor.id(),
        host: None,
    });
    let servers = servers.collect();
    let file = PoolFile {
        name: directory.name().to_owned(),
        pool: pool_id,
        coordinator: 0,
        servers,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hosts: None,
    };
    directory.write_pool_file(&file)?;
    Ok(file)
}

/// Stops what a start has started and removes the directory.
///
/// Errors: when servers run on; then the directory stays, by which `down` finds them. What else is left is found by the
/// next start.
pub fn undo_here(directory: &PoolDirectory) -> Result<()> {
    stop_servers(directory)?;
    let _ = remove_stale_stores(directory);
    let _ = remove_directory(directory);
    Ok(())
}

/// Whether servers of the pool run on this machine: also where its directory, which has all else that is known of it, is
/// gone.
pub fn runs_here(directory: &PoolDirectory) -> Result<bool> {
    Ok(!Running::find(directory)?.is_empty())
}

/// Stops the pool's servers on this machine, waits until they are gone, and removes the directory. Returns how many
/// there were, and what went otherwise than it should, in sentences.
pub fn stop_here(directory: &PoolDirectory) -> Result<(usize, Vec<String>)> {
    let elsewhere = note_of_others(directory)?;
    let (servers, mut notes) = stop_servers(directory)?;
    notes.extend(elsewhere);
    let freed = remove_stale_stores(directory)?;
    if freed > 0 {
        notes
            .push(format!("gave back {} of shared memory that killed servers had left", format_bytes(freed)));
    }
    remove_directory(directory)?;
    Ok((servers, notes))
}

/// Where no pool.json says which machines a pool has: what to do when its servers here are not all of them.
fn note_of_others(directory: &PoolDirectory) -> Result<Option<String>> {
    if directory.read_pool_file().is_ok() {
        return Ok(None);
    }
    let running = Running::find(directory)?;
    let here = running.count_servers();
    let others = running.servers_of_pool().map_or(0, |all| usize::from(all).saturating_sub(here));
    Ok((others > 0).then(|| {
        format!(
            "{} of the pool did not run here; where they do, 'ramlace down --force{}' stops them",
            count(others as u64, "further server"),
            option_for(directory.name())
        )
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fake_server;

    // SEMANTICS 40.3
    #[test]
    fn servers_without_a_directory_are_stopped_and_it_is_told_that_there_are_more() {
        let base = std::env::temp_dir().join(format!("rll-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let directory = PoolDirectory::within(&base.join("gone"), "lab").unwrap();
        assert!(!runs_here(&directory).unwrap());
        let mut server = fake_server::start(&base, &directory.secret_path(), &["--servers", "3"]);
        // The shell has its command line a moment after it was started.
        while !runs_here(&directory).unwrap() {
            std::thread::sleep(Duration::from_millis(5));
        }
        directory.create_without_keys().unwrap();
        let (servers, notes) = stop_here(&directory).unwrap();
        assert_eq!((servers, notes.len()), (1, 1));
        assert!(notes[0].starts_with("2 further servers of the pool did not run here"), "{notes:?}");
        assert!(server.wait().unwrap().code().is_none(), "a signal has ended it");
        assert!(!directory.exists().unwrap() && !runs_here(&directory).unwrap());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
