//! `mount`: the pool as a directory.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{POOL_DEFAULT, Pool};
use ramlace_launch::option_for;
use ramlace_mount::{Mode, Mount, MountOptions, Porter};
use ramlace_server::MountFiles;
use serde_json::json;

use crate::failure::Done;
use crate::mount_options::{Metadata, MountHow, Options, metadata_of, mode_of};
use crate::mount_sandbox;
use crate::mounting::{MOUNTED, Record, directory_for, source_of, start, tell_failure};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  ramlace mount /mnt/pool                      the default pool; any program can use what is there
  ramlace mount --pool lab ~/lab               the pool 'lab'
  ramlace mount --pool node0:7000 ~/lab        a pool that lives elsewhere (RAMLACE_SECRET_FILE names its secret)
  ramlace mount --allow-other /srv/pool        for every user of this machine, each with their own rights
  ramlace mount -o ro,noexec /mnt/pool         with the words that fstab has
  ramlace mount --mode strict /mnt/pool        mapped files are one memory with other strict mounts, without msync
  ramlace unmount /mnt/pool

A dead mount on DIR, whose daemon was killed, is cleared away first.

With --allow-other, files belong to the users who make them, and servers check owners, groups and modes for each user. Root
acts as nobody there unless the pool was started with --no-root-squash. For a pool that lives elsewhere,
RAMLACE_HOST_KEY_FILE names a file with the key that `ramlace host-key` has made for this machine.

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

    /// Let every user of this machine in; each acts under their own id, by the pool's host key. Ordinary users need
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

    /// When other machines see what programs store into mapped files: `coherent`, after msync; `strict`, at once, as if all
    /// were programs of one machine (Linux 6.6); `relaxed`, after msync here and a refresh or a lock there: nobody waits for
    /// this mount. docs/SEMANTICS.md says what each costs [default: coherent]
    #[arg(long, value_name = "MODE", value_parser = mode_of)]
    pub mode: Option<Mode>,

    /// When files that are made, written and closed are with their servers: `sync`, before each call is back; `behind`, a tenth of a second
    /// later where nobody else looks into their directory (fsync and sync wait for it; a machine that dies loses what it has not sent, as
    /// with a local file system) [default: sync]
    #[arg(long, value_name = "WHEN", value_parser = metadata_of)]
    pub metadata: Option<Metadata>,

    /// Where the secret of a pool that lives elsewhere lies [default: what RAMLACE_SECRET_FILE names]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// Where its host key lies, for --allow-other [default: what RAMLACE_HOST_KEY_FILE names]
    #[arg(long, value_name = "FILE")]
    pub host_key_file: Option<PathBuf>,

    /// Options with commas between them, as in fstab: those above with underscores, and the generic ones of mount(8)
    /// such as ro, noexec and noatime
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    pub options: Vec<String>,

    /// Stay in the foreground; SIGTERM or Ctrl-C unmounts
    #[arg(long)]
    pub foreground: bool,

    /// What `mount` starts: says on standard output how it went, then leaves the terminal.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub daemon: bool,
}

/// Mounts and comes back, or serves.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let how = args.how()?;
    how.check()?;
    if args.daemon {
        return Ok(run_daemon(&how, &args.directory, named)?);
    }
    let directory = directory_for(&args.directory, output)?;
    if args.foreground {
        let mount = prepare(&how, &directory, named)?;
        let _record = Record::write(named, mount.mount_point())?;
        output.note(format!("mounted on {}; Ctrl-C unmounts", directory.display()));
        notes(&how, named).iter().for_each(|note| output.note(note));
        return Ok(mount.run().map(drop)?);
    }
    start(&directory, named, &how)?;
    tell(&directory, named, &notes(&how, named), output)
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
    /// What the options and the lists behind `-o` ask for together.
    fn how(&self) -> Result<MountHow> {
        let mut how = MountHow {
            allow_other: self.allow_other,
            no_locks: self.no_locks,
            passthrough: self.passthrough,
            reserve: self.reserve,
            metadata_behind: self.metadata == Some(Metadata::Behind),
            mode: self.mode.unwrap_or_default(),
            secret_file: self.secret_file.clone(),
            host_key_file: self.host_key_file.clone(),
            ..MountHow::default()
        };
        let flags = [(self.read_only, "ro"), (self.suid, "suid"), (self.dev, "dev")];
        for (_, word) in flags.into_iter().filter(|(on, _)| *on) {
            how.flags.apply(word);
        }
        let options = Options::parse(self.options.iter().map(String::as_str));
        if options.remount {
            let text = "remount is for mount(8): 'mount -o remount,ro DIR', as root";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        options.applied(how, false)
    }
}

/// What is mounted and still of no use. The mount is there: what cannot be found out is left out.
pub fn notes(how: &MountHow, named: Option<&str>) -> Vec<String> {
    let lanes = || {
        let pool = Pool::connect(&how.connect(named)).ok()?;
        let width = pool.get_layout("/").ok()?.hints.width.map(usize::from);
        let servers = pool.map().ok()?.servers.iter().filter(|server| !server.forgotten).count();
        Some(width.unwrap_or(servers).min(servers))
    };
    let lanes = if how.passthrough { lanes() } else { None };
    lanes.and_then(|lanes| passthrough_note(lanes, named)).into_iter().collect()
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
fn prepare(how: &MountHow, directory: &Path, named: Option<&str>) -> Result<Mount> {
    let delays = delays()?;
    // Before this process drops the rights that this needs, and before it has a thread.
    let porter = Arc::new(Porter::start(porter_of(how, directory, named)?)?);
    for lacking in mount_sandbox::enter(how, directory, named)? {
        eprintln!("ramlace: the sandbox of this mount is not whole: {lacking}");
    }
    // A daemon with many files open needs more descriptors than a shell's programs get; the command itself has raised the
    // limit, unless it was called by `mount`.
    ramlace_launch::raise_descriptor_limit();
    let mounted = Arc::new(OnceLock::new());
    let asked = mounted.clone();
    let named_directory = directory.to_owned();
    ramlace_mount::on_ending(move |count| end(asked.get(), &named_directory, count))?;
    let mount = Mount::new(&MountOptions { delays, ..options_of(how, directory, named) }, &porter)?;
    let _ = mounted.set(porter);
    Ok(mount)
}

/// What the daemon and its porter mount.
fn options_of(how: &MountHow, directory: &Path, named: Option<&str>) -> MountOptions {
    let mut connect = how.connect(named);
    connect.label = format!("mount {}", directory.display());
    MountOptions {
        directory: directory.to_owned(),
        connect,
        source: source_of(named),
        flags: how.flags,
        allow_other: how.allow_other,
        locks: !how.no_locks,
        passthrough: how.passthrough,
        reserve: how.reserve,
        behind: how.metadata_behind,
        mode: how.mode,
        delays: None,
    }
}

/// The file that a test has named, by which requests are delayed.
fn delays() -> Result<Option<Arc<File>>> {
    let Some(path) = std::env::var_os("RAMLACE_MOUNT_DELAYS").filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let file = File::open(&path)
        .map_err(|error| Error::from_io(&error, format!("opening {}", Path::new(&path).display())))?;
    Ok(Some(Arc::new(file)))
}

/// This very program, also when another one has taken its place meanwhile.
fn own_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    ramlace_server::clean_environment(&mut command);
    command.arg0("ramlace").current_dir("/");
    command
}

/// Starts it as the porter of a mount, which has the same options.
fn porter_of(how: &MountHow, directory: &Path, named: Option<&str>) -> Result<Command> {
    let mut command = own_program();
    command.arg("mount-porter");
    if let Some(named) = named {
        command.args(["--pool", named]);
    }
    command.arg(directory).args(how.words()?);
    Ok(command)
}

/// What the daemon of a mount starts first.
pub fn run_porter(args: &Args, named: Option<&str>) -> Done {
    ramlace_server::hide();
    let options = options_of(&args.how()?, &args.directory, named);
    let directory = args.directory.clone();
    Ok(ramlace_mount::run_porter(std::io::stdin(), &options, Box::new(move || guard_of(&directory)))?)
}

/// Starts it as the guard of a mount.
fn guard_of(directory: &Path) -> Command {
    let mut command = own_program();
    command.args(["mount-guard", "--for"]).arg(directory);
    command
}

/// Arguments of the hidden `mount-guard`.
#[derive(clap::Args, Debug)]
pub struct GuardArgs {
    /// The mount that it guards, for people who look at the list of processes.
    #[arg(long = "for", value_name = "DIR")]
    pub directory: PathBuf,
}

/// What the porter of a mount starts.
pub fn run_guard(_: &GuardArgs) -> Done {
    ramlace_server::harden();
    // It is written by the daemon and read by programs, and concerns no file.
    let enter_sandbox = || {
        for lacking in ramlace_server::enter_mount_sandbox(Some(MountFiles::default())) {
            eprintln!("ramlace: the sandbox of this mount's guard is not whole: {lacking}");
        }
    };
    Ok(ramlace_mount::run_guard(std::io::stdin(), enter_sandbox)?)
}

/// Asked to end: programs that use the mount keep what they have open, until they are asked twice.
fn end(mounted: Option<&Arc<Porter>>, directory: &Path, count: u32) {
    let Some(porter) = mounted.filter(|_| count == 1) else { std::process::exit(1) };
    let unmounted = porter.unmount(false).or_else(|_| porter.unmount(true));
    if let Err(error) = unmounted {
        if error.kind() != ErrorKind::Fatal {
            // The mount is gone from its place already.
            eprintln!("ramlace: {error}");
            std::process::exit(1);
        }
        // The porter is gone. Without this process, what programs have stored in mapped files would be lost.
        eprintln!(
            "ramlace: {error}; this goes on serving: 'ramlace unmount {}' takes the mount away",
            directory.display()
        );
    }
}

fn run_daemon(how: &MountHow, directory: &Path, named: Option<&str>) -> Result<()> {
    // A process that `mount` started leads no group yet; where it does, `mount`
    // has not started it, and it stays in its session.
    let _ = rustix::process::setsid();
    let mounted = prepare(how, directory, named)
        .and_then(|mount| Record::write(named, mount.mount_point()).map(|record| (mount, record)));
    let text = match &mounted {
        Ok(_) => format!("{MOUNTED}\n"),
        Err(error) => tell_failure(error),
    };
    // The parent that started the daemon may have gone; the mount is there all the same.
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    let (mount, _record) = mounted?;
    if let Err(error) = ramlace_server::keep_log_short() {
        eprintln!("ramlace: this log grows without an end: {error}");
    }
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
