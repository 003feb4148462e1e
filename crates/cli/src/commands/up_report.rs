//! What `up` says when the pool runs.

use std::path::Path;
use std::time::Duration;

use ramlace_base::units::{count, format_bytes};
use ramlace_client::{PoolDirectory, PoolFile};
use ramlace_launch::{HostStarted, option_for};
use serde_json::{Value, json};

use crate::failure::Done;
use crate::output::Output;
use crate::show::table;

/// A pool that has just come up.
pub struct Report<'a> {
    /// Its servers.
    pub file: &'a PoolFile,
    /// Where its files lie.
    pub directory: &'a PoolDirectory,
    /// Whether other machines may reach it.
    pub for_others: bool,
    /// Bytes of all servers together.
    pub memory: u64,
    /// What was found on the way.
    pub notes: &'a [String],
    /// Where it is mounted.
    pub mount: Option<&'a Path>,
    /// The hosts of a pool of several machines, else none.
    pub hosts: &'a [HostStarted],
}

impl Report<'_> {
    /// What runs now, and the next commands.
    pub fn tell(&self, took: Duration, output: &mut Output) -> Done {
        let Report { file, directory, for_others, memory, hosts, mount, .. } = *self;
        let first = self.address();
        if output.json {
            return output.json(&self.json(took));
        }
        output.line(format_args!(
            "Pool '{}' is up: {}{}, {}, in {:.2} s.{}",
            file.name,
            count(file.servers.len() as u64, "server"),
            if hosts.is_empty() {
                String::new()
            } else {
                format!(" on {}", count(hosts.len() as u64, "host"))
            },
            format_bytes(memory),
            took.as_secs_f64(),
            if hosts.is_empty() { " Try:\n" } else { "\n" }
        ))?;
        if !hosts.is_empty() {
            self.tell_hosts(output)?;
        }
        let option = option_for(&file.name);
        let directory_first = match mount {
            Some(mount) => (format!("ls {}", mount.display()), "the pool as a directory"),
            None => (format!("ramlace mount{option} DIR"), "the pool as a directory, for any program"),
        };
        for (command, meaning) in [
            directory_first,
            (format!("ramlace cp{option} FILE ramlace:/"), "copy a file in"),
            (format!("ramlace ls{option} -l /"), "look at what is there"),
            (format!("ramlace cp{option} ramlace:/FILE -"), "copy it out, here to standard output"),
            (format!("ramlace status{option}"), "see how the servers are"),
            (format!("ramlace down{option}"), "stop the pool; what it holds is gone"),
        ] {
            output.line(format_args!("  {command:<38} # {meaning}"))?;
        }
        if for_others {
            output.line(format_args!(
                "\nFrom {}other machines: copy {} there (readable by you alone), then\n\n  \
                 RAMLACE_SECRET_FILE=secret ramlace ls ramlace://{first}/",
                if hosts.is_empty() { "" } else { "the pool's own hosts by its name; from " },
                directory.secret_path().display()
            ))?;
        }
        Ok(())
    }

    fn address(&self) -> &str {
        self.file.servers.first().map_or("", |server| &server.tcp)
    }

    /// The same for programs. A path need not be text: as in other reports, strange bytes are replaced then.
    fn json(&self, took: Duration) -> Value {
        let Report { file, directory, memory, notes, hosts, mount, .. } = *self;
        let mut report = json!({
            "pool": file.name, "id": file.pool, "directory": directory.path().to_string_lossy(), "memory_bytes": memory,
            "address": self.address(), "seconds": took.as_secs_f64(), "notes": notes,
            "mount": mount.map(Path::to_string_lossy),
            "servers": file.servers.iter().map(|server| json!({
                "server": server.server, "tcp": server.tcp, "supervisor_pid": server.supervisor_pid,
                "unix": server.unix.as_deref().map(Path::to_string_lossy), "host": server.host,
                "log": server.host.is_none().then(|| directory.log_path(server.id()).to_string_lossy().into_owned()),
            })).collect::<Vec<_>>(),
        });
        if !hosts.is_empty() {
            report["hosts"] = hosts.iter().map(host_json).collect();
        }
        report
    }

    /// A line for each host.
    fn tell_hosts(&self, output: &mut Output) -> Done {
        let lines: Vec<Vec<String>> =
            std::iter::once(["HOST", "MEMORY", "SERVERS"].map(str::to_owned).to_vec())
                .chain(self.hosts.iter().map(|host| {
                    let numbers: Vec<String> = host.servers.iter().map(u16::to_string).collect();
                    vec![host.host.clone(), format_bytes(host.memory_bytes), numbers.join(", ")]
                }))
                .collect();
        for line in table(&lines, &[1]) {
            output.line(line)?;
        }
        output.line("\nTry:\n")
    }
}

fn host_json(host: &HostStarted) -> Value {
    json!({"host": host.host, "servers": host.servers, "memory_bytes": host.memory_bytes, "notes": host.notes})
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_path_that_is_no_text_is_reported_to_programs() {
        let directory = PoolDirectory::within(Path::new("/nowhere"), "lab").unwrap();
        let file = PoolFile {
            name: "lab".into(),
            pool: "0".into(),
            coordinator: 0,
            servers: Vec::new(),
            version: "0".into(),
            hosts: None,
        };
        let mount = Path::new(OsStr::from_bytes(b"/mnt/caf\xe9"));
        let report = Report {
            file: &file,
            directory: &directory,
            for_others: false,
            memory: 1,
            notes: &[],
            mount: Some(mount),
            hosts: &[],
        };
        let value = report.json(Duration::ZERO);
        assert_eq!(
            (&value["mount"], &value["directory"]),
            (&"/mnt/caf\u{fffd}".into(), &"/nowhere/lab".into())
        );
    }
}
