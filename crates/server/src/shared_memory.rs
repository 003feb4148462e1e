//! Lanes into whose memory somebody stores without asking: programs by the library's views, and kernels that have the
//! file by passthrough.
//!
//! Nobody could recall what kernels keep of such a lane when a store happens. So they keep nothing: what a kernel had is
//! recalled before the memory is given out, and what it gets from then on is recalled a moment later. Until it has
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
        self.recall_before(SessionId::NONE, lane, &[ALL], Change::Stored)?;
        self.log_pages()?;
        // Also those for which a write would not wait: their pages have no base.
        let left = self.data.leases.borrow().left_at(place_of(lane));
        if !left.is_empty() {
            self.data.changed.notify_waiters();
            self.data.pass_all(&left).await;
        }
        // What arrives in its place would overwrite what is stored meanwhile. It comes again.
        while self.lane_desk.stop_write_backs(lane, ALL, SessionId::NONE).await {}
        Ok(self.check_session(call.session)?)
    }

    /// A kernel has got these bytes of a lane that is stored into without asking: it is to drop them in a moment.
    pub fn recall_in_a_moment(
        &self,
        session: SessionId,
        lane: LaneId,
        start: u64,
        bytes: &[u8],
    ) -> Result<()> {
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
        self.data.change_leases(|leases| leases.recall_in_a_moment((place, session), range, read, now))?;
        drop(store);
        self.log_pages()
    }
}
