//! Who is told how it goes while many hosts are waited for.

/// Hears which hosts are waited for, in the thread that starts or stops the pool.
pub trait Listener {
    /// What the hosts are asked for now, as a participle: `starting`.
    fn begins(&mut self, doing: &'static str);

    /// These are still waited for, of so many: several times in a second.
    fn waits_for(&mut self, hosts: &[&str], total: usize);
}
