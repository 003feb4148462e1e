//! Stops the servers of a pool on all its hosts, through the transport.

use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{PoolDirectory, PoolFileHosts};

use crate::agent_protocol::{Answer, Order, SecretText};
use crate::cancel::Cancel;
use crate::crew::Crew;
use crate::listener::Listener;
use crate::remote::Transport;

/// What came of one host.
#[derive(Debug)]
pub struct HostStopped {
    /// Its name.
    pub host: String,
    /// How many servers were running there and what was odd, or why it is not known.
    pub outcome: Result<(usize, Vec<String>)>,
}

/// Stops a pool on all its hosts, as its directory names them; what came of each is reported in their order. The directory goes
/// when all have answered; with `force`, which also takes mounts from programs that use them, in any case.
pub fn stop_on_hosts(
    directory: &PoolDirectory,
    hosts: &PoolFileHosts,
    force: bool,
    patience: Duration,
    cancel: Cancel<'_>,
    listener: &mut dyn Listener,
) -> Result<Vec<HostStopped>> {
    let stop = StopHosts { directory, transport: &Transport::of(hosts), force, patience };
    let stopped = stop.run(&hosts.hosts, cancel, listener)?;
    if force || stopped.iter().all(|one| one.outcome.is_ok()) {
        directory.remove()?;
    }
    Ok(stopped)
}

/// How the hosts of a pool are reached.
pub struct StopHosts<'a> {
    /// The pool's directory, which has its secret.
    pub directory: &'a PoolDirectory,
    /// The transport.
    pub transport: &'a Transport,
    /// Take mounts from programs that use them.
    pub force: bool,
    /// How long a host may take to answer.
    pub patience: Duration,
}

impl StopHosts<'_> {
    /// Sends the order to every host, whatever becomes of the others.
    pub fn run(
        &self,
        hosts: &[String],
        cancel: Cancel<'_>,
        listener: &mut dyn Listener,
    ) -> Result<Vec<HostStopped>> {
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
        let order = || Order::Stop {
            pool: self.directory.name().to_owned(),
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
        stopped.sort_by_key(|one| hosts.iter().position(|host| *host == one.host));
        Ok(stopped)
    }
}

/// An answer to another order than the one that was given.
pub fn unexpected(host: &str, answer: &Answer) -> Error {
    let text = format!("host {host}: an answer that does not belong to the order: {answer:?}");
    Error::new(ErrorKind::Protocol, text)
}
