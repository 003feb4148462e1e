//! Writes by which a file grows, if lane and home are at this server: the bytes are received as for any
//! write, and then the home applies the new end, before the reply is sent. These are two changes of two
//! slots, each with its own sequence number: a retry gets both done exactly once, and a server that dies
//! between them has replied to neither.

use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, Result, Sequence};
use ramlace_namespace::{Command, Op, Origin, Reply};
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::{ChunkExtended, ExtendChunk};
use ramlace_wire::namespace::{Extend, SizeInfo};
use ramlace_wire::peer::Token;

use crate::clock;
use crate::gate::Call;
use crate::identity::Identity;
use crate::server::{Outcome, Server};

impl Server {
    /// Receives a write's data and applies the file's new end at the home. As for [`Server::write_chunk`] the
    /// outer error is the connection's.
    pub async fn extend_chunk(
        self: &Rc<Self>,
        connection: &mut Connection,
        header: &Call,
        identity: Identity,
        request: ExtendChunk,
    ) -> Result<Outcome<ChunkExtended>> {
        let ExtendChunk { sequence, outstanding, .. } = request;
        if sequence == Sequence(0) || u64::from(outstanding) > sequence.0 {
            let text = format!("{sequence:?} with {outstanding} before it is no number of an extension");
            return Ok(Err(Error::new(ErrorKind::Invalid, text).into()));
        }
        if let Err(refusal) = self.write_chunk(connection, header, request.write).await? {
            return Ok(Err(refusal));
        }
        Ok(Ok(ChunkExtended { size: self.extend_here(header, identity, &request).await }))
    }

    /// `None` if the home is elsewhere, or refuses: the client then asks the home, and gets the reason.
    async fn extend_here(
        self: &Rc<Self>,
        header: &Call,
        identity: Identity,
        request: &ExtendChunk,
    ) -> Option<SizeInfo> {
        let ExtendChunk { write, size, from, sequence, outstanding } = *request;
        let inode = write.target.lane.inode;
        let slot = inode.slot();
        self.admit_slot(header, slot).await.ok()?;
        self.notice_lost_slots().ok()?;
        let Identity { who, on_behalf } = identity;
        let command = Command {
            now: clock::now(),
            origin: Origin::Client {
                session: header.session,
                sequence,
                acknowledged_below: Sequence(sequence.0 - u64::from(outstanding)),
                who,
                on_behalf,
            },
            op: Op::Extend(Extend { inode, generation: write.target.generation, size, from }),
        };
        match self.mutate(slot, Token { session: header.session, sequence }, command).await {
            Ok(Reply::Size(info)) => Some(info),
            _ => None,
        }
    }
}
