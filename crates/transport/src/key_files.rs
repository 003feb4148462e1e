//! The files in which keys lie: replaced at once, and readable for their owner alone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{Error, Result};

use crate::{HostKey, Secret};

/// The host key that lies beside a pool's secret.
const HOST_KEY_FILE: &str = "host-key";

/// Replaces a file (0600) atomically, also for a loss of power afterwards.
pub fn replace_private_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes, |written| fs::rename(written, path))
}

/// The same for a file that must not be there yet; false where another process has made it first, whose bytes
/// then stay.
pub fn create_private_file(path: &Path, bytes: &[u8]) -> Result<bool> {
    write_beside(path, bytes, |written| {
        let made = match fs::hard_link(written, path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true)?,
        };
        fs::remove_file(written).map(|()| made)
    })
}

/// Writes bytes to a file of another name, and has it put where it belongs.
fn write_beside<T>(path: &Path, bytes: &[u8], place: impl FnOnce(&Path) -> io::Result<T>) -> Result<T> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("new-{}-{number}", std::process::id()));
    let write = || {
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        place(&temporary)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::from_io(&error, format!("writing {}", path.display()))
    })
}

impl Secret {
    /// Puts this secret into the place of the one in a file, unless it is there already. Before that, a host key that lies beside it
    /// and comes from that one is made anew from this secret.
    pub fn replace_in(&self, path: &Path) -> Result<()> {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let beside = path.with_file_name(HOST_KEY_FILE);
        let there = Secret::from_hex(text(path).trim()).ok();
        if there.as_ref() == Some(self) {
            return Ok(());
        }
        // A host key of another pool is left alone. The secret comes last: a crash in between leaves both files
        // old, or one.
        if let (Ok(old), Some(there)) = (HostKey::from_line(&text(&beside)), there)
            && there.host_key(old.id().clone()) == old
        {
            let new = self.host_key(old.id().clone());
            replace_private_file(&beside, format!("{}\n", new.to_line()).as_bytes())?;
        }
        replace_private_file(path, format!("{}\n", self.to_hex()).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    // SEMANTICS 123.2
    #[test]
    fn a_secret_takes_the_place_of_another_and_the_host_key_beside_it_goes_along() {
        let directory = std::env::temp_dir().join(format!("ramlace-key-files-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (path, beside) = (directory.join("secret"), directory.join(HOST_KEY_FILE));
        let [old, new] = [1, 2].map(|byte| Secret::from_bytes([byte; 32]));
        let old_key = old.shared_host_key();
        for (path, text) in [(&path, old.to_hex()), (&beside, old_key.to_line())] {
            replace_private_file(path, text.as_bytes()).unwrap();
        }
        for _ in 0..2 {
            new.replace_in(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", new.to_hex()));
            let key = HostKey::from_line(&fs::read_to_string(&beside).unwrap()).unwrap();
            assert_eq!(key, new.shared_host_key());
        }
        for path in [&path, &beside] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o600);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing else is left");
        // The key of another pool's host stays.
        let foreign = Secret::from_bytes([3; 32]).shared_host_key().to_line();
        replace_private_file(&beside, foreign.as_bytes()).unwrap();
        old.replace_in(&path).unwrap();
        assert_eq!(fs::read_to_string(&beside).unwrap(), foreign);
        assert!(new.replace_in(&directory.join("none/secret")).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
