//! Bytes, modes, times and tables as people read them.

use ramlace_base::Timestamp;
pub use ramlace_base::path::escaped;
use ramlace_base::units::count;
use ramlace_wire::{DeviceNumbers, FileKind};
use serde_json::{Value, json};

/// Adds a name to a JSON object: as text, and, where that loses something, the exact bytes in hex.
pub fn put_name(object: &mut Value, key: &str, bytes: &[u8]) {
    object[key] = json!(String::from_utf8_lossy(bytes));
    if std::str::from_utf8(bytes).is_err() {
        object[format!("{key}_hex")] = json!(hex(bytes));
    }
}

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `file`, `directory`, `symlink`, `fifo`, `socket`, `character device` or `block device`.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// A device's numbers as `ls` writes them: `major, minor`.
pub fn device_text(device: u32) -> String {
    let DeviceNumbers { major, minor } = DeviceNumbers::of(device);
    format!("{major}, {minor}")
}

/// Kind and permissions as `ls` writes them: `-rw-r--r--`.
pub fn mode_text(kind: FileKind, mode: u16) -> String {
    let mut text = String::from(match kind {
        FileKind::File => "-",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
    });
    // For user, group and others: the bit that changes the meaning of x, and its letter.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        text.push(if mode >> shift & 4 != 0 { 'r' } else { '-' });
        text.push(if mode >> shift & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode >> shift & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A moment in UTC to the second: `2026-01-31 17:05:09Z`.
pub fn time_text(time: Timestamp) -> String {
    let seconds = time.seconds();
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days since 1970-01-01.
///
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A duration in its two largest units: `3d 4h`, `5m 9s`, `12s`.
pub fn duration_text(millis: u64) -> String {
    let seconds = millis / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{}s", seconds % 60),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// A part of a whole in percent; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// Lines with aligned columns; numbers (columns in `right`) stand to the right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `3 of 4 servers answer`.
pub fn answering(answering: usize, servers: usize) -> String {
    let verb = if answering == 1 { "answers" } else { "answer" };
    format!("{answering} of {} {verb}", count(servers as u64, "server"))
}

/// Why a server, perhaps of a host, says nothing. The library names the server where it knows which one it asked.
pub fn silence(server: u16, host: Option<&str>, why: &str) -> String {
    let host = host.map_or(String::new(), |host| format!("host {host}: "));
    let named = format!("server {server} at ");
    match why.starts_with(&named) {
        true => format!("{host}{}", escaped(why.as_bytes())),
        false => format!("{host}server {server} does not answer: {}", escaped(why.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strange_bytes_are_kept_in_json() {
        let mut object = json!({});
        put_name(&mut object, "name", b"a\xff");
        assert_eq!(object, json!({"name": "a\u{fffd}", "name_hex": "61ff"}));
        put_name(&mut object, "path", b"/a");
        assert_eq!(object["path"], "/a");
        assert!(object.get("path_hex").is_none());
    }

    #[test]
    fn modes_are_written_as_ls_does() {
        for (kind, mode, text) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::File, 0o4755, "-rwsr-xr-x"),
            (FileKind::File, 0o6640, "-rwSr-S---"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
            (FileKind::Fifo, 0o644, "prw-r--r--"),
            (FileKind::Socket, 0o755, "srwxr-xr-x"),
            (FileKind::CharDevice, 0o666, "crw-rw-rw-"),
            (FileKind::BlockDevice, 0o660, "brw-rw----"),
        ] {
            assert_eq!(mode_text(kind, mode), text);
        }
    }

    #[test]
    fn times_are_in_utc() {
        let at = |seconds: i64| time_text(Timestamp { nanos: seconds * 1_000_000_000 });
        assert_eq!(at(0), "1970-01-01 00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29 23:59:59Z");
        assert_eq!(at(4_102_444_800), "2100-01-01 00:00:00Z");
        assert_eq!(at(-1), "1969-12-31 23:59:59Z");
    }

    #[test]
    fn durations_name_their_two_largest_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (309, "5m 9s"), (7_260, "2h 1m"), (273_600, "3d 4h")]
        {
            assert_eq!(duration_text(seconds * 1000), text);
        }
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [vec!["name".into(), "size".into()], vec!["ä".into(), "12".into()]];
        assert_eq!(table(&rows, &[1]), ["name  size", "ä       12"]);
        assert_eq!(percent(1, 0), 0.0);
    }
}
