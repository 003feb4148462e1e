//! A command line in one text, taken apart into words as a shell would.

use ramlace_base::{Error, ErrorKind, Result};

/// Splits at blanks; `'…'`, `"…"` and a backslash keep blanks, as in a shell. Nothing is
/// substituted. At least one word, or an error.
pub fn split(text: &str) -> Result<Vec<String>> {
    let refuse = |why: &str| {
        Err(Error::new(ErrorKind::Invalid, format!("'{}' is no command: {why}", text.escape_debug())))
    };
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\0' => return refuse("a command has no NUL"),
            '\\' => match letters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return refuse("it ends with a backslash"),
            },
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                if !quoted(&mut letters, letter, word) {
                    return refuse("a quote is not closed");
                }
            }
            blank if blank.is_whitespace() => words.extend(word.take()),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    if words.first().is_none_or(String::is_empty) {
        return refuse("it names no program");
    }
    Ok(words)
}

/// Takes what stands between quotes; says whether they are closed.
fn quoted(letters: &mut std::str::Chars<'_>, quote: char, word: &mut String) -> bool {
    while let Some(letter) = letters.next() {
        match letter {
            end if end == quote => return true,
            // Between double quotes a backslash protects these two alone.
            '\\' if quote == '"' => match letters.next() {
                Some(next @ ('"' | '\\')) => word.push(next),
                Some(next) => word.extend(['\\', next]),
                None => return false,
            },
            plain => word.push(plain),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_apart_as_in_a_shell() {
        for (text, words) in [
            ("ssh", &["ssh"][..]),
            ("  ssh -p\t2222 ", &["ssh", "-p", "2222"]),
            ("ip netns exec {host}", &["ip", "netns", "exec", "{host}"]),
            ("'a b' \"c d\"e f\\ g", &["a b", "c de", "f g"]),
            ("x '' \"\"", &["x", "", ""]),
            (r#""a\"b\\c\d" '\'"#, &[r#"a"b\c\d"#, "\\"]),
            ("a'$HOME'\"*\"", &["a$HOME*"]),
        ] {
            assert_eq!(split(text).unwrap(), words, "{text}");
        }
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for text in ["", "  ", "''", "'' x", "a 'b", "a \"b", "a \\", "\"a\\", "a\0b"] {
            assert_eq!(split(text).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
    }
}
