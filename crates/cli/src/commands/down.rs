//! `down`: stops a pool on this machine.

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind};
use ramlace_client::{PoolDirectory, pool_name};
use serde_json::json;

use super::up_report::option_for;
use crate::failure::Done;
use crate::lock::DirectoryLock;
use crate::output::Output;
use crate::stop::{remove_stale_stores, stop_servers};

const EXAMPLES: &str = "\
Examples:
  ramlace down               stop the default pool
  ramlace down --pool lab    stop the pool 'lab'

What the pool holds is gone; copy out first what you want to keep.";

/// Arguments of `down`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// Stops every server, waits until they are gone, and removes the pool's directory.
pub fn run(_: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let name = pool_name(named);
    let directory = PoolDirectory::locate(&name)?;
    if !directory.exists()? {
        let text = format!(
            "there is no pool '{name}' to stop; 'ramlace up{}' starts one, 'ramlace doctor' lists those that run",
            option_for(&name)
        );
        return Err(Error::new(ErrorKind::NotFound, text).into());
    }
    let lock = DirectoryLock::take(&directory)?;
    let (servers, mut notes) = stop_servers(&directory.secret_path())?;
    let freed = remove_stale_stores(&directory)?;
    if freed > 0 {
        notes
            .push(format!("gave back {} of shared memory that killed servers had left", format_bytes(freed)));
    }
    directory.remove()?;
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
