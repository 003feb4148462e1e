//! Maps of pools, as far as the choice of lanes depends on them.

use ramlace_base::{Epoch, ServerId};
use ramlace_wire::{Chain, ClusterMap, HostId, PoolId, ServerEntry};

/// So many servers and slots; the machine of each server, and the server of each slot, by number.
pub fn map_of(
    (servers, slots): (u16, u32),
    host: impl Fn(u16) -> HostId,
    primary: impl Fn(u32) -> u16,
) -> ClusterMap {
    let entry = |number| ServerEntry {
        server: ServerId(number),
        host: host(number),
        tcp: format!("127.0.0.1:{number}"),
        unix: String::new(),
        store_bytes: 1 << 30,
        forgotten: false,
    };
    let chain = |slot| Chain { servers: vec![ServerId(primary(slot))], complete_since: Epoch(1) };
    ClusterMap {
        pool: PoolId::default(),
        epoch: Epoch(7),
        hash_seed: 1,
        coordinator: ServerId(0),
        servers: (0..servers).map(entry).collect(),
        chains: (0..slots).map(chain).collect(),
    }
}
