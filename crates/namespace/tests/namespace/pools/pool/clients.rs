//! The actions of clients: they send requests, poll, repeat requests, and leave.

use super::*;

impl Pool {
    pub(super) fn new_client(&mut self) -> Client {
        self.sessions += 1;
        let mut session = SessionId([0; 16]);
        session.0[..8].copy_from_slice(&self.sessions.to_le_bytes());
        Client { session, sequence: 0, sent: BTreeMap::new(), open: BTreeSet::new(), known: BTreeMap::new() }
    }

    pub(super) fn wish(&mut self, client: u8, what: u8, node: u8, name: u8, extra: u8, other: u8) {
        let nodes: Vec<Node> = self.inode_of.keys().copied().collect();
        let directories: Vec<Node> =
            nodes.iter().copied().filter(|node| self.model.read_directory(*node).is_ok()).collect();
        // Mostly directories that are there; sometimes a file, or something that is gone.
        let parent = if node >= 240 {
            nodes[usize::from(extra) % nodes.len()]
        } else {
            directories[usize::from(node) % directories.len()]
        };
        let node = nodes[usize::from(node) % nodes.len()];
        let name_byte = name;
        let name = Name::new(NAMES[usize::from(name) % NAMES.len()]).unwrap();
        let size = u64::from(extra) * 1000;
        let new_parent = directories[usize::from(extra) % directories.len()];
        let new_name = Name::new(NAMES[usize::from(other) % NAMES.len()]).unwrap();
        let mode = match other / 4 % 6 {
            0 => RenameMode::Keep,
            1 | 2 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let kind = FileKind::ALL[usize::from(extra) % FileKind::ALL.len()];
        let wish = match what % 31 {
            0..=2 => {
                Wish::Create { parent, name, exclusive: extra.is_multiple_of(2), base: u16::from(extra) }
            }
            3 => Wish::Symlink { parent, name },
            24 => Wish::MakeNode { parent, name, kind },
            25 => Wish::CreateUnnamed { parent },
            26 => Wish::SetXattr { node, value: extra },
            27 => Wish::RemoveXattr { node },
            4 | 5 => Wish::Unlink { parent, name },
            6..=8 => Wish::MakeDirectory { parent, name, home: Slot(u16::from(extra) % self.slots()) },
            9 | 10 => Wish::RemoveDirectory { parent, name },
            11 => Wish::Open { node },
            12 => Wish::Close { node },
            13 | 28 | 29 if self.is_inline(node) => {
                let offset = (!other.is_multiple_of(3)).then_some(u64::from(extra) * 20);
                Wish::Write { node, offset, bytes: vec![name_byte | 1; usize::from(other) * 6 + 1] }
            }
            13 | 28 | 29 => Wish::Extend { node, size },
            30 => Wish::Promote { node },
            14 => Wish::Truncate { node, size },
            15..=20 => Wish::Rename { parent, name, new_parent, new_name, mode },
            21 | 22 => self.wish_link(nodes[usize::from(other) % nodes.len()], parent, name),
            _ => Wish::SetMode { node, mode: u16::from(extra) },
        };
        self.send_wish(usize::from(client % CLIENTS), &wish);
    }

    /// A file without a name that is linked from another slot, and closed meanwhile, lives: the link may count as
    /// earlier than the close, which the model does not see. Such links have a test of their own.
    pub(super) fn wish_link(&self, node: Node, parent: Node, name: Name) -> Wish {
        let unnamed = self.model.stat(node).is_ok_and(|stat| stat.links == 0);
        let elsewhere = self.spreads || self.inode_of[&node].slot() != self.inode_of[&parent].slot();
        if unnamed && elsewhere { Wish::Open { node } } else { Wish::Link { node, parent, name } }
    }

    pub fn send_wish(&mut self, client: usize, wish: &Wish) {
        let inode = self.inode_of[&wish.target()];
        let possible = BTreeSet::new();
        let generation = self.info(inode).map_or(Generation::FIRST, |info| info.attributes.generation);
        let op = wish.op(&self.inode_of, generation, self.slots());
        let sender = &mut self.clients[client];
        sender.sequence += 1;
        let sequence = Sequence(sender.sequence);
        let sent = Sent { slot: inode.slot(), op, wish: wish.clone(), outcome: None, again: false, possible };
        sender.sent.insert(sequence, sent);
        self.attempt(client, sequence);
    }

    /// Sends a mutation for the first time, or anew when it came to nothing.
    pub fn attempt(&mut self, client: usize, sequence: Sequence) {
        let sender = &mut self.clients[client];
        let token = Token { session: sender.session, sequence };
        let sent = sender.sent.get_mut(&sequence).unwrap();
        sent.again = false;
        // A later attempt may return the outcome of the first one.
        sent.possible.insert(outcome_on(&self.model, &sent.wish));
        let wish = &sent.wish.clone();
        let slot = match wish.entry() {
            Some((parent, name)) => self.slot_of(client, parent, name),
            None => self.inode_of[&wish.target()].slot(),
        };
        let new_slot = match wish {
            Wish::Rename { new_parent, new_name, .. } => Some(self.slot_of(client, *new_parent, new_name)),
            _ => None,
        };
        let sent = self.clients[client].sent.get_mut(&sequence).unwrap();
        sent.slot = slot;
        if let (Op::Rename(rename), Some(new_slot)) = (&mut sent.op, new_slot) {
            rename.new_slot = new_slot;
        }
        self.decided.remove(&token);
        if wish.has_several_slots() {
            self.undecided.insert(token, wish.clone());
        }
        if wish.counts_links() {
            self.touched.insert(token, (wish.clone(), Touched::default()));
            self.note_touched();
        }
        let effects = self.transmit(client, sequence);
        if let Wish::Truncate { .. } = wish {
            self.truncate_on_model(wish, &effects);
        }
        self.take_effects(slot, effects);
    }

    /// Removes a spread directory with everything in it; attempts without effect are repeated.
    pub(super) fn clear(&mut self, client: u8, which: u8, deliver_first: bool) {
        let mut places = Vec::new();
        for (parent, _) in self.model.nodes() {
            let entries = self.model.read_directory(parent).unwrap_or_default();
            places.extend(entries.into_iter().map(|(name, node, _)| (parent, name, node)));
        }
        places.retain(|(_, _, node)| {
            self.info(self.inode_of[node]).is_ok_and(|info| !info.partitions.is_empty())
        });
        let Some(at) = pick(places.len(), which) else { return };
        let (parent, name, node) = places.swap_remove(at);
        let client = usize::from(client % CLIENTS);
        for (name, _, kind) in self.model.read_directory(node).unwrap() {
            self.send_wish(
                client,
                &match kind {
                    FileKind::Directory => Wish::RemoveDirectory { parent: node, name },
                    _ => Wish::Unlink { parent: node, name },
                },
            );
        }
        for _ in 0..3 {
            if deliver_first {
                self.deliver_all();
            }
            self.attempt_again(client);
        }
        self.send_wish(client, &Wish::RemoveDirectory { parent, name });
    }

    /// The slot in which a client looks a name up.
    pub(super) fn slot_of(&self, client: usize, parent: Node, name: &Name) -> Slot {
        let inode = self.inode_of[&parent];
        let partition = self.hosts[0].state.partition_of(name);
        self.clients[client].known.get(&inode).map_or(inode.slot(), |partitions| partitions[partition])
    }

    /// The client asked the wrong slot: it asks the directories' homes.
    pub(super) fn learn(&mut self, client: usize, wish: &Wish) {
        let parents: Vec<InodeId> = match wish {
            Wish::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
            other => vec![other.target()],
        }
        .into_iter()
        .map(|node| self.inode_of[&node])
        .collect();
        for inode in parents {
            let partitions = self.info(inode).map(|info| info.partitions).unwrap_or_default();
            let known = &mut self.clients[client].known;
            if partitions.is_empty() {
                known.remove(&inode)
            } else {
                known.insert(inode, partitions)
            };
        }
    }

    /// Repeats a request that had no effect.
    pub fn attempt_again(&mut self, client: usize) {
        self.to_repeat(client).into_iter().for_each(|sequence| self.attempt(client, sequence));
    }

    /// The requests that had no effect.
    pub fn to_repeat(&self, client: usize) -> Vec<Sequence> {
        let sent = self.clients[client].sent.iter();
        sent.filter(|(_, sent)| sent.again).map(|(sequence, _)| *sequence).collect()
    }

    /// The state has the new size at once; the answer comes when the lanes have confirmed.
    pub(super) fn truncate_on_model(&mut self, wish: &Wish, effects: &[Effect]) {
        match effects.iter().find_map(|effect| match effect {
            Effect::Reply { outcome: Err(error), .. } => Some(error.kind()),
            _ => None,
        }) {
            None => assert_eq!(wish.on_model(&mut self.model), Ok(None), "{wish:?}"),
            Some(_) if self.does_not_know_its_end(wish.target()) => {}
            Some(ErrorKind::Retry) => {}
            Some(ErrorKind::HostDown) => assert!(self.is_leaving(wish.target())),
            Some(kind) => {
                let expected = wish.on_model(&mut self.model.clone());
                assert_eq!(expected.map_err(|error| error.kind()), Err(kind), "{wish:?}");
            }
        }
    }

    pub(super) fn transmit(&mut self, client: usize, sequence: Sequence) -> Vec<Effect> {
        let client = &self.clients[client];
        let sent = &client.sent[&sequence];
        let origin = Origin::Client {
            session: client.session,
            sequence,
            acknowledged_below: *client.sent.keys().next().unwrap(),
            who: ROOT_USER,
            on_behalf: false,
        };
        let command = Command { now: Timestamp { nanos: self.now }, origin, op: sent.op.clone() };
        self.hosts[usize::from(sent.slot.0)].apply(&command)
    }

    /// The same sequence again: nothing new happens, and an answer is the first one.
    pub(super) fn retry(&mut self, client: u8, which: u8) {
        let client = usize::from(client % CLIENTS);
        let sequences: Vec<Sequence> = self.clients[client].sent.keys().copied().collect();
        let Some(at) = pick(sequences.len(), which) else { return };
        let slots = self.slots();
        let sent = self.clients[client].sent.get_mut(&sequences[at]).unwrap();
        if sent.again {
            return self.attempt(client, sequences[at]);
        }
        if let Op::MakeDirectory { homes, .. } = &mut sent.op {
            homes[0] = Slot((homes[0].0 + 1) % slots);
        }
        let first = sent.outcome.clone();
        let effects = self.transmit(client, sequences[at]);
        match first {
            None => assert_eq!(effects, [], "a retry of what is under way has effects"),
            Some(first) => {
                let token = Token { session: self.clients[client].session, sequence: sequences[at] };
                assert_eq!(
                    effects,
                    [Effect::Reply { token, outcome: first }],
                    "a retry is answered otherwise"
                );
            }
        }
    }

    pub(super) fn acknowledge(&mut self, client: u8) {
        let client = &mut self.clients[usize::from(client % CLIENTS)];
        let open = client.sent.iter().find(|(_, sent)| sent.outcome.is_none()).map(|(sequence, _)| *sequence);
        client.sent = match open {
            Some(open) => client.sent.split_off(&open),
            None => BTreeMap::new(),
        };
    }

    pub fn end_session(&mut self, client: u8) {
        let fresh = self.new_client();
        let gone = std::mem::replace(&mut self.clients[usize::from(client % CLIENTS)], fresh);
        for slot in 0..self.slots() {
            let op = Op::EndSession { session: gone.session };
            self.server_command(Slot(slot), op);
        }
        for node in gone.open {
            self.model.close(node).unwrap();
        }
        self.disturb();
    }
}
