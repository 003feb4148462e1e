//! What two servers of a good pool report, to be damaged.

use ramlace_base::{Epoch, Generation, InodeId, LaneId, Name, ServerId, Slot};
use ramlace_check::{Check, Checked};
use ramlace_wire::check::{EntryFacts, FileFacts, InodeFacts, LaneFacts, SlotFacts, StoreFacts};
use ramlace_wire::{Chain, ClusterMap, FileKind, HostId, Layout, PoolId, ServerEntry};

pub const UNIT: u64 = 1 << 21;
pub const PAGE: u64 = 4096;
/// Even slots are with server 0, odd ones with server 1.
pub const SLOTS: u16 = 8;

/// Everything that two servers report.
#[derive(Clone)]
pub struct Facts {
    pub map: ClusterMap,
    pub slots: Vec<SlotFacts>,
    pub inodes: Vec<InodeFacts>,
    pub entries: Vec<EntryFacts>,
    pub lanes: Vec<(ServerId, LaneFacts)>,
    pub stores: Vec<StoreFacts>,
}

pub fn id(slot: u16, counter: u64) -> InodeId {
    InodeId::new(Slot(slot), Epoch(1).first_number() + counter)
}

pub const ROOT: InodeId = InodeId::ROOT;

pub fn server_of(slot: u16) -> ServerId {
    ServerId(slot % 2)
}

pub fn directory(inode: InodeId, parent: InodeId, links: u32) -> InodeFacts {
    let kind = FileKind::Directory;
    InodeFacts { inode, kind, links, opens: 0, held: false, parent: Some(parent), file: None }
}

pub fn file(inode: InodeId, links: u32, extent: u64) -> InodeFacts {
    let layout =
        Layout { stripe_unit: UNIT, width: 2, base_slot: Slot(2), stride: 1, copies: 1, created: Epoch(1) };
    let generation = Generation(3);
    let file = Some(FileFacts {
        extent,
        generation,
        layout,
        untrimmed: false,
        cutting: false,
        lanes_begun: layout.width,
    });
    InodeFacts { inode, kind: FileKind::File, links, opens: 0, held: false, parent: None, file }
}

pub fn entry(directory: InodeId, cookie: u64, name: &str, inode: InodeId, kind: FileKind) -> EntryFacts {
    let name = Name::new(name).unwrap();
    EntryFacts { directory, cookie: cookie << 3, name, inode, kind, misplaced: false }
}

pub fn lane(inode: InodeId, lane: u16, length: u64) -> LaneFacts {
    LaneFacts {
        lane: LaneId { inode, lane },
        generation: Some(Generation(3)),
        length: Some(length),
        allocated_bytes: length.next_multiple_of(PAGE),
        lost_below: 0,
        writing: false,
    }
}

pub fn map() -> ClusterMap {
    let server = |number| ServerEntry {
        server: ServerId(number),
        host: HostId::default(),
        tcp: String::new(),
        unix: String::new(),
        store_bytes: 0,
        forgotten: false,
    };
    let chain = |slot| Chain { servers: vec![server_of(slot)], complete_since: Epoch(1) };
    ClusterMap {
        pool: PoolId::default(),
        epoch: Epoch(1),
        hash_seed: 0,
        coordinator: ServerId(0),
        servers: (0..2).map(server).collect(),
        chains: (0..SLOTS).map(chain).collect(),
    }
}

/// `/a/b/`, `/a/f` (two names), `/s -> ...`, an open file without a name, a rename under way.
pub fn good() -> Facts {
    let (a, b, f, s, open) = (id(1, 0), id(2, 0), id(1, 1), id(0, 1), id(2, 5));
    let slot = |slot: u16| SlotFacts {
        slot: Slot(slot),
        inodes: 1,
        asked: Vec::new(),
        held: Vec::new(),
        partitions: Vec::new(),
        deliveries: 0,
        troubles: Vec::new(),
    };
    let mut slots: Vec<SlotFacts> = (0..4).map(slot).collect();
    slots[1].asked.push((Slot(2), 7));
    slots[2].held.push((Slot(1), 7));
    let symlink = InodeFacts {
        inode: s,
        kind: FileKind::Symlink,
        links: 1,
        opens: 0,
        held: false,
        parent: None,
        file: None,
    };
    let books = |server| StoreFacts {
        server: ServerId(server),
        epoch: Epoch(1),
        lanes_bytes: 5,
        summed_bytes: 5,
        counted_bytes: 9,
        kernel_bytes: Some(9),
    };
    Facts {
        map: map(),
        slots,
        inodes: vec![
            directory(ROOT, ROOT, 3),
            symlink,
            directory(a, ROOT, 3),
            file(f, 2, UNIT + 100),
            directory(b, a, 2),
            InodeFacts { opens: 1, ..file(open, 0, 10) },
        ],
        entries: vec![
            entry(ROOT, 1, "a", a, FileKind::Directory),
            entry(ROOT, 2, "s", s, FileKind::Symlink),
            entry(ROOT, 3, "g", f, FileKind::File),
            entry(a, 1, "b", b, FileKind::Directory),
            entry(a, 2, "f", f, FileKind::File),
        ],
        lanes: vec![
            (ServerId(0), lane(f, 0, UNIT)),
            (ServerId(1), lane(f, 1, 100)),
            (ServerId(0), lane(open, 0, 10)),
        ],
        stores: vec![books(0), books(1)],
    }
}

pub fn scan(facts: &Facts) -> Checked {
    let mut check = Check::new(&facts.map, facts.inodes.iter().map(|facts| facts.inode).collect());
    facts.slots.iter().for_each(|slot| check.slot(server_of(slot.slot.0), slot));
    facts.inodes.iter().for_each(|inode| check.inode(server_of(inode.inode.slot().0), inode));
    facts.entries.iter().for_each(|entry| check.entry(server_of(entry.directory.slot().0), entry));
    facts.lanes.iter().for_each(|(server, lane)| check.lane(*server, lane));
    facts.stores.iter().for_each(|store| check.store(store));
    check.finish()
}
