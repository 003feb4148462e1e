//! For tests: processes that look like a pool's servers, by their command line or by their socket, and do nothing.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ramlace_base::ServerId;
use ramlace_client::{PoolDirectory, PoolFile, PoolFileServer};

const SOCKET: &str = "RAMLACE_TEST_SOCKET";
const READY: &str = "it listens";

/// A shell that runs a script named `serve` and waits; `words` stand behind `serve`. It ends with its input, or by a signal.
/// `scratch`: an existing directory.
pub fn start(scratch: &Path, secret_file: &Path, words: &[&str]) -> Child {
    std::fs::write(scratch.join("serve"), "read end\n").unwrap();
    Command::new("sh")
        .arg("serve")
        .args(words)
        .arg("--secret-file")
        .arg(secret_file)
        .current_dir(scratch)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Run as a process of its own by `hidden`: it listens at a socket as a server's supervisor does, and with
/// it a child.
#[test]
#[ignore = "it is no test by itself"]
fn listens_as_a_server() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    rustix::process::setsid().unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    // Both hold the socket open now.
    println!("{READY}");
    child.wait().unwrap();
}

/// A pool with one server, which is no `ramlace`: only its socket says that it runs.
pub fn hidden(name: &str) -> (PathBuf, PoolDirectory, Child) {
    let base = std::env::temp_dir().join(format!("rl{name}-{}", std::process::id()));
    let directory = PoolDirectory::within(&base, "lab").unwrap();
    directory.create().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fake_server::listens_as_a_server", "--ignored", "--nocapture"])
        .env(SOCKET, directory.socket_path(ServerId(0)))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.map_while(std::io::Result::ok).any(|line| line.contains(READY)));
    let servers = vec![PoolFileServer {
        server: 0,
        tcp: "127.0.0.1:1".into(),
        unix: None,
        supervisor_pid: server.id(),
        host: None,
    }];
    let file = PoolFile {
        name: "lab".into(),
        pool: "00".repeat(16),
        coordinator: 0,
        servers,
        version: String::new(),
        hosts: None,
    };
    directory.write_pool_file(&file).unwrap();
    (base, directory, server)
}
