// What a fault inside the library comes to: a status, a poisoned context, a quiet stderr, and a
// process that goes on.
#include "kvhints.h"

#include <gmock/gmock.h>

#include <string>

extern "C" kvh_status_t kvh_probe_panic(const kvh_context_t *context);

namespace {

std::string poison_location(const kvh_context_t *context) {
  char text[256];
  size_t length = 0;
  EXPECT_EQ(kvh_context_poison_location(context, text, sizeof text, &length), KVH_OK);
  return std::string(text, length);
}

TEST(Panic, StopsAtTheBoundaryAndPoisonsTheContext) {
  kvh_context_t *context = nullptr;
  ASSERT_EQ(kvh_context_create(nullptr, &context), KVH_OK);
  size_t length = 7;
  EXPECT_EQ(kvh_context_metrics(context, nullptr, 0, &length), KVH_OK);
  EXPECT_EQ(poison_location(context), "");

  testing::internal::CaptureStderr();
  EXPECT_EQ(kvh_probe_panic(context), KVH_ERR_POISONED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");

  length = 7;
  EXPECT_EQ(kvh_context_metrics(context, nullptr, 0, &length), KVH_ERR_POISONED);
  EXPECT_EQ(length, 7u) << "outputs are not written";
  EXPECT_THAT(poison_location(context), testing::HasSubstr("lib.rs:"));
  EXPECT_THAT(poison_location(context), testing::Not(testing::HasSubstr("secret")));
  kvh_context_destroy(context);
}

TEST(Panic, IsInTheStatusAndOnceInTheLog) {
  kvh_context_t *context = nullptr;
  ASSERT_EQ(kvh_context_create(nullptr, &context), KVH_OK);
  std::string told;
  const auto take = [](void *told, const kvh_log_record_t *record) noexcept {
    *static_cast<std::string *>(told) += std::string(record->event.data, record->event.len) + " " +
                                         std::string(record->fields.data, record->fields.len) + "\n";
  };
  ASSERT_EQ(kvh_context_set_log(context, KVH_LOG_ERROR, take, &told, nullptr), KVH_OK);
  EXPECT_EQ(kvh_probe_panic(context), KVH_ERR_POISONED);
  EXPECT_EQ(kvh_probe_panic(context), KVH_ERR_POISONED);
  EXPECT_THAT(told, testing::MatchesRegex("poisoned \\{\"place\":\"[^\"]*lib.rs:[0-9]+\"\\}\n"));
  char text[8192];
  size_t length = 0;
  ASSERT_EQ(kvh_context_status(context, text, sizeof text, &length), KVH_OK);
  EXPECT_THAT(std::string(text, length), testing::HasSubstr("\"poisoned\":true"));
  kvh_context_destroy(context);
}

TEST(Panic, LeavesOtherContextsAlone) {
  kvh_context_t *bad = nullptr;
  kvh_context_t *good = nullptr;
  ASSERT_EQ(kvh_context_create(nullptr, &bad), KVH_OK);
  ASSERT_EQ(kvh_context_create(nullptr, &good), KVH_OK);
  EXPECT_EQ(kvh_probe_panic(bad), KVH_ERR_POISONED);
  size_t length = 0;
  EXPECT_EQ(kvh_context_metrics(good, nullptr, 0, &length), KVH_OK);
  kvh_context_destroy(bad);
  kvh_context_destroy(good);
}

}  // namespace
