//! Pools of real processes for tests: started by the command `ramlace` in a directory of their
//! own, and stopped when the test is over.
//!
//! The command is that of the same build (`make test` makes it), or what `RAMLACE_BIN` names.
//!
//! Invariant: a test pool uses nothing but its own directory and loopback, and ends with its test.
#![forbid(unsafe_code)]

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ramlace_client::{ConnectOptions, Pool, PoolDirectory, PoolFile};

/// A running pool.
pub struct TestPool {
    directory: PathBuf,
    name: String,
}

/// Where the command lies.
#[must_use]
pub fn command_path() -> PathBuf {
    // Test programs lie in `deps`, beside the command.
    let test = std::env::current_exe().expect("a program has a path");
    let built = test.ancestors().nth(2).expect("it lies in `deps`").join("ramlace");
    let path = std::env::var_os("RAMLACE_BIN").map_or(built, PathBuf::from);
    assert!(path.exists(), "{} is not there; 'make test' builds it", path.display());
    path
}

impl TestPool {
    /// Starts so many servers that lend `memory` together, such as `"256MiB"`.
    ///
    /// # Panics
    /// When the pool does not come up.
    #[must_use]
    pub fn start(servers: u16, memory: &str) -> TestPool {
        let name = format!("t{:08x}", random());
        let directory = std::env::temp_dir().join(format!("ramlace-system-{name}"));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).expect("a directory for the test");
        let pool = TestPool { directory, name };
        let up = pool.run(&["up", "--servers", &servers.to_string(), "--memory", memory]);
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        pool
    }

    /// Runs the command for this pool.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.program(&command_path()).args(arguments).output().expect("the command runs")
    }

    /// A program whose default pool is this one.
    #[must_use]
    pub fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.env("XDG_RUNTIME_DIR", &self.directory).env("RAMLACE_POOL", &self.name);
        command
    }

    /// Everything that the servers hold fits together, whatever has happened before; but for what was
    /// lost with a server that was forgotten.
    ///
    /// # Panics
    /// When something does not.
    pub fn assert_in_order(&self) {
        let check = self.run(&["check"]);
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        let findings = said.lines().take_while(|line| line.starts_with("server "));
        let wrong: Vec<&str> = findings.filter(|line| !line.contains("(a server was forgotten)")).collect();
        let done = check.status.success() || said.contains("(a server was forgotten)");
        assert!(done && wrong.is_empty(), "{said}{}", String::from_utf8_lossy(&check.stderr));
    }

    fn pool_directory(&self) -> PoolDirectory {
        PoolDirectory::within(&self.directory.join("ramlace"), &self.name).expect("the pool's directory")
    }

    /// What `up` wrote.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    pub fn file(&self) -> PoolFile {
        self.pool_directory().read_pool_file().expect("pool.json")
    }

    /// How to connect, with the local shortcuts or without.
    #[must_use]
    pub fn options(&self, local: bool) -> ConnectOptions {
        ConnectOptions {
            addresses: self.file().servers.into_iter().map(|server| server.tcp).collect(),
            secret_file: Some(self.pool_directory().secret_path()),
            local,
            label: "system test".into(),
            ..ConnectOptions::default()
        }
    }

    /// A new session.
    ///
    /// # Panics
    /// When the pool does not answer.
    #[must_use]
    pub fn connect(&self, local: bool) -> Pool {
        Pool::connect(&self.options(local)).expect("the pool answers")
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.assert_in_order();
        }
        let down = self.run(&["down"]);
        if !down.status.success() && !std::thread::panicking() {
            panic!("'down' failed: {}", String::from_utf8_lossy(&down.stderr));
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Bytes that are never zero and differ from place to place and from seed to seed.
#[must_use]
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| ((at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed) | 1).collect()
}

fn random() -> u32 {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("random bytes");
    u32::from_le_bytes(bytes)
}
