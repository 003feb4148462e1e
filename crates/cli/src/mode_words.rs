//! The mode argument of `chmod`: octal digits, or clauses such as `u+x,go-w,a=rX`.
//!
//! The rules are those of POSIX (chmod, "Extended description") with GNU's for directories: their set-ID bits
//! change only where the clause names them.

use ramlace_base::{Error, ErrorKind, Result};

const ALL: u16 = 0o7777;
const SET_IDS: u16 = 0o6000;
const READ: u16 = 0o444;
const WRITE: u16 = 0o222;
const EXECUTE: u16 = 0o111;

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    clauses: Vec<Clause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clause {
    operation: Operation,
    /// The bits of the classes that it names; 0 when it names none: all classes, but for the umask.
    who: u16,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// These bits, and whether `X` stands among them.
    Bits { bits: u16, search: bool },
    /// What the user (6), the group (3) or the others (0) have: the shift of their three bits.
    CopyFrom(u8),
    /// Octal digits. `whole`: so many that a directory's set-ID bits are meant as well.
    Octal { bits: u16, whole: bool },
}

impl ModeChange {
    /// Reads `750`, `+x`, `u=rwx,go=rX`, `g=u-w`.
    pub fn parse(text: &str) -> Result<ModeChange> {
        let clauses = if text.starts_with(|letter: char| letter.is_ascii_digit()) {
            octal(text).map(|what| vec![Clause { operation: Operation::Set, who: ALL, what }])
        } else {
            text.split(',').map(clause).collect::<Option<Vec<_>>>().map(|clauses| clauses.concat())
        };
        clauses.map(|clauses| ModeChange { clauses }).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!(
                    "'{}' is no mode; write octal digits such as 750, or clauses such as u+x,go-w,a=rX",
                    text.escape_debug()
                ),
            )
        })
    }

    /// The bits that result from `mode`. Where a clause names no class, the bits of the umask stay as they are.
    pub fn apply(&self, mode: u16, is_directory: bool, umask: u16) -> u16 {
        self.clauses.iter().fold(mode & ALL, |mode, clause| clause.apply(mode, is_directory, umask))
    }
}

impl Clause {
    fn apply(self, mode: u16, is_directory: bool, umask: u16) -> u16 {
        let (bits, mentioned) = self.bits(mode, is_directory);
        let kept = if is_directory { SET_IDS & !mentioned } else { 0 };
        let who = if self.who == 0 { !umask & ALL } else { self.who };
        let bits = bits & who & !kept;
        match self.operation {
            Operation::Add => mode | bits,
            Operation::Remove => mode & !bits,
            Operation::Set if self.who == 0 => (mode & kept) | bits,
            Operation::Set => (mode & (!self.who | kept)) | bits,
        }
    }

    /// The bits that it is about, for all classes, and those that it names expressly.
    fn bits(self, mode: u16, is_directory: bool) -> (u16, u16) {
        match self.what {
            What::Bits { bits, search } => {
                let search = search && (is_directory || mode & EXECUTE != 0);
                // `u=rwx` does not concern the set-user-ID bit, `u=s` and `u-s` do.
                let named = if self.who == 0 { bits } else { bits & self.who };
                (if search { bits | EXECUTE } else { bits }, named)
            }
            What::CopyFrom(shift) => ((mode >> shift & 0o7) * 0o111, 0),
            What::Octal { bits, whole } => (bits, if whole { ALL } else { bits }),
        }
    }
}

/// `750`; with five digits and more (`00750`) a directory's set-ID bits are set as well, not kept.
fn octal(digits: &str) -> Option<What> {
    let bits = u16::from_str_radix(digits, 8).ok().filter(|bits| *bits <= ALL)?;
    Some(What::Octal { bits, whole: digits.len() > 4 })
}

/// `[ugoa...][-+=][perms...]...`: one clause for each operation.
fn clause(text: &str) -> Option<Vec<Clause>> {
    let is_operation = |letter: char| matches!(letter, '+' | '-' | '=');
    let first = text.find(is_operation)?;
    let who = text[..first].chars().try_fold(0, |who, letter| Some(who | who_bits(letter)?))?;
    let mut rest = &text[first..];
    let mut clauses = Vec::new();
    while let Some(letter) = rest.chars().next() {
        let operation = match letter {
            '+' => Operation::Add,
            '-' => Operation::Remove,
            _ => Operation::Set,
        };
        let end = rest[1..].find(is_operation).map_or(rest.len(), |at| at + 1);
        let (what, who) = what(&rest[1..end], who)?;
        clauses.push(Clause { operation, who, what });
        rest = &rest[end..];
    }
    Some(clauses)
}

fn who_bits(letter: char) -> Option<u16> {
    match letter {
        'u' => Some(0o4700),
        'g' => Some(0o2070),
        'o' => Some(0o1007),
        'a' => Some(ALL),
        _ => None,
    }
}

/// What follows an operation, and for which classes.
fn what(text: &str, who: u16) -> Option<(What, u16)> {
    match text {
        "u" => return Some((What::CopyFrom(6), who)),
        "g" => return Some((What::CopyFrom(3), who)),
        "o" => return Some((What::CopyFrom(0), who)),
        // `+4755` and `=0` name all bits, so they name no class beside.
        digits if digits.starts_with(|letter: char| letter.is_ascii_digit()) => {
            let What::Octal { bits, .. } = octal(digits)? else { return None };
            return (who == 0).then_some((What::Octal { bits, whole: true }, ALL));
        }
        _ => {}
    }
    let (mut bits, mut search) = (0, false);
    for letter in text.chars() {
        match letter {
            'r' => bits |= READ,
            'w' => bits |= WRITE,
            'x' => bits |= EXECUTE,
            'X' => search = true,
            's' => bits |= SET_IDS,
            't' => bits |= 0o1000,
            _ => return None,
        }
    }
    Some((What::Bits { bits, search }, who))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are what GNU chmod 9.1 makes of a file or directory.
    #[test]
    fn modes_become_what_chmod_makes_of_them() {
        for (text, mode, is_directory, umask, expected) in [
            ("750", 0o644, false, 0o022, 0o750),
            ("0", 0o4777, false, 0o022, 0),
            ("7777", 0o000, false, 0o077, 0o7777),
            ("755", 0o6700, true, 0o022, 0o6755),
            ("0755", 0o6700, true, 0o022, 0o6755),
            ("00755", 0o6700, true, 0o022, 0o755),
            ("2755", 0o4700, true, 0o022, 0o6755),
            ("755", 0o6700, false, 0o022, 0o755),
            ("u+x", 0o644, false, 0o077, 0o744),
            ("+x", 0o644, false, 0o022, 0o755),
            ("+x", 0o644, false, 0o077, 0o744),
            ("+w", 0o444, false, 0o022, 0o644),
            ("a+w", 0o444, false, 0o022, 0o666),
            ("-w", 0o666, false, 0o022, 0o466),
            ("a-w", 0o666, false, 0o022, 0o444),
            ("=r", 0o777, false, 0o077, 0o400),
            ("=", 0o7777, false, 0o022, 0),
            ("=", 0o7777, true, 0o022, 0o6000),
            ("go-w", 0o777, false, 0o022, 0o755),
            ("u+x,go-w,a=rX", 0o666, false, 0o022, 0o555),
            ("a=rX", 0o666, false, 0o022, 0o444),
            ("a=rX", 0o766, false, 0o022, 0o555),
            ("a=rX", 0o600, true, 0o022, 0o555),
            ("a+X", 0o600, false, 0o022, 0o600),
            ("a+X", 0o600, true, 0o022, 0o711),
            ("+X", 0o610, false, 0o022, 0o711),
            ("u=rwx,go=", 0o666, false, 0o022, 0o700),
            ("g=u", 0o740, false, 0o022, 0o770),
            ("g=u-w", 0o740, false, 0o022, 0o750),
            ("o=g", 0o750, false, 0o022, 0o755),
            ("u=o", 0o754, false, 0o022, 0o454),
            ("g+o", 0o702, false, 0o022, 0o722),
            ("u-g", 0o770, false, 0o022, 0o070),
            ("=u", 0o700, false, 0o022, 0o755),
            ("u+s", 0o755, false, 0o022, 0o4755),
            ("g+s", 0o755, true, 0o022, 0o2755),
            ("ug+s", 0o755, false, 0o022, 0o6755),
            ("o+s", 0o755, false, 0o022, 0o755),
            ("+t", 0o777, true, 0o022, 0o1777),
            ("u+t", 0o777, true, 0o022, 0o777),
            ("o+t", 0o777, true, 0o022, 0o1777),
            ("u=rwx", 0o6777, true, 0o022, 0o6777),
            ("u=rwx", 0o6777, false, 0o022, 0o2777),
            ("u=rwxs", 0o777, true, 0o022, 0o4777),
            ("g-s", 0o2777, true, 0o022, 0o777),
            ("a-s", 0o6777, true, 0o022, 0o777),
            ("g=", 0o2770, true, 0o022, 0o2700),
            ("u+r-w+x", 0o200, false, 0o022, 0o500),
            ("u=r+x", 0o200, false, 0o022, 0o500),
            ("+4000", 0o755, false, 0o022, 0o4755),
            ("=755", 0o6700, true, 0o022, 0o755),
            ("-7000", 0o6755, true, 0o022, 0o755),
            ("uuu+x", 0o600, false, 0o022, 0o700),
            ("a+rrr", 0o000, false, 0o022, 0o444),
            ("ugo+x", 0o000, false, 0o777, 0o111),
            ("u+", 0o640, false, 0o022, 0o640),
        ] {
            let become_ = ModeChange::parse(text).unwrap().apply(mode, is_directory, umask);
            let kind = if is_directory { "directory" } else { "file" };
            assert_eq!(become_, expected, "{text} of a {kind} {mode:o}, umask {umask:o}: {become_:o}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in [
            "", "8", "10000", "0x1", "u", "ux", "x+u", "u+x,", ",u+x", "u+ug", "u+rg", "u+755", "+8",
            "+10000", "u+é", "a", "r", "u+x go-w", "7é",
        ] {
            let error = ModeChange::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.message().contains("octal digits"), "{error}");
        }
    }
}
