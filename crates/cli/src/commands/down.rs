//! `down`: stops a pool; `down_hosts` where it runs on several machines.

use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{PoolDirectory, pool_name};
use ramlace_launch::{DirectoryLock, hosts_of, option_for, runs_here, stop_here};
use ramlace_mount::MountPoint;
use serde_json::json;

use super::down_hosts;
use super::unmount::{Gone, in_use, take_away};
use super::up::parse_patience;
use crate::failure::Done;
use crate::mount_users::{list, users_of};
use crate::mounting::mounts_of;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  ramlace down               stop the default pool
  ramlace down --pool lab    stop the pool 'lab'
  ramlace down --force       stop what can be reached, forget the rest, and mind no program that uses a mount

The pool's mounts on this machine are taken away first. While programs use one, `down` names them and changes
nothing.

A pool that was started by `up --hosts` is stopped on all its hosts, by the transport command that started it, and
only from the machine on which `up` ran. When a host cannot be reached, the others are stopped, the exit code is 1, and
`down` can be repeated. On any other host of such a pool `down` refuses; with --force it stops the servers of that
host alone.

Servers are stopped also where their pool's directory is gone (systemd removes that of a user who does not linger with the
last session).

What the pool holds is gone; copy out first what you want to keep.";

/// Arguments of `down`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Also while programs use a mount of the pool; forget hosts that cannot be reached; on a host of a pool that another machine has started:
    /// stop the servers of this host alone
    #[arg(long)]
    pub force: bool,

    /// How long a host may take to answer
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = parse_patience)]
    pub patience: f64,
}

/// Stops every server, waits until they are gone, and removes the pool's directory.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let name = pool_name(named);
    let directory = directory_of(&name)?;
    let lock = DirectoryLock::take(&directory)?;
    if let Some((file, hosts)) = hosts_of(&directory)? {
        match &hosts.here {
            None => {
                let patience = Duration::from_secs_f64(args.patience);
                return down_hosts::run(&directory, &file, args.force, patience, output);
            }
            Some(here) if !args.force => return Err(down_hosts::refuse_here(&file, &hosts, here).into()),
            Some(_) => {}
        }
    }
    let mut notes = unmount_all(&name, args.force)?;
    let (servers, stopped) = stop_here(&directory)?;
    notes.extend(stopped);
    drop(lock);
    for note in &notes {
        output.note(note);
    }
    if output.json {
        return output.json(&json!({"pool": name, "servers": servers, "notes": notes}));
    }
    if servers == 0 {
        return output.line(format_args!("Pool '{name}' was not running; what it had left was removed."));
    }
    output.line(format_args!("Pool '{name}' is down."))
}

/// The directory of a pool that may run: made anew where it is gone while servers run on.
fn directory_of(name: &str) -> Result<PoolDirectory> {
    let directory = PoolDirectory::locate(name)?;
    if directory.exists()? {
        return Ok(directory);
    }
    if !runs_here(&directory)? {
        let text = format!(
            "there is no pool '{name}' to stop; 'ramlace up{}' starts one, 'ramlace doctor' lists those that run",
            option_for(name)
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    // Removed again with the servers. Whoever starts the pool meanwhile has the lock, or finds it taken.
    directory.create_without_keys()?;
    Ok(directory)
}

/// Checks that no program uses a mount of the pool here; the error names those that do.
pub fn check_unused(pool: &str) -> Result<()> {
    check_each_unused(&mounts_of(pool)?)
}

fn check_each_unused(mounts: &[MountPoint]) -> Result<()> {
    for mount in mounts {
        let users = users_of(&mount.dir);
        if !users.is_empty() {
            return Err(in_use(&mount.dir, &users));
        }
    }
    Ok(())
}

/// Takes the pool's mounts away, or none of them: an error names the programs that use one, unless `force`.
/// Returns what there is to say.
pub fn unmount_all(pool: &str, force: bool) -> Result<Vec<String>> {
    let mounts = mounts_of(pool)?;
    if !force {
        check_each_unused(&mounts)?;
    }
    let mut notes = Vec::new();
    // A mount may lie within another.
    for mount in mounts.iter().rev() {
        match take_away(&mount.dir, force)? {
            Gone::Unmounted => notes.push(format!("unmounted {}", mount.dir.display())),
            Gone::Detached(users) if users.is_empty() => {
                notes.push(format!("detached {} from programs that used it", mount.dir.display()));
            }
            Gone::Detached(users) => {
                notes.push(format!("detached {} from {}", mount.dir.display(), list(&users)));
            }
        }
    }
    Ok(notes)
}
