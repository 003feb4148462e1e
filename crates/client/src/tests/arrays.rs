//! Copies of arrays, and arrays that do not fit.

use ramlace_base::ErrorKind;
use ramlace_wire::LayoutHints;

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
