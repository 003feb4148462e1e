//! Stops the servers of a pool on all its hosts, through the transport.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{ConnectOptions, Pool, PoolDirectory, PoolFile, PoolFileServer};

use crate::agent_protocol::{Answer, Order, SecretText};
use crate::cancel::Cancel;
use crate::crew::{Crew, interrupted};
use crate::listener::Listener;
use crate::remote::Transport;
use crate::stop::remove_directory;

/// How long a server may take to answer that its host has not found.
const ANSWER_PATIENCE_MILLIS: u32 = 2000;

/// What came of one host.
#[derive(Debug)]
pub struct HostStopped {
    /// Its name.
    pub host: String,
    /// How many servers were running there and what was odd, or why it is not known.
    pub outcome: Result<(usize, Vec<String>)>,
}

/// What came of all hosts.
#[derive(Debug)]
pub struct PoolStopped {
    /// Of each.
    pub hosts: Vec<HostStopped>,
    /// Programs use a mount on one of them: no server was told to stop, and no mount was taken away.
    pub refused: bool,
}

/// Stops a pool on all its hosts, as its pool.json names them; what came of each is reported in their order. The directory goes
/// when all have answered, and no server does any more. Without `force` nothing is changed anywhere while programs use a mount on one of them (`Busy` there, and for all
/// others), and `unmount_here` is called in between, to take away the mounts of this machine; with `force`, which also takes mounts from programs that use them, in any case but an interrupt.
pub fn stop_on_hosts(
    directory: &PoolDirectory,
    file: &PoolFile,
    force: bool,
    patience: Duration,
    cancel: Cancel<'_>,
    listener: &mut dyn Listener,
    unmount_here: &dyn Fn() -> Result<()>,
) -> Result<PoolStopped> {
    let Some(hosts) = &file.hosts else {
        return Err(Error::new(ErrorKind::Invalid, "pool.json names no hosts"));
    };
    let transport = &Transport::of(hosts);
    let stop = StopHosts { directory, file, transport, force, patience, unmount_here };
    let stopped = stop.run(&hosts.hosts, cancel, listener)?;
    // Who interrupts it does not want servers forgotten that nobody has told to stop.
    if (force && !cancel.came()) || stopped.hosts.iter().all(|one| one.outcome.is_ok()) {
        remove_directory(directory)?;
    }
    Ok(stopped)
}

/// How the hosts of a pool are reached.
pub struct StopHosts<'a> {
    /// The pool's directory, which has its secret.
    pub directory: &'a PoolDirectory,
    /// What its pool.json says.
    pub file: &'a PoolFile,
    /// The transport.
    pub transport: &'a Transport,
    /// Take mounts from programs that use them.
    pub force: bool,
    /// How long a host may take to answer.
    pub patience: Duration,
    /// Takes the mounts of this machine away, when no host refuses.
    pub unmount_here: &'a dyn Fn() -> Result<()>,
}

impl StopHosts<'_> {
    /// Sends the order to every host, whatever becomes of the others.
    pub fn run(
        &self,
        hosts: &[String],
        cancel: Cancel<'_>,
        listener: &mut dyn Listener,
    ) -> Result<PoolStopped> {
        let secret = SecretText(self.directory.read_secret()?.to_hex());
        let (mut crew, failed) = Crew::gather(self.transport, hosts, self.patience, cancel, listener);
        let mut stopped: Vec<HostStopped> =
            failed.into_iter().map(|(host, error)| HostStopped { host, outcome: Err(error) }).collect();
        let mut told = Vec::new();
        for (index, hello) in crew.listen("reaching", (0..crew.len()).collect(), false) {
            match hello {
                Ok(_) => told.push(index),
                Err(error) => {
                    stopped.push(HostStopped { host: crew.host(index).to_owned(), outcome: Err(error) });
                }
            }
        }
        let mut refused = false;
        if !self.force {
            (told, refused) = self.check_unused(&mut crew, told, &secret, &mut stopped);
        }
        // Who interrupts it before anything was done wants nothing to be done.
        if cancel.came() {
            for index in told.drain(..) {
                stopped.push(HostStopped { host: crew.host(index).to_owned(), outcome: Err(interrupted()) });
            }
        } else if !refused {
            (self.unmount_here)()?;
        }
        let order = || Order::Stop {
            pool: self.directory.name().to_owned(),
            pool_id: self.file.pool.clone(),
            secret: secret.clone(),
            force: self.force,
        };
        let told = crew.tell(told.into_iter().map(|index| (index, order())).collect::<Vec<_>>());
        for (index, answer) in crew.listen("stopping", told, false) {
            let outcome = answer.and_then(|answer| match answer {
                Answer::Stopped { servers, notes } => Ok((servers, notes)),
                other => Err(unexpected(crew.host(index), &other)),
            });
            stopped.push(HostStopped { host: crew.host(index).to_owned(), outcome });
        }
        crew.end();
        check_silent(self.directory, self.file, &mut stopped);
        stopped.sort_by_key(|one| hosts.iter().position(|host| *host == one.host));
        Ok(PoolStopped { hosts: stopped, refused })
    }

    /// Asks hosts whether programs use the pool's mounts there. Returns those that are to be stopped, none if some do, and
    /// whether some do.
    fn check_unused(
        &self,
        crew: &mut Crew<'_>,
        hosts: Vec<usize>,
        secret: &SecretText,
        stopped: &mut Vec<HostStopped>,
    ) -> (Vec<usize>, bool) {
        let order = || Order::Check {
            pool: self.directory.name().to_owned(),
            pool_id: self.file.pool.clone(),
            secret: secret.clone(),
        };
        let told = crew.tell(hosts.into_iter().map(|index| (index, order())).collect::<Vec<_>>());
        let (mut unused, mut used) = (Vec::new(), None);
        for (index, answer) in crew.listen("asking", told, false) {
            let host = crew.host(index).to_owned();
            match answer {
                Ok(Answer::Unused) => unused.push(index),
                Ok(other) => {
                    let outcome = Err(unexpected(&host, &other));
                    stopped.push(HostStopped { host, outcome });
                }
                Err(error) => {
                    // An interrupt is of this kind, too, and no answer of a host.
                    if error.kind() == ErrorKind::Busy && !crew.is_cancelled() {
                        used = Some(host.clone());
                    }
                    stopped.push(HostStopped { host, outcome: Err(error) });
                }
            }
        }
        let Some(used) = used else { return (unused, false) };
        for index in unused {
            let host = crew.host(index).to_owned();
            let text = format!("host {host}: its servers go on, because programs use a mount on {used}");
            stopped.push(HostStopped { host, outcome: Err(Error::new(ErrorKind::Busy, text)) });
        }
        (Vec::new(), true)
    }
}

/// Asks the servers of hosts that have found less than they were given: one that answers all the same makes an error of its
/// host's outcome. Else the secret would go, without which nobody can reach it.
fn check_silent(directory: &PoolDirectory, file: &PoolFile, stopped: &mut [HostStopped]) {
    std::thread::scope(|scope| {
        for one in stopped {
            let theirs = file.servers.iter().filter(|server| server.host.as_ref() == Some(&one.host));
            let given: Vec<&PoolFileServer> = theirs.collect();
            if !matches!(&one.outcome, Ok((found, _)) if *found < given.len()) {
                continue;
            }
            // One thread for each server: those that are gone then cost their patience together.
            scope.spawn(move || {
                let Some(server) = first_that_answers(directory, &given) else { return };
                let text = format!(
                    "host {}: its server {} was not found there, and answers at {} all the same; end its processes on \
                     that host, then repeat this",
                    one.host, server.server, server.tcp
                );
                one.outcome = Err(Error::new(ErrorKind::Busy, text));
            });
        }
    });
}

fn first_that_answers<'a>(
    directory: &PoolDirectory,
    servers: &[&'a PoolFileServer],
) -> Option<&'a PoolFileServer> {
    std::thread::scope(|scope| {
        let ask = |server: &&'a PoolFileServer| {
            let server = *server;
            scope.spawn(move || answers(directory, server).then_some(server))
        };
        let asked: Vec<_> = servers.iter().map(ask).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()?).next()
    })
}

/// Whether a server lets the pool's owner in.
fn answers(directory: &PoolDirectory, server: &PoolFileServer) -> bool {
    let options = ConnectOptions {
        addresses: vec![server.tcp.clone()],
        secret_file: Some(directory.secret_path()),
        local: false,
        deadline_millis: ANSWER_PATIENCE_MILLIS,
        ..ConnectOptions::default()
    };
    // Where nobody listens, a client would wait for the server to come back.
    listens(&server.tcp) && Pool::connect(&options).is_ok()
}

/// Whether something listens at an address.
fn listens(address: &str) -> bool {
    let patience = Duration::from_millis(ANSWER_PATIENCE_MILLIS.into());
    let mut places = address.to_socket_addrs().into_iter().flatten();
    places.any(|place| TcpStream::connect_timeout(&place, patience).is_ok())
}

/// An answer to another order than the one that was given.
pub fn unexpected(host: &str, answer: &Answer) -> Error {
    let text = format!("host {host}: an answer that does not belong to the order: {answer:?}");
    Error::new(ErrorKind::Protocol, text)
}
