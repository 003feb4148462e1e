//! Answers to clients, compared with the model's.

use super::*;

impl Pool {
    pub(super) fn answered(&mut self, token: Token, outcome: Result<Reply>) {
        let client = self.clients.iter().position(|client| client.session == token.session);
        let client = client.expect("an ended session is not answered");
        let sent = self.clients[client].sent.get(&token.sequence).expect("answered before").clone();
        assert!(sent.outcome.is_none(), "{:?} is answered twice", sent.wish);
        if let Err(error) = &outcome
            && matches!(
                error.kind(),
                ErrorKind::Retry | ErrorKind::HostDown | ErrorKind::Redirect(Redirect::Spread)
            )
        {
            let spread = error.kind() == ErrorKind::Redirect(Redirect::Spread);
            assert!(
                !self.quiet || spread,
                "nothing is under way, yet {:?} is answered with {outcome:?}",
                sent.wish
            );
            assert_ne!(self.decided.get(&token), Some(&true), "{:?} happened: {error}", sent.wish);
            let unreachable = self.unreachable.contains(&token) || self.is_leaving(sent.wish.target());
            assert!(error.kind() != ErrorKind::HostDown || unreachable, "{:?}: {error}", sent.wish);
            if spread {
                self.learn(client, &sent.wish);
            }
            self.undecided.remove(&token);
            return self.clients[client].sent.get_mut(&token.sequence).unwrap().again = true;
        }
        match &sent.wish {
            wish if wish.has_several_slots() => self.check_several_slots(client, token, &sent, &outcome),
            Wish::Truncate { .. } => {}
            Wish::Promote { node } => self.check_promote(*node, &outcome),
            wish => self.check_one_slot(client, wish, &outcome),
        }
        let done = outcome.is_ok();
        self.clients[client].sent.get_mut(&token.sequence).unwrap().outcome = Some(outcome);
        if let (Wish::SetMode { node, .. }, true) = (&sent.wish, done) {
            self.check_mode_everywhere(*node);
        }
    }

    /// A change of the mode that was answered has reached every partition, but for one that came later.
    pub(super) fn check_mode_everywhere(&self, node: Node) {
        let mut waiting = self.clients.iter().flat_map(|client| client.sent.values());
        let another = waiting.any(|sent| {
            sent.outcome.is_none() && matches!(sent.wish, Wish::SetMode { node: other, .. } if other == node)
        });
        if !another {
            self.check_modes(node);
        }
    }

    pub(super) fn check_several_slots(
        &mut self,
        client: usize,
        token: Token,
        sent: &Sent,
        outcome: &Result<Reply>,
    ) {
        self.undecided.remove(&token);
        let wish = &sent.wish;
        match (self.decided.get(&token), outcome) {
            (Some(true), Ok(_)) => {}
            (Some(true), Err(error)) => panic!("{wish:?} happened but is answered with {error}"),
            (None, Ok(_)) => self.check_one_slot(client, wish, outcome),
            (Some(false), Ok(_)) => assert!(sent.possible.contains(&Outcome::Nothing), "{wish:?}"),
            // A directory that went while it was asked, and did not know it yet.
            (_, Err(error))
                if error.kind() == ErrorKind::NotPermitted
                    && sent.possible.contains(&Outcome::Failed(ErrorKind::Stale)) => {}
            (_, Err(_)) if wish.takes().into_iter().any(|node| self.does_not_know_its_end(node)) => {}
            (_, Err(error)) => assert!(
                sent.possible.contains(&Outcome::Failed(error.kind())),
                "{wish:?}: {error}, but the model says {:?}",
                sent.possible
            ),
        }
    }

    pub(super) fn check_one_slot(&mut self, client: usize, wish: &Wish, outcome: &Result<Reply>) {
        if let Wish::Close { node } = wish
            && !self.clients[client].open.remove(node)
        {
            return assert_eq!(outcome.as_ref().unwrap_err().kind(), ErrorKind::BadHandle);
        }
        if let (Wish::Create { parent, name, exclusive: false, .. }, Err(error)) = (wish, outcome)
            && error.kind() == ErrorKind::Exists
        {
            let node = self.model.lookup(*parent, name).expect("it exists");
            assert_eq!(self.model.stat(node).unwrap().kind, FileKind::File);
            let slot = self.slot_of(client, *parent, name);
            return assert_ne!(self.inode_of[&node].slot(), slot, "it lives here");
        }
        if let (Wish::Write { node, .. }, Ok(Reply::WroteInline(written))) = (wish, outcome)
            && written.outcome != InlineOutcome::Written
        {
            assert_eq!(written.outcome == InlineOutcome::Full, self.is_inline(*node));
            return;
        }
        let expected = wish.on_model(&mut self.model);
        if expected.is_err() && self.does_not_know_its_end(wish.target()) {
            // A write counts as earlier than the end, of which its home was not notified.
            let write = matches!(wish, Wish::Write { .. } | Wish::Extend { .. });
            return assert!(write || outcome.is_err(), "{wish:?} is done on what is gone");
        }
        let kinds = (
            outcome.as_ref().map(|_| ()).map_err(|e| e.kind()),
            expected.as_ref().map(|_| ()).map_err(|e| e.kind()),
        );
        assert_eq!(kinds.0, kinds.1, "{wish:?}: {outcome:?}, but the model says {expected:?}");
        if expected.is_ok() {
            self.disturb();
        }
        if let (Ok(reply), Ok(Some(node))) = (outcome, expected) {
            match reply {
                Reply::Opened(opened) => {
                    self.bind(node, opened.info.attributes.inode);
                    if opened.created {
                        self.files.insert(opened.info.attributes.inode);
                    }
                    if !self.clients[client].open.insert(node) {
                        self.model.close(node).unwrap(); // A session has one reference.
                    }
                }
                Reply::Attributes(attributes) => self.bind(node, attributes.inode),
                other => panic!("{wish:?} is answered with {other:?}"),
            }
        }
    }

    /// A directory that is removed, in the moment before its own slot knows.
    pub fn does_not_know_its_end(&self, node: Node) -> bool {
        self.model.stat(node).is_err() && self.info(self.inode_of[&node]).is_ok()
    }
}
