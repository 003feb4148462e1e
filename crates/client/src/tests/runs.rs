//! Runs with gaps between them, against plain vectors.

use proptest::prelude::*;
use ramlace_base::{ByteRange, ErrorKind};
use ramlace_wire::Kind;
use ramlace_wire::runs::{Strided, Tile};

use super::{UNIT, pattern, read, striped, write_all};
use crate::OpenOptions;
use crate::fake::{FakePool, Fault};

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

/// The same as a description.
fn listed(runs: &[ByteRange]) -> Vec<Tile> {
    if runs.is_empty() {
        Vec::new()
    } else {
        vec![Tile::once(runs.iter().copied().map(Strided::one).collect())]
    }
}

fn bytes_of(runs: &[ByteRange]) -> usize {
    runs.iter().map(|run| run.length() as usize).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    // SEMANTICS 98.5, 98.7
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
            prop_assert_eq!(file.write_runs(&listed(&runs), &bytes).unwrap(), bytes.len());
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
        let count = file.read_runs(&listed(&runs), &mut buffer).unwrap();
        let mut expected: Vec<u8> = Vec::new();
        for run in &runs {
            let (start, end) = ((run.start as usize).min(model.len()), (run.end as usize).min(model.len()));
            expected.extend(&model[start..end]);
        }
        prop_assert_eq!(count, expected.len());
        prop_assert!(buffer[..count] == expected);
    }
}

// SEMANTICS 98.4
#[test]
fn runs_of_small_files_are_found_with_their_inode() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/inline", &OpenOptions::creating()).unwrap();
    let runs = runs_of(&[(1, 2), (3, 4)]);
    assert_eq!(file.write_runs(&listed(&runs), b"abcdef").unwrap(), 6);
    assert_eq!(pool.seen(Kind::WriteChunk), 0);
    let mut buffer = [0; 9];
    assert_eq!(file.read_runs(&listed(&runs_of(&[(0, 2), (4, 5)])), &mut buffer[..7]).unwrap(), 6);
    assert_eq!(&buffer[..6], b"\0acdef");
}

// SEMANTICS 98.5
#[test]
fn runs_that_make_no_sense_are_refused() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/wrong", &striped(2)).unwrap();
    let run = |start, end| ByteRange { start, end };
    for wrong in [&[run(5, 9), run(8, 9)][..], &[run(5, 5)], &[run(9, 12), run(0, 3)], &[run(0, 7)]] {
        let bytes = vec![1; bytes_of(wrong).max(1) + usize::from(wrong.len() == 1)];
        assert_eq!(
            file.write_runs(&listed(wrong), &bytes).unwrap_err().kind(),
            ErrorKind::Invalid,
            "{wrong:?}"
        );
    }
    assert_eq!(file.write_runs(&[], &[]).unwrap(), 0);
    assert_eq!(file.size().unwrap(), 0);
}

// SEMANTICS 98.7
#[test]
fn runs_that_meet_a_full_pool_say_how_much_was_written() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/full", &striped(2)).unwrap();
    pool.state().lane_bytes_max = UNIT as usize;
    let runs = runs_of(&[(UNIT, 100), (UNIT, 100), (UNIT, 100)]);
    let written = file.write_runs(&listed(&runs), &[7; 300]).unwrap();
    assert_eq!(written, 100);
    assert_eq!(file.size().unwrap(), UNIT + 100);
    assert_eq!(file.write_runs(&listed(&runs[1..]), &[7; 200]).unwrap_err().kind(), ErrorKind::NoSpace);
}

/// Tiles by drawn gaps, lengths and counts.
fn tiles() -> impl Strategy<Value = Vec<Tile>> {
    let run = (0u64..3_000, 1u64..2_000, 1u64..6, 0u64..30_000);
    let tile = (0u64..70_000, prop::collection::vec(run, 1..4), 1u64..6, 0u64..80_000);
    prop::collection::vec(tile, 1..4).prop_map(|drawn| {
        let (mut tiles, mut at) = (Vec::new(), 0);
        for (before, drawn, count, between) in drawn {
            let (mut runs, mut end) = (Vec::new(), 0);
            for (gap, length, count, between) in drawn {
                let (offset, stride) = (if end == 0 { 0 } else { end + gap }, length + between);
                end = offset + (count - 1) * stride + length;
                runs.push(Strided { offset, length, count, stride });
            }
            let (start, stride) = (at + before, end + between);
            at = start + (count - 1) * stride + end;
            tiles.push(Tile { start, runs, count, stride });
        }
        tiles
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    // SEMANTICS 98.4
    #[test]
    fn tiles_move_their_bytes_from_and_to_memory_in_pieces(
        width in 1u16..4,
        size in 0u64..300_000,
        written in tiles(),
        looked_at in tiles(),
        cut in 1usize..5_000,
    ) {
        let pool = FakePool::start(3);
        let file = pool.connect().open("/tiles", &striped(width)).unwrap();
        let mut model = pattern(size as usize, 3);
        write_all(&file, &model, 0);
        let runs: Vec<ByteRange> = written.iter().flat_map(Tile::iter).collect();
        let bytes = pattern(bytes_of(&runs), 7);
        let pieces: Vec<std::io::IoSlice<'_>> = bytes.chunks(cut).map(std::io::IoSlice::new).collect();
        prop_assert_eq!(file.write_runs_vectored(&written, &pieces).unwrap(), bytes.len());
        let mut at = 0;
        for run in &runs {
            let length = run.length() as usize;
            model.resize(model.len().max(run.end as usize), 0);
            model[run.start as usize..run.end as usize].copy_from_slice(&bytes[at..at + length]);
            at += length;
        }
        prop_assert!(read(&file, 0, model.len() + 1) == model);
        let runs: Vec<ByteRange> = looked_at.iter().flat_map(Tile::iter).collect();
        let mut buffer = vec![0xee; bytes_of(&runs)];
        let mut pieces: Vec<std::io::IoSliceMut<'_>> = buffer.chunks_mut(cut).map(std::io::IoSliceMut::new).collect();
        let count = file.read_runs_vectored(&looked_at, &mut pieces).unwrap();
        let mut expected: Vec<u8> = Vec::new();
        for run in &runs {
            let (start, end) = ((run.start as usize).min(model.len()), (run.end as usize).min(model.len()));
            expected.extend(&model[start..end]);
        }
        prop_assert_eq!(count, expected.len());
        prop_assert!(buffer[..count] == expected);
    }
}

// SEMANTICS 98.4
#[test]
fn rows_of_an_array_cost_one_request_for_each_server() {
    let pool = FakePool::start(3);
    let file = pool.connect().open("/rows", &striped(3)).unwrap();
    let rows = Strided { offset: 0, length: 4096, count: 256, stride: 3 * 4096 };
    let tiles = [Tile::once(vec![rows])];
    let bytes = pattern(1 << 20, 5);
    assert_eq!(file.write_runs(&tiles, &bytes).unwrap(), 1 << 20);
    let mut back = vec![0; 1 << 20];
    assert_eq!(file.read_runs(&tiles, &mut back).unwrap(), 1 << 20);
    assert!(back == bytes);
    assert_eq!((pool.seen(Kind::WriteRuns), pool.seen(Kind::ReadRuns)), (3, 3));
    assert_eq!((pool.seen(Kind::WriteChunk), pool.seen(Kind::ReadChunk)), (0, 0));
}

#[test]
fn lost_answers_to_writes_of_runs_have_one_effect() {
    let pool = FakePool::start(2);
    let file = pool.connect().open("/lost", &striped(2)).unwrap();
    let tiles = [Tile::once(vec![Strided { offset: 0, length: 100, count: 8, stride: UNIT / 2 }])];
    let bytes = pattern(800, 5);
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Moved] {
        pool.state().faults.push((Kind::WriteRuns, fault));
        let before = *pool.state().done.get(&Kind::WriteRuns).unwrap_or(&0);
        assert_eq!(file.write_runs(&tiles, &bytes).unwrap(), 800);
        assert_eq!(*pool.state().done.get(&Kind::WriteRuns).unwrap(), before + 2, "{fault:?}");
    }
    let mut back = vec![0; 800];
    pool.state().faults.push((Kind::ReadRuns, Fault::LoseReply));
    assert_eq!(file.read_runs(&tiles, &mut back).unwrap(), 800);
    assert!(back == bytes);
}
