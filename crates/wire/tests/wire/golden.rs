//! The bytes of every message are fixed: `golden.txt` holds them, and changes only on purpose.
//!
//! `RAMLACE_WRITE_GOLDEN=1 cargo test --release -p ramlace-wire --test wire golden` writes it anew. Do
//! so for a new message, whose lines are added; when other lines change, so must the version.

use std::fmt::Write;

use crate::common::{Draw, Source, bodies, header_sample};
use ramlace_wire::preamble::{Preamble, Status};

const WRITE: &str = "RAMLACE_WRITE_GOLDEN";
const GOLDEN: &str = include_str!("../golden.txt");

fn words_for(name: &str) -> Vec<u64> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut draw = Draw(seed);
    (0..400).map(|_| draw.word()).collect()
}

fn line(text: &mut String, name: &str, bytes: &[u8]) {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(text, "{name} {}", if hex.is_empty() { "-" } else { &hex }).unwrap();
}

fn golden() -> String {
    let mut text = String::new();
    line(&mut text, "preamble.welcome", &Preamble::new(Status::Welcome, 48).encode());
    line(&mut text, "preamble.client", &Preamble::of_client(2, 52).encode());
    line(&mut text, "preamble.refused", &Preamble::new(Status::Refused, 512).encode());
    line(&mut text, "header.least", &header_sample(&mut Source::new(&[])).encode());
    line(&mut text, "header.full", &header_sample(&mut Source::full(&words_for("header"))).encode());
    for body in bodies() {
        line(&mut text, &format!("{}.least", body.name), &(body.sample)(&mut Source::new(&[])));
        let words = words_for(&body.name);
        line(&mut text, &format!("{}.full", body.name), &(body.sample)(&mut Source::full(&words)));
    }
    text
}

#[test]
fn bytes_are_the_ones_that_were_written_down() {
    let now = golden();
    if std::env::var_os(WRITE).is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt");
        std::fs::write(path, now).expect("golden.txt can be written");
        return;
    }
    for (is, was) in now.lines().zip(GOLDEN.lines()) {
        assert_eq!(is, was, "these bytes changed: old peers and stores can no longer be read");
    }
    assert_eq!(now.lines().count(), GOLDEN.lines().count(), "set {WRITE}=1 to add a new message");
}
