//! Invariants that must hold after every step, when everything is finished, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use ramlace_base::{Epoch, ErrorKind, InodeId, LaneId, Name, Result, ServerId, Slot};
use ramlace_check::Check;
use ramlace_model::Node;
use ramlace_namespace::Query;
use ramlace_wire::namespace::{GetAttributes, InodeInfo};
use ramlace_wire::xattrs::{GetXattr, ListXattrs, XattrName};
use ramlace_wire::{Attributes, Chain, ClusterMap, FileKind, PoolId};

use crate::pools::pool::{CLIENTS, NAMES, Pool, ROOT_USER};
use crate::pools::wish::Wish;

/// Rounds of delivery after which everything must be finished.
const ROUNDS_MAX: usize = 50;
/// Times that a client gets Retry when no other operation is under way.
const COMES_AGAIN_MAX: usize = 6;

impl Pool {
    pub fn slots(&self) -> u16 {
        self.hosts.len() as u16
    }

    pub fn node_lives(&self, inode: InodeId) -> bool {
        self.node_of.get(&inode).is_some_and(|node| self.model.stat(*node).is_ok())
    }

    pub fn query<Q: Query>(&self, inode: InodeId, query: &Q) -> Result<Q::Reply> {
        self.hosts[usize::from(inode.slot().0)].state.query(&ROOT_USER, query)
    }

    pub fn info(&self, inode: InodeId) -> Result<InodeInfo> {
        self.query(inode, &GetAttributes { inode })
    }

    /// Every node of the model is in its slot, as the model has it, except for changes of an operation under
    /// way, which happen bit by bit.
    pub fn check_tree(&self) {
        for host in &self.hosts {
            assert_eq!(host.state.inode_count(), host.state.inodes().count() as u64);
        }
        let touched = |node: Node| self.touched.values().any(|(_, touched)| touched.nodes.contains(&node));
        for (node, _) in self.model.nodes() {
            let inode = self.inode_of[&node];
            let info = self.info(inode).unwrap_or_else(|error| panic!("{node:?}: {error}"));
            let stat = self.model.stat(node).unwrap();
            assert_eq!((info.attributes.kind, info.attributes.mode), (stat.kind, stat.mode));
            let Some(attributes) = self.merged(inode, info) else { continue };
            if !touched(node) {
                assert_eq!(attributes.size, stat.size, "size of {node:?}");
                // Between the decision of an rmdir and its arrival the directory itself does not know.
                if stat.links > 0 {
                    assert_eq!(attributes.links, stat.links, "links of {node:?}");
                }
            }
            if stat.kind == FileKind::File {
                self.check_inline(node, inode);
            }
            self.check_xattrs(node, inode);
            if stat.kind == FileKind::Directory {
                self.check_entries(node, inode);
            }
        }
    }

    /// The attributes of a directory with those of its partitions; `None` while one does not answer.
    fn merged(&self, inode: InodeId, info: InodeInfo) -> Option<Attributes> {
        let mut merged = info.attributes;
        let others: BTreeSet<Slot> =
            info.partitions.iter().copied().filter(|slot| *slot != inode.slot()).collect();
        for slot in others {
            let query = GetAttributes { inode };
            match self.hosts[usize::from(slot.0)].state.query(&ROOT_USER, &query) {
                Ok(part) => {
                    merged.size += part.attributes.size;
                    merged.links += part.attributes.links;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                    return None;
                }
            }
        }
        Some(merged)
    }

    fn check_xattrs(&self, node: Node, inode: InodeId) {
        let names = self.query(inode, &ListXattrs { inode }).unwrap();
        let value = |name: XattrName| {
            let query = GetXattr { inode, name: name.clone() };
            let value = self.query(inode, &query).unwrap();
            (name.to_string(), value)
        };
        let found: BTreeMap<String, Vec<u8>> = names.into_iter().map(value).collect();
        assert_eq!(&found, self.model.xattrs(node).unwrap(), "extended attributes of {node:?}");
    }

    fn check_entries(&self, node: Node, inode: InodeId) {
        let touched: BTreeSet<&Name> = self
            .touched
            .values()
            .flat_map(|(_, touched)| &touched.names)
            .filter(|(parent, _)| *parent == node)
            .map(|(_, name)| name)
            .collect();
        let Some(mut found) = self.list(inode) else { return };
        found.retain(|(name, _)| !touched.contains(name));
        found.sort();
        let expected: Vec<(Name, InodeId)> = self
            .model
            .read_directory(node)
            .unwrap()
            .into_iter()
            .map(|(name, node, _)| (name, self.inode_of[&node]))
            .filter(|(name, _)| !touched.contains(name))
            .collect();
        assert_eq!(found, expected, "entries of {node:?}");
    }

    /// All entries of a directory; `None` while one of its partitions does not answer.
    pub fn list(&self, inode: InodeId) -> Option<Vec<(Name, InodeId)>> {
        let (mut after, mut found) = (0, Vec::new());
        loop {
            let page = match self.page(inode, after, 2) {
                Err(error) if error.kind() == ErrorKind::Retry => return None,
                page => page.unwrap(),
            };
            assert!(page.next > after || page.end, "a listing goes on");
            for entry in page.entries {
                assert!(entry.cookie > after && entry.cookie <= page.next, "cookies rise");
                after = entry.cookie;
                found.push((entry.name, entry.inode));
            }
            after = page.next;
            if page.end {
                return Some(found);
            }
        }
    }

    /// Everything is delivered; then nothing is pending, no caller waits, and there is no inode that the model
    /// does not know.
    pub fn quiesce(&mut self) {
        self.deliver_all();
        assert!(self.undecided.is_empty(), "undecided: {:?}", self.undecided);
        self.come_again();
        for client in &mut self.clients {
            let waits = client.sent.values().find(|sent| sent.outcome.is_none());
            assert!(waits.is_none(), "{:?} waits for an answer", waits.map(|sent| &sent.wish));
        }
        assert_eq!(self.touched.len(), 0, "something is still under way");
        self.check_tree();
        let inodes: Vec<InodeId> = self.hosts.iter().flat_map(|host| host.state.inodes()).collect();
        let known: BTreeSet<InodeId> = self.model.nodes().map(|(node, _)| self.inode_of[&node]).collect();
        assert_eq!(BTreeSet::from_iter(inodes), known, "inodes that nothing leads to, or that are missing");
        self.check_records();
        self.check_lanes();
        self.check_facts();
    }

    /// A caller that got Retry is answered after a few attempts, also when all retry.
    pub fn come_again(&mut self) {
        for _ in 0..COMES_AGAIN_MAX {
            for client in 0..usize::from(CLIENTS) {
                for sequence in self.to_repeat(client) {
                    self.attempt(client, sequence);
                    self.deliver_all();
                }
            }
        }
        for client in &self.clients {
            let again = client.sent.values().find(|sent| sent.again);
            assert!(again.is_none(), "{:?} comes again and again", again.map(|sent| &sent.wish));
        }
    }

    /// The facts that `ramlace check` reads of the slots are consistent, and no operation is under way.
    fn check_facts(&self) {
        let map = self.map();
        let mut check = Check::new(&map, BTreeSet::new());
        let is_open = |session| self.clients.iter().any(|client| client.session == session);
        for host in &self.hosts {
            let (mut after, mut troubles) = (InodeId(0), Vec::new());
            loop {
                let page = host.state.inode_facts(after, 3, &mut troubles);
                page.iter().for_each(|facts| check.inode(ServerId(0), facts));
                let Some(last) = page.last() else { break };
                after = last.inode;
            }
            troubles.iter().for_each(|trouble| check.trouble(ServerId(0), trouble));
            check.slot(ServerId(0), &host.state.slot_facts(is_open));
        }
        for host in &self.hosts {
            let mut after = None;
            loop {
                let mut page = Vec::new();
                after = host.state.entry_facts(after, 3, &mut page);
                page.iter().for_each(|facts| check.entry(ServerId(0), facts));
                if after.is_none() {
                    break;
                }
            }
        }
        let checked = check.finish();
        assert_eq!(checked.findings, []);
        assert_eq!((checked.counts.operations, checked.counts.deliveries), (0, 0));
    }

    /// One server holds all slots.
    fn map(&self) -> ClusterMap {
        let chain = Chain { servers: vec![ServerId(0)], complete_since: Epoch(1) };
        ClusterMap {
            pool: PoolId::default(),
            epoch: Epoch(1),
            hash_seed: 42,
            coordinator: ServerId(0),
            servers: Vec::new(),
            chains: vec![chain; self.hosts.len()],
        }
    }

    /// Each slot has the partitions that the directories' homes say, with their attributes, and no others.
    fn check_records(&self) {
        let mut found: BTreeSet<(InodeId, Slot)> = BTreeSet::new();
        for host in &self.hosts {
            found.extend(host.state.partition_records().map(|inode| (inode, host.state.slot())));
        }
        let mut expected = BTreeSet::new();
        for (node, _) in self.model.nodes() {
            let inode = self.inode_of[&node];
            let info = self.info(inode).unwrap();
            expected.extend(info.partitions.iter().map(|slot| (inode, *slot)));
            expected.remove(&(inode, inode.slot()));
            if !info.partitions.is_empty() {
                assert_eq!(self.merged(inode, info).expect("it answers").kind, FileKind::Directory);
                self.check_modes(node);
            }
        }
        assert_eq!(found, expected, "partitions without a home, or missing ones");
    }

    /// Every partition of a directory has its mode.
    pub fn check_modes(&self, node: Node) {
        let inode = self.inode_of[&node];
        let Ok(info) = self.info(inode) else { return };
        let mode = self.model.stat(node).unwrap().mode;
        for slot in info.partitions {
            let query = GetAttributes { inode };
            match self.hosts[usize::from(slot.0)].state.query(&ROOT_USER, &query) {
                Ok(part) => assert_eq!(part.attributes.mode, mode, "in {slot}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
            }
        }
    }

    pub fn deliver_all(&mut self) {
        for _ in 0..ROUNDS_MAX {
            while let Some(flight) = self.flying.pop() {
                self.land(flight);
            }
            (0..self.slots()).for_each(|slot| self.send_open(Slot(slot)));
            if self.flying.is_empty() {
                break;
            }
        }
        assert!(self.flying.is_empty(), "still pending: {:?}", self.flying);
        self.forget_touched();
    }

    pub fn check_lanes(&self) {
        for file in &self.files {
            let width = self.slots().min(2);
            let lanes = (0..width).map(|lane| LaneId { inode: *file, lane });
            let Some(since) = self.in_lanes.get(file) else {
                // It was inline to its end; what it began to give away must be taken back.
                let mut left =
                    self.filled.keys().filter(|lane| lane.inode == *file && !self.node_lives(*file));
                assert!(left.all(|lane| self.dropped.contains(lane)), "a lane of {file} stays");
                continue;
            };
            match self.info(*file) {
                Ok(info) if info.attributes.generation > *since => lanes.for_each(|lane| {
                    assert_eq!(self.cut.get(&lane), Some(&info.attributes.generation), "{lane} was not told");
                }),
                Ok(_) => {}
                Err(_) => lanes.for_each(|lane| {
                    let begun = self.begun.contains(&lane) || self.filled.contains_key(&lane);
                    assert!(self.dropped.contains(&lane) || !begun, "{lane} stays");
                    // Of lanes that have not begun, those below one that has are dropped as well.
                    let above = (lane.lane..width).map(|lane| LaneId { inode: *file, lane });
                    let may_be = begun || above.into_iter().any(|lane| self.begun.contains(&lane));
                    // Inline bytes may have been in flight to lane 0.
                    assert!(may_be || lane.lane == 0 || !self.dropped.contains(&lane), "{lane} never began");
                }),
            }
        }
    }

    /// Every name of every directory can be used.
    pub fn use_every_name(&mut self) {
        self.quiet = true;
        let nodes: Vec<Node> = self.model.nodes().map(|(node, _)| node).collect();
        for parent in nodes {
            for name in NAMES.map(|name| Name::new(name).unwrap()) {
                self.insist(&Wish::Create { parent, name: name.clone(), exclusive: true, base: 0 });
                self.insist(&Wish::Unlink { parent, name });
            }
        }
        self.quiet = false;
    }

    /// Sends a wish, and again where the directory turns out to be spread.
    fn insist(&mut self, wish: &Wish) {
        self.send_wish(0, wish);
        self.deliver_all();
        for _ in 0..3 {
            self.attempt_again(0);
            self.deliver_all();
        }
        assert!(self.clients[0].sent.values().all(|sent| !sent.again), "{wish:?} comes to nothing");
    }

    /// All sessions end: only the tree is left.
    pub fn end(&mut self) {
        self.use_every_name();
        (0..CLIENTS).for_each(|client| self.end_session(client));
        self.quiesce();
        assert!(self.model.nodes().all(|(_, linked)| linked));
        for host in &self.hosts {
            assert_eq!(host.state.sessions().count(), 0);
        }
    }
}
