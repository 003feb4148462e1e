//! Kernels of strict and coherent mounts that load, store and drop at random, with a server that dies: a page
//! that may be stored into is in one of them, and every kernel gets its turn.

use std::collections::BTreeMap;

use proptest::prelude::*;

use ramlace_wire::leases::EndRecalls;

use super::*;

const WRITERS: usize = 5;

fn byte_of(writer: usize) -> usize {
    100 + writer
}

/// A page of a kernel.
#[derive(Clone, Debug, Default)]
enum Page {
    #[default]
    None,
    /// It is read, and locked until that is answered.
    Asked(Ticket, u32),
    /// The answer is under way.
    Answered(Vec<u8>),
    Here {
        bytes: Vec<u8>,
        dirty: bool,
    },
}

pub(super) struct World {
    leases: DataLeases,
    memory: Vec<u8>,
    kernels: Vec<Vec<Page>>,
    /// The bytes that each has stored last, and which of them all must see.
    stored: Vec<Vec<u8>>,
    /// The progress of each with its recalls: a drop stops at a page that is being read.
    drops: Vec<BTreeMap<u64, usize>>,
    done: Vec<Vec<u64>>,
    write: Option<(usize, usize, Ticket)>,
    calls: u32,
    /// The progress of those that still have to drop what they had when the server died.
    away: Vec<Option<usize>>,
    /// What the server's log has of pages that others have changed.
    log: Outdated,
    lives: usize,
}

#[derive(Clone, Debug)]
enum Step {
    Touch(usize, usize),
    /// The kernel reads ahead from here, for a store.
    TouchMany(usize, usize),
    Poll(usize, usize),
    Deliver(usize, usize),
    WriteBack(usize, usize),
    Evict(usize, usize),
    Drop(usize),
    Acknowledge(usize),
    /// The library writes into these pages at once.
    Write(usize, usize),
    /// The server's process dies, and another one begins.
    Die,
    /// A kernel has dropped everything from before the restart, if nothing prevents it.
    Return(usize),
}

impl World {
    fn new() -> World {
        World {
            leases: DataLeases::default(),
            memory: vec![0; PAGES * BYTES],
            kernels: vec![vec![Page::None; PAGES]; KERNELS],
            stored: vec![vec![0; PAGES]; WRITERS],
            drops: vec![BTreeMap::new(); KERNELS],
            done: vec![Vec::new(); KERNELS],
            write: None,
            calls: 0,
            away: vec![None; KERNELS],
            log: Outdated::default(),
            lives: 1,
        }
    }

    /// Leases that have as many holes as they may, all of them larger than a page; none of the sessions waits
    /// for that.
    fn crowded() -> World {
        let mut world = World::new();
        for kernel in [READER, COHERENT] {
            world.leases.keep(FILE, session(kernel), whole(0), 0);
        }
        for hole in 1..=limits::DATA_LEASE_HOLES_MAX {
            let start = (hole as u64) << 20;
            let two = ByteRange { start, end: start + 2 * PAGE_BYTES };
            let read: ReadNow<'_> = &mut |_| unreachable!("nobody knows what was there");
            world.leases.before_change(FILE, session(LIBRARY), two, Change::Stored, read, 0).unwrap();
        }
        for kernel in [READER, COHERENT] {
            acknowledge_all(&mut world.leases, kernel);
        }
        world
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Touch(kernel, page) => self.touch(kernel, page),
            Step::TouchMany(kernel, page) => self.touch_many(kernel, page),
            Step::Poll(kernel, page) => self.poll(kernel, page),
            Step::Deliver(kernel, page) => {
                if let Page::Answered(bytes) = &self.kernels[kernel][page] {
                    self.kernels[kernel][page] = Page::Here { bytes: bytes.clone(), dirty: false };
                }
            }
            Step::WriteBack(kernel, page) => self.write_back(kernel, page),
            Step::Evict(kernel, page) => self.evict(kernel, page),
            Step::Drop(kernel) => self.drop_pages(kernel),
            Step::Acknowledge(kernel) => {
                let done = std::mem::take(&mut self.done[kernel]);
                self.leases.acknowledge(session(kernel), &EndRecalls::of_done(&done));
            }
            Step::Write(first, count) => self.write(first, count),
            Step::Die => self.die(),
            Step::Return(kernel) => self.come_back(kernel),
        }
        self.note_news();
        self.look();
    }

    fn note_news(&mut self) {
        for news in self.leases.take_news() {
            self.log.note(&news);
        }
    }

    /// The owners are forgotten. Requests are repeated.
    fn die(&mut self) {
        let newest = self.leases.last_number;
        let all = (0..KERNELS).map(|kernel| (session(kernel), kernel != COHERENT));
        self.leases = DataLeases::after(all).counting_from(newest);
        self.log.news().for_each(|news| self.leases.note_before(&news));
        self.lives += 1;
        for page in self.kernels.iter_mut().flatten() {
            if let Page::Asked(ticket, call) = page {
                self.calls += 1;
                (*ticket, *call) = (Ticket::default(), self.calls);
            }
        }
        if let Some((.., ticket)) = &mut self.write {
            *ticket = Ticket::default();
        }
        self.drops.iter_mut().for_each(BTreeMap::clear);
        self.done.iter_mut().for_each(Vec::clear);
        self.away = vec![Some(0); KERNELS];
    }

    /// It goes through all pages in order, and waits for one that is being read.
    fn come_back(&mut self, kernel: usize) {
        let Some(mut next) = self.away[kernel] else { return };
        while next < PAGES && !matches!(self.kernels[kernel][next], Page::Asked(..) | Page::Answered(_)) {
            self.evict(kernel, next);
            next += 1;
        }
        self.away[kernel] = (next < PAGES).then_some(next);
        if next == PAGES {
            self.leases.has_returned(session(kernel));
        }
    }

    fn wish(kernel: usize) -> Wish {
        match kernel {
            READER => Wish::Strict,
            COHERENT => Wish::Share,
            _ => Wish::Own,
        }
    }

    pub(super) fn asked(kernel: usize, page: usize, wish: Wish, call: u32) -> Asked {
        Asked { place: FILE, session: session(kernel), range: whole(page), wish, call }
    }

    /// A program stores, or loads; without the page the kernel asks for it.
    fn touch(&mut self, kernel: usize, page: usize) {
        match &mut self.kernels[kernel][page] {
            Page::None => {
                self.calls += 1;
                self.kernels[kernel][page] = Page::Asked(Ticket::default(), self.calls);
                self.poll(kernel, page);
            }
            Page::Here { bytes, dirty } if kernel != READER => {
                self.stored[kernel][page] = self.stored[kernel][page].wrapping_add(1);
                bytes[byte_of(kernel)] = self.stored[kernel][page];
                *dirty = true;
            }
            _ => {}
        }
    }

    /// All that lie together and are not there, or none.
    fn touch_many(&mut self, kernel: usize, first: usize) {
        let is_missing = |page: &usize| matches!(self.kernels[kernel][*page], Page::None);
        let pages: Vec<usize> = (first..PAGES).take_while(is_missing).collect();
        let Some(last) = pages.last().filter(|_| pages.len() > 1 && World::wish(kernel) == Wish::Own) else {
            return;
        };
        self.calls += 1;
        let range = ByteRange { start: whole(first).start, end: whole(*last).end };
        let asked = Asked { range, ..World::asked(kernel, first, Wish::Own, self.calls) };
        let mut ticket = Ticket::default();
        match self.leases.claim(&asked, &mut ticket, 0) {
            Ok(granted) => assert!(granted, "several pages are not waited for"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy);
                return;
            }
        }
        for page in pages {
            let bytes = self.memory[page * BYTES..(page + 1) * BYTES].to_vec();
            self.kernels[kernel][page] = Page::Answered(bytes);
        }
    }

    fn poll(&mut self, kernel: usize, page: usize) {
        let Page::Asked(ticket, call) = &mut self.kernels[kernel][page] else { return };
        let asked = World::asked(kernel, page, World::wish(kernel), *call);
        if self.leases.claim(&asked, ticket, 0).unwrap() {
            if asked.wish != Wish::Own {
                self.leases.keep(FILE, session(kernel), whole(page), 0);
            }
            let bytes = self.memory[page * BYTES..(page + 1) * BYTES].to_vec();
            self.kernels[kernel][page] = Page::Answered(bytes);
        }
    }

    fn write_back(&mut self, kernel: usize, page: usize) {
        let Page::Here { bytes, dirty: dirty @ true } = &mut self.kernels[kernel][page] else { return };
        *dirty = false;
        let (bytes, offset, me) = (bytes.clone(), whole(page).start, session(kernel));
        let here = &self.memory;
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        let stored = self.leases.stored(FILE, me, offset, &bytes, read, 0);
        if self.lives > 1 && kernel == COHERENT && stored.is_err() {
            // Its programs learn that what they stored is lost.
            self.stored[kernel][page] = self.memory[page * BYTES + byte_of(kernel)];
            return;
        }
        let Stored { ranges, merged } = stored.unwrap();
        let merged = merged.as_deref().unwrap_or(&bytes);
        for range in ranges {
            let (from, to) = ((range.start - offset) as usize, (range.end - offset) as usize);
            self.change(me, range.start, &merged[from..to]);
        }
        self.leases.wrote_back(FILE, me, offset, &bytes, 0);
    }

    fn change(&mut self, by: SessionId, start: u64, bytes: &[u8]) {
        let range = ByteRange { start, end: start + bytes.len() as u64 };
        let here = &self.memory;
        let read: ReadNow<'_> = &mut |range| Ok(here[range.start as usize..range.end as usize].to_vec());
        self.leases.before_change(FILE, by, range, Change::Write, read, 0).unwrap();
        self.memory[range.start as usize..range.end as usize].copy_from_slice(bytes);
    }

    fn evict(&mut self, kernel: usize, page: usize) {
        self.write_back(kernel, page);
        if matches!(self.kernels[kernel][page], Page::Here { .. }) {
            self.kernels[kernel][page] = Page::None;
        }
    }

    /// A drop goes through its pages in order, and waits for one that is being read.
    fn drop_pages(&mut self, kernel: usize) {
        for recall in self.leases.unacknowledged(session(kernel), 0) {
            let last = PAGES.min((recall.end as usize).div_ceil(BYTES));
            let mut next = *self.drops[kernel].entry(recall.number).or_insert(recall.start as usize / BYTES);
            while next < last && !matches!(self.kernels[kernel][next], Page::Asked(..) | Page::Answered(_)) {
                self.evict(kernel, next);
                next += 1;
            }
            self.drops[kernel].insert(recall.number, next);
            if next >= last && !self.done[kernel].contains(&recall.number) {
                self.done[kernel].push(recall.number);
            }
        }
    }

    /// The library writes its byte into each of these pages.
    fn write(&mut self, first: usize, count: usize) {
        let (first, count, mut ticket) = self.write.take().unwrap_or((first, count, Ticket::default()));
        let pages = first..PAGES.min(first + count);
        let range = ByteRange { start: whole(first).start, end: whole(pages.end - 1).end };
        let asked = Asked { range, ..World::asked(LIBRARY, first, Wish::Change, 0) };
        if !self.leases.claim(&asked, &mut ticket, 0).unwrap() {
            self.write = Some((first, count, ticket));
            return;
        }
        for page in pages {
            self.stored[LIBRARY][page] = self.stored[LIBRARY][page].wrapping_add(1);
            let value = self.stored[LIBRARY][page];
            self.change(session(LIBRARY), whole(page).start + byte_of(LIBRARY) as u64, &[value]);
        }
        self.leases.end_claim(FILE, ticket);
    }

    /// A strict mount has the newest bytes, and no other kernel has a page that it may store into.
    fn look(&self) {
        for page in 0..PAGES {
            let here = |kernel: usize| match &self.kernels[kernel][page] {
                Page::Here { bytes, .. } | Page::Answered(bytes) => Some(bytes),
                _ => None,
            };
            for owner in
                (0..KERNELS).filter(|kernel| World::wish(*kernel) == Wish::Own && here(*kernel).is_some())
            {
                let others: Vec<usize> =
                    (0..KERNELS).filter(|other| *other != owner && here(*other).is_some()).collect();
                assert!(others.is_empty(), "{owner} owns page {page}, and {others:?} have it");
            }
            for kernel in 0..COHERENT {
                let Some(bytes) = here(kernel) else { continue };
                for writer in [0, 1, LIBRARY] {
                    let newest = self.stored[writer][page];
                    assert_eq!(bytes[byte_of(writer)], newest, "{kernel} sees {writer} in page {page}");
                }
            }
        }
    }

    /// All kernels continue, and none waits for ever; then all is in the memory.
    fn end(&mut self) {
        for _ in 0..80 {
            for kernel in 0..KERNELS {
                for page in 0..PAGES {
                    self.take(&Step::Poll(kernel, page));
                    self.take(&Step::Deliver(kernel, page));
                }
                self.take(&Step::Return(kernel));
                self.take(&Step::Drop(kernel));
                self.take(&Step::Acknowledge(kernel));
            }
            if self.write.is_some() {
                self.take(&Step::Write(0, 1));
            }
        }
        assert!(self.write.is_none(), "the library waits for ever");
        for kernel in 0..KERNELS {
            for page in 0..PAGES {
                assert!(
                    !matches!(self.kernels[kernel][page], Page::Asked(..)),
                    "{kernel} waits for page {page}"
                );
                self.evict(kernel, page);
            }
        }
        for writer in [0, 1, COHERENT, LIBRARY] {
            for page in 0..PAGES {
                let at = page * BYTES + byte_of(writer);
                assert_eq!(self.memory[at], self.stored[writer][page], "what {writer} stored in page {page}");
            }
        }
        assert!(self.leases.owners.claims.is_empty());
        for kernel in 0..KERNELS {
            assert!(self.away[kernel].is_none());
            self.leases.end_session(session(kernel));
        }
        assert!(self.leases.is_idle() && self.leases.owners.count == 0);
    }
}

fn step() -> impl Strategy<Value = Step> {
    let (kernel, page) = (0..KERNELS, 0..PAGES);
    let both = || (0..KERNELS, 0..PAGES);
    prop_oneof![
        6 => both().prop_map(|(kernel, page)| Step::Touch(kernel, page)),
        2 => both().prop_map(|(kernel, page)| Step::TouchMany(kernel, page)),
        3 => both().prop_map(|(kernel, page)| Step::Poll(kernel, page)),
        3 => both().prop_map(|(kernel, page)| Step::Deliver(kernel, page)),
        1 => both().prop_map(|(kernel, page)| Step::WriteBack(kernel, page)),
        1 => both().prop_map(|(kernel, page)| Step::Evict(kernel, page)),
        3 => kernel.clone().prop_map(Step::Drop),
        3 => kernel.clone().prop_map(Step::Acknowledge),
        1 => kernel.prop_map(Step::Return),
        1 => Just(Step::Die),
        1 => (page, 1..=PAGES).prop_map(|(first, count)| Step::Write(first, count)),
    ]
}

/// A sequence of steps takes little time: so many times the cases of other properties, some 3,000 or what
/// PROPTEST_CASES says.
fn many() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: 12 * usual.cases, ..usual }
}

proptest! {
    #![proptest_config(many())]
    // SEMANTICS 124.2, 128.4
    #[test]
    fn a_page_that_may_be_stored_into_is_in_one_kernel_and_everybody_gets_it(
        steps in prop::collection::vec(step(), 1..120), crowded in prop::bool::weighted(0.1)
    ) {
        let mut world = if crowded { World::crowded() } else { World::new() };
        steps.iter().for_each(|step| world.take(step));
        world.end();
    }
}
