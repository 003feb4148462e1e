use super::*;
use crate::{decode_body, encode_body};

fn run(offset: u64, length: u64, count: u64, stride: u64) -> Strided {
    Strided { offset, length, count, stride }
}

fn tile(start: u64, runs: &[Strided], count: u64, stride: u64) -> Tile {
    Tile { start, runs: runs.to_vec(), count, stride }
}

fn starts(runs: &LaneRuns) -> Vec<u64> {
    runs.iter().map(|run| run.start).collect()
}

#[test]
fn descriptions_mean_their_runs() {
    let planes = tile(100, &[run(0, 2, 3, 10), run(30, 1, 1, 0)], 2, 40);
    let runs = LaneRuns::new(vec![planes, tile(200, &[run(0, 5, 1, 7)], 1, 9)]).unwrap();
    assert_eq!(starts(&runs), [100, 110, 120, 130, 140, 150, 160, 170, 200]);
    let hull = ByteRange { start: 100, end: 205 };
    assert_eq!(runs.reach(), Reach { hull, bytes: 2 * 7 + 5, runs: 9 });
    let touching = LaneRuns::new(vec![tile(0, &[run(0, 4, 3, 4), run(12, 1, 1, 0)], 1, 0)]).unwrap();
    assert_eq!(touching.joined(), [ByteRange { start: 0, end: 13 }]);
    assert_eq!(
        Tile::once(vec![run(7, 1, 1, 0), run(9, 1, 1, 0)]),
        tile(7, &[run(0, 1, 1, 0), run(2, 1, 1, 0)], 1, 0)
    );
}

#[test]
fn what_repeats_costs_a_few_bytes() {
    let rows = LaneRuns::new(vec![tile(1 << 30, &[run(0, 4096, 256, 65_536)], 1, 0)]).unwrap();
    assert!(encode_body(&rows).len() < 20);
    let planes = LaneRuns::new(vec![tile(5, &[run(0, 40, 32, 2560)], 100, 163_840)]).unwrap();
    assert!(encode_body(&planes).len() < 20);
}

#[test]
fn nonsense_is_refused_where_it_is_decoded() {
    let (largest, one) = (limits::FILE_BYTES_MAX, run(0, 1, 1, 0));
    let nonsense = [
        vec![],
        vec![tile(0, &[], 1, 0)],
        vec![tile(0, &[one], 0, 0)],
        vec![tile(0, &[run(0, 0, 1, 0)], 1, 0)],
        vec![tile(0, &[run(0, 1, 0, 0)], 1, 0)],
        vec![tile(0, &[run(1, 1, 1, 0)], 1, 0)],
        vec![tile(0, &[run(0, 4, 2, 3)], 1, 0)],
        vec![tile(0, &[run(0, 4, 1, 0), run(3, 1, 1, 0)], 1, 0)],
        vec![tile(0, &[run(0, 4, 1, 0)], 2, 3)],
        vec![tile(9, &[one], 1, 0), tile(9, &[one], 1, 0)],
        vec![tile(9, &[one], 1, 0), tile(0, &[one], 1, 0)],
        vec![tile(largest, &[one], 1, 0)],
        vec![tile(u64::MAX, &[one], 1, 0)],
        vec![tile(0, &[run(0, u64::MAX, 2, u64::MAX)], 1, 0)],
        vec![tile(0, &[run(0, 1, u64::MAX, u64::MAX)], 1, 0)],
        vec![tile(0, &[one], u64::MAX, u64::MAX)],
        vec![tile(0, &[one], 2, u64::MAX)],
    ];
    for tiles in nonsense {
        assert_eq!(LaneRuns::new(tiles.clone()).unwrap_err().kind(), ErrorKind::Invalid, "{tiles:?}");
        assert!(decode_body::<LaneRuns>(Kind::ReadRuns, &encode_body(&tiles)).is_err(), "{tiles:?}");
    }
    assert!(LaneRuns::new(vec![tile(largest - 1, &[one], 1, 0)]).is_ok());
}

#[test]
fn one_message_is_about_so_much_and_no_more() {
    let (bytes, most) = (u64::from(limits::RUNS_BYTES_MAX), limits::RUNS_PER_REQUEST_MAX);
    assert!(LaneRuns::new(vec![tile(0, &[run(0, 1, most, 2)], 1, 0)]).is_ok());
    assert!(LaneRuns::new(vec![tile(0, &[run(0, bytes / 2, 2, bytes)], 1, 0)]).is_ok());
    for tiles in [
        vec![tile(0, &[run(0, 1, most, 2), run(2 * most, 1, 1, 0)], 1, 0)],
        vec![tile(0, &[run(0, bytes / 2, 2, bytes), run(2 * bytes, 1, 1, 0)], 1, 0)],
    ] {
        assert_eq!(LaneRuns::new(tiles).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
