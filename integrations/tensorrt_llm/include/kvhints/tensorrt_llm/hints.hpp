// From a hint on a request to a decision for all ranks: admission, the plan, and the communicator that
// carries both with the host's own broadcast of new requests.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_HINTS_HPP
#define KVHINTS_TENSORRT_LLM_HINTS_HPP

#include "names.hpp"

#include <memory>

namespace kvhints::trtllm {

// What of a request matters to the plan. A request of a disaggregated pair keeps its handoff.
template <typename LlmRequest>
kvh_request_profile_t request_profile(const Naming &naming, const LlmRequest &request) {
  auto profile = sized<kvh_request_profile_t>();
  profile.kind = request.isDummyRequest()            ? KVH_REQUEST_OTHER
                 : request.isGenerationOnlyRequest() ? KVH_REQUEST_GENERATION_ONLY
                                                     : KVH_REQUEST_CONTEXT;
  profile.has_lora = request.getLoraTaskId() ? KVH_ANSWER_YES : KVH_ANSWER_NO;
  profile.required_handoff =
      request.isGenerationOnlyRequest() || request.isContextOnlyRequest() ? KVH_ANSWER_YES : KVH_ANSWER_NO;
  profile.namespace_bytes = borrow(as_bytes(naming.namespace_bytes));
  return profile;
}

// Judges hints and decides. Belongs to rank 0; the others get what it decided. All may be called from any
// thread; context and naming outlive it.
class Hints {
 public:
  // family: the name under which the binding table knows this kind of backend.
  Hints(const Context &context, const Naming &naming, BindingTable table, std::string_view family)
      : context_(context), naming_(naming), table_(std::move(table)) {
    capabilities_.add(family, "kv.fetch", "1.0");
    capabilities_.add(family, "kv.fetch", "1.1");
  }

  // raw: the hint's bytes as they came. Whatever is wrong with them means: no hint, and nothing is thrown.
  Snapshot admit(Ingress ingress, std::string_view raw) const { return context_.admit(ingress, raw).snapshot; }

  // Nothing where the request is to go on without.
  template <typename LlmRequest>
  std::shared_ptr<const kvh_plan_t> decide(const LlmRequest &request, const Snapshot &hint) const {
    if (!hint) {
      return nullptr;
    }
    auto plan = std::make_shared<Plan>(context_, hint, capabilities_, table_, request_profile(naming_, request));
    return plan->is_fetch() ? std::shared_ptr<const kvh_plan_t>(plan, plan->get()) : nullptr;
  }

 private:
  const Context &context_;
  const Naming &naming_;
  Capabilities capabilities_;
  BindingTable table_;
};

// The plan of one request of a batch, which stays as long as the plan is held; nothing where it is local.
inline std::shared_ptr<const kvh_plan_t> plan_of(const std::shared_ptr<const Batch> &batch, std::size_t index) {
  return {batch, (*batch)[index].plan};
}

// How ranks are arranged, from the host's WorldConfig: both count context, then tensor, then pipeline ranks.
template <typename WorldConfig>
kvh_communicator_params_t communicator_params(const WorldConfig &world) {
  auto params = sized<kvh_communicator_params_t>();
  params.tensor_size = static_cast<std::uint32_t>(world.getTensorParallelism());
  params.pipeline_size = static_cast<std::uint32_t>(world.getPipelineParallelism());
  params.context_size = static_cast<std::uint32_t>(world.getContextParallelism());
  params.mode = KVH_BROADCAST_DECIDED;
  return params;
}

// Over the executor's MPI communicator, which is duplicated. to_fortran is MPI_Comm_c2f, of the MPI that the
// library was built with. Collective; close() it before MPI_Finalize.
template <typename MpiComm, typename ToFortran>
Communicator communicator(const Context &context, const kvh_communicator_params_t &params, const MpiComm &comm,
                          ToFortran to_fortran) {
  return {context, params, static_cast<std::int64_t>(to_fortran(comm))};
}

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_HINTS_HPP
