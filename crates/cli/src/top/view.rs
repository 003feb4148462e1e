//! What is shown: rows in their order, and sums.

use ramlace_wire::session::ServerStatus;
use serde_json::{Value, json};

use super::samples::{Rates, Samples, Server};
use crate::show::percent;

/// By what the rows are sorted: the largest first, but for the number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The server's number.
    #[default]
    Number,
    /// How full it is.
    Fill,
    /// Bytes read a second.
    Read,
    /// Bytes written a second.
    Written,
    /// Operations a second.
    Operations,
}

impl Sort {
    /// The next one, round and round.
    #[must_use]
    pub fn next(self) -> Sort {
        match self {
            Sort::Number => Sort::Fill,
            Sort::Fill => Sort::Read,
            Sort::Read => Sort::Written,
            Sort::Written => Sort::Operations,
            Sort::Operations => Sort::Number,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Number => "number",
            Sort::Fill => "fill",
            Sort::Read => "reads",
            Sort::Written => "writes",
            Sort::Operations => "operations",
        }
    }

    fn key(self, server: &Server) -> f64 {
        let rates = server.rates.unwrap_or_default();
        match self {
            Sort::Number => 0.0,
            Sort::Fill => {
                server.answer().map_or(0.0, |status| percent(status.used_bytes, status.store_bytes))
            }
            Sort::Read => rates.read,
            Sort::Written => rates.written,
            Sort::Operations => rates.operations,
        }
    }
}

impl Server {
    /// What it said last, unless it has fallen silent since.
    pub fn answer(&self) -> Option<&ServerStatus> {
        self.status.as_ref().filter(|_| self.silent.is_none()).map(|(_, status)| &**status)
    }
}

/// One server.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its number.
    pub server: u16,
    /// What is known of it.
    pub known: Server,
    /// For how long it has not answered.
    pub silent_millis: Option<u64>,
}

/// Over the servers that answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// How many there are.
    pub servers: usize,
    /// How many of them answer.
    pub answering: usize,
    /// Bytes lent.
    pub store_bytes: u64,
    /// Bytes taken.
    pub used_bytes: u64,
    /// Bytes of those that hold the namespace.
    pub meta_bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
    /// Sums of the rates.
    pub rates: Rates,
}

/// Everything that is shown.
#[derive(Clone, Debug)]
pub struct View {
    /// The pool's name or address.
    pub pool: String,
    /// The map's epoch.
    pub epoch: u64,
    /// In the order that was asked for.
    pub rows: Vec<Row>,
    /// Sums.
    pub totals: Totals,
    /// Where this machine has mounted the pool.
    pub mounts: Vec<String>,
    /// The order.
    pub sort: Sort,
}

impl View {
    /// What is to be shown at a moment.
    pub fn new(pool: &str, samples: &Samples, mounts: Vec<String>, sort: Sort, now_millis: u64) -> View {
        let row = |(number, known): (&u16, &Server)| Row {
            server: *number,
            silent_millis: known.silent.as_ref().map(|(since, _)| now_millis.saturating_sub(*since)),
            known: known.clone(),
        };
        let mut rows: Vec<Row> = samples.servers.iter().map(row).collect();
        // Stable: equal ones stay in the order of their numbers.
        rows.sort_by(|a, b| sort.key(&b.known).total_cmp(&sort.key(&a.known)));
        let totals = totals(&rows);
        View { pool: pool.to_owned(), epoch: samples.epoch, rows, totals, mounts, sort }
    }

    /// Whether every server answers.
    pub fn is_healthy(&self) -> bool {
        self.totals.answering == self.totals.servers
    }
}

fn totals(rows: &[Row]) -> Totals {
    let mut totals = Totals { servers: rows.len(), ..Totals::default() };
    for row in rows {
        let Some(status) = row.known.answer() else { continue };
        let rates = row.known.rates.unwrap_or_default();
        totals.answering += 1;
        totals.store_bytes += status.store_bytes;
        totals.used_bytes += status.used_bytes;
        totals.meta_bytes += status.meta_bytes;
        totals.inodes += status.inodes;
        totals.rates.read += rates.read;
        totals.rates.written += rates.written;
        totals.rates.operations += rates.operations;
    }
    totals
}

/// All of it for programs; rates are numbers per second, null where there is none yet.
pub fn as_json(view: &View) -> Value {
    let totals = &view.totals;
    json!({
        "pool": view.pool, "epoch": view.epoch, "healthy": view.is_healthy(), "mounts": view.mounts,
        "total_bytes": totals.store_bytes, "used_bytes": totals.used_bytes, "meta_bytes": totals.meta_bytes,
        "inodes": totals.inodes, "read_bytes_per_second": totals.rates.read,
        "written_bytes_per_second": totals.rates.written, "operations_per_second": totals.rates.operations,
        "servers": view.rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}

fn row_json(row: &Row) -> Value {
    let Some(status) = row.known.answer() else {
        let why = row.known.silent.as_ref().map(|(_, why)| why);
        return json!({
            "server": row.server, "address": row.known.address, "state": "not answering", "error": why,
        });
    };
    let rates = row.known.rates;
    json!({
        "server": row.server, "address": row.known.address, "state": "up", "pid": status.pid,
        "restarts": status.restarts, "store_bytes": status.store_bytes, "used_bytes": status.used_bytes,
        "meta_bytes": status.meta_bytes, "inodes": status.inodes, "sessions": status.sessions,
        "connections": status.connections,
        "read_bytes_per_second": rates.map(|rates| rates.read),
        "written_bytes_per_second": rates.map(|rates| rates.written),
        "operations_per_second": rates.map(|rates| rates.operations),
    })
}

#[cfg(test)]
mod tests {
    use super::super::samples::tests::{answer, map, silence, status};
    use super::*;

    fn view(sort: Sort) -> View {
        let mut samples = Samples::default();
        samples.take(map(3, &[0, 1, 2, 3]));
        for (server, work) in [(0, 10), (1, 30), (2, 20)] {
            samples.take(answer(server, 0, status(server, 7, 0)));
            samples.take(answer(server, 1000, status(server, 7, work)));
        }
        samples.take(silence(3, 1000));
        View::new("lab", &samples, vec!["/mnt".into()], sort, 4000)
    }

    fn order(sort: Sort) -> Vec<u16> {
        view(sort).rows.iter().map(|row| row.server).collect()
    }

    #[test]
    fn rows_are_sorted_as_asked() {
        assert_eq!(order(Sort::Number), [0, 1, 2, 3]);
        assert_eq!(order(Sort::Fill), [2, 1, 0, 3]);
        for sort in [Sort::Read, Sort::Written, Sort::Operations] {
            assert_eq!(order(sort), [1, 2, 0, 3], "{sort:?}");
        }
        let round: Vec<_> =
            std::iter::successors(Some(Sort::Number), |sort| Some(sort.next())).take(6).collect();
        let names: Vec<_> = round.iter().map(|sort| sort.name()).collect();
        assert_eq!(names, ["number", "fill", "reads", "writes", "operations", "number"]);
    }

    #[test]
    fn sums_are_those_of_the_servers_that_answer() {
        let view = view(Sort::Number);
        let totals = view.totals;
        assert_eq!((totals.servers, totals.answering, totals.inodes), (4, 3, 30));
        assert_eq!((totals.store_bytes, totals.used_bytes), (3 << 30, 6 << 28));
        assert_eq!(totals.rates.operations, 6000.0);
        assert!(!view.is_healthy());
        assert_eq!(view.rows[3].silent_millis, Some(3000));
        let json = as_json(&view);
        assert_eq!(
            (&json["healthy"], &json["epoch"], &json["mounts"][0]),
            (&json!(false), &json!(3), &json!("/mnt"))
        );
        assert_eq!(json["servers"][1]["read_bytes_per_second"], f64::from(30 << 20));
        assert_eq!(json["servers"][3]["error"], "connection refused");
    }
}
