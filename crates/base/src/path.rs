//! Names and paths, which are bytes: put together, and for people.

/// A name or a path: as it is when it is plain text, else with its strange bytes escaped.
#[must_use]
pub fn escaped(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// `directory/name`.
#[must_use]
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strange_bytes_are_escaped() {
        assert_eq!(escaped("größe".as_bytes()), "größe");
        assert_eq!(escaped(b"a\nb\xff"), "a\\nb\\xff");
        assert_eq!(escaped(b"\x1b[31m"), "\\x1b[31m");
    }

    #[test]
    fn paths_come_together() {
        assert_eq!(join(b"/", b"x"), b"/x");
        assert_eq!(join(b"/a", b"x"), b"/a/x");
    }
}
