// kvh_key_ring_t: signed hints from end to end, rotation while hints are judged, mistakes of the
// caller. Which signatures count is tested in tests/signed_hints.rs.
#include "support.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

using support::bytes;
using support::str;
using support::view;
using testing::HasSubstr;

using KeyRing = support::Handle<kvh_key_ring_t, kvh_key_ring_destroy>;

constexpr std::string_view kSecret = "a secret of thirty-two bytes, ok";
constexpr std::string_view kEnvelope = R"({"protocol_version":"0.1","message_id":"m","actions":[]})";

uint64_t g_now = 1800000000;  // only changed while no other thread runs
uint64_t now(void *) noexcept { return g_now; }

KeyRing key_ring(uint32_t admissions_max = 0) {
  kvh_key_ring_params_t params{};
  params.struct_size = sizeof params;
  params.admissions_max = admissions_max;
  params.replay_entries_max = 2;
  kvh_key_ring_t *ring = nullptr;
  EXPECT_EQ(kvh_key_ring_create(&params, &ring, nullptr), KVH_OK);
  EXPECT_EQ(kvh_key_ring_add(ring, str("k1"), bytes(kSecret), nullptr), KVH_OK);
  return KeyRing(ring);
}

support::Context context_with(const kvh_key_ring_t *ring) {
  kvh_context_params_t params{};
  params.struct_size = sizeof params;
  params.trust_http_hints = KVH_TRUST_ON;  // says nothing where there is a ring
  params.clock_monotonic_ns = now;
  params.clock_unix_seconds = now;
  params.key_ring = ring;
  kvh_context_t *context = nullptr;
  EXPECT_EQ(kvh_context_create(&params, &context), KVH_OK);
  return support::Context(context);
}

kvh_signing_params_t signing(std::string_view key_id = "k1") {
  kvh_signing_params_t params{};
  params.struct_size = sizeof params;
  params.key_id = str(key_id);
  params.expiry_unix_seconds = 1900000000;
  return params;
}

std::string sign(const kvh_key_ring_t *ring, std::string_view json, const kvh_signing_params_t &params) {
  support::Context any = support::context();
  support::Snapshot envelope = support::admitted(any.get(), json);
  kvh_buffer_t *buffer = nullptr;
  EXPECT_EQ(kvh_key_ring_sign(ring, envelope.get(), &params, &buffer, nullptr), KVH_OK);
  support::Buffer owned(buffer);
  return std::string(view(kvh_buffer_bytes(buffer)));
}

int32_t judge(const kvh_context_t *context, std::string_view json, int32_t ingress = KVH_INGRESS_HTTP) {
  int32_t verdict = -1;
  kvh_snapshot_t *snapshot = nullptr;
  const kvh_bytes_t data = bytes(json);
  EXPECT_EQ(kvh_admit(context, ingress, data.data, data.len, &verdict, &snapshot), KVH_OK);
  EXPECT_EQ(snapshot != nullptr, verdict == KVH_VERDICT_ADMITTED);
  kvh_snapshot_release(snapshot);
  return verdict;
}

TEST(KeyRing, TrustsWhatWasSignedAndNothingElse) {
  KeyRing ring = key_ring();
  support::Context context = context_with(ring.get());
  const std::string sent = sign(ring.get(), kEnvelope, signing());
  ring.reset();  // the context keeps it
  EXPECT_EQ(judge(context.get(), sent), KVH_VERDICT_ADMITTED);
  EXPECT_EQ(judge(context.get(), kEnvelope), KVH_VERDICT_UNTRUSTED);
  EXPECT_EQ(judge(context.get(), kEnvelope, KVH_INGRESS_TRUSTED), KVH_VERDICT_ADMITTED);
  std::string changed = sent;
  changed.replace(changed.find("\"m\""), 3, "\"n\"");
  EXPECT_EQ(judge(context.get(), changed), KVH_VERDICT_UNTRUSTED);
  EXPECT_EQ(judge(context.get(), "null"), KVH_VERDICT_ABSENT);
  g_now = 1900000000;
  EXPECT_EQ(judge(context.get(), sent), KVH_VERDICT_UNTRUSTED);
  g_now = 1800000000;
  const std::string text = support::metrics(context.get());
  EXPECT_THAT(text, HasSubstr("trtllm_kv_hints_ignored_total{reason=\"untrusted\"} 3\n"));
  for (const char *reason : {"no_auth", "wrong_mac", "expired"}) {
    EXPECT_THAT(text, HasSubstr(std::string("kvhints_signatures_refused_total{reason=\"") + reason + "\"} 1\n"));
  }
  EXPECT_THAT(text, HasSubstr("kvhints_signatures_refused_total{reason=\"replay_table_full\"} 0\n"));
}

TEST(KeyRing, OverflowOfTheReplayTableIsCountedApart) {
  KeyRing ring = key_ring(1);
  support::Context context = context_with(ring.get());
  support::Context other = context_with(ring.get());
  std::vector<std::string> hints;
  for (std::string_view nonce : {"a", "b", "c"}) {
    kvh_signing_params_t params = signing();
    params.nonce = str(nonce);
    hints.push_back(sign(ring.get(), kEnvelope, params));
  }
  EXPECT_EQ(judge(context.get(), hints[0]), KVH_VERDICT_ADMITTED);
  EXPECT_EQ(judge(context.get(), hints[1]), KVH_VERDICT_ADMITTED);
  EXPECT_EQ(judge(context.get(), hints[2]), KVH_VERDICT_UNTRUSTED);
  EXPECT_EQ(judge(other.get(), hints[0]), KVH_VERDICT_UNTRUSTED) << "contexts share the ring's table";
  EXPECT_THAT(support::metrics(context.get()),
              HasSubstr("kvhints_signatures_refused_total{reason=\"replay_table_full\"} 1\n"));
  EXPECT_THAT(support::metrics(other.get()), HasSubstr("kvhints_signatures_refused_total{reason=\"replayed\"} 1\n"));
}

TEST(KeyRing, KeysRotateWhileHintsAreJudged) {
  KeyRing ring = key_ring();
  support::Context context = context_with(ring.get());
  const std::string sent = sign(ring.get(), kEnvelope, signing());
  std::atomic<bool> done{false};
  std::thread rotation([&] {
    for (int round = 0; round < 200; ++round) {
      EXPECT_EQ(kvh_key_ring_add(ring.get(), str("k2"), bytes(kSecret), nullptr), KVH_OK);
      EXPECT_EQ(kvh_key_ring_remove(ring.get(), str("k2")), KVH_OK);
    }
    done = true;
  });
  int judged = 0;
  do {
    EXPECT_EQ(judge(context.get(), sent), KVH_VERDICT_ADMITTED);
    ++judged;
  } while (!done);
  rotation.join();
  EXPECT_GT(judged, 0);
  EXPECT_EQ(kvh_key_ring_remove(ring.get(), str("k1")), KVH_OK);
  EXPECT_EQ(kvh_key_ring_remove(ring.get(), str("k1")), KVH_NOT_FOUND);
  EXPECT_EQ(judge(context.get(), sent), KVH_VERDICT_UNTRUSTED);
}

TEST(KeyRing, MistakesAreNamed) {
  KeyRing ring = key_ring();
  const auto message = [](kvh_error_t *error) {
    support::Error owned(error);
    return std::string(view(kvh_error_message(error)));
  };
  kvh_error_t *error = nullptr;
  EXPECT_EQ(kvh_key_ring_add(ring.get(), str("k1"), bytes(kSecret), &error), KVH_ERR_STATE);
  EXPECT_THAT(message(error), HasSubstr("key id"));
  EXPECT_EQ(kvh_key_ring_add(ring.get(), str("k3"), bytes("short"), &error), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(message(error), HasSubstr("32"));
  EXPECT_EQ(kvh_key_ring_add(ring.get(), {nullptr, 3}, bytes(kSecret), nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_key_ring_add(nullptr, str("k"), bytes(kSecret), nullptr), KVH_ERR_INVALID_ARGUMENT);

  kvh_key_ring_params_t params{};
  params.struct_size = sizeof params;
  params.expiry = 2;
  kvh_key_ring_t *made = nullptr;
  EXPECT_EQ(kvh_key_ring_create(&params, &made, nullptr), KVH_ERR_INVALID_ARGUMENT);
  params.expiry = KVH_EXPIRY_OPTIONAL;
  params.admissions_max = 1;
  EXPECT_EQ(kvh_key_ring_create(&params, &made, &error), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(message(error), HasSubstr("exp"));
  EXPECT_EQ(kvh_key_ring_create(nullptr, &made, nullptr), KVH_ERR_INVALID_ARGUMENT);
  params.struct_size = 8;
  EXPECT_EQ(kvh_key_ring_create(&params, &made, nullptr), KVH_ERR_ABI);
  EXPECT_EQ(made, nullptr);

  support::Context any = support::context();
  support::Snapshot envelope = support::admitted(any.get(), kEnvelope);
  kvh_buffer_t *buffer = nullptr;
  kvh_signing_params_t unknown = signing("k9");
  EXPECT_EQ(kvh_key_ring_sign(ring.get(), envelope.get(), &unknown, &buffer, &error), KVH_NOT_FOUND);
  EXPECT_THAT(message(error), HasSubstr("key"));
  kvh_signing_params_t timeless = signing();
  timeless.expiry_unix_seconds = 0;
  EXPECT_EQ(kvh_key_ring_sign(ring.get(), envelope.get(), &timeless, &buffer, nullptr), KVH_ERR_INVALID_ARGUMENT);
  kvh_signing_params_t good = signing();
  EXPECT_EQ(kvh_key_ring_sign(ring.get(), nullptr, &good, &buffer, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_key_ring_sign(ring.get(), envelope.get(), &good, nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(buffer, nullptr);
  kvh_key_ring_destroy(nullptr);
}

TEST(KeyRing, AContextOfTheFirstReleaseHasNone) {
  kvh_context_params_t params{};
  params.struct_size = offsetof(kvh_context_params_t, key_ring);
  params.trust_http_hints = KVH_TRUST_ON;
  params.key_ring = reinterpret_cast<const kvh_key_ring_t *>(8);  // beyond the caller's struct
  kvh_context_t *made = nullptr;
  ASSERT_EQ(kvh_context_create(&params, &made), KVH_OK);
  support::Context context(made);
  EXPECT_EQ(judge(context.get(), kEnvelope), KVH_VERDICT_ADMITTED);
}

}  // namespace
