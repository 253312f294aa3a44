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
 * - (data, len) arguments may be (NULL, 0). Buffers to fill are (buf, buf_len, len_out) for
 *   text and (values, capacity, count_out) for arrays: (NULL, 0) asks for the length and is OK; too
 *   small a buffer is KVH_ERR_TOO_SMALL.
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

// level of a log record: a fault of the library, or a broadcast that failed.
#define KVH_LOG_ERROR 1

// level of a log record: something was lost that would have been of use; requests go on.
#define KVH_LOG_WARNING 2

// level of a log record: what operators may want to know of normal work.
#define KVH_LOG_INFO 3

// level of a log record: what became of each request.
#define KVH_LOG_DEBUG 4

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

// flags of a binding: its plans carry the envelope with the chosen action alone; the file's
// one_action_envelope.
#define KVH_BINDING_ONE_ACTION_ENVELOPE 1

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

// mode: the library keeps the free queues: see kvh_request_add and kvh_reuse_tree_take.
#define KVH_REUSE_MODE_OWNER 2

// tier: where blocks are computed with; only these are sent to peers.
#define KVH_TIER_PRIMARY 1

// tier: where blocks are only kept.
#define KVH_TIER_SECONDARY 2

// policy: all blocks, or none.
#define KVH_RANGE_STRICT 1

// policy: the longest run that is there from the first block on.
#define KVH_RANGE_BEST_EFFORT 2

// kind: a block came into the tree.
#define KVH_EVENT_STORED 1

// kind: a block left it.
#define KVH_EVENT_REMOVED 2

// kind: a block's tier or priority changed; the event says how it stands afterwards.
#define KVH_EVENT_UPDATED 3

// kind: events were lost because they were not read in time. List what is stored: see
// kvh_reuse_tree_stored_blocks.
#define KVH_EVENT_GAP 4

// cursor: there are no more blocks.
#define KVH_CURSOR_END UINT64_MAX

// priority: what a block gets that nobody says anything else of.
#define KVH_PRIORITY_DEFAULT 35

// priority: the one that the block has.
#define KVH_PRIORITY_KEEP (-1)

// reason: the block goes to secondary memory, so that its slot can be used.
#define KVH_COPY_OFFLOAD 1

// reason: the block comes back to primary memory.
#define KVH_COPY_ONBOARD 2

// reason: the block gets the leading tokens, or all, of another one, which stays.
#define KVH_COPY_REUSE 3

// flags of a request: it has a parent.
#define KVH_BATCH_REQUEST_HAS_PARENT 1

// mode: every rank gets snapshots and plans. The default.
#define KVH_BROADCAST_FULL 1

// mode: rank 0 decided; plans travel, snapshots stay on rank 0.
#define KVH_BROADCAST_DECIDED 2

// pipeline_sends: a round ends on a rank when what it sends on to the next stage is out of its
// hands. The default.
#define KVH_PIPELINE_SYNCHRONOUS 1

// pipeline_sends: a round ends before; the next one waits for these sends first.
#define KVH_PIPELINE_ASYNCHRONOUS 2

// hint_form: hints travel as they are. The default.
#define KVH_HINT_FORM_TEXT 1

// hint_form: block hashes travel as eight bytes each: about 0.4 of the bytes, for more work on all
// ranks. For slow networks.
#define KVH_HINT_FORM_PACKED 2

// node_window: ranks of one node share one copy, in memory that MPI gives. The default.
#define KVH_NODE_WINDOW_ON 1

// node_window: every rank gets its messages from MPI.
#define KVH_NODE_WINDOW_OFF 2

// transport: within this process, over a kvh_loopback_t.
#define KVH_TRANSPORT_LOOPBACK 1

// transport: UCX, opened at run time.
#define KVH_TRANSPORT_UCX 2

// pool_memory: memory of the host's processors.
#define KVH_MEMORY_HOST 1

// pool_memory: memory of one CUDA device. KVH_ERR_UNSUPPORTED where there is no driver or device.
#define KVH_MEMORY_CUDA 2

// unauthenticated_peers: processes of this machine, where only these can reach the transport
// (KVH_TRANSPORT_LOOPBACK, or a listen_address of this machine alone); else nobody.
#define KVH_PEERS_OF_THIS_MACHINE 0

// unauthenticated_peers: whoever reaches the transport.
#define KVH_PEERS_ANYBODY 1

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

// source_requirement: without the blocks the request goes on and computes them itself.
#define KVH_SOURCE_OPTIONAL 0

// source_requirement: without the blocks the request cannot go on.
#define KVH_SOURCE_REQUIRED 1

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
  // The source that a request requires did not deliver: that request cannot go on.
  KVH_ERR_REQUIRED_SOURCE = -41,
  // The communicator failed, or its ranks do not agree; build a new one.
  KVH_ERR_COMMUNICATOR = -60,
  // The library was at fault; the object can only be destroyed.
  KVH_ERR_POISONED = -80,
};

// The requests of one broadcast round, in order. Made by the caller on rank 0, by kvh_broadcast on
// the other ranks. Given to the other threads only when nobody adds to it any more.
typedef struct kvh_batch kvh_batch_t;

// Server configuration: which bindings may serve which endpoints, actions and namespaces. A family
// is a kind of backend, and its capabilities say what its code understands (kvh_capabilities_t); a
// binding is one configured pool of such a backend, and says what that pool may serve. Nothing is
// allowed that was not said. Build it once; keep it unchanged while requests are decided.
typedef struct kvh_binding_table kvh_binding_table_t;

// A host's own block management, for transceivers that serve and fill its blocks instead of those
// of a kvh_reuse_tree_t and a pool. Several transceivers may have one.
typedef struct kvh_block_owner kvh_block_owner_t;

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
// the communicator of this rank can only be destroyed, unless the call says otherwise. A rank that
// finds what it received damaged poisons its context, and the others learn of it at their next
// agreement (kvh_communicator_min, kvh_communicator_min_begin).
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
// has expired. Transceivers may have a ring too, with the keys of their peers (peer_keys): a key that
// is removed begins no more sessions, and those that it began go on. Several contexts and transceivers
// may share a ring; it is kept as long as one of them is there.
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
// The blocks given to kvh_prefetch_begin are fresh ones that nobody else uses and that no reuse tree
// holds. They are lent until the prefetch is quiesced, and may be in any state after any outcome but
// "delivered". After that one they hold the fetched blocks and stay lent until they are claimed,
// cancelled, destroyed with the prefetch, or the abandonment deadline passes; kvh_reuse_tree_store
// makes them visible to others. All calls but destroy may be made concurrently, and none waits.
typedef struct kvh_prefetch kvh_prefetch_t;

// All blocks that a request held when it was pinned, stored or not. None of them is handed out until
// the pin is destroyed.
typedef struct kvh_request_pin kvh_request_pin_t;

// A request in owner mode: the blocks that it uses, in every window, from admission to its end. It
// may outlive the tree. Calls that take it as const may be made concurrently.
typedef struct kvh_request kvh_request_t;

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
// With peer_keys, peers prove to each other that they hold a key before any name is answered; what
// travels is not encrypted. Without, whoever is served (unauthenticated_peers) may fetch blocks by
// name, and the context's log says so once ("peers_unauthenticated"). Keep transports on networks that only workers reach: UCX may end the process when anybody
// else writes to its ports.
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

// One line of the log. Strings live during the call only. New members are added at the end.
typedef struct kvh_log_record {
  // sizeof(kvh_log_record_t) of the library: members beyond it are not there.
  size_t struct_size;
  // KVH_LOG_*.
  uint32_t level;
  // Must be ignored.
  uint32_t reserved;
  // The event's stable name, such as "prefetch_failed".
  kvh_str_t event;
  // What it means, for people; the same for each record of an event.
  kvh_str_t message;
  // The event's numbers and words, as one JSON object. Nothing of a hint's contents is in it.
  kvh_str_t fields;
  // Records of the same event that were left out since the last one, so that nobody can flood
  // the log.
  uint64_t left_out;
  // When, on the context's monotonic clock.
  uint64_t time_ns;
} kvh_log_record_t;

// Takes one record; called from any thread, several at once, without a lock of the library. Must
// not throw, and must not wait: requests and transfers wait for it meanwhile.
typedef void (*kvh_log_fn)(void *user_data, const kvh_log_record_t *record);

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

// Why a hint comes to its verdict, in numbers. Never contents of the hint.
typedef struct kvh_explanation {
  // sizeof(kvh_explanation_t).
  size_t struct_size;
  // KVH_VERDICT_*.
  int32_t verdict;
  // The rule that decided: its row in the table of admission, 1 to 12; 0 for an admitted hint.
  uint32_t rule;
  // Bytes of the hint before the place where that rule is broken.
  size_t offset;
  // The line of that place, from 1; 0 where there is none, and in MessagePack.
  size_t line;
  // Its column in characters, from 1; 0 as for line.
  size_t column;
  // If the rule is a limit: the limit; else 0.
  uint64_t limit;
  // If the rule is a limit: how much was found; else 0.
  uint64_t found;
  // Length of the canonical form; 0 if the hint was not read that far.
  size_t canonical_bytes;
} kvh_explanation_t;

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
  // A state of SHA-256.
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
  // Owner mode: blocks of each window in primary memory: the ids from 0 on, not 0. Else 0.
  int32_t primary_blocks;
  // Owner mode: blocks of each window in secondary memory: the ids after those. Else 0.
  int32_t secondary_blocks;
  // Events kept for kvh_reuse_tree_events, at most 2^24. 0: none.
  size_t event_capacity;
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
  // How much it is worth keeping: 0 .. 100.
  uint32_t priority;
  // Owner mode: how many use it.
  uint32_t users;
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
  // Owner mode: blocks in primary memory that can be taken.
  size_t free_primary_blocks;
  // Owner mode: blocks in secondary memory that can be taken.
  size_t free_secondary_blocks;
  // Owner mode: copies that the host has not made; see kvh_reuse_tree_copies.
  size_t waiting_copies;
  // Owner mode: blocks that left the tree because one was taken, ever.
  uint64_t blocks_evicted;
  // Owner mode: blocks that went to secondary memory, ever.
  uint64_t blocks_offloaded;
  // Owner mode: blocks that came back to primary memory, ever.
  uint64_t blocks_onboarded;
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

// One event. Set struct_size of the first one of an array before the call.
typedef struct kvh_reuse_event {
  // sizeof(kvh_reuse_event_t).
  size_t struct_size;
  // Grows by one with each event; a gap has the number of the last one lost.
  uint64_t number;
  // KVH_EVENT_*.
  uint32_t kind;
  // The block's attention window in tokens. This and the following fields are 0 for a gap.
  int32_t window;
  // Its id.
  int32_t block_id;
  // KVH_TIER_*.
  uint32_t tier;
  // Its block hash.
  uint64_t block_hash;
  // The hash of the block before it; 0 for a first block.
  uint64_t parent_hash;
  // Its place in the sequence.
  size_t position;
  // Tokens in it.
  uint32_t token_count;
  // How much it is worth keeping: 0 .. 100.
  uint32_t priority;
  // A gap: how many events were lost, up to its number. Else 0.
  uint64_t lost_events;
} kvh_reuse_event_t;

// A block in the tree. Set struct_size of the first one of an array before the call.
typedef struct kvh_stored_block {
  // sizeof(kvh_stored_block_t).
  size_t struct_size;
  // Its block hash.
  uint64_t block_hash;
  // The hash of the block before it; 0 for a first block.
  uint64_t parent_hash;
  // Its place in the sequence.
  size_t position;
  // Its id.
  int32_t block_id;
  // KVH_TIER_*.
  uint32_t tier;
  // Tokens in it.
  uint32_t token_count;
  // How much it is worth keeping: 0 .. 100.
  uint32_t priority;
} kvh_stored_block_t;

// A copy that the host has to make, from slot to slot of a window's pools. Set struct_size of the
// first one of an array before the call.
typedef struct kvh_block_copy {
  // sizeof(kvh_block_copy_t).
  size_t struct_size;
  // The attention window in tokens.
  int32_t window;
  // The block whose bytes lie in to_slot afterwards.
  int32_t block_id;
  // KVH_COPY_*.
  uint32_t reason;
  // KVH_TIER_*.
  uint32_t from_tier;
  // Slot of that tier's pool.
  uint32_t from_slot;
  // KVH_TIER_*.
  uint32_t to_tier;
  // Slot of that tier's pool.
  uint32_t to_slot;
  // How many leading tokens count.
  uint32_t token_count;
} kvh_block_copy_t;

// What one refresh found. Set struct_size before the call.
typedef struct kvh_reuse_tree_refreshed {
  // sizeof(kvh_reuse_tree_refreshed_t).
  size_t struct_size;
  // Blocks that fell back to the default priority.
  size_t priorities_expired;
  // Live pins whose lease has ended; kvh_reuse_tree_expired_leases names them.
  size_t leases_expired;
  // Age of the oldest live pin, in steps of refreshes. 0: there is none.
  uint64_t oldest_pin_age_ns;
} kvh_reuse_tree_refreshed_t;

// What the blocks are worth that begin with one of the tokens start .. end. Frozen.
typedef struct kvh_retention_range {
  // First token.
  size_t start;
  // The token after the last; SIZE_MAX: to the end.
  size_t end;
  // 0 .. 100.
  int32_t priority;
  // 0.
  uint32_t reserved;
  // How long after its release a block keeps the priority; 0: as long as it is free.
  uint64_t duration_ns;
} kvh_retention_range_t;

// A request to be admitted.
typedef struct kvh_request_params {
  // sizeof(kvh_request_params_t).
  size_t struct_size;
  // The prompt; not empty. Not kept.
  const kvh_sequence_t *sequence;
  // How many leading tokens may be reused; the last token never is. SIZE_MAX: all others.
  size_t max_matched_tokens;
  // What the prompt's blocks are worth: at most 65,536 ranges, in order, without overlaps. A block
  // in none of them keeps its priority where it is reused, else it gets KVH_PRIORITY_DEFAULT.
  const kvh_retention_range_t *retention;
  // How many.
  size_t retention_count;
} kvh_request_params_t;

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
  // KVH_PIPELINE_*. Default KVH_PIPELINE_SYNCHRONOUS.
  uint32_t pipeline_sends;
  // How long a call waits for the other ranks before the communicator fails. Default: local ranks
  // wait as long as the others exist, MPI decides by itself. With MPI a deadline costs a copy of
  // each message that does not go through the node window. Must be 0 with callbacks.
  uint64_t deadline_ns;
  // KVH_HINT_FORM_*. Default KVH_HINT_FORM_TEXT.
  uint32_t hint_form;
  // With MPI: KVH_NODE_WINDOW_*. Default KVH_NODE_WINDOW_ON.
  uint32_t node_window;
  // Bytes of a round's first message, 64 to 1 MiB: a header of 64 and the beginning of what
  // follows, so that a short round is one message. It always has this size. Default 64.
  uint32_t first_message_bytes;
  // Must be 0.
  uint32_t reserved;
} kvh_communicator_params_t;

// Rank 0 gives `len` bytes at `data` to ranks 1 to rank_count - 1, which get them at theirs. Called on
// these ranks alone. 0 is success.
typedef int32_t (*kvh_broadcast_fn)(void *user_data, void *data, size_t len, uint32_t rank_count);

// Gives `len` bytes at `data` to rank `to`. They are not needed any more when it returns. 0 is success.
typedef int32_t (*kvh_send_fn)(void *user_data, uint32_t to, const void *data, size_t len);

// Gets the `len` bytes that rank `from` sends. Between two ranks they keep their order. 0 is success.
typedef int32_t (*kvh_receive_fn)(void *user_data, uint32_t from, void *data, size_t len);

// Each of `count` values becomes the smallest of all ranks'. Called on all ranks. 0 is success.
typedef int32_t (*kvh_min_reduce_fn)(void *user_data, uint64_t *values, size_t count);

// How a host's ranks talk. All functions block, are called from the thread that makes the call on
// the communicator, with no lock held, and must not throw. Another result than 0 fails the
// communicator; none is called after that.
typedef struct kvh_communicator_ops {
  // sizeof(kvh_communicator_ops_t).
  size_t struct_size;
  // Passed to all functions.
  void *user_data;
  // This rank, less than size.
  uint32_t rank;
  // How many ranks there are.
  uint32_t size;
  // Not NULL.
  kvh_broadcast_fn broadcast;
  // Not NULL where there is more than one pipeline stage.
  kvh_send_fn send;
  // As send.
  kvh_receive_fn receive;
  // Not NULL.
  kvh_min_reduce_fn min_reduce;
  // Called with user_data exactly once: when the communicator is destroyed, or before
  // kvh_communicator_from_ops returns an error. May be NULL. A struct_size that ends before or
  // within this field does not name it: then nothing is taken over or called.
  kvh_destroy_fn destroy;
} kvh_communicator_ops_t;

// A block that kvh_pin_fn pinned. This struct will not change.
typedef struct kvh_pinned_block {
  // The block.
  int32_t block_id;
  // Must be 0.
  uint32_t reserved;
  // The hash under which routers know it (kvh_sequence_block_hashes); only compared for reports.
  uint64_t block_hash;
} kvh_pinned_block_t;

// Finds and pins blocks for a peer: `names` are those of a prefix, from its first block on, and
// decide alone what a block is. KVH_OK: the first *present_out blocks are pinned, all of them under
// KVH_RANGE_STRICT, at least one under KVH_RANGE_BEST_EFFORT, and blocks_out (room for name_count)
// says which; they keep id, place and bytes until kvh_unpin_fn is called with *pin_id_out.
// KVH_NOT_FOUND: nothing is pinned, and the first *present_out are there. KVH_BUSY, or any other
// status: nothing is pinned, and the peer is told to come later.
typedef kvh_status_t (*kvh_pin_fn)(void *user_data,
                                   const kvh_name_t *names,
                                   size_t name_count,
                                   uint32_t policy,
                                   kvh_pinned_block_t *blocks_out,
                                   size_t *present_out,
                                   uint64_t *pin_id_out);

// Ends a pin. Called exactly once for each that was made.
typedef void (*kvh_unpin_fn)(void *user_data, uint64_t pin_id);

// Sets `count` fresh blocks aside, distinct, that nobody else uses; block_ids has room for them. Each
// goes back exactly once, by kvh_commit_fn or kvh_abort_fn. KVH_OK, or KVH_BUSY: nothing is set aside.
typedef kvh_status_t (*kvh_allocate_fn)(void *user_data, int32_t *block_ids, size_t count);

// Takes blocks back that are filled and verified: block_ids[i] is the block of
// names[first_block + i * step], and is the owner's from now on, whether it keeps it or not. `step` is
// the context parallel size.
typedef void (*kvh_commit_fn)(void *user_data,
                              const kvh_name_t *names,
                              size_t name_count,
                              size_t first_block,
                              size_t step,
                              const int32_t *block_ids,
                              size_t count);

// Takes blocks back that are not of use: their bytes may be anything.
typedef void (*kvh_abort_fn)(void *user_data, const int32_t *block_ids, size_t count);

// Where a block lies, block_bytes long, in memory of the host's processors; NULL for a block that
// cannot be sent or filled. The same place as long as the block is pinned or set aside.
typedef void *(*kvh_address_fn)(void *user_data, int32_t block_id);

// What a host's block management does. The functions are called from the library's transfer thread
// and from the host's calls on transceivers and prefetches, possibly at the same time, with no lock
// held; they must not block, throw, or call the transceiver or its prefetches. None may be NULL but
// destroy.
typedef struct kvh_block_owner_ops {
  // sizeof(kvh_block_owner_ops_t).
  size_t struct_size;
  // Passed to all functions.
  void *user_data;
  // Tokens of one block; not 0.
  uint32_t tokens_per_block;
  // Must be 0.
  uint32_t reserved;
  // Bytes of one block; not 0. See kvh_transceiver_params_t.
  size_t block_bytes;
  // See kvh_pin_fn.
  kvh_pin_fn pin;
  // See kvh_unpin_fn.
  kvh_unpin_fn unpin;
  // See kvh_allocate_fn.
  kvh_allocate_fn allocate;
  // See kvh_commit_fn.
  kvh_commit_fn commit;
  // See kvh_abort_fn.
  kvh_abort_fn abort;
  // See kvh_address_fn.
  kvh_address_fn address;
  // Called with user_data exactly once: when the owner, its transceivers and their prefetches are
  // destroyed, or before kvh_block_owner_create returns an error. May be NULL. A struct_size that
  // ends before or within this field does not name it: then nothing is taken over or called.
  kvh_destroy_fn destroy;
} kvh_block_owner_ops_t;

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
  // Layers of each pipeline rank; none: shared out evenly.
  const uint32_t *layers_per_pipeline_rank;
  // Length of layers_per_pipeline_rank.
  size_t pipeline_rank_count;
  // For each layer of the worker, those of all its pipeline ranks in order, the KV heads that one
  // rank has of it. The same on all ranks.
  const uint32_t *kv_heads_per_layer;
  // Layers of the worker; not 0.
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
  // has slots as ids); with KVH_MEMORY_CUDA an address of the device. Stays valid until
  // kvh_transceiver_destroy returned. The library reads blocks that are pinned in the tree, and writes
  // blocks lent to a prefetch; no others.
  void *pool_base;
  // Bytes of one block. Between workers that share heads and layers out alike, blocks move as
  // they are, padding and scales included. Between others they are cut, for which a block must be
  // [layer][keys, values][head][token][number] with nothing in between.
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
  // Keys of which each peer must prove to have one before it is heard, and this side proves to
  // have peer_key_id. NULL: none, see unauthenticated_peers. Kept as long as the transceiver.
  const kvh_key_ring_t *peer_keys;
  // With peer_keys, the id of one of them; else empty.
  kvh_str_t peer_key_id;
  // KVH_PEERS_*: without peer_keys, who is served.
  uint32_t unauthenticated_peers;
  // Must be 0.
  uint32_t reserved_2;
  // The host's own block management; NULL: a tree and a pool. With it there is no tree, and
  // pool_base, block_bytes and block_count are 0. Kept as long as the transceiver.
  const kvh_block_owner_t *block_owner;
  // With KVH_MEMORY_CUDA, the stream (CUstream, cudaStream_t) of the pool's device in which the
  // library copies, none that is being captured; NULL: one of its own, which waits for no other.
  // Blocks are delivered, and pins end, only when their copies are done. Else NULL.
  void *cuda_stream;
  // With KVH_MEMORY_CUDA, an event (CUevent, cudaEvent_t), or NULL. Each copy begins after what the
  // event was recorded for last. Record it after the work that writes blocks and before they are
  // stored in the tree, and after the work that last uses blocks and before they are lent to a
  // prefetch, and again each time. Without it blocks are stored, and lent, only when the device is
  // done with them, unless cuda_stream sees to the order. Stream and event stay valid until
  // kvh_transceiver_destroy returned. Else NULL.
  void *cuda_ready_event;
  // The cores on which the thread that moves blocks, "kvhints-transfer", runs: some of those that
  // the process may use. None: wherever the system puts it.
  const uint32_t *thread_cores;
  // Length of thread_cores.
  size_t thread_core_count;
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
  // The attention data parallel rank of the source that holds the blocks; 0 where it has no such
  // parts.
  uint32_t source_attention_data_rank;
  // A named fetch: where the source is, and how far its hint goes. May be NULL with
  // source_state.
  const kvh_plan_t *plan;
  // The request's tokens, in the transceiver's namespace.
  const kvh_sequence_t *sequence;
  // The source worker's state, where the host has it: no endpoint is contacted then.
  kvh_bytes_t source_state;
  // Leading full blocks that are here already: only those after them are fetched.
  size_t first_block;
  // Tokens that may be fetched, from the first; 0: all but the last one (a context request). Only
  // full blocks are, and the sequence's short last one if all tokens may be and block_ids has a
  // block for it.
  size_t max_tokens;
  // Where this rank's blocks go, in order: distinct, in the pool, lent as said at kvh_prefetch_t.
  // Of n context parallel ranks, rank r has the blocks whose position leaves r when divided by n.
  // With a kvh_block_owner_t there may be none: then the owner sets them aside, and they go back to
  // it by themselves, committed at kvh_prefetch_claim or aborted.
  // Under KVH_RANGE_BEST_EFFORT fewer than there are blocks to fetch make it fetch fewer.
  const int32_t *block_ids;
  // Length of block_ids.
  size_t block_id_count;
  // Until the source's state is known (default 2 s; one fetch takes at most 30 s).
  uint64_t metadata_deadline_ns;
  // From the request until the last block is verified (default 10 s).
  uint64_t transfer_deadline_ns;
  // From then until the claim (default 30 s).
  uint64_t abandonment_deadline_ns;
  // KVH_SOURCE_*: what it means to the request when not all blocks asked for are delivered.
  uint32_t source_requirement;
  // Must be 0.
  uint32_t reserved;
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

// Sends the context's log to `log`: records up to `level` (KVH_LOG_*), each event at most ten times
// a second. Once for each context, before it is used. destroy is called with user_data exactly
// once: when the last object of the context is gone, or before this returns an error; both may
// be NULL. KVH_ERR_STATE: there is a log already. KVH_ERR_INVALID_ARGUMENT: no log, or
// no such level.
KVH_MUST_USE
kvh_status_t kvh_context_set_log(const kvh_context_t *context,
                                 uint32_t level,
                                 kvh_log_fn log,
                                 void *user_data,
                                 kvh_destroy_fn destroy);

// What the context is doing, as one JSON object, not NUL-terminated: whether it is poisoned;
// attempts to fetch by state (ended ones whose handle lives included), the oldest that run, with
// ages; live pins, and the most that the oldest can be old, null in the moment in which a tree is
// created; peers; queues. For people and for detectors of hangs: it waits for no lock and allocates
// nothing, so it may be called from any thread while others hang inside of calls, and on a poisoned
// context. (NULL, 0) asks for the length, which is written in every case but an error of the
// arguments; it changes from call to call, but 8,192 bytes are always enough. docs/operations.md
// explains each member.
KVH_MUST_USE
kvh_status_t kvh_context_status(const kvh_context_t *context,
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

// The stable name of a KVH_VERDICT_*, such as "unknown_version", the same as in the metrics;
// static, never NULL. "unknown" for a number that is none.
const char *kvh_verdict_string(int32_t verdict);

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

// Explains what kvh_admit would say of these bytes, for people and tests: slow, and nothing is
// counted, neither in the metrics nor among the admissions of a signed hint. Set
// explanation_out->struct_size first. text_out may be NULL; else *text_out gets the same in words
// unless the hint is admitted: the rule, the place, what was expected, what was found and what to
// do, never contents of the hint; destroy it with kvh_error_destroy.
KVH_MUST_USE
kvh_status_t kvh_explain(const kvh_context_t *context,
                         int32_t ingress,
                         const uint8_t *json,
                         size_t json_len,
                         kvh_explanation_t *explanation_out,
                         kvh_error_t **text_out);

// Explains what kvh_admit_msgpack would say, as kvh_explain does. MessagePack has no lines: the
// place is offset alone.
KVH_MUST_USE
kvh_status_t kvh_explain_msgpack(const kvh_context_t *context,
                                 int32_t ingress,
                                 const uint8_t *data,
                                 size_t len,
                                 kvh_explanation_t *explanation_out,
                                 kvh_error_t **text_out);

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

// Creates an empty tree. Destroy it with kvh_reuse_tree_destroy; the context may go first. In owner
// mode all its blocks are free. KVH_ERR_INVALID_ARGUMENT: no or an unknown mode, no
// tokens_per_block, a window that is negative or given twice; blocks in arbiter mode, or none in
// primary memory in owner mode. KVH_ERR_LIMIT: more than 2^26 blocks a window.
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
// handed back. In owner mode blocks must be in use: KVH_ERR_STATE, and nothing is stored, else.
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
// the host. KVH_BUSY: it is protected (in owner mode also: in use), take another. KVH_NOT_FOUND: the tree does not hold it (any
// more).
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_evict(const kvh_reuse_tree_t *tree,
                                  int32_t window,
                                  int32_t block_id);

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
// secondary memory now. KVH_NOT_FOUND: the tree does not hold it. KVH_ERR_STATE: owner mode, which
// has kvh_reuse_tree_offload and kvh_reuse_tree_onboard.
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
// it. Ids, hashes and tiers are found out the first time one of them is asked for: KVH_ERR_STATE
// when the pin was released before that.
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

// The blocks' tiers (KVH_TIER_*), in the same order and by the same rules as kvh_block_range_ids.
// A pinned block does not go to secondary memory.
KVH_MUST_USE
kvh_status_t kvh_block_range_tiers(const kvh_block_range_t *range,
                                   uint32_t *tiers,
                                   size_t capacity,
                                   size_t *count_out);

// The slot of its tier's pool that each block lies in, in the same order and by the same rules as
// kvh_block_range_ids. In arbiter mode these are the ids. A pinned block stays where it is.
KVH_MUST_USE
kvh_status_t kvh_block_range_slots(const kvh_block_range_t *range,
                                   uint32_t *slots,
                                   size_t capacity,
                                   size_t *count_out);

// Releases the range's pin; what was asked of the range before can be asked again. KVH_ERR_STATE,
// and nothing changed, when it was released before, here or by kvh_reuse_tree_unpin.
KVH_MUST_USE kvh_status_t kvh_block_range_unpin(const kvh_block_range_t *range);

// Destroys the range, releasing its pin unless that was done before. NULL is fine.
void kvh_block_range_destroy(kvh_block_range_t *range);

// kvh_reuse_tree_store of blocks whose bytes are complete once fence has passed
// (kvh_reuse_tree_fence_passed): a number of the host's, from 1 on, for each point in its work that
// others have to wait for. Until then the blocks are matched, for work that comes after the fence by
// itself, but are missing for kvh_block_range_from_reuse_tree and for peers. KVH_ERR_INVALID_ARGUMENT:
// fence is 0.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_store_with_fence(const kvh_reuse_tree_t *tree,
                                             int32_t window,
                                             const kvh_sequence_t *sequence,
                                             size_t first_block,
                                             const int32_t *ids,
                                             size_t id_count,
                                             uint64_t fence,
                                             int32_t *held_out);

// Says that all fences up to this one have passed. Fences are numbered in the order in which they
// pass; a smaller number than before changes nothing.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_fence_passed(const kvh_reuse_tree_t *tree, uint64_t fence);

// kvh_reuse_tree_store and a pin on what the tree then holds at these positions, in one step: no
// eviction comes between a request's end and the send of its blocks. held_out is as for
// kvh_reuse_tree_store. KVH_NOT_FOUND: the tree holds nothing there; held_out is written, *range_out
// is not. lease_ns: 0 for none. KVH_ERR_STATE: owner mode, where kvh_request_store_and_pin does this.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_store_and_pin(const kvh_reuse_tree_t *tree,
                                          int32_t window,
                                          const kvh_sequence_t *sequence,
                                          size_t first_block,
                                          const int32_t *ids,
                                          size_t id_count,
                                          uint64_t lease_ns,
                                          int32_t *held_out,
                                          kvh_block_range_t **range_out);

// Pins the blocks that a request holds, stored or not: until the unpin none of them is evicted,
// offloaded or stored at another place. Blocks that are not stored become known to the tree by id,
// busy to evict, and are handed back by kvh_reuse_tree_store as long: store first what is to be
// stored. Negative ids hold nothing; KVH_NOT_FOUND: no other is there. lease_ns: 0 for none.
// KVH_ERR_STATE: owner mode, where kvh_request_pin does this.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_pin_blocks(const kvh_reuse_tree_t *tree,
                                       int32_t window,
                                       const int32_t *ids,
                                       size_t id_count,
                                       uint64_t lease_ns,
                                       kvh_block_range_t **range_out);

// Moves up to capacity events to the caller, oldest first, each once; *count_out says how many.
// Fewer than capacity: there are no more now. With (NULL, 0) *count_out says how many wait. One
// thread reads events; a tree keeps them only if it was created with an event_capacity.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_events(const kvh_reuse_tree_t *tree,
                                   kvh_reuse_event_t *events,
                                   size_t capacity,
                                   size_t *count_out);

// The number of the last event that happened, read or not; 0 before the first.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_last_event_number(const kvh_reuse_tree_t *tree, uint64_t *number_out);

// Lists the blocks in one window of the tree, in no order, up to capacity of them a call. *cursor is
// 0 before the first call and afterwards what the call before wrote: KVH_CURSOR_END when there are
// no more. The tree may change meanwhile. To know what is stored after a gap: ask for
// kvh_reuse_tree_last_event_number, list all windows, then apply the events after that number.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_stored_blocks(const kvh_reuse_tree_t *tree,
                                          int32_t window,
                                          uint64_t *cursor,
                                          kvh_stored_block_t *blocks,
                                          size_t capacity,
                                          size_t *count_out);

// Takes the next free block of a window: from the lowest priority up, oldest release first, the
// first with nothing stored below it; if there is none, the first. The caller is its one user until
// kvh_reuse_tree_release. KVH_BUSY: no block is free. It may ask for copies: see
// kvh_reuse_tree_copies. KVH_ERR_STATE, here and in all calls of owner mode: the tree is not in it.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_take(const kvh_reuse_tree_t *tree,
                                 int32_t window,
                                 int32_t priority,
                                 uint64_t duration_ns,
                                 int32_t *block_id_out);

// One more user of a block, free or not. priority may be KVH_PRIORITY_KEEP; the duration always
// replaces the block's (0: none).
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_claim(const kvh_reuse_tree_t *tree,
                                  int32_t window,
                                  int32_t block_id,
                                  int32_t priority,
                                  uint64_t duration_ns);

// One user of a block less. The last one gives it back: to the back of its queue if it is in the
// tree, else to the front. A request's blocks are given back last block first. KVH_ERR_STATE: it
// has no users.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_release(const kvh_reuse_tree_t *tree, int32_t window, int32_t block_id);

// How much a block is worth keeping: 0 .. 100, for a duration (0: for good) after which it falls to
// KVH_PRIORITY_DEFAULT at a refresh. In owner mode the duration counts while the block is free; in
// arbiter mode from now, and KVH_NOT_FOUND: the tree does not hold the block.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_set_priority(const kvh_reuse_tree_t *tree,
                                         int32_t window,
                                         int32_t block_id,
                                         int32_t priority,
                                         uint64_t duration_ns);

// Moves a free block that is in the tree to secondary memory. It asks for a copy: see
// kvh_reuse_tree_copies. KVH_BUSY: it is in use or protected, or no block there is free.
// KVH_ERR_STATE: it is not in the tree, so there is nothing to keep. KVH_OK if it is there already.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_offload(const kvh_reuse_tree_t *tree, int32_t window, int32_t block_id);

// Moves a free block back to primary memory, by the same rules as kvh_reuse_tree_offload. The tree
// says so, and the block may be sent, when the copy is made: see kvh_reuse_tree_copied.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_onboard(const kvh_reuse_tree_t *tree, int32_t window, int32_t block_id);

// Where a block's bytes lie, once the copies that wait are made: a tier (KVH_TIER_*) and a slot of
// its pool. Ids below primary_blocks begin in the primary slot of the same number, those after them
// in secondary slots from 0 on; slots change hands, ids do not. A pinned block stays where it is.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_block_place(const kvh_reuse_tree_t *tree,
                                        int32_t window,
                                        int32_t block_id,
                                        uint32_t *tier_out,
                                        uint32_t *slot_out);

// The copies that the host has not made, oldest first; they stay listed until kvh_reuse_tree_copied.
// They are to be made in this order, and before anything else is written to blocks handed out since:
// one's source may be another's destination. At most capacity are written; *count_out says how many
// there are in all.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_copies(const kvh_reuse_tree_t *tree,
                                   kvh_block_copy_t *copies,
                                   size_t capacity,
                                   size_t *count_out);

// Says that the count oldest copies are made. KVH_ERR_LIMIT: there are not so many.
KVH_MUST_USE kvh_status_t kvh_reuse_tree_copied(const kvh_reuse_tree_t *tree, size_t count);

// How many blocks of a window can be taken from a tier (KVH_TIER_*): those that nobody uses and no
// pin protects.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_free_count(const kvh_reuse_tree_t *tree,
                                       int32_t window,
                                       uint32_t tier,
                                       size_t *count_out);

// To be called once an iteration of the executor, in both modes: by the context's clock, priorities
// end, leases and the age of pins are looked at.
KVH_MUST_USE
kvh_status_t kvh_reuse_tree_refresh(const kvh_reuse_tree_t *tree,
                                    kvh_reuse_tree_refreshed_t *refreshed_out);

// Admits a request: finds what is stored of its prompt in every window, and gives it a block for
// each of its blocks. Full blocks are shared. A block that matches partly is taken over where nobody
// else has use for it; else its bytes are copied. Blocks in secondary memory are brought back. Make
// the copies first: see kvh_reuse_tree_copies. KVH_BUSY: not enough blocks are free, and nothing
// changed.
KVH_MUST_USE
kvh_status_t kvh_request_add(const kvh_reuse_tree_t *tree,
                             const kvh_request_params_t *params,
                             kvh_request_t **request_out);

// How many leading tokens of the prompt need no computing; 0 for NULL.
size_t kvh_request_matched_tokens(const kvh_request_t *request);

// A request's blocks of one window, in the order of the sequence. *first_block_out is the place of
// the first of them: not 0 where a sliding window has passed blocks. The count is written on
// KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it. KVH_ERR_STATE: the request is finished.
KVH_MUST_USE
kvh_status_t kvh_request_blocks(const kvh_request_t *request,
                                int32_t window,
                                size_t *first_block_out,
                                int32_t *ids,
                                size_t capacity,
                                size_t *count_out);

// Makes room for token_count more tokens; each block that this takes gets the priority (and the
// duration; 0: none). In sliding windows, blocks that no later token looks at are given back.
// KVH_BUSY: not enough blocks are free, and nothing changed.
KVH_MUST_USE
kvh_status_t kvh_request_grow(kvh_request_t *request,
                              size_t token_count,
                              int32_t priority,
                              uint64_t duration_ns);

// Stores the full blocks of the sequence's first token_count tokens, whose bytes are complete, so
// that other requests find them while this one goes on.
KVH_MUST_USE
kvh_status_t kvh_request_store_context(const kvh_request_t *request,
                                       const kvh_sequence_t *sequence,
                                       size_t token_count);

// kvh_request_store_context, and a pin on what the tree then holds of these tokens in one window:
// the full blocks, and a block that begins with what is left of them. They may be other requests'
// blocks of the same content. KVH_NOT_FOUND: it holds nothing of them. lease_ns: 0 for none.
KVH_MUST_USE
kvh_status_t kvh_request_store_and_pin(const kvh_request_t *request,
                                       const kvh_sequence_t *sequence,
                                       size_t token_count,
                                       int32_t window,
                                       uint64_t lease_ns,
                                       kvh_block_range_t **range_out);

// Pins every block that the request holds, stored or not, in all windows; the request may end
// meanwhile. Destroy the pin with kvh_request_pin_destroy.
KVH_MUST_USE kvh_status_t kvh_request_pin(const kvh_request_t *request, kvh_request_pin_t **pin_out);

// Ends the request: stores the blocks of the sequence's first token_count tokens, whose bytes are
// complete, a partial last one too, then gives all blocks back, the last one first. The last token
// that a model gave has no bytes: token_count is usually the sequence's length - 1. Later calls but
// destroy are KVH_ERR_STATE. On an error the request has not ended: call again, or destroy it, which
// stores nothing.
KVH_MUST_USE
kvh_status_t kvh_request_finish(kvh_request_t *request,
                                const kvh_sequence_t *sequence,
                                size_t token_count);

// Destroys the request, giving its blocks back, not stored, unless it was finished. NULL is fine.
void kvh_request_destroy(kvh_request_t *request);

// The pinned blocks of one window, in the order of the sequence. The count is written on
// KVH_ERR_TOO_SMALL too; (NULL, 0) asks for it.
KVH_MUST_USE
kvh_status_t kvh_request_pin_ids(const kvh_request_pin_t *pin,
                                 int32_t window,
                                 int32_t *ids,
                                 size_t capacity,
                                 size_t *count_out);

// Ends the pin. NULL is fine.
void kvh_request_pin_destroy(kvh_request_pin_t *pin);

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

// Collective: begins what kvh_communicator_min does at once, and waits for nobody. An executor
// calls it once an iteration with one value for each open attempt, in the order in which rank 0
// broadcast their requests, and asks for the result with kvh_communicator_min_poll. One at a time;
// rounds may come in between. With callbacks the reduction is made in this call.
// KVH_ERR_STATE: one is under way. Bad arguments and poisoned contexts are told to all ranks by
// kvh_communicator_min_poll, as by kvh_communicator_min; this rank gets its own error here, and
// polls with count 0.
KVH_MUST_USE
kvh_status_t kvh_communicator_min_begin(kvh_communicator_t *communicator,
                                        const uint64_t *mine,
                                        size_t count);

// Whether the agreement that was begun is over: KVH_IN_PROGRESS while not all ranks are known to have
// begun it; KVH_OK and result[i] is the smallest of all ranks' mine[i]; other statuses as
// kvh_communicator_min. Does not wait. `count` is the one that the agreement was begun with, or 0
// where that call was refused. KVH_ERR_STATE: none is under way, or one with another count.
KVH_MUST_USE
kvh_status_t kvh_communicator_min_poll(kvh_communicator_t *communicator,
                                       uint64_t *result,
                                       size_t count);

// Collective: gives back what the communicator holds; only destroying it is left. With MPI this
// comes before MPI_Finalize. KVH_ERR_STATE: closed before, or MPI finalised already.
KVH_MUST_USE kvh_status_t kvh_communicator_close(kvh_communicator_t *communicator);

// Destroys the communicator, and calls no MPI: without kvh_communicator_close before, what it
// holds of MPI is leaked, on purpose, until MPI_Finalize. Local ranks that wait for this one get
// KVH_ERR_COMMUNICATOR. NULL is fine.
void kvh_communicator_destroy(kvh_communicator_t *communicator);

// Creates a communicator from the host's own operations. Collective: all ranks give equal params and
// run the same release, which is compared with min_reduce. Destroying it calls `destroy`, whatever
// this returns; see there. `error_out` may be NULL; else an error's text may be written to it, which
// the caller destroys. KVH_ERR_INVALID_ARGUMENT: a function is missing, no such rank, sizes that do not
// multiply to size, or a deadline. KVH_ERR_COMMUNICATOR: a function failed, or the ranks do not agree.
// Bad params of this rank are its error, and KVH_ERR_COMMUNICATOR on others.
KVH_MUST_USE
kvh_status_t kvh_communicator_from_ops(const kvh_context_t *context,
                                       const kvh_communicator_params_t *params,
                                       const kvh_communicator_ops_t *ops,
                                       kvh_communicator_t **communicator_out,
                                       kvh_error_t **error_out);

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
// KVH_ERR_COMMUNICATOR: a rank is gone, or this rank got a damaged frame; then its context is
// poisoned, and the other ranks learn of it at their next agreement.
// KVH_ERR_NO_MEMORY on one rank alone: it lost this batch, and from now on gets
// KVH_ERR_COMMUNICATOR; the other ranks learn of it at their next agreement.
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

// Creates an owner out of the host's functions. Destroy it with kvh_block_owner_destroy; destroying it
// calls ops->destroy, whatever this returns; see there. KVH_ERR_INVALID_ARGUMENT: a function is
// missing, or a size is 0 or larger than memory.
KVH_MUST_USE
kvh_status_t kvh_block_owner_create(const kvh_block_owner_ops_t *ops,
                                    kvh_block_owner_t **owner_out);

// Destroys the owner. NULL is fine. Transceivers that have it go on with it.
void kvh_block_owner_destroy(kvh_block_owner_t *owner);

// Creates a transceiver and starts its threads. Destroy it with kvh_transceiver_destroy; context,
// tree, hub, key ring and block owner may go first. With params->block_owner `tree` is NULL. KVH_ERR_INVALID_ARGUMENT: a value that cannot be.
// KVH_ERR_UNSUPPORTED: no UCX here, or no CUDA device for KVH_MEMORY_CUDA. KVH_ERR_LIMIT: no thread could
// be started. On each, *error_out, if not NULL, says it in words; destroy it with kvh_error_destroy.
KVH_MUST_USE
kvh_status_t kvh_transceiver_create(const kvh_context_t *context,
                                    const kvh_reuse_tree_t *tree,
                                    const kvh_transceiver_params_t *params,
                                    kvh_transceiver_t **transceiver_out,
                                    kvh_error_t **error_out);

// Lets states be fetched from an endpoint ("http://host:port/path"), whatever the binding table
// allows: this list is the transfer's own. address_ranges (CIDR, such as "10.0.0.0/8") bound the
// addresses that the endpoint may lead to, itself and the transport addresses in its state; none: any.
// "http" and "tcp" are fetched. Listing an endpoint means trusting the host behind it: UCX may crash on
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

// Serves the worker's state over plain TCP, for endpoints like tcp://host:port; the rest is as for
// kvh_transceiver_serve_http, which may be called too. Until the state is set connections are closed.
KVH_MUST_USE
kvh_status_t kvh_transceiver_serve_tcp(const kvh_transceiver_t *transceiver,
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
// prefetch, or is held by the reuse tree. KVH_ERR_LIMIT: too many prefetches or blocks at once. KVH_ERR_INVALID_ARGUMENT:
// neither plan nor state, a state that cannot be read, blocks that are not distinct and in the
// pool, too few of them under KVH_RANGE_STRICT, or a sequence with other tokens per block. What
// goes wrong later is an outcome. Destroy the prefetch with kvh_prefetch_destroy.
KVH_MUST_USE
kvh_status_t kvh_prefetch_begin(const kvh_transceiver_t *transceiver,
                                const kvh_prefetch_params_t *params,
                                kvh_prefetch_t **prefetch_out);

// Where the request stands: KVH_PREFETCH_*. KVH_IN_PROGRESS until there is an outcome, then KVH_OK,
// or KVH_ERR_REQUIRED_SOURCE: the source was required and did not deliver every block asked for, and
// the host did not cancel, so the request itself has failed. *state_out is written with all three. A
// few nanoseconds; call it as often as is convenient.
KVH_MUST_USE kvh_status_t kvh_prefetch_poll(const kvh_prefetch_t *prefetch, uint32_t *state_out);

// The attempt's number among those of its transceiver, as profiles, logs and kvh_context_status
// show it; never 0, but 0 for NULL.
uint64_t kvh_prefetch_number(const kvh_prefetch_t *prefetch);

// The stable name of a KVH_OUTCOME_*, such as "content_miss"; static, never NULL. "unknown" for a
// number that is none.
const char *kvh_outcome_string(uint32_t outcome);

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
