// What the MPI programs share: checks that are counted, and an exit code that all ranks agree on.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include "kvhints.h"

#include <cstdio>
#include <string>

namespace ranks {

inline int failures = 0;

inline void expect(bool holds, const char *text, const char *file, int line) {
  if (!holds) {
    ++failures;
    std::fprintf(stderr, "%s:%d: expected %s\n", file, line, text);
  }
}

#define EXPECT(condition) ranks::expect((condition), #condition, __FILE__, __LINE__)

inline kvh_communicator_params_t params(uint32_t tensor = 0, uint32_t pipeline = 0, uint32_t context = 0) {
  kvh_communicator_params_t params{};
  params.struct_size = sizeof params;
  params.tensor_size = tensor;
  params.pipeline_size = pipeline;
  params.context_size = context;
  return params;
}

inline kvh_context_t *create_context() {
  kvh_context_t *context = nullptr;
  EXPECT(kvh_context_create(nullptr, &context) == KVH_OK);
  return context;
}

// What kvh_communicator_create_mpi came to; *communicator_out stays NULL where it failed.
inline kvh_status_t create(const kvh_context_t *context, const kvh_communicator_params_t &params, MPI_Comm host,
                           kvh_communicator_t **communicator_out) {
  kvh_error_t *error = nullptr;
  const kvh_status_t status =
      kvh_communicator_create_mpi(context, &params, MPI_Comm_c2f(host), communicator_out, &error);
  EXPECT((status == KVH_OK) == (error == nullptr));
  EXPECT((status == KVH_OK) == (*communicator_out != nullptr));
  if (error != nullptr) {
    EXPECT(kvh_error_message(error).len > 0);
  }
  kvh_error_destroy(error);
  return status;
}

// The program's exit code; the same on all ranks. MPI is still running.
inline int exit_code() {
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return all == 0 ? 0 : 1;
}

}  // namespace ranks
