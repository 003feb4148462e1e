//! Requests that claim bytes at a place that strict mounts use. The rules are
//! [`DataLeases::claim`](ramlace_lanes::DataLeases::claim); here a request waits for its claim to be granted, as a
//! step of its connection's task.

use std::rc::Rc;

use ramlace_base::{ByteRange, LaneId, Result};
use ramlace_lanes::{Asked, Place, Ticket, Wish};
use ramlace_wire::chunk::{Keep, WriteOrigin};

use crate::gate::Call;
use crate::server::{Outcome, Server};

/// A claim, until it is dropped.
pub struct Claiming {
    server: Rc<Server>,
    asked: Asked,
    ticket: Ticket,
}

impl Claiming {
    /// Whether the claim is granted in this very step; if not, [`Claiming::wait_or_stop_programs`] is called
    /// before the next try.
    ///
    /// Errors: those of [`DataLeases::claim`](ramlace_lanes::DataLeases::claim) and [`Server::note_leases`];
    /// `Stale` for a session that has ended while it waited.
    pub fn is_granted(&mut self) -> Result<bool> {
        self.server.check_session(self.asked.session)?;
        if matches!(self.asked.wish, Wish::Own | Wish::Strict) {
            self.server.note_leases(self.asked.session, true)?;
        }
        let granted = self.server.data.claim(&self.asked, &mut self.ticket)?;
        let logged = self.server.log_pages();
        // Bytes may change only once it is logged that holders whose time is over may not write back, also
        // after a restart. Reads need not wait for that.
        if granted && (self.asked.wish == Wish::Own || self.asked.wish.changes()) {
            logged?;
        }
        Ok(granted)
    }

    /// Waits until something has changed, or a holder's time is over. There is one exception: a program's write
    /// whose bytes have been arriving in these pages since before strict mounts came. Its sender may have stopped
    /// in the middle, so that write is not waited for but stopped; it is repeated as a whole.
    pub async fn wait_or_stop_programs(&self) {
        let Asked { place: (inode, lane), session, range, .. } = self.asked;
        if let Some(lane) = lane.filter(|_| self.server.data.is_strict(self.asked.place)) {
            let lane = LaneId { inode, lane };
            if self.server.lane_desk.stop_programs(lane, range, session).await {
                return;
            }
        }
        self.server.data.next_change().await;
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        self.server.data.end_claim(self.asked.place, self.ticket);
    }
}

impl Server {
    /// A claim of the call's session.
    pub fn claim(self: &Rc<Self>, call: &Call, place: Place, range: ByteRange, wish: Wish) -> Claiming {
        let asked = Asked { place, session: call.session, range, wish, call: call.call };
        Claiming { server: self.clone(), asked, ticket: Ticket::default() }
    }

    /// No kernel may own these bytes while they change: waits until none does, and keeps others away until
    /// the returned value is dropped.
    pub async fn claim_change(
        self: &Rc<Self>,
        call: &Call,
        place: Place,
        range: ByteRange,
        origin: WriteOrigin,
    ) -> Outcome<Claiming> {
        let wish = if origin == WriteOrigin::Through { Wish::Through } else { Wish::Change };
        let mut claiming = self.claim(call, place, range, wish);
        while !range.is_empty() && !claiming.is_granted()? {
            claiming.wait_or_stop_programs().await;
        }
        Ok(claiming)
    }
}

/// What a read claims.
pub fn wish_of(keep: Keep) -> Wish {
    match keep {
        Keep::No => Wish::Read,
        Keep::Share | Keep::BehindEnd => Wish::Share,
        Keep::Strict => Wish::Strict,
        Keep::Own => Wish::Own,
    }
}
