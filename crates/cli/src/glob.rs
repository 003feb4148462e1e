//! Patterns of the shell (`*`, `?`, `[a-z]`, `\`) for names that are any bytes.
//!
//! A letter is a character of UTF-8, or one byte where the bytes are none. So `?` takes one whole `é`, and what
//! is no text matches exactly itself.

/// Letters from here on are bytes that are no UTF-8; characters end at 0x10ffff.
const BYTE_LETTERS: u32 = 0x11_0000;

/// A pattern, ready to be matched.
#[derive(Clone, Debug)]
pub struct Glob {
    parts: Vec<Part>,
    ignore_case: bool,
}

#[derive(Clone, Debug)]
enum Part {
    Letter(u32),
    Any,
    Star,
    Set { negated: bool, members: Vec<Member> },
}

#[derive(Clone, Debug)]
enum Member {
    /// From the first letter to the last, both included.
    Range(u32, u32),
    Class(fn(char) -> bool),
}

impl Glob {
    /// Reads a pattern; every text is one, as for the shell. An unclosed `[` is the letter itself.
    pub fn new(pattern: &[u8], ignore_case: bool) -> Glob {
        let letters = letters(pattern, ignore_case);
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(letter) = letters.get(at) {
            at += 1;
            parts.push(match char::from_u32(*letter) {
                Some('*') if matches!(parts.last(), Some(Part::Star)) => continue,
                Some('*') => Part::Star,
                Some('?') => Part::Any,
                Some('\\') if at < letters.len() => {
                    at += 1;
                    Part::Letter(letters[at - 1])
                }
                Some('[') => match set(&letters[at..]) {
                    Some((part, length)) => {
                        at += length;
                        part
                    }
                    None => Part::Letter(*letter),
                },
                _ => Part::Letter(*letter),
            });
        }
        Glob { parts, ignore_case }
    }

    /// Whether the whole name matches. Takes time in proportion to both lengths multiplied, at most.
    pub fn matches(&self, name: &[u8]) -> bool {
        let name = letters(name, self.ignore_case);
        let (mut part, mut at) = (0, 0);
        // The last star, and up to where it has taken letters: only it need ever take more.
        let mut star: Option<(usize, usize)> = None;
        loop {
            match self.parts.get(part) {
                Some(Part::Star) => {
                    star = Some((part, at));
                    part += 1;
                    continue;
                }
                Some(one) if name.get(at).is_some_and(|letter| one.takes(*letter)) => {
                    (part, at) = (part + 1, at + 1);
                    continue;
                }
                None if at == name.len() => return true,
                _ => {}
            }
            match star {
                Some((behind, taken)) if taken < name.len() => {
                    star = Some((behind, taken + 1));
                    (part, at) = (behind + 1, taken + 1);
                }
                _ => return false,
            }
        }
    }
}

impl Part {
    fn takes(&self, letter: u32) -> bool {
        match self {
            Part::Letter(wanted) => *wanted == letter,
            Part::Any => true,
            Part::Star => unreachable!("a star is dealt with before"),
            Part::Set { negated, members } => members.iter().any(|member| member.takes(letter)) != *negated,
        }
    }
}

impl Member {
    fn takes(&self, letter: u32) -> bool {
        match self {
            Member::Range(first, last) => (*first..=*last).contains(&letter),
            Member::Class(class) => char::from_u32(letter).is_some_and(class),
        }
    }
}

/// The letters of bytes.
fn letters(bytes: &[u8], ignore_case: bool) -> Vec<u32> {
    let mut letters = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        letters.extend(
            chunk.valid().chars().map(|letter| u32::from(if ignore_case { folded(letter) } else { letter })),
        );
        letters.extend(chunk.invalid().iter().map(|byte| BYTE_LETTERS + u32::from(*byte)));
    }
    letters
}

/// The small letter, where there is exactly one.
fn folded(letter: char) -> char {
    let mut small = letter.to_lowercase();
    match (small.next(), small.next()) {
        (Some(one), None) => one,
        _ => letter,
    }
}

/// What follows a `[`: the set, and how many letters it takes with its `]`. `None` when it is not closed.
fn set(letters: &[u32]) -> Option<(Part, usize)> {
    let is = |at: usize, wanted: char| letters.get(at) == Some(&u32::from(wanted));
    let negated = is(0, '!') || is(0, '^');
    let start = usize::from(negated);
    let mut at = start;
    let mut members = Vec::new();
    // A `]` that stands first is a member.
    while at == start || !is(at, ']') {
        if is(at, '[') && is(at + 1, ':') {
            let (class, length) = class(&letters[at + 2..])?;
            members.push(class);
            at += 2 + length;
            continue;
        }
        let (first, behind) = member(letters, at)?;
        if is(behind, '-') && !is(behind + 1, ']') {
            let (last, behind) = member(letters, behind + 1)?;
            members.push(Member::Range(first, last));
            at = behind;
        } else {
            members.push(Member::Range(first, first));
            at = behind;
        }
    }
    Some((Part::Set { negated, members }, at + 1))
}

/// One letter of a set, which a backslash may protect, and where the next one stands.
fn member(letters: &[u32], at: usize) -> Option<(u32, usize)> {
    let letter = *letters.get(at)?;
    if letter == u32::from('\\') {
        return Some((*letters.get(at + 1)?, at + 2));
    }
    Some((letter, at + 1))
}

/// `alpha:]` and its length.
fn class(letters: &[u32]) -> Option<(Member, usize)> {
    let end = letters.iter().position(|letter| *letter == u32::from(':'))?;
    if letters.get(end + 1) != Some(&u32::from(']')) {
        return None;
    }
    let name: String = letters[..end].iter().map(|letter| char::from_u32(*letter)).collect::<Option<_>>()?;
    let class: fn(char) -> bool = match name.as_str() {
        "alpha" => char::is_alphabetic,
        "digit" => |letter| letter.is_ascii_digit(),
        "alnum" => char::is_alphanumeric,
        "upper" => char::is_uppercase,
        "lower" => char::is_lowercase,
        "space" => char::is_whitespace,
        "blank" => |letter| matches!(letter, ' ' | '\t'),
        "punct" => |letter| letter.is_ascii_punctuation(),
        "cntrl" => char::is_control,
        "print" => |letter| !letter.is_control(),
        "graph" => |letter| !letter.is_control() && !letter.is_whitespace(),
        "xdigit" => |letter| letter.is_ascii_hexdigit(),
        _ => return None,
    };
    Some((Member::Class(class), end + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> bool {
        Glob::new(pattern.as_ref(), false).matches(name.as_ref())
    }

    #[test]
    fn patterns_take_what_the_shell_takes() {
        for (pattern, names, others) in [
            ("", &[""][..], &["a"][..]),
            ("abc", &["abc"], &["ab", "abcd", "xabc", "ABC"]),
            ("*", &["", "a", ".hidden", "a b\n"], &[]),
            ("**", &["", "a"], &[]),
            ("*.npy", &["x.npy", ".npy", "a.npy.npy"], &["x.npyz", "npy", "x.np"]),
            ("a*b*c", &["abc", "aXbYc", "abbcc", "abcbc"], &["ab", "acb", "abcd"]),
            ("*a*a*a*b", &["aaab", "xaxaxab"], &["aab", "aaaaaaaaaaaaaaaaaaaaa"]),
            ("?", &["a", "é", "字"], &["", "ab"]),
            ("part-??", &["part-01"], &["part-1", "part-001"]),
            ("[abc]x", &["ax", "cx"], &["dx", "x", "abcx"]),
            ("[a-c]", &["a", "b", "c"], &["d", "-", "B"]),
            ("[!a-c]", &["d", "-", "é"], &["a", "c", ""]),
            ("[^a-c]", &["d"], &["b"]),
            ("[]x]", &["]", "x"], &["[", ""]),
            ("[!]x]", &["a"], &["]", "x"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[-a]", &["a", "-"], &["b"]),
            ("[\\]]", &["]"], &["\\"]),
            ("[c-a]", &[], &["a", "b", "c"]),
            ("[ä-ü]", &["ö", "ä"], &["a", "z"]),
            ("[[:digit:]]*", &["1x", "7"], &["x1", ""]),
            ("[[:upper:][:digit:]_]", &["A", "É", "3", "_"], &["a", "-"]),
            ("[![:space:]]", &["a"], &[" ", "\t"]),
            ("[abc", &["[abc"], &["a", "[ab"]),
            ("[[:nonsense:]", &["[n"], &["n", "[x"]),
            ("x[", &["x["], &["x"]),
            ("\\*", &["*"], &["a", "\\*"]),
            ("a\\", &["a\\"], &["a"]),
            ("\\[a]", &["[a]"], &["a"]),
        ] {
            for name in names {
                assert!(matches(pattern, name), "{pattern} should take {name:?}");
            }
            for name in others {
                assert!(!matches(pattern, name), "{pattern} should not take {name:?}");
            }
        }
    }

    #[test]
    fn case_is_ignored_when_asked() {
        for (pattern, name, expected) in [
            ("*.NPY", "x.npy", true),
            ("größe", "GRÖSSE", false),
            ("É*", "éa", true),
            ("[A-C]", "b", true),
            ("a", "b", false),
        ] {
            assert_eq!(
                Glob::new(pattern.as_bytes(), true).matches(name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn bytes_that_are_no_text_match_themselves() {
        assert!(matches(b"caf\xe9", b"caf\xe9") && !matches(b"caf\xe9", b"caf\xe8"));
        assert!(!matches(b"caf\xe9", "café") && !matches("café", b"caf\xe9"));
        assert!(matches(b"?\xff", b"\xfe\xff") && matches(b"[\x80-\xff]", b"\xe9"));
        // The two bytes of an é are one letter, cut in half they are none.
        assert!(!matches(b"\xc3*", "é") && matches(b"\xc3*", b"\xc3("));
    }

    /// A name of which each byte is changed in turn: the pattern that is the name itself, protected, takes
    /// that name and no other.
    #[test]
    fn changed_bytes_are_other_names() {
        let name: Vec<u8> = b"caf\xc3\xa9 [x]*?\\\xff\xf0\x9f\x98\x80.npy".to_vec();
        let protected = |name: &[u8]| -> Vec<u8> {
            let special = |byte: &u8| b"*?[]\\".contains(byte);
            name.iter()
                .flat_map(|byte| if special(byte) { vec![b'\\', *byte] } else { vec![*byte] })
                .collect()
        };
        let pattern = Glob::new(&protected(&name), false);
        assert!(pattern.matches(&name));
        for at in 0..name.len() {
            for byte in (1..=255).filter(|byte| *byte != name[at]) {
                let mut other = name.clone();
                other[at] = byte;
                assert!(!pattern.matches(&other), "{other:?}");
                assert!(matches(protected(&other), &other), "{other:?}");
                assert!(matches("*", &other));
                // Whatever the bytes mean as a pattern, reading them ends, and matching ends.
                let _ = matches(&other, &name);
            }
        }
    }

    #[test]
    fn many_stars_cost_little() {
        let pattern = "a*".repeat(60) + "b";
        assert!(!matches(&pattern, "a".repeat(255)));
    }
}
