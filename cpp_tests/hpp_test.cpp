// kvhints.hpp: the owners for hints, from a router that builds and signs to a server that admits.
#include "kvhints.hpp"

#include <gmock/gmock.h>

#include <vector>

namespace {

using testing::HasSubstr;

constexpr std::string_view kSecret = "a secret of thirty-two bytes, ok";

std::uint64_t now(void *) noexcept { return 1800000000; }

TEST(Hpp, ARouterBuildsAndSignsAndAServerAdmits) {
  kvhints::EnvelopeBuilder builder("m");
  builder.add_fetch("a1", "1.0", "tcp://h:1", std::vector<std::uint64_t>{1, 2});
  builder.add_action_extra("x", "1");
  builder.add_action("a2", "t", "2", "{}");
  builder.add_extra("trace", "[null]");
  const kvhints::Snapshot envelope = builder.finish();
  EXPECT_EQ(envelope.action_count(), 2u);

  const kvhints::KeyRing ring;
  ring.add("k1", kvhints::as_bytes(kSecret));
  auto signing = kvhints::sized<kvh_signing_params_t>();
  signing.key_id = kvhints::borrow("k1");
  signing.expiry_unix_seconds = 1900000000;
  const kvhints::Buffer sent = ring.sign(envelope, signing);
  auto params = kvhints::sized<kvh_context_params_t>();
  params.clock_monotonic_ns = now;
  params.clock_unix_seconds = now;
  params.key_ring = ring.get();
  const kvhints::Context context(params);
  EXPECT_EQ(context.admit(kvhints::Ingress::http, sent.text()).verdict, kvhints::Verdict::admitted);
  EXPECT_EQ(context.admit(kvhints::Ingress::http, envelope.json()).verdict, kvhints::Verdict::untrusted);
  EXPECT_TRUE(ring.remove("k1"));
  EXPECT_FALSE(ring.remove("k1"));
  try {
    ring.sign(envelope, signing);
    FAIL() << "no such key";
  } catch (const kvhints::Error &error) {
    EXPECT_EQ(error.status(), KVH_NOT_FOUND);
  }
}

TEST(Hpp, AttemptGivesValuesAndErrorsInsteadOfThrowing) {
  const kvhints::Context context;
  auto tree = kvhints::attempt([&] { return kvhints::ReuseTree(context, 4); });
  ASSERT_TRUE(tree);
  EXPECT_EQ(tree.status(), KVH_OK);
  const kvhints::Sequence sequence(4, std::vector<std::int32_t>{1, 2, 3, 4}, "model@7");
  EXPECT_EQ(*kvhints::attempt([&] { return tree->match(sequence, 4); }), 0u);
  // Out of the result, as it cannot be copied.
  const kvhints::ReuseTree owned = std::move(tree).value();

  const auto refused = kvhints::attempt([&] { return kvhints::ReuseTree(context, 0); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status(), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(refused.error().status(), refused.status());

  const kvhints::Result<void> done = kvhints::attempt([&] { owned.fence_passed(0); });
  EXPECT_TRUE(done);
  done.value();
  const kvhints::KeyRing ring;
  const kvhints::Result<void> failed = kvhints::attempt([&] { ring.add("", kvhints::as_bytes(kSecret)); });
  ASSERT_FALSE(failed);
  EXPECT_LT(failed.status(), 0);
  EXPECT_THAT(failed.error().what(), HasSubstr(kvh_status_string(failed.status())));
  EXPECT_THROW(failed.value(), kvhints::Error);
  const auto no_memory = kvhints::attempt([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(no_memory.status(), KVH_ERR_NO_MEMORY);
  EXPECT_THROW((void)kvhints::attempt([]() -> int { throw 7; }), int);
}

TEST(Hpp, BodiesAndMessagePackAreAdmitted) {
  const kvhints::Context context;
  const kvhints::Snapshot envelope = kvhints::EnvelopeBuilder("m").finish();
  const kvhints::Buffer packed = envelope.msgpack();
  const auto hint = context.admit_msgpack(kvhints::Ingress::trusted, packed.bytes());
  EXPECT_EQ(hint.snapshot.json(), envelope.json());
  const std::string body = "{\"a\":1,\"kv_hints\":" + std::string(envelope.json()) + "}";
  const auto split = context.admit_body(kvhints::Ingress::trusted, body);
  EXPECT_EQ(split.verdict, kvhints::Verdict::admitted);
  EXPECT_EQ(split.body.text(), "{\"a\":1}");
  const std::string packed_body = "\x81\xa8kv_hints" + std::string(packed.text());
  const auto packed_split = context.admit_body_msgpack(kvhints::Ingress::trusted, kvhints::as_bytes(packed_body));
  EXPECT_EQ(packed_split.snapshot.json(), envelope.json());
  EXPECT_EQ(packed_split.body.text(), "\x80");
  EXPECT_THROW(context.admit_body(kvhints::Ingress::trusted, "["), kvhints::Error);
}

TEST(Hpp, AVerdictIsExplained) {
  const kvhints::Context context;
  const auto explanation = context.explain(kvhints::Ingress::trusted, "[]");
  EXPECT_EQ(explanation.numbers.rule, 5u);
  EXPECT_THAT(explanation.words, HasSubstr("expected a JSON object"));
  EXPECT_EQ(context.explain_msgpack(kvhints::Ingress::trusted, kvhints::as_bytes("\x80")).numbers.rule, 6u);
}

TEST(Hpp, APartThatBreaksARuleThrowsInWords) {
  kvhints::EnvelopeBuilder builder("m");
  try {
    builder.add_action("a", "t", "1", "[]");
    FAIL() << "a payload is an object";
  } catch (const kvhints::Error &error) {
    EXPECT_THAT(error.what(), HasSubstr("payload"));
  }
  EXPECT_EQ(builder.finish().action_count(), 0u);
}

TEST(Hpp, CandidatesAreTheActionsThatSomeFamilySupports) {
  kvhints::EnvelopeBuilder builder("m");
  builder.add_action("a", "other", "1", "{}");
  builder.add_fetch("b", "1.0", "tcp://h:1", std::vector<std::uint64_t>{1});
  kvhints::Capabilities capabilities;
  capabilities.add("second", "kv.fetch", "1.0");
  capabilities.add("first", "kv.fetch", "1.0");
  const kvhints::Candidates candidates(builder.finish(), capabilities);
  EXPECT_EQ(candidates.counts().candidates, 1u);
  EXPECT_EQ(candidates.counts().unknown_type, 1u);
  EXPECT_EQ(candidates.action_index(0), 1u);
  EXPECT_THAT(candidates.families(0), testing::ElementsAre("first", "second"));
  EXPECT_THROW((void)candidates.families(1), kvhints::Error);
}

TEST(Hpp, RanksAndTransceiversOfOneProcess) {
  const kvhints::Context context;
  const kvhints::LocalGroup group(1);
  auto params = kvhints::sized<kvh_communicator_params_t>();
  params.tensor_size = params.pipeline_size = params.context_size = 1;
  kvhints::Communicator communicator(context, group, 0, params);
  EXPECT_EQ(communicator.size(), 1u);
  EXPECT_EQ(communicator.min(7), 7u);
  EXPECT_THROW(kvhints::Communicator(context, group, 1, params), kvhints::Error);
  communicator.close();
  const kvhints::Loopback loopback(context);
  EXPECT_NE(loopback.get(), nullptr);
}

// Whatever call gives an error in words, the words are in what is thrown.
TEST(Hpp, ErrorsThatCallsExplainAreThrownInWords) {
  const auto thrown = [](auto call) -> std::string {
    try {
      call();
    } catch (const kvhints::Error &error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const kvhints::KeyRing ring;
  kvhints::EnvelopeBuilder builder("m");
  EXPECT_THAT(thrown([] { kvhints::BindingTable("{"); }), HasSubstr(": "));
  EXPECT_THAT(thrown([] { kvhints::BindingTable(R"({"version":2,"bindings":[],"endpoints":[]})"); }),
              HasSubstr("expected 1, found 2"));
  EXPECT_THAT(thrown([&] { ring.add("k", kvhints::as_bytes("short")); }), HasSubstr("32"));
  EXPECT_THAT(thrown([&] { builder.add_extra("actions", "1"); }), HasSubstr("extra metadata"));
  EXPECT_THAT(thrown([&] { builder.add_action_extra("x", "1"); }), HasSubstr("action"));
  EXPECT_THAT(thrown([] { kvhints::EnvelopeBuilder("\xff"); }), HasSubstr("UTF-8"));
}

}  // namespace
