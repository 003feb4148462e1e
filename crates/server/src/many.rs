//! Many changes of one slot in one message ([`ramlace_wire::delegation::ChangeMany`]). Each is applied as if it
//! had been sent alone.

use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, Result, Sequence, Slot, Timestamp, limits};
use ramlace_namespace::Op;
use ramlace_transport::{Proved, Role};
use ramlace_wire::delegation::{Change, ChangeMany, Changed, ManyChanged};
use ramlace_wire::inline::Bytes;
use ramlace_wire::peer::Token;
use ramlace_wire::{ErrorBody, Header, Kind};

use crate::clock;
use crate::gate::Call;
use crate::identity::Identity;
use crate::server::{Outcome, Server};

/// The greatest age that a promise may claim: one that is sent later, because its server was away, counts as
/// this old.
const PROMISED_NANOS_MAX: i64 = 60_000_000_000;

impl Server {
    /// Does changes in order, up to the first that has to be repeated; then the slot is delegated, or given
    /// back, as requested.
    ///
    /// Errors: of the first change, if that has to be repeated; `Denied` for a host, whose users' rights its
    /// kernel does not know; `Invalid` for anything that is not such a change.
    pub async fn change_many(
        self: &Rc<Self>,
        call: &Call,
        proved: &Proved,
        identity: &Identity,
        request: ChangeMany,
    ) -> Outcome<ManyChanged> {
        if proved.role != Role::Owner {
            return Err(Error::new(ErrorKind::Denied, "slots are delegated to the pool's owner alone").into());
        }
        if request.changes.len() > limits::CHANGES_PER_MESSAGE_MAX {
            let most = limits::CHANGES_PER_MESSAGE_MAX;
            let text =
                format!("{} changes are too many for one message; at most {most}", request.changes.len());
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let slot = call.slot;
        self.admit_slot(call, slot).await?;
        let mut changed = Vec::with_capacity(request.changes.len());
        let mut is_broken = false;
        for change in &request.changes {
            let is_met = self.has_met(slot, Token { session: call.session, sequence: change.sequence });
            let promised = if is_broken { Err(behind_broken(slot)) } else { Ok(()) };
            let checks = || self.check_promised(call, &request, change, is_met);
            let outcome = match promised.and_then(|()| checks()) {
                Ok(()) => self.change_one(call, proved, identity, (request.delegation, change)).await,
                Err(refusal) => Err(refusal.into()),
            };
            changed.push(match outcome {
                Ok(body) => Changed { body: Bytes(body), error: None },
                Err(refusal) if comes_again(refusal.error.kind()) && changed.is_empty() => {
                    return Err(refusal);
                }
                Err(refusal) if comes_again(refusal.error.kind()) => break,
                Err(refusal) => {
                    // What was promised after it may depend on it. A late copy of what was done and acknowledged
                    // breaks nothing, nor does a close of what is not open: nothing depends on one.
                    let is_late = is_met && refusal.error.kind() == ErrorKind::Stale;
                    let is_closed =
                        change.kind == Kind::Close.number() && refusal.error.kind() == ErrorKind::BadHandle;
                    is_broken |= request.delegation != 0 && !is_late && !is_closed;
                    Changed { body: Bytes::default(), error: Some(ErrorBody::new(&refusal.error)) }
                }
            });
        }
        let is_all = changed.len() == request.changes.len();
        let is_done = is_all && changed.iter().all(|changed| changed.error.is_none());
        let wanted = request.wanted_for.filter(|directory| is_done && directory.slot() == slot);
        let delegated = wanted.and_then(|directory| self.delegate(call.session, &identity.who, directory));
        let gives_back = request.gives_back && is_all;
        if gives_back || is_broken {
            let acknowledged = if gives_back { request.acknowledged_below } else { Sequence(0) };
            self.give_back(call, slot, request.delegation, acknowledged)?;
        }
        if request.delegation != 0 {
            self.recall_without_room(slot);
        }
        Ok(ManyChanged { changed, delegated: delegated.map(Box::new) })
    }

    fn give_back(
        self: &Rc<Self>,
        call: &Call,
        slot: Slot,
        number: u64,
        acknowledged_below: Sequence,
    ) -> Result<()> {
        match self.delegation(slot) {
            Some(held) if held.session == call.session && held.number == number => {
                self.end_delegation(slot, held, acknowledged_below)
            }
            _ => Ok(()),
        }
    }

    /// Refuses what was promised under a delegation that has ended, except what was done before.
    fn check_promised(&self, call: &Call, request: &ChangeMany, change: &Change, is_met: bool) -> Result<()> {
        let slot = call.slot;
        if request.delegation == 0 || is_met {
            return Ok(());
        }
        let held = self.delegation(slot);
        if held.is_none_or(|held| (held.session, held.number) != (call.session, request.delegation)) {
            let text = format!(
                "{slot} is delegated to this session no more: it was asked for and not given back in time"
            );
            return Err(Error::new(ErrorKind::Stale, text));
        }
        let next = self.durable.borrow().names(slot).map(ramlace_namespace::SlotState::next_inode);
        let makes = change.makes.is_some() || change.kind == Kind::Create.number();
        if makes && next != change.makes {
            let text = format!("the next inode of {slot} is another one than was promised");
            return Err(Error::new(ErrorKind::Stale, text));
        }
        Ok(())
    }

    async fn change_one(
        self: &Rc<Self>,
        call: &Call,
        proved: &Proved,
        identity: &Identity,
        (delegation, change): (u64, &Change),
    ) -> Outcome<Vec<u8>> {
        let kind = Kind::from_number(change.kind).filter(|kind| kind.row().among_many).ok_or_else(|| {
            let text = format!("message {:#06x} does not come among many", change.kind);
            Error::new(ErrorKind::Invalid, text)
        })?;
        if delegation != 0 && kind == Kind::Unlink {
            let text = "an unlink may need another slot, and cannot be promised";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        if u64::from(change.outstanding) > change.sequence.0 {
            return Err(Error::new(ErrorKind::Protocol, "a change is older than the session").into());
        }
        let (sequence, outstanding) = (change.sequence, change.outstanding);
        let header = Header { kind, flags: 0, sequence, outstanding, ..**call };
        // A change must not claim a time later than now, or long ago.
        let now = clock::now();
        let first = Timestamp { nanos: now.nanos - PROMISED_NANOS_MAX };
        let promised = (delegation != 0).then(|| change.at.clamp(first, now));
        let part = call.part(&header, promised);
        let (slot, op) = Op::asked(kind, &change.body.0, call.slot)?;
        if slot != call.slot {
            let text = format!("a change of {slot} came among those of {}", call.slot);
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let done = self.change(&part, proved, identity.clone(), &[], (slot, op)).await;
        call.absorb(part);
        done
    }
}

fn behind_broken(slot: Slot) -> Error {
    Error::new(ErrorKind::Stale, format!("a change of {slot} before it was refused, and both were promised"))
}

/// Whether nothing has happened, and the request may be repeated. `TooMany`: as soon as the session has acknowledged
/// answers; what it has promised is not lost for that.
fn comes_again(kind: ErrorKind) -> bool {
    use ErrorKind::{HostDown, Redirect, Retry, TimedOut, TooMany};
    matches!(kind, Retry | HostDown | TimedOut | TooMany | Redirect(_))
}

/// The time of a change: when it was promised, or now.
pub fn moment(promised: Option<Timestamp>) -> Timestamp {
    promised.unwrap_or_else(clock::now)
}
