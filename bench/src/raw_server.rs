//! The other end of the raw loop: a process that does nothing but move bytes between sockets and
//! one file of a huge-page tmpfs, with a thread for each connection.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use ramlace_base::{Error, Result};
use ramlace_sync::Mutex;

use crate::args::Args;
use crate::connection::{Connection, Head, Wish};
use crate::pattern;
use crate::region::{Region, huge_file};

/// Serves until standard input ends. Prints the port of its TCP socket.
pub fn run(args: &Args) -> Result<()> {
    let tell = |error: std::io::Error| Error::from_io(&error, "starting a raw server");
    let (_root, file) = huge_file(args.bytes)?;
    pattern::mark(Region::of_file(&file, args.bytes)?.bytes_mut(), 0);
    let file = Arc::new(file);
    let tcp = TcpListener::bind("127.0.0.1:0").map_err(tell)?;
    let port = tcp.local_addr().map_err(tell)?.port();
    let unix = UnixListener::bind(socket_path(&args.scratch, std::process::id())).map_err(tell)?;
    let length = args.bytes;
    let serve = move |connection: Result<Connection>| {
        let file = file.clone();
        std::thread::spawn(move || {
            let served = Region::of_file(&file, length).and_then(|region| serve(&connection?, region));
            if let Err(error) = served {
                eprintln!("raw server: {error}");
            }
        });
    };
    let serve_unix = serve.clone();
    std::thread::spawn(move || tcp.incoming().flatten().for_each(|stream| serve(Connection::tcp(stream))));
    std::thread::spawn(move || {
        unix.incoming().flatten().for_each(|stream| serve_unix(Ok(Connection::unix(stream))));
    });
    println!("{port}");
    std::io::stdout().flush().map_err(tell)?;
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).map(drop).map_err(tell)
}

fn serve(connection: &Connection, mut region: Region) -> Result<()> {
    while let Some(head) = connection.receive_head()? {
        let range = head.offset as usize..(head.offset + head.length) as usize;
        match head.wish {
            Wish::Read => connection.send(head, &region.bytes()[range])?,
            Wish::Write => {
                connection.receive_data(&mut region.bytes_mut()[range])?;
                connection.send(Head { length: 0, ..head }, &[])?;
            }
            Wish::Echo => connection.send(head, &[])?,
        }
    }
    Ok(())
}

fn socket_path(scratch: &Path, pid: u32) -> PathBuf {
    scratch.join(format!("raw-{pid}.sock"))
}

/// A raw server that was started as a process of its own.
pub struct RawServer {
    child: Child,
    stdin: Mutex<Option<ChildStdin>>,
    port: u16,
    unix: PathBuf,
}

impl RawServer {
    /// Starts one with a region of `bytes` bytes, and waits until it is ready.
    pub fn start(args: &Args, bytes: usize) -> Result<RawServer> {
        let tell = |error: std::io::Error| Error::from_io(&error, "starting a raw server");
        let program = std::env::current_exe().map_err(tell)?;
        let mut child = Command::new(program)
            .args(["raw-server", "--bytes", &bytes.to_string(), "--scratch"])
            .arg(&args.scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(tell)?;
        let unix = socket_path(&args.scratch, child.id());
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
        std::io::BufRead::read_line(&mut stdout, &mut line).map_err(tell)?;
        let stdin = Mutex::new(child.stdin.take());
        let server = RawServer { child, stdin, port: line.trim().parse().unwrap_or(0), unix };
        if server.port == 0 {
            return Err(Error::new(ramlace_base::ErrorKind::HostDown, "the raw server did not start"));
        }
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// A new connection to it.
    pub fn connect(&self, unix: bool) -> Result<Connection> {
        Connection::open(self.port, unix.then_some(self.unix.as_path()))
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        // The end of its standard input is its end.
        drop(self.stdin.lock().take());
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.unix);
    }
}
