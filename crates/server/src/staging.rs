//! Room for large writes that are taken before they wait for other machines: whoever sends one may stop in the middle, and must hold
//! no page then. What finds no room stays in its connection.

use std::rc::Rc;

use ramlace_base::{ByteRange, SessionId, limits};
use ramlace_lanes::Place;
use ramlace_wire::chunk::WriteOrigin;

use crate::gate::Call;
use crate::server::Server;
use crate::server::staging_room::Room;

/// A write by way of a kernel's pages, which nobody waits for before its bytes have come.
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
    /// Room for the bytes of a write that will wait for others with them. What a kernel writes back waits for nobody, and small
    /// writes are taken as they come: `None`.
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
