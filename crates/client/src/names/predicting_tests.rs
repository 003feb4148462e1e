//! Predictions compared with a slot's own answers to the same changes.

use ramlace_base::{Epoch, InodeId, Name, Sequence, SessionId, Slot, Timestamp};
use ramlace_namespace::{Command, Effect, Op, Origin, Reply, SlotState};
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::delegation::Delegated;
use ramlace_wire::inline::{Bytes, FirstPage, InlineMode, Promote, WriteInline};
use ramlace_wire::namespace::{
    Close, Create, GetAttributes, InodeInfo, LayoutWish, NewMode, SetAttributes, TimeReason,
};
use ramlace_wire::{Attributes, Credentials, FileAttributes, Layout, encode_body};

use super::KnownSlot;

const SESSION: SessionId = SessionId([3; 16]);
const STEPS: u64 = 4_000;

/// Numbers that are the same for the same seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}

fn some<T>(dice: &mut Dice, value: T) -> Option<T> {
    (dice.roll(2) == 0).then_some(value)
}

/// A slot, and what is known of it in the session to which it is delegated.
struct Pair {
    state: SlotState,
    known: KnownSlot,
    who: Credentials,
    layout: Layout,
    sequence: u64,
    predicted: u64,
}

impl Pair {
    fn new(who: Credentials) -> Pair {
        let now = Timestamp { nanos: 1 };
        let mut state = SlotState::new(Slot(0), 16, Epoch(1), 7);
        state.install_root(who.owner(), now);
        let layout = Layout {
            stripe_unit: 1 << 16,
            width: 2,
            base_slot: Slot(3),
            stride: 1,
            copies: 1,
            created: Epoch(1),
        };
        let directory = info(&state, &who, InodeId::ROOT);
        let told = Delegated { number: 1, directory, who: who.clone(), next: state.next_inode(), now };
        let known = KnownSlot::new(&told, true);
        Pair { state, known, who, layout, sequence: 0, predicted: 0 }
    }

    /// Returns the slot's answer.
    fn apply(&mut self, op: Op, now: Timestamp) -> Reply {
        self.sequence += 1;
        let origin = Origin::Client {
            session: SESSION,
            sequence: Sequence(self.sequence),
            acknowledged_below: Sequence(self.sequence),
            who: self.who.clone(),
            on_behalf: false,
        };
        let effects = self.state.apply(&Command { now, origin, op });
        let replies = effects.into_iter().filter_map(|effect| match effect {
            Effect::Reply { outcome, .. } => Some(outcome),
            _ => None,
        });
        self.predicted += 1;
        replies.last().expect("it is answered at once").expect("it was predicted to succeed")
    }

    fn create(&mut self, name: u64, mode: u16, at: Timestamp) {
        let request = Create {
            parent: InodeId::ROOT,
            name: Name::new(format!("f{name}")).unwrap(),
            mode: NewMode { mode, umask: 0o022 },
            exclusive: true,
            read: true,
            write: true,
            layout: None,
            wish: LayoutWish::default(),
            named: FileAttributes::new(),
        };
        let Some(told) = self.known.create(&request, self.layout, at) else { return };
        let sent = Create { layout: Some(self.layout), ..request };
        let Reply::Opened(opened) = self.apply(Op::Create(sent), at) else { panic!("it was no create") };
        assert_eq!(told.info, opened.info);
        assert!(told.created && opened.created);
        assert_eq!(told.parent, Some(info(&self.state, &self.who, InodeId::ROOT).attributes));
    }

    fn write(&mut self, request: WriteInline, at: Timestamp) {
        let Some(told) = self.known.write(&request, at) else { return };
        let done = self.apply(Op::WriteInline { request, room: true }, at);
        assert_eq!(encode_body(&told), done.encode());
    }

    fn set_attributes(&mut self, request: SetAttributes, at: Timestamp) {
        let Some(told) = self.known.set_attributes(&request, at) else { return };
        assert_eq!(encode_body::<Attributes>(&told), self.apply(Op::SetAttributes(request), at).encode());
    }

    fn promote(&mut self, inode: InodeId, at: Timestamp) {
        let Some(told) = self.known.promote(inode) else { return };
        let done = self.apply(
            Op::Promote { request: Promote { inode, first_page: FirstPage::Locked }, epoch: Epoch(1) },
            at,
        );
        assert_eq!(encode_body(&told), done.encode());
    }

    fn close(&mut self, request: Close, at: Timestamp) {
        if self.known.close(&request, at).is_some() {
            self.apply(Op::Close(request), at);
        }
    }

    fn check(&self, inode: InodeId) {
        if let Some(told) = self.known.attributes(inode) {
            assert_eq!(*told, info(&self.state, &self.who, inode).attributes);
        }
    }
}

fn info(state: &SlotState, who: &Credentials, inode: InodeId) -> InodeInfo {
    state.query(who, &GetAttributes { inode }).unwrap()
}

// SEMANTICS 142.6
#[test]
fn what_is_predicted_is_what_a_slot_answers() {
    for (seed, who) in
        [(1, Credentials::new(0, 0)), (2, Credentials::new(1000, 100)), (3, Credentials::new(7, 7))]
    {
        let (mut pair, mut dice) = (Pair::new(who.clone()), Dice(seed));
        let mut open: Vec<InodeId> = Vec::new();
        for step in 0..STEPS {
            let at = Timestamp { nanos: 1_000 + step as i64 };
            let pick = (!open.is_empty()).then(|| dice.roll(open.len() as u64) as usize);
            match (dice.roll(9), pick) {
                (0 | 1, _) => {
                    let next = pair.state.next_inode();
                    pair.create(dice.roll(400), [0o644, 0o4755, 0o600, 0o2711][dice.roll(4) as usize], at);
                    if pair.state.next_inode() != next {
                        open.push(next);
                    }
                }
                (2..=4, Some(pick)) => {
                    let mode = [InlineMode::At, InlineMode::End, InlineMode::Within][dice.roll(3) as usize];
                    let offset = if mode == InlineMode::End { 0 } else { dice.roll(4_200) };
                    let bytes = Bytes(vec![dice.roll(250) as u8; dice.roll(900) as usize]);
                    let origin = WriteOrigin::Program;
                    pair.write(WriteInline { inode: open[pick], mode, offset, bytes, origin }, at);
                }
                (5 | 6, Some(pick)) => {
                    let time = Timestamp { nanos: dice.roll(5_000) as i64 };
                    let mode = [0o600, 0o755, 0o4755, 0o640][dice.roll(4) as usize];
                    let request = SetAttributes {
                        inode: open[pick],
                        mode: some(&mut dice, mode),
                        uid: some(&mut dice, who.uid),
                        gid: some(&mut dice, who.gid + u32::from(step % 7 == 0)),
                        accessed: some(&mut dice, time),
                        modified: some(&mut dice, time),
                        times: [TimeReason::Chosen, TimeReason::Now][dice.roll(2) as usize],
                    };
                    pair.set_attributes(request, at);
                }
                (7, Some(pick)) => pair.promote(open[pick], at),
                (8, Some(pick)) => {
                    let modified =
                        (dice.roll(2) == 0).then_some(Timestamp { nanos: dice.roll(9_000) as i64 });
                    pair.close(Close { inode: open.swap_remove(pick), modified, leases: false }, at);
                }
                _ => {}
            }
            open.iter().for_each(|inode| pair.check(*inode));
        }
        assert!(pair.predicted > STEPS / 4, "hardly anything was predicted: {}", pair.predicted);
    }
}
