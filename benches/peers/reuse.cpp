// A reuse tree as C++ executors have it, beside the library's: nodes that own their children in hash
// maps keyed by the block's whole key, one mutex around everything, a list of free blocks in the order
// of their release. Keys are made beforehand, so only the walk, the pin and the unpin are timed.
//
//   reuse BLOCKS ROUNDS     lines of: case, subject, unit, least and median
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <memory>
#include <mutex>
#include <ctime>
#include <unordered_map>
#include <vector>

namespace {

constexpr int kTokensPerBlock = 32;
constexpr int kChainLengths[] = {4096, 1024, 32};

// Numbers that look random and are the same in each run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }

 private:
  uint64_t state_;
};

// What this thread has spent on a core: other programs on a busy machine do not count.
double spent_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) * 1e9 + double(time.tv_nsec);
}

struct Token {
  int32_t id;
  uint64_t extra_id;
  bool operator==(const Token &other) const { return id == other.id && extra_id == other.extra_id; }
};

using Key = std::vector<Token>;

struct KeyHash {
  size_t operator()(const Key &key) const {
    uint64_t seed = key.size();
    for (const Token &token : key) {
      uint32_t value = uint32_t(token.id);
      value = ((value >> 16) ^ value) * 0x45d9f3bu;
      value = ((value >> 16) ^ value) * 0x45d9f3bu;
      value = ((value >> 16) ^ value) + 0x9e3779b9u;
      seed ^= value + (seed << 6) + (seed >> 2);
    }
    return seed;
  }
};

struct Block {
  int32_t id = 0;
  int pins = 0;
  Key key;
  Block *parent = nullptr;
  std::unordered_map<Key, std::shared_ptr<Block>, KeyHash> children;
  std::list<Block *>::iterator place_in_free;
};

class Tree {
 public:
  void store(const std::vector<Key> &keys) {
    std::lock_guard lock(mutex_);
    Block *parent = &root_;
    for (const Key &key : keys) {
      auto [child, is_new] = parent->children.try_emplace(key);
      if (is_new) {
        child->second = std::make_shared<Block>();
        child->second->id = int32_t(blocks_.size());
        child->second->key = key;
        child->second->parent = parent;
        blocks_.push_back(child->second);
        release(child->second.get());
      }
      parent = child->second.get();
    }
  }

  std::shared_ptr<Block> match(const std::vector<Key> &keys) {
    std::lock_guard lock(mutex_);
    const Block *parent = &root_;
    std::shared_ptr<Block> found;
    for (const Key &key : keys) {
      auto child = parent->children.find(key);
      if (child == parent->children.end()) return nullptr;
      found = child->second;
      parent = found.get();
    }
    return found;
  }

  // The ids from the root to the block, and a pin on each.
  void pin(const Block *block, size_t count, std::vector<int32_t> &ids) {
    std::lock_guard lock(mutex_);
    ids.resize(count);
    for (; count > 0; block = block->parent) ids[--count] = block->id;
    for (int32_t id : ids) {
      Block &pinned = *blocks_[size_t(id)];
      if (pinned.pins++ == 0) free_.erase(pinned.place_in_free);
    }
  }

  void unpin(const std::vector<int32_t> &ids) {
    std::lock_guard lock(mutex_);
    for (size_t at = ids.size(); at-- > 0;) {
      Block &pinned = *blocks_[size_t(ids[at])];
      if (--pinned.pins == 0) release(&pinned);
    }
  }

 private:
  void release(Block *block) { block->place_in_free = free_.insert(free_.end(), block); }

  std::mutex mutex_;
  Block root_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::list<Block *> free_;
};

std::vector<Key> chain(Random &random, int length) {
  std::vector<Key> keys;
  for (int block = 0; block < length; ++block) {
    Key key;
    for (int token = 0; token < kTokensPerBlock; ++token) key.push_back({int32_t(random.next() % 128000), 0});
    keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: reuse BLOCKS ROUNDS\n");
    return 2;
  }
  const int blocks = std::atoi(arguments[1]), rounds = std::atoi(arguments[2]);
  const int chain_counts[] = {std::max(1, blocks / 2 / 4096), std::max(2, blocks / 4 / 1024),
                              std::max(64, blocks / 4 / 32)};
  Random random(7);
  Tree tree;
  std::vector<std::vector<std::vector<Key>>> chains(3);
  for (int kind = 0; kind < 3; ++kind) {
    for (int index = 0; index < chain_counts[kind]; ++index) {
      chains[size_t(kind)].push_back(chain(random, kChainLengths[kind]));
      tree.store(chains[size_t(kind)].back());
    }
  }

  for (size_t kind = 0; kind < 3; ++kind) {
    const auto &alike = chains[kind];
    const size_t length = size_t(kChainLengths[kind]);
    const size_t repeats = std::min<size_t>(65536 / length, 512);
    std::vector<double> times;
    std::vector<int32_t> ids;
    for (int round = 0; round < rounds; ++round) {
      const double start = spent_ns();
      for (size_t repeat = 0; repeat < repeats; ++repeat) {
        const auto &keys = alike[random.next() % alike.size()];
        const auto found = tree.match(keys);
        if (!found) return 1;
        tree.pin(found.get(), length, ids);
        tree.unpin(ids);
      }
      times.push_back((spent_ns() - start) / double(repeats * length));
    }
    std::sort(times.begin(), times.end());
    std::printf("%d/%zu\tC++ tree\tns a block\t%.3f\t%.3f\n", blocks, length, times.front(), times[times.size() / 2]);
  }
}
