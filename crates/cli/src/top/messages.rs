//! Which messages the servers are asked, how often, and how long their answers take. Pure.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_wire::metrics::{MessageMetrics, latency_class_micros};
use serde_json::{Value, json};

use super::samples::CountedBy;
use crate::message_counts::{add, class_within, name_of, nothing, since, within_text};
use crate::show::table;

/// One message, over all servers that answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Since the servers' processes began.
    pub all: MessageMetrics,
    /// Between the last two answers of each server; `None` where none has answered twice.
    pub last: Option<MessageMetrics>,
    /// In a second of that time.
    pub rates: Rates,
}

/// What happens in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    calls: f64,
    errors: f64,
    received_bytes: f64,
    sent_bytes: f64,
}

impl Rates {
    fn add(&mut self, last: &MessageMetrics, millis: u64) {
        let rate = |count: u64| count as f64 * 1000.0 / millis as f64;
        self.calls += rate(last.answers());
        self.errors += rate(last.errors);
        self.received_bytes += rate(last.received_bytes);
        self.sent_bytes += rate(last.sent_bytes);
    }
}

impl Message {
    /// `None` where no server has answered twice.
    fn rate(&self, of: fn(&Rates) -> f64) -> Option<f64> {
        self.last.as_ref().map(|_| of(&self.rates))
    }
}

fn new_message(kind: u16) -> Message {
    Message { all: nothing(kind), last: None, rates: Rates::default() }
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
    /// What each server has counted, by message, and when it said so.
    counts: BTreeMap<u16, (u64, BTreeMap<u16, MessageMetrics>)>,
    shown: Vec<Message>,
    /// A server has answered twice.
    has_rates: bool,
}

impl Messages {
    /// Takes in what the servers that answered have counted. One that was silent, or that began anew, gives no rate once.
    pub fn look(&mut self, answers: &[CountedBy]) {
        let before = std::mem::take(&mut self.counts);
        let mut shown: BTreeMap<u16, Message> = BTreeMap::new();
        self.has_rates = false;
        for CountedBy { server, at_millis, metrics } in answers {
            let known = before.get(server);
            self.has_rates |= known.is_some();
            for message in &metrics.messages {
                let sum = shown.entry(message.kind).or_insert_with(|| new_message(message.kind));
                add(&mut sum.all, message);
                let Some((said_millis, known)) = known else { continue };
                let last = match known.get(&message.kind) {
                    Some(before) => since(message, before),
                    None => Some(message.clone()),
                };
                let last = last.unwrap_or_else(|| nothing(message.kind));
                sum.rates.add(&last, at_millis.saturating_sub(*said_millis).max(1));
                add(sum.last.get_or_insert_with(|| nothing(message.kind)), &last);
            }
            let counts = metrics.messages.iter().map(|message| (message.kind, message.clone()));
            self.counts.insert(*server, (*at_millis, counts.collect()));
        }
        self.shown = shown.into_values().collect();
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

    /// Calls and errors a second, of all messages; `None` before the second sample.
    pub fn rates(&self) -> Option<(f64, f64)> {
        let sum = |of: fn(&Rates) -> f64| self.shown.iter().map(|message| of(&message.rates)).sum();
        self.has_rates.then(|| (sum(|rates| rates.calls), sum(|rates| rates.errors)))
    }

    /// The table: its head and a line for each message. Times are those of the last interval.
    pub fn table(&self, sort: SortMessages) -> Vec<String> {
        let head =
            ["MESSAGE", "CALLS/S", "P50", "P99", "ERRORS/S", "RECEIVED/S", "SENT/S", "CALLS", "ERRORS"];
        let cells = |message: Message| {
            let rate = |of: fn(&Rates) -> f64, text: fn(f64) -> String| {
                message.rate(of).map_or_else(|| "-".to_owned(), text)
            };
            let within = |percent| {
                message.last.as_ref().map_or_else(|| "-".to_owned(), |last| within_text(last, percent))
            };
            vec![
                name_of(message.all.kind),
                rate(|rates| rates.calls, number_text),
                within(50),
                within(99),
                rate(|rates| rates.errors, number_text),
                rate(|rates| rates.received_bytes, |rate| format_bytes(rate as u64)),
                rate(|rates| rates.sent_bytes, |rate| format_bytes(rate as u64)),
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
                "calls_per_second": message.rate(|rates| rates.calls),
                "errors_per_second": message.rate(|rates| rates.errors),
                "received_bytes_per_second": message.rate(|rates| rates.received_bytes),
                "sent_bytes_per_second": message.rate(|rates| rates.sent_bytes),
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
    use ramlace_wire::metrics::Metrics;

    use super::*;
    use crate::message_counts::tests::counted;

    const READ: u16 = 0x0201;
    const WRITE: u16 = 0x0202;

    fn answer(server: u16, at_millis: u64, messages: &[(u16, u64, u64)]) -> CountedBy {
        let messages = messages.iter().map(|(kind, fast, slow)| counted(*kind, *fast, *slow)).collect();
        CountedBy { server, at_millis, metrics: Metrics { messages, sessions: Vec::new() } }
    }

    fn rates(messages: &Messages, sort: SortMessages) -> Vec<(u16, Option<f64>)> {
        let shown = messages.sorted(sort).into_iter();
        shown.map(|message| (message.all.kind, message.rate(|rates| rates.calls))).collect()
    }

    #[test]
    fn rates_and_times_are_those_of_the_last_interval() {
        let mut messages = Messages::default();
        messages.look(&[answer(0, 1000, &[(READ, 1000, 0)]), answer(1, 1000, &[(READ, 1000, 50)])]);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, None)]);
        assert_eq!(messages.rates(), None);
        assert!(messages.table(SortMessages::Calls)[1].starts_with("ReadChunk        -    -    -"));
        // The second message was never asked before.
        messages.look(&[
            answer(0, 3000, &[(READ, 1010, 0), (WRITE, 6, 1)]),
            answer(1, 3000, &[(READ, 1010, 50)]),
        ]);
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
        messages.look(&[answer(0, 1000, &[(READ, 1000, 0)]), answer(1, 1000, &[(READ, 70, 0)])]);
        messages.look(&[answer(0, 2000, &[(READ, 10, 0)])]);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, Some(0.0))]);
        // The second answer came when the other server was waited for.
        messages.look(&[answer(0, 3000, &[(READ, 30, 0)]), answer(1, 6000, &[(READ, 5000, 0)])]);
        assert_eq!(rates(&messages, SortMessages::Calls), [(READ, Some(20.0))]);
        assert_eq!(messages.sorted(SortMessages::Calls)[0].all.answers(), 5030);
    }

    #[test]
    fn a_message_without_a_name_is_shown_by_its_number() {
        let mut messages = Messages::default();
        messages.look(&[answer(0, 0, &[(0xffee, 1, 0)])]);
        assert!(messages.table(SortMessages::Name)[1].starts_with("0xffee"));
    }
}
