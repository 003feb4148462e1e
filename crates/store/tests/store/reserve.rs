//! Unused memory is held by the ballast; the log always finds room to record a deletion.

use crate::common::*;
use ramlace_base::{ErrorKind, limits};

/// All but what may stay unreserved is ballast.
fn is_reserved(store: &TestStore) -> bool {
    let usage = store.usage();
    usage.free_bytes - usage.reserved_bytes < 2 * HUGE
}

#[test]
fn what_is_free_becomes_ballast_and_gives_way() {
    on_each_backing("reservation", 64 * MIB, |store| {
        store.start_reservation().unwrap();
        store.start_reservation().unwrap();
        wait_until("all is reserved", || is_reserved(store));
        assert_counted(store);
        write(store, lane(1), 0, &vec![1; 40 * MIB as usize]).unwrap();
        assert!(store.usage().reserved_bytes <= 24 * MIB);
        wait_until("the rest is reserved", || is_reserved(store));
        write(store, lane(1), 40 * MIB, &vec![1; 23 * MIB as usize]).unwrap();
        assert_eq!(store.usage().free_for_lanes_bytes, 0);
        assert_eq!(store.prepare_write(lane(1), 63 * MIB, 1).unwrap_err().kind(), ErrorKind::NoSpace);
        store.remove_lane(lane(1)).unwrap();
        wait_until("what was freed is reserved again", || is_reserved(store));
        assert!(store.usage().reserved_bytes > 60 * MIB);
        store.reopen();
        assert!(store.usage().reserved_bytes > 60 * MIB, "the ballast is found again");
        assert_counted(store);
        write(store, lane(2), 0, &vec![1; 50 * MIB as usize]).unwrap();
        assert_counted(store);
    });
}

#[test]
fn a_full_store_still_logs_what_frees_it() {
    on_each_backing("headroom", 32 * MIB, |store| {
        store.start_reservation().unwrap();
        let mut log = store.meta_append_file("log").unwrap();
        log.append(b"begin").unwrap();
        let mut at = 0;
        while write(store, lane(1), at, &[1; 4096]).is_ok() {
            at += 4096;
        }
        let headroom = store.usage().free_bytes;
        assert_eq!(headroom, limits::STORE_HEADROOM_BYTES_MIN);
        let mut ordinary = 0u64;
        let refused = loop {
            match log.append(&[7; 1000]) {
                Ok(()) => ordinary += 1000,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert!(refused.message().contains("'log'"), "{refused}");
        assert!(ordinary > headroom / 2 - 8192, "{ordinary}");
        for _ in 0..headroom / 2 / 1000 - 10 {
            log.append_urgent(&[8; 1000]).unwrap();
        }
        store.remove_lane(lane(1)).unwrap();
        log.append(&[9; 1000]).unwrap();
        assert_eq!(log.read_all().unwrap().len() as u64, log.length());
    });
}

#[test]
fn files_of_the_server_are_replaced_cut_and_removed() {
    on_each_backing("meta files", 32 * MIB, |store| {
        let mut old = store.meta_append_file("snapshot").unwrap();
        old.append(&[1; 100_000]).unwrap();
        let mut new = store.meta_append_file("snapshot.new").unwrap();
        new.append(&pattern(1, 50_000)).unwrap();
        new.append(b"").unwrap();
        assert_eq!(store.usage().meta_bytes, 102_400 + 53_248);
        store.meta_rename_over("snapshot.new", "snapshot").unwrap();
        assert_eq!(store.usage().meta_bytes, 53_248);
        assert_counted(store);
        assert_eq!(store.meta_names().unwrap(), ["snapshot"]);
        let mut found = store.meta_append_file("snapshot").unwrap();
        assert_eq!(found.read_all().unwrap(), pattern(1, 50_000));
        found.cut(4096).unwrap();
        found.append(b"tail").unwrap();
        assert_eq!(found.read_all().unwrap(), [&pattern(1, 50_000)[..4096], b"tail"].concat());
        assert_counted(store);
        store.meta_remove("snapshot").unwrap();
        assert_eq!(store.usage().meta_bytes, 0);
        assert_counted(store);
        assert_eq!(store.meta_remove("snapshot").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(store.meta_rename_over("a", "b").unwrap_err().kind(), ErrorKind::NotFound);
        for name in ["", ".", "..", "../ballast", "a/b", "a\0b"] {
            assert_eq!(store.meta_append_file(name).unwrap_err().kind(), ErrorKind::Invalid, "{name:?}");
        }
    });
}
