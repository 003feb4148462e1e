//! Limits the connections that one session, and the machines with a host key, may have, so that the pool's
//! owner can always connect; and closes connections with their session.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, Result, SessionId, limits};
use ramlace_transport::Proved;
use ramlace_transport::nonblocking::{Canceller, Connection, Meter};
use ramlace_wire::keys::HostKeyId;
use rustix::process::{Resource, getrlimit};

/// Connections may use the process's descriptors divided by this; lanes and all else have the rest.
const PART_OF_DESCRIPTORS: u64 = 2;
/// Time for the replies to requests of an ended session that were under way: each is answered that the
/// session has ended.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// The limit of connections divided by this is reserved for the owner, for other servers, and for those that
/// have not proved a key yet.
const RESERVED_PART: usize = 16;
/// At least as many are reserved: of strangers so many may be in each of the two stages of their greeting, and some
/// more are for the owner and for other servers. But of few connections hosts have a half.
const RESERVED_MIN: usize = 2 * limits::CONNECTIONS_UNPROVEN_MAX + 64;

struct Seated {
    proved: Proved,
    session: Option<SessionId>,
    canceller: Canceller,
    /// Bytes that are held for it; `None`: it is about to be closed.
    held: Option<usize>,
}

/// Connections that have proved a key.
pub struct Callers {
    seats: RefCell<BTreeMap<u64, Seated>>,
    next: Cell<u64>,
    most: usize,
    /// Bytes that are held for the connections of hosts.
    held_for_hosts: Cell<usize>,
}

impl Callers {
    /// Without connections, with a limit that follows from the descriptors this process may have.
    pub fn new() -> Callers {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(descriptors / PART_OF_DESCRIPTORS).unwrap_or(usize::MAX);
        Callers::with_room_for(most.min(limits::CONNECTIONS_MAX))
    }

    fn with_room_for(most: usize) -> Callers {
        Callers { seats: RefCell::default(), next: Cell::new(0), most, held_for_hosts: Cell::new(0) }
    }

    /// The limit of connections, of all keys and of strangers.
    pub fn most(&self) -> usize {
        self.most
    }

    /// The limit for those of host keys.
    fn most_of_hosts(&self) -> usize {
        let reserved = (self.most / RESERVED_PART).max(RESERVED_MIN.min(self.most.div_ceil(2)));
        self.most - reserved
    }

    /// A connection has proved the key of a role.
    ///
    /// Errors: `TooMany` when the machines with a host key have reached their limit.
    pub fn enter(self: &Rc<Self>, proved: &Proved, connection: &Connection) -> Result<Seat> {
        let mut seats = self.seats.borrow_mut();
        let of_hosts = seats.values().filter(|seat| seat.proved.host.is_some()).count();
        if proved.host.is_some() && of_hosts >= self.most_of_hosts() {
            return Err(too_many(of_hosts, "with keys of hosts"));
        }
        let number = self.next.replace(self.next.get() + 1);
        seats.insert(
            number,
            Seated {
                proved: proved.clone(),
                session: None,
                canceller: connection.canceller(),
                held: Some(0),
            },
        );
        Ok(Seat { callers: self.clone(), number })
    }

    /// Closes the connections that have proved this, whatever is under way.
    pub fn cut(&self, gone: impl Fn(&Proved) -> bool) {
        let seats = self.seats.borrow();
        let theirs = seats.values().filter(|seat| gone(&seat.proved));
        theirs.for_each(|seat| seat.canceller.cancel());
    }

    /// This many bytes are held for a connection now. If too many are held for hosts, some of their
    /// connections are closed.
    fn note_held(&self, number: u64, bytes: usize) {
        let mut seats = self.seats.borrow_mut();
        let Some(seat) = seats.get_mut(&number).filter(|seat| seat.proved.host.is_some()) else { return };
        let Some(held) = &mut seat.held else { return };
        let before = std::mem::replace(held, bytes);
        self.held_for_hosts.set(self.held_for_hosts.get() - before + bytes);
        while self.held_for_hosts.get() > limits::HELD_FOR_HOSTS_BYTES_MAX {
            let Some(seat) = largest(&mut seats) else { return };
            let freed = seat.held.take().unwrap_or(0);
            self.held_for_hosts.set(self.held_for_hosts.get() - freed);
            seat.canceller.cancel();
        }
    }

    /// Closes the connections of a session that has ended, once its requests under way have been answered.
    pub fn end_session(self: &Rc<Self>, session: SessionId) {
        let callers = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(LAST_ANSWERS).await;
            let seats = callers.seats.borrow();
            let of_session = seats.values().filter(|seat| seat.session == Some(session));
            of_session.for_each(|seat| seat.canceller.cancel());
        });
    }
}

/// The connection for which most bytes are held, of the host key for whose connections most are held.
fn largest(seats: &mut BTreeMap<u64, Seated>) -> Option<&mut Seated> {
    let mut of_keys = BTreeMap::<&HostKeyId, usize>::new();
    for seat in seats.values() {
        if let (Some(host), Some(held)) = (&seat.proved.host, seat.held) {
            *of_keys.entry(host).or_default() += held;
        }
    }
    let key = of_keys.into_iter().max_by_key(|(_, held)| *held)?.0.clone();
    let of_key = seats.values_mut().filter(|seat| seat.proved.host.as_ref() == Some(&key));
    of_key.max_by_key(|seat| seat.held)
}

fn too_many(count: usize, whose: &str) -> Error {
    Error::new(ErrorKind::TooMany, format!("there are {count} connections {whose} already, the limit"))
}

/// A connection's place; freed when it is dropped.
pub struct Seat {
    callers: Rc<Callers>,
    number: u64,
}

impl Seat {
    /// The connection belongs to a session from now on.
    ///
    /// Errors: `TooMany` when the session has reached its limit.
    pub fn join(&self, session: SessionId) -> Result<()> {
        let mut seats = self.callers.seats.borrow_mut();
        let count = seats.values().filter(|seat| seat.session == Some(session)).count();
        if count >= limits::CONNECTIONS_PER_SESSION_MAX {
            return Err(too_many(count, "of this session"));
        }
        seats.get_mut(&self.number).expect("it has its place").session = Some(session);
        Ok(())
    }

    /// The meter to which the bytes that are held for the connection are reported.
    pub fn meter(&self) -> Meter {
        let (callers, number) = (self.callers.clone(), self.number);
        Box::new(move |bytes| callers.note_held(number, bytes))
    }

    /// The connection has sent the end of its session, and is still to be answered.
    pub fn leave(&self) {
        self.callers.seats.borrow_mut().get_mut(&self.number).expect("it has its place").session = None;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let seat = self.callers.seats.borrow_mut().remove(&self.number);
        let freed = seat.filter(|seat| seat.proved.host.is_some()).and_then(|seat| seat.held).unwrap_or(0);
        self.callers.held_for_hosts.set(self.callers.held_for_hosts.get() - freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_strangers_together_leave_connections_to_the_owner() {
        for most in [512, 1024, 2048, limits::CONNECTIONS_MAX] {
            let of_hosts = Callers::with_room_for(most).most_of_hosts();
            assert!(of_hosts + 2 * limits::CONNECTIONS_UNPROVEN_MAX + 64 <= most, "{of_hosts} of {most}");
        }
        assert_eq!(Callers::with_room_for(limits::CONNECTIONS_MAX).most_of_hosts(), 3840, "15 of 16");
        assert_eq!(Callers::with_room_for(100).most_of_hosts(), 50);
    }
}
