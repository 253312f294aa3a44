// The executor's MPI communicator, as the host wraps it: rank 0 plans a request of the host's, all ranks get
// the plan with it, and agree on how far they have come.
#include "../../../../cpp_tests/mpi/ranks.hpp"

#include "../upstream/llm_request.hpp"

#include <kvhints/tensorrt_llm.hpp>

namespace {

using tensorrt_llm::batch_manager::LlmRequest;

// What the host has of MPI: a communicator that converts to MPI's own.
class MpiComm {
 public:
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {}
  operator MPI_Comm() const { return comm_; }

 private:
  MPI_Comm comm_;
};

struct WorldConfig {
  int ranks;
  int getTensorParallelism() const { return ranks; }
  int getPipelineParallelism() const { return 1; }
  int getContextParallelism() const { return 1; }
};

constexpr const char *table = R"({
  "version": 1,
  "bindings": [{"id": "pool", "family": "trtllm", "addressing": "content_named",
                "actions": [{"type": "kv.fetch", "version": "1.0"}], "namespaces": ["model@7"]}],
  "endpoints": [{"endpoint": "tcp://known:1", "bindings": ["pool"]}]
})";
constexpr const char *hint = R"({"protocol_version": "0.1", "message_id": "m", "actions": [{"action_id": "a",
  "action_type": "kv.fetch", "action_version": "1.0",
  "payload": {"source_control_endpoint": "tcp://known:1", "block_hashes": [1, 2, 3]}}]})";

void run(int rank, int size) {
  const kvhints::Context context;
  const kvhints::trtllm::Naming naming{4, "model@7", nullptr};
  const MpiComm world(MPI_COMM_WORLD);
  kvhints::Communicator ranks =
      kvhints::trtllm::communicator(context, kvhints::trtllm::communicator_params(WorldConfig{size}), world,
                                    [](MPI_Comm comm) { return MPI_Comm_c2f(comm); });
  EXPECT(ranks.rank() == static_cast<std::uint32_t>(rank) && ranks.size() == static_cast<std::uint32_t>(size));

  const LlmRequest request(7, 1, std::make_shared<std::vector<std::int32_t>>(16, 1));
  kvhints::Batch mine;
  if (rank == 0) {
    const kvhints::trtllm::Hints hints(context, naming, kvhints::BindingTable(table), "trtllm");
    const auto plan = hints.decide(request, hints.admit(kvhints::Ingress::trusted, hint));
    EXPECT(plan != nullptr);
    EXPECT(hints.decide(request, hints.admit(kvhints::Ingress::trusted, "nonsense")) == nullptr);
    for (const kvh_plan_t *each : {static_cast<const kvh_plan_t *>(nullptr), plan.get()}) {
      auto entry = kvhints::sized<kvh_batch_request_t>();
      entry.id = request.mRequestId;
      entry.plan = each;
      kvhints::check(kvh_batch_add(mine.get(), &entry));
    }
  }
  std::shared_ptr<const kvh_plan_t> plan;
  {
    const auto batch = std::make_shared<const kvhints::Batch>(ranks.broadcast(std::move(mine)));
    EXPECT(batch->size() == 2);
    EXPECT(kvhints::trtllm::plan_of(batch, 0) == nullptr);
    plan = kvhints::trtllm::plan_of(batch, 1);
  }
  auto fetch = kvhints::sized<kvh_plan_fetch_t>();
  EXPECT(plan != nullptr && kvh_plan_fetch(plan.get(), &fetch) == KVH_OK);
  EXPECT(kvhints::text(fetch.endpoint) == "tcp://known:1" && fetch.block_count == 3);

  std::vector<std::uint64_t> smallest;
  ranks.begin_min({static_cast<std::uint64_t>(10 + rank)});
  smallest.resize(1);
  while (!ranks.poll_min(smallest)) {
  }
  EXPECT(smallest[0] == 10);
  ranks.close();
}

}  // namespace

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    run(rank, size);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  const int code = ranks::exit_code();
  MPI_Finalize();
  return code;
}
