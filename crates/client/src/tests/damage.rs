//! Servers that answer with damaged replies, and with forged ones: every call ends with a result or an error.
//! Nothing panics, neither in the calling thread nor in one of the client's own.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::time::Duration;

use ramlace_base::{ByteRange, InodeId, Name, Result, ServerId, limits};
use ramlace_check::{Servers, check_and_repair};
use ramlace_sync::Mutex;
use ramlace_wire::chunk::Sought;
use ramlace_wire::leases::DataRecall;
use ramlace_wire::namespace::{RenameMode, SetAttributes};
use ramlace_wire::runs::{Strided, Tile};
use ramlace_wire::{ClusterMap, Kind, Request};

use super::wire_samples::{Draw, Source, bodies};
use super::{in_haste, pattern, striped};
use crate::fake::{FakePool, Liar};
use crate::{
    AttributeChanges, DataLeases, File, LOCK_END, LockKind, LockRequest, LockTable, OpenOptions, Order, Pool,
    Rights,
};

/// The number of lying pools, one after the other, each with a seed of its own. `RAMLACE_LIARS` changes it.
const POOLS: u64 = 24;
/// Where threads of this process have panicked, except for tests.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Impossible facts that a mount received and would work with.
static IMPOSSIBLE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Caches pages, as a mount does, and works with what it is sent unasked.
struct Kernel;

impl DataLeases for Kernel {
    fn recalled(&self, _server: ServerId, recalls: &[DataRecall]) {
        for recall in recalls.iter().filter(|recall| recall.start > recall.end) {
            IMPOSSIBLE.lock().push(format!("{recall:?}"));
        }
    }

    fn forgotten(&self, _server: ServerId, _life: u64) {}

    fn unheard(&self, _server: ServerId) {}
}

fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some(place) = panic
                .location()
                .filter(|place| !["/tests", "/fake"].iter().any(|of| place.file().contains(of)))
            {
                PANICS.lock().push(place.to_string());
            }
            usual(panic);
        }));
    });
}

/// Damages some replies, and forges others.
fn liar(seed: u64) -> Liar {
    let samples: HashMap<Kind, fn(&mut Source) -> Vec<u8>> = bodies()
        .into_iter()
        .filter(|body| body.name.ends_with(".reply"))
        .map(|body| (body.kind, body.sample))
        .collect();
    let mut draw = Draw(seed);
    Box::new(move |kind, honest| match (draw.below(4), samples.get(&kind)) {
        (0, Some(sample)) => {
            let words: Vec<u64> = (0..200).map(|_| draw.word()).collect();
            Some(sample(&mut Source::full(&words)))
        }
        (1 | 2, _) => honest.map(|bytes| damaged(bytes, &mut draw)),
        _ => honest.map(<[u8]>::to_vec),
    })
}

/// Replaces one number: by the largest, by one that nearly overflows, or by any.
fn damaged(bytes: &[u8], draw: &mut Draw) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.is_empty() {
        return bytes;
    }
    let at = draw.below(bytes.len());
    let number = match draw.below(5) {
        0 => u64::MAX,
        1 => 1 << 62,
        2 => (1 << 62) - draw.below(5000) as u64,
        3 => 0,
        _ => draw.word() >> draw.below(64),
    };
    if draw.below(3) == 0 {
        bytes[at] = draw.word() as u8;
    } else {
        bytes.splice(at..=at, ramlace_wire::encode_body(&number));
    }
    bytes
}

fn in_pool(pool: &Pool, seed: u64) {
    let name = Name::new("x").unwrap();
    let width = (seed % 3 + 1) as u16;
    let soon = Some(Duration::from_millis(5));
    let range = ByteRange { start: 10, end: 200_000 };
    let attempt = |what: &str, act: &mut dyn FnMut()| {
        if catch_unwind(AssertUnwindSafe(act)).is_err() {
            panic!("seed {seed}: {what} panicked");
        }
    };
    let with_file = |act: &dyn Fn(&File)| {
        for path in ["/lanes", "/small", "/new"] {
            if let Ok(file) = pool.open(path, &striped(width)) {
                act(&file);
            }
        }
    };
    attempt("reading", &mut || {
        let _ = pool.read("/small");
        let _ = pool.read("/lanes");
        with_file(&|file| _ = file.read_at(&mut vec![0; 300_000], 5));
    });
    attempt("writing", &mut || {
        with_file(&|file| {
            let _ = file.write_at(&[1; 3000], 100);
            let _ = file.write_at(&vec![1; 200_000], 1 << 40);
            let _ = file.write_back(&[1; 100], 50, &mut crate::RecallsMade::default());
            let _ = file.read_keeping(&mut [0; 3000], 0, &|_| ());
            let _ = file.sync();
        });
    });
    attempt("appending", &mut || {
        with_file(&|file| {
            let _ = file.append(&[1; 100]);
            let _ = file.append(&vec![1; 200_000]);
        });
    });
    attempt("sizes", &mut || {
        with_file(&|file| {
            let _ = file.size();
            let _ = file.truncate(100);
            let _ = file.set_size(1 << 30);
            let _ = file.info();
            let _ = file.reserve(range, true);
            let _ = file.zero(range, false);
            let _ = file.punch(range);
            let _ = file.seek(0, Sought::Hole);
            let _ = file.seek(7, Sought::Data);
        });
    });
    attempt("cells and changes", &mut || {
        with_file(&|file| {
            let _ = file.fetch_add(8, 1);
            let _ = file.compare_swap(0, 1, 2);
            let _ =
                file.change_version(range).and_then(|version| file.wait_for_change(&version, soon).map(drop));
        });
    });
    attempt("locks", &mut || {
        with_file(&|file| {
            let _ = file.lock(range, LockKind::Exclusive, soon);
            let _ = file.try_lock(range, LockKind::Shared);
            let _ = file.unlock(range);
            let (table, kind) = (LockTable::Fcntl, Some(LockKind::Exclusive));
            let asked =
                LockRequest { table, owner: 9, kind, start: 0, end: LOCK_END, pid: 1, detects: false };
            if let Ok(Some(file)) = file.set_lock(&asked)
                && file.size > limits::FILE_BYTES_MAX
            {
                IMPOSSIBLE.lock().push(format!("{file:?}"));
            }
            if let Ok(Some(held)) = file.get_lock(&asked)
                && held.start >= held.end
            {
                IMPOSSIBLE.lock().push(format!("{held:?}"));
            }
        });
        let _ = pool.barrier("b", 2, 0, soon);
    });
    attempt("runs", &mut || {
        with_file(&|file| {
            let run = |offset, length| Strided { offset, length, count: 1, stride: 0 };
            let runs =
                [Tile::once(vec![run(0, 10), run(90_000, 10_000), run(200_000, 10), run(700_000, 10)])];
            let _ = file.read_runs(&runs, &mut vec![0; 10_030]);
            let _ = file.write_runs(&runs, &vec![0; 10_030]);
        });
    });
    attempt("names", &mut || {
        let _ = pool.stat("/dir/file");
        let _ = pool.lstat("/link");
        let _ = pool.read_link("/link");
        let _ = pool.mkdir("/dir/new", 0o755);
        let _ = pool.mkdir_all("/dir/a/b/c", 0o755);
        let _ = pool.rmdir("/dir/new");
        let _ = pool.rename("/dir/file", "/dir/moved", RenameMode::Replace);
        let _ = pool.link("/small", "/dir/link");
        let _ = pool.symlink("x", "/dir/symlink");
        let _ = pool.unlink("/dir/link");
        let _ = pool.set_attributes("/small", &AttributeChanges { mode: Some(0o600), ..Default::default() });
        let _ = pool.get_layout("/lanes");
        let _ = pool.remove_tree("/dir");
    });
    attempt("listing", &mut || {
        for directory in ["/", "/dir"] {
            // A server may list entries without end.
            let _ = pool.read_dir(directory).map(|entries| entries.take(5000).count());
            let _ = pool.read_dir_plus(directory).map(|entries| entries.take(5000).count());
        }
    });
    attempt("what mounts ask", &mut || {
        let raw = pool.raw();
        let _ = raw.lookup(InodeId::ROOT, &name);
        let _ = raw.info(InodeId::ROOT);
        let _ = raw.lease_name(InodeId::ROOT, &name, true, 16);
        let _ = raw.lease_attributes(InodeId::ROOT, true);
        let _ = raw.read_directory_plus(InodeId::ROOT, 0, 100);
        let _ = raw.set_attributes(&SetAttributes::nothing(InodeId::ROOT));
        let _ = raw.open(InodeId(5), Rights { read: true, write: true });
        let _ = pool.list_xattrs("/small", true);
        let _ = pool.get_xattr("/small", true, "user.x");
    });
    attempt("arrays", &mut || {
        let kind = crate::ArrayType::new(&[100, 100], "<f8", Order::C).unwrap();
        let _ =
            pool.create_array("/array", &kind, Default::default(), 0o644).and_then(|array| array.map(true));
        let _ = pool.open_array("/array", true, Some(&kind)).and_then(|array| array.map(false));
    });
    attempt("reports", &mut || {
        let _ = pool.status();
        let _ = pool.statfs();
        let _ = pool.refresh_map();
        let _ = check_and_repair(&Lying(pool), &[], |_| {});
    });
}

/// The servers as `ramlace check` asks them; waiting makes none of them honest.
struct Lying<'pool>(&'pool Pool);

impl Servers for Lying<'_> {
    fn map(&self) -> Result<Arc<ClusterMap>> {
        self.0.refresh_map()
    }

    fn ask<R: Request>(&self, server: ServerId, request: &R) -> Result<R::Reply> {
        self.0.ask_server(server, request)
    }

    fn wait(&self, _time: Duration) {}
}

// SEMANTICS 112
#[test]
fn replies_that_are_damaged_or_made_up_are_errors_and_never_panics() {
    note_panics();
    let pools = std::env::var("RAMLACE_LIARS").ok().and_then(|text| text.parse().ok());
    for seed in 0..pools.unwrap_or(POOLS) {
        let fake = FakePool::start(2);
        let pool = fake.connect();
        pool.on_data_recalls(Arc::new(Kernel));
        pool.mkdir("/dir", 0o755).unwrap();
        pool.symlink("lanes", "/link").unwrap();
        for (path, length) in [("/lanes", 300_000), ("/small", 500), ("/dir/file", 1)] {
            let file = pool.open(path, &OpenOptions { truncate: true, ..striped(2) }).unwrap();
            assert_eq!(file.write_at(&pattern(length, 1), 0).unwrap(), length);
        }
        fake.state().lane_bytes_max = 16 << 20;
        fake.state().liar = Some(liar(seed));
        // Many calls are repeated until their deadline.
        in_haste(&pool, 100, || in_pool(&pool, seed));
        fake.state().liar = None;
        drop(pool);
    }
    let panics = PANICS.lock();
    assert!(panics.is_empty(), "threads have panicked at {panics:?}");
    let impossible = IMPOSSIBLE.lock();
    assert!(impossible.is_empty(), "mounts were told {impossible:?}");
}
