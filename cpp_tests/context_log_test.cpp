// kvh_context_set_log: which events are told, with which fields; never a word of a hint, never a
// flood, and the user data is destroyed once whatever happens.
#include "json.hpp"
#include "kvhints.hpp"
#include "transfer_support.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <mutex>

namespace {

using namespace transfer_support;
using testing::HasSubstr;

struct Line {
  uint32_t level;
  std::string event, message, fields;
  uint64_t left_out, time_ns;
};

// Where the records of one context go.
struct Log {
  std::mutex mutex;
  std::vector<Line> lines;
  int destroyed = 0;

  static void take(void *user_data, const kvh_log_record_t *record) noexcept {
    auto *log = static_cast<Log *>(user_data);
    EXPECT_EQ(record->struct_size, sizeof *record);
    const std::lock_guard<std::mutex> lock(log->mutex);
    log->lines.push_back({record->level, std::string(support::view(record->event)),
                          std::string(support::view(record->message)), std::string(support::view(record->fields)),
                          record->left_out, record->time_ns});
  }
  static void destroy(void *user_data) noexcept { ++static_cast<Log *>(user_data)->destroyed; }

  std::vector<Line> of(std::string_view event) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<Line> found;
    for (const Line &line : lines)
      if (line.event == event) found.push_back(line);
    return found;
  }
};

void listen(const kvh_context_t *context, Log &log, uint32_t level = KVH_LOG_DEBUG) {
  ASSERT_EQ(kvh_context_set_log(context, level, Log::take, &log, Log::destroy), KVH_OK);
}

void admit(const kvh_context_t *context, std::string_view hint) {
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = nullptr;
  const kvh_bytes_t data = support::bytes(hint);
  ASSERT_EQ(kvh_admit(context, KVH_INGRESS_TRUSTED, data.data, data.len, &verdict, &snapshot), KVH_OK);
  kvh_snapshot_release(snapshot);
}

TEST(ContextLog, AHintThatIsIgnoredIsToldWithoutItsContents) {
  Log log;
  const support::Context context = support::context();
  listen(context.get(), log);
  admit(context.get(), R"({"protocol_version":"0.1","message_id":"secret","actions":)");
  admit(context.get(), R"({"protocol_version":"secret","message_id":"m","actions":[]})");
  ASSERT_EQ(log.lines.size(), 2u);
  EXPECT_EQ(log.lines[0].event, "hint_ignored");
  EXPECT_EQ(log.lines[0].level, static_cast<uint32_t>(KVH_LOG_INFO));
  EXPECT_EQ(log.lines[0].fields, R"({"reason":"malformed"})");
  EXPECT_EQ(log.lines[1].fields, R"({"reason":"unknown_version"})");
  for (const Line &line : log.lines) {
    EXPECT_THAT(line.event + line.message + line.fields, testing::Not(HasSubstr("secret")));
  }
}

TEST(ContextLog, OnlyRecordsUpToTheLevelAreTold) {
  Log log;
  const support::Context context = support::context();
  listen(context.get(), log, KVH_LOG_WARNING);
  admit(context.get(), "{");
  EXPECT_TRUE(log.lines.empty());
}

std::atomic<uint64_t> now_ns{0};
uint64_t set_time(void *) noexcept { return now_ns; }

TEST(ContextLog, NobodyFloodsIt) {
  now_ns = 0;
  kvh_context_params_t params{};
  params.struct_size = sizeof params;
  params.clock_monotonic_ns = set_time;
  params.clock_unix_seconds = set_time;
  kvh_context_t *created = nullptr;
  ASSERT_EQ(kvh_context_create(&params, &created), KVH_OK);
  const support::Context context(created);
  Log log;
  listen(context.get(), log);
  for (int index = 0; index < 1000; ++index) {
    admit(context.get(), "{");
  }
  EXPECT_EQ(log.lines.size(), 10u);
  now_ns = 1'000'000'000;
  admit(context.get(), "{");
  ASSERT_EQ(log.lines.size(), 11u);
  EXPECT_EQ(log.lines[10].left_out, 990u);
  EXPECT_EQ(log.lines[10].time_ns, 1'000'000'000u);
  EXPECT_THAT(support::metrics(context.get()), HasSubstr("{reason=\"malformed\"} 1001\n")) << "counted all the same";
}

TEST(ContextLog, UserDataIsDestroyedOnceWhateverHappens) {
  Log log;
  EXPECT_EQ(kvh_context_set_log(nullptr, KVH_LOG_INFO, Log::take, &log, Log::destroy), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(log.destroyed, 1);
  support::Context context = support::context();
  EXPECT_EQ(kvh_context_set_log(context.get(), KVH_LOG_INFO, nullptr, &log, Log::destroy), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(log.destroyed, 2);
  for (uint32_t level : {0u, 5u}) {
    EXPECT_EQ(kvh_context_set_log(context.get(), level, Log::take, &log, Log::destroy), KVH_ERR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(log.destroyed, 4);
  EXPECT_EQ(kvh_context_set_log(context.get(), KVH_LOG_INFO, Log::take, &log, nullptr), KVH_OK);
  Log second;
  EXPECT_EQ(kvh_context_set_log(context.get(), KVH_LOG_INFO, Log::take, &second, Log::destroy), KVH_ERR_STATE);
  EXPECT_EQ(second.destroyed, 1);
  context.reset();

  Log third;
  support::Context other = support::context();
  listen(other.get(), third);
  Tree tree = transfer_support::tree(other.get());
  other.reset();
  EXPECT_EQ(third.destroyed, 0) << "the tree still belongs to the context";
  tree.reset();
  EXPECT_EQ(third.destroyed, 1);
}

TEST(ContextLog, PrefetchesAreToldOnceWithTheirNumbersAndEnds) {
  Log source_log, log;
  {
    const support::Context context = support::context();
    const Loopback hub = loopback(context.get());
    Worker source{hub.get()};
    Worker destination{hub.get()};
    listen(source.context.get(), source_log);
    listen(destination.context.get(), log);
    const support::Buffer state = source.state();
    const Sequence held = sequence(8), other = sequence(8, 500);
    source.hold(held.get(), {3, 4});
    const std::vector<int32_t> places = {20, 21};
    kvh_prefetch_params_t params{};
    params.struct_size = sizeof params;
    params.policy = KVH_RANGE_STRICT;
    params.source_state = kvh_buffer_bytes(state.get());
    params.max_tokens = SIZE_MAX;
    params.block_ids = places.data();
    params.block_id_count = places.size();
    for (const kvh_sequence_t *wanted : {held.get(), other.get()}) {
      params.sequence = wanted;
      kvh_prefetch_t *begun = nullptr;
      ASSERT_EQ(kvh_prefetch_begin(destination.transceiver.get(), &params, &begun), KVH_OK);
      const Prefetch prefetch(begun);
      outcome(prefetch.get());
      outcome(prefetch.get());
      EXPECT_EQ(kvh_prefetch_cancel(prefetch.get()), KVH_OK);
      wait_until([&] { return kvh_prefetch_quiesced(prefetch.get()) == KVH_OK; });
    }
    // A source that is gone.
    settles(source);
    source.transceiver.reset();
    params.sequence = held.get();
    kvh_prefetch_t *begun = nullptr;
    ASSERT_EQ(kvh_prefetch_begin(destination.transceiver.get(), &params, &begun), KVH_OK);
    const Prefetch prefetch(begun);
    EXPECT_EQ(outcome(prefetch.get()).kind, static_cast<uint32_t>(KVH_OUTCOME_FAILED));
    settles(destination);
  }
  for (const std::vector<Line> *lines : {&log.lines, &source_log.lines}) {
    for (const Line &line : *lines) {
      EXPECT_NO_THROW(json::Reader(line.fields).value()) << line.fields;
    }
  }
  const std::vector<Line> ended = log.of("prefetch_ended");
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].fields, R"({"attempt":1,"outcome":"delivered","blocks":2})");
  EXPECT_EQ(ended[1].fields, R"({"attempt":2,"outcome":"content_miss","blocks":0})");
  const std::vector<Line> failed = log.of("prefetch_failed");
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].level, static_cast<uint32_t>(KVH_LOG_WARNING));
  EXPECT_EQ(failed[0].fields, R"({"attempt":3,"reason":"peer_gone"})");
}

// The C++ face: any noexcept callable, owned by the context. It may ask the library meanwhile.
TEST(ContextLog, ACallableIsOwnedAndMayAsk) {
  auto lines = std::make_shared<std::vector<std::string>>();
  {
    const kvhints::Context context;
    context.set_log(KVH_LOG_INFO, [lines, &context](const kvh_log_record_t &record) noexcept {
      lines->push_back(std::string(kvhints::text(record.event)) + " " + context.status().substr(0, 12));
    });
    context.admit(kvhints::Ingress::trusted, "{");
    EXPECT_THROW(context.set_log(KVH_LOG_INFO, [](const kvh_log_record_t &) noexcept {}), kvhints::Error);
    EXPECT_EQ(lines.use_count(), 2);
  }
  EXPECT_EQ(lines.use_count(), 1);
  EXPECT_EQ(*lines, std::vector<std::string>{"hint_ignored {\"version\":1"});
}

}  // namespace
