use zerocopy::IntoBytes;

use super::*;
use crate::DirectoryBuffer;

/// The 64-bit words of a reply, as a little-endian machine stores them.
#[cfg(target_endian = "little")]
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn sample() -> Attributes {
    Attributes {
        ino: 0x11,
        size: 0x22,
        blocks: 0x33,
        accessed: (-1, 0x44),
        modified: (0x55, 0x66),
        changed: (0x77, 0x88),
        mode: 0o100_644,
        links: 2,
        uid: 0x99,
        gid: 0xaa,
        rdev: 0x0012_3405,
        block_size: 0x10_0000,
    }
}

/// What `sample` is as the kernel's `fuse_attr`.
const ATTR_WORDS: [u64; 11] = [
    0x11,
    0x22,
    0x33,
    u64::MAX,
    0x55,
    0x77,
    0x66_0000_0044,
    0x81a4_0000_0088,
    0x99_0000_0002,
    0x12_3405_0000_00aa,
    0x10_0000,
];

#[test]
fn attributes_have_their_golden_bytes() {
    let out = attr_out(&sample(), Duration::new(3, 4));
    let mut golden = vec![3, 4];
    golden.extend(ATTR_WORDS);
    assert_eq!(words(out.as_bytes()), golden);
}

#[test]
fn entries_have_their_golden_bytes() {
    let entry = Entry {
        node: 1,
        generation: 2,
        attributes: sample(),
        entry_valid: Duration::new(5, 6),
        attributes_valid: Duration::new(7, 8),
    };
    let mut golden = vec![1, 2, 5, 7, 0x8_0000_0006];
    golden.extend(ATTR_WORDS);
    assert_eq!(words(entry_out(&entry).as_bytes()), golden);
}

#[test]
fn open_flags_have_their_golden_bits() {
    let flags = |set: fn(&mut OpenFlags)| {
        let mut flags = OpenFlags::default();
        set(&mut flags);
        words(open_out(9, flags).as_bytes())
    };
    assert_eq!(flags(|_| {}), [9, 0]);
    assert_eq!(flags(|flags| flags.direct_io = true), [9, 1]);
    assert_eq!(flags(|flags| flags.keep_cache = true), [9, 2]);
    assert_eq!(flags(|flags| flags.nonseekable = true), [9, 4]);
    assert_eq!(flags(|flags| flags.cache_dir = true), [9, 8]);
    assert_eq!(flags(|flags| flags.stream = true), [9, 16]);
    assert_eq!(flags(|flags| flags.no_flush = true), [9, 32]);
    assert_eq!(flags(|flags| flags.parallel_direct_writes = true), [9, 64]);
    assert_eq!(flags(|flags| flags.passthrough = Some(6)), [9, 0x6_0000_0080]);
}

#[test]
fn statfs_and_locks_have_their_golden_bytes() {
    let statfs = StatFs {
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        files: 4,
        files_free: 5,
        block_size: 4096,
        name_bytes_max: 255,
    };
    let golden = [1, 2, 3, 4, 5, 0xff_0000_1000, 0x1000, 0, 0, 0];
    assert_eq!(words(statfs_out(&statfs).as_bytes()), golden);
    let lock = FileLock { start: 1, end: 2, kind: LockKind::Unlock, pid: 7 };
    assert_eq!(words(lock_out(&lock).as_bytes()), [1, 2, 0x7_0000_0002]);
}

#[test]
fn statx_has_its_golden_bytes() {
    let out = statx_out(&StatX { attributes: sample(), created: Some((6, 7)) }, Duration::new(1, 2));
    let told = words(out.as_bytes());
    assert_eq!(told.len(), 36);
    assert_eq!(told[..4], [1, 2, 0, 0]);
    assert_eq!(told[4], 0x10_0000_0000_0fff, "mask and block size");
    assert_eq!(told[6], 0x99_0000_0002, "links and owner");
    assert_eq!(told[7], 0x81a4_0000_00aa, "group and mode");
    assert_eq!(told[8..11], [0x11, 0x22, 0x33]);
    assert_eq!(told[12..16], [u64::MAX, 0x44, 6, 7], "accessed, created");
    assert_eq!(told[16..20], [0x77, 0x88, 0x55, 0x66], "changed, modified");
    assert_eq!(told[20], 0x105_0000_0234, "device");
    let out = statx_out(&StatX { attributes: sample(), created: None }, Duration::ZERO);
    assert_eq!(words(out.as_bytes())[4], 0x10_0000_0000_07ff);
}

#[test]
fn directories_have_their_golden_bytes_and_their_limit() {
    let mut plain = DirectoryBuffer::new(64);
    assert!(plain.push(b"abc", 5, 0o040_755, 1));
    assert!(plain.push(b"12345678", 6, 0o100_000, 2));
    assert!(!plain.push(b"x", 7, 0o100_000, 3), "64 bytes are full");
    let golden = [5, 1, 0x4_0000_0003, 0x63_6261, 6, 2, 0x8_0000_0008, 0x3837_3635_3433_3231];
    assert_eq!(words(plain.as_bytes()), golden);

    let mut plus = DirectoryBuffer::new(1000);
    assert!(plus.push_plus(b"a", 5, 0o100_000, 1, Some(&Entry { node: 9, ..Entry::default() })));
    assert!(plus.push_plus(b"..", 1, 0o040_000, 2, None));
    let told = words(plus.as_bytes());
    assert_eq!(told.len(), 2 * (16 + 4));
    assert_eq!((told[0], told[16], told[19]), (9, 5, u64::from(b'a')));
    assert_eq!((told[20], told[36]), (0, 1), "no node: to be looked up");
}
