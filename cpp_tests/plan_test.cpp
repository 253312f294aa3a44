// kvh_plan_t: decisions through the ABI, what they count, and plans that travel as bytes.
#include "support.hpp"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <vector>

namespace {

using support::bytes;
using support::str;
using support::view;
using testing::HasSubstr;
using testing::Not;
using Capabilities = support::Handle<kvh_capabilities_t, kvh_capabilities_destroy>;
using Plan = support::Handle<kvh_plan_t, kvh_plan_destroy>;
using Table = support::Handle<kvh_binding_table_t, kvh_binding_table_destroy>;

constexpr std::string_view kTable = R"({
  "version": 1,
  "bindings": [
    {"id": "good", "family": "F", "addressing": "content_named",
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"]},
    {"id": "second", "family": "F", "addressing": "content_named",
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"]},
    {"id": "asks", "family": "F", "addressing": "content_named", "one_action_envelope": true,
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"]},
    {"id": "unable", "family": "F", "addressing": "content_named", "actions": [],
     "namespaces": ["n"]},
    {"id": "other", "family": "X", "addressing": "content_named", "actions": []},
    {"id": "paired", "family": "F", "addressing": "request_paired",
     "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["n"]}
  ],
  "endpoints": [
    {"endpoint": "tcp://good:1", "bindings": ["good", "other"]},
    {"endpoint": "tcp://asks:1", "bindings": ["asks"]},
    {"endpoint": "tcp://two:1", "bindings": ["good", "second"]},
    {"endpoint": "tcp://other:1", "bindings": ["other"]},
    {"endpoint": "tcp://unable:1", "bindings": ["unable"]},
    {"endpoint": "tcp://paired:1", "bindings": ["paired"]}
  ]
})";

std::string fetch_action(std::string_view endpoint) {
  return R"({"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":)"
         R"({"source_control_endpoint":")" +
         std::string(endpoint) + R"(","block_hashes":[11,22,-1]}})";
}

std::string envelope(std::string_view actions) {
  return R"({"protocol_version":"0.1","message_id":"m","actions":[)" + std::string(actions) + "]}";
}

class PlanTest : public testing::Test {
 protected:
  PlanTest() : context_(support::context()) {
    kvh_capabilities_t *capabilities = nullptr;
    EXPECT_EQ(kvh_capabilities_create(&capabilities), KVH_OK);
    capabilities_.reset(capabilities);
    EXPECT_EQ(kvh_capabilities_add(capabilities, str("F"), str("kv.fetch"), str("1.0")), KVH_OK);
    kvh_binding_table_t *table = nullptr;
    const kvh_bytes_t json = bytes(kTable);
    EXPECT_EQ(kvh_binding_table_load(json.data, json.len, &table, nullptr), KVH_OK);
    table_.reset(table);
    profile_.struct_size = sizeof profile_;
    profile_.kind = KVH_REQUEST_CONTEXT;
    profile_.has_lora = KVH_ANSWER_NO;
    profile_.required_handoff = KVH_ANSWER_NO;
    profile_.namespace_bytes = bytes("n");
  }

  kvh_status_t decide(const kvh_snapshot_t *snapshot, kvh_plan_t **plan_out) {
    return kvh_plan_decide(context_.get(), snapshot, capabilities_.get(), table_.get(), &profile_,
                           plan_out);
  }

  Plan decided(std::string_view actions) {
    const support::Snapshot snapshot = support::admitted(context_.get(), envelope(actions));
    kvh_plan_t *plan = nullptr;
    EXPECT_EQ(decide(snapshot.get(), &plan), KVH_OK);
    return Plan(plan);
  }

  support::Context context_;
  Capabilities capabilities_;
  Table table_;
  kvh_request_profile_t profile_{};
};

kvh_plan_fetch_t fetch(const kvh_plan_t *plan) {
  kvh_plan_fetch_t fetch{};
  fetch.struct_size = sizeof fetch;
  EXPECT_EQ(kvh_plan_fetch(plan, &fetch), KVH_OK);
  return fetch;
}

TEST_F(PlanTest, ANamedFetchSaysAllThatIsNeeded) {
  const std::string evict =
      R"({"action_id":"a","action_type":"kv.evict","action_version":"1.0","payload":{}},)";
  const Plan plan = decided(evict + fetch_action("TCP://GOOD.:01"));
  ASSERT_EQ(kvh_plan_kind(plan.get()), KVH_PLAN_NAMED_FETCH);
  EXPECT_EQ(kvh_plan_reason(plan.get()), 0);
  const kvh_plan_fetch_t found = fetch(plan.get());
  EXPECT_EQ(view(found.binding_id), "good");
  EXPECT_EQ(view(found.endpoint), "tcp://good:1");
  EXPECT_EQ(found.action_index, 1u);
  EXPECT_EQ(found.block_count, 3u);
  EXPECT_EQ(found.last_block_hash, UINT64_MAX);
  EXPECT_EQ(found.flags, 0u);
  EXPECT_EQ(found.envelope.data, nullptr);
  EXPECT_EQ(found.envelope.len, 0u);
}

TEST_F(PlanTest, GenerationOnlyThenTurnsToThePairedSource) {
  profile_.kind = KVH_REQUEST_GENERATION_ONLY;
  const Plan plan = decided(fetch_action("tcp://good:1"));
  ASSERT_EQ(kvh_plan_kind(plan.get()), KVH_PLAN_NAMED_FETCH);
  EXPECT_EQ(fetch(plan.get()).flags, KVH_FETCH_THEN_PAIRED_SOURCE);
}

TEST_F(PlanTest, ARequiredHandoffChangesNoDecision) {
  profile_.required_handoff = KVH_ANSWER_YES;
  EXPECT_EQ(kvh_plan_kind(decided(fetch_action("tcp://good:1")).get()), KVH_PLAN_NAMED_FETCH);
  EXPECT_EQ(kvh_plan_reason(decided(fetch_action("tcp://nobody:1")).get()),
            KVH_REFUSAL_ENDPOINT_UNLISTED);
}

TEST_F(PlanTest, TheEnvelopeTravelsWhereTheBindingAsksForIt) {
  const std::string wanted = fetch_action("tcp://asks:1");
  const Plan plan = decided(wanted + "," + fetch_action("tcp://good:1"));
  ASSERT_EQ(kvh_plan_kind(plan.get()), KVH_PLAN_NAMED_FETCH);
  EXPECT_EQ(view(fetch(plan.get()).envelope), envelope(wanted));
}

TEST_F(PlanTest, EachRefusalHasItsNumberItsNameAndItsCount) {
  const std::string bad =
      R"({"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{}})";
  struct Row {
    int32_t refusal;
    const char *name;
    std::string actions;
    void (*change)(kvh_request_profile_t &);
  };
  const auto keep = [](kvh_request_profile_t &) {};
  const std::string good = fetch_action("tcp://good:1");
  const std::vector<Row> rows = {
      {1, "lora", good, [](kvh_request_profile_t &p) { p.has_lora = KVH_ANSWER_YES; }},
      {2, "not_eligible", good, [](kvh_request_profile_t &p) { p.kind = KVH_REQUEST_OTHER; }},
      {3, "no_candidate", "", keep},
      {4, "bad_payload", bad + "," + good, keep},
      {5, "endpoint_unlisted", fetch_action("tcp://nobody:1") + "," + good, keep},
      {6, "binding_missing", fetch_action("tcp://other:1"), keep},
      {7, "binding_ambiguous", fetch_action("tcp://two:1"), keep},
      {8, "binding_unauthorised", good,
       [](kvh_request_profile_t &p) { p.namespace_bytes = {nullptr, 0}; }},
      {9, "binding_incapable", fetch_action("tcp://unable:1"), keep},
      {10, "request_paired", fetch_action("tcp://paired:1"), keep},
  };
  const kvh_request_profile_t usual = profile_;
  for (const Row &row : rows) {
    SCOPED_TRACE(row.name);
    profile_ = usual;
    row.change(profile_);
    const std::string series = "kvhints_plan_refused_total{reason=\"" + std::string(row.name) + "\"} ";
    EXPECT_THAT(support::metrics(context_.get()), HasSubstr(series + "0\n"));
    const Plan plan = decided(row.actions);
    EXPECT_EQ(kvh_plan_kind(plan.get()), KVH_PLAN_LOCAL);
    EXPECT_EQ(kvh_plan_reason(plan.get()), row.refusal);
    EXPECT_STREQ(kvh_refusal_string(row.refusal), row.name);
    EXPECT_THAT(support::metrics(context_.get()), HasSubstr(series + "1\n"));
    kvh_plan_fetch_t none{};
    none.struct_size = sizeof none;
    EXPECT_EQ(kvh_plan_fetch(plan.get(), &none), KVH_ERR_STATE);
    EXPECT_EQ(none.block_count, 0u);
  }
  EXPECT_STREQ(kvh_refusal_string(0), "none");
  for (int32_t other : {-1, 11, 256, 257, INT32_MIN, INT32_MAX})
    EXPECT_STREQ(kvh_refusal_string(other), "unknown");
}

TEST_F(PlanTest, CountsOncePerRequestAndNothingWithoutAHint) {
  const std::string before = support::metrics(context_.get());
  kvh_plan_t *none = nullptr;
  ASSERT_EQ(decide(nullptr, &none), KVH_OK);
  EXPECT_EQ(kvh_plan_kind(none), KVH_PLAN_LOCAL);
  EXPECT_EQ(kvh_plan_reason(none), KVH_REFUSAL_NO_CANDIDATE);
  kvh_plan_destroy(none);
  EXPECT_EQ(support::metrics(context_.get()), before);

  const std::string others =
      R"({"action_id":"a","action_type":"kv.evict","action_version":"1.0","payload":{}},)"
      R"({"action_id":"a","action_type":"kv.fetch","action_version":"7","payload":{}},)";
  const Plan plan =
      decided(others + fetch_action("tcp://good:1") + "," + fetch_action("tcp://good:1"));
  const std::string after = support::metrics(context_.get());
  EXPECT_THAT(after, HasSubstr("kvhints_plan_candidates_total 2\n"));
  EXPECT_THAT(after, HasSubstr("kvhints_plan_unknown_types_total 1\n"));
  EXPECT_THAT(after, HasSubstr("kvhints_plan_versions_unmatched_total 1\n"));
  EXPECT_THAT(after, HasSubstr("kvhints_plan_named_fetches_total 1\n"));
  EXPECT_THAT(after, Not(HasSubstr("good")));

  kvh_buffer_t *buffer = nullptr;
  ASSERT_EQ(kvh_plan_to_bytes(plan.get(), &buffer), KVH_OK);
  const support::Buffer owned(buffer);
  const kvh_bytes_t data = kvh_buffer_bytes(buffer);
  kvh_plan_t *copy = nullptr;
  ASSERT_EQ(kvh_plan_from_bytes(data.data, data.len, &copy, nullptr), KVH_OK);
  kvh_plan_destroy(copy);
  EXPECT_EQ(support::metrics(context_.get()), after) << "other ranks count nothing";
}

// What the metrics say of planning: series -> number.
std::map<std::string, int> counts(const kvh_context_t *context) {
  std::map<std::string, int> found;
  std::istringstream text(support::metrics(context));
  for (std::string line; std::getline(text, line);) {
    const size_t blank = line.rfind(' ');
    if (line.rfind("kvhints_plan_", 0) == 0) found[line.substr(0, blank)] = std::stoi(line.substr(blank));
  }
  return found;
}

TEST_F(PlanTest, EachRequestIsCountedOnceWhateverBecomesOfIt) {
  const std::string evict =
      R"({"action_id":"a","action_type":"kv.evict","action_version":"1.0","payload":{}})";
  const std::string other_version =
      R"({"action_id":"a","action_type":"kv.fetch","action_version":"7","payload":{}})";
  const std::string bad =
      R"({"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{}})";
  const std::string good = fetch_action("tcp://good:1");
  std::map<std::string, int> expected = counts(context_.get());
  EXPECT_EQ(expected.size(), 14u) << "every series is there from the start";
  for (const auto &[series, count] : expected) EXPECT_EQ(count, 0) << series;
  const auto expect = [&](const std::string &series, int more) {
    ASSERT_EQ(expected.count("kvhints_plan_" + series), 1u) << series;
    expected["kvhints_plan_" + series] += more;
  };
  const auto refused = [&](const std::string &reason) {
    expect("refused_total{reason=\"" + reason + "\"}", 1);
  };

  decided(good + "," + good + "," + bad);
  expect("candidates_total", 3);
  expect("named_fetches_total", 1);
  EXPECT_EQ(counts(context_.get()), expected);

  // Actions that were counted count again with the next request, and only then.
  for (int request = 0; request < 2; ++request) {
    decided(evict + "," + other_version + "," + evict + "," + bad + "," + good);
    expect("candidates_total", 2);
    expect("unknown_types_total", 2);
    expect("versions_unmatched_total", 1);
    refused("bad_payload");
    EXPECT_EQ(counts(context_.get()), expected);
  }

  // Nothing is collected for these, so nothing of their actions is counted.
  profile_.has_lora = KVH_ANSWER_YES;
  decided(evict + "," + other_version + "," + good);
  refused("lora");
  profile_.has_lora = KVH_ANSWER_NO;
  profile_.kind = KVH_REQUEST_OTHER;
  decided(evict + "," + other_version + "," + good);
  refused("not_eligible");
  EXPECT_EQ(counts(context_.get()), expected);

  // Looking is not deciding.
  profile_.kind = KVH_REQUEST_CONTEXT;
  const support::Snapshot snapshot = support::admitted(context_.get(), envelope(evict + "," + good));
  kvh_candidates_t *candidates = nullptr;
  ASSERT_EQ(kvh_candidates_collect(snapshot.get(), capabilities_.get(), &candidates), KVH_OK);
  kvh_candidates_destroy(candidates);
  // Neither is a call that is refused.
  kvh_plan_t *plan = nullptr;
  profile_.kind = 0;
  EXPECT_EQ(decide(snapshot.get(), &plan), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(counts(context_.get()), expected);
}

TEST_F(PlanTest, StaysAsItWasWhenTheTableChanges) {
  const Plan plan = decided(fetch_action("tcp://good:1"));
  const auto as_bytes = [&] {
    kvh_buffer_t *buffer = nullptr;
    EXPECT_EQ(kvh_plan_to_bytes(plan.get(), &buffer), KVH_OK);
    const support::Buffer owned(buffer);
    return std::string(view(kvh_buffer_bytes(buffer)));
  };
  const std::string before = as_bytes();
  ASSERT_EQ(kvh_binding_table_allow_endpoint(table_.get(), str("tcp://good:1"), str("second"), nullptr),
            KVH_OK);
  ASSERT_EQ(kvh_binding_table_set_hash_dialect(table_.get(), KVH_HASH_DIALECT_HEX_DIGITS), KVH_OK);
  EXPECT_EQ(as_bytes(), before);
  EXPECT_EQ(view(fetch(plan.get()).binding_id), "good");
  EXPECT_EQ(kvh_plan_reason(decided(fetch_action("tcp://good:1")).get()), KVH_REFUSAL_BAD_PAYLOAD);
  ASSERT_EQ(kvh_binding_table_set_hash_dialect(table_.get(), KVH_HASH_DIALECT_UNSIGNED_NUMBER), KVH_OK);
  EXPECT_EQ(kvh_plan_reason(decided(fetch_action("tcp://good:1")).get()),
            KVH_REFUSAL_BINDING_AMBIGUOUS);
  EXPECT_EQ(as_bytes(), before);
}

TEST_F(PlanTest, BytesMakeTheSamePlanOrNone) {
  for (const char *endpoint : {"tcp://good:1", "tcp://asks:1", "tcp://nobody:1"}) {
    const Plan plan = decided(fetch_action(endpoint));
    kvh_buffer_t *buffer = nullptr;
    ASSERT_EQ(kvh_plan_to_bytes(plan.get(), &buffer), KVH_OK);
    const support::Buffer owned(buffer);
    const std::string data(view(kvh_buffer_bytes(buffer)));
    const kvh_bytes_t whole = bytes(data);
    kvh_plan_t *copy = nullptr;
    ASSERT_EQ(kvh_plan_from_bytes(whole.data, whole.len, &copy, nullptr), KVH_OK);
    const Plan kept(copy);
    EXPECT_EQ(kvh_plan_kind(copy), kvh_plan_kind(plan.get()));
    EXPECT_EQ(kvh_plan_reason(copy), kvh_plan_reason(plan.get()));
    if (kvh_plan_kind(copy) == KVH_PLAN_NAMED_FETCH) {
      const kvh_plan_fetch_t a = fetch(plan.get()), b = fetch(copy);
      EXPECT_EQ(view(a.binding_id), view(b.binding_id));
      EXPECT_EQ(view(a.endpoint), view(b.endpoint));
      EXPECT_EQ(a.last_block_hash, b.last_block_hash);
      EXPECT_EQ(view(a.envelope), view(b.envelope));
    }
    char marker = 0;
    auto *untouched = reinterpret_cast<kvh_plan_t *>(&marker);
    for (size_t i = 0; i < data.size(); ++i) {
      std::string damaged = data;
      damaged[i] = static_cast<char>(damaged[i] ^ 1);
      const kvh_bytes_t bad = bytes(damaged);
      kvh_plan_t *out = untouched;
      kvh_error_t *error = nullptr;
      EXPECT_EQ(kvh_plan_from_bytes(bad.data, bad.len, &out, &error), KVH_ERR_INVALID_ARGUMENT);
      EXPECT_EQ(out, untouched);
      EXPECT_THAT(std::string(view(kvh_error_message(error))), HasSubstr("expected"));
      kvh_error_destroy(error);
      EXPECT_EQ(kvh_plan_from_bytes(whole.data, i, &out, nullptr), KVH_ERR_INVALID_ARGUMENT);
    }
  }
}

TEST_F(PlanTest, AProfileHasNoTrustingDefaults) {
  const support::Snapshot snapshot =
      support::admitted(context_.get(), envelope(fetch_action("tcp://good:1")));
  const kvh_request_profile_t usual = profile_;
  kvh_plan_t *plan = nullptr;
  const auto status = [&](auto change) {
    profile_ = usual;
    change(profile_);
    return decide(snapshot.get(), &plan);
  };
  using P = kvh_request_profile_t;
  for (uint32_t value : {0u, 4u, UINT32_MAX}) {
    EXPECT_EQ(status([&](P &p) { p.kind = value; }), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(status([&](P &p) { p.has_lora = value; }), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(status([&](P &p) { p.required_handoff = value; }), KVH_ERR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(status([](P &p) { p.namespace_bytes = {nullptr, 1}; }), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(status([](P &p) { p.reserved = 1; }), KVH_ERR_ABI);
  EXPECT_EQ(status([](P &p) { p.struct_size = 0; }), KVH_ERR_ABI);
  EXPECT_EQ(status([](P &p) { p.struct_size -= 1; }), KVH_ERR_ABI);
  EXPECT_EQ(plan, nullptr);
}

TEST_F(PlanTest, NullArgumentsAreRefused) {
  kvh_plan_t *plan = nullptr;
  const auto *context = context_.get();
  const auto *capabilities = capabilities_.get();
  const auto *table = table_.get();
  EXPECT_EQ(kvh_plan_decide(nullptr, nullptr, capabilities, table, &profile_, &plan),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_decide(context, nullptr, nullptr, table, &profile_, &plan),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_decide(context, nullptr, capabilities, nullptr, &profile_, &plan),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_decide(context, nullptr, capabilities, table, nullptr, &plan),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_decide(context, nullptr, capabilities, table, &profile_, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(kvh_plan_kind(nullptr), 0);
  EXPECT_EQ(kvh_plan_reason(nullptr), 0);
  EXPECT_EQ(kvh_plan_fetch(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_to_bytes(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_from_bytes(nullptr, 0, &plan, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_from_bytes(nullptr, 9, &plan, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_plan_destroy(nullptr);
  const Plan fetched = decided(fetch_action("tcp://good:1"));
  EXPECT_EQ(kvh_plan_fetch(fetched.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_plan_to_bytes(fetched.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_plan_fetch_t shorter{};
  shorter.struct_size = sizeof shorter - 1;
  EXPECT_EQ(kvh_plan_fetch(fetched.get(), &shorter), KVH_ERR_ABI);
}

TEST_F(PlanTest, OutlivesEverythingItWasMadeFrom) {
  const Plan plan = decided(fetch_action("tcp://asks:1"));
  table_.reset();
  capabilities_.reset();
  context_.reset();
  EXPECT_EQ(view(fetch(plan.get()).binding_id), "asks");
  EXPECT_EQ(view(fetch(plan.get()).envelope), envelope(fetch_action("tcp://asks:1")));
}

TEST_F(PlanTest, IsNotMadeInAForkedChild) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    kvh_plan_t *plan = nullptr;
    _exit(decide(nullptr, &plan) == KVH_ERR_FORKED && plan == nullptr ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
