//! The clock on the wall: the machine's time zone, as TZ or /etc/localtime say.
#![allow(unsafe_code)]

/// A day and a time of day, as people write them; nothing says where on earth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Such as 2026.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60; 60 is the first second of the next minute.
    pub second: u8,
}

/// Seconds since 1970-01-01 UTC when the clocks here show this; `None` beyond what the system can represent. An
/// hour that the clocks skip in spring is the one after it; of an hour that comes twice, the system chooses.
pub fn seconds_of(clock: &WallClock) -> Option<i64> {
    // SAFETY: a `tm` is numbers and a pointer that may be null; all zeros is one.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    tm.tm_year = clock.year.checked_sub(1900)?;
    tm.tm_mon = i32::from(clock.month) - 1;
    tm.tm_mday = clock.day.into();
    tm.tm_hour = clock.hour.into();
    tm.tm_min = clock.minute.into();
    tm.tm_sec = clock.second.into();
    // Whether it is summer is for the system to know.
    tm.tm_isdst = -1;
    // -1 is a moment as well, so the failure shows in what the call leaves alone.
    tm.tm_wday = -1;
    // SAFETY: the pointer leads to a `tm` of this function's own.
    let seconds = unsafe { libc::mktime(&raw mut tm) };
    (tm.tm_wday != -1).then_some(seconds)
}

/// What the clocks here show.
pub fn clock_of(seconds: i64) -> Option<WallClock> {
    // SAFETY: as above, all zeros is a `tm`.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers lead to what this function has; the result is null or the second of them.
    let told = unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    if told.is_null() {
        return None;
    }
    let small = |number: i32| u8::try_from(number).ok();
    Some(WallClock {
        year: tm.tm_year.checked_add(1900)?,
        month: small(tm.tm_mon + 1)?,
        day: small(tm.tm_mday)?,
        hour: small(tm.tm_hour)?,
        minute: small(tm.tm_min)?,
        second: small(tm.tm_sec)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_there_and_back() {
        for seconds in [-86_400, -1, 0, 951_782_399, 1_709_251_199, 1_800_000_000, 4_102_444_800] {
            let clock = clock_of(seconds).unwrap();
            assert_eq!(seconds_of(&clock), Some(seconds), "{clock:?}");
        }
    }

    #[test]
    fn what_no_clock_shows_is_refused() {
        assert_eq!(clock_of(i64::MAX), None);
        let clock = WallClock { year: i32::MIN, month: 1, day: 1, hour: 0, minute: 0, second: 0 };
        assert_eq!(seconds_of(&clock), None);
    }
}
