//! Directories for tests.

use std::fs;
use std::path::PathBuf;

use crate::options::CopyOptions;

/// A directory for one test, gone with it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty one.
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("rl-copy-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    /// A path in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Copies trees by so many threads, as nobody says otherwise.
pub fn plain_options(jobs: usize) -> CopyOptions {
    CopyOptions { recursive: true, jobs, hints: Default::default(), umask: 0o022, mounts: Default::default() }
}
