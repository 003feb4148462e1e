//! Rates of the client library beside those of raw blocking loops, measured in the same run.
//!
//! `cargo run --release -p ramlace-system-tests --example rates`. Medians of 5; drop-in numbers
//! for a look, not the benchmark (`make bench` is).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use ramlace_client::OpenOptions;
use ramlace_system_tests::{TestPool, pattern};
use ramlace_wire::LayoutHints;

const MIB: usize = 1 << 20;
const TOTAL: usize = 256 * MIB;
const SMALL: usize = 4096;
const CALLS: usize = 5000;

fn median(mut work: impl FnMut()) -> f64 {
    work();
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            work();
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[2]
}

/// A server that answers each 64-byte request with `reply` bytes after taking `request` bytes.
fn raw_server(request: usize, reply: usize) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_nodelay(true).expect("an option");
        let (mut taken, given) = (vec![0; 64 + request], pattern(64 + reply, 1));
        while stream.read_exact(&mut taken).is_ok() && stream.write_all(&given).is_ok() {}
    });
    let stream = TcpStream::connect(address).expect("a server");
    stream.set_nodelay(true).expect("an option");
    stream
}

fn raw(request: usize, reply: usize, calls: usize, in_flight: usize) -> f64 {
    let mut stream = raw_server(request, reply);
    let (given, mut taken) = (pattern(64 + request, 1), vec![0; 64 + reply]);
    median(|| {
        for call in 0..calls + in_flight - 1 {
            if call < calls {
                stream.write_all(&given).expect("sent");
            }
            if call + 1 >= in_flight {
                stream.read_exact(&mut taken).expect("received");
            }
        }
    })
}

fn main() {
    let pool = TestPool::start(1, "1GiB");
    let gib = |seconds: f64| TOTAL as f64 / (1u64 << 30) as f64 / seconds;
    let micros = |seconds: f64| seconds / CALLS as f64 * 1e6;
    let raw_read = gib(raw(0, MIB, TOTAL / MIB, 1));
    let raw_read_4 = gib(raw(0, MIB, TOTAL / MIB, 4));
    let raw_write = gib(raw(MIB, 0, TOTAL / MIB, 1));
    let raw_small = micros(raw(0, SMALL, CALLS, 1));
    println!(
        "raw loop: read {raw_read:.2} (4 in flight {raw_read_4:.2}), write {raw_write:.2} GiB/s, 4 KiB {raw_small:.1} us"
    );
    for local in [false, true] {
        let client = pool.connect(local);
        let hints = LayoutHints { width: Some(1), ..LayoutHints::default() };
        let file = client
            .open(format!("/rates-{local}"), &OpenOptions { hints, ..OpenOptions::creating() })
            .expect("open");
        let mut buffer = pattern(8 * MIB, 3);
        for (name, size) in [("1 MiB", MIB), ("8 MiB", 8 * MIB)] {
            let write = gib(median(|| {
                for at in (0..TOTAL).step_by(size) {
                    assert_eq!(file.write_at(&buffer[..size], at as u64).expect("written"), size);
                }
            }));
            let read = gib(median(|| {
                for at in (0..TOTAL).step_by(size) {
                    assert_eq!(file.read_at(&mut buffer[..size], at as u64).expect("read"), size);
                }
            }));
            println!(
                "local {local}, {name} calls: read {read:.2} ({:.2} of raw), write {write:.2} ({:.2} of raw) GiB/s",
                read / raw_read,
                write / raw_write
            );
        }
        let small = micros(median(|| {
            for call in 0..CALLS {
                file.read_at(&mut buffer[..SMALL], (call * SMALL) as u64).expect("read");
            }
        }));
        let small_write = micros(median(|| {
            for call in 0..CALLS {
                file.write_at(&buffer[..SMALL], (call * SMALL) as u64).expect("written");
            }
        }));
        println!(
            "local {local}, 4 KiB: read {small:.1} us ({:.2} of raw), write {small_write:.1} us",
            small / raw_small
        );
    }
}
