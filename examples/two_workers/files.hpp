// What the programs of the example tell each other through the run's folder: token files, raw
// envelopes, and small `key value` notes. A note appears whole or not at all.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace files {

using Note = std::multimap<std::string, std::string>;

inline std::string read(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write(const std::string &path, const std::string &bytes) {
  const std::string unfinished = path + ".part";
  std::ofstream(unfinished, std::ios::binary) << bytes;
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    throw std::runtime_error("cannot write " + path);
  }
}

inline std::vector<std::int32_t> read_tokens(const std::string &path) {
  const std::string bytes = read(path);
  std::vector<std::int32_t> tokens(bytes.size() / sizeof(std::int32_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(std::int32_t));
  return tokens;
}

inline Note read_note(const std::string &path) {
  std::istringstream lines(read(path));
  Note note;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t blank = line.find(' ');
    note.emplace(line.substr(0, blank), blank == std::string::npos ? "" : line.substr(blank + 1));
  }
  return note;
}

inline std::string value(const Note &note, const std::string &key) {
  const auto found = note.find(key);
  if (found == note.end()) {
    throw std::runtime_error("a note has no " + key);
  }
  return found->second;
}

inline bool exists(const std::string &path) { return access(path.c_str(), F_OK) == 0; }

// The other side is a process of its own: all there is to do is look again, until a deadline.
inline void await(const std::string &path, std::chrono::seconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (!exists(path)) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("waited in vain for " + path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace files
