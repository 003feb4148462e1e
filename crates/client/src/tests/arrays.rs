//! Copies of arrays, and arrays that do not fit.

use ramlace_base::{ByteRange, ErrorKind};
use ramlace_wire::{Kind, LayoutHints};

use super::striped;
use crate::fake::FakePool;
use crate::{ArrayType, Order};

#[test]
fn copies_publish_what_differs_and_keep_it_on_refresh() {
    let pool = FakePool::start(2);
    let (here, there) = (pool.connect(), pool.connect());
    let kind = ArrayType::new(&[100_000], "<f8", Order::C).unwrap();
    let array = here.create_array("/array", &kind, striped(2).hints, 0o644).unwrap();
    let error = array.map(true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("copy"), "{error}");
    let (mine, theirs) = (array.into_copy().unwrap(), there.open_array("/array", true, Some(&kind)).unwrap());
    let theirs = theirs.into_copy().unwrap();
    let set = |copy: &crate::Copy, index: usize, value: f64| {
        // SAFETY: the copy has 100,000 elements.
        unsafe { copy.as_ptr().cast::<f64>().add(index).write(value) };
    };
    // SAFETY: as above.
    let get = |copy: &crate::Copy, index: usize| unsafe { copy.as_ptr().cast::<f64>().add(index).read() };
    set(&mine, 7, 1.5);
    (0..1000).for_each(|index| set(&mine, 50 * index, index as f64 + 1.0));
    set(&theirs, 8, 2.5);
    assert_eq!(mine.publish().unwrap(), 1001 * 8);
    assert_eq!(mine.publish().unwrap(), 0);
    assert_eq!(theirs.publish().unwrap(), 8);
    set(&theirs, 9, 3.5);
    theirs.refresh().unwrap();
    mine.refresh().unwrap();
    assert_eq!(
        (get(&theirs, 7), get(&theirs, 8), get(&theirs, 9), get(&theirs, 49_950)),
        (1.5, 2.5, 3.5, 1000.0)
    );
    assert_eq!((get(&mine, 7), get(&mine, 8), get(&mine, 9)), (1.5, 2.5, 0.0));
    assert_eq!(theirs.publish().unwrap(), 8);

    let other = ArrayType::new(&[50_000, 2], "<f8", Order::F).unwrap();
    let error = there.open_array("/array", false, Some(&other)).unwrap_err();
    assert!(error.message().contains("(100000)") && error.message().contains("(50000, 2)"), "{error}");
    there.open("/plain", &striped(1)).unwrap();
    assert_eq!(there.open_array("/plain", false, None).unwrap_err().kind(), ErrorKind::Invalid);
}

// SEMANTICS 8.4, 8.5
#[test]
fn some_grains_of_a_copy_are_published_and_refreshed_and_what_is_unchanged_is_not_read() {
    const COUNT: usize = 3 << 20;
    let pool = FakePool::start(2);
    let (here, there) = (pool.connect(), pool.connect());
    let kind = ArrayType::new(&[COUNT as u64], "<f8", Order::C).unwrap();
    let array = here.create_array("/array", &kind, striped(2).hints, 0o644).unwrap();
    let mine = array.into_copy().unwrap();
    let theirs = there.open_array("/array", true, Some(&kind)).unwrap().into_copy().unwrap();
    let set = |copy: &crate::Copy, index: usize, value: f64| {
        // SAFETY: the copy has this many elements.
        unsafe { copy.as_ptr().cast::<f64>().add(index).write(value) };
    };
    // SAFETY: as above.
    let get = |copy: &crate::Copy, index: usize| unsafe { copy.as_ptr().cast::<f64>().add(index).read() };
    let elements = |first: usize, last: usize| ByteRange { start: first as u64 * 8, end: last as u64 * 8 };
    let reads = || pool.seen(Kind::ReadChunk);
    [0, 10, 11, COUNT - 1].into_iter().for_each(|index| set(&mine, index, 1.0 + index as f64));
    assert_eq!(mine.publish_range(elements(10, 11)).unwrap(), 8);
    // A part of an element counts as the whole.
    assert_eq!(mine.publish_range(ByteRange { start: 91, end: 92 }).unwrap(), 8);
    assert_eq!(mine.publish_range(elements(20, 20)).unwrap(), 0);
    set(&theirs, 9, 9.5);
    set(&theirs, 10, 7.5);
    theirs.refresh_range(elements(11, 12)).unwrap();
    assert_eq!((get(&theirs, 9), get(&theirs, 10), get(&theirs, 11)), (9.5, 7.5, 12.0));
    theirs.refresh_range(elements(0, 100)).unwrap();
    assert_eq!(
        (get(&theirs, 0), get(&theirs, 9), get(&theirs, 10)),
        (0.0, 9.5, 7.5),
        "stores that were not published stay"
    );
    theirs.refresh().unwrap();
    let before = reads();
    theirs.refresh().unwrap();
    theirs.refresh_range(elements(5, 50_000)).unwrap();
    assert_eq!(reads(), before, "nothing has changed");
    assert_eq!(mine.publish_range(elements(COUNT - 1, usize::MAX / 8)).unwrap(), 8);
    theirs.refresh_range(elements(COUNT - 2, COUNT)).unwrap();
    assert_eq!(get(&theirs, COUNT - 1), COUNT as f64);
    assert_eq!(theirs.publish().unwrap(), 16);
}

#[test]
fn an_array_that_does_not_fit_leaves_nothing() {
    let pool = FakePool::start(2);
    let client = pool.connect();
    pool.state().lane_bytes_max = 1 << 20;
    let kind = ArrayType::new(&[1 << 20], "<f8", Order::C).unwrap();
    let error = client.create_array("/big", &kind, LayoutHints::default(), 0o644).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(!client.exists("/big").unwrap());
}
