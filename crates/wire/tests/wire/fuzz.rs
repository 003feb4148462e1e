//! Mutated bytes for every decoder: header, preamble, and the bodies of all messages.
//!
//! Each input is a golden line, damaged by a generator with a fixed seed. No decoder may panic or
//! take memory by a number that it reads; what it accepts must come back from its own bytes.
//! `RAMLACE_FUZZ_ITERATIONS` says how many inputs each decoder gets; a failure prints its input.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::common::{Draw, bodies};
use ramlace_base::{Epoch, ServerId, Slot, limits};
use ramlace_wire::preamble::{PREAMBLE_BYTES, Preamble};
use ramlace_wire::{Chain, ClusterMap, HEADER_BYTES, Header, Kind, PoolId, decode_body, encode_body};

const ITERATIONS_DEFAULT: u64 = 10_000;
/// A value in memory is larger than its bytes, by a factor that its type gives: 24 bytes for each
/// byte of an empty string in a list, some 230 for an entry of a directory, twice while a list grows.
const MEMORY_PER_BYTE_MAX: usize = 128;
const MEMORY_BYTES_FREE: usize = 4096;
const GOLDEN: &str = include_str!("../golden.txt");

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(taken: usize, given_back: usize) {
    // A thread that is ending has no cells any more; it is not measured then.
    let _ = LIVE_BYTES.try_with(|live| {
        live.set(live.get().wrapping_add(taken).wrapping_sub(given_back));
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs a decoder and gives the memory that it held at most.
fn memory_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    LIVE_BYTES.set(0);
    PEAK_BYTES.set(0);
    let result = run();
    (result, PEAK_BYTES.get())
}

fn iterations() -> u64 {
    match std::env::var("RAMLACE_FUZZ_ITERATIONS") {
        Ok(text) => text.parse().expect("RAMLACE_FUZZ_ITERATIONS is a number"),
        Err(_) => ITERATIONS_DEFAULT,
    }
}

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The golden bytes whose name begins so.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let lines = GOLDEN.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.split(' ').nth(1)).map(bytes_of_hex).collect()
}

/// Damages bytes in one to four ways.
fn mutate(draw: &mut Draw, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..=draw.below(4) {
        let at = draw.below(bytes.len() + 1);
        match draw.below(8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << draw.below(8),
            2 if at < bytes.len() => bytes[at] = draw.word() as u8,
            3 => bytes.truncate(at),
            4 => bytes.insert(at, draw.word() as u8),
            5 => {
                // A large number where a length may stand.
                let end = (at + 1).min(bytes.len());
                let large = [0xff, 0xff, 0xff, 0xff, [0x0f, 0x7f][draw.below(2)]];
                bytes.splice(at..end, large[draw.below(5)..].iter().copied());
            }
            6 => {
                let other = &others[draw.below(others.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[draw.below(other.len() + 1)..]);
            }
            _ => {
                let words = draw.below(9);
                *bytes = (0..words).flat_map(|_| draw.word().to_le_bytes()).collect();
            }
        }
    }
}

/// Feeds one decoder; `accepts` decodes, checks what it got, and says whether it got anything.
fn feed(
    name: &str,
    others: &[Vec<u8>],
    accepts: impl Fn(&[u8]) -> bool,
    spoil: impl Fn(&mut Draw, &mut Vec<u8>),
) {
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "golden.txt has no {name}");
    let mut draw = Draw(name.bytes().map(u64::from).sum());
    let mut accepted = 0;
    for iteration in 0..iterations() {
        let mut bytes = corpus[draw.below(corpus.len())].clone();
        if iteration >= corpus.len() as u64 * 8 {
            mutate(&mut draw, &mut bytes, others);
        }
        spoil(&mut draw, &mut bytes);
        let hex = || bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match catch_unwind(AssertUnwindSafe(|| accepts(&bytes))) {
            Ok(good) => accepted += u64::from(good),
            Err(panic) => {
                eprintln!("{name} failed on {}", hex());
                resume_unwind(panic);
            }
        }
    }
    assert!(accepted > 0, "{name}: not even the golden bytes were accepted");
}

#[test]
fn bodies_survive_damage() {
    let others = corpus("");
    for body in bodies() {
        let accepts = |bytes: &[u8]| {
            let (accepted, held) = memory_of(|| (body.decodes)(bytes));
            // The check itself holds the value twice and its bytes once.
            let most = MEMORY_BYTES_FREE + 3 * MEMORY_PER_BYTE_MAX * bytes.len();
            assert!(held <= most, "{} bytes of {} took {held} bytes of memory", bytes.len(), body.name);
            accepted
        };
        feed(&format!("{}.", body.name), &others, accepts, |_, _| {});
    }
}

#[test]
fn headers_survive_damage() {
    let others = corpus("");
    let accepts = |bytes: &[u8]| {
        let Ok(bytes) = bytes.try_into() else { return false };
        let Ok(header) = Header::decode(bytes) else { return false };
        assert_eq!(&header.encode(), bytes);
        true
    };
    // Every other damaged header gets a correct checksum and magic, to reach what lies behind.
    let repair = |draw: &mut Draw, bytes: &mut Vec<u8>| {
        bytes.resize(HEADER_BYTES, 0);
        if draw.below(2) == 0 {
            let good = Header::request(Kind::GetMap).encode();
            bytes[..6].copy_from_slice(&good[..6]);
            let checksum = crc_fast::crc32_iscsi(&bytes[..HEADER_BYTES - 4]);
            bytes[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        }
    };
    feed("header.", &others, accepts, repair);
}

#[test]
fn preambles_survive_damage() {
    let others = corpus("");
    let accepts = |bytes: &[u8]| {
        let Ok(bytes) = bytes.try_into() else { return false };
        let Ok(preamble) = Preamble::decode(bytes) else { return false };
        assert_eq!(&preamble.encode(), bytes);
        true
    };
    let repair = |draw: &mut Draw, bytes: &mut Vec<u8>| {
        bytes.resize(PREAMBLE_BYTES, 0);
        if draw.below(2) == 0 {
            bytes[..8].copy_from_slice(b"ramlace\n");
        }
    };
    feed("preamble.", &others, accepts, repair);
}

fn map(chains: Vec<Chain>) -> ClusterMap {
    let (pool, coordinator) = (PoolId::default(), ServerId(0));
    ClusterMap { pool, epoch: Epoch(1), hash_seed: 0, coordinator, servers: Vec::new(), chains }
}

/// The bytes of a map that has one chain and, for each slot, the number of a chain.
fn folded(chain: &Chain, of_slots: &[u32]) -> Vec<u8> {
    let empty = map(Vec::new());
    let rest = (empty.pool, empty.epoch, empty.hash_seed, empty.coordinator, empty.servers);
    encode_body(&(rest, [chain].as_slice(), of_slots))
}

fn refused(bytes: &[u8]) -> (String, usize) {
    let (error, held) = memory_of(|| decode_body::<ClusterMap>(Kind::GetMap, bytes).unwrap_err());
    (error.message().to_owned(), held)
}

/// A map names each different chain once, so a few bytes could unfold to very many.
#[test]
fn a_small_map_cannot_unfold_to_a_huge_one() {
    let chain = |servers| Chain { servers: vec![ServerId(0); servers], complete_since: Epoch(1) };
    let largest = map(vec![chain(limits::CHAIN_SERVERS_MAX); limits::SLOTS_MAX as usize]);
    let bytes = encode_body(&largest);
    let (decoded, held) = memory_of(|| decode_body::<ClusterMap>(Kind::GetMap, &bytes));
    assert_eq!(decoded.as_ref(), Ok(&largest));
    assert!(held <= MEMORY_PER_BYTE_MAX * bytes.len(), "{held} bytes for {}", bytes.len());
    assert_eq!(largest.primary(Slot(u16::MAX)), Some(ServerId(0)));

    let too_many = folded(&chain(1), &vec![0; limits::SLOTS_MAX as usize + 1]);
    let too_long = folded(&chain(1_000), &vec![0; 60_000]);
    for bytes in [too_many, too_long] {
        let (message, held) = refused(&bytes);
        assert!(message.contains("makes no sense"), "{message}");
        assert!(held <= 8 * bytes.len(), "{held} bytes for {}", bytes.len());
    }
    assert!(refused(&folded(&chain(1), &[0, 1])).0.contains("makes no sense"), "there is no second chain");
    assert!(decode_body::<ClusterMap>(Kind::GetMap, &folded(&chain(1), &[0, 0])).is_ok());
}
