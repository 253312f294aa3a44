// Short ways to make contexts, sequences, trees and ranges; each is destroyed by its owner here.
#pragma once

#include "kvhints.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace reuse_support {

template <typename T, void (*destroy)(T *)> struct Destroy {
  void operator()(T *object) const noexcept { destroy(object); }
};
template <typename T, void (*destroy)(T *)> using Owned = std::unique_ptr<T, Destroy<T, destroy>>;

using Context = Owned<kvh_context_t, kvh_context_destroy>;
using Sequence = Owned<kvh_sequence_t, kvh_sequence_destroy>;
using Tree = Owned<kvh_reuse_tree_t, kvh_reuse_tree_destroy>;
using Range = Owned<kvh_block_range_t, kvh_block_range_destroy>;

constexpr uint32_t kTokensPerBlock = 4;

inline Context context() {
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(nullptr, &context), KVH_OK);
  return Context(context);
}

inline kvh_sequence_params_t sequence_params(const std::vector<int32_t> &tokens) {
  kvh_sequence_params_t params{};
  params.struct_size = sizeof params;
  params.tokens_per_block = kTokensPerBlock;
  params.tokens = tokens.data();
  params.token_count = tokens.size();
  return params;
}

inline Sequence sequence(const std::vector<int32_t> &tokens) {
  kvh_sequence_params_t params = sequence_params(tokens);
  kvh_sequence_t *sequence = nullptr;
  EXPECT_EQ(kvh_sequence_create(&params, &sequence), KVH_OK);
  return Sequence(sequence);
}

// count tokens that count up from first.
inline std::vector<int32_t> tokens(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline kvh_reuse_tree_params_t tree_params() {
  kvh_reuse_tree_params_t params{};
  params.struct_size = sizeof params;
  params.tokens_per_block = kTokensPerBlock;
  params.mode = KVH_REUSE_MODE_ARBITER;
  return params;
}

inline Tree tree(const Context &context) {
  kvh_reuse_tree_params_t params = tree_params();
  kvh_reuse_tree_t *tree = nullptr;
  EXPECT_EQ(kvh_reuse_tree_create(context.get(), &params, &tree), KVH_OK);
  return Tree(tree);
}

// Stores ids from the sequence's first block on, in the full window; what the tree then holds.
inline std::vector<int32_t> store(const Tree &tree, const Sequence &sequence, const std::vector<int32_t> &ids) {
  std::vector<int32_t> held(ids.size());
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, sequence.get(), 0, ids.data(), ids.size(), held.data()),
            KVH_OK);
  return held;
}

inline kvh_block_range_params_t range_params(size_t block_count, uint32_t policy = KVH_RANGE_STRICT) {
  kvh_block_range_params_t params{};
  params.struct_size = sizeof params;
  params.window = KVH_WINDOW_FULL;
  params.policy = policy;
  params.block_count = block_count;
  return params;
}

// Pins the first blocks of the sequence, all of them; empty on a miss.
inline Range pin(const Tree &tree, const Sequence &sequence, size_t block_count) {
  kvh_block_range_params_t params = range_params(block_count);
  size_t present = 0;
  kvh_block_range_t *range = nullptr;
  kvh_status_t status = kvh_block_range_from_reuse_tree(tree.get(), sequence.get(), &params, &present, &range);
  EXPECT_EQ(status, range == nullptr ? KVH_NOT_FOUND : KVH_OK);
  return Range(range);
}

inline std::vector<int32_t> ids(const Range &range) {
  std::vector<int32_t> ids(kvh_block_range_count(range.get()));
  size_t count = 0;
  EXPECT_EQ(kvh_block_range_ids(range.get(), ids.data(), ids.size(), &count), KVH_OK);
  EXPECT_EQ(count, ids.size());
  return ids;
}

inline size_t protected_count(const Tree &tree) {
  size_t count = 12345;
  EXPECT_EQ(kvh_reuse_tree_protected_count(tree.get(), KVH_WINDOW_FULL, &count), KVH_OK);
  return count;
}

}  // namespace reuse_support
