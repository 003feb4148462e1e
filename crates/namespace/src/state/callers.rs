//! Callers that want a spread directory removed, and the answer to each: see [`crate::collapse`].

use std::collections::VecDeque;

use ramlace_base::{Error, limits, numbered_variants};
use ramlace_wire::ErrorBody;
use ramlace_wire::peer::Token;
use serde::{Deserialize, Serialize};

/// Callers that want a spread directory removed, in the order of their requests; some never retry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Callers(VecDeque<(Token, Word)>);

/// The answer to a caller.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    /// No look has begun since it asked.
    Asked,
    /// One has.
    Looking,
    /// Why the directory is not whole.
    Refused(ErrorBody),
}

numbered_variants! { Word:
    0 Asked;
    1 Looking;
    2 Refused(body);
}

impl Callers {
    pub(crate) fn note(&mut self, token: Token) {
        if self.0.iter().any(|(known, _)| *known == token) {
            return;
        }
        if self.0.len() >= limits::DIRECTORY_REMOVERS_MAX {
            // Callers that never come back for their answer make room. If there are none, the caller asks
            // again.
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

    pub(crate) fn refuse(&mut self, why: &Error) {
        for (_, word) in &mut self.0 {
            if *word == Word::Looking {
                *word = Word::Refused(ErrorBody::new(why));
            }
        }
    }

    pub(crate) fn take_refusal(&mut self, token: Token) -> Option<ErrorBody> {
        let at =
            self.0.iter().position(|(known, word)| *known == token && matches!(word, Word::Refused(_)))?;
        match self.0.remove(at) {
            Some((_, Word::Refused(why))) => Some(why),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::{ErrorKind, Sequence, SessionId};

    use super::*;

    #[test]
    fn so_many_are_remembered_and_those_that_never_come_again_make_room() {
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
