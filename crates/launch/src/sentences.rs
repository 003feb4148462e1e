//! Parts of sentences about pools, as the command's user reads them.

use ramlace_client::POOL_DEFAULT;

/// ` --pool NAME`, where it must be said.
#[must_use]
pub fn option_for(name: &str) -> String {
    if name == POOL_DEFAULT { String::new() } else { format!(" --pool {name}") }
}

/// `host a`, or `hosts a, b`.
#[must_use]
pub fn listed(hosts: &[String]) -> String {
    format!("host{} {}", if hosts.len() == 1 { "" } else { "s" }, hosts.join(", "))
}
