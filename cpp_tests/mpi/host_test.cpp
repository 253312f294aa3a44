// The host owns MPI: what calls come to before MPI_Init, from threads that may not call MPI, and
// after MPI_Finalize, with a communicator that was never closed.
#include "ranks.hpp"

#include <thread>

int main(int argc, char **argv) {
  kvh_context_t *context = ranks::create_context();
  const kvh_communicator_params_t params = ranks::params();
  kvh_communicator_t *communicator = nullptr;

  // No handle can be had before MPI_Init; any number will do.
  EXPECT(kvh_communicator_create_mpi(context, &params, 0, &communicator, nullptr) == KVH_ERR_STATE);
  EXPECT(communicator == nullptr);

  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  EXPECT(level >= MPI_THREAD_FUNNELED);
  EXPECT(ranks::create(context, params, MPI_COMM_WORLD, &communicator) == KVH_OK);
  uint64_t value = 3;
  EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_OK);

  kvh_communicator_t *other = nullptr;
  const MPI_Fint world = MPI_Comm_c2f(MPI_COMM_WORLD);
  if (level < MPI_THREAD_SERIALIZED) {
    std::thread([&] {
      EXPECT(kvh_communicator_create_mpi(context, &params, world, &other, nullptr) == KVH_ERR_STATE);
      EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_ERR_STATE);
    }).join();
    EXPECT(other == nullptr);
    EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_OK);
  }

  EXPECT(ranks::create(context, params, MPI_COMM_WORLD, &other) == KVH_OK);
  EXPECT(kvh_communicator_close(other) == KVH_OK);
  kvh_communicator_destroy(other);

  const int code = ranks::exit_code();
  MPI_Finalize();

  // `communicator` was not closed. Every call says so, none calls MPI, destroying is fine.
  EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_ERR_STATE);
  EXPECT(kvh_communicator_close(communicator) == KVH_ERR_STATE);
  kvh_batch_t *received = nullptr;
  // One rank alone has nobody to call: there the missing batch is all that is wrong.
  const bool is_alone = kvh_communicator_size(communicator) == 1;
  EXPECT(kvh_broadcast(communicator, nullptr, &received) == (is_alone ? KVH_ERR_INVALID_ARGUMENT : KVH_ERR_STATE));
  EXPECT(received == nullptr);
  kvh_communicator_destroy(communicator);
  communicator = nullptr;
  EXPECT(kvh_communicator_create_mpi(context, &params, world, &communicator, nullptr) == KVH_ERR_STATE);
  EXPECT(communicator == nullptr);
  kvh_context_destroy(context);
  return code != 0 || ranks::failures > 0 ? 1 : 0;
}
