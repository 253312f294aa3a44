// Pins on the host's blocks that have an owner: ended once, by whoever made them, all together.
#include "worker.hpp"

#include <gmock/gmock.h>

namespace {

using namespace worker;
using host::Pins;
using testing::ElementsAre;

kvh_status_t status_of(const std::function<void()> &call) {
  try {
    call();
    return KVH_OK;
  } catch (const kvhints::Error &error) {
    return error.status();
  }
}

struct HostPinsTest : testing::Test {
  HostSide side{4};

  void SetUp() override {
    const auto stored = request(0, tokens(0, 9));
    side.add(*stored);
    side.manager.removeSequence(0, *stored);
  }
  void TearDown() override {
    EXPECT_EQ(side.manager.getNumFreeBlocks(), 4);
    EXPECT_TRUE(side.policy->verifyQueueIntegrity());
  }
};

TEST_F(HostPinsTest, ASecondUnpinChangesNothing) {
  Pins mine = Pins::pin(side.manager, {0, 1});
  Pins theirs = Pins::pin(side.manager, {0});
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 2);
  mine.unpin();
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 3) << "theirs is still live";
  EXPECT_EQ(status_of([&] { mine.unpin(); }), KVH_ERR_STATE);
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 3);
}

TEST_F(HostPinsTest, ABadIdPinsNothing) {
  for (const std::int32_t bad : {-1, 4, 1000000}) {
    EXPECT_EQ(status_of([&] { Pins::pin(side.manager, {0, bad}); }), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(side.manager.getNumFreeBlocks(), 4);
  }
}

TEST_F(HostPinsTest, TheyEndWithTheirOwnerAndMoveWithIt) {
  std::vector<Pins> kept;
  {
    Pins pins = Pins::pin(side.manager, {0, 1});
    kept.push_back(std::move(pins));
  }
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 2);
  EXPECT_THAT(kept.front().block_ids(), ElementsAre(0, 1));
  kept.front() = Pins::pin(side.manager, {2});
  EXPECT_EQ(side.manager.getNumFreeBlocks(), 3) << "those that were replaced have ended";
  kept.clear();
}

TEST_F(HostPinsTest, NoPinsAreFineToo) {
  Pins none = Pins::pin(side.manager, {});
  none.unpin();
}

}  // namespace
