// kvh_envelope_builder_t: from parts to a snapshot, errors in words, mistakes of the caller. The
// rules themselves are tested in tests/envelope_builder.rs.
#include "support.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace {

using support::bytes;
using support::str;
using support::view;
using testing::HasSubstr;

using Builder = support::Handle<kvh_envelope_builder_t, kvh_envelope_builder_destroy>;

Builder builder() {
  kvh_envelope_builder_t *builder = nullptr;
  EXPECT_EQ(kvh_envelope_builder_create(str("m"), &builder, nullptr), KVH_OK);
  return Builder(builder);
}

std::string json(kvh_envelope_builder_t *builder) {
  kvh_snapshot_t *snapshot = nullptr;
  EXPECT_EQ(kvh_envelope_builder_finish(builder, &snapshot, nullptr), KVH_OK);
  support::Snapshot owned(snapshot);
  return std::string(view(kvh_snapshot_json(snapshot)));
}

std::string message(kvh_error_t *error) {
  support::Error owned(error);
  return std::string(view(kvh_error_message(error)));
}

TEST(EnvelopeBuilder, MakesAnEnvelopeThatIsAdmitted) {
  Builder built = builder();
  const std::vector<uint64_t> hashes = {11, UINT64_MAX};
  ASSERT_EQ(kvh_envelope_builder_add_fetch(built.get(), str("a1"), str("1.0"), str("tcp://h:1"), hashes.data(),
                                           hashes.size(), nullptr),
            KVH_OK);
  ASSERT_EQ(kvh_envelope_builder_add_action_extra(built.get(), str("x"), bytes(" 1 "), nullptr), KVH_OK);
  ASSERT_EQ(kvh_envelope_builder_add_action(built.get(), str("a2"), str("t"), str("2"), bytes("{}"), nullptr), KVH_OK);
  ASSERT_EQ(kvh_envelope_builder_add_fetch(built.get(), {}, {}, {}, nullptr, 0, nullptr), KVH_OK);
  ASSERT_EQ(kvh_envelope_builder_add_extra(built.get(), str("trace"), bytes("[null]"), nullptr), KVH_OK);
  const std::string made = json(built.get());
  EXPECT_EQ(
      made,
      R"({"protocol_version":"0.1","message_id":"m","actions":[)"
      R"({"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":)"
      R"({"source_control_endpoint":"tcp://h:1","block_hashes":[11,18446744073709551615]},"x":1},)"
      R"({"action_id":"a2","action_type":"t","action_version":"2","payload":{}},)"
      R"({"action_id":"","action_type":"kv.fetch","action_version":"","payload":)"
      R"({"source_control_endpoint":"","block_hashes":[]}}],"trace":[null]})");
  built.reset();
  support::Context context = support::context();
  support::Snapshot again = support::admitted(context.get(), made);
  EXPECT_EQ(view(kvh_snapshot_json(again.get())), made);
}

TEST(EnvelopeBuilder, ErrorsNameThePlaceAndTheRuleAndNoContents) {
  Builder built = builder();
  kvh_error_t *error = nullptr;
  EXPECT_EQ(kvh_envelope_builder_add_action_extra(built.get(), str("x"), bytes("1"), &error), KVH_ERR_STATE);
  EXPECT_THAT(message(error), HasSubstr("actions[0].extra metadata"));
  EXPECT_EQ(kvh_envelope_builder_add_action(built.get(), str("a"), str("t"), str("1"), bytes("[\"hush\"]"), &error),
            KVH_ERR_INVALID_ARGUMENT);
  std::string text = message(error);
  EXPECT_THAT(text, HasSubstr("actions[0].payload: expected a JSON object"));
  EXPECT_THAT(text, testing::Not(HasSubstr("hush")));
  EXPECT_EQ(kvh_envelope_builder_add_action(built.get(), str("a"), str("\xff"), str("1"), bytes("{}"), &error),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(message(error), HasSubstr("actions[0].action_type: expected UTF-8"));
  EXPECT_EQ(kvh_envelope_builder_add_extra(built.get(), str("actions"), bytes("1"), &error), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(message(error), HasSubstr("extra metadata: expected a name"));
  const std::string big = "\"" + std::string(70000, 'x') + "\"";
  EXPECT_EQ(kvh_envelope_builder_add_extra(built.get(), str("x"), bytes(big), &error), KVH_ERR_LIMIT);
  EXPECT_THAT(message(error), HasSubstr("65536"));
  EXPECT_EQ(json(built.get()), R"({"protocol_version":"0.1","message_id":"m","actions":[]})");
}

TEST(EnvelopeBuilder, NullIsRefused) {
  Builder built = builder();
  kvh_envelope_builder_t *made = nullptr;
  EXPECT_EQ(kvh_envelope_builder_create(str("m"), nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_envelope_builder_create({nullptr, 2}, &made, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_envelope_builder_create(str("\xff"), &made, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(kvh_envelope_builder_finish(built.get(), nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_snapshot_t *snapshot = nullptr;
  EXPECT_EQ(kvh_envelope_builder_finish(nullptr, &snapshot, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_envelope_builder_add_extra(nullptr, str("x"), bytes("1"), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_envelope_builder_add_extra(built.get(), str("x"), {nullptr, 1}, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_envelope_builder_add_fetch(built.get(), str("a"), str("1"), str("e"), nullptr, 1, nullptr),
            KVH_ERR_INVALID_ARGUMENT);
  kvh_envelope_builder_destroy(nullptr);
}

}  // namespace
