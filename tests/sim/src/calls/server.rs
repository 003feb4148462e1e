//! The servers, the slot that they hand each other, and how requests reach them.

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Name, Redirect, Sequence, Slot, Timestamp};
use ramlace_namespace::{Command, Effect, Op, Origin, Room};
use ramlace_slot::{SlotBirth, SlotChange, SlotValue};
use ramlace_wire::namespace::Lookup;

use super::client::session;
use super::{Event, Run};
use crate::calling::Failure;
use crate::pool::WHO;

/// What a server does with what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Serves,
    /// Its process begins again; meanwhile its supervisor has the sockets.
    Restarts,
    /// Nobody listens.
    Refuses,
    /// It is stopped: what comes waits.
    Nothing,
}

pub(super) struct Server {
    pub(super) does: Does,
    /// Since when.
    pub(super) since: u64,
    /// How many processes there were.
    pub(super) life: u64,
    waiting: Vec<Request>,
}

/// A request in flight.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) client: usize,
    pub(super) attempt: u64,
    pub(super) server: usize,
    /// The process whose connection it goes by.
    pub(super) life: u64,
    pub(super) sequence: Sequence,
    pub(super) outstanding: u32,
    pub(super) op: Op,
}

impl Default for Server {
    fn default() -> Server {
        Server { does: Does::Serves, since: 0, life: 1, waiting: Vec::new() }
    }
}

/// The slot with the root.
pub(super) fn new_slot() -> SlotValue {
    let mut slot = SlotValue::new(Slot(0));
    let now = Timestamp { nanos: 1 };
    let birth = SlotBirth { slots: 1, began: Epoch(1), hash_seed: 42, owner: WHO.owner(), now };
    slot.apply(&SlotChange::Born(birth));
    slot
}

impl Run {
    pub(super) fn becomes(&mut self, server: usize, does: Does) {
        (self.servers[server].does, self.servers[server].since) = (does, self.agenda.now);
    }

    /// Its process ends, and all connections to it.
    pub(super) fn dies(&mut self, server: usize, does: Does) {
        self.becomes(server, does);
        let life = self.servers[server].life;
        self.servers[server].life += 1;
        self.servers[server].waiting.clear();
        for client in 0..self.clients.len() {
            if let Some(attempt) = self.clients[client].is_asking(server, life) {
                let failure = Failure::lost(ErrorKind::HostDown);
                self.agenda.after(1, Event::Fails { client, attempt, failure });
            }
        }
    }

    pub(super) fn recovers(&mut self, server: usize) {
        self.becomes(server, Does::Serves);
        for request in std::mem::take(&mut self.servers[server].waiting) {
            self.arrives(request);
        }
    }

    pub(super) fn arrives(&mut self, request: Request) {
        let server = &mut self.servers[request.server];
        if server.life != request.life {
            return;
        }
        match server.does {
            Does::Nothing => return server.waiting.push(request),
            Does::Restarts | Does::Refuses => return,
            Does::Serves => {}
        }
        let Request { client, attempt, sequence, .. } = request;
        if self.map.server != request.server {
            let told = Err(Error::new(ErrorKind::Redirect(Redirect::Moved), "it is elsewhere"));
            let map = self.dice.percent(50).then_some(self.map);
            let delay = self.delay();
            return self.agenda.after(delay, Event::Answered { client, attempt, told, map });
        }
        if !self.is_calm() && self.dice.percent(2) {
            let told = Err(Error::new(ErrorKind::Retry, "not now"));
            let delay = self.delay();
            return self.agenda.after(delay, Event::Answered { client, attempt, told, map: None });
        }
        let acknowledged_below = Sequence(sequence.0 - u64::from(request.outstanding));
        let origin = Origin::Client {
            session: session(client),
            sequence,
            acknowledged_below,
            who: WHO,
            on_behalf: false,
        };
        let now = Timestamp { nanos: self.agenda.now as i64 + 2 };
        let command = Box::new(Command { now, origin, op: request.op });
        let effects = self.slot.apply(&SlotChange::Command { command, room: Room::ForInodes });
        for effect in effects.names {
            if let Effect::Reply { token, outcome } = effect
                && token.sequence == sequence
            {
                let delay = self.delay();
                self.agenda.after(delay, Event::Answered { client, attempt, told: outcome, map: None });
            }
        }
    }

    /// Where a name leads.
    pub(super) fn lookup(&self, name: &Name) -> Option<InodeId> {
        let names = self.slot.names()?;
        let found = names.query(&WHO, &Lookup { parent: InodeId::ROOT, name: name.clone() }).ok()?;
        Some(found.inode)
    }

    /// How long a message takes: mostly a moment; where it is rough, at times as long as it likes.
    pub(super) fn delay(&mut self) -> u64 {
        match self.dice.roll(60) {
            0 if !self.gentle && !self.is_calm() => self.dice.roll(8_000),
            1..=6 => self.dice.roll(60),
            _ => 1 + self.dice.roll(4),
        }
    }
}
