//! What is decided before anything is started on many hosts: numbers, addresses and shares of memory.

use std::net::Ipv6Addr;

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};

use crate::hosts::{Host, is_loopback};
use crate::plan::PoolOptions;

/// The servers of a pool on several machines.
#[derive(Clone, Debug)]
pub struct HostsPlan {
    pub(crate) sites: Vec<Site>,
    pub(crate) options: PoolOptions,
}

impl HostsPlan {
    /// Gives every host its servers.
    ///
    /// Errors: `Invalid` for what cannot work, with the line of the hosts file where it is about one host.
    pub fn new(hosts: &[Host], all: AllHosts<'_>, options: PoolOptions) -> Result<HostsPlan> {
        Ok(HostsPlan { sites: plan(hosts, all)?, options })
    }
}

/// What one host shall run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// As the transport command gets it.
    pub host: String,
    /// The numbers of its servers.
    pub servers: Vec<u16>,
    /// What its first server listens on.
    pub listen: String,
    /// The name or address by which others reach it; an IPv6 address in brackets.
    pub advertise: String,
    /// Memory of its servers together; `None`: half of what the host has available.
    pub memory: Option<u64>,
}

/// What is said for all hosts.
#[derive(Clone, Copy, Debug)]
pub struct AllHosts<'a> {
    /// Servers of a host that says nothing else.
    pub servers: u16,
    /// Memory of the whole pool.
    pub memory: Option<u64>,
    /// What a host that says nothing else listens on.
    pub listen: Option<&'a str>,
}

/// Gives every host its servers. The numbers go round the hosts, so that neighbours, on which
/// a file's lanes lie, are on different machines.
fn plan(hosts: &[Host], common: AllHosts<'_>) -> Result<Vec<Site>> {
    let memory = divide(hosts, common.memory)?;
    let several = hosts.len() > 1;
    let mut sites = hosts
        .iter()
        .zip(memory)
        .map(|(host, memory)| {
            let servers = host.servers.unwrap_or(common.servers);
            site(host, servers, common.listen, memory, several)
                .map_err(|text| Error::new(ErrorKind::Invalid, format!("{}: {text}", host.origin)))
        })
        .collect::<Result<Vec<Site>>>()?;
    number(hosts, &mut sites, common.servers)?;
    Ok(sites)
}

fn site(
    host: &Host,
    servers: u16,
    listen: Option<&str>,
    memory: Option<u64>,
    several: bool,
) -> std::result::Result<Site, String> {
    let name = host.name.rsplit_once('@').map_or(&host.name[..], |(_user, name)| name);
    if several && host.advertise.is_none() && is_loopback(name) {
        return Err(format!(
            "{name} means every machine itself, and the other hosts of the pool would look for it in vain; \
             write the name by which they reach it, or advertise=NAME"
        ));
    }
    let advertise = in_brackets(host.advertise.as_deref().unwrap_or(name));
    let listen = host.listen.as_deref().or(listen).unwrap_or_else(|| default_listen(&advertise));
    let (address, port) = listen.rsplit_once(':').ok_or("no address to listen on")?;
    if is_loopback(address) && !is_loopback(&advertise) {
        return Err(format!("a server that listens on {listen} cannot be reached as {advertise}"));
    }
    let port: u16 = port.parse().map_err(|_| format!("'{listen}' is no address to listen on"))?;
    if port != 0 && port.checked_add(servers - 1).is_none() {
        return Err(format!("{servers} servers need the ports from {port} on, but ports end at 65535"));
    }
    let memory_min = limits::STORE_BYTES_MIN * u64::from(servers);
    if let Some(memory) = memory.filter(|memory| *memory < memory_min) {
        return Err(format!(
            "{} is too little for {servers} server{} on {name}: each lends at least {}",
            format_bytes(memory),
            if servers == 1 { "" } else { "s" },
            format_bytes(limits::STORE_BYTES_MIN)
        ));
    }
    Ok(Site { host: host.name.clone(), servers: Vec::new(), listen: listen.to_owned(), advertise, memory })
}

/// Every address of the host, for its own name may mean 127.0.1.1 there; but no more than itself
/// where it is known by nothing else.
fn default_listen(advertise: &str) -> &'static str {
    match (advertise.starts_with('['), is_loopback(advertise)) {
        (true, true) => "[::1]:0",
        (true, false) => "[::]:0",
        (false, true) => "127.0.0.1:0",
        (false, false) => "0.0.0.0:0",
    }
}

fn in_brackets(name: &str) -> String {
    let bare = name.split('%').next().unwrap_or_default();
    if bare.parse::<Ipv6Addr>().is_ok() { format!("[{name}]") } else { name.to_owned() }
}

/// Memory of each host: its own word, else its share of what `--memory` leaves to those without one.
fn divide(hosts: &[Host], total: Option<u64>) -> Result<Vec<Option<u64>>> {
    let Some(total) = total else { return Ok(hosts.iter().map(|host| host.memory).collect()) };
    let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    let taken = hosts.iter().filter_map(|host| host.memory).fold(0, u64::saturating_add);
    let open = hosts.iter().filter(|host| host.memory.is_none()).count() as u64;
    if open == 0 {
        return refuse("every host has its own memory= already; leave --memory out".into());
    }
    if taken >= total {
        return refuse(format!(
            "--memory is the memory of all hosts together, and {} leave nothing beside the {} that hosts ask for \
             with memory=",
            format_bytes(total),
            format_bytes(taken)
        ));
    }
    let share = (total - taken) / open;
    Ok(hosts.iter().map(|host| Some(host.memory.unwrap_or(share))).collect())
}

/// Numbers the servers in rounds over the hosts; server 0 is on the first.
fn number(hosts: &[Host], sites: &mut [Site], usual: u16) -> Result<()> {
    let wanted: Vec<u16> = hosts.iter().map(|host| host.servers.unwrap_or(usual)).collect();
    let total: u64 = wanted.iter().map(|count| u64::from(*count)).sum();
    if total > u64::from(limits::SERVERS_MAX) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{total} servers are more than a pool has, which is at most {}", limits::SERVERS_MAX),
        ));
    }
    let mut numbers = 0..;
    for round in 0..wanted.iter().copied().max().unwrap_or(0) {
        for (site, _) in sites.iter_mut().zip(&wanted).filter(|(_, wanted)| round < **wanted) {
            site.servers.extend(numbers.next());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse;

    const COMMON: AllHosts<'_> = AllHosts { servers: 1, memory: None, listen: None };

    fn sites(text: &str, common: AllHosts<'_>) -> Result<Vec<Site>> {
        plan(&parse(text.as_bytes(), "nodes").unwrap(), common)
    }

    #[test]
    fn numbers_go_round_the_hosts() {
        let sites = sites("a servers=3\nb\nc servers=2", COMMON).unwrap();
        let numbers: Vec<Vec<u16>> = sites.into_iter().map(|site| site.servers).collect();
        assert_eq!(numbers, [vec![0, 3, 5], vec![1], vec![2, 4]]);
    }

    #[test]
    fn a_host_is_known_by_its_name_and_listens_everywhere() {
        let sites = sites("me@a\nfe80::1\nb advertise=10.0.0.2 listen=10.0.0.2:7000", COMMON).unwrap();
        let told: Vec<(&str, &str)> =
            sites.iter().map(|site| (&site.advertise[..], &site.listen[..])).collect();
        assert_eq!(told, [("a", "0.0.0.0:0"), ("[fe80::1]", "[::]:0"), ("10.0.0.2", "10.0.0.2:7000")]);
    }

    #[test]
    fn a_loopback_name_is_for_a_pool_of_one_machine() {
        let only = sites("localhost", COMMON).unwrap();
        assert_eq!((&only[0].advertise[..], &only[0].listen[..]), ("localhost", "127.0.0.1:0"));
        for text in ["a\nlocalhost", "me@127.0.0.1\na", "::1\na"] {
            let error = sites(text, COMMON).unwrap_err();
            assert!(error.message().contains("means every machine itself"), "{error}");
        }
        // Said in so many words, it is taken: ports may be forwarded.
        sites("a advertise=127.0.0.1\nb advertise=127.0.0.1", COMMON).unwrap();
        let error = sites("a listen=127.0.0.1:0\nb", COMMON).unwrap_err();
        assert!(error.message().contains("nodes:1: a server that listens on 127.0.0.1:0"), "{error}");
    }

    #[test]
    fn memory_is_each_hosts_own_or_a_share_of_the_total() {
        let memory = |text: &str, total: Option<u64>| {
            sites(text, AllHosts { memory: total, ..COMMON })
                .map(|sites| sites.into_iter().map(|site| site.memory).collect::<Vec<_>>())
        };
        let gib = |n: u64| Some(n << 30);
        assert_eq!(memory("a\nb memory=1GiB", None).unwrap(), [None, gib(1)]);
        assert_eq!(memory("a\nb", gib(8)).unwrap(), [gib(4), gib(4)]);
        assert_eq!(memory("a\nb memory=2GiB\nc", gib(8)).unwrap(), [gib(3), gib(2), gib(3)]);
        assert!(memory("a memory=1GiB", gib(8)).unwrap_err().message().contains("leave --memory out"));
        assert!(memory("a memory=8GiB\nb", gib(8)).unwrap_err().message().contains("leave nothing"));
        let error = memory("a\nb servers=4 memory=32MiB", None).unwrap_err();
        assert!(error.message().contains("nodes:2: 32 MiB is too little for 4 servers on b"), "{error}");
    }

    #[test]
    fn a_pool_has_an_end() {
        let error = sites("a servers=4096\nb", COMMON).unwrap_err();
        assert!(error.message().contains("4097 servers"), "{error}");
        let error = sites("a servers=3 listen=0.0.0.0:65534", COMMON).unwrap_err();
        assert!(error.message().contains("ports end"), "{error}");
    }
}
