//! The mount of each client: what it keeps and what its kernel believes, by the tables of the mount and of the client.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, InodeId, Slot};
use ramlace_client::Doubt;
use ramlace_client::pure::{RecallsDone, Renewal};
use ramlace_mount::believed::{Asked, State, kept_attributes};
use ramlace_sync::Mutex;
use ramlace_wire::Attributes;
use ramlace_wire::leases::{Leased, LeasesRenewed};

use super::network::Message;
use super::{Bug, Event, World};

/// A life that no server has.
const NO_LIFE: u64 = 0;
/// There is one map.
const EPOCH: Epoch = Epoch(1);
/// A renewal is waited for no longer.
const RENEWAL_MILLIS_MAX: u64 = 100;
/// The longest pause between two looks of a client's programs.
const PAUSE_MILLIS_MAX: u64 = 120;
/// How long a mount is stopped at most, and for longer than its session lasts.
const STOPPED_MILLIS_MAX: u64 = 2_500;
const STOPPED_LONG_MILLIS: u64 = 13_000;

/// What the kernel believes of an inode.
struct Belief {
    attributes: Attributes,
    until: u64,
}

/// What a mount knows of one server.
#[derive(Default)]
struct Known {
    /// The connection on which it listens; older ones were cut.
    connection: u64,
    /// The process that it leads to.
    to_life: u64,
    renewal: Renewal,
    recalls_done: Option<RecallsDone>,
    /// When it has asked for a renewal that is not answered.
    renewing: Option<u64>,
    /// The newest recall that it has done, of those that this connection has told.
    done: u64,
}

#[derive(Default)]
pub(super) struct Mount {
    /// Its process is stopped until then; its kernel is not.
    pub(super) stopped_until: u64,
    state: Mutex<State>,
    servers: BTreeMap<usize, Known>,
    kernel: BTreeMap<InodeId, Belief>,
    /// What the operation that is under way changes: until it is answered, it may believe what was before.
    pub(super) changing: Vec<InodeId>,
}

impl Mount {
    /// A lease is over, or the client has changed this itself: the kernel is told.
    fn drops(&mut self, inode: InodeId) {
        if self.state.lock().recall((inode, Leased::Attributes)).is_some() {
            self.kernel.remove(&inode);
        }
    }

    /// The operation that was under way is answered.
    pub(super) fn has_changed(&mut self, itself: &[InodeId]) {
        self.changing.clear();
        itself.iter().for_each(|inode| self.drops(*inode));
    }

    /// Its session is over, and its leases with it.
    pub(super) fn ends(&mut self) {
        for ((inode, _), _) in self.state.lock().end() {
            self.kernel.remove(&inode);
        }
        for known in self.servers.values_mut() {
            (known.renewal, known.recalls_done, known.renewing) = Default::default();
        }
    }

    /// A change in a slot may still be done, or that is over.
    pub(super) fn doubts(&mut self, slot: Slot, doubt: Doubt) {
        for ((inode, _), _) in self.state.lock().doubt(slot, doubt) {
            self.kernel.remove(&inode);
        }
    }

    fn known(&mut self, server: usize) -> &mut Known {
        self.servers.entry(server).or_default()
    }
}

impl World {
    /// A client asks a server for news on a new connection, or later where no process is there.
    pub(super) fn connects(&mut self, client: usize, server: usize) {
        if !self.servers[server].is_up() {
            return self.agenda.after(20, Event::Connects { client, server });
        }
        let life = self.life(server);
        let known = self.clients[client].mount.known(server);
        (known.connection, known.to_life, known.done) = (known.connection + 1, life, 0);
        self.listen(client, server, NO_LIFE);
    }

    fn listen(&mut self, client: usize, server: usize, life: u64) {
        let known = self.clients[client].mount.known(server);
        let (connection, acknowledged, to_life) = (known.connection, known.done, known.to_life);
        self.send_by(
            client,
            server,
            Message::Listen { client, server, connection, to_life, acknowledged, life },
        );
    }

    /// Whether what goes by this connection arrives: it is neither cut, nor is its process gone.
    pub(super) fn is_connected(&self, client: usize, server: usize, connection: u64) -> bool {
        let known = self.clients[client].mount.servers.get(&server);
        known.is_some_and(|known| known.connection == connection && known.to_life == self.life(server))
            && self.servers[server].is_up()
    }

    /// A message goes by the connection on which a client listens; where it is lost, that is cut.
    pub(super) fn send_by(&mut self, client: usize, server: usize, message: Message) {
        let delay = self.delay();
        if !self.calm && self.dice.percent(4) {
            self.tally.cut += 1;
            return self.agenda.after(delay, Event::Connects { client, server });
        }
        self.arrives_after(delay, message);
    }

    /// A program looks at attributes: the kernel says what it believes, the mount what it keeps, or the server is asked.
    pub(super) fn looks(&mut self, client: usize) -> Result<(), String> {
        if self.calm {
            return Ok(());
        }
        let pause = self.dice.roll(PAUSE_MILLIS_MAX);
        self.agenda.after(pause, Event::Looks { client });
        match self.dice.roll(2_000) {
            0 => self.clients[client].mount.stopped_until = self.now() + STOPPED_LONG_MILLIS,
            1..=5 => {
                self.clients[client].mount.stopped_until = self.now() + self.dice.roll(STOPPED_MILLIS_MAX);
            }
            _ => {}
        }
        let inode = match self.doubted_inode(client) {
            Some(inode) => inode,
            None => self.somebodys_inode(),
        };
        let (now, instant, server) = (self.now(), self.agenda.instant(), self.home(inode.slot()));
        let session = self.clients[client].session();
        let mount = &mut self.clients[client].mount;
        if let Some(belief) = mount.kernel.get(&inode).filter(|belief| now < belief.until) {
            let attributes = belief.attributes.clone();
            self.tally.believed += 1;
            return self.check_belief(client, &attributes, "its kernel");
        }
        if now < mount.stopped_until {
            return Ok(());
        }
        let known = mount.servers.entry(server).or_default();
        if let Some(left) = known.renewing.filter(|left| now > left + RENEWAL_MILLIS_MAX) {
            known.renewing = None;
            let left = self.agenda.instant_of(left);
            known.renewal.answered(None, known.recalls_done, left, instant);
        }
        let asked = mount.state.lock().request(instant, 0);
        let (mut asks, mut by_renewal) = (false, false);
        let renew = |_wait| {
            let known_of = known.renewal.before_asking(EPOCH, instant);
            asks = known_of.is_none() && known.renewing.is_none();
            by_renewal = known_of.flatten().is_some();
            known_of.flatten()
        };
        let kept = kept_attributes(&mount.state, asked, inode, renew, || instant);
        if asks {
            known.renewing = Some(now);
            self.send(Message::Renew { client, session, server, left: now });
        }
        if let Some((attributes, asked)) = kept {
            self.tally.renewed += u64::from(by_renewal);
            self.tells_kernel(client, asked, &attributes);
            return self.check_belief(client, &attributes, "what its mount keeps");
        }
        self.send(Message::Read { client, session, inode, asked });
        Ok(())
    }

    /// What a change is about that was cancelled, mostly one of its own.
    fn doubted_inode(&mut self, client: usize) -> Option<InodeId> {
        let other = self.dice.roll(self.clients.len() as u64) as usize;
        let client = if self.dice.percent(50) { client } else { other };
        let doubts = &self.clients[client].doubts;
        let doubt = doubts.get(self.dice.roll(doubts.len().max(1) as u64) as usize)?;
        let changes = self.clients[client].changes(&doubt.doing);
        let which = self.dice.roll(1 + changes.len() as u64) as usize;
        changes.get(which).copied()
    }

    /// The root, or mostly something that is new.
    fn somebodys_inode(&mut self) -> InodeId {
        let which = self.dice.roll(self.clients.len() as u64) as usize;
        let dice = &mut self.dice;
        let client = &self.clients[which];
        if dice.percent(30) || client.files.is_empty() {
            let which = dice.roll(client.directories.len() as u64) as usize;
            return client.directories[which].inode;
        }
        let back = dice.roll(3.min(client.files.len() as u64)) as usize;
        client.files[client.files.len() - 1 - back].inode
    }

    /// What is answered without a request must be what answers have shown that have left.
    fn check_belief(&self, client: usize, attributes: &Attributes, by: &str) -> Result<(), String> {
        let inode = attributes.inode;
        let shown = self.shown.get(&inode).copied().unwrap_or_default();
        let states = self.states.get(&inode).map(Vec::as_slice).unwrap_or_default();
        let believed = states.iter().rposition(|state| state.as_ref() == Some(attributes));
        let believed = believed.map_or(0, |place| place + 1);
        if believed < shown && !self.clients[client].may_have_changed(inode) {
            let (before, after) = (believed.checked_sub(1).map(|place| &states[place]), &states[shown - 1]);
            return Err(format!(
                "client {client} believes state {believed} of {inode}, and {shown} was shown: by {by}, {before:?}, {after:?}"
            ));
        }
        Ok(())
    }

    fn tells_kernel(&mut self, client: usize, asked: Asked, attributes: &Attributes) {
        let (now, instant) = (self.now(), self.agenda.instant());
        let times = if self.bug == Bug::BelievesTwiceAsLong { 2 } else { 1 };
        let mount = &mut self.clients[client].mount;
        let subject = (attributes.inode, Leased::Attributes);
        let lasts = mount.state.lock().give(asked, subject, (false, true), instant);
        if let Some(lasts) = lasts {
            let until = now + times * lasts.as_millis() as u64;
            mount.kernel.insert(attributes.inode, Belief { attributes: attributes.clone(), until });
        }
    }

    /// Attributes have come, with a lease.
    pub(super) fn is_shown(&mut self, client: usize, attributes: &Attributes, asked: Asked) {
        let instant = self.agenda.instant();
        let state = &self.clients[client].mount.state;
        let late = self.bug == Bug::CountsFromTheAnswer;
        let asked = if late { state.lock().request(instant, 0) } else { asked };
        state.lock().keep_attributes(asked, attributes);
        self.tells_kernel(client, asked, attributes);
    }

    pub(super) fn is_renewed(&mut self, client: usize, server: usize, told: LeasesRenewed, left: u64) {
        let (instant, began, bug) = (self.agenda.instant(), self.agenda.instant_of(0), self.bug);
        let asked = self.agenda.instant_of(left);
        let known = self.clients[client].mount.known(server);
        if known.renewing != Some(left) {
            return;
        }
        known.renewing = None;
        let all_done = |before, since| RecallsDone::after(before, (told.life, EPOCH), Some(u64::MAX), since);
        let recalls_done = match bug {
            Bug::RenewsWhatIsRecalled => known.recalls_done.map(|done| all_done(Some(done), instant)),
            Bug::RenewsOverLives => Some(all_done(None, began)),
            _ => known.recalls_done,
        };
        known.renewal.answered(Some(told), recalls_done, asked, instant);
    }

    /// What a client is told takes a moment to be done.
    pub(super) fn hears(&mut self, client: usize, news: News) {
        if self.bug == Bug::AcknowledgesFirst {
            for (_, inode) in &news.recalls {
                let late = self.dice.roll(200);
                self.agenda.after(late, Event::DropsLate { client, inode: *inode });
            }
            return self.acknowledges(client, &news);
        }
        let takes = if self.dice.percent(5) { self.dice.roll(1_000) } else { self.dice.roll(10) };
        self.agenda.after(takes, Event::Handles { client, news });
    }

    pub(super) fn drops_late(&mut self, client: usize, inode: InodeId) {
        self.clients[client].mount.drops(inode);
    }

    pub(super) fn handles(&mut self, client: usize, news: &News) {
        let mount = &mut self.clients[client].mount;
        if mount.known(news.server).connection != news.connection {
            return;
        }
        news.recalls.iter().for_each(|(_, inode)| mount.drops(*inode));
        self.acknowledges(client, news);
    }

    /// The next request says that it is done.
    fn acknowledges(&mut self, client: usize, news: &News) {
        let now = self.agenda.instant();
        let newest = news.recalls.iter().map(|(number, _)| *number).max();
        let known = self.clients[client].mount.known(news.server);
        known.recalls_done = Some(RecallsDone::after(known.recalls_done, (news.life, EPOCH), newest, now));
        known.done = newest.unwrap_or(known.done);
        self.listen(client, news.server, news.life);
    }
}

/// What a server tells a client.
pub(super) struct News {
    pub(super) server: usize,
    pub(super) connection: u64,
    pub(super) life: u64,
    pub(super) recalls: Vec<(u64, InodeId)>,
}
