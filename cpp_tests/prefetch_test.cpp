// kvh_prefetch_t: blocks from one worker's tree to another's over the loopback hub; outcomes,
// reports, claims, and that nothing stays pinned or lent.
#include "transfer_support.hpp"

#include <gmock/gmock.h>

namespace {

using namespace transfer_support;
using testing::HasSubstr;

struct PrefetchTest : testing::Test {
  support::Context context = support::context();
  Loopback hub = loopback(context.get());
  Worker source{hub.get()};
  Worker destination{hub.get()};
  support::Buffer state = source.state();

  kvh_prefetch_params_t params(const kvh_sequence_t *wanted, const std::vector<int32_t> &places) {
    kvh_prefetch_params_t params{};
    params.struct_size = sizeof params;
    params.policy = KVH_RANGE_STRICT;
    params.sequence = wanted;
    params.source_state = kvh_buffer_bytes(state.get());
    params.max_tokens = SIZE_MAX;
    params.block_ids = places.data();
    params.block_id_count = places.size();
    return params;
  }

  Prefetch begin(const kvh_prefetch_params_t &params) {
    kvh_prefetch_t *begun = nullptr;
    EXPECT_EQ(kvh_prefetch_begin(destination.transceiver.get(), &params, &begun), KVH_OK);
    return Prefetch(begun);
  }

  kvh_status_t refusal(const kvh_prefetch_params_t &params) {
    kvh_prefetch_t *begun = nullptr;
    const kvh_status_t status = kvh_prefetch_begin(destination.transceiver.get(), &params, &begun);
    EXPECT_EQ(begun, nullptr);
    return status;
  }

  static kvh_prefetch_report_t report(const kvh_prefetch_t *prefetch) {
    kvh_prefetch_report_t report{};
    report.struct_size = sizeof report;
    EXPECT_EQ(kvh_prefetch_report(prefetch, &report), KVH_OK);
    return report;
  }

  void TearDown() override {
    if (source.transceiver) {
      settles(source);
    }
    if (destination.transceiver) {
      settles(destination);
    }
  }
};

TEST_F(PrefetchTest, BlocksAreFetchedClaimedAndStored) {
  const Sequence wanted = sequence(12);
  source.hold(wanted.get(), {3, 9, 1});
  const std::vector<int32_t> places = {20, 21, 5};
  const Prefetch prefetch = begin(params(wanted.get(), places));
  const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
  EXPECT_EQ(ended.kind, KVH_OUTCOME_DELIVERED);
  EXPECT_EQ(ended.token_end, 12u);
  EXPECT_EQ(ended.block_count, 3u);
  EXPECT_STREQ(ended.reason, "");
  uint32_t state = 99;
  EXPECT_EQ(kvh_prefetch_poll(prefetch.get(), &state), KVH_OK);
  EXPECT_EQ(state, KVH_PREFETCH_COMPLETE);
  for (size_t position = 0; position < places.size(); ++position) {
    EXPECT_TRUE(destination.has(places[position], position));
  }
  const kvh_prefetch_report_t report = this->report(prefetch.get());
  EXPECT_EQ(report.requested, 3u);
  EXPECT_EQ(report.present, 3u);
  EXPECT_EQ(report.moved, 3u);
  EXPECT_EQ(report.missing, 0u);
  EXPECT_EQ(report.bytes, 3 * kBlockBytes);
  EXPECT_EQ(report.foreign_hashes, 0u);
  EXPECT_EQ(report.hint_check, KVH_HINT_UNKNOWN);
  size_t matched = 99;
  EXPECT_EQ(kvh_reuse_tree_match(destination.tree.get(), KVH_WINDOW_FULL, wanted.get(), 12, &matched), KVH_OK);
  EXPECT_EQ(matched, 0u) << "not visible before the host stores them";
  size_t blocks = 0;
  EXPECT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_OK);
  EXPECT_EQ(blocks, 3u);
  EXPECT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_NOT_FOUND);
  std::vector<int32_t> held(3);
  EXPECT_EQ(kvh_reuse_tree_store(destination.tree.get(), KVH_WINDOW_FULL, wanted.get(), 0, places.data(), 3,
                                 held.data()),
            KVH_OK);
  EXPECT_EQ(held, places);
  EXPECT_THAT(support::metrics(destination.context.get()), HasSubstr("kvhints_prefetch_blocks_total 3\n"));
  EXPECT_THAT(support::metrics(source.context.get()), HasSubstr("kvhints_source_requests_served_total 1\n"));
}

// A generation-only request that carries the state: what is missing is its error, or is not.
TEST_F(PrefetchTest, ARequiredSourceThatDoesNotDeliverIsAnErrorOfTheRequest) {
  const Sequence wanted = sequence(12);
  source.hold(wanted.get(), {3, 9});
  const std::vector<int32_t> places = {20, 21, 5};
  const auto ended = [&](const kvh_prefetch_params_t &chosen) {
    const Prefetch prefetch = begin(chosen);
    outcome(prefetch.get());
    uint32_t state = 99;
    return kvh_prefetch_poll(prefetch.get(), &state);
  };
  kvh_prefetch_params_t chosen = params(wanted.get(), places);
  for (const uint32_t policy : {KVH_RANGE_STRICT, KVH_RANGE_BEST_EFFORT}) {
    chosen.policy = policy;
    chosen.source_requirement = KVH_SOURCE_OPTIONAL;
    EXPECT_EQ(ended(chosen), KVH_OK) << "a miss, or a part, of what is optional";
    chosen.source_requirement = KVH_SOURCE_REQUIRED;
    EXPECT_EQ(ended(chosen), KVH_ERR_REQUIRED_SOURCE);
    chosen.max_tokens = 8;
    EXPECT_EQ(ended(chosen), KVH_OK) << "all that was asked for";
    chosen.max_tokens = SIZE_MAX;
  }
  source.transceiver.reset();
  EXPECT_EQ(ended(chosen), KVH_ERR_REQUIRED_SOURCE) << "never a hang";
  EXPECT_STREQ(kvh_status_string(KVH_ERR_REQUIRED_SOURCE), "a required source did not deliver: fail the request");
}

// A router's hint, decided by a table that lists the source: a named fetch of its HTTP endpoint.
struct PlannedPrefetchTest : PrefetchTest {
  using Capabilities = support::Handle<kvh_capabilities_t, kvh_capabilities_destroy>;
  using Table = support::Handle<kvh_binding_table_t, kvh_binding_table_destroy>;
  using Plan = support::Handle<kvh_plan_t, kvh_plan_destroy>;

  uint16_t port = 0;
  std::string endpoint;

  void SetUp() override {
    ASSERT_EQ(kvh_transceiver_serve_http(source.transceiver.get(), {nullptr, 0}, 0, &port, nullptr), KVH_OK);
    endpoint = "http://127.0.0.1:" + std::to_string(port) + "/v1/data_transceiver_state";
  }

  Plan plan(const kvh_sequence_t *wanted, size_t hinted_blocks, std::string_view named_endpoint) {
    std::vector<uint64_t> hashes(kvh_sequence_block_count(wanted));
    size_t count = 0;
    EXPECT_EQ(kvh_sequence_block_hashes(wanted, hashes.data(), hashes.size(), &count), KVH_OK);
    std::string list;
    for (size_t index = 0; index < hinted_blocks; ++index) {
      list += (index == 0 ? "" : ",") + std::to_string(hashes[index]);
    }
    const std::string hint =
        R"({"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch",)"
        R"("action_version":"1.0","payload":{"source_control_endpoint":")" +
        std::string(named_endpoint) + R"(","block_hashes":[)" + list + "]}}]}";
    const std::string configuration =
        R"({"version":1,"bindings":[{"id":"b","family":"F","addressing":"content_named",)"
        R"("actions":[{"type":"kv.fetch","version":"1.0"}],"namespaces":["model@7"]}],)"
        R"("endpoints":[{"endpoint":")" +
        std::string(named_endpoint) + R"(","bindings":["b"]}]})";
    kvh_capabilities_t *capabilities = nullptr;
    EXPECT_EQ(kvh_capabilities_create(&capabilities), KVH_OK);
    const Capabilities owned_capabilities(capabilities);
    EXPECT_EQ(kvh_capabilities_add(capabilities, support::str("F"), support::str("kv.fetch"), support::str("1.0")),
              KVH_OK);
    kvh_binding_table_t *table = nullptr;
    const kvh_bytes_t json = support::bytes(configuration);
    EXPECT_EQ(kvh_binding_table_load(json.data, json.len, &table, nullptr), KVH_OK);
    const Table owned_table(table);
    kvh_request_profile_t profile{};
    profile.struct_size = sizeof profile;
    profile.kind = KVH_REQUEST_CONTEXT;
    profile.has_lora = KVH_ANSWER_NO;
    profile.required_handoff = KVH_ANSWER_NO;
    profile.namespace_bytes = support::bytes(kNamespace);
    const support::Snapshot snapshot = support::admitted(destination.context.get(), hint);
    kvh_plan_t *plan = nullptr;
    EXPECT_EQ(kvh_plan_decide(destination.context.get(), snapshot.get(), capabilities, table, &profile, &plan),
              KVH_OK);
    return Plan(plan);
  }

  kvh_prefetch_params_t planned(const kvh_plan_t *plan, const kvh_sequence_t *wanted,
                                const std::vector<int32_t> &places) {
    kvh_prefetch_params_t chosen = params(wanted, places);
    chosen.source_state = {nullptr, 0};
    chosen.plan = plan;
    return chosen;
  }
};

TEST_F(PlannedPrefetchTest, APlanLeadsToTheBlocksOnceTheTransceiverAllowsTheEndpoint) {
  const Sequence wanted = sequence(16);
  source.hold(wanted.get(), {3, 4, 5, 6});
  const std::vector<int32_t> places = {20, 21, 22};
  const Plan plan = this->plan(wanted.get(), 3, endpoint);
  ASSERT_EQ(kvh_plan_kind(plan.get()), KVH_PLAN_NAMED_FETCH);
  const Prefetch denied = begin(planned(plan.get(), wanted.get(), places));
  EXPECT_STREQ(outcome(denied.get()).reason, "endpoint_denied");
  EXPECT_EQ(destination.status().sources, 0u);
  ASSERT_EQ(kvh_transceiver_allow(destination.transceiver.get(), support::str(endpoint), nullptr, 0, nullptr), KVH_OK);
  const Prefetch prefetch = begin(planned(plan.get(), wanted.get(), places));
  const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
  EXPECT_EQ(ended.kind, KVH_OUTCOME_DELIVERED) << ended.reason;
  EXPECT_EQ(ended.token_end, 12u) << "the hint bounds the range";
  EXPECT_EQ(report(prefetch.get()).hint_check, KVH_HINT_MATCHES);
  EXPECT_TRUE(destination.has(20, 0) && destination.has(21, 1) && destination.has(22, 2));
  size_t length = 0;
  EXPECT_EQ(kvh_transceiver_wires(destination.transceiver.get(), nullptr, 0, &length), KVH_OK);
}

TEST_F(PlannedPrefetchTest, AHintAboutAnotherPromptIsToldApart) {
  const Sequence wanted = sequence(16);
  const Sequence other = sequence(16, 1000);
  source.hold(wanted.get(), {3, 4, 5, 6});
  const std::vector<int32_t> places = {20, 21, 22};
  const Plan plan = this->plan(other.get(), 3, endpoint);
  ASSERT_EQ(kvh_transceiver_allow(destination.transceiver.get(), support::str(endpoint), nullptr, 0, nullptr), KVH_OK);
  const Prefetch prefetch = begin(planned(plan.get(), wanted.get(), places));
  EXPECT_EQ(outcome(prefetch.get()).kind, KVH_OUTCOME_DELIVERED) << "names decide, not hashes";
  EXPECT_EQ(report(prefetch.get()).hint_check, KVH_HINT_UNRELATED);
}

TEST_F(PlannedPrefetchTest, APlanWithoutAFetchIsNothingToFetch) {
  const Sequence wanted = sequence(16);
  const Plan local = plan(wanted.get(), 0, endpoint);
  ASSERT_EQ(kvh_plan_kind(local.get()), KVH_PLAN_LOCAL);
  EXPECT_EQ(refusal(planned(local.get(), wanted.get(), {20, 21, 22, 23})), KVH_NOT_FOUND);
}

TEST_F(PrefetchTest, WhatIsHereIsSkippedAndTheLastTokenIsLeft) {
  const Sequence wanted = sequence(16);
  source.hold(wanted.get(), {0, 1, 2, 3});
  const std::vector<int32_t> places = {20, 21, 22, 23};
  kvh_prefetch_params_t chosen = params(wanted.get(), places);
  chosen.first_block = 1;
  chosen.max_tokens = 0;
  const Prefetch prefetch = begin(chosen);
  const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
  EXPECT_EQ(ended.block_count, 2u);
  EXPECT_EQ(ended.token_end, 12u);
  EXPECT_TRUE(destination.has(20, 1) && destination.has(21, 2));
  EXPECT_EQ(report(prefetch.get()).skipped_local, 1u);
}

TEST_F(PrefetchTest, BestEffortTakesWhatIsThere) {
  const Sequence wanted = sequence(16);
  source.hold(wanted.get(), {0, 1});
  const std::vector<int32_t> places = {20, 21, 22, 23};
  kvh_prefetch_params_t chosen = params(wanted.get(), places);
  const Prefetch strict = begin(chosen);
  EXPECT_EQ(outcome(strict.get()).kind, KVH_OUTCOME_CONTENT_MISS);
  EXPECT_EQ(report(strict.get()).missing, 2u);
  chosen.policy = KVH_RANGE_BEST_EFFORT;
  const Prefetch best_effort = begin(chosen);
  const kvh_prefetch_outcome_t ended = outcome(best_effort.get());
  EXPECT_EQ(ended.kind, KVH_OUTCOME_DELIVERED);
  EXPECT_EQ(ended.block_count, 2u);
  EXPECT_EQ(report(best_effort.get()).missing, 2u);
  size_t blocks = 0;
  EXPECT_EQ(kvh_prefetch_claim(strict.get(), &blocks), KVH_NOT_FOUND);
}

TEST_F(PrefetchTest, WhatCannotBeBegunIsRefused) {
  const Sequence wanted = sequence(8);
  const std::vector<int32_t> places = {20, 21};
  kvh_prefetch_params_t chosen = params(wanted.get(), places);
  const auto with = [&](auto change) {
    kvh_prefetch_params_t changed = params(wanted.get(), places);
    change(changed);
    return refusal(changed);
  };
  const int32_t twice[] = {20, 20};
  const int32_t outside[] = {20, static_cast<int32_t>(kBlockCount)};
  EXPECT_EQ(with([](auto &params) { params.policy = 0; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto &params) { params.sequence = nullptr; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto &params) { params.source_state = {nullptr, 0}; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto &params) { params.source_state = support::bytes("x"); }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([&](auto &params) { params.block_ids = twice; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([&](auto &params) { params.block_ids = outside; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto &params) { params.block_id_count = 1; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto &params) { params.reserved = 1; }), KVH_ERR_ABI);
  EXPECT_EQ(with([](auto &params) { params.source_requirement = 2; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(with([](auto &params) { params.struct_size = 8; }), KVH_ERR_ABI);
  EXPECT_EQ(with([](auto &params) { params.first_block = 2; }), KVH_NOT_FOUND);
  EXPECT_EQ(with([](auto &params) { params.first_block = SIZE_MAX; }), KVH_NOT_FOUND);
  EXPECT_EQ(with([](auto &params) { params.max_tokens = 3; }), KVH_NOT_FOUND);
  EXPECT_EQ(kvh_prefetch_begin(nullptr, &chosen, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_prefetch_begin(destination.transceiver.get(), &chosen, nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST_F(PrefetchTest, BlocksOnALeaseAndBlocksOfTheTreeAreBusy) {
  const Sequence wanted = sequence(8);
  source.hold(wanted.get(), {0, 1});
  const std::vector<int32_t> places = {20, 21};
  const Prefetch prefetch = begin(params(wanted.get(), places));
  EXPECT_EQ(outcome(prefetch.get()).kind, KVH_OUTCOME_DELIVERED);
  EXPECT_EQ(refusal(params(wanted.get(), places)), KVH_BUSY) << "on a lease";
  size_t blocks = 0;
  EXPECT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_OK);
  begin(params(wanted.get(), places)).reset();
  settles(destination);
  const Sequence own = sequence(8, 1000);
  destination.hold(own.get(), {20, 21});
  EXPECT_EQ(refusal(params(wanted.get(), places)), KVH_BUSY) << "in the tree";
}

TEST_F(PrefetchTest, NullPrefetchesAreRefused) {
  uint32_t state = 0;
  size_t blocks = 0;
  EXPECT_EQ(kvh_prefetch_poll(nullptr, &state), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_prefetch_outcome(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_prefetch_report(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_prefetch_cancel(nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_prefetch_quiesced(nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_prefetch_claim(nullptr, &blocks), KVH_ERR_INVALID_ARGUMENT);
  kvh_prefetch_destroy(nullptr);
}

TEST_F(PrefetchTest, ACancelledPrefetchEndsAndADestroyedOneWritesNothing) {
  const Sequence wanted = sequence(8);
  source.hold(wanted.get(), {0, 1});
  const std::vector<int32_t> places = {20, 21};
  for (int round = 0; round < 50; ++round) {
    const Prefetch prefetch = begin(params(wanted.get(), places));
    EXPECT_EQ(kvh_prefetch_cancel(prefetch.get()), KVH_OK);
    EXPECT_EQ(kvh_prefetch_cancel(prefetch.get()), KVH_OK);
    const uint32_t kind = outcome(prefetch.get()).kind;
    EXPECT_TRUE(kind == KVH_OUTCOME_CANCELLED || kind == KVH_OUTCOME_DELIVERED) << kind;
    settles(destination);
  }
  for (int round = 0; round < 50; ++round) {
    begin(params(wanted.get(), places)).reset();
    std::fill_n(destination.block(20), 2 * kBlockBytes, uint8_t{77});
    settles(destination);
    EXPECT_EQ(std::count(destination.block(20), destination.block(22), 77), 2 * static_cast<long>(kBlockBytes));
  }
}

TEST_F(PrefetchTest, APrefetchOutlivesItsTransceiver) {
  const Sequence wanted = sequence(8);
  source.hold(wanted.get(), {0, 1});
  const std::vector<int32_t> places = {20, 21};
  const Prefetch prefetch = begin(params(wanted.get(), places));
  destination.transceiver.reset();
  const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
  EXPECT_TRUE(ended.kind == KVH_OUTCOME_DELIVERED || ended.kind == KVH_OUTCOME_FAILED) << ended.kind;
  if (ended.kind == KVH_OUTCOME_FAILED) {
    EXPECT_STREQ(ended.reason, "shutdown");
  }
}

TEST_F(PrefetchTest, ASourceThatIsGoneFailsThePrefetch) {
  const Sequence wanted = sequence(8);
  source.transceiver.reset();
  const std::vector<int32_t> places = {20, 21};
  const Prefetch prefetch = begin(params(wanted.get(), places));
  const kvh_prefetch_outcome_t ended = outcome(prefetch.get());
  EXPECT_EQ(ended.kind, KVH_OUTCOME_FAILED);
  EXPECT_STREQ(ended.reason, "peer_gone");
  uint32_t state = 99;
  EXPECT_EQ(kvh_prefetch_poll(prefetch.get(), &state), KVH_OK);
  EXPECT_EQ(state, KVH_PREFETCH_CONTEXT_INIT);
  EXPECT_THAT(support::metrics(destination.context.get()),
              HasSubstr("kvhints_prefetches_failed_total{reason=\"peer_gone\"} 1\n"));
}

}  // namespace
