// Requests and keys of the host as sequences: block hashes are the host's own, and names tell apart what
// the host tells apart, and no more.
#include "worker.hpp"

#include <gmock/gmock.h>

#include <set>

namespace {

using namespace worker;
using kvhints::trtllm::Naming;
using kvhints::trtllm::sequence_of_key;
using kvhints::trtllm::sequence_of_request;
using host::upstream_cache::BlockKey;
using host::upstream_cache::BlockKeyHasher;
using testing::Each;
using testing::Ne;

std::vector<std::uint64_t> hashes_of_host(const Request &request) {
  std::vector<std::uint64_t> hashes;
  std::size_t parent = 0;
  for (const BlockKey &key : host::Host::block_keys(request, static_cast<std::size_t>(request.getNumTokens(0)),
                                                    model::tokens_per_block)) {
    parent = BlockKeyHasher::hash(key, parent);
    hashes.push_back(parent);
  }
  return hashes;
}

std::vector<std::string> names(const kvhints::Sequence &sequence) {
  std::vector<kvh_name_t> names(sequence.block_count());
  std::size_t count = 0;
  kvhints::check(kvh_sequence_block_names(sequence.get(), names.data(), names.size(), &count));
  std::vector<std::string> texts;
  for (const kvh_name_t &name : names) {
    texts.emplace_back(reinterpret_cast<const char *>(name.bytes), sizeof name.bytes);
  }
  return texts;
}

std::string first_name(const Request &request, const Naming &chosen = naming()) {
  return names(*sequence_of_request(chosen, request)).front();
}

const std::vector<std::int32_t> image = {0x00010203, 0x04050607, 0x08090a0b, 0x0c0d0e0f,
                                         0x10111213, 0x14151617, 0x18191a1b, 0x1c1d1e1f};

TEST(Names, BlockHashesAreTheHosts) {
  const auto same = [](const RequestPtr &asked) {
    const auto sequence = sequence_of_request(naming(), *asked);
    ASSERT_TRUE(sequence);
    EXPECT_EQ(sequence->block_hashes(), hashes_of_host(*asked));
  };
  same(request(0, tokens(0, 16)));
  EXPECT_EQ(sequence_of_request(naming(), *request(0, tokens(0, 16)))->block_hashes(),
            (std::vector<std::uint64_t>{0x00029afbf4c44315, 0x5794d53364dbae2a, 0xbd6f81b9313edf04, 0x7c6686dd2e78ae5b}))
      << "and the published ones";
  const auto partial = request(0, {-1, 7, 2147483647, 4, 5, 6});
  same(partial);
  const auto salted = request(0, tokens(0, 10));
  salted->setCacheSalt("tenant");
  same(salted);
  const auto adapted = request(0, tokens(0, 10));
  adapted->setLoraTaskId(42);
  same(adapted);
  const auto extra = request(0, tokens(0, 8));
  extra->setInputTokenExtraIds({1, 1, 2, 2, 3, 3, 0, 0});
  extra->addNewToken(8, 0);
  same(extra);
  const auto images = request(0, tokens(0, 20));
  images->setMultimodal({image, std::vector<std::int32_t>(8, -7)}, {3, 15}, {9, 2});
  same(images);
}

TEST(Names, AKeyMeansWhatItsRequestMeans) {
  const auto asked = request(0, tokens(0, 10));
  asked->setCacheSalt("tenant");
  asked->setLoraTaskId(42);
  const BlockKey key(false, 42, asked->getUniqueTokens(0), {}, "tenant");
  EXPECT_EQ(names(*sequence_of_key(naming(), key)), names(*sequence_of_request(naming(), *asked)));
}

// All pieces of such a key have the last block's extra keys in the host, so what is found is another prompt
// or nothing.
TEST(Names, AKeyWithTheImagesOfItsLastBlockAloneHasNone) {
  const auto asked = request(0, tokens(0, 10));
  asked->setMultimodal({image}, {2, 3}, {5, 1});
  EXPECT_FALSE(sequence_of_request(naming(), *asked)) << "as many places as items";
  asked->setMultimodal({image}, {2}, {5});
  EXPECT_TRUE(sequence_of_request(naming(), *asked));
  asked->setMultimodal({{1, 2, 3}}, {2}, {5});
  EXPECT_FALSE(sequence_of_request(naming(), *asked)) << "a hash has 8 words";
  asked->setMultimodal({image}, {2}, {5});
  const auto keys = host::Host::block_keys(*asked, 10, model::tokens_per_block);
  const BlockKey whole(false, std::nullopt, asked->getUniqueTokens(0), keys[1].extraKeys);
  EXPECT_FALSE(sequence_of_key(naming(), whole));
}

TEST(Names, WhatTheHostTellsApartIsAnotherName) {
  const auto plain = request(0, tokens(0, 4));
  std::set<std::string> all = {first_name(*plain)};
  const auto is_new = [&](const std::string &name) { return all.insert(name).second; };
  const auto with = [](const std::function<void(Request &)> &change) {
    const auto changed = request(0, tokens(0, 4));
    change(*changed);
    return changed;
  };
  EXPECT_TRUE(is_new(first_name(*with([](Request &asked) { asked.setCacheSalt("a"); }))));
  EXPECT_TRUE(is_new(first_name(*with([](Request &asked) { asked.setCacheSalt("b"); }))));
  EXPECT_TRUE(is_new(first_name(*with([](Request &asked) { asked.setCacheSalt(""); })))) << "an empty salt is one";
  EXPECT_TRUE(is_new(first_name(*with([](Request &asked) { asked.setInputTokenExtraIds({0, 0, 0, 0}); }))));
  EXPECT_TRUE(is_new(first_name(*with([](Request &asked) { asked.setMultimodal({image}, {0}, {1}); }))));
  const auto adapted = with([](Request &asked) { asked.setLoraTaskId(1); });
  EXPECT_TRUE(is_new(first_name(*adapted)));
  Naming chosen = naming();
  chosen.namespace_bytes = "model@8";
  EXPECT_TRUE(is_new(first_name(*plain, chosen)));
}

// A task id means nothing elsewhere; its digest does.
TEST(Names, AnAdapterIsNamedByItsDigestOrStaysHere) {
  const auto adapted = request(0, tokens(0, 4));
  adapted->setLoraTaskId(1);
  EXPECT_FALSE(kvh_sequence_is_servable(sequence_of_request(naming(), *adapted)->get()));
  Naming chosen = naming();
  chosen.adapter_digest = [](std::uint64_t task) { return "sha256 of weights " + std::to_string(task / 10); };
  EXPECT_TRUE(kvh_sequence_is_servable(sequence_of_request(chosen, *adapted)->get()));
  const auto elsewhere = request(0, tokens(0, 4));
  elsewhere->setLoraTaskId(2);
  EXPECT_EQ(first_name(*adapted, chosen), first_name(*elsewhere, chosen)) << "the same weights under another number";
}

// Versions of the host whose salt is a number.
TEST(Names, ANumberAsSaltIsAHashOfTheHostsAndTellsNothingToOthers) {
  struct NumberedKey {
    bool usesExtraIds = false;
    std::optional<std::uint64_t> loraTaskId;
    host::upstream_cache::VecUniqueTokens uniqueTokens;
    std::vector<int> extraKeys;
    std::optional<std::uint64_t> cacheSaltID;
  };
  NumberedKey key;
  key.uniqueTokens = request(0, tokens(0, 4))->getUniqueTokens(0);
  EXPECT_EQ(sequence_of_key(naming(), key)->block_hashes().front(), 0x00029afbf4c44315u);
  key.cacheSaltID = 12345;
  EXPECT_EQ(sequence_of_key(naming(), key)->block_hashes().front(), 0x97f0f1ae226318a7u);
}

TEST(Names, TheFirstTokensOfARequestAreItsFirstBlocks) {
  const auto asked = request(0, tokens(0, 11));
  asked->setMultimodal({image}, {6}, {4});
  const auto all = names(*sequence_of_request(naming(), *asked));
  const auto some = names(*sequence_of_request(naming(), *asked, 8));
  EXPECT_EQ(some, std::vector<std::string>(all.begin(), all.begin() + 2)) << "an image that ends later is cut";
  EXPECT_EQ(sequence_of_request(naming(), *asked, 0)->block_count(), 0u);
}

}  // namespace
