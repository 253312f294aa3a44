//! Which of a hint's actions some configured family of backends supports.
//!
//! Strings match exactly, byte for byte. Payloads are not looked at, and neither the order in which
//! families were registered nor repeated action ids matter. Cost is linear in the number of
//! actions, however many families there are.

use std::collections::{BTreeMap, TryReserveError};
use std::sync::Arc;

use super::{FETCH, MAX_NAME_BYTES};
use crate::hint::Snapshot;

/// Names of families, sorted bytewise, each once. Shared by every candidate they support.
type Families = Arc<Vec<Arc<str>>>;

/// What each family of backends supports; fixed for a request.
#[derive(Debug, Clone, Default)]
pub struct Capabilities {
    /// Action type -> action version -> the families that support it.
    families: BTreeMap<Box<str>, BTreeMap<Box<str>, Families>>,
    entries: usize,
}

/// A capability set that is as large as it may be, or a name too long for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected at most {max} entries with names of at most {MAX_NAME_BYTES} bytes, found more",
    max = Capabilities::MAX_ENTRIES
)]
pub struct CapabilitiesFull;

impl Capabilities {
    /// Most (family, type, version) entries of one set.
    pub const MAX_ENTRIES: usize = 4096;

    /// Nothing is supported.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that `family` supports this version of this action. Saying it twice changes nothing.
    pub fn add(
        &mut self,
        family: &str,
        action_type: &str,
        action_version: &str,
    ) -> Result<(), CapabilitiesFull> {
        let names = [family, action_type, action_version];
        if names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(CapabilitiesFull);
        }
        let known = self.families_of(action_type, action_version);
        let at = match known.binary_search_by(|known| (**known).cmp(family)) {
            Ok(_) => return Ok(()),
            Err(at) => at,
        };
        if self.entries == Self::MAX_ENTRIES {
            return Err(CapabilitiesFull);
        }
        let versions = self.families.entry(action_type.into()).or_default();
        let families = versions.entry(action_version.into()).or_default();
        // Candidates may hold the old list: they keep it, and this set gets a new one.
        Arc::make_mut(families).insert(at, family.into());
        self.entries += 1;
        Ok(())
    }

    fn families_of(&self, action_type: &str, action_version: &str) -> &[Arc<str>] {
        self.families
            .get(action_type)
            .and_then(|versions| versions.get(action_version))
            .map_or(&[], |families| families.as_slice())
    }
}

/// One action that a request could use.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The action's position in the envelope.
    pub action_index: usize,
    families: Families,
}

impl Candidate {
    /// The families that support it, sorted bytewise; at least one.
    pub fn families(&self) -> &[Arc<str>] {
        &self.families
    }

    /// Whether this family supports it.
    pub fn is_supported_by(&self, family: &str) -> bool {
        self.families.binary_search_by(|known| (**known).cmp(family)).is_ok()
    }
}

/// What a collection came to; each action counts at most once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Actions that a family supports.
    pub candidates: usize,
    /// Actions that are not `kv.fetch` and whose type no family lists in any version.
    pub unknown_type: usize,
    /// `kv.fetch` actions whose version no family lists.
    pub version_unmatched: usize,
}

/// The usable actions of one hint, in the producer's order. Holds the snapshot; independent of
/// what happens to the capability set later.
#[derive(Debug, Clone)]
pub struct Candidates {
    snapshot: Snapshot,
    list: Vec<Candidate>,
    counts: Counts,
}

impl Candidates {
    /// Collects from an admitted hint. Fails only for want of memory.
    pub fn collect(
        snapshot: &Snapshot,
        capabilities: &Capabilities,
    ) -> Result<Self, TryReserveError> {
        let mut list = Vec::new();
        let mut counts = Counts::default();
        for action_index in 0..snapshot.action_count() {
            let Some(action) = snapshot.action(action_index) else { break };
            let versions = capabilities.families.get(action.action_type);
            if action.action_type != FETCH {
                counts.unknown_type += usize::from(versions.is_none());
                continue;
            }
            match versions.and_then(|versions| versions.get(action.version)) {
                Some(families) => {
                    list.try_reserve(1)?;
                    list.push(Candidate { action_index, families: Arc::clone(families) });
                }
                None => counts.version_unmatched += 1,
            }
        }
        counts.candidates = list.len();
        Ok(Self { snapshot: snapshot.clone(), list, counts })
    }

    /// The hint they come from.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The candidates, in the producer's order.
    pub fn list(&self) -> &[Candidate] {
        &self.list
    }

    /// How many there were of each sort.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
