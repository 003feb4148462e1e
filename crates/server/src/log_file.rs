//! Bounds the log of a server, or of a mount's daemon, which is the process's standard error: a file beside the pool's secret, or
//! among those of mounts. When it is long it becomes the older of two, and a new one begins.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ramlace_base::{Error, Result};
use rustix::fs::{FileType, OFlags};

/// Bytes of a log; the older one has as many, and what was written since the last check.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// The time between two checks.
const LOOK: Duration = Duration::from_secs(5);

/// Keeps the log short, for ever.
pub async fn keep_short() {
    let mut keeper = Keeper::default();
    loop {
        keeper.look();
        tokio::time::sleep(LOOK).await;
    }
}

/// The same for the daemon of a mount, by a thread of its own.
///
/// # Errors
/// When the thread cannot be started.
pub fn keep_log_short() -> Result<()> {
    let mut keeper = Keeper::default();
    let look = move || loop {
        keeper.look();
        std::thread::sleep(LOOK);
    };
    let started = std::thread::Builder::new().name("ramlace-log".into()).spawn(look);
    started.map(drop).map_err(|error| Error::from_io(&error, "starting a thread that keeps the log short"))
}

/// Shortens this process's log when it is long.
#[derive(Default)]
struct Keeper {
    /// It has said that it cannot.
    said: bool,
}

impl Keeper {
    fn look(&mut self) {
        let shortened = shorten(std::io::stderr().as_fd(), LOG_BYTES_MAX);
        if let Err(error) = &shortened
            && !self.said
        {
            eprintln!("ramlace: the log cannot be begun anew, and grows until it can: {error}");
        }
        // Its disk may have room again.
        self.said = shortened.is_err();
    }
}

/// The path of the older log.
fn older(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// Begins a new log if this one has more bytes than `bytes_max`. The supervisor writes to the same file, so
/// the file stays, and its content is copied. Nothing is done to a terminal, a pipe, or a file that is
/// rotated by others.
fn shorten(log: impl AsFd, bytes_max: u64) -> Result<()> {
    let doing = "beginning the log anew";
    let tell = |errno: rustix::io::Errno| Error::from_io(&errno.into(), doing);
    let found = rustix::fs::fstat(&log).map_err(tell)?;
    let appends = rustix::fs::fcntl_getfl(&log).map_err(tell)?.contains(OFlags::APPEND);
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || !appends || found.st_size as u64 <= bytes_max {
        return Ok(());
    }
    let number = std::os::fd::AsRawFd::as_raw_fd(&log.as_fd());
    let path = rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new()).map_err(tell)?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    let copy = || -> std::io::Result<()> {
        let mut from = File::open(path)?;
        from.seek(SeekFrom::Start((found.st_size as u64).saturating_sub(bytes_max)))?;
        let mut options = File::options();
        let mut to = options.write(true).create(true).truncate(true).mode(0o600).open(older(path))?;
        std::io::copy(&mut Read::by_ref(&mut from).take(bytes_max), &mut to)?;
        to.flush()
    };
    copy().map_err(|error| Error::from_io(&error, doing))?;
    rustix::fs::ftruncate(&log, 0).map_err(tell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_becomes_the_older_of_two_and_what_comes_next_is_in_it() {
        let directory = std::env::temp_dir().join(format!("ramlace-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("server-0.log");
        let mut log = File::options().append(true).create(true).open(&path).unwrap();
        let mut supervisor = log.try_clone().unwrap();
        log.write_all(&[b'a'; 100]).unwrap();
        shorten(&log, 100).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 100);
        log.write_all(b"the latest").unwrap();
        shorten(&log, 100).unwrap();
        supervisor.write_all(b"more").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"more");
        let old = std::fs::read(older(&path)).unwrap();
        assert_eq!(old.len(), 100);
        assert!(old.ends_with(b"athe latest"));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_no_log_stays() {
        let (_reader, writer) = std::io::pipe().unwrap();
        shorten(&writer, 0).unwrap();
        let mut file = tempfile();
        file.write_all(b"not appended to").unwrap();
        shorten(&file, 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 15);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("ramlace-no-log-{}", std::process::id()));
        let file = File::options().write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }
}
