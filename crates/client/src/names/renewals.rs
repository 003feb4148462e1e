//! All leases on names and attributes that a server has given, renewed by one question.
//!
//! Asked when somebody wants to go on believing what is kept by them: a mount that is left alone asks nothing. What a server has
//! recalled, or taken without a word, is not renewed: see [`LeasesRenewed`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Result, ServerId, limits};
use ramlace_sync::Mutex;
use ramlace_wire::leases::LeasesRenewed;

/// A renewal is good for those who come so much later.
const SHARED: Duration = Duration::from_millis(limits::LEASE_MILLIS / 2);
/// After a question that came to nothing.
const PAUSE: Duration = Duration::from_millis(limits::LEASE_MILLIS / 2);

/// Leases that a server has renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Those that came with answers to questions that left later than this.
    pub since: Instant,
    /// They last for [`limits::LEASE_MILLIS`] from here, unless they were recalled.
    pub asked: Instant,
}

/// What is known of the renewals of each server.
#[derive(Default)]
pub(crate) struct Renewals {
    servers: Mutex<HashMap<ServerId, Arc<Standing>>>,
}

/// Order of the locks: `state`, then `heard`, and that for a moment: who hears of recalls waits for no question.
#[derive(Default)]
struct Standing {
    /// Held while the server is asked: who comes meanwhile has the same answer.
    state: Mutex<State>,
    heard: Mutex<Option<Heard>>,
}

/// What a server's recalls have told.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    /// The life that told it, the map by which it was asked, and since when both are known.
    life: u64,
    epoch: Epoch,
    since: Instant,
    /// The newest that was done; 0: none.
    number: u64,
}

/// What is known of one server's renewals. Pure: the time is handed in.
#[derive(Debug, Default)]
pub struct State {
    /// By which map the server was asked: by another one it has other slots.
    epoch: Epoch,
    /// What it has said of itself.
    said: Option<Said>,
    renewed: Option<Renewed>,
    /// A question came to nothing then.
    failed: Option<Instant>,
}

/// In which life, how often leases had been taken from this session, and when that was heard first.
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

    /// Leases that a server has renewed a moment ago, or renews now; by another map it is another server. `None` also where another
    /// asks it, for whoever does not `wait`.
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
        let told = ask(now);
        let heard = *standing.heard.lock();
        state.answered(told.ok(), heard, now, Instant::now())
    }

    /// What a server's life has recalled up to this number is done; `None`: that is no news.
    pub(crate) fn heard(&self, server: ServerId, (life, epoch): (u64, Epoch), number: Option<u64>) {
        let standing = self.of(server);
        let mut heard = standing.heard.lock();
        *heard = Some(Heard::after(*heard, (life, epoch), number, Instant::now()));
    }
}

impl Heard {
    /// What was heard before, and that a server's life has recalled up to this number, which is done.
    pub fn after(
        before: Option<Heard>,
        (life, epoch): (u64, Epoch),
        number: Option<u64>,
        now: Instant,
    ) -> Heard {
        let before = before.filter(|heard| heard.life == life);
        let done = before.map_or(0, |before| before.number);
        // By another map it has other slots, and what is leased of them it may never have given.
        let same = before.filter(|before| before.epoch == epoch);
        Heard { life, epoch, since: same.map_or(now, |same| same.since), number: number.unwrap_or(done) }
    }
}

impl State {
    /// What is known without a question to the server; `None`: it is to be asked.
    pub fn before_asking(&mut self, epoch: Epoch, now: Instant) -> Option<Option<Renewed>> {
        if self.epoch != epoch {
            *self = State { epoch, ..State::default() };
        }
        if let Some(renewed) = self.renewed.filter(|renewed| now < renewed.asked + SHARED) {
            return Some(Some(renewed));
        }
        self.failed.is_some_and(|failed| now < failed + PAUSE).then_some(None)
    }

    /// What came of a question that left at `asked`.
    pub fn answered(
        &mut self,
        told: Option<LeasesRenewed>,
        heard: Option<Heard>,
        asked: Instant,
        now: Instant,
    ) -> Option<Renewed> {
        self.renewed = told.and_then(|told| self.renew(told, heard, asked, now));
        self.failed = self.renewed.is_none().then_some(now);
        self.renewed
    }

    /// Takes in an answer to a question of that moment.
    fn renew(
        &mut self,
        told: LeasesRenewed,
        heard: Option<Heard>,
        asked: Instant,
        now: Instant,
    ) -> Option<Renewed> {
        let heard = heard.filter(|heard| heard.life == told.life);
        if !told.renewed || told.newest > heard.map_or(0, |heard| heard.number) {
            return None;
        }
        let LeasesRenewed { life, taken, .. } = told;
        let since = match (self.said, heard) {
            (Some(said), _) if (said.life, said.taken) == (life, taken) => said.since,
            // It has never taken any.
            (_, Some(heard)) if taken == 0 && heard.epoch == self.epoch => heard.since,
            // What it gave before it may have taken since.
            _ => now,
        };
        self.said = Some(Said { life, taken, since });
        Some(Renewed { since, asked })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(life: u64, taken: u64, newest: u64) -> LeasesRenewed {
        LeasesRenewed { renewed: true, life, taken, newest }
    }

    // SEMANTICS 138.2
    #[test]
    fn what_a_server_may_have_taken_is_not_renewed() {
        let (mut state, asked) = (State::default(), Instant::now());
        let since = asked - Duration::from_secs(1);
        let heard = Some(Heard { life: 5, epoch: Epoch(0), since, number: 0 });
        let by_another_map = Some(Heard { life: 5, epoch: Epoch(1), since, number: 0 });
        assert!(
            State::default().renew(told(5, 0, 0), by_another_map, asked, Instant::now()).unwrap().since
                >= asked
        );
        assert_eq!(
            state.renew(told(5, 0, 0), heard, asked, Instant::now()).unwrap(),
            Renewed { since, asked }
        );
        let taken = state.renew(told(5, 1, 0), heard, asked, Instant::now()).unwrap();
        assert!(taken.since >= asked);
        assert_eq!(state.renew(told(5, 1, 0), heard, asked, Instant::now()).unwrap().since, taken.since);
        let another_life = state.renew(told(6, 0, 0), heard, asked, Instant::now()).unwrap();
        assert!(another_life.since > taken.since, "nothing was heard of this life yet");
        assert_eq!(state.renew(LeasesRenewed::default(), heard, asked, Instant::now()), None);
    }

    // SEMANTICS 138.2
    #[test]
    fn a_renewal_is_nothing_to_who_has_not_done_all_recalls() {
        let (renewals, server, asked) = (Renewals::default(), ServerId(1), Instant::now());
        let renew = |newest| {
            let heard = *renewals.of(server).heard.lock();
            State::default().renew(told(5, 0, newest), heard, asked, Instant::now()).is_some()
        };
        assert!(renew(0) && !renew(3));
        renewals.heard(server, (5, Epoch(1)), Some(2));
        assert!(!renew(3));
        renewals.heard(server, (5, Epoch(1)), Some(3));
        renewals.heard(server, (5, Epoch(2)), None);
        assert!(renew(3));
        renewals.heard(server, (4, Epoch(2)), Some(7));
        assert!(!renew(3), "that was another life");
    }

    // SEMANTICS 138.2
    #[test]
    fn who_does_not_wait_has_no_answer_while_another_asks() {
        let (renewals, server) = (Renewals::default(), (ServerId(1), Epoch(1)));
        renewals.heard(server.0, (5, server.1), None);
        let again = |wait| renewals.renew(server, wait, |_| Ok(told(5, 0, 0)));
        let asked = renewals.renew(server, true, |_| {
            assert_eq!(again(false), None);
            Ok(told(5, 0, 0))
        });
        assert!(asked.is_some() && again(false) == asked);
    }
}
