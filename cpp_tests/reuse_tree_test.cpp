// kvh_reuse_tree_t: store, match, evict, reset, find, leases, metrics; and many threads at once.
#include "reuse_support.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <set>
#include <string>
#include <thread>

namespace {

using namespace reuse_support;
using testing::HasSubstr;

struct ReuseTree : testing::Test {
  Context context = reuse_support::context();
  Tree tree = reuse_support::tree(context);

  size_t match(const Sequence &sequence, size_t max_tokens = SIZE_MAX) {
    size_t matched = 12345;
    EXPECT_EQ(kvh_reuse_tree_match(tree.get(), KVH_WINDOW_FULL, sequence.get(), max_tokens, &matched), KVH_OK);
    return matched;
  }
  kvh_status_t evict(int32_t id) { return kvh_reuse_tree_evict(tree.get(), KVH_WINDOW_FULL, id); }
};

TEST_F(ReuseTree, ModesAndWindowsAreChecked) {
  auto create = [&](auto change) {
    kvh_reuse_tree_params_t params = tree_params();
    change(params);
    kvh_reuse_tree_t *made = nullptr;
    kvh_status_t status = kvh_reuse_tree_create(context.get(), &params, &made);
    EXPECT_EQ(made == nullptr, status != KVH_OK);
    kvh_reuse_tree_destroy(made);
    return status;
  };
  static const int32_t twice[] = {0, 8, 8}, negative[] = {-1}, good[] = {0, 8};
  EXPECT_EQ(create([](auto &params) { params.mode = 0; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.mode = KVH_REUSE_MODE_OWNER; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.mode = KVH_REUSE_MODE_OWNER, params.primary_blocks = 1; }), KVH_OK);
  EXPECT_EQ(create([](auto &params) { params.primary_blocks = 1; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.event_capacity = SIZE_MAX; }), KVH_ERR_LIMIT);
  EXPECT_EQ(create([](auto &params) { params.mode = 3; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.tokens_per_block = 0; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.primary_blocks = -1; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.window_count = 1; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.windows = twice, params.window_count = 3; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.windows = negative, params.window_count = 1; }),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(create([](auto &params) { params.windows = good, params.window_count = 2; }), KVH_OK);
  EXPECT_EQ(kvh_reuse_tree_create(context.get(), nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_reuse_tree_destroy(nullptr);
}

TEST_F(ReuseTree, StoresAndMatchesAPrefix) {
  Sequence prompt = sequence(tokens(0, 10));
  EXPECT_EQ(match(prompt), 0u);
  EXPECT_EQ(store(tree, prompt, {1, 2, 3}), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(match(prompt), 10u);
  EXPECT_EQ(match(prompt, 9), 9u);
  EXPECT_EQ(match(prompt, 8), 8u);
  EXPECT_EQ(match(prompt, 5), 5u);
  EXPECT_EQ(match(prompt, 0), 0u);
  EXPECT_EQ(match(sequence({0, 1, 2, 3, 4, 5, 77, 78})), 6u) << "four whole, two of the next";
  EXPECT_EQ(store(tree, prompt, {4, 5, 6}), (std::vector<int32_t>{1, 2, 3})) << "duplicates are handed back";
}

TEST_F(ReuseTree, InputAndOutputIdsMayBeOneArray) {
  Sequence prompt = sequence(tokens(0, 8));
  store(tree, prompt, {1});
  int32_t both[2] = {7, 8};
  ASSERT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, both, 2, both), KVH_OK);
  EXPECT_EQ(both[0], 1);
  EXPECT_EQ(both[1], 8);
}

TEST_F(ReuseTree, TheFullWindowIsClosedUnderPrefixes) {
  Sequence prompt = sequence(tokens(0, 12));
  int32_t held[2], ids[2] = {5, 6}, hole[2] = {5, -1};
  ASSERT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 1, ids, 2, held), KVH_OK);
  EXPECT_EQ(held[0], KVH_BLOCK_NONE);
  EXPECT_EQ(held[1], KVH_BLOCK_NONE);
  held[0] = 99;
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, hole, 2, held),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(held[0], 99) << "refused as a whole";
  EXPECT_EQ(match(prompt), 0u);
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 2, ids, 2, held),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), 3, prompt.get(), 0, ids, 2, held), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, ids, 2, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, prompt.get(), 0, nullptr, 0, nullptr), KVH_OK);
}

TEST_F(ReuseTree, EvictTakesWhatIsBelow) {
  store(tree, sequence(tokens(0, 12)), {1, 2, 3});
  EXPECT_EQ(evict(2), KVH_OK);
  EXPECT_EQ(evict(2), KVH_NOT_FOUND);
  EXPECT_EQ(evict(3), KVH_NOT_FOUND);
  EXPECT_EQ(match(sequence(tokens(0, 12))), 4u);
}

TEST_F(ReuseTree, ResetKeepsProtection) {
  Sequence prompt = sequence(tokens(0, 8));
  store(tree, prompt, {1, 2});
  Range range = pin(tree, prompt, 2);
  ASSERT_EQ(kvh_reuse_tree_reset(tree.get()), KVH_OK);
  EXPECT_EQ(match(prompt), 0u);
  EXPECT_EQ(evict(1), KVH_BUSY);
  EXPECT_EQ(store(tree, prompt, {1, 2}), (std::vector<int32_t>{KVH_BLOCK_NONE, KVH_BLOCK_NONE}));
  range.reset();
  EXPECT_EQ(evict(1), KVH_NOT_FOUND);
  EXPECT_EQ(store(tree, prompt, {1, 2}), (std::vector<int32_t>{1, 2}));
}

TEST_F(ReuseTree, FindsBlocksByIdAndByHash) {
  Sequence prompt = sequence(tokens(0, 6));
  store(tree, prompt, {1, 2});
  uint64_t hashes[2];
  size_t count = 0;
  ASSERT_EQ(kvh_sequence_block_hashes(prompt.get(), hashes, 2, &count), KVH_OK);
  kvh_block_state_t state{};
  state.struct_size = sizeof state;
  ASSERT_EQ(kvh_reuse_tree_find_id(tree.get(), KVH_WINDOW_FULL, 2, &state), KVH_OK);
  EXPECT_EQ(state.block_hash, hashes[1]);
  EXPECT_EQ(state.position, 1u);
  EXPECT_EQ(state.token_count, 2u);
  EXPECT_EQ(state.is_protected, 0u);
  ASSERT_EQ(kvh_reuse_tree_find_hash(tree.get(), KVH_WINDOW_FULL, hashes[0], &state), KVH_OK);
  EXPECT_EQ(state.block_id, 1);
  EXPECT_EQ(kvh_reuse_tree_find_hash(tree.get(), KVH_WINDOW_FULL, 1, &state), KVH_NOT_FOUND);
  EXPECT_EQ(kvh_reuse_tree_find_id(tree.get(), KVH_WINDOW_FULL, 3, &state), KVH_NOT_FOUND);
  EXPECT_EQ(kvh_reuse_tree_find_id(tree.get(), KVH_WINDOW_FULL, 1, nullptr), KVH_ERR_INVALID_ARGUMENT);
  state.struct_size = 4;
  EXPECT_EQ(kvh_reuse_tree_find_id(tree.get(), KVH_WINDOW_FULL, 1, &state), KVH_ERR_ABI);
}

TEST_F(ReuseTree, OffloadedBlocksAreNotPinnedForSending) {
  Sequence prompt = sequence(tokens(0, 8));
  store(tree, prompt, {1, 2});
  ASSERT_EQ(kvh_reuse_tree_set_tier(tree.get(), KVH_WINDOW_FULL, 1, KVH_TIER_SECONDARY), KVH_OK);
  EXPECT_EQ(pin(tree, prompt, 2), nullptr);
  ASSERT_EQ(kvh_reuse_tree_set_tier(tree.get(), KVH_WINDOW_FULL, 1, KVH_TIER_PRIMARY), KVH_OK);
  Range range = pin(tree, prompt, 2);
  EXPECT_NE(range, nullptr);
  EXPECT_EQ(kvh_reuse_tree_set_tier(tree.get(), KVH_WINDOW_FULL, 1, KVH_TIER_SECONDARY), KVH_BUSY);
  EXPECT_EQ(kvh_reuse_tree_set_tier(tree.get(), KVH_WINDOW_FULL, 9, KVH_TIER_SECONDARY), KVH_NOT_FOUND);
  EXPECT_EQ(kvh_reuse_tree_set_tier(tree.get(), KVH_WINDOW_FULL, 1, 0), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(ReuseTree, RemoveSubtreeSaysHowManyLeft) {
  store(tree, sequence(tokens(0, 12)), {1, 2, 3});
  size_t removed = 0;
  EXPECT_EQ(kvh_reuse_tree_remove_subtree(tree.get(), KVH_WINDOW_FULL, 2, &removed), KVH_OK);
  EXPECT_EQ(removed, 2u);
  EXPECT_EQ(kvh_reuse_tree_remove_subtree(tree.get(), KVH_WINDOW_FULL, 2, &removed), KVH_NOT_FOUND);
}

uint64_t now_ns;
uint64_t test_clock(void *) noexcept { return now_ns; }

TEST(ReuseTreeLeases, AreReportedByTheContextsClock) {
  kvh_context_params_t context_params{};
  context_params.struct_size = sizeof context_params;
  context_params.clock_monotonic_ns = test_clock;
  context_params.clock_unix_seconds = test_clock;
  kvh_context_t *made = nullptr;
  ASSERT_EQ(kvh_context_create(&context_params, &made), KVH_OK);
  Context context(made);
  Tree tree = reuse_support::tree(context);
  Sequence prompt = sequence(tokens(0, 4));
  store(tree, prompt, {1});
  now_ns = 1000;
  kvh_block_range_params_t params = range_params(1);
  params.lease_ns = 50;
  size_t present = 0, count = 99;
  kvh_block_range_t *pinned = nullptr;
  ASSERT_EQ(kvh_block_range_from_reuse_tree(tree.get(), prompt.get(), &params, &present, &pinned), KVH_OK);
  Range range(pinned);
  now_ns = 1049;
  EXPECT_EQ(kvh_reuse_tree_expired_leases(tree.get(), nullptr, 0, &count), KVH_OK);
  EXPECT_EQ(count, 0u);
  now_ns = 1050;
  uint64_t pin_id = 0;
  EXPECT_EQ(kvh_reuse_tree_expired_leases(tree.get(), &pin_id, 1, &count), KVH_OK);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(pin_id, kvh_block_range_pin_id(range.get()));
}

TEST_F(ReuseTree, CountsInStatisticsAndMetrics) {
  Sequence prompt = sequence(tokens(0, 8));
  store(tree, prompt, {1, 2});
  store(tree, prompt, {3});
  Range range = pin(tree, prompt, 2);
  EXPECT_EQ(evict(1), KVH_BUSY);
  kvh_reuse_tree_statistics_t statistics{};
  statistics.struct_size = sizeof statistics;
  ASSERT_EQ(kvh_reuse_tree_statistics(tree.get(), &statistics), KVH_OK);
  EXPECT_EQ(statistics.stored_blocks, 2u);
  EXPECT_EQ(statistics.protected_blocks, 2u);
  EXPECT_EQ(statistics.live_pins, 1u);
  EXPECT_EQ(statistics.blocks_duplicate, 1u);
  auto metrics = [&] {
    std::string text(1 << 16, '\0');
    size_t length = 0;
    EXPECT_EQ(kvh_context_metrics(context.get(), text.data(), text.size(), &length), KVH_OK);
    text.resize(length);
    return text;
  };
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_stored_blocks 2\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_protected_blocks 2\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_pins 1\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_store_blocks_total{result=\"duplicate\"} 1\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_evictions_busy_total 1\n"));
  range.reset();
  tree.reset();
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_stored_blocks 0\n"));
  EXPECT_THAT(metrics(), HasSubstr("\nkvhints_reuse_pins 0\n"));
}

// One thread stores and evicts as a scheduler does; others pin, read and unpin as transfers do. The
// owner of each id is written down outside the tree: nobody may evict what a reader holds.
TEST_F(ReuseTree, PinnedBlocksStayWhileManyThreadsWork) {
  constexpr int kReaders = 3, kPrompts = 4, kBlocks = 6, kRounds = 3000;
  std::vector<Sequence> prompts;
  for (int32_t prompt = 0; prompt < kPrompts; ++prompt) {
    // The first two blocks are common to all.
    std::vector<int32_t> all = tokens(0, 8), own = tokens(1000 * (prompt + 1), (kBlocks - 2) * kTokensPerBlock);
    all.insert(all.end(), own.begin(), own.end());
    prompts.push_back(sequence(all));
  }
  // What a block's memory says: which prompt's block it holds, or -1 while it is being rewritten.
  constexpr int kIds = kPrompts * kBlocks;
  std::vector<std::atomic<int>> memory(kIds);
  for (auto &word : memory) word = -1;
  std::atomic<bool> done{false};
  std::atomic<long> wrong{0}, pinned{0}, missed{0};

  auto content = [](int prompt, size_t block) { return block < 2 ? int(block) : prompt * kBlocks + int(block); };
  auto read = [&](int seed) {
    std::mt19937 random(seed);
    while (!done) {
      int prompt = int(random() % kPrompts);
      kvh_block_range_params_t params = range_params(1 + random() % kBlocks, KVH_RANGE_BEST_EFFORT);
      size_t present = 0;
      kvh_block_range_t *made = nullptr;
      kvh_status_t status =
          kvh_block_range_from_reuse_tree(tree.get(), prompts[prompt].get(), &params, &present, &made);
      if (status != KVH_OK) {
        wrong += status != KVH_NOT_FOUND;
        ++missed;
        continue;
      }
      Range range(made);
      std::vector<int32_t> held = ids(range);
      for (size_t block = 0; block < held.size(); ++block) {
        wrong += memory[held[block]] != content(prompt, block);
      }
      ++pinned;
      if (random() % 2 == 0) wrong += kvh_block_range_unpin(range.get()) != KVH_OK;
    }
  };
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) readers.emplace_back(read, reader + 1);

  std::mt19937 random(99);
  std::set<int32_t> free_ids;
  for (int32_t id = 0; id < kIds; ++id) free_ids.insert(id);
  std::set<int32_t> stored_ids;
  for (int round = 0; round < kRounds || pinned == 0 || missed == 0; ++round) {
    if (free_ids.size() >= kBlocks) {
      int prompt = int(random() % kPrompts);
      std::vector<int32_t> given(free_ids.begin(), std::next(free_ids.begin(), kBlocks));
      for (size_t block = 0; block < kBlocks; ++block) memory[given[block]] = content(prompt, block);
      std::vector<int32_t> held = store(tree, prompts[prompt], given);
      for (size_t block = 0; block < kBlocks; ++block) {
        if (held[block] == given[block]) {
          free_ids.erase(given[block]);
          stored_ids.insert(given[block]);
        } else {
          memory[given[block]] = -1;
        }
      }
    }
    for (int32_t victim : std::vector<int32_t>(stored_ids.begin(), stored_ids.end())) {
      if (random() % 3 != 0) continue;
      kvh_status_t status = evict(victim);
      if (status == KVH_BUSY) continue;
      EXPECT_TRUE(status == KVH_OK || status == KVH_NOT_FOUND);
      // Gone, alone or with one above it: its memory is the scheduler's again.
      memory[victim] = -1;
      stored_ids.erase(victim);
      free_ids.insert(victim);
    }
  }
  done = true;
  for (std::thread &reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(protected_count(tree), 0u);
  kvh_reuse_tree_statistics_t statistics{};
  statistics.struct_size = sizeof statistics;
  ASSERT_EQ(kvh_reuse_tree_statistics(tree.get(), &statistics), KVH_OK);
  EXPECT_EQ(statistics.live_pins, 0u);
  EXPECT_GT(statistics.blocks_removed, 0u);
}

}  // namespace
