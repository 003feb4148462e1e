//! How a map's chains travel: each different chain once, then one small number for each slot.
//!
//! Slots go round the servers, so that a pool has few different chains and no long runs. The map
//! of 4,096 slots takes some 4 KiB, that of 65,536 slots and 4,096 servers fits one body.

use std::collections::BTreeMap;

use ramlace_base::limits;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Chain;

pub(crate) fn serialize<S: Serializer>(chains: &[Chain], serializer: S) -> Result<S::Ok, S::Error> {
    let mut different: Vec<&Chain> = Vec::new();
    let mut numbers: BTreeMap<&Chain, u32> = BTreeMap::new();
    let of_slots: Vec<u32> = chains
        .iter()
        .map(|chain| {
            *numbers.entry(chain).or_insert_with(|| {
                different.push(chain);
                different.len() as u32 - 1
            })
        })
        .collect();
    (different, of_slots).serialize(serializer)
}

/// Bounds what a few bytes may unfold to: one long chain named by every slot would fill the memory.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Chain>, D::Error> {
    let (different, of_slots): (Vec<Chain>, Vec<u32>) = Deserialize::deserialize(deserializer)?;
    if of_slots.len() > limits::SLOTS_MAX as usize {
        return Err(D::Error::custom(format!("a pool of {} slots is too large", of_slots.len())));
    }
    if let Some(chain) = different.iter().find(|chain| chain.servers.len() > limits::CHAIN_SERVERS_MAX) {
        return Err(D::Error::custom(format!("a chain of {} servers is too long", chain.servers.len())));
    }
    let unfold = |number: &u32| different.get(*number as usize).cloned();
    let chains: Option<Vec<Chain>> = of_slots.iter().map(unfold).collect();
    chains.ok_or_else(|| D::Error::custom("a slot names a chain that the map does not have"))
}
