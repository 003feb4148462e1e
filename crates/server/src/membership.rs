//! The map that this server uses, and the coordinator if it is embedded here.
//!
//! Both are kept in the store, so that a restarted server knows its slots before any other server answers.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Epoch, Error, ErrorKind, InodeId, Result, ServerId, SessionId, Slot, limits};
use ramlace_cluster::{Decision, Input};
use ramlace_wire::Layout;
use ramlace_wire::cluster::{ForgetServer, GetMap, JoinPool};
use ramlace_wire::namespace::LayoutWish;
use ramlace_wire::session::GetServerStatus;
use ramlace_wire::{ClusterMap, Header, Request, ServerEntry, Shows};

use crate::clock;
use crate::gate::Call;
use crate::server::kept_files::save_file;
use crate::server::known_map::COORDINATOR_FILE;
use crate::server::{Outcome, Refusal, Server};

/// The number of the server where the coordinator is embedded.
pub const COORDINATOR: ServerId = ServerId(0);
/// Pause between two attempts to join.
const JOIN_PAUSE: Duration = Duration::from_millis(10);
/// A join that takes no longer than this is not logged.
const JOIN_QUIET: Duration = Duration::from_secs(1);
/// Slots that are tried for a new directory's home, when servers do not answer.
const HOME_ATTEMPTS_MAX: usize = 64;
/// Servers that may be asked, one after the other, to be the home of a directory.
const HOMES_MAX: usize = 8;
/// The distance from one of them to the next; odd, so that every slot is reached.
const HOME_STRIDE: u32 = 0x9e37;

impl Server {
    /// A server asks to join; only the coordinator's server can answer. `process`: the session of its calls, another
    /// one for each start of a server.
    pub async fn join(&self, join: JoinPool, process: SessionId) -> Outcome<ClusterMap> {
        let holder_lives = self.holder_lives(&join.entry).await;
        self.keys.forget_informed(join.entry.server);
        self.coordinate(Input::Join { join, process, holder_lives })
    }

    /// Gives a dead server's slots to the others.
    pub fn forget(&self, request: ForgetServer) -> Outcome<Epoch> {
        Ok(self.coordinate(Input::Forget { server: request.server })?.epoch)
    }

    /// Whether another process answers under the newcomer's number, at the address that is known for it.
    async fn holder_lives(&self, newcomer: &ServerEntry) -> bool {
        let known = {
            let coordinator = self.membership.coordinator.borrow();
            let Some(known) = coordinator.as_ref().and_then(|c| c.known(newcomer.server)) else {
                return false;
            };
            if known.tcp == newcomer.tcp && known.unix == newcomer.unix && known.host == newcomer.host {
                return false;
            }
            known.tcp.clone()
        };
        let header = Header::request(GetServerStatus::KIND);
        self.peers.call_address(newcomer.server, &known, header, &GetServerStatus {}).await.is_ok()
    }

    /// One step of the coordinator; its result is stored before any server learns of it.
    fn coordinate(&self, input: Input) -> Outcome<ClusterMap> {
        let mut coordinator = self.membership.coordinator.borrow_mut();
        let Some(current) = coordinator.as_mut() else {
            return Err(Error::new(ErrorKind::Invalid, "this server has no coordinator; ask server 0").into());
        };
        let mut next = current.clone();
        let decision = next.step(input)?;
        if decision != Decision::Unchanged {
            save_file(&mut self.store.borrow_mut(), COORDINATOR_FILE, &next)?;
            *current = next;
        }
        let Some(map) = current.map().cloned() else {
            let missing: Vec<String> = current.missing().iter().map(ServerId::to_string).collect();
            let text = format!("the pool is still coming up; waiting for {}", missing.join(", "));
            return Err(Error::new(ErrorKind::Retry, text).into());
        };
        self.membership.adopt(&mut self.store.borrow_mut(), map.clone())?;
        Ok(map)
    }

    /// Joins the pool: returns when this server has a map that includes it, and knows which keys were
    /// revoked.
    pub async fn join_pool(self: &Rc<Self>) -> Result<()> {
        self.ask_to_join().await?;
        self.learn_keys().await
    }

    async fn ask_to_join(&self) -> Result<()> {
        // A map in the store proves that the store has served in this pool before.
        let keeps_store = self.membership.map().is_ok();
        let request = JoinPool { entry: self.entry(), keeps_store };
        let (began, mut last_logged) = (clock::instant(), String::new());
        loop {
            let outcome = match &self.config.options.coordinator {
                None => {
                    self.join(request.clone(), self.peers.session()).await.map_err(|refusal| refusal.error)
                }
                Some(address) => self
                    .peers
                    .call_address(COORDINATOR, address, Header::request(JoinPool::KIND), &request)
                    .await
                    .map_err(|failure| failure.error),
            };
            match outcome {
                Ok(map) => return self.membership.adopt(&mut self.store.borrow_mut(), map),
                Err(error) if is_final(error.kind()) => return Err(error.context("joining the pool")),
                // A returning server needs no permission for the slots that it holds.
                Err(error) if error.kind() != ErrorKind::Retry && self.stands_in_map() => return Ok(()),
                Err(error) if may_pass(error.kind()) => {
                    // People who wait for this server find the reason in its log.
                    if began.elapsed() >= JOIN_QUIET && last_logged != error.message() {
                        error.message().clone_into(&mut last_logged);
                        eprintln!("ramlace: server {} waits to join the pool: {last_logged}", self.me.0);
                    }
                    tokio::time::sleep(JOIN_PAUSE).await;
                }
                Err(error) => return Err(error.context("joining the pool")),
            }
        }
    }

    /// Whether the map from before the restart names this server at its present addresses.
    fn stands_in_map(&self) -> bool {
        self.membership.map().is_ok_and(|map| map.server(self.me) == Some(&self.entry()))
    }

    fn entry(&self) -> ServerEntry {
        let options = &self.config.options;
        ServerEntry {
            server: self.me,
            host: self.host,
            tcp: options.advertise.clone().unwrap_or_else(|| self.config.tcp_address.clone()),
            unix: options.unix.display().to_string(),
            store_bytes: options.store_bytes,
            forgotten: false,
        }
    }

    /// Fetches the map from the coordinator, because a newer one exists. Calls that come meanwhile share the
    /// next answer.
    pub async fn refresh_map(&self) -> Result<()> {
        let Some(address) = &self.config.options.coordinator else { return Ok(()) };
        let asked = &self.membership.asked;
        let before = asked.get();
        let _asking = self.membership.asking.lock().await;
        if asked.get() > before {
            // It was fetched since this call began.
            return Ok(());
        }
        asked.set(before + 1);
        let map = self
            .peers
            .call_address(COORDINATOR, address, Header::request(GetMap::KIND), &GetMap {})
            .await
            .map_err(|failure| failure.error.context("asking the coordinator for the map"))?;
        self.membership.adopt(&mut self.store.borrow_mut(), map)
    }

    /// Candidate slots for a new directory: one on a server that answers as far as this one knows, and slots
    /// of others, which are asked in turn where the one before has no room.
    pub fn choose_homes(&self, map: &ClusterMap) -> Vec<Slot> {
        let answers = |home: Slot| map.primary(home).filter(|primary| !self.is_unreachable(*primary));
        let mut home = self.membership.next_home(map.slots());
        for _ in 0..HOME_ATTEMPTS_MAX {
            if answers(home).is_some() {
                break;
            }
            home = self.membership.next_home(map.slots());
        }
        let mut homes = vec![home];
        let mut servers = vec![map.primary(home)];
        for _ in 0..HOME_ATTEMPTS_MAX {
            if homes.len() == HOMES_MAX.min(map.servers.len()) {
                break;
            }
            home = Slot(((u32::from(home.0) + HOME_STRIDE) % map.slots()) as u16);
            let primary = answers(home);
            if primary.is_some() && !servers.contains(&primary) {
                homes.push(home);
                servers.push(primary);
            }
        }
        homes
    }

    /// The layout of a new file: as the creator wishes, else as the directory passes on; on servers that
    /// answer as far as both the creator and this server know, or if there are none, as far as this server
    /// knows.
    pub fn choose_layout(
        self: &Rc<Self>,
        map: &ClusterMap,
        slot: Slot,
        wish: &LayoutWish,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Layout> {
        let (inherited, entries) = {
            let durable = self.durable.borrow();
            let of_slot = durable.names(slot);
            of_slot
                .map(|state| (state.inherited_hints(parent), state.entries_here(parent)))
                .unwrap_or_default()
        };
        let hints = wish.hints.or(inherited);
        let answers = |id| !wish.silent.contains(&id) && !self.is_unreachable(id);
        let key = ramlace_layout::name_key(parent, name);
        let may_begin_here = wish.stripe_unit_min <= limits::STRIPE_UNIT_BYTES_DEFAULT && self.is_half_free();
        let first = ramlace_layout::first_server(hints, map, slot, entries).filter(|_| may_begin_here);
        let choose =
            |answers: &dyn Fn(ServerId) -> bool| ramlace_layout::choose_from(first, hints, map, answers, key);
        let chosen = choose(&answers).or_else(|error| match error.kind() {
            // Servers that the creator wanted to avoid are better than none.
            ErrorKind::HostDown => choose(&|id| !self.is_unreachable(id)),
            _ => Err(error),
        });
        let mut layout = chosen?;
        layout.stripe_unit = layout.stripe_unit.max(wish.stripe_unit_min);
        Ok(layout)
    }

    /// Whether half of the store is free: while it is, this server may get more bytes of small files than others.
    fn is_half_free(&self) -> bool {
        let usage = self.store.borrow().usage();
        usage.free_for_lanes_bytes >= usage.size_bytes / 2
    }

    /// Checks that this server is the slot's primary. If the requester knows a newer map, this server fetches
    /// that first; a requester with an older map gets the newer one.
    ///
    /// Waits until the slot is not delegated to any other session, except for bytes of lanes and queries of
    /// lanes: a holder has sent what it promised of a file before any other session has it open.
    pub async fn admit_slot(self: &Rc<Self>, call: &Call, slot: Slot) -> Outcome<Rc<ClusterMap>> {
        call.saw(slot);
        let (map, refreshed) = self.map_as_known_to(call).await?;
        // The requester's newer map names this server, and so does the one here: that is enough while the
        // coordinator cannot be reached. Its loss freezes only the map.
        let silent = |kind| matches!(kind, ErrorKind::HostDown | ErrorKind::TimedOut);
        match refreshed {
            Err(error) if !(silent(error.kind()) && map.primary(slot) == Some(self.me)) => {
                return Err(error.into());
            }
            _ => {}
        }
        match map.primary(slot) {
            Some(primary) if primary == self.me => {
                let row = call.kind.row();
                if row.shows != Shows::Bytes && !row.by_lane {
                    self.await_undelegated(slot, call.session).await?;
                }
                Ok(map)
            }
            Some(primary) => Err(Refusal::moved(
                format!("{slot} belongs to {primary} in {}, not to {}", map.epoch, self.me),
                map,
            )),
            None => Err(Error::new(ErrorKind::Invalid, format!("this pool has no {slot}")).into()),
        }
    }

    /// Fetches a map at least as new as the requester's, if possible: so this server asks the same servers as
    /// the requester would.
    pub async fn learn_map(&self, call: &Call) -> Outcome<()> {
        let (_, refreshed) = self.map_as_known_to(call).await?;
        refreshed.map_err(Refusal::from)
    }

    async fn map_as_known_to(&self, call: &Call) -> Result<(Rc<ClusterMap>, Result<()>)> {
        // The first map comes only with the answer to the join: the coordinator must know that a store is in
        // use before it holds anything.
        let map = self.membership.map()?;
        if call.epoch <= map.epoch || !call.may_ask_for_map() {
            return Ok((map, Ok(())));
        }
        let refreshed = self.refresh_map().await;
        Ok((self.membership.map()?, refreshed))
    }

    /// The primary of a slot in the present map.
    pub fn primary(&self, slot: Slot) -> Result<ServerId> {
        let map = self.membership.map()?;
        map.primary(slot).ok_or_else(|| Error::new(ErrorKind::Invalid, format!("this pool has no {slot}")))
    }
}

/// Whether the coordinator has rejected this server and its bytes: it was forgotten, or its pool is gone.
pub fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotPermitted | ErrorKind::Stale | ErrorKind::Invalid)
}

/// Whether to ask the coordinator again may help.
fn may_pass(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Retry | ErrorKind::HostDown | ErrorKind::TimedOut)
}
