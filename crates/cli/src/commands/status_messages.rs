//! `status --messages`: what the servers were asked since their processes began, how often, and how long it took.

use std::collections::BTreeMap;

use ramlace_base::Result;
use ramlace_base::units::format_bytes;
use ramlace_client::Pool;
use ramlace_wire::Kind;
use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics, latency_class_micros};
use serde_json::{Value, json};

use crate::show::table;

/// The messages of all servers that answer, by number; and servers that do not.
pub struct Messages {
    messages: BTreeMap<u16, MessageMetrics>,
}

impl Messages {
    /// Asks every server. One that does not answer is not in the sums: `status` reports it anyway.
    pub fn ask(pool: &Pool) -> Result<Messages> {
        let mut messages = BTreeMap::new();
        for (_, metrics) in pool.metrics()? {
            for message in metrics.into_iter().flat_map(|metrics| metrics.messages) {
                messages.entry(message.kind).and_modify(|sum| add(sum, &message)).or_insert(message);
            }
        }
        Ok(Messages { messages })
    }

    /// A head, and a line for each message.
    pub fn lines(&self) -> Vec<String> {
        let head = ["MESSAGE", "ANSWERS", "ERRORS", "MEAN", "HALF", "99 %", "IN", "OUT"];
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

fn add(sum: &mut MessageMetrics, more: &MessageMetrics) {
    sum.errors = sum.errors.saturating_add(more.errors);
    sum.received_bytes = sum.received_bytes.saturating_add(more.received_bytes);
    sum.sent_bytes = sum.sent_bytes.saturating_add(more.sent_bytes);
    sum.micros = sum.micros.saturating_add(more.micros);
    for (sum, more) in sum.classes.iter_mut().zip(more.classes) {
        *sum = sum.saturating_add(more);
    }
}

fn name_of(kind: u16) -> String {
    Kind::from_number(kind).map_or_else(|| format!("{kind:#06x}"), |kind| format!("{kind:?}"))
}

/// The time within which so many percent of the answers were made, as precisely as the classes allow.
fn within_text(message: &MessageMetrics, percent: u64) -> String {
    let wanted = u128::from(message.answers()) * u128::from(percent);
    let mut sum = 0;
    let class = message.classes.iter().position(|count| {
        sum += u128::from(*count) * 100;
        sum >= wanted
    });
    match class.map(latency_class_micros) {
        Some(Some(micros)) => format!("<{}", micros_text(micros)),
        _ => format!(">{}", micros_text(latency_class_micros(LATENCY_CLASSES - 2).unwrap_or(0))),
    }
}

fn micros_text(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros}us"),
        1000..1_000_000 => format!("{:.1}ms", micros as f64 / 1e3),
        _ => format!("{:.1}s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_by_the_class_that_holds_them() {
        let mut classes = [0; LATENCY_CLASSES];
        (classes[1], classes[3], classes[LATENCY_CLASSES - 1]) = (60, 39, 1);
        let mut message = MessageMetrics {
            kind: 0x0201,
            errors: 1,
            received_bytes: 0,
            sent_bytes: 5,
            micros: 1000,
            classes,
        };
        let shown = ["<16us", "<256us", ">4.2s"];
        assert_eq!([50, 99, 100].map(|percent| within_text(&message, percent)), shown);
        let other = message.clone();
        add(&mut message, &other);
        assert_eq!((message.answers(), message.errors, message.sent_bytes), (200, 2, 10));
        let lines = Messages { messages: BTreeMap::from([(0x0201, message)]) }.lines();
        assert!(lines[1].starts_with("ReadChunk      200       2"), "{lines:?}");
    }
}
