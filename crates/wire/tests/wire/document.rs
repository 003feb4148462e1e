//! `docs/WIRE.md` says what the code does, as far as a test can tell.

use ramlace_base::{ErrorKind, Redirect, limits};
use ramlace_wire::preamble::{PREAMBLE_BYTES, PREAMBLE_MAGIC, PREAMBLE_PAYLOAD_BYTES_MAX};
use ramlace_wire::{Asker, HEADER_BYTES, Header, Kind, MAGIC, PROTOCOL_VERSION};

const WIRE: &str = include_str!("../../../../docs/WIRE.md");

/// Table lines as their cells.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let lines = WIRE.lines().filter(|line| line.starts_with('|'));
    lines.map(|line| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect())
}

#[test]
fn every_message_stands_in_the_tables_once_with_its_number() {
    let mut told: Vec<(String, String)> = rows()
        .filter(|cells| cells[0].starts_with("0x"))
        .map(|cells| (cells[0].to_owned(), cells[1].to_owned()))
        .collect();
    let mut real: Vec<(String, String)> =
        Kind::ALL.iter().map(|kind| (format!("{:#06x}", kind.number()), format!("{kind:?}"))).collect();
    told.sort();
    real.sort();
    let missing: Vec<_> = real.iter().filter(|row| !told.contains(row)).collect();
    let unknown: Vec<_> = told.iter().filter(|row| !real.contains(row)).collect();
    assert!(missing.is_empty(), "docs/WIRE.md has no row for {missing:?}");
    assert!(
        unknown.is_empty(),
        "docs/WIRE.md has rows for what is no message, or has another number: {unknown:?}"
    );
    assert_eq!(told, real, "docs/WIRE.md has a row twice");
}

#[test]
fn tables_of_messages_say_what_their_rows_say() {
    for cells in rows().filter(|cells| cells[0].starts_with("0x")) {
        let kind = *Kind::ALL.iter().find(|kind| format!("{kind:?}") == cells[1]).unwrap();
        let row = kind.row();
        let asker = match row.asker {
            Asker::Anyone => "anyone",
            Asker::Session => "session",
            Asker::Owner => "owner",
            Asker::Peer => "server",
        };
        match cells[..] {
            [_, _, changes, told, _, _] => {
                assert_eq!((changes, told), (if row.changes { "yes" } else { "no" }, asker), "{kind:?}");
            }
            // What servers alone say to each other has a table without these columns.
            [_, _, _, _] => assert_eq!(asker, "server", "{kind:?}"),
            _ => panic!("{cells:?}"),
        }
    }
}

#[test]
fn every_error_stands_in_the_table_with_its_number_and_errno() {
    let cells: Vec<Vec<&str>> = rows().collect();
    let kinds = ErrorKind::ALL.iter().map(|kind| (*kind, format!("{kind:?}")));
    let redirects =
        Redirect::ALL.iter().map(|redirect| (ErrorKind::Redirect(*redirect), format!("{redirect:?}")));
    for (kind, name) in kinds.chain(redirects) {
        let entry = [kind.number().to_string(), name, kind.errno_name().to_owned()];
        let found = cells.iter().any(|row| row.windows(3).any(|cells| cells == entry));
        assert!(found, "{entry:?} is not in WIRE.md");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// The tables of fields fill header and preamble without a gap.
#[test]
fn tables_of_fields_leave_no_gap() {
    let mut ends = Vec::new();
    let mut at = 0;
    for cells in rows().filter(|cells| cells.len() == 4) {
        let (Ok(offset), Ok(size)) = (cells[0].parse::<usize>(), cells[1].parse::<usize>()) else { continue };
        if offset == 0 && at != 0 {
            ends.push(at);
            at = 0;
        }
        assert_eq!(offset, at, "{}", cells[2]);
        at = offset + size;
    }
    ends.push(at);
    assert_eq!(ends, [PREAMBLE_BYTES, HEADER_BYTES]);
}

/// A row's offset is where the field's value lies in real bytes.
#[test]
fn header_fields_lie_where_the_table_says() {
    let offset = |field: &str| {
        let row = rows().filter(|cells| cells.len() == 4 && cells[2] == field).last();
        row.unwrap_or_else(|| panic!("no row for {field}"))[0].parse::<usize>().unwrap()
    };
    let base = Header::request(Kind::GetMap);
    let check = |field: &str, header: Header, value: u64, size: usize| {
        let bytes = header.encode();
        let at = offset(field);
        assert_eq!(bytes[at..at + size], value.to_le_bytes()[..size], "{field}");
    };
    let number = 0x0002_0304;
    check("version", base, PROTOCOL_VERSION.into(), 2);
    check("kind", base, Kind::GetMap.number().into(), 2);
    check("flags", Header { flags: 5, ..base }, 5, 2);
    check("slot", Header { slot: ramlace_base::Slot(0x0203), ..base }, 0x0203, 2);
    check("deadline_millis", Header { deadline_millis: number, ..base }, number.into(), 4);
    check("call", Header { call: number, ..base }, number.into(), 4);
    check("body_bytes", Header { body_bytes: number, ..base }, number.into(), 4);
    check("data_bytes", Header { data_bytes: number, ..base }, number.into(), 4);
    check("epoch", Header { epoch: ramlace_base::Epoch(number), ..base }, number.into(), 4);
    check("outstanding", Header { outstanding: number, ..base }, number.into(), 4);
    let sequence = 0x0102_0304_0506_0708;
    check("sequence", Header { sequence: ramlace_base::Sequence(sequence), ..base }, sequence, 8);
}

#[test]
fn constants_are_those_of_the_code() {
    for sentence in [
        format!("The protocol's version is **{PROTOCOL_VERSION}**"),
        hex(&PREAMBLE_MAGIC),
        hex(&MAGIC.to_le_bytes()),
        format!("at most {PREAMBLE_PAYLOAD_BYTES_MAX} |"),
        format!("body_bytes | at most {} MiB", limits::BODY_BYTES_MAX >> 20),
        format!("data_bytes | at most {} MiB", limits::DATA_BYTES_MAX >> 20),
        format!("more than {} servers", limits::CHAIN_SERVERS_MAX),
        format!("holds at most {} connections", limits::CONNECTIONS_UNPROVEN_MAX),
        format!("may take {} seconds", limits::HANDSHAKE_MILLIS_MAX / 1000),
    ] {
        assert!(WIRE.contains(&sentence), "WIRE.md does not say '{sentence}'");
    }
}
