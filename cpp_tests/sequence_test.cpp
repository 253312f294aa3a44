// kvh_sequence_t: hashes as the batch manager has them, growth, what is refused.
#include "reuse_support.hpp"

namespace {

using namespace reuse_support;

std::vector<uint64_t> hashes(const Sequence &sequence) {
  size_t count = 0;
  EXPECT_EQ(kvh_sequence_block_hashes(sequence.get(), nullptr, 0, &count), KVH_OK);
  std::vector<uint64_t> hashes(count);
  EXPECT_EQ(kvh_sequence_block_hashes(sequence.get(), hashes.data(), hashes.size(), &count), KVH_OK);
  return hashes;
}

kvh_status_t try_create(const kvh_sequence_params_t &params) {
  kvh_sequence_t *sequence = nullptr;
  kvh_status_t status = kvh_sequence_create(&params, &sequence);
  EXPECT_EQ(sequence == nullptr, status != KVH_OK);
  kvh_sequence_destroy(sequence);
  return status;
}

TEST(Sequence, HashesAreTheBatchManagers) {
  EXPECT_EQ(hashes(sequence(tokens(0, 10))),
            (std::vector<uint64_t>{733356887393045u, 6310903394565074474u, 12323969022835443604u}));
}

std::string hex(const kvh_name_t &name) {
  std::string text;
  for (uint8_t byte : name.bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(Sequence, NamesAreThoseOfTheProtocolHoweverItGrows) {
  std::vector<int32_t> all = tokens(0, 10);
  kvh_sequence_params_t params = sequence_params(all);
  params.namespace_bytes = {reinterpret_cast<const uint8_t *>("model-a"), 7};
  params.token_count = 3;
  kvh_sequence_t *created = nullptr;
  ASSERT_EQ(kvh_sequence_create(&params, &created), KVH_OK);
  Sequence sequence(created);
  ASSERT_EQ(kvh_sequence_append(sequence.get(), all.data() + 3, nullptr, 7, nullptr, 0), KVH_OK);
  kvh_name_t names[3];
  size_t count = 0;
  ASSERT_EQ(kvh_sequence_block_names(sequence.get(), names, 3, &count), KVH_OK);
  ASSERT_EQ(count, 3u);
  EXPECT_EQ(hex(names[0]), "cb850dfff7c1dcb628a338430a1375a1034d9c3eda0a01c356df7e0871ad8b6e");
  EXPECT_EQ(hex(names[1]), "79372be0125ce24fffb8e78a30977c1a036ac5c33a9e467f4dd7d2e3278129c5");
  EXPECT_EQ(hex(names[2]), "187b2cd006777079feb72a32eda0d3bc28e072ce025d04efded03c14cd8092e6");
}

TEST(Sequence, GrowsAndCountsAPartialTail) {
  Sequence sequence = reuse_support::sequence({});
  EXPECT_EQ(kvh_sequence_block_count(sequence.get()), 0u);
  for (int32_t token = 0; token < 10; ++token) {
    ASSERT_EQ(kvh_sequence_append(sequence.get(), &token, nullptr, 1, nullptr, 0), KVH_OK);
    EXPECT_EQ(kvh_sequence_token_count(sequence.get()), size_t(token) + 1);
    EXPECT_EQ(kvh_sequence_block_count(sequence.get()), size_t(token) / kTokensPerBlock + 1);
  }
  EXPECT_EQ(hashes(sequence), hashes(reuse_support::sequence(tokens(0, 10))));
  ASSERT_EQ(kvh_sequence_append(sequence.get(), nullptr, nullptr, 0, nullptr, 0), KVH_OK);
}

TEST(Sequence, LengthsFollowTheConvention) {
  Sequence sequence = reuse_support::sequence(tokens(0, 10));
  uint64_t some[2] = {7, 7};
  size_t count = 0;
  EXPECT_EQ(kvh_sequence_block_hashes(sequence.get(), some, 2, &count), KVH_ERR_TOO_SMALL);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(some[0], 7u) << "a buffer too small stays untouched";
  EXPECT_EQ(kvh_sequence_block_hashes(sequence.get(), nullptr, 2, &count), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_sequence_block_hashes(sequence.get(), some, 2, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_sequence_block_hashes(nullptr, some, 2, &count), KVH_ERR_INVALID_ARGUMENT);
  kvh_name_t names[3];
  EXPECT_EQ(kvh_sequence_block_names(sequence.get(), names, 3, &count), KVH_OK);
  EXPECT_EQ(count, 3u);
}

TEST(Sequence, AValueWithoutItsFlagIsRefused) {
  std::vector<int32_t> some = tokens(0, 4);
  std::vector<uint64_t> extra(4);
  kvh_sequence_params_t good = sequence_params(some);
  EXPECT_EQ(try_create(good), KVH_OK);
  auto refused = [&](auto change, kvh_status_t expected) {
    kvh_sequence_params_t params = good;
    change(params);
    EXPECT_EQ(try_create(params), expected);
  };
  refused([](auto &params) { params.lora_id = 1; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.salt = 1; }, KVH_ERR_INVALID_ARGUMENT);
  refused([&](auto &params) { params.extra_ids = extra.data(); }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.flags = KVH_SEQUENCE_HAS_EXTRA_IDS; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.flags = 8; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.tokens_per_block = 0; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.tokens_per_block = 65537; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.tokens = nullptr; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.token_count = SIZE_MAX; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.mm_item_count = 1; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.namespace_bytes.len = 1; }, KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.adapter_digest = {reinterpret_cast<const uint8_t *>("d"), 1}; },
          KVH_ERR_INVALID_ARGUMENT);
  refused([](auto &params) { params.struct_size -= 1; }, KVH_ERR_ABI);
  EXPECT_EQ(kvh_sequence_create(nullptr, nullptr), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_sequence_create(&good, nullptr), KVH_ERR_INVALID_ARGUMENT);
}

TEST(Sequence, MultimodalRunsMustLieWithinTheirTokens) {
  Sequence sequence = reuse_support::sequence(tokens(0, 4));
  std::vector<int32_t> more = tokens(4, 4);
  kvh_mm_item_t item{};
  auto append = [&](uint32_t start, uint32_t length) {
    item.start = start;
    item.length = length;
    return kvh_sequence_append(sequence.get(), more.data(), nullptr, more.size(), &item, 1);
  };
  EXPECT_EQ(append(3, 2), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(append(4, 0), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(append(4, 5), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(append(UINT32_MAX, UINT32_MAX), KVH_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(kvh_sequence_token_count(sequence.get()), 4u) << "a refused append changes nothing";
  EXPECT_EQ(append(4, 4), KVH_OK);
  EXPECT_NE(hashes(sequence)[1], hashes(reuse_support::sequence(tokens(0, 8)))[1]);
}

TEST(Sequence, OnlyAdaptersThatAllKnowAreServable) {
  std::vector<int32_t> some = tokens(0, 4);
  kvh_sequence_params_t params = sequence_params(some);
  auto is_servable = [&] {
    kvh_sequence_t *sequence = nullptr;
    EXPECT_EQ(kvh_sequence_create(&params, &sequence), KVH_OK);
    return kvh_sequence_is_servable(Sequence(sequence).get());
  };
  EXPECT_EQ(is_servable(), 1);
  params.flags = KVH_SEQUENCE_HAS_LORA;
  params.lora_id = 3;
  EXPECT_EQ(is_servable(), 0);
  params.adapter_digest = {reinterpret_cast<const uint8_t *>("digest"), 6};
  EXPECT_EQ(is_servable(), 1);
}

TEST(Sequence, NullIsFineWhereTheHeaderSaysSo) {
  kvh_sequence_destroy(nullptr);
  EXPECT_EQ(kvh_sequence_block_count(nullptr), 0u);
  EXPECT_EQ(kvh_sequence_token_count(nullptr), 0u);
  EXPECT_EQ(kvh_sequence_is_servable(nullptr), 0);
  EXPECT_EQ(kvh_sequence_append(nullptr, nullptr, nullptr, 0, nullptr, 0), KVH_ERR_INVALID_ARGUMENT);
}

}  // namespace
