//! A pool whose servers all run on this machine.

use std::path::Path;
use std::time::Instant;

use ramlace_base::units::format_bytes;
use ramlace_base::{Result, ServerId};
use ramlace_client::{PoolDirectory, PoolFile, PoolFileServer};
use ramlace_server::ServeOptions;

use crate::cancel::Cancel;
use crate::daemon::{Daemon, wait_until};
use crate::plan::{Addresses, PoolOptions, inodes_of_server, random_pool_id, share_memory};
use crate::stop::{remove_stale_stores, stop_servers};

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

/// Stops what a start has started and removes the directory, as far as that goes: why the start has failed is
/// what the user must see, and a directory that stays is found by the next start.
pub fn undo_here(directory: &PoolDirectory) {
    let _ = stop_servers(&directory.secret_path());
    let _ = remove_stale_stores(directory);
    let _ = directory.remove();
}

/// Stops the pool's servers on this machine, waits until they are gone, and removes the directory. Returns how many
/// there were, and what went otherwise than it should, in sentences.
pub fn stop_here(directory: &PoolDirectory) -> Result<(usize, Vec<String>)> {
    let (servers, mut notes) = stop_servers(&directory.secret_path())?;
    let freed = remove_stale_stores(directory)?;
    if freed > 0 {
        notes
            .push(format!("gave back {} of shared memory that killed servers had left", format_bytes(freed)));
    }
    directory.remove()?;
    Ok((servers, notes))
}
