//! `host-key`: keys of single machines, made, listed and revoked.

use ramlace_base::ServerId;
use ramlace_base::units::count;
use ramlace_client::{HostKeyName, HostKeyReport, Pool};
use serde_json::{Value, json};

use crate::failure::Done;
use crate::output::Output;
use crate::place::connect_options;
use crate::show::{table, time_text};

const EXAMPLES: &str = "\
Examples:
  ramlace host-key node7 | ssh node7 'umask 077; cat > /etc/ramlace/host-key'  a key for one machine
  ramlace host-key --list                                    which were made, and which are connected
  ramlace host-key --revoke node7                            puts node7 out, at once and for good

A host key lets a machine mount the pool for all its users (`ramlace mount --allow-other`), and nothing else. Give each machine
one of its own: a machine whose key was revoked loses its sessions at every server, and all others continue. The same name asked for
again gives the same key, after a revocation another one. 'default' is the key that lies beside the secret in the pool's directory.";

/// Arguments of `host-key`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(id = "what", required = true, multiple = false, args = ["name", "list", "revoke"])]
pub struct Args {
    /// Print the key of the machine with this name; it is made when there is none
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// Show all keys: when they were made, whether they count, and their sessions
    #[arg(long)]
    pub list: bool,

    /// Take back the key of the machine with this name
    #[arg(long, value_name = "NAME")]
    pub revoke: Option<String>,
}

/// Makes, lists or revokes.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let named_host = args.name.as_ref().or(args.revoke.as_ref());
    let host = named_host.map(HostKeyName::new).transpose()?;
    let pool = Pool::connect(&connect_options(named))?;
    match host {
        Some(host) if args.revoke.is_some() => revoke(&pool, host, output)?,
        Some(host) => make(&pool, host, output)?,
        None => list(&pool, output)?,
    }
    output.flush()
}

fn make(pool: &Pool, host: HostKeyName, output: &mut Output) -> Done {
    let (entry, key) = pool.make_host_key(host)?;
    if output.json {
        let (name, serial) = (entry.key.name.as_str(), entry.key.serial);
        return output.json(
            &json!({"name": name, "serial": serial, "made": time_text(entry.made), "key": key.to_line()}),
        );
    }
    output.line(key.to_line())
}

fn revoke(pool: &Pool, host: HostKeyName, output: &mut Output) -> Done {
    let revoked = pool.revoke_host_key(host)?;
    let (name, untold) = (revoked.entry.key.name.as_str(), &revoked.untold);
    if output.json {
        let untold: Vec<u16> = untold.iter().map(|server| server.0).collect();
        return output.json(&json!({"name": name, "serial": revoked.entry.key.serial, "untold": untold}));
    }
    output.line(format_args!(
        "The host key '{name}' is revoked: its sessions have ended, and it opens no more."
    ))?;
    if !untold.is_empty() {
        output.note(format_args!("{} not answered; the pool tells them as soon as they do", have(untold)));
    }
    Ok(())
}

fn have(servers: &[ServerId]) -> String {
    let names: Vec<String> = servers.iter().map(ServerId::to_string).collect();
    format!("{} {}", names.join(", "), if servers.len() == 1 { "has" } else { "have" })
}

fn list(pool: &Pool, output: &mut Output) -> Done {
    let (keys, silent) = pool.host_keys()?;
    if output.json {
        let silent: Vec<u16> = silent.iter().map(|server| server.0).collect();
        let keys: Vec<Value> = keys.iter().map(as_json).collect();
        return output.json(&json!({"keys": keys, "silent_servers": silent}));
    }
    let head = ["NAME", "KEY", "MADE", "STATE", "SESSIONS"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(keys.iter().map(as_row)).collect();
    table(&rows, &[1, 4]).into_iter().try_for_each(|line| output.line(line))?;
    if !silent.is_empty() {
        let servers = count(silent.len() as u64, "server");
        output.note(format_args!("{servers} did not answer: sessions there are not counted"));
    }
    Ok(())
}

fn as_json(key: &HostKeyReport) -> Value {
    let entry = &key.entry;
    json!({
        "name": entry.key.name.as_str(), "serial": entry.key.serial, "made": time_text(entry.made),
        "revoked": entry.revoked.map(time_text), "sessions": key.sessions,
    })
}

fn as_row(key: &HostKeyReport) -> Vec<String> {
    let entry = &key.entry;
    let state = entry.revoked.map_or("counts".into(), |when| format!("revoked {}", time_text(when)));
    let (name, serial) = (entry.key.name.to_string(), entry.key.serial.to_string());
    vec![name, serial, time_text(entry.made), state, key.sessions.to_string()]
}
