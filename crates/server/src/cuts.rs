//! Truncations wait for machines that have pages of what was cut off.
//!
//! A lane is cut at once, and its server answers with the data recalls that this has made. The home answers
//! the truncation when none of these has to be waited for any more, so that no read that begins later returns
//! what was cut off. It polls the lane's server: the delivery of the cut stays open meanwhile, and others are
//! delivered after it, so that a holder that does not answer delays this truncation alone. Of more recalls
//! than one message may name it waits for the first ones, and cuts again: the answer to that names the next.
//!
//! This cannot deadlock. Until a truncation is answered, its kernel writes no page of the file back, and
//! cannot drop pages that others recall: the mount reports these recalls as *blocked*, and nobody waits for
//! them any longer.

use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{ByteRange, Error, ErrorKind, LaneId, Result, ServerId, SessionId, limits};
use ramlace_wire::peer::{LaneCut, QueryRecalls, RecallsKnown};

use crate::cause;
use crate::server::data_desk::place_of;
use crate::server::delivery_queues::Pending;
use crate::server::{Outcome, Server};

/// The pause before a lane's server is asked again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(128);

impl Server {
    /// The answer to the home of a file whose lane was cut: it waits for these recalls, or for as many as one
    /// message may name.
    pub fn lane_cut(&self, mut recalls: Vec<u64>) -> LaneCut {
        recalls.truncate(limits::DATA_RECALLS_PER_MESSAGE_MAX);
        LaneCut { life: self.data.life, recalls }
    }

    /// A repeated cut: the recalls of pages behind an end that the lane has had since before.
    pub fn recalled_behind(&self, by: SessionId, lane: LaneId, length: u64) -> Vec<u64> {
        let range = ByteRange { start: length, end: u64::MAX };
        // Not for holders whose time was over before: nobody may have waited for them here meanwhile.
        self.data.end_late();
        let now = self.data.now();
        self.data.change_leases(|leases| leases.recalled_before(place_of(lane), by, range, now))
    }

    /// Whether recalls that a cut has made are over.
    ///
    /// Errors: `Stale` if this server has made none of them: it has restarted since then.
    pub fn query_recalls(&self, request: &QueryRecalls) -> Result<RecallsKnown> {
        if request.life != self.data.life {
            let text = "the server that recalled these pages has died; the lane is to be cut again";
            return Err(Error::new(ErrorKind::Stale, text));
        }
        Ok(RecallsKnown { over: self.data.is_over(&request.recalls) })
    }

    /// A lane is cut: waits in a task until its truncation may be answered, which is when nobody has pages of
    /// what was cut off.
    pub fn await_cut(self: &Rc<Self>, target: ServerId, pending: Pending, cut: LaneCut) {
        let server = self.clone();
        let may_be_more = cut.recalls.len() == limits::DATA_RECALLS_PER_MESSAGE_MAX;
        tokio::task::spawn_local(cause::kept(async move {
            match server.pass_cut(target, &pending, cut).await {
                Ok(()) if may_be_more => server.queue(pending),
                Ok(()) if server.is_pending(&pending) => server.delivery_is_done(&pending),
                Ok(()) => {}
                // Its server has restarted, or does not answer: retrying is the matter of deliveries.
                Err(_) => server.queue(pending),
            }
        }));
    }

    /// Waits until these recalls are over, or the cut is not waited for any more.
    async fn pass_cut(self: &Rc<Self>, target: ServerId, pending: &Pending, cut: LaneCut) -> Outcome<()> {
        let LaneCut { life, recalls } = cut;
        if target == self.me {
            self.data.pass(&recalls).await;
            return Ok(());
        }
        let request = QueryRecalls { life, recalls };
        let mut pause = FIRST_PAUSE;
        while self.is_pending(pending) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let map = self.membership.map()?;
            if self.peers.call(&map, target, &request).await?.over {
                break;
            }
        }
        Ok(())
    }
}
