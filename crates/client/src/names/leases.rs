//! Leases: what the caller of this library may cache for a short time without asking. The caller has the cache, and
//! receives recalls by [`Pool::on_recalls`]; [`crate::listening`] receives them from servers. For leases on bytes see
//! [`crate::bytes::data_leases`].

use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{InodeId, Name, Result, Slot};
use ramlace_wire::leases::{AttributesLeased, LeaseAttributes, LeaseName, NameLeased, RenewLeases};

use crate::callbacks::{OnBroken, OnDoubt, OnRecall};
use crate::client::Client;
use crate::names::renewals::Renewed;
use crate::{Pool, Raw};

/// How long the reply to a renewal may take: each file can be asked for instead.
const RENEWAL_MILLIS_MAX: u64 = 100;

impl Pool {
    /// From now on leases are requested, and `on_recall` invalidates what is cached under them. It is called
    /// by every thread that receives recalls, perhaps by several at once. Can be set once; a second call has
    /// no effect.
    pub fn on_recalls(&self, on_recall: OnRecall) {
        let _ = self.callbacks().on_recall.set(on_recall);
    }

    /// From now on `on_broken` is called about promises that were not kept as they were answered. Can be set
    /// once.
    pub fn on_broken(&self, on_broken: OnBroken) {
        let _ = self.callbacks().on_broken.set(on_broken);
    }

    /// From now on `on_doubt` is called about changes that were not answered in time, before their callers
    /// return. Can be set once.
    pub fn on_doubts(&self, on_doubt: OnDoubt) {
        let _ = self.callbacks().on_doubt.set(on_doubt);
    }
}

impl Raw<'_> {
    /// The entry `name` of a directory, if there is one, with leases on the attributes that are returned and,
    /// if wanted, on the directory's `names`; then also up to `neighbours_max` other entries. They last for
    /// [`ramlace_base::limits::LEASE_MILLIS`], counted from before this call.
    pub fn lease_name(
        self,
        parent: InodeId,
        name: &Name,
        names: bool,
        neighbours_max: u16,
    ) -> Result<NameLeased> {
        let session = self.pool.session()?;
        let request = LeaseName { parent, name: name.clone(), names, neighbours_max };
        session.in_partition(parent, name, |slot, deadline| {
            session.listen_to_recalls_of(slot)?;
            session.ask(slot, &request, deadline)
        })
    }

    /// Everything about an inode with this process's latest writes, and leases as [`Raw::lease_name`] gives
    /// them.
    pub fn lease_attributes(self, inode: InodeId, names: bool) -> Result<AttributesLeased> {
        let session = self.pool.session()?;
        session.push_times(inode)?;
        session.listen_to_recalls_of(inode.slot())?;
        let leased = session.ask(inode.slot(), &LeaseAttributes { inode, names }, session.deadline())?;
        if leased.info.partitions.is_empty() {
            return Ok(leased);
        }
        // Its home knows only a part of it.
        Ok(AttributesLeased { info: session.whole_info(inode)?, attributes: false, names: false })
    }
}

impl Raw<'_> {
    /// Leases that the server of an inode has renewed recently, or renews now; `None`: what is cached under
    /// them has to be asked for. A caller that does not `wait` gets `None` while another thread asks.
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

    /// Makes sure that a thread listens to the recalls of a slot's server.
    pub(crate) fn listen_to_recalls_of(self: &Arc<Client>, slot: Slot) -> Result<()> {
        if self.callbacks.on_recall.get().is_none() {
            return Ok(());
        }
        self.listen_to(slot)
    }
}
