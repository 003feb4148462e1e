//! A store at rest uses no processor time. Alone in its process, so that the thread it measures is its own.

#[path = "store/common/mod.rs"]
mod common;

use common::*;

/// A thread of this process, as `/proc` shows it.
struct TestThread {
    status: std::path::PathBuf,
}

impl TestThread {
    /// The threads with this name; other tests may run one meanwhile.
    fn find(name: &str) -> Vec<TestThread> {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name))
            .map(|task| TestThread { status: task.join("status") })
            .collect()
    }

    /// How often it went to sleep: one that polls does so again and again.
    fn switches(&self) -> u64 {
        let status = std::fs::read_to_string(&self.status).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse().unwrap()
    }
}

/// All but what may stay unreserved is ballast.
fn is_reserved(store: &TestStore) -> bool {
    let usage = store.usage();
    usage.free_bytes - usage.reserved_bytes < 2 * HUGE
}

#[test]
fn a_reserved_store_at_rest_uses_no_processor() {
    on_each_backing("rest", 32 * MIB, |store| {
        store.start_reservation().unwrap();
        wait_until("all is reserved", || is_reserved(store));
        let threads = TestThread::find("reservation");
        assert_eq!(threads.len(), 1, "this test is alone in its process");
        // Not scheduled once in a while: a count, not a time. One that polls never gets there.
        wait_until("the thread sleeps for good", || {
            let before = threads[0].switches();
            std::thread::sleep(std::time::Duration::from_millis(300));
            threads[0].switches() == before
        });
    });
}
