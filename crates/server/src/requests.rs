//! Families 0x03 and 0x04: what clients and peers ask of slots, and which slot they mean.

use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, Result, Sequence, SessionId, Slot, limits};
use ramlace_namespace::{Answer, Command, Errand, Op, Origin, Query};
use ramlace_wire::inline::{self, InlineRead};
use ramlace_wire::namespace as names;
use ramlace_wire::peer::{self, Token};
use ramlace_wire::{Header, Kind, decode_body, flags};

use crate::clock;
use crate::identity::Identity;
use crate::server::{Outcome, Server};

/// A request to a slot.
pub enum Request {
    /// Changes nothing.
    Query(Slot, Query),
    /// A client's mutation.
    Mutation(Slot, Op),
    /// A directory whose home this server has yet to choose.
    MakeDirectory(names::MakeDirectory),
    /// A peer's message.
    Errand(Errand),
}

/// Reads a request of the namespace's or the peers' family; `None` for other families.
pub fn parse(header: &Header, body: &[u8]) -> Result<Option<Request>> {
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
    macro_rules! errand {
        ($name:ident) => {
            Request::Errand(Errand::$name(read!(peer::$name)))
        };
    }
    Ok(Some(match kind {
        Kind::Lookup => query!(Lookup, parent),
        Kind::GetAttributes => query!(GetAttributes, inode),
        Kind::ReadLink => query!(ReadLink, inode),
        Kind::ReadDirectory => query!(ReadDirectory, inode),
        Kind::SetAttributes => mutation!(SetAttributes, inode),
        Kind::Truncate => mutation!(Truncate, inode),
        Kind::Create => mutation!(Create, parent),
        Kind::Open => mutation!(Open, inode),
        Kind::Close => mutation!(Close, inode),
        Kind::Symlink => mutation!(Symlink, parent),
        Kind::MakeNode => mutation!(MakeNode, parent),
        Kind::RemoveDirectory => mutation!(RemoveDirectory, parent),
        Kind::Unlink => mutation!(Unlink, parent),
        Kind::Extend => mutation!(Extend, inode),
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
        Kind::Spill => {
            let request = read!(inline::Spill);
            Request::Mutation(request.inode.slot(), Op::Spill(request))
        }
        Kind::SetLayout => mutation!(SetLayout, inode),
        Kind::Link => mutation!(Link, parent),
        Kind::Rename => {
            let request = read!(names::Rename);
            Request::Mutation(request.parent.slot(), Op::Rename(Box::new(request)))
        }
        Kind::MakeDirectory => Request::MakeDirectory(read!(names::MakeDirectory)),
        Kind::QueryInode => {
            let request = read!(peer::QueryInode);
            Request::Query(request.inode.slot(), Query::QueryInode(request))
        }
        Kind::Prepare => Request::Errand(Errand::Prepare(Box::new(read!(peer::Prepare)))),
        Kind::Settle => errand!(Settle),
        Kind::Ascend => errand!(Ascend),
        Kind::CutLane => errand!(CutLane),
        Kind::DropLane => errand!(DropLane),
        Kind::TrimLane => errand!(TrimLane),
        Kind::FillLane => errand!(FillLane),
        _ => return Ok(None),
    }))
}

impl Request {
    /// Whether only another server of the pool may ask this.
    pub fn is_peers_own(&self) -> bool {
        matches!(self, Request::Errand(_) | Request::Query(_, Query::QueryInode(_)))
    }

    fn slot(&self) -> Slot {
        match self {
            Request::Query(slot, _) | Request::Mutation(slot, _) => *slot,
            Request::MakeDirectory(request) => request.parent.slot(),
            Request::Errand(errand) => errand.slot(),
        }
    }
}

impl Server {
    /// Attributes of those inodes that live here; a server that does not hold one, or for which
    /// it is gone, says so of that one alone.
    pub async fn attributes_of_many(
        self: &Rc<Self>,
        header: &Header,
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
            let is_here = self.admit_slot(header.epoch, inode.slot()).await.is_ok();
            attributes.push(match is_here.then(|| self.query(who, inode.slot(), &query)) {
                Some(Ok(Answer::Info(info))) => Some(info.attributes),
                _ => None,
            });
        }
        Ok(names::ManyAttributes { attributes })
    }

    /// Does what a request asks of a slot; the answer's body comes back.
    pub async fn serve_slot(
        self: &Rc<Self>,
        header: &Header,
        identity: Identity,
        request: Request,
    ) -> Outcome<Vec<u8>> {
        let Identity { who, on_behalf } = identity;
        let slot = request.slot();
        let map = self.admit_slot(header.epoch, slot).await?;
        self.notice_lost_slots()?;
        let op = match request {
            Request::Query(slot, query) => {
                let answer = self.query(&who, slot, &query)?;
                if let Answer::Inline(InlineRead { bytes: Some(bytes), .. }) = &answer {
                    self.counters.read_bytes(bytes.0.len() as u64);
                }
                return Ok(answer.encode());
            }
            Request::Errand(errand) => return Ok(self.accept(errand).await?.encode()),
            // The home knows in which epoch it creates; a creator's map may be older.
            Request::Mutation(_, Op::Create(mut request)) => {
                let mut layout = match request.layout {
                    Some(layout) => layout,
                    None => self.choose_layout(&map, slot, &request)?,
                };
                layout.created = map.epoch;
                request.layout = Some(layout);
                request.wish = names::LayoutWish::default();
                Op::Create(request)
            }
            Request::Mutation(_, Op::WriteInline { request, .. }) => {
                self.counters.written_bytes(request.bytes.0.len() as u64);
                Op::WriteInline { request, room: self.has_inline_room() }
            }
            Request::Mutation(_, op) => op,
            Request::MakeDirectory(request) => Op::MakeDirectory { request, home: self.choose_home(&map) },
        };
        if header.sequence == Sequence(0) {
            let text = format!("a {:?} needs a sequence number", header.kind);
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let command = Command {
            now: clock::now(),
            origin: Origin::Client {
                session: header.session,
                sequence: header.sequence,
                acknowledged_below: Sequence(header.sequence.0 - u64::from(header.outstanding)),
                who,
                on_behalf,
            },
            op,
        };
        let token = Token { session: header.session, sequence: header.sequence };
        Ok(self.mutate(slot, token, command).await?.encode())
    }
}
