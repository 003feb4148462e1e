//! `down` of a pool that runs on several machines.

use std::cell::RefCell;
use std::time::Duration;

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind};
use ramlace_client::{PoolDirectory, PoolFile, PoolFileHosts};
use ramlace_launch::{Cancel, HostStopped, PoolStopped, listed, option_for, stop_on_hosts};
use serde_json::{Value, json};

use super::down::unmount_all;
use crate::failure::{Done, Failure};
use crate::hosts_progress::HostsProgress;
use crate::interrupt::Interrupt;
use crate::output::Output;

/// On a host of a pool that another machine has started: what to do instead.
pub fn refuse_here(file: &PoolFile, hosts: &PoolFileHosts, here: &str) -> Error {
    let named = option_for(&file.name);
    Error::new(
        ErrorKind::NotPermitted,
        format!(
            "pool '{}' runs on {} and was started from {}: 'ramlace down{named}' there stops all of it; \
             'ramlace down --force{named}' here stops the servers of {here} alone, and what they hold is lost",
            file.name,
            listed(&hosts.hosts),
            hosts.started_from
        ),
    )
}

/// Stops every host. The directory goes when all have answered, or when it shall be forgotten.
pub fn run(
    directory: &PoolDirectory,
    file: &PoolFile,
    force: bool,
    patience: Duration,
    output: &mut Output,
) -> Done {
    let interrupt = Interrupt::catch()?;
    let cancel = Cancel::new(interrupt.fd());
    let mut progress = HostsProgress::new(output.json);
    let unmounted = RefCell::new(Vec::new());
    let unmount_here = || {
        unmounted.borrow_mut().extend(unmount_all(&file.name, force)?);
        Ok(())
    };
    let PoolStopped { hosts: stopped, refused } =
        stop_on_hosts(directory, file, force, patience, cancel, &mut progress, &unmount_here)?;
    // The line goes before anything is said.
    drop(progress);
    let force = force && !cancel.came();
    let failed = stopped.iter().any(|one| one.outcome.is_err());
    for note in
        unmounted.into_inner().into_iter().chain(stopped.iter().flat_map(|one| notes(one, file, refused)))
    {
        output.note(note);
    }
    report(&stopped, file, (failed, refused), force, output)?;
    output.flush()?;
    if failed && !force { Err(Failure::Told) } else { Ok(()) }
}

/// How many servers a host was given.
fn given(file: &PoolFile, host: &str) -> usize {
    file.servers.iter().filter(|server| server.host.as_deref() == Some(host)).count()
}

/// `refused`: programs use a mount on some host, and nothing was changed on any.
fn notes(stopped: &HostStopped, file: &PoolFile, refused: bool) -> Vec<String> {
    let host = &stopped.host;
    match &stopped.outcome {
        Err(error) if refused => vec![error.message().to_owned()],
        Err(error) => {
            let named = option_for(&file.name);
            vec![
                error.message().to_owned(),
                format!(
                    "servers may still run on {host}; to stop them by hand, run there: ramlace down --force{named}"
                ),
            ]
        }
        Ok((servers, notes)) => {
            let mut notes: Vec<String> = notes.iter().map(|note| format!("host {host}: {note}")).collect();
            let given = given(file, host);
            if *servers < given {
                notes.push(format!(
                    "host {host}: of its {} still ran: {servers}",
                    count(given as u64, "server")
                ));
            }
            notes
        }
    }
}

fn report(
    stopped: &[HostStopped],
    file: &PoolFile,
    (failed, refused): (bool, bool),
    force: bool,
    output: &mut Output,
) -> Done {
    let running: usize = stopped.iter().filter_map(|one| one.outcome.as_ref().ok()).map(|(n, _)| n).sum();
    if output.json {
        return output.json(&json!({
            "pool": file.name, "servers": running, "down": !failed, "forgotten": failed && force,
            "notes": stopped.iter().flat_map(|one| notes(one, file, refused)).collect::<Vec<_>>(),
            "hosts": stopped.iter().map(host_json).collect::<Vec<_>>(),
        }));
    }
    if !failed {
        return output.line(format_args!("Pool '{}' is down on {}.", file.name, listed_all(stopped)));
    }
    let silent: Vec<String> =
        stopped.iter().filter(|one| one.outcome.is_err()).map(|one| one.host.clone()).collect();
    let named = option_for(&file.name);
    if force {
        return output.line(format_args!(
            "Pool '{}' is forgotten here; {} may still run it.",
            file.name,
            listed(&silent)
        ));
    }
    if refused {
        output.note(format_args!(
            "pool '{}' is not down, and nothing was changed: end those programs, or take the mounts from them with 'ramlace down --force{named}'",
            file.name
        ));
        return Ok(());
    }
    output.note(format_args!(
        "pool '{}' is not down: {} of {} did not answer; repeat 'ramlace down{named}' when they can be reached, \
         or forget them with 'ramlace down --force{named}'",
        file.name,
        silent.len(),
        count(stopped.len() as u64, "host")
    ));
    Ok(())
}

fn listed_all(stopped: &[HostStopped]) -> String {
    listed(&stopped.iter().map(|one| one.host.clone()).collect::<Vec<_>>())
}

fn host_json(stopped: &HostStopped) -> Value {
    match &stopped.outcome {
        Ok((servers, _)) => json!({"host": stopped.host, "stopped": true, "servers": servers}),
        Err(error) => json!({"host": stopped.host, "stopped": false, "error": error.message()}),
    }
}
