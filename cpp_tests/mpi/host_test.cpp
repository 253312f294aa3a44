// The host owns MPI: what calls come to before MPI_Init, from threads that may not call MPI at each
// level of thread support, and after MPI_Finalize, with a communicator that was never closed. Each of
// these says what it is.
//
//   host_test [LEVEL]    single, funneled (the default), serialized or multiple
#include "ranks.hpp"

#include <cstring>
#include <string>
#include <thread>

namespace {

// Expects that creating a communicator is refused, and that the text says why.
void refused(const kvh_context_t *context, int64_t handle, const char *reason) {
  const kvh_communicator_params_t params = ranks::params();
  kvh_communicator_t *communicator = nullptr;
  kvh_error_t *error = nullptr;
  EXPECT(kvh_communicator_create_mpi(context, &params, handle, &communicator, &error) == KVH_ERR_STATE);
  EXPECT(communicator == nullptr);
  const kvh_str_t text = kvh_error_message(error);
  EXPECT(text.data != nullptr && std::string(text.data, text.len).find(reason) != std::string::npos);
  kvh_error_destroy(error);
}

int level_of(const char *name) {
  return std::strcmp(name, "single") == 0       ? MPI_THREAD_SINGLE
         : std::strcmp(name, "serialized") == 0 ? MPI_THREAD_SERIALIZED
         : std::strcmp(name, "multiple") == 0   ? MPI_THREAD_MULTIPLE
                                                : MPI_THREAD_FUNNELED;
}

}  // namespace

int main(int argc, char **argv) {
  kvh_context_t *context = ranks::create_context();
  const kvh_communicator_params_t params = ranks::params();
  kvh_communicator_t *communicator = nullptr;

  // No handle can be had before MPI_Init; any number will do.
  refused(context, 0, "not initialised");

  int level = 0;
  const int wanted = level_of(argc > 1 ? argv[1] : "funneled");
  MPI_Init_thread(&argc, &argv, wanted, &level);
  EXPECT(level >= wanted);
  EXPECT(ranks::create(context, params, MPI_COMM_WORLD, &communicator) == KVH_OK);
  uint64_t value = 3;
  EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_OK);

  kvh_communicator_t *other = nullptr;
  const MPI_Fint world = MPI_Comm_c2f(MPI_COMM_WORLD);
  const bool others_may_call = level >= MPI_THREAD_SERIALIZED;
  std::thread([&] {
    if (others_may_call) {
      EXPECT(ranks::create(context, params, MPI_COMM_WORLD, &other) == KVH_OK);
      EXPECT(kvh_communicator_close(other) == KVH_OK);
      kvh_communicator_destroy(other);
      other = nullptr;
    } else {
      refused(context, world, "main thread");
    }
    const kvh_status_t expected = others_may_call ? KVH_OK : KVH_ERR_STATE;
    EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == expected);
    EXPECT(kvh_communicator_min_begin(communicator, &value, 1) == expected);
    if (others_may_call) {
      while (kvh_communicator_min_poll(communicator, &value, 1) == KVH_IN_PROGRESS) {
      }
    }
  }).join();
  EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_OK);

  EXPECT(ranks::create(context, params, MPI_COMM_WORLD, &other) == KVH_OK);
  EXPECT(kvh_communicator_close(other) == KVH_OK);
  kvh_communicator_destroy(other);

  const int code = ranks::exit_code();
  MPI_Finalize();

  // `communicator` was not closed. Every call says so, none calls MPI, destroying is fine.
  EXPECT(kvh_communicator_min(communicator, &value, 1, &value) == KVH_ERR_STATE);
  EXPECT(kvh_communicator_close(communicator) == KVH_ERR_STATE);
  kvh_batch_t *received = nullptr;
  EXPECT(kvh_broadcast(communicator, nullptr, &received) == KVH_ERR_STATE);
  EXPECT(kvh_communicator_min_begin(communicator, &value, 1) == KVH_ERR_STATE);
  EXPECT(received == nullptr);
  kvh_communicator_destroy(communicator);
  communicator = nullptr;
  refused(context, world, "finalised");
  kvh_context_destroy(context);
  return code != 0 || ranks::failures > 0 ? 1 : 0;
}
