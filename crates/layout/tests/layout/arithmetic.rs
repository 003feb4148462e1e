//! The arithmetic against a model that counts bytes one by one, and at the ends of 64 bits.

use ramlace_base::limits::{FILE_BYTES_MAX, STRIPE_UNIT_BYTES_MAX, STRIPE_UNIT_BYTES_MIN, WIDTH_LANES_MAX};
use ramlace_base::{ByteRange, Epoch, ErrorKind, Slot};
use ramlace_layout::{
    Piece, file_offset, lane_length, lane_slot, lane_span, merged_pieces, pieces, validate,
};
use ramlace_wire::Layout;

use proptest::prelude::*;

fn layout(stripe_unit: u64, width: u16) -> Layout {
    Layout { stripe_unit, width, base_slot: Slot(3), stride: 1, copies: 1, created: Epoch(1) }
}

fn layouts() -> impl Strategy<Value = Layout> {
    (16u32..=30, prop_oneof![1u16..=5, 1u16..=WIDTH_LANES_MAX])
        .prop_map(|(bits, width)| layout(1 << bits, width))
}

/// Ranges of up to 64 chunks anywhere in the largest file, most of them near the borders of chunks.
fn ranges_of(unit: u64) -> impl Strategy<Value = ByteRange> {
    let start = prop_oneof![
        0..FILE_BYTES_MAX,
        0..unit * 9,
        FILE_BYTES_MAX - 9 * unit..FILE_BYTES_MAX,
        (0u64..9, 0u64..3).prop_map(move |(chunk, beyond)| (chunk * unit + beyond).saturating_sub(1)),
    ];
    let length = prop_oneof![0..3 * unit, 0..64 * unit, Just(unit), Just(unit - 1), Just(unit + 1)];
    (start, length).prop_map(|(start, length)| ByteRange::at(start, length).unwrap())
}

fn check_cover(layout: &Layout, range: ByteRange, all: &[Piece]) -> Result<(), TestCaseError> {
    let mut at = range.start;
    for piece in all {
        prop_assert_eq!(piece.file_offset, at);
        prop_assert!(piece.length > 0 && piece.lane < layout.width);
        for within in [0, piece.length - 1] {
            prop_assert_eq!(file_offset(layout, piece.lane, piece.lane_offset + within), at + within);
        }
        let span = lane_span(layout, piece.lane, range);
        prop_assert!(span.start <= piece.lane_offset && piece.lane_offset + piece.length <= span.end);
        at += piece.length;
    }
    prop_assert_eq!(at, range.end);
    Ok(())
}

proptest! {
    #[test]
    fn pieces_cover_the_range_once_and_in_order((layout, range) in layouts().prop_flat_map(|layout|
        (Just(layout), ranges_of(layout.stripe_unit)))) {
        let all: Vec<Piece> = pieces(&layout, range).collect();
        check_cover(&layout, range, &all)?;
        let chunks = (range.end.div_ceil(layout.stripe_unit)) - range.start / layout.stripe_unit;
        prop_assert_eq!(all.len() as u64, if range.is_empty() { 0 } else { chunks });
        for piece in &all {
            prop_assert_eq!((piece.file_offset / layout.stripe_unit) % u64::from(layout.width), u64::from(piece.lane));
        }
        let spans: u64 = if layout.width <= 64 {
            (0..layout.width).map(|lane| lane_span(&layout, lane, range).length()).sum()
        } else {
            range.length()
        };
        prop_assert_eq!(spans, range.length());
    }

    #[test]
    fn merged_pieces_cover_the_range_with_bounded_pieces((layout, range) in layouts().prop_flat_map(|layout|
        (Just(layout), ranges_of(layout.stripe_unit))), divisor in 1u64..20) {
        let most = (layout.stripe_unit * 4 / divisor).max(1);
        let all: Vec<Piece> = merged_pieces(&layout, range, most).collect();
        check_cover(&layout, range, &all)?;
        prop_assert!(all.iter().all(|piece| piece.length <= most));
        if layout.width == 1 {
            prop_assert_eq!(all.len() as u64, range.length().div_ceil(most));
        }
    }

    #[test]
    fn a_byte_of_the_file_is_one_byte_of_one_lane(layout in layouts(), at in 0..FILE_BYTES_MAX) {
        let piece = pieces(&layout, ByteRange::at(at, 1).unwrap()).next().unwrap();
        prop_assert_eq!(file_offset(&layout, piece.lane, piece.lane_offset), at);
        prop_assert_eq!(lane_length(&layout, piece.lane, at), piece.lane_offset);
        prop_assert_eq!(lane_length(&layout, piece.lane, at + 1), piece.lane_offset + 1);
    }

    #[test]
    fn valid_lanes_lie_in_distinct_slots(slots in 1u32..200, base in 0u16..220, stride in 0u16..220, width in 0u16..220) {
        let layout = Layout { base_slot: Slot(base), stride, ..layout(1 << 21, width) };
        let mut seen: Vec<Slot> = (0..width).map(|lane| lane_slot(&layout, lane, slots)).collect();
        seen.sort_unstable();
        seen.dedup();
        let apart = seen.len() == usize::from(width) && width >= 1;
        let stride_fits = width == 1 || (stride >= 1 && u32::from(stride) < slots);
        let good = apart && stride_fits && u32::from(base) < slots;
        match validate(&layout, slots) {
            Ok(()) => prop_assert!(good),
            Err(error) => {
                prop_assert!(!good, "{}", error);
                prop_assert_eq!(error.kind(), ErrorKind::Invalid);
            }
        }
    }
}

/// Files of up to 3 rounds and a bit, walked by steps that hit every border and its neighbours.
#[test]
fn lane_lengths_agree_with_counting() {
    let unit = STRIPE_UNIT_BYTES_MIN;
    for width in 1..=5u16 {
        let layout = layout(unit, width);
        let chunks = u64::from(width) * 3 + 1;
        let borders = (0..=chunks).flat_map(|chunk| {
            let border = chunk * unit;
            [border.saturating_sub(1), border, border + 1, border + unit / 2]
        });
        for size in borders {
            let mut model = vec![0; width.into()];
            for chunk in 0..=chunks + 1 {
                let held = size.saturating_sub(chunk * unit).min(unit);
                model[(chunk % u64::from(width)) as usize] += held;
            }
            for lane in 0..width {
                assert_eq!(
                    lane_length(&layout, lane, size),
                    model[usize::from(lane)],
                    "{width} {lane} {size}"
                );
            }
            assert_eq!(lane_length(&layout, width, size), 0);
        }
    }
}

#[test]
fn the_ends_of_64_bits_do_not_overflow() {
    for unit in [STRIPE_UNIT_BYTES_MIN, STRIPE_UNIT_BYTES_MAX] {
        for width in [1, 2, 3, WIDTH_LANES_MAX] {
            let layout = layout(unit, width);
            for end in [FILE_BYTES_MAX, FILE_BYTES_MAX - 1, u64::MAX, u64::MAX - unit] {
                let range = ByteRange { start: end - 3 * unit - 1, end };
                let total: u64 = pieces(&layout, range).map(|piece| piece.length).sum();
                assert_eq!(total, range.length());
                let lengths: u128 = (0..width).map(|lane| u128::from(lane_length(&layout, lane, end))).sum();
                assert_eq!(lengths, u128::from(end));
                assert_eq!(
                    merged_pieces(&layout, range, u64::MAX).map(|piece| piece.length).sum::<u64>(),
                    range.length()
                );
            }
            assert_eq!(file_offset(&layout, width - 1, u64::MAX), u64::MAX);
        }
    }
    let wide = Layout { base_slot: Slot(u16::MAX), stride: u16::MAX, ..layout(1 << 21, WIDTH_LANES_MAX) };
    assert_eq!(lane_slot(&wide, u16::MAX, 65_536), Slot(0));
    assert_eq!(lane_slot(&wide, 1, 65_536), Slot(65_534));
    validate(&wide, 65_536).unwrap();
}

#[test]
fn nonsense_is_refused_with_its_value() {
    let good = Layout { base_slot: Slot(0), ..layout(1 << 21, 4) };
    validate(&good, 4096).unwrap();
    for (bad, words) in [
        (Layout { stripe_unit: 0, ..good }, "0 B"),
        (Layout { stripe_unit: 3 << 20, ..good }, "3 MiB"),
        (Layout { stripe_unit: 32 << 10, ..good }, "32 KiB"),
        (Layout { stripe_unit: 2 << 30, ..good }, "2 GiB"),
        (Layout { width: 0, ..good }, "0 lanes"),
        (Layout { width: WIDTH_LANES_MAX + 1, ..good }, "4097 lanes"),
        (Layout { stride: 0, ..good }, "stride of 0"),
        (Layout { stride: 4096, ..good }, "stride of 4096"),
        (Layout { stride: 2048, ..good }, "4 lanes"),
        (Layout { copies: 0, ..good }, "0 copies"),
        (Layout { copies: 4, ..good }, "4 copies"),
        (Layout { base_slot: Slot(4096), ..good }, "slot 4096"),
    ] {
        let error = validate(&bad, 4096).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(words), "{error}");
    }
    assert!(validate(&good, 0).is_err());
}
