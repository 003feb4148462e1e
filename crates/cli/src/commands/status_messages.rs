//! What the servers were asked since their processes began, how often, and how long it took: `status --json`, and a
//! table by `status --messages`.

use std::collections::BTreeMap;

use ramlace_base::units::format_bytes;
use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics, Metrics, latency_class_micros};
use serde_json::{Value, json};

use crate::message_counts::{add, micros_text, name_of, within_text};
use crate::show::table;

/// The messages of all servers that answer, by number.
pub struct Messages {
    messages: BTreeMap<u16, MessageMetrics>,
}

impl Messages {
    /// The sums over what servers have counted.
    pub fn of(counted: impl IntoIterator<Item = Metrics>) -> Messages {
        let mut messages = BTreeMap::new();
        for message in counted.into_iter().flat_map(|metrics| metrics.messages) {
            messages.entry(message.kind).and_modify(|sum| add(sum, &message)).or_insert(message);
        }
        Messages { messages }
    }

    /// A head, and a line for each message.
    pub fn lines(&self) -> Vec<String> {
        let head = ["MESSAGE", "ANSWERS", "ERRORS", "MEAN", "P50", "P99", "IN", "OUT"];
        let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.messages.values().map(|message| {
            vec![
                name_of(message.kind),
                message.answers().to_string(),
                message.errors.to_string(),
                micros_text(message.micros / message.answers().max(1)),
                within_text(message, 50),
                within_text(message, 99),
                format_bytes(message.received_bytes),
                format_bytes(message.sent_bytes),
            ]
        }));
        table(&lines, &[1, 2, 3, 4, 5, 6, 7])
    }

    /// For programs: times in microseconds, each class of times with its upper end.
    pub fn json(&self) -> Value {
        let one = |message: &MessageMetrics| {
            let classes: Vec<Value> = (0..LATENCY_CLASSES)
                .map(|class| json!({"micros_max": latency_class_micros(class), "answers": message.classes[class]}))
                .collect();
            json!({
                "message": name_of(message.kind), "answers": message.answers(), "errors": message.errors,
                "received_bytes": message.received_bytes, "sent_bytes": message.sent_bytes,
                "micros": message.micros, "times": classes,
            })
        };
        self.messages.values().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_counts::tests::counted;

    #[test]
    fn a_message_has_one_line_whatever_number_of_servers_has_counted_it() {
        let server = || Metrics { messages: vec![counted(0x0201, 99, 1)], sessions: Vec::new() };
        let messages = Messages::of([server(), server()]);
        let lines = messages.lines();
        assert!(lines[1].starts_with("ReadChunk      200       2"), "{lines:?}");
        assert_eq!(messages.json()[0]["times"][1], json!({"micros_max": 16, "answers": 198}));
    }
}
