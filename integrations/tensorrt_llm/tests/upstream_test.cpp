// The stand-ins behave as the host does: figures of its own tests, and the ways of it that the adapter is
// there to survive.
#include "worker.hpp"

#include <gmock/gmock.h>

namespace {

using namespace worker;
using testing::ElementsAre;
using host::upstream_cache::BlockKey;

// A prompt that is computed and stored.
void run(HostSide &side, Request &request, std::size_t generated = 2) {
  side.add(request);
  for (std::size_t at = 0; at < generated; ++at) {
    side.manager.addToken(request.mRequestId);
    request.addNewToken(9000 + static_cast<std::int32_t>(at), 0);
  }
  side.manager.removeSequence(request.mRequestId, request);
}

TEST(Upstream, WhatIsReusedAndWhichBlocksAreHandedOut) {
  HostSide side(8);
  const auto first = request(0, tokens(0, 9));
  side.add(*first);
  EXPECT_EQ(first->getPrepopulatedPromptLen(), 0);
  EXPECT_THAT(side.ids(*first), ElementsAre(0, 1, 2));
  for (std::int32_t token : {9, 10}) {
    side.manager.addToken(0);
    first->addNewToken(token, 0);
  }
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 5);
  side.manager.removeSequence(0, *first);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 8);

  const auto second = request(1, tokens(0, 9));
  side.add(*second);
  EXPECT_EQ(second->getPrepopulatedPromptLen(), 8);
  EXPECT_THAT(side.ids(*second), ElementsAre(0, 1, 3));
  for (std::int32_t token : {9, 10}) {
    side.manager.addToken(1);
    second->addNewToken(token, 0);
  }
  side.manager.removeSequence(1, *second);

  const auto third = request(2, tokens(0, 10));
  side.add(*third);
  EXPECT_EQ(third->getPrepopulatedPromptLen(), 9);
  EXPECT_THAT(side.ids(*third), ElementsAre(0, 1, 2)) << "the leaf is taken over";
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 5);
  // The duplicate of the leaf was in no tree, so it went to the front and is taken first.
  const auto fourth = request(3, tokens(0, 11));
  side.add(*fourth);
  EXPECT_EQ(fourth->getPrepopulatedPromptLen(), 8);
  EXPECT_THAT(side.ids(*fourth), ElementsAre(0, 1, 3));
}

TEST(Upstream, ADifferentSaltAdapterOrExtraIdMatchesNothing) {
  HostSide side(16);
  run(side, *request(0, tokens(100, 9)));
  const auto matched = [&](std::uint64_t id, const std::function<void(Request &)> &change) {
    const auto asked = request(id, tokens(100, 9));
    change(*asked);
    side.add(*asked);
    const auto length = asked->getPrepopulatedPromptLen();
    side.manager.removeSequence(id);
    return length;
  };
  EXPECT_EQ(matched(1, [](Request &) {}), 8);
  EXPECT_EQ(matched(2, [](Request &asked) { asked.setCacheSalt("tenant"); }), 0);
  EXPECT_EQ(matched(3, [](Request &asked) { asked.setLoraTaskId(1); }), 0);
  EXPECT_EQ(matched(4, [](Request &asked) { asked.setInputTokenExtraIds(std::vector<std::uint64_t>(9, 7)); }), 0);
}

TEST(Upstream, PinsByIdKeepBlocksFromBeingFree) {
  HostSide side(4);
  const auto held = request(0, tokens(0, 8));
  side.add(*held);
  side.manager.pinBlocks(0);
  const std::vector<std::int32_t> ids = side.ids(*held);
  side.manager.removeSequence(0, *held);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 2);
  side.manager.unpinBlocksById(ids);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 4);
}

TEST(Upstream, StoringTwiceWithPinsMakesNoGhosts) {
  HostSide side(6);
  const auto a = request(0, tokens(0, 8));
  const auto b = request(1, tokens(0, 8));
  side.manager.addSequenceBatch({{0, 8, 1}, {1, 8, 1}}, {std::ref(*a), std::ref(*b)});
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 2);
  side.manager.storeContextBlocks(*a);
  side.manager.removeSequence(0, *a);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 4);
  const auto pinned = side.manager.storeBlocksForReuse(1, *b, true);
  EXPECT_FALSE(pinned.empty());
  side.manager.unpinBlocksById(pinned);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 4);
  side.manager.removeSequence(1, *b);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 6);
}

TEST(Upstream, ALookupByKeyFindsTheChain) {
  HostSide side(8);
  run(side, *request(0, tokens(0, 17)), 0);
  const auto last = side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 16)), window);
  ASSERT_NE(last, nullptr);
  const auto before = last->getPrevBlock();
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->getPrevBlock()->getPrevBlock()->getPrevBlock(), nullptr);
  EXPECT_EQ(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 20)), window), nullptr);
  EXPECT_NE(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 14)), window), nullptr)
      << "a piece that a stored block begins with";
  std::vector<std::int32_t> pinned;
  EXPECT_EQ(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 20)), window, pinned), nullptr);
  EXPECT_TRUE(pinned.empty());
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 8) << "all or none";
}

// The faults that the adapter closes.

TEST(Upstream, AnyoneCanEndAnyonesPin) {
  HostSide side(4);
  run(side, *request(0, tokens(0, 5)), 0);
  std::vector<std::int32_t> mine, theirs;
  ASSERT_NE(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 4)), window, mine), nullptr);
  ASSERT_NE(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 4)), window, theirs), nullptr);
  side.manager.unpinBlocksById(mine);
  side.manager.unpinBlocksById(mine);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 4) << "theirs is gone too, and nobody was told";
}

TEST(Upstream, ABadIdLeavesHalfTheListUnpinned) {
  HostSide side(4);
  run(side, *request(0, tokens(0, 5)), 0);
  std::vector<std::int32_t> pinned;
  ASSERT_NE(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 4)), window, pinned), nullptr);
  EXPECT_THROW(side.manager.unpinBlocksById({pinned[0], 99}), std::runtime_error);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 4);
}

TEST(Upstream, IdsOfWindowsCollideAndPinsByIdAreRefusedThere) {
  host::Manager manager({{512, {4, 0}}, {1024, {4, 0}}}, model::tokens_per_block, model::block_bytes);
  const auto held = request(0, tokens(0, 5));
  manager.addSequenceBatch({{0, 5, 1}}, {std::ref(*held)});
  EXPECT_EQ(manager.getCacheBlockIds(0, 512), manager.getCacheBlockIds(0, 1024));
  EXPECT_THROW(manager.unpinBlocksById({0}), std::runtime_error);
  const kvhints::Context context;
  EXPECT_THROW(host::Mirror(context, manager, naming()), kvhints::Error);
  EXPECT_THROW(host::Pins::pin(manager, {0}), kvhints::Error);
}

TEST(Upstream, AnEvictedInnerBlockHidesWhatIsBelow) {
  HostSide side(4);
  run(side, *request(0, tokens(0, 9)), 0);
  ASSERT_NE(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 8)), window), nullptr);
  const auto &first = side.manager.getBlockManager().getBlockById(0, window);
  side.policy->claimBlock(first, 5, std::nullopt);
  side.policy->releaseBlock(first);
  const auto other = request(1, tokens(500, 3));
  side.add(*other);
  EXPECT_EQ(side.ids(*other).front(), 0) << "of the lowest priority";
  EXPECT_TRUE(side.manager.getBlockManager().getBlockById(1, window)->isAttached());
  EXPECT_EQ(side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 8)), window), nullptr);
}

TEST(Upstream, ABlockThatGoesToHostMemoryKeepsItsIdAndNotItsPlace) {
  HostSide side(2, 2);
  run(side, *request(0, tokens(0, 5)), 0);
  const auto stored = side.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 4)), window);
  ASSERT_NE(stored, nullptr);
  const auto id = stored->getBlockId();
  const auto slot = stored->getMemoryPoolBlockIndex();
  const auto other = request(1, tokens(500, 5));
  side.add(*other);
  EXPECT_FALSE(stored->isPrimary());
  side.manager.removeSequence(1);
  const auto again = request(2, tokens(0, 5));
  side.add(*again);
  EXPECT_TRUE(stored->isPrimary());
  EXPECT_EQ(side.ids(*again).front(), id);
  EXPECT_NE(stored->getMemoryPoolBlockIndex(), slot);
}

}  // namespace
