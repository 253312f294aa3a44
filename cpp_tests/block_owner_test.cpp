// kvh_block_owner_t: an owner of blocks written in C++, which serves peers and takes what is fetched.
// Each block that it set aside comes back once, each pin ends once, and its user data ends once.
#include "transfer_support.hpp"

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace {

using namespace transfer_support;
using testing::HasSubstr;

using BlockOwner = support::Handle<kvh_block_owner_t, kvh_block_owner_destroy>;
using Name = std::array<uint8_t, 32>;

Name name_of(const kvh_name_t &name) {
  Name copy;
  std::copy(std::begin(name.bytes), std::end(name.bytes), copy.begin());
  return copy;
}

// What a host's block manager may look like: blocks by name, each in memory of its own.
class Manager {
 public:
  explicit Manager(size_t free_blocks) {
    for (size_t id = 0; id < free_blocks; ++id) {
      memory_[static_cast<int32_t>(100 + id)] = std::make_unique<std::array<uint8_t, kBlockBytes>>();
      free_.insert(static_cast<int32_t>(100 + id));
    }
  }

  kvh_block_owner_ops_t ops() {
    kvh_block_owner_ops_t ops{};
    ops.struct_size = sizeof ops;
    ops.user_data = this;
    ops.tokens_per_block = kTokensPerBlock;
    ops.block_bytes = kBlockBytes;
    ops.pin = [](void *self, const kvh_name_t *names, size_t count, uint32_t policy, kvh_pinned_block_t *blocks,
                 size_t *present, uint64_t *pin_id) {
      return of(self).pin(names, count, policy, blocks, present, pin_id);
    };
    ops.unpin = [](void *self, uint64_t pin_id) { of(self).unpin(pin_id); };
    ops.allocate = [](void *self, int32_t *ids, size_t count) { return of(self).allocate(ids, count); };
    ops.commit = [](void *self, const kvh_name_t *names, size_t name_count, size_t first, size_t step,
                    const int32_t *ids, size_t count) { of(self).commit(names, name_count, first, step, ids, count); };
    ops.abort = [](void *self, const int32_t *ids, size_t count) { of(self).abort(ids, count); };
    ops.address = [](void *self, int32_t id) { return of(self).address(id); };
    ops.destroy = [](void *self) { ++of(self).destroyed; };
    return ops;
  }

  BlockOwner owner() {
    const kvh_block_owner_ops_t chosen = ops();
    kvh_block_owner_t *owner = nullptr;
    EXPECT_EQ(kvh_block_owner_create(&chosen, &owner), KVH_OK);
    return BlockOwner(owner);
  }

  // Blocks of a prompt, filled like those of transfer_support::Worker.
  void hold(const kvh_sequence_t *sequence, size_t blocks) {
    std::vector<kvh_name_t> names(kvh_sequence_block_count(sequence));
    size_t count = 0;
    ASSERT_EQ(kvh_sequence_block_names(sequence, names.data(), names.size(), &count), KVH_OK);
    std::vector<int32_t> ids(blocks);
    ASSERT_EQ(allocate(ids.data(), blocks), KVH_OK);
    for (size_t position = 0; position < blocks; ++position) {
      auto &bytes = *memory_.at(ids[position]);
      for (size_t index = 0; index < kBlockBytes; ++index) {
        bytes[index] = Worker::pattern(position, index);
      }
    }
    commit(names.data(), count, 0, 1, ids.data(), blocks);
  }

  // How many leading blocks of a prompt are there, with the right bytes.
  size_t holds(const kvh_sequence_t *sequence) {
    std::vector<kvh_name_t> names(kvh_sequence_block_count(sequence));
    size_t count = 0;
    EXPECT_EQ(kvh_sequence_block_names(sequence, names.data(), names.size(), &count), KVH_OK);
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t position = 0; position < count; ++position) {
      const auto found = by_name_.find(name_of(names[position]));
      if (found == by_name_.end()) {
        return position;
      }
      const auto &bytes = *memory_.at(found->second);
      for (size_t index = 0; index < kBlockBytes; ++index) {
        if (bytes[index] != Worker::pattern(position, index)) {
          return position;
        }
      }
    }
    return count;
  }

  size_t free_blocks() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return free_.size();
  }

  size_t live_pins() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pins_.size();
  }

  int destroyed = 0;
  // What it says instead of the truth.
  std::function<void(kvh_status_t &, size_t &)> lie;
  bool forgets_addresses = false;
  size_t pins_made = 0;

 private:
  static Manager &of(void *self) { return *static_cast<Manager *>(self); }

  kvh_status_t pin(const kvh_name_t *names, size_t count, uint32_t policy, kvh_pinned_block_t *blocks,
                   size_t *present, uint64_t *pin_id) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    *present = 0;
    while (*present < count) {
      const auto found = by_name_.find(name_of(names[*present]));
      if (found == by_name_.end()) {
        break;
      }
      blocks[*present] = {found->second, 0, 7};
      ++*present;
    }
    const bool is_enough = policy == KVH_RANGE_STRICT ? *present == count : *present > 0;
    kvh_status_t status = is_enough ? KVH_OK : KVH_NOT_FOUND;
    if (lie) {
      lie(status, *present);
    }
    if (status == KVH_OK) {
      *pin_id = ++pins_made;
      pins_.insert(*pin_id);
    }
    return status;
  }

  void unpin(uint64_t pin_id) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_EQ(pins_.erase(pin_id), 1u) << "each pin ends once";
  }

  kvh_status_t allocate(int32_t *ids, size_t count) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() < count) {
      return KVH_BUSY;
    }
    for (size_t index = 0; index < count; ++index) {
      ids[index] = *free_.begin();
      free_.erase(free_.begin());
      aside_.insert(ids[index]);
    }
    return KVH_OK;
  }

  void commit(const kvh_name_t *names, size_t name_count, size_t first, size_t step, const int32_t *ids,
              size_t count) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t index = 0; index < count; ++index) {
      ASSERT_LT(first + index * step, name_count);
      EXPECT_EQ(aside_.erase(ids[index]), 1u) << "each block comes back once";
      by_name_[name_of(names[first + index * step])] = ids[index];
    }
  }

  void abort(const int32_t *ids, size_t count) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t index = 0; index < count; ++index) {
      EXPECT_EQ(aside_.erase(ids[index]), 1u) << "each block comes back once";
      free_.insert(ids[index]);
    }
  }

  void *address(int32_t id) noexcept {
    const auto found = memory_.find(id);
    return found == memory_.end() || forgets_addresses ? nullptr : found->second->data();
  }

  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<std::array<uint8_t, kBlockBytes>>> memory_;
  std::set<int32_t> free_;
  std::set<int32_t> aside_;
  std::map<Name, int32_t> by_name_;
  std::set<uint64_t> pins_;
};

struct BlockOwnerTest : testing::Test {
  support::Context context = support::context();
  Loopback hub = loopback(context.get());
  Manager at_source{16};
  Manager at_destination{8};
  uint32_t kv_heads[2] = {8, 8};
  Transceiver source = transceiver(at_source.owner());
  Transceiver destination = transceiver(at_destination.owner());
  Sequence wanted = sequence(12);

  kvh_transceiver_params_t params(const kvh_block_owner_t *owner) {
    kvh_transceiver_params_t params{};
    params.struct_size = sizeof params;
    params.transport = KVH_TRANSPORT_LOOPBACK;
    params.loopback = hub.get();
    params.namespace_bytes = support::bytes(kNamespace);
    params.kv_heads_per_layer = kv_heads;
    params.layer_count = 2;
    params.head_size = 64;
    params.data_type = KVH_DATA_BFLOAT16;
    params.attention = KVH_ATTENTION_KEYS_AND_VALUES;
    params.pool_memory = KVH_MEMORY_HOST;
    params.block_owner = owner;
    return params;
  }

  // The transceiver keeps the owner, whose handle ends here.
  Transceiver transceiver(const BlockOwner owner) {
    const kvh_transceiver_params_t chosen = params(owner.get());
    kvh_transceiver_t *created = nullptr;
    EXPECT_EQ(kvh_transceiver_create(context.get(), nullptr, &chosen, &created, nullptr), KVH_OK);
    return Transceiver(created);
  }

  kvh_status_t begin(uint32_t policy, Prefetch &prefetch) {
    return begin(source.get(), destination.get(), policy, prefetch);
  }

  kvh_status_t begin(const kvh_transceiver_t *from, const kvh_transceiver_t *to, uint32_t policy,
                     Prefetch &prefetch) {
    kvh_buffer_t *state = nullptr;
    EXPECT_EQ(kvh_transceiver_state(from, &state), KVH_OK);
    const support::Buffer held(state);
    kvh_prefetch_params_t params{};
    params.struct_size = sizeof params;
    params.policy = policy;
    params.sequence = wanted.get();
    params.source_state = kvh_buffer_bytes(state);
    params.max_tokens = SIZE_MAX;
    kvh_prefetch_t *begun = nullptr;
    const kvh_status_t status = kvh_prefetch_begin(to, &params, &begun);
    prefetch.reset(begun);
    return status;
  }

  kvh_prefetch_outcome_t fetch(uint32_t policy, Prefetch &prefetch) {
    EXPECT_EQ(begin(policy, prefetch), KVH_OK);
    return outcome(prefetch.get());
  }

  void TearDown() override {
    wait_until([&] { return at_source.live_pins() == 0; });
    source.reset();
    destination.reset();
    EXPECT_EQ(at_source.destroyed, 1);
    EXPECT_EQ(at_destination.destroyed, 1);
  }
};

TEST_F(BlockOwnerTest, BlocksMoveFromOneManagerToTheOther) {
  at_source.hold(wanted.get(), 3);
  {
    Prefetch prefetch;
    EXPECT_EQ(fetch(KVH_RANGE_STRICT, prefetch).kind, KVH_OUTCOME_DELIVERED);
    EXPECT_EQ(at_destination.free_blocks(), 5u) << "set aside";
    EXPECT_EQ(at_destination.holds(wanted.get()), 0u) << "not before they are claimed";
    size_t blocks = 0;
    EXPECT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_OK);
    EXPECT_EQ(blocks, 3u);
    EXPECT_EQ(at_destination.holds(wanted.get()), 3u);
  }
  EXPECT_EQ(at_destination.free_blocks(), 5u) << "committed ones stay";
  // And from there on to whoever asks next.
  Manager third(4);
  {
    const Transceiver further = transceiver(third.owner());
    Prefetch prefetch;
    EXPECT_EQ(begin(destination.get(), further.get(), KVH_RANGE_STRICT, prefetch), KVH_OK);
    EXPECT_EQ(outcome(prefetch.get()).kind, KVH_OUTCOME_DELIVERED);
    size_t blocks = 0;
    EXPECT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_OK);
  }
  EXPECT_EQ(third.holds(wanted.get()), 3u);
  EXPECT_EQ(third.destroyed, 1);
  wait_until([&] { return at_destination.live_pins() == 0; });
}

TEST_F(BlockOwnerTest, APartIsCommittedAndTheRestComesBack) {
  at_source.hold(wanted.get(), 2);
  {
    Prefetch prefetch;
    EXPECT_EQ(fetch(KVH_RANGE_BEST_EFFORT, prefetch).block_count, 2u);
    size_t blocks = 0;
    EXPECT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_OK);
    EXPECT_EQ(at_destination.free_blocks(), 6u);
  }
  EXPECT_EQ(at_destination.free_blocks(), 6u);
  EXPECT_EQ(at_destination.holds(wanted.get()), 2u);
}

TEST_F(BlockOwnerTest, WhateverIsNotClaimedComesBack) {
  {
    Prefetch missed;
    EXPECT_EQ(fetch(KVH_RANGE_STRICT, missed).kind, KVH_OUTCOME_CONTENT_MISS);
    EXPECT_EQ(at_destination.free_blocks(), 5u);
  }
  EXPECT_EQ(at_destination.free_blocks(), 8u);
  at_source.hold(wanted.get(), 3);
  {
    Prefetch unclaimed;
    EXPECT_EQ(fetch(KVH_RANGE_STRICT, unclaimed).kind, KVH_OUTCOME_DELIVERED);
  }
  EXPECT_EQ(at_destination.free_blocks(), 8u);
  {
    Prefetch cancelled;
    EXPECT_EQ(begin(KVH_RANGE_STRICT, cancelled), KVH_OK);
    EXPECT_EQ(kvh_prefetch_cancel(cancelled.get()), KVH_OK);
  }
  EXPECT_EQ(at_destination.free_blocks(), 8u);
  Prefetch outlives;
  // The blocks of one that was just destroyed are busy for a moment.
  wait_until([&] { return begin(KVH_RANGE_STRICT, outlives) == KVH_OK; });
  destination.reset();
  EXPECT_EQ(at_destination.destroyed, 0) << "the prefetch keeps the owner";
  outlives.reset();
  EXPECT_EQ(at_destination.destroyed, 1);
  EXPECT_EQ(at_destination.free_blocks(), 8u);
}

TEST_F(BlockOwnerTest, AnOwnerWithoutFreeBlocksIsBusy) {
  at_source.hold(wanted.get(), 3);
  std::vector<Prefetch> taken(2);
  for (Prefetch &prefetch : taken) {
    EXPECT_EQ(begin(KVH_RANGE_STRICT, prefetch), KVH_OK);
  }
  Prefetch one_more;
  EXPECT_EQ(begin(KVH_RANGE_STRICT, one_more), KVH_BUSY);
  for (const Prefetch &prefetch : taken) {
    outcome(prefetch.get());
  }
}

TEST_F(BlockOwnerTest, WhatAnOwnerSaysIsCheckedAndItsPinsEnd) {
  at_source.hold(wanted.get(), 3);
  using Lie = std::function<void(kvh_status_t &, size_t &)>;
  const Lie lies[] = {
      [](kvh_status_t &, size_t &present) { present = 0; },
      [](kvh_status_t &, size_t &present) { present = 2; },
      [](kvh_status_t &, size_t &present) { present = SIZE_MAX; },
      [](kvh_status_t &status, size_t &) { status = KVH_BUSY; },
      [](kvh_status_t &status, size_t &) { status = KVH_ERR_NO_MEMORY; },
      [](kvh_status_t &status, size_t &) { status = 12345; },
  };
  for (const Lie &lie : lies) {
    at_source.lie = lie;
    Prefetch prefetch;
    EXPECT_STREQ(fetch(KVH_RANGE_STRICT, prefetch).reason, "source_busy");
    wait_until([&] { return at_source.live_pins() == 0; });
  }
  at_source.lie = [](kvh_status_t &status, size_t &present) {
    status = KVH_NOT_FOUND;
    present = SIZE_MAX;
  };
  Prefetch prefetch;
  EXPECT_EQ(fetch(KVH_RANGE_STRICT, prefetch).kind, KVH_OUTCOME_CONTENT_MISS);
  at_source.lie = nullptr;
  at_source.forgets_addresses = true;
  EXPECT_EQ(fetch(KVH_RANGE_STRICT, prefetch).kind, KVH_OUTCOME_CONTENT_MISS) << "they cannot be sent";
}

TEST_F(BlockOwnerTest, UserDataEndsOnceWhateverIsWrong) {
  using Change = std::function<void(kvh_block_owner_ops_t &)>;
  const std::pair<Change, kvh_status_t> cases[] = {
      {[](auto &ops) { ops.pin = nullptr; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.unpin = nullptr; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.allocate = nullptr; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.commit = nullptr; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.abort = nullptr; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.address = nullptr; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.tokens_per_block = 0; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.block_bytes = 0; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.block_bytes = SIZE_MAX; }, KVH_ERR_INVALID_ARGUMENT},
      {[](auto &ops) { ops.reserved = 1; }, KVH_ERR_ABI},
  };
  for (const auto &[change, expected] : cases) {
    Manager manager(1);
    kvh_block_owner_ops_t ops = manager.ops();
    change(ops);
    kvh_block_owner_t *owner = nullptr;
    EXPECT_EQ(kvh_block_owner_create(&ops, &owner), expected);
    EXPECT_EQ(owner, nullptr);
    EXPECT_EQ(manager.destroyed, 1);
  }
  Manager manager(1);
  kvh_block_owner_ops_t ops = manager.ops();
  EXPECT_EQ(kvh_block_owner_create(&ops, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(manager.destroyed, 1);
  ops.struct_size -= 1;
  kvh_block_owner_t *owner = nullptr;
  EXPECT_EQ(kvh_block_owner_create(&ops, &owner), KVH_ERR_ABI);
  EXPECT_EQ(manager.destroyed, 1) << "destroy was not named";
  EXPECT_EQ(kvh_block_owner_create(nullptr, &owner), KVH_ERR_INVALID_ARGUMENT);
  kvh_block_owner_destroy(nullptr);
}

TEST_F(BlockOwnerTest, AnOwnerStandsInPlaceOfTreeAndPool) {
  Manager manager(1);
  const BlockOwner owner = manager.owner();
  const Tree tree = transfer_support::tree(context.get());
  const auto refused = [&](const kvh_transceiver_params_t &params, const kvh_reuse_tree_t *with) {
    kvh_transceiver_t *created = nullptr;
    const kvh_status_t status = kvh_transceiver_create(context.get(), with, &params, &created, nullptr);
    EXPECT_EQ(created, nullptr);
    return status;
  };
  kvh_transceiver_params_t chosen = params(owner.get());
  EXPECT_EQ(refused(chosen, tree.get()), KVH_ERR_INVALID_ARGUMENT);
  chosen.block_bytes = kBlockBytes;
  EXPECT_EQ(refused(chosen, nullptr), KVH_ERR_INVALID_ARGUMENT);
  chosen = params(owner.get());
  chosen.pool_memory = KVH_MEMORY_CUDA;
  EXPECT_EQ(refused(chosen, nullptr), KVH_ERR_UNSUPPORTED);
  EXPECT_EQ(refused(params(nullptr), nullptr), KVH_ERR_INVALID_ARGUMENT);
}

}  // namespace
