//! What the keys change.

use super::clients::SortClients;
use super::messages::SortMessages;
use super::terminal::ESCAPE;
use super::view::Sort;

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// The pool's servers.
    #[default]
    Servers,
    /// Its clients, and what each moves.
    Clients,
    /// Its messages, and how long their answers take.
    Messages,
}

/// How it is shown. What a subject is sorted by stays while others are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looking {
    /// What is shown.
    pub subject: Subject,
    /// How servers are sorted.
    pub sort: Sort,
    /// How clients are sorted.
    pub sort_clients: SortClients,
    /// How messages are sorted.
    pub sort_messages: SortMessages,
    /// What arrives is kept, and not shown.
    pub paused: bool,
    /// The help is shown instead.
    pub help: bool,
}

impl Looking {
    /// Another view, or `None` to quit.
    pub fn after(self, key: u8) -> Option<Looking> {
        match key {
            b'q' | b'Q' => None,
            // In the help, the key leaves the help alone.
            ESCAPE if !self.help => None,
            b's' | b'S' => Some(self.sorted_by_next()),
            b'p' | b'P' | b' ' => Some(Looking { paused: !self.paused, ..self }),
            b'c' | b'C' => Some(self.switched(Subject::Clients)),
            b'm' | b'M' => Some(self.switched(Subject::Messages)),
            b'?' | b'h' => Some(Looking { help: !self.help, ..self }),
            _ => Some(Looking { help: false, ..self }),
        }
    }

    fn sorted_by_next(self) -> Looking {
        match self.subject {
            Subject::Servers => Looking { sort: self.sort.next(), ..self },
            Subject::Clients => Looking { sort_clients: self.sort_clients.next(), ..self },
            Subject::Messages => Looking { sort_messages: self.sort_messages.next(), ..self },
        }
    }

    /// That subject, or servers again.
    fn switched(self, subject: Subject) -> Looking {
        let subject = if self.subject == subject { Subject::Servers } else { subject };
        // What was paused was another table.
        Looking { subject, paused: false, help: false, ..self }
    }

    /// What the keys do, for the last line.
    pub fn footer(&self) -> String {
        let sort = match self.subject {
            Subject::Servers => self.sort.name(),
            Subject::Clients => self.sort_clients.name(),
            Subject::Messages => self.sort_messages.name(),
        };
        let leads = |to: Subject, name| if self.subject == to { "servers" } else { name };
        format!(
            "q quit   s sort (by {sort})   p pause   c {}   m {}   ? help",
            leads(Subject::Clients, "clients"),
            leads(Subject::Messages, "messages")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let start = Looking::default();
        assert_eq!(start.after(b's').unwrap().sort, Sort::Fill);
        assert!(start.after(b'p').unwrap().paused && !start.after(b'p').unwrap().after(b' ').unwrap().paused);
        let help = start.after(b'?').unwrap();
        assert!(help.help && !help.after(ESCAPE).unwrap().help && !help.after(b'?').unwrap().help);
        assert_eq!((start.after(b'q'), start.after(ESCAPE), help.after(b'q')), (None, None, None));
        assert_eq!(start.after(b'x'), Some(start));
    }

    #[test]
    fn a_key_shows_another_table_and_the_servers_again() {
        let start = Looking { sort: Sort::Read, ..Looking::default() };
        let messages = start.after(b'm').unwrap();
        assert_eq!((messages.subject, messages.sort), (Subject::Messages, Sort::Read));
        assert!(messages.footer().ends_with("c clients   m servers   ? help"), "{}", messages.footer());
        let sorted = messages.after(b's').unwrap();
        assert_eq!((sorted.sort_messages.name(), sorted.sort), ("p99", Sort::Read));
        let clients = sorted.after(b'p').unwrap().after(b'c').unwrap();
        assert_eq!((clients.subject, clients.paused), (Subject::Clients, false));
        assert!(
            clients.footer().starts_with("q quit   s sort (by bytes)   p pause   c servers   m messages")
        );
        assert_eq!(clients.after(b'm').unwrap().sort_messages, sorted.sort_messages);
        assert_eq!(clients.after(b'c').unwrap().subject, Subject::Servers);
    }
}
