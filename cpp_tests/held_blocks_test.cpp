// kvh_reuse_tree_t: blocks with a fence, stored and pinned in one step, pinned because a request holds
// them.
#include "reuse_support.hpp"

#include "kvhints.hpp"

namespace {

using namespace reuse_support;
using Ids = std::vector<int32_t>;

struct HeldBlocks : testing::Test {
  Context context = reuse_support::context();
  Tree tree = reuse_support::tree(context);
  Sequence prompt = sequence(tokens(0, 12));

  kvh_status_t evict(int32_t id) { return kvh_reuse_tree_evict(tree.get(), KVH_WINDOW_FULL, id); }
  size_t match() {
    size_t matched = 0;
    EXPECT_EQ(kvh_reuse_tree_match(tree.get(), KVH_WINDOW_FULL, prompt.get(), SIZE_MAX, &matched), KVH_OK);
    return matched;
  }
  kvh_status_t store_with_fence(const Tree &tree, const Ids &ids, uint64_t fence, Ids &held) {
    held.assign(ids.size(), 77);
    return kvh_reuse_tree_store_with_fence(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, ids.data(), ids.size(), fence,
                                           held.data());
  }
  kvh_status_t store_and_pin(const Tree &tree, const Ids &ids, Ids &held, Range &range) {
    held.assign(ids.size(), 77);
    kvh_block_range_t *pinned = nullptr;
    const kvh_status_t status = kvh_reuse_tree_store_and_pin(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, ids.data(),
                                                             ids.size(), 0, held.data(), &pinned);
    range.reset(pinned);
    return status;
  }
  kvh_status_t pin_blocks(const Tree &tree, const Ids &ids, Range &range) {
    kvh_block_range_t *pinned = nullptr;
    const kvh_status_t status =
        kvh_reuse_tree_pin_blocks(tree.get(), KVH_WINDOW_FULL, ids.data(), ids.size(), 0, &pinned);
    range.reset(pinned);
    return status;
  }
};

TEST_F(HeldBlocks, ABlockBehindAFenceIsMatchedAndNotSent) {
  Ids held;
  ASSERT_EQ(store_with_fence(tree, {1, 2}, 1, held), KVH_OK);
  EXPECT_EQ(held, (Ids{1, 2}));
  kvh_block_range_params_t params = range_params(3, KVH_RANGE_BEST_EFFORT);
  ASSERT_EQ(kvh_reuse_tree_store_with_fence(tree.get(), KVH_WINDOW_FULL, prompt.get(), 2, std::data({3}), 1, 2,
                                            held.data()),
            KVH_OK);
  EXPECT_EQ(match(), 12u);
  EXPECT_EQ(pin(tree, prompt, 3), nullptr);
  EXPECT_EQ(kvh_reuse_tree_fence_passed(tree.get(), 1), KVH_OK);
  EXPECT_EQ(pin(tree, prompt, 3), nullptr) << "the last one's fence has not passed";
  size_t present = 0;
  kvh_block_range_t *range = nullptr;
  ASSERT_EQ(kvh_block_range_from_reuse_tree(tree.get(), prompt.get(), &params, &present, &range), KVH_OK);
  EXPECT_EQ(present, 2u);
  kvh_block_range_destroy(range);
  EXPECT_EQ(kvh_reuse_tree_fence_passed(tree.get(), 5), KVH_OK);
  EXPECT_EQ(kvh_reuse_tree_fence_passed(tree.get(), 1), KVH_OK) << "says nothing new";
  EXPECT_EQ(ids(pin(tree, prompt, 3)), (Ids{1, 2, 3}));
}

TEST_F(HeldBlocks, FencesAreAskedForByNumber) {
  Ids held;
  EXPECT_EQ(store_with_fence(tree, {1}, 0, held), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(held, Ids{77});
  EXPECT_EQ(match(), 0u);
  EXPECT_EQ(kvh_reuse_tree_store_with_fence(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, std::data({1}), 1, 1, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_reuse_tree_fence_passed(nullptr, 1), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(HeldBlocks, StoredAndPinnedIsNeverEvictedInBetween) {
  Ids held;
  Range range;
  ASSERT_EQ(store_and_pin(tree, {1, 2, 3}, held, range), KVH_OK);
  EXPECT_EQ(held, (Ids{1, 2, 3}));
  EXPECT_EQ(ids(range), (Ids{1, 2, 3}));
  for (int32_t id : {1, 2, 3}) EXPECT_EQ(evict(id), KVH_BUSY);
  // What the tree holds is pinned, not what was brought.
  Range other;
  ASSERT_EQ(store_and_pin(tree, {7, 8, 9}, held, other), KVH_OK);
  EXPECT_EQ(held, (Ids{1, 2, 3}));
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_OK);
  EXPECT_EQ(evict(3), KVH_BUSY);
  EXPECT_EQ(kvh_block_range_unpin(other.get()), KVH_OK);
  EXPECT_EQ(evict(3), KVH_OK);
}

TEST_F(HeldBlocks, NothingStoredIsNothingPinned) {
  Ids held;
  Range range;
  kvh_block_range_t *pinned = nullptr;
  held.assign(1, 77);
  // Its predecessor is missing, so it is handed back.
  EXPECT_EQ(kvh_reuse_tree_store_and_pin(tree.get(), KVH_WINDOW_FULL, prompt.get(), 1, std::data({5}), 1, 0, held.data(),
                                         &pinned),
            KVH_NOT_FOUND);
  EXPECT_EQ(held, Ids{KVH_BLOCK_NONE});
  EXPECT_EQ(pinned, nullptr);
  EXPECT_EQ(pin_blocks(tree, {}, range), KVH_NOT_FOUND);
  EXPECT_EQ(pin_blocks(tree, {-4}, range), KVH_NOT_FOUND);
}

TEST_F(HeldBlocks, ARequestsBlocksAreProtectedStoredOrNot) {
  ASSERT_EQ(store(tree, prompt, {1}), Ids{1});
  Range range;
  ASSERT_EQ(pin_blocks(tree, {1, 40}, range), KVH_OK);
  EXPECT_EQ(ids(range), (Ids{1, 40}));
  EXPECT_EQ(evict(1), KVH_BUSY);
  EXPECT_EQ(evict(40), KVH_BUSY);
  Ids held(2);
  ASSERT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 1, std::data({40}), 1, held.data()), KVH_OK);
  EXPECT_EQ(held[0], KVH_BLOCK_NONE) << "held by a request elsewhere";
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_OK);
  EXPECT_EQ(kvh_block_range_unpin(range.get()), KVH_ERR_STATE);
  ASSERT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 1, std::data({40}), 1, held.data()), KVH_OK);
  EXPECT_EQ(held[0], 40);
}

TEST_F(HeldBlocks, OwnerModeHasRequestsForThis) {
  kvh_reuse_tree_params_t params = tree_params();
  params.mode = KVH_REUSE_MODE_OWNER;
  params.primary_blocks = 4;
  kvh_reuse_tree_t *made = nullptr;
  ASSERT_EQ(kvh_reuse_tree_create(context.get(), &params, &made), KVH_OK);
  Tree owner(made);
  Ids held;
  Range range;
  EXPECT_EQ(store_and_pin(owner, {1}, held, range), KVH_ERR_STATE);
  EXPECT_EQ(pin_blocks(owner, {1}, range), KVH_ERR_STATE);
  EXPECT_EQ(store_with_fence(owner, {1}, 1, held), KVH_ERR_STATE) << "nobody uses the block";
  int32_t block = -1;
  ASSERT_EQ(kvh_reuse_tree_take(owner.get(), KVH_WINDOW_FULL, KVH_PRIORITY_DEFAULT, 0, &block), KVH_OK);
  ASSERT_EQ(store_with_fence(owner, {block}, 3, held), KVH_OK);
  EXPECT_EQ(pin(owner, prompt, 1), nullptr);
  EXPECT_EQ(kvh_reuse_tree_fence_passed(owner.get(), 3), KVH_OK);
  EXPECT_EQ(ids(pin(owner, prompt, 1)), Ids{block});
}

TEST(HeldBlocksInCpp, OwnersOfFencesAndPins) {
  const kvhints::Context context;
  const kvhints::ReuseTree tree(context, kTokensPerBlock);
  const std::vector<int32_t> some = tokens(0, 8);
  const kvhints::Sequence prompt(kTokensPerBlock, some, "model");
  const Ids given{4, 5};
  EXPECT_EQ(tree.store_with_fence(prompt, 0, given, 9), given);
  EXPECT_FALSE(tree.pin(prompt, 0, 2, kvhints::Policy::strict));
  tree.fence_passed(9);
  EXPECT_TRUE(tree.pin(prompt, 0, 2, kvhints::Policy::strict));
  {
    const auto [held, range] = tree.store_and_pin(prompt, 0, given);
    EXPECT_EQ(held, given);
    ASSERT_TRUE(range);
    EXPECT_EQ(tree.evict(5), KVH_BUSY);
  }
  EXPECT_EQ(tree.evict(5), KVH_OK);
  const Ids loose{20};
  const auto pinned = tree.pin_blocks(loose);
  ASSERT_TRUE(pinned);
  EXPECT_EQ(tree.evict(20), KVH_BUSY);
  EXPECT_FALSE(tree.pin_blocks({}));
}

}  // namespace
