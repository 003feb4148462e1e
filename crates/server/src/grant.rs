//! Sends the descriptors of lanes' files to clients of the same user on this machine, which read and map them
//! directly.

use std::rc::Rc;

use ramlace_base::{Error, ErrorKind};
use ramlace_wire::chunk::{GrantLane, LaneGranted, LaneTarget};
use ramlace_wire::encode_body;

use crate::chunk::ensure_lane;
use crate::gate::{Answer, Call};
use crate::lane_life::Purpose;
use crate::server::{Outcome, Server};

impl Server {
    /// Memory is shared only with processes of the same user, over the Unix socket.
    pub fn check_shares_memory(&self, peer: Option<u32>) -> Outcome<()> {
        if peer == Some(self.owner.uid) {
            return Ok(());
        }
        let text = "memory is shared only with a process of the same user, over the Unix socket";
        Err(Error::new(ErrorKind::Denied, text).into())
    }

    /// Sends a descriptor of the lane's file to a client of the same user on this machine.
    pub async fn grant_lane(
        self: &Rc<Self>,
        peer: Option<u32>,
        header: &Call,
        request: GrantLane,
    ) -> Outcome<Answer> {
        self.check_shares_memory(peer)?;
        let LaneTarget { lane, slot, .. } = request.target;
        self.admit_slot(header, slot).await?;
        let purpose = if request.writable { Purpose::Write } else { Purpose::Read };
        let begun = self.admit_lane(&request.target, purpose).await?;
        self.lanes(slot, |lanes, me| lanes.check_whole(lane, me))?;
        let mut store = self.store.borrow_mut();
        if request.writable {
            ensure_lane(&mut store, lane)?;
        } else if !begun || !store.has_lane(lane) {
            // A read must not allocate memory.
            let text = format!("lane {lane} was never written: it has no memory that could be shared");
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        }
        let length = store.lane_length(lane)?;
        let descriptor = store.grant(lane, request.writable)?;
        Ok(Answer::Descriptor(encode_body(&LaneGranted { length }), descriptor))
    }
}
