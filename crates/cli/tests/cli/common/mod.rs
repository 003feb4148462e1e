//! A directory of a test's own, in which the real command runs. Pools that a test starts are
//! taken down when it ends, however it ends.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A home for pools and files.
pub struct Home {
    path: PathBuf,
}

/// What the command did.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Home {
    pub fn new() -> Home {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rl-cli-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Home { path }
    }

    /// A home with a default pool that runs.
    pub fn with_pool(servers: u16, memory: &str) -> Home {
        let home = Home::new();
        let servers = servers.to_string();
        home.run(["up", "--servers", &servers, "--memory", memory, "--no-reserve"]).good();
        home
    }

    /// A path in the home.
    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Writes a file of the home.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ramlace"));
        command
            .current_dir(&self.path)
            .env("XDG_RUNTIME_DIR", &self.path)
            .env_remove("RAMLACE_POOL")
            .env_remove("RAMLACE_SECRET_FILE")
            .env_remove("RAMLACE_LOCAL");
        command
    }

    /// Runs the command in the home.
    pub fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> Done {
        self.command().args(arguments).stdin(Stdio::null()).output().unwrap().into()
    }

    /// Runs the command with something on its standard input.
    pub fn run_with<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I, input: &[u8]) -> Done {
        let mut child = self
            .command()
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // A command that fails early reads nothing.
            let _ = stdin.write_all(&input);
        });
        let done = child.wait_with_output().unwrap().into();
        writer.join().unwrap();
        done
    }

    /// Directory of a pool.
    pub fn pool(&self, name: &str) -> PathBuf {
        self.path("ramlace").join(name)
    }

    /// `status --json`, whatever the exit code.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_slice(&self.run(["status", "--json"]).stdout).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Ok(pools) = std::fs::read_dir(self.path("ramlace")) {
            // The logs of mounts lie beside the pools; no name of a pool begins with a dot.
            let is_pool = |entry: &std::fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
            for pool in pools.flatten().filter(is_pool) {
                let done = self.run([OsStr::new("down"), OsStr::new("--pool"), &pool.file_name()]);
                if done.code != Some(0) && !std::thread::panicking() {
                    panic!("{done:?}");
                }
            }
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        Done {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    /// Asserts success without a word on standard error.
    pub fn good(self) -> Done {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{}", self.text());
        self
    }

    /// Asserts failure with exit code 1 and all of these words on standard error.
    pub fn bad(self, words: &[&str]) -> Done {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(self.stderr.starts_with("ramlace: "), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "'{word}' is not in: {}", self.stderr);
        }
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Bytes that compress badly and differ everywhere.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Compares without printing megabytes.
pub fn assert_same(left: &[u8], right: &[u8], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}: lengths differ");
    // Tests are compiled without optimisation: what compares is the library's.
    if left != right {
        let at = left.iter().zip(right).position(|(left, right)| left != right);
        panic!("{what}: bytes differ at {at:?}");
    }
}

/// Whether a process runs, or is at least not gone and buried.
pub fn runs(pid: u64) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        // The state follows the name's closing bracket.
        Ok(stat) => !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'),
        Err(_) => false,
    }
}

/// Whether a path exists, links not followed.
pub fn there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Kills a process that this test started through the command, and waits until it has ended.
pub fn kill(pid: u64) {
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    while runs(pid) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
