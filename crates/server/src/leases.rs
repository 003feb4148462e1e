//! Leases of mounts: who is told that what he believes has changed, and which answers wait until he knows.
//!
//! The rule is [`Leases`]; this drives it. A change recalls the leases on what it changed in the step that commits it.
//! Answers of its slot that are made from then on wait at the gate ([`crate::gate`]) until every holder has acknowledged, or his time is over: one
//! rule for all answers, whatever they show, and a holder who says nothing stops one slot once for that time.
//!
//! A life that follows one that had given leases does not know them, and its state may show what no holder has heard
//! of: it answers nothing before they are all over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ramlace_base::{Error, ErrorKind, InodeId, Result, SessionId, Slot, limits};
use ramlace_namespace::leases::{HOLD_MILLIS, Leases, Renewal};
use ramlace_namespace::{Answer, Effect, Query};
use ramlace_wire::leases::{
    AttributesLeased, LeaseAttributes, LeaseName, Leased, LeasesRenewed, NameLeased, Recalls, WaitRecalls,
};
use ramlace_wire::namespace::{EntryLeased, GetAttributes, Lookup};
use ramlace_wire::{Attributes, Credentials};
use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout};

use crate::clock;
use crate::gate::Call;
use crate::record::Record;
use crate::server::{Outcome, Server};

/// All leases of a server, and who waits for what.
pub struct LeaseDesk {
    leases: RefCell<Leases>,
    began: Instant,
    /// What the last life had given is over then.
    quiet_from: Cell<Option<Instant>>,
    /// A recall began, or is over.
    changed: Notify,
    /// The newest question of each session is the one that is answered.
    questions: RefCell<std::collections::HashMap<SessionId, u64>>,
}

impl LeaseDesk {
    /// A server begins; its last life may have given leases.
    pub fn new(had_given: bool, now: Instant) -> LeaseDesk {
        let over = now + Duration::from_millis(HOLD_MILLIS);
        LeaseDesk {
            leases: RefCell::default(),
            began: now,
            quiet_from: Cell::new(had_given.then_some(over)),
            changed: Notify::new(),
            questions: RefCell::default(),
        }
    }

    fn now(&self) -> u64 {
        clock::instant().saturating_duration_since(self.began).as_millis() as u64
    }

    fn moment(&self, millis: u64) -> Instant {
        // The clock is read in whole milliseconds: one more is surely behind it.
        self.began + Duration::from_millis(millis + 1)
    }

    /// Takes note of a change; whether the effect was one.
    pub fn note(&self, effect: &Effect) -> bool {
        let Effect::Changed { inode, names, knows } = *effect else { return false };
        let mut leases = self.leases.borrow_mut();
        if leases.is_idle() {
            return true;
        }
        let now = self.now();
        let mut recalled = leases.changed(inode, Leased::Attributes, knows, now);
        recalled |= names && leases.changed(inode, Leased::Names, knows, now);
        if recalled {
            self.changed.notify_waiters();
        }
        true
    }

    /// A session has ended.
    pub fn end_session(&self, session: SessionId) {
        self.questions.borrow_mut().remove(&session);
        self.leases.borrow_mut().end_session(session);
        self.changed.notify_waiters();
    }

    /// What answers that are made now out of these slots wait for. Bytes of lanes are nothing that a holder of the last
    /// life may believe.
    pub fn recalled(&self, slots: impl Iterator<Item = Slot>, bytes_alone: bool) -> Recalled {
        let mut recalled = Recalled::default();
        let leases = self.leases.borrow();
        let mut slots = slots.peekable();
        if slots.peek().is_some() && !bytes_alone {
            recalled.quiet_until = self.quiet_until();
        }
        recalled.recalls.extend(slots.filter_map(|slot| Some((slot, leases.newest_pending(slot)?))));
        recalled
    }

    /// Until when somebody may believe what the last life gave him.
    pub fn quiet_until(&self) -> Option<Instant> {
        self.quiet_from.set(self.quiet_from.get().filter(|over| *over > clock::instant()));
        self.quiet_from.get()
    }

    /// Waits until nobody believes any more what was changed before.
    pub async fn pass(&self, recalled: &Recalled) {
        if let Some(over) = recalled.quiet_until {
            sleep_until(over.into()).await;
        }
        for (slot, newest) in recalled.recalls.iter().copied() {
            self.pass_slot(slot, newest).await;
        }
    }

    async fn pass_slot(&self, slot: Slot, newest: u64) {
        loop {
            let until = self.leases.borrow().pending_until(slot, newest);
            let Some(until) = until else { return };
            // Nothing else runs between the look and this: the server has one thread.
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(self.moment(until).into()) => {
                    self.leases.borrow_mut().pass(self.now());
                    self.changed.notify_waiters();
                }
            }
        }
    }
}

/// Recalls that an answer waits for.
#[derive(Debug, Default)]
pub struct Recalled {
    quiet_until: Option<Instant>,
    /// In each slot all up to the newest that there was.
    recalls: Vec<(Slot, u64)>,
    /// Recalls of leases on bytes.
    pub data: Vec<u64>,
}

impl Recalled {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.quiet_until.is_none() && self.recalls.is_empty() && self.data.is_empty()
    }
}

impl Server {
    /// A lookup with leases.
    pub async fn lease_name(
        self: &Rc<Self>,
        header: &Call,
        who: &Credentials,
        request: LeaseName,
    ) -> Outcome<NameLeased> {
        let (slot, parent) = (header.slot, request.parent);
        self.admit_slot(header, slot).await?;
        self.notice_lost_slots()?;
        match self.query(who, slot, &Query::Lookup(Lookup { parent, name: request.name })) {
            Ok(Answer::Found(found)) => {
                let names = request.names && self.lease_names(header.session, slot, parent);
                let attributes =
                    found.attributes.is_some() && self.lease(header.session, found.inode, Leased::Attributes);
                Ok(NameLeased { found: Some(found), names, attributes, directory: None })
            }
            Ok(_) => unreachable!("a slot answers what it was asked"),
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
        request: LeaseAttributes,
    ) -> Outcome<AttributesLeased> {
        let inode = request.inode;
        let slot = inode.slot();
        self.admit_slot(header, slot).await?;
        self.notice_lost_slots()?;
        let asked = self.query(who, slot, &Query::GetAttributes(GetAttributes { inode }));
        let answer = asked.map(|answer| match answer {
            Answer::Info(info) => {
                // Of a spread directory this is not all.
                let whole = info.partitions.is_empty();
                let attributes = whole && self.lease(header.session, inode, Leased::Attributes);
                let names = request.names && self.lease_names(header.session, slot, inode);
                AttributesLeased { info: *info, attributes, names }
            }
            _ => unreachable!("a slot answers what it was asked"),
        });
        Ok(answer?)
    }

    /// Leases on an entry that a change has told its session of, as far as it still is what was told.
    pub fn lease_told(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        entry: Lookup,
        told: &Attributes,
    ) -> EntryLeased {
        let (parent, not) = (entry.parent, EntryLeased::default());
        if !self.leases.leases.borrow().listens(session) {
            return not;
        }
        match self.query(who, slot, &Query::Lookup(entry)) {
            Ok(Answer::Found(found)) if found.attributes.as_ref() == Some(told) => EntryLeased {
                names: self.lease_names(session, slot, parent),
                attributes: self.lease(session, told.inode, Leased::Attributes),
            },
            _ => not,
        }
    }

    /// A directory as it is now, with a lease, as far as its session hears of recalls and it is all here.
    pub fn lease_changed(
        self: &Rc<Self>,
        session: SessionId,
        who: &Credentials,
        slot: Slot,
        directory: InodeId,
    ) -> Option<Attributes> {
        if directory.slot() != slot || !self.leases.leases.borrow().listens(session) {
            return None;
        }
        match self.query(who, slot, &Query::GetAttributes(GetAttributes { inode: directory })) {
            Ok(Answer::Info(info)) => {
                let leased = info.partitions.is_empty() && self.lease(session, directory, Leased::Attributes);
                leased.then_some(info.attributes)
            }
            _ => None,
        }
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

    /// Answers when leases of the session are recalled, or after a while.
    pub async fn wait_recalls(&self, session: SessionId, request: WaitRecalls) -> Result<Recalls> {
        let desk = &self.leases;
        let question = {
            let mut questions = desk.questions.borrow_mut();
            let newest = questions.entry(session).or_default();
            *newest += 1;
            *newest
        };
        // Wakes older questions, and those who wait for what is done.
        desk.leases.borrow_mut().heard(session, request.heard);
        desk.changed.notify_waiters();
        let life = self.data.life;
        let asked = async {
            loop {
                let recalls = desk.leases.borrow().unheard(session);
                let data = self.data.unacknowledged(session, request.told);
                let is_newest = desk.questions.borrow().get(&session) == Some(&question);
                let is_news = request.life != 0 && request.life != life;
                if !recalls.is_empty() || !data.is_empty() || !is_newest || is_news {
                    return Recalls { recalls, data, life };
                }
                tokio::select! {
                    () = desk.changed.notified() => {}
                    () = self.data.changed.notified() => {}
                }
            }
        };
        let nothing = Recalls { life, ..Recalls::default() };
        let recalls =
            timeout(Duration::from_millis(limits::EVENTS_MILLIS_MAX), asked).await.unwrap_or(nothing);
        if self.durable.borrow().sessions.contains(session) {
            return Ok(recalls);
        }
        Err(Error::new(ErrorKind::Stale, "the session has ended while it waited for recalls"))
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
