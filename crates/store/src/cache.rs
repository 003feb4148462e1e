//! A map with a limit that forgets what was used longest ago.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// At most `limit` values; the least recently used one goes first.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    limit: usize,
    tick: u64,
    values: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
}

impl<K: Copy + Eq + Hash, V> Cache<K, V> {
    pub(crate) fn new(limit: usize) -> Cache<K, V> {
        assert!(limit > 0, "a cache that holds nothing");
        Cache { limit, tick: 0, values: HashMap::new(), order: BTreeMap::new() }
    }

    /// The value of `key`, now the most recently used.
    pub(crate) fn get(&mut self, key: K) -> Option<&V> {
        let (used, value) = self.values.get_mut(&key)?;
        // The most recent one needs no move, so that a run on one lane costs no tree work.
        if *used != self.tick {
            self.order.remove(used);
            self.tick += 1;
            *used = self.tick;
            self.order.insert(self.tick, key);
        }
        Some(value)
    }

    /// Adds a value that is not there yet, and drops the oldest beyond the limit.
    pub(crate) fn insert(&mut self, key: K, value: V) -> &V {
        self.tick += 1;
        let replaced = self.values.insert(key, (self.tick, value));
        assert!(replaced.is_none(), "inserted twice");
        self.order.insert(self.tick, key);
        if self.values.len() > self.limit {
            let (_, oldest) = self.order.pop_first().expect("the cache holds something");
            self.values.remove(&oldest);
        }
        &self.values[&key].1
    }

    /// Forgets one value.
    pub(crate) fn remove(&mut self, key: K) {
        if let Some((used, _)) = self.values.remove(&key) {
            self.order.remove(&used);
        }
    }

    /// Forgets the values whose key does not satisfy `keep`.
    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.values.retain(|key, _| keep(key));
        self.order.retain(|_, key| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::new(2);
        cache.insert(1, "a");
        cache.insert(2, "b");
        assert_eq!(cache.get(1), Some(&"a"));
        cache.insert(3, "c");
        assert_eq!(cache.get(2), None);
        assert_eq!(cache.values.len(), 2);
        assert_eq!(cache.get(1), Some(&"a"));
        cache.remove(1);
        cache.retain(|key| *key != 3);
        assert_eq!((cache.values.len(), cache.order.len()), (0, 0));
    }
}
