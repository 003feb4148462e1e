//! `up --hosts`: starts a pool on several machines.
//!
//! Every host has an agent behind the transport command for as long as this runs. All of them get ready; the
//! first starts the coordinator, then all start their servers; then all write pool.json; only then are they
//! ordered to leave. Until that moment, whatever goes wrong undoes everything.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{
    ConnectOptions, Pool, PoolDirectory, PoolFile, PoolFileHosts, PoolFileServer, pool_name,
};
use ramlace_launch::{DirectoryLock, clear_stale, default_slots, listed, option_for, random_pool_id};

use super::up::Args;
use super::up_hosts_plan::{Common, Site, plan};
use super::up_report::{HostReport, Report};
use crate::agent_protocol::{Answer, Order, Prepare, SecretText};
use crate::crew::Crew;
use crate::failure::Done;
use crate::hosts;
use crate::hosts_stop::{StopHosts, unexpected};
use crate::interrupt::Interrupt;
use crate::mount_options::MountHow;
use crate::mounting;
use crate::output::Output;
use crate::remote::Transport;

/// Reaches hosts by default: without prompts, for there may be many hosts and no user to answer.
pub const TRANSPORT_DEFAULT: &str = "ssh -o BatchMode=yes";

/// How long the network may take to reach a server that listens.
const KNOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Starts the pool and says how to use it.
pub fn run(args: &Args, file: &Path, mount: Option<&Path>, named: Option<&str>, output: &mut Output) -> Done {
    let began = Instant::now();
    if args.advertise.is_some() {
        let text = "--advertise is for one machine; write advertise=NAME behind each host in the hosts file";
        return Err(Error::new(ErrorKind::Invalid, text).into());
    }
    let words = args.transport.as_deref().filter(|words| !words.trim().is_empty());
    let transport = Transport::parse(words.unwrap_or(TRANSPORT_DEFAULT), &args.remote_command)?.anchored()?;
    let common = Common { servers: args.servers, memory: args.memory, listen: args.listen.as_deref() };
    let sites = plan(&hosts::read(file)?, common)?;
    let directory = PoolDirectory::locate(&pool_name(named))?;
    directory.create_without_keys()?;
    let _lock = DirectoryLock::take(&directory)?;
    let mut notes = clear_stale(&directory)?;
    directory.create()?;
    let start = Start { args, transport, sites: &sites, directory: &directory, json: output.json };
    let (file, reports) = start.run().inspect_err(|_| {
        // The failure is what the user must see; a directory that stays is found by the next `up`.
        let _ = directory.remove();
    })?;
    notes.extend(
        reports
            .iter()
            .flat_map(|report| report.notes.iter().map(|note| format!("host {}: {note}", report.host))),
    );
    for note in &notes {
        output.note(note);
    }
    let memory = reports.iter().map(|report| report.memory_bytes).sum();
    let report = Report {
        file: &file,
        directory: &directory,
        for_others: true,
        memory,
        notes: &notes,
        hosts: &reports,
        mount,
    };
    if let Some(mount) = mount {
        // Servers on many machines are not stopped again for a directory of this one.
        mounting::start(mount, Some(directory.name()), &MountHow::default())
            .map_err(|error| error.context("the pool is up, but not mounted"))?;
    }
    report.tell(began.elapsed(), output)
}

/// One start on all hosts.
struct Start<'a> {
    args: &'a Args,
    transport: Transport,
    sites: &'a [Site],
    directory: &'a PoolDirectory,
    json: bool,
}

impl Start<'_> {
    fn run(&self) -> Result<(PoolFile, Vec<HostReport>)> {
        let interrupt = Interrupt::catch()?;
        let names = self.names();
        let (mut crew, failed) =
            Crew::gather(&self.transport, &names, self.args.patience(), &interrupt, self.json);
        let outcome = match failed.into_iter().next() {
            Some((_, error)) => Err(error),
            None => self.bring_up(&mut crew),
        };
        let error = match outcome {
            Ok((file, reports)) => match self.settle(&mut crew, &file, &interrupt) {
                Ok(()) => return Ok((file, reports)),
                Err(error) => error,
            },
            Err(error) => error,
        };
        let unsure = crew.abort();
        if unsure.is_empty() {
            return Err(error);
        }
        let advice = format!(
            "{}; {} did not say that nothing is left there: run 'ramlace down --force{}' on it",
            error.message(),
            listed(&unsure),
            option_for(self.directory.name())
        );
        Err(Error::new(error.kind(), advice))
    }

    fn names(&self) -> Vec<String> {
        self.sites.iter().map(|site| site.host.clone()).collect()
    }

    /// From the first word to a pool that is ready and known on all hosts.
    fn bring_up(&self, crew: &mut Crew<'_>) -> Result<(PoolFile, Vec<HostReport>)> {
        crew.greet()?;
        let pool_id = random_pool_id()?;
        let mut reports = self.prepare(crew, &pool_id)?;
        let coordinator = match only(crew.ask("starting server 0", [(0, Order::StartFirst)])?) {
            Answer::Listening { address } => address,
            other => return Err(unexpected(crew.host(0), &other)),
        };
        let host = crew.host(0).to_owned();
        // Otherwise no server could join, and no message would say why.
        knock(&coordinator).map_err(|error| unreachable(&host, &coordinator, &error))?;
        let order = |index| (index, Order::Start { coordinator: coordinator.clone() });
        let answers = crew.ask("starting", (0..crew.len()).map(order).collect::<Vec<_>>())?;
        let mut servers = Vec::new();
        for (index, answer) in answers.into_iter().enumerate() {
            let Answer::Ready { servers: started } = answer else {
                return Err(unexpected(crew.host(index), &answer));
            };
            reports[index].servers = started.iter().map(|server| server.server).collect();
            servers.extend(started);
        }
        servers.sort_by_key(|server| server.server);
        let file = self.pool_file(pool_id, servers, &reports);
        self.reach(&file)?;
        let order = |index| (index, Order::Commit { file: Box::new(file.clone()) });
        crew.ask("writing pool.json", (0..crew.len()).map(order).collect::<Vec<_>>())?;
        Ok((file, reports))
    }

    fn prepare(&self, crew: &mut Crew<'_>, pool_id: &str) -> Result<Vec<HostReport>> {
        let secret = SecretText(self.directory.read_secret()?.to_hex());
        let total = self.sites.iter().map(|site| site.servers.len()).sum::<usize>();
        let total = u16::try_from(total).expect("the plan has at most 4,096 servers");
        // Agents lose their patience first: they know which server is late, and what it has said.
        let servers_patience = self.args.patience().mul_f64(0.8);
        let order = |(index, site): (usize, &Site)| {
            let prepare = Prepare {
                pool: self.directory.name().to_owned(),
                pool_id: pool_id.to_owned(),
                secret: secret.clone(),
                host: site.host.clone(),
                servers: site.servers.clone(),
                servers_total: total,
                slots: self.args.slots.unwrap_or_else(|| default_slots(total)),
                listen: site.listen.clone(),
                advertise: site.advertise.clone(),
                memory: site.memory,
                inodes: self.args.inodes,
                backing: self.args.backing.clone(),
                reserve: !self.args.no_reserve,
                root_squash: !self.args.no_root_squash,
                trust_network: self.args.trust_network,
                metrics: self.args.metrics.clone(),
                patience_millis: u64::try_from(servers_patience.as_millis()).unwrap_or(u64::MAX),
            };
            (index, Order::Prepare(Box::new(prepare)))
        };
        let orders: Vec<(usize, Order)> = self.sites.iter().enumerate().map(order).collect();
        let answers = crew.ask("preparing", orders)?;
        let report = |(index, answer): (usize, Answer)| match answer {
            Answer::Prepared { store_bytes, shared, notes } => Ok(HostReport {
                host: self.sites[index].host.clone(),
                servers: Vec::new(),
                memory_bytes: store_bytes * self.sites[index].servers.len() as u64,
                shared,
                notes,
            }),
            other => Err(unexpected(crew.host(index), &other)),
        };
        answers.into_iter().enumerate().map(report).collect()
    }

    /// What pool.json says here: the Unix sockets of other machines are none here.
    fn pool_file(&self, pool_id: String, servers: Vec<PoolFileServer>, reports: &[HostReport]) -> PoolFile {
        let here = |host: &Option<String>| {
            reports.iter().any(|report| report.shared && Some(&report.host) == host.as_ref())
        };
        let servers = servers.into_iter().map(|mut server| {
            server.unix = server.unix.filter(|_| here(&server.host));
            server
        });
        PoolFile {
            name: self.directory.name().to_owned(),
            pool: pool_id,
            coordinator: 0,
            servers: servers.collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            hosts: Some(PoolFileHosts {
                started_from: rustix::system::uname().nodename().to_string_lossy().into_owned(),
                here: None,
                hosts: self.names(),
                transport: self.transport.words.clone(),
                remote_command: self.transport.remote_command.clone(),
            }),
        }
    }

    /// A pool that cannot be used from here is no pool: every server must answer over the network.
    fn reach(&self, file: &PoolFile) -> Result<()> {
        let unreachable = |server: Option<&PoolFileServer>, error: &Error| {
            let host = server.and_then(|server| server.host.as_deref()).unwrap_or_default();
            unreachable(host, server.map_or("", |server| &server.tcp), error)
        };
        let options = ConnectOptions {
            addresses: file.servers.first().map(|server| server.tcp.clone()).into_iter().collect(),
            secret_file: Some(self.directory.secret_path()),
            local: false,
            ..ConnectOptions::default()
        };
        let reports = Pool::connect(&options)
            .and_then(|pool| pool.status())
            .map_err(|error| unreachable(file.servers.first(), &error))?;
        for report in reports {
            if let Err(error) = report.status {
                let server = file.servers.iter().find(|server| server.id() == report.entry.server);
                return Err(unreachable(server, &error));
            }
        }
        Ok(())
    }

    /// Writes pool.json here and ends the agents. When one of them does not end as it should, the others have
    /// ended already: the whole pool is stopped by new ones.
    fn settle(&self, crew: &mut Crew<'_>, file: &PoolFile, interrupt: &Interrupt) -> Result<()> {
        if interrupt.came() {
            return Err(Error::new(ErrorKind::Busy, "stopped by a signal before it was done"));
        }
        self.directory.write_pool_file(file)?;
        let Err(error) = crew.leave() else { return Ok(()) };
        let stop = StopHosts {
            pool: self.directory.name(),
            secret: SecretText(self.directory.read_secret()?.to_hex()),
            transport: &self.transport,
            force: true,
            patience: self.args.patience().max(Duration::from_secs(1)),
            json: self.json,
        };
        let unsure: Vec<String> = stop
            .run(&self.names(), interrupt)
            .into_iter()
            .filter_map(|one| one.outcome.is_err().then_some(one.host))
            .collect();
        if unsure.is_empty() {
            return Err(error);
        }
        let advice = format!("{}; {} may still run servers", error.message(), listed(&unsure));
        Err(Error::new(error.kind(), advice))
    }
}

/// Why a server is of no use here, and what can be done.
fn unreachable(host: &str, address: &str, error: &Error) -> Error {
    let text = format!(
        "host {host}: its server runs, but cannot be reached from here as {address}: {}; write the name or the \
         address by which it is reached as advertise=NAME, or open its port (listen=ADDRESS:PORT sets it)",
        error.message()
    );
    Error::new(error.kind(), text)
}

/// Whether there is a listener at an address.
fn knock(address: &str) -> Result<()> {
    let doing = |error: &std::io::Error| Error::new(ErrorKind::HostDown, error.to_string());
    let mut last = Error::new(ErrorKind::HostDown, "the name has no address");
    for place in address.to_socket_addrs().map_err(|error| doing(&error))? {
        match TcpStream::connect_timeout(&place, KNOCK_PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => last = doing(&error),
        }
    }
    Err(last)
}

/// The one answer to one order.
fn only(answers: Vec<Answer>) -> Answer {
    let mut answers = answers.into_iter();
    answers.next().expect("one host was asked, and every failure is an error")
}
