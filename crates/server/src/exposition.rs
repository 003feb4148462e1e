//! `--metrics ADDRESS`: a server's counters over HTTP, as text in Prometheus' format. There is no
//! authentication, so it exposes only numbers: no names of files, sessions or users.

use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{Error, Result, limits};
use ramlace_wire::Kind;
use ramlace_wire::metrics::{LATENCY_CLASSES, MessageMetrics, latency_class_micros};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::server::Server;
use crate::stop::BugEndsProcess;

/// The time limit for a client to send its request and to read the answer.
const PATIENCE: Duration = Duration::from_millis(limits::METRICS_MILLIS_MAX);
/// The pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The pause after a failure to listen, because another program uses the port.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Opens the address.
///
/// Errors: it cannot be listened on; the message names it.
pub async fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Error::from_io(&error, format!("opening --metrics {address}")))
}

/// Answers all requests, until the process ends; if it could not listen, goes on trying.
pub async fn serve(server: Rc<Server>, address: String, listener: Result<TcpListener>) {
    let _bug = BugEndsProcess;
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("ramlace: no metrics are served until this works: {error}");
            loop {
                tokio::time::sleep(LISTEN_PAUSE).await;
                if let Ok(listener) = listen(&address).await {
                    break listener;
                }
            }
        }
    };
    let seats = Arc::new(Semaphore::new(limits::METRICS_CONNECTIONS_MAX));
    loop {
        let seat = seats.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = server.clone();
                tokio::task::spawn_local(async move {
                    // A bad or broken request harms no other client.
                    let _ = tokio::time::timeout(PATIENCE, answer(&server, stream)).await;
                    drop(seat);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn answer(server: &Server, mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 512];
        let count = stream.read(&mut piece).await?;
        head.extend_from_slice(&piece[..count]);
        if count == 0 || head.len() > limits::METRICS_REQUEST_BYTES_MAX {
            return Ok(());
        }
    }
    let (status, body) = if head.starts_with(b"GET /metrics ") || head.starts_with(b"GET / ") {
        ("200 OK", text(server))
    } else {
        ("404 Not Found", "ask for /metrics\n".to_owned())
    };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

/// A page under construction.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP ramlace_{name} {help}\n# TYPE ramlace_{name} {kind}\n");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        let _ = writeln!(self.0, "ramlace_{name} {value}");
    }

    fn by_message(
        &mut self,
        name: &str,
        help: &str,
        messages: &[MessageMetrics],
        of: fn(&MessageMetrics) -> u64,
    ) {
        self.family(name, "counter", help);
        for message in messages {
            let _ = writeln!(self.0, "ramlace_{name}{{message=\"{}\"}} {}", name_of(message), of(message));
        }
    }

    fn histogram(&mut self, messages: &[MessageMetrics]) {
        let help = "Time from the request, whose data may be yet to come, to its answer's way out.";
        self.family("request_seconds", "histogram", help);
        for message in messages {
            let name = name_of(message);
            let mut sum = 0;
            for class in 0..LATENCY_CLASSES {
                sum += message.classes[class];
                let most = match latency_class_micros(class) {
                    Some(micros) => seconds(micros),
                    None => "+Inf".to_owned(),
                };
                let _ = writeln!(
                    self.0,
                    "ramlace_request_seconds_bucket{{message=\"{name}\",le=\"{most}\"}} {sum}"
                );
            }
            let total = seconds(message.micros);
            let _ = writeln!(self.0, "ramlace_request_seconds_sum{{message=\"{name}\"}} {total}");
            let _ = writeln!(self.0, "ramlace_request_seconds_count{{message=\"{name}\"}} {sum}");
        }
    }
}

fn name_of(message: &MessageMetrics) -> String {
    Kind::from_number(message.kind).map_or_else(|| message.kind.to_string(), |kind| format!("{kind:?}"))
}

fn seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

fn text(server: &Server) -> String {
    let (status, counted) = (server.status(), server.metrics());
    let mut page = Page(String::new());
    page.single("server_number", "gauge", "The server's number in its pool.", u64::from(status.server.0));
    page.single("uptime_seconds", "gauge", "Time since the process began.", status.uptime_millis / 1000);
    page.single(
        "restarts",
        "gauge",
        "How often the supervisor has started it again.",
        status.restarts.into(),
    );
    page.single("epoch", "gauge", "The epoch of the map that it believes in.", status.epoch.0.into());
    page.single("store_bytes", "gauge", "Memory that it lends.", status.store_bytes);
    page.single("used_bytes", "gauge", "Memory taken by files and by the namespace.", status.used_bytes);
    page.single("meta_bytes", "gauge", "Memory taken by the namespace and its log.", status.meta_bytes);
    page.single("files_free_bytes", "gauge", "Memory that files may still take.", status.files_free_bytes);
    page.single("inodes", "gauge", "Files, directories and links that it is home to.", status.inodes);
    page.single("inodes_max", "gauge", "How many it may be home to.", status.inodes_max);
    page.single("lanes", "gauge", "Parts of files that it holds.", status.lanes);
    page.single("locks", "gauge", "Locks held.", status.locks);
    page.single("lock_waits", "gauge", "Requests that wait for locks.", status.lock_waits);
    page.single("barrier_waits", "gauge", "Members that wait at barriers.", status.barrier_waits);
    page.single("sessions", "gauge", "Sessions of clients, hosts and mounts.", status.sessions.into());
    page.single("connections", "gauge", "Connections open.", status.connections.into());
    page.single("read_bytes_total", "counter", "Bytes of files read by requests.", status.read_bytes);
    page.single(
        "written_bytes_total",
        "counter",
        "Bytes of files written by requests.",
        status.written_bytes,
    );
    let messages = &counted.messages;
    page.by_message(
        "request_errors_total",
        "Answers that were errors, also those that ask to try again.",
        messages,
        |m| m.errors,
    );
    page.by_message("received_bytes_total", "Bytes of requests.", messages, |m| m.received_bytes);
    page.by_message("sent_bytes_total", "Bytes of answers.", messages, |m| m.sent_bytes);
    page.histogram(messages);
    page.0
}
