//! Memory for the bytes of large writes, which are received completely before the write waits for other
//! machines: a sender may stop in the middle, and must not hold any page then. A write that finds no room here
//! stays in its connection.

use std::rc::Rc;

use ramlace_base::{ByteRange, SessionId, limits};
use ramlace_lanes::Place;
use ramlace_wire::chunk::WriteOrigin;

use crate::gate::Call;
use crate::server::Server;
use crate::server::staging_room::Room;

/// A write through a kernel's pages; others do not wait for it before its bytes are received.
struct Coming<'a> {
    server: &'a Server,
    place: Place,
    session: SessionId,
    range: ByteRange,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.server.data.has_come(self.place, self.session, self.range);
    }
}

impl Server {
    /// Room for the bytes of a write that will wait for others once it has them. `None` for write-backs,
    /// which do not wait, and for small writes, which are received anyway.
    pub async fn room_to_stage(
        self: &Rc<Self>,
        call: &Call,
        (place, range): (Place, ByteRange),
        origin: WriteOrigin,
    ) -> Option<Room<'_>> {
        let bytes = call.data_bytes as usize;
        if origin == WriteOrigin::Back || bytes <= limits::STAGED_BYTES_MAX {
            return None;
        }
        let session = call.session;
        let _coming = (origin == WriteOrigin::Through).then(|| {
            self.data.comes(place, session, range);
            Coming { server: self, place, session, range }
        });
        Some(self.data.staging.take(session, bytes).await)
    }
}
