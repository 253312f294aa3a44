// One rank is killed in the middle of rounds; the others wait for it. Run by killed_rank.sh: the launcher
// ends the job, or the others see an error, but nobody waits without end. Never ends with 0.
#include "ranks.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 3) {
    return 2;
  }
  const int killed = std::strcmp(argv[1], "root") == 0 ? 0 : size - 1;
  kvh_context_t *context = ranks::create_context();
  kvh_communicator_params_t given = ranks::params();
  given.node_window = std::strcmp(argv[2], "window") == 0 ? KVH_NODE_WINDOW_ON : KVH_NODE_WINDOW_OFF;
  kvh_communicator_t *communicator = nullptr;
  EXPECT(ranks::create(context, given, MPI_COMM_WORLD, &communicator) == KVH_OK);

  // Longer than what can be under way: rank 0 cannot be done before the others have taken part.
  const std::vector<uint8_t> body(32 << 20, 7);
  for (int round = 0;; ++round) {
    if (round == 3 && rank == killed) {
      std::printf("killed in round %d\n", round);
      std::fflush(stdout);
      std::raise(SIGKILL);
    }
    kvh_batch_t *batch = nullptr;
    kvh_batch_t *received = nullptr;
    if (rank == 0) {
      EXPECT(kvh_batch_create(&batch) == KVH_OK);
      kvh_batch_request_t request{};
      request.struct_size = sizeof request;
      request.body = {body.data(), body.size()};
      EXPECT(kvh_batch_add(batch, &request) == KVH_OK);
    }
    const kvh_status_t status = kvh_broadcast(communicator, batch, &received);
    kvh_batch_destroy(batch);
    kvh_batch_destroy(received);
    if (status != KVH_OK) {
      std::printf("rank %d learned of it: %s\n", rank, kvh_status_string(status));
      std::fflush(stdout);
      // Leaves as a process that failed: finalising would wait for the killed one.
      std::_Exit(3);
    }
  }
}
