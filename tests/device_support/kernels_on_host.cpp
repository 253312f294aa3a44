// The kernels of src/transfer/device/kernels.cu as plain C++: thread blocks and threads one after the
// other. Threads of these kernels never meet, so the order makes no difference.

struct Index {
  unsigned int x, y;
};

static Index blockIdx, threadIdx, blockDim, gridDim;

#define __global__
#define __device__ static

#include "kernels.cu"

// Runs kernel 0 (gather) or 1 (scatter) with six arguments.
extern "C" void run_kernel(unsigned int kernel, unsigned int grid_x, unsigned int grid_y, unsigned int threads,
                           const Number *arguments) {
  gridDim = {grid_x, grid_y};
  blockDim = {threads, 1};
  for (blockIdx.x = 0; blockIdx.x < grid_x; ++blockIdx.x) {
    for (blockIdx.y = 0; blockIdx.y < grid_y; ++blockIdx.y) {
      for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {
        (kernel == 0 ? kvhints_gather : kvhints_scatter)((const Number *)arguments[0], (unsigned char *)arguments[1],
                                                         arguments[2], arguments[3], arguments[4], arguments[5]);
      }
    }
  }
}
