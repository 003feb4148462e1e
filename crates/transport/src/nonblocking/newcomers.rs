//! Clients that have not proved a key yet: how many there may be, and which one goes when there are more.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use ramlace_base::limits;

use super::socket::{Canceller, Socket};

/// Where a newcomer comes from, as far as the kernel vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// A user of this machine.
    User(u32),
    /// A machine, or the network of 2^64 addresses that one machine may have.
    Machine([u8; 8]),
    /// It had gone before it could be asked.
    Unknown,
}

impl Source {
    pub(super) fn of_address(address: IpAddr) -> Source {
        let mut machine = [0; 8];
        match address.to_canonical() {
            IpAddr::V4(address) => machine[4..].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => machine.copy_from_slice(&address.octets()[..8]),
        }
        Source::Machine(machine)
    }
}

/// How far a greeting has come. Those of one stage take no place from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing that shows a key was sent yet. Any host can come so far, as often as the network lets it.
    Silent,
    /// The first message was made with a key of the pool; the client's answer to this server's message is
    /// still missing.
    Greeted,
}

struct Member {
    number: u64,
    source: Source,
    stage: Stage,
    canceller: Canceller,
}

struct Crowd {
    members: Vec<Member>,
    entered: u64,
    random: u64,
}

impl Crowd {
    /// Xorshift: which one has to go cannot be predicted from the order in which newcomers came, which is its
    /// only purpose.
    fn random_below(&mut self, count: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % count as u64) as usize
    }

    /// Takes out one newcomer, so that no more than the limit are at this stage: any one of those that come
    /// from the source with most newcomers. Never simply the oldest, or a flood would remove every client whose
    /// greeting takes a while.
    fn take_one_too_many(&mut self, stage: Stage) -> Option<Canceller> {
        let mut by_source: BTreeMap<Source, Vec<usize>> = BTreeMap::new();
        for (at, member) in self.members.iter().enumerate().filter(|(_, member)| member.stage == stage) {
            by_source.entry(member.source).or_default().push(at);
        }
        if by_source.values().map(Vec::len).sum::<usize>() <= limits::CONNECTIONS_UNPROVEN_MAX {
            return None;
        }
        let most = by_source.into_values().max_by_key(Vec::len)?;
        let gone = most[self.random_below(most.len())];
        Some(self.members.swap_remove(gone).canceller)
    }
}

/// Clients that have not proved a key yet, of all listeners of one server.
#[derive(Clone)]
pub struct Newcomers(Rc<RefCell<Crowd>>);

impl Newcomers {
    /// No newcomer yet. `seed`: random bits.
    #[must_use]
    pub fn new(seed: u64) -> Newcomers {
        Newcomers(Rc::new(RefCell::new(Crowd { members: Vec::new(), entered: 0, random: seed | 1 })))
    }

    /// A place among those that have sent nothing yet; another one may have to go for it.
    pub(super) fn enter(&self, socket: &Rc<Socket>, source: Source) -> Place {
        let (number, gone) = {
            let mut crowd = self.0.borrow_mut();
            crowd.entered += 1;
            let number = crowd.entered;
            let canceller = Canceller::new(socket);
            crowd.members.push(Member { number, source, stage: Stage::Silent, canceller });
            (number, crowd.take_one_too_many(Stage::Silent))
        };
        cancel(gone);
        Place { newcomers: self.clone(), number }
    }
}

fn cancel(gone: Option<Canceller>) {
    if let Some(gone) = gone {
        gone.cancel();
    }
}

/// A newcomer's place; given back when it is dropped.
pub(super) struct Place {
    newcomers: Newcomers,
    number: u64,
}

impl Place {
    /// Its first message was good: from now on it is counted apart from those that send nothing.
    pub(super) fn has_greeted(&self) {
        let gone = {
            let mut crowd = self.newcomers.0.borrow_mut();
            if let Some(member) = crowd.members.iter_mut().find(|member| member.number == self.number) {
                member.stage = Stage::Greeted;
            }
            crowd.take_one_too_many(Stage::Greeted)
        };
        cancel(gone);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.newcomers.0.borrow_mut().members.retain(|member| member.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LIMIT: usize = limits::CONNECTIONS_UNPROVEN_MAX;
    const FLOOD: Source = Source::Machine([1; 8]);

    fn with_sockets(test: impl FnOnce(&mut dyn FnMut() -> Rc<Socket>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let mut others = Vec::new();
        test(&mut || {
            let (socket, other) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            others.push(other);
            Rc::new(Socket::new(OwnedFd::from(socket)).unwrap())
        });
    }

    fn is_open(socket: &Socket) -> bool {
        socket.check_cancelled().is_ok()
    }

    #[test]
    fn a_good_first_message_stands_apart_from_silence() {
        with_sockets(|socket| {
            let newcomers = Newcomers::new(7);
            let honest: Vec<_> = (0..LIMIT).map(|_| socket()).collect();
            let places: Vec<_> = honest.iter().map(|one| newcomers.enter(one, FLOOD)).collect();
            places.iter().for_each(Place::has_greeted);
            let flood: Vec<_> = (0..500).map(|_| socket()).collect();
            let _silent: Vec<_> = flood.iter().map(|one| newcomers.enter(one, FLOOD)).collect();
            assert!(honest.iter().all(|one| is_open(one)));
            assert_eq!(flood.iter().filter(|one| is_open(one)).count(), LIMIT);
            // Recorded greetings can be said again: they have a limit as well.
            let one_more = socket();
            newcomers.enter(&one_more, FLOOD).has_greeted();
            assert_eq!(
                honest.iter().filter(|one| is_open(one)).count() + usize::from(is_open(&one_more)),
                LIMIT
            );
        });
    }

    #[test]
    fn the_connection_that_goes_is_of_those_from_where_most_come_and_not_the_oldest() {
        with_sockets(|socket| {
            let newcomers = Newcomers::new(9);
            let alone = socket();
            let _alone = newcomers.enter(&alone, Source::User(5));
            let crowd: Vec<_> = (0..LIMIT - 1).map(|_| socket()).collect();
            let _crowd: Vec<_> = crowd.iter().map(|one| newcomers.enter(one, FLOOD)).collect();
            let late: Vec<_> = (0..20).map(|_| socket()).collect();
            let _late: Vec<_> = late.iter().map(|one| newcomers.enter(one, FLOOD)).collect();
            assert!(is_open(&alone), "a crowd from elsewhere takes nobody's place");
            let oldest_gone = crowd[..20].iter().filter(|one| !is_open(one)).count();
            assert!(oldest_gone < 20, "the oldest went, one after the other");
        });
    }

    #[test]
    fn a_place_is_given_back() {
        with_sockets(|socket| {
            let newcomers = Newcomers::new(1);
            let first = socket();
            let _first = newcomers.enter(&first, FLOOD);
            for _ in 0..3 * LIMIT {
                drop(newcomers.enter(&socket(), FLOOD));
            }
            assert!(is_open(&first));
        });
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_source() {
        let of = |text: &str| Source::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
