//! Maps that make no sense are refused, and real ones are small.

use ramlace_base::{Epoch, ErrorKind, ServerId, SessionId, Slot, limits};
use ramlace_cluster::{Coordinator, CoordinatorConfig, Input, route, slots_changed, slots_of, validate};
use ramlace_wire::cluster::JoinPool;
use ramlace_wire::{Chain, ClusterMap, HostId, PoolId, ServerEntry, encode_body};

fn map(servers: u16, slots: u32) -> ClusterMap {
    let config = CoordinatorConfig {
        pool: PoolId([255; 16]),
        hash_seed: u64::MAX,
        slots,
        servers_expected: servers,
        coordinator: ServerId(0),
    };
    let mut coordinator = Coordinator::new(config).unwrap();
    for server in (0..servers).map(ServerId) {
        let entry = ServerEntry {
            server,
            host: HostId([255; 16]),
            tcp: "255.255.255.255:65535".into(),
            unix: "x".repeat(107), // the longest path of a Unix socket
            store_bytes: u64::MAX,
            forgotten: false,
        };
        let join = JoinPool { entry, keeps_store: false };
        coordinator.step(Input::Join { join, process: SessionId::NONE, holder_lives: false }).unwrap();
    }
    coordinator.map().unwrap().clone()
}

#[test]
fn maps_are_small() {
    let usual = encode_body(&map(256, 4096));
    assert!(usual.len() <= 64 << 10, "{} bytes", usual.len());
    let bare = encode_body(&map(4, 4096));
    assert!(bare.len() <= 6 << 10, "{} bytes", bare.len());
    let mut largest = map(4096, 65_536);
    largest.epoch = Epoch(u32::MAX);
    for (slot, chain) in largest.chains.iter_mut().enumerate() {
        // Three copies, and a loss on every server: still one kind of chain for each server.
        let next = |step: usize| ServerId(((slot + step) % 4096) as u16);
        *chain = Chain { servers: vec![next(0), next(1), next(2)], complete_since: Epoch(u32::MAX) };
    }
    let largest = encode_body(&largest);
    assert!(largest.len() <= limits::BODY_BYTES_MAX as usize, "{} bytes", largest.len());
    println!("4 servers {}, 256 servers {}, 4096 servers {}", bare.len(), usual.len(), largest.len());
}

#[test]
fn nonsense_is_refused_and_says_what_is_wrong() {
    type Spoil = fn(&mut ClusterMap);
    let cases: [(Spoil, &str); 13] = [
        (|map| map.epoch = Epoch(0), "epoch 0"),
        (|map| map.chains.clear(), "0 slots"),
        (|map| map.chains = vec![map.chains[0].clone(); 65_537], "65537 slots"),
        (|map| map.servers.clear(), "0 servers"),
        (|map| map.servers = vec![map.servers[0].clone(); 4097], "4097 servers"),
        (|map| map.servers.swap(0, 1), "server 1 stands in place 0"),
        (|map| map.coordinator = ServerId(3), "coordinator is server 3"),
        (|map| map.servers[0].forgotten = true, "coordinator is server 0, which is forgotten"),
        (|map| map.servers[1].forgotten = true, "slot 1 is server 1, which is forgotten"),
        (|map| map.chains[5].servers.clear(), "slot 5 has 0 servers"),
        (|map| map.chains[5].servers = vec![ServerId(9)], "slot 5 is server 9, which is not in the map"),
        (|map| map.chains[5].servers = vec![ServerId(1); 2], "names server 1 twice"),
        (|map| map.chains[5].complete_since = Epoch(2), "complete since epoch 2"),
    ];
    let good = map(3, 48);
    validate(&good).unwrap();
    for (spoil, words) in cases {
        let mut bad = good.clone();
        spoil(&mut bad);
        let error = validate(&bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(words), "{error}");
    }
    let mut long = good;
    long.chains[5].servers = vec![ServerId(0); limits::CHAIN_SERVERS_MAX + 1];
    assert!(validate(&long).unwrap_err().message().contains("slot 5 has 7 servers"));
}

#[test]
fn routes_name_the_slot_they_do_not_have() {
    let mut map = map(3, 48);
    assert_eq!(route(&map, Slot(47)).unwrap().server, ServerId(2));
    let beyond = route(&map, Slot(48)).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::Invalid);
    assert!(beyond.message().contains("slot 48"), "{beyond}");
    map.servers[2].forgotten = true;
    assert_eq!(route(&map, Slot(47)).unwrap_err().kind(), ErrorKind::HostDown);
}

#[test]
fn slots_are_listed_and_compared() {
    let old = map(3, 48);
    assert_eq!(slots_of(&old, ServerId(1)).take(3).collect::<Vec<_>>(), [Slot(1), Slot(4), Slot(7)]);
    assert_eq!(slots_of(&old, ServerId(3)).count(), 0);
    let mut new = old.clone();
    assert_eq!(slots_changed(&old, &new).count(), 0);
    new.chains[7].complete_since = Epoch(2);
    new.chains[9].servers = vec![ServerId(1)];
    assert_eq!(slots_changed(&old, &new).collect::<Vec<_>>(), [Slot(7), Slot(9)]);
    new.chains.truncate(40);
    assert_eq!(slots_changed(&old, &new).count(), 2 + 8);
    assert_eq!(slots_changed(&new, &old).count(), 2 + 8);
    let largest = map(1, 65_536);
    assert_eq!(slots_of(&largest, ServerId(0)).last(), Some(Slot(65_535)));
}
