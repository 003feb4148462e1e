//! Which machine this is.

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_wire::HostId;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's boot id: the same for every process of this machine until it starts anew, and no other machine's. Servers
/// report it as their host, clients compare it.
///
/// Errors: `Unsupported` where the kernel does not report it.
pub fn this_host() -> Result<HostId> {
    let refuse = |why: &str| {
        let text = format!("the kernel does not give this machine's boot id: {BOOT_ID} {why}");
        Error::new(ErrorKind::Unsupported, text)
    };
    let text =
        std::fs::read_to_string(BOOT_ID).map_err(|error| refuse(&format!("cannot be read: {error}")))?;
    parse(&text).ok_or_else(|| refuse("is no boot id"))
}

/// 32 hexadecimal digits, between which there may be dashes.
fn parse(text: &str) -> Option<HostId> {
    let digits: Vec<u8> = text.trim().bytes().filter(|byte| *byte != b'-').collect();
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(HostId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_what_the_kernel_writes() {
        let id = parse("00010203-0405-0607-0809-0a0b0c0d0eFf\n").unwrap();
        assert_eq!(id.0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        for other in
            ["", "00010203", &"0".repeat(33), &"g".repeat(32), "+0010203-0405-0607-0809-0a0b0c0d0e0f"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(this_host().unwrap(), this_host().unwrap());
    }
}
