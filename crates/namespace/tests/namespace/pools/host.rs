//! A server's part of the bargain: each command is logged before it is applied.

use std::collections::BTreeMap;

use ramlace_base::{InodeId, Name, limits};
use ramlace_namespace::{Command, Effect, SlotState};
use ramlace_wire::namespace::{GetAttributes, ReadDirectory};
use ramlace_wire::{Attributes, Credentials};

/// One slot with its snapshot and its log.
pub struct Host {
    pub state: SlotState,
    snapshot: Vec<u8>,
    log: Vec<Vec<u8>>,
}

impl Host {
    pub fn new(state: SlotState) -> Host {
        let snapshot = postcard::to_stdvec(&state).unwrap();
        Host { state, snapshot, log: Vec::new() }
    }

    pub fn apply(&mut self, command: &Command) -> Vec<Effect> {
        self.log.push(postcard::to_stdvec(command).unwrap());
        let before = View::of(&self.state);
        let effects = self.state.apply(command);
        before.check_notified(&View::of(&self.state), &effects);
        effects
    }

    /// Begins again from snapshot and log: everything must be as before.
    pub fn crash(&mut self) {
        let mut again: SlotState = postcard::from_bytes(&self.snapshot).unwrap();
        for record in &self.log {
            again.apply(&postcard::from_bytes(record).unwrap());
        }
        assert_eq!(again, self.state, "the replayed state differs");
        self.state = again;
    }

    pub fn write_snapshot(&mut self) {
        self.snapshot = postcard::to_stdvec(&self.state).unwrap();
        self.log.clear();
    }
}

/// The facts that clients may cache of a slot under leases.
struct View {
    attributes: BTreeMap<InodeId, Attributes>,
    names: BTreeMap<InodeId, BTreeMap<Name, InodeId>>,
}

impl View {
    fn of(state: &SlotState) -> View {
        let who = Credentials::new(0, 0);
        let mut view = View { attributes: BTreeMap::new(), names: BTreeMap::new() };
        for inode in state.inodes() {
            let asked = state.query(&who, &GetAttributes { inode });
            let Ok(info) = asked else { panic!("{asked:?}") };
            view.attributes.insert(inode, info.attributes);
            if state.has_all_names(inode) {
                let entries_max = limits::READDIR_ENTRIES_MAX;
                let request = ReadDirectory { inode, after: 0, entries_max };
                let asked = state.query(&who, &request);
                let Ok(page) = asked else { panic!("{asked:?}") };
                let names = page.entries.into_iter().map(|entry| (entry.name, entry.inode));
                view.names.insert(inode, names.collect());
            }
        }
        view
    }

    /// Every session that knew something that this step has changed is notified.
    fn check_notified(&self, after: &View, effects: &[Effect]) {
        let told = |wanted: InodeId, of_names: bool| {
            effects.iter().any(|effect| {
                matches!(effect, Effect::Changed { inode, names, .. } if *inode == wanted && (*names || !of_names))
            })
        };
        for (inode, attributes) in &self.attributes {
            let changed = after.attributes.get(inode) != Some(attributes);
            assert!(!changed || told(*inode, false), "{inode} has changed and nobody is told");
        }
        for (directory, names) in &self.names {
            let now = after.names.get(directory);
            let stays =
                |(name, inode): (&Name, &InodeId)| now.is_some_and(|now| now.get(name) == Some(inode));
            assert!(
                names.iter().all(stays) || told(*directory, true),
                "names of {directory} went in silence"
            );
        }
    }
}
