//! The holders' side: what a mount keeps and what its kernel believes, by the tables of the mount and of the client.

use std::collections::BTreeMap;

use ramlace_base::{Generation, InodeId, Timestamp};
use ramlace_client::pure::{RecallsDone, Renewal};
use ramlace_mount::believed::{Asked, State, kept_attributes};
use ramlace_sync::Mutex;
use ramlace_wire::leases::Leased;
use ramlace_wire::{Attributes, FileKind};

use super::{Answer, Ask, EPOCH, Event, INODES, LeaseBug, Run, inode};

/// A life that no server has.
const NO_LIFE: u64 = 0;

/// What the kernel believes of an inode.
struct Belief {
    value: u64,
    until: u64,
}

pub(super) struct Holder {
    number: u64,
    pub(super) session: u64,
    sessions: u64,
    /// The one on which it listens; older ones were cut.
    pub(super) connection: u64,
    /// When the server was last reached by a request of its session.
    pub(super) last_arrived: u64,
    /// It does nothing before: its process is stopped.
    stopped_until: u64,
    /// The mount's table.
    state: Mutex<State>,
    renewal: Renewal,
    recalls_done: Option<RecallsDone>,
    /// A renewal is asked for, and not answered.
    is_renewing: bool,
    kernel: BTreeMap<InodeId, Belief>,
    /// Changes of its own that are not answered: until then it may believe what was before.
    changing: BTreeMap<InodeId, u64>,
    /// The newest recall that it has done, of those that this connection has told.
    done: u64,
}

impl Holder {
    pub(super) fn new(number: u64) -> Holder {
        Holder {
            number,
            session: number,
            sessions: 0,
            connection: 0,
            last_arrived: 0,
            stopped_until: 0,
            state: Mutex::default(),
            renewal: Renewal::default(),
            recalls_done: None,
            is_renewing: false,
            kernel: BTreeMap::new(),
            changing: BTreeMap::new(),
            done: 0,
        }
    }

    /// A request of a session of it has reached the server.
    pub(super) fn note_seen(&mut self, session: u64, now: u64) {
        if self.session == session {
            self.last_arrived = now;
        }
    }

    /// The mount is told that a lease is over, and tells its kernel.
    pub(super) fn drops(&mut self, inode: InodeId) {
        if self.state.lock().recall((inode, Leased::Attributes)).is_some() {
            self.kernel.remove(&inode);
        }
    }

    fn begin_session(&mut self, now: u64) {
        self.sessions += 1;
        self.session = self.number + 100 * self.sessions;
        self.last_arrived = now;
        for ((inode, _), _) in self.state.lock().end() {
            self.kernel.remove(&inode);
        }
        self.changing.clear();
        (self.renewal, self.recalls_done, self.is_renewing) = (Renewal::default(), None, false);
    }
}

/// A file of which only this is told.
fn attributes(inode: InodeId, value: u64) -> Attributes {
    let at = Timestamp { nanos: 1 };
    Attributes {
        inode,
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        size: value,
        device: 0,
        generation: Generation::FIRST,
        accessed: at,
        modified: at,
        changed: at,
        created: at,
        xattrs: false,
        allocated: Some(0),
    }
}

impl Run {
    fn send(&mut self, holder: usize, ask: Ask) {
        let (delay, session) = (self.delay(), self.holders[holder].session);
        let asked = self.holders[holder].state.lock().question(self.agenda.instant(), 0);
        self.agenda.after(delay, Event::Arrives { holder, session, ask, asked, left: self.agenda.now });
    }

    /// A new connection on which it listens.
    pub(super) fn connect(&mut self, holder: usize) {
        let of_holder = &mut self.holders[holder];
        of_holder.connection += 1;
        of_holder.done = 0;
        let connection = of_holder.connection;
        self.send(holder, Ask::Listen { connection, acknowledged: 0, life: NO_LIFE });
    }

    /// It does something, or nothing for a while.
    pub(super) fn acts(&mut self, holder: usize) -> Result<(), String> {
        let stopped_until = self.holders[holder].stopped_until;
        if self.agenda.now < stopped_until {
            self.agenda.at(stopped_until, Event::Acts { holder });
            return Ok(());
        }
        let of_which = inode(self.dice.roll(INODES));
        let mut pause = self.dice.roll(90);
        match self.dice.roll(400) {
            0 => self.holders[holder].stopped_until = self.agenda.now + self.dice.roll(14_000),
            // It has nothing to say, but listens.
            1 => pause = self.dice.roll(14_000),
            2..=5 => {
                self.tally.cut += 1;
                self.connect(holder);
            }
            6..=40 => {
                *self.holders[holder].changing.entry(of_which).or_default() += 1;
                self.send(holder, Ask::Change { inode: of_which });
            }
            _ => self.reads(holder, of_which)?,
        }
        self.agenda.after(pause, Event::Acts { holder });
        Ok(())
    }

    /// A program asks: the kernel says what it believes, the mount what it keeps, or the server is asked.
    fn reads(&mut self, holder: usize, of_which: InodeId) -> Result<(), String> {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let of_holder = &mut self.holders[holder];
        if let Some(belief) = of_holder.kernel.get(&of_which).filter(|belief| now < belief.until) {
            let (value, until) = (belief.value, belief.until);
            self.tally.believed += 1;
            return self.check(holder, of_which, value, &format!("its kernel, until {until} ms"));
        }
        let Holder { state, renewal, is_renewing, .. } = of_holder;
        let asked = state.lock().question(instant, 0);
        let (mut asks, mut by_renewal) = (false, false);
        let renew = |_wait| {
            let known = renewal.before_asking(EPOCH, instant);
            asks = known.is_none() && !*is_renewing;
            by_renewal = known.flatten().is_some();
            known.flatten()
        };
        let kept = kept_attributes(state, asked, of_which, renew, || instant);
        *is_renewing |= asks;
        if let Some((attributes, asked)) = kept {
            self.tally.renewed += u64::from(by_renewal);
            let (inode, value) = (attributes.inode, attributes.size);
            self.tells_kernel(holder, asked, inode, value);
            self.check(holder, inode, value, "what its mount keeps")?;
        } else {
            self.send(holder, Ask::Read { inode: of_which });
        }
        if asks {
            self.send(holder, Ask::Renew);
        }
        Ok(())
    }

    /// What is answered without a request must be what answers have shown that have left.
    fn check(&self, holder: usize, inode: InodeId, value: u64, by: &str) -> Result<(), String> {
        let shown = self.shown.get(&inode).copied().unwrap_or_default();
        if value < shown && !self.holders[holder].changing.contains_key(&inode) {
            return Err(format!("holder {holder} believes {value}, and {shown} was shown: by {by}"));
        }
        Ok(())
    }

    fn tells_kernel(&mut self, holder: usize, asked: Asked, inode: InodeId, value: u64) {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        let times = if self.bug == LeaseBug::BelievesTwiceAsLong { 2 } else { 1 };
        let of_holder = &mut self.holders[holder];
        let subject = (inode, Leased::Attributes);
        let lasts = of_holder.state.lock().give(asked, subject, (false, true), instant);
        if let Some(lasts) = lasts {
            let until = now + times * lasts.as_millis() as u64;
            of_holder.kernel.insert(inode, Belief { value, until });
        }
    }

    /// An answer has arrived.
    pub(super) fn answered(&mut self, holder: usize, session: u64, answer: Answer) {
        let stopped_until = self.holders[holder].stopped_until;
        if self.agenda.now < stopped_until {
            return self.agenda.at(stopped_until, Event::Answered { holder, session, answer });
        }
        let (bug, now, instant) = (self.bug, self.agenda.now, self.agenda.instant());
        let of_holder = &mut self.holders[holder];
        if of_holder.session != session {
            return;
        }
        match answer {
            Answer::Shown { inode, value, leased, asked } if leased => {
                let late = bug == LeaseBug::CountsFromTheAnswer;
                let asked = if late { of_holder.state.lock().question(instant, 0) } else { asked };
                of_holder.state.lock().keep_attributes(asked, &attributes(inode, value));
                self.tells_kernel(holder, asked, inode, value);
            }
            Answer::Shown { .. } => {}
            Answer::Changed { inode } => {
                of_holder.drops(inode);
                if let Some(count) = of_holder.changing.get_mut(&inode) {
                    *count -= 1;
                    if *count == 0 {
                        of_holder.changing.remove(&inode);
                    }
                }
            }
            Answer::Renewed { told, left } => {
                of_holder.is_renewing = false;
                let (began, left) = (self.agenda.instant_of(0), self.agenda.instant_of(left));
                let all_done = RecallsDone::after(None, (told.life, EPOCH), Some(u64::MAX), began);
                let recalls_done = match bug {
                    LeaseBug::RenewsWhatIsRecalled => of_holder.recalls_done.map(|recalls_done| {
                        RecallsDone::after(Some(recalls_done), (told.life, EPOCH), Some(u64::MAX), instant)
                    }),
                    LeaseBug::RenewsOverLives => Some(all_done),
                    _ => of_holder.recalls_done,
                };
                of_holder.renewal.answered(Some(told), recalls_done, left, instant);
            }
            Answer::News { connection, life, recalls } if connection == of_holder.connection => {
                self.hears(holder, connection, life, recalls);
            }
            // Of a connection that was cut.
            Answer::News { .. } => {}
            Answer::Ended => {
                of_holder.begin_session(now);
                self.connect(holder);
            }
        }
    }

    /// What it is told takes a moment to be done.
    fn hears(&mut self, holder: usize, connection: u64, life: u64, recalls: Vec<(u64, InodeId)>) {
        let session = self.holders[holder].session;
        if self.bug == LeaseBug::AcknowledgesFirst {
            for (_, inode) in &recalls {
                let at = self.agenda.now + self.dice.roll(200);
                self.agenda.at(at, Event::DropsLate { holder, inode: *inode });
            }
            return self.acknowledge(holder, life, &recalls);
        }
        let takes = if self.dice.percent(5) { self.dice.roll(1_000) } else { self.dice.roll(10) };
        self.agenda.after(takes, Event::Handled { holder, session, connection, life, recalls });
    }

    pub(super) fn handled(
        &mut self,
        holder: usize,
        session: u64,
        connection: u64,
        life: u64,
        recalls: Vec<(u64, InodeId)>,
    ) {
        let now = self.agenda.now;
        let of_holder = &mut self.holders[holder];
        if now < of_holder.stopped_until {
            let at = of_holder.stopped_until;
            return self.agenda.at(at, Event::Handled { holder, session, connection, life, recalls });
        }
        if of_holder.session != session || of_holder.connection != connection {
            return;
        }
        for (_, inode) in &recalls {
            of_holder.drops(*inode);
        }
        self.acknowledge(holder, life, &recalls);
    }

    /// The next request says that it is done.
    fn acknowledge(&mut self, holder: usize, life: u64, recalls: &[(u64, InodeId)]) {
        let now = self.agenda.instant();
        let of_holder = &mut self.holders[holder];
        let newest = recalls.iter().map(|(number, _)| *number).max();
        of_holder.recalls_done = Some(RecallsDone::after(of_holder.recalls_done, (life, EPOCH), newest, now));
        of_holder.done = newest.unwrap_or(of_holder.done);
        let (acknowledged, connection) = (of_holder.done, of_holder.connection);
        self.send(holder, Ask::Listen { connection, acknowledged, life });
    }
}
