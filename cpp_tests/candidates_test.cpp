// kvh_candidates_t against tests/vectors/selection.json, its lifetime, its arguments.
#include "json.hpp"
#include "support.hpp"

#include <vector>

namespace {

using support::str;
using support::view;
using Candidates = support::Handle<kvh_candidates_t, kvh_candidates_destroy>;
using Capabilities = support::Handle<kvh_capabilities_t, kvh_capabilities_destroy>;

Capabilities capabilities(
    const std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>>
        &families) {
  kvh_capabilities_t *capabilities = nullptr;
  EXPECT_EQ(kvh_capabilities_create(&capabilities), KVH_OK);
  for (const auto &[family, supported] : families)
    for (const auto &[type, version] : supported)
      EXPECT_EQ(kvh_capabilities_add(capabilities, str(family), str(type), str(version)), KVH_OK);
  return Capabilities(capabilities);
}

Candidates collect(const kvh_snapshot_t *snapshot, const kvh_capabilities_t *capabilities) {
  kvh_candidates_t *candidates = nullptr;
  EXPECT_EQ(kvh_candidates_collect(snapshot, capabilities, &candidates), KVH_OK);
  return Candidates(candidates);
}

kvh_candidate_counts_t counts(const Candidates &candidates) {
  kvh_candidate_counts_t counts{};
  EXPECT_EQ(kvh_candidates_counts(candidates.get(), &counts), KVH_OK);
  return counts;
}

std::string envelope(std::string_view actions) {
  return R"({"protocol_version":"0.1","message_id":"m","actions":)" + std::string(actions) + "}";
}

constexpr std::string_view kTwoFetches =
    R"([{"action_id":"a","action_type":"kv.evict","action_version":"1.0","payload":{}},)"
    R"({"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{}}])";

TEST(Candidates, TheVectorsHold) {
  const std::string text = json::vectors("selection.json");
  const json::Value cases = json::Reader(text).value();
  ASSERT_EQ(cases.items.size(), 21u);
  const support::Context context = support::context();
  for (const json::Value &expected : cases.items) {
    SCOPED_TRACE(expected["name"].string);
    std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> families;
    for (const auto &[family, supported] : expected["capabilities"].members) {
      families.emplace_back(family, std::vector<std::pair<std::string, std::string>>{});
      for (const json::Value &pair : supported.items)
        families.back().second.emplace_back(pair.items[0].string, pair.items[1].string);
    }
    const support::Snapshot snapshot =
        support::admitted(context.get(), envelope(expected["actions"].raw));
    const Candidates candidates = collect(snapshot.get(), capabilities(families).get());
    const kvh_candidate_counts_t found = counts(candidates);
    EXPECT_EQ(found.unknown_type, expected["unknown_type"].number());
    EXPECT_EQ(found.version_unmatched, expected["version_unmatched"].number());
    const std::vector<json::Value> &list = expected["candidates"].items;
    ASSERT_EQ(found.candidates, list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      size_t action_index = SIZE_MAX, family_count = SIZE_MAX;
      ASSERT_EQ(kvh_candidates_get(candidates.get(), i, &action_index, &family_count), KVH_OK);
      EXPECT_EQ(action_index, list[i]["action"].number());
      ASSERT_EQ(family_count, list[i]["families"].items.size());
      for (size_t j = 0; j < family_count; ++j) {
        kvh_str_t family{};
        ASSERT_EQ(kvh_candidates_family(candidates.get(), i, j, &family), KVH_OK);
        EXPECT_EQ(view(family), list[i]["families"].items[j].string);
      }
    }
  }
}

TEST(Candidates, OutliveTheSnapshotHandleTheSetAndTheContext) {
  support::Context context = support::context();
  support::Snapshot snapshot = support::admitted(context.get(), envelope(kTwoFetches));
  Capabilities set = capabilities({{"G", {{"kv.fetch", "1.0"}}}});
  const Candidates candidates = collect(snapshot.get(), set.get());
  EXPECT_EQ(kvh_capabilities_add(set.get(), str("A"), str("kv.fetch"), str("1.0")), KVH_OK);
  snapshot.reset();
  set.reset();
  context.reset();
  size_t action_index = 0, family_count = 0;
  ASSERT_EQ(kvh_candidates_get(candidates.get(), 0, &action_index, &family_count), KVH_OK);
  EXPECT_EQ(action_index, 1u);
  ASSERT_EQ(family_count, 1u) << "a later change of the set shows nowhere";
  kvh_str_t family{};
  ASSERT_EQ(kvh_candidates_family(candidates.get(), 0, 0, &family), KVH_OK);
  EXPECT_EQ(view(family), "G");
}

TEST(Candidates, WrongArgumentsAreRefusedAndWriteNothing) {
  const support::Context context = support::context();
  const support::Snapshot snapshot = support::admitted(context.get(), envelope(kTwoFetches));
  const Capabilities set = capabilities({{"F", {{"kv.fetch", "1.0"}}}});
  char marker = 0;
  auto *untouched = reinterpret_cast<kvh_candidates_t *>(&marker);
  kvh_candidates_t *out = untouched;
  EXPECT_EQ(kvh_candidates_collect(nullptr, set.get(), &out), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_collect(snapshot.get(), nullptr, &out), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_collect(snapshot.get(), set.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(out, untouched);

  const Candidates candidates = collect(snapshot.get(), set.get());
  size_t action_index = 77, family_count = 77;
  const auto get = [&](size_t index) {
    return kvh_candidates_get(candidates.get(), index, &action_index, &family_count);
  };
  EXPECT_EQ(get(1), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(get(SIZE_MAX), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_get(nullptr, 0, &action_index, &family_count), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_get(candidates.get(), 0, &action_index, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_get(candidates.get(), 0, nullptr, &family_count),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(action_index, 77u);
  EXPECT_EQ(family_count, 77u);
  kvh_str_t family{};
  EXPECT_EQ(kvh_candidates_family(candidates.get(), 0, 1, &family), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_family(candidates.get(), 1, 0, &family), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_family(candidates.get(), 0, 0, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(family.data, nullptr);
  EXPECT_EQ(kvh_candidates_counts(candidates.get(), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_candidates_counts(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_candidates_destroy(nullptr);
}

}  // namespace
