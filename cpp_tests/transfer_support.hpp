// What the tests of transceivers and prefetches share: workers with a pool, a tree and a
// transceiver, in one process.
#pragma once

#include "support.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace transfer_support {

using Loopback = support::Handle<kvh_loopback_t, kvh_loopback_destroy>;
using Tree = support::Handle<kvh_reuse_tree_t, kvh_reuse_tree_destroy>;
using Sequence = support::Handle<kvh_sequence_t, kvh_sequence_destroy>;
using Transceiver = support::Handle<kvh_transceiver_t, kvh_transceiver_destroy>;
using Prefetch = support::Handle<kvh_prefetch_t, kvh_prefetch_destroy>;

constexpr uint32_t kTokensPerBlock = 4;
constexpr size_t kBlockBytes = 512;
constexpr size_t kBlockCount = 32;
constexpr std::string_view kNamespace = "model@7";

inline Loopback loopback(const kvh_context_t *context) {
  kvh_loopback_t *hub = nullptr;
  EXPECT_EQ(kvh_loopback_create(context, &hub), KVH_OK);
  return Loopback(hub);
}

inline Sequence sequence(size_t tokens, int32_t first = 0) {
  std::vector<int32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), first);
  kvh_sequence_params_t params{};
  params.struct_size = sizeof params;
  params.tokens_per_block = kTokensPerBlock;
  params.tokens = ids.data();
  params.token_count = ids.size();
  params.namespace_bytes = support::bytes(kNamespace);
  kvh_sequence_t *sequence = nullptr;
  EXPECT_EQ(kvh_sequence_create(&params, &sequence), KVH_OK);
  return Sequence(sequence);
}

inline Tree tree(const kvh_context_t *context) {
  kvh_reuse_tree_params_t params{};
  params.struct_size = sizeof params;
  params.tokens_per_block = kTokensPerBlock;
  params.mode = 1;
  kvh_reuse_tree_t *tree = nullptr;
  EXPECT_EQ(kvh_reuse_tree_create(context, &params, &tree), KVH_OK);
  return Tree(tree);
}

// One worker of one rank. The pool is the first member, so it outlives the transceiver.
struct Worker {
  std::vector<uint8_t> pool = std::vector<uint8_t>(kBlockBytes * kBlockCount);
  uint32_t kv_heads[2] = {8, 8};
  support::Context context = support::context();
  Tree tree = transfer_support::tree(context.get());
  Transceiver transceiver;

  explicit Worker(const kvh_loopback_t *hub) {
    const kvh_transceiver_params_t chosen = params(hub);
    kvh_transceiver_t *created = nullptr;
    EXPECT_EQ(kvh_transceiver_create(context.get(), tree.get(), &chosen, &created, nullptr), KVH_OK);
    transceiver.reset(created);
  }

  kvh_transceiver_params_t params(const kvh_loopback_t *hub) {
    kvh_transceiver_params_t params{};
    params.struct_size = sizeof params;
    params.transport = KVH_TRANSPORT_LOOPBACK;
    params.loopback = hub;
    params.namespace_bytes = support::bytes(kNamespace);
    params.kv_heads_per_layer = kv_heads;
    params.layer_count = 2;
    params.head_size = 64;
    params.data_type = KVH_DATA_BFLOAT16;
    params.attention = KVH_ATTENTION_KEYS_AND_VALUES;
    params.window = KVH_WINDOW_FULL;
    params.pool_memory = KVH_MEMORY_HOST;
    params.pool_base = pool.data();
    params.block_bytes = kBlockBytes;
    params.block_count = kBlockCount;
    return params;
  }

  static uint8_t pattern(size_t position, size_t index) {
    return static_cast<uint8_t>(position * 31 + index * 7 + 1);
  }

  uint8_t *block(int32_t id) { return pool.data() + static_cast<size_t>(id) * kBlockBytes; }

  // Fills blocks with bytes that tell their place in the sequence, and stores them.
  void hold(const kvh_sequence_t *sequence, const std::vector<int32_t> &ids) {
    for (size_t position = 0; position < ids.size(); ++position) {
      for (size_t index = 0; index < kBlockBytes; ++index) {
        block(ids[position])[index] = pattern(position, index);
      }
    }
    std::vector<int32_t> held(ids.size());
    EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, sequence, 0, ids.data(), ids.size(), held.data()),
              KVH_OK);
    EXPECT_EQ(held, ids);
  }

  bool has(int32_t id, size_t position) {
    for (size_t index = 0; index < kBlockBytes; ++index) {
      if (block(id)[index] != pattern(position, index)) {
        return false;
      }
    }
    return true;
  }

  support::Buffer state() {
    kvh_buffer_t *state = nullptr;
    EXPECT_EQ(kvh_transceiver_state(transceiver.get(), &state), KVH_OK);
    return support::Buffer(state);
  }

  kvh_transceiver_status_t status() const {
    kvh_transceiver_status_t status{};
    status.struct_size = sizeof status;
    EXPECT_EQ(kvh_transceiver_status(transceiver.get(), &status), KVH_OK);
    return status;
  }

  size_t pins() const {
    size_t protected_blocks = 0;
    EXPECT_EQ(kvh_reuse_tree_protected_count(tree.get(), KVH_WINDOW_FULL, &protected_blocks), KVH_OK);
    return protected_blocks;
  }
};

// Waits for what a thread of the library does; only a fault makes it give up.
template <typename Condition>
void wait_until(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "waited in vain";
    std::this_thread::yield();
  }
}

inline kvh_prefetch_outcome_t outcome(const kvh_prefetch_t *prefetch) {
  kvh_prefetch_outcome_t outcome{};
  outcome.struct_size = sizeof outcome;
  wait_until([&] {
    uint32_t state = 0;
    return kvh_prefetch_poll(prefetch, &state) != KVH_IN_PROGRESS &&
           kvh_prefetch_quiesced(prefetch) != KVH_IN_PROGRESS;
  });
  EXPECT_EQ(kvh_prefetch_outcome(prefetch, &outcome), KVH_OK);
  return outcome;
}

// Waits until nothing is pinned, lent or served.
inline void settles(const Worker &worker) {
  wait_until([&] {
    const kvh_transceiver_status_t status = worker.status();
    return worker.pins() == 0 && status.requests_in_flight == 0 && status.prefetches_in_flight == 0;
  });
}

}  // namespace transfer_support
