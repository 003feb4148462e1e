//! Mounts that load, store and write at random, with a server that dies: no store is lost, and a write that was
//! answered is visible.

use proptest::prelude::*;
use ramlace_base::ErrorKind;
use ramlace_wire::leases::EndRecalls;

use super::*;

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
    /// The bytes that each mount stored or wrote last into its own byte of each page.
    last: Vec<Vec<u8>>,
    /// The bytes that it stored last.
    stored: Vec<Vec<u8>>,
    /// Recalls whose pages are dropped, and that are not acknowledged.
    dropped: Vec<Vec<u64>>,
    /// Writes that have not returned: mount, page, value, what they wait for.
    writes: Vec<(usize, usize, u8, Vec<u64>)>,
    /// The bytes that a call of each mount wrote last into a byte of its own of each page; one call is under
    /// way at a time.
    called: Vec<Vec<u8>>,
    calls: Vec<Option<Call>>,
    /// Pages that each kernel writes back, as they were then.
    backs: Vec<Option<(usize, Vec<u8>)>>,
    /// The bytes that each mount wrote last by a write.
    written: Vec<Vec<u8>>,
    /// The mounts that still have to drop what they have from before the server's restart.
    away: Vec<bool>,
    /// What the server's log has of pages.
    log: Outdated,
    lives: usize,
    /// A program stores into the server's memory without asking: the value of its own byte in each page, if there is one.
    shared: Option<Vec<u8>>,
}

/// A writing call, through the kernel's pages.
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
    /// The kernel has copied the bytes into its page, if it has one, and unlocked it.
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
    /// A store into the server's memory itself.
    StoreThere(usize),
    Drop(usize),
    Acknowledge(usize),
    /// A writing call advances by one stage, or another one begins.
    Call(usize, usize),
    /// The kernel begins to write a page back.
    Back(usize, usize),
    /// A write-back arrives at the server.
    Arrive(usize),
    /// The server's process dies, and another one begins.
    Die,
    /// A mount has received that, and has dropped all.
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

/// The byte of the program that stores into the server's memory.
const SHARED_BYTE: usize = 400;

/// Another byte of the mount, which alternates: a store may restore its first value.
fn parity_of(mount: usize) -> usize {
    200 + mount
}

impl World {
    fn new(shared: bool) -> World {
        World {
            shared: shared.then(|| vec![0; PAGES]),
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
            log: Outdated::default(),
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
                self.recall_in_a_moment(mount, start, &[value]);
                self.writes.push((mount, page, value, waits));
            }
            Step::LibraryWrite(page) => {
                let value = self.next(LIBRARY, page);
                let start = whole(page).start + byte_of(LIBRARY) as u64;
                let waits = self.place.change(session(LIBRARY), start, &[value]);
                self.writes.push((LIBRARY, page, value, waits));
            }
            Step::StoreThere(page) => self.store_there(page),
            Step::Drop(mount) => self.drop_pages(mount),
            Step::Acknowledge(mount) => {
                let done = std::mem::take(&mut self.dropped[mount]);
                self.place.leases.acknowledge(session(mount), &EndRecalls::of_done(&done));
            }
        }
        self.note_news();
        self.look_at_writes_that_returned();
    }

    fn store_there(&mut self, page: usize) {
        let Some(shared) = &mut self.shared else { return };
        shared[page] = shared[page].wrapping_add(1);
        self.place.bytes[whole(page).start as usize + SHARED_BYTE] = shared[page];
    }

    /// Where somebody stores without asking, kernels are to drop in a moment what they get.
    fn recall_in_a_moment(&mut self, mount: usize, start: u64, bytes: &[u8]) {
        if self.shared.is_some() {
            let here = &self.place.bytes;
            let range = ByteRange { start, end: start + bytes.len() as u64 };
            let read: ReadNow<'_> = &mut |page| {
                let mut base = here[page.start as usize..page.end as usize].to_vec();
                let at = (start - page.start) as usize;
                base[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(base)
            };
            self.place.leases.recall_in_a_moment((FILE, session(mount)), range, read, 0).unwrap();
        }
    }

    fn note_news(&mut self) {
        for news in self.place.leases.take_news() {
            self.log.note(&news);
        }
    }

    fn die(&mut self) {
        self.note_news();
        let newest = self.place.leases.last_number;
        let all = (0..MOUNTS).map(|mount| (session(mount), false));
        self.place.leases = DataLeases::after(all).counting_from(newest);
        self.log.news().for_each(|news| self.place.leases.note_before(&news));
        self.away.fill(true);
        self.dropped.iter_mut().for_each(Vec::clear);
        self.lives += 1;
        // A session that waits for its answer asks again: it was done.
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
        self.place.leases.has_returned(session(mount));
    }

    fn next(&mut self, mount: usize, page: usize) -> u8 {
        let value = self.last[mount][page].wrapping_add(1).max(1);
        self.last[mount][page] = value;
        value
    }

    fn load(&mut self, mount: usize, page: usize) -> &mut Kept {
        if self.kernels[mount][page].is_none() {
            let bytes = self.place.read_page(mount, page);
            self.recall_in_a_moment(mount, whole(page).start, &bytes);
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

    /// One page at a time. The bytes of a call under way are included: the page may be from before.
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
        let came = match self.shared.is_some() {
            true => self.write_runs_back(mount, page, &bytes),
            false => self.place.write_back(mount, page, &bytes),
        };
        if let Err(error) = came {
            assert!(self.lives > 1 && error.kind() == ErrorKind::Stale, "{error}");
            // Its programs learn that what they stored is lost. What they wrote is not.
            let start = whole(page).start as usize;
            let left = self.place.bytes[start + byte_of(mount)];
            let age = |value: u8| self.last[mount][page].wrapping_sub(value);
            assert!(age(left) <= age(self.written[mount][page]), "a write of {mount} is lost");
            self.last[mount][page] = left;
            self.stored[mount][page] = self.place.bytes[start + parity_of(mount)];
        }
    }

    /// Only the bytes that were stored are written; somebody stores beside them meanwhile.
    fn write_runs_back(&mut self, mount: usize, page: usize, bytes: &[u8]) -> Result<()> {
        let (me, offset) = (session(mount), whole(page).start);
        let here = self.place.bytes.clone();
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        self.place.leases.stored(FILE, me, offset, bytes, read, 0)?;
        self.store_there(page);
        for run in self.place.leases.runs_stored(FILE, me, offset, bytes) {
            let (from, to) = ((run.start - offset) as usize, (run.end - offset) as usize);
            self.place.change(me, run.start, &bytes[from..to]);
        }
        self.place.leases.wrote_back(FILE, me, offset, bytes, 0);
        Ok(())
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
                // Earlier write-backs arrive at the server first.
                self.arrive(mount);
                call.at = Stage::Begun;
            }
            Stage::Begun => {
                self.place.change(session(mount), start, &[call.value]);
                let range = ByteRange { start, end: start + 1 };
                self.place.leases.wrote_through(FILE, session(mount), range, &[call.value], 0);
                self.recall_in_a_moment(mount, start, &[call.value]);
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

    /// The mount drops what was recalled, and acknowledges later: meanwhile its programs continue.
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
                // Its owner may have stored more since: newer bytes are no fault.
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
        for (page, value) in self.shared.iter().flatten().enumerate() {
            let at = whole(page).start as usize + SHARED_BYTE;
            assert_eq!(self.place.bytes[at], *value, "what was stored into the memory of page {page}");
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
        2 => page.clone().prop_map(Step::StoreThere),
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
    // SEMANTICS 8.7, 90.4, 116
    #[test]
    fn no_store_is_lost_and_a_write_that_returned_is_seen(
        steps in prop::collection::vec(step(), 1..60), lives in prop::bool::ANY, shared in prop::bool::ANY
    ) {
        // Half of the histories have no restart: then no store is refused.
        let steps: Vec<Step> = steps.into_iter().filter(|step| lives || !matches!(step, Step::Die)).collect();
        let mut world = World::new(shared);
        steps.iter().for_each(|step| world.take(step));
        world.end();
    }
}
