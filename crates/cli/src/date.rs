//! Moments as people write them: `2026-01-31 17:05`, `@1700000000`, `yesterday`, `3 hours ago`, and the digits
//! of `touch -t`.

use ramlace_base::{Error, ErrorKind, Result, Timestamp};

use crate::local_time::{WallClock, clock_of, seconds_of};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// What may be written; for the help text of options.
pub const FORMS: &str = "a date such as 2026-01-31, '2026-01-31 17:05:09.5' or 2026-01-31T17:05Z, @SECONDS, now, \
                         today, yesterday, tomorrow, or '3 hours ago'; without a zone it is local time";

/// Reads one of [`FORMS`]; `now` is what it is relative to.
pub fn parse(text: &str, now: Timestamp) -> Result<Timestamp> {
    let trimmed = text.trim();
    let found = if let Some(seconds) = trimmed.strip_prefix('@') {
        since_epoch(seconds)
    } else {
        word(trimmed, now).or_else(|| relative(trimmed, now)).or_else(|| calendar(trimmed))
    };
    found.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("'{}' is no date; write {FORMS}", text.escape_debug()))
    })
}

/// Reads `[[CC]YY]MMDDhhmm[.ss]` in local time; without a year it is that of `now`.
pub fn parse_stamp(text: &str, now: Timestamp) -> Result<Timestamp> {
    stamp(text, now).ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            format!(
                "'{}' is no time; write [[CC]YY]MMDDhhmm[.ss], such as 202601311705.09",
                text.escape_debug()
            ),
        )
    })
}

/// The moment it is.
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { nanos: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX) }
}

fn stamp(text: &str, now: Timestamp) -> Option<Timestamp> {
    let (digits, second) = match text.split_once('.') {
        Some((digits, second)) if second.len() == 2 => (digits, number(second)?),
        Some(_) => return None,
        None => (text, 0),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match digits.len() {
        8 => (i64::from(clock_of(now.seconds())?.year), digits),
        // POSIX: 69 to 99 are of the last century.
        10 => match number(&digits[..2])? {
            year @ 69.. => (1900 + year, &digits[2..]),
            year => (2000 + year, &digits[2..]),
        },
        12 => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| number(&rest[at..at + 2]);
    let clock = clock(year, part(0)?, part(2)?, part(4)?, part(6)?, second)?;
    moment(seconds_of(&clock)?, 0)
}

/// `1700000000`, `-1.5`.
fn since_epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds = number(whole)?;
    let nanos = nanos_of(fraction)?;
    moment(seconds, if whole.starts_with('-') { -nanos } else { nanos })
}

fn word(text: &str, now: Timestamp) -> Option<Timestamp> {
    let days = match text.to_ascii_lowercase().as_str() {
        "now" | "today" => 0,
        "yesterday" => -1,
        "tomorrow" => 1,
        _ => return None,
    };
    add(now, days * DAY_SECONDS)
}

/// `3 hours ago`, `-2 days`, `+1 week`.
fn relative(text: &str, now: Timestamp) -> Option<Timestamp> {
    let mut words = text.split_whitespace();
    let count = number(words.next()?)?;
    let unit = words.next()?.to_ascii_lowercase();
    let sign = match (words.next(), words.next()) {
        (None, None) => 1,
        (Some("ago"), None) => -1,
        _ => return None,
    };
    let unit = match unit.strip_suffix('s').unwrap_or(&unit) {
        "sec" | "second" => 1,
        "min" | "minute" => 60,
        "hour" => 3600,
        "day" => DAY_SECONDS,
        "week" => 7 * DAY_SECONDS,
        _ => return None,
    };
    add(now, count.checked_mul(unit)?.checked_mul(sign)?)
}

fn add(now: Timestamp, seconds: i64) -> Option<Timestamp> {
    let nanos = seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(now.nanos)?;
    Some(Timestamp { nanos })
}

/// `2026-01-31`, with a time behind a blank or a T, and a zone behind that.
fn calendar(text: &str) -> Option<Timestamp> {
    let (date, rest) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], text[at + 1..].trim_start()),
        None => (text, ""),
    };
    let mut parts = date.split('-');
    let (year, month, day) = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    if parts.next().is_some() || date.len() < 8 {
        return None;
    }
    let (time, zone) = split_zone(rest);
    let (hour, minute, second, nanos) =
        if time.is_empty() && zone.is_empty() { (0, 0, 0, 0) } else { time_of_day(time)? };
    let clock = clock(year, month, day, hour, minute, second)?;
    let seconds = match zone {
        "" => seconds_of(&clock)?,
        zone => utc_seconds(&clock) - zone_seconds(zone)?,
    };
    moment(seconds, nanos)
}

/// The time, and what follows it: a Z, UTC, or a sign and digits.
fn split_zone(text: &str) -> (&str, &str) {
    let end = text.find(|letter: char| !matches!(letter, '0'..='9' | ':' | '.' | ',')).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// `17:05`, `17:05:09`, `17:05:09.25`.
fn time_of_day(text: &str) -> Option<(i64, i64, i64, i64)> {
    let mut parts = text.split(':');
    let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
    let (second, fraction) = match parts.next() {
        Some(second) => second.split_once(['.', ',']).unwrap_or((second, "")),
        None => ("0", ""),
    };
    if parts.next().is_some() {
        return None;
    }
    Some((hour, minute, number(second)?, nanos_of(fraction)?))
}

/// Seconds east of Greenwich: `Z`, `UTC`, `+02`, `+0200`, `-09:30`.
fn zone_seconds(zone: &str) -> Option<i64> {
    if ["z", "utc", "gmt"].contains(&zone.to_ascii_lowercase().as_str()) {
        return Some(0);
    }
    let (sign, digits) = match zone.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match (digits.len(), digits.split_once(':')) {
        (5, Some((hours, minutes))) => (hours, minutes),
        (4, None) => digits.split_at_checked(2)?,
        (2, None) => (digits, "0"),
        _ => return None,
    };
    let (hours, minutes) = (unsigned(hours)?, unsigned(minutes)?);
    (hours <= 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// A clock that some wall could show.
fn clock(year: i64, month: i64, day: i64, hour: i64, minute: i64, second: i64) -> Option<WallClock> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let fits = (1..=days).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    let small = |number: i64| u8::try_from(number).ok();
    fits.then_some(WallClock {
        year: i32::try_from(year).ok()?,
        month: small(month)?,
        day: small(day)?,
        hour: small(hour)?,
        minute: small(minute)?,
        second: small(second)?,
    })
}

/// Seconds since 1970 when clocks in Greenwich show this.
///
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn utc_seconds(clock: &WallClock) -> i64 {
    let (month, day) = (i64::from(clock.month), i64::from(clock.day));
    let year = i64::from(clock.year) - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    days * DAY_SECONDS + i64::from(clock.hour) * 3600 + i64::from(clock.minute) * 60 + i64::from(clock.second)
}

fn moment(seconds: i64, nanos: i64) -> Option<Timestamp> {
    let nanos = seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(nanos)?;
    Some(Timestamp { nanos })
}

/// Digits with or without a sign.
fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Digits alone.
fn unsigned(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| number(text))?
}

/// Up to nine digits behind a point; more say nothing more.
fn nanos_of(fraction: &str) -> Option<i64> {
    if fraction.is_empty() {
        return Some(0);
    }
    unsigned(fraction)?;
    format!("{fraction:0<9}").get(..9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp { nanos: 1_700_000_000 * NANOS_PER_SECOND + 5 };

    #[test]
    fn dates_with_a_zone_mean_one_moment() {
        // What `date -u -d TEXT +%s.%N` of GNU coreutils says.
        for (text, seconds, nanos) in [
            ("1970-01-01T00:00Z", 0, 0),
            ("2000-02-29 23:59:59Z", 951_868_799, 0),
            ("2026-01-31 17:05:09.5 +0200", 1_769_871_909, 500_000_000),
            ("2026-01-31T17:05:09,25-09:30", 1_769_913_309, 250_000_000),
            ("2026-01-31 17:05 UTC", 1_769_879_100, 0),
            ("2026-01-31t17:05+01", 1_769_875_500, 0),
            ("1969-12-31 23:59:59Z", -1, 0),
            ("@1700000000", 1_700_000_000, 0),
            ("@1700000000.123456789", 1_700_000_000, 123_456_789),
            ("@-1.5", -2, 500_000_000),
            ("@0.1", 0, 100_000_000),
            (" now ", 1_700_000_000, 5),
            ("Yesterday", 1_699_913_600, 5),
            ("tomorrow", 1_700_086_400, 5),
            ("3 hours ago", 1_699_989_200, 5),
            ("-2 days", 1_699_827_200, 5),
            ("+1 week", 1_700_604_800, 5),
            ("90 secs ago", 1_699_999_910, 5),
        ] {
            let moment = parse(text, NOW).unwrap();
            assert_eq!((moment.seconds(), moment.subsecond_nanos()), (seconds, nanos), "{text}");
        }
    }

    #[test]
    fn dates_without_a_zone_are_local() {
        for text in ["2026-07-15", "2026-07-15 13:05", "2026-07-15T13:05:09", "2024-02-29 00:00:00"] {
            let moment = parse(text, NOW).unwrap();
            let clock = clock_of(moment.seconds()).unwrap();
            let (year, day) = (clock.year, clock.day);
            assert!(text.starts_with(&format!("{year}-{:02}-{day:02}", clock.month)), "{text}: {clock:?}");
        }
        assert_eq!(parse_stamp("202607151305.09", NOW).unwrap(), parse("2026-07-15 13:05:09", NOW).unwrap());
        assert_eq!(parse_stamp("2607151305", NOW).unwrap(), parse("2026-07-15 13:05", NOW).unwrap());
        assert_eq!(parse_stamp("7007151305", NOW).unwrap(), parse("1970-07-15 13:05", NOW).unwrap());
        let year = clock_of(NOW.seconds()).unwrap().year;
        assert_eq!(
            parse_stamp("07151305", NOW).unwrap(),
            parse(&format!("{year}-07-15 13:05"), NOW).unwrap()
        );
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            "x",
            "@",
            "@x",
            "@1.x",
            "@99999999999999",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-04-31",
            "2026-01-00",
            "2026-01-31 24:00",
            "2026-01-31 17",
            "2026-01-31 17:60",
            "2026-01-31 17:05:61",
            "2026-01-31 17:05 +1",
            "2026-01-31 17:05 +25:00",
            "2026-01-31 17:05 CET!",
            "26-01-31",
            "2026-01-31 Z",
            "3 hours before",
            "3 moons ago",
            "hours ago",
            "9999999999999 weeks",
            "2026-01-31 17:05é",
            "9999-01-01Z",
            "2500-01-01 00:00Z",
        ] {
            let error = parse(text, NOW).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        }
        for text in [
            "",
            "1",
            "0131170",
            "13311705",
            "02301705",
            "01312405",
            "01311705.6",
            "01311705.61x",
            "0131170é",
            "20260131 1705",
        ] {
            assert_eq!(parse_stamp(text, NOW).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }
}
