// A stand-in for the executor's loop, with the adapter wired in: how a host uses it, step by step. What the
// adapter adds is between lines of the host's own; each step can be turned on and off between iterations.
#pragma once

#include "worker.hpp"

#include <deque>
#include <map>

namespace executor {

using host::State;
using worker::RequestPtr;
using worker::Worker;

// How far the host has switched over.
struct Steps {
  bool mirror = false;   // the tree hears of what is stored
  bool serve = false;    // and peers may fetch from it
  bool plan = false;     // hints are admitted and planned, and travel to all ranks
  bool fetch = false;    // and are acted on
  bool receive = false;  // generation-only requests may name a source of their own
};

// One request as it comes in, with a router's hint, or with the state of a worker that has its prompt.
struct Incoming {
  RequestPtr request;
  std::string hint;
  std::string source_state;
};

struct Finished {
  std::vector<std::int32_t> output;
  std::int32_t prepopulated;
  bool is_error;
};

class Executor {
 public:
  // hub: how workers of this test reach each other. binding_table: from where hints may have blocks fetched.
  Executor(const kvhints::Loopback &hub, std::int32_t blocks, std::string binding_table, Steps steps)
      : hub_(hub), worker_(hub, blocks), paired_(&worker_.manager), binding_table_(std::move(binding_table)) {
    worker_.transceiver.reset();
    worker_.policy->set_mirror(nullptr);
    worker_.mirror.set_mirroring(false);
    const kvhints::LocalGroup group(1);
    communicator_.emplace(worker_.context, group, 0, kvhints::sized<kvh_communicator_params_t>());
    turn(steps);
  }

  Worker &at() { return worker_; }
  // Requests whose hint led to a planned fetch.
  std::size_t planned() const { return planned_; }
  // Endpoints from which the transfer itself may fetch; a list of its own, beside the binding table.
  void allow(const std::string &endpoint) {
    allowed_.push_back(endpoint);
    if (worker_.transceiver) {
      worker_.transceiver->allow(endpoint, {"127.0.0.0/8"});
    }
  }
  host::upstream::CacheTransceiver &paired() { return paired_; }
  // Where this worker's state is told to others; it serves.
  std::string endpoint() {
    return "http://127.0.0.1:" + std::to_string(port_) + "/v1/data_transceiver_state";
  }

  // To these steps, in whatever order. Requests that run go on: their fetches come to an end first, because
  // the transceiver that moves them is about to go.
  void turn(Steps steps) {
    if (transceiver_) {
      transceiver_->checkGenTransferStatus();
    }
    const bool needs_transceiver = steps.serve || steps.fetch || steps.receive;
    if (transceiver_ && !needs_transceiver) {
      transceiver_.reset();
      worker_.transceiver.reset();
    }
    worker_.mirror.set_mirroring(steps.mirror);
    // Pins of peers' requests are over when the transceiver is gone.
    const bool is_arbiter = worker_.policy->set_mirror(steps.mirror || needs_transceiver ? &worker_.mirror : nullptr);
    EXPECT_TRUE(is_arbiter);
    if (!transceiver_ && needs_transceiver) {
      start_transceiver();
    }
    if (steps.plan && !hints_) {
      hints_.emplace(worker_.context, worker_.mirror.naming(), kvhints::BindingTable(binding_table_), "trtllm");
    }
    if (!steps.plan) {
      hints_.reset();
    }
    if (transceiver_) {
      transceiver_->set_fetching(steps.fetch);
    }
    steps_ = steps;
  }

  void submit(Incoming incoming) { incoming_.push_back(std::move(incoming)); }

  // All that was submitted, to its end.
  std::map<std::uint64_t, Finished> run() {
    std::map<std::uint64_t, Finished> all;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!incoming_.empty() || !waiting_.empty() || !active_.empty()) {
      iterate();
      for (auto &[id, finished] : finished_) {
        all[id] = std::move(finished);
      }
      finished_.clear();
      if (std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "an executor waited in vain";
        break;
      }
    }
    return all;
  }

  void iterate() {
    fetch_new_requests();
    add_sequences();
    check_transfers();
    forward();
    worker_.manager.refreshBlocks();
  }

 private:
  void start_transceiver() {
    const std::uint32_t heads[] = {2, 2};
    auto params = worker_.mirror.transceiver_params(worker_.pool().data(), model::block_bytes);
    params.transport = KVH_TRANSPORT_LOOPBACK;
    params.loopback = hub_.get();
    params.kv_heads_per_layer = heads;
    params.layer_count = 2;
    params.head_size = 8;
    params.data_type = KVH_DATA_BFLOAT16;
    params.attention = KVH_ATTENTION_KEYS_AND_VALUES;
    worker_.transceiver = std::make_unique<kvhints::Transceiver>(worker_.context, worker_.mirror.tree(), params);
    port_ = worker_.transceiver->serve_http("127.0.0.1", 0);
    for (const std::string &allowed : allowed_) {
      worker_.transceiver->allow(allowed, {"127.0.0.0/8"});
    }
    transceiver_.emplace(&paired_, worker_.mirror, *worker_.transceiver);
  }

  // Rank 0 judges and decides; every rank gets the decisions with the new requests.
  void fetch_new_requests() {
    if (incoming_.empty()) {
      return;
    }
    if (!hints_) {
      for (Incoming &each : incoming_) {
        set_source(each, nullptr);
      }
    } else {
      kvhints::Batch mine;
      for (const Incoming &each : incoming_) {
        const kvhints::Snapshot hint =
            each.hint.empty() ? kvhints::Snapshot() : hints_->admit(kvhints::Ingress::trusted, each.hint);
        const auto plan = hints_->decide(*each.request, hint);
        auto entry = kvhints::sized<kvh_batch_request_t>();
        entry.id = each.request->mRequestId;
        entry.snapshot = hint.get();
        entry.plan = plan.get();
        kvhints::check(kvh_batch_add(mine.get(), &entry));
      }
      const auto batch = std::make_shared<const kvhints::Batch>(communicator_->broadcast(std::move(mine)));
      for (std::size_t at = 0; at < incoming_.size(); ++at) {
        const auto plan = kvhints::trtllm::plan_of(batch, at);
        planned_ += plan != nullptr ? 1 : 0;
        set_source(incoming_[at], plan);
      }
    }
    for (Incoming &each : incoming_) {
      waiting_.push_back(std::move(each.request));
    }
    incoming_.clear();
  }
  void set_source(Incoming &incoming, std::shared_ptr<const kvh_plan_t> plan) {
    if (!transceiver_) {
      return;
    }
    kvhints::trtllm::Source source;
    source.plan = std::move(plan);
    if (steps_.receive) {
      source.state = incoming.source_state;
      source.is_required = !source.state.empty();
    }
    transceiver_->set_source(incoming.request->mRequestId, std::move(source));
  }

  // As many as there are blocks for.
  void add_sequences() {
    while (!waiting_.empty()) {
      const RequestPtr request = waiting_.front();
      const auto needed = (request->getPromptLen() + request->mMaxNewTokens) / model::tokens_per_block + 2;
      if (worker_.manager.getNumFreeBlocks() < needed) {
        return;
      }
      waiting_.pop_front();
      worker_.add(*request);
      active_.push_back(request);
      if (request->getState() == State::kDISAGG_GENERATION_INIT) {
        transceiver_ ? transceiver_->requestAndReceiveAsync(request) : paired_.requestAndReceiveAsync(request);
      } else if (transceiver_) {
        transceiver_->admitted(request);
      }
    }
  }

  void check_transfers() {
    transceiver_ ? transceiver_->checkGenTransferStatus(0) : paired_.checkGenTransferStatus(0);
  }

  // One step of every request that is schedulable.
  void forward() {
    for (auto at = active_.begin(); at != active_.end();) {
      worker::Request &request = **at;
      switch (request.getState()) {
        case State::kCONTEXT_INIT:
          prefill(request);
          break;
        case State::kDISAGG_GENERATION_TRANS_COMPLETE:
          begin_generation(request);
          break;
        case State::kGENERATION_IN_PROGRESS:
          decode(request);
          break;
        default:
          break;
      }
      const bool is_error = request.getState() == State::kDISAGG_TRANS_ERROR;
      if (is_error || request.getState() == State::kGENERATION_COMPLETE) {
        finish(request, is_error);
        at = active_.erase(at);
      } else {
        ++at;
      }
    }
  }
  void prefill(worker::Request &request) {
    worker_.compute(request, static_cast<std::size_t>(request.getContextCurrentPosition()));
    begin_generation(request);
    worker_.manager.storeContextBlocks(request);
    worker_.mirror.store(request);
  }
  void begin_generation(worker::Request &request) {
    request.setContextCurrentPosition(request.getPromptLen());
    request.setState(State::kGENERATION_IN_PROGRESS);
    append(request);
  }
  void decode(worker::Request &request) {
    worker_.manager.addToken(request.mRequestId);
    worker_.compute(request, static_cast<std::size_t>(request.getNumTokens(0)) - 1);
    worker_.manager.storeNewBlock(request);
    append(request);
  }
  void append(worker::Request &request) {
    request.addNewToken(worker_.next_token(request), 0);
    if (request.getNumTokens(0) >= request.getPromptLen() + request.mMaxNewTokens) {
      request.setState(State::kGENERATION_COMPLETE);
    }
  }
  void finish(worker::Request &request, bool is_error) {
    const auto &all = request.getTokens(0);
    finished_[request.mRequestId] = {{all.begin() + request.getPromptLen(), all.end()},
                                     request.getPrepopulatedPromptLen(), is_error};
    if (is_error) {
      // What its blocks hold is nobody's.
      worker_.manager.removeSequence(request.mRequestId);
    } else {
      worker_.manager.removeSequence(request.mRequestId, request);
      worker_.mirror.store(request);
    }
  }

  const kvhints::Loopback &hub_;
  Worker worker_;
  host::upstream::CacheTransceiver paired_;
  std::string binding_table_;
  Steps steps_;
  std::vector<std::string> allowed_;
  std::uint16_t port_ = 0;
  std::optional<kvhints::Communicator> communicator_;
  std::optional<kvhints::trtllm::Hints> hints_;
  std::optional<host::Transceiver> transceiver_;
  std::vector<Incoming> incoming_;
  std::deque<RequestPtr> waiting_;
  std::vector<RequestPtr> active_;
  std::map<std::uint64_t, Finished> finished_;
  std::size_t planned_ = 0;
};

}  // namespace executor
