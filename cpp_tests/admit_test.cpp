// kvh_admit, kvh_admit_msgpack, kvh_admit_body: verdicts, outputs, counts, and what a caller may do
// wrong.
#include "json.hpp"
#include "support.hpp"

#include <gmock/gmock.h>

#include <map>
#include <sstream>
#include <thread>

namespace {

using support::metrics;
using support::view;
using testing::HasSubstr;

const uint8_t *bytes(const std::string &text) { return support::bytes(text).data; }

support::Context context_that(uint32_t trust_http_hints) {
  kvh_context_params_t params{};
  params.struct_size = sizeof params;
  params.trust_http_hints = trust_http_hints;
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(&params, &context), KVH_OK);
  return support::Context(context);
}

const std::string kEnvelope = R"({"protocol_version":"0.1","message_id":"m","actions":[]})";

// A pointer that no call gives: an output that still has it was not written.
int untouched;
kvh_snapshot_t *const kUntouched = reinterpret_cast<kvh_snapshot_t *>(&untouched);

struct Outcome {
  kvh_status_t status;
  int32_t verdict = -7;
  kvh_snapshot_t *snapshot = kUntouched;
};

Outcome admit(const kvh_context_t *context, int32_t ingress, const std::string &raw) {
  Outcome outcome{};
  outcome.status = kvh_admit(context, ingress, bytes(raw), raw.size(), &outcome.verdict, &outcome.snapshot);
  return outcome;
}

Outcome admit_msgpack(const kvh_context_t *context, int32_t ingress, const std::string &raw) {
  Outcome outcome{};
  outcome.status = kvh_admit_msgpack(context, ingress, bytes(raw), raw.size(), &outcome.verdict, &outcome.snapshot);
  return outcome;
}

std::string raw_of(const json::Value &vector) {
  if (vector.has("raw")) return vector["raw"].string;
  if (vector.has("raw_hex")) {
    std::string raw;
    const std::string &hex = vector["raw_hex"].string;
    for (size_t at = 0; at < hex.size(); at += 2) raw += static_cast<char>(std::stoul(hex.substr(at, 2), nullptr, 16));
    return raw;
  }
  const auto &parts = vector["raw_repeat"].items;
  std::string raw = parts.at(0).string;
  for (size_t count = parts.at(2).number(); count > 0; --count) raw += parts.at(1).string;
  return raw + parts.at(3).string;
}

TEST(Admit, EveryVectorGetsItsVerdictAndItsCanonicalForm) {
  const std::vector<std::string> words = {"admitted", "absent", "untrusted", "unknown_version", "oversized", "malformed"};
  auto trusting = context_that(KVH_TRUST_ON);
  auto distrusting = context_that(KVH_TRUST_OFF);
  std::map<std::string, int> seen;
  std::istringstream lines(json::vectors("admission.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json::Value vector = json::Reader(line).value();
    SCOPED_TRACE(vector["name"].string);
    const auto &context = vector["trusted"].raw == "true" ? trusting : distrusting;
    Outcome outcome = admit(context.get(), KVH_INGRESS_HTTP, raw_of(vector));
    ASSERT_EQ(outcome.status, KVH_OK);
    ASSERT_TRUE(outcome.verdict >= 0 && outcome.verdict < 6);
    EXPECT_EQ(words[outcome.verdict], vector["verdict"].string);
    ++seen[words[outcome.verdict]];
    support::Snapshot snapshot(outcome.snapshot);
    ASSERT_EQ(snapshot != nullptr, outcome.verdict == KVH_VERDICT_ADMITTED);
    if (!snapshot) continue;
    const std::string json(view(kvh_snapshot_json(snapshot.get())));
    EXPECT_EQ(json.size(), vector["canonical_len"].number());
    if (vector.has("canonical")) {
      EXPECT_EQ(json, vector["canonical"].string);
    }
  }
  EXPECT_EQ(seen.size(), words.size());
  int all = 0;
  for (const auto &[word, count] : seen) all += count;
  EXPECT_EQ(all, 254);
  // What was discarded was counted, each once.
  std::string on = metrics(trusting.get());
  EXPECT_THAT(on, HasSubstr("{reason=\"malformed\"} " + std::to_string(seen["malformed"]) + "\n"));
  EXPECT_THAT(on, HasSubstr("{reason=\"oversized\"} " + std::to_string(seen["oversized"]) + "\n"));
  EXPECT_THAT(on, HasSubstr("{reason=\"unknown_version\"} " + std::to_string(seen["unknown_version"]) + "\n"));
  EXPECT_THAT(on, HasSubstr("{reason=\"untrusted\"} 0\n"));
  EXPECT_THAT(on, HasSubstr("kvhints_hints_admitted_total " + std::to_string(seen["admitted"]) + "\n"));
  EXPECT_THAT(metrics(distrusting.get()), HasSubstr("{reason=\"untrusted\"} " + std::to_string(seen["untrusted"]) + "\n"));
}

TEST(Admit, TrustedIngressNeedsNoSwitch) {
  auto context = context_that(KVH_TRUST_OFF);
  EXPECT_EQ(admit(context.get(), KVH_INGRESS_HTTP, kEnvelope).verdict, KVH_VERDICT_UNTRUSTED);
  EXPECT_NE(support::admitted(context.get(), kEnvelope), nullptr);
}

TEST(Admit, NoBytesAreAnAbsentHint) {
  auto context = context_that(KVH_TRUST_OFF);
  int32_t verdict = -7;
  kvh_snapshot_t *snapshot = kUntouched;
  ASSERT_EQ(kvh_admit(context.get(), KVH_INGRESS_HTTP, nullptr, 0, &verdict, &snapshot), KVH_OK);
  EXPECT_EQ(verdict, KVH_VERDICT_ABSENT);
  EXPECT_EQ(snapshot, nullptr);
  EXPECT_EQ(kvh_admit_msgpack(context.get(), KVH_INGRESS_HTTP, nullptr, 0, &verdict, &snapshot), KVH_OK);
  EXPECT_EQ(verdict, KVH_VERDICT_ABSENT);
  EXPECT_THAT(metrics(context.get()), HasSubstr("{reason=\"untrusted\"} 0\n"));
}

TEST(Admit, MistakesOfTheCallerLeaveOutputsAlone) {
  auto context = context_that(KVH_TRUST_OFF);
  int32_t verdict = -7;
  kvh_snapshot_t *snapshot = kUntouched;
  kvh_buffer_t *body = nullptr;
  const uint8_t *json = bytes(kEnvelope);
  size_t len = kEnvelope.size();
  for (int32_t ingress : {0, -1, 3, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(kvh_admit(context.get(), ingress, json, len, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(kvh_admit_msgpack(context.get(), ingress, json, len, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(kvh_admit_body(context.get(), ingress, json, len, &verdict, &snapshot, &body), KVH_ERR_INVALID_ARGUMENT);
  }
  EXPECT_EQ(kvh_admit(nullptr, 2, json, len, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit(context.get(), 2, nullptr, len, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit(context.get(), 2, json, SIZE_MAX, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit(context.get(), 2, json, len, nullptr, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit(context.get(), 2, json, len, &verdict, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_msgpack(nullptr, 2, json, len, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_msgpack(context.get(), 2, nullptr, 1, &verdict, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_msgpack(context.get(), 2, json, len, nullptr, &snapshot), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_body(nullptr, 2, json, len, &verdict, &snapshot, &body), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_body(context.get(), 2, nullptr, 1, &verdict, &snapshot, &body), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_body(context.get(), 2, json, len, &verdict, &snapshot, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_admit_body(context.get(), 2, json, len, nullptr, &snapshot, &body), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(verdict, -7);
  EXPECT_EQ(snapshot, kUntouched);
  EXPECT_EQ(body, nullptr);
  EXPECT_THAT(metrics(context.get()), HasSubstr("kvhints_hints_admitted_total 0\n"));
}

TEST(Admit, TheCallersBufferIsNotNeededAfterwards) {
  auto context = context_that(KVH_TRUST_OFF);
  std::string raw = kEnvelope;
  auto snapshot = support::admitted(context.get(), raw);
  raw.assign(raw.size(), '#');
  EXPECT_EQ(view(kvh_snapshot_json(snapshot.get())), kEnvelope);
}

TEST(Admit, ManyThreadsMayAdmitAtOnce) {
  auto context = context_that(KVH_TRUST_OFF);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&context, thread] {
      for (int round = 0; round < 200; ++round) {
        std::string id = std::to_string(thread) + "-" + std::to_string(round);
        auto snapshot = support::admitted(
            context.get(), R"({"protocol_version":"0.1","message_id":")" + id + R"(", "actions":[],"n":[1,2]})");
        EXPECT_EQ(view(kvh_snapshot_message_id(snapshot.get())), id);
        EXPECT_EQ(admit(context.get(), KVH_INGRESS_TRUSTED, id).verdict, KVH_VERDICT_MALFORMED);
      }
    });
  }
  for (auto &thread : threads) thread.join();
  EXPECT_THAT(metrics(context.get()), HasSubstr("kvhints_hints_admitted_total 1600\n"));
  EXPECT_THAT(metrics(context.get()), HasSubstr("{reason=\"malformed\"} 1600\n"));
}

TEST(AdmitMsgpack, OneValueByTheSameTable) {
  auto context = context_that(KVH_TRUST_OFF);
  std::string packed = "\x83\xb0protocol_version\xa3" "0.1\xaamessage_id\xa1m\xa7" "actions\x90";
  Outcome outcome = admit_msgpack(context.get(), KVH_INGRESS_TRUSTED, packed);
  ASSERT_EQ(outcome.verdict, KVH_VERDICT_ADMITTED);
  support::Snapshot snapshot(outcome.snapshot);
  EXPECT_EQ(view(kvh_snapshot_json(snapshot.get())), kEnvelope);
  EXPECT_EQ(admit_msgpack(context.get(), KVH_INGRESS_HTTP, packed).verdict, KVH_VERDICT_UNTRUSTED);
  EXPECT_EQ(admit_msgpack(context.get(), KVH_INGRESS_HTTP, "\xc0").verdict, KVH_VERDICT_ABSENT);
  EXPECT_EQ(admit_msgpack(context.get(), KVH_INGRESS_TRUSTED, packed + "\xc0").verdict, KVH_VERDICT_MALFORMED);
  packed.replace(packed.find("0.1"), 3, "0.2");
  outcome = admit_msgpack(context.get(), KVH_INGRESS_TRUSTED, packed);
  EXPECT_EQ(outcome.verdict, KVH_VERDICT_UNKNOWN_VERSION);
  EXPECT_EQ(outcome.snapshot, nullptr);
  EXPECT_EQ(admit_msgpack(context.get(), KVH_INGRESS_TRUSTED, "\xdd\xff\xff\xff\xff").verdict, KVH_VERDICT_MALFORMED);
}

struct BodyOutcome {
  kvh_status_t status;
  int32_t verdict = -7;
  support::Snapshot snapshot;
  std::string rest;
};

BodyOutcome admit_body(const kvh_context_t *context, int32_t ingress, const std::string &body) {
  BodyOutcome outcome{};
  kvh_snapshot_t *snapshot = nullptr;
  kvh_buffer_t *rest = nullptr;
  outcome.status = kvh_admit_body(context, ingress, bytes(body), body.size(), &outcome.verdict, &snapshot, &rest);
  outcome.snapshot.reset(snapshot);
  support::Buffer buffer(rest);
  outcome.rest = view(kvh_buffer_bytes(buffer.get()));
  return outcome;
}

TEST(AdmitBody, TheHintIsTakenOutAndJudged) {
  auto context = context_that(KVH_TRUST_ON);
  auto outcome = admit_body(context.get(), KVH_INGRESS_HTTP,
                            "{\"model\": \"x\", \"kv_\\u0068ints\": " + kEnvelope + ", \"n\": 1.0e2}");
  EXPECT_EQ(outcome.verdict, KVH_VERDICT_ADMITTED);
  ASSERT_NE(outcome.snapshot, nullptr);
  EXPECT_EQ(view(kvh_snapshot_json(outcome.snapshot.get())), kEnvelope);
  EXPECT_EQ(outcome.rest, "{\"model\": \"x\",  \"n\": 1.0e2}");
  outcome = admit_body(context.get(), KVH_INGRESS_HTTP, "{\"a\":[],\"kv_hints\":[}");
  EXPECT_EQ(outcome.status, KVH_ERR_BODY);
  EXPECT_EQ(outcome.verdict, -7);
  EXPECT_EQ(outcome.rest, "");
}

TEST(AdmitBody, EveryVerdictLeavesABodyWithoutTheHint) {
  auto trusting = context_that(KVH_TRUST_ON);
  auto distrusting = context_that(KVH_TRUST_OFF);
  struct {
    std::string value;
    int32_t verdict;
  } cases[] = {{kEnvelope, KVH_VERDICT_ADMITTED},
               {"null", KVH_VERDICT_ABSENT},
               {R"({"protocol_version":"9"})", KVH_VERDICT_UNKNOWN_VERSION},
               {"[" + std::string(1 << 20, ' ') + "]", KVH_VERDICT_OVERSIZED},
               {"{}", KVH_VERDICT_MALFORMED}};
  for (const auto &[value, verdict] : cases) {
    std::string body = "{\"a\":1,\"kv_hints\":" + value + "}";
    auto outcome = admit_body(trusting.get(), KVH_INGRESS_HTTP, body);
    EXPECT_EQ(outcome.verdict, verdict);
    EXPECT_EQ(outcome.snapshot != nullptr, verdict == KVH_VERDICT_ADMITTED);
    EXPECT_EQ(outcome.rest, "{\"a\":1}");
    outcome = admit_body(distrusting.get(), KVH_INGRESS_HTTP, body);
    EXPECT_EQ(outcome.verdict, value == "null" ? KVH_VERDICT_ABSENT : KVH_VERDICT_UNTRUSTED);
    EXPECT_EQ(outcome.rest, "{\"a\":1}");
  }
  auto outcome = admit_body(distrusting.get(), KVH_INGRESS_HTTP, "{\"b\":2}");
  EXPECT_EQ(outcome.verdict, KVH_VERDICT_ABSENT);
  EXPECT_EQ(outcome.rest, "{\"b\":2}");
}

TEST(AdmitBody, OfSeveralHintsNoneIsUsed) {
  auto context = context_that(KVH_TRUST_ON);
  std::string body = "{\"kv_hints\":" + kEnvelope + ",\"a\":1,\"kv_hints\":null}";
  auto outcome = admit_body(context.get(), KVH_INGRESS_HTTP, body);
  EXPECT_EQ(outcome.verdict, KVH_VERDICT_MALFORMED);
  EXPECT_EQ(outcome.snapshot, nullptr);
  EXPECT_EQ(outcome.rest, "{\"a\":1}");
  auto distrusting = context_that(KVH_TRUST_OFF);
  EXPECT_EQ(admit_body(distrusting.get(), KVH_INGRESS_HTTP, body).verdict, KVH_VERDICT_UNTRUSTED);
  EXPECT_THAT(metrics(context.get()), HasSubstr("{reason=\"malformed\"} 1\n"));
}

TEST(AdmitBody, TheCapIsTheContexts) {
  kvh_context_params_t params{};
  params.struct_size = sizeof params;
  params.body_max_bytes = 10;
  kvh_context_t *created = nullptr;
  ASSERT_EQ(kvh_context_create(&params, &created), KVH_OK);
  support::Context context(created);
  EXPECT_EQ(admit_body(context.get(), KVH_INGRESS_HTTP, "{\"a\":123} ").status, KVH_OK);
  EXPECT_EQ(admit_body(context.get(), KVH_INGRESS_HTTP, "{\"a\":1234} ").status, KVH_ERR_BODY);
  EXPECT_EQ(admit_body(context.get(), KVH_INGRESS_HTTP, "").status, KVH_ERR_BODY);
}

TEST(AdmitBodyMsgpack, TheHintIsTakenOutAndJudged) {
  using namespace std::string_literals;
  auto context = context_that(KVH_TRUST_ON);
  support::Snapshot envelope = support::admitted(context.get(), kEnvelope);
  kvh_buffer_t *encoded = nullptr;
  ASSERT_EQ(kvh_snapshot_msgpack(envelope.get(), &encoded), KVH_OK);
  support::Buffer owned(encoded);
  const std::string hint(view(kvh_buffer_bytes(encoded)));
  const auto split = [&](const kvh_context_t *context, const std::string &body, kvh_status_t expected, int32_t verdict,
                         const std::string &rest) {
    int32_t found = -7;
    kvh_snapshot_t *snapshot = nullptr;
    kvh_buffer_t *buffer = nullptr;
    EXPECT_EQ(kvh_admit_body_msgpack(context, KVH_INGRESS_HTTP, bytes(body), body.size(), &found, &snapshot, &buffer),
              expected);
    support::Buffer owned(buffer);
    support::Snapshot held(snapshot);
    EXPECT_EQ(found, verdict);
    EXPECT_EQ(snapshot != nullptr, verdict == KVH_VERDICT_ADMITTED);
    EXPECT_EQ(view(kvh_buffer_bytes(buffer)), rest);
    if (snapshot != nullptr) {
      EXPECT_EQ(view(kvh_snapshot_json(snapshot)), kEnvelope);
    }
  };
  const std::string key = "\xa8kv_hints"s;
  split(context.get(), "\x82\xa1" "a\x01" + key + hint, KVH_OK, KVH_VERDICT_ADMITTED, "\x81\xa1" "a\x01");
  split(context.get(), "\x81" + key + "\xc0", KVH_OK, KVH_VERDICT_ABSENT, "\x80");
  split(context.get(), "\x81" + key + "\xc4\x00"s, KVH_OK, KVH_VERDICT_MALFORMED, "\x80");
  split(context.get(), "\x81" + key + hint + "\xc0", KVH_ERR_BODY, -7, "");
  split(context.get(), "\x81\xc4\x08kv_hints" + hint, KVH_ERR_BODY, -7, "");
  auto distrusting = context_that(KVH_TRUST_OFF);
  split(distrusting.get(), "\x81" + key + hint, KVH_OK, KVH_VERDICT_UNTRUSTED, "\x80");
  EXPECT_THAT(metrics(distrusting.get()), HasSubstr("{reason=\"untrusted\"} 1\n"));
  int32_t verdict = -7;
  kvh_buffer_t *buffer = nullptr;
  EXPECT_EQ(kvh_admit_body_msgpack(context.get(), KVH_INGRESS_HTTP, nullptr, 3, &verdict, nullptr, &buffer),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(buffer, nullptr);
}

}  // namespace
