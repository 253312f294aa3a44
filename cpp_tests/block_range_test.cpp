// kvh_block_range_t: what can be pinned, what a pin protects, and that it is released once.
#include "reuse_support.hpp"

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace reuse_support;

struct BlockRange : testing::Test {
  Context context = reuse_support::context();
  Tree tree = reuse_support::tree(context);
  Sequence prompt = sequence(tokens(0, 10));

  void SetUp() override { ASSERT_EQ(store(tree, prompt, {10, 11, 12}), (std::vector<int32_t>{10, 11, 12})); }
};

TEST_F(BlockRange, HoldsIdsOldestFirstAndProtectsThem) {
  Range range = pin(tree, prompt, 3);
  ASSERT_NE(range, nullptr);
  EXPECT_EQ(ids(range), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(kvh_block_range_tail_tokens(range.get()), 2u);
  EXPECT_EQ(kvh_block_range_first_block(range.get()), 0u);
  EXPECT_NE(kvh_block_range_pin_id(range.get()), 0u);
  uint64_t hashes[3], of_sequence[3];
  uint32_t tiers[3];
  size_t count = 0;
  ASSERT_EQ(kvh_block_range_block_hashes(range.get(), hashes, 3, &count), KVH_OK);
  ASSERT_EQ(kvh_sequence_block_hashes(prompt.get(), of_sequence, 3, &count), KVH_OK);
  ASSERT_EQ(kvh_block_range_tiers(range.get(), tiers, 3, &count), KVH_OK);
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(hashes[block], of_sequence[block]);
    EXPECT_EQ(tiers[block], uint32_t(KVH_TIER_PRIMARY));
    EXPECT_EQ(kvh_reuse_tree_evict(tree.get(), KVH_WINDOW_FULL, 10 + int32_t(block)), KVH_BUSY);
  }
  EXPECT_EQ(protected_count(tree), 3u);
}

TEST_F(BlockRange, IsReleasedExactlyOnce) {
  Range range = pin(tree, prompt, 2);
  uint64_t pin_id = kvh_block_range_pin_id(range.get());
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_OK);
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_ERR_STATE);
  EXPECT_EQ(kvh_reuse_tree_unpin(tree.get(), pin_id), KVH_ERR_STATE);
  EXPECT_EQ(protected_count(tree), 0u);
  Range other = pin(tree, prompt, 2);
  EXPECT_EQ(kvh_reuse_tree_unpin(tree.get(), pin_id), KVH_ERR_STATE) << "an old id is not the new pin's";
  EXPECT_EQ(protected_count(tree), 2u);
  range.reset();
  EXPECT_EQ(protected_count(tree), 2u) << "destroying a released range releases nothing";
  EXPECT_EQ(kvh_reuse_tree_unpin(tree.get(), kvh_block_range_pin_id(other.get())), KVH_OK);
  EXPECT_EQ(kvh_block_range_unpin(other.get()), KVH_ERR_STATE);
  EXPECT_EQ(protected_count(tree), 0u);
}

TEST_F(BlockRange, DestroyReleases) {
  pin(tree, prompt, 2).reset();
  EXPECT_EQ(protected_count(tree), 0u);
  kvh_block_range_destroy(nullptr);
}

TEST_F(BlockRange, OutlivesTreeAndContext) {
  Range range = pin(tree, prompt, 2);
  tree.reset();
  context.reset();
  EXPECT_EQ(ids(range), (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_OK);
}

TEST_F(BlockRange, PinsOfAnotherTreeAreRefused) {
  Tree other = reuse_support::tree(context);
  store(other, prompt, {10, 11, 12});
  Range ours = pin(tree, prompt, 2), theirs = pin(other, prompt, 2);
  EXPECT_EQ(kvh_reuse_tree_unpin(tree.get(), kvh_block_range_pin_id(theirs.get())), KVH_ERR_STATE);
  EXPECT_EQ(protected_count(tree), 2u);
  EXPECT_EQ(protected_count(other), 2u);
  for (uint64_t made_up : {uint64_t(0), uint64_t(1), UINT64_MAX}) {
    EXPECT_EQ(kvh_reuse_tree_unpin(tree.get(), made_up), KVH_ERR_STATE);
  }
}

TEST_F(BlockRange, AMissSaysHowManyArePresent) {
  Sequence longer = sequence(tokens(0, 20));
  size_t present = 99;
  kvh_block_range_t *range = nullptr;
  kvh_block_range_params_t params = range_params(4);
  EXPECT_EQ(kvh_block_range_from_reuse_tree(tree.get(), longer.get(), &params, &present, &range), KVH_NOT_FOUND);
  EXPECT_EQ(present, 2u);
  EXPECT_EQ(range, nullptr);
  params.policy = KVH_RANGE_BEST_EFFORT;
  EXPECT_EQ(kvh_block_range_from_reuse_tree(tree.get(), longer.get(), &params, &present, &range), KVH_OK);
  EXPECT_EQ(ids(Range(range)), (std::vector<int32_t>{10, 11}));
  Sequence unrelated = sequence(tokens(100, 20));
  range = nullptr;
  EXPECT_EQ(kvh_block_range_from_reuse_tree(tree.get(), unrelated.get(), &params, &present, &range), KVH_NOT_FOUND);
  EXPECT_EQ(present, 0u);
  EXPECT_EQ(range, nullptr);
}

TEST_F(BlockRange, WhatMakesNoSenseIsRefused) {
  size_t present = 99;
  kvh_block_range_t *range = nullptr;
  auto refused = [&](auto change, kvh_status_t expected) {
    kvh_block_range_params_t params = range_params(2);
    change(params);
    EXPECT_EQ(kvh_block_range_from_reuse_tree(tree.get(), prompt.get(), &params, &present, &range), expected);
    EXPECT_EQ(present, 99u);
    EXPECT_EQ(range, nullptr);
  };
  refused([](auto &params) { params.policy = 0; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.policy = 3; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.window = 7; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.block_count = 0; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.block_count = 4; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.first_block = SIZE_MAX; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.struct_size = 3; }, KVH_ERR_ABI);
  EXPECT_EQ(kvh_block_range_count(nullptr), 0u);
  EXPECT_EQ(kvh_block_range_pin_id(nullptr), 0u);
  EXPECT_EQ(kvh_block_range_unpin(nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(BlockRange, MatchAndPinTakesWhatMatches) {
  Sequence longer = sequence(tokens(0, 20));
  size_t matched = 0;
  kvh_block_range_t *found = nullptr;
  ASSERT_EQ(kvh_reuse_tree_match_and_pin(tree.get(), KVH_WINDOW_FULL, longer.get(), 19, 0, &matched, &found), KVH_OK);
  Range range(found);
  EXPECT_EQ(matched, 10u);
  EXPECT_EQ(ids(range), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(kvh_block_range_tail_tokens(range.get()), 2u);
  found = nullptr;
  EXPECT_EQ(kvh_reuse_tree_match_and_pin(tree.get(), KVH_WINDOW_FULL, longer.get(), 0, 0, &matched, &found),
            KVH_NOT_FOUND);
  EXPECT_EQ(matched, 0u);
  EXPECT_EQ(found, nullptr);
}

TEST_F(BlockRange, AForkedChildIsToldAndHarmsNothing) {
  Range range = pin(tree, prompt, 2);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool is_told = kvh_block_range_unpin(range.get()) == KVH_ERR_FORKED &&
                   kvh_reuse_tree_evict(tree.get(), KVH_WINDOW_FULL, 10) == KVH_ERR_FORKED;
    range.reset();
    tree.reset();
    _exit(is_told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_OK);
}

}  // namespace
