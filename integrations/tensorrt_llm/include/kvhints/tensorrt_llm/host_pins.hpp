// Pins on the host's own blocks, with an owner: made together, ended together, once.
//
// Guards against what pins by bare id let through: ending a pin twice, or somebody else's, and half a list
// unpinned because a later id was wrong.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef KVHINTS_TENSORRT_LLM_HOST_PINS_HPP
#define KVHINTS_TENSORRT_LLM_HOST_PINS_HPP

#include <kvhints.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvhints::trtllm {

// The host's only attention window. Throws with KVH_ERR_UNSUPPORTED when there are several: ids of windows
// collide, and the host's pins do not say which is meant.
template <typename Manager>
auto only_window(const Manager &manager) {
  const auto &windows = manager.getBlockManager().getWindowSizesMetadata();
  if (windows.size() != 1) {
    throw Error(KVH_ERR_UNSUPPORTED, "one attention window is expected, and the host has " +
                                         std::to_string(windows.size()) + ": exchange no blocks of this model");
  }
  return *windows.begin();
}

template <typename Host>
class HostPins {
 public:
  using Manager = typename Host::BaseKVCacheManager;

  // Takes over pins that the host has made already, one for each id. The manager outlives them.
  HostPins(Manager &manager, std::vector<std::int32_t> block_ids) noexcept
      : manager_(&manager), block_ids_(std::move(block_ids)) {}
  HostPins(HostPins &&other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)), block_ids_(std::move(other.block_ids_)) {}
  HostPins &operator=(HostPins other) noexcept {
    std::swap(manager_, other.manager_);
    block_ids_.swap(other.block_ids_);
    return *this;
  }
  // A host that refuses here keeps its blocks pinned; nothing may be thrown any more.
  ~HostPins() {
    if (manager_ != nullptr) {
      try {
        unpin();
      } catch (...) {
      }
    }
  }

  // Pins all of them or, when one is no block of the host, none: KVH_ERR_INVALID_ARGUMENT.
  static HostPins pin(Manager &manager, std::vector<std::int32_t> block_ids) {
    const auto window = only_window(manager).second;
    for (const std::int32_t id : block_ids) {
      if (id < 0 || id >= window.numPrimaryBlocks + window.numSecondaryBlocks) {
        throw Error(KVH_ERR_INVALID_ARGUMENT, "block " + std::to_string(id) + " is none of the host's: nothing is pinned");
      }
    }
    manager.pinBlocksById(block_ids);
    return HostPins(manager, std::move(block_ids));
  }

  // The blocks, oldest first.
  const std::vector<std::int32_t> &block_ids() const noexcept { return block_ids_; }

  // Ends them. A second time throws with KVH_ERR_STATE and changes nothing.
  void unpin() {
    if (manager_ == nullptr) {
      throw Error(KVH_ERR_STATE, "these pins have ended before");
    }
    std::exchange(manager_, nullptr)->unpinBlocksById(block_ids_);
  }

 private:
  Manager *manager_;
  std::vector<std::int32_t> block_ids_;
};

}  // namespace kvhints::trtllm

#endif  // KVHINTS_TENSORRT_LLM_HOST_PINS_HPP
