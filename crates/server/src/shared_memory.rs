//! Lanes into whose memory somebody stores without asking: programs by the library's views, and kernels that have the
//! file by passthrough.
//!
//! Nobody could recall what kernels keep of such a lane when a store happens. So they keep nothing: what a kernel had is
//! recalled before the memory is given out, and what it gets from then on is recalled with the answer. Until it has
//! dropped that, it may store into it as well; so the bytes that it got are the base of its pages, and only what differs from
//! them is written, byte by byte: between two of these bytes another program may just be storing.

use ramlace_base::{ByteRange, LaneId, Result, SessionId};
use ramlace_lanes::Change;

use crate::data_leases::read_lane;
use crate::gate::Call;
use crate::server::data_desk::place_of;
use crate::server::{Outcome, Server};

const ALL: ByteRange = ByteRange { start: 0, end: u64::MAX };

impl Server {
    /// Somebody is about to get the memory of a lane, which is known to be stored into from now on: waits until kernels have
    /// dropped what they had of it before.
    pub async fn before_stores(&self, call: &Call, lane: LaneId) -> Outcome<()> {
        // What they had stored is merged with what is here: nobody else has changed that yet.
        let recalls = self.recall_before(SessionId::NONE, lane, &[ALL], Change::Stored)?;
        self.log_pages()?;
        if recalls.is_empty() {
            return Ok(());
        }
        self.data.changed.notify_waiters();
        self.data.pass(&recalls).await;
        self.check_session(call.session)?;
        // A kernel that cannot drop its pages yet goes on with what is here now.
        let here = ByteRange { start: 0, end: self.lane_length(lane)? };
        self.recall_before(SessionId::NONE, lane, &[here], Change::Write)?;
        Ok(self.log_pages()?)
    }

    /// A kernel has got these bytes of a lane that is stored into without asking: it is to drop them again.
    pub fn recall_at_once(&self, lane: LaneId, start: u64, bytes: &[u8]) -> Result<()> {
        let range = ByteRange { start, end: start + bytes.len() as u64 };
        let mut store = self.store.borrow_mut();
        // Stores go on: the base is what the kernel has got, not what is here a moment later.
        let read: &mut dyn FnMut(ByteRange) -> Result<Vec<u8>> = &mut |page| {
            let mut base = read_lane(&mut store, lane, page)?;
            let part = page.intersection(range);
            if !part.is_empty() {
                let got = &bytes[(part.start - start) as usize..(part.end - start) as usize];
                base[(part.start - page.start) as usize..(part.end - page.start) as usize]
                    .copy_from_slice(got);
            }
            Ok(base)
        };
        let (place, now) = (place_of(lane), self.data.now());
        let recalls = self.data.change_leases(|leases| {
            leases.before_change(place, SessionId::NONE, range, Change::Write, read, now)
        })?;
        if !recalls.is_empty() {
            self.data.changed.notify_waiters();
        }
        drop(store);
        self.log_pages()
    }
}
