// What happened, for people line by line, or as one JSON object for machines. Only rank 0 writes.
#pragma once

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

class Stopwatch {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Account {
 public:
  explicit Account(bool is_told) : is_told_(is_told) {}

  // One line, for people.
  __attribute__((format(printf, 2, 3))) void line(const char *format, ...) const {
    if (!is_told_) {
      return;
    }
    std::va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
    std::fflush(stdout);
  }

  // One step of a request, with the time it took.
  void step(const char *name, double microseconds, const std::string &what) const {
    line("      %-21s %9.1f us   %s", name, microseconds, what.c_str());
  }

  // The samples of a metrics text that are not zero.
  void metrics(const char *whose, const std::string &text) const {
    line("  of %s:", whose);
    std::istringstream lines(text);
    for (std::string sample; std::getline(lines, sample);) {
      const bool is_zero = sample.size() > 2 && sample.compare(sample.size() - 2, 2, " 0") == 0;
      if (!sample.empty() && sample[0] != '#' && !is_zero) {
        line("      %s", sample.c_str());
      }
    }
  }

 private:
  bool is_told_;
};

struct Result {
  bool is_verified = true;
  std::size_t blocks_fetched = 0;
  std::size_t blocks_skipped = 0;
  std::size_t bytes_fetched = 0;  // of all ranks
  std::size_t block_bytes_per_rank = 0;
  double fetch_seconds = 0;  // of the slowest rank
  std::map<std::string, int> fallbacks;
  std::uint64_t pins_left = 0;
  std::size_t blocks_requested_before_kill = 0;  // on rank 0; 0 where nobody was killed
  std::size_t blocks_moved_before_kill = 0;
  std::uint32_t ranks = 0;
  std::string transport;
  std::vector<std::string> pids_a, pids_b;
  std::vector<std::string> problems;

  double gigabytes_per_second() const {
    return fetch_seconds > 0 ? static_cast<double>(bytes_fetched) / fetch_seconds / 1e9 : 0;
  }
  bool is_good() const { return is_verified && problems.empty() && pins_left == 0; }

  std::string json() const {
    const auto numbers = [](const std::vector<std::string> &values) {
      std::string text;
      for (const std::string &value : values) {
        text += (text.empty() ? "" : ",") + value;
      }
      return "[" + text + "]";
    };
    std::string counts;
    for (const auto &[reason, count] : fallbacks) {
      counts += (counts.empty() ? "\"" : ",\"") + reason + "\":" + std::to_string(count);
    }
    std::ostringstream json;
    json << "{\"verified\":" << (is_verified ? "true" : "false") << ",\"blocks_fetched\":" << blocks_fetched
         << ",\"blocks_skipped\":" << blocks_skipped << ",\"bytes_fetched\":" << bytes_fetched
         << ",\"block_bytes_per_rank\":" << block_bytes_per_rank << ",\"fetch_seconds\":" << fetch_seconds
         << ",\"gigabytes_per_second\":" << gigabytes_per_second() << ",\"fallbacks\":{" << counts
         << "},\"pins_left\":" << pins_left << ",\"killed\":{\"blocks_requested\":" << blocks_requested_before_kill
         << ",\"blocks_moved\":" << blocks_moved_before_kill << "},\"ranks\":" << ranks << ",\"transport\":" << quoted(transport)
         << ",\"pids\":{\"a\":" << numbers(pids_a) << ",\"b\":" << numbers(pids_b) << "},\"problems\":[";
    for (std::size_t at = 0; at < problems.size(); ++at) {
      json << (at == 0 ? "" : ",") << quoted(problems[at]);
    }
    json << "]}";
    return json.str();
  }

 private:
  static std::string quoted(const std::string &text) {
    std::string quoted = "\"";
    for (char c : text) {
      if (c == '"' || c == '\\') {
        quoted += '\\';
      }
      quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + "\"";
  }
};
