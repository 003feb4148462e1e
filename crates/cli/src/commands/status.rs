//! `status`: what is running.

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, Result, ServerId};
use ramlace_client::{NOBODY_ANSWERS, Pool, PoolDirectory, PoolFile, ServerReport};
use ramlace_mount::MountPoint;
use ramlace_wire::metrics::{GetMetrics, Metrics};
use ramlace_wire::session::ServerStatus;
use serde_json::{Value, json};

use super::holders::Leases;
use super::status_messages::Messages;
use crate::failure::{Done, Failure};
use crate::mounting::{Health, LostRun, look_at, lost_bytes, lost_stores, mounted_name, mounts_of};
use crate::output::Output;
use crate::place::connect_options;
use crate::show::{answering, duration_text, percent, silence, table};

const EXAMPLES: &str = "\
Examples:
  ramlace status                     the default pool
  ramlace status --pool lab          the pool 'lab' of this machine
  ramlace status --pool node0:7000   the pool of that server
  ramlace status --messages          and what the servers were asked, and how long it took
  ramlace status --leases            and which kernels have which bytes, and which mounts wait for which
  ramlace status --json | jq '.servers[].used_bytes'
  ramlace status --json | jq '.messages[] | {message, answers, errors}'

With --json, what the servers were asked is always told. Your mounts of the pool on this machine are shown as well, and which of them are dead: whose daemon was killed.

The exit code is 1 when a server does not answer.";

/// Arguments of `status`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Tell what the servers were asked since they began, how often, and how long it took (--json always does)
    #[arg(long)]
    pub messages: bool,

    /// Tell which kernels have which bytes, which mounts wait for which, and which pages change sides
    #[arg(long)]
    pub leases: bool,
}

/// One server, as far as it is known.
struct Row {
    server: u16,
    host: Option<String>,
    address: String,
    status: Result<ServerStatus>,
}

impl From<ServerReport> for Row {
    fn from(report: ServerReport) -> Row {
        Row { server: report.entry.server.0, host: None, address: report.entry.tcp, status: report.status }
    }
}

/// A mount of the pool.
struct Mounted {
    directory: String,
    health: Health,
    lost: Vec<LostRun>,
}

impl Mounted {
    /// This user's mounts of the pool on this machine.
    fn all(pool: &str) -> Result<Vec<Mounted>> {
        let mounts = mounts_of(pool)?;
        let healths = look_at(&mounts);
        let mounted = mounts.iter().zip(healths);
        let ask = |(mount, health): (&MountPoint, Health)| Mounted {
            directory: mount.dir.to_string_lossy().into_owned(),
            health,
            lost: if health == Health::Serving { lost_stores(mount) } else { Vec::new() },
        };
        Ok(mounted.map(ask).collect())
    }

    fn line(&self) -> String {
        let directory = &self.directory;
        match self.health {
            Health::Serving if self.lost.is_empty() => format!("Mounted on {directory}."),
            Health::Serving => self.lost_line(),
            Health::Dead => format!(
                "Dead mount on {directory}, its daemon has ended: 'ramlace mount {directory}' mounts anew, \
                 'ramlace unmount {directory}' clears it away."
            ),
            Health::Silent => format!(
                "Mounted on {directory}, which does not answer: its daemon is stopped or waits for a server."
            ),
        }
    }

    fn lost_line(&self) -> String {
        const SHOWN_MAX: usize = 8;
        let sum = lost_bytes(&self.lost);
        let show = |run: &LostRun| format!("{} to {} of inode {:016x}", run.bytes.0, run.bytes.1, run.inode);
        let mut shown: Vec<String> = self.lost.iter().take(SHOWN_MAX).map(show).collect();
        if self.lost.len() > SHOWN_MAX {
            shown.push(format!("{} more runs", self.lost.len() - SHOWN_MAX));
        }
        format!(
            "Mounted on {}, which has lost {sum} bytes that programs stored by mappings and that could not be written \
             back: {} ({}). Reads of them are errors there until they are written again or cut off.",
            self.directory,
            shown.join(", "),
            self.lost[0].why
        )
    }

    fn json(&self) -> Value {
        let lost = |run: &LostRun| {
            let (start, end) = run.bytes;
            json!({"inode": format!("{:016x}", run.inode), "start": start, "end": end, "why": run.why})
        };
        let state = match self.health {
            Health::Serving => "serving",
            Health::Dead => "dead",
            Health::Silent => "not answering",
        };
        let lost: Vec<Value> = self.lost.iter().map(lost).collect();
        json!({"directory": self.directory, "state": state, "lost_stores": lost})
    }
}

/// Prints one line for each server and the pool's sums.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let (pool, rows) = ask(named)?;
    let is_asked = |row: &&Row| row.status.is_ok() && (args.messages || output.json);
    let asked: Vec<ServerId> = rows.iter().filter(is_asked).map(|row| ServerId(row.server)).collect();
    let messages = match asked.is_empty() {
        // Of a pool of which no server answers nothing is known.
        true => None,
        false => Some(Messages::of(metrics(&Pool::connect(&connect_options(named))?, &asked))),
    };
    let leases = match args.leases && rows.iter().any(|row| row.status.is_ok()) {
        true => Some(Leases::ask(&Pool::connect(&connect_options(named))?)?),
        false => None,
    };
    let mounts = Mounted::all(&pool)?;
    if output.json {
        let mut value = as_json(&pool, &rows, &mounts);
        if let Some(messages) = &messages {
            value["messages"] = messages.json();
        }
        if let Some(leases) = &leases {
            value["leases"] = leases.json();
        }
        output.json(&value)?;
    } else {
        print(&pool, &rows, output)?;
        mounts.iter().try_for_each(|mount| output.line(mount.line()))?;
        if let Some(messages) = &messages {
            output.line("")?;
            messages.lines().into_iter().try_for_each(|line| output.line(line))?;
        }
        if let Some(leases) = &leases {
            output.line("")?;
            leases.lines().into_iter().try_for_each(|line| output.line(line))?;
        }
    }
    output.flush()?;
    if rows.iter().all(|row| row.status.is_ok()) { Ok(()) } else { Err(Failure::Told) }
}

/// What these servers have counted; one that does not answer any more is not in the sums. A server that did not answer before is
/// not asked again: that would cost a deadline more.
fn metrics(pool: &Pool, servers: &[ServerId]) -> Vec<Metrics> {
    std::thread::scope(|scope| {
        let ask = |server: &ServerId| pool.ask_server(*server, &GetMetrics {}).ok();
        let asked: Vec<_> = servers.iter().map(|server| scope.spawn(move || ask(server))).collect();
        asked.into_iter().filter_map(|asked| asked.join().expect("asking does not panic")).collect()
    })
}

/// Asks every server. When none answers, the pool's file says which there should be.
fn ask(named: Option<&str>) -> Result<(String, Vec<Row>)> {
    let is_address = named.is_some_and(|name| name.contains(':'));
    let name = mounted_name(named);
    match Pool::connect(&connect_options(named)).and_then(|pool| pool.status()).map_err(without_advice) {
        Ok(reports) => {
            let mut rows: Vec<Row> = reports.into_iter().map(Row::from).collect();
            if !is_address {
                let file = PoolDirectory::locate(&name)?.read_pool_file()?;
                rows.iter_mut().for_each(|row| row.host = host_of(&file, row.server));
            }
            Ok((name, rows))
        }
        Err(error) if is_address => Err(error),
        Err(error) => {
            let file = PoolDirectory::locate(&name)?.read_pool_file()?;
            Ok((name, silent_rows(&file, &error)))
        }
    }
}

/// A command that asks all servers does not advise to do so.
fn without_advice(error: Error) -> Error {
    match error.message().strip_prefix(NOBODY_ANSWERS) {
        Some(rest) => Error::new(error.kind(), format!("no server of the pool answers{rest}")),
        None => error,
    }
}

/// The host of a server, in a pool of several machines.
fn host_of(file: &PoolFile, server: u16) -> Option<String> {
    file.servers.iter().find(|known| known.server == server).and_then(|known| known.host.clone())
}

fn silent_rows(file: &PoolFile, error: &Error) -> Vec<Row> {
    let row = |server: &ramlace_client::PoolFileServer| Row {
        server: server.server,
        host: server.host.clone(),
        address: server.tcp.clone(),
        status: Err(error.clone()),
    };
    file.servers.iter().map(row).collect()
}

fn print(pool: &str, rows: &[Row], output: &mut Output) -> Done {
    let head = ["SERVER", "ADDRESS", "PID", "UP", "USED", "OF", "FILL", "SESSIONS", "RESTARTS", "STATE"];
    let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(cells));
    if rows.iter().any(|row| row.host.is_some()) {
        // Last, so that it moves none of the columns that scripts may cut out.
        lines[0].push("HOST".into());
        for (line, row) in lines[1..].iter_mut().zip(rows) {
            line.push(row.host.clone().unwrap_or_else(|| "-".into()));
        }
    }
    for line in table(&lines, &[0, 2, 3, 4, 5, 6, 7, 8]) {
        output.line(line)?;
    }
    let (used, total) = sums(rows);
    output.line(format_args!(
        "\nPool '{pool}': {}; {} of {} used ({:.1} %).",
        answering(rows.iter().filter(|row| row.status.is_ok()).count(), rows.len()),
        format_bytes(used),
        format_bytes(total),
        percent(used, total)
    ))?;
    if let Some((bytes, inodes)) = room(rows) {
        output.line(format_args!(
            "One more file on all servers can have {}, one directory {inodes} more files at the least.",
            format_bytes(bytes)
        ))?;
    }
    if let Some(line) = trusting_line(rows) {
        output.line(line)?;
    }
    notes(rows).iter().for_each(|note| output.note(note));
    Ok(())
}

/// Which servers leave file contents open to their network.
fn trusting_line(rows: &[Row]) -> Option<String> {
    let trusts = |row: &&Row| row.status.as_ref().is_ok_and(|status| status.trusts_network);
    let trusting: Vec<String> = rows.iter().filter(trusts).map(|row| row.server.to_string()).collect();
    let who = match trusting.len() {
        0 => return None,
        all if all == rows.len() => "The pool".to_owned(),
        1 => format!("Server {}", trusting[0]),
        _ => format!("Servers {}", trusting.join(", ")),
    };
    let trust =
        if trusting.len() == 1 || trusting.len() == rows.len() { "trusts its" } else { "trust their" };
    Some(format!(
        "{who} {trust} network (--trust-network): over TCP, file contents are neither hidden nor proved."
    ))
}

/// Why servers do not answer. When none does, they have one reason together: the pool was not reached.
fn notes(rows: &[Row]) -> Vec<String> {
    let failed = |row: &Row| row.status.as_ref().err().map(|error| error.message().to_owned());
    let whys: Vec<Option<String>> = rows.iter().map(failed).collect();
    if let Some(Some(first)) = whys.first()
        && first.starts_with("no server of the pool answers")
        && whys.iter().all(|why| why.as_ref() == Some(first))
    {
        return vec![first.clone()];
    }
    let row = |(row, why): (&Row, Option<String>)| Some(silence(row.server, row.host.as_deref(), &why?));
    rows.iter().zip(whys).filter_map(row).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let (server, address) = (row.server.to_string(), row.address.clone());
    match &row.status {
        Ok(status) => vec![
            server,
            address,
            status.pid.to_string(),
            duration_text(status.uptime_millis),
            format_bytes(status.used_bytes),
            format_bytes(status.store_bytes),
            format!("{:.1}%", percent(status.used_bytes, status.store_bytes)),
            status.sessions.to_string(),
            status.restarts.to_string(),
            "up".into(),
        ],
        Err(_) => {
            let mut cells = vec![server, address];
            cells.extend(std::iter::repeat_n("-".to_owned(), 7));
            cells.push("not answering".into());
            cells
        }
    }
}

/// What one more file on all servers that answer can have, and how many more files one directory: the least server
/// counts for each.
fn room(rows: &[Row]) -> Option<(u64, u64)> {
    let answers = || rows.iter().filter_map(|row| row.status.as_ref().ok());
    let bytes = answers().map(|status| status.files_free_bytes).min()?;
    let inodes = answers().map(|status| status.inodes_max.saturating_sub(status.inodes)).min()?;
    Some((bytes.saturating_mul(answers().count() as u64), inodes))
}

/// Used and lent bytes of the servers that answer.
fn sums(rows: &[Row]) -> (u64, u64) {
    let answers = rows.iter().filter_map(|row| row.status.as_ref().ok());
    answers.fold((0, 0), |(used, total), status| (used + status.used_bytes, total + status.store_bytes))
}

fn as_json(pool: &str, rows: &[Row], mounts: &[Mounted]) -> Value {
    let (used, total) = sums(rows);
    json!({
        "pool": pool,
        "healthy": rows.iter().all(|row| row.status.is_ok()),
        "used_bytes": used,
        "total_bytes": total,
        "free_bytes": total.saturating_sub(used),
        "servers": rows.iter().map(row_json).collect::<Vec<_>>(),
        "mounts": mounts.iter().map(Mounted::json).collect::<Vec<_>>(),
    })
}

fn row_json(row: &Row) -> Value {
    match &row.status {
        Ok(status) => json!({
            "server": row.server, "host": row.host, "address": row.address, "state": "up",
            "pid": status.pid, "supervisor_pid": status.supervisor_pid, "restarts": status.restarts,
            "uptime_seconds": status.uptime_millis as f64 / 1000.0, "epoch": status.epoch.0,
            "store_bytes": status.store_bytes, "used_bytes": status.used_bytes, "meta_bytes": status.meta_bytes,
            "files_free_bytes": status.files_free_bytes, "inodes_max": status.inodes_max,
            "reserved_bytes": status.reserved_bytes, "inodes": status.inodes, "lanes": status.lanes,
            "locks": status.locks, "lock_waits": status.lock_waits, "barrier_waits": status.barrier_waits, "change_waits": status.change_waits, "sessions": status.sessions, "connections": status.connections, "requests": status.requests,
            "read_bytes": status.read_bytes, "written_bytes": status.written_bytes, "trusts_network": status.trusts_network,
            "notes": status.notes,
        }),
        Err(error) => json!({
            "server": row.server, "host": row.host, "address": row.address, "state": "not answering", "error": error.message(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::ErrorKind;

    use super::*;
    use crate::top::samples::tests::status;

    #[test]
    fn what_is_wrong_is_said_once_and_points_elsewhere() {
        let row = |server: u16, host: Option<&str>, why: &str| Row {
            server,
            host: host.map(str::to_owned),
            address: "a:1".into(),
            status: Err(Error::new(ErrorKind::HostDown, why)),
        };
        let nobody = format!("{NOBODY_ANSWERS}: the server at a:1: refused");
        let told = without_advice(Error::new(ErrorKind::HostDown, nobody));
        let rows = [row(0, None, told.message()), row(1, None, told.message())];
        assert_eq!(notes(&rows), ["no server of the pool answers: the server at a:1: refused"]);
        let rows = [
            row(0, None, "server 0 at a:1 does not answer: refused"),
            row(1, Some("n1"), "a handshake failed"),
        ];
        assert_eq!(
            notes(&rows),
            [
                "server 0 at a:1 does not answer: refused",
                "host n1: server 1 does not answer: a handshake failed"
            ]
        );
    }

    #[test]
    fn who_trusts_the_network_is_said() {
        let row = |server: u16, trusts_network: Option<bool>| Row {
            server,
            host: None,
            address: "a:1".into(),
            status: match trusts_network {
                Some(trusts_network) => Ok(ServerStatus { trusts_network, ..*status(server, 1, 0) }),
                None => Err(Error::new(ErrorKind::HostDown, "gone")),
            },
        };
        let says = |trusting: &[Option<bool>]| {
            let rows: Vec<Row> =
                trusting.iter().enumerate().map(|(server, trusts)| row(server as u16, *trusts)).collect();
            trusting_line(&rows).unwrap_or_default()
        };
        assert_eq!(says(&[Some(false), None]), "");
        assert!(says(&[Some(true), Some(true)]).starts_with("The pool trusts its network"));
        assert!(says(&[Some(false), Some(true), None]).starts_with("Server 1 trusts its network"));
        assert!(says(&[Some(true), Some(true), None]).starts_with("Servers 0, 1 trust their network"));
    }

    #[test]
    fn a_silent_server_has_as_many_cells_as_others() {
        let error = Error::new(ErrorKind::HostDown, "gone");
        let row = Row { server: 1, host: None, address: "a:1".into(), status: Err(error) };
        assert_eq!(cells(&row).len(), 10);
        let value = as_json("lab", &[row], &[]);
        assert_eq!(
            (&value["healthy"], &value["servers"][0]["state"]),
            (&json!(false), &json!("not answering"))
        );
    }
}
