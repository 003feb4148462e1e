//! How a pool is mounted, and the words of `-o` for it: those of `ramlace mount`, of fstab and of mount(8).

use std::path::{Path, PathBuf};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::ConnectOptions;
use ramlace_mount::{Flags, Mode};

use crate::place::connect_options;
use crate::show::escaped;

/// What mount(8) and fstab say for themselves; it changes nothing about the mount.
const FOR_OTHERS: [&str; 15] = [
    "_netdev",
    "auto",
    "noauto",
    "nofail",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "silent",
    "loud",
    "default_permissions",
    "comment",
    "x-",
    "X-",
    // What mount(8) adds for the user who mounts; `user` alone is below.
    "user=",
];
/// What makes a line of fstab one for ordinary users, and what goes with it, as mount(8) has it.
const FOR_USERS: [(&str, &[&str]); 4] = [
    ("user", &["noexec", "nosuid", "nodev"]),
    ("users", &["noexec", "nosuid", "nodev"]),
    ("owner", &["nosuid", "nodev"]),
    ("group", &["nosuid", "nodev"]),
];
/// What the kernel says of a mount that is there; mount(8) passes it on when it remounts.
const OF_THE_KERNEL: [&str; 5] = ["user_id=", "group_id=", "rootmode=", "max_read=", "blksize="];

/// When changes of names are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Before they are acknowledged.
    Sync,
    /// A moment later, where no other client uses the directory.
    Behind,
}

/// What was asked of a mount by this word.
pub fn metadata_of(word: &str) -> std::result::Result<Metadata, String> {
    match word {
        "sync" => Ok(Metadata::Sync),
        "behind" => Ok(Metadata::Behind),
        _ => Err(format!("'{}' says not when changes are sent; there are sync and behind", shown(word))),
    }
}

/// How a pool is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "independent options")]
pub struct MountHow {
    /// What the kernel keeps of every mount.
    pub flags: Flags,
    /// Every user of this machine may come in.
    pub allow_other: bool,
    /// All locks are refused.
    pub no_locks: bool,
    /// The kernel has files of one lane itself.
    pub passthrough: bool,
    /// What makes a file longer takes its memory at once.
    pub reserve: bool,
    /// Changes where no other client uses the directory are sent a moment after they are acknowledged.
    pub metadata_behind: bool,
    /// When other machines see what programs have stored.
    pub mode: Mode,
    /// Where the secret of a pool that lives elsewhere lies.
    pub secret_file: Option<PathBuf>,
    /// Where its host key lies.
    pub host_key_file: Option<PathBuf>,
}

/// A list of options, as `-o` has it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    words: Vec<String>,
    /// A mount that is there shall change.
    pub remount: bool,
}

impl Options {
    /// Takes lists apart. A comma inside of double quotes belongs to a value.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Options {
        let mut options = Options::default();
        for word in lists.into_iter().flat_map(split) {
            match word.as_str() {
                "" | "defaults" => {}
                "remount" => options.remount = true,
                _ => options.words.push(word),
            }
        }
        options
    }

    /// What these options make of `how`. The first unknown one is an error, unless `sloppy`.
    pub fn applied(&self, mut how: MountHow, sloppy: bool) -> Result<MountHow> {
        for word in &self.words {
            if !how.apply(word)? && !self.is_known(word) && !sloppy {
                return Err(unknown(word));
            }
        }
        Ok(how)
    }

    fn is_known(&self, word: &str) -> bool {
        let begins = |name: &&str| word.starts_with(name) && name.ends_with(['-', '=']);
        let is = |name: &&str| word == *name || word.split_once('=').is_some_and(|(left, _)| left == *name);
        FOR_OTHERS.iter().any(|name| begins(name) || is(name))
            || (self.remount && OF_THE_KERNEL.iter().any(begins))
    }
}

impl MountHow {
    /// Does what one word says, if it says anything about how a pool is mounted.
    fn apply(&mut self, word: &str) -> Result<bool> {
        if let Some((_, implied)) = FOR_USERS.iter().find(|(name, _)| *name == word) {
            implied.iter().for_each(|word| _ = self.flags.apply(word));
            return Ok(true);
        }
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let on = match name {
            "allow_other" => &mut self.allow_other,
            "no_locks" => &mut self.no_locks,
            "passthrough" => &mut self.passthrough,
            "reserve" => &mut self.reserve,
            "mode" => {
                self.mode = mode_of(value.unwrap_or_default()).map_err(wrong)?;
                return Ok(true);
            }
            "metadata" => {
                self.metadata_behind =
                    metadata_of(value.unwrap_or_default()).map_err(wrong)? == Metadata::Behind;
                return Ok(true);
            }
            "secret_file" => return file(name, value, &mut self.secret_file),
            "host_key_file" => return file(name, value, &mut self.host_key_file),
            // As `ramlace mount` calls it.
            "read_only" if value.is_none() => return Ok(self.flags.apply("ro")),
            _ => return Ok(self.flags.apply(word)),
        };
        if value.is_some() {
            return Err(wrong(format!("the option {name} of a mount has no value: '{}'", shown(word))));
        }
        *on = true;
        Ok(true)
    }

    /// Refuses what this user may not ask.
    pub fn check(&self) -> Result<()> {
        if rustix::process::geteuid().is_root() {
            return Ok(());
        }
        if self.flags.says("suid") || self.flags.says("dev") {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                "only root may let set-user-id bits or devices of a mount count; leave suid and dev out",
            ));
        }
        if self.passthrough {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                "only root may hand files over to the kernel; leave passthrough out, everything works without it",
            ));
        }
        Ok(())
    }

    /// How the pool that is named is reached.
    pub fn connect(&self, named: Option<&str>) -> ConnectOptions {
        ConnectOptions {
            secret_file: self.secret_file.clone(),
            host_key_file: self.host_key_file.clone(),
            ..connect_options(named)
        }
    }

    /// The arguments of `ramlace mount` for this, for a caller in another working directory.
    pub fn words(&self) -> Result<Vec<std::ffi::OsString>> {
        let mut list = self.flags.words();
        let named = [
            (self.allow_other, ",allow_other"),
            (self.no_locks, ",no_locks"),
            (self.passthrough, ",passthrough"),
            (self.reserve, ",reserve"),
            (self.metadata_behind, ",metadata=behind"),
            (self.mode == Mode::Strict, ",mode=strict"),
            (self.mode == Mode::Relaxed, ",mode=relaxed"),
        ];
        list.extend(named.into_iter().filter(|(on, _)| *on).map(|(_, word)| word));
        let mut words = vec!["-o".into(), list.into()];
        for (name, file) in [("--secret-file", &self.secret_file), ("--host-key-file", &self.host_key_file)] {
            if let Some(file) = file {
                words.extend([name.into(), absolute(file)?.into()]);
            }
        }
        Ok(words)
    }
}

/// The mode of this name.
pub fn mode_of(name: &str) -> std::result::Result<Mode, String> {
    let unknown = || format!("a mode is coherent, strict or relaxed, not '{}'", shown(name));
    Mode::named(name.as_bytes()).ok_or_else(unknown)
}

/// The path from the root, as a daemon can use it.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| Error::from_io(&error, format_args!("looking for {}", path.display())))
}

fn file(name: &str, value: Option<&str>, place: &mut Option<PathBuf>) -> Result<bool> {
    let value = value.filter(|value| !value.is_empty());
    let value =
        value.ok_or_else(|| wrong(format!("the option {name} of a mount wants a path: {name}=/path")))?;
    *place = Some(value.into());
    Ok(true)
}

fn split(list: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => words.push(String::new()),
            _ => words.last_mut().expect("there is always one").push(letter),
        }
    }
    words
}

fn unknown(word: &str) -> Error {
    wrong(format!(
        "nobody knows the option '{}' of a mount; there are ro, rw, allow_other, no_locks, passthrough, reserve, mode=MODE, metadata=WHEN, \
         secret_file=PATH, host_key_file=PATH, and the generic ones of mount(8) such as noexec and noatime",
        shown(word)
    ))
}

fn shown(word: &str) -> String {
    escaped(word.as_bytes())
}

fn wrong(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(list: &str) -> Result<MountHow> {
        Options::parse([list]).applied(MountHow::default(), false)
    }

    #[test]
    fn generic_options_are_flags_and_ours_are_ours() {
        let said = how("rw,defaults,noexec,allow_other,no_locks,passthrough,secret_file=/s").unwrap();
        assert_eq!(said.flags.words(), "nosuid,nodev,noexec");
        assert!(said.allow_other && said.no_locks && said.passthrough);
        assert_eq!(said.secret_file, Some("/s".into()));
        assert_eq!(how("read_only").unwrap(), how("ro").unwrap());
    }

    #[test]
    fn what_is_for_others_changes_nothing() {
        let list = "_netdev,nofail,noauto,auto,nouser,x-systemd.automount,x-gvfs-name=a b,X-mount.mkdir,user=me,comment=hi";
        assert_eq!(how(list).unwrap(), MountHow::default());
    }

    #[test]
    fn lines_for_users_are_without_execution_unless_they_say_otherwise() {
        assert_eq!(how("user").unwrap().flags.words(), "nosuid,nodev,noexec");
        assert_eq!(how("user,exec").unwrap().flags.words(), "nosuid,nodev");
        assert_eq!(how("suid,owner").unwrap().flags.words(), "nosuid,nodev");
    }

    #[test]
    fn what_nobody_knows_is_named() {
        for list in ["frob", "ro,frob=1", "xfrob", "user_id=0", "RO", "usersx", "ro=1"] {
            let error = how(list).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{list}");
            assert!(error.message().contains(list.rsplit(',').next().unwrap()), "{list}: {error}");
        }
        assert!(how("mode").unwrap_err().message().contains("coherent, strict or relaxed"));
        assert!(
            how("mode=relaxed").unwrap().words().unwrap()[1].to_str().unwrap().ends_with(",mode=relaxed")
        );
        assert_eq!(how("mode=strict,mode=coherent").unwrap(), MountHow::default());
        assert!(how("secret_file").unwrap_err().message().contains("secret_file=/path"));
        assert!(how("allow_other=1").unwrap_err().message().contains("no value"));
        assert!(Options::parse(["frob,ro"]).applied(MountHow::default(), true).unwrap().flags.says("ro"));
    }

    #[test]
    fn who_remounts_is_told_what_the_kernel_says() {
        let options =
            Options::parse(["rw,nosuid,nodev,user_id=0,group_id=0,max_read=9,allow_other,remount,ro"]);
        assert!(options.remount);
        assert_eq!(options.applied(MountHow::default(), false).unwrap().flags.words(), "ro,nosuid,nodev");
    }

    #[test]
    fn commas_in_quotes_stay() {
        let said = how(r#"secret_file="/a,b",ro"#).unwrap();
        assert_eq!((said.secret_file, said.flags.says("ro")), (Some("/a,b".into()), true));
    }

    #[test]
    fn a_daemon_is_told_all() {
        let said =
            how("ro,noatime,allow_other,reserve,mode=strict,passthrough,no_locks,host_key_file=/k").unwrap();
        let words = said.words().unwrap();
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            words,
            [
                "-o",
                "ro,nosuid,nodev,noatime,allow_other,no_locks,passthrough,reserve,mode=strict",
                "--host-key-file",
                "/k"
            ]
        );
        assert_eq!(
            Options::parse([words[1]])
                .applied(MountHow { host_key_file: said.host_key_file.clone(), ..MountHow::default() }, false)
                .unwrap(),
            said
        );
    }
}
