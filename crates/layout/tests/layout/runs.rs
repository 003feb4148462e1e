//! Cutting descriptions of runs against cutting each run by itself.

use ramlace_base::{ByteRange, Epoch, Slot, limits};
use ramlace_layout::{Cut, Shape, cuts, file_offset, pieces};
use ramlace_wire::Layout;
use ramlace_wire::runs::{Strided, Tile, reach_of};

use proptest::prelude::*;

const UNIT: u64 = limits::STRIPE_UNIT_BYTES_MIN;

fn layout(width: u16) -> Layout {
    Layout { stripe_unit: UNIT, width, base_slot: Slot(3), stride: 1, copies: 1, created: Epoch(1) }
}

/// Ascending tiles by gaps, lengths and counts.
fn tiles() -> impl Strategy<Value = Vec<Tile>> {
    let gap = prop_oneof![Just(0), 0..300u64, Just(UNIT), 0..3 * UNIT];
    let run = (gap.clone(), prop_oneof![1..200u64, Just(4096), 1..3 * UNIT], 1..9u64, gap.clone());
    let tile = (gap.clone(), prop::collection::vec(run, 1..4), 1..9u64, gap);
    prop::collection::vec(tile, 1..4).prop_map(|drawn| {
        let (mut tiles, mut at) = (Vec::new(), 0);
        for (before, runs_drawn, count, between) in drawn {
            let (mut runs, mut end) = (Vec::new(), 0);
            for (gap, length, count, between) in runs_drawn {
                let offset = if end == 0 { 0 } else { end + gap };
                let stride = length + between;
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

/// The ranges of lanes that a cut means.
fn ranges(cut: &Cut<'_>) -> Vec<(u16, ByteRange)> {
    let one = match cut.shape {
        Shape::Run(length) => vec![Strided { offset: 0, length, count: 1, stride: 0 }],
        Shape::Tile(runs) => runs.to_vec(),
    };
    let tile = Tile { start: cut.start, runs: one, count: cut.count, stride: cut.stride };
    tile.iter().map(|range| (cut.lane, range)).collect()
}

proptest! {
    #[test]
    fn a_description_is_cut_as_each_of_its_runs_would_be(tiles in tiles(), width in 1u16..5) {
        let layout = layout(width);
        prop_assert!(reach_of(&tiles).is_some());
        let mut at = tiles.iter().flat_map(Tile::iter).flat_map(|run| pieces(&layout, run).collect::<Vec<_>>()).peekable();
        for cut in cuts(&layout, &tiles) {
            for (lane, range) in ranges(&cut) {
                // With one lane a run is not cut where its chunks end.
                let mut start = range.start;
                while start < range.end {
                    let piece = at.next().unwrap();
                    prop_assert_eq!((piece.lane, piece.lane_offset), (lane, start));
                    prop_assert_eq!(file_offset(&layout, lane, start), piece.file_offset);
                    start += piece.length;
                }
                prop_assert_eq!(start, range.end);
            }
        }
        prop_assert!(at.next().is_none());
    }
}

#[test]
fn rows_of_an_array_stay_one_description_in_each_chunk() {
    let rows = Strided { offset: 0, length: 4096, count: 256, stride: 16_384 };
    let tiles = [Tile { start: 8192, runs: vec![rows], count: 1, stride: 0 }];
    // 4 MiB of 64 KiB chunks, four rows in each.
    let layout = layout(2);
    let all: Vec<Cut<'_>> = cuts(&layout, &tiles).collect();
    assert_eq!(all.len(), 64);
    assert!(all.iter().all(|cut| (cut.shape, cut.count, cut.stride) == (Shape::Run(4096), 4, 16_384)));
}

#[test]
fn a_tile_that_lies_in_one_chunk_is_not_taken_apart() {
    let runs = vec![
        Strided { offset: 0, length: 3, count: 1, stride: 0 },
        Strided { offset: 7, length: 1, count: 4, stride: 2 },
    ];
    let tiles = [Tile { start: 10, runs: runs.clone(), count: 10_000, stride: 20 }];
    let all: Vec<Cut<'_>> = cuts(&layout(3), &tiles).collect();
    let whole: u64 = all.iter().filter(|cut| cut.shape == Shape::Tile(&runs)).map(|cut| cut.count).sum();
    assert!(whole >= 10_000 - 3, "{whole}");
    assert_eq!(cuts(&layout(1), &tiles).collect::<Vec<_>>().len(), 1);
}

#[test]
fn runs_may_end_where_the_largest_file_does() {
    let end = limits::FILE_BYTES_MAX;
    let tiles = [Tile {
        start: end - 3,
        runs: vec![Strided { offset: 0, length: 1, count: 2, stride: 2 }],
        count: 1,
        stride: u64::MAX,
    }];
    for width in [1, 4] {
        assert_eq!(cuts(&layout(width), &tiles).flat_map(|cut| ranges(&cut)).count(), 2);
    }
}
