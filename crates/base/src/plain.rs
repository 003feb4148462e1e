//! Text that comes from elsewhere and may be shown on a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character may stand in text for people: all but what moves a terminal's cursor, changes its colours or
/// makes it answer; lines and tabs may.
fn is_plain(letter: char) -> bool {
    !letter.is_control() || matches!(letter, '\n' | '\t')
}

/// The text with every other control character written out, as `\x1b` or `\u{85}`.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            letter if is_plain(letter) => shown.push(letter),
            letter if letter.is_ascii() => {
                write!(shown, "\\x{:02x}", letter as u32).expect("a string takes what is written")
            }
            letter => shown.extend(letter.escape_unicode()),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_steers_a_terminal_is_written_out_and_all_else_stays() {
        for same in ["", "größe 🦀\n\tmore", "a\\x1b"] {
            assert_eq!(plain(same), same);
        }
        assert_eq!(plain("\x1b[2J\r\x07 \u{9b}31m \x7f"), "\\x1b[2J\\x0d\\x07 \\u{9b}31m \\x7f");
    }
}
