//! How the agent stops the pool that its orders mean, and no other one of that name.

use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{PoolDirectory, Secret};

use crate::agent_protocol::SecretText;
use crate::lock::DirectoryLock;
use crate::running::Running;
use crate::stop::{remove_directory, remove_stale_stores, stop_servers};

/// How long a server of this host may take to greet.
const KNOCK_PATIENCE: Duration = Duration::from_secs(5);

/// The pool that an order is about.
pub struct Meant<'a> {
    pool_id: &'a str,
    secret: Secret,
    directory: PoolDirectory,
}

/// What of a pool with this name is on this host.
#[derive(Debug, PartialEq, Eq)]
enum Here {
    /// The pool that is meant, or what it has left.
    Meant,
    /// Another one.
    Another,
    /// Nothing.
    Nothing,
}

impl Meant<'_> {
    /// The pool with this name, id and secret.
    pub fn new<'a>(pool: &str, pool_id: &'a str, secret: &SecretText) -> Result<Meant<'a>> {
        let secret = Secret::from_hex(&secret.0)?;
        Ok(Meant { pool_id, secret, directory: PoolDirectory::locate(pool)? })
    }

    /// Checks that no program uses a mount of the pool on this host. Of another pool `stop` tells.
    pub fn check_unused(&self, check: &dyn Fn(&str) -> Result<()>) -> Result<()> {
        if self.here()? == Here::Meant { check(self.directory.name()) } else { Ok(()) }
    }

    /// Stops the servers of the pool on this host.
    pub fn stop(
        &self,
        force: bool,
        unmount: &dyn Fn(&str, bool) -> Result<Vec<String>>,
    ) -> Result<(usize, Vec<String>)> {
        let directory = &self.directory;
        match self.here()? {
            Here::Meant => {}
            Here::Nothing => return Ok((0, Vec::new())),
            Here::Another => {
                return Err(Error::new(
                    ErrorKind::Exists,
                    format!("its pool '{}' is another one by now, and was left alone", directory.name()),
                ));
            }
        }
        // Locked is what `down` itself works on, when this is the machine on which it runs: it
        // removes the directory itself.
        let lock = DirectoryLock::take(directory).ok();
        let mut notes = unmount(directory.name(), force)?;
        let (servers, stopped) = stop_servers(directory)?;
        notes.extend(stopped);
        remove_stale_stores(directory)?;
        if lock.is_some() {
            remove_directory(directory)?;
        }
        Ok((servers, notes))
    }

    /// The directory may be gone while servers run, for systemd removes a user's runtime directory with the last
    /// session; an `up` that was refused then has left another secret in a new one. So what runs is asked first.
    fn here(&self) -> Result<Here> {
        let running = Running::find(&self.directory)?;
        if running.is_of(self.pool_id) == Some(true) {
            return Ok(Here::Meant);
        }
        match self.directory.read_secret() {
            Ok(found) if found == self.secret || self.lets_in() => Ok(Here::Meant),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Err(_) if running.is_empty() => Ok(Here::Nothing),
            Ok(_) | Err(_) => Ok(Here::Another),
        }
    }

    /// While the pool's secret is changed, the command may have the previous one: a server here says whether it is
    /// the pool's.
    fn lets_in(&self) -> bool {
        let Ok(file) = self.directory.read_pool_file() else { return false };
        let mut sockets = file.servers.iter().filter_map(|server| server.unix.as_deref());
        sockets.any(|socket| ramlace_client::lets_owner_in(socket, &self.secret, KNOCK_PATIENCE))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use ramlace_base::ServerId;

    use super::*;

    fn meant(base: &std::path::Path, secret: Secret) -> Meant<'static> {
        let directory = PoolDirectory::within(base, "lab").unwrap();
        Meant { pool_id: "00112233445566778899aabbccddeeff", secret, directory }
    }

    // SEMANTICS 40.3
    #[test]
    fn the_pool_that_is_meant_is_known_by_its_secret_or_by_what_runs() {
        let base = std::env::temp_dir().join(format!("rla-{}", std::process::id()));
        let mine = meant(&base, Secret::from_bytes([1; 32]));
        let other = meant(&base, Secret::from_bytes([2; 32]));
        assert_eq!(mine.here().unwrap(), Here::Nothing);
        mine.directory.create_without_keys().unwrap();
        assert_eq!(mine.here().unwrap(), Here::Nothing, "an empty directory is no pool");
        mine.directory.create_with(&mine.secret).unwrap();
        assert_eq!((mine.here().unwrap(), other.here().unwrap()), (Here::Meant, Here::Another));
        std::fs::remove_file(mine.directory.secret_path()).unwrap();
        // Something runs that does not say which pool it is: it is not ended.
        let _listener = UnixListener::bind(mine.directory.socket_path(ServerId(0))).unwrap();
        assert_eq!(mine.here().unwrap(), Here::Another);
        let error = mine.stop(true, &|_, _| panic!("nothing is unmounted")).unwrap_err();
        assert!(error.message().contains("left alone"), "{error}");
        std::fs::remove_dir_all(&base).unwrap();
    }

    // SEMANTICS 40.3
    #[test]
    fn what_runs_without_a_directory_is_stopped_if_its_id_is_the_one() {
        let base = std::env::temp_dir().join(format!("rlb-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let mine = meant(&base.join("gone"), Secret::from_bytes([1; 32]));
        let words = ["--pool-id", mine.pool_id, "--server", "1", "--servers=3"];
        let mut server = crate::fake_server::start(&base, &mine.directory.secret_path(), &words);
        let other = Meant {
            pool_id: "ffeeddccbbaa99887766554433221100",
            secret: mine.secret.clone(),
            directory: mine.directory.clone(),
        };
        // The shell has its command line a moment after it was started.
        while Running::find(&mine.directory).unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((mine.here().unwrap(), other.here().unwrap()), (Here::Meant, Here::Another));
        assert_eq!(other.stop(false, &|_, _| Ok(Vec::new())).unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(server.try_wait().unwrap(), None, "another pool is left alone");
        assert_eq!(mine.stop(false, &|_, _| Ok(Vec::new())).unwrap(), (1, Vec::new()));
        assert!(server.wait().unwrap().code().is_none(), "a signal has ended it");
        assert_eq!(mine.here().unwrap(), Here::Nothing);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
