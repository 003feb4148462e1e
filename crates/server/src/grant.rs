//! Sends the descriptors of lanes' files to clients of the same user on this machine, which read and map them
//! directly.

use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, LaneId, Slot};
use ramlace_lanes::Mapping;
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
        let stores = request.mapping.is_some();
        let purpose = if stores { Purpose::Write } else { Purpose::Read };
        let mut begun = self.admit_lane(&request.target, purpose).await?;
        if let Some(number) = request.mapping {
            self.begin_mapping(slot, lane, Mapping { session: header.session, number })?;
            self.before_stores(header, lane).await?;
            self.admit_slot(header, slot).await?;
            begun = self.admit_lane(&request.target, purpose).await?;
        }
        self.lanes(slot, |lanes, me| lanes.check_whole(lane, me))?;
        let mut store = self.store.borrow_mut();
        if stores {
            ensure_lane(&mut store, lane)?;
        } else if !begun || !store.has_lane(lane) {
            // A read must not allocate memory.
            let text = format!("lane {lane} was never written: it has no memory that could be shared");
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        }
        let length = store.lane_length(lane)?;
        let descriptor = store.grant(lane, stores)?;
        Ok(Answer::Descriptor(encode_body(&LaneGranted { length }), descriptor))
    }

    /// A session's program is about to map a lane, to store into it.
    fn begin_mapping(self: &Rc<Self>, slot: Slot, lane: LaneId, mapping: Mapping) -> Outcome<()> {
        // Nothing would ever remove that of a session that has ended.
        self.check_session(mapping.session)?;
        if let Some(change) = self.lanes(slot, |lanes, _| lanes.begin_mapping(lane, mapping))? {
            self.commit_lane(slot, change)?;
        }
        Ok(())
    }
}
