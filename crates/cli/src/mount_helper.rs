//! `mount.ramlace` and `mount.fuse.ramlace`: this program under the names by which mount(8) finds it.
//!
//! mount(8), fstab, automount and systemd run it as `/sbin/mount.ramlace SPEC DIR [-sfnv] [-N NAMESPACE] [-o
//! OPTIONS] [-t TYPE]`. What it does for an ordinary user is what `ramlace mount` does.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{Locator, PoolName};
use ramlace_mount::remount;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::commands::mount::notes;
use crate::mount_options::{MountHow, Options};
use crate::mounting::{directory_for, source_of, start};
use crate::output::{Output, say_line};

/// The names of links to this program that make it the helper.
const NAMES: [&str; 2] = ["mount.ramlace", "mount.fuse.ramlace"];
/// Exit codes of mount(8): wrong usage, and a mount that failed.
const EXIT_USAGE: u8 = 1;
const EXIT_FAILED: u8 = 32;

const EXAMPLES: &str = "\
Examples:
  mount -t ramlace lab /mnt/pool          root's pool 'lab'
  mount -t ramlace ramlace://node0:7000 /mnt/pool -o secret_file=/etc/ramlace/secret
  mount -o remount,ro /mnt/pool           nobody writes by this mount any more
  umount /mnt/pool

A line of /etc/fstab, for every user of this machine (one line):
  ramlace://node0:7000 /mnt/pool ramlace _netdev,nofail,allow_other,host_key_file=/etc/ramlace/host-key 0 0

And of a map of autofs:
  pool -fstype=ramlace,secret_file=/etc/ramlace/secret ramlace\\://node0\\:7000

Write the pool in fstab as 'mount' and 'df' show it, ramlace:NAME or ramlace://host:port: so 'mount -a' knows what is mounted.

Options are those of 'ramlace mount' (allow_other, no_locks, passthrough, reserve, mode=MODE, metadata=WHEN, secret_file=PATH, host_key_file=PATH) and the \
generic ones of mount(8) (ro, noexec, noatime, ...). Neither set-user-id bits nor device files count without suid and dev. \
Others are an error, unless -s is given. A remount, which is for root, changes generic options; the others stay as they were \
when the pool was mounted.

Exit codes: 0 done, 1 wrong usage or not permitted, 32 failed.";

/// Mount a pool for mount(8), fstab and autofs.
#[derive(Parser, Debug)]
#[command(version, after_help = EXAMPLES)]
struct Args {
    /// The pool: its name, host:port of one of its servers, ramlace:NAME or ramlace://host:port
    #[arg(value_name = "SPEC")]
    spec: String,

    /// An empty directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Options, with commas between them
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Leave out options that nobody knows
    #[arg(short)]
    sloppy: bool,

    /// Check everything and mount nothing
    #[arg(short)]
    fake: bool,

    /// Write no mtab: there is none
    #[arg(short)]
    no_mtab: bool,

    /// Say what was done
    #[arg(short)]
    verbose: bool,

    /// Mount in this namespace of mounts
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,

    /// fuse.ramlace or ramlace
    #[arg(short = 't', value_name = "TYPE", value_parser = ["ramlace", "fuse.ramlace"])]
    kind: Option<String>,
}

/// The helper's name, if this program was called by one.
pub fn called_as(program: Option<&OsStr>) -> Option<String> {
    let name = Path::new(program?).file_name()?.to_str()?;
    NAMES.contains(&name).then(|| name.to_owned())
}

/// Runs as the helper, and ends as mount(8) expects it.
pub fn run(name: &str) -> ExitCode {
    let args = match Args::try_parse_from(std::env::args_os().enumerate().map(|(index, word)| {
        // What it was called by is how its help calls it.
        if index == 0 { OsString::from(name) } else { word }
    })) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    match args.mount() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_line(&format!("{name}: {error}"));
            let usage = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotPermitted);
            ExitCode::from(if usage { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

impl Args {
    fn mount(&self) -> Result<()> {
        let options = Options::parse(self.options.iter().map(String::as_str));
        let how = options.applied(MountHow::default(), self.sloppy)?;
        if let Some(namespace) = &self.namespace {
            enter(namespace)?;
        }
        if options.remount {
            // Options that were not named stay as they are, wherever the list came from.
            let changed =
                |flags| options.applied(MountHow { flags, ..MountHow::default() }, true).map(|how| how.flags);
            return if self.fake { Ok(()) } else { remount(&self.directory, changed) };
        }
        let named = pool_of(&self.spec)?;
        how.check()?;
        if self.fake {
            return Ok(());
        }
        let output = &mut Output::new(false);
        let directory = directory_for(&self.directory, output)?;
        start(&directory, named.as_deref(), &how)?;
        notes(&how, named.as_deref()).iter().for_each(|note| output.note(note));
        if self.verbose {
            say_line(&format!("{} mounted on {}.", source_of(named.as_deref()), directory.display()));
        }
        Ok(())
    }
}

/// The pool that the first word names. A place within a pool is none: the whole pool would be mounted.
fn pool_of(spec: &str) -> Result<Option<String>> {
    if let Ok(locator) = Locator::parse(spec)
        && locator.path != b"/"
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("'{spec}' is a place within a pool; a whole pool is mounted: leave the path out"),
        ));
    }
    Ok(match PoolName::parse(spec)? {
        PoolName::Default => None,
        PoolName::Named(name) | PoolName::At(name) => Some(name),
    })
}

/// Goes where mount(8) was asked to mount. This process has one thread yet, as the kernel wants it.
fn enter(namespace: &Path) -> Result<()> {
    let shown = namespace.display();
    let file = File::open(namespace).map_err(|error| Error::from_io(&error, &shown))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(|errno| Error::from_io(&errno.into(), format_args!("entering {shown}")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn it_is_the_helper_by_its_names_alone() {
        let name = |path: &str| called_as(Some(OsStr::new(path)));
        assert_eq!(name("/sbin/mount.ramlace").as_deref(), Some("mount.ramlace"));
        assert_eq!(name("mount.fuse.ramlace").as_deref(), Some("mount.fuse.ramlace"));
        assert_eq!(name("/usr/bin/ramlace"), None);
        assert_eq!(name("/mount.ramlace/ramlace"), None);
        assert_eq!(called_as(None), None);
    }

    #[test]
    fn its_command_line_is_that_of_mount_8() {
        Args::command().debug_assert();
        let words = "mount.ramlace lab /m -sfnv -N /proc/1/ns/mnt -o rw,ro -t fuse.ramlace";
        let args = Args::try_parse_from(words.split(' ')).unwrap();
        assert!(args.sloppy && args.fake && args.no_mtab && args.verbose);
        assert_eq!((args.options, args.kind.as_deref()), (vec!["rw,ro".to_owned()], Some("fuse.ramlace")));
        assert!(Args::try_parse_from(["mount.ramlace", "lab", "/m", "-t", "ext4"]).is_err());
        assert!(Args::try_parse_from(["mount.ramlace", "lab"]).is_err());
    }

    #[test]
    fn what_is_mounted_is_a_whole_pool() {
        assert_eq!(pool_of("lab").unwrap().as_deref(), Some("lab"));
        assert_eq!(pool_of("ramlace:lab").unwrap().as_deref(), Some("lab"));
        assert_eq!(pool_of("ramlace://node:7000/").unwrap().as_deref(), Some("node:7000"));
        assert_eq!(pool_of("node:7000").unwrap().as_deref(), Some("node:7000"));
        assert_eq!(pool_of("ramlace:/").unwrap(), None);
        for spec in ["ramlace:/x", "ramlace://node:7000/x", "/dev/sda1", ""] {
            assert_eq!(pool_of(spec).unwrap_err().kind(), ErrorKind::Invalid, "{spec}");
        }
    }
}
