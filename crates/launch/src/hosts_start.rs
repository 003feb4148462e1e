//! Starts a pool on several machines.
//!
//! Every host has an agent behind the transport command for as long as this runs. All of them get ready; the
//! first starts the coordinator, then all start their servers; then all write pool.json; only then are they
//! ordered to leave. Until that moment, whatever goes wrong undoes everything.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, Pool, PoolDirectory, PoolFile, PoolFileHosts, PoolFileServer};

use crate::agent_protocol::{Answer, Order, Prepare, SecretText};
use crate::cancel::Cancel;
use crate::crew::Crew;
use crate::descriptors::check_for;
use crate::hosts_plan::{HostsPlan, Site};
use crate::hosts_stop::{StopHosts, unexpected};
use crate::listener::Listener;
use crate::plan::random_pool_id;
use crate::remote::Transport;
use crate::sentences::{listed, option_for};
use crate::stop::remove_directory;

/// How long the network may take to reach a server that listens.
const KNOCK_PATIENCE: Duration = Duration::from_secs(5);

/// One host of a pool that has just come up.
#[derive(Clone, Debug)]
pub struct HostStarted {
    /// Its name.
    pub host: String,
    /// Numbers of its servers.
    pub servers: Vec<u16>,
    /// Bytes of all of them together.
    pub memory_bytes: u64,
    /// It is the machine on which the pool was started.
    pub shared: bool,
    /// What was found there on the way.
    pub notes: Vec<String>,
}

/// Starts the servers of a plan on their hosts, from a directory that was claimed here, and writes `pool.json`. When it
/// fails, nothing is left, here and there, or the error names the hosts that have not said so.
pub fn start_on_hosts(
    plan: &HostsPlan,
    transport: &Transport,
    directory: &PoolDirectory,
    cancel: Cancel<'_>,
    listener: &mut dyn Listener,
) -> Result<(PoolFile, Vec<HostStarted>)> {
    let start = Start { plan, transport, directory };
    let servers = plan.sites.iter().map(|site| site.servers.len()).sum();
    let started = check_for(plan.sites.len(), servers).and_then(|()| start.run(cancel, listener));
    started.inspect_err(|_| {
        // The failure is what the user must see; a directory that stays is found by the next start.
        let _ = remove_directory(directory);
    })
}

/// One start on all hosts.
struct Start<'a> {
    plan: &'a HostsPlan,
    transport: &'a Transport,
    directory: &'a PoolDirectory,
}

impl Start<'_> {
    fn run(&self, cancel: Cancel<'_>, listener: &mut dyn Listener) -> Result<(PoolFile, Vec<HostStarted>)> {
        let names = self.names();
        let (mut crew, failed) =
            Crew::gather(self.transport, &names, self.plan.options.patience, cancel, listener);
        let outcome = match failed.into_iter().next() {
            Some((_, error)) => Err(error),
            None => self.bring_up(&mut crew),
        };
        let error = match outcome {
            Ok((file, reports)) => match self.finish_start(&mut crew, &file, cancel) {
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
        self.plan.sites.iter().map(|site| site.host.clone()).collect()
    }

    /// From the first word to a pool that is ready and known on all hosts.
    fn bring_up(&self, crew: &mut Crew<'_>) -> Result<(PoolFile, Vec<HostStarted>)> {
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
        self.reach(&file, unreachable)?;
        let order = |index| (index, Order::Commit { file: Box::new(file.clone()) });
        crew.ask("writing pool.json", (0..crew.len()).map(order).collect::<Vec<_>>())?;
        Ok((file, reports))
    }

    fn prepare(&self, crew: &mut Crew<'_>, pool_id: &str) -> Result<Vec<HostStarted>> {
        let secret = SecretText(self.directory.read_secret()?.to_hex());
        let total = self.plan.sites.iter().map(|site| site.servers.len()).sum::<usize>();
        let total = u16::try_from(total).expect("the plan has at most 4,096 servers");
        let options = &self.plan.options;
        // Agents lose their patience first: they know which server is late, and what it has said.
        let servers_patience = options.patience.mul_f64(0.8);
        let order = |(index, site): (usize, &Site)| {
            let prepare = Prepare {
                pool: self.directory.name().to_owned(),
                pool_id: pool_id.to_owned(),
                secret: secret.clone(),
                host: site.host.clone(),
                servers: site.servers.clone(),
                servers_total: total,
                slots: options.slots_of(total),
                listen: site.listen.clone(),
                advertise: site.advertise.clone(),
                memory: site.memory,
                inodes: options.inodes,
                backing: options.backing.clone(),
                reserve: options.reserve,
                root_squash: options.root_squash,
                trust_network: options.trust_network,
                metrics: options.metrics.clone(),
                patience_millis: u64::try_from(servers_patience.as_millis()).unwrap_or(u64::MAX),
            };
            (index, Order::Prepare(Box::new(prepare)))
        };
        let orders: Vec<(usize, Order)> = self.plan.sites.iter().enumerate().map(order).collect();
        let answers = crew.ask("preparing", orders)?;
        let report = |(index, answer): (usize, Answer)| match answer {
            Answer::Prepared { store_bytes, shared, notes } => Ok(HostStarted {
                host: self.plan.sites[index].host.clone(),
                servers: Vec::new(),
                memory_bytes: store_bytes * self.plan.sites[index].servers.len() as u64,
                shared,
                notes,
            }),
            other => Err(unexpected(crew.host(index), &other)),
        };
        answers.into_iter().enumerate().map(report).collect()
    }

    /// What pool.json says here: the Unix sockets of other machines are none here.
    fn pool_file(&self, pool_id: String, servers: Vec<PoolFileServer>, reports: &[HostStarted]) -> PoolFile {
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

    /// A pool that cannot be used from here is no pool: every server must answer over the network. `why` makes the error of
    /// one that does not, of its host, its address and how that shows.
    fn reach(&self, file: &PoolFile, why: fn(&str, &str, &Error) -> Error) -> Result<()> {
        let unreachable = |server: Option<&PoolFileServer>, error: &Error| {
            let host = server.and_then(|server| server.host.as_deref()).unwrap_or_default();
            why(host, server.map_or("", |server| &server.tcp), error)
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

    /// Writes pool.json here and ends the agents. When one of them does not end as it should, or has taken its servers
    /// with it, the others have ended already: the whole pool is stopped by new ones.
    fn finish_start(&self, crew: &mut Crew<'_>, file: &PoolFile, cancel: Cancel<'_>) -> Result<()> {
        if cancel.came() {
            return Err(Error::new(ErrorKind::Busy, "stopped by a signal before it was done"));
        }
        self.directory.write_pool_file(file)?;
        let Err(error) = crew.leave().and_then(|()| self.reach(file, gone)) else { return Ok(()) };
        let stop = StopHosts {
            directory: self.directory,
            file,
            transport: self.transport,
            force: true,
            patience: self.plan.options.patience.max(Duration::from_secs(1)),
            unmount_here: &|| Ok(()),
        };
        let unsure: Vec<String> = stop
            .run(&self.names(), cancel, crew.listener())?
            .hosts
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

/// Why a server is of no use that has answered before the transport command ended.
fn gone(host: &str, address: &str, error: &Error) -> Error {
    let text = format!(
        "host {host}: its server at {address} has answered, but not any more since the transport command has ended: {}; what \
         ends all that a command leaves running (srun does, with its step) cannot start servers: use ssh",
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Instant;

    use super::*;
    use crate::hosts::read_hosts;
    use crate::hosts_plan::AllHosts;
    use crate::plan::PoolOptions;

    /// What hosts were asked for, and how often they were waited for.
    #[derive(Default)]
    struct Observed {
        asked: Vec<&'static str>,
        waited: usize,
    }

    impl Listener for Observed {
        fn begins(&mut self, doing: &'static str) {
            self.asked.push(doing);
        }

        fn waits_for(&mut self, hosts: &[&str], total: usize) {
            assert_eq!((hosts, total), (&["n1"][..], 1));
            self.waited += 1;
        }
    }

    /// How a start on one host fails by a transport that reaches no agent.
    fn failure(name: &str, transport: &str, cancelled: bool) -> (Error, Observed) {
        let base = std::env::temp_dir().join(format!("ramlace-start-{name}-{}", std::process::id()));
        let directory = PoolDirectory::within(&base, "lab").unwrap();
        directory.create().unwrap();
        let options = PoolOptions {
            slots: None,
            inodes: None,
            backing: "auto".into(),
            reserve: true,
            root_squash: true,
            trust_network: false,
            metrics: None,
            patience: Duration::from_secs(60),
        };
        let all = AllHosts { servers: 1, memory: Some(64 << 20), listen: None };
        let plan = HostsPlan::new(&read_hosts(&b"n1"[..], "nodes").unwrap(), all, options).unwrap();
        let transport = Transport::parse(transport, "ramlace").unwrap();
        let (read, mut write) = std::io::pipe().unwrap();
        if cancelled {
            write.write_all(b"!").unwrap();
        }
        let mut observed = Observed::default();
        let cancel = Cancel::new(read.as_fd());
        let error = start_on_hosts(&plan, &transport, &directory, cancel, &mut observed).unwrap_err();
        assert!(!directory.exists().unwrap());
        std::fs::remove_dir(&base).unwrap();
        (error, observed)
    }

    #[test]
    fn what_a_transport_says_instead_of_an_agent_is_told_with_its_host() {
        let (error, observed) = failure("ends", "sh -c 'sleep 0.2; echo unlucky >&2; exit 3'", false);
        assert_eq!(error.kind(), ErrorKind::HostDown);
        let told = error.message();
        assert!(told.starts_with("host n1: ") && told.contains("3, and said: unlucky"), "{told}");
        assert_eq!(observed.asked[0], "reaching");
        assert!(observed.waited > 0);
        let (error, _) = failure("none", "/no/such/transport", false);
        assert!(error.message().contains("cannot be started"), "{error}");
    }

    #[test]
    fn a_start_that_is_not_wanted_any_more_waits_for_nobody() {
        let began = Instant::now();
        let (error, _) = failure("cancelled", "sh -c 'exec sleep 600'", true);
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
