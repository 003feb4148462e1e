//! Parts of a file on the machines where they are wanted.

use proptest::prelude::*;
use ramlace_base::ByteRange;
use ramlace_base::{ErrorKind, ServerId, limits};
use ramlace_layout::{Part, choose_for_parts, choose_from, lane_slot, pieces, validate};
use ramlace_wire::{ClusterMap, HostId, Layout, LayoutHints};

use crate::maps::map_of;

const MIB: u64 = 1 << 20;

fn host(number: u8) -> HostId {
    HostId([number; 16])
}

/// Servers take turns by their machines, as `ramlace up --hosts` numbers them.
fn map(machines: u16, servers_of_each: u16, slots: u32) -> ClusterMap {
    let servers = machines * servers_of_each;
    let by_machines = ClusterMap::slots_by_machines(slots, servers.into());
    let primary = |slot: u32| match (slot % u32::from(servers)) as u16 {
        turn if by_machines.contains(&slot) => turn % servers_of_each * machines + turn / servers_of_each,
        turn => turn,
    };
    map_of((servers, slots), |number| host((number % machines) as u8), primary)
}

fn server_of(map: &ClusterMap, layout: &Layout, lane: u16) -> ServerId {
    map.primary(lane_slot(layout, lane, map.slots())).unwrap()
}

/// Of the parts' bytes, those that lie where they are wanted.
fn near_bytes(map: &ClusterMap, layout: &Layout, parts: &[Part]) -> u64 {
    let (mut at, mut near) = (0, 0);
    for part in parts {
        for piece in pieces(layout, ByteRange { start: at, end: at + part.bytes }) {
            let server = server_of(map, layout, piece.lane);
            near += if map.servers[usize::from(server.0)].host == part.host { piece.length } else { 0 };
        }
        at += part.bytes;
    }
    near
}

fn parts(bytes: u64, hosts: &[u8]) -> Vec<Part> {
    hosts.iter().map(|number| Part { bytes, host: host(*number) }).collect()
}

fn chosen(map: &ClusterMap, parts: &[Part]) -> Layout {
    choose_for_parts(LayoutHints::default(), map, |_| true, parts, 5).unwrap().unwrap()
}

// SEMANTICS 98.18
#[test]
fn each_part_lies_on_one_server_of_its_machine_whichever_way_ranks_are_numbered() {
    for (machines, each, hosts) in [
        (2, 1, vec![0, 1]),
        (2, 1, vec![1, 0]),
        (2, 2, vec![0, 1, 0, 1]),
        (2, 2, vec![1, 1, 0, 0]),
        (4, 4, vec![0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),
        (3, 2, vec![2, 2, 0, 0, 1, 1]),
        (4, 2, vec![1, 2, 3, 0]),
        (8, 8, (0..64).map(|rank| rank / 8).collect()),
        (8, 8, (0..64).map(|rank| rank % 8).collect()),
    ] {
        let map = map(machines, each, 4096);
        let parts = parts(8 * MIB, &hosts);
        let layout = chosen(&map, &parts);
        validate(&layout, map.slots()).unwrap();
        assert_eq!(layout.stripe_unit, 8 * MIB, "{hosts:?}");
        assert_eq!(usize::from(layout.width), parts.len(), "{hosts:?}");
        assert_eq!(near_bytes(&map, &layout, &parts), 8 * MIB * parts.len() as u64, "{hosts:?}");
    }
}

// SEMANTICS 98.18
#[test]
fn ranks_that_outnumber_the_servers_share_chunks_with_their_neighbours() {
    let map = map(2, 2, 4096);
    let parts = parts(MIB, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    let layout = chosen(&map, &parts);
    assert_eq!((layout.stripe_unit, layout.width), (4 * MIB, 4));
    assert_eq!(near_bytes(&map, &layout, &parts), 16 * MIB);
}

#[test]
fn parts_that_are_no_power_of_two_are_near_but_for_what_their_chunks_have_of_the_next() {
    let map = map(2, 2, 4096);
    let parts = parts(1000 << 13, &[0, 0, 1, 1]);
    let layout = chosen(&map, &parts);
    assert_eq!((layout.stripe_unit, layout.width), (8 * MIB, 4));
    let total = 4 * (1000 << 13);
    assert!(near_bytes(&map, &layout, &parts) > total * 9 / 10);
}

#[test]
fn a_machine_without_live_servers_is_no_wish_and_a_unit_that_is_named_stays() {
    let map = map(2, 2, 4096);
    let none = choose_for_parts(LayoutHints::default(), &map, |_| true, &parts(MIB, &[7, 8]), 5).unwrap();
    assert_eq!(none, None);
    assert_eq!(choose_for_parts(LayoutHints::default(), &map, |_| true, &[], 5).unwrap(), None);
    // Servers 0 and 2 are machine 0's.
    let only_1 = |server: ServerId| server.0 % 2 == 1;
    let left = choose_for_parts(LayoutHints::default(), &map, only_1, &parts(MIB, &[0, 0, 1, 1]), 5)
        .unwrap()
        .unwrap();
    assert!((0..left.width).all(|lane| only_1(server_of(&map, &left, lane))));
    let hints = LayoutHints { stripe_unit: Some(MIB), width: Some(2), ..LayoutHints::default() };
    let named = choose_for_parts(hints, &map, |_| true, &parts(4 * MIB, &[0, 1]), 5).unwrap().unwrap();
    assert_eq!((named.stripe_unit, named.width), (MIB, 2));
}

#[test]
fn dead_servers_make_fewer_lanes_and_no_part_is_given_up_for_them() {
    let map = map(10, 10, 4096);
    let parts = parts(MIB, &(0..100).map(|rank| rank / 10).collect::<Vec<u8>>());
    let is_live = |server: ServerId| ![10, 37, 71].contains(&server.0);
    let layout = choose_for_parts(LayoutHints::default(), &map, is_live, &parts, 5).unwrap().unwrap();
    assert!((0..layout.width).all(|lane| is_live(server_of(&map, &layout, lane))));
    assert!(near_bytes(&map, &layout, &parts) > 50 * MIB, "{layout:?}");
}

#[test]
fn parts_that_make_no_sense_are_refused() {
    let map = map(2, 1, 4096);
    let refused = |parts: &[Part]| {
        choose_for_parts(LayoutHints::default(), &map, |_| true, parts, 5).unwrap_err().kind()
    };
    assert_eq!(refused(&parts(u64::MAX, &[0, 1])), ErrorKind::Invalid);
    assert_eq!(refused(&vec![Part { bytes: 1, host: host(0) }; limits::PARTS_MAX + 1]), ErrorKind::Invalid);
}

#[test]
fn the_first_lane_lies_on_the_server_that_is_named() {
    let map = map(2, 2, 4096);
    for key in 0..50 {
        for first in (0..4).map(ServerId) {
            let layout = choose_from(Some(first), LayoutHints::default(), &map, |_| true, key).unwrap();
            assert_eq!((server_of(&map, &layout, 0), layout.width), (first, 4));
            // One that is not there is no wish.
            let others =
                choose_from(Some(first), LayoutHints::default(), &map, |id| id != first, key).unwrap();
            assert_eq!(others.width, 3);
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_wished_the_layout_is_possible(
        machines in 1u16..5,
        each in 1u16..5,
        slots in 400u32..5000,
        wished in prop::collection::vec((0u64..1 << 33, 0u8..6), 0..40),
        unit in prop::option::of(16u32..31),
        width in prop::option::of(1u16..30),
        down in 0u16..20,
        key in any::<u64>(),
    ) {
        let map = map(machines, each, slots);
        let parts: Vec<Part> = wished.into_iter().map(|(bytes, number)| Part { bytes, host: host(number) }).collect();
        let hints = LayoutHints { stripe_unit: unit.map(|bits| 1 << bits), width, ..LayoutHints::default() };
        if let Some(layout) = choose_for_parts(hints, &map, |server| server.0 != down, &parts, key).unwrap() {
            validate(&layout, slots).unwrap();
            let servers: std::collections::BTreeSet<ServerId> =
                (0..layout.width).map(|lane| server_of(&map, &layout, lane)).collect();
            prop_assert_eq!(servers.len(), usize::from(layout.width));
            prop_assert!(!servers.contains(&ServerId(down)));
            prop_assert!(layout.width <= width.unwrap_or(u16::MAX));
            prop_assert!(unit.is_none_or(|bits| layout.stripe_unit == 1 << bits));
        }
    }
}
