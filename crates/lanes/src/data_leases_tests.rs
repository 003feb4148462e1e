use proptest::prelude::*;
use ramlace_base::{ErrorKind, InodeId, Slot};

use super::*;
use crate::pages::page_at;

const FILE: Place = (InodeId(70), Some(0));
const MOUNTS: usize = 3;
const PAGES: usize = 3;

fn session(number: usize) -> SessionId {
    SessionId([number as u8 + 1; 16])
}

fn whole(page: usize) -> ByteRange {
    page_at(page as u64)
}

/// The server's bytes and its table.
struct Place_ {
    leases: DataLeases,
    bytes: Vec<u8>,
    now: u64,
}

impl Place_ {
    fn new() -> Place_ {
        Place_ { leases: DataLeases::default(), bytes: vec![0; PAGES * PAGE_BYTES as usize], now: 0 }
    }

    fn change(&mut self, by: SessionId, start: u64, bytes: &[u8]) -> Vec<u64> {
        let range = ByteRange { start, end: start + bytes.len() as u64 };
        let here = &self.bytes;
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        let waits = self.leases.before_change(FILE, by, range, Change::Write, read, self.now).unwrap();
        self.bytes[range.start as usize..range.end as usize].copy_from_slice(bytes);
        waits
    }

    fn read_page(&mut self, mount: usize, page: usize) -> Vec<u8> {
        self.leases.keep(FILE, session(mount), whole(page), self.now);
        let ByteRange { start, end } = whole(page);
        self.bytes[start as usize..end as usize].to_vec()
    }

    fn write_back(&mut self, mount: usize, page: usize, bytes: &[u8]) -> Result<()> {
        let (me, offset) = (session(mount), whole(page).start);
        let here = &self.bytes;
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        let Stored { ranges, merged } = self.leases.stored(FILE, me, offset, bytes, read, self.now)?;
        let merged = merged.as_deref().unwrap_or(bytes);
        for range in ranges {
            let (from, to) = ((range.start - offset) as usize, (range.end - offset) as usize);
            self.change(me, range.start, &merged[from..to]);
        }
        self.leases.wrote_back(FILE, me, offset, bytes, self.now);
        Ok(())
    }
}

/// A page in a kernel.
#[derive(Clone, Default)]
struct Kept {
    bytes: Vec<u8>,
    dirty: bool,
}

/// Three mounts with their kernels, and a program of the library.
struct World {
    place: Place_,
    kernels: Vec<Vec<Option<Kept>>>,
    /// What each mount stored or wrote last into its own byte of each page.
    last: Vec<Vec<u8>>,
    /// What it stored last.
    stored: Vec<Vec<u8>>,
    /// Recalls whose pages are dropped, and that are not acknowledged.
    dropped: Vec<Vec<u64>>,
    /// Writes that have not returned: mount, page, value, what they wait for.
    writes: Vec<(usize, usize, u8, Vec<u64>)>,
    /// What a call of each mount wrote last into a byte of its own of each page; one is under way at a time.
    called: Vec<Vec<u8>>,
    calls: Vec<Option<Call>>,
    /// Pages that each kernel writes back, as they were then.
    backs: Vec<Option<(usize, Vec<u8>)>>,
    /// What each mount wrote last by a write.
    written: Vec<Vec<u8>>,
    /// Of which mounts the server's life awaits that they drop what they have of before.
    away: Vec<bool>,
    /// What the server's log knows of pages.
    log: BTreeMap<u64, (SessionId, Vec<ByteRange>)>,
    lives: usize,
}

/// A call that writes, by way of the kernel's pages.
#[derive(Clone)]
struct Call {
    page: usize,
    value: u8,
    at: Stage,
    /// The kernel has read the page since the call's bytes were copied into the one it had.
    read_again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The kernel has copied the bytes into its page, if it has one, and let go of it.
    Copied,
    /// The mount has the request.
    Begun,
    /// The server has them.
    Applied,
}

#[derive(Clone, Debug)]
enum Step {
    Load(usize, usize),
    Store(usize, usize),
    WriteBack(usize, usize),
    Write(usize, usize),
    LibraryWrite(usize),
    Drop(usize),
    Acknowledge(usize),
    /// A call that writes goes on by one stage, or another one begins.
    Call(usize, usize),
    /// The kernel begins to write a page back.
    Back(usize, usize),
    /// What it writes back is at the server.
    Arrive(usize),
    /// The server's process dies, and another one begins.
    Die,
    /// A mount has heard of that, and has dropped all.
    Return(usize),
}

/// The library's own byte.
const LIBRARY: usize = MOUNTS;

fn byte_of(mount: usize) -> usize {
    100 + mount
}

/// The byte that only calls of the mount write.
fn call_of(mount: usize) -> usize {
    300 + mount
}

/// Another byte of the mount, which goes back and forth: a store may make it what it was at first.
fn parity_of(mount: usize) -> usize {
    200 + mount
}

impl World {
    fn new() -> World {
        World {
            place: Place_::new(),
            kernels: vec![vec![None; PAGES]; MOUNTS],
            last: vec![vec![0; PAGES]; MOUNTS + 1],
            stored: vec![vec![0; PAGES]; MOUNTS + 1],
            dropped: vec![Vec::new(); MOUNTS],
            writes: Vec::new(),
            called: vec![vec![0; PAGES]; MOUNTS],
            calls: vec![None; MOUNTS],
            backs: vec![None; MOUNTS],
            written: vec![vec![0; PAGES]; MOUNTS],
            away: vec![false; MOUNTS],
            log: BTreeMap::new(),
            lives: 1,
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Load(mount, page) => _ = self.load(mount, page),
            Step::Store(mount, page) => {
                let value = self.next(mount, page);
                self.stored[mount][page] = value;
                // A store waits for the page.
                self.arrive(mount);
                let kept = self.load(mount, page);
                kept.bytes[byte_of(mount)] = value;
                kept.bytes[parity_of(mount)] = value % 2;
                kept.dirty = true;
            }
            Step::WriteBack(mount, page) => self.write_back(mount, page),
            Step::Call(mount, page) => self.call(mount, page),
            Step::Back(mount, page) => self.begin_back(mount, page),
            Step::Arrive(mount) => self.arrive(mount),
            Step::Die => self.die(),
            Step::Return(mount) => self.come_back(mount),
            Step::Write(mount, page) => {
                self.arrive(mount);
                let value = self.next(mount, page);
                self.written[mount][page] = value;
                if let Some(kept) = &mut self.kernels[mount][page] {
                    kept.bytes[byte_of(mount)] = value;
                }
                let start = whole(page).start + byte_of(mount) as u64;
                let waits = self.place.change(session(mount), start, &[value]);
                let range = ByteRange { start, end: start + 1 };
                self.place.leases.wrote_through(FILE, session(mount), range, &[value], 0);
                self.writes.push((mount, page, value, waits));
            }
            Step::LibraryWrite(page) => {
                let value = self.next(LIBRARY, page);
                let start = whole(page).start + byte_of(LIBRARY) as u64;
                let waits = self.place.change(session(LIBRARY), start, &[value]);
                self.writes.push((LIBRARY, page, value, waits));
            }
            Step::Drop(mount) => self.drop_pages(mount),
            Step::Acknowledge(mount) => {
                let done = std::mem::take(&mut self.dropped[mount]);
                self.place.leases.acknowledge(session(mount), &done, &[]);
            }
        }
        self.note_news();
        self.look_at_writes_that_returned();
    }

    fn note_news(&mut self) {
        for news in self.place.leases.take_news() {
            match news {
                News::Outdated { number, session, pages, .. } => {
                    self.log.entry(number).or_insert((session, Vec::new())).1.push(pages);
                }
                News::Dropped { number } => _ = self.log.remove(&number),
            }
        }
    }

    fn die(&mut self) {
        self.note_news();
        let newest = self.place.leases.last_number;
        let all = (0..MOUNTS).map(|mount| (session(mount), false));
        self.place.leases = DataLeases::after(all).counting_from(newest);
        for (session, pages) in self.log.values() {
            pages.iter().for_each(|pages| self.place.leases.outdate(FILE, *session, *pages));
        }
        self.away.fill(true);
        self.dropped.iter_mut().for_each(Vec::clear);
        self.lives += 1;
        // Whoever waits for his answer asks again: it was done.
        let mut writes = std::mem::take(&mut self.writes);
        for (mount, page, _, waits) in &mut writes {
            let start = whole(*page).start + byte_of(*mount) as u64;
            let range = ByteRange { start, end: start + 1 };
            let read: ReadNow<'_> = &mut |_| unreachable!("nobody looks at it");
            let by = session(*mount);
            *waits = self.place.leases.before_change(FILE, by, range, Change::Stored, read, 0).unwrap();
        }
        self.writes = writes;
    }

    fn come_back(&mut self, mount: usize) {
        if !std::mem::take(&mut self.away[mount]) {
            return;
        }
        for page in 0..PAGES {
            self.write_back(mount, page);
            self.kernels[mount][page] = None;
        }
        let leases = &mut self.place.leases;
        self.log.retain(|number, (of, _)| *of != session(mount) || leases.is_pending(*number));
        leases.has_returned(session(mount));
    }

    fn next(&mut self, mount: usize, page: usize) -> u8 {
        let value = self.last[mount][page].wrapping_add(1).max(1);
        self.last[mount][page] = value;
        value
    }

    fn load(&mut self, mount: usize, page: usize) -> &mut Kept {
        if self.kernels[mount][page].is_none() {
            let bytes = self.place.read_page(mount, page);
            self.kernels[mount][page] = Some(Kept { bytes, dirty: false });
            if let Some(call) = self.calls[mount].as_mut().filter(|call| call.page == page) {
                call.read_again = true;
            }
        }
        self.kernels[mount][page].as_mut().unwrap()
    }

    fn write_back(&mut self, mount: usize, page: usize) {
        self.begin_back(mount, page);
        self.arrive(mount);
    }

    /// One page at a time. What a call writes meanwhile goes with it: the page may be of before.
    fn begin_back(&mut self, mount: usize, page: usize) {
        self.arrive(mount);
        let Some(kept) = self.kernels[mount][page].as_mut().filter(|kept| kept.dirty) else { return };
        kept.dirty = false;
        let mut bytes = kept.bytes.clone();
        if let Some(call) = &self.calls[mount]
            && call.page == page
            && call.at != Stage::Copied
        {
            bytes[call_of(mount)] = call.value;
        }
        self.backs[mount] = Some((page, bytes));
    }

    fn arrive(&mut self, mount: usize) {
        let Some((page, bytes)) = self.backs[mount].take() else { return };
        if let Err(error) = self.place.write_back(mount, page, &bytes) {
            assert!(self.lives > 1 && error.kind() == ErrorKind::Stale, "{error}");
            // Its programs hear that what they stored is lost. What they wrote is not.
            let start = whole(page).start as usize;
            let left = self.place.bytes[start + byte_of(mount)];
            let age = |value: u8| self.last[mount][page].wrapping_sub(value);
            assert!(age(left) <= age(self.written[mount][page]), "a write of {mount} is lost");
            self.last[mount][page] = left;
            self.stored[mount][page] = self.place.bytes[start + parity_of(mount)];
        }
    }

    fn call(&mut self, mount: usize, page: usize) {
        let Some(mut call) = self.calls[mount].take() else {
            let value = self.called[mount][page].wrapping_add(1).max(1);
            self.called[mount][page] = value;
            if let Some(kept) = &mut self.kernels[mount][page] {
                kept.bytes[call_of(mount)] = value;
            }
            self.calls[mount] = Some(Call { page, value, at: Stage::Copied, read_again: false });
            return;
        };
        let start = whole(call.page).start + call_of(mount) as u64;
        match call.at {
            Stage::Copied => {
                // What is written back already is at the server first.
                self.arrive(mount);
                call.at = Stage::Begun;
            }
            Stage::Begun => {
                self.place.change(session(mount), start, &[call.value]);
                let range = ByteRange { start, end: start + 1 };
                self.place.leases.wrote_through(FILE, session(mount), range, &[call.value], 0);
                call.at = Stage::Applied;
            }
            Stage::Applied => {
                let drops = call.read_again.then_some(call.page);
                self.calls[mount] = Some(call);
                if let Some(page) = drops {
                    self.write_back(mount, page);
                    self.kernels[mount][page] = None;
                }
                self.calls[mount] = None;
                return;
            }
        }
        self.calls[mount] = Some(call);
    }

    /// The mount does what it is told, and says so later: meanwhile its programs go on.
    fn drop_pages(&mut self, mount: usize) {
        let above = self.dropped[mount].last().copied().unwrap_or(0);
        for recall in self.place.leases.unacknowledged(session(mount), above) {
            for page in 0..PAGES {
                let range = whole(page);
                if recall.start < range.end && range.start < recall.end {
                    self.arrive(mount);
                    self.write_back(mount, page);
                    self.kernels[mount][page] = None;
                }
            }
            self.dropped[mount].push(recall.number);
        }
    }

    fn look_at_writes_that_returned(&mut self) {
        let leases = &self.place.leases;
        let (back, waiting) = std::mem::take(&mut self.writes)
            .into_iter()
            .partition(|(.., waits)| !waits.iter().any(|number| leases.is_waited(*number)));
        self.writes = waiting;
        let back: Vec<(usize, usize, u8, Vec<u64>)> = back;
        for (mount, page, value, _) in back {
            for (other, kernel) in self.kernels.iter().enumerate().filter(|(other, _)| *other != mount) {
                let Some(kept) = &kernel[page] else { continue };
                let seen = kept.bytes[byte_of(mount)];
                // Its owner may have gone on: what is newer is no fault.
                let age = |value: u8| self.last[mount][page].wrapping_sub(value);
                assert!(
                    age(seen) <= age(value),
                    "mount {other} has {seen} of {mount}, and {value} was written"
                );
            }
        }
    }

    fn end(&mut self) {
        for mount in 0..MOUNTS {
            while let Some(call) = &self.calls[mount] {
                let page = call.page;
                self.call(mount, page);
            }
            self.arrive(mount);
            (0..PAGES).for_each(|page| self.write_back(mount, page));
        }
        (0..MOUNTS).for_each(|mount| self.come_back(mount));
        for _ in 0..2 {
            for mount in 0..MOUNTS {
                self.drop_pages(mount);
                self.take(&Step::Acknowledge(mount));
            }
        }
        for mount in 0..=MOUNTS {
            for page in 0..PAGES {
                let at = whole(page).start as usize + byte_of(mount);
                assert_eq!(self.place.bytes[at], self.last[mount][page], "byte of {mount} in page {page}");
                let stored = self.stored[mount][page];
                let at = whole(page).start as usize + parity_of(mount);
                assert_eq!(self.place.bytes[at], stored % 2, "what {mount} stored in page {page}");
            }
        }
        for (mount, called) in self.called.iter().enumerate() {
            for (page, value) in called.iter().enumerate() {
                let at = whole(page).start as usize + call_of(mount);
                assert_eq!(self.place.bytes[at], *value, "what a call of {mount} wrote into page {page}");
            }
        }
        for (mount, kernel) in self.kernels.iter().enumerate() {
            for (page, kept) in kernel.iter().enumerate() {
                let Some(kept) = kept else { continue };
                let ByteRange { start, end } = whole(page);
                assert!(
                    kept.bytes == self.place.bytes[start as usize..end as usize],
                    "{mount}'s page {page} is old"
                );
            }
        }
        assert!(self.writes.is_empty());
        assert_eq!(self.place.leases.base_bytes(), 0);
        assert!(self.place.leases.recalls.is_empty() && self.place.leases.at.is_empty());
    }
}

fn step() -> impl Strategy<Value = Step> {
    let (mount, page) = (0..MOUNTS, 0..PAGES);
    prop_oneof![
        1 => (mount.clone(), page.clone()).prop_map(|(mount, page)| Step::Load(mount, page)),
        3 => (mount.clone(), page.clone()).prop_map(|(mount, page)| Step::Store(mount, page)),
        2 => (mount.clone(), page.clone()).prop_map(|(mount, page)| Step::WriteBack(mount, page)),
        2 => (mount.clone(), page.clone()).prop_map(|(mount, page)| Step::Write(mount, page)),
        1 => page.clone().prop_map(Step::LibraryWrite),
        2 => mount.clone().prop_map(Step::Drop),
        2 => mount.clone().prop_map(Step::Acknowledge),
        4 => (mount.clone(), page.clone()).prop_map(|(mount, page)| Step::Call(mount, page)),
        1 => (mount.clone(), page).prop_map(|(mount, page)| Step::Back(mount, page)),
        1 => mount.clone().prop_map(Step::Arrive),
        1 => mount.prop_map(Step::Return),
        1 => Just(Step::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]
    // SEMANTICS 116
    #[test]
    fn no_store_is_lost_and_a_write_that_returned_is_seen(
        steps in prop::collection::vec(step(), 1..60), lives in prop::bool::ANY
    ) {
        // Half of the histories are of one life: there no store is refused.
        let steps: Vec<Step> = steps.into_iter().filter(|step| lives || !matches!(step, Step::Die)).collect();
        let mut world = World::new();
        steps.iter().for_each(|step| world.take(step));
        world.end();
    }
}

#[test]
fn a_session_alone_recalls_nothing_and_writes_its_pages_whole() {
    let mut place = Place_::new();
    assert!(!place.leases.keep(FILE, session(0), whole(0), 0), "it had no lease");
    assert!(place.leases.keep(FILE, session(0), whole(1), 0), "the first read brought one on all");
    let read: ReadNow<'_> = &mut |_| unreachable!("nobody looks at what is here");
    let bytes = vec![1; PAGE_BYTES as usize];
    let stored = place.leases.stored(FILE, session(0), 0, &bytes, read, 0).unwrap();
    assert_eq!(stored, Stored { ranges: vec![whole(0)], merged: None });
    assert_eq!(place.change(session(0), 0, &bytes), [0; 0]);
}

#[test]
fn what_a_kernel_has_written_through_is_recalled_from_it_however_it_came() {
    let mut place = Place_::new();
    place.leases.keep(FILE, session(0), whole(0), 0);
    let waits = place.change(session(1), 0, &[1]);
    place.leases.acknowledge(session(0), &waits, &[]);
    assert_eq!(place.change(session(1), 0, &[2]).len(), 0, "it has dropped them");
    // A large write goes to its place as it arrives: nobody has its bytes at hand.
    place.leases.wrote_through(FILE, session(0), whole(0), &[], 0);
    assert_eq!(place.change(session(1), 0, &[3]).len(), 1);
}

#[test]
fn publishing_waits_for_pages_that_somebody_else_has_recalled() {
    let mut place = Place_::new();
    place.read_page(2, 0);
    let mut page = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert_eq!(waits.len(), 2);
    page[9] = 9;
    place.write_back(0, 0, &page).unwrap();
    let newest = place.leases.newest_at(FILE, session(0)).unwrap();
    assert_eq!(place.leases.of_others(session(0), newest).len(), 1, "the third has yet to drop its page");
}

// SEMANTICS 118.1, 118.2
#[test]
fn who_does_not_answer_is_fenced_until_it_does() {
    let mut place = Place_::new();
    let mut stale = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert_eq!(waits.len(), 1);
    assert!(place.leases.is_waited(waits[0]));
    let end = place.leases.next_end().unwrap();
    assert!(!place.leases.pass(end - 1));
    assert!(place.leases.pass(end) && !place.leases.is_waited(waits[0]));
    assert_eq!(place.leases.next_end(), None);
    stale[9] = 9;
    assert_eq!(place.write_back(0, 0, &stale).unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(place.bytes[9], 0);
    // Another session may not speak for it.
    place.leases.acknowledge(session(2), &waits, &[]);
    assert!(place.write_back(0, 0, &stale).is_err());
    place.leases.acknowledge(session(0), &waits, &[]);
    assert!(place.write_back(0, 0, &stale).is_err(), "it has yet to drop all the rest");
    let told = place.leases.unacknowledged(session(0), 0);
    assert_eq!((told.len(), told[0].start, told[0].end), (1, 0, u64::MAX));
    // What it reads anew meanwhile is as good as any.
    let mut other = place.read_page(0, 1);
    other[9] = 8;
    place.write_back(0, 1, &other).unwrap();
    assert_eq!(place.bytes[PAGE_BYTES as usize + 9], 8);
    assert!(place.write_back(0, 0, &stale).is_err());
    place.leases.acknowledge(session(0), &[told[0].number], &[]);
    let mut fresh = place.read_page(0, 0);
    fresh[9] = 9;
    place.write_back(0, 0, &fresh).unwrap();
    assert_eq!(place.bytes[5..10], [7, 0, 0, 0, 9]);
}

#[test]
fn one_that_writes_back_meanwhile_is_waited_for_longer() {
    let mut place = Place_::new();
    let page = place.read_page(0, 0);
    place.change(session(1), 5, &[7]);
    let first = place.leases.next_end().unwrap();
    place.now = first - 1;
    place.write_back(0, 0, &page).unwrap();
    assert!(!place.leases.pass(first));
    place.now = limits::DATA_RECALL_WRITING_MILLIS - 1;
    place.write_back(0, 0, &page).unwrap();
    assert_eq!(place.leases.next_end(), Some(limits::DATA_RECALL_WRITING_MILLIS), "but not for ever");
}

#[test]
fn a_blocked_holder_is_not_waited_for_and_its_stores_are_taken() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert!(place.leases.acknowledge(session(0), &[], &waits));
    assert!(!place.leases.is_waited(waits[0]));
    page[9] = 9;
    place.write_back(0, 0, &page).unwrap();
    assert_eq!(place.bytes[5..10], [7, 0, 0, 0, 9]);
    assert_eq!(place.leases.unacknowledged(session(0), 0).len(), 1);
}

#[test]
fn stores_into_what_was_erased_meanwhile_are_gone_with_it_and_those_after_are_not() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 1);
    page[9] = 9;
    let cut = ByteRange { start: PAGE_BYTES, end: u64::MAX };
    let read: ReadNow<'_> = &mut |_| unreachable!("whole pages are not looked at");
    let waits = place.leases.before_change(FILE, session(1), cut, Change::Erase, read, 0).unwrap();
    place.bytes[PAGE_BYTES as usize..].fill(0);
    place.write_back(0, 1, &page).unwrap();
    assert_eq!(place.bytes[PAGE_BYTES as usize + 9], 0);
    // Read anew before it is acknowledged.
    let mut page = place.read_page(0, 1);
    page[9] = 9;
    place.write_back(0, 1, &page).unwrap();
    assert_eq!(place.bytes[PAGE_BYTES as usize + 9], 9);
    place.leases.acknowledge(session(0), &waits, &[]);
    assert!(place.leases.has_lease(FILE, session(0)));
}

#[test]
fn a_writer_that_streams_recalls_ahead() {
    let mut place = Place_::new();
    place.leases.keep(FILE, session(0), whole(0), 0);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let mut recalls = 0;
    for page in 0..64 {
        recalls += place
            .leases
            .before_change(FILE, session(1), whole(page), Change::Write, read, 0)
            .unwrap()
            .len()
            .min(1);
        let told = place.leases.unacknowledged(session(0), 0);
        let numbers: Vec<u64> = told.iter().map(|recall| recall.number).collect();
        place.leases.acknowledge(session(0), &numbers, &[]);
    }
    assert_eq!(recalls, 7);
}

/// A life in which some had leases before.
fn next_life(holders: &[usize]) -> DataLeases {
    DataLeases::after(holders.iter().map(|holder| (session(*holder), false)))
}

// SEMANTICS 119.2
#[test]
fn what_was_stored_before_a_new_life_and_what_others_write_in_it_all_survive() {
    let mut place = Place_::new();
    let mut pages = [place.read_page(0, 0), place.read_page(2, 0)];
    place.leases = next_life(&[0, 2]);
    (pages[0][9], pages[1][12]) = (9, 12);
    let waits = place.change(session(1), 5, &[7]);
    assert_eq!(waits.len(), 2, "both may have the page");
    place.write_back(0, 0, &pages[0]).unwrap();
    assert_eq!(place.change(session(1), 20, &[8]), waits, "they are asked once");
    place.write_back(2, 0, &pages[1]).unwrap();
    for (number, holder) in waits.iter().zip([0, 2]) {
        place.leases.acknowledge(session(holder), &[*number], &[]);
    }
    assert_eq!([5, 9, 12, 20].map(|at| place.bytes[at]), [7, 9, 12, 8]);
    assert!(place.leases.has_returned(session(0)) && !place.leases.has_returned(session(0)));
    let other = (InodeId(71), None);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let waits = place.leases.before_change(other, session(1), whole(0), Change::Erase, read, 0).unwrap();
    assert_eq!(waits.len(), 1, "the first one has nothing any more");
}

// SEMANTICS 119.2
#[test]
fn who_does_not_drop_pages_of_before_in_time_loses_what_it_stored_where_others_wrote() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 0);
    place.leases = next_life(&[0]);
    page[9] = 9;
    place.change(session(1), 5, &[7]);
    let end = place.leases.next_end().unwrap();
    assert_eq!(end, limits::DATA_RECALL_MILLIS);
    assert!(place.leases.pass(end));
    assert_eq!(place.write_back(0, 0, &page).unwrap_err().kind(), ErrorKind::Stale);
    // Elsewhere nobody has changed anything.
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    place.leases.stored((InodeId(71), None), session(0), 0, &page, read, end).unwrap();
    assert_eq!(place.bytes[5..10], [7, 0, 0, 0, 0]);
}

// SEMANTICS 119.2
#[test]
fn who_was_asked_for_too_many_places_of_before_has_nothing_that_counts() {
    let mut leases = next_life(&[0]);
    let place = |inode: usize| (InodeId(inode as u64), None);
    for inode in 0..=limits::DATA_RECALLS_PER_SESSION_MAX {
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        leases.before_change(place(inode), session(1), whole(0), Change::Write, read, 0).unwrap();
    }
    leases.check_base(place(0), session(0), whole(1)).unwrap();
    let last = place(limits::DATA_RECALLS_PER_SESSION_MAX);
    for _ in 0..2 {
        assert_eq!(leases.check_base(last, session(0), whole(1)).unwrap_err().kind(), ErrorKind::Stale);
        // What it reads in this life is as good as any.
        leases.keep(last, session(0), whole(2), 0);
        leases.check_base(last, session(0), whole(2)).unwrap();
    }
    assert!(leases.has_returned(session(0)));
    leases.check_base(last, session(0), whole(1)).unwrap();
}

/// A change of a place by somebody who was not there before: whom it waits for.
fn change_at(leases: &mut DataLeases, place: Place, now: u64) -> Vec<u64> {
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.before_change(place, session(1), whole(0), Change::Write, read, now).unwrap()
}

// SEMANTICS 118.4
#[test]
fn who_says_nothing_is_waited_for_once_for_all_that_it_had_before() {
    let mut leases = next_life(&[0, 2]);
    let place = |inode: u64| (InodeId(inode), None);
    assert_eq!(change_at(&mut leases, place(70), 0).len(), 2);
    let second = change_at(&mut leases, place(71), 3_000);
    // The other one is there, and has one file that it cannot drop.
    leases.acknowledge(session(2), &[second[1]], &[]);
    assert!(leases.is_waited(second[0]));
    assert!(leases.pass(limits::DATA_RECALL_MILLIS));
    assert!(!leases.is_waited(second[0]), "the wait for the first was one for all");
    let third = change_at(&mut leases, place(72), limits::DATA_RECALL_MILLIS);
    let holders: Vec<SessionId> = third.iter().map(|number| leases.recalls[number].holder).collect();
    assert_eq!(holders, [session(2)], "it has said something");
    for inode in [70, 71, 72] {
        let lost = leases.check_base(place(inode), session(0), whole(0));
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Stale, "others wrote there");
    }
    leases.check_base(place(73), session(0), whole(0)).unwrap();
    assert!(leases.take_news().iter().any(|news| matches!(news,
        News::Outdated { place: at, session: of, .. } if *at == place(72) && *of == session(0))));
    // It comes back, and drops all that it is told to.
    let told: Vec<u64> = leases.unacknowledged(session(0), 0).iter().map(|recall| recall.number).collect();
    leases.acknowledge(session(0), &told, &[]);
    assert!(leases.has_returned(session(0)));
    leases.keep(place(72), session(0), whole(0), 0);
    assert_eq!(change_at(&mut leases, place(72), 6_000).len(), 2, "it is waited for as everybody");
}

// SEMANTICS 118.4
#[test]
fn who_is_late_again_and_again_for_what_it_had_before_is_waited_for_no_more() {
    let mut leases = next_life(&[0]);
    let mut now = 0;
    let mut waited = 0;
    for inode in 0..20 {
        // One of two it acknowledges.
        let done = change_at(&mut leases, (InodeId(100 + inode), None), now);
        let late = change_at(&mut leases, (InodeId(200 + inode), None), now);
        waited += late.len();
        leases.acknowledge(session(0), &done, &[]);
        now += limits::DATA_RECALL_MILLIS;
        leases.pass(now);
    }
    assert_eq!(waited, limits::DATA_RECALLS_OF_BEFORE_LATE_MAX);
}

// SEMANTICS 118.4
#[test]
fn who_is_there_again_after_it_was_late_is_waited_for_and_keeps_what_it_got_in_this_life() {
    let mut leases = next_life(&[0]);
    let place = |inode: u64| (InodeId(inode), None);
    let first = change_at(&mut leases, place(72), 0);
    leases.acknowledge(session(0), &first, &[]);
    // A page of another file is stuck, and nothing else is asked of it meanwhile but what it has got in this life.
    let stuck = change_at(&mut leases, place(70), 0);
    leases.keep(place(71), session(0), whole(0), 0);
    leases.keep(place(72), session(0), whole(0), 0);
    let of_this_life = change_at(&mut leases, place(72), limits::DATA_RECALL_MILLIS - 1);
    assert_eq!(of_this_life.len(), 1);
    leases.pass(limits::DATA_RECALL_MILLIS);
    assert!(!leases.is_waited(stuck[0]));
    assert!(leases.is_waited(of_this_life[0]), "its time has just begun");
    // What it has read in this life is recalled as from anybody, also by a change that finds it mute.
    let again = change_at(&mut leases, place(71), limits::DATA_RECALL_MILLIS);
    assert!(again.iter().all(|number| leases.is_waited(*number)) && !again.is_empty());
    leases.check_base(place(71), session(0), whole(0)).unwrap();
    leases.acknowledge(session(0), &again, &[]);
    assert_eq!(
        change_at(&mut leases, place(73), limits::DATA_RECALL_MILLIS).len(),
        1,
        "it has said something"
    );
}

// SEMANTICS 119.1
#[test]
fn of_a_file_that_was_made_in_this_life_nobody_has_pages_of_before() {
    let mut leases = next_life(&[0]).made_before([(Slot(0), 100)]);
    let place = |slot, counter| (InodeId::new(Slot(slot), counter), Some(0));
    assert!(change_at(&mut leases, place(0, 100), 0).is_empty());
    assert!(!leases.others_hold(place(0, 100), session(1), whole(0)));
    assert_eq!(change_at(&mut leases, place(0, 99), 0).len(), 1);
    assert_eq!(change_at(&mut leases, place(1, 100), 0).len(), 1, "of other slots that is not known");
}

// SEMANTICS 119.1
#[test]
fn who_drops_what_it_is_told_to_is_asked_at_any_number_of_places() {
    let mut leases = next_life(&[0]);
    for inode in 0..=2 * limits::DATA_RECALLS_PER_SESSION_MAX as u64 {
        let asked = change_at(&mut leases, (InodeId(inode), None), 0);
        assert_eq!(asked.len(), 1, "at place {inode}");
        leases.acknowledge(session(0), &asked, &[]);
    }
    let had = &leases.returning.of[&session(0)];
    assert!(had.asked.len() <= limits::DATA_RECALLS_PER_SESSION_MAX);
}

// SEMANTICS 119.1
#[test]
fn who_moves_bytes_elsewhere_drops_what_it_had_of_them_before() {
    let mut leases = next_life(&[0]);
    assert!(leases.recall_from(FILE, session(0), 0));
    assert_eq!(leases.unacknowledged(session(0), 0).len(), 1);
    assert!(!leases.recall_from(FILE, session(0), 0), "it was asked");
}

#[test]
fn what_was_dropped_before_the_log_could_be_told_that_it_is_outdated_is_no_news() {
    let mut place = Place_::new();
    place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    assert!(place.leases.has_news());
    place.leases.acknowledge(session(0), &waits, &[]);
    assert_eq!(place.leases.take_news(), [News::Dropped { number: waits[0] }]);
}

// SEMANTICS 119.3
#[test]
fn pages_that_others_changed_before_they_were_dropped_are_refused_in_the_next_life() {
    let mut place = Place_::new();
    let mut page = place.read_page(0, 0);
    let waits = place.change(session(1), 5, &[7]);
    let told = place.leases.take_news();
    let outdated = News::Outdated { number: waits[0], place: FILE, session: session(0), pages: whole(0) };
    assert_eq!(told, [outdated]);
    place.change(session(1), 6, &[7]);
    assert_eq!(place.leases.take_news(), [], "the log knows");
    page[9] = 9;
    let mut next = next_life(&[0]);
    next.outdate(FILE, session(0), whole(0));
    let dropped = std::mem::replace(&mut place.leases, next);
    assert_eq!(place.write_back(0, 0, &page).unwrap_err().kind(), ErrorKind::Stale);
    place.write_back(0, 1, &vec![3; PAGE_BYTES as usize]).unwrap();
    assert_eq!(place.bytes[5..10], [7, 7, 0, 0, 0]);
    assert!(place.leases.has_returned(session(0)));
    place.read_page(0, 0);
    place.write_back(0, 0, &page).unwrap();
    // And in a life that goes on nothing is left of it.
    place.leases = dropped;
    place.leases.acknowledge(session(0), &waits, &[]);
    assert_eq!(place.leases.take_news(), [News::Dropped { number: waits[0] }]);
}

#[test]
fn a_write_through_part_of_a_page_from_a_life_before_makes_it_no_better() {
    let mut place = Place_::new();
    place.leases = next_life(&[0]);
    place.leases.outdate(FILE, session(0), whole(0));
    let range = ByteRange { start: 100, end: 110 };
    place.bytes[100..110].fill(1);
    place.leases.wrote_through(FILE, session(0), range, &[1; 10], 0);
    let old = vec![3; PAGE_BYTES as usize];
    assert_eq!(place.write_back(0, 0, &old).unwrap_err().kind(), ErrorKind::Stale);
    // All of it is.
    let all = vec![4; PAGE_BYTES as usize];
    place.bytes[..PAGE_BYTES as usize].copy_from_slice(&all);
    place.leases.wrote_through(FILE, session(0), whole(0), &all, 0);
    place.write_back(0, 0, &all).unwrap();
}

#[test]
fn a_recall_that_spans_a_page_from_a_life_before_makes_it_no_better() {
    let mut place = Place_::new();
    place.leases = next_life(&[0]);
    place.leases.outdate(FILE, session(0), whole(1));
    let old = vec![3; PAGE_BYTES as usize];
    place.write_back(0, 0, &old).unwrap();
    // One recall of all three pages, of which the one in the middle was never given.
    place.change(session(1), 0, &[5; 2 * PAGE_BYTES as usize + 1]);
    assert_eq!(place.write_back(0, 1, &old).unwrap_err().kind(), ErrorKind::Stale);
    place.write_back(0, 0, &old).unwrap();
}

#[test]
fn holes_that_are_filled_make_no_page_of_before_a_fence_known() {
    let mut leases = DataLeases::default();
    let page = |number: usize| whole(number);
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    leases.keep(FILE, session(0), WHOLE, 0);
    leases.before_change(FILE, session(1), page(1), Change::Write, read, 0).unwrap();
    leases.pass(limits::DATA_RECALL_MILLIS);
    for number in 0..=limits::DATA_LEASE_HOLES_MAX + 1 {
        leases.keep(FILE, session(0), page(2 * number), limits::DATA_RECALL_MILLIS);
    }
    for number in 0..limits::DATA_LEASE_HOLES_MAX {
        let range = page(2 * number + 1);
        assert_eq!(leases.check_base(FILE, session(0), range).unwrap_err().kind(), ErrorKind::Stale);
    }
    // It says that all of them are gone.
    let told: Vec<u64> = leases.unacknowledged(session(0), 0).iter().map(|recall| recall.number).collect();
    leases.acknowledge(session(0), &told, &[]);
    leases.keep(FILE, session(0), page(1), limits::DATA_RECALL_MILLIS);
    leases.check_base(FILE, session(0), page(1)).unwrap();
}

#[test]
fn whoever_has_thousands_of_pages_to_drop_loses_the_lease_and_is_not_fenced() {
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(0), WHOLE, 0);
    for number in 0..2 * limits::DATA_RECALLS_PER_SESSION_MAX {
        let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
        leases.before_change(FILE, session(1), whole(2 * number), Change::Stored, read, 0).unwrap();
    }
    assert!(!leases.is_fenced(FILE, session(0)));
    assert!(leases.of[&session(0)].len() <= limits::DATA_RECALLS_PER_SESSION_MAX / 4 + 1);
}

#[test]
fn room_is_made_at_one_place_after_the_other() {
    let mut leases = DataLeases::default();
    let place = |inode: usize| (InodeId(inode as u64), None);
    for inode in 0..limits::DATA_LEASES_PER_SERVER_MAX + 3 {
        leases.keep(place(inode), session(0), whole(0), 0);
        // The first one is used all the time.
        leases.keep(place(0), session(0), whole(0), 0);
    }
    let told = leases.unacknowledged(session(0), 0);
    let first = told.iter().filter(|recall| recall.inode == InodeId(0)).count();
    assert!(first <= 1, "{first} times of {}", told.len());
}

// SEMANTICS 116
#[test]
fn who_asks_for_a_lease_and_reads_nothing_changes_no_base() {
    let mut place = Place_::new();
    let mut stored = place.read_page(0, 0);
    assert!(place.leases.keep_whole(FILE, session(0), 0));
    stored[7] = 7;
    place.change(session(1), 5, &[5]);
    assert!(!place.leases.keep_whole(FILE, session(0), 0), "something was recalled");
    assert!(!place.leases.keep_whole(FILE, session(0), 0), "and is not dropped yet");
    place.write_back(0, 0, &stored).unwrap();
    assert_eq!(place.bytes[4..8], [0, 5, 0, 7]);
    let told: Vec<u64> =
        place.leases.unacknowledged(session(0), 0).iter().map(|recall| recall.number).collect();
    place.leases.acknowledge(session(0), &told, &[]);
    assert!(!place.leases.keep_whole(FILE, session(0), 0));
    assert!(place.leases.keep_whole(FILE, session(0), 0));
    // Somebody who had none has all of it, and hears of changes.
    assert!(!place.leases.keep_whole(FILE, session(2), 0));
    assert_eq!(place.change(session(1), 5, &[6]).len(), 2);
}

#[test]
fn a_full_table_takes_a_lease_back() {
    let mut leases = DataLeases::default();
    for inode in 0..limits::DATA_LEASES_PER_SERVER_MAX as u64 {
        leases.keep((InodeId(inode), None), session(0), WHOLE, 0);
    }
    assert!(leases.unacknowledged(session(0), 0).is_empty());
    leases.keep((InodeId(1 << 40), None), session(0), WHOLE, 0);
    assert_eq!(leases.unacknowledged(session(0), 0).len(), 1);
    assert!(!leases.has_lease((InodeId(0), None), session(0)));
    leases.end_session(session(0));
    assert!(
        leases.leases.is_empty() && leases.given == 0 && leases.recalls.is_empty() && leases.of.is_empty()
    );
}

#[test]
fn a_session_that_leaves_too_many_recalls_is_fenced() {
    let mut leases = DataLeases::default();
    let place = |inode: u64| (InodeId(inode), Some(1));
    let read: ReadNow<'_> = &mut |range| Ok(vec![0; range.length() as usize]);
    let more = limits::DATA_RECALLS_PER_SESSION_MAX as u64;
    for inode in 0..=more {
        leases.keep(place(inode), session(0), WHOLE, 0);
        let waits = leases.before_change(place(inode), session(1), whole(0), Change::Write, read, 0).unwrap();
        assert_eq!(waits.len(), usize::from(inode < more));
    }
    assert!(!leases.has_lease(place(more), session(0)));
}

fn zeros(range: ByteRange) -> Result<Vec<u8>> {
    Ok(vec![0; range.length() as usize])
}

/// Copies for as many holders as there may be, each of a file of its own, who were asked one after the other.
fn full_of_copies(holders: usize) -> DataLeases {
    let mut leases = DataLeases::default();
    let each =
        limits::DATA_BASE_BYTES_HARD_MAX / (PAGE_BYTES as usize + limits::DATA_BASE_HOLDER_BYTES) / holders;
    for holder in 0..holders {
        leases.keep(file_of(holder), session(holder), WHOLE, 0);
        let (pages, now) = (ByteRange { start: 0, end: each as u64 * PAGE_BYTES }, holder as u64);
        leases
            .before_change(file_of(holder), session(holders), pages, Change::Write, &mut zeros, now)
            .unwrap();
    }
    assert!((0..holders).all(|holder| !leases.is_fenced(file_of(holder), session(holder))));
    leases
}

fn file_of(holder: usize) -> Place {
    (InodeId(100 + holder as u64), Some(0))
}

// SEMANTICS 118.3
#[test]
fn copies_of_pages_have_a_limit_also_where_kernels_write_back() {
    const HOLDERS: usize = 8;
    let mut leases = full_of_copies(HOLDERS);
    // Somebody has more to drop: the one that was asked first is waited for no longer, and the others' stores are kept.
    let (now, more) = (100, ByteRange { start: 1 << 30, end: (1 << 30) + 16 * PAGE_BYTES });
    let waits =
        leases.before_change(file_of(3), session(HOLDERS), more, Change::Write, &mut zeros, now).unwrap();
    assert!(leases.base_bytes() <= limits::DATA_BASE_BYTES_HARD_MAX);
    let fenced = (0..HOLDERS).filter(|holder| leases.is_fenced(file_of(*holder), session(*holder)));
    assert_eq!(fenced.collect::<Vec<_>>(), [0]);
    assert!(waits.iter().all(|number| leases.recalls[number].holder == session(3)));
    let unknown = leases.check_base(file_of(0), session(0), whole(1)).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Stale);
    leases.check_base(file_of(1), session(1), whole(1)).unwrap();
    assert_eq!(leases.bases.range((file_of(3), session(3), 1 << 18)..).take(16).count(), 16);
    // All of it is given back.
    (0..HOLDERS).for_each(|holder| leases.end_session(session(holder)));
    assert_eq!(leases.base_bytes(), 0);
}

// SEMANTICS 118.3
#[test]
fn who_writes_back_is_not_given_up_for_what_that_takes() {
    const HOLDERS: usize = 8;
    let mut leases = full_of_copies(HOLDERS);
    leases.keep(file_of(7), session(0), WHOLE, 50);
    let more = ByteRange { start: 1 << 30, end: (1 << 30) + 16 * PAGE_BYTES };
    leases.before_change(file_of(7), session(0), more, Change::Write, &mut zeros, 100).unwrap();
    assert!(!leases.is_fenced(file_of(0), session(0)));
    assert!(leases.is_fenced(file_of(1), session(1)));
    // Whoever is given up while he writes back gets no lease for it.
    leases.wrote_back(file_of(1), session(1), 0, &[1; 4096], 101);
    assert!(!leases.has_lease(file_of(1), session(1)));
}

// SEMANTICS 118.3
#[test]
fn nobody_is_given_up_by_the_very_change_that_asks_him_however_many_have_the_pages() {
    const HOLDERS: usize = 40;
    let mut leases = DataLeases::default();
    (0..HOLDERS).for_each(|holder| _ = leases.keep(FILE, session(holder), WHOLE, 0));
    let column: Vec<ByteRange> = (0..limits::RUNS_PER_REQUEST_MAX)
        .map(|row| ByteRange { start: 2 * row * PAGE_BYTES, end: 2 * row * PAGE_BYTES + 8 })
        .collect();
    let write = |leases: &mut DataLeases, now| {
        leases.before_changes(FILE, session(HOLDERS), &column, Change::Write, &mut zeros, now).unwrap()
    };
    let waits = write(&mut leases, 7);
    let holders: BTreeSet<SessionId> = waits.iter().map(|number| leases.recalls[number].holder).collect();
    assert_eq!(holders.len(), HOLDERS);
    assert!(leases.recalls.values().all(|pending| !pending.fenced));
    let once = limits::RUNS_PER_REQUEST_MAX as usize
        * (PAGE_BYTES as usize + HOLDERS * limits::DATA_BASE_HOLDER_BYTES);
    assert_eq!(leases.base_bytes(), once, "the bytes are there once, whoever has them");
    // Nor where there is no room at all and all were asked just now: then it takes more.
    let mut leases = full_of_copies(1);
    (0..HOLDERS).for_each(|holder| _ = leases.keep(FILE, session(holder), WHOLE, 0));
    write(&mut leases, 0);
    assert!(leases.recalls.values().all(|pending| !pending.fenced));
    assert!(leases.base_bytes() > limits::DATA_BASE_BYTES_HARD_MAX);
}

#[test]
fn whoever_waits_hears_that_somebody_is_given_up_again() {
    let mut leases = full_of_copies(1);
    leases.fence(file_of(0), session(0), 5);
    leases.keep(file_of(0), session(0), WHOLE, 6);
    leases.before_change(file_of(0), session(1), whole(0), Change::Write, &mut zeros, 7).unwrap();
    let (number, told) = (leases.last_number, leases.told());
    assert!(leases.fence_for_room(session(1), 8));
    assert_eq!(leases.last_number, number, "it is to drop all of it already");
    assert_ne!(leases.told(), told);
}

#[test]
fn many_runs_recall_a_few_ranges_and_keep_what_their_own_pages_were() {
    let (mut leases, here) = (DataLeases::default(), 9_u8);
    leases.keep(FILE, session(0), WHOLE, 0);
    // Every other page of a thousand, each with two runs in it.
    let runs: Vec<ByteRange> = (0..1000)
        .map(|run| (run / 2 * 2 * PAGE_BYTES + run % 2 * 100, 10))
        .map(|(start, length)| ByteRange { start, end: start + length })
        .collect();
    let mut read_pages = Vec::new();
    let read: ReadNow<'_> = &mut |page| {
        read_pages.push(page.start / PAGE_BYTES);
        Ok(vec![here; page.length() as usize])
    };
    let waits = leases.before_changes(FILE, session(1), &runs, Change::Write, read, 0).unwrap();
    assert!((1..=limits::DATA_RECALLS_PER_CHANGE_MAX).contains(&waits.len()), "{}", waits.len());
    read_pages.sort_unstable();
    assert_eq!(read_pages, (0..500).map(|page| 2 * page).collect::<Vec<u64>>());
    let told = leases.unacknowledged(session(0), 0);
    for page in [0, 1, 500, 998] {
        let at = page * PAGE_BYTES;
        assert!(told.iter().any(|recall| recall.start <= at && at < recall.end), "page {page}");
    }
    // A page that was recalled along with others, and has not changed, comes back as it is.
    let mut stores = vec![here; PAGE_BYTES as usize];
    stores[7] = 1;
    let read: ReadNow<'_> = &mut |range| Ok(vec![here; range.length() as usize]);
    let stored = leases.stored(FILE, session(0), PAGE_BYTES, &stores, read, 0).unwrap();
    assert_eq!(stored.merged.unwrap_or(stores.clone()), stores);
    let few = [ByteRange { start: 0, end: 1 }, ByteRange { start: 5 * PAGE_BYTES, end: 5 * PAGE_BYTES + 1 }];
    let mut leases = DataLeases::default();
    leases.keep(FILE, session(0), WHOLE, 0);
    let read: ReadNow<'_> = &mut |range| Ok(vec![here; range.length() as usize]);
    let waits = leases.before_changes(FILE, session(1), &few, Change::Write, read, 0).unwrap();
    assert_eq!(waits.len(), 2);
    let told: Vec<u64> =
        leases.unacknowledged(session(0), 0).iter().map(|recall| recall.end - recall.start).collect();
    assert_eq!(told, [PAGE_BYTES, PAGE_BYTES]);
}
