//! The server's side: the tables of leases and sessions, and a gate that waits for what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ramlace_base::{InodeId, SessionId, Slot, limits};
use ramlace_mount::believed::Asked;
use ramlace_namespace::leases::{HOLD_MILLIS, Leases, Renewal};
use ramlace_server::pure::{SessionRecord, Sessions};
use ramlace_wire::Credentials;
use ramlace_wire::leases::{Leased, LeasesRenewed};

use super::holder::Holder;
use super::{Answer, Ask, Event, LeaseBug, Run, WAKE_MILLIS};

/// An answer at the gate.
struct Held {
    holder: usize,
    session: u64,
    answer: Answer,
    /// The newest recall that it waits for.
    newest: Option<u64>,
    arrived: u64,
    shows: Option<(InodeId, u64)>,
}

/// A request for news that waits.
struct Listening {
    holder: usize,
    connection: u64,
    until: u64,
}

pub(super) struct Server {
    leases: Leases,
    life: u64,
    /// What the last life had given is over then.
    quiet_until: u64,
    values: BTreeMap<InodeId, u64>,
    sessions: Sessions,
    /// Of these holders' sessions.
    known: BTreeMap<u64, usize>,
    ended: BTreeSet<u64>,
    held: Vec<Held>,
    listening: BTreeMap<u64, Listening>,
}

fn id(session: u64) -> SessionId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&session.to_le_bytes());
    SessionId(bytes)
}

impl Default for Server {
    fn default() -> Server {
        Server {
            leases: Leases::default(),
            life: 1,
            quiet_until: 0,
            values: BTreeMap::new(),
            sessions: Sessions::default(),
            known: BTreeMap::new(),
            ended: BTreeSet::new(),
            held: Vec::new(),
            listening: BTreeMap::new(),
        }
    }
}

impl Server {
    /// A session says something; whether it has not ended.
    fn hears(&mut self, holder: usize, session: u64, now: Instant) -> bool {
        if self.ended.contains(&session) {
            return false;
        }
        if self.known.insert(session, holder).is_none() {
            let who = Credentials::new(1000, 1000);
            self.sessions
                .insert(SessionRecord { session: id(session), who, host: None, label: String::new() }, now);
        }
        self.sessions.note_alive(id(session), now).is_ok()
    }
}

impl Run {
    /// A request has arrived.
    pub(super) fn arrives(
        &mut self,
        holder: usize,
        session: u64,
        ask: Ask,
        (asked, left): (Asked, u64),
    ) -> Result<(), String> {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        // What was sent on a connection that was cut is lost.
        if matches!(ask, Ask::Listen { connection, .. } if connection != self.holders[holder].connection) {
            return Ok(());
        }
        let is_no_life = matches!(ask, Ask::Listen { .. })
            && self.bug == LeaseBug::ListeningIsNoLife
            && self.server.known.contains_key(&session);
        if !is_no_life && !self.server.hears(holder, session, instant) {
            self.reply(holder, session, Answer::Ended);
            return Ok(());
        }
        self.holders[holder].note_seen(session, now);
        match ask {
            Ask::Read { inode } => {
                let value = self.server.values.get(&inode).copied().unwrap_or_default();
                let leased = self.server.leases.give(id(session), inode, Leased::Attributes, now);
                let answer = Answer::Shown { inode, value, leased, asked };
                self.hold(holder, session, answer, (inode, value));
            }
            Ask::Change { inode } => {
                let value = self.server.values.entry(inode).or_default();
                *value += 1;
                let value = *value;
                let mut knows = session;
                if self.bug == LeaseBug::TakesHolderForChanger {
                    let others = self.server.known.keys().find(|other| **other != session);
                    knows = others.copied().unwrap_or(session);
                }
                self.server.leases.changed(inode, Leased::Attributes, Some(id(knows)), now);
                self.hold(holder, session, Answer::Changed { inode }, (inode, value));
                self.tell_all();
            }
            Ask::Renew => {
                let life = self.server.life;
                let told = match self.server.leases.renew(id(session), now) {
                    Some(Renewal { taken, newest }) => LeasesRenewed { renewed: true, life, taken, newest },
                    None => LeasesRenewed { life, ..LeasesRenewed::default() },
                };
                self.reply(holder, session, Answer::Renewed { told, left });
            }
            Ask::Listen { connection, acknowledged, life } => {
                self.server.leases.acknowledge(id(session), acknowledged);
                self.release()?;
                let until = now + limits::LISTEN_MILLIS_MAX;
                let listening = Listening { holder, connection, until };
                if let Some(older) = self.server.listening.insert(session, listening) {
                    let (connection, recalls) = (older.connection, Vec::new());
                    self.reply(holder, session, Answer::News { connection, life: self.server.life, recalls });
                }
                // A new connection is answered at once, and so is one that knows another life.
                if life != self.server.life {
                    self.tell(session);
                }
                self.tell_all();
            }
        }
        self.release()
    }

    /// The gate takes an answer that shows a value.
    fn hold(&mut self, holder: usize, session: u64, answer: Answer, shows: (InodeId, u64)) {
        let leaves_at_once = matches!(
            (self.bug, &answer),
            (LeaseBug::AnswersAtOnce, Answer::Changed { .. }) | (LeaseBug::ShowsAtOnce, Answer::Shown { .. })
        );
        let newest = self.server.leases.newest_pending(Slot(0)).filter(|_| !leaves_at_once);
        self.tally.waited += u64::from(newest.is_some());
        let (arrived, shows) = (self.agenda.now, Some(shows));
        self.server.held.push(Held { holder, session, answer, newest, arrived, shows });
    }

    /// What waits for nobody leaves.
    fn release(&mut self) -> Result<(), String> {
        let now = self.agenda.now;
        let is_quiet = now < self.server.quiet_until && self.bug != LeaseBug::NewLifeDoesNotWait;
        let held = std::mem::take(&mut self.server.held);
        // Where one up to a number is pending, one up to a larger number is: the table is asked for what that leaves open.
        let (mut none_up_to, mut one_up_to) = (0, u64::MAX);
        for held in held {
            let newest = held.newest.unwrap_or(0);
            if newest > none_up_to && newest < one_up_to {
                match self.server.leases.pending_until(Slot(0), newest) {
                    Some(_) => one_up_to = newest,
                    None => none_up_to = newest,
                }
            }
            let waits = newest >= one_up_to;
            if is_quiet || waits {
                if now > held.arrived + HOLD_MILLIS + WAKE_MILLIS {
                    return Err(format!("an answer waits since {} ms", held.arrived));
                }
                self.server.held.push(held);
                continue;
            }
            if let Some((inode, value)) = held.shows {
                let shown = self.shown.entry(inode).or_default();
                *shown = value.max(*shown);
            }
            self.reply(held.holder, held.session, held.answer);
        }
        Ok(())
    }

    fn reply(&mut self, holder: usize, session: u64, answer: Answer) {
        let at = self.agenda.now + self.delay();
        self.agenda.at(at, Event::Answered { holder, session, answer });
    }

    /// Every holder that listens is told what there is.
    fn tell_all(&mut self) {
        let sessions: Vec<u64> = self.server.listening.keys().copied().collect();
        for session in sessions {
            if !self.server.leases.unacknowledged(id(session)).is_empty() {
                self.tell(session);
            }
        }
    }

    fn tell(&mut self, session: u64) {
        let Some(Listening { holder, connection, .. }) = self.server.listening.remove(&session) else {
            return;
        };
        let unacknowledged = self.server.leases.unacknowledged(id(session));
        let recalls: Vec<_> = unacknowledged.iter().map(|recall| (recall.number, recall.inode)).collect();
        self.tally.recalled += recalls.len() as u64;
        if self.bug == LeaseBug::TellsOnce
            && let Some((newest, _)) = recalls.last()
        {
            self.server.leases.acknowledge(id(session), *newest);
        }
        self.reply(holder, session, Answer::News { connection, life: self.server.life, recalls });
    }

    /// Time has gone by.
    pub(super) fn server_wakes(&mut self) -> Result<(), String> {
        let now = self.agenda.now;
        let margin = if self.bug == LeaseBug::WaitsTooShort { limits::LEASE_MARGIN_MILLIS * 2 } else { 0 };
        let pending = self.server.leases.newest_pending(Slot(0));
        self.server.leases.pass(now + margin);
        if pending.is_some() && self.server.leases.newest_pending(Slot(0)) != pending {
            self.tally.ran_out += 1;
        }
        let over = self.server.listening.iter().filter(|(_, listening)| listening.until <= now);
        for session in over.map(|(session, _)| *session).collect::<Vec<_>>() {
            self.tell(session);
        }
        let early = limits::SESSION_EXPIRY_MILLIS / 2;
        let ahead = if self.bug == LeaseBug::EndsSessionsEarly { early } else { 0 };
        let at = self.agenda.instant() + Duration::from_millis(ahead);
        let expired =
            if self.bug == LeaseBug::KeepsSessions { Vec::new() } else { self.server.sessions.expired(at) };
        for session in expired {
            let number = u64::from_le_bytes(session.0[..8].try_into().expect("eight bytes"));
            self.server.sessions.remove(session);
            self.server.known.remove(&number);
            self.server.listening.remove(&number);
            self.server.leases.end_session(session);
            self.server.ended.insert(number);
            self.tally.expired += 1;
            self.check_may_end(number)?;
        }
        self.check_none_is_too_old()?;
        self.release()?;
        self.agenda.at(now + WAKE_MILLIS, Event::ServerWakes);
        Ok(())
    }

    /// A session that has ended was silent for 10 s: nothing that it has sent was under way for so long.
    fn check_may_end(&self, session: u64) -> Result<(), String> {
        let holder = self.holders.iter().find(|holder| holder.session == session);
        match holder.map(|holder| holder.last_arrived) {
            Some(seen) if self.agenda.now < seen + limits::SESSION_EXPIRY_MILLIS => {
                Err(format!("a session has ended that was last seen at {seen} ms"))
            }
            _ => Ok(()),
        }
    }

    /// A session that has said nothing for longer has ended.
    fn check_none_is_too_old(&self) -> Result<(), String> {
        let old = |holder: &&Holder| {
            self.agenda.now > holder.last_arrived + limits::SESSION_EXPIRY_MILLIS + WAKE_MILLIS
                && self.server.known.contains_key(&holder.session)
        };
        match self.holders.iter().find(old) {
            Some(holder) => {
                Err(format!("a session that was last seen at {} ms goes on", holder.last_arrived))
            }
            None => Ok(()),
        }
    }

    /// The process ends, and another one begins: it knows its sessions, and none of their leases.
    pub(super) fn server_dies(&mut self) {
        let (now, instant) = (self.agenda.now, self.agenda.instant());
        self.tally.deaths += 1;
        self.server.life += 1;
        self.server.leases = Leases::default();
        self.server.quiet_until = now + HOLD_MILLIS;
        self.server.sessions.note_all_alive(instant);
        for holder in &mut self.holders {
            holder.note_seen(holder.session, now);
        }
        // What it had not answered is asked again: a change finds what it has done, and nobody is given a lease.
        for held in &mut self.server.held {
            (held.newest, held.arrived) = (None, now);
            if let Answer::Shown { leased, .. } = &mut held.answer {
                *leased = false;
            }
        }
        self.server.listening.clear();
        for holder in 0..self.holders.len() {
            self.connect(holder);
        }
    }
}
