//! What was counted of a message, and how people read it.

use ramlace_wire::Kind;
use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics, latency_class_micros};

/// Adds what another server has counted of the same message.
pub fn add(sum: &mut MessageMetrics, more: &MessageMetrics) {
    sum.errors = sum.errors.saturating_add(more.errors);
    sum.received_bytes = sum.received_bytes.saturating_add(more.received_bytes);
    sum.sent_bytes = sum.sent_bytes.saturating_add(more.sent_bytes);
    sum.micros = sum.micros.saturating_add(more.micros);
    for (sum, more) in sum.classes.iter_mut().zip(more.classes) {
        *sum = sum.saturating_add(more);
    }
}

/// What one server has counted since it had counted `before`; `None` when its counts began anew.
pub fn since(now: &MessageMetrics, before: &MessageMetrics) -> Option<MessageMetrics> {
    let mut classes = now.classes;
    for (count, before) in classes.iter_mut().zip(before.classes) {
        *count = count.checked_sub(before)?;
    }
    Some(MessageMetrics {
        kind: now.kind,
        errors: now.errors.checked_sub(before.errors)?,
        received_bytes: now.received_bytes.checked_sub(before.received_bytes)?,
        sent_bytes: now.sent_bytes.checked_sub(before.sent_bytes)?,
        micros: now.micros.checked_sub(before.micros)?,
        classes,
    })
}

/// Nothing was counted.
pub fn nothing(kind: u16) -> MessageMetrics {
    MessageMetrics {
        kind,
        errors: 0,
        received_bytes: 0,
        sent_bytes: 0,
        micros: 0,
        classes: [0; LATENCY_CLASSES],
    }
}

/// The name of a message; a newer server's may have a number only.
pub fn name_of(kind: u16) -> String {
    Kind::from_number(kind).map_or_else(|| format!("{kind:#06x}"), |kind| format!("{kind:?}"))
}

/// The class of times within which so many percent of the answers were made; `None` without any.
pub fn class_within(message: &MessageMetrics, percent: u64) -> Option<usize> {
    let answers = message.answers();
    let wanted = u128::from(answers) * u128::from(percent);
    let mut sum = 0;
    let class = message.classes.iter().position(|count| {
        sum += u128::from(*count) * 100;
        sum >= wanted
    });
    class.filter(|_| answers > 0)
}

/// The time within which so many percent of the answers were made, as precisely as the classes allow.
pub fn within_text(message: &MessageMetrics, percent: u64) -> String {
    let Some(class) = class_within(message, percent) else { return "-".into() };
    match latency_class_micros(class) {
        Some(micros) => format!("<{}", micros_text(micros)),
        None => format!(">{}", micros_text(latency_class_micros(LATENCY_CLASSES - 2).unwrap_or(0))),
    }
}

/// `16us`, `1.2ms`, `4.2s`.
pub fn micros_text(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros}us"),
        1000..1_000_000 => format!("{:.1}ms", micros as f64 / 1e3),
        _ => format!("{:.1}s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// So many answers in the class of at most 16 µs, and so many in the last.
    pub fn counted(kind: u16, fast: u64, slow: u64) -> MessageMetrics {
        let mut message = nothing(kind);
        (message.classes[1], message.classes[LATENCY_CLASSES - 1]) = (fast, slow);
        (message.errors, message.sent_bytes) = (slow, fast * 1024);
        message
    }

    #[test]
    fn times_are_told_by_the_class_that_holds_them() {
        let mut message = counted(0x0201, 60, 1);
        message.classes[3] = 39;
        let shown = ["<16us", "<256us", ">4.2s"];
        assert_eq!([50, 99, 100].map(|percent| within_text(&message, percent)), shown);
        let other = message.clone();
        add(&mut message, &other);
        assert_eq!((message.answers(), message.errors, message.sent_bytes), (200, 2, 120 << 10));
        assert_eq!(within_text(&nothing(0x0201), 99), "-");
    }

    #[test]
    fn counts_that_went_back_began_anew() {
        let (before, now) = (counted(0x0201, 10, 1), counted(0x0201, 15, 1));
        assert_eq!(since(&now, &before), Some(MessageMetrics { errors: 0, ..counted(0x0201, 5, 0) }));
        assert_eq!(since(&before, &now), None);
        // As many answers, but not the same ones.
        assert_eq!(since(&counted(0x0201, 8, 3), &before), None);
    }
}
