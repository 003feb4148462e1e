//! The gate of each server: answers wait there for sessions that believe what they contradict, by the product's table of leases.

use ramlace_base::{InodeId, SessionId, Slot, limits};
use ramlace_mount::believed::Asked;
use ramlace_namespace::Effect;
use ramlace_namespace::leases::Renewal;
use ramlace_wire::Attributes;
use ramlace_wire::leases::{Leased, LeasesRenewed};
use ramlace_wire::namespace::GetAttributes;

use super::network::Message;
use super::{Bug, Event, World};

/// SEMANTICS 77.1.
const WAITS_MILLIS: u64 = 750;

/// What an answer shows: inodes, and which of their states.
pub(super) type Shows = Vec<(InodeId, usize)>;

/// An answer at the gate.
pub(super) struct Held {
    message: Message,
    slot: Slot,
    /// The newest recall of its slot that it waits for.
    newest: Option<u64>,
    /// It waits also for what the server's last life has given.
    awaits_quiet: bool,
    arrived: u64,
    shows: Shows,
}

/// A request for news that waits.
pub(super) struct Listening {
    pub(super) session: SessionId,
    pub(super) connection: u64,
    pub(super) until: u64,
}

impl World {
    /// The slot's inodes that somebody has read may be others now: each state has a number.
    pub(super) fn note_states(&mut self, slot: Slot) {
        let first = InodeId::new(slot, 0);
        let of_slot = self.states.range(first..).take_while(|(inode, _)| inode.slot() == slot);
        let news: Vec<(InodeId, Option<Attributes>)> = of_slot
            .filter_map(|(inode, states)| {
                let now = self.attributes(*inode);
                (states.last() != Some(&now)).then_some((*inode, now))
            })
            .collect();
        for (inode, now) in news {
            self.states.entry(inode).or_default().push(now);
        }
    }

    fn attributes(&self, inode: InodeId) -> Option<Attributes> {
        self.query(inode.slot(), &GetAttributes { inode }).ok().map(|info| info.attributes)
    }

    /// What an answer shows that is about these inodes.
    pub(super) fn as_they_are<'a>(&self, inodes: impl Iterator<Item = &'a InodeId>) -> Shows {
        inodes.filter_map(|inode| Some((*inode, self.states.get(inode)?.len()))).collect()
    }

    /// A change is told to the table of leases; these sessions do not know of their own.
    pub(super) fn recall(&mut self, home: usize, effect: &Effect, unaware: &[SessionId]) {
        let Effect::Changed { inode, knows, .. } = *effect else { return };

        self.changed.push(inode);
        let mut knows = knows.filter(|session| !unaware.contains(session));
        if self.bug == Bug::TakesHolderForChanger {
            let others = self.clients.iter().map(|client| client.session());
            knows = others.into_iter().find(|other| Some(*other) != knows);
        }
        let now = self.now();
        if self.servers[home].leases.changed(inode, Leased::Attributes, knows, now) {
            self.tell_all(home);
        }
    }

    /// An answer comes to the gate.
    pub(super) fn answer(&mut self, slot: Slot, message: Message, shows: Shows) -> Result<(), String> {
        let (home, arrived) = (self.home(slot), self.now());
        let is_bytes = matches!(message, Message::Answered { of_lane: true, .. });
        let leaves_at_once = matches!(
            (self.bug, &message),
            (Bug::AnswersAtOnce, Message::Answered { .. })
                | (Bug::ShowsAtOnce, Message::Shown { .. })
                | (Bug::PeersAnswerAtOnce, Message::Done { .. })
        );
        let newest = self.servers[home].leases.newest_pending(slot).filter(|_| !leaves_at_once);
        self.tally.waited += u64::from(newest.is_some());
        let awaits_quiet = !is_bytes && !leaves_at_once && self.bug != Bug::NewLifeDoesNotWait;
        self.servers[home].gate.push(Held { message, slot, newest, awaits_quiet, arrived, shows });
        self.release(home)
    }

    /// What waits for nobody leaves.
    pub(super) fn release(&mut self, home: usize) -> Result<(), String> {
        let now = self.now();
        let server = &mut self.servers[home];
        let held = std::mem::take(&mut server.gate);
        let mut leave = Vec::new();
        let mut wake = u64::MAX;
        for held in held {
            let quiet = Some(server.quiet_until).filter(|until| held.awaits_quiet && now < *until);
            let recalled = held.newest.and_then(|newest| server.leases.pending_until(held.slot, newest));
            let Some(until) = quiet.into_iter().chain(recalled).min() else {
                leave.push(held);
                continue;
            };
            if now > held.arrived.max(server.stopped_until) + WAITS_MILLIS + 1 {
                return Err(format!("an answer waits since {} ms", held.arrived));
            }
            wake = wake.min(until.saturating_sub(margin(self.bug)));
            server.gate.push(held);
        }
        self.wake_by(home, wake);
        for Held { message, shows, .. } in leave {
            for (inode, state) in shows {
                let shown = self.shown.entry(inode).or_default();
                *shown = state.max(*shown);
            }
            self.send(message);
        }
        Ok(())
    }

    fn wake_by(&mut self, home: usize, until: u64) {
        let (now, server) = (self.now(), &mut self.servers[home]);
        if until < server.wakes_at.unwrap_or(u64::MAX) {
            let at = until.max(now + 1);
            server.wakes_at = Some(at);
            self.agenda.at(at, Event::Wakes(home));
        }
    }

    /// The time of holders may be over, and that of requests for news.
    pub(super) fn wakes(&mut self, home: usize) -> Result<(), String> {
        let now = self.now();
        let server = &mut self.servers[home];
        // It may have been woken before, and look again later.
        if !server.is_up() || server.wakes_at != Some(now) {
            return Ok(());
        }
        server.wakes_at = None;
        self.servers[home].leases.pass(now + margin(self.bug));
        let listening = &self.servers[home].listening;
        let over = listening.iter().filter(|(_, listening)| listening.until <= now);
        for client in over.map(|(client, _)| *client).collect::<Vec<_>>() {
            self.tell(home, client);
        }
        self.wake_for_listeners(home);
        self.release(home)
    }

    fn wake_for_listeners(&mut self, home: usize) {
        let first = self.servers[home].listening.values().map(|listening| listening.until).min();
        self.wake_by(home, first.unwrap_or(u64::MAX));
    }

    /// Somebody asks for attributes.
    pub(super) fn reads(
        &mut self,
        (client, session): (usize, SessionId),
        inode: InodeId,
        asked: Asked,
    ) -> Result<(), String> {
        let (home, now) = (self.home(inode.slot()), self.now());
        if !self.servers[home].is_up() || !self.is_open(home, client, session)? {
            return Ok(());
        }
        let Some(attributes) = self.attributes(inode) else { return Ok(()) };
        let states = self.states.entry(inode).or_default();
        if states.last().and_then(Option::as_ref) != Some(&attributes) {
            states.push(Some(attributes.clone()));
        }
        let shows = vec![(inode, states.len())];
        let leased = self.servers[home].leases.give(session, inode, Leased::Attributes, now);
        self.servers[home].had_given |= leased;

        let attributes = Box::new(attributes);
        self.answer(inode.slot(), Message::Shown { client, session, attributes, leased, asked }, shows)
    }

    pub(super) fn renews(&mut self, (client, session): (usize, SessionId), home: usize, left: u64) {
        let (now, life) = (self.now(), self.life(home));
        let told = match self.servers[home].leases.renew(session, now) {
            Some(Renewal { taken, newest }) => LeasesRenewed { renewed: true, life, taken, newest },
            None => LeasesRenewed { life, ..LeasesRenewed::default() },
        };
        self.send(Message::Renewed { client, session, server: home, told, left });
    }

    /// A session asks for news, and has done all recalls up to that number.
    pub(super) fn listens(
        &mut self,
        client: usize,
        home: usize,
        (connection, acknowledged, knows_life): (u64, u64, u64),
    ) -> Result<(), String> {
        let session = self.clients[client].session();
        self.servers[home].leases.acknowledge(session, acknowledged);
        let until = self.now() + limits::LISTEN_MILLIS_MAX;
        self.servers[home].listening.insert(client, Listening { session, connection, until });
        if knows_life != self.life(home) || !self.unacknowledged(home, session).is_empty() {
            self.tell(home, client);
        }
        self.wake_for_listeners(home);
        self.release(home)
    }

    fn unacknowledged(&self, home: usize, session: SessionId) -> Vec<(u64, InodeId)> {
        let recalls = self.servers[home].leases.unacknowledged(session);
        recalls.iter().map(|recall| (recall.number, recall.inode)).collect()
    }

    /// Each client that listens is sent what there is.
    fn tell_all(&mut self, home: usize) {
        let listening = self.servers[home].listening.iter();
        let sessions: Vec<_> = listening.map(|(client, listening)| (*client, listening.session)).collect();
        for (client, session) in sessions {
            if !self.unacknowledged(home, session).is_empty() {
                self.tell(home, client);
            }
        }
    }

    fn tell(&mut self, home: usize, client: usize) {
        let listening = self.servers[home].listening.remove(&client);
        let Some(Listening { session, connection, .. }) = listening else { return };
        let recalls = self.unacknowledged(home, session);
        self.tally.recalled += recalls.len() as u64;
        if self.bug == Bug::NotifiesOnce
            && let Some((newest, _)) = recalls.last()
        {
            self.servers[home].leases.acknowledge(session, *newest);
        }
        let life = self.life(home);
        self.send_by(client, home, Message::News { client, server: home, connection, life, recalls });
    }

    /// The number of a server's life; none is 0.
    pub(super) fn life(&self, server: usize) -> u64 {
        self.servers[server].life + 1
    }
}

/// By how much a server counts the time of holders too short: a bug.
fn margin(bug: Bug) -> u64 {
    if bug == Bug::WaitsTooShort { 2 * limits::LEASE_MARGIN_MILLIS } else { 0 }
}
