//! Memory that runs out inside a call: each call whose memory depends on its input says so, changes
//! nothing that the caller could see, and works when there is memory again. It never aborts.
//!
//! The allocator of this program refuses, on one thread, the n-th request for at least a kibibyte.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{null, null_mut};

use kvhints::broadcast::batch::{Batch, Request};
use kvhints::broadcast::frame::{self, Encoded, Format, FrameError};
use kvhints::broadcast::header::AbortReason;
use kvhints::broadcast::pool::BufferPool;
use kvhints::broadcast::settings::{HintForm, Mode};
use kvhints::capi::admit::*;
use kvhints::capi::batch::*;
use kvhints::capi::binding_table::*;
use kvhints::capi::block_range::*;
use kvhints::capi::buffer::*;
use kvhints::capi::candidates::*;
use kvhints::capi::capabilities::*;
use kvhints::capi::context::*;
use kvhints::capi::explain::*;
use kvhints::capi::held_blocks::*;
use kvhints::capi::plan::*;
use kvhints::capi::request::*;
use kvhints::capi::reuse_tree::*;
use kvhints::capi::sequence::*;
use kvhints::capi::snapshot::*;
use kvhints::capi::status::kvh_status;
use kvhints::capi::types::{kvh_bytes_t, kvh_str_t};
use kvhints::hint::Snapshot;
use kvhints::plan::{AddressBounds, AddressBoundsError, AllowList, AllowListError};
use kvhints::reuse::Policy;
use kvhints::transfer::block_part::{BlockPart, HeadRange};
use kvhints::transfer::layout::ParallelLayout;
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::protocol::{FetchRequest, Message, RequestKey};
use kvhints::transfer::state::{Incarnation, JoinError, RankAddress, State};
use kvhints::transfer::transceiver::BeginError;
use kvhints::transfer::WireError;

mod transfer_support;

struct Miser;

/// Requests below this are small pieces of a fixed size.
const SMALL_BYTES: usize = 1024;

thread_local! {
    /// Requests that are still granted; `None` while all are.
    static GRANTED: Cell<Option<usize>> = const { Cell::new(None) };
    static HAS_REFUSED: Cell<bool> = const { Cell::new(false) };
}

fn is_refused(bytes: usize) -> bool {
    let Some(granted) = GRANTED.get().filter(|_| bytes >= SMALL_BYTES) else { return false };
    // Only one is refused: what handles it may need memory too.
    GRANTED.set(granted.checked_sub(1));
    HAS_REFUSED.set(HAS_REFUSED.get() || granted == 0);
    granted == 0
}

// SAFETY: hands everything that it does not refuse to the system's allocator.
unsafe impl GlobalAlloc for Miser {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            null_mut()
        } else {
            // SAFETY: the caller's promise.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            null_mut()
        } else {
            // SAFETY: the caller's promise.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if new_size > layout.size() && is_refused(new_size) {
            return null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Miser = Miser;

/// Makes `call` on what `prepare` gives, each time with another of its requests refused, and again
/// on the same object with none refused.
fn survives<O, R: PartialEq + std::fmt::Debug>(
    no_memory: R,
    good: R,
    mut prepare: impl FnMut() -> O,
    mut call: impl FnMut(&mut O) -> R,
) {
    for granted in 0..10_000 {
        let mut object = prepare();
        HAS_REFUSED.set(false);
        GRANTED.set(Some(granted));
        let outcome = call(&mut object);
        GRANTED.set(None);
        if !HAS_REFUSED.get() {
            assert_eq!(outcome, good);
            assert!(granted > 0, "the call asks for no memory worth a test: give it more to do");
            return;
        }
        assert_eq!(outcome, no_memory, "request {granted} for memory");
        assert_eq!(call(&mut object), good, "after request {granted} was refused");
    }
    panic!("the call never ends to ask for memory");
}

fn call_survives<O>(prepare: impl FnMut() -> O, call: impl FnMut(&mut O) -> i32) {
    survives(kvh_status::KVH_ERR_NO_MEMORY as i32, kvh_status::KVH_OK as i32, prepare, call);
}

/// An object of the C API, destroyed at the end.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    fn new(destroy: unsafe extern "C" fn(*mut T), create: impl FnOnce(*mut *mut T) -> i32) -> Self {
        let mut object = null_mut();
        assert_eq!(create(&mut object), 0);
        Self(object, destroy)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: created by the library for this function, and used no more.
        unsafe { (self.1)(self.0) };
    }
}

/// Makes a call that gives an object, and destroys that.
fn made<T>(destroy: unsafe extern "C" fn(*mut T), create: impl FnOnce(*mut *mut T) -> i32) -> i32 {
    let mut object = null_mut();
    let status = create(&mut object);
    assert_eq!(status == 0, !object.is_null(), "outputs are written on success only");
    drop(Owned(object, destroy));
    status
}

/// A parameter struct with all fields zero but its size, which comes first.
fn sized<P: Copy>() -> P {
    // SAFETY: every parameter struct of the C API may be all zero and begins with its size.
    unsafe {
        let mut params = std::mem::zeroed::<P>();
        (&raw mut params).cast::<usize>().write(size_of::<P>());
        params
    }
}

fn bytes(bytes: &[u8]) -> kvh_bytes_t {
    kvh_bytes_t { data: bytes.as_ptr(), len: bytes.len() }
}

fn text(text: &str) -> kvh_str_t {
    kvh_str_t { data: text.as_ptr().cast(), len: text.len() }
}

fn context() -> Owned<kvh_context_t> {
    // SAFETY: NULL params mean defaults.
    Owned::new(kvh_context_destroy, |out| unsafe { kvh_context_create(null(), out) })
}

/// An envelope with much of everything: actions, members, escapes, long texts, depth.
fn envelope() -> String {
    envelope_of(30, 200)
}

fn envelope_of(action_count: usize, id_len: usize) -> String {
    let long = "y".repeat(3000);
    let actions: Vec<String> = (0..action_count)
        .map(|index| {
            let hash_count = if index == 0 { 300 } else { 1 };
            let hashes: Vec<String> = (0..hash_count).map(|n: u64| (n << 40).to_string()).collect();
            format!(
                r#"{{"action_id":"a\u0001{index}{id}","action_type":"kv.fetch","action_version":"1.0","payload":{{"source_control_endpoint":"tcp://10.1.2.3:4567","block_hashes":[{hashes}]}}}}"#,
                id = "x".repeat(id_len),
                hashes = hashes.join(","),
            )
        })
        .collect();
    let members: Vec<String> = (0..300).map(|n| format!(r#""n{n}":{n}"#)).collect();
    format!(
        r#"{{"protocol_version":"0.1","message_id":"m\n","actions":[{}],"members":{{{}}},"text":"{long}\n{long}","deep":{}{}}}"#,
        actions.join(","),
        members.join(","),
        "[".repeat(150),
        "]".repeat(150),
    )
}

fn snapshot(json: &str) -> Owned<kvh_snapshot_t> {
    let context = context();
    Owned::new(kvh_snapshot_release, |out| admit(&context, json, out))
}

fn admit(context: &Owned<kvh_context_t>, json: &str, out: *mut *mut kvh_snapshot_t) -> i32 {
    let mut verdict = -1;
    // SAFETY: everything is live and as long as said.
    let status = unsafe {
        kvh_admit(context.0, KVH_INGRESS_TRUSTED, json.as_ptr(), json.len(), &mut verdict, out)
    };
    assert!(status != 0 || verdict == 0, "verdict {verdict}");
    status
}

fn msgpack(snapshot: &Owned<kvh_snapshot_t>) -> Vec<u8> {
    // SAFETY: everything is live and as long as said.
    unsafe {
        let buffer = Owned::new(kvh_buffer_release, |out| kvh_snapshot_msgpack(snapshot.0, out));
        let bytes = kvh_buffer_bytes(buffer.0);
        std::slice::from_raw_parts(bytes.data, bytes.len).to_vec()
    }
}

#[test]
fn admission() {
    let json = envelope();
    call_survives(context, |context| made(kvh_snapshot_release, |out| admit(context, &json, out)));
}

#[test]
fn explanations() {
    let json = envelope();
    call_survives(context, |context| {
        let mut explanation = sized::<kvh_explanation_t>();
        let (explanation, trusted) = (&mut explanation, KVH_INGRESS_TRUSTED);
        // SAFETY: everything is live and as long as said.
        unsafe {
            kvh_explain(context.0, trusted, json.as_ptr(), json.len(), explanation, null_mut())
        }
    });
}

#[test]
fn admission_of_message_pack() {
    let packed = msgpack(&snapshot(&envelope()));
    call_survives(context, |context| {
        let (trusted, mut verdict) = (KVH_INGRESS_TRUSTED, -1);
        // SAFETY: everything is live and as long as said.
        made(kvh_snapshot_release, |out| unsafe {
            kvh_admit_msgpack(context.0, trusted, packed.as_ptr(), packed.len(), &mut verdict, out)
        })
    });
}

#[test]
fn admission_of_a_body() {
    let nested = "[".repeat(20_000) + &"]".repeat(20_000);
    let body = format!(r#"{{"a":1,"kv_hints":{},"z":{nested}}}"#, envelope());
    call_survives(context, |context| {
        let (trusted, mut verdict) = (KVH_INGRESS_TRUSTED, -1);
        made(kvh_snapshot_release, |snapshot_out| {
            // SAFETY: everything is live and as long as said.
            made(kvh_buffer_release, |body_out| unsafe {
                let (data, len) = (body.as_ptr(), body.len());
                kvh_admit_body(context.0, trusted, data, len, &mut verdict, snapshot_out, body_out)
            })
        })
    });
}

#[test]
fn snapshots() {
    let snapshot = snapshot(&envelope());
    let nothing = || ();
    call_survives(nothing, |()| {
        // SAFETY: everything is live and as long as said.
        made(kvh_buffer_release, |out| unsafe { kvh_snapshot_msgpack(snapshot.0, out) })
    });
    call_survives(nothing, |()| {
        // SAFETY: everything is live and as long as said.
        made(kvh_snapshot_release, |out| unsafe { kvh_snapshot_one_action(snapshot.0, 0, out) })
    });
    call_survives(nothing, |()| {
        // SAFETY: as above.
        made(kvh_snapshot_release, |out| unsafe {
            let json = kvh_snapshot_json(snapshot.0);
            kvh_snapshot_from_json(json.data, json.len, out, null_mut())
        })
    });
}

#[test]
fn the_metrics() {
    let mut text = vec![0; 65_536];
    call_survives(context, |context| {
        let mut len = 0;
        // SAFETY: everything is live and as long as said.
        unsafe { kvh_context_metrics(context.0, text.as_mut_ptr(), text.len(), &mut len) }
    });
}

fn binding_file() -> String {
    let endpoints: Vec<String> = (0..300)
        .map(|n| format!(r#"{{"endpoint":"tcp://h{n}{}:5","bindings":["b0"]}}"#, "a".repeat(40)))
        .collect();
    let actions: Vec<String> =
        (0..100).map(|n| format!(r#"{{"type":"kv.fetch","version":"1.{n}"}}"#)).collect();
    let bindings: Vec<String> = (0..100)
        .map(|n| {
            format!(
                r#"{{"id":"b{n}","family":"native","one_action_envelope":true,"addressing":"content_named","actions":[{}],"namespaces":["","{n}","{}"],"namespaces_hex":["{}"]}}"#,
                actions.join(","),
                "n".repeat(1024),
                "0f".repeat(1024),
            )
        })
        .collect();
    format!(
        r#"{{"version":1,"bindings":[{}],"endpoints":[{{"endpoint":"tcp://10.1.2.3:4567","bindings":["b0"]}},{}]}}"#,
        bindings.join(","),
        endpoints.join(","),
    )
}

fn load(file: &str, out: *mut *mut kvh_binding_table_t) -> i32 {
    // SAFETY: everything is live and as long as said.
    unsafe { kvh_binding_table_load(file.as_ptr(), file.len(), out, null_mut()) }
}

#[test]
fn a_binding_table() {
    let file = binding_file();
    call_survives(|| (), |()| made(kvh_binding_table_destroy, |out| load(&file, out)));
}

fn capabilities() -> Owned<kvh_capabilities_t> {
    // SAFETY: everything is live and as long as said.
    unsafe {
        let capabilities = Owned::new(kvh_capabilities_destroy, |out| kvh_capabilities_create(out));
        let (family, kind, version) = (text("native"), text("kv.fetch"), text("1.0"));
        assert_eq!(kvh_capabilities_add(capabilities.0, family, kind, version), 0);
        capabilities
    }
}

#[test]
fn candidates_and_plans() {
    let (snapshot, capabilities) = (snapshot(&envelope()), capabilities());
    let many = self::snapshot(&envelope_of(300, 1));
    call_survives(
        || (),
        |()| {
            // SAFETY: everything is live and as long as said.
            made(kvh_candidates_destroy, |out| unsafe {
                kvh_candidates_collect(many.0, capabilities.0, out)
            })
        },
    );
    let table = Owned::new(kvh_binding_table_destroy, |out| load(&binding_file(), out));
    let decide = |context: &Owned<kvh_context_t>, out| {
        let mut profile = sized::<kvh_request_profile_t>();
        (profile.kind, profile.has_lora, profile.required_handoff) = (1, 2, 2);
        let (table, profile) = (table.0, &profile);
        // SAFETY: everything is live and as long as said.
        unsafe { kvh_plan_decide(context.0, snapshot.0, capabilities.0, table, profile, out) }
    };
    call_survives(context, |context| made(kvh_plan_destroy, |out| decide(context, out)));

    let context = context();
    let plan = Owned::new(kvh_plan_destroy, |out| decide(&context, out));
    // SAFETY: everything is live and as long as said.
    let to_bytes = |out| unsafe { kvh_plan_to_bytes(plan.0, out) };
    call_survives(|| (), |()| made(kvh_buffer_release, to_bytes));
    let buffer = Owned::new(kvh_buffer_release, to_bytes);
    call_survives(
        || (),
        |()| {
            // SAFETY: everything is live and as long as said.
            made(kvh_plan_destroy, |out| unsafe {
                let bytes = kvh_buffer_bytes(buffer.0);
                assert!(bytes.len > 4000, "a plan with an envelope");
                kvh_plan_from_bytes(bytes.data, bytes.len, out, null_mut())
            })
        },
    );
    call_survives(new_batch, |batch| {
        let mut request = sized::<kvh_batch_request_t>();
        (request.plan, request.body) = (plan.0, bytes(b"body"));
        add_many(batch, &request)
    });
}

const TOKENS: usize = 40_000;

fn sequence(tokens: &[i32]) -> Owned<kvh_sequence_t> {
    let mut params = sized::<kvh_sequence_params_t>();
    params.tokens_per_block = 16;
    (params.tokens, params.token_count) = (tokens.as_ptr(), tokens.len());
    // SAFETY: everything is live and as long as said.
    Owned::new(kvh_sequence_destroy, |out| unsafe { kvh_sequence_create(&params, out) })
}

/// Runs of items, listed backwards.
fn mm_items() -> Vec<kvh_mm_item_t> {
    let item = |start| kvh_mm_item_t { hash: [7; 32], start, length: 5, item_offset: 0 };
    (0..300).rev().map(|index| item(index * 10)).collect()
}

#[test]
fn sequences() {
    let (tokens, extra_ids, items) = (vec![7; TOKENS], vec![8u64; TOKENS], mm_items());
    let namespace = vec![1; 5000];
    call_survives(
        || (),
        |()| {
            let mut params = sized::<kvh_sequence_params_t>();
            // One block with all items, and one that ends within them.
            params.tokens_per_block = 2000;
            params.flags = KVH_SEQUENCE_HAS_EXTRA_IDS;
            (params.tokens, params.token_count) = (tokens.as_ptr(), tokens.len() - 1);
            params.extra_ids = extra_ids.as_ptr();
            (params.mm_items, params.mm_item_count) = (items.as_ptr(), items.len());
            params.namespace_bytes = bytes(&namespace);
            (params.salt_bytes, params.adapter_digest) = (bytes(&namespace), bytes(&[]));
            // SAFETY: everything is live and as long as said.
            made(kvh_sequence_destroy, |out| unsafe { kvh_sequence_create(&params, out) })
        },
    );
    call_survives(
        || sequence(&[]),
        // SAFETY: everything is live and as long as said.
        |sequence| unsafe {
            let (count, item_count) = (tokens.len(), items.len());
            let items = items.as_ptr();
            kvh_sequence_append(sequence.0, tokens.as_ptr(), null(), count, items, item_count)
        },
    );
    let mut hashes = vec![0; TOKENS];
    call_survives(
        || sequence(&tokens),
        // SAFETY: everything is live and as long as said.
        |sequence| unsafe {
            let mut count = 0;
            kvh_sequence_block_hashes(sequence.0, hashes.as_mut_ptr(), hashes.len(), &mut count)
        },
    );
}

struct Stored {
    // Before the context, which it belongs to.
    tree: Owned<kvh_reuse_tree_t>,
    sequence: Owned<kvh_sequence_t>,
    _context: Owned<kvh_context_t>,
    ids: Vec<i32>,
}

const WINDOW: i32 = 32_000;

fn empty_tree() -> Stored {
    tree(1, TOKENS, 0)
}

/// Tokens of a request in owner mode.
const REQUEST_TOKENS: usize = 8_000;

/// A tree in owner mode, with more blocks than its requests need.
fn empty_owner() -> Stored {
    tree(2, REQUEST_TOKENS, REQUEST_TOKENS as i32 / 4)
}

fn tree(mode: u32, token_count: usize, primary_blocks: i32) -> Stored {
    let (context, sequence) = (context(), sequence(&vec![7; token_count]));
    let mut params = sized::<kvh_reuse_tree_params_t>();
    (params.tokens_per_block, params.mode) = (16, mode);
    params.primary_blocks = primary_blocks;
    let windows = [0, WINDOW];
    (params.windows, params.window_count) = (windows.as_ptr(), windows.len());
    // SAFETY: everything is live and as long as said.
    let tree = Owned::new(kvh_reuse_tree_destroy, |out| unsafe {
        kvh_reuse_tree_create(context.0, &params, out)
    });
    Stored { tree, sequence, _context: context, ids: (0..token_count as i32 / 16).collect() }
}

fn store(stored: &mut Stored, window: i32) -> i32 {
    let Stored { tree, sequence, ids, .. } = stored;
    let mut held = vec![-2; ids.len()];
    let (ids, held) = (ids.as_ptr(), (held.as_mut_ptr(), held.len()));
    // SAFETY: everything is live and as long as said.
    unsafe { kvh_reuse_tree_store(tree.0, window, sequence.0, 0, ids, held.1, held.0) }
}

fn full_tree() -> Stored {
    let mut stored = empty_tree();
    for window in [0, WINDOW] {
        assert_eq!(store(&mut stored, window), 0);
    }
    stored
}

#[test]
fn storing() {
    for window in [0, WINDOW] {
        // The places for the answer are the caller's, and asked for before.
        call_survives(empty_tree, |stored| {
            let Stored { tree, sequence, ids, .. } = stored;
            // SAFETY: everything is live and as long as said; ids may be overwritten.
            unsafe {
                let mut held = [0i32; TOKENS / 16];
                let (ids, count, held) = (ids.as_ptr(), ids.len(), held.as_mut_ptr());
                kvh_reuse_tree_store(tree.0, window, sequence.0, 0, ids, count, held)
            }
        });
    }
}

#[test]
fn pins() {
    for window in [0, WINDOW] {
        call_survives(full_tree, |Stored { tree, sequence, .. }| {
            let mut matched = 0;
            // SAFETY: everything is live and as long as said.
            made(kvh_block_range_destroy, |out| unsafe {
                let tokens = TOKENS - 1;
                let matched = &mut matched;
                kvh_reuse_tree_match_and_pin(tree.0, window, sequence.0, tokens, 0, matched, out)
            })
        });
        call_survives(full_tree, |Stored { tree, sequence, .. }| {
            let (mut present, mut params) = (0, sized::<kvh_block_range_params_t>());
            (params.window, params.policy, params.block_count) = (window, 1, 2000);
            params.first_block = if window == 0 { 0 } else { 500 };
            // SAFETY: everything is live and as long as said.
            made(kvh_block_range_destroy, |out| unsafe {
                let present = &mut present;
                kvh_block_range_from_reuse_tree(tree.0, sequence.0, &params, present, out)
            })
        });
    }
}

#[test]
fn storing_and_pinning() {
    for window in [0, WINDOW] {
        call_survives(empty_tree, |Stored { tree, sequence, ids, .. }| {
            let mut held = [0i32; TOKENS / 16];
            let (ids, count, held) = (ids.as_ptr(), ids.len(), held.as_mut_ptr());
            // SAFETY: everything is live and as long as said.
            made(kvh_block_range_destroy, |out| unsafe {
                kvh_reuse_tree_store_and_pin(
                    tree.0, window, sequence.0, 0, ids, count, 0, held, out,
                )
            })
        });
        // Blocks that the tree does not know.
        call_survives(empty_tree, |Stored { tree, ids, .. }| {
            // SAFETY: everything is live and as long as said.
            made(kvh_block_range_destroy, |out| unsafe {
                kvh_reuse_tree_pin_blocks(tree.0, window, ids.as_ptr(), ids.len(), 0, out)
            })
        });
    }
}

/// A request in owner mode, and its tree.
struct Admitted {
    // Before what it belongs to.
    request: Owned<kvh_request_t>,
    stored: Stored,
}

fn add(stored: &Stored, out: *mut *mut kvh_request_t) -> i32 {
    let mut params = sized::<kvh_request_params_t>();
    (params.sequence, params.max_matched_tokens) = (stored.sequence.0, usize::MAX);
    // SAFETY: everything is live.
    unsafe { kvh_request_add(stored.tree.0, &params, out) }
}

fn admitted() -> Admitted {
    let stored = empty_owner();
    let request = Owned::new(kvh_request_destroy, |out| add(&stored, out));
    Admitted { request, stored }
}

#[test]
fn requests() {
    call_survives(empty_owner, |stored| made(kvh_request_destroy, |out| add(stored, out)));
    // All of it is stored: the next one finds it.
    let with_stored = || {
        let Admitted { request, stored } = admitted();
        // SAFETY: everything is live.
        assert_eq!(unsafe { kvh_request_finish(request.0, stored.sequence.0, REQUEST_TOKENS) }, 0);
        drop(request);
        stored
    };
    call_survives(with_stored, |stored| made(kvh_request_destroy, |out| add(stored, out)));
    call_survives(admitted, |Admitted { request, .. }| {
        // SAFETY: everything is live.
        unsafe { kvh_request_grow(request.0, 2 * REQUEST_TOKENS, 35, 0) }
    });
    call_survives(admitted, |Admitted { request, stored }| {
        // SAFETY: everything is live.
        unsafe { kvh_request_store_context(request.0, stored.sequence.0, REQUEST_TOKENS) }
    });
    call_survives(admitted, |Admitted { request, .. }| {
        // SAFETY: everything is live.
        made(kvh_request_pin_destroy, |out| unsafe { kvh_request_pin(request.0, out) })
    });
    call_survives(admitted, |Admitted { request, stored }| {
        // SAFETY: everything is live.
        unsafe { kvh_request_finish(request.0, stored.sequence.0, REQUEST_TOKENS) }
    });
}

#[test]
fn expired_leases() {
    let with_leases = || {
        let stored = full_tree();
        for _ in 0..1000 {
            let (mut matched, mut range) = (0, null_mut());
            let (tree, sequence) = (stored.tree.0, stored.sequence.0);
            let tokens = 160;
            // SAFETY: everything is live and as long as said. The ranges are never destroyed.
            let status = unsafe {
                let (matched, range) = (&mut matched, &mut range);
                kvh_reuse_tree_match_and_pin(tree, 0, sequence, tokens, 1, matched, range)
            };
            assert_eq!(status, 0);
        }
        stored
    };
    call_survives(with_leases, |stored| {
        let (mut ids, mut count) = ([0; 1000], 0);
        let ids = (ids.as_mut_ptr(), ids.len());
        // SAFETY: everything is live and as long as said.
        unsafe { kvh_reuse_tree_expired_leases(stored.tree.0, ids.0, ids.1, &mut count) }
    });
}

fn new_batch() -> Owned<kvh_batch_t> {
    // SAFETY: the place is writable.
    Owned::new(kvh_batch_destroy, |out| unsafe { kvh_batch_create(out) })
}

fn add_many(batch: &Owned<kvh_batch_t>, request: &kvh_batch_request_t) -> i32 {
    // SAFETY: everything is live and as long as said.
    let mut added = (0..200).map(|_| unsafe { kvh_batch_add(batch.0, request) });
    added.find(|status| *status != 0).unwrap_or(0)
}

#[test]
fn batches() {
    let snapshot = snapshot(&envelope());
    call_survives(new_batch, |batch| {
        let mut request = sized::<kvh_batch_request_t>();
        request.snapshot = snapshot.0;
        request.body = bytes(b"body");
        add_many(batch, &request)
    });
}

#[test]
fn frames() {
    let json = snapshot(&envelope());
    // SAFETY: the snapshot is held.
    let json = unsafe {
        let json = kvh_snapshot_json(json.0);
        std::slice::from_raw_parts(json.data, json.len)
    };
    let snapshots: Vec<Snapshot> =
        (0..200).map(|_| Snapshot::from_canonical(json).expect("canonical")).collect();
    let body = vec![9; 3 << 20];
    let mut batch = Batch::new();
    for (id, snapshot) in snapshots.iter().enumerate() {
        let body = if id % 2 == 0 { &body[..] } else { b"small" };
        let snapshot = Some(snapshot.clone());
        batch
            .add(Request { id: id as u64, body, snapshot, parent: None, plan: None })
            .expect("a good request");
    }
    let format = |hint_form| Format { mode: Mode::Full, hint_form, large_from_bytes: 4096 };
    survives(
        Err(AbortReason::NoMemory),
        Ok(()),
        || (),
        |()| frame::encode(&batch, format(HintForm::Text), Encoded::default()).map(|_| ()),
    );
    survives(
        Err(AbortReason::NoMemory),
        Ok(()),
        || {
            let mut one = Batch::new();
            // Another snapshot each time: the packed form is kept with it.
            let snapshot = Some(Snapshot::from_canonical(json).expect("canonical"));
            let request = Request { id: 1, body: b"body", snapshot, parent: None, plan: None };
            one.add(request).expect("a good request");
            one
        },
        |one| frame::encode(one, format(HintForm::Packed), Encoded::default()).map(|_| ()),
    );

    let mut few = Batch::new();
    for request in batch.requests().iter().skip(1).step_by(10) {
        few.add(request.clone()).expect("a good request");
    }
    let format = format(HintForm::Packed);
    let encoded = frame::encode(&few, format, Encoded::default()).expect("memory");
    let mut payload = encoded.front.clone();
    encoded.large_parts(&few, HintForm::Packed).for_each(|part| payload.extend_from_slice(part));
    let payload = bytes::Bytes::from(payload);
    let no_memory = FrameError::NoMemory.to_string();
    survives(
        Err(no_memory),
        Ok(20),
        || (),
        |()| {
            frame::decode(&encoded.lengths, payload.clone(), &BufferPool::default())
                .map(|received| received.len())
                .map_err(|error| error.to_string())
        },
    );
}

#[test]
fn prefetches() {
    const BLOCKS: usize = 300;
    let hub = LoopbackHub::new(1);
    let setup =
        || transfer_support::Setup { block_count: BLOCKS, block_bytes: 64, ..Default::default() };
    let source = transfer_support::Worker::new(&hub, setup());
    let sequence = transfer_support::sequence(BLOCKS, 0);
    let ids: Vec<i32> = (0..BLOCKS as i32).collect();
    let order = transfer_support::order(source.origin(), &sequence, &ids, Policy::Strict);
    survives(
        Err(BeginError::NoMemory),
        Ok(()),
        || transfer_support::Worker::new(&hub, setup()),
        |worker| worker.begin_order(&order).map(drop),
    );
}

/// A state with much of everything: layers, ranks, long addresses.
fn worker_state() -> State {
    let mut cache = transfer_support::cache_layout();
    cache.kv_heads_per_layer = vec![1; 1000];
    cache.windows = vec![0; 500];
    let parallel = ParallelLayout {
        tensor: 40,
        pipeline: 1,
        layers_per_pipeline_rank: vec![1000],
        ..transfer_support::ONE_RANK
    };
    let rank = |rank| RankAddress {
        rank,
        incarnation: Incarnation([rank as u8; 16]),
        transport: "ucx".to_owned(),
        address: vec![rank as u8; 2000],
        block_bytes: 64,
    };
    State { namespace: vec![7; 5000], cache, parallel, ranks: (0..40).map(rank).collect() }
}

#[test]
fn states() {
    let state = worker_state();
    let no_memory = WireError::NoMemory;
    survives(Err(no_memory), Ok(()), || (), |()| state.encode().map(drop).map_err(|_| no_memory));
    let bytes = state.encode().unwrap();
    survives(Err(no_memory), Ok(state.clone()), || (), |()| State::decode(&bytes));
    let entries: Vec<Vec<u8>> = state
        .ranks
        .iter()
        .map(|rank| State { ranks: vec![rank.clone()], ..state.clone() }.encode().unwrap())
        .collect();
    let entries: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
    survives(Err(JoinError::NoMemory), Ok(state), || (), |()| State::join(&entries));
}

#[test]
fn requests_of_peers() {
    let heads = (0..300).map(|first| HeadRange { first, count: 1 }).collect();
    let request = Message::Fetch(FetchRequest {
        key: RequestKey { destination: Incarnation([1; 16]), sequence: 1 },
        source: Incarnation([2; 16]),
        namespace: vec![7; 5000],
        layout_digest: 1,
        part: BlockPart::Heads { first_layer: 0, heads },
        policy: Policy::Strict,
        hold_time_ns: 1,
        skipped_blocks: 0,
        step: 1,
        names: transfer_support::sequence(300, 0).names().to_vec(),
        tail: transfer_support::sequence_of(&[1, 2], None).text_tail().expect("memory"),
    });
    let bytes = request.encode();
    let decode = || Message::decode(&bytes).map_err(|unreadable| unreadable.error);
    survives(Err(WireError::NoMemory), Ok(request), || (), |()| decode());
}

#[test]
fn lists_of_destinations() {
    let addresses: Vec<String> = (0..200).map(|n| format!("\"10.0.{n}.0/24\"")).collect();
    let entries: Vec<String> = (0..300)
        .map(|n| {
            let bounds = if n % 100 == 0 { &addresses[..] } else { &addresses[..1] };
            format!(r#"{{"endpoint":"tcp://h{n}:5","addresses":[{}]}}"#, bounds.join(","))
        })
        .collect();
    let file = format!(r#"{{"version":1,"endpoints":[{}]}}"#, entries.join(","));
    let list = AllowList::from_json(file.as_bytes()).unwrap();
    let read = || AllowList::from_json(file.as_bytes());
    survives(Err(AllowListError::NoMemory), Ok(list), || (), |()| read());

    let ranges: Vec<&str> = vec!["10.0.0.0/8"; AddressBounds::MAX_RANGES];
    let bounds = AddressBounds::within(&ranges).unwrap();
    survives(
        Err(AddressBoundsError::NoMemory),
        Ok(bounds),
        || (),
        |()| AddressBounds::within(&ranges),
    );
}
