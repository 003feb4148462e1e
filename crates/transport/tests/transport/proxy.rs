//! Stands between a client and a server, and does to their bytes what networks and rogues do.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ramlace_transport::Address;

use crate::server::scratch_directory;

/// Bytes of the greeting: client to server, and back.
pub const HELLO: usize = 16 + 72 + 48 + 4;
pub const GREETING_UP: usize = HELLO + 16;
pub const GREETING_DOWN: usize = 16 + 48 + 8;

/// What happens to the bytes of one direction.
#[derive(Clone, Debug)]
pub enum Mischief {
    /// Nothing.
    None,
    /// Each byte goes alone.
    Dribble,
    /// After so many bytes, the end.
    CutAt(usize),
    /// After so many bytes, silence.
    StallAt(usize),
    /// What comes after so many bytes is delayed by this time.
    PauseAt(usize, Duration),
    /// This bit of this byte is the other one.
    Flip(usize, u8),
    /// From this byte on, these bytes instead.
    Replace(usize, Vec<u8>),
}

enum Entrance {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A socket of either family.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub fn connect(address: &Address) -> Stream {
        match address {
            Address::Tcp(place) => {
                let stream = TcpStream::connect(place).unwrap();
                stream.set_nodelay(true).unwrap();
                Stream::Tcp(stream)
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).unwrap()),
        }
    }

    fn try_clone(&self) -> Stream {
        match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone().unwrap()),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone().unwrap()),
        }
    }

    pub fn shutdown(&self, how: Shutdown) {
        // The other side may have done it already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        };
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        match stream {
            Stream::Tcp(stream) => stream.into(),
            Stream::Unix(stream) => stream.into(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Passes one connection on, then is used up.
pub struct Proxy {
    pub address: Address,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    directory: Option<PathBuf>,
}

impl Proxy {
    /// `up`: what happens to the client's bytes; `down`: to the server's.
    pub fn new(server: &Address, up: Mischief, down: Mischief) -> Proxy {
        let (entrance, address, directory) = match server {
            Address::Tcp(_) => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = Address::Tcp(listener.local_addr().unwrap().to_string());
                (Entrance::Tcp(listener), address, None)
            }
            Address::Unix(_) => {
                let directory = scratch_directory();
                let path = directory.join("proxy");
                let listener = UnixListener::bind(&path).unwrap();
                (Entrance::Unix(listener, path.clone()), Address::Unix(path), Some(directory))
            }
        };
        let server = server.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = stop.clone();
        let thread = std::thread::spawn(move || pass(&entrance, &server, up, &down, &of_thread));
        Proxy { address, stop, thread: Some(thread), directory }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes it up if no client has come; otherwise there is no listener any more.
        match &self.address {
            Address::Tcp(place) => drop(TcpStream::connect(place)),
            Address::Unix(path) => drop(UnixStream::connect(path)),
        }
        let joined = self.thread.take().unwrap().join();
        if let Some(directory) = &self.directory {
            std::fs::remove_dir_all(directory).unwrap();
        }
        if !std::thread::panicking() {
            joined.unwrap();
        }
    }
}

fn pass(entrance: &Entrance, server: &Address, up: Mischief, down: &Mischief, stop: &Arc<AtomicBool>) {
    let client = match entrance {
        Entrance::Tcp(listener) => {
            let (stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            Stream::Tcp(stream)
        }
        Entrance::Unix(listener, path) => {
            assert!(path.exists());
            Stream::Unix(listener.accept().unwrap().0)
        }
    };
    if stop.load(Ordering::SeqCst) {
        return;
    }
    let server = Stream::connect(server);
    let (client_too, server_too) = (client.try_clone(), server.try_clone());
    let stop_too = stop.clone();
    let upwards = std::thread::spawn(move || carry(client_too, server_too, &up, &stop_too));
    carry(server, client, down, stop);
    upwards.join().unwrap();
}

fn carry(mut from: Stream, mut to: Stream, mischief: &Mischief, stop: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        let bytes = &mut buffer[..count];
        let within = |at: usize| at.checked_sub(passed).filter(|at| *at < count);
        let sent = match mischief {
            Mischief::None => to.write_all(bytes),
            Mischief::Dribble => bytes.chunks(1).try_for_each(|byte| to.write_all(byte)),
            Mischief::Flip(at, bit) => {
                if let Some(at) = within(*at) {
                    bytes[at] ^= 1 << bit;
                }
                to.write_all(bytes)
            }
            Mischief::CutAt(at) => match at.checked_sub(passed) {
                Some(rest) if rest >= count && *at > passed + count => to.write_all(bytes),
                rest => {
                    let _ = to.write_all(&bytes[..rest.unwrap_or(0).min(count)]);
                    break;
                }
            },
            Mischief::StallAt(at) => {
                let rest = at.saturating_sub(passed).min(count);
                let sent = to.write_all(&bytes[..rest]);
                while rest < count && !stop.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(2));
                }
                sent
            }
            Mischief::PauseAt(at, pause) => {
                if passed <= *at && passed + count > *at {
                    std::thread::sleep(*pause);
                }
                to.write_all(bytes)
            }
            Mischief::Replace(at, with) => match within(*at) {
                Some(at) => {
                    let _ = to.write_all(&bytes[..at]);
                    let _ = to.write_all(with);
                    // Lets the reader find it all before the end.
                    to.shutdown(Shutdown::Write);
                    let _ = from.read_to_end(&mut Vec::new());
                    break;
                }
                None => to.write_all(bytes),
            },
        };
        passed += count;
        if sent.is_err() {
            break;
        }
    }
    from.shutdown(Shutdown::Both);
    to.shutdown(Shutdown::Both);
}
