//! What `up` says when the pool runs.

use std::time::Duration;

use ramlace_base::units::format_bytes;
use ramlace_client::{POOL_DEFAULT, PoolDirectory, PoolFile};
use serde_json::json;

use super::up_plan::Addresses;
use crate::failure::Done;
use crate::output::Output;

/// ` --pool NAME`, where it must be said.
pub fn option_for(name: &str) -> String {
    if name == POOL_DEFAULT { String::new() } else { format!(" --pool {name}") }
}

/// A pool that has just come up.
pub struct Report<'a> {
    /// Its servers.
    pub file: &'a PoolFile,
    /// Where its files lie.
    pub directory: &'a PoolDirectory,
    /// Where its servers listen.
    pub addresses: &'a Addresses,
    /// Bytes of all servers together.
    pub memory: u64,
    /// What was found on the way.
    pub notes: &'a [String],
}

impl Report<'_> {
    /// What runs now, and the next commands.
    pub fn tell(&self, took: Duration, output: &mut Output) -> Done {
        let Report { file, directory, addresses, memory, notes } = *self;
        let first = file.servers.first().map_or("", |server| &server.tcp);
        if output.json {
            return output.json(&json!({
                "pool": file.name, "id": file.pool, "directory": directory.path(), "memory_bytes": memory,
                "address": first, "seconds": took.as_secs_f64(), "notes": notes,
                "servers": file.servers.iter().map(|server| json!({
                    "server": server.server, "tcp": server.tcp, "unix": server.unix, "keeper_pid": server.keeper_pid,
                    "log": directory.log_path(server.id()),
                })).collect::<Vec<_>>(),
            }));
        }
        let count = file.servers.len();
        output.line(format_args!(
            "Pool '{}' is up: {count} server{}, {}, in {:.2} s. Try:\n",
            file.name,
            if count == 1 { "" } else { "s" },
            format_bytes(memory),
            took.as_secs_f64()
        ))?;
        let option = option_for(&file.name);
        for (command, meaning) in [
            (format!("ramlace cp{option} FILE ramlace:/"), "copy a file in"),
            (format!("ramlace ls{option} -l /"), "look at what is there"),
            (format!("ramlace cp{option} ramlace:/FILE -"), "copy it out, here to standard output"),
            (format!("ramlace status{option}"), "see how the servers are"),
            (format!("ramlace down{option}"), "stop the pool; what it holds is gone"),
        ] {
            output.line(format_args!("  {command:<38} # {meaning}"))?;
        }
        if addresses.is_reachable_from_elsewhere() {
            output.line(format_args!(
                "\nFrom other machines: copy {} there (readable by you alone), then\n\n  \
                 RAMLACE_SECRET_FILE=secret ramlace ls ramlace://{first}/",
                directory.secret_path().display()
            ))?;
        }
        Ok(())
    }
}
