//! Progress of a start or stop on many hosts, for the caller to display. The crew ([`crate::crew`]) reports it; the
//! command's progress line implements it.

/// Called in the thread that starts or stops the pool, while hosts are waited for.
pub trait Listener {
    /// What the hosts are asked for now, as a participle: `starting`.
    fn begins(&mut self, doing: &'static str);

    /// These are still waited for, of so many: several times in a second.
    fn waits_for(&mut self, hosts: &[&str], total: usize);
}
