//! What `find` asks of each name.

use ramlace_base::{Error, ErrorKind, Result, Timestamp};
use ramlace_wire::FileKind;

use crate::glob::Glob;
use crate::tree::Node;

/// Everything that must hold.
#[derive(Clone, Debug)]
pub struct Tests {
    /// Of the last name.
    pub names: Vec<Glob>,
    /// Of the whole path.
    pub path: Option<Glob>,
    /// One of these; all when there is none.
    pub kinds: Vec<FileKind>,
    /// Of files and links.
    pub size: Option<SizeTest>,
    /// How long ago it was written.
    pub ages: Vec<TimeTest>,
    /// Written after that.
    pub newer_than: Option<Timestamp>,
    /// From when ages count.
    pub now: Timestamp,
}

impl Tests {
    /// Whether names and kinds alone do not decide.
    pub fn need_attributes(&self) -> bool {
        self.size.is_some() || !self.ages.is_empty() || self.newer_than.is_some()
    }

    /// Whether all of it holds. With [`Tests::need_attributes`] the node has its attributes.
    pub fn hold(&self, node: &Node<'_>) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&node.kind))
            && self.names.iter().all(|glob| glob.matches(node.name))
            && self.path.as_ref().is_none_or(|glob| glob.matches(node.path))
            && (!self.need_attributes() || self.hold_of_attributes(node))
    }

    fn hold_of_attributes(&self, node: &Node<'_>) -> bool {
        let attributes = node.attributes();
        // The "size" of a directory is how many entries it has.
        let size_holds = |test: SizeTest| node.kind != FileKind::Directory && test.holds(attributes.size);
        self.size.is_none_or(size_holds)
            && self.ages.iter().all(|test| test.holds(attributes.modified, self.now))
            && self.newer_than.is_none_or(|moment| attributes.modified > moment)
    }
}

/// `+N`, `-N` or `N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    More(i64),
    Less(i64),
    Exactly(i64),
}

impl Compare {
    fn parse(text: &str) -> Option<Compare> {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_number)?;
        Some(match text.as_bytes()[0] {
            b'+' => Compare::More(number),
            b'-' => Compare::Less(number),
            _ => Compare::Exactly(number),
        })
    }

    fn holds(self, value: i64) -> bool {
        match self {
            Compare::More(number) => value > number,
            Compare::Less(number) => value < number,
            Compare::Exactly(number) => value == number,
        }
    }
}

/// A size in units, rounded up: a file of one byte is 1M.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeTest {
    compare: Compare,
    unit: u64,
}

impl SizeTest {
    /// Reads `+100M`, `-4k`, `0`, `512c`.
    pub fn parse(text: &str) -> Result<SizeTest> {
        let end = text.rfind(|letter: char| letter.is_ascii_digit()).map_or(0, |at| at + 1);
        let unit = match &text[end..] {
            "c" => Some(1),
            "" | "b" => Some(512),
            "k" | "K" | "KiB" => Some(1 << 10),
            "M" | "MiB" => Some(1 << 20),
            "G" | "GiB" => Some(1 << 30),
            "T" | "TiB" => Some(1 << 40),
            _ => None,
        };
        match (Compare::parse(&text[..end]), unit) {
            (Some(compare), Some(unit)) => Ok(SizeTest { compare, unit }),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "'{}' is no size to compare with; write [+-]N and a unit: c (bytes), k, M, G, T, or none for 512 bytes",
                    text.escape_debug()
                ),
            )),
        }
    }

    fn holds(self, bytes: u64) -> bool {
        self.compare.holds(i64::try_from(bytes.div_ceil(self.unit)).unwrap_or(i64::MAX))
    }
}

/// An age in whole units, the rest dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeTest {
    compare: Compare,
    unit_nanos: i64,
}

impl TimeTest {
    /// Reads days: `+7`, `-1`, `0`.
    pub fn days(text: &str) -> Result<TimeTest> {
        TimeTest::parse(text, 86_400_000_000_000)
    }

    /// Reads minutes.
    pub fn minutes(text: &str) -> Result<TimeTest> {
        TimeTest::parse(text, 60_000_000_000)
    }

    fn parse(text: &str, unit_nanos: i64) -> Result<TimeTest> {
        let compare = Compare::parse(text).ok_or_else(|| {
            let text = text.escape_debug();
            Error::new(ErrorKind::Invalid, format!("'{text}' is no age; write N, +N (more) or -N (less)"))
        })?;
        Ok(TimeTest { compare, unit_nanos })
    }

    fn holds(self, modified: Timestamp, now: Timestamp) -> bool {
        let age_nanos = now.nanos.saturating_sub(modified.nanos);
        self.compare.holds(age_nanos.div_euclid(self.unit_nanos))
    }
}

/// One letter of `--type`.
pub fn parse_kind(text: &str) -> Result<FileKind> {
    match text {
        "f" => Ok(FileKind::File),
        "d" => Ok(FileKind::Directory),
        "l" => Ok(FileKind::Symlink),
        "p" => Ok(FileKind::Fifo),
        "s" => Ok(FileKind::Socket),
        "c" => Ok(FileKind::CharDevice),
        "b" => Ok(FileKind::BlockDevice),
        _ => {
            let text = text.escape_debug();
            Err(Error::new(
                ErrorKind::Invalid,
                format!("'{text}' is no kind of thing in a pool; write f, d, l, p, s, c or b"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_as_find_compares_them() {
        for (text, bytes, expected) in [
            ("0", 0, true),
            ("1", 1, true),
            ("1", 512, true),
            ("1", 513, false),
            ("+1", 513, true),
            ("+0", 1, true),
            ("-1", 0, true),
            ("-1M", 1, false),
            ("1M", 1, true),
            ("+1M", 1 << 20, false),
            ("+1M", (1 << 20) + 1, true),
            ("-1025c", 1024, true),
            ("1024c", 1024, true),
            ("2k", 1025, true),
            ("+1G", 3 << 30, true),
            ("1KiB", 1000, true),
            ("-9223372036854775807c", u64::MAX, false),
        ] {
            assert_eq!(SizeTest::parse(text).unwrap().holds(bytes), expected, "{text} of {bytes}");
        }
        for text in ["", "+", "k", "1x", "1.5M", "--1", "+-1", "99999999999999999999", "1 M", "é1", "1é"] {
            assert_eq!(SizeTest::parse(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn ages_are_whole_units() {
        let now = Timestamp { nanos: 1_700_000_000_000_000_000 };
        let ago = |hours: i64| Timestamp { nanos: now.nanos - hours * 3_600_000_000_000 };
        for (text, hours, expected) in [
            ("0", 23, true),
            ("0", 24, false),
            ("1", 24, true),
            ("1", 47, true),
            ("+1", 47, false),
            ("+1", 48, true),
            ("-1", 23, true),
            ("-1", 24, false),
            // Tomorrow is less than nothing ago.
            ("-0", -1, true),
            ("0", -1, false),
        ] {
            assert_eq!(TimeTest::days(text).unwrap().holds(ago(hours), now), expected, "{text}, {hours} h");
        }
        assert!(TimeTest::minutes("+59").unwrap().holds(ago(1), now));
        for text in ["", "x", "1d", "+", "1.5"] {
            assert_eq!(TimeTest::days(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }
}
