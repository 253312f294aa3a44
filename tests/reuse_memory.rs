//! How much memory the reuse tree takes for a stored block, beyond what keys must keep.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use kvhints::reuse::{
    NoObserver, ReuseTree, ReuseTreeConfig, Sequence, SequenceParams, WINDOW_FULL,
};

/// Counts the bytes that are allocated.
struct Counting;

static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all work is the system allocator's; a count is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 16;
/// Tokens, and the digest of a key's other parts.
const KEY_BYTES: usize = 4 * BLOCK + 32;
const PROMPT_BLOCKS: usize = 500;

#[test]
fn a_stored_block_takes_no_more_than_it_may() {
    let observer = Arc::new(NoObserver);
    let config = ReuseTreeConfig { tokens_per_block: BLOCK, windows: &[], seed: 5, observer };
    let tree = ReuseTree::new(config).expect("a good configuration");
    let before = ALLOCATED_BYTES.load(Ordering::Relaxed);
    let mut blocks = 0;
    // Tables grow step by step: looked at in several places between two sizes, 46,000 being where
    // they have just grown.
    for stop in [40_000, 46_000, 60_000, 84_000] {
        while blocks < stop {
            let tokens: Vec<i32> =
                (0..PROMPT_BLOCKS * BLOCK).map(|index| (blocks * BLOCK + index) as i32).collect();
            let params =
                SequenceParams { tokens_per_block: BLOCK, tokens: &tokens, ..Default::default() };
            let sequence = Sequence::new(&params).expect("a good sequence");
            let ids: Vec<i32> = (blocks..blocks + PROMPT_BLOCKS).map(|id| id as i32).collect();
            tree.store(WINDOW_FULL, &sequence, 0, &ids).expect("a good store");
            blocks += PROMPT_BLOCKS;
        }
        let bytes = ALLOCATED_BYTES.load(Ordering::Relaxed) - before;
        let each = bytes as f64 / blocks as f64 - KEY_BYTES as f64;
        println!("{blocks} blocks: {each:.1} bytes each beyond the key");
        assert!(each <= 160.0, "{each} bytes a block");
    }
    assert_eq!(tree.statistics().stored_blocks, blocks);
    // What left is used again: a tree that is full does not grow.
    let full = ALLOCATED_BYTES.load(Ordering::Relaxed);
    for round in 0..20 {
        let tokens: Vec<i32> =
            (0..PROMPT_BLOCKS * BLOCK).map(|index| -1 - (round * 100_000 + index) as i32).collect();
        let params =
            SequenceParams { tokens_per_block: BLOCK, tokens: &tokens, ..Default::default() };
        let sequence = Sequence::new(&params).expect("a good sequence");
        let first = (round * PROMPT_BLOCKS) as i32;
        tree.evict(WINDOW_FULL, first).expect("a known window");
        let ids: Vec<i32> = (first..first + PROMPT_BLOCKS as i32).collect();
        tree.store(WINDOW_FULL, &sequence, 0, &ids).expect("a good store");
    }
    assert_eq!(tree.statistics().stored_blocks, blocks);
    let grown = ALLOCATED_BYTES.load(Ordering::Relaxed).saturating_sub(full);
    assert!(grown < 1 << 20, "{grown} bytes more for as many blocks");
}
