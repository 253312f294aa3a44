// What worker A and worker B have in common: a rank of an executor with its KV memory, its free
// blocks and its reuse tree. The host owns eviction (arbiter mode), MPI and all memory.
#pragma once

#include "model.hpp"

#include <kvhints.hpp>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace executor {

// MPI from first to last; the library never starts or ends it.
class Mpi {
 public:
  Mpi() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  ~Mpi() { MPI_Finalize(); }
  Mpi(const Mpi &) = delete;
  Mpi &operator=(const Mpi &) = delete;

  std::uint32_t rank() const { return static_cast<std::uint32_t>(rank_); }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(ranks_); }

  // Every rank's text, on rank 0.
  std::vector<std::string> gather(const std::string &mine) const {
    const int length = static_cast<int>(mine.size());
    std::vector<int> lengths(ranks()), offsets(ranks());
    MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    std::partial_sum(lengths.begin(), lengths.end() - 1, offsets.begin() + 1);
    std::string all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), 0)), '\0');
    MPI_Gatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, 0,
                MPI_COMM_WORLD);
    std::vector<std::string> texts;
    for (std::uint32_t rank = 0; rank_ == 0 && rank < ranks(); ++rank) {
      texts.push_back(all.substr(static_cast<std::size_t>(offsets[rank]), static_cast<std::size_t>(lengths[rank])));
    }
    return texts;
  }

  std::uint64_t sum(std::uint64_t mine) const {
    std::uint64_t total = 0;
    MPI_Allreduce(&mine, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    return total;
  }

 private:
  int rank_ = 0;
  int ranks_ = 0;
};

// One rank: memory for `block_count` blocks, all of it free and filled with a pattern.
class Rank {
 public:
  static constexpr std::uint8_t pattern = 0xA5;

  // Hints that come over HTTP are trusted here: the router stands behind an authenticated proxy.
  Rank(const Mpi &mpi, std::int32_t block_count)
      : mpi_(mpi),
        context_(trusting(true)),
        tree_(context_, model::tokens_per_block),
        memory_(static_cast<std::size_t>(block_count) * block_bytes(), pattern),
        free_(static_cast<std::size_t>(block_count)) {
    std::iota(free_.rbegin(), free_.rend(), 0);
  }

  static kvh_context_params_t trusting(bool is_trusted) {
    auto params = kvhints::sized<kvh_context_params_t>();
    params.trust_http_hints = is_trusted ? KVH_TRUST_ON : KVH_TRUST_OFF;
    return params;
  }

  const kvhints::Context &context() const { return context_; }
  const kvhints::ReuseTree &tree() const { return tree_; }
  std::size_t block_bytes() const { return model::block_bytes(mpi_.ranks()); }
  std::uint8_t *block(std::int32_t id) { return &memory_[static_cast<std::size_t>(id) * block_bytes()]; }

  // This rank's side of moving blocks, over UCX and loopback wires.
  kvhints::Transceiver transceiver() {
    const std::vector<std::uint32_t> heads(model::layers, model::heads_per_rank(mpi_.ranks()));
    auto params = kvhints::sized<kvh_transceiver_params_t>();
    params.transport = KVH_TRANSPORT_UCX;
    params.rank = mpi_.rank();
    params.network_devices = kvhints::borrow("lo");
    params.namespace_bytes = kvhints::borrow(kvhints::as_bytes(model::name));
    params.tensor_parallel = mpi_.ranks();
    params.kv_heads_per_layer = heads.data();
    params.layer_count = heads.size();
    params.head_size = model::head_size;
    params.data_type = KVH_DATA_FLOAT16;
    params.attention = KVH_ATTENTION_KEYS_AND_VALUES;
    params.window = KVH_WINDOW_FULL;
    params.pool_memory = KVH_MEMORY_HOST;
    params.pool_base = memory_.data();
    params.block_bytes = block_bytes();
    params.block_count = memory_.size() / block_bytes();
    return {context_, tree_, params};
  }

  // Pins that somebody still holds.
  std::size_t live_pins() const {
    auto statistics = kvhints::sized<kvh_reuse_tree_statistics_t>();
    kvhints::check(kvh_reuse_tree_statistics(tree_.get(), &statistics));
    return statistics.live_pins;
  }

  std::vector<std::int32_t> allocate(std::size_t count) {
    if (count > free_.size()) {
      throw std::runtime_error("out of KV blocks");
    }
    const std::vector<std::int32_t> ids(free_.rbegin(), free_.rbegin() + static_cast<std::ptrdiff_t>(count));
    free_.resize(free_.size() - count);
    return ids;
  }
  void give_back(std::int32_t id) {
    std::memset(block(id), pattern, block_bytes());
    free_.push_back(id);
  }

  // Computes the KV of whole blocks from first_block on, as a prefill would, and stores them.
  // Gives the ids of those blocks.
  std::vector<std::int32_t> prefill(const std::vector<std::int32_t> &tokens, std::size_t first_block,
                                    std::uint64_t adapter = 0) {
    const std::size_t whole = tokens.size() / model::tokens_per_block;
    const std::vector<std::int32_t> ids = allocate(whole - std::min(first_block, whole));
    const model::Attention attention(tokens, mpi_.rank(), mpi_.ranks());
    for (std::size_t at = 0; at < ids.size(); ++at) {
      attention.prefill(first_block + at, block(ids[at]));
    }
    store(tokens, first_block, ids, adapter);
    return ids;
  }

  // The tree holds these blocks from now on. Nobody else stores here, so none is held already.
  void store(const std::vector<std::int32_t> &tokens, std::size_t first_block, const std::vector<std::int32_t> &ids,
             std::uint64_t adapter = 0) {
    if (tree_.store(sequence(tokens, adapter), first_block, ids) != ids) {
      throw std::runtime_error("the tree did not take a block");
    }
  }

  // The host's own eviction policy needs room: the first of these blocks leaves the tree, and with it
  // all that is built on it.
  void evict(const std::vector<std::int32_t> &ids) {
    if (ids.empty()) {
      return;
    }
    if (tree_.evict(ids.front()) != KVH_OK) {
      throw std::runtime_error("nothing protects this block, and yet it was not evicted");
    }
    for (std::int32_t id : ids) {
      give_back(id);
    }
  }

  // A prefix that the tree holds, in whole blocks.
  std::size_t held_blocks(const std::vector<std::int32_t> &tokens, std::uint64_t adapter = 0) const {
    return tree_.match(sequence(tokens, adapter), tokens.size() - 1) / model::tokens_per_block;
  }

  // What tokens mean for reuse; with a LoRA adapter (not 0), something else.
  static kvhints::Sequence sequence(const std::vector<std::int32_t> &tokens, std::uint64_t adapter = 0) {
    auto params = kvhints::sized<kvh_sequence_params_t>();
    params.tokens_per_block = model::tokens_per_block;
    params.flags = adapter == 0 ? 0 : KVH_SEQUENCE_HAS_LORA;
    params.lora_id = adapter;
    params.tokens = tokens.data();
    params.token_count = tokens.size();
    params.namespace_bytes = kvhints::borrow(kvhints::as_bytes(model::name));
    return kvhints::Sequence(params);
  }

 private:
  const Mpi &mpi_;
  kvhints::Context context_;
  kvhints::ReuseTree tree_;
  std::vector<std::uint8_t> memory_;
  std::vector<std::int32_t> free_;
};

}  // namespace executor
