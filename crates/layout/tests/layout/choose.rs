//! The choice of lanes: on distinct live servers, spread evenly, narrowed only when it must be.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use ramlace_base::{ErrorKind, InodeId, ServerId, Slot, limits};
use ramlace_layout::{choose, choose_from, first_server, lane_slot, name_key, validate};
use ramlace_wire::{ClusterMap, HostId, Layout, LayoutHints};

use crate::maps::map_of;

fn map(servers: u16, slots: u32) -> ClusterMap {
    map_of((servers, slots), |_| HostId::default(), |slot| (slot % u32::from(servers)) as u16)
}

fn forget(map: &mut ClusterMap, dead: ServerId) {
    map.servers[usize::from(dead.0)].forgotten = true;
    let rest: Vec<ServerId> = map.servers.iter().filter(|s| !s.forgotten).map(|s| s.server).collect();
    let of_dead = map.chains.iter_mut().filter(|chain| chain.servers[0] == dead);
    for (index, chain) in of_dead.enumerate() {
        chain.servers = vec![rest[index % rest.len()]];
    }
}

fn homes(map: &ClusterMap, layout: &Layout) -> Vec<ServerId> {
    (0..layout.width).map(|lane| map.primary(lane_slot(layout, lane, map.slots())).unwrap()).collect()
}

fn width(width: u16) -> LayoutHints {
    LayoutHints { width: Some(width), ..LayoutHints::default() }
}

proptest! {
    #[test]
    fn lanes_lie_on_distinct_live_servers(
        servers in 1u16..24,
        slots in 384u32..700,
        forgotten in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        down in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        asked in prop::option::of(1u16..40),
        key in any::<u64>(),
    ) {
        let mut map = map(servers, slots);
        for index in forgotten {
            let dead = ServerId(index.index(servers.into()) as u16);
            if map.servers.iter().filter(|entry| !entry.forgotten).count() > 1 {
                forget(&mut map, dead);
            }
        }
        let down: BTreeSet<u16> = down.iter().map(|index| index.index(servers.into()) as u16).collect();
        let is_live = |server: ServerId| !down.contains(&server.0);
        let hints = LayoutHints { width: asked, ..LayoutHints::default() };
        let live = map.servers.iter().filter(|entry| !entry.forgotten && is_live(entry.server)).count();
        match choose(hints, &map, is_live, key) {
            Ok(layout) => {
                validate(&layout, map.slots()).unwrap();
                prop_assert_eq!(layout.created, map.epoch);
                let homes = homes(&map, &layout);
                let distinct: BTreeSet<ServerId> = homes.iter().copied().collect();
                prop_assert_eq!(distinct.len(), homes.len());
                prop_assert!(distinct.iter().all(|server| is_live(*server) && !map.server(*server).unwrap().forgotten));
                prop_assert!(homes.len() <= asked.unwrap_or(u16::MAX).into());
                prop_assert_eq!(choose(hints, &map, is_live, key).unwrap(), layout);
            }
            Err(error) => {
                prop_assert_eq!(live, 0);
                prop_assert_eq!(error.kind(), ErrorKind::HostDown);
            }
        }
    }
}

#[test]
fn a_whole_pool_is_used_to_its_full_width() {
    for servers in [1, 2, 3, 4, 5, 7, 16, 100, 255, 256] {
        let map = map(servers, 4096);
        for key in 0..50 {
            assert_eq!(choose(LayoutHints::default(), &map, |_| true, key).unwrap().width, servers);
            let asked = choose(width(3), &map, |_| true, key).unwrap().width;
            assert_eq!(asked, servers.min(3));
        }
    }
}

#[test]
fn a_forgotten_server_costs_one_lane_not_more() {
    for servers in [2, 3, 4, 8, 16] {
        let mut map = map(servers, 4096);
        forget(&mut map, ServerId(1));
        for key in 0..50 {
            let layout = choose(LayoutHints::default(), &map, |_| true, key).unwrap();
            assert_eq!(layout.width, servers - 1, "{servers} servers");
        }
    }
}

fn lane_0_counts(map: &ClusterMap, hints: LayoutHints, down: Option<ServerId>) -> BTreeMap<ServerId, u32> {
    let mut counts = BTreeMap::new();
    for file in 0..6000 {
        let key = name_key(InodeId::ROOT, format!("file{file}").as_bytes());
        let layout = choose(hints, map, |server| Some(server) != down, key).unwrap();
        *counts.entry(homes(map, &layout)[0]).or_insert(0) += 1;
    }
    counts
}

#[test]
fn lane_0_is_spread_evenly_also_over_those_who_are_left() {
    let whole = map(4, 4096);
    let mut without_2 = map(4, 4096);
    forget(&mut without_2, ServerId(2));
    for (map, hints, down, servers) in [
        (&whole, LayoutHints::default(), None, 4),
        (&whole, width(1), None, 4),
        (&without_2, LayoutHints::default(), None, 3),
        (&whole, width(1), Some(ServerId(2)), 3),
    ] {
        let counts = lane_0_counts(map, hints, down);
        let fair = 6000 / servers;
        assert_eq!(counts.len() as u32, servers);
        assert!(counts.values().all(|count| (fair * 8 / 10..fair * 12 / 10).contains(count)), "{counts:?}");
    }
}

// SEMANTICS 137.10
#[test]
fn a_file_begins_with_its_home_in_a_small_directory() {
    let (map, usual) = (map(4, 4096), LayoutHints::default());
    for home in (0..64).map(Slot) {
        let server = map.primary(home);
        let of = |hints, entries| first_server(hints, &map, home, entries);
        assert_eq!(of(usual, 0), server);
        assert_eq!(of(usual, limits::FILES_BEGIN_AT_HOME_MAX - 1), server);
        assert_eq!(of(usual, limits::FILES_BEGIN_AT_HOME_MAX), None, "many would fill one server");
        assert_eq!(of(width(1), 0), None, "somebody spreads whole files");
        assert_eq!(of(LayoutHints { stripe_unit: Some(64 << 20), ..usual }, 0), None);
        let layout = choose_from(server, usual, &map, |_| true, u64::from(home.0)).unwrap();
        assert_eq!((map.primary(layout.base_slot), layout.width), (server, 4));
    }
}

#[test]
fn hints_out_of_range_are_errors_and_usual_values_are_known() {
    let map = map(3, 4096);
    let usual = choose(LayoutHints::default(), &map, |_| true, 9).unwrap();
    assert_eq!((usual.stripe_unit, usual.copies), (2 << 20, 1));
    let none = LayoutHints::default();
    for bad in [
        width(0),
        width(4097),
        LayoutHints { stripe_unit: Some(100_000), ..none },
        LayoutHints { copies: Some(0), ..none },
        LayoutHints { copies: Some(4), ..none },
    ] {
        assert_eq!(choose(bad, &map, |_| true, 9).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    let copies = LayoutHints { copies: Some(2), ..none };
    assert_eq!(choose(copies, &map, |_| true, 9).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(choose(none, &map, |_| false, 9).unwrap_err().kind(), ErrorKind::HostDown);
}

#[test]
fn keys_of_names_are_fixed_for_ever() {
    assert_ne!(name_key(InodeId(1), b"x"), name_key(InodeId(2), b"x"));
    assert_ne!(name_key(InodeId(1), b"x"), name_key(InodeId(1), b"y"));
    assert_eq!(name_key(InodeId(0), b""), 0x2d06_8005_38d3_94c2); // XXH3's published value for no bytes
}
