//! The agent: what starts and stops a pool's servers on one of its hosts, by orders from the machine where the pool is started.
//!
//! What it has started it undoes on an order, when its orders end, and when none arrives for long: the death of the
//! command that gives them leaves no servers behind.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::agent_protocol::{AGENT_PROTOCOL, Answer, MESSAGE_BYTES_MAX, Order, Prepare, line_of};
use crate::agent_site::Site;
use crate::agent_stop::Meant;
use crate::cancel::Cancel;

/// Silence after which the command that gave the orders counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// What the agent of a host works with.
pub struct Agent<'a> {
    /// Where orders come in, one on each line; nobody else reads there.
    pub orders: BorrowedFd<'a>,
    /// The agent is not wanted any more: it undoes what it has started, and ends.
    pub cancel: Cancel<'a>,
    /// `ramlace`, which servers are.
    pub program: &'a Path,
    /// Passes an answer on, which is a line.
    pub answer: &'a mut dyn FnMut(&[u8]) -> Result<()>,
    /// Takes the mounts of the pool with this name away from this machine, or none of them while programs use one; if the
    /// flag is set, from these, too. What there is to say of it.
    pub unmount: &'a dyn Fn(&str, bool) -> Result<Vec<String>>,
    /// Checks that no program uses a mount of the pool with this name; the error names those that do.
    pub check_unused: &'a dyn Fn(&str) -> Result<()>,
}

/// How an agent has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEnd {
    /// As it was ordered, or without an order.
    Done,
    /// An order could not be followed; the command that gave it was sent the reason.
    Refused,
}

impl Agent<'_> {
    /// Follows orders until one ends it, or there are no more.
    ///
    /// Errors: when an answer cannot be passed on.
    pub fn run(self) -> Result<AgentEnd> {
        let mut desk = Desk { agent: self, received: Vec::new(), silence: SILENCE_MAX };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        desk.say(&Answer::Hello { version, protocol: AGENT_PROTOCOL })?;
        let mut order = desk.next_order();
        if let Ok(Some(Order::Check { pool, pool_id, secret })) = &order {
            match Meant::new(pool, pool_id, secret)
                .and_then(|meant| meant.check_unused(desk.agent.check_unused))
            {
                Ok(()) => desk.say(&Answer::Unused)?,
                Err(error) => return desk.refuse(&error),
            }
            order = desk.next_order();
        }
        match order {
            Ok(Some(Order::Prepare(prepare))) => start(&mut desk, *prepare),
            Ok(Some(Order::Stop { pool, pool_id, secret, force })) => {
                let meant = Meant::new(&pool, &pool_id, &secret);
                match meant.and_then(|meant| meant.stop(force, desk.agent.unmount)) {
                    Ok((servers, notes)) => desk.end(&Answer::Stopped { servers, notes }),
                    Err(error) => desk.refuse(&error),
                }
            }
            Ok(None) => Ok(AgentEnd::Done),
            Ok(Some(_)) => desk.refuse(&out_of_place()),
            Err(error) => desk.refuse(&error),
        }
    }
}

fn out_of_place() -> Error {
    Error::new(ErrorKind::Protocol, "an order came where it has no meaning")
}

/// Starts servers, and sees to it that they stay only when the whole pool does.
fn start(desk: &mut Desk<'_>, prepare: Prepare) -> Result<AgentEnd> {
    desk.silence = SILENCE_MAX.max(4 * Duration::from_millis(prepare.patience_millis));
    let mut site = match Site::enter(prepare, desk.agent.program) {
        Ok(site) => site,
        Err(error) => return desk.refuse(&error),
    };
    let error = match follow(desk, &mut site) {
        Ok(true) => return Ok(AgentEnd::Done),
        Ok(false) => None,
        Err(error) => Some(error),
    };
    match (error, site.undo()) {
        (None, Ok((servers, notes))) => desk.end(&Answer::Stopped { servers, notes }),
        (Some(error), Ok(_)) => desk.refuse(&error),
        (None, Err(worse)) => desk.refuse(&worse),
        (Some(error), Err(worse)) => desk.refuse(&error.context(worse)),
    }
}

/// Follows the orders of one start; whether the servers shall stay.
fn follow(desk: &mut Desk<'_>, site: &mut Site) -> Result<bool> {
    desk.say(&site.prepare()?)?;
    loop {
        let answer = match desk.next_order()? {
            Some(Order::StartFirst) => site.start_first(&desk.watch()?)?,
            Some(Order::Start { coordinator }) => site.start(&coordinator, &desk.watch()?)?,
            Some(Order::Commit { file }) => site.commit(*file)?,
            Some(Order::Leave) => return Ok(site.committed),
            Some(Order::Abort) | None => return Ok(false),
            Some(_) => return Err(out_of_place()),
        };
        desk.say(&answer)?;
    }
}

/// Where orders come in and answers go out.
struct Desk<'a> {
    agent: Agent<'a>,
    received: Vec<u8>,
    silence: Duration,
}

impl<'a> Desk<'a> {
    fn say(&mut self, answer: &Answer) -> Result<()> {
        (self.agent.answer)(&line_of(answer))
    }

    /// The last answer.
    fn end(&mut self, answer: &Answer) -> Result<AgentEnd> {
        self.say(answer).map(|()| AgentEnd::Done)
    }

    /// Sends the error; the command that gave the order shows it.
    fn refuse(&mut self, error: &Error) -> Result<AgentEnd> {
        self.say(&Answer::from(error)).map(|()| AgentEnd::Refused)
    }

    /// What means, while servers are being started, that they are not wanted any more: anything.
    fn watch(&self) -> Result<[BorrowedFd<'a>; 2]> {
        if !self.received.is_empty() {
            return Err(out_of_place());
        }
        Ok([self.agent.orders, self.agent.cancel.fd()])
    }

    /// The next order; none when the input has ended, a signal has come, or nothing arrives for long.
    fn next_order(&mut self) -> Result<Option<Order>> {
        let end = Instant::now() + self.silence;
        loop {
            if let Some(at) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=at).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|error| {
                    // The line may hold the secret: it is not shown.
                    Error::new(ErrorKind::Protocol, format!("an order makes no sense: {error}"))
                });
            }
            if self.received.len() > MESSAGE_BYTES_MAX {
                return Err(Error::new(ErrorKind::TooLarge, "an order is too long"));
            }
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a few minutes fit");
            let mut polled = [
                PollFd::from_borrowed_fd(self.agent.orders, PollFlags::IN),
                PollFd::from_borrowed_fd(self.agent.cancel.fd(), PollFlags::IN),
            ];
            match poll(&mut polled, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) if !polled[1].revents().is_empty() => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(Error::from_io(&errno.into(), "waiting for orders")),
            }
            let mut bytes = [0; 8192];
            match rustix::io::read(self.agent.orders, &mut bytes) {
                Ok(0) | Err(rustix::io::Errno::IO) => return Ok(None),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(Error::from_io(&errno.into(), "reading orders")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;
    use crate::agent_protocol::SecretText;

    /// What an agent says to orders behind which nothing follows, and how it ends; `open`: the line stays open, and the
    /// agent is cancelled instead.
    fn follow(orders: &[u8], open: bool) -> (AgentEnd, Vec<Answer>) {
        let (input, mut line) = std::io::pipe().unwrap();
        let (cancelled, mut canceller) = std::io::pipe().unwrap();
        line.write_all(orders).unwrap();
        let line = if open {
            canceller.write_all(b"!").unwrap();
            Some(line)
        } else {
            drop(line);
            None
        };
        let mut said = Vec::new();
        let agent = Agent {
            orders: input.as_fd(),
            cancel: Cancel::new(cancelled.as_fd()),
            program: Path::new("/bin/false"),
            answer: &mut |line: &[u8]| {
                said.extend_from_slice(line);
                Ok(())
            },
            check_unused: &|_| Ok(()),
            unmount: &|_, _| Err(Error::new(ErrorKind::Busy, "in use")),
        };
        let end = agent.run().unwrap();
        drop((line, canceller));
        let answers = said.split_inclusive(|byte| *byte == b'\n');
        (end, answers.map(|line| serde_json::from_slice(line).unwrap()).collect())
    }

    fn refused(orders: &[u8]) -> ErrorKind {
        let (end, mut answers) = follow(orders, false);
        assert_eq!((end, answers.len()), (AgentEnd::Refused, 2));
        answers.pop().unwrap().into_result().unwrap_err().kind()
    }

    #[test]
    fn an_agent_without_orders_greets_and_ends() {
        for open in [false, true] {
            let (end, answers) = follow(b"", open);
            assert_eq!(end, AgentEnd::Done);
            assert!(
                matches!(&answers[..], [Answer::Hello { protocol: AGENT_PROTOCOL, .. }]),
                "{open}: {answers:?}"
            );
        }
    }

    #[test]
    fn what_is_no_order_or_is_out_of_place_is_refused() {
        assert_eq!(refused(b"what\n"), ErrorKind::Protocol);
        assert_eq!(refused(&line_of(&Order::Leave)), ErrorKind::Protocol);
        let mut long = vec![b' '; 1 << 10];
        long.push(b'\n');
        assert_eq!(refused(&long), ErrorKind::Protocol);
    }

    #[test]
    fn a_pool_of_which_no_mount_is_used_may_be_stopped_next() {
        let pool = format!("none-{}", std::process::id());
        let (pool_id, secret) = ("0".repeat(32), SecretText("0".repeat(64)));
        let check =
            line_of(&Order::Check { pool: pool.clone(), pool_id: pool_id.clone(), secret: secret.clone() });
        let stop = line_of(&Order::Stop { pool, pool_id, secret, force: false });
        let (end, answers) = follow(&[check.clone(), stop].concat(), false);
        assert_eq!(end, AgentEnd::Done);
        assert!(matches!(&answers[1..], [Answer::Unused, Answer::Stopped { servers: 0, .. }]), "{answers:?}");
        let (end, answers) = follow(&check, false);
        assert_eq!((end, answers.len()), (AgentEnd::Done, 2), "nothing has to follow");
    }

    #[test]
    fn a_pool_that_is_not_here_is_stopped() {
        let pool = format!("none-{}", std::process::id());
        let order = |secret: &str| {
            let (pool, pool_id) = (pool.clone(), "0".repeat(32));
            line_of(&Order::Stop { pool, pool_id, secret: SecretText(secret.into()), force: false })
        };
        let (end, answers) = follow(&order(&"0".repeat(64)), false);
        assert_eq!(end, AgentEnd::Done);
        assert!(matches!(&answers[1..], [Answer::Stopped { servers: 0, .. }]), "{answers:?}");
        assert_eq!(refused(&order("short")), ErrorKind::Invalid);
    }
}
