//! A hosts file: one line for each machine.

use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};

use ramlace_base::units::parse_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};

/// Most hosts of one `up`: each costs it a transport command and three descriptors.
pub const HOSTS_MAX: usize = 256;
/// Largest hosts file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest name of a host: that of the domain name system.
const NAME_BYTES_MAX: usize = 255;

/// What one line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// As the transport command gets it, perhaps with `user@` before it.
    pub name: String,
    /// Memory of its servers together, in bytes.
    pub memory: Option<u64>,
    /// How many servers.
    pub servers: Option<u16>,
    /// `ADDRESS:PORT` to listen on.
    pub listen: Option<String>,
    /// Name or address by which others reach it.
    pub advertise: Option<String>,
    /// `FILE:LINE`, for messages.
    pub origin: String,
}

/// Reads a hosts file; `shown` names it in messages.
pub fn read_hosts(source: impl Read, shown: &str) -> Result<Vec<Host>> {
    let mut bytes = Vec::new();
    source
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::from_io(&error, format!("reading the hosts file {shown}")))?;
    parse(&bytes, shown)
}

/// Takes a hosts file apart.
pub fn parse(bytes: &[u8], shown: &str) -> Result<Vec<Host>> {
    let refuse = |text: String| Error::new(ErrorKind::Invalid, text);
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("{shown} is longer than {FILE_BYTES_MAX} bytes: that is no hosts file")));
    }
    let mut hosts: Vec<Host> = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let origin = format!("{shown}:{}", index + 1);
        let wrong = |text: String| refuse(format!("{origin}: {text}"));
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(wrong("the line is no text".into()));
        };
        let words: Vec<&str> = line.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
        let Some((name, settings)) = words.split_first() else { continue };
        let host = parse_line(name, settings, &origin).map_err(wrong)?;
        if let Some(first) = hosts.iter().find(|other| other.name.eq_ignore_ascii_case(&host.name)) {
            return Err(wrong(format!(
                "host {name} stands at {} already; several servers on it are written {name} servers=2",
                first.origin
            )));
        }
        if hosts.len() == HOSTS_MAX {
            return Err(wrong(format!("more than {HOSTS_MAX} hosts; one 'up' starts no more")));
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(refuse(format!("{shown} names no host; write one on each line")));
    }
    Ok(hosts)
}

fn parse_line(name: &str, settings: &[&str], origin: &str) -> std::result::Result<Host, String> {
    if !is_host_name(name) {
        return Err(format!(
            "'{}' is no name of a host; write a name, an address, or user@name",
            name.escape_debug()
        ));
    }
    let mut host = Host {
        name: name.to_owned(),
        memory: None,
        servers: None,
        listen: None,
        advertise: None,
        origin: origin.to_owned(),
    };
    let mut seen: Vec<&str> = Vec::new();
    for setting in settings {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        if seen.contains(&key) {
            return Err(format!("{key}= stands twice"));
        }
        seen.push(key);
        set(&mut host, key, value).map_err(|why| format!("'{}': {why}", setting.escape_debug()))?;
    }
    Ok(host)
}

fn set(host: &mut Host, key: &str, value: &str) -> std::result::Result<(), String> {
    match key {
        "memory" => {
            host.memory = Some(parse_bytes(value).map_err(|error| error.message().to_owned())?);
        }
        "servers" => {
            let number = value.parse().ok().filter(|n| (1..=limits::SERVERS_MAX).contains(&u32::from(*n)));
            host.servers =
                Some(number.ok_or_else(|| format!("write a number of 1 to {}", limits::SERVERS_MAX))?);
        }
        "listen" => {
            let parts = value.rsplit_once(':').map(|(address, port)| (address, port.parse::<u16>()));
            let good = parts.is_some_and(|(address, port)| port.is_ok() && is_listen_address(address));
            if !good {
                return Err("write ADDRESS:PORT, such as listen=10.0.0.5:7000".into());
            }
            host.listen = Some(value.to_owned());
        }
        "advertise" => {
            let plain = value.trim_start_matches('[').trim_end_matches(']');
            if !is_host_name(value) || value.contains('@') || (plain.contains(':') && !is_ipv6(plain)) {
                return Err(
                    "write the name or the address by which others reach this host, without a port".into()
                );
            }
            host.advertise = Some(value.to_owned());
        }
        _ => {
            return Err("known are memory=SIZE, servers=N, listen=ADDRESS:PORT and advertise=NAME, without blanks inside".into());
        }
    }
    Ok(())
}

/// What can be handed to a transport command: never an option, and nothing that a shell would take for more.
fn is_host_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:%[]@".contains(c);
    let (user, host) = name.rsplit_once('@').unwrap_or(("user", name));
    name.len() <= NAME_BYTES_MAX
        && name.chars().all(plain)
        && [user, host].iter().all(|part| !part.is_empty() && !part.starts_with('-') && !part.contains('@'))
}

fn is_listen_address(address: &str) -> bool {
    match address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => is_ipv6(inner),
        None => is_host_name(address) && !address.contains([':', '@', '[', ']']),
    }
}

fn is_ipv6(text: &str) -> bool {
    text.split('%').next().unwrap_or_default().parse::<Ipv6Addr>().is_ok()
}

/// Whether a name or an address always means the machine itself, wherever it is used.
pub fn is_loopback(name: &str) -> bool {
    let plain = name.trim_start_matches('[').trim_end_matches(']');
    match plain.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
        Ok(ip) => ip.is_loopback(),
        Err(_) => {
            let name = plain.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost"
                || name.ends_with(".localhost")
                || name.starts_with("localhost.")
                || name == "ip6-localhost"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let error = parse(text.as_bytes(), "nodes").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.message().to_owned()
    }

    #[test]
    fn every_setting_is_read() {
        let text = "# the lab\n\nnode1\n  me@node2 memory=4GiB servers=2 # the big one\n\
                    node3 listen=10.0.0.3:7000 advertise=ib3\r\nfe80::1 advertise=[fe80::1] listen=[::]:0";
        let hosts = parse(text.as_bytes(), "nodes").unwrap();
        let names: Vec<&str> = hosts.iter().map(|host| &host.name[..]).collect();
        assert_eq!(names, ["node1", "me@node2", "node3", "fe80::1"]);
        assert_eq!((hosts[1].memory, hosts[1].servers), (Some(4 << 30), Some(2)));
        assert_eq!((hosts[0].memory, hosts[0].servers), (None, None));
        assert_eq!(
            (hosts[2].listen.as_deref(), hosts[2].advertise.as_deref()),
            (Some("10.0.0.3:7000"), Some("ib3"))
        );
        assert_eq!(hosts[2].origin, "nodes:5");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, told) in [
            ("", "names no host"),
            ("# nothing\n\n", "names no host"),
            ("a\n\nb memory=much", "nodes:3"),
            ("a memory=", "is no size"),
            ("a memory=4 GiB", "without blanks"),
            ("a servers=0", "1 to 4096"),
            ("a servers=5000", "1 to 4096"),
            ("a servers=-1", "1 to 4096"),
            ("a listen=7000", "ADDRESS:PORT"),
            ("a listen=:7000", "ADDRESS:PORT"),
            ("a listen=::1:7000", "ADDRESS:PORT"),
            ("a listen=x:70000", "ADDRESS:PORT"),
            ("a advertise=b:7000", "without a port"),
            ("a advertise=", "by which others reach"),
            ("a slots=4", "known are"),
            ("a memory=1GiB memory=2GiB", "stands twice"),
            ("a\nb\nA", "stands at nodes:1 already"),
            ("-oProxyCommand=x", "no name of a host"),
            ("me@-x", "no name of a host"),
            ("@x", "no name of a host"),
            ("a;b", "no name of a host"),
            ("$(x)", "no name of a host"),
        ] {
            let said = error(text);
            assert!(said.starts_with("nodes") && said.contains(told), "{text}: {said}");
        }
        let many: String = (0..=HOSTS_MAX).map(|index| format!("n{index}\n")).collect();
        assert!(error(&many).contains("nodes:257: more than 256"));
        let error = parse(b"a\n\xff\n", "nodes").unwrap_err();
        assert!(error.message().contains("nodes:2"), "{error}");
        let huge = vec![b'#'; FILE_BYTES_MAX as usize + 1];
        assert_eq!(parse(&huge, "nodes").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn no_bytes_make_it_fall_over() {
        // A fixed walk through mutations of a good file (Numerical Recipes' generator): the parser
        // answers each, and what it takes can be handed on.
        let good = b"node1 memory=4GiB servers=2 listen=10.0.0.5:7000 advertise=[fe80::1%eth0] # x\nme@n2\n";
        let mut state = 1u32;
        let mut next = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes = good.to_vec();
            for _ in 0..=next(3) {
                if bytes.is_empty() {
                    break;
                }
                let at = next(bytes.len());
                match next(4) {
                    0 => bytes[at] = next(256) as u8,
                    1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, b" \n=#:@-%[]"[next(10)]),
                    _ => bytes.truncate(at + 1),
                }
            }
            match parse(&bytes, "nodes") {
                Ok(hosts) => {
                    taken += 1;
                    assert!(hosts.iter().all(|host| is_host_name(&host.name) && !host.name.starts_with('-')));
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.message().starts_with("nodes"), "{error}");
                }
            }
        }
        assert!(taken > 1000 && refused > 1000, "{taken} taken, {refused} refused");
    }

    #[test]
    fn loopback_has_many_names() {
        for name in [
            "localhost",
            "LOCALHOST.",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "x.localhost",
            "localhost.localdomain",
        ] {
            assert!(is_loopback(name), "{name}");
        }
        for name in ["node1", "10.0.0.1", "localhoster", "fe80::1", ""] {
            assert!(!is_loopback(name), "{name}");
        }
    }
}
