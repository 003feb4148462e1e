//! Clients' changes of a slot: what the server adds to a request before it is applied to the slot, and to the
//! answer afterwards.

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Name, Result, Sequence, Slot};
use ramlace_lanes::Change;
use ramlace_namespace::{Command, Op, Origin, Reply, SlotState};
use ramlace_transport::Proved;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::inline::{FirstPage, InlineOutcome, InlineWritten, WriteInline};
use ramlace_wire::namespace::{Closed, LayoutWish, Lookup, Made, Opened, Unlinked};
use ramlace_wire::peer::Token;
use ramlace_wire::{ClusterMap, Layout, LayoutHints, encode_body};

use crate::chunk::checked_range;
use crate::gate::Call;
use crate::identity::Identity;
use crate::many::moment;
use crate::origin::{promoted_by, spared_by};
use crate::server::{Outcome, Server};

/// A change that is about to be submitted to its slot.
struct Asked<'a> {
    call: &'a Call,
    identity: &'a Identity,
    map: &'a ClusterMap,
    slot: Slot,
    /// The request is repeated: the slot has its answer already, or will have.
    is_met: bool,
}

/// What is to be done when the slot has answered.
enum After {
    Nothing,
    /// Its answer opens the file of an entry: gives leases on both with it.
    Opens(Lookup),
    /// It creates an entry, and its answer is what the entry leads to.
    Makes(Lookup),
    /// It removes an entry, which led to this inode if that is known.
    Removes(Lookup, Option<InodeId>),
    /// A kernel writes back pages of an inline file.
    WritesBack(InodeId, Vec<u8>),
    /// A program writes this many bytes into an inline file.
    Writes(u64),
    /// An inline file is truncated.
    Cuts(InodeId, u64),
    /// An inline file is promoted to its lanes, by a session whose kernel may have its first page.
    Promotes(InodeId, FirstPage),
    /// The session closes an inode, whose attributes it may want with a lease.
    Closes(InodeId, bool),
    /// It sets rules of a file, which nobody may have open then.
    SetsRules(InodeId),
    /// A kernel gets a file that it may change without notice.
    Passes(InodeId),
}

impl Server {
    /// Submits a client's change to a slot; returns the body of the answer. `path`: the path by which the
    /// request names its directory, usually empty.
    pub async fn change(
        self: &Rc<Self>,
        call: &Call,
        proved: &Proved,
        identity: Identity,
        path: &[Name],
        (slot, op): (Slot, Op),
    ) -> Outcome<Vec<u8>> {
        let map = self.admit(call, slot).await?;
        let token = Token { session: call.session, sequence: call.sequence };
        let is_met = self.has_met(slot, token);
        // From here to the slot's step nothing else runs, so the path still leads there then. A request that
        // was taken before has its answer, wherever the path leads by now.
        if !path.is_empty() && !is_met {
            self.check_path(call, &identity.who, &map, path, parent_of(&op))?;
        }
        let asked = Asked { call, identity: &identity, map: &map, slot, is_met };
        let after = self.after(&asked, &op);
        let op = self.complete(&asked, op).await?;
        let reply = self.mutate(slot, token, command(call, &identity, op)?).await;
        if let (After::SetsRules(inode), Err(error)) = (&after, &reply)
            && error.kind() == ErrorKind::Busy
        {
            // Those who have it open only for a close that they have deferred close it now.
            self.leases.recall_attributes(*inode, call.session);
        }
        self.answer_to_change(&asked, proved, after, reply?)
    }

    /// Completes the change with what the server has to add, after doing what must happen before the slot
    /// applies it.
    async fn complete(self: &Rc<Self>, asked: &Asked<'_>, op: Op) -> Outcome<Op> {
        let Asked { call, map, slot, is_met, .. } = *asked;
        Ok(match op {
            Op::Create(mut request) => {
                let name = request.name.as_bytes();
                let layout = self.lay_out(asked, request.layout, &request.wish, request.parent, name)?;
                (request.layout, request.wish) = (Some(layout), without_layout(&request.wish));
                Op::Create(request)
            }
            Op::CreateUnnamed(mut request) => {
                let layout = self.lay_out(asked, request.layout, &request.wish, request.parent, b"")?;
                (request.layout, request.wish) = (Some(layout), without_layout(&request.wish));
                Op::CreateUnnamed(request)
            }
            Op::MakeDirectory { request, .. } => Op::MakeDirectory { request, homes: self.choose_homes(map) },
            Op::WriteInline { request, .. } => self.complete_write(asked, request)?,
            Op::ChangeInlineCell { request, .. } => {
                if is_met {
                    self.changed_inline_before(call, call.session, request.inode)?;
                } else {
                    let range = checked_range(request.offset, 8)?;
                    self.before_inline_change(Some(call), call.session, request.inode, range, Change::Write)?;
                }
                Op::ChangeInlineCell { request, room: self.has_inline_room() }
            }
            Op::Truncate(request) => {
                match is_met {
                    true => self.changed_inline_before(call, call.session, request.inode)?,
                    false => self.before_inline_cut(call, request.inode, request.size)?,
                }
                Op::Truncate(request)
            }
            Op::Promote { request, .. } => {
                if !is_met {
                    self.before_promotion(call, &request).await?;
                }
                Op::Promote { request, epoch: map.epoch }
            }
            Op::ArriveBarrier { request, .. } => {
                let room = self.has_room_for_member(slot, &request);
                Op::ArriveBarrier { request, room }
            }
            Op::CancelChange(request) => {
                // The cancelled change may still be done. Its session does not wait for the answer any more, so it
                // is notified of the change by recalls, as others are.
                let token = Token { session: call.session, sequence: request.sequence };
                self.waiting.borrow_mut().remove(&token);
                Op::CancelChange(request)
            }
            op => op,
        })
    }

    fn complete_write(self: &Rc<Self>, asked: &Asked<'_>, mut request: WriteInline) -> Result<Op> {
        let call = asked.call;
        if !asked.is_met {
            self.before_inline_write(call, &mut request)?;
        } else if request.origin != WriteOrigin::Back {
            self.changed_inline_before(call, spared_by(call.session, request.origin), request.inode)?;
        }
        // Room is reserved for promised changes.
        let room = call.promised().is_some() || self.has_inline_room();
        Ok(Op::WriteInline { request, room })
    }

    /// The layout of a new file. The home sets the epoch of the creation; a creator's map may be older.
    fn lay_out(
        self: &Rc<Self>,
        asked: &Asked<'_>,
        wanted: Option<Layout>,
        wish: &LayoutWish,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Layout> {
        let mut layout = match wanted {
            Some(layout) => layout,
            None => self.choose_layout(asked.map, asked.slot, wish, parent, name)?,
        };
        layout.created = asked.map.epoch;
        Ok(layout)
    }

    /// What is to be done when the slot has answered.
    fn after(self: &Rc<Self>, asked: &Asked<'_>, op: &Op) -> After {
        let entry = |parent: InodeId, name: &Name| Lookup { parent, name: name.clone() };
        match op {
            Op::Create(request) => After::Opens(entry(request.parent, &request.name)),
            Op::MakeDirectory { request, .. } => After::Makes(entry(request.parent, &request.name)),
            Op::Symlink(request) => After::Makes(entry(request.parent, &request.name)),
            Op::MakeNode(request) => After::Makes(entry(request.parent, &request.name)),
            Op::Link(request) => After::Makes(entry(request.parent, &request.name)),
            Op::Unlink(request) => {
                let entry = entry(request.parent, &request.name);
                // For a repeated request it is no longer known what it has removed.
                let is_new = !asked.is_met;
                let found =
                    is_new.then(|| self.query(&asked.identity.who, asked.slot, &entry).ok()).flatten();
                After::Removes(entry, found.map(|found| found.inode))
            }
            Op::WriteInline { request, .. } if request.origin == WriteOrigin::Back => {
                After::WritesBack(request.inode, request.bytes.0.clone())
            }
            Op::WriteInline { request, .. } => After::Writes(request.bytes.0.len() as u64),
            Op::Truncate(request) if !asked.is_met => After::Cuts(request.inode, request.size),
            Op::Promote { request, .. } => After::Promotes(request.inode, request.first_page),
            Op::Close(request) => After::Closes(request.inode, request.leases),
            Op::SetLayout(request) => After::SetsRules(request.inode),
            Op::BeginPassthrough(request) if !request.over => After::Passes(request.inode),
            _ => After::Nothing,
        }
    }

    /// The body of the answer, completed with what the server knows.
    fn answer_to_change(
        self: &Rc<Self>,
        asked: &Asked<'_>,
        proved: &Proved,
        after: After,
        mut reply: Reply,
    ) -> Outcome<Vec<u8>> {
        let Asked { call, identity, slot, .. } = *asked;
        let (session, who) = (call.session, &identity.who);
        if let Reply::Opened(opened) = &mut reply {
            opened.permit = self.permit(proved, session, opened.info.attributes.inode);
        }
        match (after, &mut reply) {
            (After::Opens(entry), Reply::Opened(opened)) => {
                let Opened { info, parent, leased, .. } = &mut **opened;
                *parent = self.lease_entered(session, who, slot, &entry, Some(info.attributes.inode));
                *leased = self.lease_described(session, who, slot, &entry, &info.attributes);
            }
            (After::Makes(entry), Reply::Attributes(attributes)) => {
                let parent = self.lease_entered(session, who, slot, &entry, Some(attributes.inode));
                return Ok(encode_body(&Made { attributes: (**attributes).clone(), parent }));
            }
            (After::Removes(entry, inode), _) => {
                let parent = self.lease_entered(session, who, slot, &entry, None);
                return Ok(encode_body(&Unlinked { parent, inode }));
            }
            (After::WritesBack(inode, bytes), Reply::WroteInline(written)) => {
                self.count_written(asked, written, bytes.len() as u64);
                self.note_written_back(call, inode, &bytes, written);
            }
            (After::Writes(bytes), Reply::WroteInline(written)) => self.count_written(asked, written, bytes),
            (After::Cuts(inode, start), _) => {
                let range = ByteRange { start, end: u64::MAX };
                self.before_inline_change(Some(call), session, inode, range, Change::Erase)?;
            }
            (After::Promotes(inode, first_page), _) => {
                self.changed_inline_before(call, promoted_by(session, first_page), inode)?;
            }
            // Whoever opens the file from now on has to learn of it.
            (After::Passes(inode), _) => self.leases.recall_attributes(inode, session),
            (After::Closes(inode, leases), _) => {
                let awaits = |names: &SlotState| names.awaits_last_close(inode);
                if self.durable.borrow().names(slot).is_some_and(awaits) {
                    // Others may have it open only for a close that they have deferred.
                    self.leases.recall_attributes(inode, session);
                }
                let attributes = leases.then(|| self.lease_changed(session, who, slot, inode)).flatten();
                return Ok(encode_body(&Closed { attributes }));
            }
            _ => {}
        }
        Ok(reply.encode())
    }

    /// Counts what the slot has taken, once.
    fn count_written(&self, asked: &Asked<'_>, written: &InlineWritten, bytes: u64) {
        if written.outcome == InlineOutcome::Written && !asked.is_met {
            self.counters.written_bytes(bytes);
        }
    }

    fn note_written_back(
        self: &Rc<Self>,
        call: &Call,
        inode: InodeId,
        bytes: &[u8],
        written: &mut InlineWritten,
    ) {
        let place = (inode, None);
        if written.outcome == InlineOutcome::Written {
            let range = ByteRange { start: written.offset, end: written.offset + bytes.len() as u64 };
            self.note_written(place, call.session, range, bytes, WriteOrigin::Back);
        }
        written.recall = self.newest_recall(place, call.session);
    }
}

/// The directory of the entry that a change is about, if the change may name it by a path.
fn parent_of(op: &Op) -> Option<InodeId> {
    match op {
        Op::MakeDirectory { request, .. } => Some(request.parent),
        Op::Create(request) => Some(request.parent),
        Op::OpenEntry(request) => Some(request.parent),
        Op::Symlink(request) => Some(request.parent),
        Op::MakeNode(request) => Some(request.parent),
        Op::Unlink(request) => Some(request.parent),
        Op::RemoveDirectory(request) => Some(request.parent),
        _ => None,
    }
}

fn command(call: &Call, identity: &Identity, op: Op) -> Result<Command> {
    if call.sequence == Sequence(0) {
        let text = format!("a {:?} needs a sequence number", call.kind);
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let origin = Origin::Client {
        session: call.session,
        sequence: call.sequence,
        acknowledged_below: Sequence(call.sequence.0 - u64::from(call.outstanding)),
        who: identity.who.clone(),
        on_behalf: identity.on_behalf,
    };
    Ok(Command { now: moment(call.promised()), origin, op })
}

/// What remains for the slot of a layout wish once the layout is chosen: the rules that the file keeps.
fn without_layout(wish: &LayoutWish) -> LayoutWish {
    LayoutWish { hints: LayoutHints::of_file(wish.hints.rules), ..LayoutWish::default() }
}
