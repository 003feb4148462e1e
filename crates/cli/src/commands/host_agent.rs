//! `host-agent`: the hidden command that `up --hosts` and `down` run on every host.

use std::os::fd::AsFd;

use ramlace_base::{Error, ErrorKind};
use ramlace_launch::{Agent, AgentEnd, Cancel};

use super::down::{check_unused, unmount_all};
use super::up::own_program;
use crate::failure::{Done, Failure};
use crate::interrupt::Interrupt;
use crate::output::Output;

/// Follows the orders on standard input until one ends it, or the input ends.
pub fn run(output: &mut Output) -> Done {
    let interrupt = Interrupt::catch()?;
    let stdin = std::io::stdin();
    let agent = Agent {
        orders: stdin.as_fd(),
        cancel: Cancel::new(interrupt.fd()),
        program: &own_program()?,
        answer: &mut |line| {
            output.bytes(line).and_then(|()| output.flush()).map_err(|failure| match failure {
                Failure::Error(error) => error,
                _ => Error::new(ErrorKind::HostDown, "nobody reads the answers any more"),
            })
        },
        unmount: &unmount_all,
        check_unused: &check_unused,
    };
    match agent.run()? {
        AgentEnd::Done => Ok(()),
        // The command that gave the order shows why.
        AgentEnd::Refused => Err(Failure::Told),
    }
}
