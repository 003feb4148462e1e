//! What a layout must be before anything is computed from it.

use ramlace_base::units::{count, format_bytes_exactly};
use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_wire::Layout;

/// Checks a layout that came from outside, for a pool of `slots` slots.
///
/// Afterwards every lane has a slot of its own and no function of this crate can overflow.
/// Fails with `Invalid`; the sentence names the value and what is allowed.
pub fn validate(layout: &Layout, slots: u32) -> Result<()> {
    check_unit(layout.stripe_unit)?;
    check_width(layout.width)?;
    check_copies(layout.copies)?;
    if u32::from(layout.base_slot.0) >= slots {
        return refuse(format!(
            "the layout begins in {}, but the pool has the slots 0 to {}",
            layout.base_slot,
            i64::from(slots) - 1
        ));
    }
    if layout.width > 1 {
        check_lanes_apart(layout, slots)?;
    }
    Ok(())
}

pub(crate) fn check_unit(unit: u64) -> Result<()> {
    let allowed = limits::STRIPE_UNIT_BYTES_MIN..=limits::STRIPE_UNIT_BYTES_MAX;
    if !unit.is_power_of_two() || !allowed.contains(&unit) {
        return refuse(format!(
            "a stripe unit of {} is not possible; it is a power of two from {} to {}",
            format_bytes_exactly(unit),
            format_bytes_exactly(*allowed.start()),
            format_bytes_exactly(*allowed.end())
        ));
    }
    Ok(())
}

pub(crate) fn check_width(width: u16) -> Result<()> {
    if !(1..=limits::WIDTH_LANES_MAX).contains(&width) {
        return refuse(format!(
            "a width of {} is not possible; it is from 1 to {}",
            count(width.into(), "lane"),
            limits::WIDTH_LANES_MAX
        ));
    }
    Ok(())
}

pub(crate) fn check_copies(copies: u8) -> Result<()> {
    if !(1..=limits::COPIES_MAX).contains(&copies) {
        let asked = count(copies.into(), "copy");
        return refuse(format!("{asked} of each chunk: a pool keeps 1 to {}", limits::COPIES_MAX));
    }
    Ok(())
}

/// Lanes `0..width` lie in distinct slots when the walk by `stride` comes back only after
/// `slots / gcd(stride, slots)` steps.
fn check_lanes_apart(layout: &Layout, slots: u32) -> Result<()> {
    let stride = u32::from(layout.stride);
    if stride == 0 || stride >= slots {
        return refuse(format!(
            "a stride of {stride} slots is not possible; in this pool it is from 1 to {}",
            i64::from(slots) - 1
        ));
    }
    let distinct = slots / greatest_common_divisor(stride, slots);
    if u32::from(layout.width) > distinct {
        return refuse(format!(
            "{} lanes with a stride of {stride} slots would share slots; at most {distinct} are apart in a pool of {slots} slots",
            layout.width
        ));
    }
    Ok(())
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn refuse<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, text))
}
