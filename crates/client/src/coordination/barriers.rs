//! Named barriers: members wait until all of them have come.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, Result, Slot, limits, units};
use ramlace_wire::coordination::{
    ArriveBarrier, BarrierAnswer, BarrierLeft, LeaveBarrier, MemberPlace, MissingMember,
};

use crate::Pool;
use crate::client::Client;
use crate::coordination::locking::soon;
use crate::coordination::parked::{Slept, Wake, end_of};
use crate::pool::locator::ShownPath;
use crate::session::pending::{Acknowledged, Message};
use crate::session::retry::{is_unacknowledged, lacks_room};

impl Pool {
    /// Comes to the barrier `name` (1 to 255 bytes) as one of `parties` members, `member` being its number
    /// from 0, and waits until all have come, for at most `timeout` (for ever without one). Returns the
    /// number of the round, from 1; the barrier can be used again at once. It need not be created, and is
    /// forgotten when the sessions of all its members have ended.
    ///
    /// Errors: `TimedOut` names the members that have not come, and where those were that came to an earlier
    /// round; this member is then as if it had not come. `Invalid` when others came with another number of
    /// parties; `Exists` when the member waits there already.
    pub fn barrier(
        &self,
        name: impl AsRef<[u8]>,
        parties: u32,
        member: u32,
        timeout: Option<Duration>,
    ) -> Result<u64> {
        self.barrier_with(name, parties, member, timeout, || Ok(()))
    }

    /// The same; `pause` is called several times a second and says whether to go on waiting.
    #[doc(hidden)]
    pub fn barrier_with(
        &self,
        name: impl AsRef<[u8]>,
        parties: u32,
        member: u32,
        timeout: Option<Duration>,
        mut pause: impl FnMut() -> Result<()>,
    ) -> Result<u64> {
        let name = name.as_ref();
        let session = self.session()?;
        let come = session.come_to_barrier(name, parties, member, timeout, &mut pause);
        come.map_err(|error| error.context(format!("barrier '{}'", ShownPath(name))))
    }
}

impl Client {
    fn come_to_barrier(
        self: &Arc<Client>,
        name: &[u8],
        parties: u32,
        member: u32,
        timeout: Option<Duration>,
        pause: &mut impl FnMut() -> Result<()>,
    ) -> Result<u64> {
        let until = end_of(timeout);
        let slot = ramlace_layout::barrier_slot(name, self.map()?.slots());
        let mut waiter = self.waits.park(vec![slot], Some((name.to_vec(), member)))?;
        let (wait, name) = (waiter.wait, name.to_vec());
        let leave = LeaveBarrier { name: name.clone(), member, wait };
        let request =
            ArriveBarrier { name, parties, member, wait, host: host_name(), pid: std::process::id() };
        let mut came = false;
        loop {
            match self.change(slot, &request, self.deadline()) {
                Ok(BarrierAnswer { passed: Some(round) }) => return Ok(round),
                Ok(BarrierAnswer { passed: None }) => came = true,
                // The member has come, and either the server restarts, or its slot moves to another server.
                Err(error) if came && is_unacknowledged(&error) => waiter.ask_later(),
                Err(error) => {
                    // Once it has come it counts, whatever the error: a server without room refuses to be asked again.
                    if came || is_unacknowledged(&error) {
                        self.send_later(Message::LeaveBarrier(slot, leave));
                    }
                    return Err(error);
                }
            }
            let slept = self.listen_to(slot).and_then(|()| waiter.sleep(until, pause));
            let why = match slept {
                Ok(Slept::Woken(Wake::Passed(round))) => return Ok(round),
                Ok(Slept::Woken(_)) => continue,
                Ok(Slept::Over) => None,
                Err(error) => Some(error),
            };
            return match (self.leave_barrier(slot, leave), why) {
                (Ok(BarrierLeft { passed: Some(round), .. }), _) => Ok(round),
                (_, Some(why)) => Err(why),
                (left, None) => Err(late(left, parties, timeout.unwrap_or_default())),
            };
        }
    }

    fn leave_barrier(self: &Arc<Client>, slot: Slot, leave: LeaveBarrier) -> Result<BarrierLeft> {
        let left = self.change(slot, &leave, soon());
        if left.as_ref().is_err_and(|error| is_unacknowledged(error) || lacks_room(error)) {
            self.send_later(Message::LeaveBarrier(slot, leave));
        }
        left
    }

    /// Notifies a server that a member has left a barrier, from the outbox.
    pub(crate) fn tell_left(
        self: &Arc<Client>,
        slot: Slot,
        leave: &LeaveBarrier,
        deadline: Instant,
    ) -> Result<Acknowledged> {
        self.unless_unacknowledged(self.change(slot, leave, deadline).map(drop))
    }
}

/// The error text that says which members were missing.
fn late(left: Result<BarrierLeft>, parties: u32, timeout: Duration) -> Error {
    let text = match left {
        Ok(left) => {
            let count = left.missing_count;
            let have = if count == 1 { "has" } else { "have" };
            let all = units::count(parties.into(), "member");
            let mut text = format!("{count} of {all} {have} not come within {timeout:?}");
            let mut separator = ": ";
            for missing in &left.missing {
                let _ = write!(text, "{separator}{}", shown(missing));
                separator = ", ";
            }
            match (count as usize).saturating_sub(left.missing.len()) {
                0 => {}
                more => _ = write!(text, " and {more} more"),
            }
            text
        }
        Err(error) => format!(
            "not all of {parties} members have come within {timeout:?}; which of them are missing is not known, because {}",
            error.message()
        ),
    };
    Error::new(ErrorKind::TimedOut, text)
}

fn shown(missing: &MissingMember) -> String {
    let number = missing.member;
    match &missing.last {
        None => format!("member {number} (never came)"),
        Some(MemberPlace { host, pid, gone: false }) => {
            format!("member {number} (last seen at {host}:{pid})")
        }
        Some(MemberPlace { host, pid, gone: true }) => {
            format!("member {number} (last seen at {host}:{pid}, whose session has ended)")
        }
    }
}

/// This machine's host name, for messages.
fn host_name() -> String {
    let system = rustix::system::uname();
    let mut name = system.nodename().to_string_lossy().into_owned();
    let end =
        (0..=limits::BARRIER_HOST_BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(end.unwrap_or_default());
    name
}
