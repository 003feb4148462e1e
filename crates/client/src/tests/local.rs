//! Files whose bytes shall lie on certain servers.

use ramlace_base::ServerId;
use ramlace_layout::Part;
use ramlace_transport::this_host;
use ramlace_wire::{HostId, LayoutHints};

use crate::fake::FakePool;
use crate::{OpenOptions, Placing};

fn servers_of(pool: &FakePool, path: &str, options: &OpenOptions) -> Vec<ServerId> {
    let file = pool.connect().open(path, options).unwrap();
    let map = pool.state().map.clone();
    let slot = |lane| ramlace_layout::lane_slot(file.layout(), lane, map.slots());
    let mut servers: Vec<ServerId> =
        (0..file.layout().width).map(|lane| map.chain(slot(lane)).unwrap().servers[0]).collect();
    servers.sort();
    servers
}

// SEMANTICS 98.17
#[test]
fn a_local_file_lies_on_this_machines_servers_where_it_has_any() {
    let pool = FakePool::start(4);
    let all: Vec<ServerId> = (0..4).map(ServerId).collect();
    let local = OpenOptions { placing: Placing::Here, ..OpenOptions::creating() };
    assert_eq!(servers_of(&pool, "/far", &local), all, "no server is here");
    for server in [1, 2] {
        pool.state().map.servers[server].host = this_host().unwrap();
    }
    assert_eq!(servers_of(&pool, "/near", &local), [ServerId(1), ServerId(2)]);
    assert_eq!(servers_of(&pool, "/usual", &OpenOptions::creating()), all);
    let wide = LayoutHints { width: Some(4), ..LayoutHints::default() };
    let narrowed = OpenOptions { hints: wide, ..local };
    assert_eq!(servers_of(&pool, "/narrowed", &narrowed), [ServerId(1), ServerId(2)]);
}

fn lanes_of(pool: &FakePool, path: &str, placing: Placing) -> (u64, Vec<ServerId>) {
    let options = OpenOptions { placing, ..OpenOptions::creating() };
    let file = pool.connect().open(path, &options).unwrap();
    let map = pool.state().map.clone();
    let server = |lane| map.primary(ramlace_layout::lane_slot(file.layout(), lane, map.slots())).unwrap();
    (file.layout().stripe_unit, (0..file.layout().width).map(server).collect())
}

// SEMANTICS 98.18
#[test]
fn parts_of_a_file_lie_on_the_machines_that_they_are_wanted_on() {
    let pool = FakePool::start(4);
    for (number, entry) in pool.state().map.servers.iter_mut().enumerate() {
        entry.host = HostId([1 + number as u8 % 2; 16]);
    }
    let parts = |hosts: &[u8]| {
        Placing::Parts(hosts.iter().map(|host| Part { bytes: 4 << 20, host: HostId([*host; 16]) }).collect())
    };
    let (unit, servers) = lanes_of(&pool, "/tiles", parts(&[2, 1, 2, 1]));
    assert_eq!(
        (unit, servers.iter().map(|server| server.0 % 2).collect::<Vec<_>>()),
        (4 << 20, vec![1, 0, 1, 0])
    );
    // Neither of these machines has a server.
    assert_eq!(lanes_of(&pool, "/usual", parts(&[8, 9])).1.len(), 4);
}

// SEMANTICS 98.19
#[test]
fn the_first_chunk_lies_on_the_server_that_is_named_where_there_is_one() {
    let pool = FakePool::start(4);
    for first in (0..4).map(ServerId) {
        let (_, servers) = lanes_of(&pool, &format!("/from{}", first.0), Placing::From(first));
        assert_eq!((servers[0], servers.len()), (first, 4));
    }
    assert_eq!(lanes_of(&pool, "/beyond", Placing::From(ServerId(4))).1.len(), 4);
}
