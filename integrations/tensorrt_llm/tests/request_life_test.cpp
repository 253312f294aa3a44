// Whole lives of requests in a stand-in executor with the adapter in it, on two workers: a hint is admitted,
// planned and acted on, blocks come from the other worker's tree, are stored, served on and evicted. Each
// step of the switch-over gives the same tokens as none, and can be turned back.
#include "executor.hpp"

#include <gmock/gmock.h>

namespace {

using namespace executor;
using worker::request;
using worker::tokens;

std::string binding_table(const std::string &endpoint) {
  return R"({"version": 1, "bindings": [{"id": "peers", "family": "trtllm", "addressing": "content_named",
             "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["model@7"]}],
             "endpoints": [{"endpoint": ")" +
         endpoint + R"(", "bindings": ["peers"]}]})";
}

// What a router writes that has heard of these blocks.
std::string hint(const std::string &endpoint, const std::vector<std::int32_t> &prompt) {
  std::string list;
  for (const std::uint64_t hash : kvhints::Sequence(model::tokens_per_block, prompt, model::name).block_hashes()) {
    list += (list.empty() ? "" : ",") + std::to_string(hash);
  }
  return R"({"protocol_version": "0.1", "message_id": "m", "actions": [{"action_id": "a", "action_type": "kv.fetch",
             "action_version": "1.0", "payload": {"source_control_endpoint": ")" +
         endpoint + R"(", "block_hashes": [)" + list + "]}}]}";
}

constexpr Steps all{true, true, true, true, true};
constexpr std::int32_t block_count = 24;
constexpr std::int32_t new_tokens = 6;

struct RequestLifeTest : testing::Test {
  kvhints::Context context;
  kvhints::Loopback hub{context};
  Executor a{hub, block_count, "{\"version\": 1, \"bindings\": [], \"endpoints\": []}", Steps{true, true}};
  Executor b{hub, block_count, binding_table(a.endpoint()), all};
  Executor alone{hub, block_count, "", Steps{}};

  void SetUp() override { b.allow(a.endpoint()); }

  static worker::RequestPtr ask(std::uint64_t id, const std::vector<std::int32_t> &prompt,
                                host::upstream::LlmRequestType type = host::upstream::LLMREQUEST_TYPE_CONTEXT_AND_GENERATION) {
    return request(id, prompt, type, new_tokens);
  }
  std::vector<std::int32_t> served_by(Executor &with, const std::vector<std::int32_t> &prompt) {
    with.submit({ask(1, prompt), "", ""});
    return with.run().at(1).output;
  }
  // On B, with a hint that A has it. Expects the tokens that a worker without kvhints gives.
  Finished hinted(std::uint64_t id, const std::vector<std::int32_t> &prompt) {
    b.submit({ask(id, prompt), hint(a.endpoint(), prompt), ""});
    const Finished finished = b.run().at(id);
    EXPECT_EQ(finished.output, served_by(alone, prompt));
    return finished;
  }
  static std::string metric(Executor &of, const std::string &line) {
    const std::string text = of.at().context.metrics();
    const auto found = text.find("\n" + line + " ");
    return found == std::string::npos ? "none" : text.substr(found + line.size() + 2, text.find('\n', found + 1) - found - line.size() - 2);
  }
  void TearDown() override {
    for (Executor *each : {&a, &b}) {
      worker::wait_until([&] { return each->at().live_pins() == 0; });
      each->at().manager.refreshBlocks();
      EXPECT_EQ(each->at().manager.getNumFreeBlocks(), block_count) << "every block is back";
    }
  }
};

TEST_F(RequestLifeTest, AHintBringsThePromptsBlocksFromTheOtherWorker) {
  const auto prompt = tokens(0, 18);
  const auto first = served_by(a, prompt);
  const Finished finished = hinted(2, prompt);
  EXPECT_EQ(finished.output, first);
  EXPECT_EQ(finished.prepopulated, 16) << "fetched, and not computed";
  EXPECT_EQ(b.planned(), 1u);
  EXPECT_EQ(metric(b, "kvhints_prefetch_blocks_total"), "4");
  EXPECT_EQ(metric(a, "kvhints_source_requests_served_total"), "1");
  // It is B's now: the next such request finds all of it here, the hint changes nothing.
  EXPECT_EQ(hinted(3, prompt).prepopulated, 17);
  EXPECT_EQ(metric(a, "kvhints_source_requests_served_total"), "1");
  // And a third worker may have it from B.
  Executor c(hub, block_count, binding_table(b.endpoint()), all);
  c.allow(b.endpoint());
  c.submit({ask(4, prompt), hint(b.endpoint(), prompt), ""});
  const auto third = c.run();
  EXPECT_EQ(third.at(4).output, first);
  EXPECT_EQ(third.at(4).prepopulated, 16);
}

TEST_F(RequestLifeTest, WhatWasGeneratedIsFetchedTooWhenTheConversationGoesOn) {
  auto prompt = tokens(0, 18);
  const auto answer = served_by(a, prompt);
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.push_back(77);
  EXPECT_EQ(hinted(2, prompt).prepopulated, 20) << "24 tokens, of which the last's KV was never computed";
}

TEST_F(RequestLifeTest, BadHintsStaleHintsAndForeignEndpointsAreNoHints) {
  const auto prompt = tokens(0, 18);
  served_by(a, prompt);
  const std::string good = hint(a.endpoint(), prompt);
  const std::string foreign = hint("http://127.0.0.2:1/v1/data_transceiver_state", prompt);
  std::uint64_t id = 10;
  for (const std::string &raw : {good.substr(0, good.size() / 2), std::string("{}"), std::string("null"), foreign}) {
    const auto fresh = tokens(static_cast<std::int32_t>(id) * 100, 18);
    b.submit({ask(id, fresh), raw, ""});
    const auto finished = b.run().at(id);
    EXPECT_EQ(finished.output, served_by(alone, fresh));
    EXPECT_EQ(finished.prepopulated, 0);
    ++id;
  }
  EXPECT_EQ(b.planned(), 0u);
  // A has evicted it since.
  const auto gone = tokens(5000, 18);
  EXPECT_EQ(hinted(30, gone).prepopulated, 0);
  EXPECT_EQ(b.planned(), 1u);
}

TEST_F(RequestLifeTest, AGenerationOnlyRequestNamesAWorkerByItsState) {
  const auto prompt = tokens(0, 18);
  const auto first = served_by(a, prompt);
  b.submit({ask(2, prompt, host::upstream::LLMREQUEST_TYPE_GENERATION_ONLY), "", a.at().state()});
  b.submit({ask(3, tokens(900, 18), host::upstream::LLMREQUEST_TYPE_GENERATION_ONLY), "", a.at().state()});
  const auto finished = b.run();
  EXPECT_FALSE(finished.at(2).is_error);
  EXPECT_EQ(finished.at(2).output, first);
  EXPECT_TRUE(finished.at(3).is_error) << "nobody has that prompt, and B was not asked to compute it";
}

// As many requests as go through both workers' memory many times over.
TEST_F(RequestLifeTest, BlocksAreEvictedAndTheTokensStayRight) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int32_t at = 0; at < 30; ++at) {
    auto prompt = tokens(at % 5 * 1000, 10 + static_cast<std::size_t>(at % 7));
    prompt.push_back(at % 3);
    prompts.push_back(prompt);
  }
  for (std::uint64_t round = 0; round < 2; ++round) {
    for (std::uint64_t at = 0; at < prompts.size(); ++at) {
      a.submit({ask(100 * round + at, prompts[at]), "", ""});
      b.submit({ask(100 * round + at, prompts[at]), hint(a.endpoint(), prompts[at]), ""});
      if (at % 4 == 3) {
        a.run();
        for (const auto &[id, finished] : b.run()) {
          EXPECT_EQ(finished.output, served_by(alone, prompts[id % 100])) << "request " << id;
        }
      }
    }
    b.run();
    a.run();
  }
  EXPECT_GT(std::stoi(metric(b, "kvhints_prefetch_blocks_total")), 20) << "or this shows little";
}

// The switch-over: each of its steps, forwards and backwards, while requests go on.
TEST_F(RequestLifeTest, EachStepCanBeTakenAndTurnedBack) {
  const Steps steps[] = {
      {},
      {true, false, false, false, false},
      {true, true, false, false, false},
      {true, true, true, false, false},
      {true, true, true, true, false},
      {true, true, true, true, true},
  };
  std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0, 5, 0};
  std::uint64_t id = 100;
  for (const std::size_t step : order) {
    b.turn(steps[step]);
    const auto prompt = tokens(static_cast<std::int32_t>(id) * 50, 18);
    served_by(a, prompt);
    const auto served_before = metric(a, "kvhints_source_requests_served_total");
    const std::size_t planned_before = b.planned();
    const Finished finished = hinted(++id, prompt);
    EXPECT_EQ(b.planned(), planned_before + (step >= 3 ? 1 : 0)) << "step " << step;
    EXPECT_EQ(finished.prepopulated, step >= 4 ? 16 : 0) << "step " << step;
    EXPECT_EQ(metric(a, "kvhints_source_requests_served_total") != served_before, step >= 4) << "step " << step;
    const auto matched = b.at().mirror.match(*request(999, prompt));
    EXPECT_EQ(matched, step >= 1 ? 17u : 0u) << "step " << step;
    // The host's own way from worker to worker works in all of them.
    const auto paired = ask(++id, prompt, host::upstream::LLMREQUEST_TYPE_GENERATION_ONLY);
    paired->setContextPhaseParams({id, a.paired().getSerializedDataTransceiverState()});
    b.submit({paired, "", ""});
    const auto from_pair = b.run();
    EXPECT_EQ(from_pair.at(id).output, finished.output) << "step " << step;
    ++id;
  }
}

// Fetches under way when the step is turned back come to their end first.
TEST_F(RequestLifeTest, TurnedBackWhileAFetchIsUnderWay) {
  const auto prompt = tokens(0, 18);
  const auto first = served_by(a, prompt);
  b.submit({ask(2, prompt), hint(a.endpoint(), prompt), ""});
  b.iterate();
  b.turn({});
  const auto finished = b.run();
  EXPECT_EQ(finished.at(2).output, first);
}

}  // namespace
