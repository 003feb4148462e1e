//! The agents on all hosts of a pool, one transport command (ssh) each. Orders are sent to all of them at once; their
//! answers are awaited together, with one deadline. Used by `up` and `down` of a pool on several hosts.

use std::time::{Duration, Instant};

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::agent_protocol::{Answer, Order};
use crate::cancel::Cancel;
use crate::listener::Listener;
use crate::remote::{Remote, Transport};

/// How often the listener is called, and hosts that end are noticed.
const TICK: Duration = Duration::from_millis(50);
/// How long agents may take at most to undo what they did: as long as servers may take to stop, and a margin.
const UNDO_PATIENCE_MAX: Duration = Duration::from_secs(15);
/// How long a transport command may take to end when it is asked to.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Failures that are shown; the others are counted.
const NAMED_MAX: usize = 4;

/// An answer of one host, or why there is none.
pub type HostAnswer = (usize, Result<Answer>);

/// The agents of all hosts, in the order of the hosts file.
pub struct Crew<'a> {
    remotes: Vec<Remote>,
    cancel: Cancel<'a>,
    patience: Duration,
    listener: &'a mut dyn Listener,
}

impl<'a> Crew<'a> {
    /// Runs the transport command for every host. The hosts' hellos are still to be awaited; what
    /// cannot even be run stands beside the crew, and has no place in it.
    pub fn gather(
        transport: &Transport,
        hosts: &[String],
        patience: Duration,
        cancel: Cancel<'a>,
        listener: &'a mut dyn Listener,
    ) -> (Crew<'a>, Vec<(String, Error)>) {
        let mut failed = Vec::new();
        let mut remotes = Vec::new();
        for host in hosts {
            match Remote::start(transport, host) {
                Ok(remote) => remotes.push(remote),
                Err(error) => failed.push((host.clone(), error)),
            }
        }
        (Crew { remotes, cancel, patience, listener }, failed)
    }

    /// The host's name.
    pub fn host(&self, index: usize) -> &str {
        &self.remotes[index].host
    }

    /// The progress listener of this crew, lent to another crew that works in between.
    pub fn listener(&mut self) -> &mut dyn Listener {
        self.listener
    }

    /// Whether a signal has come.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.came()
    }

    /// How many hosts.
    pub fn len(&self) -> usize {
        self.remotes.len()
    }

    /// Sends orders to hosts and returns all answers in their order, or the first failure.
    pub fn ask(
        &mut self,
        doing: &'static str,
        orders: impl IntoIterator<Item = (usize, Order)>,
    ) -> Result<Vec<Answer>> {
        let hosts = self.tell(orders);
        self.all(doing, hosts)
    }

    /// Waits until all hosts have said hello, or for the first failure.
    pub fn greet(&mut self) -> Result<()> {
        self.all("reaching", (0..self.len()).collect()).map(drop)
    }

    fn all(&mut self, doing: &'static str, hosts: Vec<usize>) -> Result<Vec<Answer>> {
        let mut received = self.listen(doing, hosts, true);
        received.sort_by_key(|(index, _)| *index);
        let mut answers = Vec::with_capacity(received.len());
        let mut failures = Vec::new();
        for (_, result) in received {
            match result {
                Ok(answer) => answers.push(answer),
                Err(error) => failures.push(error),
            }
        }
        if failures.is_empty() { Ok(answers) } else { Err(together(&failures)) }
    }

    /// Sends orders; returns the hosts that got one.
    pub fn tell(&mut self, orders: impl IntoIterator<Item = (usize, Order)>) -> Vec<usize> {
        let orders = orders.into_iter();
        orders
            .map(|(index, order)| {
                self.remotes[index].say(&order);
                index
            })
            .collect()
    }

    /// Waits for one answer of each of these hosts; with `all_or_nothing` only until one fails. One that was
    /// too slow may have waited for another: which host is at fault shows when time is over.
    pub fn listen(
        &mut self,
        doing: &'static str,
        mut waiting: Vec<usize>,
        all_or_nothing: bool,
    ) -> Vec<HostAnswer> {
        self.listener.begins(doing);
        let end = Instant::now() + self.patience;
        let mut received: Vec<HostAnswer> = Vec::new();
        loop {
            let remotes = &mut self.remotes;
            waiting.retain(|index| match remotes[*index].next() {
                Some(result) => {
                    received.push((*index, result));
                    false
                }
                None => true,
            });
            if waiting.is_empty() || (all_or_nothing && received.iter().any(|(_, result)| is_final(result))) {
                return received;
            }
            let why: Option<fn(&Remote, Duration) -> Error> = if self.cancel.came() {
                Some(|_, _| interrupted())
            } else if Instant::now() >= end {
                Some(Remote::late)
            } else {
                None
            };
            if let Some(why) = why {
                let patience = self.patience;
                received.extend(
                    waiting.into_iter().map(|index| (index, Err(why(&self.remotes[index], patience)))),
                );
                return received;
            }
            let names: Vec<&str> = waiting.iter().map(|index| &self.remotes[*index].host[..]).collect();
            self.listener.waits_for(&names, self.remotes.len());
            self.pump(end);
        }
    }

    /// Waits a moment, or until something moves.
    fn pump(&mut self, end: Instant) {
        let reads =
            self.remotes.iter().flat_map(Remote::reads).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let writes = self.remotes.iter().filter_map(Remote::writes);
        let cancelled = self.cancel.fd();
        let mut polled: Vec<PollFd<'_>> =
            reads.chain(writes.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT))).collect();
        // Once it has come it would end every wait at once, also the one for what is being undone.
        if !self.cancel.came() {
            polled.push(PollFd::from_borrowed_fd(cancelled, PollFlags::IN));
        }
        let left = end.saturating_duration_since(Instant::now()).min(TICK);
        let timeout = Timespec::try_from(left).expect("a moment fits");
        // Interrupted or not: what there is, is taken.
        let _ = poll(&mut polled, Some(&timeout));
        for remote in &mut self.remotes {
            remote.pump();
        }
    }

    /// Lets the servers run: every agent ends, or is an error.
    pub fn leave(&mut self) -> Result<()> {
        self.tell((0..self.len()).map(|index| (index, Order::Leave)).collect::<Vec<_>>());
        let end = Instant::now() + self.patience;
        while self.remotes.iter_mut().any(|remote| !remote.has_ended()) && Instant::now() < end {
            self.pump(end);
        }
        let patience = self.patience;
        for remote in &mut self.remotes {
            if !remote.has_ended() {
                return Err(remote.late(patience));
            }
            if !remote.exit_status().is_some_and(|status| status.success()) {
                return Err(remote.ended());
            }
            remote.may_run = false;
        }
        Ok(())
    }

    /// Ends all agents; those that have started something undo it first. Returns the hosts that
    /// have not said that nothing is left there.
    pub fn abort(&mut self) -> Vec<String> {
        self.listener.begins("stopping what was started");
        for remote in &mut self.remotes {
            if remote.may_run {
                remote.say(&Order::Abort);
            }
            // What is still to be said must leave first; the end of the input means the same.
            if remote.writes().is_none() {
                remote.hang_up();
            }
        }
        let end = Instant::now() + self.patience.min(UNDO_PATIENCE_MAX);
        while Instant::now() < end {
            for remote in &mut self.remotes {
                while remote.may_run && matches!(remote.next(), Some(Ok(_))) {}
            }
            let waiting: Vec<&str> = self
                .remotes
                .iter_mut()
                .filter_map(|remote| (remote.may_run && !remote.has_ended()).then_some(&remote.host[..]))
                .collect();
            if waiting.is_empty() {
                break;
            }
            let total = waiting.len();
            self.listener.waits_for(&waiting, total);
            self.pump(end);
        }
        self.end();
        self.remotes.iter().filter(|remote| remote.may_run).map(|remote| remote.host.clone()).collect()
    }

    /// Ends the transport commands themselves.
    pub fn end(&mut self) {
        for remote in &mut self.remotes {
            remote.hang_up();
        }
        for (signal, patience) in [(None, END_PATIENCE / 4), (Some(Signal::TERM), END_PATIENCE)] {
            let end = Instant::now() + patience;
            for remote in &mut self.remotes {
                signal.into_iter().for_each(|signal| remote.signal(signal));
            }
            while self.remotes.iter_mut().any(|remote| remote.exit_status().is_none()) && Instant::now() < end
            {
                self.pump(end);
            }
        }
        // What is left is killed when it is dropped.
    }
}

fn is_final(result: &Result<Answer>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() != ErrorKind::TimedOut)
}

/// Several failures as one.
fn together(failures: &[Error]) -> Error {
    let mut texts: Vec<&str> = failures.iter().map(Error::message).collect();
    texts.dedup();
    let more = texts.len().saturating_sub(NAMED_MAX);
    let mut text = texts[..texts.len() - more].join("\n");
    if more > 0 {
        text.push_str(&format!("\nand {}", count(more as u64, "further host")));
    }
    Error::new(failures[0].kind(), text)
}

/// What is said where a signal has ended a wait for hosts.
pub fn interrupted() -> Error {
    Error::new(ErrorKind::Busy, "stopped by a signal before it was done")
}
