// The transceiver over names, beside the host's own: what arrives is the request's, what does not leaves it
// as it was, and nobody is scheduled while blocks may still be written.
#include "worker.hpp"

#include <gmock/gmock.h>

namespace {

using namespace worker;
using host::State;
using host::upstream::LLMREQUEST_TYPE_CONTEXT_ONLY;
using host::upstream::LLMREQUEST_TYPE_GENERATION_ONLY;
using host::upstream_cache::BlockKey;
using kvhints::trtllm::FetchOptions;
using kvhints::trtllm::Source;

struct CacheTransceiverTest : testing::Test {
  kvhints::Context context;
  kvhints::Loopback hub{context};
  Worker source{hub, 16};
  Worker destination{hub, 16};
  host::upstream::CacheTransceiver paired_source{&source.manager};
  host::upstream::CacheTransceiver paired{&destination.manager};
  host::Transceiver transceiver{&paired, destination.mirror, *destination.transceiver};

  Source from_source(bool is_required = false) {
    Source from;
    from.state = source.state();
    from.is_required = is_required;
    return from;
  }
  // Polls as an executor does, once an iteration.
  void settle(host::Transceiver &with) {
    wait_until([&] {
      with.checkGenTransferStatus(0);
      return with.checkGenTransferComplete();
    });
  }
  // The next token, all of whose KV is computed here.
  static std::int32_t computed_alone(const kvhints::Loopback &hub, std::vector<std::int32_t> prompt) {
    Worker alone(hub, 16);
    return alone.serve(request(0, std::move(prompt)));
  }
  std::int32_t prefill_rest(Request &asked) {
    destination.compute(asked, static_cast<std::size_t>(asked.getContextCurrentPosition()));
    asked.setContextCurrentPosition(asked.getPromptLen());
    return destination.next_token(asked);
  }
  void TearDown() override {
    wait_until([&] { return source.live_pins() == 0 && source.transceiver->status().requests_in_flight == 0; });
    EXPECT_EQ(host::Range::open(), 0) << "every range that began has ended";
  }
};

TEST_F(CacheTransceiverTest, AContextRequestGoesOnWithWhatWasFetched) {
  source.serve(request(0, tokens(0, 14)));
  const auto asked = request(7, tokens(0, 14));
  destination.add(*asked);
  transceiver.set_source(7, from_source());
  EXPECT_FALSE(transceiver.admitted(asked));
  EXPECT_EQ(asked->getState(), State::kDISAGG_GENERATION_TRANS_IN_PROGRESS) << "which is not scheduled";
  settle(transceiver);
  EXPECT_EQ(asked->getState(), State::kCONTEXT_INIT);
  EXPECT_EQ(asked->getContextCurrentPosition(), 12) << "whole blocks, never the last token";
  EXPECT_EQ(asked->getPrepopulatedPromptLen(), 12);
  EXPECT_EQ(prefill_rest(*asked), computed_alone(hub, tokens(0, 14)));
  destination.manager.storeContextBlocks(*asked);
  EXPECT_EQ(destination.mirror.store(*asked), 3u) << "and is found here from now on";
  EXPECT_GE(host::Range::counts()["checkGenTransferStatus"], 1);
}

TEST_F(CacheTransceiverTest, WhatIsHereIsNotFetchedAndAPartlyMatchingBlockIsFetchedWhole) {
  source.serve(request(0, tokens(0, 18)));
  destination.serve(request(1, tokens(0, 7)));
  const auto asked = request(7, tokens(0, 18));
  destination.add(*asked);
  ASSERT_EQ(asked->getPrepopulatedPromptLen(), 7);
  transceiver.set_source(7, from_source());
  EXPECT_FALSE(transceiver.admitted(asked));
  settle(transceiver);
  EXPECT_EQ(asked->getContextCurrentPosition(), 16);
  EXPECT_EQ(prefill_rest(*asked), computed_alone(hub, tokens(0, 18)));
}

TEST_F(CacheTransceiverTest, AMissLeavesTheRequestAsItWas) {
  destination.serve(request(1, tokens(0, 8)));
  const auto asked = request(7, tokens(0, 16));
  destination.add(*asked);
  ASSERT_EQ(asked->getPrepopulatedPromptLen(), 8);
  transceiver.set_source(7, from_source());
  EXPECT_FALSE(transceiver.admitted(asked));
  settle(transceiver);
  EXPECT_EQ(asked->getState(), State::kCONTEXT_INIT);
  EXPECT_EQ(asked->getContextCurrentPosition(), 8);
  EXPECT_EQ(prefill_rest(*asked), computed_alone(hub, tokens(0, 16)));
}

// Its beginning matched, but a fetch may have written to that block before it failed.
TEST_F(CacheTransceiverTest, AfterAFailureABlockThatWasLentIsComputedAgain) {
  destination.serve(request(1, tokens(0, 7)));
  const auto asked = request(7, tokens(0, 16));
  destination.add(*asked);
  ASSERT_EQ(asked->getPrepopulatedPromptLen(), 7);
  transceiver.set_source(7, from_source());
  EXPECT_FALSE(transceiver.admitted(asked));
  settle(transceiver);
  EXPECT_EQ(asked->getContextCurrentPosition(), 4);
  EXPECT_EQ(prefill_rest(*asked), computed_alone(hub, tokens(0, 16)));
}

TEST_F(CacheTransceiverTest, ASourceThatIsGoneOrUnreadableIsNoFailureOfTheRequest) {
  source.serve(request(0, tokens(0, 14)));
  Source gone = from_source();
  source.transceiver.reset();
  Source garbage;
  garbage.state = "no state at all";
  for (const Source &bad : {gone, garbage}) {
    const auto asked = request(7, tokens(0, 14));
    destination.add(*asked);
    transceiver.set_source(7, bad);
    EXPECT_FALSE(transceiver.admitted(asked));
    settle(transceiver);
    EXPECT_EQ(asked->getState(), State::kCONTEXT_INIT);
    EXPECT_EQ(asked->getContextCurrentPosition(), 0);
    destination.manager.removeSequence(7);
  }
  auto again = std::make_unique<Worker>(hub, 16);
  source.transceiver = std::move(again->transceiver);
}

TEST_F(CacheTransceiverTest, AGenerationOnlyRequestGetsItsWholePromptByName) {
  source.serve(request(0, tokens(0, 23)));
  // Whole blocks, and a short one at the head of what the source went on with.
  for (const std::size_t length : {std::size_t{12}, std::size_t{14}, std::size_t{22}}) {
    const auto asked = request(7, tokens(0, length), LLMREQUEST_TYPE_GENERATION_ONLY);
    destination.add(*asked);
    EXPECT_TRUE(transceiver.admitted(asked));
    transceiver.set_source(7, from_source(true));
    transceiver.requestAndReceiveAsync(asked);
    transceiver.requestAndReceiveAsync(asked);  // is under way
    EXPECT_EQ(asked->getState(), State::kDISAGG_GENERATION_TRANS_IN_PROGRESS);
    settle(transceiver);
    EXPECT_EQ(asked->getState(), State::kDISAGG_GENERATION_TRANS_COMPLETE);
    EXPECT_EQ(destination.next_token(*asked), computed_alone(hub, tokens(0, length)));
    destination.manager.removeSequence(7);
  }
}

TEST_F(CacheTransceiverTest, AShortLastBlockThatIsMissingIsComputedHere) {
  source.serve(request(0, tokens(0, 12)));
  const auto asked = request(7, tokens(0, 14), LLMREQUEST_TYPE_GENERATION_ONLY);
  destination.add(*asked);
  transceiver.set_source(7, from_source(true));
  transceiver.requestAndReceiveAsync(asked);
  settle(transceiver);
  EXPECT_EQ(asked->getState(), State::kCONTEXT_INIT);
  EXPECT_EQ(asked->getContextCurrentPosition(), 12);
  EXPECT_EQ(prefill_rest(*asked), computed_alone(hub, tokens(0, 14)));
}

TEST_F(CacheTransceiverTest, ARequiredSourceThatHasTooLittleFailsTheRequestAlone) {
  source.serve(request(0, tokens(0, 9)));
  const auto asked = request(7, tokens(0, 14), LLMREQUEST_TYPE_GENERATION_ONLY);
  destination.add(*asked);
  transceiver.set_source(7, from_source(true));
  transceiver.requestAndReceiveSync(asked);
  EXPECT_EQ(asked->getState(), State::kDISAGG_TRANS_ERROR);
  destination.manager.removeSequence(7);
  // The source goes on serving, where the host's sender may have ended.
  const auto other = request(8, tokens(0, 8), LLMREQUEST_TYPE_GENERATION_ONLY);
  destination.add(*other);
  transceiver.set_source(8, from_source(true));
  transceiver.requestAndReceiveSync(other);
  EXPECT_EQ(other->getState(), State::kDISAGG_GENERATION_TRANS_COMPLETE);
}

TEST_F(CacheTransceiverTest, AnOptionalSourceThatHasTooLittleLeadsToThePair) {
  source.serve(request(0, tokens(0, 14)));
  source.serve(request(1, tokens(0, 8)));
  const auto asked = request(7, tokens(0, 14), LLMREQUEST_TYPE_GENERATION_ONLY);
  asked->setContextPhaseParams({7, paired_source.getSerializedDataTransceiverState()});
  destination.add(*asked);
  Worker poorer(hub, 16);
  poorer.serve(request(2, tokens(0, 6)));
  Source from;
  from.state = poorer.state();
  transceiver.set_source(7, from);
  transceiver.requestAndReceiveAsync(asked);
  settle(transceiver);
  EXPECT_EQ(asked->getState(), State::kDISAGG_GENERATION_TRANS_COMPLETE);
  EXPECT_EQ(destination.next_token(*asked), computed_alone(hub, tokens(0, 14)));
  wait_until([&] { return poorer.live_pins() == 0; });
}

TEST_F(CacheTransceiverTest, RequestsWithoutASourceTakeTheHostsWay) {
  source.serve(request(0, tokens(0, 14)));
  const auto paired_request = request(7, tokens(0, 14), LLMREQUEST_TYPE_GENERATION_ONLY);
  paired_request->setContextPhaseParams({7, paired_source.getSerializedDataTransceiverState()});
  destination.add(*paired_request);
  transceiver.requestAndReceiveAsync(paired_request);
  transceiver.checkGenTransferStatus();
  EXPECT_EQ(paired_request->getState(), State::kDISAGG_GENERATION_TRANS_COMPLETE);
  EXPECT_EQ(destination.next_token(*paired_request), computed_alone(hub, tokens(0, 14)));
  const auto plain = request(8, tokens(100, 14));
  destination.add(*plain);
  EXPECT_TRUE(transceiver.admitted(plain));
  EXPECT_EQ(plain->getState(), State::kCONTEXT_INIT);
  const auto sent = request(9, tokens(200, 5), LLMREQUEST_TYPE_CONTEXT_ONLY);
  transceiver.respondAndSendAsync(sent);
  EXPECT_EQ(transceiver.checkContextTransferStatus(0, true).completedRequestIds.count(9), 1u);
  EXPECT_EQ(transceiver.getSerializedDataTransceiverState(), paired.getSerializedDataTransceiverState());
  EXPECT_FALSE(transceiver.hasPoisonedTransferBuffer());
  host::Transceiver without(nullptr, destination.mirror, *destination.transceiver);
  EXPECT_THROW(without.respondAndSendAsync(sent), kvhints::Error);
  EXPECT_TRUE(without.checkGenTransferComplete());
}

// Salted prompts: the host's receiver leaves the salt out of its key, and finds nothing.
TEST_F(CacheTransceiverTest, ASaltedPromptIsFoundByNameAndNotByTheHostsKey) {
  const auto salted = [](std::uint64_t id, host::upstream::LlmRequestType type) {
    const auto asked = request(id, tokens(0, 14), type);
    asked->setCacheSalt("tenant");
    return asked;
  };
  source.serve(salted(0, host::upstream::LLMREQUEST_TYPE_CONTEXT_AND_GENERATION));
  const auto by_key = salted(7, LLMREQUEST_TYPE_GENERATION_ONLY);
  by_key->setContextPhaseParams({7, paired_source.getSerializedDataTransceiverState()});
  destination.add(*by_key);
  transceiver.requestAndReceiveAsync(by_key);
  settle(transceiver);
  EXPECT_EQ(by_key->getState(), State::kDISAGG_TRANS_ERROR);
  destination.manager.removeSequence(7);
  const auto by_name = salted(8, LLMREQUEST_TYPE_GENERATION_ONLY);
  destination.add(*by_name);
  transceiver.set_source(8, from_source(true));
  transceiver.requestAndReceiveAsync(by_name);
  settle(transceiver);
  EXPECT_EQ(by_name->getState(), State::kDISAGG_GENERATION_TRANS_COMPLETE);
}

TEST_F(CacheTransceiverTest, AnAdaptersBlocksTravelOnlyUnderItsDigest) {
  const auto adapted = [](std::uint64_t id) {
    const auto asked = request(id, tokens(0, 14));
    asked->setLoraTaskId(3);
    return asked;
  };
  source.serve(adapted(0));
  const auto asked = adapted(7);
  destination.add(*asked);
  transceiver.set_source(7, from_source());
  EXPECT_FALSE(transceiver.admitted(asked));
  settle(transceiver);
  EXPECT_EQ(asked->getContextCurrentPosition(), 0) << "a number of this worker's means nothing there";
}

TEST_F(CacheTransceiverTest, ACancelledRequestsBlocksAreGivenAwayAtOnce) {
  source.serve(request(0, tokens(0, 14)));
  for (int round = 0; round < 20; ++round) {
    const auto asked = request(7, tokens(0, 14));
    destination.add(*asked);
    transceiver.set_source(7, from_source());
    EXPECT_FALSE(transceiver.admitted(asked));
    EXPECT_TRUE(transceiver.cancelRequest(asked));
    EXPECT_TRUE(transceiver.checkGenTransferComplete());
    destination.manager.removeSequence(7);
    // The next one may get the same blocks.
    const auto next = request(8, tokens(0, 14));
    destination.add(*next);
    transceiver.set_source(8, from_source());
    EXPECT_FALSE(transceiver.admitted(next));
    settle(transceiver);
    EXPECT_EQ(next->getContextCurrentPosition(), 12);
    destination.manager.removeSequence(8);
  }
}

TEST_F(CacheTransceiverTest, ARequestWaitsUntilPeersHaveReadTheBlockThatItTakesOver) {
  destination.serve(request(0, tokens(0, 8)));
  std::vector<std::int32_t> other = tokens(0, 9);
  other[6] = 77;
  const auto asked = request(7, other);
  {
    const auto read = destination.mirror.pin(BlockKey(tokens(0, 8)));
    ASSERT_TRUE(read);
    destination.add(*asked);
    ASSERT_EQ(asked->getPrepopulatedPromptLen(), 6);
    EXPECT_FALSE(transceiver.admitted(asked));
    transceiver.checkGenTransferStatus(0);
    EXPECT_EQ(asked->getState(), State::kDISAGG_GENERATION_TRANS_IN_PROGRESS);
  }
  settle(transceiver);
  EXPECT_EQ(asked->getState(), State::kCONTEXT_INIT);
  EXPECT_EQ(asked->getContextCurrentPosition(), 6) << "with what matched";
}

TEST_F(CacheTransceiverTest, SwitchedOffOptionalSourcesAreIgnoredAndRequiredOnesAreNot) {
  source.serve(request(0, tokens(0, 14)));
  transceiver.set_fetching(false);
  const auto asked = request(7, tokens(0, 14));
  destination.add(*asked);
  transceiver.set_source(7, from_source());
  EXPECT_TRUE(transceiver.admitted(asked));
  EXPECT_EQ(asked->getContextCurrentPosition(), 0);
  const auto required = request(8, tokens(0, 14), LLMREQUEST_TYPE_GENERATION_ONLY);
  destination.add(*required);
  transceiver.set_source(8, from_source(true));
  transceiver.requestAndReceiveAsync(required);
  transceiver.checkGenTransferStatus();
  EXPECT_EQ(required->getState(), State::kDISAGG_GENERATION_TRANS_COMPLETE);
}

// Two ranks of a worker, each with its own part of every block; one of the source's ranks has lost some.
TEST_F(CacheTransceiverTest, RanksGoOnWithWhatAllOfThemHave) {
  std::vector<std::unique_ptr<Worker>> sources, destinations;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    sources.push_back(std::make_unique<Worker>(hub, 16, 0, rank, 2));
    destinations.push_back(std::make_unique<Worker>(hub, 16, 0, rank, 2));
    sources.back()->serve(request(0, tokens(0, 14)));
    sources.back()->serve(request(1, tokens(300, 14)));
  }
  for (const auto *workers : {&sources, &destinations}) {
    std::vector<std::string> entries;
    for (const auto &each : *workers) {
      entries.emplace_back(each->transceiver->rank_entry().text());
    }
    for (const auto &each : *workers) {
      each->transceiver->set_state(entries);
    }
  }
  const auto lost = sources[1]->mirror.pin(BlockKey(tokens(300, 12)))->range.ids();
  EXPECT_EQ(sources[1]->mirror.tree().evict(lost[1]), KVH_OK);

  const kvhints::LocalGroup group(2);
  std::int32_t positions[2][3] = {};
  bool is_right[2] = {};
  const auto run = [&](std::uint32_t rank) {
    Worker &here = *destinations[rank];
    kvhints::Communicator ranks(here.context, group, rank, kvhints::sized<kvh_communicator_params_t>());
    host::Transceiver with(nullptr, here.mirror, *here.transceiver, FetchOptions{}, &ranks);
    // One that takes a leaf over, one that all have, one that rank 1 gets a part of.
    here.serve(request(5, tokens(900, 7)));
    const std::vector<RequestPtr> all = {request(6, tokens(900, 8)), request(7, tokens(0, 14)), request(8, tokens(300, 14))};
    for (const auto &asked : all) {
      here.add(*asked);
      if (asked->mRequestId != 6) {
        Source from;
        from.state = sources[rank]->state();
        with.set_source(asked->mRequestId, from);
      }
      EXPECT_FALSE(with.admitted(asked));
      with.checkGenTransferStatus(0);
    }
    with.checkGenTransferStatus();
    for (std::size_t at = 0; at < 3; ++at) {
      EXPECT_EQ(all[at]->getState(), State::kCONTEXT_INIT);
      positions[rank][at] = all[at]->getContextCurrentPosition();
    }
    here.compute(*all[2], static_cast<std::size_t>(positions[rank][2]));
    Worker alone(hub, 16, 0, rank, 2);
    is_right[rank] = here.next_token(*all[2]) == alone.serve(request(0, tokens(300, 14)));
    ranks.close();
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  EXPECT_THAT(positions[0], testing::ElementsAre(7, 12, 4));
  EXPECT_THAT(positions[1], testing::ElementsAre(7, 12, 4));
  EXPECT_TRUE(is_right[0] && is_right[1]);
  for (const auto &each : sources) {
    wait_until([&] { return each->live_pins() == 0; });
  }
}

}  // namespace
