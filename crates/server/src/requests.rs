//! Families 0x03, 0x04 and 0x07: requests of clients and peers to slots. Queries are answered here; clients'
//! changes are in [`crate::changes`], servers' deliveries in [`crate::deliveries`].

use std::rc::Rc;

use ramlace_base::{ByteRange, Error, ErrorKind, Result, SessionId, Slot, limits};
use ramlace_namespace::{AskedBy, Delivery, Op, Query};
use ramlace_transport::Proved;
use ramlace_wire::inline::{InlineRead, ReadInline};
use ramlace_wire::locks::GetLock;
use ramlace_wire::mend::QueryOperations;
use ramlace_wire::namespace as names;
use ramlace_wire::peer;
use ramlace_wire::xattrs::{GetXattr, ListXattrs};
use ramlace_wire::{ClusterMap, Credentials, Kind, Request, decode_body, encode_body};

use crate::gate::Call;
use crate::identity::{Identity, body_behind_path};
use crate::server::{Outcome, Server};

/// A peer's message, if it is possible in some state of a pool.
pub fn possible<R: Request>(request: R) -> Result<R> {
    if request.is_possible() {
        return Ok(request);
    }
    Err(Error::new(ErrorKind::Protocol, format!("a {:?} came that says what cannot be", R::KIND)))
}

fn possible_body<R: Request>(body: &[u8]) -> Result<R> {
    possible(decode_body(R::KIND, body)?)
}

impl Server {
    /// Serves a request to a slot; returns the body of the answer.
    pub async fn serve_slot(
        self: &Rc<Self>,
        call: &Call,
        proved: &Proved,
        identity: Identity,
        body: &[u8],
    ) -> Outcome<Vec<u8>> {
        let (path, body) = body_behind_path(call, body)?;
        match call.kind {
            Kind::Lookup => self.answer::<names::Lookup>(call, &identity, body).await,
            Kind::GetAttributes => self.answer::<names::GetAttributes>(call, &identity, body).await,
            Kind::ReadLink => self.answer::<names::ReadLink>(call, &identity, body).await,
            Kind::ReadDirectory => self.answer::<names::ReadDirectory>(call, &identity, body).await,
            Kind::GetXattr => self.answer::<GetXattr>(call, &identity, body).await,
            Kind::ListXattrs => self.answer::<ListXattrs>(call, &identity, body).await,
            Kind::GetLock => self.answer::<GetLock>(call, &identity, body).await,
            Kind::QueryInode => self.answer::<peer::QueryInode>(call, &identity, body).await,
            Kind::QueryOperations => self.answer::<QueryOperations>(call, &identity, body).await,
            Kind::ReadInline => self.read_inline(call, &identity, body).await,
            Kind::GetPartitions => self.get_partitions(call, &identity, body).await,
            Kind::QueryPages => self.query_pages_of_lane(call, body).await,
            Kind::BeginLane => self.begin_lane_of_home(call, body).await,
            Kind::Prepare => {
                self.take_delivery(call, Delivery::Prepare(Box::new(possible_body(body)?))).await
            }
            Kind::Decide => self.take_delivery(call, Delivery::Decide(possible_body(body)?)).await,
            Kind::Ascend => self.take_delivery(call, Delivery::Ascend(possible_body(body)?)).await,
            Kind::CutLane => self.take_delivery(call, Delivery::CutLane(possible_body(body)?)).await,
            Kind::DropLane => self.take_delivery(call, Delivery::DropLane(possible_body(body)?)).await,
            Kind::TrimLane => self.take_delivery(call, Delivery::TrimLane(possible_body(body)?)).await,
            Kind::FillLane => self.take_delivery(call, Delivery::FillLane(possible_body(body)?)).await,
            kind => {
                let (slot, op) = Op::asked(kind, body, call.slot)?;
                self.change(call, proved, identity, &path, (slot, op)).await
            }
        }
    }

    /// The map, if this server has the slot and may answer for it.
    pub async fn admit(self: &Rc<Self>, call: &Call, slot: Slot) -> Outcome<Rc<ClusterMap>> {
        let map = self.admit_slot(call, slot).await?;
        self.notice_lost_slots()?;
        Ok(map)
    }

    /// A query that its slot answers by itself.
    async fn answer<Q: Query>(
        self: &Rc<Self>,
        call: &Call,
        identity: &Identity,
        body: &[u8],
    ) -> Outcome<Vec<u8>> {
        let query: Q = decode_body(call.kind, body)?;
        let answer = self.ask_slot(call, identity, &query).await?;
        Ok(encode_body(&answer))
    }

    async fn ask_slot<Q: Query>(
        self: &Rc<Self>,
        call: &Call,
        identity: &Identity,
        query: &Q,
    ) -> Outcome<Q::Reply> {
        let slot = query.slot(call.slot);
        self.admit(call, slot).await?;
        // What a host's session has open gives no right to the users for whom it asks.
        let session = if identity.on_behalf { SessionId::NONE } else { call.session };
        Ok(self.query(AskedBy { who: &identity.who, session }, slot, query)?)
    }

    async fn read_inline(self: &Rc<Self>, call: &Call, identity: &Identity, body: &[u8]) -> Outcome<Vec<u8>> {
        let request: ReadInline = decode_body(call.kind, body)?;
        let answer = self.ask_slot(call, identity, &request).await?;
        if let InlineRead { bytes: Some(bytes), .. } = &answer {
            self.counters.read_bytes(bytes.0.len() as u64);
            if request.keep {
                let end = request.offset.saturating_add(request.length.into());
                // Behind the bytes there are zeros, which are not asked for.
                let is_beyond = end >= limits::INLINE_BYTES_MAX as u64;
                let range = ByteRange { start: request.offset, end: if is_beyond { u64::MAX } else { end } };
                self.keep_pages((request.inode, None), call.session, range)?;
            }
        }
        Ok(encode_body(&answer))
    }

    /// The sum over this server's partitions of a directory.
    async fn get_partitions(
        self: &Rc<Self>,
        call: &Call,
        identity: &Identity,
        body: &[u8],
    ) -> Outcome<Vec<u8>> {
        let request: names::GetPartitions = decode_body(call.kind, body)?;
        if request.slots.first() != Some(&call.slot) || request.slots.len() > limits::DIRECTORY_PARTITIONS {
            let text = "a request for partitions goes to the first of some slots";
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let map = self.admit(call, call.slot).await?;
        Ok(encode_body(&self.partitions(call, &identity.who, &map, &request)?))
    }

    async fn query_pages_of_lane(self: &Rc<Self>, call: &Call, body: &[u8]) -> Outcome<Vec<u8>> {
        let request: peer::QueryPages = decode_body(call.kind, body)?;
        self.admit(call, request.slot(call.slot)).await?;
        Ok(encode_body(&self.query_pages(request)?))
    }

    /// A lane is about to begin.
    async fn begin_lane_of_home(self: &Rc<Self>, call: &Call, body: &[u8]) -> Outcome<Vec<u8>> {
        let request: peer::BeginLane = possible_body(body)?;
        self.admit(call, request.slot(call.slot)).await?;
        Ok(encode_body(&self.begin_lane(request)?))
    }

    async fn take_delivery(self: &Rc<Self>, call: &Call, delivery: Delivery) -> Outcome<Vec<u8>> {
        self.admit(call, delivery.slot()).await?;
        Ok(self.accept(delivery).await?.encode())
    }

    /// Attributes of those inodes that live here. An inode that is gone, or that this server does not have,
    /// is an error of that inode alone.
    pub async fn attributes_of_many(
        self: &Rc<Self>,
        header: &Call,
        who: &Credentials,
        request: &names::GetAttributesMany,
    ) -> Outcome<names::ManyAttributes> {
        if request.inodes.len() > limits::READDIR_ENTRIES_MAX as usize {
            let most = limits::READDIR_ENTRIES_MAX;
            let text = format!("attributes of {} inodes are too many; at most {most}", request.inodes.len());
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut attributes = Vec::with_capacity(request.inodes.len());
        for inode in request.inodes.iter().copied() {
            let is_here = self.admit_slot(header, inode.slot()).await.is_ok();
            attributes.push(
                match is_here.then(|| self.query(who, inode.slot(), &names::GetAttributes { inode })) {
                    // For a spread directory this is not everything.
                    Some(Ok(info)) if info.partitions.is_empty() => Some(info.attributes),
                    _ => None,
                },
            );
        }
        Ok(names::ManyAttributes { attributes })
    }
}
