// Owner mode: kvh_request_t, blocks one by one, copies, events, refresh; and the C++ owners for it.
#include "reuse_support.hpp"

#include "kvhints.hpp"

#include <gmock/gmock.h>

#include <map>
#include <string>

namespace {

using reuse_support::tokens;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kTokensPerBlock = reuse_support::kTokensPerBlock;

kvh_reuse_tree_params_t owner_params(int32_t primary, int32_t secondary, size_t event_capacity = 0) {
  auto params = kvhints::sized<kvh_reuse_tree_params_t>();
  params.tokens_per_block = kTokensPerBlock;
  params.mode = KVH_REUSE_MODE_OWNER;
  params.primary_blocks = primary;
  params.secondary_blocks = secondary;
  params.event_capacity = event_capacity;
  return params;
}

struct Owner : testing::Test {
  kvhints::Context context;

  kvhints::Sequence sequence(const std::vector<int32_t> &tokens) {
    return kvhints::Sequence(kTokensPerBlock, tokens, "a model");
  }
  kvh_block_state_t state(const kvhints::ReuseTree &tree, int32_t id) {
    auto state = kvhints::sized<kvh_block_state_t>();
    EXPECT_EQ(kvh_reuse_tree_find_id(tree.get(), KVH_WINDOW_FULL, id, &state), KVH_OK);
    return state;
  }
};

TEST_F(Owner, ARequestFindsWhatAnotherLeft) {
  kvhints::ReuseTree tree(context, owner_params(8, 0));
  const auto prompt = sequence(tokens(0, 9));
  auto first = kvhints::Request::add(tree, prompt);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->matched_tokens(), 0u);
  EXPECT_THAT(first->ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(tree.free_count(KVH_TIER_PRIMARY), 5u);
  first->finish(prompt, 8);
  EXPECT_EQ(tree.free_count(KVH_TIER_PRIMARY), 8u);
  EXPECT_EQ(kvh_request_finish(first->get(), prompt.get(), 8), KVH_ERR_STATE) << "once";

  auto second = kvhints::Request::add(tree, prompt);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->matched_tokens(), 8u);
  EXPECT_THAT(second->ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(state(tree, 0).users, 1u);
  EXPECT_EQ(state(tree, 0).priority, 35u);
  EXPECT_EQ(kvh_reuse_tree_evict(tree.get(), KVH_WINDOW_FULL, 1), KVH_BUSY) << "in use";
}

TEST_F(Owner, WhatCannotBeAdmittedChangesNothing) {
  kvhints::ReuseTree tree(context, owner_params(2, 0));
  auto held = kvhints::Request::add(tree, sequence(tokens(0, 4)));
  ASSERT_TRUE(held);
  EXPECT_FALSE(kvhints::Request::add(tree, sequence(tokens(50, 8))));
  EXPECT_FALSE(held->grow(8));
  EXPECT_EQ(tree.free_count(KVH_TIER_PRIMARY), 1u);
  EXPECT_TRUE(held->grow(1));
  EXPECT_EQ(held->ids().size(), 2u);
  held.reset();
  EXPECT_EQ(tree.free_count(KVH_TIER_PRIMARY), 2u) << "given back";
  kvh_request_t *request = nullptr;
  EXPECT_EQ(kvh_request_add(tree.get(), nullptr, &request), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(request, nullptr);
}

TEST_F(Owner, APinOutlivesItsRequest) {
  kvhints::ReuseTree tree(context, owner_params(4, 0));
  const auto prompt = sequence(tokens(0, 8));
  auto request = kvhints::Request::add(tree, prompt);
  ASSERT_TRUE(request);
  kvh_request_pin_t *pin = nullptr;
  ASSERT_EQ(kvh_request_pin(request->get(), &pin), KVH_OK);
  request->finish(prompt, 7);
  int32_t ids[2] = {};
  size_t count = 0;
  ASSERT_EQ(kvh_request_pin_ids(pin, KVH_WINDOW_FULL, ids, 2, &count), KVH_OK);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(tree.free_count(KVH_TIER_PRIMARY), 2u);
  kvh_request_pin_destroy(pin);
  EXPECT_EQ(tree.free_count(KVH_TIER_PRIMARY), 4u);

  kvh_block_range_t *range = nullptr;
  request = kvhints::Request::add(tree, prompt);
  ASSERT_TRUE(request);
  EXPECT_EQ(kvh_request_store_and_pin(request->get(), prompt.get(), 7, KVH_WINDOW_FULL, 0, &range), KVH_OK);
  EXPECT_GE(kvh_block_range_count(range), 1u);
  kvh_block_range_destroy(range);
}

TEST_F(Owner, BlocksGoToSecondaryMemoryAndComeBack) {
  kvhints::ReuseTree tree(context, owner_params(2, 2));
  const auto prompt = sequence(tokens(0, 8));
  auto request = kvhints::Request::add(tree, prompt);
  ASSERT_TRUE(request);
  request->finish(prompt, 8);
  // Both primary blocks are taken for another prompt: what they hold is kept in secondary memory.
  const auto other = sequence(tokens(100, 8));
  request = kvhints::Request::add(tree, other);
  ASSERT_TRUE(request);
  auto copies = tree.copies();
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].struct_size, sizeof copies[0]);
  EXPECT_EQ(copies[0].block_id, 1) << "the last block first";
  EXPECT_EQ(copies[0].reason, uint32_t(KVH_COPY_OFFLOAD));
  EXPECT_EQ(copies[0].from_tier, uint32_t(KVH_TIER_PRIMARY));
  EXPECT_EQ(copies[0].from_slot, 1u);
  EXPECT_EQ(copies[0].to_tier, uint32_t(KVH_TIER_SECONDARY));
  EXPECT_EQ(copies[0].token_count, kTokensPerBlock);
  EXPECT_EQ(state(tree, 1).tier, uint32_t(KVH_TIER_SECONDARY)) << "the id stays";
  uint32_t tier = 0, slot = 0;
  ASSERT_EQ(kvh_reuse_tree_block_place(tree.get(), KVH_WINDOW_FULL, 1, &tier, &slot), KVH_OK);
  EXPECT_EQ(tier, uint32_t(KVH_TIER_SECONDARY));
  tree.copied(2);
  EXPECT_EQ(kvh_reuse_tree_copied(tree.get(), 1), KVH_ERR_LIMIT);
  request.reset();

  ASSERT_EQ(kvh_reuse_tree_onboard(tree.get(), KVH_WINDOW_FULL, 0), KVH_OK);
  EXPECT_EQ(state(tree, 0).tier, uint32_t(KVH_TIER_SECONDARY)) << "not before the copy is made";
  tree.copied(tree.copies().size());
  EXPECT_EQ(state(tree, 0).tier, uint32_t(KVH_TIER_PRIMARY));
  EXPECT_EQ(kvh_reuse_tree_set_tier(tree.get(), KVH_WINDOW_FULL, 0, KVH_TIER_SECONDARY), KVH_ERR_STATE);
  ASSERT_EQ(kvh_reuse_tree_offload(tree.get(), KVH_WINDOW_FULL, 0), KVH_OK);
  EXPECT_EQ(state(tree, 0).tier, uint32_t(KVH_TIER_SECONDARY));
}

TEST_F(Owner, BlocksOneByOne) {
  kvhints::ReuseTree tree(context, owner_params(2, 0));
  int32_t id = -1;
  ASSERT_EQ(kvh_reuse_tree_take(tree.get(), KVH_WINDOW_FULL, 90, 0, &id), KVH_OK);
  EXPECT_EQ(id, 0);
  int32_t held[1] = {};
  const auto prompt = sequence(tokens(0, 4));
  const int32_t free_id = 1;
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, &free_id, 1, held), KVH_ERR_STATE);
  ASSERT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, &id, 1, held), KVH_OK);
  EXPECT_EQ(state(tree, 0).priority, 90u);
  EXPECT_EQ(kvh_reuse_tree_claim(tree.get(), KVH_WINDOW_FULL, id, KVH_PRIORITY_KEEP, 0), KVH_OK);
  EXPECT_EQ(kvh_reuse_tree_claim(tree.get(), KVH_WINDOW_FULL, id, 101, 0), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_reuse_tree_claim(tree.get(), KVH_WINDOW_FULL, 2, 1, 0), KVH_ERR_INVALID_ARGUMENT) << "no such block";
  EXPECT_EQ(kvh_reuse_tree_release(tree.get(), KVH_WINDOW_FULL, id), KVH_OK);
  EXPECT_EQ(kvh_reuse_tree_release(tree.get(), KVH_WINDOW_FULL, id), KVH_OK);
  EXPECT_EQ(kvh_reuse_tree_release(tree.get(), KVH_WINDOW_FULL, id), KVH_ERR_STATE);
  EXPECT_EQ(kvh_reuse_tree_set_priority(tree.get(), KVH_WINDOW_FULL, id, 10, 0), KVH_OK);
  EXPECT_EQ(state(tree, 0).priority, 10u);
  ASSERT_EQ(kvh_reuse_tree_take(tree.get(), KVH_WINDOW_FULL, 35, 0, &id), KVH_OK);
  EXPECT_EQ(id, 0) << "the lowest priority first";
  ASSERT_EQ(kvh_reuse_tree_take(tree.get(), KVH_WINDOW_FULL, 35, 0, &id), KVH_OK);
  id = 77;
  EXPECT_EQ(kvh_reuse_tree_take(tree.get(), KVH_WINDOW_FULL, 35, 0, &id), KVH_BUSY);
  EXPECT_EQ(id, 77);
}

TEST_F(Owner, ArbiterModeHasNoFreeQueues) {
  kvhints::ReuseTree tree(context, kTokensPerBlock);
  size_t count = 0;
  EXPECT_EQ(kvh_reuse_tree_free_count(tree.get(), KVH_WINDOW_FULL, KVH_TIER_PRIMARY, &count), KVH_ERR_STATE);
  EXPECT_EQ(kvh_reuse_tree_release(tree.get(), KVH_WINDOW_FULL, 0), KVH_ERR_STATE);
  EXPECT_EQ(kvh_reuse_tree_set_priority(tree.get(), KVH_WINDOW_FULL, 5, 80, 0), KVH_NOT_FOUND);
  tree.store(sequence(tokens(0, 4)), 0, std::vector<int32_t>{5});
  EXPECT_EQ(state(tree, 5).priority, 35u);
  EXPECT_EQ(kvh_reuse_tree_set_priority(tree.get(), KVH_WINDOW_FULL, 5, 80, 1), KVH_OK);
  EXPECT_EQ(state(tree, 5).priority, 80u);
  kvh_reuse_tree_refreshed_t refreshed{};
  do {
    refreshed = tree.refresh();
  } while (refreshed.priorities_expired == 0);
  EXPECT_EQ(state(tree, 5).priority, 35u) << "a nanosecond is over";
}

TEST_F(Owner, EventsTellWhatIsStored) {
  kvhints::ReuseTree tree(context, owner_params(4, 0, 3));
  const auto prompt = sequence(tokens(0, 8));
  auto request = kvhints::Request::add(tree, prompt);
  ASSERT_TRUE(request);
  EXPECT_TRUE(tree.events().empty());
  request->store_context(prompt, 8);
  auto events = tree.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, uint32_t(KVH_EVENT_STORED));
  EXPECT_EQ(events[0].number, 1u);
  EXPECT_EQ(events[0].parent_hash, 0u);
  EXPECT_EQ(events[1].parent_hash, events[0].block_hash);
  EXPECT_EQ(events[1].position, 1u);
  EXPECT_EQ(events[1].token_count, kTokensPerBlock);
  EXPECT_EQ(events[1].struct_size, sizeof events[1]);
  for (int32_t priority : {10, 20, 30, 40, 50}) {
    ASSERT_EQ(kvh_reuse_tree_set_priority(tree.get(), KVH_WINDOW_FULL, 0, priority, 0), KVH_OK);
  }
  events = tree.events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].kind, uint32_t(KVH_EVENT_GAP));
  EXPECT_EQ(events[0].lost_events, 2u);
  EXPECT_EQ(events[3].kind, uint32_t(KVH_EVENT_UPDATED));
  EXPECT_EQ(events[3].priority, 50u);
  uint64_t number = 0;
  ASSERT_EQ(kvh_reuse_tree_last_event_number(tree.get(), &number), KVH_OK);
  EXPECT_EQ(number, events[3].number);

  std::map<int32_t, uint64_t> listed;
  uint64_t cursor = 0;
  while (cursor != KVH_CURSOR_END) {
    kvh_stored_block_t blocks[1] = {kvhints::sized<kvh_stored_block_t>()};
    size_t count = 0;
    ASSERT_EQ(kvh_reuse_tree_stored_blocks(tree.get(), KVH_WINDOW_FULL, &cursor, blocks, 1, &count), KVH_OK);
    if (count == 1) listed[blocks[0].block_id] = blocks[0].block_hash;
  }
  EXPECT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0], events[3].block_hash);
  size_t count = 0;
  kvh_reuse_event_t too_small{};
  too_small.struct_size = sizeof too_small - 8;
  EXPECT_EQ(kvh_reuse_tree_events(tree.get(), &too_small, 1, &count), KVH_ERR_ABI);
}

TEST_F(Owner, MetricsCountFreeBlocks) {
  auto tree = std::make_unique<kvhints::ReuseTree>(context, owner_params(4, 2));
  auto request = kvhints::Request::add(*tree, sequence(tokens(0, 4)));
  ASSERT_TRUE(request);
  EXPECT_THAT(context.metrics(), HasSubstr("kvhints_reuse_free_blocks{tier=\"primary\"} 3"));
  EXPECT_THAT(context.metrics(), HasSubstr("kvhints_reuse_free_blocks{tier=\"secondary\"} 2"));
  request.reset();
  tree.reset();
  EXPECT_THAT(context.metrics(), HasSubstr("kvhints_reuse_free_blocks{tier=\"primary\"} 0"));
}

}  // namespace
