//! `up`: starts a pool on this machine; `up_hosts` does it on several.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ramlace_base::units::parse_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_client::{PoolFile, pool_name};
use ramlace_launch::{Cancel, Claim, LocalPlan, MetricsAddress, PoolOptions, start_here, undo_here};

use super::up_hosts;
use super::up_report::Report;
use crate::failure::Done;
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
  scontrol show hostnames | ramlace up --hosts - --transport 'srun -w {host} -N1 -n1 --overlap'
  ramlace up --hosts nodes --transport 'ssh -p 2222' --remote-command /opt/ramlace/bin/ramlace

The hosts file has one line for each machine; what stands behind a # is a comment:
  HOST [servers=N] [memory=SIZE] [listen=ADDRESS:PORT] [advertise=NAME]
HOST is handed to the transport command (user@name is fine). memory= is that of all servers of the host
[default: half of what it has available]; listen= is where they listen [default: 0.0.0.0:0, every address and a
free port]; advertise= is the name or address by which others reach the host [default: HOST]. The machine on which
`up` runs need not be one of them. It must be let in without a question (ssh: a key or an agent), and the same
version of ramlace must be installed on all.

The servers run until `ramlace down`. What a pool holds is gone with it.";

/// By default no other machine can connect.
const LISTEN_DEFAULT: &str = "127.0.0.1:0";

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
        return up_hosts::run(args, hosts, mount.as_deref(), named, output);
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
    let file = started.inspect_err(|_| undo_here(&claim.directory))?;
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

/// Starts the servers; a signal meanwhile ends the start, and afterwards means what it did before.
fn start(plan: &LocalPlan, claim: &Claim) -> Result<PoolFile> {
    let interrupt = Interrupt::catch()?;
    start_here(plan, &claim.directory, &own_program()?, Cancel::new(interrupt.fd()))
}

/// This very program, which is what servers are, too.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| Error::from_io(&error, "looking for this program"))
}
