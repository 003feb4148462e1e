//! Renews leases on names and attributes: one request renews all that a server has given this session.
//!
//! It is sent only when a caller wants to go on using what is cached under them: an idle mount sends nothing.
//! A renewal does not cover leases that the server has recalled, or taken back without a recall
//! ([`LeasesRenewed`]). So the result says since when no lease was taken back ([`Renewed::since`]): what was
//! requested before that must not be used any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Result, ServerId, limits};
use ramlace_sync::Mutex;
use ramlace_wire::leases::LeasesRenewed;

/// A renewal also answers callers that come at most this much later.
const SHARED: Duration = Duration::from_millis(limits::LEASE_MILLIS / 2);
/// The pause after a request that failed.
const PAUSE: Duration = Duration::from_millis(limits::LEASE_MILLIS / 2);

/// The leases that a server has renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Those that came with the answers to requests that were sent later than this.
    pub since: Instant,
    /// They last for [`limits::LEASE_MILLIS`] from here, unless they were recalled.
    pub asked: Instant,
}

/// What is known of the renewals of each server.
#[derive(Default)]
pub(crate) struct Renewals {
    servers: Mutex<HashMap<ServerId, Arc<Standing>>>,
}

/// Lock order: `state`, then `done`, the latter for a short time: a thread that receives recalls waits for
/// no request.
#[derive(Default)]
struct Standing {
    /// Held while the server is asked: callers that come meanwhile share the answer.
    state: Mutex<State>,
    done: Mutex<Option<RecallsDone>>,
}

/// What is known from a server's recalls.
#[derive(Clone, Copy, Debug)]
pub struct RecallsDone {
    /// The server's incarnation, the map under which it was asked, and since when both are known.
    life: u64,
    epoch: Epoch,
    since: Instant,
    /// The newest recall that is done; 0: none.
    number: u64,
}

/// The state of one server's renewals. Pure: the time is an argument.
#[derive(Debug, Default)]
pub struct State {
    /// The map's epoch when the server was asked: under another map it has other slots.
    epoch: Epoch,
    /// The counts in its last answer.
    said: Option<Said>,
    renewed: Option<Renewed>,
    /// When a request failed last.
    failed: Option<Instant>,
}

/// What a server has answered: its incarnation, how often it had taken leases back from this session, and when this
/// client first received that count.
#[derive(Clone, Copy, Debug)]
struct Said {
    life: u64,
    taken: u64,
    since: Instant,
}

impl Renewals {
    fn of(&self, server: ServerId) -> Arc<Standing> {
        self.servers.lock().entry(server).or_default().clone()
    }

    /// The leases that a server has renewed recently, or renews now: `ask` sends the request. Under another map it
    /// counts as another server. Without `wait`, `None` also while another thread asks.
    pub(crate) fn renew(
        &self,
        (server, epoch): (ServerId, Epoch),
        wait: bool,
        ask: impl FnOnce(Instant) -> Result<LeasesRenewed>,
    ) -> Option<Renewed> {
        let standing = self.of(server);
        let mut state = if wait { standing.state.lock() } else { standing.state.try_lock()? };
        let now = Instant::now();
        if let Some(known) = state.before_asking(epoch, now) {
            return known;
        }
        let reply = ask(now);
        let done = *standing.done.lock();
        state.answered(reply.ok(), done, now, Instant::now())
    }

    /// The recalls in a reply of this incarnation of a server are done, up to this number; `None`: the reply
    /// contained none.
    pub(crate) fn note_done(&self, server: ServerId, (life, epoch): (u64, Epoch), number: Option<u64>) {
        let standing = self.of(server);
        let mut done = standing.done.lock();
        *done = Some(RecallsDone::after(*done, (life, epoch), number, Instant::now()));
    }
}

impl RecallsDone {
    /// The state after a reply: the recalls of this incarnation are done up to this number.
    pub fn after(
        before: Option<RecallsDone>,
        (life, epoch): (u64, Epoch),
        number: Option<u64>,
        now: Instant,
    ) -> RecallsDone {
        let before = before.filter(|done| done.life == life);
        let newest = before.map_or(0, |before| before.number);
        // Under another map it has other slots, whose leases it may never have given.
        let same = before.filter(|before| before.epoch == epoch);
        RecallsDone {
            life,
            epoch,
            since: same.map_or(now, |same| same.since),
            number: number.unwrap_or(newest),
        }
    }
}

impl State {
    /// The result without a request to the server; `None`: a request is needed.
    pub fn before_asking(&mut self, epoch: Epoch, now: Instant) -> Option<Option<Renewed>> {
        if self.epoch != epoch {
            *self = State { epoch, ..State::default() };
        }
        if let Some(renewed) = self.renewed.filter(|renewed| now < renewed.asked + SHARED) {
            return Some(Some(renewed));
        }
        self.failed.is_some_and(|failed| now < failed + PAUSE).then_some(None)
    }

    /// A request that was sent at `asked` has ended.
    pub fn answered(
        &mut self,
        reply: Option<LeasesRenewed>,
        done: Option<RecallsDone>,
        asked: Instant,
        now: Instant,
    ) -> Option<Renewed> {
        self.renewed = reply.and_then(|reply| self.renew(reply, done, asked, now));
        self.failed = self.renewed.is_none().then_some(now);
        self.renewed
    }

    /// Evaluates the reply to a request for renewal. `None`: nothing was renewed, or a recall is not done yet.
    fn renew(
        &mut self,
        reply: LeasesRenewed,
        done: Option<RecallsDone>,
        asked: Instant,
        now: Instant,
    ) -> Option<Renewed> {
        let done = done.filter(|done| done.life == reply.life);
        if !reply.renewed || reply.newest > done.map_or(0, |done| done.number) {
            return None;
        }
        let LeasesRenewed { life, taken, .. } = reply;
        let since = match (self.said, done) {
            // The same count as in its last answer: it has taken none back in between.
            (Some(said), _) if (said.life, said.taken) == (life, taken) => said.since,
            // This incarnation has never taken a lease back: since it is known to this client.
            (_, Some(done)) if taken == 0 && done.epoch == self.epoch => done.since,
            // It has taken leases back, or is a new incarnation: only leases from now on are covered.
            _ => now,
        };
        self.said = Some(Said { life, taken, since });
        Some(Renewed { since, asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(life: u64, taken: u64, newest: u64) -> LeasesRenewed {
        LeasesRenewed { renewed: true, life, taken, newest }
    }

    // SEMANTICS 138.2
    #[test]
    fn what_a_server_may_have_taken_is_not_renewed() {
        let (mut state, asked) = (State::default(), Instant::now());
        let since = asked - Duration::from_secs(1);
        let done = Some(RecallsDone { life: 5, epoch: Epoch(0), since, number: 0 });
        let by_another_map = Some(RecallsDone { life: 5, epoch: Epoch(1), since, number: 0 });
        assert!(
            State::default().renew(reply(5, 0, 0), by_another_map, asked, Instant::now()).unwrap().since
                >= asked
        );
        assert_eq!(
            state.renew(reply(5, 0, 0), done, asked, Instant::now()).unwrap(),
            Renewed { since, asked }
        );
        let taken = state.renew(reply(5, 1, 0), done, asked, Instant::now()).unwrap();
        assert!(taken.since >= asked);
        assert_eq!(state.renew(reply(5, 1, 0), done, asked, Instant::now()).unwrap().since, taken.since);
        let another_life = state.renew(reply(6, 0, 0), done, asked, Instant::now()).unwrap();
        assert!(another_life.since > taken.since, "nothing is known of this life yet");
        assert_eq!(state.renew(LeasesRenewed::default(), done, asked, Instant::now()), None);
    }

    // SEMANTICS 138.2
    #[test]
    fn a_renewal_is_nothing_to_a_client_that_has_not_done_all_recalls() {
        let (renewals, server, asked) = (Renewals::default(), ServerId(1), Instant::now());
        let renew = |newest| {
            let done = *renewals.of(server).done.lock();
            State::default().renew(reply(5, 0, newest), done, asked, Instant::now()).is_some()
        };
        assert!(renew(0) && !renew(3));
        renewals.note_done(server, (5, Epoch(1)), Some(2));
        assert!(!renew(3));
        renewals.note_done(server, (5, Epoch(1)), Some(3));
        renewals.note_done(server, (5, Epoch(2)), None);
        assert!(renew(3));
        renewals.note_done(server, (4, Epoch(2)), Some(7));
        assert!(!renew(3), "that was another life");
    }

    // SEMANTICS 138.2
    #[test]
    fn a_caller_that_does_not_wait_has_no_answer_while_another_asks() {
        let (renewals, server) = (Renewals::default(), (ServerId(1), Epoch(1)));
        renewals.note_done(server.0, (5, server.1), None);
        let again = |wait| renewals.renew(server, wait, |_| Ok(reply(5, 0, 0)));
        let asked = renewals.renew(server, true, |_| {
            assert_eq!(again(false), None);
            Ok(reply(5, 0, 0))
        });
        assert!(asked.is_some() && again(false) == asked);
    }
}
