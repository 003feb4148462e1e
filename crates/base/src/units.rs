//! Sizes as people write and read them: `4GiB`, `2 MiB`, `1500`.

use crate::{Error, ErrorKind, Result};

const UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Reads a size such as `4GiB`, `1.5 GiB`, `64K` (1024-based, as `cp` and `dd` have it) or `4096`.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let refuse = || {
        Error::new(
            ErrorKind::Invalid,
            format!("'{text}' is no size; write a number and a unit, such as 4GiB, 512MiB or 65536"),
        )
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..split], trimmed[split..].trim());
    let single_letter = match unit {
        "k" | "K" => Some(1u64 << 10),
        "m" | "M" => Some(1 << 20),
        "g" | "G" => Some(1 << 30),
        "t" | "T" => Some(1 << 40),
        _ => None,
    };
    let scale = single_letter
        .or_else(|| UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|unit| unit.1))
        .ok_or_else(refuse)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(refuse);
    }
    let value: f64 = number.parse().map_err(|_| refuse())?;
    let bytes = value * scale as f64;
    if bytes.is_finite() && bytes < 9e18 { Ok(bytes as u64) } else { Err(refuse()) }
}

/// Writes a size with at most one decimal: `1.5 GiB`, `64 KiB`, `12 B`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let text = format!("{value:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Writes a size that a user has chosen, without rounding it: `3 MiB`, `65537 B`.
#[must_use]
pub fn format_bytes_exactly(bytes: u64) -> String {
    let (unit, scale) =
        [("PiB", 1u64 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
            .into_iter()
            .find(|(_, scale)| bytes > 0 && bytes.is_multiple_of(*scale))
            .unwrap_or(("B", 1));
    format!("{} {unit}", bytes / scale)
}

/// A number of things, with the word for one of them or for several: `1 server`, `3 entries`.
#[must_use]
pub fn count(number: u64, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        // A vowel before it (`key`) keeps it.
        (_, Some(stem)) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{number} {stem}ies"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64K", 65_536),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("1.5GiB", 1_610_612_736),
            ("2MB", 2_000_000),
            (" 4GiB ", 4 << 30),
        ] {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "GiB", "-1", "4 GiBs", "1..5G", "99999999999999999999", "1e3", "20000000PiB"] {
            assert_eq!(parse_bytes(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn chosen_sizes_are_not_rounded() {
        for (bytes, text) in [(3 << 20, "3 MiB"), (65_537, "65537 B"), (1 << 30, "1 GiB"), (0, "0 B")] {
            assert_eq!(format_bytes_exactly(bytes), text);
        }
    }

    #[test]
    fn one_thing_is_no_things() {
        for (number, noun, text) in [
            (1, "server", "1 server"),
            (0, "server", "0 servers"),
            (2, "server", "2 servers"),
            (1, "entry", "1 entry"),
            (7, "copy", "7 copies"),
            (2, "key", "2 keys"),
        ] {
            assert_eq!(count(number, noun), text);
        }
    }

    #[test]
    fn sizes_are_written_short() {
        assert_eq!(format_bytes(12), "12 B");
        assert_eq!(format_bytes(65_536), "64 KiB");
        assert_eq!(format_bytes(1_610_612_736), "1.5 GiB");
    }
}
