//! Each trouble that a slot can find by itself, in a state that was good before.

use ramlace_base::{Epoch, InodeId, Name, Sequence, SessionId, Slot, Timestamp, limits};
use ramlace_wire::check::{EntryFacts, Trouble, TroubleKind};
use ramlace_wire::namespace as wire;
use ramlace_wire::peer::Token;
use ramlace_wire::{Credentials, Layout};

use crate::command::{Command, Effect, Op, Origin};
use crate::state::SlotState;
use crate::state::directory::{Claim, Phase};
use crate::state::inode::Body;

const WHO: Credentials = Credentials::new(0, 0);
const SESSION: SessionId = SessionId([1; 16]);

struct Story {
    state: SlotState,
    sequence: u64,
}

impl Story {
    /// A slot with a directory, a file that is open with an append and a truncation under way, and
    /// a mkdir that waits for another slot.
    fn new() -> Story {
        let mut state = SlotState::new(Slot(0), 8, Epoch(1), 7);
        state.install_root(WHO.owner(), Timestamp { nanos: 0 });
        let mut story = Story { state, sequence: 0 };
        let layout = Layout {
            stripe_unit: 1 << 16,
            width: 2,
            base_slot: Slot(2),
            stride: 1,
            copies: 1,
            created: Epoch(1),
        };
        story.apply(Op::Create(wire::Create {
            parent: InodeId::ROOT,
            name: name("f"),
            mode: 0o600.into(),
            exclusive: true,
            read: true,
            write: true,
            layout: Some(layout),
            wish: wire::LayoutWish::default(),
            named: Vec::new(),
        }));
        let (inode, generation) = (story.file(), ramlace_base::Generation(1));
        story.apply(Op::Promote {
            request: ramlace_wire::inline::Promote {
                inode,
                first_page: ramlace_wire::inline::FirstPage::Locked,
            },
            epoch: Epoch(1),
        });
        story.apply(Op::Extend(wire::Extend { inode, generation, size: 500, from: 0 }));
        story.apply(Op::Truncate(wire::Truncate { inode, size: 100, allocated: None }));
        story.apply(Op::ReserveAppend(wire::ReserveAppend { inode, length: 10 }));
        story.mkdir("d", Slot(0));
        story.mkdir("e", Slot(5));
        story
    }

    fn apply(&mut self, op: Op) -> Vec<Effect> {
        self.sequence += 1;
        let origin = Origin::Client {
            session: SESSION,
            sequence: Sequence(self.sequence),
            acknowledged_below: Sequence(1),
            who: WHO,
            on_behalf: false,
        };
        self.state.apply(&Command { now: Timestamp { nanos: 1 }, origin, op })
    }

    fn mkdir(&mut self, text: &str, home: Slot) {
        let request = wire::MakeDirectory { parent: InodeId::ROOT, name: name(text), mode: 0o700.into() };
        self.apply(Op::MakeDirectory { request, homes: vec![home] });
    }

    fn file(&self) -> InodeId {
        let mut inodes = self.state.inodes.iter();
        *inodes.find(|(_, inode)| matches!(inode.body, Body::File(_))).expect("there is one").0
    }

    fn troubles(&self) -> Vec<TroubleKind> {
        let mut troubles: Vec<Trouble> = self.state.slot_facts(|session| session == SESSION).troubles;
        self.state.inode_facts(InodeId(0), 100, &mut troubles);
        troubles.into_iter().map(|trouble| trouble.kind).collect()
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn found(damage: impl FnOnce(&mut SlotState, InodeId)) -> Vec<TroubleKind> {
    let mut story = Story::new();
    let file = story.file();
    damage(&mut story.state, file);
    story.troubles()
}

#[test]
fn what_is_under_way_is_no_trouble() {
    let story = Story::new();
    assert_eq!(story.troubles(), []);
    let facts = story.state.slot_facts(|_| true);
    assert_eq!(facts.asked, [(Slot(5), Epoch(1).first_number())]);
    // Two lanes that receive a truncation, and the request of the mkdir to the other slot.
    assert_eq!((facts.inodes, facts.deliveries), (3, 3));
}

#[test]
fn sessions_and_their_open_inodes_are_checked() {
    let mut story = Story::new();
    let facts = story.state.slot_facts(|_| false);
    assert_eq!(facts.troubles[0].kind, TroubleKind::SessionGone);
    let file = story.file();
    story.state.inodes.get_mut(&file).unwrap().opens = 2;
    assert_eq!(story.troubles(), [TroubleKind::OpensMiscounted]);
    let gone = found(|state, _| {
        state
            .sessions
            .get_mut(&SESSION)
            .unwrap()
            .open
            .insert(InodeId(99), ramlace_wire::OpenedFor::default());
    });
    assert_eq!(gone, [TroubleKind::OpenOfNothing]);
    let reserved = found(|state, _| state.sessions.get_mut(&SESSION).unwrap().appending.clear());
    assert_eq!(reserved, [TroubleKind::ReservationOfNobody]);
}

#[test]
fn a_session_appends_to_a_file_no_longer_than_it_has_reserved_bytes_there() {
    // The change that has reserved them.
    let number = Sequence(5);
    let finish = |failed| move |inode| Op::FinishAppend(wire::FinishAppend { inode, number, failed });
    let cancel = |_| Op::CancelChange(wire::CancelChange { sequence: number });
    let cut = |story: &mut Story, inode| {
        drop(story.apply(Op::Truncate(wire::Truncate { inode, size: 50, allocated: None })));
    };
    let remove = |story: &mut Story, inode: InodeId| drop(story.state.inodes.remove(&inode));
    let ends: [&dyn Fn(InodeId) -> Op; 3] = [&finish(false), &finish(true), &cancel];
    type Happens<'a> = &'a dyn Fn(&mut Story, InodeId);
    let happens: [Happens<'_>; 3] = [&|_, _| {}, &cut, &remove];
    for (happened, ends) in happens.iter().flat_map(|happened| ends.map(|end| (happened, end))) {
        let mut story = Story::new();
        let file = story.file();
        happened(&mut story, file);
        assert_eq!(story.state.sessions[&SESSION].appending.len(), 1);
        story.apply(ends(file));
        assert_eq!(story.state.sessions[&SESSION].appending.len(), 0);
    }
}

#[test]
fn operations_that_wait_for_nothing_are_found() {
    // The request of the mkdir, the messages about the truncation.
    let lost = found(|state, _| state.outbox = crate::state::outbox::Outbox::default());
    assert_eq!(lost, [TroubleKind::OperationStuck; 2]);
    let unsent = found(|state, _| _ = state.unfinished.insert((Slot(6), 3)));
    assert_eq!(unsent, [TroubleKind::OperationStuck]);
}

#[test]
fn what_is_held_by_nobody_is_found() {
    let held = |damage: fn(&mut SlotState, InodeId)| assert_eq!(found(damage), [TroubleKind::HeldByNobody]);
    held(|state, file| state.inodes.get_mut(&file).unwrap().held = true);
    held(|state, _| state.moves = Some(Slot(3)));
    held(|state, _| state.set_phase(InodeId::ROOT, Phase::Sealed));
    held(|state, _| _ = state.directory_mut(InodeId::ROOT).1.busy.insert(name("x"), Claim::Asked));
    held(|state, _| _ = state.directory_mut(InodeId::ROOT).1.entries.reserve_cookie(5, &name("x")).unwrap());
    let forgotten = found(|state, _| {
        let token = Token { session: SESSION, sequence: Sequence(7) };
        state.intents.remove(&token).expect("the mkdir is under way");
    });
    // The name, its place, and that the other slot is never notified.
    let mut expected = [TroubleKind::OperationStuck, TroubleKind::HeldByNobody, TroubleKind::HeldByNobody];
    let mut forgotten = forgotten;
    forgotten.sort_by_key(|kind| u8::from(*kind));
    expected.sort_by_key(|kind| u8::from(*kind));
    assert_eq!(forgotten, expected);
}

#[test]
fn numbers_that_are_yet_to_come_are_found() {
    assert_eq!(found(|state, _| state.next_counter -= 1), [TroubleKind::NumberNotGivenOut]);
}

#[test]
fn entries_come_page_by_page_and_those_in_a_wrong_place_are_marked() {
    let mut story = Story::new();
    for number in 0..10 {
        story.mkdir(&format!("n{number}"), Slot(0));
    }
    let pages = |state: &SlotState, most: usize| {
        let (mut all, mut after): (Vec<EntryFacts>, _) = (Vec::new(), None);
        loop {
            let mut page = Vec::new();
            after = state.entry_facts(after, most, &mut page);
            assert!(page.len() <= most);
            all.extend(page);
            if after.is_none() {
                return all;
            }
        }
    };
    let whole = pages(&story.state, limits::CHECK_ENTRIES_MAX);
    assert_eq!(whole.len(), 12);
    assert!(whole.iter().all(|entry| !entry.misplaced));
    for most in 1..5 {
        assert_eq!(pages(&story.state, most), whole);
    }
    let (_, directory) = story.state.directory_mut(InodeId::ROOT);
    let cookie = directory.entries.free_cookie(77, &name("x")).unwrap();
    let (inode, kind) = (whole[0].inode, whole[0].kind);
    directory.entries.insert(cookie, crate::state::directory::Entry { name: name("x"), inode, kind });
    assert!(pages(&story.state, 3).iter().any(|entry| entry.misplaced && entry.name == name("x")));
}
