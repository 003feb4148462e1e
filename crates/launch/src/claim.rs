//! A pool's directory before the pool is started in it: locked, and cleared of what a pool that no longer runs has left.

use std::ffi::OsStr;

use ramlace_base::units::{count, format_bytes};
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::PoolDirectory;

use crate::known_pools::hosts_of;
use crate::lingering::lingering_note;
use crate::lock::DirectoryLock;
use crate::running::Running;
use crate::sentences::{listed, option_for};
use crate::stop::remove_stale_stores;

/// The directory in which one pool is started, and nothing else at the same time.
#[derive(Debug)]
pub struct Claim {
    /// It has the pool's keys, and nothing of another pool.
    pub directory: PoolDirectory,
    /// What was cleared away, and whether the directory may go before the pool, in sentences.
    pub notes: Vec<String>,
    _lock: DirectoryLock,
}

impl Claim {
    /// Takes the directory of the pool with this name.
    ///
    /// Errors: `Exists` when the pool runs, `Busy` while another command starts or stops it.
    pub fn take(name: &str) -> Result<Claim> {
        let directory = PoolDirectory::locate(name)?;
        directory.create_without_keys()?;
        let lock = DirectoryLock::take(&directory)?;
        let mut notes = clear_stale(&directory)?;
        directory.create()?;
        notes.extend(lingering_note(&directory));
        Ok(Claim { directory, notes, _lock: lock })
    }
}

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
    let running = Running::find(directory)?;
    if !running.is_empty() {
        let named = option_for(directory.name());
        return Err(Error::new(
            ErrorKind::Exists,
            format!(
                "pool '{}' is running already ({}); use it, stop it with 'ramlace down{named}', \
                 or start another with --pool NAME",
                directory.name(),
                count(running.count_servers() as u64, "server")
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
            // Notes of mounts lie in a directory of their own.
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let remove = if is_directory { std::fs::remove_dir_all } else { std::fs::remove_file };
            remove(entry.path()).map_err(doing)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_pool_has_left_goes_with_the_notes_of_its_mounts() {
        let base = std::env::temp_dir().join(format!("ramlace-claim-{}", std::process::id()));
        let directory = PoolDirectory::within(&base, &format!("claim-{}", std::process::id())).unwrap();
        let left = || std::fs::read_dir(directory.path()).unwrap().count();
        directory.create().unwrap();
        // Keys alone are no pool's that ran.
        assert!(clear_stale(&directory).unwrap().is_empty());
        assert_eq!(left(), 2);
        std::fs::create_dir(directory.path().join("mounts")).unwrap();
        std::fs::write(directory.path().join("mounts/mount-0-40"), "/mnt").unwrap();
        let notes = clear_stale(&directory).unwrap();
        assert!(notes[0].contains("no longer running"), "{notes:?}");
        assert_eq!(left(), 0);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
