//! What the store costs beside the machine's own limits, measured in the same run.
//!
//! `cargo run --release -p ramlace-store --example measure_store` prints one line for each figure.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use ramlace_base::{InodeId, LaneId, Result};
use ramlace_store::{Backing, Store, StoreOptions, StoreRoot};

const MIB: usize = 1 << 20;
const CHUNK: usize = 2 * MIB;
const CHUNKS: usize = 256;

fn main() -> Result<()> {
    for backing in [Backing::PrivateTmpfs, Backing::SharedMemory] {
        let options = StoreOptions { size_bytes: 1 << 30, backing, name: "measure".into() };
        let root = match StoreRoot::create(&options) {
            Ok(root) => root,
            Err(error) => {
                println!("{backing:?}: {error}");
                continue;
            }
        };
        println!("{backing:?}");
        root.notes().iter().for_each(|note| println!("  {note}"));
        let private_before = private_kib();
        let mut store = Store::open(root)?;
        chunks(&mut store)?;
        small_files(&mut store)?;
        println!("  private memory {} KiB, {} KiB before", private_kib(), private_before);
        reservation(&mut store)?;
        store.into_root().remove()?;
    }
    Ok(())
}

fn lane(number: usize) -> LaneId {
    LaneId { inode: InodeId(number as u64), lane: 0 }
}

/// Fresh and repeated receives of 2 MiB into windows, beside a memcpy of the same bytes.
fn chunks(store: &mut Store) -> Result<()> {
    let source = vec![1u8; CHUNK];
    let file =
        std::fs::File::from(rustix::fs::memfd_create("source", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.write_all_at(&source, 0).unwrap();
    let mut target = vec![0u8; CHUNK * 16];
    let copy = best(3, || {
        let begun = Instant::now();
        for index in 0..CHUNKS {
            target[index % 16 * CHUNK..][..CHUNK].copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        }
        std::hint::black_box(&mut target);
        begun.elapsed().as_secs_f64()
    });
    let call = best(3, || {
        let begun = Instant::now();
        for index in 0..CHUNKS {
            file.read_exact_at(&mut target[index % 16 * CHUNK..][..CHUNK], 0).unwrap();
        }
        begun.elapsed().as_secs_f64()
    });
    drop(target);
    let (mut fresh, mut again) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        store.create_lane(lane(0))?;
        fresh = fresh.min(receive_all(store, &file)?);
        again = again.min(receive_all(store, &file)?);
        store.remove_lane(lane(0))?;
    }
    let rate = |seconds: f64| (CHUNK * CHUNKS) as f64 / seconds / (1 << 30) as f64;
    println!("  memcpy of 2 MiB pieces          {:6.2} GiB/s", rate(copy));
    println!("  the same calls to a plain buffer{:6.2} GiB/s", rate(call));
    println!(
        "  fresh chunks through a window   {:6.2} GiB/s, {:.2} of the plain buffer",
        rate(fresh),
        call / fresh
    );
    println!(
        "  rewritten through a window      {:6.2} GiB/s, {:.2} of the plain buffer",
        rate(again),
        call / again
    );
    Ok(())
}

fn receive_all(store: &mut Store, file: &std::fs::File) -> Result<f64> {
    let begun = Instant::now();
    for index in 0..CHUNKS {
        let offset = (index * CHUNK) as u64;
        store.prepare_write(lane(0), offset, CHUNK as u64)?;
        let window = store.window(lane(0), offset, CHUNK as u64)?;
        for segment in window.segments() {
            // SAFETY: the window is held, so its addresses are mapped; only the kernel touches them.
            let read = unsafe { libc::pread(file.as_raw_fd(), segment.address.cast(), segment.length, 0) };
            assert_eq!(read, segment.length as isize);
        }
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// 4 KiB: a new file each, a rewrite in place, and what many files in one directory cost.
fn small_files(store: &mut Store) -> Result<()> {
    const FILES: usize = 100_000;
    let bytes = [1u8; 4096];
    let begun = Instant::now();
    let mut marks = Vec::new();
    for number in 0..FILES {
        store.create_lane(lane(number))?;
        store.prepare_write(lane(number), 0, 4096)?;
        store.write_staged(lane(number), 0, &bytes)?;
        if number % (FILES / 4) == FILES / 4 - 1 {
            marks.push(begun.elapsed().as_secs_f64());
        }
    }
    let quarter = FILES as f64 / 4.0 / 1e6;
    let (first, last) = (marks[0] / quarter, (marks[3] - marks[2]) / quarter);
    println!("  4 KiB file, created and written {first:6.2} us; {last:.2} us beside {FILES} others");
    println!("  memory for each                 {:6} B", store.usage().lanes_bytes / FILES as u64);
    let begun = Instant::now();
    for _ in 0..FILES {
        store.prepare_write(lane(7), 0, 4096)?;
        store.write_staged(lane(7), 0, &bytes)?;
    }
    println!(
        "  4 KiB staged rewrite            {:6.2} us",
        begun.elapsed().as_secs_f64() * 1e6 / FILES as f64
    );
    let begun = Instant::now();
    for number in 0..FILES {
        store.remove_lane(lane(number))?;
    }
    println!(
        "  4 KiB file, removed             {:6.2} us",
        begun.elapsed().as_secs_f64() * 1e6 / FILES as f64
    );
    Ok(())
}

fn reservation(store: &mut Store) -> Result<()> {
    let begun = Instant::now();
    store.start_reservation()?;
    while store.usage().free_bytes - store.usage().reserved_bytes >= 4 * MIB as u64 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("  reserving all of it             {:6.2} GiB/s", 1.0 / begun.elapsed().as_secs_f64());
    Ok(())
}

fn best(rounds: usize, mut run: impl FnMut() -> f64) -> f64 {
    (0..rounds).map(|_| run()).fold(f64::MAX, f64::min)
}

/// Private memory of this process, in KiB.
fn private_kib() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let values = rollup.lines().filter(|line| line.starts_with("Private_"));
    values.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
