// kvh_capabilities_t: what is kept, what is refused.
#include "support.hpp"

namespace {

using support::str;
using Capabilities = support::Handle<kvh_capabilities_t, kvh_capabilities_destroy>;

Capabilities create() {
  kvh_capabilities_t *capabilities = nullptr;
  EXPECT_EQ(kvh_capabilities_create(&capabilities), KVH_OK);
  return Capabilities(capabilities);
}

TEST(Capabilities, NullArgumentsAreRefused) {
  EXPECT_EQ(kvh_capabilities_create(nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_capabilities_add(nullptr, str("F"), str("kv.fetch"), str("1.0")),
            KVH_ERR_INVALID_ARGUMENT);
  kvh_capabilities_destroy(nullptr);
}

TEST(Capabilities, StringsAreUtf8OrEmpty) {
  const Capabilities capabilities = create();
  const kvh_str_t null_with_length{nullptr, 1};
  const kvh_str_t not_utf8 = str("\xff");
  const kvh_str_t empty{nullptr, 0};
  EXPECT_EQ(kvh_capabilities_add(capabilities.get(), null_with_length, str("t"), str("v")),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_capabilities_add(capabilities.get(), str("f"), not_utf8, str("v")),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_capabilities_add(capabilities.get(), str("f"), str("t"), {"v", SIZE_MAX}),
            KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_capabilities_add(capabilities.get(), empty, empty, empty), KVH_OK);
}

TEST(Capabilities, HaveALimit) {
  const Capabilities capabilities = create();
  for (int i = 0; i < 4096; ++i)
    ASSERT_EQ(kvh_capabilities_add(capabilities.get(), str("f"), str("t"), str(std::to_string(i))),
              KVH_OK);
  EXPECT_EQ(kvh_capabilities_add(capabilities.get(), str("f"), str("t"), str("7")), KVH_OK)
      << "said twice is no new entry";
  EXPECT_EQ(kvh_capabilities_add(capabilities.get(), str("f"), str("t"), str("more")),
            KVH_ERR_LIMIT);
  EXPECT_EQ(kvh_capabilities_add(create().get(), str(std::string(129, 'x')), str("t"), str("v")),
            KVH_ERR_LIMIT);
}

}  // namespace
