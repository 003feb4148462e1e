//! Which rights the daemon of a mount drops before it serves the kernel and talks to servers.

use std::path::{Path, PathBuf};

use ramlace_base::Result;
use ramlace_client::{
    HOST_KEY_FILE_VARIABLE, PoolDirectory, SECRET_FILE_VARIABLE, pool_name, runtime_directory,
};
use ramlace_server::MountFiles;

use crate::mount_options::MountHow;
use crate::mounting::{log_path, make_records};

/// Drops them: before this process has a second thread, and after it has started its porter. Returns what could
/// not be dropped though the machine has it.
pub fn enter(how: &MountHow, directory: &Path, named: Option<&str>) -> Result<Vec<String>> {
    ramlace_server::harden();
    // The kernel opens files that it is to have itself by this process's rights, and they lie in servers' own memory.
    let files = if how.passthrough { None } else { Some(files(how, directory, named)?) };
    Ok(ramlace_server::enter_mount_sandbox(files))
}

fn files(how: &MountHow, directory: &Path, named: Option<&str>) -> Result<MountFiles> {
    // Where it notes that it mounts, and where its log is.
    let mut own: Vec<PathBuf> = log_path(directory)?.parent().map(Path::to_owned).into_iter().collect();
    // A key may be replaced while the mount is there.
    let named_here = [how.secret_file.clone(), how.host_key_file.clone()];
    let variables =
        [SECRET_FILE_VARIABLE, HOST_KEY_FILE_VARIABLE].map(|name| std::env::var_os(name).map(PathBuf::from));
    let keys = named_here.into_iter().chain(variables).flatten();
    let mut readable: Vec<PathBuf> =
        keys.filter_map(|path| std::path::absolute(path).ok()?.parent().map(Path::to_owned)).collect();
    match named {
        // A pool that is named by an address may be one of this machine.
        Some(named) if named.contains(':') => readable.push(runtime_directory()?),
        // The owner of the pool trusts the other files in its directory: only that of the records may be changed.
        named => {
            let directory = PoolDirectory::locate(&pool_name(named))?;
            own.push(make_records(&directory)?);
            readable.push(directory.path().to_owned());
        }
    }
    Ok(MountFiles { own, readable })
}
