//! Who wants which bytes at a place where strict mounts are: the rule is [`DataLeases::claim`](ramlace_lanes::DataLeases::claim),
//! this waits. A wait is a step of its connection's task, and no thread.

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
    /// Whether what is wanted may be done in this very step; else after [`Claiming::wait_or_stop_programs`].
    ///
    /// Errors: those of [`DataLeases::claim`](ramlace_lanes::DataLeases::claim) and [`Server::note_leases`]; `Stale` for a session
    /// that has ended while it waited.
    pub fn is_granted(&mut self) -> Result<bool> {
        self.server.check_session(self.asked.session)?;
        if matches!(self.asked.wish, Wish::Own | Wish::Strict) {
            self.server.note_leases(self.asked.session, true)?;
        }
        let granted = self.server.data.claim(&self.asked, &mut self.ticket)?;
        let logged = self.server.log_pages();
        // Where bytes are to change nobody whose time is over may write back in the next life either. Others may look meanwhile.
        if granted && (self.asked.wish == Wish::Own || self.asked.wish.changes()) {
            logged?;
        }
        Ok(granted)
    }

    /// Something has changed, or somebody's time is over; where no program's write is arriving in the pages that began before strict mounts came: its
    /// sender may have stopped in the middle. It is stopped, and comes again, all at once.
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

    /// Nobody may have these bytes alone while they change: waits until nobody has, and keeps others away until what is returned is
    /// dropped.
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

/// What a read wants.
pub fn wish_of(keep: Keep) -> Wish {
    match keep {
        Keep::No => Wish::Look,
        Keep::Share => Wish::Share,
        Keep::Strict => Wish::Strict,
        Keep::Own => Wish::Own,
    }
}
