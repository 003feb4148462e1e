//! The bytes of every message are fixed: `golden.txt` holds them, and changes only on purpose.
//!
//! `RAMLACE_WRITE_GOLDEN=1 cargo test --profile quick -p ramlace-wire --test wire golden` writes it anew. Do
//! so for a new message, whose lines are added; when other lines but `header.full` change, so must the version.
//!
//! Each variant of an enum that travels has a line, which also says what its bytes mean. No variant is listed here:
//! those with a table of numbers are found in the messages, those of one byte by reading every byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use crate::common::{Draw, Source, Travels, bodies, bytes_of, header_sample};
use ramlace_base::{Error, ErrorKind, Redirect};
use ramlace_wire::preamble::{Preamble, Status};
use ramlace_wire::{ErrorBody, Kind, decode_body};

const WRITE: &str = "RAMLACE_WRITE_GOLDEN";
const GOLDEN: &str = include_str!("../golden.txt");

/// Messages that have got another name since their lines were written: their values are drawn by the one of before,
/// so that the bytes are compared with those of before.
const DRAWN_AS: [(&str, &str); 4] = [
    ("BeginPassthrough.", "HandOver."),
    ("CancelChange.", "GiveUp."),
    ("Decide.", "Settle."),
    ("GrantPassthrough.", "HandLane."),
];

fn words_for(name: &str) -> Vec<u64> {
    let before =
        DRAWN_AS.iter().find_map(|(now, before)| Some(format!("{before}{}", name.strip_prefix(now)?)));
    let seed = before.as_deref().unwrap_or(name).bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut draw = Draw(seed);
    (0..400).map(|_| draw.word()).collect()
}

fn hex(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if hex.is_empty() { "-".into() } else { hex }
}

fn line(text: &mut String, name: &str, bytes: &[u8]) {
    writeln!(text, "{name} {}", hex(bytes)).unwrap();
}

/// A line for each value that is one byte, or may be none and then has a byte before it that says so.
fn one_byte<T: Travels>(text: &mut String, name: &str) {
    let bytes = (0..=u8::MAX).flat_map(|byte| [vec![byte], vec![1, byte]]);
    for bytes in bytes {
        let Ok(value) = decode_body::<T>(Kind::GetMap, &bytes) else { continue };
        assert_eq!(bytes_of(&value), bytes, "{value:?}");
        writeln!(text, "{name}.{} {} {value:?}", bytes[bytes.len() - 1], hex(&bytes)).unwrap();
    }
}

macro_rules! of_one_byte {
    ($($($part:ident)::*;)*) => {
        fn of_one_byte(text: &mut String) {
            $(one_byte::<ramlace_wire::$($part)::*>(text, [$(stringify!($part)),*].last().unwrap());)*
        }
    };
}

// Each `numbered!` of the crate, and what else is written as one byte.
of_one_byte! {
    preamble::Status;
    session::SessionKind;
    keys::Rotation;
    check::TroubleKind;
    FileKind;
    Mode;
    FileRules;
    chunk::Keep;
    chunk::WriteOrigin;
    chunk::Sought;
    namespace::TimeReason;
    namespace::RenameMode;
    xattrs::XattrMode;
    inline::BytesPlace;
    inline::FirstPage;
    inline::InlineMode;
    inline::InlineOutcome;
    locks::LockTable;
    locks::LockKind;
    locks::LockOutcome;
    leases::Leased;
    holders::WaitsTo;
}

/// A line for each kind of message, and for each error.
fn two_bytes(text: &mut String) {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_number(kind.number()), Some(*kind));
        line(text, &format!("Kind.{kind:?}"), &kind.number().to_le_bytes());
    }
    let redirects = Redirect::ALL.iter().map(|redirect| ErrorKind::Redirect(*redirect));
    for kind in ErrorKind::ALL.iter().copied().chain(redirects) {
        let body = ErrorBody::new(&Error::new(kind, ""));
        line(text, &format!("Error.{kind:?}"), &bytes_of(&body));
        assert_eq!(body.into_error().kind(), kind);
    }
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
    for body in bodies() {
        for shown in (body.variants)() {
            let bytes = hex(&shown.bytes);
            writeln!(text, "{}.{} {bytes} {}", body.name, shown.variants, shown.meaning).unwrap();
        }
    }
    two_bytes(&mut text);
    of_one_byte(&mut text);
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
    let (is, was) = (by_name(&now), by_name(GOLDEN));
    let has_more = is.keys().any(|name| !was.contains_key(name));
    for (name, bytes) in &was {
        // The kind in this one is drawn from all there are: another message changes it, and nothing else.
        let is_drawn = *name == "header.full" && has_more;
        assert!(
            is_drawn || is.get(name) == Some(bytes),
            "{name} was {bytes} and is {:?}: peers and stores of before cannot be read; if that is meant, \
             PROTOCOL_VERSION rises, and {WRITE}=1 writes golden.txt",
            is.get(name)
        );
    }
    assert!(
        !has_more,
        "golden.txt lacks what is new; {WRITE}=1 writes it (CONTRIBUTING.md, How to add a message)"
    );
}

/// The lines of golden bytes, by their first words.
fn by_name(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(' ')).collect()
}

/// The enums to which a macro gives numbers, of all files in this directory and below it.
fn numbered_enums(directory: &Path, enums: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            numbered_enums(&path, enums);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("numbered_variants! { ") {
                enums.insert(rest.trim_end_matches(':').to_owned());
            } else if line == "numbered! {" {
                let name = lines.find_map(|line| line.trim().strip_suffix(" {"));
                enums.insert(name.unwrap().to_owned());
            }
        }
    }
}

#[test]
fn every_enum_with_numbers_has_its_lines() {
    let mut enums = BTreeSet::new();
    numbered_enums(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut enums);
    assert!(enums.contains("Event") && enums.contains("TimeReason"), "{enums:?}");
    let golden = golden();
    let names = golden.lines().filter_map(|line| line.split(' ').next());
    let named: BTreeSet<&str> = names.flat_map(|name| name.split(['.', '+'])).collect();
    let missing: Vec<&String> = enums.iter().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "no message shows these, and `of_one_byte` does not list them: {missing:?}");
}
