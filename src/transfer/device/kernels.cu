// Copies parts of blocks between a device and staging: memory of the host's processors that the device
// reaches at the same address.
//
// A part is cut out of each block as pieces, and travels as these pieces one after the other; parts lie
// in staging one after the other. With pieces that are heads of layers this splits blocks by heads
// (gather) and joins them (scatter).
//
// `table` holds the address of each block, and then for each piece three numbers: its first byte within
// the block, its bytes, and its first byte within the part. All of them, and all addresses, are
// multiples of `word_bytes`, which is 16, 4 or 1; whoever launches this has seen to it.
//
// What src/transfer/device/plan.rs plans is what this does. Compiled by scripts/compile_kernels.py into
// kernels.ptx; tests compile it as C++ too, and run it on the host's processors.

typedef unsigned long long Number;

struct alignas(16) Wide {
  Number low;
  Number high;
};

template <typename Word, bool IntoStaging>
__device__ void copy_units(const Number *table, unsigned char *staging, Number block_count, Number piece_count,
                           Number part_bytes) {
  const Number *pieces = table + block_count;
  const Number first = blockIdx.y * (Number)blockDim.x + threadIdx.x;
  const Number step = gridDim.y * (Number)blockDim.x;
  for (Number unit = blockIdx.x; unit < block_count * piece_count; unit += gridDim.x) {
    const Number index = unit / piece_count;
    const Number *piece = pieces + 3 * (unit % piece_count);
    Word *in_block = (Word *)(table[index] + piece[0]);
    Word *in_staging = (Word *)(staging + index * part_bytes + piece[2]);
    const Number words = piece[1] / sizeof(Word);
    for (Number word = first; word < words; word += step) {
      if (IntoStaging) {
        in_staging[word] = in_block[word];
      } else {
        in_block[word] = in_staging[word];
      }
    }
  }
}

template <bool IntoStaging>
__device__ void copy_parts(const Number *table, unsigned char *staging, Number block_count, Number piece_count,
                           Number part_bytes, Number word_bytes) {
  if (word_bytes == 16) {
    copy_units<Wide, IntoStaging>(table, staging, block_count, piece_count, part_bytes);
  } else if (word_bytes == 4) {
    copy_units<unsigned int, IntoStaging>(table, staging, block_count, piece_count, part_bytes);
  } else {
    copy_units<unsigned char, IntoStaging>(table, staging, block_count, piece_count, part_bytes);
  }
}

extern "C" __global__ void kvhints_gather(const Number *table, unsigned char *staging, Number block_count,
                                          Number piece_count, Number part_bytes, Number word_bytes) {
  copy_parts<true>(table, staging, block_count, piece_count, part_bytes, word_bytes);
}

extern "C" __global__ void kvhints_scatter(const Number *table, unsigned char *staging, Number block_count,
                                           Number piece_count, Number part_bytes, Number word_bytes) {
  copy_parts<false>(table, staging, block_count, piece_count, part_bytes, word_bytes);
}
