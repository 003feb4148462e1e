//! Leases: what this process may believe for a short while without asking, and the threads that hear of recalls.
//!
//! One thread for each server that has given leases keeps a question for recalls open, on a connection of its own. Its
//! next question says that what it was told is done. What is believed is the caller's: see [`Pool::hear_recalls`]. Leases on bytes that
//! a kernel keeps are recalled by the same answers, and are over when [`crate::bytes::data_leases`] say so.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Name, Result, ServerId, Slot, limits};
use ramlace_wire::Kind;
use ramlace_wire::leases::{
    AttributesLeased, LeaseAttributes, LeaseName, NameLeased, RenewLeases, WaitRecalls,
};

use crate::client::Client;
use crate::hearers::{OnBroken, OnDoubt, OnRecall};
use crate::names::renewals::Renewed;
use crate::session::heart::block_signals;
use crate::session::lines::{Link, roundtrip};
use crate::{Pool, Raw};

/// A question that is not answered for so long was lost.
const QUESTION_MILLIS_MAX: u64 = limits::EVENTS_MILLIS_MAX + 3_000;
/// How long an answer to a renewal may take: each file can be asked for instead.
const RENEWAL_MILLIS_MAX: u64 = 100;
/// How long a new connection may take.
const CONNECT_MILLIS_MAX: u64 = 2_000;
/// A life that no server has: asked with it, each tells its own at once.
const NO_LIFE: u64 = u64::MAX;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(250);
/// After so many failures it is asked whether the server was forgotten: whoever reads only what he keeps hears of no new map.
const FAILURES_PER_LOOK: u32 = 4;

impl Pool {
    /// From now on leases are asked for, and `on_recall` ends what is believed by them: by every thread that hears of
    /// recalls, perhaps at once. Said once; a second time changes nothing.
    pub fn hear_recalls(&self, on_recall: OnRecall) {
        let _ = self.hearers().on_recall.set(on_recall);
    }

    /// From now on `on_broken` hears of promises that were not kept as they were told. Said once.
    pub fn hear_broken(&self, on_broken: OnBroken) {
        let _ = self.hearers().on_broken.set(on_broken);
    }

    /// From now on `on_doubt` hears of changes that were not answered in time, before whoever asked for them does. Said once.
    pub fn hear_doubts(&self, on_doubt: OnDoubt) {
        let _ = self.hearers().on_doubt.set(on_doubt);
    }
}

impl Raw<'_> {
    /// The entry `name` of a directory, if there is one, with leases on the attributes that come and, wanted, on the directory's
    /// `names`. They last for [`limits::LEASE_MILLIS`] from before this call.
    pub fn lease_name(self, parent: InodeId, name: &Name, names: bool) -> Result<NameLeased> {
        let session = self.pool.session()?;
        let request = LeaseName { parent, name: name.clone(), names };
        session.in_partition(parent, name, |slot, deadline| {
            session.hear_recalls_of(slot)?;
            session.ask(slot, &request, deadline)
        })
    }

    /// Everything about an inode with this process's latest writes, and leases as [`Raw::lease_name`] has them.
    pub fn lease_attributes(self, inode: InodeId, names: bool) -> Result<AttributesLeased> {
        let session = self.pool.session()?;
        session.push_times(inode)?;
        session.hear_recalls_of(inode.slot())?;
        let leased = session.ask(inode.slot(), &LeaseAttributes { inode, names }, session.deadline())?;
        if leased.info.partitions.is_empty() {
            return Ok(leased);
        }
        // Its home knows a part of it.
        Ok(AttributesLeased { info: session.whole_info(inode)?, attributes: false, names: false })
    }
}

impl Raw<'_> {
    /// Leases that the server of an inode has renewed a moment ago, or is asked to renew now; `None`: what is kept by
    /// them has to be asked for. Whoever does not `wait` has `None` while another asks.
    pub fn renew_leases(self, inode: InodeId, wait: bool) -> Option<Renewed> {
        self.pool.session().ok()?.renew_leases(inode.slot(), wait)
    }
}

impl Client {
    fn renew_leases(self: &Arc<Client>, slot: Slot, wait: bool) -> Option<Renewed> {
        let map = self.map().ok()?;
        let server = map.primary(slot)?;
        self.renewals.renew((server, map.epoch), wait, |now| {
            let until = now + Duration::from_millis(RENEWAL_MILLIS_MAX);
            self.try_server_by(&self.server(server)?, &RenewLeases {}, until)
        })
    }

    /// Makes sure that somebody hears of what a slot's server recalls.
    pub(crate) fn hear_recalls_of(self: &Arc<Client>, slot: Slot) -> Result<()> {
        if self.hearers.on_recall.get().is_none() {
            return Ok(());
        }
        let map = self.map()?;
        let server = self.server_of(&map, slot)?.id;
        self.listen_to_recalls_of(server)
    }

    pub(crate) fn listen_to_recalls_of(self: &Arc<Client>, server: ServerId) -> Result<()> {
        if !self.listening.servers.lock().insert(server) {
            return Ok(());
        }
        let listener = Listener { session: Arc::downgrade(self), server };
        let started = std::thread::Builder::new().name("ramlace-recalls".into()).spawn(move || {
            block_signals();
            listener.run();
        });
        started.map(drop).map_err(|error| {
            self.listening.servers.lock().remove(&server);
            Error::from_io(&error, "starting a thread that hears of recalled leases")
        })
    }
}

/// It holds the session only between two questions, so that the last file's drop still ends the session.
struct Listener {
    session: Weak<Client>,
    server: ServerId,
}

impl Listener {
    fn run(&self) {
        // A new connection may be one to a new life of the server: nothing that the last one told is done there.
        let mut on: Option<(Link, WaitRecalls)> = None;
        let mut failures = 0;
        loop {
            let Some(session) = self.session.upgrade() else { return };
            if session.ended.get().is_some() {
                return;
            }
            let (mut link, question) = match on.take().map_or_else(|| self.begin(&session), Ok) {
                Ok(on) => on,
                Err(_) => {
                    failures += 1;
                    if self.is_forgotten(&session, failures % FAILURES_PER_LOOK == 0) {
                        return session.hear_no_more_of(self.server);
                    }
                    drop(session);
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let deadline = Instant::now() + Duration::from_millis(QUESTION_MILLIS_MAX);
            let epoch = session.known_map().map_or(Epoch(0), |map| map.epoch);
            let header = session.header(Kind::WaitRecalls, None, deadline, epoch);
            drop(session);
            let asked = roundtrip(&mut link, header, &question, deadline);
            let Some(session) = self.session.upgrade() else { return };
            match asked {
                Ok(told) => {
                    let newest = told.recalls.iter().map(|recall| recall.number).max();
                    // A cache of bytes believes none without the size that it has leased: what ends those goes first.
                    if newest.is_some()
                        && let Some(on_recall) = session.hearers.on_recall.get()
                    {
                        on_recall(&told.recalls);
                    }
                    session.want_back(&told.delegations);
                    session.hear_data(self.server, told.life, &told.data);
                    session.renewals.heard(self.server, (told.life, epoch), newest);
                    let newest_data = told.data.iter().map(|recall| recall.number).max();
                    let next = WaitRecalls {
                        heard: newest.unwrap_or(question.heard),
                        told: newest_data.unwrap_or(question.told),
                        life: told.life,
                    };
                    on = Some((link, next));
                }
                Err(error) if error.kind() == ErrorKind::Stale => _ = session.end(&error),
                Err(_) => {}
            }
        }
    }

    /// It will not come back: its slots are others'. `asks`: the others are asked for a newer map.
    fn is_forgotten(&self, session: &Client, asks: bool) -> bool {
        let soon = || Instant::now() + Duration::from_millis(CONNECT_MILLIS_MAX);
        let newest = || session.refresh_map_without(Some(self.server), soon()).ok();
        let map = if asks { newest() } else { session.known_map() };
        map.and_then(|map| Some(map.server(self.server)?.forgotten)).unwrap_or_default()
    }

    /// A new connection, and the first question on it.
    fn begin(&self, session: &Arc<Client>) -> Result<(Link, WaitRecalls)> {
        let deadline = Instant::now() + Duration::from_millis(CONNECT_MILLIS_MAX);
        let server = session.server(self.server)?;
        let link = session.connect(&server, deadline).map_err(|failure| failure.error)?;
        let life = Some(session.givers.life(self.server)).filter(|life| *life != 0).unwrap_or(NO_LIFE);
        Ok((link, WaitRecalls { heard: 0, told: 0, life }))
    }
}
