//! Runs with gaps between them, against plain vectors.

use proptest::prelude::*;
use ramlace_base::{ByteRange, ErrorKind};
use ramlace_wire::Kind;

use super::{UNIT, pattern, read, striped, write_all};
use crate::OpenOptions;
use crate::fake::FakePool;

/// Ascending runs by (gap before it, length).
fn runs_of(steps: &[(u64, u64)]) -> Vec<ByteRange> {
    let mut at = 0;
    let run = |(gap, length): &(u64, u64)| {
        let start = at + gap;
        at = start + length;
        ByteRange { start, end: at }
    };
    steps.iter().map(run).collect()
}

fn bytes_of(runs: &[ByteRange]) -> usize {
    runs.iter().map(|run| run.length() as usize).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn runs_move_their_bytes_and_no_others(
        width in 1u16..4,
        size in 0u64..400_000,
        writes in prop::collection::vec(prop::collection::vec((0u64..90_000, 1u64..9_000), 1..30), 1..4),
        reads in prop::collection::vec((0u64..90_000, 1u64..9_000), 1..30),
    ) {
        let pool = FakePool::start(3);
        let file = pool.connect().open("/runs", &striped(width)).unwrap();
        let mut model = pattern(size as usize, 9);
        write_all(&file, &model, 0);
        for (seed, steps) in writes.iter().enumerate() {
            let runs = runs_of(steps);
            let bytes = pattern(bytes_of(&runs), seed as u8);
            prop_assert_eq!(file.write_runs(&runs, &bytes).unwrap(), bytes.len());
            let mut at = 0;
            for run in &runs {
                let length = run.length() as usize;
                model.resize(model.len().max(run.end as usize), 0);
                model[run.start as usize..run.end as usize].copy_from_slice(&bytes[at..at + length]);
                at += length;
            }
        }
        prop_assert!(read(&file, 0, model.len() + 1) == model);
        let runs = runs_of(&reads);
        let mut buffer = vec![0xee; bytes_of(&runs)];
        let count = file.read_runs(&runs, &mut buffer).unwrap();
        let mut expected: Vec<u8> = Vec::new();
        for run in &runs {
            let (start, end) = ((run.start as usize).min(model.len()), (run.end as usize).min(model.len()));
            expected.extend(&model[start..end]);
        }
        prop_assert_eq!(count, expected.len());
        prop_assert!(buffer[..count] == expected);
    }
}

#[test]
fn runs_of_small_files_are_found_with_their_inode() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/inline", &OpenOptions::creating()).unwrap();
    let runs = runs_of(&[(1, 2), (3, 4)]);
    assert_eq!(file.write_runs(&runs, b"abcdef").unwrap(), 6);
    assert_eq!(pool.seen(Kind::WriteChunk), 0);
    let mut buffer = [0; 9];
    assert_eq!(file.read_runs(&runs_of(&[(0, 2), (4, 5)]), &mut buffer[..7]).unwrap(), 6);
    assert_eq!(&buffer[..6], b"\0acdef");
}

#[test]
fn runs_that_make_no_sense_are_refused() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/wrong", &striped(2)).unwrap();
    let run = |start, end| ByteRange { start, end };
    for wrong in [&[run(5, 9), run(8, 9)][..], &[run(5, 5)], &[run(9, 12), run(0, 3)], &[run(0, 7)]] {
        let bytes = vec![1; bytes_of(wrong).max(1) + usize::from(wrong.len() == 1)];
        assert_eq!(file.write_runs(wrong, &bytes).unwrap_err().kind(), ErrorKind::Invalid, "{wrong:?}");
    }
    assert_eq!(file.write_runs(&[], &[]).unwrap(), 0);
    assert_eq!(file.size().unwrap(), 0);
}

#[test]
fn runs_that_meet_a_full_pool_say_how_much_was_written() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/full", &striped(2)).unwrap();
    pool.state().lane_bytes_max = UNIT as usize;
    let runs = runs_of(&[(UNIT, 100), (UNIT, 100), (UNIT, 100)]);
    let written = file.write_runs(&runs, &[7; 300]).unwrap();
    assert_eq!(written, 100);
    assert_eq!(file.size().unwrap(), UNIT + 100);
    assert_eq!(file.write_runs(&runs[1..], &[7; 200]).unwrap_err().kind(), ErrorKind::NoSpace);
}
