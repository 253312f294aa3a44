//! Tokens -> names; and the tree of blocks that are held under those names.
//!
//! A [`Sequence`] cuts a request's tokens into blocks and gives each block two identities, both
//! chained from the root: a 64-bit *block hash*, the one routers and events use, and a 32-byte
//! *content name*. Only names decide whether two blocks are the same: hashes of 64 bits collide
//! and can be made to. A [`ReuseTree`] knows which block ids hold which names, window by window,
//! and protects blocks with pins; a [`BlockRange`] is a pin together with the blocks it protects.
//!
//! **Identities.** A *name* stands for a block and everything before it. An *id* is the host's word
//! for the memory of a block; it stays when the block is offloaded. A *slot* is a node's place, used
//! again under another *generation*; a pin's id is an entry's place and generation in the same way. A
//! block hash identifies nothing.
//!
//! **Who waits for whom.** Operations that match, pin and unpin take no lock. They read nodes that
//! are never moved or freed while the tree lives, and check by the generation that what they read
//! belongs together. Operations that change what the tree holds take one lock, the writer's, which no
//! reader knows: neither side ever waits for the other.
//!
//! **Why an inner block may be evicted.** A pin in the full window is a change of one word, the last
//! node's; what is before it carries no mark. An eviction closes all nodes it would take, each by a
//! change of its word, and takes none unless all were closed. A pin and a closing of one node are
//! ordered, so one of them is refused: no pinned node loses a node above it. How many blocks are
//! protected is counted later, when somebody asks.
//!
//! **Cost** for a prefix of n blocks in a tree of N, names known; a *probe* is two cache misses, the
//! table's bucket and the node.
//!
//! | operation | steps | cache misses where nothing is cached |
//! |---|---|---|
//! | match, all n stored | 1 probe | 2 |
//! | match otherwise, full window | log2 n probes | 2 log2 n |
//! | head of one more block, s siblings | 2 log2 s comparisons | 3 for each (node, links, tokens) |
//! | match, sliding window of w blocks | log2 n + w probes, and holes passed | 2 for each |
//! | pin, unpin, full window | a change of the last node and of a pin's entry | 1 (the entry) |
//! | pin, unpin, sliding window | the same for each block | 1 for each |
//! | pin for sending | as pin; a walk over the range if anything at all is offloaded or fenced | 1 for each |
//! | ids of a range, once | n, looked up 16 at a time | 2 n, overlapping |
//! | pin by names | n probes, 16 at a time, and n nodes again | 2 n, overlapping |
//! | store of a block | parent, id and hash looked up, three entries, one child | about 10 |
//! | evict of a leaf | id looked up, three entries, one child | about 10 |
//! | evict that is busy | O(1) once the pin is accounted for | 3 |
//! | protected blocks | the pins that changed, each over blocks whose protection changes | 2 for each |
//!
//! A table's segment that is full splits: one store then pays for some 700 entries, never for all.
//!
//! | file | subject |
//! |---|---|
//! | `block_hash`, `key`, `key_digest`, `content_name`, `sha_ni` | what a block is |
//! | `multimodal`, `sequence`, `text_tail` | from tokens and images to blocks |
//! | `chunks`, `node`, `arena`, `stored_key` | memory that readers may look at at any time |
//! | `lookup`, `children` | tables by name, id and hash; siblings by key |
//! | `window`, `store`, `leave` | the blocks of one attention window, how they come and go |
//! | `matching`, `sendable` | what readers ask |
//! | `pin`, `protection`, `range` | who holds what, and what is protected by that |
//! | `shard`, `hold` | what all readers write, once for each of several threads |
//! | `core`, `tree` | the whole, and its face |
//! | `changes`, `events` | what the tree tells: numbered events for routers |
//! | `expiries` | priorities that end by themselves |
//! | `verify`, `work_count` | that the parts agree and hash nothing twice, for tests |
//!
//! **Who owns eviction.** In *arbiter* mode the host: it picks victims and asks
//! [`ReuseTree::evict`]. In *owner* mode an [`Owner`] stands before the tree, keeps the free queues
//! and hands blocks out, with one lock of its own that no reader knows:
//!
//! | file | subject |
//! |---|---|
//! | `block_heap`, `free_queues` | which free block is taken next |
//! | `slots`, `copies` | where bytes lie, and the copies that moving takes |
//! | `changed_blocks` | what the owner has to learn from the tree |
//! | `pool`, `owner` | one window's blocks, and the whole |
//! | `retention`, `admission`, `request` | a request's blocks from its admission to its end |
//!
//! Pure: time, seeds and block ids come in as values.

mod admission;
mod arena;
mod block_hash;
mod block_heap;
mod changed_blocks;
mod changes;
mod children;
mod chunks;
mod content_name;
mod copies;
mod core;
mod error;
mod events;
mod expiries;
mod free_queues;
mod hold;
mod key;
mod key_digest;
mod leave;
mod lookup;
mod matching;
#[cfg(all(test, kvhints_shuttle))]
mod model;
mod multimodal;
mod node;
mod owner;
mod pin;
mod pool;
mod protection;
mod range;
mod request;
mod retention;
mod sendable;
mod sequence;
mod sha_ni;
mod shard;
mod slots;
mod store;
mod stored_key;
mod text_tail;
mod tree;
mod verify;
mod window;
mod work_count;

pub use content_name::Name;
pub use copies::{BlockCopy, CopyReason};
pub use error::ReuseError;
pub use events::{Event, EventKind, StoredBlock, MAX_EVENTS};
pub use free_queues::{Retention, DEFAULT_PRIORITY, MAX_PRIORITY};
pub use multimodal::MmItem;
pub use node::{BlockId, Tier};
pub use owner::{OwnedBlocks, Owner, OwnerStatistics, MAX_OWNED_BLOCKS};
pub use pin::PinId;
pub use pool::OFFLOAD_MIN_PRIORITY;
pub use range::BlockRange;
pub use request::{Request, RequestParams, RequestPin};
pub use retention::{RetentionRange, MAX_RETENTION_RANGES};
pub use sequence::{
    Sequence, SequenceParams, MAX_IDENTITY_BYTES, MAX_TOKENS, MAX_TOKENS_PER_BLOCK,
};
pub use slots::Place;
pub use text_tail::{TextTail, TAIL_TRAITS_BYTES};
pub use tree::{
    BlockState, Evicted, NoObserver, Noted, PinOutcome, Policy, PrefixMatch, RangeRequest,
    Refreshed, ReuseTree, ReuseTreeConfig, TreeObserver, TreeStatistics, WeakReuseTree,
    MAX_WINDOWS, WINDOW_FULL,
};
