// The host's eviction policy under the arbiter: its order stays, pinned blocks are passed over and come
// back, and free counts never promise a block that cannot be had.
#include "worker.hpp"

#include <gmock/gmock.h>

#include <random>

namespace {

using namespace worker;
using testing::ElementsAre;
using testing::UnorderedElementsAre;

struct EvictionPolicyTest : testing::Test {
  kvhints::Context context;
  kvhints::Loopback hub{context};
  Worker at{hub, 6};

  // Stores a prompt of full blocks, and one token more.
  RequestPtr store(std::uint64_t id, std::int32_t first, std::size_t blocks) {
    auto stored = request(id, tokens(first, blocks * model::tokens_per_block + 1));
    at.serve(stored);
    return stored;
  }
  std::optional<kvhints::trtllm::PinnedMatch> pin(std::int32_t first, std::size_t blocks) {
    return at.mirror.pin(host::upstream_cache::BlockKey(tokens(first, blocks * model::tokens_per_block)));
  }
  std::vector<std::int32_t> allocate(std::uint64_t id, std::size_t blocks) {
    const auto wanted = request(id, tokens(50000 + static_cast<std::int32_t>(id) * 100, blocks * model::tokens_per_block));
    at.add(*wanted);
    return at.ids(*wanted);
  }
};

TEST_F(EvictionPolicyTest, APinnedBlockIsPassedOverAndTheNextIsTaken) {
  store(0, 0, 2);     // 0, 1 and a tail in 2
  store(1, 1000, 1);  // 3 and a tail in 4
  const auto pinned = pin(0, 2);
  ASSERT_TRUE(pinned);
  EXPECT_THAT(pinned->block_ids, ElementsAre(0, 1));
  EXPECT_EQ(at.manager.getNumFreeBlocks(), 4);
  EXPECT_THAT(allocate(2, 4), UnorderedElementsAre(2, 3, 4, 5));
  EXPECT_EQ(at.manager.getNumFreeBlocks(), 0);
  EXPECT_THROW(allocate(3, 1), std::runtime_error) << "as the host does when nothing is free";
  EXPECT_EQ(at.manager.getNumFreeBlocks(), 0);
  EXPECT_TRUE(pin(0, 2)) << "what was passed over is still found";
}

TEST_F(EvictionPolicyTest, WhatWasPassedOverComesBackInItsPlace) {
  store(0, 0, 2);
  store(1, 1000, 1);
  std::vector<std::int32_t> order;
  {
    const auto pinned = pin(0, 2);
    order = allocate(2, 2);
    EXPECT_THAT(order, testing::Not(testing::Contains(testing::AnyOf(0, 1))));
    at.manager.removeSequence(2);
    EXPECT_EQ(at.manager.getNumFreeBlocks(), 4);
  }
  at.manager.refreshBlocks();
  EXPECT_EQ(at.manager.getNumFreeBlocks(), 6);
  EXPECT_TRUE(at.policy->verifyQueueIntegrity());
  const auto first = allocate(3, 6);
  // Unstored ones first, then tail to head in the order of their release.
  const auto place = [&](std::int32_t id) { return std::find(first.begin(), first.end(), id) - first.begin(); };
  EXPECT_LT(place(1), place(0));
  EXPECT_LT(place(0), place(3)) << "stored before";
}

TEST_F(EvictionPolicyTest, ABlockWhosePinEndedIsTakenBeforeThereIsNone) {
  store(0, 0, 2);
  {
    const auto pinned = pin(0, 2);
    allocate(1, 4);
    EXPECT_THROW(allocate(2, 1), std::runtime_error);
  }
  EXPECT_THAT(allocate(3, 2), UnorderedElementsAre(0, 1)) << "in the same iteration";
  EXPECT_EQ(at.manager.getNumFreeBlocks(), 0);
}

TEST_F(EvictionPolicyTest, ABlockThatWasPassedOverCanBeReused) {
  store(0, 0, 2);
  const auto pinned = pin(0, 2);
  allocate(1, 4);
  EXPECT_THROW(allocate(2, 1), std::runtime_error);
  at.manager.removeSequence(1);
  const auto once_more = request(4, tokens(0, 9));
  at.add(*once_more);
  EXPECT_EQ(once_more->getPrepopulatedPromptLen(), 8);
  EXPECT_THAT(at.ids(*once_more), ElementsAre(0, 1, testing::_));
  at.manager.removeSequence(4);
  EXPECT_TRUE(at.policy->verifyQueueIntegrity());
}

TEST_F(EvictionPolicyTest, PrioritiesAndDurationsSurviveBeingPassedOver) {
  store(0, 0, 1);
  const auto &block = at.manager.getBlockManager().getBlockById(0, window);
  at.policy->claimBlock(block, 5, std::chrono::milliseconds(1000000));
  at.policy->releaseBlock(block);
  const auto pinned = pin(0, 1);
  ASSERT_TRUE(pinned);
  const auto taken = allocate(1, 1);
  EXPECT_NE(taken.front(), 0) << "of all priorities the lowest, but pinned";
  EXPECT_EQ(block->getPriority(), 5);
  EXPECT_EQ(block->getDurationMs(), std::chrono::milliseconds(1000000));
}

// The host evicts an inner block alone, and what hangs below is not found any more: not what a peer reads.
TEST_F(EvictionPolicyTest, ABlockBeforeAPinnedOneIsKeptToo) {
  const auto stored = store(0, 0, 2);
  const auto &first = at.manager.getBlockManager().getBlockById(0, window);
  at.policy->claimBlock(first, 5, std::nullopt);
  at.policy->releaseBlock(first);
  const auto sequence = kvhints::trtllm::sequence_of_request(naming(), *stored);
  const auto pinned = at.mirror.pin(*sequence, 1, 1, kvhints::Policy::strict);
  ASSERT_TRUE(pinned);
  EXPECT_THAT(pinned->block_ids, ElementsAre(1));
  EXPECT_THAT(allocate(1, 4), UnorderedElementsAre(2, 3, 4, 5));
  EXPECT_TRUE(pin(0, 2));
}

TEST_F(EvictionPolicyTest, AMirrorIsNotTakenAwayUnderAPin) {
  store(0, 0, 2);
  {
    const auto pinned = pin(0, 2);
    EXPECT_FALSE(at.policy->set_mirror(nullptr));
  }
  EXPECT_TRUE(at.policy->set_mirror(nullptr));
  EXPECT_EQ(allocate(1, 6).size(), 6u);
  EXPECT_TRUE(at.policy->set_mirror(&at.mirror));
}

TEST_F(EvictionPolicyTest, WhatLeftTheMirrorUnderAPinIsStillProtected) {
  store(0, 0, 2);
  {
    const auto pinned = pin(0, 2);
    at.mirror.set_mirroring(false);
    EXPECT_FALSE(pin(0, 2)) << "found no more";
    EXPECT_THAT(allocate(1, 4), UnorderedElementsAre(2, 3, 4, 5));
    EXPECT_THROW(allocate(2, 1), std::runtime_error);
  }
  EXPECT_EQ(allocate(3, 2).size(), 2u);
}

// Many prompts with shared beginnings, pins that come and go: a block under a pin is never handed out, and a
// count of free blocks can always be had.
TEST_F(EvictionPolicyTest, DrawnWorkloadsKeepPinsAndCounts) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Worker drawn(hub, 12);
    std::mt19937 random(seed);
    std::map<std::uint64_t, RequestPtr> running;
    std::vector<kvhints::trtllm::PinnedMatch> pins;
    for (std::uint64_t id = 0; id < 120; ++id) {
      const auto choice = random() % 4;
      if (choice < 2) {
        const std::size_t length = 2 + random() % 18;
        auto prompt = tokens(static_cast<std::int32_t>(random() % 3) * 1000, length);
        prompt.back() = 7000 + static_cast<std::int32_t>(random() % 2);
        const auto wanted = request(id, prompt);
        const auto blocks = static_cast<std::int32_t>((length + 3) / 4);
        if (drawn.manager.getNumFreeBlocks() >= blocks + 1) {
          ASSERT_NO_THROW(drawn.add(*wanted)) << "seed " << seed << ", request " << id;
          running[id] = wanted;
        }
      } else if (choice == 2 && !running.empty()) {
        const auto ended = running.begin();
        ended->second->setContextCurrentPosition(ended->second->getPromptLen());
        ended->second->addNewToken(9999, 0);
        drawn.finish(*ended->second);
        running.erase(ended);
      } else if (pins.size() < 2 && random() % 2 == 0) {
        const std::size_t length = 4 * (1 + random() % 3);
        if (auto pinned = drawn.mirror.pin(host::upstream_cache::BlockKey(
                tokens(static_cast<std::int32_t>(random() % 3) * 1000, length)))) {
          pins.push_back(std::move(*pinned));
        }
      } else if (!pins.empty()) {
        pins.erase(pins.begin());
      }
      if (random() % 3 == 0) {
        drawn.manager.refreshBlocks();
      }
      for (const auto &[other, held] : running) {
        const auto whole = static_cast<std::size_t>(held->getPrepopulatedPromptLen() / 4);
        const auto ids = drawn.ids(*held);
        for (const auto &pinned : pins) {
          for (std::size_t at = whole + (held->getPrepopulatedPromptLen() % 4 != 0 ? 1 : 0); at < ids.size(); ++at) {
            ASSERT_THAT(pinned.block_ids, testing::Not(testing::Contains(ids[at])))
                << "seed " << seed << ": a fresh block of request " << other << " is under a pin";
          }
        }
      }
      ASSERT_TRUE(drawn.policy->verifyQueueIntegrity());
    }
    pins.clear();
    for (const auto &[id, held] : running) {
      drawn.manager.removeSequence(id);
    }
    drawn.manager.refreshBlocks();
    ASSERT_EQ(drawn.manager.getNumFreeBlocks(), 12) << "seed " << seed;
  }
}

}  // namespace
