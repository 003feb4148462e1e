//! The map that a server uses, and the coordinator if it is embedded here: see [`crate::membership`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ramlace_base::{Epoch, Error, ErrorKind, Result, Slot};
use ramlace_cluster::{Coordinator, CoordinatorConfig};
use ramlace_store::Store;
use ramlace_wire::ClusterMap;
use tokio::sync::Notify;

use crate::server::kept_files::{load_file, save_file};

const MAP_FILE: &str = "map";
/// The file of the coordinator's state.
pub const COORDINATOR_FILE: &str = "coordinator";

/// The map and, on one server of the pool, the coordinator.
pub struct Membership {
    map: RefCell<Option<Rc<ClusterMap>>>,
    pub coordinator: RefCell<Option<Coordinator>>,
    /// Notified when there is a newer map.
    pub changed: Notify,
    next_home: Cell<u32>,
    /// Held while the coordinator is asked for the map.
    pub asking: tokio::sync::Mutex<()>,
    /// How often it was asked.
    pub asked: Cell<u64>,
}

impl Membership {
    /// Loads what the last incarnation knew; `config`: this server has the coordinator.
    pub fn load(store: &mut Store, config: Option<CoordinatorConfig>, home_seed: u32) -> Result<Membership> {
        let coordinator = match (load_file(store, COORDINATOR_FILE)?, config) {
            (Some(coordinator), _) => Some(coordinator),
            (None, Some(config)) => Some(Coordinator::new(config)?),
            (None, None) => None,
        };
        let map: Option<ClusterMap> = load_file(store, MAP_FILE)?;
        Ok(Membership {
            map: RefCell::new(map.map(Rc::new)),
            coordinator: RefCell::new(coordinator),
            changed: Notify::new(),
            next_home: Cell::new(home_seed),
            asking: tokio::sync::Mutex::default(),
            asked: Cell::default(),
        })
    }

    /// The map; Retry while there is none.
    pub fn map(&self) -> Result<Rc<ClusterMap>> {
        self.map.borrow().clone().ok_or_else(|| {
            Error::new(ErrorKind::Retry, "the pool is still coming up: not every server has joined")
        })
    }

    /// The map's epoch, 0 before there is one.
    pub fn epoch(&self) -> Epoch {
        self.map.borrow().as_ref().map_or(Epoch(0), |map| map.epoch)
    }

    /// The map, if it is newer than this epoch.
    pub fn newer_than(&self, epoch: Epoch) -> Option<ClusterMap> {
        let map = self.map.borrow();
        map.as_ref().filter(|map| epoch != Epoch(0) && map.epoch > epoch).map(|map| (**map).clone())
    }

    /// Uses a newer map from now on, and keeps it in the store.
    pub fn adopt(&self, store: &mut Store, map: ClusterMap) -> Result<()> {
        if map.epoch <= self.epoch() {
            return Ok(());
        }
        ramlace_cluster::validate(&map)?;
        save_file(store, MAP_FILE, &map)?;
        *self.map.borrow_mut() = Some(Rc::new(map));
        self.changed.notify_waiters();
        Ok(())
    }

    /// A slot for a new directory: goes over all slots, so that a tree is spread over all servers.
    pub fn next_home(&self, slots: u32) -> Slot {
        // An odd stride near the golden section visits every slot of a power of two, far apart.
        let next = self.next_home.get().wrapping_add(0x9e37_79b1);
        self.next_home.set(next);
        Slot(((u64::from(next) * u64::from(slots)) >> 32) as u16)
    }
}
