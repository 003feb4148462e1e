//! The view as lines of text, for a screen of some width and height or for a file.

use ramlace_base::units::format_bytes;

use super::looking::Looking;
use super::samples::Rates;
use super::view::{Row, Sort, View};
use crate::show::{answering, duration_text, escaped, percent, silence, table};

/// The style of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// As text is.
    #[default]
    Plain,
    /// What it is all about.
    Bold,
    /// The head of a table.
    Inverse,
    /// A server that does not answer, or a pool that is nearly full.
    Bad,
    /// Help.
    Dim,
}

/// One line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// No wider than the screen, and without control characters.
    pub text: String,
    /// All of it.
    pub style: Style,
}

/// Fuller than this is worth a colour: from here on writes begin to fail.
const FILL_PERCENT_BAD: f64 = 90.0;
const BAR_CELLS: usize = 10;
const HELP: [&str; 11] = [
    "q  quit                       s  sort by the next column",
    "p  pause, and go on           ?  this help",
    "c  clients, and servers       m  messages, and servers",
    "",
    "Reads, writes and operations are what each server has done in the last second; this view asks each once a",
    "second itself. Bytes that a program reads or writes in memory shared with its machine's server pass no",
    "request and are not counted.",
    "",
    "Of messages, P50 and P99 are the times within which 50 and 99 of 100 answers of the last second were made, from",
    "the request to its answer's way out of the server; of WriteChunk, WriteRuns and ExtendChunk with the time in which",
    "their data comes. Listen waits for something to happen.",
];

/// The page for a screen: exactly `height` lines, none wider than `width` letters.
pub fn page(view: &View, width: usize, height: usize, looking: &Looking) -> Vec<Line> {
    let mut lines = head(view, looking.paused);
    if looking.help {
        lines.extend(help());
    } else {
        lines.extend(rows(view, height.saturating_sub(lines.len() + 1)));
    }
    finish_page(&mut lines, &looking.footer(), width, height);
    lines
}

/// The page of a title and a table, whose first line is its head.
pub fn table_page(
    title: &str,
    table: Vec<String>,
    width: usize,
    height: usize,
    looking: &Looking,
) -> Vec<Line> {
    let mark = if looking.paused { "   PAUSED" } else { "" };
    let mut lines = vec![Line { text: format!("{title}{mark}"), style: Style::Bold }, Line::default()];
    if looking.help {
        lines.extend(help());
    } else {
        let style = |index| if index == 0 { Style::Inverse } else { Style::Plain };
        lines.extend(table.into_iter().enumerate().map(|(index, text)| Line { text, style: style(index) }));
        cut(&mut lines, height.saturating_sub(1));
    }
    finish_page(&mut lines, &looking.footer(), width, height);
    lines
}

fn help() -> impl Iterator<Item = Line> {
    HELP.iter().map(|text| Line { text: (*text).to_owned(), style: Style::Plain })
}

/// Cuts lines where the screen ends, and says how many are hidden.
fn cut(lines: &mut Vec<Line>, room: usize) {
    if lines.len() > room && room > 0 {
        let hidden = lines.len() - (room - 1);
        lines.truncate(room - 1);
        lines.push(Line {
            text: format!("... and {hidden} more; a taller window shows them"),
            style: Style::Dim,
        });
    }
}

/// Fits a page to its screen, with a footer as its last line.
fn finish_page(lines: &mut Vec<Line>, footer: &str, width: usize, height: usize) {
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    if height > 0 {
        lines.push(Line { text: footer.to_owned(), style: Style::Dim });
    }
    lines.iter_mut().for_each(|line| fit(line, width));
}

/// The same for a file: every server, nothing cut.
pub fn plain(view: &View) -> Vec<String> {
    let mut lines: Vec<String> = head(view, false).into_iter().map(|line| line.text).collect();
    lines.extend(server_table(view));
    for row in &view.rows {
        if let Some((_, why)) = &row.known.silent {
            lines.push(silence(row.server, None, why));
        }
    }
    lines
}

fn head(view: &View, paused: bool) -> Vec<Line> {
    let totals = &view.totals;
    let fill = percent(totals.used_bytes, totals.store_bytes);
    let mark = if paused { "   PAUSED" } else { "" };
    let title = format!(
        "Pool '{}', epoch {}: {}{mark}",
        escaped(view.pool.as_bytes()),
        view.epoch,
        answering(totals.answering, totals.servers)
    );
    let room = format!(
        "{} {fill:.1}% full: {} of {}, {} of it for {} files, directories and links",
        bar(fill, 2 * BAR_CELLS),
        format_bytes(totals.used_bytes),
        format_bytes(totals.store_bytes),
        format_bytes(totals.meta_bytes),
        totals.inodes
    );
    let rates = totals.rates;
    let work = format!(
        "Reads {}/s, writes {}/s, {:.0} operations/s",
        format_bytes(rates.read as u64),
        format_bytes(rates.written as u64),
        rates.operations
    );
    let mounts = match &view.mounts[..] {
        [] => "Not mounted on this machine".to_owned(),
        mounts => {
            let shown: Vec<String> = mounts.iter().map(|mount| escaped(mount.as_bytes())).collect();
            format!("Mounted on {}", shown.join(", "))
        }
    };
    let style = |bad: bool, otherwise| if bad { Style::Bad } else { otherwise };
    vec![
        Line { text: title, style: style(!view.is_healthy(), Style::Bold) },
        Line { text: room, style: style(fill >= FILL_PERCENT_BAD, Style::Plain) },
        Line { text: work, style: Style::Plain },
        Line { text: mounts, style: Style::Plain },
        Line::default(),
    ]
}

/// The table, cut where the screen ends.
fn rows(view: &View, room: usize) -> Vec<Line> {
    let mut texts = server_table(view).into_iter();
    let head = texts.next().map(|text| Line { text, style: Style::Inverse });
    let mut lines: Vec<Line> = head.into_iter().collect();
    for (text, row) in texts.zip(&view.rows) {
        let full = row
            .known
            .answer()
            .is_some_and(|status| percent(status.used_bytes, status.store_bytes) >= FILL_PERCENT_BAD);
        let bad = full || row.silent_millis.is_some();
        lines.push(Line { text, style: if bad { Style::Bad } else { Style::Plain } });
    }
    cut(&mut lines, room);
    lines
}

fn server_table(view: &View) -> Vec<String> {
    let mark = |sort: Sort, name: &str| if sort == view.sort { format!("{name}*") } else { name.to_owned() };
    let head = vec![
        mark(Sort::Number, "SERVER"),
        "ADDRESS".into(),
        mark(Sort::Fill, "FILL"),
        String::new(),
        "USED".into(),
        "OF".into(),
        mark(Sort::Read, "READ/S"),
        mark(Sort::Written, "WRITE/S"),
        mark(Sort::Operations, "OPS/S"),
        "SESSIONS".into(),
        "INODES".into(),
        "STATE".into(),
    ];
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(view.rows.iter().map(cells)).collect();
    table(&lines, &[0, 3, 4, 5, 6, 7, 8, 9, 10])
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.server.to_string(), escaped(row.known.address.as_bytes())];
    let Some(status) = row.known.answer() else {
        cells.extend(std::iter::repeat_n("-".to_owned(), 9));
        cells.push(match row.silent_millis {
            Some(millis) => format!("not answering for {}", duration_text(millis)),
            None => "asked".into(),
        });
        return cells;
    };
    let fill = percent(status.used_bytes, status.store_bytes);
    let rate = |of: fn(Rates) -> String| row.known.rates.map_or_else(|| "-".into(), of);
    cells.extend([
        bar(fill, BAR_CELLS),
        format!("{fill:.1}%"),
        format_bytes(status.used_bytes),
        format_bytes(status.store_bytes),
        rate(|rates| format_bytes(rates.read as u64)),
        rate(|rates| format_bytes(rates.written as u64)),
        rate(|rates| format!("{:.0}", rates.operations)),
        status.sessions.to_string(),
        status.inodes.to_string(),
        match status.restarts {
            0 => format!("up {}", duration_text(status.uptime_millis)),
            restarts => format!("up {}, restarted {restarts}x", duration_text(status.uptime_millis)),
        },
    ]);
    cells
}

/// `[###.......]`: a cell is filled when at least half of it is.
fn bar(percent: f64, cells: usize) -> String {
    let filled = ((percent / 100.0 * cells as f64).round() as usize).min(cells);
    format!("[{}{}]", "#".repeat(filled), ".".repeat(cells - filled))
}

fn fit(line: &mut Line, width: usize) {
    if let Some((end, _)) = line.text.char_indices().nth(width) {
        line.text.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::Samples;
    use super::super::samples::tests::{answer, map, silence, status};
    use super::*;

    fn view(servers: u16) -> View {
        let mut samples = Samples::default();
        samples.take(map(3, &(0..servers).collect::<Vec<_>>()));
        for server in 0..servers {
            samples.take(answer(server, 0, status(server % 3, 7, 0)));
            samples.take(answer(server, 1000, status(server % 3, 7, 5)));
        }
        samples.take(silence(1, 2000));
        View::new("lab", &samples, vec!["/mnt/a b".into()], Sort::Fill, 65_000)
    }

    fn looking(sort: Sort) -> Looking {
        Looking { sort, ..Looking::default() }
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn a_page_shows_what_there_is() {
        let lines = page(&view(3), 200, 12, &looking(Sort::Fill));
        assert_eq!(
            texts(&lines),
            [
                "Pool 'lab', epoch 3: 2 of 3 servers answer",
                "[##########..........] 50.0% full: 1 GiB of 2 GiB, 2 MiB of it for 20 files, directories and links",
                "Reads 10 MiB/s, writes 20 MiB/s, 1000 operations/s",
                "Mounted on /mnt/a b",
                "",
                "SERVER  ADDRESS  FILL*                   USED     OF  READ/S  WRITE/S  OPS/S  SESSIONS  INODES  STATE",
                "     2  h:2      [########..]  75.0%  768 MiB  1 GiB   5 MiB   10 MiB    500         2      10  up 5s",
                "     0  h:0      [###.......]  25.0%  256 MiB  1 GiB   5 MiB   10 MiB    500         2      10  up 5s",
                "     1  h:1      -                 -        -      -       -        -      -         -       -  not answering for 1m 3s",
                "",
                "",
                "q quit   s sort (by fill)   p pause   c clients   m messages   ? help",
            ]
        );
        let styles = [0, 1, 5, 6, 8].map(|index| lines[index].style);
        assert_eq!(styles, [Style::Bad, Style::Plain, Style::Inverse, Style::Plain, Style::Bad]);
    }

    #[test]
    fn a_page_fits_every_screen() {
        let view = view(40);
        for (width, height) in [(0, 0), (1, 1), (5, 2), (20, 7), (80, 8), (80, 24), (300, 100)] {
            for help in [false, true] {
                let looking = Looking { paused: true, help, ..Looking::default() };
                let table = || (0..40).map(|number| format!("a line, and its number: {number}")).collect();
                for lines in [
                    page(&view, width, height, &looking),
                    table_page("a title", table(), width, height, &looking),
                ] {
                    assert_eq!(lines.len(), height, "{width} x {height}");
                    let fits = |line: &Line| line.text.chars().count() <= width;
                    assert!(lines.iter().all(fits), "{width} x {height}");
                }
            }
        }
        let paused = Looking { paused: true, ..Looking::default() };
        let lines = page(&view, 80, 24, &paused);
        assert!(lines[0].text.ends_with("PAUSED"));
        // Five lines above the table and one below it leave room for its head, 16 servers and this.
        assert_eq!(lines[22].text, "... and 24 more; a taller window shows them");
        let table = (0..40).map(|number| number.to_string()).collect();
        let lines = table_page("a title", table, 80, 24, &paused);
        assert_eq!((lines[0].text.as_str(), lines[21].text.as_str()), ("a title   PAUSED", "19"));
        assert_eq!(lines[22].text, "... and 20 more; a taller window shows them");
        let help = page(&view, 80, 24, &Looking { help: true, ..Looking::default() });
        assert!(help.iter().any(|line| line.text.contains("pause, and go on")));
    }

    #[test]
    fn text_of_others_cannot_steer_the_terminal() {
        let mut samples = Samples::default();
        samples.take(super::super::samples::Event::Map { epoch: 1, servers: vec![(0, "\x1b[2J".into())] });
        let view = View::new("a\x1bb", &samples, vec!["/mnt/\n\x07".into()], Sort::Number, 0);
        let lines = page(&view, 200, 30, &Looking::default());
        assert!(lines.iter().all(|line| !line.text.contains(char::is_control)), "{lines:?}");
        assert!(plain(&view).iter().all(|line| !line.contains(char::is_control)));
    }

    #[test]
    fn bars_end_where_they_should() {
        for (percent, text) in
            [(0.0, "[....]"), (12.0, "[....]"), (13.0, "[#...]"), (100.0, "[####]"), (130.0, "[####]")]
        {
            assert_eq!(bar(percent, 4), text);
        }
    }
}
