//! What is decided before anything is started: the pool's id, addresses, and shares of memory, inodes and slots.

use std::net::IpAddr;
use std::time::Duration;

use ramlace_base::units::{count, format_bytes};
use ramlace_base::{Error, ErrorKind, Result, limits};
use ramlace_store::MachineMemory;

use crate::metrics_address::MetricsAddress;

/// What is the same for all servers of a pool, on whatever machine they are.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Slots of the pool; `None`: as many as usual.
    pub slots: Option<u32>,
    /// Files, directories and links that all servers together may hold; `None`: one for each KiB of memory.
    pub inodes: Option<u64>,
    /// Where the memory comes from: `auto`, `private-tmpfs` or `shared-memory`.
    pub backing: String,
    /// The whole memory is taken from the machine at once.
    pub reserve: bool,
    /// The super-user of a mount for all users acts as nobody.
    pub root_squash: bool,
    /// File contents cross the network unencrypted.
    pub trust_network: bool,
    /// Where server 0 serves its metrics; server n takes that port + n.
    pub metrics: Option<MetricsAddress>,
    /// How long servers may take to become ready, and a host to answer.
    pub patience: Duration,
}

impl PoolOptions {
    /// Slots of a pool of so many servers.
    pub fn slots_of(&self, servers: u16) -> u32 {
        self.slots.unwrap_or_else(|| default_slots(servers))
    }
}

/// Where the servers listen, and as what others know them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    host: String,
    port: u16,
    advertise: Option<String>,
}

impl Addresses {
    /// Checks `--listen` and `--advertise` for so many servers.
    pub fn parse(listen: &str, advertise: Option<&str>, servers: u16) -> Result<Addresses> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let parts = listen.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        let Some((host, Ok(port))) = parts.filter(|(host, _)| !host.is_empty()) else {
            return refuse(format!(
                "'{listen}' is no address to listen on; write ADDRESS:PORT, such as 127.0.0.1:0"
            ));
        };
        if port != 0 && port.checked_add(servers - 1).is_none() {
            return refuse(format!(
                "{servers} servers need the ports from {port} on, but ports end at 65535"
            ));
        }
        if advertise.is_some() && port == 0 {
            return refuse(format!(
                "--advertise needs a port that is known: write --listen {host}:PORT as well"
            ));
        }
        let addresses = Addresses { host: host.to_owned(), port, advertise: advertise.map(str::to_owned) };
        if advertise.is_none() && addresses.ip().is_some_and(|ip| ip.is_unspecified()) {
            return refuse(format!(
                "nobody can connect to {host}; add --advertise HOST, the name by which others know this machine"
            ));
        }
        Ok(addresses)
    }

    /// What server `server` listens on.
    pub fn listen(&self, server: u16) -> String {
        format!("{}:{}", self.host, self.port_of(server))
    }

    /// As what others know it, where that was said.
    pub fn advertise(&self, server: u16) -> Option<String> {
        self.advertise.as_ref().map(|host| format!("{host}:{}", self.port_of(server)))
    }

    /// Whether other machines may reach the servers.
    pub fn is_reachable_from_elsewhere(&self) -> bool {
        match self.ip() {
            Some(ip) => !ip.is_loopback(),
            None => self.host != "localhost",
        }
    }

    fn port_of(&self, server: u16) -> u16 {
        if self.port == 0 { 0 } else { self.port + server }
    }

    fn ip(&self) -> Option<IpAddr> {
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

/// Bytes for each server, of `memory` in all, or of half of what the machine has: whole huge pages.
pub fn share_memory(memory: Option<u64>, servers: u16, machine: &MachineMemory) -> Result<u64> {
    let servers = u64::from(servers);
    let total = memory.unwrap_or(machine.available_bytes / 2);
    let each = total / servers / limits::HUGE_PAGE_BYTES * limits::HUGE_PAGE_BYTES;
    if each < limits::STORE_BYTES_MIN {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{} is too little for {}; each lends at least {}, so write --memory {} or more",
                format_bytes(total),
                count(servers, "server"),
                format_bytes(limits::STORE_BYTES_MIN),
                format_bytes(limits::STORE_BYTES_MIN * servers).replace(' ', "")
            ),
        ));
    }
    // Each server's store checks its own size; only here is it known how many there are.
    let margin = limits::STORE_MARGIN_BYTES * servers;
    if total.saturating_add(margin) > machine.available_bytes {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "{} do not fit this machine, which has {} available ({}) and keeps {} for everything else; \
                 ask for less with --memory",
                format_bytes(total),
                format_bytes(machine.available_bytes),
                machine.limited_by,
                format_bytes(margin)
            ),
        ));
    }
    Ok(each)
}

/// How many inodes one of `servers` may hold, if all of them may hold `wanted`.
pub fn inodes_of_server(wanted: Option<u64>, servers: u16, store_bytes: u64) -> u64 {
    wanted.map_or(store_bytes / limits::STORE_BYTES_PER_INODE, |all| all.div_ceil(u64::from(servers)))
}

/// As many slots as usual, or as many as so many servers need.
#[must_use]
pub fn default_slots(servers: u16) -> u32 {
    limits::SLOTS_DEFAULT.max(u32::from(servers) * limits::SLOTS_PER_SERVER_MIN)
}

/// A new pool's id: 128 random bits as 32 hexadecimal digits.
pub fn random_pool_id() -> Result<String> {
    let mut id = [0u8; 16];
    let filled = rustix::rand::getrandom(&mut id[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::from_io(&errno.into(), "asking for random bytes"))?;
    assert_eq!(filled, id.len(), "the kernel gives up to 256 random bytes at once");
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_count_up_from_the_one_given() {
        let addresses = Addresses::parse("10.0.0.5:7000", None, 3).unwrap();
        assert_eq!((addresses.listen(2), addresses.advertise(2)), ("10.0.0.5:7002".into(), None));
        assert!(addresses.is_reachable_from_elsewhere());
        let addresses = Addresses::parse("127.0.0.1:0", None, 3).unwrap();
        assert_eq!(addresses.listen(2), "127.0.0.1:0");
        assert!(!addresses.is_reachable_from_elsewhere());
        let addresses = Addresses::parse("[::]:7000", Some("node"), 2).unwrap();
        assert_eq!(
            (addresses.listen(1), addresses.advertise(1)),
            ("[::]:7001".into(), Some("node:7001".into()))
        );
    }

    #[test]
    fn addresses_that_cannot_work_are_refused() {
        for (listen, advertise, servers) in [
            ("127.0.0.1", None, 1),
            (":7000", None, 1),
            ("127.0.0.1:x", None, 1),
            ("127.0.0.1:65535", None, 2),
            ("0.0.0.0:7000", None, 1),
            ("0.0.0.0:0", Some("node"), 1),
        ] {
            let error = Addresses::parse(listen, advertise, servers).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{listen}");
        }
    }

    #[test]
    fn memory_is_shared_in_whole_huge_pages() {
        let machine = MachineMemory { available_bytes: 8 << 30, limited_by: "MemAvailable".into() };
        assert_eq!(share_memory(None, 1, &machine).unwrap(), 4 << 30);
        assert_eq!(share_memory(Some(100 << 20), 3, &machine).unwrap(), 32 << 20);
        let error = share_memory(Some(63 << 20), 4, &machine).unwrap_err();
        assert!(error.message().contains("--memory 64MiB"), "{error}");
        let error = share_memory(Some(8 << 30), 4, &machine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("MemAvailable"), "{error}");
    }

    #[test]
    fn many_servers_get_enough_slots() {
        assert_eq!(default_slots(1), 4096);
        assert_eq!(default_slots(4096), 65_536);
    }

    #[test]
    fn pool_ids_are_random_and_checked() {
        let id = random_pool_id().unwrap();
        assert_eq!(id.len(), 32);
        assert_ne!(id, random_pool_id().unwrap());
    }
}
