//! The network: messages that are late, are lost or come twice, and which processes are there to receive them.

use ramlace_base::{InodeId, Result as Outcome, SessionId, Slot};
use ramlace_mount::believed::Asked;
use ramlace_namespace::{Delivery, DeliveryAnswer, DeliveryId, Op, Reply};
use ramlace_wire::Attributes;
use ramlace_wire::chunk::LaneTarget;
use ramlace_wire::leases::LeasesRenewed;
use ramlace_wire::peer::Token;

use super::calls::Numbered;
use super::mount::News;
use super::{Event, World};

/// The longest delay of a message.
const DELAY_MILLIS_MAX: u64 = 80;
/// The longest delay of a request that is late.
const LATE_MILLIS_MAX: u64 = 6_000;

/// A message in flight.
#[derive(Clone)]
pub enum Message {
    /// A client asks for a change of names.
    Ask { client: usize, slot: Slot, numbered: Numbered, op: Box<Op> },
    /// A client writes into a lane.
    Write { client: usize, target: LaneTarget, numbered: Numbered, offset: usize, byte: u8 },
    /// A client is answered.
    Answered { client: usize, token: Token, outcome: Box<Outcome<Reply>>, of_lane: bool },
    /// A delivery from a slot to another.
    Delivery { from: Slot, delivery: DeliveryId, message: Box<Delivery> },
    /// What became of it.
    Done { from: Slot, delivery: DeliveryId, answer: Box<DeliveryAnswer> },
    /// A client asks for attributes, with a lease.
    Read { client: usize, session: SessionId, inode: InodeId, asked: Asked },
    /// They come.
    Shown { client: usize, session: SessionId, attributes: Box<Attributes>, leased: bool, asked: Asked },
    /// A client asks a server to renew its leases.
    Renew { client: usize, session: SessionId, server: usize, left: u64 },
    /// A session has ended.
    Ended { client: usize, session: SessionId },
    /// It does, or not.
    Renewed { client: usize, session: SessionId, server: usize, told: LeasesRenewed, left: u64 },
    /// A client asks for news, and has done recalls up to a number. It goes by a connection to one life; by which it has received something from another.
    Listen { client: usize, server: usize, connection: u64, to_life: u64, acknowledged: u64, life: u64 },
    /// What there is.
    News { client: usize, server: usize, connection: u64, life: u64, recalls: Vec<(u64, InodeId)> },
}

/// What a process meets that asks a server something.
pub(super) enum Stands {
    Answers,
    /// Nobody listens.
    Refuses,
    /// It says nothing: it is stopped, or a process will be there again.
    Silent,
}

impl World {
    pub(super) fn stands(&self, server: usize) -> Stands {
        match &self.servers[server] {
            server if server.is_up() && self.now() >= server.stopped_until => Stands::Answers,
            server if !server.is_up() && server.refuses => Stands::Refuses,
            _ => Stands::Silent,
        }
    }

    /// Until when the process is stopped that does it, or receives it.
    pub(super) fn stopped_until(&self, event: &Event) -> u64 {
        let (client, server) = (event.client(), event.server(self));
        let client = client.map_or(0, |client| self.clients[client].mount.stopped_until);
        client.max(server.map_or(0, |server| self.servers[server].stopped_until))
    }

    /// A message leaves: it arrives, is lost, or comes twice. False: its connection is lost.
    pub(super) fn send(&mut self, message: Message) -> bool {
        let lost = !self.calm && self.dice.percent(12);
        self.tally.lost += u64::from(lost);
        if let (true, Message::Answered { client, token, .. }) = (lost, &message) {
            self.loses_answer(*client, *token);
        }
        // What is behind it is lost, or it is itself.
        let is_asked = matches!(message, Message::Ask { .. } | Message::Write { .. });
        if lost && !(is_asked && self.dice.percent(50)) {
            return false;
        }
        // What a client asks may be late for longer than it waits.
        if !self.calm && is_asked && self.dice.roll(30) == 0 {
            let delay = self.dice.roll(LATE_MILLIS_MAX);
            self.arrives_after(delay, message);
            return !lost;
        }
        if !self.calm && self.dice.percent(15) {
            self.tally.repeated += 1;
            let delay = 1 + self.dice.roll(6 * DELAY_MILLIS_MAX);
            self.arrives_after(delay, message.clone());
        }
        let delay = self.delay();
        self.arrives_after(delay, message);
        !lost
    }

    pub(super) fn delay(&mut self) -> u64 {
        1 + self.dice.roll(DELAY_MILLIS_MAX)
    }

    pub(super) fn arrives_after(&mut self, delay: u64, message: Message) {
        self.on_their_way += 1;
        self.agenda.after(delay, Event::Arrives(message));
    }

    pub(super) fn arrive(&mut self, message: Message) -> Result<(), String> {
        match message {
            Message::Ask { client, slot, numbered, op } => self.asked(client, slot, numbered, *op),
            Message::Write { .. } => self.written(&message),
            Message::Answered { client, token, outcome, .. }
                if self.clients[client].session() == token.session =>
            {
                self.answered(client, token.sequence, *outcome)
            }
            Message::Answered { .. } => Ok(()),
            Message::Delivery { from, delivery, message } => self.arrives_delivery(from, delivery, *message),
            Message::Done { from, delivery, answer } => {
                let home = self.home(from);
                let names = self.servers[home].value(from).and_then(|value| value.names());
                if names.is_some_and(|names| names.open_delivery(delivery).is_some()) {
                    let op = Op::DeliveryDone { delivery, result: Ok(*answer) };
                    self.commit(from, &self.server_command(op))?;
                }
                Ok(())
            }
            Message::Read { client, session, inode, asked } => self.reads((client, session), inode, asked),
            Message::Shown { client, session, attributes, leased, asked } => {
                if leased && self.clients[client].session() == session {
                    self.is_shown(client, &attributes, asked);
                }
                Ok(())
            }
            Message::Renew { client, session, server, left } => {
                if self.servers[server].is_up() && self.is_open(server, client, session)? {
                    self.renews((client, session), server, left);
                }
                Ok(())
            }
            Message::Ended { client, session } => {
                self.session_is_over(client, session);
                Ok(())
            }
            Message::Renewed { client, session, server, told, left } => {
                if self.clients[client].session() == session {
                    self.is_renewed(client, server, told, left);
                }
                Ok(())
            }
            Message::Listen { client, server, connection, to_life, acknowledged, life } => {
                if to_life != self.life(server) || !self.is_connected(client, server, connection) {
                    return Ok(());
                }
                let session = self.clients[client].session();
                match self.is_open_for_news(server, client, session)? {
                    true => self.listens(client, server, (connection, acknowledged, life)),
                    false => Ok(()),
                }
            }
            Message::News { client, server, connection, life, recalls } => {
                if self.is_connected(client, server, connection) {
                    self.hears(client, News { server, connection, life, recalls });
                }
                Ok(())
            }
        }
    }
}

impl Message {
    /// The server to which it goes.
    pub(super) fn server(&self, world: &World) -> Option<usize> {
        match self {
            Message::Ask { slot, .. } => Some(world.home(*slot)),
            Message::Write { target, .. } => Some(world.home(target.slot)),
            Message::Delivery { message, .. } => Some(world.home(message.slot())),
            Message::Done { from, .. } => Some(world.home(*from)),
            Message::Read { inode, .. } => Some(world.home(inode.slot())),
            Message::Renew { server, .. } | Message::Listen { server, .. } => Some(*server),
            _ => None,
        }
    }
}
