//! Parts of sentences about pools.

use ramlace_client::POOL_DEFAULT;

/// ` --pool NAME`, where it must be said.
pub fn option_for(name: &str) -> String {
    if name == POOL_DEFAULT { String::new() } else { format!(" --pool {name}") }
}

/// `host a`, or `hosts a, b`.
pub fn listed(hosts: &[String]) -> String {
    format!("host{} {}", if hosts.len() == 1 { "" } else { "s" }, hosts.join(", "))
}
