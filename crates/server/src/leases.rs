//! Leases of mounts: which are told that what they believe has changed, and which answers wait until they know.
//!
//! The rule is [`Leases`](ramlace_namespace::leases::Leases); this drives it. A change recalls the leases on what it changed in the step that commits it.
//! Answers of its slot that are made from then on wait at the gate ([`crate::gate`]) until every holder has acknowledged, or its time is over: one
//! rule for all answers, whatever they show, and a holder who says nothing stops one slot once for that time.
//!
//! A life that follows one that had given leases does not know them, and its state may show what no holder has heard
//! of: it answers nothing before they are all over.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{ErrorKind, InodeId, SessionId, Slot};
use ramlace_namespace::leases::{HOLD_MILLIS, Renewal};
use ramlace_wire::leases::{AttributesLeased, LeaseAttributes, LeaseName, Leased, LeasesRenewed, NameLeased};
use ramlace_wire::namespace::{EntryLeased, GetAttributes, Lookup};
use ramlace_wire::{Attributes, Credentials};

use crate::gate::Call;
use crate::record::Record;
use crate::server::{Outcome, Server};

impl Server {
    /// A lookup with leases.
    pub async fn lease_name(
        self: &Rc<Self>,
        header: &Call,
        who: &Credentials,
        request: LeaseName,
    ) -> Outcome<NameLeased> {
        let (slot, parent) = (header.slot, request.parent);
        self.admit(header, slot).await?;
        match self.query(who, slot, &Lookup { parent, name: request.name }) {
            Ok(found) => {
                let names = request.names && self.lease_names(header.session, slot, parent);
                let attributes =
                    found.attributes.is_some() && self.lease(header.session, found.inode, Leased::Attributes);
                Ok(NameLeased { found: Some(found), names, attributes, directory: None })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let names = request.names && self.lease_names(header.session, slot, parent);
                let directory =
                    names.then(|| self.lease_changed(header.session, who, slot, parent)).flatten();
                Ok(NameLeased { found: None, names, attributes: false, directory })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// All leases of a session last longer.
    pub fn renew_leases(&self, session: SessionId) -> LeasesRenewed {
        let (now, life) = (self.leases.now(), self.data.life);
        match self.leases.leases.borrow_mut().renew(session, now) {
            Some(Renewal { taken, newest }) => LeasesRenewed { renewed: true, life, taken, newest },
            None => LeasesRenewed { life, ..LeasesRenewed::default() },
        }
    }

    /// Attributes with leases.
    pub async fn lease_attributes(
        self: &Rc<Self>,
        header: &Call,
        who: &Credentials,
        request: &LeaseAttributes,
    ) -> Outcome<AttributesLeased> {
        let inode = request.inode;
        let slot = inode.slot();
        self.admit(header, slot).await?;
        let info = self.query(who, slot, &GetAttributes { inode })?;
        // Of a spread directory this is not all.
        let whole = info.partitions.is_empty();
        let attributes = whole && self.lease(header.session, inode, Leased::Attributes);
        let names = request.names && self.lease_names(header.session, slot, inode);
        Ok(AttributesLeased { info, attributes, names })
    }

    /// Leases on an entry that a change has told its session of, as far as it still is what was told.
    pub fn lease_told(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        entry: &Lookup,
        told: &Attributes,
    ) -> EntryLeased {
        let (parent, not) = (entry.parent, EntryLeased::default());
        if !self.leases.leases.borrow().listens(session) {
            return not;
        }
        match self.query(who, slot, entry) {
            Ok(found) if found.attributes.as_ref() == Some(told) => EntryLeased {
                names: self.lease_names(session, slot, parent),
                attributes: self.lease(session, told.inode, Leased::Attributes),
            },
            _ => not,
        }
    }

    /// The directory of an entry as it is now, with a lease, where the entry leads now to what a change has told its session: others
    /// may have changed it since.
    pub fn lease_entered(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        entry: &Lookup,
        told: Option<InodeId>,
    ) -> Option<Attributes> {
        if !self.leases.leases.borrow().listens(session) {
            return None;
        }
        let now = match self.query(who, slot, entry) {
            Ok(found) => Some(found.inode),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            _ => return None,
        };
        (now == told).then(|| self.lease_changed(session, who, slot, entry.parent)).flatten()
    }

    /// A directory as it is now, with a lease, as far as its session hears of recalls and it is all here.
    fn lease_changed(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        directory: InodeId,
    ) -> Option<Attributes> {
        if directory.slot() != slot || !self.leases.leases.borrow().listens(session) {
            return None;
        }
        let info = self.query(who, slot, &GetAttributes { inode: directory }).ok()?;
        let leased = info.partitions.is_empty() && self.lease(session, directory, Leased::Attributes);
        leased.then_some(info.attributes)
    }

    fn lease_names(self: &Rc<Self>, session: SessionId, slot: Slot, directory: InodeId) -> bool {
        let here = self.durable.borrow().names(slot).is_some_and(|state| state.has_all_names(directory));
        here && self.lease(session, directory, Leased::Names)
    }

    fn lease(self: &Rc<Self>, session: SessionId, inode: InodeId, what: Leased) -> bool {
        // The next life has to know that there were some. Without room for that there are none.
        let marked = self.durable.borrow().gives_leases || self.commit(&Record::GivesLeases(true)).is_ok();
        marked && self.leases.leases.borrow_mut().give(session, inode, what, self.leases.now())
    }

    /// A life without leases leaves none to the next.
    pub async fn forget_old_leases(self: Rc<Self>) {
        if self.durable.borrow().gives_leases {
            tokio::time::sleep(Duration::from_millis(HOLD_MILLIS)).await;
            if self.leases.leases.borrow().is_idle() && self.data.is_idle() {
                // Should there be no room, the next life waits for nothing.
                let _ = self.commit(&Record::GivesLeases(false));
            }
        }
    }
}
