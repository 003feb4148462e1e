//! Families 0x03 and 0x04: what clients and peers ask of slots, and which slot they mean.

use std::rc::Rc;

use ramlace_base::{
    ByteRange, Epoch, Error, ErrorKind, InodeId, Name, Result, Sequence, SessionId, Slot, limits,
};
use ramlace_lanes::Change;
use ramlace_namespace::{Answer, Command, Delivery, Op, Origin, Query, Reply};
use ramlace_transport::Proved;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::coordination;
use ramlace_wire::inline::{self, InlineOutcome, InlineRead, ReadInline};
use ramlace_wire::locks;
use ramlace_wire::mend;
use ramlace_wire::namespace as names;
use ramlace_wire::peer::{self, Token};
use ramlace_wire::{Header, Kind, LayoutHints, decode_body, encode_body, flags, xattrs};

use crate::chunk::checked_range;
use crate::gate::Call;
use crate::identity::Identity;
use crate::many::moment;
use crate::server::{Outcome, Server};

/// A request to a slot.
pub enum Request {
    /// Changes nothing.
    Query(Slot, Query),
    /// A client's mutation.
    Mutation(Slot, Op),
    /// A directory whose home this server has yet to choose.
    MakeDirectory(Slot, names::MakeDirectory),
    /// What this server's partitions of a directory say together.
    Partitions(names::GetPartitions),
    /// A peer's message.
    Delivery(Delivery),
    /// A lane's question.
    Pages(peer::QueryPages),
    /// A lane is about to begin.
    Begins(peer::BeginLane),
}

/// A message of a peer, if some state of a pool makes it true.
pub fn possible<R: ramlace_wire::Request>(request: R) -> Result<R> {
    if request.is_possible() {
        return Ok(request);
    }
    Err(Error::new(ErrorKind::Protocol, format!("a {:?} came that says what cannot be", R::KIND)))
}

/// Reads a request of the namespace's or the peers' family.
pub fn parse(header: &Header, body: &[u8]) -> Result<Request> {
    let kind = header.kind;
    macro_rules! read {
        ($type:ty) => {
            decode_body::<$type>(kind, body)?
        };
    }
    macro_rules! mutation {
        ($name:ident, $slot:ident) => {{
            let request = read!(names::$name);
            Request::Mutation(request.$slot.slot(), Op::$name(request))
        }};
    }
    macro_rules! query {
        ($name:ident, $slot:ident) => {{
            let request = read!(names::$name);
            Request::Query(request.$slot.slot(), Query::$name(request))
        }};
    }
    // What is about a directory's entries goes to the slot that the header names: the directory may
    // be spread over several.
    macro_rules! entry {
        ($name:ident) => {
            Request::Mutation(header.slot, Op::$name(read!(names::$name)))
        };
    }
    macro_rules! entries_query {
        ($name:ident) => {
            Request::Query(header.slot, Query::$name(read!(names::$name)))
        };
    }
    macro_rules! delivery {
        ($name:ident) => {
            Request::Delivery(Delivery::$name(possible(read!(peer::$name))?))
        };
    }
    Ok(match kind {
        Kind::Lookup => entries_query!(Lookup),
        Kind::GetAttributes => entries_query!(GetAttributes),
        Kind::ReadLink => query!(ReadLink, inode),
        Kind::ReadDirectory => entries_query!(ReadDirectory),
        Kind::SetAttributes => mutation!(SetAttributes, inode),
        Kind::Truncate => mutation!(Truncate, inode),
        Kind::Create => entry!(Create),
        Kind::Open => mutation!(Open, inode),
        Kind::OpenEntry => entry!(OpenEntry),
        Kind::GiveUp => entry!(GiveUp),
        Kind::HandOver => mutation!(HandOver, inode),
        Kind::Close => mutation!(Close, inode),
        Kind::Symlink => entry!(Symlink),
        Kind::MakeNode => entry!(MakeNode),
        Kind::RemoveDirectory => entry!(RemoveDirectory),
        Kind::Unlink => entry!(Unlink),
        Kind::CreateUnnamed => mutation!(CreateUnnamed, parent),
        Kind::SetXattr => {
            let request = read!(xattrs::SetXattr);
            Request::Mutation(request.inode.slot(), Op::SetXattr(request))
        }
        Kind::RemoveXattr => {
            let request = read!(xattrs::RemoveXattr);
            Request::Mutation(request.inode.slot(), Op::RemoveXattr(request))
        }
        Kind::GetXattr => {
            let request = read!(xattrs::GetXattr);
            Request::Query(request.inode.slot(), Query::GetXattr(request))
        }
        Kind::ListXattrs => {
            let request = read!(xattrs::ListXattrs);
            Request::Query(request.inode.slot(), Query::ListXattrs(request))
        }
        Kind::Extend => mutation!(Extend, inode),
        Kind::NoteMemory => mutation!(NoteMemory, inode),
        Kind::ReserveAppend => mutation!(ReserveAppend, inode),
        Kind::FinishAppend => mutation!(FinishAppend, inode),
        Kind::ReadInline => {
            let request = read!(inline::ReadInline);
            // What the session of a host has open gives no right to those for whom it asks.
            let on_behalf = header.flags & flags::ON_BEHALF != 0;
            let session = if on_behalf { SessionId::NONE } else { header.session };
            Request::Query(request.inode.slot(), Query::ReadInline { request, session })
        }
        Kind::WriteInline => {
            let request = read!(inline::WriteInline);
            // Whether there is room is seen when it is done.
            Request::Mutation(request.inode.slot(), Op::WriteInline { request, room: false })
        }
        Kind::Promote => {
            let request = read!(inline::Promote);
            // In which epoch, the home knows.
            Request::Mutation(request.inode.slot(), Op::Promote { request, epoch: Epoch(0) })
        }
        Kind::SetLock => {
            let request = read!(locks::SetLock);
            Request::Mutation(request.inode.slot(), Op::SetLock(request))
        }
        Kind::CancelLock => {
            let request = read!(locks::CancelLock);
            Request::Mutation(request.inode.slot(), Op::CancelLock(request))
        }
        Kind::ArriveBarrier => {
            let request = read!(coordination::ArriveBarrier);
            // Whether there is room is seen when it is done.
            Request::Mutation(header.slot, Op::ArriveBarrier { request, room: false })
        }
        Kind::LeaveBarrier => {
            let request = read!(coordination::LeaveBarrier);
            Request::Mutation(header.slot, Op::LeaveBarrier(request))
        }
        Kind::ChangeInlineCell => {
            let request = read!(coordination::ChangeInlineCell);
            Request::Mutation(request.inode.slot(), Op::ChangeInlineCell { request, room: false })
        }
        Kind::GetLock => {
            let request = read!(locks::GetLock);
            Request::Query(request.inode.slot(), Query::GetLock { request, session: header.session })
        }
        Kind::SetLayout => mutation!(SetLayout, inode),
        Kind::Link => entry!(Link),
        Kind::Rename => {
            let request = read!(names::Rename);
            Request::Mutation(header.slot, Op::Rename(Box::new(request)))
        }
        Kind::MakeDirectory => Request::MakeDirectory(header.slot, read!(names::MakeDirectory)),
        Kind::GetPartitions => {
            let request = read!(names::GetPartitions);
            if request.slots.first() != Some(&header.slot)
                || request.slots.len() > limits::DIRECTORY_PARTITIONS
            {
                let text = "a question for partitions goes to the first of some slots";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Request::Partitions(request)
        }
        Kind::QueryInode => {
            let request = read!(peer::QueryInode);
            Request::Query(request.inode.slot(), Query::QueryInode(request))
        }
        Kind::QueryPages => Request::Pages(read!(peer::QueryPages)),
        Kind::BeginLane => Request::Begins(read!(peer::BeginLane)),
        Kind::QueryOperations => Request::Query(read!(mend::QueryOperations).coordinator, Query::Operations),
        Kind::Prepare => Request::Delivery(Delivery::Prepare(Box::new(possible(read!(peer::Prepare))?))),
        Kind::Settle => delivery!(Settle),
        Kind::Ascend => delivery!(Ascend),
        Kind::CutLane => delivery!(CutLane),
        Kind::DropLane => delivery!(DropLane),
        Kind::TrimLane => delivery!(TrimLane),
        Kind::FillLane => delivery!(FillLane),
        _ => {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("a {kind:?} is nothing that a slot is asked"),
            ));
        }
    })
}

impl Request {
    /// The directory of the entry that it is about, where it is about one.
    fn parent(&self) -> Option<InodeId> {
        Some(match self {
            Request::MakeDirectory(_, request) => request.parent,
            Request::Mutation(_, op) => match op {
                Op::Create(request) => request.parent,
                Op::OpenEntry(request) => request.parent,
                Op::Symlink(request) => request.parent,
                Op::MakeNode(request) => request.parent,
                Op::Unlink(request) => request.parent,
                Op::RemoveDirectory(request) => request.parent,
                _ => return None,
            },
            _ => return None,
        })
    }

    /// The entry that it makes, where its answer is what that leads to.
    fn enters(&self) -> Option<names::Lookup> {
        let (parent, name) = match self {
            Request::MakeDirectory(_, request) => (request.parent, &request.name),
            Request::Mutation(_, Op::Symlink(request)) => (request.parent, &request.name),
            Request::Mutation(_, Op::MakeNode(request)) => (request.parent, &request.name),
            Request::Mutation(_, Op::Link(request)) => (request.parent, &request.name),
            _ => return None,
        };
        Some(names::Lookup { parent, name: name.clone() })
    }

    /// The slot that is asked.
    pub fn slot(&self) -> Slot {
        match self {
            Request::Query(slot, _) | Request::Mutation(slot, _) | Request::MakeDirectory(slot, _) => *slot,

            Request::Partitions(request) => request.slots[0],
            Request::Delivery(delivery) => delivery.slot(),
            Request::Pages(request) => request.inode.slot(),
            Request::Begins(request) => request.inode.slot(),
        }
    }
}

impl Server {
    /// Attributes of those inodes that live here; a server that does not hold one, or for which
    /// it is gone, says so of that one alone.
    pub async fn attributes_of_many(
        self: &Rc<Self>,
        header: &Call,
        who: &ramlace_wire::Credentials,
        request: &names::GetAttributesMany,
    ) -> Outcome<names::ManyAttributes> {
        if request.inodes.len() > limits::READDIR_ENTRIES_MAX as usize {
            let most = limits::READDIR_ENTRIES_MAX;
            let text = format!("attributes of {} inodes are too many; at most {most}", request.inodes.len());
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut attributes = Vec::with_capacity(request.inodes.len());
        for inode in request.inodes.iter().copied() {
            let query = Query::GetAttributes(names::GetAttributes { inode });
            let is_here = self.admit_slot(header, inode.slot()).await.is_ok();
            attributes.push(match is_here.then(|| self.query(who, inode.slot(), &query)) {
                // Of a spread directory this is not all.
                Some(Ok(Answer::Info(info))) if info.partitions.is_empty() => Some(info.attributes),
                _ => None,
            });
        }
        Ok(names::ManyAttributes { attributes })
    }

    /// Does what a request asks of a slot; the answer's body comes back.
    pub async fn serve_slot(
        self: &Rc<Self>,
        header: &Call,
        proved: &Proved,
        identity: Identity,
        way: &[Name],
        request: Request,
    ) -> Outcome<Vec<u8>> {
        let Identity { who, on_behalf } = identity;
        let slot = request.slot();
        let map = self.admit_slot(header, slot).await?;
        self.notice_lost_slots()?;
        let token = Token { session: header.session, sequence: header.sequence };
        // From here to the slot's step nothing else happens: what the path leads to stays so. One that was
        // taken before has its answer, wherever the path leads by now.
        if !way.is_empty() && !self.has_met(slot, token) {
            self.check_way(header, &who, &map, way, request.parent())?;
        }
        let (mut wrote_back, mut truncated, mut promoted) = (None::<(InodeId, Vec<u8>)>, None, None);
        let entered = request.enters();
        let (mut made, mut removed) = (None, None);
        let op = match request {
            Request::Query(slot, query) => {
                let answer = self.query(&who, slot, &query)?;
                if let Answer::Inline(InlineRead { bytes: Some(bytes), .. }) = &answer {
                    self.counters.read_bytes(bytes.0.len() as u64);
                    if let Query::ReadInline { request: ReadInline { inode, keep: true, .. }, .. } = query {
                        let range = ByteRange { start: 0, end: limits::INLINE_BYTES_MAX as u64 };
                        self.keep_pages((inode, None), header.session, range)?;
                    }
                }
                return Ok(answer.encode());
            }
            Request::Partitions(request) => {
                return Ok(encode_body(&self.partitions(header, &who, &map, &request)?));
            }
            Request::Delivery(delivery) => return Ok(self.accept(delivery).await?.encode()),
            Request::Pages(request) => return Ok(encode_body(&self.query_pages(request)?)),
            Request::Begins(request) => return Ok(encode_body(&self.begin_lane(request)?)),
            // The home knows in which epoch it creates; a creator's map may be older.
            Request::Mutation(_, Op::Create(mut request)) => {
                let mut layout = match request.layout {
                    Some(layout) => layout,
                    None => self.choose_layout(
                        &map,
                        slot,
                        &request.wish,
                        request.parent,
                        request.name.as_bytes(),
                    )?,
                };
                layout.created = map.epoch;
                request.layout = Some(layout);
                request.wish = without_layout(&request.wish);
                made = Some(names::Lookup { parent: request.parent, name: request.name.clone() });
                Op::Create(request)
            }
            Request::Mutation(_, Op::WriteInline { mut request, .. }) => {
                if request.origin == WriteOrigin::Back {
                    wrote_back = Some((request.inode, request.bytes.0.clone()));
                }
                if !self.has_met(slot, token) {
                    self.before_inline_write(header, &mut request)?;
                } else if request.origin != WriteOrigin::Back {
                    self.changed_inline_before(header, request.inode)?;
                }
                self.counters.written_bytes(request.bytes.0.len() as u64);
                // What was promised has its room.
                let room = header.promised().is_some() || self.has_inline_room();
                Op::WriteInline { request, room }
            }
            Request::Mutation(_, Op::ChangeInlineCell { request, .. }) => {
                if !self.has_met(slot, token) {
                    let range = checked_range(request.offset, 8)?;
                    self.before_inline_change(
                        Some(header),
                        header.session,
                        request.inode,
                        range,
                        Change::Write,
                    )?;
                } else {
                    self.changed_inline_before(header, request.inode)?;
                }
                Op::ChangeInlineCell { request, room: self.has_inline_room() }
            }
            Request::Mutation(slot, Op::ArriveBarrier { request, .. }) => {
                let room = self.has_room_for_member(slot, &request);
                Op::ArriveBarrier { request, room }
            }
            Request::Mutation(_, Op::CreateUnnamed(mut request)) => {
                let mut layout = match request.layout {
                    Some(layout) => layout,
                    None => self.choose_layout(&map, slot, &request.wish, request.parent, b"")?,
                };
                layout.created = map.epoch;
                request.layout = Some(layout);
                request.wish = without_layout(&request.wish);
                Op::CreateUnnamed(request)
            }
            Request::Mutation(_, Op::Truncate(request)) => {
                if !self.has_met(slot, token) {
                    self.before_inline_cut(header, request.inode, request.size)?;
                    truncated = Some((request.inode, request.size));
                }
                Op::Truncate(request)
            }
            Request::Mutation(_, Op::Promote { request, .. }) => {
                if !self.has_met(slot, token) {
                    self.before_promotion(header, (request.inode, None)).await?;
                }
                promoted = Some(request.inode);
                Op::Promote { request, epoch: map.epoch }
            }
            Request::Mutation(_, Op::Unlink(request)) => {
                let entry = names::Lookup { parent: request.parent, name: request.name.clone() };
                // What one that was done before has removed, is not known any more.
                let led_to = match self.has_met(slot, token) {
                    false => self.query(&who, slot, &Query::Lookup(entry.clone())).ok(),
                    true => None,
                };
                let led_to = led_to.and_then(|found| match found {
                    Answer::Found(found) => Some(found.inode),
                    _ => None,
                });
                removed = Some((entry, led_to));
                Op::Unlink(request)
            }
            Request::Mutation(_, Op::GiveUp(request)) => {
                // What was given up may be done yet, and its session knows nothing of that.
                self.waiting
                    .borrow_mut()
                    .remove(&Token { session: header.session, sequence: request.sequence });
                Op::GiveUp(request)
            }
            Request::Mutation(_, op) => op,
            Request::MakeDirectory(_, request) => {
                Op::MakeDirectory { request, homes: self.choose_homes(&map) }
            }
        };
        if header.sequence == Sequence(0) {
            let text = format!("a {:?} needs a sequence number", header.kind);
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let command = Command {
            now: moment(header.promised()),
            origin: Origin::Client {
                session: header.session,
                sequence: header.sequence,
                acknowledged_below: Sequence(header.sequence.0 - u64::from(header.outstanding)),
                who: who.clone(),
                on_behalf,
            },
            op,
        };
        let mut reply = self.mutate(slot, token, command).await?;
        if let Some((inode, start)) = truncated {
            let range = ByteRange { start, end: u64::MAX };
            self.before_inline_change(Some(header), header.session, inode, range, Change::Erase)?;
        }
        if let Some(inode) = promoted {
            self.changed_inline_before(header, inode)?;
        }
        if let (Reply::WroteInline(written), Some((inode, bytes))) = (&mut reply, wrote_back) {
            let place = (inode, None);
            if written.outcome == InlineOutcome::Written {
                let range = ByteRange { start: written.offset, end: written.offset + bytes.len() as u64 };
                self.note_written(place, header.session, range, &bytes, WriteOrigin::Back);
            }
            written.recall = self.newest_recall(place, header.session);
        }
        if let Reply::Opened(opened) = &mut reply {
            let told = &opened.info.attributes;
            opened.permit = self.permit(proved, header.session, told.inode);
            if let Some(entry) = made {
                opened.parent = self.lease_entered(header.session, &who, slot, &entry, Some(told.inode));
                opened.leased = self.lease_told(header.session, &who, slot, entry, told);
            }
        }
        if let (Reply::Attributes(attributes), Some(entry)) = (&reply, entered) {
            let parent = self.lease_entered(header.session, &who, slot, &entry, Some(attributes.inode));
            return Ok(encode_body(&names::Made { attributes: (**attributes).clone(), parent }));
        }
        if let Some((entry, inode)) = removed {
            let parent = self.lease_entered(header.session, &who, slot, &entry, None);
            return Ok(encode_body(&names::Unlinked { parent, inode }));
        }
        Ok(reply.encode())
    }
}

/// What the slot has yet to hear of a wish for a layout that is chosen: the file's mode.
fn without_layout(wish: &names::LayoutWish) -> names::LayoutWish {
    names::LayoutWish { hints: LayoutHints::of_file(wish.hints.mode), ..names::LayoutWish::default() }
}
