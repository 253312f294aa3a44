/*
 * kvhints: KV hints for LLM serving. SPDX-License-Identifier: Apache-2.0
 *
 * Rules that hold for every call:
 * - Objects are opaque. Each has a destroy or release function; NULL is fine there.
 * - Functions return kvh_status_t: 0 ok, > 0 an answer that is no error, < 0 an error. Outputs are
 *   written only on KVH_OK, except lengths and counts where the call says so: set handles to NULL
 *   before.
 * - A parameter of type pointer-to-const object may be used by several threads at once; one without
 *   const belongs to the call.
 * - (data, len) arguments may be (NULL, 0). Buffers to fill are (buffer, capacity, length out):
 *   (NULL, 0) asks for the length and is OK; too small a buffer is KVH_ERR_TOO_SMALL.
 * - Structs that begin with struct_size are set to zero, then struct_size = sizeof(the struct);
 *   zero fields mean default. Other structs are frozen.
 * - Callbacks get their user data first, may come from any thread, must not throw, and hold up what
 *   called them. No lock is held while they run.
 * - The library prints nothing, installs no signal handlers, changes no environment variables.
 * - After a fork, calls on the parent's contexts and what was made from them return KVH_ERR_FORKED.
 * - KVH_ERR_POISONED: a fault inside the library was caught. Destroy the object; report the bug.
 */


#ifndef KVHINTS_H
#define KVHINTS_H

/* Generated from src/capi by `cargo xtask header`; do not edit. */

#include <stddef.h>
#include <stdint.h>

/* A status that nobody looks at is a bug. */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define KVH_MUST_USE [[nodiscard]]
#elif defined(__GNUC__)
#define KVH_MUST_USE __attribute__((warn_unused_result))
#else
#define KVH_MUST_USE
#endif


// The revision of the interface in this header. Grows by one with each addition; an incompatible
// change gets a new SONAME instead.
#define KVH_ABI_VERSION 1

// expiry: a hint must say when it expires.
#define KVH_EXPIRY_REQUIRED 0

// expiry: a hint that does not say so never expires.
#define KVH_EXPIRY_OPTIONAL 1

// trust_http_hints: on only if the environment variable TRTLLM_TRUST_KV_HINTS is exactly "1" when
// the context is created.
#define KVH_TRUST_FROM_ENVIRONMENT 0

// trust_http_hints: on.
#define KVH_TRUST_ON 1

// trust_http_hints: off.
#define KVH_TRUST_OFF 2

// verdict: a hint; there is a snapshot.
#define KVH_VERDICT_ADMITTED 0

// verdict: there is no hint (no bytes, only blanks, null); not counted.
#define KVH_VERDICT_ABSENT 1

// verdict: hints over this ingress are not trusted.
#define KVH_VERDICT_UNTRUSTED 2

// verdict: protocol_version is not "0.1".
#define KVH_VERDICT_UNKNOWN_VERSION 3

// verdict: more than 1 MiB raw, or more than 65,536 bytes in canonical form.
#define KVH_VERDICT_OVERSIZED 4

// verdict: not a well-formed envelope.
#define KVH_VERDICT_MALFORMED 5

// ingress: over HTTP; counts only where the context trusts it, or its key ring the signature.
#define KVH_INGRESS_HTTP 1

// ingress: from code in this process.
#define KVH_INGRESS_TRUSTED 2

// addressing: blocks are found by their content names; what a hint can ask for.
#define KVH_ADDRESSING_CONTENT_NAMED 1

// addressing: blocks are found by the request of a paired worker; never reached by a hint.
#define KVH_ADDRESSING_REQUEST_PAIRED 2

// flags of a binding: its plans carry the envelope with the chosen action.
#define KVH_BINDING_WANTS_ENVELOPE 1

// hash_dialect: JSON integers; a negative one stands for its two's complement. The default.
#define KVH_HASH_DIALECT_UNSIGNED_NUMBER 1

// hash_dialect: strings of decimal digits.
#define KVH_HASH_DIALECT_DECIMAL_STRING 2

// hash_dialect: strings of at least 16 hexadecimal digits, of which the first 16 count.
#define KVH_HASH_DIALECT_HEX_DIGITS 3

// An answer that has to be given: yes.
#define KVH_ANSWER_YES 1

// An answer that has to be given: no.
#define KVH_ANSWER_NO 2

// kind of a request: prefill, with or without generation after it.
#define KVH_REQUEST_CONTEXT 1

// kind of a request: generation whose context comes from a paired worker.
#define KVH_REQUEST_GENERATION_ONLY 2

// kind of a request: anything else; hints do not apply to it.
#define KVH_REQUEST_OTHER 3

// kind of a plan: nothing to fetch; the request runs as if it had no hint.
#define KVH_PLAN_LOCAL 1

// kind of a plan: try one fetch of named blocks first.
#define KVH_PLAN_NAMED_FETCH 2

// reason of a local plan: the request uses a LoRA adapter.
#define KVH_REFUSAL_LORA 1

// reason of a local plan: the request's kind takes no hints.
#define KVH_REFUSAL_NOT_ELIGIBLE 2

// reason of a local plan: no hint, or no action in it that a family supports.
#define KVH_REFUSAL_NO_CANDIDATE 3

// reason of a local plan: the first candidate's payload breaks a rule of its version.
#define KVH_REFUSAL_BAD_PAYLOAD 4

// reason of a local plan: the endpoint is not in the registry, or is no endpoint at all.
#define KVH_REFUSAL_ENDPOINT_UNLISTED 5

// reason of a local plan: the endpoint is listed for no binding of a supporting family.
#define KVH_REFUSAL_BINDING_MISSING 6

// reason of a local plan: the endpoint is listed for several such bindings.
#define KVH_REFUSAL_BINDING_AMBIGUOUS 7

// reason of a local plan: the binding is not authorised for the request's namespace.
#define KVH_REFUSAL_BINDING_UNAUTHORISED 8

// reason of a local plan: the binding itself cannot do the action.
#define KVH_REFUSAL_BINDING_INCAPABLE 9

// reason of a local plan: the binding finds blocks by a paired request.
#define KVH_REFUSAL_REQUEST_PAIRED 10

// flags of a fetch: after it comes the paired source, as it would have come without it.
#define KVH_FETCH_THEN_PAIRED_SOURCE 1

// flags: lora_id is set.
#define KVH_SEQUENCE_HAS_LORA 1

// flags: salt is set.
#define KVH_SEQUENCE_HAS_SALT 2

// flags: every token has an extra id, also those appended later.
#define KVH_SEQUENCE_HAS_EXTRA_IDS 4

// Full attention.
#define KVH_WINDOW_FULL 0

// No block. As an id to store in a sliding window: a hole.
#define KVH_BLOCK_NONE (-1)

// mode: the host picks what to evict and asks kvh_reuse_tree_evict.
#define KVH_REUSE_MODE_ARBITER 1

// mode: the library keeps the free queues. Not supported by this release.
#define KVH_REUSE_MODE_OWNER 2

// tier: where blocks are computed with; only these are sent to peers.
#define KVH_TIER_PRIMARY 1

// tier: where blocks are only kept.
#define KVH_TIER_SECONDARY 2

// policy: all blocks, or none.
#define KVH_RANGE_STRICT 1

// policy: the longest run that is there from the first block on.
#define KVH_RANGE_BEST_EFFORT 2

// flags of a request: it has a parent.
#define KVH_BATCH_REQUEST_HAS_PARENT 1

// mode: every rank gets snapshots and plans. The default.
#define KVH_BROADCAST_FULL 1

// mode: rank 0 decided; plans travel, snapshots stay on rank 0.
#define KVH_BROADCAST_DECIDED 2

// transport: within this process, over a kvh_loopback_t.
#define KVH_TRANSPORT_LOOPBACK 1

// transport: UCX, opened at run time.
#define KVH_TRANSPORT_UCX 2

// pool_memory: memory of the host's processors.
#define KVH_MEMORY_HOST 1

// pool_memory: memory of a CUDA device. Not supported yet.
#define KVH_MEMORY_CUDA 2

// data_type: IEEE half precision.
#define KVH_DATA_FLOAT16 1

// data_type: bfloat16.
#define KVH_DATA_BFLOAT16 2

// data_type: IEEE single precision.
#define KVH_DATA_FLOAT32 3

// data_type: 8-bit float, 4 exponent bits.
#define KVH_DATA_FLOAT8_E4M3 4

// data_type: 8-bit float, 5 exponent bits.
#define KVH_DATA_FLOAT8_E5M2 5

// data_type: 8-bit integer with scales.
#define KVH_DATA_INT8 6

// data_type: 4-bit float with block scales.
#define KVH_DATA_NVFP4 7

// attention: keys and values for each KV head.
#define KVH_ATTENTION_KEYS_AND_VALUES 1

// attention: one latent vector (MLA).
#define KVH_ATTENTION_LATENT 2

// state: schedulable: not begun, or over.
#define KVH_PREFETCH_CONTEXT_INIT 0

// state: the source's state is being fetched; active, not schedulable.
#define KVH_PREFETCH_INIT 1

// state: blocks are on their way; active, not schedulable.
#define KVH_PREFETCH_IN_PROGRESS 2

// state: blocks are here and wait for kvh_prefetch_claim.
#define KVH_PREFETCH_COMPLETE 3

// outcome: block_count blocks are in place, verified.
#define KVH_OUTCOME_DELIVERED 1

// outcome: the source does not hold what was asked for.
#define KVH_OUTCOME_CONTENT_MISS 2

// outcome: see reason.
#define KVH_OUTCOME_FAILED 3

// outcome: this side wanted it no more.
#define KVH_OUTCOME_CANCELLED 4

// hint_check: nothing to compare, or the source has not answered.
#define KVH_HINT_UNKNOWN 0

// hint_check: the hint's last hash is the request's, and the source holds what it names.
#define KVH_HINT_MATCHES 1

// hint_check: the hint's last hash is the request's, but the source does not hold all of it.
#define KVH_HINT_STALE 2

// hint_check: the hint's last hash belongs to another block of the request.
#define KVH_HINT_SHIFTED 3

// hint_check: the hint is about another prompt, or in another dialect of hashes.
#define KVH_HINT_UNRELATED 4

// What a call came to. 0 is success, a positive status is an answer and no error, a negative one
// says by its range what has to be mended:
// -1..-19 the caller's arguments, -20..-39 limits and resources, -40..-59 one peer,
// -60..-79 the communicator, -80..-99 a fault of the library.
enum kvh_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  KVH_OK = 0,
  // Not finished; ask again.
  KVH_IN_PROGRESS = 1,
  // What was asked for is not there.
  KVH_NOT_FOUND = 2,
  // In use now; take another or try later.
  KVH_BUSY = 3,
  // An argument is NULL, out of range, or contradicts another.
  KVH_ERR_INVALID_ARGUMENT = -1,
  // The call does not fit the object's present state.
  KVH_ERR_STATE = -2,
  // struct_size is not one this library knows, or an unknown field is set.
  KVH_ERR_ABI = -3,
  // The buffer is too small; the length output says how much is needed.
  KVH_ERR_TOO_SMALL = -4,
  // The context was created before a fork and this is the child.
  KVH_ERR_FORKED = -5,
  // The request body is not one strict JSON object, or is over the cap.
  KVH_ERR_BODY = -6,
  // A configured limit was reached.
  KVH_ERR_LIMIT = -20,
  // Memory could not be had.
  KVH_ERR_NO_MEMORY = -21,
  // This build or this machine cannot do it.
  KVH_ERR_UNSUPPORTED = -22,
  // A peer cannot be reached or went away.
  KVH_ERR_PEER = -40,
  // The communicator failed, or its ranks do not agree; build a new one.
  KVH_ERR_COMMUNICATOR = -60,
  // The library was at fault; the object can only be destroyed.
  KVH_ERR_POISONED = -80,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvh_status kvh_status;
#else
typedef int32_t kvh_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The requests of one broadcast round, in order. Made by the caller on rank 0, by kvh_broadcast on
// the other ranks. Given to the other threads only when nobody adds to it any more.
typedef struct kvh_batch kvh_batch_t;

// Server configuration: which bindings may serve which endpoints, actions and namespaces. Nothing
// is allowed that was not said. Build it once; keep it unchanged while requests are decided.
typedef struct kvh_binding_table kvh_binding_table_t;

// Blocks of one window, oldest first, and the pin that protects them: none is evicted, offloaded
// or stored elsewhere until the pin is released. In the full window the blocks before them are
// protected too. All calls but destroy may be made concurrently.
typedef struct kvh_block_range kvh_block_range_t;

// Bytes made by the library, owned by the caller until released. Immutable.
typedef struct kvh_buffer kvh_buffer_t;

// The kv.fetch actions of one hint that at least one family supports, in the producer's order.
// Immutable; holds the snapshot it was collected from.
typedef struct kvh_candidates kvh_candidates_t;

// A capability set: which versions of which actions each family of backends supports. Build it
// once; keep it unchanged while requests are decided with it.
typedef struct kvh_capabilities kvh_capabilities_t;

// One rank's access to the other ranks of its worker. Belongs to one thread at a time.
//
// Calls that say "collective" are made by all ranks, in the same order; each waits for the others.
// A rank that has nothing to give, was called with bad arguments, or whose context is poisoned
// takes part all the same and gets its error afterwards. After KVH_ERR_COMMUNICATOR from a call
// the communicator of this rank can only be destroyed.
typedef struct kvh_communicator kvh_communicator_t;

// A library context: configuration, metrics, clock. All calls on it may be made concurrently.
// Objects created from a context keep what they need of it: it may be destroyed before them.
typedef struct kvh_context kvh_context_t;

// An envelope of version 0.1 in the making. Each part is checked when it is added, by the rules of
// admission, and refused with its place and the rule; a refused part changes nothing.
typedef struct kvh_envelope_builder kvh_envelope_builder_t;

// What went wrong, in words: what was expected, what was found, what to do. Owned by the caller.
// Never holds contents of a hint.
typedef struct kvh_error kvh_error_t;

// Named keys for signed hints. A context that has a ring trusts a hint over HTTP only if the hint's
// "auth" is a signature by one of the ring's keys. Every call may be made from any thread, also
// while hints are judged: add a key before its first signer uses it, remove it when its last hint
// has expired. Several contexts may share a ring; it is kept as long as one of them is there.
typedef struct kvh_key_ring kvh_key_ring_t;

// Ranks inside one process, each used by a thread of its own.
typedef struct kvh_local_group kvh_local_group_t;

// A hub for transceivers of this process (KVH_TRANSPORT_LOOPBACK): those made with the same hub
// reach each other, whatever their contexts. For tests and for workers that share a process.
typedef struct kvh_loopback kvh_loopback_t;

// One decision about a request's optional reuse. Immutable.
typedef struct kvh_plan kvh_plan_t;

// One attempt to fetch blocks of a request from another worker. It is begun, polled, and claimed
// when it delivered; whatever goes wrong, the request goes on as if there had been no hint.
//
// The blocks given to kvh_prefetch_begin are fresh ones that nobody else uses. They are lent until
// the prefetch is quiesced, and may be in any state after any outcome but "delivered". After that
// one they hold the fetched blocks; kvh_reuse_tree_store makes them visible to others. All calls
// but destroy may be made concurrently, and none waits.
typedef struct kvh_prefetch kvh_prefetch_t;

// The blocks that a cache holds, by content, one tree for each attention window. All calls may be
// made concurrently. A block is an id that the host gives; ids of different windows are unrelated.
typedef struct kvh_reuse_tree kvh_reuse_tree_t;

// The blocks of a request: its tokens, cut into blocks, each with a 64-bit hash (for routers and
// events) and a 32-byte content name (its identity here and on other workers), computed once.
// Calls that take it as const may be made concurrently; kvh_sequence_append is the only other one.
typedef struct kvh_sequence kvh_sequence_t;

// A hint that was admitted. Immutable; shared by reference count; every call on it may be made
// from any thread. It stays valid after its context is destroyed.
typedef struct kvh_snapshot kvh_snapshot_t;

// One rank's end of all block transfers: it serves the blocks of its reuse tree to other workers,
// and fetches blocks of theirs. It has threads of its own ("kvhints-transfer", "kvhints-metadata",
// with kvh_transceiver_serve_http also "kvhints-http"), so transfers go on and deadlines hold
// whether or not the host calls. No call waits for a peer. All calls but destroy may be made
// concurrently.
//
// Peers are not authenticated: whoever reaches the transport and knows the state may fetch blocks
// by name. Keep both on networks that only workers reach: UCX may end the process when anybody else
// writes to its ports.
typedef struct kvh_transceiver kvh_transceiver_t;

// The type of every status result: a value of `enum kvh_status`.
typedef int32_t kvh_status_t;

// Borrowed UTF-8 text, not NUL-terminated. Valid as long as the object it came from is held.
// As an argument, data may be NULL where len is 0. Frozen.
typedef struct kvh_str {
  // First byte.
  const char *data;
  // Bytes.
  size_t len;
} kvh_str_t;

// Borrowed bytes. Valid as long as the object they came from is held.
// As an argument, data may be NULL where len is 0. Frozen.
typedef struct kvh_bytes {
  // First byte.
  const uint8_t *data;
  // Bytes.
  size_t len;
} kvh_bytes_t;

// What a ring asks of signed hints beyond a good code. Zero fields mean default.
typedef struct kvh_key_ring_params {
  // sizeof(kvh_key_ring_params_t).
  size_t struct_size;
  // The "aud" that hints must name, at most 256 bytes; empty: any or none.
  kvh_str_t audience;
  // KVH_EXPIRY_*.
  uint32_t expiry;
  // How often one signed hint is admitted before it expires; 0: any number of times. Needs
  // KVH_EXPIRY_REQUIRED.
  uint32_t admissions_max;
  // How many hints are remembered for that, at most 16,777,216; 0: 65,536. When so many have not
  // expired, further ones are not trusted.
  size_t replay_entries_max;
} kvh_key_ring_params_t;

// What a signature says.
typedef struct kvh_signing_params {
  // sizeof(kvh_signing_params_t).
  size_t struct_size;
  // The key to sign with.
  kvh_str_t key_id;
  // When the hint expires, seconds since 1970-01-01 UTC; 0: never, if the ring allows it.
  uint64_t expiry_unix_seconds;
  // For whom the hint is, at most 256 bytes; empty: not said.
  kvh_str_t audience;
  // What makes two signatures of one envelope differ, at most 256 bytes; empty: not said.
  kvh_str_t nonce;
} kvh_signing_params_t;

// Reads a clock; called from any thread, must not block and must not throw.
typedef uint64_t (*kvh_clock_fn)(void *user_data);

// Called exactly once, when the user data is no longer needed; must not throw.
typedef void (*kvh_destroy_fn)(void *user_data);

// How a context behaves. Zero fields mean default.
typedef struct kvh_context_params {
  // sizeof(kvh_context_params_t).
  size_t struct_size;
  // Whether hints that come over HTTP are trusted: KVH_TRUST_*.
  uint32_t trust_http_hints;
  // Must be 0.
  uint32_t reserved;
  // Monotonic nanoseconds; give both clocks or none (the system's).
  kvh_clock_fn clock_monotonic_ns;
  // Seconds since 1970-01-01 UTC.
  kvh_clock_fn clock_unix_seconds;
  // Passed to both clocks.
  void *clock_user_data;
  // Called with clock_user_data exactly once, with clocks or without: when the last object of the
  // context is gone, or before kvh_context_create returns an error. May be NULL. A struct_size that
  // ends before or within this field does not name it: then nothing is taken over or called.
  kvh_destroy_fn clock_destroy;
  // Longest HTTP request body that kvh_admit_body looks at; 0: 64 MiB.
  size_t body_max_bytes;
  // Trusts hints that come over HTTP by their signatures; trust_http_hints says nothing then. The
  // context holds a reference of its own. NULL: there are no signed hints.
  const kvh_key_ring_t *key_ring;
} kvh_context_params_t;

// One action of a snapshot: its strings unescaped, its payload and itself as canonical JSON. Valid
// as long as the snapshot is held. Frozen.
typedef struct kvh_action {
  // action_id
  kvh_str_t id;
  // action_type
  kvh_str_t type;
  // action_version
  kvh_str_t version;
  // The payload object.
  kvh_bytes_t payload;
  // The whole action object.
  kvh_bytes_t json;
} kvh_action_t;

// What a collection came to; each action counts at most once. Frozen.
typedef struct kvh_candidate_counts {
  // Actions that a family supports.
  size_t candidates;
  // Actions that are not kv.fetch and whose type no family lists in any version.
  size_t unknown_type;
  // kv.fetch actions whose version no family lists.
  size_t version_unmatched;
} kvh_candidate_counts_t;

// A binding that can do nothing yet.
typedef struct kvh_binding_params {
  // sizeof(kvh_binding_params_t).
  size_t struct_size;
  // Its name, 1 to 128 bytes, unique in the table.
  kvh_str_t id;
  // The family it belongs to, as in the capability set.
  kvh_str_t family;
  // How it finds blocks: KVH_ADDRESSING_*; must be said.
  uint32_t addressing;
  // KVH_BINDING_* bits.
  uint32_t flags;
} kvh_binding_params_t;

// What of a request matters to the decision. Zero is no answer to any of the three questions.
typedef struct kvh_request_profile {
  // sizeof(kvh_request_profile_t).
  size_t struct_size;
  // KVH_REQUEST_*
  uint32_t kind;
  // Whether it uses a LoRA adapter: KVH_ANSWER_*.
  uint32_t has_lora;
  // Whether it needs a handoff from a paired worker: KVH_ANSWER_*. No decision about optional
  // reuse changes that handoff's rules.
  uint32_t required_handoff;
  // Must be 0.
  uint32_t reserved;
  // The namespace that its blocks belong to; bindings are authorised for it.
  kvh_bytes_t namespace_bytes;
} kvh_request_profile_t;

// A planned fetch. Strings and bytes are valid until the plan is destroyed.
typedef struct kvh_plan_fetch {
  // sizeof(kvh_plan_fetch_t).
  size_t struct_size;
  // The binding that serves it.
  kvh_str_t binding_id;
  // Where its source is, in canonical spelling.
  kvh_str_t endpoint;
  // The chosen action's position in the envelope.
  size_t action_index;
  // The hint's hash of the last block. It bounds the range; it names nothing.
  uint64_t last_block_hash;
  // How many blocks from the root the hint names; at least 1.
  uint32_t block_count;
  // KVH_FETCH_* bits.
  uint32_t flags;
  // The canonical envelope with only the chosen action, where the binding asks for it; else
  // (NULL, 0).
  kvh_bytes_t envelope;
} kvh_plan_fetch_t;

// A run of a multimodal item: the tokens start .. start + length of the sequence. An item may have
// several runs. Frozen.
typedef struct kvh_mm_item {
  // What the item is.
  uint8_t hash[32];
  // First token of the run, counted from the sequence's first.
  uint32_t start;
  // Tokens of the run, not 0.
  uint32_t length;
  // Place inside the item of the run's first token.
  uint32_t item_offset;
} kvh_mm_item_t;

// What a sequence is made from. Everything is copied.
typedef struct kvh_sequence_params {
  // sizeof(kvh_sequence_params_t).
  size_t struct_size;
  // Tokens in a full block: 1 .. 65536.
  uint32_t tokens_per_block;
  // KVH_SEQUENCE_HAS_*.
  uint32_t flags;
  // The first tokens; more can be appended.
  const int32_t *tokens;
  // How many.
  size_t token_count;
  // With KVH_SEQUENCE_HAS_EXTRA_IDS token_count of them, else NULL.
  const uint64_t *extra_ids;
  // The LoRA adapter as this host numbers it; 0 without KVH_SEQUENCE_HAS_LORA.
  uint64_t lora_id;
  // Feeds the block hash; 0 without KVH_SEQUENCE_HAS_SALT. A bare number tells blocks apart but
  // can be guessed: it does not isolate tenants. salt_bytes do.
  uint64_t salt;
  // Runs of multimodal items within the tokens; they must not overlap.
  const kvh_mm_item_t *mm_items;
  // How many.
  size_t mm_item_count;
  // What names are unique in: model and weight revision, KV dtype, position encoding; never the
  // parallel layout. At most 65536 bytes, as the next two.
  kvh_bytes_t namespace_bytes;
  // The salt itself: feeds the names, instead of the number.
  kvh_bytes_t salt_bytes;
  // The LoRA adapter as all workers know it: feeds the names, instead of lora_id. Blocks with an
  // adapter but no digest are never served to peers. Needs KVH_SEQUENCE_HAS_LORA.
  kvh_bytes_t adapter_digest;
} kvh_sequence_params_t;

// A block's content name. Frozen.
typedef struct kvh_name {
  // A SHA-256 digest.
  uint8_t bytes[32];
} kvh_name_t;

// How a tree is made.
typedef struct kvh_reuse_tree_params {
  // sizeof(kvh_reuse_tree_params_t).
  size_t struct_size;
  // Tokens in a full block: 1 .. 65536. Sequences must agree.
  uint32_t tokens_per_block;
  // Who picks what to evict: KVH_REUSE_MODE_*.
  uint32_t mode;
  // Attention windows in tokens, at most 64, each once; none: only KVH_WINDOW_FULL.
  const int32_t *windows;
  // How many.
  size_t window_count;
  // Owner mode: blocks in primary memory.
  int32_t primary_blocks;
  // Owner mode: blocks in secondary memory.
  int32_t secondary_blocks;
} kvh_reuse_tree_params_t;

// What a tree knows of a block. Set struct_size before the call.
typedef struct kvh_block_state {
  // sizeof(kvh_block_state_t).
  size_t struct_size;
  // Its id.
  int32_t block_id;
  // The memory it lies in: KVH_TIER_*.
  uint32_t tier;
  // Its block hash.
  uint64_t block_hash;
  // Its place in the sequence.
  size_t position;
  // Tokens in it.
  uint32_t token_count;
  // 1 while a pin protects it, else 0.
  uint32_t is_protected;
} kvh_block_state_t;

// A tree's numbers, over all windows. Set struct_size before the call.
typedef struct kvh_reuse_tree_statistics {
  // sizeof(kvh_reuse_tree_statistics_t).
  size_t struct_size;
  // Blocks in the tree.
  size_t stored_blocks;
  // Of these, in secondary memory.
  size_t secondary_blocks;
  // Blocks under protection, in the tree or not any more.
  size_t protected_blocks;
  // Live pins.
  size_t live_pins;
  // Blocks that kvh_reuse_tree_store took, ever.
  uint64_t blocks_taken;
  // Blocks that it handed back because the position held another, ever.
  uint64_t blocks_duplicate;
  // Blocks that it handed back for other reasons, ever.
  uint64_t blocks_returned;
  // Blocks that left the tree, ever.
  uint64_t blocks_removed;
  // Evictions answered KVH_BUSY, ever.
  uint64_t evictions_busy;
} kvh_reuse_tree_statistics_t;

// Which blocks to pin.
typedef struct kvh_block_range_params {
  // sizeof(kvh_block_range_params_t).
  size_t struct_size;
  // Attention window in tokens.
  int32_t window;
  // What to do when some are missing: KVH_RANGE_*.
  uint32_t policy;
  // First block, counted from the sequence's first.
  size_t first_block;
  // How many, not 0, and within the sequence.
  size_t block_count;
  // How long the holder means to need them; see kvh_reuse_tree_expired_leases. 0: no lease.
  uint64_t lease_ns;
} kvh_block_range_params_t;

// One request of a batch.
typedef struct kvh_batch_request {
  // sizeof(kvh_batch_request_t).
  size_t struct_size;
  // The host's name for the request.
  uint64_t id;
  // The host's own serialised request, opaque to the library; at most 1 GiB.
  kvh_bytes_t body;
  // The request's hints, or NULL. A request with a parent and NULL here has its parent's.
  const kvh_snapshot_t *snapshot;
  // The decision made from the hints, or NULL where it is local.
  const kvh_plan_t *plan;
  // KVH_BATCH_REQUEST_*.
  uint32_t flags;
  // With KVH_BATCH_REQUEST_HAS_PARENT: index of an earlier request of the batch. Else 0.
  uint32_t parent;
} kvh_batch_request_t;

// How the ranks are arranged and what travels. The same on all ranks. Zero fields mean default.
typedef struct kvh_communicator_params {
  // sizeof(kvh_communicator_params_t).
  size_t struct_size;
  // Tensor-parallel size. Default: all ranks that pipeline_size and context_size leave.
  uint32_t tensor_size;
  // Pipeline-parallel size. Default 1.
  uint32_t pipeline_size;
  // Context-parallel size. Default 1.
  // rank = pp * (tensor_size * context_size) + tp * context_size + cp.
  uint32_t context_size;
  // KVH_BROADCAST_*. Default KVH_BROADCAST_FULL.
  uint32_t mode;
  // Bytes of the longest message, 4 KiB to 1 GiB. Default 4 MiB.
  uint32_t chunk_bytes;
  // Must be 0.
  uint32_t reserved;
  // Local ranks: how long a call waits for the other ranks before the communicator fails.
  // Default: as long as they exist. Must be 0 with MPI, which decides by itself.
  uint64_t deadline_ns;
} kvh_communicator_params_t;

// What a transceiver is made of. Limits that are 0 have defaults.
typedef struct kvh_transceiver_params {
  // sizeof(kvh_transceiver_params_t).
  size_t struct_size;
  // KVH_TRANSPORT_*.
  uint32_t transport;
  // This rank within its worker.
  uint32_t rank;
  // The hub, with KVH_TRANSPORT_LOOPBACK; else NULL.
  const kvh_loopback_t *loopback;
  // With KVH_TRANSPORT_UCX, which kinds of wires UCX may use, such as "tcp"; empty:
  // UCX and its environment decide.
  kvh_str_t wires;
  // With KVH_TRANSPORT_UCX, which network devices, such as "lo"; empty: as above.
  kvh_str_t network_devices;
  // With KVH_TRANSPORT_UCX, the IPv4 address of this machine at which peers connect, told to them
  // in the state: one that an interface has, which network_devices allow. Empty: 127.0.0.1, so
  // that only processes of this machine are served. A wildcard (0.0.0.0) and IPv6
  // are refused.
  kvh_str_t listen_address;
  // What names are about: model and weights revision, data type, position encoding. The same as
  // in sequences, and in all workers that exchange blocks.
  kvh_bytes_t namespace_bytes;
  // Tensor, pipeline and context parallel size; 0 means 1. A worker has the product of them as
  // ranks.
  uint32_t tensor_parallel;
  // See tensor_parallel.
  uint32_t pipeline_parallel;
  // See tensor_parallel.
  uint32_t context_parallel;
  // Attention data parallel size; 0 means 1.
  uint32_t attention_data_parallel;
  // Layers of each pipeline rank; none: spread evenly.
  const uint32_t *layers_per_pipeline_rank;
  // Length of layers_per_pipeline_rank.
  size_t pipeline_rank_count;
  // KV heads of each of this rank's layers.
  const uint32_t *kv_heads_per_layer;
  // Layers of this rank; not 0.
  size_t layer_count;
  // Numbers for each head and token; not 0.
  uint32_t head_size;
  // KVH_DATA_*.
  uint32_t data_type;
  // KVH_ATTENTION_*.
  uint32_t attention;
  // The attention window whose blocks are exchanged: one of the tree's.
  int32_t window;
  // KVH_MEMORY_*: where the pool lies.
  uint32_t pool_memory;
  // Must be 0.
  uint32_t reserved;
  // The pool of blocks: block id i lies at pool_base + i * block_bytes (a tree in arbiter mode
  // has slots as ids). Stays valid until kvh_transceiver_destroy returned. The library reads
  // blocks that are pinned in the tree, and writes blocks lent to a prefetch; no others.
  void *pool_base;
  // Bytes of one block, padding and scales included.
  size_t block_bytes;
  // Blocks in the pool.
  size_t block_count;
  // Destinations that may be connected (default 64).
  uint32_t max_destinations;
  // Their requests that may be served at once (default 256); one destination gets at most a
  // quarter of them.
  uint32_t max_requests;
  // Bytes handed to the transport for them and not yet taken (default 64 MiB). A destination that
  // has none of them may always be sent one run of blocks, about 1 MiB.
  uint64_t max_bytes_in_flight;
  // Longest time that blocks stay pinned for one request (default 60 s).
  uint64_t max_hold_time_ns;
  // Sources that may be connected (default 64).
  uint32_t max_sources;
  // Prefetches that may run at once (default 256).
  uint32_t max_prefetches;
  // Bytes received and not yet verified (default 64 MiB).
  uint64_t max_staging_bytes;
} kvh_transceiver_params_t;

// What a transceiver is doing.
typedef struct kvh_transceiver_status {
  // sizeof(kvh_transceiver_status_t).
  size_t struct_size;
  // The transport's name; static.
  const char *transport;
  // Sources connected to.
  size_t sources;
  // Destinations that asked for something and are still connected.
  size_t destinations;
  // Requests of destinations being served.
  size_t requests_in_flight;
  // Prefetches that are not quiesced.
  size_t prefetches_in_flight;
} kvh_transceiver_status_t;

// What to fetch.
typedef struct kvh_prefetch_params {
  // sizeof(kvh_prefetch_params_t).
  size_t struct_size;
  // KVH_RANGE_STRICT: all blocks or none; KVH_RANGE_BEST_EFFORT: the longest prefix.
  uint32_t policy;
  // Must be 0.
  uint32_t reserved;
  // A named fetch: where the source is, and how far its hint goes. May be NULL with
  // source_state.
  const kvh_plan_t *plan;
  // The request's tokens, in the transceiver's namespace.
  const kvh_sequence_t *sequence;
  // The source worker's state, where the host has it: no endpoint is contacted then.
  kvh_bytes_t source_state;
  // Leading full blocks that are here already: only those after them are fetched.
  size_t first_block;
  // Tokens that may be fetched, from the first; 0: all but the last one (a context request).
  size_t max_tokens;
  // Where blocks go, in order: distinct, in the pool, lent as said at kvh_prefetch_t. Under
  // KVH_RANGE_BEST_EFFORT fewer than there are blocks to fetch make it fetch fewer.
  const int32_t *block_ids;
  // Length of block_ids.
  size_t block_id_count;
  // Until the source's state is known (default 2 s; one fetch takes at most 30 s).
  uint64_t metadata_deadline_ns;
  // From the request until the last block is verified (default 10 s).
  uint64_t transfer_deadline_ns;
  // From then until the claim (default 30 s).
  uint64_t abandonment_deadline_ns;
} kvh_prefetch_params_t;

// How a prefetch ended.
typedef struct kvh_prefetch_outcome {
  // sizeof(kvh_prefetch_outcome_t).
  size_t struct_size;
  // KVH_OUTCOME_*.
  uint32_t kind;
  // Must be ignored.
  uint32_t reserved;
  // When delivered: the request's KV is here up to this token; else 0. Ranks that share a
  // request use the minimum over them.
  size_t token_end;
  // When delivered: how many of block_ids were filled; else 0.
  size_t block_count;
  // When failed: why, a static word ("peer_gone", "transfer_timeout", ...); else "".
  const char *reason;
} kvh_prefetch_outcome_t;

// How a prefetch went, or goes.
typedef struct kvh_prefetch_report {
  // sizeof(kvh_prefetch_report_t).
  size_t struct_size;
  // Blocks asked for.
  size_t requested;
  // Of these, what the source said it holds, from the first one; 0 before it answered.
  size_t present;
  // Of these, verified and in place.
  size_t moved;
  // Leading blocks that were here already, and not asked for.
  size_t skipped_local;
  // Of those asked for, what the source said it does not hold; 0 before it answered.
  size_t missing;
  // Bytes of the blocks moved.
  uint64_t bytes;
  // Time spent in KVH_PREFETCH_INIT.
  uint64_t init_ns;
  // Time spent in KVH_PREFETCH_IN_PROGRESS.
  uint64_t in_progress_ns;
  // Time spent in KVH_PREFETCH_COMPLETE.
  uint64_t complete_ns;
  // What the hint was worth: KVH_HINT_*. Never ends a prefetch by itself.
  uint32_t hint_check;
  // Blocks that the source knows by another block hash under the same name: its hashes are in
  // another dialect (a salt number, say). Names decide; these blocks are the same.
  uint32_t foreign_hashes;
} kvh_prefetch_report_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Static English text for `status`, never NULL; "unknown status" for a number that is none.
const char *kvh_status_string(kvh_status_t status);

// KVH_ABI_VERSION of the loaded library. At least the header's is needed.
uint32_t kvh_abi_version(void);

// The library's release, such as "0.1.0"; static.
const char *kvh_version_string(void);

// The error's text, valid until it is destroyed. (NULL, 0) for NULL.
kvh_str_t kvh_error_message(const kvh_error_t *error);

// Destroys the error. NULL is fine.
void kvh_error_destroy(kvh_error_t *error);

// The buffer's bytes, valid until it is released. (NULL, 0) for NULL.
kvh_bytes_t kvh_buffer_bytes(const kvh_buffer_t *buffer);

// Gives the buffer back. NULL is fine.
void kvh_buffer_release(kvh_buffer_t *buffer);

// Creates a ring without keys: nothing is trusted. Destroy it with kvh_key_ring_destroy.
// KVH_ERR_INVALID_ARGUMENT: a value out of range; error_out, unless NULL, then says which.
KVH_MUST_USE
kvh_status_t kvh_key_ring_create(const kvh_key_ring_params_t *params,
                                 kvh_key_ring_t **ring_out,
                                 kvh_error_t **error_out);

// Adds an HMAC-SHA-256 key: an id of 1 to 128 bytes and a secret of 32 to 1,024 bytes, which the
// ring does not keep. KVH_ERR_STATE: there is a key of that id. KVH_ERR_LIMIT: there are 64 keys.
// error_out, unless NULL, says what was wrong.
KVH_MUST_USE
kvh_status_t kvh_key_ring_add(const kvh_key_ring_t *ring,
                              kvh_str_t key_id,
                              kvh_bytes_t secret,
                              kvh_error_t **error_out);

// Removes a key; hints signed with it are not trusted any more. KVH_NOT_FOUND: there is none of
// that id.
KVH_MUST_USE kvh_status_t kvh_key_ring_remove(const kvh_key_ring_t *ring, kvh_str_t key_id);

// Signs an envelope: *json_out gets its canonical JSON with an "auth" at the end, to be sent as it
// is; release it with kvh_buffer_release. KVH_NOT_FOUND: no such key. KVH_ERR_STATE: the envelope
// has an "auth". KVH_ERR_LIMIT: longer than 65,536 bytes with it. error_out, unless NULL, says what
// was wrong.
KVH_MUST_USE
kvh_status_t kvh_key_ring_sign(const kvh_key_ring_t *ring,
                               const kvh_snapshot_t *envelope,
                               const kvh_signing_params_t *params,
                               kvh_buffer_t **json_out,
                               kvh_error_t **error_out);

// Destroys the ring. NULL is fine. Contexts that have it go on with it.
void kvh_key_ring_destroy(kvh_key_ring_t *ring);

// Creates a context. NULL params mean all defaults. Destroy it with kvh_context_destroy.
// KVH_ERR_INVALID_ARGUMENT: an unknown value, or one clock without the other.
KVH_MUST_USE
kvh_status_t kvh_context_create(const kvh_context_params_t *params,
                                kvh_context_t **context_out);

// Destroys a context. NULL is fine. Objects created from it stay usable.
void kvh_context_destroy(kvh_context_t *context);

// The context's metrics as Prometheus text exposition, not NUL-terminated. (NULL, 0) asks for the
// length, which is written in every case but an error of the arguments; numbers may grow between
// two calls, so bring some room.
KVH_MUST_USE
kvh_status_t kvh_context_metrics(const kvh_context_t *context,
                                 char *buf,
                                 size_t buf_len,
                                 size_t *len_out);

// Where in the library's source the fault happened that poisoned the context ("file:line", not
// NUL-terminated); length 0 when it is not poisoned. Works on a poisoned context; for bug reports.
KVH_MUST_USE
kvh_status_t kvh_context_poison_location(const kvh_context_t *context,
                                         char *buf,
                                         size_t buf_len,
                                         size_t *len_out);

// Adds a reference and returns the same snapshot; NULL for NULL. One atomic operation.
kvh_snapshot_t *kvh_snapshot_retain(const kvh_snapshot_t *snapshot);

// Drops a reference; the last one frees the snapshot. NULL is fine. One atomic operation.
void kvh_snapshot_release(kvh_snapshot_t *snapshot);

// The envelope in canonical form: JSON without blanks, with the least escaping. (NULL, 0) for NULL.
kvh_bytes_t kvh_snapshot_json(const kvh_snapshot_t *snapshot);

// The envelope's protocol_version. (NULL, 0) for NULL.
kvh_str_t kvh_snapshot_protocol_version(const kvh_snapshot_t *snapshot);

// The envelope's message_id, unescaped; it may hold NUL characters. (NULL, 0) for NULL.
kvh_str_t kvh_snapshot_message_id(const kvh_snapshot_t *snapshot);

// How many actions there are; 0 for NULL.
size_t kvh_snapshot_action_count(const kvh_snapshot_t *snapshot);

// The action at index, from 0 on. KVH_ERR_INVALID_ARGUMENT: there are not so many actions.
KVH_MUST_USE
kvh_status_t kvh_snapshot_action(const kvh_snapshot_t *snapshot,
                                 size_t index,
                                 kvh_action_t *action_out);

// A new snapshot of the same envelope with the action at index alone, everything else and the
// order of members as they were. Release it with kvh_snapshot_release. KVH_ERR_INVALID_ARGUMENT:
// there are not so many actions.
KVH_MUST_USE
kvh_status_t kvh_snapshot_one_action(const kvh_snapshot_t *snapshot,
                                     size_t index,
                                     kvh_snapshot_t **envelope_out);

// The envelope as MessagePack: the same maps and arrays in the same order, integers in their
// smallest form, floats as f64. Release the buffer with kvh_buffer_release.
KVH_MUST_USE
kvh_status_t kvh_snapshot_msgpack(const kvh_snapshot_t *snapshot,
                                  kvh_buffer_t **msgpack_out);

// Rebuilds a snapshot from the bytes of kvh_snapshot_json, for example in another process that
// trusts the sender. Not judged for trust, not counted. KVH_ERR_INVALID_ARGUMENT: the bytes are
// not the canonical form of an envelope; error_out, unless NULL, then says so in words.
KVH_MUST_USE
kvh_status_t kvh_snapshot_from_json(const uint8_t *json,
                                    size_t json_len,
                                    kvh_snapshot_t **snapshot_out,
                                    kvh_error_t **error_out);

// Judges the raw JSON bytes of one hint that came in through ingress (KVH_INGRESS_*).
// *verdict_out gets a KVH_VERDICT_*; *snapshot_out a snapshot to release if that is
// KVH_VERDICT_ADMITTED, else NULL. A bad hint is a verdict, not an error. (NULL, 0) is an absent
// hint. The bytes are not needed after the call. Verdicts other than absent are counted in the
// context's metrics.
KVH_MUST_USE
kvh_status_t kvh_admit(const kvh_context_t *context,
                       int32_t ingress,
                       const uint8_t *json,
                       size_t json_len,
                       int32_t *verdict_out,
                       kvh_snapshot_t **snapshot_out);

// Judges one MessagePack value as kvh_admit judges JSON. Maps need string keys; binary and
// extension types, text that is no UTF-8 and floats that are no numbers are malformed. No bytes
// and nil are an absent hint.
KVH_MUST_USE
kvh_status_t kvh_admit_msgpack(const kvh_context_t *context,
                               int32_t ingress,
                               const uint8_t *data,
                               size_t len,
                               int32_t *verdict_out,
                               kvh_snapshot_t **snapshot_out);

// Takes the member "kv_hints" out of an HTTP request body and judges its value as kvh_admit does.
// *body_out gets the body without that member and its comma, every other byte as it was; release
// it with kvh_buffer_release. A body without such a member has an absent hint. Of several such
// members all are removed and none is used: the verdict is malformed, or untrusted.
// KVH_ERR_BODY: the body is not one strict JSON object, or longer than the context's
// body_max_bytes. There is no body then; do not hand the original to another parser.
KVH_MUST_USE
kvh_status_t kvh_admit_body(const kvh_context_t *context,
                            int32_t ingress,
                            const uint8_t *body,
                            size_t body_len,
                            int32_t *verdict_out,
                            kvh_snapshot_t **snapshot_out,
                            kvh_buffer_t **body_out);

// The twin of kvh_admit_body for a MessagePack body: takes the member "kv_hints" out of the
// outermost map and judges its value as kvh_admit_msgpack does; nil is an absent hint. The map's
// header counts what is left, in as many bytes as it had; every other byte stays as it was.
// KVH_ERR_BODY: the body is not one MessagePack map with string keys, or longer than the context's
// body_max_bytes. There is no body then; do not hand the original to another parser.
KVH_MUST_USE
kvh_status_t kvh_admit_body_msgpack(const kvh_context_t *context,
                                    int32_t ingress,
                                    const uint8_t *body,
                                    size_t body_len,
                                    int32_t *verdict_out,
                                    kvh_snapshot_t **snapshot_out,
                                    kvh_buffer_t **body_out);

// Begins an envelope without actions. Destroy it with kvh_envelope_builder_destroy.
// KVH_ERR_INVALID_ARGUMENT: message_id is not UTF-8. KVH_ERR_LIMIT: it is too long. error_out,
// unless NULL, says so in words.
KVH_MUST_USE
kvh_status_t kvh_envelope_builder_create(kvh_str_t message_id,
                                         kvh_envelope_builder_t **builder_out,
                                         kvh_error_t **error_out);

// Adds an action; payload is a JSON object. KVH_ERR_INVALID_ARGUMENT: a part breaks a rule;
// KVH_ERR_LIMIT: the envelope would be too long. error_out, unless NULL, names the part and the
// rule, and the builder is as it was.
KVH_MUST_USE
kvh_status_t kvh_envelope_builder_add_action(kvh_envelope_builder_t *builder,
                                             kvh_str_t action_id,
                                             kvh_str_t action_type,
                                             kvh_str_t action_version,
                                             kvh_bytes_t payload,
                                             kvh_error_t **error_out);

// Adds an action "kv.fetch" that names hash_count block hashes and the control endpoint of the
// worker that holds the blocks. Errors as for kvh_envelope_builder_add_action.
KVH_MUST_USE
kvh_status_t kvh_envelope_builder_add_fetch(kvh_envelope_builder_t *builder,
                                            kvh_str_t action_id,
                                            kvh_str_t action_version,
                                            kvh_str_t source_control_endpoint,
                                            const uint64_t *hashes,
                                            size_t hash_count,
                                            kvh_error_t **error_out);

// Adds a member of extra metadata to the envelope; value is any JSON value. Errors as for
// kvh_envelope_builder_add_action.
KVH_MUST_USE
kvh_status_t kvh_envelope_builder_add_extra(kvh_envelope_builder_t *builder,
                                            kvh_str_t name,
                                            kvh_bytes_t value,
                                            kvh_error_t **error_out);

// Adds a member of extra metadata to the action that was added last; KVH_ERR_STATE: there is none.
// Other errors as for kvh_envelope_builder_add_action.
KVH_MUST_USE
kvh_status_t kvh_envelope_builder_add_action_extra(kvh_envelope_builder_t *builder,
                                                   kvh_str_t name,
                                                   kvh_bytes_t value,
                                                   kvh_error_t **error_out);

// The envelope as a snapshot, to be released with kvh_snapshot_release; its bytes are those of
// kvh_snapshot_json. The builder stays as it is and can go on. Nothing is counted.
KVH_MUST_USE
kvh_status_t kvh_envelope_builder_finish(kvh_envelope_builder_t *builder,
                                         kvh_snapshot_t **snapshot_out,
                                         kvh_error_t **error_out);

// Destroys the builder. NULL is fine. Snapshots made with it stay as they are.
void kvh_envelope_builder_destroy(kvh_envelope_builder_t *builder);

// Creates an empty set: nothing is supported. Destroy it with kvh_capabilities_destroy.
KVH_MUST_USE kvh_status_t kvh_capabilities_create(kvh_capabilities_t **capabilities_out);

// Says that family supports this version of this action. Strings are kept as they are, byte for
// byte; saying it twice changes nothing. KVH_ERR_INVALID_ARGUMENT: not UTF-8. KVH_ERR_LIMIT: more
// than 4,096 entries, or a string of more than 128 bytes; the set stays as it was.
KVH_MUST_USE
kvh_status_t kvh_capabilities_add(kvh_capabilities_t *capabilities,
                                  kvh_str_t family,
                                  kvh_str_t action_type,
                                  kvh_str_t action_version);

// Destroys the set. NULL is fine. Candidates collected with it stay as they are.
void kvh_capabilities_destroy(kvh_capabilities_t *capabilities);

// Collects the candidates of a hint. Counts nothing in any metrics: kvh_plan_decide does, once per
// request. Destroy them with kvh_candidates_destroy.
KVH_MUST_USE
kvh_status_t kvh_candidates_collect(const kvh_snapshot_t *snapshot,
                                    const kvh_capabilities_t *capabilities,
                                    kvh_candidates_t **candidates_out);

// How many actions there were of each sort.
KVH_MUST_USE
kvh_status_t kvh_candidates_counts(const kvh_candidates_t *candidates,
                                   kvh_candidate_counts_t *counts_out);

// The index-th candidate: its action's position in the snapshot, and how many families support it.
// KVH_ERR_INVALID_ARGUMENT: there are not so many candidates.
KVH_MUST_USE
kvh_status_t kvh_candidates_get(const kvh_candidates_t *candidates,
                                size_t index,
                                size_t *action_index_out,
                                size_t *family_count_out);

// The name of the family_index-th family that supports the index-th candidate; names are sorted
// bytewise. Valid until the candidates are destroyed. KVH_ERR_INVALID_ARGUMENT: there are not so
// many.
KVH_MUST_USE
kvh_status_t kvh_candidates_family(const kvh_candidates_t *candidates,
                                   size_t index,
                                   size_t family_index,
                                   kvh_str_t *family_out);

// Destroys the candidates. NULL is fine.
void kvh_candidates_destroy(kvh_candidates_t *candidates);

// Creates an empty table: every hint is refused. Destroy it with kvh_binding_table_destroy.
KVH_MUST_USE kvh_status_t kvh_binding_table_create(kvh_binding_table_t **table_out);

// Creates a table from the bytes of one JSON file:
//
//   {"version": 1, "hash_dialect": "unsigned_number",
//    "bindings": [{"id": "pool-a", "family": "native", "addressing": "content_named",
//                  "actions": [{"type": "kv.fetch", "version": "1.0"}],
//                  "namespaces": ["text"], "namespaces_hex": ["00ff"],
//                  "one_action_envelope": false}],
//    "endpoints": [{"endpoint": "http://10.0.0.7:8000", "bindings": ["pool-a"]}]}
//
// hash_dialect (or decimal_string, hex_digits), namespaces, namespaces_hex and one_action_envelope
// may be left out; addressing may be request_paired; unknown members are errors. A file has at most
// 16 MiB, a string in it at most 8 KiB. On an error there is no table, and *error_out, where error_out is not NULL, gets a text that names the place.
KVH_MUST_USE
kvh_status_t kvh_binding_table_load(const uint8_t *json,
                                    size_t json_len,
                                    kvh_binding_table_t **table_out,
                                    kvh_error_t **error_out);

// Says how senders write block hashes: KVH_HASH_DIALECT_*. Never guessed.
KVH_MUST_USE kvh_status_t kvh_binding_table_set_hash_dialect(kvh_binding_table_t *table, uint32_t hash_dialect);

// Adds a binding without actions, namespaces and endpoints. On an error the table stays as it was,
// and *error_out, where error_out is not NULL, gets a text; so for the calls below.
KVH_MUST_USE
kvh_status_t kvh_binding_table_add_binding(kvh_binding_table_t *table,
                                           const kvh_binding_params_t *binding,
                                           kvh_error_t **error_out);

// Says that this very binding can do this version of this action.
KVH_MUST_USE
kvh_status_t kvh_binding_table_add_action(kvh_binding_table_t *table,
                                          kvh_str_t binding_id,
                                          kvh_str_t action_type,
                                          kvh_str_t action_version,
                                          kvh_error_t **error_out);

// Lets the binding serve requests of a namespace: bytes of the host's choice, at most 1,024, the
// same that the request's profile brings.
KVH_MUST_USE
kvh_status_t kvh_binding_table_authorise_namespace(kvh_binding_table_t *table,
                                                   kvh_str_t binding_id,
                                                   kvh_bytes_t namespace_bytes,
                                                   kvh_error_t **error_out);

// Lists an endpoint for a binding: http://, https:// or tcp://host:port, in any spelling. This
// means trusting its content for the namespaces that the binding serves.
KVH_MUST_USE
kvh_status_t kvh_binding_table_allow_endpoint(kvh_binding_table_t *table,
                                              kvh_str_t endpoint,
                                              kvh_str_t binding_id,
                                              kvh_error_t **error_out);

// Destroys the table. NULL is fine. Plans made with it stay as they are.
void kvh_binding_table_destroy(kvh_binding_table_t *table);

// Decides for one request: call it once, on one rank, and send the plan to the others. snapshot
// NULL means that there is no hint, which is a local plan with KVH_REFUSAL_NO_CANDIDATE unless the
// request itself is the reason, and counts nothing. With a hint, the context's metrics count its
// actions and the outcome. Resolves no name and contacts nobody. Destroy the plan with
// kvh_plan_destroy.
KVH_MUST_USE
kvh_status_t kvh_plan_decide(const kvh_context_t *context,
                             const kvh_snapshot_t *snapshot,
                             const kvh_capabilities_t *capabilities,
                             const kvh_binding_table_t *table,
                             const kvh_request_profile_t *profile,
                             kvh_plan_t **plan_out);

// KVH_PLAN_LOCAL or KVH_PLAN_NAMED_FETCH; 0 for NULL.
int32_t kvh_plan_kind(const kvh_plan_t *plan);

// Why a plan is local: KVH_REFUSAL_*; 0 for a fetch and for NULL.
int32_t kvh_plan_reason(const kvh_plan_t *plan);

// The stable name of a KVH_REFUSAL_*, such as "endpoint_unlisted", the same as in the metrics;
// static, never NULL. "none" for 0, "unknown" for a number that is none.
const char *kvh_refusal_string(int32_t refusal);

// What a plan of kind KVH_PLAN_NAMED_FETCH says. Set fetch_out->struct_size first. KVH_ERR_STATE
// for a local plan.
KVH_MUST_USE kvh_status_t kvh_plan_fetch(const kvh_plan_t *plan, kvh_plan_fetch_t *fetch_out);

// The plan as bytes for the other ranks: versioned, protected against damage, at most 680 bytes
// and the envelope, if there is one. Release the buffer with kvh_buffer_release.
KVH_MUST_USE kvh_status_t kvh_plan_to_bytes(const kvh_plan_t *plan, kvh_buffer_t **bytes_out);

// A plan from bytes that kvh_plan_to_bytes made on another rank; counts nothing.
// KVH_ERR_INVALID_ARGUMENT: damaged, of another version, or no plan; *error_out, where error_out is
// not NULL, then gets a text.
KVH_MUST_USE
kvh_status_t kvh_plan_from_bytes(const uint8_t *data,
                                 size_t len,
                                 kvh_plan_t **plan_out,
                                 kvh_error_t **error_out);

// Destroys the plan. NULL is fine.
void kvh_plan_destroy(kvh_plan_t *plan);

// Creates a sequence. Destroy it with kvh_sequence_destroy. KVH_ERR_INVALID_ARGUMENT: no
// tokens_per_block, an unknown flag, a value without its flag, a multimodal run that is empty,
// overlaps another or is not within the tokens. KVH_ERR_LIMIT: too many tokens or bytes.
KVH_MUST_USE
kvh_status_t kvh_sequence_create(const kvh_sequence_params_t *params,
                                 kvh_sequence_t **sequence_out);

// Appends tokens, with an extra id each where the sequence has them (else NULL), and the runs of
// multimodal items within these tokens (start still counts from the sequence's first token).
// Blocks that were full stay as they are and are not hashed again. Changes nothing on an error.
KVH_MUST_USE
kvh_status_t kvh_sequence_append(kvh_sequence_t *sequence,
                                 const int32_t *tokens,
                                 const uint64_t *extra_ids,
                                 size_t token_count,
                                 const kvh_mm_item_t *mm_items,
                                 size_t mm_item_count);

// Tokens in the sequence; 0 for NULL.
size_t kvh_sequence_token_count(const kvh_sequence_t *sequence);

// Blocks in the sequence, a partial tail included; 0 for NULL.
size_t kvh_sequence_block_count(const kvh_sequence_t *sequence);

// 1 if blocks of the sequence may be served to peers, 0 if not: it has a LoRA adapter without a
// digest that means the same everywhere. 0 for NULL.
int32_t kvh_sequence_is_servable(const kvh_sequence_t *sequence);

// The block hashes, the first block's first, a partial tail's last. The count is written on
// KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it.
KVH_MUST_USE
kvh_status_t kvh_sequence_block_hashes(const kvh_sequence_t *sequence,
                                       uint64_t *hashes,
                                       size_t capacity,
                                       size_t *count_out);

// The content names, in the same order and by the same rules as kvh_sequence_block_hashes.
KVH_MUST_USE
kvh_status_t kvh_sequence_block_names(const kvh_sequence_t *sequence,
                                      kvh_name_t *names,
                                      size_t capacity,
                                      size_t *count_out);

// Destroys the sequence. NULL is fine. What a tree stored of it stays.
void kvh_sequence_destroy(kvh_sequence_t *sequence);

// Creates an empty tree. Destroy it with kvh_reuse_tree_destroy; the context may go first.
// KVH_ERR_UNSUPPORTED: owner mode. KVH_ERR_INVALID_ARGUMENT: no or an unknown mode, no
// tokens_per_block, a window that is negative or given twice.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_create(const kvh_context_t *context,
                                   const kvh_reuse_tree_params_t *params,
                                   kvh_reuse_tree_t **tree_out);

// Destroys the tree. NULL is fine. Block ranges of it stay usable, and their pins protect what
// they protected, as far as anybody still asks.
void kvh_reuse_tree_destroy(kvh_reuse_tree_t *tree);

// Stores blocks whose bytes are complete: ids[i] holds block first_block + i of the sequence.
// held_out[i] is what the tree holds there afterwards, KVH_BLOCK_NONE if nothing; an id that is
// not in held_out is handed back. A position that is taken keeps its block. In the full window a
// block whose predecessor is missing is handed back, and negative ids are
// KVH_ERR_INVALID_ARGUMENT; in sliding windows negative ids are holes. An id that is stored
// elsewhere moves here, and what was stored below its old place leaves the tree; if it is
// protected, or its old place lies before this one in the same sequence, it stays there and is
// handed back.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_store(const kvh_reuse_tree_t *tree,
                                  int32_t window,
                                  const kvh_sequence_t *sequence,
                                  size_t first_block,
                                  const int32_t *ids,
                                  size_t id_count,
                                  int32_t *held_out);

// How many of the sequence's first max_tokens tokens are stored: full blocks, then possibly the
// longest head in common with one more block. A request being admitted asks for at most its
// length - 1. 0 is KVH_OK.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_match(const kvh_reuse_tree_t *tree,
                                  int32_t window,
                                  const kvh_sequence_t *sequence,
                                  size_t max_tokens,
                                  size_t *matched_tokens_out);

// kvh_reuse_tree_match and a pin on the blocks found, in one step. The range holds them in either
// tier, in a sliding window from the first one still needed; kvh_block_range_tail_tokens says how
// much of a last, partly matching one counts. KVH_NOT_FOUND when nothing matches;
// *matched_tokens_out, 0, is written then too. lease_ns: 0 for none.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_match_and_pin(const kvh_reuse_tree_t *tree,
                                          int32_t window,
                                          const kvh_sequence_t *sequence,
                                          size_t max_tokens,
                                          uint64_t lease_ns,
                                          size_t *matched_tokens_out,
                                          kvh_block_range_t **range_out);

// Takes a block out of the tree, with everything stored below it in its window; the ids stay with
// the host. KVH_BUSY: it is protected, take another. KVH_NOT_FOUND: the tree does not hold it (any
// more).
KVH_MUST_USE kvh_status_t kvh_reuse_tree_evict(const kvh_reuse_tree_t *tree, int32_t window, int32_t block_id);

// Takes a block and everything stored below it in its window out of the tree, protected or not.
// Protected ones stay under protection, busy to evict and refused by store, until their last
// unpin. KVH_NOT_FOUND: the tree does not hold the block.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_remove_subtree(const kvh_reuse_tree_t *tree,
                                           int32_t window,
                                           int32_t block_id,
                                           size_t *removed_out);

// Empties the tree, all windows. Protected blocks as with kvh_reuse_tree_remove_subtree.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_reset(const kvh_reuse_tree_t *tree);

// Notes that a block was moved to a tier; its id stays. KVH_BUSY: it is protected and cannot go to
// secondary memory now. KVH_NOT_FOUND: the tree does not hold it.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_set_tier(const kvh_reuse_tree_t *tree,
                                     int32_t window,
                                     int32_t block_id,
                                     uint32_t tier);

// What the tree knows of a block in it. KVH_NOT_FOUND: it is not in the tree.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_find_id(const kvh_reuse_tree_t *tree,
                                    int32_t window,
                                    int32_t block_id,
                                    kvh_block_state_t *state_out);

// A block with this block hash. Several may share one: a hash is no identity. KVH_NOT_FOUND: none
// is in the tree.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_find_hash(const kvh_reuse_tree_t *tree,
                                      int32_t window,
                                      uint64_t block_hash,
                                      kvh_block_state_t *state_out);

// How many blocks of a window are protected now: what the host takes off its count of free blocks.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_protected_count(const kvh_reuse_tree_t *tree,
                                            int32_t window,
                                            size_t *count_out);

// The tree's numbers.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_statistics(const kvh_reuse_tree_t *tree,
                                       kvh_reuse_tree_statistics_t *statistics_out);

// The pins whose lease has ended, by the context's clock. They still protect: only who holds one
// knows when no access is in flight. The count is written on KVH_ERR_TOO_SMALL too; (NULL, 0) asks
// for it.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_expired_leases(const kvh_reuse_tree_t *tree,
                                           uint64_t *pin_ids,
                                           size_t capacity,
                                           size_t *count_out);

// Releases a pin by its id. KVH_ERR_STATE, and nothing changed, when no live pin of this tree has
// the id: it was released before, or is another tree's.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_unpin(const kvh_reuse_tree_t *tree, uint64_t pin_id);

// Pins blocks of a sequence, to be read or sent. Each must be stored, in primary memory, and full,
// but the sequence's partial tail may be found in any block whose tokens start with it.
// *present_out is how many there are from the first up to the first that is missing. KVH_NOT_FOUND
// when the policy is not content with them; *present_out is written then too. Destroy the range
// with kvh_block_range_destroy; it may outlive the tree.
KVH_MUST_USE
kvh_status_t kvh_block_range_from_reuse_tree(const kvh_reuse_tree_t *tree,
                                             const kvh_sequence_t *sequence,
                                             const kvh_block_range_params_t *params,
                                             size_t *present_out,
                                             kvh_block_range_t **range_out);

// Blocks in the range; 0 for NULL.
size_t kvh_block_range_count(const kvh_block_range_t *range);

// Place in the sequence of the first block; 0 for NULL.
size_t kvh_block_range_first_block(const kvh_block_range_t *range);

// How many leading tokens of the last block count; 0 if all of it does, and for NULL.
size_t kvh_block_range_tail_tokens(const kvh_block_range_t *range);

// The id of the range's pin, for kvh_reuse_tree_unpin; never 0, but 0 for NULL.
uint64_t kvh_block_range_pin_id(const kvh_block_range_t *range);

// The block ids, oldest first. The count is written on KVH_ERR_TOO_SMALL too; (NULL, 0) asks for
// it.
KVH_MUST_USE
kvh_status_t kvh_block_range_ids(const kvh_block_range_t *range,
                                 int32_t *ids,
                                 size_t capacity,
                                 size_t *count_out);

// The block hashes, in the same order and by the same rules as kvh_block_range_ids.
KVH_MUST_USE
kvh_status_t kvh_block_range_block_hashes(const kvh_block_range_t *range,
                                          uint64_t *hashes,
                                          size_t capacity,
                                          size_t *count_out);

// The blocks' tiers (KVH_TIER_*) when they were pinned, in the same order and by the same rules as
// kvh_block_range_ids. A pinned block does not go to secondary memory.
KVH_MUST_USE
kvh_status_t kvh_block_range_tiers(const kvh_block_range_t *range,
                                   uint32_t *tiers,
                                   size_t capacity,
                                   size_t *count_out);

// Releases the range's pin; the range itself stays readable. KVH_ERR_STATE, and nothing changed,
// when it was released before, here or by kvh_reuse_tree_unpin.
KVH_MUST_USE kvh_status_t kvh_block_range_unpin(const kvh_block_range_t *range);

// Destroys the range, releasing its pin unless that was done before. NULL is fine.
void kvh_block_range_destroy(kvh_block_range_t *range);

// Creates an empty batch. Destroy it with kvh_batch_destroy.
KVH_MUST_USE kvh_status_t kvh_batch_create(kvh_batch_t **batch_out);

// Adds a request at the end. The body is borrowed: it must stay as it is until the batch has been
// broadcast, or is destroyed. Snapshot and plan are kept by the batch itself.
// KVH_ERR_INVALID_ARGUMENT: unknown flags, or a parent that is not an earlier request.
// KVH_ERR_LIMIT: more than 16,384 requests, or a body or snapshot that is too long.
// KVH_ERR_STATE: a received batch. KVH_ERR_POISONED: so is the snapshot or plan. On any error the batch is as before.
KVH_MUST_USE kvh_status_t kvh_batch_add(kvh_batch_t *batch, const kvh_batch_request_t *request);

// How many requests the batch has. 0 for NULL.
size_t kvh_batch_count(const kvh_batch_t *batch);

// Fills in the `index`-th request; the caller sets struct_size before. The views in it are valid
// until the batch is destroyed; retain the snapshot to keep it longer.
// KVH_ERR_INVALID_ARGUMENT: an index that is not less than kvh_batch_count.
KVH_MUST_USE
kvh_status_t kvh_batch_get(const kvh_batch_t *batch,
                           size_t index,
                           kvh_batch_request_t *request_out);

// Destroys the batch; views into it end. NULL is fine.
void kvh_batch_destroy(kvh_batch_t *batch);

// Creates a group of `size` ranks inside this process, 1 to 256. Destroy it with
// kvh_local_group_destroy.
KVH_MUST_USE kvh_status_t kvh_local_group_create(uint32_t size, kvh_local_group_t **group_out);

// Destroys the group. Communicators made from it stay usable; ranks that were not made by now
// never will be, and those that wait for them get KVH_ERR_COMMUNICATOR. NULL is fine.
void kvh_local_group_destroy(kvh_local_group_t *group);

// Creates the communicator of one rank of a group. Not collective. Each rank is made once.
// Destroying one, in whatever way its thread ends, wakes all ranks that wait for it with
// KVH_ERR_COMMUNICATOR.
// KVH_ERR_INVALID_ARGUMENT: no such rank, or sizes that do not multiply to the group's.
// KVH_ERR_STATE: the rank was made before, or other ranks of the group with other params.
KVH_MUST_USE
kvh_status_t kvh_communicator_create_local(const kvh_context_t *context,
                                           const kvh_local_group_t *group,
                                           uint32_t rank,
                                           const kvh_communicator_params_t *params,
                                           kvh_communicator_t **communicator_out);

// Creates a communicator over MPI: `fortran_handle` is MPI_Comm_c2f of an intra-communicator of
// the MPI that this library was built with. Collective over that communicator, which is duplicated
// and not used otherwise. All ranks must give equal params and run the same release.
//
// The host owns MPI: it initialises MPI before and finalises it after. If MPI was initialised with
// less than MPI_THREAD_SERIALIZED, every call on the communicator comes from MPI's main thread.
// `error_out` may be NULL; else an error's text may be written to it, which the caller destroys.
// KVH_ERR_UNSUPPORTED: built without MPI. KVH_ERR_STATE: MPI not initialised, finalised already,
// or this thread may not call it; nothing was called. KVH_ERR_COMMUNICATOR: MPI failed, or the
// ranks do not agree. Bad params of this rank are its error, and KVH_ERR_COMMUNICATOR on others.
KVH_MUST_USE
kvh_status_t kvh_communicator_create_mpi(const kvh_context_t *context,
                                         const kvh_communicator_params_t *params,
                                         int64_t fortran_handle,
                                         kvh_communicator_t **communicator_out,
                                         kvh_error_t **error_out);

// This rank, less than kvh_communicator_size. 0 for NULL.
uint32_t kvh_communicator_rank(const kvh_communicator_t *communicator);

// How many ranks there are. 0 for NULL.
uint32_t kvh_communicator_size(const kvh_communicator_t *communicator);

// Collective: result[i] becomes the smallest of all ranks' mine[i]. All ranks give the same count,
// at most 65,536; mine and result may be the same array.
// KVH_ERR_COMMUNICATOR: the counts differ, or a rank was called with bad arguments, is poisoned, or
// lost a batch earlier; that is how the others learn of it. When all ranks got it for that reason,
// the communicator stays in step.
KVH_MUST_USE
kvh_status_t kvh_communicator_min(kvh_communicator_t *communicator,
                                  const uint64_t *mine,
                                  size_t count,
                                  uint64_t *result);

// Collective: gives back what the communicator holds; only destroying it is left. With MPI this
// comes before MPI_Finalize. KVH_ERR_STATE: closed before, or MPI finalised already.
KVH_MUST_USE kvh_status_t kvh_communicator_close(kvh_communicator_t *communicator);

// Destroys the communicator, and calls no MPI: without kvh_communicator_close before, what it
// holds of MPI is leaked, on purpose, until MPI_Finalize. Local ranks that wait for this one get
// KVH_ERR_COMMUNICATOR. NULL is fine.
void kvh_communicator_destroy(kvh_communicator_t *communicator);

// Collective: one round. Rank 0 gives a batch that it filled with kvh_batch_add; its bodies are no
// longer needed when the call returns, and received_out may be NULL (NULL is written otherwise).
// The other ranks give NULL, and get a new batch, which they destroy: bodies and parents as given,
// plans and, unless the mode is KVH_BROADCAST_DECIDED, snapshots equal to those given. Snapshots
// are not judged or counted again; requests that shared one share one.
//
// Where rank 0 has no batch to give (NULL, a received one, too large, no memory, poisoned), all
// ranks get the status that says so, and nothing was delivered: KVH_ERR_INVALID_ARGUMENT,
// KVH_ERR_LIMIT, KVH_ERR_NO_MEMORY or KVH_ERR_POISONED. Another rank with a batch or without
// received_out takes part, receives nothing and gets KVH_ERR_INVALID_ARGUMENT.
// KVH_ERR_COMMUNICATOR: a rank is gone, or this rank got a damaged frame, now or earlier.
// KVH_ERR_NO_MEMORY on one rank alone: it lost this batch, and from now on gets
// KVH_ERR_COMMUNICATOR; the other ranks learn of it at the next kvh_communicator_min.
KVH_MUST_USE
kvh_status_t kvh_broadcast(kvh_communicator_t *communicator,
                           const kvh_batch_t *batch,
                           kvh_batch_t **received_out);

// Creates a hub. Destroy it with kvh_loopback_destroy.
KVH_MUST_USE
kvh_status_t kvh_loopback_create(const kvh_context_t *context,
                                 kvh_loopback_t **loopback_out);

// Destroys the hub. NULL is fine. Transceivers made with it go on.
void kvh_loopback_destroy(kvh_loopback_t *loopback);

// Creates a transceiver and starts its threads. Destroy it with kvh_transceiver_destroy; context,
// tree and hub may go first. KVH_ERR_INVALID_ARGUMENT: a value that cannot be.
// KVH_ERR_UNSUPPORTED: no UCX here, or a pool in device memory. KVH_ERR_LIMIT: no thread could be
// started. On each, *error_out, if not NULL, says it in words; destroy it with kvh_error_destroy.
KVH_MUST_USE
kvh_status_t kvh_transceiver_create(const kvh_context_t *context,
                                    const kvh_reuse_tree_t *tree,
                                    const kvh_transceiver_params_t *params,
                                    kvh_transceiver_t **transceiver_out,
                                    kvh_error_t **error_out);

// Lets states be fetched from an endpoint ("http://host:port/path"), whatever the binding table
// allows: this list is the transfer's own. address_ranges (CIDR, such as "10.0.0.0/8") bound the
// addresses that the endpoint may lead to, itself and the transport addresses in its state; none: any.
// Only "http" is fetched yet. Listing an endpoint means trusting the host behind it: UCX may crash on
// a peer that speaks its inner protocol wrongly. KVH_ERR_STATE: it is on the list already.
KVH_MUST_USE
kvh_status_t kvh_transceiver_allow(const kvh_transceiver_t *transceiver,
                                   kvh_str_t endpoint,
                                   const kvh_str_t *address_ranges,
                                   size_t address_range_count,
                                   kvh_error_t **error_out);

// This rank's entry of the worker's state, for kvh_transceiver_set_state. Release it with
// kvh_buffer_release.
KVH_MUST_USE
kvh_status_t kvh_transceiver_rank_entry(const kvh_transceiver_t *transceiver,
                                        kvh_buffer_t **entry_out);

// Makes the worker's state out of the entries of all its ranks, in any order, this one's among
// them; the host gathers them (MPI_Allgatherv, say). A worker of one rank needs no call.
// KVH_ERR_INVALID_ARGUMENT: they do not make a state; *error_out, if not NULL, says why.
KVH_MUST_USE
kvh_status_t kvh_transceiver_set_state(const kvh_transceiver_t *transceiver,
                                       const kvh_bytes_t *entries,
                                       size_t entry_count,
                                       kvh_error_t **error_out);

// The worker's state, for the host to serve itself. KVH_NOT_FOUND: not set yet. Release it with
// kvh_buffer_release.
KVH_MUST_USE
kvh_status_t kvh_transceiver_state(const kvh_transceiver_t *transceiver,
                                   kvh_buffer_t **state_out);

// Serves the worker's state over HTTP (GET /v1/data_transceiver_state) at an IP address (empty:
// 127.0.0.1) and port (0: any; *port_out says which). Until the state is set the answer is 503.
// KVH_ERR_STATE: it is served already. KVH_ERR_UNSUPPORTED: that address cannot be listened on.
KVH_MUST_USE
kvh_status_t kvh_transceiver_serve_http(const kvh_transceiver_t *transceiver,
                                        kvh_str_t address,
                                        uint16_t port,
                                        uint16_t *port_out,
                                        kvh_error_t **error_out);

// What the transceiver is doing. Set status_out->struct_size first.
KVH_MUST_USE
kvh_status_t kvh_transceiver_status(const kvh_transceiver_t *transceiver,
                                    kvh_transceiver_status_t *status_out);

// Which wires lead to the sources connected to, for people to read; not NUL-terminated. The length
// is written on KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it.
KVH_MUST_USE
kvh_status_t kvh_transceiver_wires(const kvh_transceiver_t *transceiver,
                                   char *buf,
                                   size_t buf_len,
                                   size_t *len_out);

// Destroys the transceiver: its threads end, fetches of metadata are cancelled, prefetches that run
// fail with "shutdown", pins of peers' requests are released. After this call the pool is not touched
// any more. NULL is fine. Prefetches stay to be looked at and destroyed.
void kvh_transceiver_destroy(kvh_transceiver_t *transceiver);

// Begins to fetch blocks. KVH_NOT_FOUND: nothing to fetch: the plan is no named fetch, or
// everything within the bounds is here already. KVH_BUSY: a block still belongs to another
// prefetch. KVH_ERR_LIMIT: too many prefetches or blocks at once. KVH_ERR_INVALID_ARGUMENT:
// neither plan nor state, a state that cannot be read, blocks that are not distinct and in the
// pool, too few of them under KVH_RANGE_STRICT, or a sequence with other tokens per block. What
// goes wrong later is an outcome. Destroy the prefetch with kvh_prefetch_destroy.
KVH_MUST_USE
kvh_status_t kvh_prefetch_begin(const kvh_transceiver_t *transceiver,
                                const kvh_prefetch_params_t *params,
                                kvh_prefetch_t **prefetch_out);

// Where the request stands: KVH_PREFETCH_*. KVH_IN_PROGRESS until there is an outcome, then KVH_OK;
// *state_out is written with both. A few nanoseconds; call it as often as is convenient.
KVH_MUST_USE kvh_status_t kvh_prefetch_poll(const kvh_prefetch_t *prefetch, uint32_t *state_out);

// How it ended; never changes once it is there. KVH_IN_PROGRESS: it has not, and nothing is
// written. Set outcome_out->struct_size first.
KVH_MUST_USE
kvh_status_t kvh_prefetch_outcome(const kvh_prefetch_t *prefetch,
                                  kvh_prefetch_outcome_t *outcome_out);

// How it went so far. Set report_out->struct_size first.
KVH_MUST_USE
kvh_status_t kvh_prefetch_report(const kvh_prefetch_t *prefetch,
                                 kvh_prefetch_report_t *report_out);

// Asks for an end. The outcome follows soon; one that is already there stays, and delivered blocks
// cannot be claimed any more.
KVH_MUST_USE kvh_status_t kvh_prefetch_cancel(const kvh_prefetch_t *prefetch);

// KVH_OK when the library can touch the blocks no more, KVH_IN_PROGRESS before. Only then may they
// be used for something else; an outcome alone is not enough.
KVH_MUST_USE kvh_status_t kvh_prefetch_quiesced(const kvh_prefetch_t *prefetch);

// Takes the delivered blocks: the request goes on with a longer prefix. *block_count_out is how
// many of block_ids hold blocks, from the first; store them with kvh_reuse_tree_store. Once, and
// before the abandonment deadline: else KVH_NOT_FOUND, and the blocks are the host's to reuse.
KVH_MUST_USE kvh_status_t kvh_prefetch_claim(const kvh_prefetch_t *prefetch, size_t *block_count_out);

// Destroys the prefetch, in any state; one that runs is cancelled. When this returns the library
// does not touch the blocks any more; for a moment kvh_prefetch_begin may still find them busy. NULL
// is fine.
void kvh_prefetch_destroy(kvh_prefetch_t *prefetch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVHINTS_H */
