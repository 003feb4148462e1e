//! Measures the transport beside raw blocking loops on the same sockets in the same run.
//!
//! `cargo run --release -p ramlace-transport --example measure_transport [seal [read|write]]`; `seal`: only what it costs that
//! streams are sealed

#[path = "../tests/transport/memory.rs"]
#[allow(dead_code)]
mod memory;

use std::hint::black_box;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use memory::Memory;
use ramlace_base::{Epoch, Generation, InodeId, LaneId, SessionId, Slot, limits};
use ramlace_transport::blocking;
use ramlace_transport::nonblocking::{Connection, Listener, Newcomers};
use ramlace_transport::{Address, ClientKey, Holder, Secret};
use ramlace_wire::chunk::{ChunkRead, ChunkWritten, Keep, LaneTarget, ReadChunk, WriteChunk, WriteOrigin};
use ramlace_wire::keys::{HostKeyId, HostKeyName};
use ramlace_wire::{Header, Kind, LaneRight, OpenedFor, PoolId, decode_body, encode_body};

const LARGE: usize = 1 << 20;
const SMALL: usize = 4096;
const HEAD: usize = 104;
const ROUNDS: usize = 5;

fn secret() -> Secret {
    Secret::from_bytes([7; 32])
}

fn owner() -> ClientKey {
    secret().owner_key()
}

async fn serve(mut connection: Connection, memory: &Memory) -> ramlace_base::Result<()> {
    loop {
        if !connection.has_buffered_request() {
            connection.flush().await?;
        }
        let Some((header, body)) = connection.read_request().await? else { return Ok(()) };
        let reply = header.reply(Epoch(1));
        if header.kind == Kind::ReadChunk {
            let request: ReadChunk = decode_body(header.kind, &body)?;
            let body = encode_body(&ChunkRead { hole: false, kept: false });
            let length = request.length as usize;
            if length <= limits::STAGED_BYTES_MAX {
                connection.queue_reply(reply, &body, &memory.read(0, length));
            } else {
                let segment = memory.segments(0, LARGE)[0].pointer;
                let segments = [ramlace_transport::RawSegment { pointer: segment, length }];
                // SAFETY: the memory lives as long as the process.
                unsafe { connection.send_in_place(reply, &body, &segments, None).await? };
            }
        } else {
            let length = header.data_bytes as usize;
            if length <= limits::STAGED_BYTES_MAX {
                let mut bytes = Vec::new();
                connection.read_data_staged(length, &mut bytes).await?;
                memory.write(0, &bytes);
            } else {
                let segment = memory.segments(0, LARGE)[0].pointer;
                let segments = [ramlace_transport::RawSegment { pointer: segment, length }];
                // SAFETY: as above.
                unsafe { connection.read_data_in_place(&segments).await? };
            }
            connection.queue_reply(reply, &encode_body(&ChunkWritten { recall: 0 }), &[]);
        }
    }
}

fn start_server(address: Address, trusts_network: bool) -> Address {
    let (ready, listening) = mpsc::channel();
    std::thread::spawn(move || {
        let memory: &'static Memory = Box::leak(Box::new(Memory::new(LARGE)));
        memory.write(0, &vec![1; LARGE]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let mut listener = Listener::bind(&address).unwrap();
            ready.send(listener.local_address().unwrap()).unwrap();
            let newcomers = Newcomers::new(1);
            loop {
                let incoming = listener.accept().await.unwrap();
                let newcomers = newcomers.clone();
                tokio::task::spawn_local(async move {
                    let keys =
                        secret().server_keys(ramlace_base::ServerId(0)).trusting_the_network(trusts_network);
                    let (connection, _) = Connection::accept(incoming, &keys, &newcomers).await.unwrap();
                    serve(connection, memory).await.unwrap();
                });
            }
        });
    });
    listening.recv().unwrap()
}

/// The limit: a head and its bytes one way, a head the other way, with plain blocking calls.
fn raw_server(mut stream: impl Read + Write + Send + 'static) {
    std::thread::spawn(move || {
        let mut memory = vec![1; HEAD + LARGE];
        loop {
            let mut request = [0; HEAD];
            if stream.read_exact(&mut request).is_err() {
                return;
            }
            let number = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap()) as usize;
            let (up, down) = (number(0), number(4));
            stream.read_exact(&mut memory[HEAD..HEAD + up]).unwrap();
            stream.write_all(&memory[..HEAD + down]).unwrap();
        }
    });
}

fn raw_call(stream: &mut (impl Read + Write), up: &[u8], down: &mut [u8]) {
    let mut request = [0; HEAD];
    request[..4].copy_from_slice(&(up.len() as u32).to_le_bytes());
    request[4..8].copy_from_slice(&(down.len() as u32).to_le_bytes());
    let sent = stream.write_vectored(&[IoSlice::new(&request), IoSlice::new(up)]).unwrap();
    if sent < HEAD + up.len() {
        stream.write_all(&up[sent - HEAD..]).unwrap();
    }
    let received = stream.read_vectored(&mut [IoSliceMut::new(&mut request), IoSliceMut::new(down)]).unwrap();
    assert!(received >= HEAD);
    stream.read_exact(&mut down[received - HEAD..]).unwrap();
}

fn target() -> LaneTarget {
    let lane = LaneId { inode: InodeId::ROOT, lane: 0 };
    LaneTarget { lane, slot: Slot(0), generation: Generation::FIRST, created: Epoch(1), permit: None }
}

fn call(connection: &mut blocking::Connection, number: u32, up: &[u8], down: &mut [u8]) {
    let deadline = Instant::now() + Duration::from_secs(4);
    if down.is_empty() {
        let header = Header { call: number, ..Header::request(Kind::WriteChunk) };
        let request = WriteChunk { target: target(), offset: 0, origin: WriteOrigin::Program };
        connection.send(header, &request, &[IoSlice::new(up)], deadline).unwrap();
        connection.receive::<WriteChunk>(number, deadline).unwrap();
        return;
    }
    let header = Header { call: number, ..Header::request(Kind::ReadChunk) };
    let request =
        ReadChunk { target: target(), offset: 0, length: down.len() as u32, take: false, keep: Keep::No };
    connection.send(header, &request, &[], deadline).unwrap();
    connection.receive::<ReadChunk>(number, deadline).unwrap();
    connection.receive_data(&mut [IoSliceMut::new(down)], deadline).unwrap();
}

/// CPU seconds that a clock of the kernel counts.
fn cpu_seconds(clock: rustix::time::ClockId) -> f64 {
    let usage = rustix::time::clock_gettime(clock);
    usage.tv_sec as f64 + usage.tv_nsec as f64 * 1e-9
}

/// Seconds of each call, and CPU seconds of the whole process for all of them.
fn time(count: usize, mut call: impl FnMut(u32)) -> (Vec<f64>, f64) {
    let cpu = || cpu_seconds(rustix::time::ClockId::ProcessCPUTime);
    let begun = cpu();
    let mut seconds: Vec<f64> = (0..count)
        .map(|number| {
            let begun = Instant::now();
            call(number as u32);
            begun.elapsed().as_secs_f64()
        })
        .collect();
    let used = cpu() - begun;
    seconds.sort_by(f64::total_cmp);
    (seconds, used)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(name: &str, address: &Address, up: usize, down: usize) {
    let (up, mut down) = (vec![2; up], vec![0; down]);
    let bytes = up.len() + down.len();
    let count = if bytes > 100_000 { 500 } else { 20_000 };
    let mut connection =
        blocking::Connection::connect(address, &owner(), None, Instant::now() + Duration::from_secs(4))
            .unwrap();
    let mut raw = raw_stream(address);
    let mut rows = [const { Vec::new() }; 4];
    let mut costs = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        let (ours, our_cpu) = time(count, |number| call(&mut connection, number, &up, &mut down));
        let (raws, raw_cpu) = time(count, |_| raw_call(&mut raw, &up, &mut down));
        rows[0].push(ours[count / 2]);
        rows[1].push(raws[count / 2]);
        rows[2].push(ours.iter().sum::<f64>() / count as f64);
        rows[3].push(raws.iter().sum::<f64>() / count as f64);
        costs[0].push(our_cpu / count as f64);
        costs[1].push(raw_cpu / count as f64);
    }
    let [p50, raw_p50, mean, raw_mean] = rows.map(median);
    let [cpu, raw_cpu] = costs.map(median);
    if bytes > 100_000 {
        let rate = |seconds: f64| bytes as f64 / seconds / (1u64 << 30) as f64;
        println!(
            "{name:28} {:.2} GiB/s, raw {:.2}: ratio {:.2}; CPU {:.2} s/GiB, raw {:.2}",
            rate(mean),
            rate(raw_mean),
            raw_mean / mean,
            cpu / bytes as f64 * (1u64 << 30) as f64,
            raw_cpu / bytes as f64 * (1u64 << 30) as f64
        );
    } else {
        println!(
            "{name:28} p50 {:.1} us, raw {:.1}: ratio {:.2}; mean {:.1}, raw {:.1}; CPU {:.1} us, raw {:.1}",
            p50 * 1e6,
            raw_p50 * 1e6,
            p50 / raw_p50,
            mean * 1e6,
            raw_mean * 1e6,
            cpu * 1e6,
            raw_cpu * 1e6
        );
    }
}

fn streams_alone() -> bool {
    std::env::args().nth(1).is_some_and(|word| word == "seal")
}

/// What it costs that contents are sealed, in turns with a server that trusts its network: the median of the rounds' ratios.
fn measure_seal(sealed: &Address, trusted: &Address) {
    let calls = [("4 KiB read", 0, SMALL), ("4 KiB write", SMALL, 0)];
    let streams = [("1 MiB read", 0, LARGE), ("1 MiB write", LARGE, 0)];
    let wanted = std::env::args().nth(2).unwrap_or_default();
    let streams = streams.into_iter().filter(|(name, ..)| name.ends_with(&wanted));
    for (name, up, down) in calls.into_iter().filter(|_| !streams_alone()).chain(streams) {
        let (up, mut down) = (vec![2; up], vec![0; down]);
        let bytes = up.len() + down.len();
        let count = if bytes > 100_000 { 200 } else { 5_000 };
        let deadline = || Instant::now() + Duration::from_secs(4);
        let connect = |address| blocking::Connection::connect(address, &owner(), None, deadline()).unwrap();
        let mut lines = [connect(sealed), connect(trusted)];
        let (mut ratios, mut rates, mut costs) = (Vec::new(), Vec::new(), [const { Vec::new() }; 4]);
        for _ in 0..4 * ROUNDS {
            let [(ours, cpu, own), (plain, plain_cpu, plain_own)] = lines.each_mut().map(|line| {
                let client = || cpu_seconds(rustix::time::ClockId::ThreadCPUTime);
                let begun = client();
                let (times, cpu) = time(count, |number| call(line, number, &up, &mut down));
                (times[count / 2], cpu / count as f64, (client() - begun) / count as f64)
            });
            ratios.push(plain / ours);
            rates.push(bytes as f64 / ours / (1u64 << 30) as f64);
            for (list, cost) in costs.iter_mut().zip([cpu, plain_cpu, own, plain_own]) {
                list.push(cost);
            }
        }
        let per_gib = |cpu: f64| cpu / bytes as f64 * (1u64 << 30) as f64;
        let [cpu, plain_cpu, own, plain_own] = costs.map(median).map(per_gib);
        println!(
            "sealed {name:12} {:.2} GiB/s, {:.2} of the rate without; \
             CPU {cpu:.3} s/GiB ({own:.3} of them the client's), without {plain_cpu:.3} ({plain_own:.3})",
            median(rates),
            median(ratios),
        );
    }
}

enum RawStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for RawStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            RawStream::Tcp(stream) => stream.read(into),
            RawStream::Unix(stream) => stream.read(into),
        }
    }
    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> std::io::Result<usize> {
        match self {
            RawStream::Tcp(stream) => stream.read_vectored(into),
            RawStream::Unix(stream) => stream.read_vectored(into),
        }
    }
}

impl Write for RawStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            RawStream::Tcp(stream) => stream.write(bytes),
            RawStream::Unix(stream) => stream.write(bytes),
        }
    }
    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> std::io::Result<usize> {
        match self {
            RawStream::Tcp(stream) => stream.write_vectored(bytes),
            RawStream::Unix(stream) => stream.write_vectored(bytes),
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn raw_stream(like: &Address) -> RawStream {
    match like {
        Address::Tcp(_) => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            stream.set_nodelay(true).unwrap();
            let server = listener.accept().unwrap().0;
            server.set_nodelay(true).unwrap();
            raw_server(server);
            RawStream::Tcp(stream)
        }
        Address::Unix(path) => {
            let path = path.with_extension("raw");
            let listener = UnixListener::bind(&path).unwrap();
            let stream = UnixStream::connect(&path).unwrap();
            raw_server(listener.accept().unwrap().0);
            std::fs::remove_file(path).unwrap();
            RawStream::Unix(stream)
        }
    }
}

/// What a server pays to see whether the session of a host may have the bytes that it asks for.
fn measure_permits() {
    const CHECKS: u32 = 1_000_000;
    let keys = secret().server_keys(ramlace_base::ServerId(0));
    let host = HostKeyId { name: HostKeyName::shared(), serial: 1 };
    let holder = Holder { pool: PoolId([3; 16]), session: SessionId([1; 16]), host: &host };
    let both = OpenedFor { read: true, write: true };
    let permit = keys.permit(holder, InodeId::ROOT, both);
    let mut wrong = permit;
    wrong.read[0] ^= 1;
    for (name, permit, expected) in [("right", permit, CHECKS), ("wrong", wrong, 0)] {
        let start = Instant::now();
        let let_in =
            (0..CHECKS).filter(|_| keys.permits(holder, black_box(InodeId::ROOT), permit, LaneRight::Read));
        assert_eq!(let_in.count() as u32, expected);
        println!(
            "a {name} permit is checked in {:.0} ns",
            start.elapsed().as_secs_f64() / f64::from(CHECKS) * 1e9
        );
    }
}

fn main() {
    if !streams_alone() {
        measure_permits();
    }
    let path = std::env::temp_dir().join(format!("ramlace-measure-{}", std::process::id()));
    let tcp = start_server(Address::Tcp("127.0.0.1:0".into()), false);
    let trusted = start_server(Address::Tcp("127.0.0.1:0".into()), true);
    measure_seal(&tcp, &trusted);
    if streams_alone() {
        return;
    }
    let unix = start_server(Address::Unix(path.clone()), false);
    for (name, address) in [("TCP", &tcp), ("Unix", &unix)] {
        compare(&format!("{name} 4 KiB read"), address, 0, SMALL);
        compare(&format!("{name} 4 KiB write"), address, SMALL, 0);
        compare(&format!("{name} 1 MiB read"), address, 0, LARGE);
        compare(&format!("{name} 1 MiB write"), address, LARGE, 0);
        let (seconds, cpu) = time(500, |_| {
            drop(
                blocking::Connection::connect(
                    address,
                    &owner(),
                    None,
                    Instant::now() + Duration::from_secs(4),
                )
                .unwrap(),
            );
        });
        println!(
            "{name} connect and handshake: p50 {:.0} us, CPU {:.0} us",
            seconds[250] * 1e6,
            cpu / 500.0 * 1e6
        );
    }
    std::fs::remove_file(path).unwrap();
}
