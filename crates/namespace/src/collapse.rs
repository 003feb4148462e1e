//! Spread directories that somebody wants removed: they are made whole first, which they can be when they
//! are empty.
//!
//! Whoever asks is told Retry, and the home looks at all partitions. When he comes again the directory is
//! whole, or he hears why it is not. One look answers all who asked before it began. Who asks while it runs
//! waits for the next one: what an earlier look found may have changed before he asked. So several who come
//! again and again hold nobody up, and each is answered after two looks at the most.

use std::collections::VecDeque;

use ramlace_base::{Error, ErrorKind, InodeId, Result, limits};
use ramlace_wire::ErrorBody;
use ramlace_wire::peer::Token;
use serde::{Deserialize, Serialize};

use crate::inode::Body;
use crate::spread::{FollowUp, Spread};
use crate::state::SlotState;

/// Who wants a spread directory removed, in the order in which they asked; some never come again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Callers(VecDeque<(Token, Word)>);

/// What a caller hears.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Word {
    /// No look has begun since he asked.
    Asked,
    /// One has.
    Looking,
    /// Why the directory is not whole.
    Refused(ErrorBody),
}

impl Callers {
    fn note(&mut self, token: Token) {
        if self.0.iter().any(|(known, _)| *known == token) {
            return;
        }
        if self.0.len() >= limits::DIRECTORY_REMOVERS_MAX {
            // Those who never come to hear their answer make room. If there are none, he asks again.
            let Some(at) = self.0.iter().position(|(_, word)| matches!(word, Word::Refused(_))) else {
                return;
            };
            self.0.remove(at);
        }
        self.0.push_back((token, Word::Asked));
    }

    /// A look at all partitions begins.
    pub(crate) fn begin(&mut self) {
        for (_, word) in &mut self.0 {
            if *word == Word::Asked {
                *word = Word::Looking;
            }
        }
    }

    fn refuse(&mut self, why: &Error) {
        for (_, word) in &mut self.0 {
            if *word == Word::Looking {
                *word = Word::Refused(ErrorBody::new(why));
            }
        }
    }

    fn take_refusal(&mut self, token: Token) -> Option<ErrorBody> {
        let at =
            self.0.iter().position(|(known, word)| *known == token && matches!(word, Word::Refused(_)))?;
        match self.0.remove(at) {
            Some((_, Word::Refused(why))) => Some(why),
            _ => None,
        }
    }
}

impl SlotState {
    /// What the last look came to for this caller.
    pub(crate) fn check_not_refused(&mut self, inode: InodeId, token: Token) -> Result<()> {
        match self.spread_mut(inode).and_then(|spread| spread.callers.take_refusal(token)) {
            Some(why) => Err(why.into_error()),
            None => Ok(()),
        }
    }

    /// A caller who may remove the directory cannot yet.
    pub(crate) fn note_caller(&mut self, inode: InodeId, token: Token) {
        if let Some(spread) = self.spread_mut(inode) {
            spread.callers.note(token);
        }
    }

    /// Whether a directory can be removed as far as its partitions are concerned. One that is spread
    /// is made whole first, and whoever asks has to come again.
    pub(crate) fn check_whole(&mut self, inode: InodeId, token: Token) -> Result<()> {
        let Some(spread) = self.spread_mut(inode) else { return Ok(()) };
        spread.callers.note(token);
        self.follow_up.push(FollowUp::Collapse(inode));
        let text = format!("it is just being looked whether all parts of directory {inode} are empty");
        Err(Error::new(ErrorKind::Retry, text))
    }

    /// The directory is not made whole.
    pub(crate) fn note_refusal(&mut self, inode: InodeId, why: &Error) {
        // Whoever wants it comes again. The slot that asks on its behalf would take other words for
        // those of this slot's own server.
        let why = match why.kind() {
            ErrorKind::HostDown | ErrorKind::TimedOut => Error::new(ErrorKind::Busy, why.message()),
            ErrorKind::Busy | ErrorKind::Retry => return,
            _ => why.clone(),
        };
        if let Some(spread) = self.spread_mut(inode) {
            spread.callers.refuse(&why);
        }
    }

    fn spread_mut(&mut self, inode: InodeId) -> Option<&mut Spread> {
        match &mut self.inodes.get_mut(&inode)?.body {
            Body::Directory(directory) => directory.spread.as_deref_mut(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{Sequence, SessionId};

    use super::*;

    #[test]
    fn so_many_are_remembered_and_those_who_never_come_again_make_room() {
        let token = |number| Token { session: SessionId([1; 16]), sequence: Sequence(number) };
        let most = limits::DIRECTORY_REMOVERS_MAX as u64;
        let mut callers = Callers::default();
        callers.note(token(0));
        callers.begin();
        callers.refuse(&Error::new(ErrorKind::NotEmpty, "not empty"));
        (1..=most).for_each(|number| callers.note(token(number)));
        assert_eq!(callers.0.len() as u64, most);
        assert_eq!(callers.take_refusal(token(0)), None, "made room for the last");
        callers.note(token(most + 1));
        assert_eq!(callers.0.len() as u64, most, "nobody makes room who waits for an answer");
    }
}
