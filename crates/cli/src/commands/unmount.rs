//! `unmount`: takes a pool's mount away, whatever state it is in.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_mount::{MountPoint, SYNC_ATTRIBUTE};
use rustix::io::Errno;
use serde_json::json;

use crate::failure::Done;
use crate::mount_users::{User, list, users_of};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  ramlace unmount /mnt/pool               programs that use it keep what they have open
  ramlace unmount --busy-fails /mnt/pool  fail instead while programs use it

A mount whose daemon has died is cleared away as well. What the pool holds stays.";

/// How long the kernel may take to release a mount that is not in use: a closed file is released a moment
/// later.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// How long what the mount has yet to send may take: longer than its requests.
const SENDING_MAX: Duration = Duration::from_secs(6);

/// Arguments of `unmount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory on which a pool is mounted
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Fail, and say which they are, while programs use the mount
    #[arg(long)]
    pub busy_fails: bool,
}

/// How a mount went away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// It was not in use.
    Unmounted,
    /// It is out of sight; these programs still use what they have open.
    Detached(Vec<User>),
}

/// Takes the mount away and says which programs used it.
pub fn run(args: &Args, output: &mut Output) -> Done {
    let mount = find(&args.directory)?;
    if let Err(error) = send_rest(&mount.dir) {
        let text = "what was written last could not be sent to the pool before the unmount";
        let next = "its daemon goes on with what is not lost, and its log names what is";
        eprintln!("ramlace: {}: {text}: {error}; {next}", mount.dir.display());
    }
    let gone = take_away(&mount.dir, !args.busy_fails)?;
    let users: &[User] = match &gone {
        Gone::Unmounted => &[],
        Gone::Detached(users) => users,
    };
    if output.json {
        let users: Vec<_> = users.iter().map(|user| json!({"pid": user.pid, "name": user.name})).collect();
        return output.json(&json!({
            "directory": mount.dir.to_string_lossy(), "source": mount.source, "detached": gone != Gone::Unmounted, "users": users,
        }));
    }
    match gone {
        Gone::Unmounted => output.line(format_args!("{} is unmounted.", mount.dir.display())),
        Gone::Detached(users) if users.is_empty() => output.line(format_args!(
            "{} is detached; programs of other users still use what they have open.",
            mount.dir.display()
        )),
        Gone::Detached(users) => output.line(format_args!(
            "{} is detached; {} still use{} what {} open.",
            mount.dir.display(),
            list(&users),
            if users.len() == 1 { "s" } else { "" },
            if users.len() == 1 { "it has" } else { "they have" }
        )),
    }
}

/// Waits until what the mount has promised is with the servers. A mount whose daemon has died promises nothing.
fn send_rest(directory: &Path) -> Result<()> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = directory.to_owned();
    // A daemon that does not answer keeps this thread waiting, and must not keep the unmount waiting.
    std::thread::spawn(move || {
        let sent = rustix::fs::getxattr(&path, SYNC_ATTRIBUTE, &mut [0u8; 16][..]);
        let _ = sender.send(sent.map(drop));
    });
    match receiver.recv_timeout(SENDING_MAX) {
        // Dead, or of an older ramlace.
        Ok(Ok(()) | Err(Errno::NOTCONN | Errno::NODATA | Errno::OPNOTSUPP)) => Ok(()),
        Ok(Err(errno)) => Err(Error::from_io(&errno.into(), "the mount refuses")),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, "the mount does not answer")),
    }
}

/// The mount on a directory. The path is not accessed: a dead mount does not answer.
fn find(directory: &Path) -> Result<MountPoint> {
    let absolute = std::path::absolute(directory)
        .map_err(|error| Error::from_io(&error, format!("looking at {}", directory.display())))?;
    // Links on the way are resolved in what is above the mount, which answers.
    let resolved = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map(|parent| parent.join(name)).ok(),
        _ => None,
    };
    let linked = || std::fs::canonicalize(&absolute).ok();
    let mounts = ramlace_mount::mounts()?;
    let on = |path: &Path| mounts.iter().rev().find(|mount| mount.dir == path).cloned();
    on(&absolute).or_else(|| on(&resolved?)).or_else(|| on(&linked()?)).ok_or_else(|| {
        let known: Vec<String> = mounts.iter().map(|mount| mount.dir.display().to_string()).collect();
        let hint = if known.is_empty() {
            "no pool is mounted on this machine".into()
        } else {
            format!("pools are mounted on {}", known.join(", "))
        };
        Error::new(ErrorKind::NotFound, format!("no pool is mounted on {}; {hint}", directory.display()))
    })
}

/// Unmounts; what is in use is detached, or an error that names the programs that use it.
pub fn take_away(directory: &Path, detach: bool) -> Result<Gone> {
    let end = Instant::now() + PATIENCE;
    loop {
        let busy = match ramlace_mount::unmount(directory, false) {
            Err(error) if error.kind() == ErrorKind::Busy => error,
            other => return other.map(|()| Gone::Unmounted),
        };
        let users = users_of(directory);
        // No program is to be seen, so one has just gone, or belongs to another user.
        if users.is_empty() && Instant::now() < end {
            std::thread::sleep(PAUSE);
            continue;
        }
        if detach {
            ramlace_mount::unmount(directory, true)?;
            return Ok(Gone::Detached(users));
        }
        return Err(if users.is_empty() { busy } else { in_use(directory, &users) });
    }
}

/// What is said when a mount is in use and must not be.
pub fn in_use(directory: &Path, users: &[User]) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!("the mount on {} is in use by {}; nothing was changed", directory.display(), list(users)),
    )
}
