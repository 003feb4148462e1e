use ramlace_base::{Epoch, Slot};

use super::*;

const UNIT: u64 = limits::STRIPE_UNIT_BYTES_MIN;

fn layout(width: u16) -> Layout {
    Layout { stripe_unit: UNIT, width, base_slot: Slot(0), stride: 1, copies: 1, created: Epoch(1) }
}

fn rows(length: u64, count: u64, stride: u64) -> Tile {
    Tile { start: 0, runs: vec![Strided { offset: 0, length, count, stride }], count: 1, stride: 0 }
}

fn batch(width: u16, tiles: &[Tile]) -> Vec<Piece<'static>> {
    let (layout, mut all) = (layout(width), Vec::new());
    let mut packer = Packer::new(&layout, tiles);
    loop {
        let some = packer.next_batch();
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn described<'p>(piece: &'p Piece<'_>) -> &'p [Tile] {
    piece.runs().map_or(&[], LaneRuns::tiles)
}

#[test]
fn rows_of_an_array_are_one_short_request_for_each_lane() {
    for (width, stride) in [(1, 16_384), (3, 16_384), (4, UNIT), (3, 5 * UNIT)] {
        let tiles = [rows(4096, 240, stride)];
        let pieces = batch(width, &tiles);
        assert_eq!(pieces.len(), usize::from(width));
        for piece in &pieces {
            assert_eq!(described(piece).len(), 1, "{:?}", described(piece));
            assert_eq!(described(piece)[0].runs.len(), 1, "{:?}", described(piece));
        }
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u64>(), 240 * 4096);
    }
}

#[test]
fn planes_of_rows_are_two_strides() {
    let planes = Tile { count: 20, stride: 163_840, ..rows(1280, 32, 2560) };
    let pieces = batch(1, std::slice::from_ref(&planes));
    assert_eq!(described(&pieces[0]), [planes]);
    // The same, listed row by row.
    let listed: Vec<Strided> = (0..20 * 32)
        .map(|row| Strided {
            offset: row / 32 * 163_840 + row % 32 * 2560,
            length: 1280,
            count: 1,
            stride: 0,
        })
        .collect();
    let pieces = batch(1, &[Tile { start: 0, runs: listed, count: 1, stride: 0 }]);
    assert_eq!(pieces.len(), 1);
}

#[test]
fn requests_keep_to_their_limits() {
    let many = limits::RUNS_PER_REQUEST_MAX + 10;
    let pieces = batch(1, &[rows(1, many, 2)]);
    assert_eq!(
        pieces.iter().map(|piece| piece.length).collect::<Vec<_>>(),
        [limits::RUNS_PER_REQUEST_MAX, 10]
    );
    assert_eq!((pieces[1].file_offset, pieces[1].lane), (limits::RUNS_PER_REQUEST_MAX, 0));
    let pieces = batch(1, &[rows(UNIT, 40, 2 * UNIT)]);
    assert_eq!(pieces.iter().map(|piece| piece.length / UNIT).collect::<Vec<_>>(), [16, 16, 8]);
    // A tile that is more than one request takes is split.
    let pieces = batch(1, &[Tile { count: 2, stride: 1 << 30, ..rows(UNIT, 40, 2 * UNIT) }]);
    assert_eq!(pieces.iter().map(|piece| piece.length / UNIT).sum::<u64>(), 80);
}

#[test]
fn long_runs_have_requests_of_their_own() {
    let pieces = batch(1, &[rows(3 << 20, 2, 4 << 20)]);
    assert!(pieces.iter().all(|piece| piece.runs().is_none()));
    let places: Vec<(u64, u64)> =
        pieces.iter().map(|piece| (piece.lane_offset >> 20, piece.file_offset >> 20)).collect();
    assert_eq!(places, [(0, 0), (1, 1), (2, 2), (4, 3), (5, 4), (6, 5)]);
}

#[test]
fn what_did_not_fit_is_asked_run_by_run() {
    let (layout, tiles) = (layout(2), [Tile { count: 3, stride: 4 * UNIT, ..rows(10, 2, UNIT) }]);
    let pieces = Packer::one_by_one(&layout, &tiles, 25).next_batch();
    let seen: Vec<(u16, u64, u64)> =
        pieces.iter().map(|piece| (piece.lane, piece.file_offset, piece.length)).collect();
    assert_eq!(seen, [(0, 20, 10), (1, 30, 10), (0, 40, 10), (1, 50, 10)]);
}
