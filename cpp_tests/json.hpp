// A reader for the test vectors' JSON, which is trusted and well formed. Keeps the text of every
// value, so that a part of a vector can be handed on as it is written.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace json {

struct Value {
  std::string_view raw;  // its text in the file
  std::string string;    // unescaped, where it is a string
  std::vector<Value> items;
  std::vector<std::pair<std::string, Value>> members;

  bool has(std::string_view name) const {
    return std::any_of(members.begin(), members.end(), [&](const auto &member) { return member.first == name; });
  }
  const Value &operator[](std::string_view name) const {
    for (const auto &[key, value] : members)
      if (key == name) return value;
    throw std::runtime_error("no member " + std::string(name));
  }
  size_t number() const { return std::strtoull(std::string(raw).c_str(), nullptr, 10); }
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Value value() {
    blanks();
    const size_t start = at_;
    Value value;
    if (peek() == '{') {
      list('}', [&] {
        std::string name = string();
        blanks();
        expect(':');
        value.members.emplace_back(std::move(name), this->value());
      });
    } else if (peek() == '[') {
      list(']', [&] { value.items.push_back(this->value()); });
    } else if (peek() == '"') {
      value.string = string();
    } else {
      at_ = std::min(text_.find_first_of(",]} \t\r\n", at_), text_.size());
    }
    value.raw = text_.substr(start, at_ - start);
    return value;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void blanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  void expect(char wanted) {
    if (peek() != wanted) throw std::runtime_error("bad JSON at byte " + std::to_string(at_));
    ++at_;
  }

  template <typename Entry>
  void list(char end, Entry entry) {
    ++at_;
    for (blanks(); peek() != end; blanks()) {
      entry();
      blanks();
      if (peek() == end) break;
      expect(',');
      blanks();
    }
    ++at_;
  }

  std::string string() {
    std::string out;
    for (expect('"'); peek() != '"';) {
      if (at_ >= text_.size()) throw std::runtime_error("bad JSON: a string without end");
      const char c = text_[at_++];
      if (c == '\\') {
        escape(out);
      } else {
        out.push_back(c);
      }
    }
    ++at_;
    return out;
  }

  void escape(std::string &out) {
    const char c = peek();
    ++at_;
    if (c == 'u') {
      unsigned code = hex();
      if (code >= 0xd800 && code < 0xdc00) {
        at_ += 2;
        code = 0x10000 + ((code - 0xd800) << 10) + (hex() - 0xdc00);
      }
      utf8(code, out);
    } else {
      const size_t which = std::string_view("nrtbf").find(c);
      out.push_back(which == std::string_view::npos ? c : "\n\r\t\b\f"[which]);
    }
  }

  unsigned hex() {
    const std::string digits(text_.substr(at_, 4));
    at_ += 4;
    return static_cast<unsigned>(std::stoul(digits, nullptr, 16));
  }

  static void utf8(unsigned code, std::string &out) {
    const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3f))); };
    if (code < 0x80) {
      out.push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      out.push_back(static_cast<char>(0xc0 | (code >> 6)));
      tail(0);
    } else if (code < 0x10000) {
      out.push_back(static_cast<char>(0xe0 | (code >> 12)));
      tail(6);
      tail(0);
    } else {
      out.push_back(static_cast<char>(0xf0 | (code >> 18)));
      tail(12);
      tail(6);
      tail(0);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

// The text of tests/vectors/<name>.
inline std::string vectors(const std::string &name) {
  std::string path = __FILE__;
  path.resize(path.rfind("cpp_tests"));
  std::ifstream file(path + "tests/vectors/" + name, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path + "tests/vectors/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace json
