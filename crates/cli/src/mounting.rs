//! Mounts of pools on this machine: the daemon that serves one, and the programs that use one.

use std::fs::{self, OpenOptions};
use std::io::{self, PipeReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{
    HOST_KEY_FILE_VARIABLE, POOL_DEFAULT, PoolDirectory, SECRET_FILE_VARIABLE, pool_name, runtime_directory,
};
use ramlace_mount::{LOST_STORES_ATTRIBUTE, MountPoint};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mount_options::{MountHow, absolute};
use crate::output::Output;

/// How long a daemon may take to connect and to mount.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a check of mounts may take: one that is stopped, or waits for its servers, does not answer.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// The word with which the daemon says that the directory is mounted.
pub const MOUNTED: &str = "mounted";
/// Bytes of what a daemon says that are read, at most; no attribute is longer.
const TOLD_BYTES_MAX: usize = 64 << 10;

/// What `mount` and `df` show for a pool: its locator without a path.
pub fn source_of(named: Option<&str>) -> String {
    match named {
        Some(address) if address.contains(':') => format!("ramlace://{address}"),
        named => format!("ramlace:{}", named.unwrap_or(POOL_DEFAULT)),
    }
}

/// The pool that [`mounts_of`] is asked about: its name, or the address of a server.
pub fn mounted_name(named: Option<&str>) -> String {
    match named {
        Some(address) if address.contains(':') => address.to_owned(),
        named => pool_name(named),
    }
}

/// This user's mounts of this very pool, as this process sees them: others may have a pool of the same name. Of a pool
/// that lives elsewhere, those by the same address.
pub fn mounts_of(pool: &str) -> Result<Vec<MountPoint>> {
    if pool.contains(':') {
        let (source, user) = (source_of(Some(pool)), rustix::process::geteuid().as_raw());
        let is_its = |mount: &MountPoint| mount.source == source && mount.user == user;
        return Ok(ramlace_mount::mounts()?.into_iter().filter(is_its).collect());
    }
    let directory = PoolDirectory::locate(pool)?;
    let is_its = |mount: &MountPoint| {
        fs::read(record_path(&directory, mount)).is_ok_and(|dir| dir == mount.dir.as_os_str().as_bytes())
    };
    Ok(ramlace_mount::mounts()?.into_iter().filter(is_its).collect())
}

/// How a mount is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its daemon answers.
    Serving,
    /// Its daemon has ended.
    Dead,
    /// Its daemon, or a server that it asks, does not answer in time.
    Silent,
}

/// How each of these mounts is; checks all of them at once.
pub fn look_at(mounts: &[MountPoint]) -> Vec<Health> {
    let asked = mounts.iter().map(|mount| {
        let (tell, told) = channel();
        let mount = mount.clone();
        // Left behind when the mount does not answer; this command ends soon.
        std::thread::spawn(move || {
            let _ = tell.send(if mount.is_dead() { Health::Dead } else { Health::Serving });
        });
        told
    });
    let asked: Vec<_> = asked.collect();
    let end = Instant::now() + LOOK_PATIENCE;
    let left = || end.saturating_duration_since(Instant::now());
    asked.into_iter().map(|told| told.recv_timeout(left()).unwrap_or(Health::Silent)).collect()
}

/// What a mount that serves has lost of what programs have stored by mappings.
pub struct LostRun {
    /// Of which inode.
    pub inode: u64,
    /// Its first byte, and the byte behind its last.
    pub bytes: (u64, u64),
    /// Why it could not be written back.
    pub why: String,
}

/// Asks the daemon of a mount; it waits for no server to say this. One of an older release knows nothing of it.
pub fn lost_stores(mount: &MountPoint) -> Vec<LostRun> {
    let mut value = vec![0; TOLD_BYTES_MAX];
    let told = rustix::fs::getxattr(&mount.dir, LOST_STORES_ATTRIBUTE, &mut value[..]).unwrap_or(0);
    String::from_utf8_lossy(&value[..told]).lines().filter_map(lost_run).collect()
}

fn lost_run(line: &str) -> Option<LostRun> {
    let mut words = line.splitn(4, ' ');
    let mut number = || words.next()?.parse().ok();
    let (inode, bytes) = (number()?, (number()?, number()?));
    let is_run = bytes.0 <= bytes.1;
    is_run.then(|| LostRun { inode, bytes, why: words.next().unwrap_or_default().to_owned() })
}

/// All their bytes: whatever a daemon says, a sum.
pub fn lost_bytes(runs: &[LostRun]) -> u64 {
    runs.iter().fold(0, |sum, run| sum.saturating_add(run.bytes.1 - run.bytes.0))
}

/// A directory for a mount, without links and dots, because a daemon has another working directory. Dead mounts on it
/// are cleared away, and said.
pub fn directory_for(directory: &Path, output: &mut Output) -> Result<PathBuf> {
    for cleared in clear_dead(directory)? {
        output.note(format_args!(
            "cleared a dead mount of {} from {}",
            cleared.source,
            cleared.dir.display()
        ));
    }
    fs::canonicalize(directory).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => Error::new(
            ErrorKind::NotFound,
            format!(
                "{} does not exist; make it with 'mkdir -p {}'",
                directory.display(),
                directory.display()
            ),
        ),
        _ => Error::from_io(&error, format!("looking at {}", directory.display())),
    })
}

/// One command of this user at a time: between the check of a mount and its end no other command may mount
/// there. Who waits for a daemon that is stopped does so before its turn, and not for long: all others would wait as well.
fn clear_dead(directory: &Path) -> Result<Vec<MountPoint>> {
    let Some(mount) = ramlace_mount::mounted_on(directory)? else { return Ok(Vec::new()) };
    match look_at(std::slice::from_ref(&mount))[..] {
        [Health::Dead] => {
            let _turn = take_turn()?;
            ramlace_mount::clear_dead(directory)
        }
        [Health::Silent] => {
            let (source, shown) = (mount.source, directory.display());
            let text = format!(
                "{source} is mounted on {shown} and does not answer: its daemon is stopped or waits for a server; \
                 'ramlace unmount {shown}' takes it away"
            );
            Err(Error::new(ErrorKind::Busy, text))
        }
        _ => Ok(Vec::new()),
    }
}

/// Held by one process of this user at a time.
fn take_turn() -> Result<fs::File> {
    let logs = log_directory()?;
    let turns = fs::File::open(&logs).and_then(|turns| turns.lock().map(|()| turns));
    turns.map_err(|error| Error::from_io(&error, format!("locking {}", logs.display())))
}

/// The note of a mount in a directory of its pool's, for as long as its daemon lives. The next mount may get the same
/// device number, and so a note of the same name, before this daemon has ended.
pub struct Record {
    path: PathBuf,
    inode: u64,
}

impl Record {
    /// Notes a mount of a pool of this machine; a pool that lives elsewhere has no directory here.
    pub fn write(named: Option<&str>, mount: &MountPoint) -> Result<Option<Record>> {
        if named.is_some_and(|named| named.contains(':')) {
            return Ok(None);
        }
        let directory = PoolDirectory::locate(&pool_name(named))?;
        make_records(&directory)?;
        let path = record_path(&directory, mount);
        let _turn = take_turn()?;
        Record::replace(&path, mount)
            .map(Some)
            .map_err(|error| Error::from_io(&error, format!("writing {}", path.display())))
    }

    /// A file of its own, whatever was there.
    fn replace(path: &Path, mount: &MountPoint) -> io::Result<Record> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        fs::write(&new, mount.dir.as_os_str().as_bytes())?;
        fs::rename(&new, path)?;
        Ok(Record { path: path.to_owned(), inode: fs::metadata(path)?.ino() })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _turn = take_turn();
        // Gone with the whole directory when the pool went first.
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn record_path(directory: &PoolDirectory, mount: &MountPoint) -> PathBuf {
    let (major, minor) = mount.device;
    records_of(directory).join(format!("mount-{major}-{minor}"))
}

/// Where notes of a pool's mounts are: all that daemons of mounts may write of what the pool has here.
fn records_of(directory: &PoolDirectory) -> PathBuf {
    directory.path().join("mounts")
}

/// Makes that directory. Without a pool there is none, and the code that connects to the pool reports that.
pub fn make_records(directory: &PoolDirectory) -> Result<PathBuf> {
    let records = records_of(directory);
    match fs::DirBuilder::new().mode(0o700).create(&records) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {
            Err(Error::from_io(&error, format!("making {}", records.display())))
        }
        _ => Ok(records),
    }
}

/// Starts a daemon that mounts the pool on `directory`, and waits until it has.
pub fn start(directory: &Path, named: Option<&str>, how: &MountHow) -> Result<()> {
    let log = log_path(directory)?;
    let doing = |error: std::io::Error| Error::from_io(&error, "starting the mount's daemon");
    let output = OpenOptions::new().append(true).create(true).mode(0o600).open(&log);
    let output = output.map_err(|error| Error::from_io(&error, format!("opening {}", log.display())))?;
    ramlace_launch::keep_descriptors_here();
    let (told, tell) = std::io::pipe().map_err(doing)?;
    let mut command = Command::new(std::env::current_exe().map_err(doing)?);
    ramlace_server::clean_environment(&mut command);
    command.args(["mount", "--daemon"]);
    if let Some(named) = named {
        command.args(["--pool", named]);
    }
    command.args(how.words()?);
    for variable in [SECRET_FILE_VARIABLE, HOST_KEY_FILE_VARIABLE] {
        if let Some(key) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            // The daemon has another working directory.
            command.env(variable, absolute(key.as_ref())?);
        }
    }
    command.arg("--").arg(directory).current_dir("/").stdin(Stdio::null()).stdout(tell).stderr(output);
    let mut daemon = command.spawn().map_err(doing)?;
    // The command has a copy of the pipe's other end; without it, the daemon's end is the pipe's end.
    drop(command);
    match listen(told) {
        Ok(()) => Ok(()),
        Err(error) => {
            // It has failed or hangs; either way it must not mount later, unexpectedly.
            let _ = daemon.kill();
            let _ = daemon.wait();
            Err(naming(directory, error))
        }
    }
}

/// The failure with the directory's name, which most of them have.
fn naming(directory: &Path, error: Error) -> Error {
    let shown = directory.display().to_string();
    if error.message().contains(&shown) { error } else { error.context(format!("mounting on {shown}")) }
}

/// Waits for the daemon's word.
fn listen(mut told: PipeReader) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let mut read = Vec::new();
    loop {
        wait_readable(&told, end)?;
        let mut bytes = [0; 4096];
        let count =
            told.read(&mut bytes).map_err(|error| Error::from_io(&error, "listening to the daemon"))?;
        read.extend_from_slice(&bytes[..count]);
        if read.ends_with(b"\n") || count == 0 || read.len() > TOLD_BYTES_MAX {
            return understand(&read);
        }
    }
}

fn wait_readable(told: &PipeReader, end: Instant) -> Result<()> {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).expect("some seconds fit");
        match poll(&mut [PollFd::new(told, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(Error::new(ErrorKind::TimedOut, "the daemon was not ready in time")),
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Error::from_io(&errno.into(), "waiting for the daemon")),
        }
    }
}

/// `mounted`, or a number of a kind and a sentence, as [`tell_failure`] writes them.
fn understand(read: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(read);
    let text = text.trim_end_matches('\n');
    if text == MOUNTED {
        return Ok(());
    }
    let (number, sentence) = text.split_once(' ').unwrap_or((text, ""));
    let kind = number.parse().ok().and_then(ErrorKind::from_number);
    match kind {
        Some(kind) if !sentence.is_empty() => Err(Error::new(kind, sentence)),
        _ => Err(Error::new(
            ErrorKind::Fatal,
            format!("its daemon ended without a word that makes sense: '{text}'"),
        )),
    }
}

/// What a daemon says when it could not mount.
pub fn tell_failure(error: &Error) -> String {
    format!("{} {}\n", error.kind().number(), error.message().replace('\n', " "))
}

/// Where daemons of mounts write; outlives the pools.
fn log_directory() -> Result<PathBuf> {
    let logs = runtime_directory()?.join(".mounts");
    fs::create_dir_all(&logs)
        .map_err(|error| Error::from_io(&error, format!("making {}", logs.display())))?;
    Ok(logs)
}

/// Where the daemon for a directory writes what goes wrong.
pub fn log_path(directory: &Path) -> Result<PathBuf> {
    let logs = log_directory()?;
    // A path has no NUL and a name no slash; what is left of a very long path distinguishes it.
    let name = directory.to_string_lossy().replace('/', "%");
    let start = name.len().saturating_sub(200);
    let name = name.get(start..).unwrap_or("mount");
    Ok(logs.join(format!("{name}.log")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_daemon_says_is_understood() {
        assert!(understand(b"mounted\n").is_ok());
        let error = Error::new(ErrorKind::NotFound, "no pool\nhere");
        assert_eq!(understand(tell_failure(&error).as_bytes()).unwrap_err().kind(), ErrorKind::NotFound);
        for nonsense in [&b""[..], b"mount", b"9", b"99999 x", b"\xff\xfe\n"] {
            assert_eq!(understand(nonsense).unwrap_err().kind(), ErrorKind::Fatal, "{nonsense:?}");
        }
    }

    #[test]
    fn runs_that_a_daemon_tells_of_have_a_sum_whatever_they_are() {
        assert!(lost_run("1 7 5 why").is_none(), "it ends before it begins");
        let runs: Vec<_> =
            ["1 0 18446744073709551615 why", "1 5 7 why"].into_iter().filter_map(lost_run).collect();
        assert_eq!((lost_bytes(&runs[1..]), lost_bytes(&runs)), (2, u64::MAX));
    }

    #[test]
    fn a_failure_names_the_directory_once() {
        let named =
            |text: &str| naming(Path::new("/m"), Error::new(ErrorKind::Denied, text)).message().to_owned();
        assert_eq!(named("mounting /m: refused"), "mounting /m: refused");
        assert_eq!(named("no pool 'x' here"), "mounting on /m: no pool 'x' here");
    }

    #[test]
    fn sources_are_locators() {
        assert_eq!(source_of(None), "ramlace:default");
        assert_eq!(source_of(Some("lab")), "ramlace:lab");
        assert_eq!(source_of(Some("node:7000")), "ramlace://node:7000");
    }
}
