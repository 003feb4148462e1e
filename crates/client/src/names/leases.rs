//! Leases: what this process may believe for a short while without asking. What is believed is the caller's: see [`Pool::hear_recalls`]. That
//! some are over is heard by [`crate::listening`]; leases on bytes are when [`crate::bytes::data_leases`] say so.

use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{InodeId, Name, Result, Slot};
use ramlace_wire::leases::{AttributesLeased, LeaseAttributes, LeaseName, NameLeased, RenewLeases};

use crate::client::Client;
use crate::hearers::{OnBroken, OnDoubt, OnRecall};
use crate::names::renewals::Renewed;
use crate::{Pool, Raw};

/// How long an answer to a renewal may take: each file can be asked for instead.
const RENEWAL_MILLIS_MAX: u64 = 100;

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
    /// `names`. They last for [`ramlace_base::limits::LEASE_MILLIS`] from before this call.
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
        self.listen_to(slot)
    }
}
