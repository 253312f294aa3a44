// The tree beside the host's: holds what the host's tree holds, by slot; changes nothing of the host's; and
// lets go of a block before it is handed out or written.
#include "worker.hpp"

#include <gmock/gmock.h>

#include <random>

namespace {

using namespace worker;
using host::upstream_cache::BlockKey;
using kvhints::Policy;
using testing::ElementsAre;

// The mirror's answer to what the host calls a match of whole blocks.
std::size_t matched(const Worker &at, const std::vector<std::int32_t> &prompt) {
  return at.mirror.match(*request(99, prompt));
}

struct ReuseMirrorTest : testing::Test {
  kvhints::Context context;
  kvhints::Loopback hub{context};
};

TEST_F(ReuseMirrorTest, WhatTheHostStoresIsFoundAndPinned) {
  Worker at(hub, 8);
  const auto served = request(0, tokens(0, 10));
  at.serve(served);
  EXPECT_EQ(matched(at, tokens(0, 10)), 9u);
  EXPECT_EQ(matched(at, tokens(0, 20)), 10u) << "the tail that was stored at the end";
  EXPECT_EQ(matched(at, tokens(1, 10)), 0u);
  {
    const auto found = at.mirror.pin(BlockKey(tokens(0, 8)));
    ASSERT_TRUE(found);
    EXPECT_THAT(found->block_ids, ElementsAre(0, 1));
    EXPECT_EQ(at.live_pins(), 1u);
  }
  EXPECT_EQ(at.live_pins(), 0u);
  EXPECT_TRUE(at.mirror.pin(BlockKey(tokens(0, 10)))) << "with its short tail";
  EXPECT_FALSE(at.mirror.pin(BlockKey(tokens(0, 12)))) << "all or nothing";
  EXPECT_FALSE(at.mirror.pin(BlockKey(std::vector<std::int32_t>{}))) << "the host answers with its root";
  const auto sequence = kvhints::trtllm::sequence_of_request(naming(), *request(1, tokens(0, 16)));
  const auto part = at.mirror.pin(*sequence, 0, 4, Policy::best_effort);
  ASSERT_TRUE(part) << "or a part, where the host has all or nothing";
  EXPECT_THAT(part->block_ids, ElementsAre(0, 1));
}

TEST_F(ReuseMirrorTest, ARunningRequestsWholeBlocksAreFoundAndItsTailIsNot) {
  Worker at(hub, 8);
  const auto running = request(0, tokens(0, 10));
  at.add(*running);
  running->setContextCurrentPosition(10);
  at.manager.storeContextBlocks(*running);
  EXPECT_EQ(at.mirror.store(*running), 2u);
  EXPECT_EQ(matched(at, tokens(0, 10)), 8u);
  // Chunked prefill: as far as it has come.
  const auto chunked = request(1, tokens(1000, 20));
  at.add(*chunked);
  chunked->setContextCurrentPosition(8);
  at.manager.storeContextBlocks(*chunked);
  EXPECT_EQ(at.mirror.store(*chunked), 2u);
  EXPECT_EQ(matched(at, tokens(1000, 20)), 8u);
}

// The host takes a block that begins with a running request's tail for that tail. It stays what it is.
TEST_F(ReuseMirrorTest, ALongerBlockIsNotTakenForATailThatItBeginsWith) {
  Worker at(hub, 8);
  at.serve(request(0, tokens(0, 9)));
  const auto running = request(1, tokens(0, 6));
  at.add(*running);
  running->setContextCurrentPosition(6);
  running->addNewToken(7777, 0);
  at.manager.storeContextBlocks(*running);
  EXPECT_EQ(at.mirror.store(*running), 1u);
  EXPECT_EQ(matched(at, tokens(0, 10)), 9u);
}

// Two requests of one batch computed the same blocks: the tree's are the first one's, whichever is mirrored.
TEST_F(ReuseMirrorTest, ADuplicateIsTheTreesBlockAndNotTheRequests) {
  Worker at(hub, 8);
  const auto first = request(0, tokens(0, 9));
  const auto second = request(1, tokens(0, 9));
  at.manager.addSequenceBatch({{0, 9, 1}, {1, 9, 1}}, {std::ref(*first), std::ref(*second)});
  for (const auto &each : {first, second}) {
    each->setContextCurrentPosition(9);
    at.manager.storeContextBlocks(*each);
  }
  EXPECT_EQ(at.mirror.store(*second), 2u);
  EXPECT_THAT(at.mirror.pin(BlockKey(tokens(0, 8)))->block_ids, ElementsAre(0, 1));
  EXPECT_EQ(at.mirror.store(*first), 2u);
}

// The host takes a leaf over whose beginning matches, and writes other tokens' KV into it: under the old name
// there would be wrong bytes.
TEST_F(ReuseMirrorTest, ALeafThatIsTakenOverLeavesBeforeItIsWritten) {
  Worker at(hub, 8);
  at.serve(request(0, tokens(0, 8)));
  std::vector<std::int32_t> other = tokens(0, 9);
  other[6] = 77;
  const auto taken = request(1, other);
  at.add(*taken);
  ASSERT_EQ(taken->getPrepopulatedPromptLen(), 6) << "two tokens of the second block";
  ASSERT_EQ(at.ids(*taken)[1], 1) << "in place";
  EXPECT_EQ(matched(at, tokens(0, 9)), 8u) << "still there";
  EXPECT_TRUE(at.mirror.will_write(1, 1));
  EXPECT_EQ(matched(at, tokens(0, 9)), 4u);
}

TEST_F(ReuseMirrorTest, ALeafThatAPeerReadsIsNotWrittenBeforeThePeerIsDone) {
  Worker at(hub, 8);
  at.serve(request(0, tokens(0, 8)));
  std::vector<std::int32_t> other = tokens(0, 9);
  other[6] = 77;
  const auto taken = request(1, other);
  {
    const auto read = at.mirror.pin(BlockKey(tokens(0, 8)));
    at.add(*taken);
    EXPECT_FALSE(at.mirror.will_write(1, 1));
    EXPECT_FALSE(at.mirror.will_write(1, 1)) << "asking changes nothing";
  }
  EXPECT_TRUE(at.mirror.will_write(1, 1));
}

// Ids stay with blocks that go to host memory, slots do not: bytes are found by slot.
TEST_F(ReuseMirrorTest, BlocksInHostMemoryAreMissesAndComeBackUnderTheirNewSlot) {
  Worker at(hub, 2, 4);
  at.serve(request(0, tokens(0, 5)));
  ASSERT_TRUE(at.mirror.pin(BlockKey(tokens(0, 4))));
  const auto other = request(1, tokens(500, 8));
  at.add(*other);
  EXPECT_FALSE(at.mirror.pin(BlockKey(tokens(0, 4)))) << "in host memory";
  ASSERT_NE(at.manager.findBlocksInReuseTreeByBlockKey(BlockKey(tokens(0, 4)), window), nullptr) << "where the host has it";
  at.manager.removeSequence(1);
  const auto again = request(2, tokens(0, 5));
  at.serve(again);
  EXPECT_EQ(again->getPrepopulatedPromptLen(), 4);
  const auto found = at.mirror.pin(BlockKey(tokens(0, 4)));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->block_ids, ElementsAre(0));
  const auto slot = at.manager.getBlockManager().getBlockById(0, window)->getMemoryPoolBlockIndex();
  EXPECT_NE(slot, 0) << "or this shows nothing";
  EXPECT_THAT(found->range.ids(), ElementsAre(slot));
}

TEST_F(ReuseMirrorTest, StoredWithPinsBeforeTheRequestIsRemoved) {
  Worker at(hub, 4);
  const auto sent = request(0, tokens(0, 9));
  at.add(*sent);
  at.compute(*sent, 0);
  sent->setContextCurrentPosition(9);
  sent->addNewToken(1, 0);
  {
    auto pins = at.mirror.store_blocks_for_reuse(*sent);
    EXPECT_THAT(pins.block_ids(), ElementsAre(0, 1, 2));
    at.manager.removeSequence(0, *sent);
    EXPECT_EQ(at.manager.getNumFreeBlocks(), 1) << "kept for a send that is still to come";
    EXPECT_EQ(matched(at, tokens(0, 9)), 8u);
    pins.unpin();
  }
  EXPECT_EQ(at.manager.getNumFreeBlocks(), 4);
}

TEST_F(ReuseMirrorTest, ImagesBlockByBlock) {
  Worker at(hub, 8);
  const std::vector<std::int32_t> image = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto with_image = [&](std::uint64_t id) {
    const auto asked = request(id, tokens(0, 13));
    asked->setMultimodal({image}, {2}, {8});
    return asked;
  };
  const auto served = with_image(0);
  at.serve(served);
  // The host's own lookup by one key has the last block's images on all of them, and misses.
  const BlockKey last(false, std::nullopt, request(1, tokens(0, 12))->getUniqueTokens(0),
                      host::Host::block_keys(*served, 12, 4).back().extraKeys);
  EXPECT_EQ(at.manager.findBlocksInReuseTreeByBlockKey(last, window), nullptr);
  EXPECT_EQ(at.mirror.match(*with_image(1)), 12u);
  EXPECT_EQ(matched(at, tokens(0, 13)), 0u) << "without the image it is another prompt";
}

TEST_F(ReuseMirrorTest, FencedBlocksAreNotReadBeforeTheirFence) {
  Worker at(hub, 8);
  const auto served = request(0, tokens(0, 9));
  at.add(*served);
  served->setContextCurrentPosition(9);
  at.manager.storeContextBlocks(*served);
  EXPECT_EQ(at.mirror.store(*served, 1), 2u);
  EXPECT_FALSE(at.mirror.pin(BlockKey(tokens(0, 8))));
  at.mirror.tree().fence_passed(1);
  EXPECT_TRUE(at.mirror.pin(BlockKey(tokens(0, 8))));
}

TEST_F(ReuseMirrorTest, OffAndForgottenNothingIsFound) {
  Worker at(hub, 8);
  at.serve(request(0, tokens(0, 9)));
  at.manager.resetReuseState();
  at.mirror.forget();
  EXPECT_EQ(matched(at, tokens(0, 9)), 0u);
  at.serve(request(1, tokens(0, 9)));
  EXPECT_EQ(matched(at, tokens(0, 9)), 8u);
  at.mirror.set_mirroring(false);
  EXPECT_EQ(matched(at, tokens(0, 9)), 0u);
  at.serve(request(2, tokens(0, 9)));
  EXPECT_EQ(matched(at, tokens(0, 9)), 0u);
  at.mirror.set_mirroring(true);
  at.serve(request(3, tokens(0, 9)));
  EXPECT_EQ(matched(at, tokens(0, 9)), 8u);
}

TEST_F(ReuseMirrorTest, OtherBlocksThanTheHostsAreRefused) {
  host::Manager manager({{window, {4, 0}}}, 8, model::block_bytes);
  try {
    host::Mirror(context, manager, naming());
    FAIL();
  } catch (const kvhints::Error &error) {
    EXPECT_EQ(error.status(), KVH_ERR_INVALID_ARGUMENT);
  }
}

// The first step of the switch-over changes nothing: the same blocks, the same matches, for drawn prompts with
// and without a mirror; and what the mirror holds, the host holds, with the bytes that its name says.
TEST_F(ReuseMirrorTest, TheHostDoesWithAMirrorWhatItDoesWithout) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    const std::int32_t secondary = seed % 3 == 0 ? 5 : 0;
    Worker mirrored(hub, 10, secondary);
    HostSide alone(10, secondary);
    std::mt19937 random(seed);
    std::map<std::uint64_t, std::pair<RequestPtr, RequestPtr>> running;
    std::size_t pinned_blocks = 0;
    for (std::uint64_t id = 0; id < 150; ++id) {
      std::vector<std::int32_t> prompt = tokens(static_cast<std::int32_t>(random() % 2) * 1000, 2 + random() % 14);
      prompt[random() % prompt.size()] += random() % 3 == 0 ? 500 : 0;
      if (random() % 2 == 0 && alone.manager.getNumFreeBlocks() >= 6) {
        const auto pair = std::make_pair(request(id, prompt), request(id, prompt));
        alone.add(*pair.second);
        mirrored.add(*pair.first);
        ASSERT_EQ(mirrored.ids(*pair.first), alone.ids(*pair.second)) << "seed " << seed << ", request " << id;
        ASSERT_EQ(pair.first->getPrepopulatedPromptLen(), pair.second->getPrepopulatedPromptLen());
        ASSERT_TRUE(mirrored.mirror.will_write(id, static_cast<std::size_t>(pair.first->getPrepopulatedPromptLen() / 4)));
        mirrored.compute(*pair.first, static_cast<std::size_t>(pair.first->getPrepopulatedPromptLen()));
        for (const auto &each : {pair.first, pair.second}) {
          each->setContextCurrentPosition(each->getPromptLen());
        }
        mirrored.manager.storeContextBlocks(*pair.first);
        alone.manager.storeContextBlocks(*pair.second);
        mirrored.mirror.store(*pair.first);
        running[id] = pair;
      } else if (!running.empty()) {
        const auto ended = running.begin();
        for (const auto &each : {ended->second.first, ended->second.second}) {
          each->addNewToken(9999, 0);
        }
        alone.manager.removeSequence(ended->first, *ended->second.second);
        mirrored.finish(*ended->second.first);
        running.erase(ended);
      }
      ASSERT_EQ(mirrored.manager.getNumFreeBlocks(), alone.manager.getNumFreeBlocks());
      // Every block that can be pinned is in the host's tree, with the KV of its tokens.
      const auto asked = request(1000, prompt);
      const auto sequence = kvhints::trtllm::sequence_of_request(naming(), *asked);
      const auto found = mirrored.mirror.pin(*sequence, 0, sequence->block_count(), Policy::best_effort);
      if (!found) {
        continue;
      }
      const std::size_t count = found->block_ids.size();
      pinned_blocks += count;
      const std::size_t known = std::min<std::size_t>(count * 4, prompt.size());
      std::vector<std::uint8_t> expected(count * model::block_bytes);
      std::vector<std::int32_t> places(count);
      std::iota(places.begin(), places.end(), 0);
      model::Cache fresh(expected, places);
      const auto slots = found->range.ids();
      for (std::size_t position = 0; position < known; ++position) {
        fresh.compute(position, prompt[position], 0);
        const auto offset = position % 4 * model::bytes_per_token;
        ASSERT_EQ(std::memcmp(mirrored.pool().data() + static_cast<std::size_t>(slots[position / 4]) * model::block_bytes + offset,
                              expected.data() + position / 4 * model::block_bytes + offset, model::bytes_per_token),
                  0)
            << "seed " << seed << ", after request " << id << ", token " << position;
      }
    }
    EXPECT_GT(pinned_blocks, 50u) << "or this shows nothing";
  }
}

}  // namespace
