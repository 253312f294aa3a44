// kvhints for C++17: owners that destroy what they hold, views instead of (data, len), errors as
// exceptions or, through attempt(), as results. Header only; everything it does is a call in kvhints.h, whose comments are the
// contract. Each class is as small as its handle, movable, and gives the handle with get().
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_HPP
#define KVHINTS_HPP

#include "kvhints.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvhints {

// A call failed; status() is negative.
class Error : public std::runtime_error {
 public:
  Error(kvh_status_t status, const std::string &text) : std::runtime_error(text), status_(status) {}

  kvh_status_t status() const noexcept { return status_; }

 private:
  kvh_status_t status_;
};

// Throws on a negative status; gives back the others (ok, in progress, not found, busy). With the
// text of `error`, if there is one, which is destroyed. By reference, because the call that gives the
// status may be evaluated after its other argument.
inline kvh_status_t check(kvh_status_t status, kvh_error_t *const &error = nullptr) {
  if (status >= 0) {
    return status;
  }
  std::string message = kvh_status_string(status);
  if (error != nullptr) {
    const kvh_str_t text = kvh_error_message(error);
    message.append(": ").append(text.data, text.len);
    kvh_error_destroy(error);
  }
  throw Error(status, message);
}

// What a call gives, or why it failed: for hosts that do not want to be thrown at. Made by attempt().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  // KVH_OK, or the error's.
  kvh_status_t status() const noexcept { return has_value() ? KVH_OK : error().status(); }
  // Only where there is none: see has_value().
  const Error &error() const noexcept { return *std::get_if<1>(&state_); }
  // Only where there is one.
  T &operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T &operator*() const & noexcept { return *std::get_if<0>(&state_); }
  T &&operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T *operator->() noexcept { return std::get_if<0>(&state_); }
  const T *operator->() const noexcept { return std::get_if<0>(&state_); }
  // Throws the error where there is no value.
  T &value() & { return has_value() ? **this : throw error(); }
  T &&value() && { return has_value() ? std::move(**this) : throw error(); }

 private:
  std::variant<T, Error> state_;
};

// The same of a call that gives nothing.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() noexcept = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  kvh_status_t status() const noexcept { return has_value() ? KVH_OK : error_->status(); }
  // Only where there is one: see has_value().
  const Error &error() const noexcept { return *error_; }
  // Throws the error where there is one.
  void value() const {
    if (error_) {
      throw *error_;
    }
  }

 private:
  std::optional<Error> error_;
};

// Calls `call` and gives what it gives, or the Error that it threw, as a Result:
//
//   auto tree = kvhints::attempt([&] { return kvhints::ReuseTree(context, 64); });
//   if (!tree) { log(tree.error().what()); }
//
// Memory that C++ could not have is KVH_ERR_NO_MEMORY. Other exceptions, which only `call` itself can
// throw, pass.
template <typename Call>
auto attempt(Call &&call) -> Result<std::invoke_result_t<Call>> {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Call>>) {
      std::forward<Call>(call)();
      return {};
    } else {
      return std::forward<Call>(call)();
    }
  } catch (const Error &error) {
    return error;
  } catch (const std::bad_alloc &) {
    return Error(KVH_ERR_NO_MEMORY, kvh_status_string(KVH_ERR_NO_MEMORY));
  }
}

// Values that something else owns.
template <typename T>
class View {
 public:
  constexpr View() noexcept = default;
  constexpr View(const T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  View(const std::vector<T> &values) noexcept : data_(values.data()), size_(values.size()) {}

  constexpr const T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr const T *begin() const noexcept { return data_; }
  constexpr const T *end() const noexcept { return data_ + size_; }
  constexpr const T &operator[](std::size_t index) const noexcept { return data_[index]; }

 private:
  const T *data_ = nullptr;
  std::size_t size_ = 0;
};

using Bytes = View<std::uint8_t>;

inline std::string_view text(kvh_str_t text) noexcept { return {text.data, text.len}; }
inline std::string_view text(kvh_bytes_t bytes) noexcept {
  return {reinterpret_cast<const char *>(bytes.data), bytes.len};
}
inline kvh_str_t borrow(std::string_view text) noexcept { return {text.data(), text.size()}; }
inline kvh_bytes_t borrow(Bytes bytes) noexcept { return {bytes.data(), bytes.size()}; }

// The bytes of a text, for calls that take bytes.
inline Bytes as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::uint8_t *>(text.data()), text.size()};
}

// A parameter or output struct, zero but for its size.
template <typename T>
T sized() noexcept {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

namespace detail {

template <typename T, void (*Destroy)(T *)>
struct Deleter {
  void operator()(T *handle) const noexcept { Destroy(handle); }
};

// Owns one handle and destroys it.
template <typename T, void (*Destroy)(T *)>
using Handle = std::unique_ptr<T, Deleter<T, Destroy>>;

// A text that may grow between the call that tells its length and the one that fills it.
template <typename Fill>
std::string growing_text(Fill fill) {
  std::string text;
  std::size_t length = 0;
  kvh_status_t status = check(fill(nullptr, 0, &length));
  do {
    text.resize(length + 64);
    status = fill(text.data(), text.size(), &length);
  } while (status == KVH_ERR_TOO_SMALL);
  check(status);
  text.resize(length);
  return text;
}

}  // namespace detail

// How a request came in: over HTTP, where hints count only if trusted, or from this process.
enum class Ingress : std::int32_t { http = KVH_INGRESS_HTTP, trusted = KVH_INGRESS_TRUSTED };

// What admission said of a hint. Anything but `admitted` means: go on without it.
enum class Verdict : std::int32_t {
  admitted = KVH_VERDICT_ADMITTED,
  absent = KVH_VERDICT_ABSENT,
  untrusted = KVH_VERDICT_UNTRUSTED,
  unknown_version = KVH_VERDICT_UNKNOWN_VERSION,
  oversized = KVH_VERDICT_OVERSIZED,
  malformed = KVH_VERDICT_MALFORMED,
};

// Bytes made by the library.
class Buffer {
 public:
  explicit Buffer(kvh_buffer_t *handle) noexcept : handle_(handle) {}

  Bytes bytes() const noexcept {
    const kvh_bytes_t bytes = kvh_buffer_bytes(get());
    return {bytes.data, bytes.len};
  }
  std::string_view text() const noexcept { return kvhints::text(kvh_buffer_bytes(get())); }
  kvh_buffer_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_buffer_t, kvh_buffer_release> handle_;
};

// An admitted hint: immutable, shared; a copy is one more reference. Empty when nothing was admitted.
class Snapshot {
 public:
  Snapshot() noexcept = default;
  explicit Snapshot(kvh_snapshot_t *handle) noexcept : handle_(handle) {}
  Snapshot(const Snapshot &other) noexcept
      : handle_(other.handle_ ? kvh_snapshot_retain(other.get()) : nullptr) {}
  Snapshot(Snapshot &&other) noexcept = default;
  Snapshot &operator=(Snapshot other) noexcept {
    handle_.swap(other.handle_);
    return *this;
  }
  ~Snapshot() = default;

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  std::string_view json() const noexcept { return text(kvh_snapshot_json(get())); }
  std::string_view message_id() const noexcept { return text(kvh_snapshot_message_id(get())); }
  std::size_t action_count() const noexcept { return kvh_snapshot_action_count(get()); }
  kvh_action_t action(std::size_t index) const {
    kvh_action_t action{};
    check(kvh_snapshot_action(get(), index, &action));
    return action;
  }
  Snapshot one_action(std::size_t index) const {
    kvh_snapshot_t *envelope = nullptr;
    check(kvh_snapshot_one_action(get(), index, &envelope));
    return Snapshot(envelope);
  }
  Buffer msgpack() const {
    kvh_buffer_t *msgpack = nullptr;
    check(kvh_snapshot_msgpack(get(), &msgpack));
    return Buffer(msgpack);
  }
  kvh_snapshot_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_snapshot_t, kvh_snapshot_release> handle_;
};

// A verdict, and the snapshot if it is `admitted`.
struct Admission {
  Verdict verdict;
  Snapshot snapshot;
};

// The same of a whole body, and the body without its hint.
struct BodyAdmission {
  Verdict verdict;
  Snapshot snapshot;
  Buffer body;
};

// Keys for signed hints; give get() to a context's params. Calls may come from any thread.
class KeyRing {
 public:
  KeyRing() : KeyRing(sized<kvh_key_ring_params_t>()) {}
  explicit KeyRing(const kvh_key_ring_params_t &params) {
    kvh_key_ring_t *ring = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_key_ring_create(&params, &ring, &error), error);
    handle_.reset(ring);
  }

  void add(std::string_view key_id, Bytes secret) const {
    kvh_error_t *error = nullptr;
    check(kvh_key_ring_add(get(), borrow(key_id), borrow(secret), &error), error);
  }
  // Whether it was there.
  bool remove(std::string_view key_id) const {
    return check(kvh_key_ring_remove(get(), borrow(key_id))) == KVH_OK;
  }
  // The signed envelope's JSON. Throws with KVH_NOT_FOUND when there is no such key.
  Buffer sign(const Snapshot &envelope, const kvh_signing_params_t &params) const {
    kvh_buffer_t *json = nullptr;
    kvh_error_t *error = nullptr;
    const kvh_status_t status =
        check(kvh_key_ring_sign(get(), envelope.get(), &params, &json, &error), error);
    if (status != KVH_OK) {
      kvh_error_destroy(error);
      throw Error(status, kvh_status_string(status));
    }
    return Buffer(json);
  }
  kvh_key_ring_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_key_ring_t, kvh_key_ring_destroy> handle_;
};

// An envelope in the making, for routers. A part that breaks a rule throws and changes nothing.
class EnvelopeBuilder {
 public:
  explicit EnvelopeBuilder(std::string_view message_id) {
    kvh_envelope_builder_t *builder = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_envelope_builder_create(borrow(message_id), &builder, &error), error);
    handle_.reset(builder);
  }

  // payload is a JSON object.
  void add_action(std::string_view id, std::string_view type, std::string_view version, std::string_view payload) {
    kvh_error_t *error = nullptr;
    check(kvh_envelope_builder_add_action(get(), borrow(id), borrow(type), borrow(version),
                                          borrow(as_bytes(payload)), &error),
          error);
  }
  void add_fetch(std::string_view id, std::string_view version, std::string_view source_control_endpoint,
                 View<std::uint64_t> hashes) {
    kvh_error_t *error = nullptr;
    check(kvh_envelope_builder_add_fetch(get(), borrow(id), borrow(version), borrow(source_control_endpoint),
                                         hashes.data(), hashes.size(), &error),
          error);
  }
  // Extra metadata of the envelope; value is any JSON value.
  void add_extra(std::string_view name, std::string_view value) {
    kvh_error_t *error = nullptr;
    check(kvh_envelope_builder_add_extra(get(), borrow(name), borrow(as_bytes(value)), &error), error);
  }
  // Extra metadata of the action that was added last.
  void add_action_extra(std::string_view name, std::string_view value) {
    kvh_error_t *error = nullptr;
    check(kvh_envelope_builder_add_action_extra(get(), borrow(name), borrow(as_bytes(value)), &error), error);
  }
  // The envelope so far; the builder can go on.
  Snapshot finish() {
    kvh_snapshot_t *snapshot = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_envelope_builder_finish(get(), &snapshot, &error), error);
    return Snapshot(snapshot);
  }
  kvh_envelope_builder_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_envelope_builder_t, kvh_envelope_builder_destroy> handle_;
};

// Why a hint comes to its verdict: numbers, and words that are empty for an admitted one.
struct Explanation {
  kvh_explanation_t numbers;
  std::string words;
};

// The library's configuration, metrics and clock, shared by the objects made from it.
class Context {
 public:
  Context() : Context(nullptr) {}
  explicit Context(const kvh_context_params_t &params) : Context(&params) {}

  // Judges one hint: the raw bytes as they came.
  Admission admit(Ingress ingress, std::string_view json) const { return judge(kvh_admit, ingress, as_bytes(json)); }
  Admission admit_msgpack(Ingress ingress, Bytes data) const { return judge(kvh_admit_msgpack, ingress, data); }

  // Takes the hint out of a whole request body and judges it. Throws with KVH_ERR_BODY when the body
  // is refused.
  BodyAdmission admit_body(Ingress ingress, std::string_view body) const {
    return judge_body(kvh_admit_body, ingress, as_bytes(body));
  }
  BodyAdmission admit_body_msgpack(Ingress ingress, Bytes body) const {
    return judge_body(kvh_admit_body_msgpack, ingress, body);
  }

  // What admit would say, and why. Slow; counts nothing.
  Explanation explain(Ingress ingress, std::string_view json) const {
    return why(kvh_explain, ingress, as_bytes(json));
  }
  Explanation explain_msgpack(Ingress ingress, Bytes data) const { return why(kvh_explain_msgpack, ingress, data); }

  // Prometheus text.
  std::string metrics() const {
    return detail::growing_text([this](char *buf, std::size_t buf_len, std::size_t *length) {
      return kvh_context_metrics(get(), buf, buf_len, length);
    });
  }

  // What the context is doing, as JSON. Waits for nobody, whoever hangs.
  std::string status() const {
    return detail::growing_text([this](char *buf, std::size_t buf_len, std::size_t *length) {
      return kvh_context_status(get(), buf, buf_len, length);
    });
  }

  // Sends the log, up to a level (KVH_LOG_*), to `log`: a noexcept callable that takes a
  // const kvh_log_record_t &, from any thread, several at once. Once for each context.
  template <typename Log>
  void set_log(std::uint32_t level, Log log) const {
    static_assert(std::is_nothrow_invocable_v<Log &, const kvh_log_record_t &>,
                  "no exception may enter the library: make the callable noexcept");
    auto owned = std::make_unique<Log>(std::move(log));
    // From here on the library owns it, and destroys it on failure too.
    check(kvh_context_set_log(
        get(), level,
        [](void *log, const kvh_log_record_t *record) noexcept { (*static_cast<Log *>(log))(*record); },
        owned.release(), [](void *log) noexcept { delete static_cast<Log *>(log); }));
  }

  kvh_context_t *get() const noexcept { return handle_.get(); }

 private:
  explicit Context(const kvh_context_params_t *params) {
    kvh_context_t *context = nullptr;
    check(kvh_context_create(params, &context));
    handle_.reset(context);
  }

  template <typename Call>
  Admission judge(Call call, Ingress ingress, Bytes raw) const {
    std::int32_t verdict = 0;
    kvh_snapshot_t *snapshot = nullptr;
    check(call(get(), static_cast<std::int32_t>(ingress), raw.data(), raw.size(), &verdict, &snapshot));
    return {static_cast<Verdict>(verdict), Snapshot(snapshot)};
  }
  template <typename Call>
  BodyAdmission judge_body(Call call, Ingress ingress, Bytes raw) const {
    std::int32_t verdict = 0;
    kvh_snapshot_t *snapshot = nullptr;
    kvh_buffer_t *body = nullptr;
    check(call(get(), static_cast<std::int32_t>(ingress), raw.data(), raw.size(), &verdict, &snapshot, &body));
    return {static_cast<Verdict>(verdict), Snapshot(snapshot), Buffer(body)};
  }
  template <typename Call>
  Explanation why(Call call, Ingress ingress, Bytes raw) const {
    auto numbers = sized<kvh_explanation_t>();
    kvh_error_t *error = nullptr;
    check(call(get(), static_cast<std::int32_t>(ingress), raw.data(), raw.size(), &numbers, &error), error);
    const detail::Handle<kvh_error_t, kvh_error_destroy> owned(error);
    return {numbers, error == nullptr ? std::string() : std::string(text(kvh_error_message(error)))};
  }

  detail::Handle<kvh_context_t, kvh_context_destroy> handle_;
};

// What a request's tokens mean for reuse: cut into blocks, hashed, named. Grows by append.
class Sequence {
 public:
  explicit Sequence(const kvh_sequence_params_t &params) {
    kvh_sequence_t *sequence = nullptr;
    check(kvh_sequence_create(&params, &sequence));
    handle_.reset(sequence);
  }
  // Plain text tokens in blocks of tokens_per_block; namespace_bytes names the model and revision.
  Sequence(std::uint32_t tokens_per_block, View<std::int32_t> tokens, std::string_view namespace_bytes)
      : Sequence(plain(tokens_per_block, tokens, namespace_bytes)) {}

  void append(View<std::int32_t> tokens) {
    check(kvh_sequence_append(get(), tokens.data(), nullptr, tokens.size(), nullptr, 0));
  }
  std::size_t block_count() const noexcept { return kvh_sequence_block_count(get()); }
  std::vector<std::uint64_t> block_hashes() const {
    std::vector<std::uint64_t> hashes(block_count());
    std::size_t count = 0;
    check(kvh_sequence_block_hashes(get(), hashes.data(), hashes.size(), &count));
    return hashes;
  }
  kvh_sequence_t *get() const noexcept { return handle_.get(); }

 private:
  static kvh_sequence_params_t plain(std::uint32_t tokens_per_block, View<std::int32_t> tokens,
                                     std::string_view namespace_bytes) noexcept {
    auto params = sized<kvh_sequence_params_t>();
    params.tokens_per_block = tokens_per_block;
    params.tokens = tokens.data();
    params.token_count = tokens.size();
    params.namespace_bytes = borrow(as_bytes(namespace_bytes));
    return params;
  }

  detail::Handle<kvh_sequence_t, kvh_sequence_destroy> handle_;
};

// Blocks that are pinned until unpin() or the end of this object.
class BlockRange {
 public:
  explicit BlockRange(kvh_block_range_t *handle) noexcept : handle_(handle) {}

  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> ids(kvh_block_range_count(get()));
    std::size_t count = 0;
    check(kvh_block_range_ids(get(), ids.data(), ids.size(), &count));
    return ids;
  }
  void unpin() const { check(kvh_block_range_unpin(get())); }
  kvh_block_range_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_block_range_t, kvh_block_range_destroy> handle_;
};

// What ReuseTree::store_and_pin came to.
struct StoredAndPinned {
  // What the tree holds at each position.
  std::vector<std::int32_t> held;
  std::optional<BlockRange> range;
};

// Which policy a range is pinned or fetched with: all of it, or the longest prefix there is.
enum class Policy : std::uint32_t { strict = KVH_RANGE_STRICT, best_effort = KVH_RANGE_BEST_EFFORT };

// Which blocks this worker holds, by content. The host decides what to evict; or, in owner mode, the
// library, which then hands blocks out to requests.
class ReuseTree {
 public:
  ReuseTree(const Context &context, std::uint32_t tokens_per_block) {
    auto params = sized<kvh_reuse_tree_params_t>();
    params.tokens_per_block = tokens_per_block;
    params.mode = KVH_REUSE_MODE_ARBITER;
    kvh_reuse_tree_t *tree = nullptr;
    check(kvh_reuse_tree_create(context.get(), &params, &tree));
    handle_.reset(tree);
  }
  // With all parameters: owner mode, windows, events.
  ReuseTree(const Context &context, const kvh_reuse_tree_params_t &params) {
    kvh_reuse_tree_t *tree = nullptr;
    check(kvh_reuse_tree_create(context.get(), &params, &tree));
    handle_.reset(tree);
  }

  // Stores blocks of the full window from first_block on; gives what the tree holds there now.
  std::vector<std::int32_t> store(const Sequence &sequence, std::size_t first_block, View<std::int32_t> ids) const {
    std::vector<std::int32_t> held(ids.size());
    check(kvh_reuse_tree_store(get(), KVH_WINDOW_FULL, sequence.get(), first_block, ids.data(), ids.size(),
                               held.data()));
    return held;
  }
  // The same for blocks whose bytes are complete once fence_passed(fence) was called.
  std::vector<std::int32_t> store_with_fence(const Sequence &sequence, std::size_t first_block,
                                             View<std::int32_t> ids, std::uint64_t fence) const {
    std::vector<std::int32_t> held(ids.size());
    check(kvh_reuse_tree_store_with_fence(get(), KVH_WINDOW_FULL, sequence.get(), first_block, ids.data(), ids.size(),
                                          fence, held.data()));
    return held;
  }
  void fence_passed(std::uint64_t fence) const { check(kvh_reuse_tree_fence_passed(get(), fence)); }
  // store() and a pin on what the tree then holds there, in one step; no range if that is nothing.
  StoredAndPinned store_and_pin(const Sequence &sequence, std::size_t first_block, View<std::int32_t> ids,
                                std::uint64_t lease_ns = 0) const {
    StoredAndPinned stored;
    stored.held.resize(ids.size());
    kvh_block_range_t *range = nullptr;
    if (check(kvh_reuse_tree_store_and_pin(get(), KVH_WINDOW_FULL, sequence.get(), first_block, ids.data(), ids.size(),
                                           lease_ns, stored.held.data(), &range)) == KVH_OK) {
      stored.range.emplace(range);
    }
    return stored;
  }
  // Pins full-window blocks that a request holds, stored or not; nothing if none of the ids is one.
  std::optional<BlockRange> pin_blocks(View<std::int32_t> ids, std::uint64_t lease_ns = 0) const {
    kvh_block_range_t *range = nullptr;
    if (check(kvh_reuse_tree_pin_blocks(get(), KVH_WINDOW_FULL, ids.data(), ids.size(), lease_ns, &range)) ==
        KVH_NOT_FOUND) {
      return std::nullopt;
    }
    return BlockRange(range);
  }
  // Length in tokens of the longest stored prefix, at most max_tokens.
  std::size_t match(const Sequence &sequence, std::size_t max_tokens) const {
    std::size_t matched = 0;
    check(kvh_reuse_tree_match(get(), KVH_WINDOW_FULL, sequence.get(), max_tokens, &matched));
    return matched;
  }
  // KVH_OK, KVH_BUSY while a pin protects the block, KVH_NOT_FOUND when it is not in the tree.
  kvh_status_t evict(std::int32_t block_id) const {
    return check(kvh_reuse_tree_evict(get(), KVH_WINDOW_FULL, block_id));
  }
  // Pins full-window blocks; nothing if the tree does not hold what the policy asks for.
  std::optional<BlockRange> pin(const Sequence &sequence, std::size_t first_block, std::size_t block_count,
                                Policy policy) const {
    auto params = sized<kvh_block_range_params_t>();
    params.window = KVH_WINDOW_FULL;
    params.policy = static_cast<std::uint32_t>(policy);
    params.first_block = first_block;
    params.block_count = block_count;
    std::size_t present = 0;
    kvh_block_range_t *range = nullptr;
    if (check(kvh_block_range_from_reuse_tree(get(), sequence.get(), &params, &present, &range)) ==
        KVH_NOT_FOUND) {
      return std::nullopt;
    }
    return BlockRange(range);
  }
  // Events that wait, oldest first, each once.
  std::vector<kvh_reuse_event_t> events() const {
    std::size_t count = 0;
    check(kvh_reuse_tree_events(get(), nullptr, 0, &count));
    std::vector<kvh_reuse_event_t> events(count, sized<kvh_reuse_event_t>());
    check(kvh_reuse_tree_events(get(), events.data(), events.size(), &count));
    events.resize(count);
    return events;
  }
  // Owner mode: the copies to make, in their order; then copied().
  std::vector<kvh_block_copy_t> copies() const {
    std::size_t count = 0;
    check(kvh_reuse_tree_copies(get(), nullptr, 0, &count));
    std::vector<kvh_block_copy_t> copies(count, sized<kvh_block_copy_t>());
    check(kvh_reuse_tree_copies(get(), copies.data(), copies.size(), &count));
    copies.resize(std::min(count, copies.size()));
    return copies;
  }
  void copied(std::size_t count) const { check(kvh_reuse_tree_copied(get(), count)); }
  // Owner mode: blocks of a window that can be taken from a tier (KVH_TIER_*).
  std::size_t free_count(std::uint32_t tier, std::int32_t window = KVH_WINDOW_FULL) const {
    std::size_t count = 0;
    check(kvh_reuse_tree_free_count(get(), window, tier, &count));
    return count;
  }
  // Once an iteration: priorities and leases end.
  kvh_reuse_tree_refreshed_t refresh() const {
    auto refreshed = sized<kvh_reuse_tree_refreshed_t>();
    check(kvh_reuse_tree_refresh(get(), &refreshed));
    return refreshed;
  }
  kvh_reuse_tree_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_reuse_tree_t, kvh_reuse_tree_destroy> handle_;
};

// The blocks of one request in owner mode. Given back, not stored, when it goes without finish().
class Request {
 public:
  // Nothing when not enough blocks are free.
  static std::optional<Request> add(const ReuseTree &tree, const Sequence &prompt,
                                    View<kvh_retention_range_t> retention = {}) {
    auto params = sized<kvh_request_params_t>();
    params.sequence = prompt.get();
    params.max_matched_tokens = SIZE_MAX;
    params.retention = retention.data();
    params.retention_count = retention.size();
    kvh_request_t *request = nullptr;
    if (check(kvh_request_add(tree.get(), &params, &request)) == KVH_BUSY) {
      return std::nullopt;
    }
    return Request(request);
  }

  // Leading tokens that need no computing.
  std::size_t matched_tokens() const noexcept { return kvh_request_matched_tokens(get()); }
  // The blocks of a window, in the order of the sequence.
  std::vector<std::int32_t> ids(std::int32_t window = KVH_WINDOW_FULL) const {
    std::size_t first_block = 0, count = 0;
    check(kvh_request_blocks(get(), window, &first_block, nullptr, 0, &count));
    std::vector<std::int32_t> ids(count);
    check(kvh_request_blocks(get(), window, &first_block, ids.data(), ids.size(), &count));
    return ids;
  }
  // Room for more tokens; false when not enough blocks are free.
  bool grow(std::size_t token_count, std::int32_t priority = KVH_PRIORITY_DEFAULT) {
    return check(kvh_request_grow(get(), token_count, priority, 0)) == KVH_OK;
  }
  // Stores the full blocks of the first token_count tokens and goes on.
  void store_context(const Sequence &sequence, std::size_t token_count) const {
    check(kvh_request_store_context(get(), sequence.get(), token_count));
  }
  // Stores the first token_count tokens' blocks and gives all back.
  void finish(const Sequence &sequence, std::size_t token_count) {
    check(kvh_request_finish(get(), sequence.get(), token_count));
  }
  kvh_request_t *get() const noexcept { return handle_.get(); }

 private:
  explicit Request(kvh_request_t *handle) noexcept : handle_(handle) {}

  detail::Handle<kvh_request_t, kvh_request_destroy> handle_;
};

// Which actions a backend family supports.
class Capabilities {
 public:
  Capabilities() {
    kvh_capabilities_t *capabilities = nullptr;
    check(kvh_capabilities_create(&capabilities));
    handle_.reset(capabilities);
  }

  void add(std::string_view family, std::string_view action_type, std::string_view action_version) {
    check(kvh_capabilities_add(get(), borrow(family), borrow(action_type), borrow(action_version)));
  }
  kvh_capabilities_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_capabilities_t, kvh_capabilities_destroy> handle_;
};

// The actions of a hint that some family supports: what a decision chooses from.
class Candidates {
 public:
  Candidates(const Snapshot &hint, const Capabilities &capabilities) {
    kvh_candidates_t *candidates = nullptr;
    check(kvh_candidates_collect(hint.get(), capabilities.get(), &candidates));
    handle_.reset(candidates);
  }

  // How many actions there were of each sort.
  kvh_candidate_counts_t counts() const {
    kvh_candidate_counts_t counts{};
    check(kvh_candidates_counts(get(), &counts));
    return counts;
  }
  // The position in the hint of a candidate's action.
  std::size_t action_index(std::size_t index) const { return at(index).first; }
  // The families that support a candidate, sorted bytewise; valid as long as this object.
  std::vector<std::string_view> families(std::size_t index) const {
    std::vector<std::string_view> families(at(index).second);
    for (std::size_t family = 0; family < families.size(); ++family) {
      kvh_str_t name{};
      check(kvh_candidates_family(get(), index, family, &name));
      families[family] = text(name);
    }
    return families;
  }
  kvh_candidates_t *get() const noexcept { return handle_.get(); }

 private:
  std::pair<std::size_t, std::size_t> at(std::size_t index) const {
    std::size_t action_index = 0, family_count = 0;
    check(kvh_candidates_get(get(), index, &action_index, &family_count));
    return {action_index, family_count};
  }

  detail::Handle<kvh_candidates_t, kvh_candidates_destroy> handle_;
};

// The server's configuration: bindings, what each may do, and the endpoints that are trusted.
class BindingTable {
 public:
  BindingTable() {
    kvh_binding_table_t *table = nullptr;
    check(kvh_binding_table_create(&table));
    handle_.reset(table);
  }
  // From the text of a JSON file.
  explicit BindingTable(std::string_view json) {
    kvh_binding_table_t *table = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_binding_table_load(as_bytes(json).data(), json.size(), &table, &error), error);
    handle_.reset(table);
  }
  kvh_binding_table_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_binding_table_t, kvh_binding_table_destroy> handle_;
};

// One decision about a request's hint: a named fetch, or local with the reason.
class Plan {
 public:
  explicit Plan(kvh_plan_t *handle) noexcept : handle_(handle) {}
  // hint may be empty: no hint.
  Plan(const Context &context, const Snapshot &hint, const Capabilities &capabilities, const BindingTable &table,
       const kvh_request_profile_t &profile) {
    kvh_plan_t *plan = nullptr;
    check(kvh_plan_decide(context.get(), hint.get(), capabilities.get(), table.get(), &profile, &plan));
    handle_.reset(plan);
  }

  bool is_fetch() const noexcept { return kvh_plan_kind(get()) == KVH_PLAN_NAMED_FETCH; }
  // "none" for a fetch.
  const char *refusal() const noexcept { return kvh_refusal_string(kvh_plan_reason(get())); }
  kvh_plan_fetch_t fetch() const {
    auto fetch = sized<kvh_plan_fetch_t>();
    check(kvh_plan_fetch(get(), &fetch));
    return fetch;
  }
  kvh_plan_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_plan_t, kvh_plan_destroy> handle_;
};

// New requests, on their way to all ranks. Bodies are borrowed until the broadcast.
class Batch {
 public:
  Batch() {
    kvh_batch_t *batch = nullptr;
    check(kvh_batch_create(&batch));
    handle_.reset(batch);
  }
  explicit Batch(kvh_batch_t *handle) noexcept : handle_(handle) {}

  void add(std::uint64_t id, std::string_view body, const Snapshot &hint, const Plan *plan) {
    auto request = sized<kvh_batch_request_t>();
    request.id = id;
    request.body = borrow(as_bytes(body));
    request.snapshot = hint.get();
    request.plan = plan == nullptr ? nullptr : plan->get();
    check(kvh_batch_add(get(), &request));
  }
  std::size_t size() const noexcept { return kvh_batch_count(get()); }
  kvh_batch_request_t operator[](std::size_t index) const {
    auto request = sized<kvh_batch_request_t>();
    check(kvh_batch_get(get(), index, &request));
    return request;
  }
  kvh_batch_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_batch_t, kvh_batch_destroy> handle_;
};

// Ranks inside one process, each used by a thread of its own.
class LocalGroup {
 public:
  explicit LocalGroup(std::uint32_t size) {
    kvh_local_group_t *group = nullptr;
    check(kvh_local_group_create(size, &group));
    handle_.reset(group);
  }
  kvh_local_group_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_local_group_t, kvh_local_group_destroy> handle_;
};

// The ranks of this worker. Calls are collective. Over MPI, close() comes before MPI_Finalize.
class Communicator {
 public:
  explicit Communicator(kvh_communicator_t *handle) noexcept : handle_(handle) {}
  // Over MPI: fortran_handle is MPI_Comm_c2f of the host's communicator.
  Communicator(const Context &context, const kvh_communicator_params_t &params, std::int64_t fortran_handle) {
    kvh_communicator_t *communicator = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_communicator_create_mpi(context.get(), &params, fortran_handle, &communicator, &error), error);
    handle_.reset(communicator);
  }
  // Of the host's own functions, which must not throw; ops.destroy runs exactly once, whatever happens.
  Communicator(const Context &context, const kvh_communicator_params_t &params, const kvh_communicator_ops_t &ops) {
    kvh_communicator_t *communicator = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_communicator_from_ops(context.get(), &params, &ops, &communicator, &error), error);
    handle_.reset(communicator);
  }

  // One rank of a group in this process.
  Communicator(const Context &context, const LocalGroup &group, std::uint32_t rank,
               const kvh_communicator_params_t &params) {
    kvh_communicator_t *communicator = nullptr;
    check(kvh_communicator_create_local(context.get(), group.get(), rank, &params, &communicator));
    handle_.reset(communicator);
  }

  std::uint32_t rank() const noexcept { return kvh_communicator_rank(get()); }
  std::uint32_t size() const noexcept { return kvh_communicator_size(get()); }
  // Rank 0 gives its batch and gets it back; the others get a copy.
  Batch broadcast(Batch batch) {
    kvh_batch_t *received = nullptr;
    if (rank() == 0) {
      check(kvh_broadcast(get(), batch.get(), &received));
      return batch;
    }
    check(kvh_broadcast(get(), nullptr, &received));
    return Batch(received);
  }
  // The smallest of all ranks' values.
  std::uint64_t min(std::uint64_t mine) {
    check(kvh_communicator_min(get(), &mine, 1, &mine));
    return mine;
  }
  // The same begun, and asked for later; as many values come out as went in.
  void begin_min(const std::vector<std::uint64_t> &mine) {
    check(kvh_communicator_min_begin(get(), mine.data(), mine.size()));
  }
  // Whether the result is there; it is written to `smallest` then.
  bool poll_min(std::vector<std::uint64_t> &smallest) {
    const kvh_status_t status = kvh_communicator_min_poll(get(), smallest.data(), smallest.size());
    if (status == KVH_IN_PROGRESS) {
      return false;
    }
    check(status);
    return true;
  }
  void close() { check(kvh_communicator_close(get())); }
  kvh_communicator_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_communicator_t, kvh_communicator_destroy> handle_;
};

// A host's own block management, for transceivers. Its functions must not throw.
class BlockOwner {
 public:
  explicit BlockOwner(const kvh_block_owner_ops_t &ops) {
    kvh_block_owner_t *owner = nullptr;
    check(kvh_block_owner_create(&ops, &owner));
    handle_.reset(owner);
  }
  const kvh_block_owner_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_block_owner_t, kvh_block_owner_destroy> handle_;
};

// A hub for transceivers of this process: give get() to their params.
class Loopback {
 public:
  explicit Loopback(const Context &context) {
    kvh_loopback_t *loopback = nullptr;
    check(kvh_loopback_create(context.get(), &loopback));
    handle_.reset(loopback);
  }
  kvh_loopback_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_loopback_t, kvh_loopback_destroy> handle_;
};

// A rank's side of moving blocks: serves its own tree's blocks, fetches those of others.
class Transceiver {
 public:
  // Of a host's own blocks: params.block_owner.
  Transceiver(const Context &context, const kvh_transceiver_params_t &params) {
    kvh_transceiver_t *transceiver = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_transceiver_create(context.get(), nullptr, &params, &transceiver, &error), error);
    handle_.reset(transceiver);
  }
  Transceiver(const Context &context, const ReuseTree &tree, const kvh_transceiver_params_t &params) {
    kvh_transceiver_t *transceiver = nullptr;
    kvh_error_t *error = nullptr;
    check(kvh_transceiver_create(context.get(), tree.get(), &params, &transceiver, &error), error);
    handle_.reset(transceiver);
  }

  // The transfer's own list of endpoints, beside the binding table's; address_ranges may be empty.
  void allow(std::string_view endpoint, const std::vector<std::string> &address_ranges) const {
    std::vector<kvh_str_t> ranges;
    for (const std::string &range : address_ranges) {
      ranges.push_back(borrow(range));
    }
    kvh_error_t *error = nullptr;
    check(kvh_transceiver_allow(get(), borrow(endpoint), ranges.data(), ranges.size(), &error), error);
  }
  // What this rank adds to its worker's state.
  Buffer rank_entry() const {
    kvh_buffer_t *entry = nullptr;
    check(kvh_transceiver_rank_entry(get(), &entry));
    return Buffer(entry);
  }
  // The worker's state, out of the entries of all its ranks.
  void set_state(const std::vector<std::string> &entries) const {
    std::vector<kvh_bytes_t> views;
    for (const std::string &entry : entries) {
      views.push_back(borrow(as_bytes(entry)));
    }
    kvh_error_t *error = nullptr;
    check(kvh_transceiver_set_state(get(), views.data(), views.size(), &error), error);
  }
  // Serves the state over HTTP; gives the port.
  std::uint16_t serve_http(std::string_view address, std::uint16_t port) const {
    std::uint16_t chosen = 0;
    kvh_error_t *error = nullptr;
    check(kvh_transceiver_serve_http(get(), borrow(address), port, &chosen, &error), error);
    return chosen;
  }
  // Tells the state over plain TCP, for tcp:// endpoints; gives the port.
  std::uint16_t serve_tcp(std::string_view address, std::uint16_t port) const {
    std::uint16_t chosen = 0;
    kvh_error_t *error = nullptr;
    check(kvh_transceiver_serve_tcp(get(), borrow(address), port, &chosen, &error), error);
    return chosen;
  }
  kvh_transceiver_status_t status() const {
    auto status = sized<kvh_transceiver_status_t>();
    check(kvh_transceiver_status(get(), &status));
    return status;
  }
  // Which wires lead to the sources connected to, for people to read.
  std::string wires() const {
    return detail::growing_text([this](char *buf, std::size_t buf_len, std::size_t *length) {
      return kvh_transceiver_wires(get(), buf, buf_len, length);
    });
  }
  kvh_transceiver_t *get() const noexcept { return handle_.get(); }

 private:
  detail::Handle<kvh_transceiver_t, kvh_transceiver_destroy> handle_;
};

// One fetch. Its destination blocks are lent to the library until it is quiesced.
class Prefetch {
 public:
  // Nothing when there is nothing to fetch: no named fetch, or all of it is here. Throws with KVH_BUSY
  // when a block still belongs to another prefetch.
  static std::optional<Prefetch> begin(const Transceiver &transceiver, const kvh_prefetch_params_t &params) {
    kvh_prefetch_t *prefetch = nullptr;
    const kvh_status_t status = check(kvh_prefetch_begin(transceiver.get(), &params, &prefetch));
    if (status == KVH_NOT_FOUND) {
      return std::nullopt;
    }
    if (status != KVH_OK) {
      throw Error(status, kvh_status_string(status));
    }
    return Prefetch(prefetch);
  }

  // Throws with KVH_ERR_REQUIRED_SOURCE when the source was required and did not deliver.
  bool is_over() const {
    std::uint32_t state = 0;
    return check(kvh_prefetch_poll(get(), &state)) == KVH_OK;
  }
  // Nothing while it is not over.
  std::optional<kvh_prefetch_outcome_t> outcome() const {
    auto outcome = sized<kvh_prefetch_outcome_t>();
    if (check(kvh_prefetch_outcome(get(), &outcome)) == KVH_IN_PROGRESS) {
      return std::nullopt;
    }
    return outcome;
  }
  kvh_prefetch_report_t report() const {
    auto report = sized<kvh_prefetch_report_t>();
    check(kvh_prefetch_report(get(), &report));
    return report;
  }
  void cancel() const { check(kvh_prefetch_cancel(get())); }
  bool is_quiesced() const { return check(kvh_prefetch_quiesced(get())) == KVH_OK; }
  // How many of the destination blocks are the request's now.
  std::size_t claim() const {
    std::size_t count = 0;
    return check(kvh_prefetch_claim(get(), &count)) == KVH_OK ? count : 0;
  }
  // Its number in profiles, logs and the context's status.
  std::uint64_t number() const noexcept { return kvh_prefetch_number(get()); }
  kvh_prefetch_t *get() const noexcept { return handle_.get(); }

 private:
  explicit Prefetch(kvh_prefetch_t *handle) noexcept : handle_(handle) {}

  detail::Handle<kvh_prefetch_t, kvh_prefetch_destroy> handle_;
};

}  // namespace kvhints

#endif  // KVHINTS_HPP
