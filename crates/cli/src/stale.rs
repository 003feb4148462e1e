//! What a pool that no longer runs has left in its directory.

use std::ffi::OsStr;

use ramlace_base::units::{count, format_bytes};
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::PoolDirectory;

use crate::known_pools::hosts_of;
use crate::pool_processes;
use crate::sentences::{listed, option_for};
use crate::stop::{count_servers, remove_stale_stores};

/// Refuses a pool that runs; clears away what a dead one left.
pub fn clear_stale(directory: &PoolDirectory) -> Result<Vec<String>> {
    if let Some((_, hosts)) = hosts_of(directory)?.filter(|(_, hosts)| hosts.here.is_none()) {
        let named = option_for(directory.name());
        return Err(Error::new(
            ErrorKind::Exists,
            format!(
                "pool '{}' runs on {} already; stop it with 'ramlace down{named}', or start another with --pool NAME",
                directory.name(),
                listed(&hosts.hosts)
            ),
        ));
    }
    let running = pool_processes::find(&directory.secret_path())?;
    if !running.is_empty() {
        let named = option_for(directory.name());
        return Err(Error::new(
            ErrorKind::Exists,
            format!(
                "pool '{}' is running already ({}); use it, stop it with 'ramlace down{named}', \
                 or start another with --pool NAME",
                directory.name(),
                count(count_servers(&running) as u64, "server")
            ),
        ));
    }
    let mut notes = Vec::new();
    let doing = |error| Error::from_io(&error, format!("clearing {}", directory.path().display()));
    let entries = std::fs::read_dir(directory.path()).map_err(doing)?;
    let names: Vec<_> = entries.collect::<std::io::Result<Vec<_>>>().map_err(doing)?;
    // A directory with nothing but keys is what an `up` has made that came no further.
    let is_key = |name: &OsStr| name == "secret" || name == "host-key";
    if names.iter().any(|entry| !is_key(&entry.file_name())) {
        for entry in &names {
            std::fs::remove_file(entry.path()).map_err(doing)?;
        }
        notes.push(format!(
            "removed what a pool that is no longer running left in {}",
            directory.path().display()
        ));
    }
    let freed = remove_stale_stores(directory)?;
    if freed > 0 {
        notes.push(format!("gave back {} of shared memory that its servers had left", format_bytes(freed)));
    }
    Ok(notes)
}
