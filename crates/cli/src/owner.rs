//! Users and groups by name: what the machine's user database says, and numbers always.
//!
//! The database is asked through `getent`, as every system with glibc has it: it knows the users of LDAP and
//! the like as well, and this program needs no unsafe call for it.

use std::process::{Command, Stdio};

use ramlace_base::{Error, ErrorKind, Result};

/// The new owner and group: what is `Some` changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: Option<u32>,
    /// The group's number.
    pub gid: Option<u32>,
}

/// One line of a database: the fields between its colons.
type Entry = Vec<String>;

impl Owner {
    /// Reads `USER`, `USER:GROUP`, `:GROUP`, or `USER:` for the user and the user's login group.
    pub fn parse(text: &str) -> Result<Owner> {
        Owner::parse_with(text, &look_up)
    }

    fn parse_with(text: &str, look_up: &dyn Fn(Database, &str) -> Result<Option<Entry>>) -> Result<Owner> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        if user.is_empty() && group.is_none_or(str::is_empty) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("'{}' names nobody; write USER, USER:GROUP or :GROUP", text.escape_debug()),
            ));
        }
        let uid = if user.is_empty() { None } else { Some(number(Database::Users, user, look_up)?) };
        let gid = match group {
            None => None,
            Some("") => Some(login_group(user, look_up)?),
            Some(group) => Some(number(Database::Groups, group, look_up)?),
        };
        Ok(Owner { uid, gid })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Database {
    Users,
    Groups,
}

impl Database {
    fn name(self) -> &'static str {
        match self {
            Database::Users => "passwd",
            Database::Groups => "group",
        }
    }

    fn person(self) -> &'static str {
        match self {
            Database::Users => "user",
            Database::Groups => "group",
        }
    }
}

fn number(
    database: Database,
    text: &str,
    look_up: &dyn Fn(Database, &str) -> Result<Option<Entry>>,
) -> Result<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|number| *number != u32::MAX).ok_or_else(|| {
            let who = database.person();
            // The largest number means "no user" to the system's own calls.
            Error::new(
                ErrorKind::Invalid,
                format!("{text} is no {who}'s number; they end at {}", u32::MAX - 1),
            )
        });
    }
    let entry = look_up(database, text)?.ok_or_else(|| unknown(database, text))?;
    // name:password:number:...
    field(&entry, 2, database)
}

/// The group in which a user begins.
fn login_group(user: &str, look_up: &dyn Fn(Database, &str) -> Result<Option<Entry>>) -> Result<u32> {
    let entry = look_up(Database::Users, user)?.ok_or_else(|| unknown(Database::Users, user))?;
    field(&entry, 3, Database::Users)
}

fn field(entry: &Entry, index: usize, database: Database) -> Result<u32> {
    entry.get(index).and_then(|field| field.parse().ok()).ok_or_else(|| {
        let text = entry.join(":");
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "the machine's list of {}s has a line without a number: '{}'",
                database.person(),
                text.escape_debug()
            ),
        )
    })
}

fn unknown(database: Database, name: &str) -> Error {
    let who = database.person();
    Error::new(
        ErrorKind::Invalid,
        format!(
            "this machine knows no {who} '{}'; 'getent {}' lists them, and numbers go always",
            name.escape_debug(),
            database.name()
        ),
    )
}

/// Asks the machine. Names that could not be one are not asked for.
fn look_up(database: Database, name: &str) -> Result<Option<Entry>> {
    if name.starts_with('-') || name.contains(|letter: char| letter.is_control() || letter == ':') {
        return Ok(None);
    }
    let asking = || format!("asking 'getent {}' for '{name}'; numbers need no asking", database.name());
    let answer = Command::new("getent")
        .args([database.name(), name])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::from_io(&error, asking()))?;
    match answer.status.code() {
        Some(0) => {
            let text = String::from_utf8_lossy(&answer.stdout);
            Ok(Some(text.lines().next().unwrap_or_default().split(':').map(str::to_owned).collect()))
        }
        // "One or more supplied key could not be found in the database."
        Some(2) => Ok(None),
        _ => {
            let said = String::from_utf8_lossy(&answer.stderr);
            Err(Error::new(ErrorKind::Fatal, format!("{}: it failed: {}", asking(), said.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(database: Database, name: &str) -> Result<Option<Entry>> {
        let line = match (database, name) {
            (Database::Users, "ada") => "ada:x:1001:1002:Ada:/home/ada:/bin/sh",
            (Database::Users, "42") => "42:x:7:7::/:/bin/sh",
            (Database::Users, "bad") => "bad:x",
            (Database::Groups, "staff") => "staff:x:50:ada,bob",
            _ => return Ok(None),
        };
        Ok(Some(line.split(':').map(str::to_owned).collect()))
    }

    #[test]
    fn owners_are_read_as_chown_reads_them() {
        for (text, uid, gid) in [
            ("ada", Some(1001), None),
            ("ada:", Some(1001), Some(1002)),
            ("ada:staff", Some(1001), Some(50)),
            (":staff", None, Some(50)),
            ("0", Some(0), None),
            ("7:8", Some(7), Some(8)),
            (":8", None, Some(8)),
            ("4294967294", Some(u32::MAX - 1), None),
            ("0010:staff", Some(10), Some(50)),
            ("42", Some(42), None),
        ] {
            assert_eq!(Owner::parse_with(text, &known).unwrap(), Owner { uid, gid }, "{text}");
        }
    }

    #[test]
    fn whoever_is_not_known_is_refused() {
        for text in [
            "",
            ":",
            "nobody-here",
            "ada:nobody-here",
            ":ada",
            "-1",
            "4294967295",
            "99999999999",
            "7:",
            "ada:staff:x",
        ] {
            assert_eq!(Owner::parse_with(text, &known).unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        assert_eq!(Owner::parse_with("bad", &known).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn the_machine_knows_root() {
        assert_eq!(Owner::parse("root:root").unwrap(), Owner { uid: Some(0), gid: Some(0) });
        for text in ["ramlace-knows-nobody", "--help", "a\nb"] {
            assert!(Owner::parse(text).unwrap_err().message().contains("knows no user"), "{text}");
        }
    }
}
