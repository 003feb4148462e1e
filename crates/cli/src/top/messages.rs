//! Which messages the servers are asked, how often, and how long their answers take. Pure.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_wire::metrics::{MessageMetrics, Metrics, latency_class_micros};
use serde_json::{Value, json};

use crate::message_counts::{add, class_within, name_of, nothing, since, within_text};
use crate::show::table;

/// One message, over all servers that answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Since the servers' processes began.
    pub all: MessageMetrics,
    /// Between the last two samples; `None` before the second.
    pub last: Option<MessageMetrics>,
}

/// By what messages are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortMessages {
    /// Calls a second; then calls in all.
    #[default]
    Calls,
    /// The time within which 99 of 100 answers of the last interval were made.
    Slowest,
    /// Errors a second; then errors in all.
    Errors,
    /// Name.
    Name,
}

impl SortMessages {
    /// The next way to sort.
    pub fn next(self) -> SortMessages {
        match self {
            SortMessages::Calls => SortMessages::Slowest,
            SortMessages::Slowest => SortMessages::Errors,
            SortMessages::Errors => SortMessages::Name,
            SortMessages::Name => SortMessages::Calls,
        }
    }

    /// For the footer.
    pub fn name(self) -> &'static str {
        match self {
            SortMessages::Calls => "calls",
            SortMessages::Slowest => "p99",
            SortMessages::Errors => "errors",
            SortMessages::Name => "message",
        }
    }
}

/// The last two samples of all servers.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    /// What each server has counted, by message.
    counts: BTreeMap<u16, BTreeMap<u16, MessageMetrics>>,
    shown: Vec<Message>,
    /// How far apart the samples are; 0 before the second.
    millis: u64,
    looked_millis: Option<u64>,
}

impl Messages {
    /// Takes in what the servers that answered have counted, at a moment in milliseconds.
    pub fn look(&mut self, answers: &[(u16, Metrics)], at_millis: u64) {
        self.millis = self.looked_millis.map_or(0, |before| at_millis.saturating_sub(before));
        let before = std::mem::take(&mut self.counts);
        let mut shown: BTreeMap<u16, Message> = BTreeMap::new();
        for (server, metrics) in answers {
            for message in &metrics.messages {
                let kind = message.kind;
                let new = || Message { all: nothing(kind), last: (self.millis > 0).then(|| nothing(kind)) };
                let sum = shown.entry(kind).or_insert_with(new);
                add(&mut sum.all, message);
                // A server that was silent, or that began anew, gives no rate once.
                let last = before.get(server).and_then(|known| match known.get(&kind) {
                    Some(before) => since(message, before),
                    None => Some(message.clone()),
                });
                if let (Some(sum), Some(last)) = (&mut sum.last, last) {
                    add(sum, &last);
                }
            }
            let counts = metrics.messages.iter().map(|message| (message.kind, message.clone()));
            self.counts.insert(*server, counts.collect());
        }
        self.shown = shown.into_values().collect();
        self.looked_millis = Some(at_millis);
    }

    /// The messages that came, the busiest first.
    pub fn sorted(&self, sort: SortMessages) -> Vec<Message> {
        let mut messages = self.shown.clone();
        let busy = |message: &Message| {
            let of = |count: fn(&MessageMetrics) -> u64| {
                (message.last.as_ref().map_or(0, count), count(&message.all))
            };
            match sort {
                SortMessages::Calls => of(MessageMetrics::answers),
                SortMessages::Slowest => {
                    of(|counts| class_within(counts, 99).map_or(0, |class| class as u64 + 1))
                }
                SortMessages::Errors => of(|counts| counts.errors),
                SortMessages::Name => (0, 0),
            }
        };
        messages.sort_by(|one, other| {
            busy(other).cmp(&busy(one)).then_with(|| name_of(one.all.kind).cmp(&name_of(other.all.kind)))
        });
        messages
    }

    /// In a second, of what was counted in the last interval.
    fn rate(&self, message: &Message, count: fn(&MessageMetrics) -> u64) -> Option<f64> {
        Some(count(message.last.as_ref()?) as f64 * 1000.0 / self.millis as f64)
    }

    /// Calls and errors a second, of all messages; `None` before the second sample.
    pub fn rates(&self) -> Option<(f64, f64)> {
        let sum = |count| self.shown.iter().filter_map(|message| self.rate(message, count)).sum();
        (self.millis > 0).then(|| (sum(MessageMetrics::answers), sum(|counts| counts.errors)))
    }

    /// The table: its head and a line for each message. Times are those of the last interval.
    pub fn table(&self, sort: SortMessages) -> Vec<String> {
        let head =
            ["MESSAGE", "CALLS/S", "P50", "P99", "ERRORS/S", "RECEIVED/S", "SENT/S", "CALLS", "ERRORS"];
        let cells = |message: Message| {
            let rate = |count, text: fn(f64) -> String| {
                self.rate(&message, count).map_or_else(|| "-".to_owned(), text)
            };
            let within = |percent| {
                message.last.as_ref().map_or_else(|| "-".to_owned(), |last| within_text(last, percent))
            };
            vec![
                name_of(message.all.kind),
                rate(MessageMetrics::answers, number_text),
                within(50),
                within(99),
                rate(|counts| counts.errors, number_text),
                rate(|counts| counts.received_bytes, |rate| format_bytes(rate as u64)),
                rate(|counts| counts.sent_bytes, |rate| format_bytes(rate as u64)),
                message.all.answers().to_string(),
                message.all.errors.to_string(),
            ]
        };
        let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.sorted(sort).into_iter().map(cells));
        table(&lines, &[1, 2, 3, 4, 5, 6, 7, 8])
    }

    /// For programs. A time is the upper end of its class; null where there is none.
    pub fn json(&self, sort: SortMessages) -> Value {
        let one = |message: Message| {
            let within = |percent| {
                message
                    .last
                    .as_ref()
                    .and_then(|last| class_within(last, percent))
                    .and_then(latency_class_micros)
            };
            json!({
                "message": name_of(message.all.kind),
                "calls_per_second": self.rate(&message, MessageMetrics::answers),
                "errors_per_second": self.rate(&message, |counts| counts.errors),
                "received_bytes_per_second": self.rate(&message, |counts| counts.received_bytes),
                "sent_bytes_per_second": self.rate(&message, |counts| counts.sent_bytes),
                "p50_micros_max": within(50), "p99_micros_max": within(99),
                "calls": message.all.answers(), "errors": message.all.errors,
                "received_bytes": message.all.received_bytes, "sent_bytes": message.all.sent_bytes,
            })
        };
        json!({"messages": self.sorted(sort).into_iter().map(one).collect::<Vec<_>>()})
    }
}

/// A rate for people: what happens less than ten times a second has a digit after its point.
pub fn number_text(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_counts::tests::counted;

    const READ: u16 = 0x0201;
    const WRITE: u16 = 0x0202;

    fn metrics(messages: &[(u16, u64, u64)]) -> Metrics {
        let messages = messages.iter().map(|(kind, fast, slow)| counted(*kind, *fast, *slow)).collect();
        Metrics { messages, sessions: Vec::new() }
    }

    fn rates(messages: &Messages, sort: SortMessages) -> Vec<(u16, Option<f64>)> {
        let rate = |message| (messages.rate(&message, MessageMetrics::answers), message);
        let shown = messages.sorted(sort).into_iter().map(rate);
        shown.map(|(rate, message)| (message.all.kind, rate)).collect()
    }

    #[test]
    fn rates_and_times_are_those_of_the_last_interval() {
        let mut messages = Messages::default();
        messages.look(&[(0, metrics(&[(READ, 1000, 0)])), (1, metrics(&[(READ, 1000, 50)]))], 1000);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, None)]);
        assert_eq!(messages.rates(), None);
        assert!(messages.table(SortMessages::Calls)[1].starts_with("ReadChunk        -    -    -"));
        // The second message was never asked before.
        let answers = [(0, metrics(&[(READ, 1010, 0), (WRITE, 6, 1)])), (1, metrics(&[(READ, 1010, 50)]))];
        messages.look(&answers, 3000);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, Some(10.0)), (WRITE, Some(3.5))]);
        assert_eq!(rates(&messages, SortMessages::Slowest)[0].0, WRITE);
        assert_eq!(rates(&messages, SortMessages::Errors)[0].0, WRITE);
        assert_eq!(messages.rates(), Some((13.5, 0.5)));
        let json = messages.json(SortMessages::Name);
        let write = &json["messages"][1];
        assert_eq!((&write["p50_micros_max"], &write["p99_micros_max"]), (&json!(16), &json!(null)));
        assert_eq!((&write["errors_per_second"], &write["calls"]), (&json!(0.5), &json!(7)));
        let table = messages.table(SortMessages::Calls);
        let cells: Vec<&str> = table[2].split_whitespace().collect();
        assert_eq!(cells[..5], ["WriteChunk", "3.5", "<16us", ">4.2s", "0.5"]);
    }

    #[test]
    fn a_server_that_began_anew_or_was_silent_gives_no_rate_once() {
        let mut messages = Messages::default();
        messages.look(&[(0, metrics(&[(READ, 1000, 0)])), (1, metrics(&[(READ, 70, 0)]))], 1000);
        messages.look(&[(0, metrics(&[(READ, 10, 0)]))], 2000);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, Some(0.0))]);
        messages.look(&[(0, metrics(&[(READ, 30, 0)])), (1, metrics(&[(READ, 5000, 0)]))], 3000);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, Some(20.0))]);
        assert_eq!(messages.sorted(SortMessages::Calls)[0].all.answers(), 5030);
    }

    #[test]
    fn a_message_without_a_name_is_shown_by_its_number() {
        let mut messages = Messages::default();
        messages.look(&[(0, metrics(&[(0xffee, 1, 0)]))], 0);
        assert!(messages.table(SortMessages::Name)[1].starts_with("0xffee"));
    }
}
