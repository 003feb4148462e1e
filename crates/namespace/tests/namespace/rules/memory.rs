//! The memory that a file holds, as far as its home can know.

use ramlace_base::{Generation, InodeId};
use ramlace_namespace::Op;
use ramlace_wire::namespace as wire;

use crate::rules::story::{Story, truncate};

const ROOT: InodeId = InodeId::ROOT;
const PAGE: u64 = 4096;

impl Story {
    fn allocated(&self, inode: InodeId) -> Option<u64> {
        self.info(inode).unwrap().attributes.allocated
    }

    fn wrote(&mut self, inode: InodeId, from: u64, size: u64) {
        let generation = self.generation(inode);
        self.ask(Op::Extend(wire::Extend { inode, generation, size, from })).unwrap();
    }

    /// A truncation: one that cuts is answered when its lanes have confirmed it, but the home knows at once.
    fn cut(&mut self, inode: InodeId, size: u64) {
        self.send(truncate(inode, size)).transpose().unwrap();
    }

    fn note(&mut self, inode: InodeId, generation: Generation, start: u64, end: u64, taken: bool) {
        self.ask(Op::NoteMemory(wire::NoteMemory { inode, generation, start, end, taken })).unwrap();
    }
}

#[test]
fn what_was_written_from_the_beginning_to_the_end_has_no_holes() {
    let mut story = Story::new();
    let file = story.create(ROOT, "file");
    assert_eq!(story.allocated(file), Some(0));
    story.wrote(file, 0, PAGE + 1);
    assert_eq!(story.allocated(file), Some(2 * PAGE));
    story.wrote(file, 100, 5 * PAGE);
    let end = story.reserve(file, PAGE);
    story.finish(file, end).unwrap();
    assert_eq!(story.allocated(file), Some(6 * PAGE));
    story.cut(file, 10);
    assert_eq!(story.allocated(file), Some(PAGE));
}

#[test]
fn a_gap_is_known_until_it_is_filled_or_cut_off() {
    let mut story = Story::new();
    let file = story.create(ROOT, "file");
    story.wrote(file, 2 * PAGE, 4 * PAGE);
    assert_eq!(story.allocated(file), None, "nobody has said that its beginning was written");
    let generation = story.generation(file);
    story.note(file, generation, 0, 2 * PAGE, true);
    assert_eq!(story.allocated(file), None, "what lies behind was told of before");
    story.note(file, generation, PAGE, 4 * PAGE, true);
    assert_eq!(story.allocated(file), Some(4 * PAGE));
    story.cut(file, 9 * PAGE);
    assert_eq!(story.allocated(file), None, "what a truncation adds is a hole");
    story.cut(file, 3 * PAGE);
    assert_eq!(story.allocated(file), Some(3 * PAGE));
    let offset = story.reserve(file, PAGE);
    story.fail(file, offset).unwrap();
    assert_eq!(story.allocated(file), None, "an append that failed leaves a hole");
}

#[test]
fn a_punch_and_memory_behind_the_end_are_known() {
    let mut story = Story::new();
    let file = story.create(ROOT, "file");
    story.wrote(file, 0, 4 * PAGE);
    let before = story.generation(file);
    story.note(file, before, PAGE, 2 * PAGE, false);
    assert_eq!(story.allocated(file), None);
    story.note(file, before, PAGE, 4 * PAGE, true);
    assert_eq!(story.allocated(file), Some(4 * PAGE));
    story.note(file, before, 4 * PAGE, 8 * PAGE, true);
    assert_eq!(story.allocated(file), None, "only its lanes know what was taken ahead");
    story.wrote(file, 4 * PAGE, 8 * PAGE);
    assert_eq!(story.allocated(file), Some(8 * PAGE), "it has grown into it");
    story.cut(file, 2 * PAGE);
    story.cut(file, 4 * PAGE);
    story.note(file, before, 0, 4 * PAGE, true);
    assert_eq!(story.allocated(file), None, "what was taken before a truncation is gone");
}

#[test]
fn a_file_that_lives_with_its_inode_holds_its_bytes() {
    let mut story = Story::new();
    let file = story.create_inline(ROOT, "file", 1);
    story.ask(truncate(file, 1 << 40)).unwrap();
    assert_eq!(story.allocated(file), Some(0));
}
