//! How the key book changes: the server with the coordinator keeps it, the others receive it.

use ramlace_base::{Error, ErrorKind, Result, Timestamp, limits};
use ramlace_wire::keys::{
    HostKeyEntry, HostKeyId, HostKeyName, KeyBook, KeyChange, PoolSecrets, Rotation, SecretBytes,
};

/// The book of a new pool: the key that lies beside the secret is made.
#[must_use]
pub fn first_key_book(secret: SecretBytes, now: Timestamp) -> KeyBook {
    let key = HostKeyId { name: HostKeyName::shared(), serial: 1 };
    let hosts = vec![HostKeyEntry { key, made: now, revoked: None }];
    KeyBook { version: 1, secrets: PoolSecrets::of(secret), hosts }
}

/// Begins a change of the pool's secret: from now on the new one is accepted as well, but not used yet. A
/// change that has begun continues.
///
/// Errors: `Busy` while the one before is not finished.
pub fn begin_rotation(book: &mut KeyBook, new: SecretBytes) -> Result<()> {
    match book.secrets.rotation() {
        Rotation::Coming => Ok(()),
        Rotation::Going => {
            let text = "the secret before the last one still lets in; end that first with 'ramlace secret rotate --finish'";
            Err(Error::new(ErrorKind::Busy, text))
        }
        Rotation::Over => {
            book.secrets.next = Some(new);
            book.version += 1;
            Ok(())
        }
    }
}

/// Every server has received the next secret: it is used from now on, and the previous one is still accepted.
/// Returns whether there was one.
pub fn use_next_secret(book: &mut KeyBook) -> bool {
    let Some(next) = book.secrets.next.take() else { return false };
    book.secrets.previous = Some(std::mem::replace(&mut book.secrets.current, next));
    book.version += 1;
    true
}

/// The previous secret is no longer accepted. Where there is none, this does nothing.
///
/// Errors: `Busy` while the new one is not in use.
pub fn finish_rotation(book: &mut KeyBook) -> Result<()> {
    if book.secrets.rotation() == Rotation::Coming {
        let text = "not every server has heard of the new secret, which is not in use yet; 'ramlace status' shows those that \
                    do not answer";
        return Err(Error::new(ErrorKind::Busy, text));
    }
    if book.secrets.previous.take().is_some() {
        book.version += 1;
    }
    Ok(())
}

/// Does one change; returns what the book says afterwards of the host that it names. What is so already stays as it is, and
/// the version with it.
///
/// Errors: `NotFound` for a key that was never made; `TooMany`. Nothing has changed then.
pub fn change_keys(book: &mut KeyBook, change: &KeyChange, now: Timestamp) -> Result<HostKeyEntry> {
    let (KeyChange::MakeHost(name) | KeyChange::RevokeHost(name)) = change;
    let found = book.hosts.binary_search_by(|entry| entry.key.name.cmp(name));
    let known = found.ok().map(|at| book.hosts[at].clone());
    let entry = match change {
        KeyChange::MakeHost(_) => made(book, name, known.as_ref(), now)?,
        KeyChange::RevokeHost(_) => revoked(name, known.as_ref(), now)?,
    };
    if known.as_ref() != Some(&entry) {
        match found {
            Ok(at) => book.hosts[at] = entry.clone(),
            Err(at) => book.hosts.insert(at, entry.clone()),
        }
        book.version += 1;
    }
    Ok(entry)
}

fn made(
    book: &KeyBook,
    name: &HostKeyName,
    known: Option<&HostKeyEntry>,
    now: Timestamp,
) -> Result<HostKeyEntry> {
    let serial = match known {
        Some(entry) if entry.revoked.is_none() => return Ok(entry.clone()),
        Some(entry) => {
            entry.key.serial.checked_add(1).ok_or_else(|| too_many("keys of one name", u32::MAX))?
        }
        None if book.hosts.len() >= limits::HOST_KEYS_MAX => {
            return Err(too_many("names of host keys", limits::HOST_KEYS_MAX));
        }
        None => 1,
    };
    Ok(HostKeyEntry { key: HostKeyId { name: name.clone(), serial }, made: now, revoked: None })
}

fn revoked(name: &HostKeyName, known: Option<&HostKeyEntry>, now: Timestamp) -> Result<HostKeyEntry> {
    let Some(entry) = known else {
        let text = format!(
            "no host key '{name}' was made in this pool; 'ramlace host-key --list' shows those that were"
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    };
    Ok(HostKeyEntry { revoked: entry.revoked.or(Some(now)), ..entry.clone() })
}

fn too_many(what: &str, limit: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::TooMany, format!("this pool has {limit} {what} already, its limit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostKeyName {
        HostKeyName::new(text).unwrap()
    }

    fn first_key_book(now: Timestamp) -> KeyBook {
        super::first_key_book(SecretBytes([1; 32]), now)
    }

    // SEMANTICS 123.2
    #[test]
    fn a_secret_lets_in_from_before_it_is_used_until_the_owner_ends_it() {
        let mut book = first_key_book(at(1));
        let lets_in = |book: &KeyBook| book.secrets.all().map(|secret| secret.0[0]).collect::<Vec<_>>();
        finish_rotation(&mut book).unwrap();
        assert!(!use_next_secret(&mut book));
        assert_eq!((book.version, lets_in(&book)), (1, vec![1]));
        for again in [2, 9] {
            begin_rotation(&mut book, SecretBytes([again; 32])).unwrap();
            assert_eq!((book.version, lets_in(&book)), (2, vec![1, 2]), "one that has begun goes on");
        }
        assert_eq!(finish_rotation(&mut book).unwrap_err().kind(), ErrorKind::Busy);
        assert!(use_next_secret(&mut book) && book.is_possible());
        assert_eq!((book.version, lets_in(&book)), (3, vec![2, 1]));
        assert_eq!(begin_rotation(&mut book, SecretBytes([3; 32])).unwrap_err().kind(), ErrorKind::Busy);
        for _ in 0..2 {
            finish_rotation(&mut book).unwrap();
            assert_eq!((book.version, lets_in(&book)), (4, vec![2]));
        }
    }

    fn at(nanos: i64) -> Timestamp {
        Timestamp { nanos }
    }

    #[test]
    fn a_name_has_one_key_until_it_is_revoked_and_another_afterwards() {
        let mut book = first_key_book(at(1));
        let make = KeyChange::MakeHost(name("node7"));
        let first = change_keys(&mut book, &make, at(2)).unwrap();
        assert_eq!((first.key.serial, first.made, book.version), (1, at(2), 2));
        assert_eq!(change_keys(&mut book, &make, at(3)).unwrap(), first);
        assert_eq!(book.version, 2, "nothing has changed");
        let revoke = KeyChange::RevokeHost(name("node7"));
        for now in [4, 5] {
            assert_eq!(change_keys(&mut book, &revoke, at(now)).unwrap().revoked, Some(at(4)));
        }
        assert_eq!(book.version, 3);
        assert!(book.revokes(&first.key));
        let second = change_keys(&mut book, &make, at(6)).unwrap();
        assert_eq!((second.key.serial, second.revoked), (2, None));
        assert!(book.revokes(&first.key) && !book.revokes(&second.key));
        assert!(book.is_possible());
    }

    #[test]
    fn whoever_was_not_revoked_stays() {
        let mut book = first_key_book(at(1));
        for host in ["b", "a", "c"] {
            change_keys(&mut book, &KeyChange::MakeHost(name(host)), at(2)).unwrap();
        }
        change_keys(&mut book, &KeyChange::RevokeHost(name("b")), at(3)).unwrap();
        let revoked = |host: &str| book.revokes(&HostKeyId { name: name(host), serial: 1 });
        assert_eq!(["a", "b", "c", "default", "unheard-of"].map(revoked), [false, true, false, false, false]);
        assert!(book.is_possible());
    }

    #[test]
    fn a_key_that_was_never_made_is_not_revoked_and_there_is_an_end_of_names() {
        let mut book = first_key_book(at(1));
        let unknown = change_keys(&mut book, &KeyChange::RevokeHost(name("nodr7")), at(2)).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        for number in 1..limits::HOST_KEYS_MAX {
            change_keys(&mut book, &KeyChange::MakeHost(name(&format!("n{number}"))), at(2)).unwrap();
        }
        let before = book.clone();
        let refused = change_keys(&mut book, &KeyChange::MakeHost(name("one-more")), at(3)).unwrap_err();
        assert_eq!((refused.kind(), book), (ErrorKind::TooMany, before));
    }
}
