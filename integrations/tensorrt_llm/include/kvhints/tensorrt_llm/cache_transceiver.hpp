// The host's cache transceiver, with a second way to get blocks: by content name, from whichever worker a
// plan or a state names. Requests without such a source take the host's own way, as before.
//
// Guards that a request is not scheduled while its blocks may still be written, or read by a peer under
// their old names; that all ranks go on with the same number of tokens; and that whatever goes wrong with
// an optional source leaves the request where it would be without one.
//
// All calls come from the executor's thread, and with several ranks from all of them: the same requests in
// the same order, and checkGenTransferStatus in the same iterations.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_CACHE_TRANSCEIVER_HPP
#define KVHINTS_TENSORRT_LLM_CACHE_TRANSCEIVER_HPP

#include "reuse_mirror.hpp"

#include <chrono>
#include <map>
#include <memory>
#include <thread>

namespace kvhints::trtllm {

// Where a request's blocks may come from: a plan, a state, or neither.
struct Source {
  std::shared_ptr<const kvh_plan_t> plan;
  // The source worker's state as its kvh_transceiver_state gave it, in place of what an endpoint says.
  std::string state;
  // A generation-only request fails without all whole blocks of its prompt; others always go on.
  bool is_required = false;
  std::uint32_t attention_data_rank = 0;

  bool names_something() const noexcept { return plan != nullptr || !state.empty(); }
};

// Zeros are the library's defaults.
struct FetchOptions {
  // Of context requests.
  Policy policy = Policy::best_effort;
  std::uint64_t metadata_deadline_ns = 0;
  std::uint64_t transfer_deadline_ns = 0;
  std::uint64_t abandonment_deadline_ns = 0;
  // How long a fetch that finds its blocks or its places taken tries again.
  std::chrono::milliseconds begin_patience{1000};
};

template <typename Host>
class CacheTransceiver : public Host::BaseCacheTransceiver {
 public:
  using LlmRequest = typename Host::LlmRequest;
  using State = typename Host::LlmRequestState;
  using RequestId = typename LlmRequest::RequestIdType;
  using RequestPtr = std::shared_ptr<LlmRequest>;
  using RequestStatuses = typename Host::RequestStatuses;

  // paired: the host's own transceiver, or NULL. communicator: of the ranks that share requests, or NULL for
  // one rank; its agreements are this object's. All of them outlive it.
  CacheTransceiver(typename Host::BaseCacheTransceiver *paired, ReuseMirror<Host> &mirror, const Transceiver &transceiver,
                   FetchOptions options = {}, Communicator *communicator = nullptr)
      : paired_(paired), mirror_(mirror), transceiver_(transceiver), options_(options), communicator_(communicator) {}

  // Off: optional sources are ignored from now on; fetches that run come to their end.
  void set_fetching(bool is_fetching) noexcept { is_fetching_ = is_fetching; }

  // Where a request's blocks may come from; said before the two calls below, on all ranks.
  void set_source(RequestId request_id, Source source) { sources_[request_id] = std::move(source); }

  // Call for every request right after the host gave it blocks (addSequenceBatch), on all ranks. True: go on
  // with it as ever. False: it is in kDISAGG_GENERATION_TRANS_IN_PROGRESS, which is not scheduled, until
  // checkGenTransferStatus puts it back with what has arrived.
  bool admitted(const RequestPtr &request) { return request->isGenerationOnlyRequest() || !start(request); }

  // A generation-only request, after addSequenceBatch: by name where it has a source, else from its pair. One
  // that is under way already is left alone.
  void requestAndReceiveAsync(RequestPtr request) override {
    const typename Host::Range range("requestAndReceiveAsync");
    if (find(request->mRequestId) == attempts_.end() && !start(request)) {
      pair().requestAndReceiveAsync(std::move(request));
    }
  }
  void requestAndReceiveSync(RequestPtr request) override {
    if (!start(request)) {
      pair().requestAndReceiveSync(std::move(request));
      return;
    }
    while (find(request->mRequestId) != attempts_.end()) {
      check_own();
      std::this_thread::yield();
    }
    if (paired_ != nullptr) {
      paired_->checkGenTransferStatus(std::nullopt);
    }
  }

  // What is here is looked at once, what has arrived becomes the request's, and requests that are done get
  // their next state. Never waits for a transfer, but without a number, when it waits for all of them. With
  // ranks: once an iteration, on all of them.
  void checkGenTransferStatus(const std::optional<int> &at_least_request_num = std::nullopt) override {
    const typename Host::Range range("checkGenTransferStatus");
    check_own();
    while (!at_least_request_num && !attempts_.empty()) {
      std::this_thread::yield();
      check_own();
    }
    if (paired_ != nullptr) {
      paired_->checkGenTransferStatus(at_least_request_num);
    }
  }
  bool checkGenTransferComplete() const override {
    return attempts_.empty() && (paired_ == nullptr || paired_->checkGenTransferComplete());
  }

  // True: the request's blocks may be given away.
  bool cancelRequest(RequestPtr request) override {
    sources_.erase(request->mRequestId);
    const auto attempt = find(request->mRequestId);
    if (attempt != attempts_.end()) {
      // Afterwards the library touches no block of it.
      attempts_.erase(attempt);
      return true;
    }
    return paired_ == nullptr || paired_->cancelRequest(std::move(request));
  }

  // The host's own ways.
  void respondAndSendAsync(RequestPtr request) override { pair().respondAndSendAsync(std::move(request)); }
  void respondAndSendLayerWise(const typename Host::RequestVector &requests,
                               const std::shared_ptr<typename Host::ContextProgress> &progress) override {
    pair().respondAndSendLayerWise(requests, progress);
  }
  RequestStatuses checkContextTransferStatus(const std::optional<int> &at_least_request_num = std::nullopt,
                                             bool mark_complete = false) override {
    return paired_ == nullptr ? RequestStatuses{} : paired_->checkContextTransferStatus(at_least_request_num, mark_complete);
  }
  std::vector<char> getSerializedDataTransceiverState() const override {
    return paired_ == nullptr ? std::vector<char>{} : paired_->getSerializedDataTransceiverState();
  }
  bool hasPoisonedTransferBuffer() const override { return paired_ != nullptr && paired_->hasPoisonedTransferBuffer(); }

 private:
  struct Attempt {
    RequestPtr request;
    Source source;
    State state_before{};
    // The first block that is fetched, or written.
    std::size_t first_block = 0;
    // Tokens whose KV is this request's, as far as this rank is concerned.
    std::size_t usable_tokens = 0;
    std::chrono::steady_clock::time_point begin_until;
    std::optional<Prefetch> prefetch;
    bool is_over = false;
  };

  std::size_t tokens_per_block() const noexcept { return mirror_.naming().tokens_per_block; }
  typename Host::BaseCacheTransceiver &pair() {
    if (paired_ == nullptr) {
      throw Error(KVH_ERR_UNSUPPORTED, "there is no transceiver of the host's for requests without a source");
    }
    return *paired_;
  }

  typename std::vector<std::unique_ptr<Attempt>>::iterator find(RequestId request_id) {
    return std::find_if(attempts_.begin(), attempts_.end(),
                        [&](const auto &attempt) { return attempt->request->mRequestId == request_id; });
  }

  // Whether the request has to wait for blocks: those that it fetches, or those that a peer still reads.
  bool start(const RequestPtr &request) {
    Source source = take_source(request->mRequestId);
    const auto prepopulated = static_cast<std::size_t>(request->getPrepopulatedPromptLen());
    const std::size_t whole_blocks = prepopulated / tokens_per_block();
    const bool is_writable = mirror_.will_write(request->mRequestId, whole_blocks);
    // Ranks decide alike: by what the host told all of them, and not by who reads here.
    const bool may_write_now = communicator_ == nullptr ? is_writable : prepopulated % tokens_per_block() == 0;
    if (!source.names_something() && may_write_now) {
      return false;
    }
    auto attempt = std::make_unique<Attempt>();
    attempt->request = request;
    attempt->source = std::move(source);
    attempt->state_before = request->getState();
    attempt->first_block = whole_blocks;
    attempt->usable_tokens = prepopulated;
    attempt->begin_until = std::chrono::steady_clock::now() + options_.begin_patience;
    request->setState(State::kDISAGG_GENERATION_TRANS_IN_PROGRESS);
    advance(*attempt);
    attempts_.push_back(std::move(attempt));
    return true;
  }
  Source take_source(RequestId request_id) {
    const auto found = sources_.find(request_id);
    Source source;
    if (found != sources_.end()) {
      source = std::move(found->second);
      sources_.erase(found);
    }
    return is_fetching_ || source.is_required ? source : Source{};
  }

  void check_own() {
    for (const auto &attempt : attempts_) {
      advance(*attempt);
    }
    if (communicator_ == nullptr) {
      settle_those_over();
    } else {
      agree();
    }
  }

  // One step: blocks that a peer reads, the fetch, its end.
  void advance(Attempt &attempt) {
    if (attempt.is_over) {
      return;
    }
    if (!attempt.prefetch) {
      if (mirror_.will_write(attempt.request->mRequestId, attempt.first_block)) {
        begin(attempt);
      }
      return;
    }
    attempt.is_over = is_over(*attempt.prefetch) && attempt.prefetch->is_quiesced();
    if (!attempt.is_over) {
      return;
    }
    const kvh_prefetch_outcome_t outcome = attempt.prefetch->outcome().value();
    if (outcome.kind == KVH_OUTCOME_DELIVERED && attempt.prefetch->claim() == outcome.block_count) {
      attempt.usable_tokens = outcome.token_end;
    }
  }

  void begin(Attempt &attempt) {
    const LlmRequest &request = *attempt.request;
    const auto sequence =
        attempt.source.names_something()
            ? sequence_of_request(mirror_.naming(), request, static_cast<std::size_t>(request.getPromptLen()))
            : std::nullopt;
    if (!sequence) {
      attempt.is_over = true;
      return;
    }
    const std::vector<std::int32_t> slots = mirror_.slots(request.mRequestId, attempt.first_block);
    auto params = sized<kvh_prefetch_params_t>();
    // What a generation-only request needs is judged by tokens, when all ranks agree.
    params.policy =
        static_cast<std::uint32_t>(request.isGenerationOnlyRequest() ? Policy::best_effort : options_.policy);
    params.source_attention_data_rank = attempt.source.attention_data_rank;
    params.plan = attempt.source.plan.get();
    params.sequence = sequence->get();
    params.source_state = borrow(as_bytes(attempt.source.state));
    params.first_block = attempt.first_block;
    params.max_tokens = request.isGenerationOnlyRequest() ? SIZE_MAX : 0;
    params.block_ids = slots.data();
    params.block_id_count = slots.size();
    params.metadata_deadline_ns = options_.metadata_deadline_ns;
    params.transfer_deadline_ns = options_.transfer_deadline_ns;
    params.abandonment_deadline_ns = options_.abandonment_deadline_ns;
    try {
      attempt.prefetch = Prefetch::begin(transceiver_, params);
      attempt.is_over = !attempt.prefetch;
    } catch (const Error &error) {
      // Places of a fetch that has just ended are busy for a moment. All else is no reuse, and no failure.
      attempt.is_over = error.status() != KVH_BUSY || std::chrono::steady_clock::now() >= attempt.begin_until;
    }
    if (attempt.prefetch) {
      // The block that matched in part is about to be overwritten.
      attempt.usable_tokens = attempt.first_block * tokens_per_block();
    }
  }

  static bool is_over(const Prefetch &prefetch) {
    std::uint32_t state = 0;
    return kvh_prefetch_poll(prefetch.get(), &state) != KVH_IN_PROGRESS;
  }

  // One rank: nobody to ask.
  void settle_those_over() {
    for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
      if ((*attempt)->is_over) {
        const auto done = std::move(*attempt);
        attempt = attempts_.erase(attempt);
        settle(*done, done->usable_tokens);
      } else {
        ++attempt;
      }
    }
  }

  // Begun in one iteration and asked for in the next, on all ranks in the same ones: a result that one
  // rank takes earlier would find the others with another list. By then it is there, or nearly.
  void agree() {
    if (!asked_.empty()) {
      std::vector<std::uint64_t> agreed(asked_.size());
      while (!communicator_->poll_min(agreed)) {
        std::this_thread::yield();
      }
      for (std::size_t at = 0; at < asked_.size(); ++at) {
        const auto found = find(asked_[at]);
        // A cancelled request is not there any more.
        if (agreed[at] > 0 && found != attempts_.end()) {
          const auto done = std::move(*found);
          attempts_.erase(found);
          settle(*done, agreed[at] - 1);
        }
      }
      asked_.clear();
      return;
    }
    if (attempts_.empty()) {
      return;
    }
    std::vector<std::uint64_t> mine;
    for (const auto &attempt : attempts_) {
      asked_.push_back(attempt->request->mRequestId);
      mine.push_back(attempt->is_over ? attempt->usable_tokens + 1 : 0);
    }
    communicator_->begin_min(mine);
  }

  // The request goes on with `tokens` tokens that are here.
  void settle(Attempt &attempt, std::size_t tokens) {
    LlmRequest &request = *attempt.request;
    const bool is_generation_only = request.isGenerationOnlyRequest();
    const auto prompt = static_cast<std::size_t>(request.getPromptLen());
    if (is_generation_only && tokens >= prompt) {
      request.setState(State::kDISAGG_GENERATION_TRANS_COMPLETE);
      return;
    }
    // All whole blocks have to come. A short last one may be missing where all others are: its few tokens
    // are computed here.
    const bool is_served = attempt.source.is_required && tokens >= prompt / tokens_per_block() * tokens_per_block();
    if (is_generation_only && attempt.source.is_required && !is_served) {
      request.setState(State::kDISAGG_TRANS_ERROR);
      return;
    }
    const auto usable = static_cast<std::int32_t>(std::min(tokens, prompt - 1));
    request.setPrepopulatedPromptLen(usable, static_cast<std::int32_t>(tokens_per_block()));
    request.setContextCurrentPosition(usable);
    request.setState(is_generation_only ? State::kCONTEXT_INIT : attempt.state_before);
    if (is_generation_only && !is_served && paired_ != nullptr) {
      request.setState(attempt.state_before);
      paired_->requestAndReceiveAsync(attempt.request);
    }
  }

  typename Host::BaseCacheTransceiver *paired_;
  ReuseMirror<Host> &mirror_;
  const Transceiver &transceiver_;
  FetchOptions options_;
  Communicator *communicator_;
  bool is_fetching_ = true;
  std::map<RequestId, Source> sources_;
  // In the order in which they began.
  std::vector<std::unique_ptr<Attempt>> attempts_;
  // The requests of the agreement that is under way.
  std::vector<RequestId> asked_;
};

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_CACHE_TRANSCEIVER_HPP
