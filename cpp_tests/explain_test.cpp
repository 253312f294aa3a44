// kvh_explain and kvh_explain_msgpack: rule and place, nothing counted, no contents, mistakes of the
// caller. Which rule and where is tested in tests/explain.rs.
#include "support.hpp"

#include <gmock/gmock.h>

namespace {

using support::bytes;
using support::view;
using testing::HasSubstr;
using testing::Not;

kvh_explanation_t sized() {
  kvh_explanation_t explanation{};
  explanation.struct_size = sizeof explanation;
  return explanation;
}

TEST(Explain, NamesRuleAndPlaceAndCountsNothing) {
  support::Context context = support::context();
  const std::string before = support::metrics(context.get());
  const kvh_bytes_t json = bytes("{\"protocol_version\":\"0.1\",\n\"message_id\":[\"hush\"],\"actions\":[]}");
  kvh_explanation_t explanation = sized();
  kvh_error_t *error = nullptr;
  ASSERT_EQ(kvh_explain(context.get(), KVH_INGRESS_TRUSTED, json.data, json.len, &explanation, &error), KVH_OK);
  support::Error owned(error);
  EXPECT_EQ(explanation.verdict, KVH_VERDICT_MALFORMED);
  EXPECT_EQ(explanation.rule, 9u);
  EXPECT_EQ(explanation.line, 2u);
  EXPECT_EQ(explanation.column, 14u);
  EXPECT_EQ(explanation.offset, 40u);
  EXPECT_EQ(explanation.canonical_bytes, json.len - 1);
  EXPECT_THAT(std::string(view(kvh_error_message(error))), HasSubstr("message_id: expected a string"));
  EXPECT_THAT(std::string(view(kvh_error_message(error))), Not(HasSubstr("hush")));
  EXPECT_EQ(support::metrics(context.get()), before);
}

TEST(Explain, AnAdmittedHintBreaksNoRuleAndHasNoWords) {
  support::Context context = support::context();
  const kvh_bytes_t json = bytes(R"({"protocol_version":"0.1","message_id":"m","actions":[]})");
  kvh_explanation_t explanation = sized();
  kvh_error_t *error = nullptr;
  ASSERT_EQ(kvh_explain(context.get(), KVH_INGRESS_TRUSTED, json.data, json.len, &explanation, &error), KVH_OK);
  EXPECT_EQ(explanation.verdict, KVH_VERDICT_ADMITTED);
  EXPECT_EQ(explanation.rule, 0u);
  EXPECT_EQ(explanation.canonical_bytes, json.len);
  EXPECT_EQ(error, nullptr);
}

TEST(Explain, ALimitComesWithItsNumbersAndMessagePackWithoutLines) {
  support::Context context = support::context();
  const std::string large = "7" + std::string(1 << 20, ' ');
  const kvh_bytes_t json = bytes(large);
  kvh_explanation_t explanation = sized();
  ASSERT_EQ(kvh_explain(context.get(), KVH_INGRESS_TRUSTED, json.data, json.len, &explanation, nullptr), KVH_OK);
  EXPECT_EQ(explanation.rule, 3u);
  EXPECT_EQ(explanation.limit, 1u << 20);
  EXPECT_EQ(explanation.found, large.size());
  const kvh_bytes_t msgpack = bytes("\x92\x01\xc1");
  ASSERT_EQ(kvh_explain_msgpack(context.get(), KVH_INGRESS_TRUSTED, msgpack.data, msgpack.len, &explanation, nullptr),
            KVH_OK);
  EXPECT_EQ(explanation.rule, 4u);
  EXPECT_EQ(explanation.offset, 2u);
  EXPECT_EQ(explanation.line, 0u);
}

TEST(Explain, MistakesOfTheCallerAreRefused) {
  support::Context context = support::context();
  kvh_explanation_t explanation = sized();
  EXPECT_EQ(kvh_explain(nullptr, KVH_INGRESS_TRUSTED, nullptr, 0, &explanation, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_explain(context.get(), 0, nullptr, 0, &explanation, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_explain(context.get(), KVH_INGRESS_TRUSTED, nullptr, 1, &explanation, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_explain(context.get(), KVH_INGRESS_TRUSTED, nullptr, 0, nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  explanation.struct_size = 8;
  EXPECT_EQ(kvh_explain(context.get(), KVH_INGRESS_TRUSTED, nullptr, 0, &explanation, nullptr), KVH_ERR_ABI);
}

TEST(Explain, NumbersHaveNames) {
  EXPECT_STREQ(kvh_verdict_string(KVH_VERDICT_UNKNOWN_VERSION), "unknown_version");
  EXPECT_STREQ(kvh_verdict_string(6), "unknown");
  EXPECT_STREQ(kvh_verdict_string(-1), "unknown");
  EXPECT_STREQ(kvh_outcome_string(KVH_OUTCOME_CONTENT_MISS), "content_miss");
  EXPECT_STREQ(kvh_outcome_string(0), "unknown");
  EXPECT_STREQ(kvh_outcome_string(5), "unknown");
}

}  // namespace
