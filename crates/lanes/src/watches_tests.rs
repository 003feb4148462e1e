//! The table of changes against a model that forgets nothing.

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 10;
const PLACES: u64 = 3;

fn place(number: u64) -> Place {
    (InodeId(number + 2), Some(number as u16))
}

fn session(number: u64) -> SessionId {
    SessionId([number as u8 + 1; 16])
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Note {
        place: u64,
        range: ByteRange,
    },
    /// Asks with the number of an earlier answer of the same place, and perhaps waits.
    Ask {
        place: u64,
        range: ByteRange,
        back: usize,
        session: u64,
        waits: bool,
    },
    End {
        wait: usize,
    },
    EndSession(u64),
    Restart,
}

fn acts() -> impl Strategy<Value = Act> {
    let range = (0..BYTES)
        .prop_flat_map(|start| (Just(start), start + 1..=BYTES))
        .prop_map(|(start, end)| ByteRange { start, end });
    prop_oneof![
        8 => (0..PLACES, range.clone()).prop_map(|(place, range)| Act::Note { place, range }),
        6 => (0..PLACES, range, 0..4usize, 0..2u64, any::<bool>())
            .prop_map(|(place, range, back, session, waits)| Act::Ask { place, range, back, session, waits }),
        1 => (0..20usize).prop_map(|wait| Act::End { wait }),
        1 => (0..2u64).prop_map(Act::EndSession),
        1 => Just(Act::Restart),
    ]
}

/// Everything that ever happened.
#[derive(Default)]
struct Model {
    /// Places and bytes that were changed, in their order.
    changes: Vec<(u64, ByteRange)>,
    /// Numbers that were given of each place, and how many changes there were by then.
    given: Vec<(u64, u64, usize)>,
    waits: Vec<(u64, SessionId, u64, ByteRange)>,
    last_wait: u64,
    lives: u64,
}

impl Model {
    fn touches(&self, place: u64, range: ByteRange, from: usize) -> bool {
        self.changes[from..].iter().any(|(of, changed)| *of == place && overlaps(*changed, range))
    }

    fn step(&mut self, watches: &mut Watches, act: Act) {
        match act {
            Act::Note { place: number, range } => {
                self.changes.push((number, range));
                let told: Vec<_> = watches.note(place(number), range).into_iter().collect();
                let mut expected: Vec<(SessionId, u64)> = self
                    .waits
                    .extract_if(.., |(of, _, _, waited)| *of == number && overlaps(*waited, range))
                    .map(|(_, session, wait, _)| (session, wait))
                    .collect();
                let mut received: Vec<(SessionId, u64)> = Vec::new();
                for (session, event) in told {
                    let Event::Changed { wait, lane, number: now } = event else { panic!("{event:?}") };
                    assert_eq!(lane, place(number).1);
                    self.given.push((number, now, self.changes.len()));
                    received.push((session, wait));
                }
                expected.sort_unstable();
                received.sort_unstable();
                assert_eq!(received, expected, "who waits for these bytes is told, and nobody else");
            }
            Act::Ask { place: number, range, back, session: of, waits } => {
                let given = self.given.iter().rev().filter(|(place, ..)| *place == number).nth(back).copied();
                self.last_wait += 1;
                let waiter = waits.then_some((session(of), self.last_wait));
                let since = given.map(|(_, given, _)| given);
                let answer = watches.ask(place(number), range, since, waiter, self.begin()).unwrap();
                if let Some((_, _, from)) = given {
                    let changed = self.touches(number, range, from);
                    assert!(answer.changed || !changed, "a change is never missed");
                    let few = self.changes.len() - from < limits::WATCH_CHANGES_MAX;
                    let same_life = self.given.iter().rposition(|entry| entry.0 == u64::MAX).unwrap_or(0);
                    let position = self.given.iter().rposition(|entry| Some(*entry) == given).unwrap();
                    if few && position >= same_life {
                        assert_eq!(answer.changed, changed, "of a few changes nothing is forgotten");
                    }
                    if waits && !answer.changed {
                        self.waits.push((number, session(of), self.last_wait, range));
                    }
                }
                self.given.push((number, answer.number, self.changes.len()));
            }
            Act::End { wait } => {
                if wait < self.waits.len() {
                    let (of, session, wait, _) = self.waits.remove(wait);
                    watches.end(place(of), session, wait);
                }
            }
            Act::EndSession(of) => {
                self.waits.retain(|(_, other, ..)| *other != session(of));
                watches.end_session(session(of));
            }
            Act::Restart => {
                *watches = Watches::default();
                self.waits.clear();
                self.lives += 1;
                self.given.push((u64::MAX, 0, 0));
            }
        }
        assert_eq!(watches.waits(), self.waits.len() as u64);
    }

    /// As the clock: above every number that was given.
    fn begin(&self) -> u64 {
        1_000_000 * (self.lives + 1)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    // SEMANTICS 85.1
    #[test]
    fn a_change_is_never_missed_and_told_once(acts in prop::collection::vec(acts(), 1..200)) {
        let (mut model, mut watches) = (Model::default(), Watches::default());
        for act in acts {
            model.step(&mut watches, act);
        }
    }
}

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

// SEMANTICS 86
#[test]
fn memory_is_bounded_and_a_watch_that_is_forgotten_is_told_of_a_change() {
    let mut watches = Watches::default();
    let of = |number: usize| (InodeId(number as u64), Some(0));
    let first = watches.ask(of(0), range(0, 1), None, None, 5).unwrap();
    for number in 1..=limits::WATCHES_PER_SERVER_MAX {
        watches.ask(of(number), range(0, 1), None, None, 5).unwrap();
    }
    assert_eq!(watches.places.len(), limits::WATCHES_PER_SERVER_MAX);
    let again = watches.ask(of(0), range(0, 1), Some(first.number), None, 9).unwrap();
    assert!(again.changed, "what happened meanwhile nobody knows");
    for number in 0..10_000 {
        watches.note(of(0), range(number, number + 1));
    }
    assert_eq!(watches.places[&of(0)].changes.len(), limits::WATCH_CHANGES_MAX);
}

#[test]
fn when_somebody_waits_everywhere_one_more_place_is_refused() {
    let mut watches = Watches::default();
    let of = |number: usize| (InodeId(number as u64), Some(0));
    for number in 0..limits::WATCHES_PER_SERVER_MAX {
        let since = watches.ask(of(number), range(0, 1), None, None, 5).unwrap().number;
        watches.ask(of(number), range(0, 1), Some(since), Some((session(1), 1)), 5).unwrap();
    }
    let refused = watches.ask(of(limits::WATCHES_PER_SERVER_MAX), range(0, 1), None, None, 5);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TooMany);
    // Nor is a home remembered that has no place.
    let home = InodeId(1 << 20);
    watches.see(home, HomeSeen { size: 1, generation: Generation(1), place: BytesPlace::Lanes });
    watches.ask((home, None), range(0, 1), None, None, 5).unwrap_err();
    assert!(watches.has_no_homes());
    watches.end_session(session(1));
    watches.ask(of(limits::WATCHES_PER_SERVER_MAX), range(0, 1), None, None, 5).unwrap();
}

#[test]
fn homes_tell_of_their_size_and_place() {
    let mut watches = Watches::default();
    let (file, wait) = (InodeId(9), Some((session(1), 3)));
    let seen = |size, generation, place| HomeSeen { size, generation: Generation(generation), place };
    let waiting = |watches: &mut Watches, from| {
        let since = watches.ask((file, None), range(from, from + 1), None, None, 5).unwrap().number;
        assert!(
            !watches.ask((file, None), range(from, from + 1), Some(since), wait, 5).unwrap().changed,
            "nothing has happened since"
        );
    };
    watches.see(file, seen(10, 1, BytesPlace::Inode));
    waiting(&mut watches, 20);
    assert!(watches.compare(file, Some(seen(10, 1, BytesPlace::Inode))).is_empty());
    assert_eq!(watches.compare(file, Some(seen(30, 1, BytesPlace::Inode))).len(), 1, "it grew there");
    waiting(&mut watches, 3);
    assert!(watches.compare(file, Some(seen(40, 1, BytesPlace::Inode))).is_empty(), "it grew behind it");
    assert_eq!(watches.compare(file, Some(seen(2, 2, BytesPlace::Inode))).len(), 1, "it was cut");
    waiting(&mut watches, 0);
    assert_eq!(watches.compare(file, Some(seen(2, 3, BytesPlace::Lanes))).len(), 1, "it went away");
    waiting(&mut watches, 0);
    assert_eq!(watches.compare(file, None).len(), 1, "it is gone");
    assert!(watches.has_no_homes());
}
