//! Who wants which bytes at a place where strict mounts are: the rule is [`DataLeases::claim`](ramlace_lanes::DataLeases::claim),
//! this waits. A wait is a step of its connection's task, and no thread.

use std::rc::Rc;
use std::time::Instant;

use ramlace_base::{ByteRange, LaneId, Result};
use ramlace_lanes::{Asked, Place, Ticket, Wish};
use ramlace_wire::chunk::{Keep, WriteOrigin};
use tokio::time::sleep_until;

use crate::gate::Call;
use crate::record::Record;
use crate::server::{Outcome, Server};

/// A claim, until it is dropped.
pub struct Claiming {
    server: Rc<Server>,
    asked: Asked,
    ticket: Ticket,
}

impl Claiming {
    /// Whether what is wanted may be done in this very step; else after [`Claiming::wait`].
    ///
    /// Errors: those of [`DataLeases::claim`](ramlace_lanes::DataLeases::claim) and [`Server::note_leases`]; `Stale` for a session
    /// that has ended while it waited.
    pub fn is_granted(&mut self) -> Result<bool> {
        self.server.check_session(self.asked.session)?;
        if self.quiet_until().is_some() {
            return Ok(false);
        }
        if matches!(self.asked.wish, Wish::Own | Wish::Strict) {
            self.server.note_leases()?;
        }
        self.server.data.claim(&self.asked, &mut self.ticket)
    }

    /// The same as [`Claiming::wait`], where no program's write is arriving in the pages that began before strict mounts came: its
    /// sender may have stopped in the middle. It is stopped, and comes again, all at once.
    pub async fn wait_or_stop_programs(&self) {
        let Asked { place: (inode, lane), session, range, .. } = self.asked;
        if let Some(lane) = lane.filter(|_| self.server.data.is_strict(self.asked.place)) {
            let lane = LaneId { inode, lane };
            if self.server.lane_desk.stop_programs(lane, range, session).await {
                return;
            }
        }
        self.wait().await;
    }

    /// Something has changed, or somebody's time is over.
    async fn wait(&self) {
        match self.quiet_until() {
            Some(until) => sleep_until(until.into()).await,
            None => self.server.data.next_change().await,
        }
    }

    /// What strict mounts stored in the server's last life, and what others have seen of it, may not be here yet: until they
    /// have heard of this life nobody reads, and nobody writes what they would have to lose.
    fn quiet_until(&self) -> Option<Instant> {
        self.server.leases.quiet_until()
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

    /// The next life has to know that there were leases.
    ///
    /// Errors: those of a commit, where there is no room for that. Then there are to be none.
    pub fn note_leases(self: &Rc<Self>) -> Result<()> {
        if self.durable.borrow().gives_leases {
            return Ok(());
        }
        self.commit(&Record::GivesLeases(true)).map(drop).map_err(|error| error.context(self.me))
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
