//! `mount`: the pool as a directory.

use std::io::Write;
use std::path::{Path, PathBuf};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{POOL_DEFAULT, Pool};
use ramlace_mount::{Mount, MountOptions};
use serde_json::json;

use super::up_report::option_for;
use crate::failure::Done;
use crate::mounting::{MOUNTED, Record, directory_for, source_of, start, tell_failure};
use crate::output::Output;
use crate::place::connect_options;

const EXAMPLES: &str = "\
Examples:
  ramlace mount /mnt/pool                      the default pool; any program can use what is there
  ramlace mount --pool lab ~/lab               the pool 'lab'
  ramlace mount --pool node0:7000 ~/lab        a pool that lives elsewhere (RAMLACE_SECRET_FILE names its secret)
  ramlace mount --allow-other /srv/pool        for every user of this machine, each with his own rights
  ramlace unmount /mnt/pool

A dead mount on DIR, whose daemon was killed, is cleared away first.

With --allow-other, files belong to who makes them, and servers check owners, groups and modes for each user. Root
acts as nobody there unless the pool was started with --no-root-squash. For a pool that lives elsewhere,
RAMLACE_HOST_KEY_FILE names a copy of its file host-key.

Programs may map files for writing and share the memory. What a program has stored is there for other
machines after msync, fsync or close; `ramlace refresh FILE` brings what others have published into live mappings.";

/// Arguments of `mount`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "independent options")]
pub struct Args {
    /// An empty directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Refuse everything that changes the pool
    #[arg(long)]
    pub read_only: bool,

    /// Let every user of this machine in; each acts as himself, by the pool's host key. Ordinary users need
    /// `user_allow_other` in /etc/fuse.conf for this
    #[arg(long)]
    pub allow_other: bool,

    /// Let set-user-id bits count (root only)
    #[arg(long)]
    pub suid: bool,

    /// Let device files count (root only)
    #[arg(long)]
    pub dev: bool,

    /// Refuse all locks (ENOSYS), as a mount without locks does: fcntl and flock. They are never quietly local
    #[arg(long)]
    pub no_locks: bool,

    /// Let the kernel read and map files of one lane from the memory of this machine's servers, without asking (root only,
    /// Linux 6.9): many times faster where files are mapped. docs/SEMANTICS.md says what is different then
    #[arg(long)]
    pub passthrough: bool,

    /// Take memory at once for all by which a file becomes longer (truncate, ftruncate, a write behind its end): where there
    /// is none, the call is ENOSPC, and not a store into a mapping the program's end. Files made so have no holes
    #[arg(long)]
    pub reserve: bool,

    /// Stay in the foreground; SIGTERM or Ctrl-C unmounts
    #[arg(long)]
    pub foreground: bool,

    /// What `mount` starts: says on standard output how it went, then leaves the terminal.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub daemon: bool,
}

/// Mounts and comes back, or serves.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    args.check()?;
    if args.daemon {
        return Ok(run_daemon(args, named)?);
    }
    let directory = directory_for(&args.directory, output)?;
    if args.foreground {
        let mount = prepare(args, &directory, named)?;
        let _record = Record::write(named, mount.mount_point())?;
        output.note(format!("mounted on {}; Ctrl-C unmounts", directory.display()));
        args.notes(named).iter().for_each(|note| output.note(note));
        return Ok(mount.run().map(drop)?);
    }
    start(&directory, named, args.words())?;
    tell(&directory, named, &args.notes(named), output)
}

/// What `--passthrough` does for files with so many lanes, when that is nothing.
fn passthrough_note(lanes: usize, named: Option<&str>) -> Option<String> {
    let option = option_for(named.unwrap_or(POOL_DEFAULT));
    (lanes > 1).then(|| {
        format!(
            "--passthrough is for files of one lane, and new files in this pool's root have {lanes}: \
             'ramlace layout set{option} / --width 1' gives one to those that are made from then on"
        )
    })
}

impl Args {
    /// What the daemon is told beside the pool and the directory.
    fn words(&self) -> Vec<&'static str> {
        let words = [
            (self.read_only, "--read-only"),
            (self.allow_other, "--allow-other"),
            (self.suid, "--suid"),
            (self.dev, "--dev"),
            (self.no_locks, "--no-locks"),
            (self.passthrough, "--passthrough"),
            (self.reserve, "--reserve"),
        ];
        words.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect()
    }

    /// What is mounted and still of no use. The mount is there: what cannot be found out is left out.
    fn notes(&self, named: Option<&str>) -> Vec<String> {
        let lanes = || {
            let pool = Pool::connect(&connect_options(named)).ok()?;
            let width = pool.get_layout("/").ok()?.hints.width.map(usize::from);
            let servers = pool.map().ok()?.servers.iter().filter(|server| !server.forgotten).count();
            Some(width.unwrap_or(servers).min(servers))
        };
        let lanes = if self.passthrough { lanes() } else { None };
        lanes.and_then(|lanes| passthrough_note(lanes, named)).into_iter().collect()
    }

    /// Refuses what this user may not ask.
    fn check(&self) -> Result<()> {
        if (self.suid || self.dev) && !rustix::process::geteuid().is_root() {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                "only root may let set-user-id bits or devices of a mount count; leave --suid and --dev out",
            ));
        }
        if self.passthrough && !rustix::process::geteuid().is_root() {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                "only root may hand files over to the kernel; leave --passthrough out, everything works without it",
            ));
        }
        Ok(())
    }
}

/// Says what is mounted now.
fn tell(directory: &Path, named: Option<&str>, notes: &[String], output: &mut Output) -> Done {
    notes.iter().for_each(|note| output.note(note));
    let source = source_of(named);
    if output.json {
        return output
            .json(&json!({"source": source, "directory": directory.to_string_lossy(), "mounted": true, "notes": notes}));
    }
    output.line(format_args!(
        "{source} is mounted on {}; 'ramlace unmount {}' takes it away.",
        directory.display(),
        directory.display()
    ))
}

/// Signals first, for threads inherit how they are treated; then the pool, then the mount.
fn prepare(args: &Args, directory: &Path, named: Option<&str>) -> Result<Mount> {
    // A daemon with many files open needs more descriptors than a shell's programs get.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let _ = rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: limit.maximum, ..limit },
    );
    let place = directory.to_owned();
    ramlace_mount::on_ending(move |count| end(&place, count))?;
    let mut connect = connect_options(named);
    connect.label = format!("mount {}", directory.display());
    let options = MountOptions {
        directory: directory.to_owned(),
        connect,
        source: source_of(named),
        read_only: args.read_only,
        allow_other: args.allow_other,
        allow_suid: args.suid,
        allow_devices: args.dev,
        locks: !args.no_locks,
        passthrough: args.passthrough,
        reserve: args.reserve,
    };
    Mount::new(&options)
}

/// Asked to end: programs that use the mount keep what they have open, until they are asked twice.
fn end(directory: &Path, count: u32) {
    if count > 1 {
        std::process::exit(1);
    }
    let unmounted =
        ramlace_mount::unmount(directory, false).or_else(|_| ramlace_mount::unmount(directory, true));
    if let Err(error) = unmounted {
        eprintln!("ramlace: {error}");
        std::process::exit(1);
    }
}

fn run_daemon(args: &Args, named: Option<&str>) -> Result<()> {
    // A process that `mount` started leads no group yet; where it does, it is nobody's child to begin with.
    let _ = rustix::process::setsid();
    let mounted = prepare(args, &args.directory, named)
        .and_then(|mount| Record::write(named, mount.mount_point()).map(|record| (mount, record)));
    let text = match &mounted {
        Ok(_) => format!("{MOUNTED}\n"),
        Err(error) => tell_failure(error),
    };
    // Whoever started the daemon may have gone; the mount is there all the same.
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    let (mount, _record) = mounted?;
    mount.run().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passthrough_of_nothing_is_said() {
        assert_eq!(passthrough_note(1, None), None);
        let note = passthrough_note(2, Some("lab")).unwrap();
        assert!(note.contains("have 2") && note.contains("layout set --pool lab / --width 1"), "{note}");
        assert!(passthrough_note(2, None).unwrap().contains("layout set / --width 1"));
    }
}
