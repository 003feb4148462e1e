//! The mount flags that every file system has (`ro`, `nosuid`, `noatime`, ...), by their names in fstab.

use rustix::mount::MountFlags;

/// A word, the flags that it sets, and those that it clears. The first word that sets a flag is how it is written.
const WORDS: [(&str, MountFlags, MountFlags); 22] = {
    const NONE: MountFlags = MountFlags::empty();
    const ACCESS_TIMES: MountFlags =
        MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);
    [
        ("ro", MountFlags::RDONLY, NONE),
        ("rw", NONE, MountFlags::RDONLY),
        ("nosuid", MountFlags::NOSUID, NONE),
        ("suid", NONE, MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV, NONE),
        ("dev", NONE, MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC, NONE),
        ("exec", NONE, MountFlags::NOEXEC),
        ("nosymfollow", MountFlags::NOSYMFOLLOW, NONE),
        ("symfollow", NONE, MountFlags::NOSYMFOLLOW),
        ("sync", MountFlags::SYNCHRONOUS, NONE),
        ("async", NONE, MountFlags::SYNCHRONOUS),
        ("dirsync", MountFlags::DIRSYNC, NONE),
        ("noatime", MountFlags::NOATIME, ACCESS_TIMES),
        ("atime", NONE, MountFlags::NOATIME),
        ("relatime", MountFlags::RELATIME, ACCESS_TIMES),
        ("norelatime", NONE, MountFlags::RELATIME),
        ("strictatime", MountFlags::STRICTATIME, ACCESS_TIMES),
        ("nostrictatime", NONE, MountFlags::STRICTATIME),
        ("nodiratime", MountFlags::NODIRATIME, NONE),
        ("diratime", NONE, MountFlags::NODIRATIME),
        ("lazytime", MountFlags::LAZYTIME, NONE),
    ]
};

/// Flags of a mount. `Default` is what a mount of ramlace has: neither set-user-id bits nor device files count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(MountFlags);

impl Default for Flags {
    fn default() -> Flags {
        Flags(MountFlags::NOSUID.union(MountFlags::NODEV))
    }
}

impl Flags {
    /// What a mount with these words has, such as `rw,nosuid`. Words that say something else are left out.
    pub(crate) fn of_lists(lists: &[&str]) -> Flags {
        let mut flags = Flags(MountFlags::empty());
        for word in lists.iter().flat_map(|list| list.split(',')) {
            flags.apply(word);
        }
        flags
    }

    /// Does what one word says; `false`: the word says nothing about flags.
    pub fn apply(&mut self, word: &str) -> bool {
        let found = WORDS.iter().find(|(name, ..)| *name == word);
        if let Some((_, set, clear)) = found {
            self.0 = self.0.difference(*clear).union(*set);
        }
        found.is_some()
    }

    /// Whether this word changes nothing: what it says holds already.
    #[must_use]
    pub fn says(self, word: &str) -> bool {
        let mut after = self;
        after.apply(word) && after == self
    }

    /// The words that make these flags out of those of a usual mount, for fusermount3 and for a daemon.
    #[must_use]
    pub fn words(self) -> String {
        let setting = WORDS.iter().filter(|(_, set, _)| !set.is_empty() && self.0.contains(*set));
        let mut words: Vec<&str> = setting.map(|(name, ..)| *name).collect();
        words.extend(["suid", "dev"].into_iter().filter(|word| self.says(word)));
        words.join(",")
    }

    pub(crate) fn bits(self) -> MountFlags {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(words: &str) -> String {
        let mut flags = Flags::default();
        assert!(words.split(',').all(|word| flags.apply(word)), "{words}");
        flags.words()
    }

    #[test]
    fn the_last_word_counts() {
        assert_eq!(Flags::default().words(), "nosuid,nodev");
        assert_eq!(after("ro,rw,ro"), "ro,nosuid,nodev");
        assert_eq!(after("suid,dev"), "suid,dev");
        assert_eq!(after("noexec,suid,exec,nodev"), "nodev,suid");
        // The kernel takes one of them.
        assert_eq!(after("noatime,relatime"), "nosuid,nodev,relatime");
        assert_eq!(after("relatime,strictatime,atime"), "nosuid,nodev,strictatime");
    }

    #[test]
    fn what_is_written_is_read() {
        for words in ["ro,noexec,dirsync", "suid,noatime,nodiratime", "dev,sync,lazytime,nosymfollow"] {
            let written = after(words);
            assert_eq!(after(&written), written);
        }
        assert!(Flags::of_lists(&["rw,relatime"]).says("suid"));
        assert!(!Flags::of_lists(&["rw,nosuid"]).says("suid"));
    }

    #[test]
    fn other_words_change_nothing() {
        let mut flags = Flags::default();
        for word in ["", "allow_other", "user_id=0", "RO"] {
            assert!(!flags.apply(word) && !flags.says(word), "{word}");
        }
        assert_eq!(flags, Flags::default());
    }
}
