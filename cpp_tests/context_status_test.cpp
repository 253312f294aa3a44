// kvh_context_status: what it says, and that it answers whoever hangs where.
#include "json.hpp"
#include "kvhints.hpp"
#include "transfer_support.hpp"

#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace {

using namespace transfer_support;

std::string status(const kvh_context_t *context) {
  std::string text(8192, '\0');
  size_t length = 0;
  EXPECT_EQ(kvh_context_status(context, text.data(), text.size(), &length), KVH_OK);
  text.resize(length);
  return text;
}

// A number of a status, by the names that lead to it.
size_t number(const std::string &text, std::initializer_list<std::string_view> path) {
  json::Value value = json::Reader(text).value();
  for (std::string_view name : path) {
    json::Value member = value[name];
    value = std::move(member);
  }
  return value.number();
}

TEST(ContextStatus, AnIdleContextSaysSo) {
  const support::Context context = support::context();
  const std::string text = status(context.get());
  const json::Value value = json::Reader(text).value();
  EXPECT_EQ(value["version"].number(), 1u);
  EXPECT_EQ(value["poisoned"].raw, "false");
  for (std::string_view state : {"ended", "init", "in_progress", "complete", "without_place"}) {
    EXPECT_EQ(value["attempts"][state].number(), 0u);
  }
  EXPECT_TRUE(value["oldest_attempts"].items.empty());
  EXPECT_EQ(value["pins"]["live"].number(), 0u);
  EXPECT_EQ(value["peers"]["sources"].number(), 0u);
  EXPECT_EQ(value["queues"]["runs_waiting"].number(), 0u);
}

TEST(ContextStatus, ArgumentsAndLengthsAreAsEverywhere) {
  const support::Context context = support::context();
  size_t length = 0;
  EXPECT_EQ(kvh_context_status(context.get(), nullptr, 0, &length), KVH_OK);
  EXPECT_GT(length, 100u);
  char small[4] = {'k', 'e', 'e', 'p'};
  EXPECT_EQ(kvh_context_status(context.get(), small, sizeof small, &length), KVH_ERR_TOO_SMALL);
  EXPECT_EQ(std::string(small, sizeof small), "keep");
  EXPECT_EQ(kvh_context_status(nullptr, nullptr, 0, &length), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_context_status(context.get(), nullptr, 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_context_status(context.get(), nullptr, 9, &length), KVH_ERR_INVALID_ARGUMENT);
}

TEST(ContextStatus, PinsAreCountedAndAge) {
  const support::Context context = support::context();
  const Tree tree = transfer_support::tree(context.get());
  const Sequence stored = sequence(8);
  const std::vector<int32_t> ids = {1, 2};
  std::vector<int32_t> held(2);
  ASSERT_EQ(kvh_reuse_tree_store(tree.get(), KVH_WINDOW_FULL, stored.get(), 0, ids.data(), 2, held.data()), KVH_OK);
  kvh_block_range_params_t params{};
  params.struct_size = sizeof params;
  params.policy = KVH_RANGE_STRICT;
  params.block_count = 2;
  size_t present = 0;
  kvh_block_range_t *range = nullptr;
  ASSERT_EQ(kvh_block_range_from_reuse_tree(tree.get(), stored.get(), &params, &present, &range), KVH_OK);
  const std::string text = status(context.get());
  EXPECT_EQ(number(text, {"pins", "live"}), 1u);
  EXPECT_GT(number(text, {"pins", "oldest_age_at_most_ns"}), 0u);
  EXPECT_LE(number(text, {"pins", "oldest_age_at_most_ns"}), number(text, {"monotonic_ns"}));
  ASSERT_EQ(kvh_block_range_unpin(range), KVH_OK);
  kvh_block_range_destroy(range);
  EXPECT_EQ(number(status(context.get()), {"pins", "live"}), 0u);
}

// Holds threads in the callbacks that the library makes, until it is opened.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_shut = false;
  int held = 0;

  void pass() {
    std::unique_lock<std::mutex> lock(mutex);
    ++held;
    changed.notify_all();
    changed.wait(lock, [&] { return !is_shut; });
    --held;
  }
  void shut() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_shut = true;
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_shut = false;
    changed.notify_all();
  }
  void wait_for_held(int count) {
    std::unique_lock<std::mutex> lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return held >= count; }));
  }
};

Gate log_gate, clock_gate;

void hold_in_log(void *, const kvh_log_record_t *) noexcept { log_gate.pass(); }

// The library's transfer thread hangs in its clock, when the gate is shut; nobody else does.
uint64_t clock_that_hangs(void *) noexcept {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (std::string_view(name) == "kvhints-transfe") {
    clock_gate.pass();
  }
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

TEST(ContextStatus, AnswersWhileThreadsHangInsideOfCalls) {
  kvh_context_params_t params{};
  params.struct_size = sizeof params;
  params.clock_monotonic_ns = clock_that_hangs;
  params.clock_unix_seconds = clock_that_hangs;
  kvh_context_t *created = nullptr;
  ASSERT_EQ(kvh_context_create(&params, &created), KVH_OK);
  const support::Context hung(created);
  ASSERT_EQ(kvh_context_set_log(hung.get(), KVH_LOG_INFO, hold_in_log, nullptr, nullptr), KVH_OK);

  const support::Context other = support::context();
  const Loopback hub = loopback(other.get());
  Worker source{hub.get()};
  const Sequence wanted = sequence(8);
  source.hold(wanted.get(), {3, 4});
  const support::Buffer state = source.state();
  const Tree tree = transfer_support::tree(hung.get());
  kvh_transceiver_params_t transceiver_params = source.params(hub.get());
  std::vector<uint8_t> pool(kBlockBytes * kBlockCount);
  transceiver_params.pool_base = pool.data();
  kvh_transceiver_t *transceiver = nullptr;
  ASSERT_EQ(kvh_transceiver_create(hung.get(), tree.get(), &transceiver_params, &transceiver, nullptr), KVH_OK);
  const Transceiver owned(transceiver);

  // The transfer thread hangs.
  clock_gate.shut();
  const std::vector<int32_t> places = {20, 21};
  kvh_prefetch_params_t prefetch_params{};
  prefetch_params.struct_size = sizeof prefetch_params;
  prefetch_params.policy = KVH_RANGE_STRICT;
  prefetch_params.sequence = wanted.get();
  prefetch_params.source_state = kvh_buffer_bytes(state.get());
  prefetch_params.max_tokens = SIZE_MAX;
  prefetch_params.block_ids = places.data();
  prefetch_params.block_id_count = places.size();
  kvh_prefetch_t *begun = nullptr;
  ASSERT_EQ(kvh_prefetch_begin(transceiver, &prefetch_params, &begun), KVH_OK);
  clock_gate.wait_for_held(1);

  // A call hangs in the log; another one waits for a rank that does not come.
  log_gate.shut();
  std::thread in_admit([&] {
    int32_t verdict = 0;
    kvh_snapshot_t *snapshot = nullptr;
    EXPECT_EQ(kvh_admit(hung.get(), KVH_INGRESS_TRUSTED, reinterpret_cast<const uint8_t *>("{"), 1, &verdict, &snapshot),
              KVH_OK);
  });
  log_gate.wait_for_held(1);
  kvh_local_group_t *group = nullptr;
  ASSERT_EQ(kvh_local_group_create(2, &group), KVH_OK);
  kvh_communicator_params_t ranks{};
  ranks.struct_size = sizeof ranks;
  kvh_communicator_t *communicators[2] = {};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(kvh_communicator_create_local(hung.get(), group, rank, &ranks, &communicators[rank]), KVH_OK);
  }
  std::thread in_broadcast([&] {
    kvh_batch_t *received = nullptr;
    EXPECT_EQ(kvh_broadcast(communicators[1], nullptr, &received), KVH_OK);
    kvh_batch_destroy(received);
  });

  for (int round = 0; round < 100; ++round) {
    const std::string text = status(hung.get());
    ASSERT_EQ(number(text, {"attempts", "init"}), 1u) << text;
    const json::Value listed = json::Reader(text).value();
    const json::Value &attempt = listed["oldest_attempts"].items.at(0);
    EXPECT_EQ(attempt["number"].number(), kvh_prefetch_number(begun));
    EXPECT_EQ(attempt["state"].string, "init");
    EXPECT_EQ(attempt["bytes"].number(), 2 * kBlockBytes);
    EXPECT_GE(attempt["age_ns"].number(), attempt["in_state_ns"].number());
  }

  log_gate.open();
  in_admit.join();
  kvh_batch_t *batch = nullptr;
  ASSERT_EQ(kvh_batch_create(&batch), KVH_OK);
  EXPECT_EQ(kvh_broadcast(communicators[0], batch, nullptr), KVH_OK);
  in_broadcast.join();
  kvh_batch_destroy(batch);
  kvh_communicator_destroy(communicators[0]);
  kvh_communicator_destroy(communicators[1]);
  kvh_local_group_destroy(group);

  clock_gate.open();
  EXPECT_EQ(outcome(begun).kind, static_cast<uint32_t>(KVH_OUTCOME_DELIVERED));
  EXPECT_EQ(number(status(hung.get()), {"attempts", "complete"}), 1u);
  size_t blocks = 0;
  EXPECT_EQ(kvh_prefetch_claim(begun, &blocks), KVH_OK);
  EXPECT_EQ(number(status(hung.get()), {"attempts", "ended"}), 1u) << "its handle lives";
  EXPECT_EQ(number(status(hung.get()), {"peers", "sources"}), 1u);
  kvh_prefetch_destroy(begun);
  wait_until([&] { return number(status(hung.get()), {"attempts", "ended"}) == 0; });
}

TEST(ContextStatus, AForkedChildIsToldSo) {
  const support::Context context = support::context();
  const pid_t child = fork();
  if (child == 0) {
    size_t length = 0;
    _exit(kvh_context_status(context.get(), nullptr, 0, &length) == KVH_ERR_FORKED ? 0 : 1);
  }
  int ended = -1;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

TEST(ContextStatus, InCpp) {
  const kvhints::Context context;
  EXPECT_THAT(context.status(), testing::StartsWith("{\"version\":1,"));
}

}  // namespace
