//! `up`: starts a pool, on this machine or on several.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ramlace_base::units::parse_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_client::{PoolDirectory, PoolFile, pool_name};
use ramlace_launch::{
    AllHosts, Cancel, Claim, Host, HostStarted, HostsPlan, LocalPlan, MetricsAddress, PoolOptions, Transport,
    read_hosts, start_here, start_on_hosts, undo_here,
};

use super::up_report::Report;
use crate::failure::Done;
use crate::hosts_progress::HostsProgress;
use crate::interrupt::Interrupt;
use crate::mount_options::MountHow;
use crate::mounting;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  ramlace up                                     one server with half of the free memory
  ramlace up --servers 4 --memory 4GiB           four servers that share 4 GiB
  ramlace up --mount /mnt/pool                   and mount it: programs use what is there as files
  ramlace up --pool lab --listen 10.0.0.5:7000   reachable from other machines; server n listens on port 7000 + n
  ramlace up --hosts nodes                       servers on other machines, started by ssh
  scontrol show hostnames | ramlace up --hosts -   the nodes of a job of Slurm, where it lets ssh in
  ramlace up --hosts nodes --transport 'ssh -p 2222' --remote-command /opt/ramlace/bin/ramlace

The hosts file has one line for each machine; what stands behind a # is a comment:
  HOST [servers=N] [memory=SIZE] [listen=ADDRESS:PORT] [advertise=NAME]
HOST is handed to the transport command (user@name is fine). memory= is that of all servers of the host
[default: half of what it has available]; listen= is where they listen [default: 0.0.0.0:0, every address and a
free port]; advertise= is the name or address by which others reach the host [default: HOST]. The machine on which
`up` runs need not be one of them. It must be let in without a question (ssh: a key or an agent), and the same
version of ramlace must be installed on all. A transport command must let run what a command has started there, as ssh
does: Slurm's srun ends it with its step.

The servers run until `ramlace down`. What a pool holds is gone with it.";

/// By default no other machine can connect.
const LISTEN_DEFAULT: &str = "127.0.0.1:0";
/// Reaches hosts by default: without prompts, for there may be many hosts and no user to answer.
const TRANSPORT_DEFAULT: &str = "ssh -o BatchMode=yes";

/// Arguments of `up`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Mount the pool on this empty directory as well
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,

    /// How many servers; with --hosts: on each host
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::SERVERS_MAX)))]
    pub servers: u16,

    /// Memory of all servers together, such as 4GiB [default: half of what each machine has available].
    /// With --hosts, what the hosts with memory= leave of it is divided equally among the others
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub memory: Option<u64>,

    /// Files, directories and links that all servers together may hold; each holds its part of them at the most
    /// [default: one for each KiB of memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub inodes: Option<u64>,

    /// Slots of the pool: the partitions in which bytes and names are kept [default: 4096]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,

    /// Address to listen on; with a port other than 0, server n of a machine takes that port + n
    /// [default: 127.0.0.1:0, with --hosts 0.0.0.0:0]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,

    /// Host name or address by which others reach the servers [default: the address of --listen]
    #[arg(long, value_name = "HOST")]
    pub advertise: Option<String>,

    /// Do not take the whole memory from the machine at once, but as files need it
    #[arg(long)]
    pub no_reserve: bool,

    /// Let root act as root through `ramlace mount --allow-other`, not as nobody
    #[arg(long)]
    pub no_root_squash: bool,

    /// Send file contents over TCP as they are, without encryption: for a network that nobody else can reach
    #[arg(long)]
    pub trust_network: bool,

    /// Serve metrics, without names of files or users, at this address over HTTP, to everyone, in the format of
    /// Prometheus; server n takes that port + n
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<MetricsAddress>,

    /// Where the memory comes from
    #[arg(long, default_value = "auto", value_name = "KIND", value_parser = ["auto", "private-tmpfs", "shared-memory"])]
    pub backing: String,

    /// Start servers on the machines that this file names, one on each line ('-': standard input)
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,

    /// Command that runs a command on another host; the host stands where {host} is, else behind it
    /// [default: RAMLACE_TRANSPORT, else 'ssh -o BatchMode=yes']
    #[arg(long, env = "RAMLACE_TRANSPORT", hide_env = true, value_name = "COMMAND")]
    pub transport: Option<String>,

    /// How ramlace is called on the hosts
    #[arg(long, default_value = "ramlace", value_name = "COMMAND")]
    pub remote_command: String,

    /// How long a host may take to answer, and servers to become ready
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = parse_patience)]
    pub patience: f64,
}

impl Args {
    /// The same as a duration.
    pub fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.patience)
    }

    fn pool_options(&self) -> PoolOptions {
        PoolOptions {
            slots: self.slots,
            inodes: self.inodes,
            backing: self.backing.clone(),
            reserve: !self.no_reserve,
            root_squash: !self.no_root_squash,
            trust_network: self.trust_network,
            metrics: self.metrics.clone(),
            patience: self.patience(),
        }
    }
}

/// Reads a number of seconds between a hundredth and a day.
pub fn parse_patience(text: &str) -> Result<f64> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| Error::new(ErrorKind::Invalid, "write seconds, between 0.01 and 86400"))
}

/// Starts the pool and says how to use it.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    // Checked first, before the pool is up for nothing.
    let mount =
        args.mount.as_deref().map(|directory| mounting::directory_for(directory, output)).transpose()?;
    if let Some(hosts) = &args.hosts {
        return run_on_hosts(args, hosts, mount.as_deref(), named, output);
    }
    let began = Instant::now();
    let listen = args.listen.as_deref().unwrap_or(LISTEN_DEFAULT);
    let plan =
        LocalPlan::new(args.servers, args.memory, listen, args.advertise.as_deref(), args.pool_options())?;
    let claim = Claim::take(&pool_name(named))?;
    for note in &claim.notes {
        output.note(note);
    }
    let started = start(&plan, &claim).and_then(|file| {
        mount
            .as_deref()
            .map_or(Ok(()), |mount| mounting::start(mount, Some(&file.name), &MountHow::default()))?;
        Ok(file)
    });
    let file = started.map_err(|error| undone(error, &claim.directory))?;
    let report = Report {
        file: &file,
        directory: &claim.directory,
        for_others: plan.is_reachable_from_elsewhere(),
        memory: plan.memory_bytes(),
        notes: &claim.notes,
        hosts: &[],
        mount: mount.as_deref(),
    };
    report.tell(began.elapsed(), output)
}

/// Undoes a start that has failed. Its error says so where servers are left.
fn undone(error: Error, directory: &PoolDirectory) -> Error {
    match undo_here(directory) {
        Ok(()) => error,
        Err(worse) => {
            let text = format!("{}; what had been started runs on: {}", error.message(), worse.message());
            Error::new(error.kind(), text)
        }
    }
}

/// Starts the servers; a signal meanwhile ends the start, and afterwards means what it did before.
fn start(plan: &LocalPlan, claim: &Claim) -> Result<PoolFile> {
    let interrupt = Interrupt::catch()?;
    start_here(plan, &claim.directory, &own_program()?, Cancel::new(interrupt.fd()))
}

/// This very program, which is what servers are, too.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::from_io(&error, "looking for this program"))
}

/// The same on several machines.
fn run_on_hosts(
    args: &Args,
    hosts: &Path,
    mount: Option<&Path>,
    named: Option<&str>,
    output: &mut Output,
) -> Done {
    let began = Instant::now();
    if args.advertise.is_some() {
        let text = "--advertise is for one machine; write advertise=NAME behind each host in the hosts file";
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let words = args.transport.as_deref().filter(|words| !words.trim().is_empty());
    let transport = Transport::parse(words.unwrap_or(TRANSPORT_DEFAULT), &args.remote_command)?.anchored()?;
    let all = AllHosts { servers: args.servers, memory: args.memory, listen: args.listen.as_deref() };
    let plan = HostsPlan::new(&hosts_in(hosts)?, all, args.pool_options())?;
    let claim = Claim::take(&pool_name(named))?;
    let (file, hosts) = start_on(&plan, &transport, &claim, output.json)?;
    let on_hosts =
        hosts.iter().flat_map(|host| host.notes.iter().map(|note| format!("host {}: {note}", host.host)));
    let notes: Vec<String> = claim.notes.iter().cloned().chain(on_hosts).collect();
    for note in &notes {
        output.note(note);
    }
    let report = Report {
        file: &file,
        directory: &claim.directory,
        for_others: true,
        memory: hosts.iter().map(|host| host.memory_bytes).sum(),
        notes: &notes,
        hosts: &hosts,
        mount,
    };
    if let Some(mount) = mount {
        // Servers on many machines are not stopped again for a directory of this one.
        mounting::start(mount, Some(&file.name), &MountHow::default())
            .map_err(|error| error.context("the pool is up, but not mounted"))?;
    }
    report.tell(began.elapsed(), output)
}

/// What a hosts file says; `-` is standard input.
fn hosts_in(path: &Path) -> Result<Vec<Host>> {
    if path == Path::new("-") {
        return read_hosts(std::io::stdin().lock(), "standard input");
    }
    let shown = path.display().to_string();
    let file = File::open(path)
        .map_err(|error| Error::from_io(&error, format!("reading the hosts file {shown}")))?;
    read_hosts(file, &shown)
}

/// Starts the servers on their hosts; a signal meanwhile undoes the start.
fn start_on(
    plan: &HostsPlan,
    transport: &Transport,
    claim: &Claim,
    json: bool,
) -> Result<(PoolFile, Vec<HostStarted>)> {
    let interrupt = Interrupt::catch()?;
    let (cancel, mut progress) = (Cancel::new(interrupt.fd()), HostsProgress::new(json));
    start_on_hosts(plan, transport, &claim.directory, cancel, &mut progress)
}
