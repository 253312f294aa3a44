// One request through every step that a profiler is to see, in one process: what judge.py records.
// Run without a profiler it must work just the same.
#include "../transfer_support.hpp"

namespace {

using namespace transfer_support;

constexpr std::string_view kHintBefore =
    R"({"protocol_version":"0.1","message_id":"m","actions":[{"action_id":"a","action_type":"kv.fetch",)"
    R"("action_version":"1.0","payload":{"source_control_endpoint":")";

TEST(OneRequest, GoesThroughEveryStep) {
  const support::Context context = support::context();
  const Loopback hub = loopback(context.get());
  Worker source{hub.get()};
  Worker destination{hub.get()};
  const Sequence wanted = sequence(12);
  source.hold(wanted.get(), {3, 9, 1});
  uint16_t port = 0;
  ASSERT_EQ(kvh_transceiver_serve_http(source.transceiver.get(), {nullptr, 0}, 0, &port, nullptr), KVH_OK);
  const std::string endpoint = "http://127.0.0.1:" + std::to_string(port) + "/v1/data_transceiver_state";
  ASSERT_EQ(kvh_transceiver_allow(destination.transceiver.get(), support::str(endpoint), nullptr, 0, nullptr), KVH_OK);

  uint64_t hashes[3];
  size_t count = 0;
  ASSERT_EQ(kvh_sequence_block_hashes(wanted.get(), hashes, 3, &count), KVH_OK);
  const std::string hint = std::string(kHintBefore) + endpoint + R"(","block_hashes":[)" + std::to_string(hashes[0]) +
                           "," + std::to_string(hashes[1]) + "," + std::to_string(hashes[2]) + "]}}]}";
  const support::Snapshot snapshot = support::admitted(destination.context.get(), hint);

  kvh_capabilities_t *capabilities = nullptr;
  ASSERT_EQ(kvh_capabilities_create(&capabilities), KVH_OK);
  ASSERT_EQ(kvh_capabilities_add(capabilities, support::str("F"), support::str("kv.fetch"), support::str("1.0")),
            KVH_OK);
  const std::string configuration =
      R"({"version":1,"bindings":[{"id":"b","family":"F","addressing":"content_named",)"
      R"("actions":[{"type":"kv.fetch","version":"1.0"}],"namespaces":["model@7"]}],)"
      R"("endpoints":[{"endpoint":")" + endpoint + R"(","bindings":["b"]}]})";
  kvh_binding_table_t *table = nullptr;
  const kvh_bytes_t json = support::bytes(configuration);
  ASSERT_EQ(kvh_binding_table_load(json.data, json.len, &table, nullptr), KVH_OK);
  kvh_request_profile_t profile{};
  profile.struct_size = sizeof profile;
  profile.kind = KVH_REQUEST_CONTEXT;
  profile.has_lora = KVH_ANSWER_NO;
  profile.required_handoff = KVH_ANSWER_NO;
  profile.namespace_bytes = support::bytes(kNamespace);
  kvh_plan_t *plan = nullptr;
  ASSERT_EQ(kvh_plan_decide(destination.context.get(), snapshot.get(), capabilities, table, &profile, &plan), KVH_OK);
  ASSERT_EQ(kvh_plan_kind(plan), KVH_PLAN_NAMED_FETCH);

  kvh_local_group_t *group = nullptr;
  ASSERT_EQ(kvh_local_group_create(1, &group), KVH_OK);
  kvh_communicator_params_t ranks{};
  ranks.struct_size = sizeof ranks;
  kvh_communicator_t *communicator = nullptr;
  ASSERT_EQ(kvh_communicator_create_local(destination.context.get(), group, 0, &ranks, &communicator), KVH_OK);
  kvh_batch_t *batch = nullptr;
  ASSERT_EQ(kvh_batch_create(&batch), KVH_OK);
  kvh_batch_request_t request{};
  request.struct_size = sizeof request;
  request.id = 1;
  request.body = support::bytes("a body");
  ASSERT_EQ(kvh_batch_add(batch, &request), KVH_OK);
  ASSERT_EQ(kvh_broadcast(communicator, batch, nullptr), KVH_OK);

  size_t matched = 99;
  ASSERT_EQ(kvh_reuse_tree_match(destination.tree.get(), KVH_WINDOW_FULL, wanted.get(), 12, &matched), KVH_OK);
  ASSERT_EQ(matched, 0u);

  const std::vector<int32_t> places = {20, 21, 5};
  kvh_prefetch_params_t params{};
  params.struct_size = sizeof params;
  params.policy = KVH_RANGE_STRICT;
  params.plan = plan;
  params.sequence = wanted.get();
  params.max_tokens = SIZE_MAX;
  params.block_ids = places.data();
  params.block_id_count = places.size();
  kvh_prefetch_t *begun = nullptr;
  ASSERT_EQ(kvh_prefetch_begin(destination.transceiver.get(), &params, &begun), KVH_OK);
  const Prefetch prefetch(begun);
  EXPECT_EQ(kvh_prefetch_number(prefetch.get()), 1u);
  ASSERT_EQ(outcome(prefetch.get()).kind, KVH_OUTCOME_DELIVERED);
  size_t blocks = 0;
  ASSERT_EQ(kvh_prefetch_claim(prefetch.get(), &blocks), KVH_OK);
  ASSERT_EQ(blocks, 3u);

  // For the judge, which knows nothing of hints and blocks.
  std::printf("HINT_BYTES=%zu FETCH_BYTES=%zu\n", hint.size(), blocks * kBlockBytes);

  kvh_batch_destroy(batch);
  kvh_communicator_destroy(communicator);
  kvh_local_group_destroy(group);
  kvh_plan_destroy(plan);
  kvh_binding_table_destroy(table);
  kvh_capabilities_destroy(capabilities);
  settles(source);
  settles(destination);
}

}  // namespace
