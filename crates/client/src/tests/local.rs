//! Files whose bytes shall lie on this machine.

use ramlace_base::ServerId;
use ramlace_wire::{HostId, LayoutHints};

use crate::OpenOptions;
use crate::fake::FakePool;
use crate::session::reach::this_host;

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
    let local = OpenOptions { local: true, ..OpenOptions::creating() };
    assert_eq!(servers_of(&pool, "/far", &local), all, "no server is here");
    for server in [1, 2] {
        pool.state().map.servers[server].host = this_host().unwrap_or(HostId([2; 16]));
    }
    assert_eq!(servers_of(&pool, "/near", &local), [ServerId(1), ServerId(2)]);
    assert_eq!(servers_of(&pool, "/usual", &OpenOptions::creating()), all);
    let wide = LayoutHints { width: Some(4), ..LayoutHints::default() };
    let narrowed = OpenOptions { hints: wide, ..local };
    assert_eq!(servers_of(&pool, "/narrowed", &narrowed), [ServerId(1), ServerId(2)]);
}
