//! Limits of the copies of pages that are kept until their holders have dropped them.

use super::*;

fn zeros(range: ByteRange) -> Result<Vec<u8>> {
    Ok(vec![0; range.length() as usize])
}

/// Copies for as many holders as there may be, each of a file of its own, that were asked one after the other.
fn full_of_copies(holders: usize) -> DataLeases {
    let mut leases = DataLeases::default();
    let each =
        limits::DATA_BASE_BYTES_HARD_MAX / (PAGE_BYTES as usize + limits::DATA_BASE_HOLDER_BYTES) / holders;
    for holder in 0..holders {
        leases.keep(file_of(holder), session(holder), WHOLE, 0);
        let (pages, now) = (ByteRange { start: 0, end: each as u64 * PAGE_BYTES }, holder as u64);
        leases
            .before_change(file_of(holder), session(holders), pages, Change::Write, &mut zeros, now)
            .unwrap();
    }
    assert!((0..holders).all(|holder| !leases.is_fenced(file_of(holder), session(holder))));
    leases
}

fn file_of(holder: usize) -> Place {
    (InodeId(100 + holder as u64), Some(0))
}

// SEMANTICS 118.3
#[test]
fn copies_of_pages_have_a_limit_also_where_kernels_write_back() {
    const HOLDERS: usize = 8;
    let mut leases = full_of_copies(HOLDERS);
    // Another session has more to drop: the holder that was asked first is waited for no longer, and the
    // others' stores are kept.
    let (now, more) = (100, ByteRange { start: 1 << 30, end: (1 << 30) + 16 * PAGE_BYTES });
    let waits =
        leases.before_change(file_of(3), session(HOLDERS), more, Change::Write, &mut zeros, now).unwrap();
    assert!(leases.base_bytes() <= limits::DATA_BASE_BYTES_HARD_MAX);
    let fenced = (0..HOLDERS).filter(|holder| leases.is_fenced(file_of(*holder), session(*holder)));
    assert_eq!(fenced.collect::<Vec<_>>(), [0]);
    assert!(waits.iter().all(|number| leases.recalls[number].holder == session(3)));
    let unknown = leases.check_base(file_of(0), session(0), whole(1)).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Stale);
    leases.check_base(file_of(1), session(1), whole(1)).unwrap();
    assert_eq!(leases.bases.range((file_of(3), session(3), 1 << 18)..).take(16).count(), 16);
    // All of it is given back.
    (0..HOLDERS).for_each(|holder| leases.end_session(session(holder)));
    assert_eq!(leases.base_bytes(), 0);
}

// SEMANTICS 118.3
#[test]
fn a_holder_that_writes_back_is_not_fenced_for_what_that_takes() {
    const HOLDERS: usize = 8;
    let mut leases = full_of_copies(HOLDERS);
    leases.keep(file_of(7), session(0), WHOLE, 50);
    let more = ByteRange { start: 1 << 30, end: (1 << 30) + 16 * PAGE_BYTES };
    leases.before_change(file_of(7), session(0), more, Change::Write, &mut zeros, 100).unwrap();
    assert!(!leases.is_fenced(file_of(0), session(0)));
    assert!(leases.is_fenced(file_of(1), session(1)));
    // A session that is fenced while it writes back gets no lease for it.
    leases.wrote_back(file_of(1), session(1), 0, &[1; 4096], 101);
    assert!(!leases.has_lease(file_of(1), session(1)));
}

// SEMANTICS 118.3
#[test]
fn nobody_is_fenced_by_the_very_change_that_asks_it_however_many_have_the_pages() {
    const HOLDERS: usize = 40;
    let mut leases = DataLeases::default();
    (0..HOLDERS).for_each(|holder| _ = leases.keep(FILE, session(holder), WHOLE, 0));
    let column: Vec<ByteRange> = (0..limits::RUNS_PER_REQUEST_MAX)
        .map(|row| ByteRange { start: 2 * row * PAGE_BYTES, end: 2 * row * PAGE_BYTES + 8 })
        .collect();
    let write = |leases: &mut DataLeases, now| {
        leases.before_changes(FILE, session(HOLDERS), &column, Change::Write, &mut zeros, now).unwrap()
    };
    let waits = write(&mut leases, 7);
    let holders: BTreeSet<SessionId> = waits.iter().map(|number| leases.recalls[number].holder).collect();
    assert_eq!(holders.len(), HOLDERS);
    assert!(leases.recalls.values().all(|pending| !pending.fenced));
    let once = limits::RUNS_PER_REQUEST_MAX as usize
        * (PAGE_BYTES as usize + HOLDERS * limits::DATA_BASE_HOLDER_BYTES);
    assert_eq!(leases.base_bytes(), once, "the bytes are there once, whoever has them");
    // Nor when there is no room at all and all holders were asked just now: then more memory is taken.
    let mut leases = full_of_copies(1);
    (0..HOLDERS).for_each(|holder| _ = leases.keep(FILE, session(holder), WHOLE, 0));
    write(&mut leases, 0);
    assert!(leases.recalls.values().all(|pending| !pending.fenced));
    assert!(leases.base_bytes() > limits::DATA_BASE_BYTES_HARD_MAX);
}

#[test]
fn whoever_waits_is_told_that_somebody_is_fenced_again() {
    let mut leases = full_of_copies(1);
    leases.fence(file_of(0), session(0), 5);
    leases.keep(file_of(0), session(0), WHOLE, 6);
    leases.before_change(file_of(0), session(1), whole(0), Change::Write, &mut zeros, 7).unwrap();
    let (number, notices) = (leases.last_number, leases.notices());
    assert!(leases.fence_for_room(session(1), 8));
    assert_eq!(leases.last_number, number, "it is to drop all of it already");
    assert_ne!(leases.notices(), notices);
}
