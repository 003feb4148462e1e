//! Lanes' files for clients of the same user on this machine, who read and map them themselves.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_transport::nonblocking::Connection;
use ramlace_wire::chunk::{GrantLane, LaneGranted, LaneTarget};
use ramlace_wire::{Header, encode_body};

use crate::chunk::ensure_lane;
use crate::lane_life::Purpose;
use crate::server::{Outcome, Server};

impl Server {
    /// Hands the lane's file, and that alone, to a client of the same user on this machine.
    pub async fn grant_lane(
        self: &Rc<Self>,
        connection: &mut Connection,
        header: &Header,
        request: GrantLane,
    ) -> Result<()> {
        let granted = self.prepare_grant(connection.peer_uid(), header, &request).await;
        self.send_lane(connection, header, granted).await
    }

    /// Answers with a lane's file, or why not.
    pub async fn send_lane(
        self: &Rc<Self>,
        connection: &mut Connection,
        header: &Header,
        granted: Outcome<(LaneGranted, OwnedFd)>,
    ) -> Result<()> {
        match granted {
            Ok((reply, descriptor)) => {
                let header = header.reply(self.membership.epoch());
                connection.send_descriptor(header, &encode_body(&reply), descriptor.as_fd()).await
            }
            Err(refusal) => {
                self.refuse(connection, header, &refusal);
                Ok(())
            }
        }
    }

    /// Memory is shared with processes of the same user, over the Unix socket.
    pub fn check_shares_memory(&self, peer: Option<u32>) -> Outcome<()> {
        if peer == Some(self.owner.uid) {
            return Ok(());
        }
        let text = "memory is shared only with a process of the same user, over the Unix socket";
        Err(Error::new(ErrorKind::Denied, text).into())
    }

    async fn prepare_grant(
        self: &Rc<Self>,
        peer: Option<u32>,
        header: &Header,
        request: &GrantLane,
    ) -> Outcome<(LaneGranted, OwnedFd)> {
        self.check_shares_memory(peer)?;
        let LaneTarget { lane, slot, .. } = request.target;
        self.admit_slot(header.epoch, slot).await?;
        let purpose = if request.writable { Purpose::Write } else { Purpose::Read };
        let begun = self.admit_lane(&request.target, purpose).await?;
        self.lanes(slot, |lanes, me| lanes.check_whole(lane, me))?;
        let mut store = self.store.borrow_mut();
        if request.writable {
            ensure_lane(&mut store, lane)?;
        } else if !begun || !store.has_lane(lane) {
            // A reader's wish must not take memory.
            let text = format!("lane {lane} was never written: it has no memory that could be shared");
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        }
        let length = store.lane_length(lane)?;
        Ok((LaneGranted { length }, store.grant(lane, request.writable)?))
    }
}
