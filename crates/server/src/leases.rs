//! Leases on names and attributes: sends mounts the recalls of what they cache, and makes answers wait for them.
//!
//! The rules are in [`Leases`](ramlace_namespace::leases::Leases); this applies them. A change recalls the
//! leases on what it changed in the step that commits it. Answers of its slot that are made from then on wait
//! at the gate ([`crate::gate`]) until every holder has acknowledged, or its time is over. This one rule
//! holds for all answers, whatever they reveal; so a holder that does not answer delays one slot once, for
//! that time.
//!
//! A restarted server does not know the leases of its last incarnation, and its state may contain changes
//! that no holder was notified of: it answers nothing before all of them are over.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{ErrorKind, InodeId, SessionId, Slot, limits};
use ramlace_namespace::leases::{HOLD_MILLIS, Renewal};
use ramlace_wire::leases::{AttributesLeased, LeaseAttributes, LeaseName, Leased, LeasesRenewed, NameLeased};
use ramlace_wire::namespace::{DirectoryEntry, EntryLeased, GetAttributes, Lookup};
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
        let (slot, session) = (header.slot, header.session);
        let LeaseName { parent, name, names, neighbours_max } = request;
        self.admit(header, slot).await?;
        let lookup = Lookup { parent, name };
        let found = match self.query(who, slot, &lookup) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let names = names && self.lease_names(session, slot, parent);
        let attributes = found.as_ref().is_some_and(|found| {
            found.attributes.is_some() && self.lease(session, found.inode, Leased::Attributes)
        });
        let directory = (names && (found.is_none() || neighbours_max > 0))
            .then(|| self.lease_changed(session, who, slot, parent))
            .flatten();
        let (neighbours, is_all) = match &directory {
            Some(_) => self.lease_neighbours(session, who, slot, &lookup, neighbours_max),
            None => Default::default(),
        };
        Ok(NameLeased { found, names, attributes, directory, neighbours, is_all })
    }

    /// Entries beside one in a directory whose names are leased, with leases on those attributes that are here; and
    /// whether these are all others. A caller that may not list the directory gets none.
    fn lease_neighbours(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        beside: &Lookup,
        most: u16,
    ) -> (Vec<DirectoryEntry>, bool) {
        let most = usize::from(most.min(limits::NEIGHBOURS_LEASED_MAX));
        if most == 0 {
            return Default::default();
        }
        let listed = self
            .durable
            .borrow()
            .names(slot)
            .and_then(|names| names.neighbours(who, beside.parent, &beside.name, most).ok());
        let (mut entries, is_all) = listed.unwrap_or_default();
        for entry in &mut entries {
            entry.attributes.take_if(|_| !self.lease(session, entry.inode, Leased::Attributes));
        }
        (entries, is_all)
    }

    /// Renews all leases of a session.
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
        // For a spread directory this is not everything.
        let whole = info.partitions.is_empty();
        let attributes = whole && self.lease(header.session, inode, Leased::Attributes);
        let names = request.names && self.lease_names(header.session, slot, inode);
        Ok(AttributesLeased { info, attributes, names })
    }

    /// Leases on an entry that the reply to a change describes, as far as the entry is still as described.
    pub fn lease_described(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        entry: &Lookup,
        described: &Attributes,
    ) -> EntryLeased {
        let (parent, not) = (entry.parent, EntryLeased::default());
        if !self.leases.leases.borrow().listens(session) {
            return not;
        }
        match self.query(who, slot, entry) {
            Ok(found) if found.attributes.as_ref() == Some(described) => EntryLeased {
                names: self.lease_names(session, slot, parent),
                attributes: self.lease(session, described.inode, Leased::Attributes),
            },
            _ => not,
        }
    }

    /// The present attributes of an entry's directory, with a lease. `None` unless the entry still leads to
    /// what the reply to a change says: others may have changed it since.
    pub fn lease_entered(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        entry: &Lookup,
        described: Option<InodeId>,
    ) -> Option<Attributes> {
        if !self.leases.leases.borrow().listens(session) {
            return None;
        }
        let now = match self.query(who, slot, entry) {
            Ok(found) => Some(found.inode),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            _ => return None,
        };
        (now == described).then(|| self.lease_changed(session, who, slot, entry.parent)).flatten()
    }

    /// The present attributes of an inode, with a lease, if the session listens to recalls and the
    /// inode is all here.
    pub fn lease_changed(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        inode: InodeId,
    ) -> Option<Attributes> {
        if inode.slot() != slot || !self.leases.leases.borrow().listens(session) {
            return None;
        }
        let info = self.query(who, slot, &GetAttributes { inode }).ok()?;
        let leased = info.partitions.is_empty() && self.lease(session, inode, Leased::Attributes);
        leased.then_some(info.attributes)
    }

    fn lease_names(self: &Rc<Self>, session: SessionId, slot: Slot, directory: InodeId) -> bool {
        let here = self.durable.borrow().names(slot).is_some_and(|state| state.has_all_names(directory));
        here && self.lease(session, directory, Leased::Names)
    }

    fn lease(self: &Rc<Self>, session: SessionId, inode: InodeId, what: Leased) -> bool {
        // A restarted server has to know that there were leases. Without room in the log for that none are
        // given.
        let marked = self.durable.borrow().gives_leases || self.commit(&Record::GivesLeases(true)).is_ok();
        marked && self.leases.leases.borrow_mut().give(session, inode, what, self.leases.now())
    }

    /// If the server has no leases, logs that, so that it need not wait for any after a restart.
    pub async fn forget_old_leases(self: Rc<Self>) {
        if self.durable.borrow().gives_leases {
            tokio::time::sleep(Duration::from_millis(HOLD_MILLIS)).await;
            if self.leases.leases.borrow().is_idle() && self.data.is_idle() {
                // If there is no room in the log, the wait after a restart is merely unnecessary.
                let _ = self.commit(&Record::GivesLeases(false));
            }
        }
    }
}
