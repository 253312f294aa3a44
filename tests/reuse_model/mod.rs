//! The reuse tree as a child would build it: a list of blocks, each with its whole path. The oracle
//! for `reuse_tree_random.rs`; knows nothing of the library.

use std::collections::BTreeMap;

/// One block's five-part key, in plain values. `namespace` stands in each part of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub namespace: u8,
    pub lora: Option<u64>,
    pub salt: Option<u64>,
    pub extra_ids: Option<Vec<u64>>,
    pub tokens: Vec<i32>,
    /// (item, offset inside the item).
    pub items: Vec<(u8, u64)>,
}

impl Key {
    fn common_head(&self, other: &Key) -> usize {
        let traits = |key: &Key| {
            (key.namespace, key.lora, key.salt, key.extra_ids.is_some(), key.items.clone())
        };
        if traits(self) != traits(other) {
            return 0;
        }
        let shorter = self.tokens.len().min(other.tokens.len());
        let is_equal = |at: &usize| {
            let extra_id = |key: &Key| key.extra_ids.as_ref().map(|ids| ids[*at]);
            self.tokens[*at] == other.tokens[*at] && extra_id(self) == extra_id(other)
        };
        (0..shorter).take_while(is_equal).count()
    }
}

#[derive(Debug, Clone)]
pub struct Stored {
    pub path: Vec<Key>,
    pub id: i32,
    pub order: u64,
    pub is_primary: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Window {
    /// 0: the full window.
    pub tokens: usize,
    pub stored: Vec<Stored>,
    /// How many pins protect each id.
    pub protected: BTreeMap<i32, usize>,
    next_order: u64,
}

/// Matched tokens, place of the first block, ids, leading tokens of a partial last block.
pub type Match = (usize, usize, Vec<i32>, usize);

impl Window {
    pub fn new(tokens: usize) -> Self {
        Self { tokens, ..Self::default() }
    }

    pub fn is_protected(&self, id: i32) -> bool {
        self.protected.contains_key(&id)
    }

    pub fn find_id(&self, id: i32) -> Option<&Stored> {
        self.stored.iter().find(|stored| stored.id == id)
    }

    fn find_path(&self, path: &[Key]) -> Option<&Stored> {
        self.stored.iter().find(|stored| stored.path == path)
    }

    pub fn store(&mut self, path: &[Key], first: usize, ids: &[i32]) -> Vec<Option<i32>> {
        let places = first..first + ids.len();
        let hold = |(position, id): (usize, &i32)| self.store_one(&path[..=position], *id);
        places.zip(ids).map(hold).collect()
    }

    fn store_one(&mut self, path: &[Key], id: i32) -> Option<i32> {
        if let Some(holder) = self.find_path(path) {
            return Some(holder.id);
        }
        let above = &path[..path.len() - 1];
        let has_parent = above.is_empty() || self.find_path(above).is_some();
        if id < 0 || (self.tokens == 0 && !has_parent) || self.is_protected(id) {
            return None;
        }
        if let Some(old) = self.find_id(id).cloned() {
            if above.starts_with(&old.path) {
                return None;
            }
            self.remove_below(&old.path);
        }
        self.next_order += 1;
        let (path, order) = (path.to_vec(), self.next_order);
        self.stored.push(Stored { path, id, order, is_primary: true });
        Some(id)
    }

    pub fn remove_below(&mut self, path: &[Key]) -> usize {
        let before = self.stored.len();
        self.stored.retain(|stored| !stored.path.starts_with(path));
        before - self.stored.len()
    }

    /// The child of `path[..position]` with the longest head in common with `key`.
    fn longest_head(
        &self,
        above: &[Key],
        key: &Key,
        primary_only: bool,
    ) -> Option<(usize, &Stored)> {
        self.stored
            .iter()
            .filter(|stored| stored.path.len() == above.len() + 1 && stored.path.starts_with(above))
            .filter(|stored| stored.is_primary || !primary_only)
            .map(|stored| (stored.path[above.len()].common_head(key), stored))
            .filter(|(head, _)| *head > 0)
            .max_by_key(|(head, stored)| (*head, std::cmp::Reverse(stored.order)))
    }

    /// `full` are the keys of whole blocks within the limit, `cut` that of what the limit leaves of
    /// each block (for the position after k whole ones: `cut[k]`).
    pub fn match_prefix(&self, full: &[Key], cut: &[Option<Key>], block: usize) -> Match {
        let mut best: Match = (0, 0, Vec::new(), 0);
        for whole in 0..=full.len() {
            let mut ends = vec![(0, None)];
            if let Some(key) = &cut[whole] {
                let head = self.longest_head(&full[..whole], key, false);
                // A whole block in common is that block, counted on the next round.
                let head = head.filter(|(tokens, _)| *tokens < block);
                ends.extend(head.map(|(tokens, stored)| (tokens, Some(stored.id))));
            }
            for (head_tokens, head_id) in ends {
                let tokens = whole * block + head_tokens;
                let needed_from =
                    if self.tokens == 0 { 0 } else { tokens.saturating_sub(self.tokens) / block };
                let needed = needed_from..whole.max(needed_from);
                let ids: Option<Vec<i32>> =
                    needed.map(|position| Some(self.find_path(&full[..=position])?.id)).collect();
                if let Some(mut ids) = ids.filter(|_| tokens > best.0) {
                    ids.extend(head_id);
                    best = (tokens, needed_from, ids, head_tokens);
                }
            }
        }
        best
    }

    /// The ids of the leading blocks of `range` that can be sent.
    pub fn sendable(
        &self,
        path: &[Key],
        range: std::ops::Range<usize>,
        full_blocks: usize,
    ) -> Vec<i32> {
        let find = |position: usize| {
            if position < full_blocks {
                return self.find_path(&path[..=position]).filter(|stored| stored.is_primary);
            }
            let tail = &path[position];
            let (head, stored) = self.longest_head(&path[..position], tail, true)?;
            (head == tail.tokens.len()).then_some(stored)
        };
        range.map_while(|position| Some(find(position)?.id)).collect()
    }

    /// The ids that a pin on these blocks protects.
    pub fn pin(&mut self, ids: &[i32]) -> Vec<i32> {
        let last = self.find_id(*ids.last().expect("pins are not empty")).expect("it is stored");
        let protected: Vec<i32> = if self.tokens == 0 {
            let path = last.path.clone();
            (1..=path.len()).map(|end| self.find_path(&path[..end]).expect("closed").id).collect()
        } else {
            ids.to_vec()
        };
        for id in &protected {
            *self.protected.entry(*id).or_default() += 1;
        }
        protected
    }

    pub fn unpin(&mut self, protected: &[i32]) {
        for id in protected {
            let count = self.protected.get_mut(id).expect("it is protected");
            *count -= 1;
            if *count == 0 {
                self.protected.remove(id);
            }
        }
    }
}
