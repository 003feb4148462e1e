//! Starts servers as daemons and listens to what they say until they are ready.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_server::ServeOptions;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ready::keep_descriptors_here;

/// Lines of a server's log that an error quotes.
const LOG_LINES_MAX: usize = 12;
/// Bytes of a server's log that are read for them.
const LOG_BYTES_MAX: u64 = 16 << 10;

/// A server that was started and may not be ready yet.
pub struct Daemon {
    /// Its number.
    pub server: u16,
    /// Its supervisor, a child of this process.
    pub supervisor: Child,
    /// Where it listens, once it has said so.
    pub address: Option<String>,
    /// Whether it has said that it is ready.
    pub ready: bool,
    log: PathBuf,
    pipe: PipeReader,
    received: Vec<u8>,
}

impl Daemon {
    /// Starts `program`, which is `ramlace`, as a server whose output goes to `log`.
    pub fn start(program: &Path, options: &ServeOptions, log: &Path) -> Result<Daemon> {
        let doing =
            |error: std::io::Error| Error::from_io(&error, format!("starting server {}", options.server));
        keep_descriptors_here();
        let (pipe, told) = std::io::pipe().map_err(doing)?;
        // The one descriptor that the server inherits; this process starts one server at a time.
        rustix::io::fcntl_setfd(&told, rustix::io::FdFlags::empty()).map_err(|errno| doing(errno.into()))?;
        let output = open_log(log)?;
        let mut command = Command::new(program);
        ramlace_server::clean_environment(&mut command);
        let supervisor = command
            .args(serve_words(options))
            .args(["--detach", "--ready-fd", &told.as_raw_fd().to_string()])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(doing)?)
            .stderr(output)
            .spawn()
            .map_err(doing)?;
        let log = log.to_owned();
        Ok(Daemon {
            server: options.server,
            supervisor,
            address: None,
            ready: false,
            log,
            pipe,
            received: Vec::new(),
        })
    }

    /// Takes what the server has said; the pipe has something, or has ended.
    fn listen(&mut self) -> Result<()> {
        let mut bytes = [0; 4096];
        let count =
            self.pipe.read(&mut bytes).map_err(|error| Error::from_io(&error, "listening to a server"))?;
        if count == 0 {
            return Err(self.failed("it ended without a word"));
        }
        self.received.extend_from_slice(&bytes[..count]);
        while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.received.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]).into_owned();
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("listening", address) => self.address = Some(address.to_owned()),
                ("ready", "") => self.ready = true,
                ("error", text) => return Err(self.failed(text)),
                _ => return Err(self.failed(&format!("it said what nobody understands: {line}"))),
            }
        }
        Ok(())
    }

    /// The server's own words, and the end of its log where that says more.
    fn failed(&self, text: &str) -> Error {
        let log = log_tail(&self.log);
        let more: Vec<&str> = log.iter().map(String::as_str).filter(|line| !line.contains(text)).collect();
        let mut message = format!("server {} did not start: {text}", self.server);
        if !more.is_empty() {
            message.push_str("; its log ends with:\n  ");
            message.push_str(&more.join("\n  "));
        }
        Error::new(ErrorKind::Fatal, message)
    }
}

/// Listens to all servers until `enough` holds of each. Fails with the first that fails, when
/// `end` has come, or when a descriptor of `watch` can be read: then they are not wanted any more.
pub fn wait_until<F: AsFd>(
    daemons: &mut [Daemon],
    end: Instant,
    watch: &[F],
    enough: impl Fn(&Daemon) -> bool,
) -> Result<()> {
    loop {
        let mut waiting: Vec<&mut Daemon> = daemons.iter_mut().filter(|daemon| !enough(daemon)).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let error = waiting[0].failed("it was not ready in time");
            return Err(Error::new(ErrorKind::TimedOut, error.message()));
        }
        let timeout = Timespec::try_from(left).expect("half a minute fits");
        let mut polled: Vec<PollFd<'_>> =
            waiting.iter().map(|daemon| PollFd::new(&daemon.pipe, PollFlags::IN)).collect();
        polled.extend(watch.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from_io(&errno.into(), "waiting for the servers")),
        }
        let spoke: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        if spoke[waiting.len()..].contains(&true) {
            return Err(Error::new(ErrorKind::Busy, "stopped before the servers were ready"));
        }
        for (daemon, _) in waiting.iter_mut().zip(spoke).filter(|(_, spoke)| *spoke) {
            daemon.listen()?;
        }
    }
}

/// The words behind `ramlace` that start a server with these options.
#[must_use]
pub fn serve_words(options: &ServeOptions) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = ["serve", "--pool", &options.pool_name].map(Into::into).to_vec();
    let mut add = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
        words.push(name.into());
        words.push(value.as_ref().into());
    };
    add("--pool-id", &options.pool_id);
    add("--server", &options.server.to_string());
    add("--servers", &options.servers.to_string());
    add("--slots", &options.slots.to_string());
    add("--listen", &options.listen);
    add("--unix", &options.unix);
    add("--secret-file", &options.secret_file);
    add("--memory", &options.store_bytes.to_string());
    add("--inodes", &options.inodes_max.to_string());
    add("--backing", &options.backing);
    if let Some(coordinator) = &options.coordinator {
        add("--coordinator", coordinator);
    }
    if let Some(advertise) = &options.advertise {
        add("--advertise", advertise);
    }
    if let Some(metrics) = &options.metrics {
        add("--metrics", metrics);
    }
    if !options.reserve {
        words.push("--no-reserve".into());
    }
    if !options.root_squash {
        words.push("--no-root-squash".into());
    }
    if options.trust_network {
        words.push("--trust-network".into());
    }
    words
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Error::from_io(&error, format!("opening the log {}", path.display())))
}

/// The last lines of a log; none when it cannot be read.
fn log_tail(path: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    let Ok(mut file) = File::open(path) else { return Vec::new() };
    let start = file.metadata().map_or(0, |found| found.len().saturating_sub(LOG_BYTES_MAX));
    let read =
        file.seek(SeekFrom::Start(start)).and_then(|_| file.take(LOG_BYTES_MAX).read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(LOG_LINES_MAX)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_log_is_quoted() {
        let path = std::env::temp_dir().join(format!("ramlace-tail-{}", std::process::id()));
        let line = |number: usize| format!("line {number}");
        let lines: Vec<String> = (0..10_000).map(line).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let tail = log_tail(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tail, lines[lines.len() - LOG_LINES_MAX..]);
    }
}
