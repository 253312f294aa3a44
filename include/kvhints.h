/*
 * kvhints: KV hints for LLM serving. SPDX-License-Identifier: Apache-2.0
 *
 * Rules that hold for every call:
 * - Objects are opaque. Each has a destroy or release function; NULL is fine there.
 * - Functions return kvh_status_t: 0 ok, > 0 an answer that is no error, < 0 an error. On an error
 *   outputs are not written, except lengths and counts where the call says so.
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

// trust_http_hints: on only if the environment variable TRTLLM_TRUST_KV_HINTS is exactly "1" when
// the context is created.
#define KVH_TRUST_FROM_ENVIRONMENT 0

// trust_http_hints: on.
#define KVH_TRUST_ON 1

// trust_http_hints: off.
#define KVH_TRUST_OFF 2

// Longest control message and longest data header, in bytes.
#define MAX_MESSAGE_BYTES (4 << 20)

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

// Bytes made by the library, owned by the caller until released. Immutable.
typedef struct kvh_buffer kvh_buffer_t;

// A library context: configuration, metrics, clock. All calls on it may be made concurrently.
// Objects created from a context keep what they need of it: it may be destroyed before them.
typedef struct kvh_context kvh_context_t;

// What went wrong, in words: what was expected, what was found, what to do. Owned by the caller.
// Never holds contents of a hint.
typedef struct kvh_error kvh_error_t;

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
  // Called with clock_user_data exactly once: when the last object of the context is gone, or
  // when creating the context fails. May be NULL.
  kvh_destroy_fn clock_destroy;
} kvh_context_params_t;

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVHINTS_H */
