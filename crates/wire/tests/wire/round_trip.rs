//! Every message comes back from its bytes, and none is missing from the tests.

use crate::common::{Source, bodies, header_sample};
use proptest::prelude::*;
use ramlace_base::limits::{DATA_BYTES_MAX, ERROR_TEXT_BYTES_MAX};
use ramlace_base::{Epoch, Error, ErrorKind, Generation, InodeId, Sequence, Slot, Timestamp};
use ramlace_wire::namespace::{GetAttributes, InodeInfo, SetLayout};
use ramlace_wire::preamble::{PREAMBLE_BYTES, Preamble, Status};
use ramlace_wire::{
    Attributes, ErrorBody, FileKind, FileRules, FrameHeader, HEADER_BYTES, Header, Kind, Layout, LayoutHints,
    Mode, PROTOCOL_VERSION, Request, decode_body, encode_body,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_body_comes_back(words in prop::collection::vec(any::<u64>(), 0..200)) {
        for body in bodies() {
            (body.sample)(&mut Source::new(&words));
            (body.sample)(&mut Source::full(&words));
        }
    }

    #[test]
    fn every_header_comes_back(words in prop::collection::vec(any::<u64>(), 0..30)) {
        let header = header_sample(&mut Source::new(&words));
        let bytes = header.encode();
        prop_assert_eq!(Header::decode(&bytes), Ok(header));
        prop_assert_eq!(bytes.len(), size_of::<FrameHeader>());
    }

    #[test]
    fn one_wrong_bit_in_a_header_is_noticed(words in prop::collection::vec(any::<u64>(), 0..30)) {
        let bytes = header_sample(&mut Source::new(&words)).encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&damaged).is_err(), "bit {}", bit);
        }
    }

    #[test]
    fn preambles_come_back(status in 0u8..3, role in any::<u8>(), payload in 0usize..=512) {
        let status = Status::try_from(status).unwrap();
        let preamble = Preamble { role, ..Preamble::new(status, payload) };
        prop_assert_eq!(preamble.version, PROTOCOL_VERSION);
        prop_assert_eq!(Preamble::decode(&preamble.encode()), Ok(preamble));
    }

    #[test]
    fn errors_keep_kind_and_text(number in 1u16..=27, text in "\\PC{0,600}") {
        let error = Error::new(ErrorKind::from_number(number).unwrap(), text);
        let told = ErrorBody::new(&error).into_error();
        prop_assert_eq!(told.kind(), error.kind());
        prop_assert!(error.message().starts_with(told.message()));
        prop_assert!(told.message().len() + 4 > error.message().len().min(ERROR_TEXT_BYTES_MAX));
        prop_assert!(told.message().len() <= ERROR_TEXT_BYTES_MAX);
    }
}

#[test]
fn no_message_is_missing_from_the_list() {
    let bodies = bodies();
    let requests: Vec<Kind> =
        bodies.iter().filter(|body| body.name.ends_with(".request")).map(|body| body.kind).collect();
    let missing: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !requests.contains(kind)).collect();
    assert!(missing.is_empty(), "{missing:?}: not in messages! (crates/wire/tests/wire/common/mod.rs)");
    assert_eq!(requests.len(), Kind::ALL.len());
    // And an error, and what stands in front of a body.
    assert_eq!(bodies.len(), 2 * Kind::ALL.len() + 3);
}

#[test]
fn refusals_of_headers_say_why() {
    let good = Header { sequence: Sequence(5), outstanding: 2, ..Header::request(Kind::ReadChunk) };
    for (bad, kind, words) in [
        (Header { data_bytes: DATA_BYTES_MAX + 1, ..good }, ErrorKind::TooLarge, "ReadChunk"),
        (Header { body_bytes: u32::MAX, ..good }, ErrorKind::TooLarge, "4294967295"),
        (Header { deadline_millis: u32::MAX, ..good }, ErrorKind::Protocol, "deadline"),
        (Header { outstanding: 6, ..good }, ErrorKind::Protocol, "oldest waiting"),
        (Header { flags: 1 << 15, ..good }, ErrorKind::Protocol, "no meaning"),
    ] {
        let error = Header::decode(&bad.encode()).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.message().contains(words), "{error}");
    }
    let error =
        Header::decode(b"GET / HTTP/1.1\r\nHost: here\r\nAccept: all kinds of things, please\r").unwrap_err();
    assert!(error.message().contains("no ramlace frame"), "{error}");
}

#[test]
fn strangers_are_told_apart_by_the_greeting() {
    let good = Preamble::new(Status::Welcome, 48).encode();
    let spoilt = |at: usize, value: u8| {
        let mut bytes: [u8; PREAMBLE_BYTES] = good;
        bytes[at] = value;
        Preamble::decode(&bytes)
    };
    assert_eq!(spoilt(8, 99).unwrap().version, 99, "another version is answered by the caller");
    for (at, value, words) in
        [(0, b'R', "does not speak ramlace"), (10, 3, "unknown status"), (14, 1, "no sense")]
    {
        assert!(spoilt(at, value).unwrap_err().message().contains(words));
    }
}

// SEMANTICS 145.3
#[test]
fn rules_of_a_file_are_one_byte_or_none() {
    let inode = InodeId(7);
    let bytes = |hints| encode_body(&SetLayout { inode, hints });
    let without = bytes(LayoutHints::default());
    for mode in [None].into_iter().chain(Mode::ALL.map(Some)) {
        for reserve in [false, true] {
            let hints = LayoutHints::of_file(FileRules { mode, reserve });
            let bytes = bytes(hints);
            assert_eq!(decode_body::<SetLayout>(Kind::SetLayout, &bytes).unwrap().hints, hints);
            let more = usize::from(mode.is_some() || reserve);
            assert_eq!(bytes.len(), without.len() + more, "{hints:?}");
        }
    }
}

// SEMANTICS 140.7
#[test]
fn a_mode_that_nobody_knows_is_no_message() {
    let inode = InodeId(7);
    for mode in Mode::ALL {
        let hints = LayoutHints::of_mode(Some(mode));
        let mut bytes = encode_body(&SetLayout { inode, hints });
        assert_eq!(decode_body::<SetLayout>(Kind::SetLayout, &bytes).unwrap().hints.rules.mode, Some(mode));
        assert_eq!(Mode::named(mode.name().as_bytes()), Some(mode));
        for wrong in [0, 4, 127, 0x84, 0xff] {
            *bytes.last_mut().unwrap() = wrong;
            assert!(decode_body::<SetLayout>(Kind::SetLayout, &bytes).is_err(), "{wrong}");
        }
    }
    assert_eq!(Mode::named(b""), None);
}

// SEMANTICS 140.7
#[test]
fn a_file_hands_nothing_down_and_has_a_mode_alone() {
    let attributes = |kind| {
        let zero = Timestamp { nanos: 0 };
        let (inode, generation) = (InodeId(7), Generation::FIRST);
        let (accessed, modified, changed, created) = (zero, zero, zero, zero);
        let (mode, uid, gid, links, size, device) = (0o644, 0, 0, 1, 0, 0);
        let (xattrs, allocated) = (false, None);
        Attributes {
            inode,
            kind,
            mode,
            uid,
            gid,
            links,
            size,
            device,
            generation,
            accessed,
            modified,
            changed,
            created,
            xattrs,
            allocated,
        }
    };
    let layout = Layout {
        stripe_unit: 1 << 21,
        width: 1,
        base_slot: Slot(0),
        stride: 1,
        copies: 1,
        created: Epoch(1),
    };
    let fits = |kind, hints| {
        let layout = (kind == FileKind::File).then_some(layout);
        let (named, partitions) = (Vec::new(), Vec::new());
        let info = InodeInfo {
            attributes: attributes(kind),
            layout,
            hints,
            named,
            partitions,
            inline: false,
            may_change_unnoticed: false,
        };
        GetAttributes { inode: InodeId(7) }.fits(&info)
    };
    let mode = LayoutHints::of_mode(Some(Mode::Strict));
    let width = LayoutHints { width: Some(1), ..mode };
    for (kind, with_mode, with_width) in [
        (FileKind::File, true, false),
        (FileKind::Directory, true, true),
        (FileKind::Symlink, false, false),
        (FileKind::Fifo, false, false),
    ] {
        assert!(fits(kind, LayoutHints::default()));
        assert_eq!((fits(kind, mode), fits(kind, width)), (with_mode, with_width), "{kind:?}");
    }
}
