//! The coordinator under random histories, against a model that remembers which server lost what.

use proptest::prelude::*;
use ramlace_base::Slot;
use ramlace_wire::HostId;

use super::*;
use crate::{Absent, is_hole_or_lost, route, slots_changed, slots_of, validate};

fn config(servers: u16, slots: u32) -> CoordinatorConfig {
    CoordinatorConfig {
        pool: PoolId([7; 16]),
        hash_seed: 42,
        slots,
        servers_expected: servers,
        coordinator: ServerId(0),
    }
}

fn entry(server: u16, host: u8, port: u16) -> ServerEntry {
    ServerEntry {
        server: ServerId(server),
        host: HostId([host; 16]),
        tcp: format!("10.0.0.{host}:{port}"),
        unix: format!("/run/ramlace/{server}"),
        store_bytes: 1 << 30,
        forgotten: false,
    }
}

fn process(number: u8) -> SessionId {
    SessionId([number; 16])
}

/// By the first process of the server.
fn join(entry: ServerEntry, keeps_store: bool) -> Input {
    join_as(1, entry, keeps_store)
}

fn join_as(number: u8, entry: ServerEntry, keeps_store: bool) -> Input {
    Input::Join { join: JoinPool { entry, keeps_store }, process: process(number), holder_lives: false }
}

/// A pool whose servers have all joined and been answered.
fn pool(servers: u16, slots: u32) -> Coordinator {
    let mut coordinator = Coordinator::new(config(servers, slots)).unwrap();
    for _ in 0..2 {
        for server in 0..servers {
            coordinator.step(join(entry(server, 1, 7000 + server), false)).unwrap();
            if coordinator.map().is_some() && coordinator.unanswered.is_empty() {
                return coordinator;
            }
        }
    }
    unreachable!("two rounds answer everybody")
}

fn inputs() -> impl Strategy<Value = Input> {
    let joining = (0u16..6, 1u8..3, 7000u16..7003, any::<bool>(), prop::bool::weighted(0.1), 1u8..4)
        .prop_map(|(server, host, port, keeps_store, holder_lives, number)| Input::Join {
            join: JoinPool { entry: entry(server, host, port), keeps_store },
            process: process(number),
            holder_lives,
        });
    prop_oneof![8 => joining, 1 => (0u16..6).prop_map(|server| Input::Forget { server: ServerId(server) })]
}

/// A slot moves only when its server was forgotten; it loses bytes only then, or with a store.
fn check_change(old: &ClusterMap, new: &ClusterMap, input: &Input) -> std::result::Result<(), TestCaseError> {
    prop_assert!(new.epoch > old.epoch);
    for slot in slots_changed(old, new) {
        let before = old.primary(slot).unwrap();
        let (was, is) = (old.chain(slot).unwrap(), new.chain(slot).unwrap());
        prop_assert_eq!(is.complete_since, new.epoch);
        match input {
            Input::Forget { server } => {
                prop_assert_eq!(before, *server);
                prop_assert_ne!(&was.servers, &is.servers);
            }
            Input::Join { join, .. } => {
                prop_assert_eq!(before, join.entry.server);
                prop_assert!(!join.keeps_store);
                prop_assert_eq!(&was.servers, &is.servers);
            }
        }
    }
    Ok(())
}

/// Which server holds which bytes: for each slot the epoch since which nothing was lost, kept apart from the
/// map.
struct Model {
    answered: BTreeSet<ServerId>,
    /// Who joined last, also before there was a map.
    joined: BTreeMap<ServerId, SessionId>,
    whole_since: Vec<(ServerId, Epoch)>,
}

impl Model {
    fn apply(&mut self, input: &Input, map: Option<&ClusterMap>) {
        let asked_before = match input {
            Input::Forget { .. } => false,
            Input::Join { join, process, .. } => {
                self.joined.insert(join.entry.server, *process) == Some(*process)
            }
        };
        let Some(map) = map else { return };
        let loser = match input {
            Input::Forget { server } => Some(*server),
            Input::Join { join, .. } => {
                let again = !self.answered.insert(join.entry.server);
                (again && !join.keeps_store && !asked_before).then_some(join.entry.server)
            }
        };
        if self.whole_since.is_empty() {
            let home = |slot| (map.primary(slot).unwrap(), Epoch(1));
            self.whole_since = (0..map.slots()).map(|slot| home(Slot(slot as u16))).collect();
        }
        for (slot, (holder, since)) in self.whole_since.iter_mut().enumerate() {
            if Some(*holder) == loser {
                *since = map.epoch;
                *holder = map.primary(Slot(slot as u16)).unwrap();
            }
        }
    }

    fn check(&self, map: &ClusterMap) -> std::result::Result<(), TestCaseError> {
        for (slot, (holder, since)) in self.whole_since.iter().enumerate() {
            let slot = Slot(slot as u16);
            prop_assert_eq!(route(map, slot).unwrap().server, *holder);
            for created in [*since, map.epoch] {
                prop_assert_eq!(is_hole_or_lost(map, slot, created), Absent::Hole);
            }
            let older = Epoch(since.0 - 1);
            prop_assert_eq!(is_hole_or_lost(map, slot, older), Absent::Lost);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn any_history_keeps_the_promises(servers in 1u16..6, history in prop::collection::vec(inputs(), 1..60)) {
        let mut coordinator = Coordinator::new(config(servers, 96)).unwrap();
        let mut model = Model { answered: BTreeSet::new(), joined: BTreeMap::new(), whole_since: Vec::new() };
        for input in &history {
            let before = coordinator.clone();
            let bytes = postcard::to_stdvec(&before).unwrap();
            let decided = coordinator.step(input.clone());
            let mut replayed: Coordinator = postcard::from_bytes(&bytes).unwrap();
            let input_bytes = postcard::to_stdvec(input).unwrap();
            prop_assert_eq!(&replayed.step(postcard::from_bytes(&input_bytes).unwrap()), &decided);
            prop_assert_eq!(&replayed, &coordinator);

            if let Some(map) = coordinator.map() {
                validate(map).unwrap();
                let held: usize = map.servers.iter().map(|entry| slots_of(map, entry.server).count()).sum();
                prop_assert_eq!(held, 96);
            }
            match (&decided, before.map(), coordinator.map()) {
                (Err(_) | Ok(Decision::Unchanged), _, _) => prop_assert_eq!(&before, &coordinator),
                (Ok(Decision::Waiting { missing }), None, None) => {
                    prop_assert!(!missing.is_empty());
                    prop_assert_eq!(missing, &coordinator.missing());
                }
                (Ok(Decision::NewMap), None, Some(map)) => prop_assert_eq!(map.epoch, Epoch(1)),
                (Ok(Decision::NewMap), Some(old), Some(new)) => check_change(old, new, input)?,
                (Ok(Decision::Confirmed), Some(old), Some(new)) => prop_assert_eq!(old, new),
                other => prop_assert!(false, "{:?}", other),
            }
            if decided.is_ok() {
                model.apply(input, coordinator.map());
                coordinator.map().map_or(Ok(()), |map| model.check(map))?;
            }
        }
    }

    #[test]
    fn slots_stay_even_whoever_is_forgotten(order in Just((1u16..8).collect::<Vec<_>>()).prop_shuffle(), count in 0usize..7) {
        let mut coordinator = pool(8, 4096);
        for server in &order[..count] {
            coordinator.step(Input::Forget { server: ServerId(*server) }).unwrap();
        }
        let map = coordinator.map().unwrap();
        let held: Vec<usize> = map.servers.iter().filter(|entry| !entry.forgotten)
            .map(|entry| slots_of(map, entry.server).count()).collect();
        let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
        prop_assert!(most - least <= count, "{:?}", held);
    }
}

#[test]
fn the_map_waits_for_everybody_and_goes_round_the_servers() {
    let mut coordinator = Coordinator::new(config(3, 100)).unwrap();
    let waiting = |missing: &[u16]| {
        Ok(Decision::Waiting { missing: missing.iter().map(|server| ServerId(*server)).collect() })
    };
    assert_eq!(coordinator.missing().len(), 3);
    assert_eq!(coordinator.step(join(entry(2, 1, 1), false)), waiting(&[0, 1]));
    assert_eq!(coordinator.step(join(entry(0, 1, 2), false)), waiting(&[1]));
    assert_eq!(coordinator.step(join(entry(0, 1, 2), false)), waiting(&[1]));
    let error = coordinator.step(Input::Forget { server: ServerId(2) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert_eq!(coordinator.map(), None);
    assert_eq!(coordinator.step(join(entry(1, 1, 3), false)), Ok(Decision::NewMap));
    let map = coordinator.map().unwrap().clone();
    assert_eq!((map.epoch, map.slots(), map.hash_seed), (Epoch(1), 100, 42));
    assert_eq!(map.primary(Slot(98)), Some(ServerId(2)));
    assert!(coordinator.missing().is_empty());

    // The others ask again, still empty: they were never answered, so nothing is lost.
    assert_eq!(coordinator.step(join(entry(0, 1, 2), false)), Ok(Decision::Confirmed));
    assert_eq!(coordinator.step(join(entry(2, 1, 1), true)), Ok(Decision::Confirmed));
    assert_eq!(coordinator.step(join(entry(0, 1, 2), true)), Ok(Decision::Unchanged));
    assert_eq!(coordinator.map(), Some(&map));
}

// SEMANTICS 98.18
#[test]
fn servers_follow_each_other_by_machines_in_the_last_slots_and_every_server_has_as_many() {
    let mut coordinator = Coordinator::new(config(4, 100)).unwrap();
    for server in [0, 1, 2, 3, 0, 1, 2] {
        coordinator.step(join(entry(server, 1 + server as u8 % 2, 7000 + server), false)).unwrap();
    }
    let map = coordinator.map().unwrap();
    let primaries = |slots: std::ops::Range<u16>| -> Vec<u16> {
        slots.map(|slot| map.primary(Slot(slot)).unwrap().0).collect()
    };
    assert_eq!(ClusterMap::slots_by_machines(100, 4), 88..100);
    assert_eq!(primaries(84..96), [0, 1, 2, 3, 0, 2, 1, 3, 0, 2, 1, 3]);
    for server in (0..4).map(ServerId) {
        assert_eq!(slots_of(map, server).count(), 25);
    }
}

#[test]
fn a_server_that_moves_makes_an_epoch_and_one_that_lost_its_store_a_loss() {
    let mut coordinator = pool(3, 48);
    assert_eq!(coordinator.step(join(entry(1, 1, 9999), true)), Ok(Decision::NewMap));
    let moved = coordinator.map().unwrap();
    assert_eq!((moved.epoch, &moved.servers[1].tcp[..]), (Epoch(2), "10.0.0.1:9999"));
    assert_eq!(is_hole_or_lost(moved, Slot(1), Epoch(1)), Absent::Hole);

    assert_eq!(coordinator.step(join_as(2, entry(1, 1, 9999), false)), Ok(Decision::NewMap));
    let lost = coordinator.map().unwrap();
    assert_eq!((lost.epoch, lost.primary(Slot(1))), (Epoch(3), Some(ServerId(1))));
    assert_eq!(is_hole_or_lost(lost, Slot(1), Epoch(2)), Absent::Lost);
    assert_eq!(is_hole_or_lost(lost, Slot(1), Epoch(3)), Absent::Hole);
    assert_eq!(is_hole_or_lost(lost, Slot(2), Epoch(1)), Absent::Hole);
    assert_eq!(is_hole_or_lost(lost, Slot(48), Epoch(3)), Absent::Lost);
}

#[test]
fn a_process_that_did_not_get_the_answer_to_its_join_has_lost_nothing_since() {
    let mut coordinator = pool(3, 48);
    // The last one that the first map waited for.
    let first = coordinator.map().unwrap().clone();
    assert_eq!(coordinator.step(join(entry(2, 1, 7002), false)), Ok(Decision::Unchanged));
    assert_eq!(coordinator.map(), Some(&first));
    // One whose store was lost.
    assert_eq!(coordinator.step(join_as(2, entry(1, 1, 7001), false)), Ok(Decision::NewMap));
    let lost = coordinator.map().unwrap().clone();
    assert_eq!(coordinator.step(join_as(2, entry(1, 1, 7001), false)), Ok(Decision::Unchanged));
    assert_eq!(coordinator.map(), Some(&lost));
    assert_eq!(is_hole_or_lost(&lost, Slot(1), Epoch(2)), Absent::Hole, "files of after the loss have holes");
    // Whoever comes after it may have had bytes.
    assert_eq!(coordinator.step(join_as(3, entry(1, 1, 7001), false)), Ok(Decision::NewMap));
    assert_eq!(is_hole_or_lost(coordinator.map().unwrap(), Slot(1), Epoch(2)), Absent::Lost);
}

#[test]
fn a_server_that_may_not_join_or_be_forgotten_is_told_why() {
    let mut coordinator = pool(3, 48);
    coordinator.step(Input::Forget { server: ServerId(2) }).unwrap();
    let join_beside = JoinPool { entry: entry(1, 1, 9999), keeps_store: false };
    let second = Input::Join { join: join_beside, process: process(2), holder_lives: true };
    let forget = |server| Input::Forget { server: ServerId(server) };
    for (input, kind, words) in [
        (join(entry(3, 1, 1), false), ErrorKind::NotPermitted, "server 3 is not expected"),
        (join(entry(2, 1, 7002), true), ErrorKind::NotPermitted, "server 2 was forgotten"),
        (second, ErrorKind::Busy, "10.0.0.1:7001"),
        (join(entry(1, 2, 7001), true), ErrorKind::Invalid, "kept its store"),
        (forget(0), ErrorKind::NotPermitted, "coordinator"),
        (forget(2), ErrorKind::Stale, "server 2"),
        (forget(3), ErrorKind::NotFound, "server 3"),
    ] {
        let before = coordinator.clone();
        let error = coordinator.step(input).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}");
        assert_eq!(coordinator, before);
    }
    let mut anew = Coordinator::new(config(3, 48)).unwrap();
    assert_eq!(anew.step(join(entry(1, 1, 1), true)).unwrap_err().kind(), ErrorKind::Stale);
}

#[test]
fn no_slot_begins_anew_when_there_are_no_numbers_left_for_it() {
    let mut coordinator = pool(3, 48);
    coordinator.map.as_mut().unwrap().epoch = Epoch(Epoch::LAST_BIRTH.0 - 1);
    let mut last = coordinator.clone();
    assert_eq!(last.step(join_as(2, entry(1, 1, 7001), false)), Ok(Decision::NewMap));
    assert_eq!(last.map().unwrap().chain(Slot(1)).unwrap().complete_since, Epoch::LAST_BIRTH);
    for input in [join_as(3, entry(1, 1, 7001), false), Input::Forget { server: ServerId(2) }] {
        let before = last.clone();
        let error = last.step(input).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.message().contains("start it anew"), "{error}");
        assert_eq!(last, before);
    }
    // Who has lost nothing goes on.
    assert_eq!(last.step(join_as(2, entry(1, 1, 7001), false)), Ok(Decision::Unchanged));
    assert_eq!(last.step(join_as(3, entry(1, 1, 9999), true)), Ok(Decision::NewMap));
    assert_eq!(coordinator.step(Input::Forget { server: ServerId(2) }), Ok(Decision::NewMap));
}

#[test]
fn pools_that_cannot_be_are_refused() {
    for (servers, slots) in [(0, 4096), (3, 47), (1, 0), (1, limits::SLOTS_MAX + 1), (4097, 65_536)] {
        assert_eq!(Coordinator::new(config(servers, slots)).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let elsewhere = CoordinatorConfig { coordinator: ServerId(3), ..config(3, 4096) };
    assert_eq!(Coordinator::new(elsewhere).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(Coordinator::new(config(4096, 65_536)).is_ok());
}

/// Chains are vectors: where there are replicas, they take over and nothing is lost.
#[test]
fn replicas_take_over() {
    let with_replicas = || {
        let mut coordinator = pool(4, 64);
        for (slot, chain) in coordinator.map.as_mut().unwrap().chains.iter_mut().enumerate() {
            chain.servers.push(ServerId((slot as u16 + 1) % 4));
        }
        coordinator
    };
    let mut lost = with_replicas();
    lost.step(join_as(2, entry(1, 1, 7001), false)).unwrap();
    let mut forgotten = with_replicas();
    forgotten.step(Input::Forget { server: ServerId(1) }).unwrap();
    for coordinator in [lost, forgotten] {
        let map = coordinator.map().unwrap();
        validate(map).unwrap();
        assert_eq!(map.chain(Slot(1)).unwrap().servers, [ServerId(2)]);
        assert_eq!(map.chain(Slot(0)).unwrap().servers, [ServerId(0)]);
        assert_eq!(is_hole_or_lost(map, Slot(1), Epoch(1)), Absent::Hole);
    }
}
