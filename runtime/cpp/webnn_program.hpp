// Runs programs that webnn_py saved (MLProgram.save, MLGraph.compile_to), without Python.
//
// One header over webgpu.h and the C++17 library. Include it after nothing else; link a WebGPU
// implementation. The format is spec/programs.md. Errors are exceptions of webnn::Error.
//
//   webnn::Program program = webnn::Program::load(device, "digits.mlprogram");
//   float image[64], scores[10];
//   program.run({{"image", webnn::host(image)}, {"scores", webnn::host(scores)}});
//
// With wgpu-native, whose wgpu.h is found beside webgpu.h, `run` waits by itself. Elsewhere its
// Options need a function that lets the implementation call back (wgpuInstanceProcessEvents).

#pragma once

#include <webgpu.h>

#if __has_include(<wgpu.h>)
#include <wgpu.h>
#define WEBNN_WGPU_NATIVE 1
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace webnn {

// What went wrong, and where.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file breaks a rule of the format: it is damaged, or no program.
class DataError : public Error {
 public:
  using Error::Error;
};

// This device, or this version of the reader, cannot run the program.
class NotSupportedError : public Error {
 public:
  using Error::Error;
};

// The device failed, or refused the program's code.
class OperationError : public Error {
 public:
  using Error::Error;
};

enum class Access { read, write, read_write };

// What a run is given.
struct Argument {
  std::string name;
  std::string data_type;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;  // of the tensor
  std::uint64_t size = 0;   // of its buffer: whole words
  Access access = Access::read;
  bool required = true;  // if not, it may be left out

  bool written() const { return access != Access::read; }
};

namespace detail {

constexpr std::uint64_t max_size = std::uint64_t{1} << 40;
constexpr std::uint64_t max_document = std::uint64_t{1} << 26;
constexpr std::uint64_t max_tensor = (std::uint64_t{1} << 31) - 1;
constexpr std::uint64_t max_dispatches = std::uint64_t{1} << 24;
constexpr std::uint64_t place_alignment = 256;
constexpr int max_depth = 64;

// ---------------------------------------------------------------------------------- JSON

// A value of a JSON document. Objects keep the order of their members, and have no name twice.
struct Json {
  enum class Kind { null, boolean, integer, number, text, list, object };

  Kind kind = Kind::null;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Json> items;
  std::vector<std::string> names;  // of the members, whose values are `items`
};

class JsonReader {
 public:
  JsonReader(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  Json read() {
    if (text_.size() > max_document) fail("more than 64 MiB of JSON");
    Json value = this->value(0);
    space();
    if (at_ != text_.size()) fail("text after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(where_ + ": it cannot be read as JSON: " + what + " at byte " +
                    std::to_string(at_));
  }

  void space() {
    while (at_ < text_.size() && std::strchr(" \t\n\r", text_[at_]) && text_[at_]) ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void expect(char wanted) {
    if (peek() != wanted) fail(std::string("expected '") + wanted + "'");
    ++at_;
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json value(int depth) {
    if (depth > max_depth) fail("its lists are nested too deeply");
    space();
    Json made;
    switch (peek()) {
      case '{':
        object(made, depth);
        return made;
      case '[':
        list(made, depth);
        return made;
      case '"':
        made.kind = Json::Kind::text;
        made.text = string();
        return made;
      default:
        break;
    }
    if (take("null")) return made;
    made.boolean = take("true");
    if (made.boolean || take("false")) {
      made.kind = Json::Kind::boolean;
      return made;
    }
    number(made);
    return made;
  }

  void object(Json& made, int depth) {
    made.kind = Json::Kind::object;
    std::set<std::string> seen;
    ++at_;
    space();
    if (peek() == '}') {
      ++at_;
      return;
    }
    while (true) {
      space();
      if (peek() != '"') fail("expected a name");
      made.names.push_back(string());
      if (!seen.insert(made.names.back()).second) fail("a name occurs twice in one object");
      space();
      expect(':');
      made.items.push_back(value(depth + 1));
      space();
      if (peek() != ',') break;
      ++at_;
    }
    expect('}');
  }

  void list(Json& made, int depth) {
    made.kind = Json::Kind::list;
    ++at_;
    space();
    if (peek() == ']') {
      ++at_;
      return;
    }
    while (true) {
      made.items.push_back(value(depth + 1));
      space();
      if (peek() != ',') break;
      ++at_;
    }
    expect(']');
  }

  void number(Json& made) {
    const std::size_t begin = at_;
    const auto digits = [this] {
      const std::size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      return at_ > first;
    };
    if (peek() == '-') ++at_;
    const bool zero = peek() == '0';
    const std::size_t first = at_;
    if (!digits() || (zero && at_ - first > 1)) fail("expected a value");
    bool whole = true;
    if (peek() == '.') {
      whole = false;
      ++at_;
      if (!digits()) fail("expected digits");
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!digits()) fail("expected digits");
    }
    const std::string text(text_.substr(begin, at_ - begin));
    made.number = std::strtod(text.c_str(), nullptr);
    if (!std::isfinite(made.number)) fail("a number out of range");
    made.kind = Json::Kind::number;
    if (whole && text.size() < 18) {  // what is longer is beyond all bounds of the format
      made.kind = Json::Kind::integer;
      made.integer = std::strtoll(text.c_str(), nullptr, 10);
    }
  }

  std::uint32_t hex() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("expected four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(digit);
    }
    return code;
  }

  static void append(std::string& text, std::uint32_t code) {
    const auto byte = [&text](std::uint32_t value) { text += static_cast<char>(value); };
    if (code < 0x80) {
      byte(code);
    } else if (code < 0x800) {
      byte(0xC0 | code >> 6), byte(0x80 | (code & 63));
    } else if (code < 0x10000) {
      byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
    } else {
      byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 63));
      byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
    }
  }

  std::string string() {
    std::string made;
    ++at_;
    while (true) {
      if (at_ >= text_.size()) fail("a string without an end");
      const char c = text_[at_++];
      if (c == '"') return made;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c != '\\') {
        made += c;
        continue;
      }
      const char escaped = peek();
      ++at_;
      static constexpr std::string_view names = "\"\\/bfnrt";
      static constexpr std::string_view meant = "\"\\/\b\f\n\r\t";
      if (escaped == 'u') {
        std::uint32_t code = hex();
        if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
          at_ += 2;
          const std::uint32_t low = hex();
          if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair, which is no character");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        append(made, code);
      } else {
        const std::size_t place = escaped ? names.find(escaped) : std::string_view::npos;
        if (place == std::string_view::npos) fail("an unknown escape");
        made += meant[place];
      }
    }
  }

  std::string_view text_;
  std::string where_;
  std::size_t at_ = 0;
};

// A value, and where in the file it stands.
class Field {
 public:
  Field(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& what) const { throw DataError(where_ + ": " + what); }

  // The members of an object that has just these.
  std::map<std::string, Field> members(std::initializer_list<const char*> names) const {
    std::map<std::string, Field> found = mapping();
    for (const char* name : names)
      if (!found.count(name)) fail(std::string("member '") + name + "' is missing");
    if (found.size() != names.size()) fail("a member is not expected here");
    return found;
  }

  std::map<std::string, Field> mapping() const {
    if (value_->kind != Json::Kind::object) fail("expected an object");
    std::map<std::string, Field> found;
    for (std::size_t i = 0; i < value_->names.size(); ++i)
      found.emplace(value_->names[i], Field(value_->items[i], where_ + "." + value_->names[i]));
    return found;
  }

  std::vector<Field> items(std::size_t most = SIZE_MAX) const {
    if (value_->kind != Json::Kind::list) fail("expected a list");
    if (value_->items.size() > most) fail("expected " + std::to_string(most) + " members at most");
    std::vector<Field> found;
    found.reserve(value_->items.size());
    for (const Json& item : value_->items)
      found.emplace_back(item, where_ + "[" + std::to_string(found.size()) + "]");
    return found;
  }

  const std::string& text(bool may_be_empty = false) const {
    if (value_->kind != Json::Kind::text || (value_->text.empty() && !may_be_empty))
      fail("expected a string that is not empty");
    return value_->text;
  }

  // The place of a string among some.
  std::size_t choice(std::initializer_list<const char*> choices) const {
    std::size_t place = 0;
    for (const char* choice : choices) {
      if (value_->kind == Json::Kind::text && value_->text == choice) return place;
      ++place;
    }
    fail("expected one of the values of the format");
  }

  std::uint64_t integer(std::uint64_t low, std::uint64_t high, std::uint64_t of = 1) const {
    const std::int64_t value = value_->integer;
    const auto number = static_cast<std::uint64_t>(value);
    if (value_->kind != Json::Kind::integer || value < 0 || number < low || number > high)
      fail("expected an integer in " + std::to_string(low) + ".." + std::to_string(high));
    if (number % of) fail("expected a multiple of " + std::to_string(of));
    return number;
  }

  // The number of one of `count` things.
  std::size_t index(std::size_t count) const {
    if (!count) fail("it refers to an empty list");
    return static_cast<std::size_t>(integer(0, count - 1));
  }

  double number() const {
    if (value_->kind != Json::Kind::integer && value_->kind != Json::Kind::number)
      fail("expected a number");
    return value_->number;
  }

  bool boolean() const {
    if (value_->kind != Json::Kind::boolean) fail("expected true or false");
    return value_->boolean;
  }

 private:
  const Json* value_;
  std::string where_;
};

// ------------------------------------------------------------------------------- archive

struct Bytes {
  const unsigned char* data = nullptr;
  std::uint64_t size = 0;
};

inline std::uint32_t checksum(Bytes bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
      made[i] = c;
    }
    return made;
  }();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (std::uint64_t i = 0; i < bytes.size; ++i)
    crc = table[(crc ^ bytes.data[i]) & 255] ^ crc >> 8;
  return ~crc;
}

// The entries of a zip archive in which nothing is compressed, each once, with nothing between.
class Archive {
 public:
  Archive(Bytes file, std::string source) : file_(file), source_(std::move(source)) {
    const std::uint64_t at = file_.size - std::min<std::uint64_t>(file_.size, end_size);
    require(at, end_size, "PK\5\6", "the end of a zip archive");
    std::uint64_t end = at, count = u16(at + 10), size = u32(at + 12), offset = u32(at + 16);
    bool parts = u16(at + 4) || u16(at + 6) || u16(at + 8) != count || u16(at + 20);
    if (count == 0xFFFF || size == full || offset == full) {
      if (at < locator_size) fail(at, "the place of a zip64 directory is cut off");
      require(at - locator_size, locator_size, "PK\6\7", "the place of a zip64 directory");
      end = u64(at - locator_size + 8);
      require(end, end64_size, "PK\6\6", "the end of a zip64 directory");
      if (end + end64_size != at - locator_size || u64(end + 4) != end64_size - 12)
        fail(end, "the end of the zip64 directory is not where it should be");
      count = u64(end + 32), size = u64(end + 40), offset = u64(end + 48);
      parts = u32(end + 16) || u32(end + 20) || u64(end + 24) != count;
    }
    if (parts || count > 0xFFFE) fail(at, "the archive has several parts, or a comment");
    if (offset > end || size != end - offset) fail(at, "the directory is not where it should be");
    std::uint64_t place = offset, position = 0;
    for (std::uint64_t i = 0; i < count; ++i) entry(place, position, offset, end);
    if (place != end || position != offset) fail(position, "bytes follow that belong to no entry");
  }

  // The bytes of an entry, whose checksum is right.
  Bytes read(const std::string& name) const {
    const auto found = entries_.find(name);
    if (found == entries_.end()) throw DataError(source_ + ": entry " + name + " is missing");
    if (checksum(found->second.bytes) != found->second.crc)
      throw DataError(where(name) + ": its checksum is wrong; the file is damaged");
    return found->second.bytes;
  }

  std::string where(const std::string& name) const { return source_ + ": " + name; }

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Bytes bytes;
    std::uint32_t crc = 0;
  };

  static constexpr std::uint64_t end_size = 22, locator_size = 20, end64_size = 56;
  static constexpr std::uint64_t central_size = 46, local_size = 30, full = 0xFFFFFFFFu;

  [[noreturn]] void fail(std::uint64_t at, const std::string& what) const {
    throw DataError(source_ + ": byte " + std::to_string(at) + ": " + what +
                    "; the file is damaged, or no program");
  }

  std::uint64_t little(std::uint64_t at, int count) const {
    std::uint64_t value = 0;
    for (int i = count - 1; i >= 0; --i) value = value << 8 | file_.data[at + std::uint64_t(i)];
    return value;
  }
  std::uint64_t u16(std::uint64_t at) const { return little(at, 2); }
  std::uint64_t u32(std::uint64_t at) const { return little(at, 4); }
  std::uint64_t u64(std::uint64_t at) const { return little(at, 8); }

  bool within(std::uint64_t at, std::uint64_t size) const {
    return at <= file_.size && size <= file_.size - at;
  }

  void require(std::uint64_t at, std::uint64_t size, const char* sign, const char* what) const {
    if (!within(at, size)) fail(at, std::string(what) + " is cut off");
    if (std::memcmp(file_.data + at, sign, 4) != 0) fail(at, std::string("expected ") + what);
  }

  // Puts the 64-bit numbers of an extra field in the place of those that are full.
  void widen(std::uint64_t at, std::uint64_t length, std::vector<std::uint64_t*> numbers) const {
    const std::uint64_t end = at + length;
    auto next = numbers.begin();
    while (at + 4 <= end) {
      const std::uint64_t kind = u16(at), size = u16(at + 2);
      at += 4;
      if (size > end - at) fail(at, "an extra field is cut off");
      for (std::uint64_t part = 0; kind == 1 && part + 8 <= size; part += 8) {
        while (next != numbers.end() && **next != full) ++next;
        if (next != numbers.end()) *(*next++) = u64(at + part);
      }
      at += size;
    }
  }

  static bool fit(const std::string& name) {
    bool first = true;  // of a part of the path
    for (const char c : name) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '_';
      if (c == '/' ? first : !(letter || (!first && (c == '.' || c == '-')))) return false;
      first = c == '/';
    }
    return !first;
  }

  void entry(std::uint64_t& place, std::uint64_t& position, std::uint64_t offset,
             std::uint64_t end) {
    require(place, central_size, "PK\1\2", "an entry of the directory");
    const std::uint64_t named = u16(place + 28), extra = u16(place + 30);
    const std::uint64_t names = place + central_size;
    if (named + extra > end - std::min(end, names) || u16(place + 32) || u16(place + 34))
      fail(place, "an entry has a comment, or more than the directory holds");
    const std::string name(reinterpret_cast<const char*>(file_.data) + names, named);
    if (!fit(name)) fail(place, "an entry has a name that no entry may have");
    std::uint64_t size = u32(place + 24), packed = u32(place + 20), at = u32(place + 42);
    widen(names + named, extra, {&size, &packed, &at});
    check_plain(place, u16(place + 8), u16(place + 10), size, packed);
    const auto crc = static_cast<std::uint32_t>(u32(place + 16));
    if (at != position) fail(place, "entry " + name + " is not where it should be");

    require(position, local_size, "PK\3\4", "the header of an entry");
    const std::uint64_t own_named = u16(position + 26), own_extra = u16(position + 28);
    const std::uint64_t own_names = position + local_size;
    if (!within(own_names, own_named + own_extra)) fail(position, "a header is cut off");
    std::uint64_t own_size = u32(position + 22), own_packed = u32(position + 18);
    widen(own_names + own_named, own_extra, {&own_size, &own_packed});
    check_plain(position, u16(position + 6), u16(position + 8), own_size, own_packed);
    const std::string own_name(reinterpret_cast<const char*>(file_.data) + own_names, own_named);
    if (own_name != name || own_size != size || u32(position + 14) != crc)
      fail(position, "the header of entry " + name + " differs from the directory");
    const std::uint64_t start = own_names + own_named + own_extra;
    if (start > offset || size > offset - start) fail(start, "entry " + name + " is cut off");
    if (!entries_.emplace(name, Entry{{file_.data + start, size}, crc}).second)
      fail(place, "entry " + name + " occurs twice in the directory");
    position = start + size;
    place = names + named + extra;
  }

  void check_plain(std::uint64_t at, std::uint64_t flags, std::uint64_t method,
                   std::uint64_t size, std::uint64_t packed) const {
    if (method || size != packed || flags & ~std::uint64_t{0x800})
      fail(at, "an entry is compressed, encrypted or streamed");
  }

  Bytes file_;
  std::string source_;
  std::map<std::string, Entry> entries_;
};

// The tensors of weights.safetensors, by name.
inline std::map<std::string, Bytes> read_tensors(Bytes file, const std::string& where) {
  static const std::map<std::string, std::uint64_t> widths = {
      {"F32", 4}, {"F16", 2}, {"I32", 4}, {"U32", 4}, {"I64", 8}, {"U64", 8}, {"I8", 1}, {"U8", 1}};
  if (file.size < 8) throw DataError(where + ": it is cut off");
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | file.data[i];
  if (length > file.size - 8) throw DataError(where + ": its header is cut off");
  const std::string_view text(reinterpret_cast<const char*>(file.data) + 8, length);
  const Json document = JsonReader(text, where + ": header").read();
  const Bytes data{file.data + 8 + length, file.size - 8 - length};
  std::map<std::string, Bytes> tensors;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const auto& [name, field] : Field(document, where + ": header").mapping()) {
    if (name == "__metadata__") continue;
    const auto given = field.members({"dtype", "shape", "data_offsets"});
    const auto width = widths.find(given.at("dtype").text());
    if (width == widths.end()) given.at("dtype").fail("an unknown data type");
    std::uint64_t bytes = width->second;
    for (const Field& item : given.at("shape").items(8)) {
      const std::uint64_t dimension = item.integer(0, max_size);
      if (dimension && bytes > max_size / dimension) item.fail("the tensor is too large");
      bytes *= dimension;
    }
    const auto offsets = given.at("data_offsets").items(2);
    if (offsets.size() != 2) given.at("data_offsets").fail("expected begin and end");
    const std::uint64_t begin = offsets[0].integer(0, data.size);
    const std::uint64_t end = offsets[1].integer(begin, data.size);
    if (end - begin != bytes)
      given.at("data_offsets").fail("expected as many bytes as the shape has");
    tensors[name] = {data.data + begin, bytes};
    spans.emplace_back(begin, end);
  }
  std::sort(spans.begin(), spans.end());
  std::uint64_t position = 0;
  for (const auto& [begin, end] : spans) {
    if (begin != position) throw DataError(where + ": tensors overlap, or leave bytes out");
    position = end;
  }
  if (position != data.size) throw DataError(where + ": bytes follow that no tensor has");
  return tensors;
}

// ---------------------------------------------------------------------------------- plan

enum class BindingType { read_only_storage, storage, uniform };

struct Binding {
  std::uint32_t number = 0;
  BindingType type = BindingType::storage;
  std::uint64_t min_size = 0;
};

struct Kernel {
  std::string name;
  std::size_t shader = 0;
  std::string entry_point;
  std::vector<std::pair<std::string, double>> constants;
  std::vector<Binding> bindings;
};

struct Contents {
  Bytes tensor;
  std::uint64_t offset = 0;
};

struct Buffer {
  std::uint64_t size = 0;
  bool uniform = false;
  std::vector<Contents> contents;
};

struct Place {
  bool argument = false;  // else a buffer
  std::size_t index = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

struct Step {
  std::size_t kernel = 0;
  std::vector<Place> places;
  std::array<std::uint32_t, 3> workgroups{};
  std::uint64_t times = 1;
};

struct Section {
  std::size_t first = 0;
  std::size_t count = 0;
  std::uint64_t repeat = 1;
};

enum class Adapter { any, hardware, software };

struct Variant {
  Adapter adapter = Adapter::any;
  std::vector<std::string> features;
  std::vector<std::pair<std::string, std::uint64_t>> limits;
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  std::vector<Section> sections;
};

inline std::uint64_t width_of(std::size_t data_type) {
  constexpr std::array<std::uint64_t, 8> widths = {4, 2, 4, 4, 8, 8, 1, 1};
  return widths[data_type];
}

// Limits of WGSL: drivers recurse through what is nested, and expand what is used for each use.
constexpr std::size_t max_wgsl_depth = 512, bracket_depth = 4;
constexpr std::size_t max_wgsl_tokens = std::size_t{1} << 17, max_wgsl_members = 2048;
constexpr std::size_t max_expanded_tokens = std::size_t{1} << 18;

// Refuses shaders that a driver cannot take, or not soon.
class WgslLimits {
 public:
  explicit WgslLimits(const Field& field) : field_(field), code_(field.text()) {
    read_tokens();
    check_nesting();
    read_uses();
    check_expansion();
  }

 private:
  using Token = std::string_view;

  struct Uses {
    std::size_t size = 0;  // tokens
    std::map<Token, std::size_t> counts;
  };

  static bool is_any(std::string_view signs, Token token) {
    return token.size() == 1 && signs.find(token[0]) != std::string_view::npos;
  }

  // Bytes of the line end, or of any other blank, at a place.
  std::size_t line_end(std::size_t at) const {
    if (code_[at] >= '\n' && code_[at] <= '\r') return 1;
    const std::string_view rest = std::string_view(code_).substr(at, 3);
    if (rest.substr(0, 2) == "\xC2\x85") return 2;
    return rest == "\xE2\x80\xA8" || rest == "\xE2\x80\xA9" ? 3 : 0;
  }
  std::size_t blank(std::size_t at) const {
    if (code_[at] == ' ' || code_[at] == '\t') return 1;
    const std::string_view rest = std::string_view(code_).substr(at, 3);
    return rest == "\xE2\x80\x8E" || rest == "\xE2\x80\x8F" ? 3 : line_end(at);
  }

  // Characters that are not ASCII are taken for letters.
  bool in_name(std::size_t at) const {
    const auto byte = static_cast<unsigned char>(code_[at]);
    return is_digit(at) || byte == '_' || (byte >= 'a' && byte <= 'z') ||
           (byte >= 'A' && byte <= 'Z') || (byte >= 0x80 && !blank(at));
  }
  bool is_digit(std::size_t at) const {
    return at < code_.size() && code_[at] >= '0' && code_[at] <= '9';
  }

  std::size_t behind_comment(std::size_t at) const {
    for (std::size_t depth = 1; depth; at += 2) {
      const std::size_t open = code_.find("/*", at), close = code_.find("*/", at);
      if (close == std::string::npos) field_.fail("the WGSL ends within a comment");
      depth += open < close ? 1 : std::size_t(-1);
      at = open < close ? open : close;
    }
    return at;
  }

  void read_tokens() {
    for (std::size_t at = 0; at < code_.size();) {
      const std::size_t begin = at;
      if (const std::size_t length = blank(at)) {
        at += length;
        continue;
      }
      const std::string_view sign = std::string_view(code_).substr(at, 2);
      if (sign == "//") {
        while (at < code_.size() && !line_end(at)) ++at;
        continue;
      }
      if (sign == "/*") {
        at = behind_comment(at + 2);
        continue;
      }
      const bool number = is_digit(at) || (code_[at] == '.' && is_digit(at + 1));
      ++at;
      if (number || in_name(begin))
        while (at < code_.size() && (in_name(at) || (number && code_[at] == '.'))) ++at;
      tokens_.push_back(std::string_view(code_).substr(begin, at - begin));
    }
    if (tokens_.size() > max_wgsl_tokens) field_.fail("the WGSL has too many tokens");
  }

  // Adds up, at each token, the open brackets and what stands before it in each of them.
  void check_nesting() const {
    struct Level {
      std::size_t links = 0, elses = 0, members = 0;
    };
    std::vector<Level> levels(1);
    std::size_t depth = 0;
    bool closed = false;
    for (const Token token : tokens_) {
      if (closed && token != "else") {
        depth -= levels.back().elses;
        levels.back().elses = 0;
      }
      closed = token == "}";
      if (is_any("([{", token)) {
        if (token == "{") {  // what a condition was is no part of the block
          depth -= levels.back().links;
          levels.back().links = 0;
        }
        levels.emplace_back();
        depth += bracket_depth;
      } else if (is_any(")]}", token)) {
        if (levels.size() > 1) {
          depth -= bracket_depth + levels.back().links + levels.back().elses;
          levels.pop_back();
        }
      } else if (is_any(",;", token)) {
        depth -= levels.back().links;
        levels.back().links = 0;
        levels.back().members += token == ",";
        if (levels.back().members >= max_wgsl_members && levels.size() > 1)
          field_.fail("the WGSL has a list of too many members");
      } else if (token == "else") {
        ++levels.back().elses, ++depth;
      } else if (is_any("-+*/%&|^!~<>.=@", token)) {
        ++levels.back().links, ++depth;
      }
      if (depth > max_wgsl_depth) field_.fail("the WGSL is nested too deeply");
    }
  }

  // How often each declaration uses which names.
  void read_uses() {
    Uses begun;
    Token name, before;
    bool declares = false;
    std::size_t depth = 0;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const Token token = tokens_[i];
      ++begun.size;
      if (is_any("([{", token)) {
        ++depth;
      } else if (is_any(")]}", token)) {
        depth -= depth > 0;
      } else if (!declares && !depth && is_kind(token)) {
        declares = true;
      } else if (declares && name.empty() && !is_any("<>,", token) && before != "<" &&
                 before != ",") {
        name = token;  // `var<storage, read_write>` comes before it
      } else if (before != "." && (i + 1 == tokens_.size() || tokens_[i + 1] != ":")) {
        ++begun.counts[token];
      }
      before = token;
      if (depth || !is_any(";}", token)) continue;
      if (!name.empty()) {
        Uses& uses = uses_[name];
        uses.size += begun.size;
        for (const auto& [other, count] : begun.counts) uses.counts[other] += count;
      }
      begun = Uses{}, name = Token{}, declares = false;
    }
  }
  static bool is_kind(Token token) {
    return token == "alias" || token == "const" || token == "fn" || token == "override" ||
           token == "struct" || token == "var";
  }

  // Adds up what each declaration is with those that it uses in their places, depth first.
  void check_expansion() const {
    using Others = std::map<Token, std::size_t>::const_iterator;
    std::map<Token, std::size_t> sizes;
    for (const auto& first : uses_) {
      std::vector<std::pair<Token, Others>> path;
      std::set<Token> open;
      const auto enter = [&](Token name) {
        open.insert(name);
        path.emplace_back(name, uses_.at(name).counts.begin());
      };
      if (!sizes.count(first.first)) enter(first.first);
      while (!path.empty()) {
        auto& [name, other] = path.back();
        const Uses& uses = uses_.at(name);
        while (other != uses.counts.end() &&
               (!uses_.count(other->first) || sizes.count(other->first) || other->first == name))
          ++other;
        if (other != uses.counts.end()) {
          if (open.count(other->first)) field_.fail("the WGSL declares a name by way of itself");
          enter(other->first);
          continue;
        }
        std::size_t size = uses.size;
        for (const auto& [used, count] : uses.counts)
          if (const auto found = sizes.find(used); found != sizes.end())
            size += count * found->second;
        if (size > max_expanded_tokens) field_.fail("the WGSL expands to too many tokens");
        sizes[name] = size;
        open.erase(name);
        path.pop_back();
      }
    }
  }

  const Field& field_;
  const std::string code_;
  std::vector<Token> tokens_;
  std::map<Token, Uses> uses_;
};

}  // namespace detail

// A program as its file holds it, every rule of the format checked; needs no device.
class ProgramFile {
 public:
  // Reads a file. Throws DataError where it breaks a rule, NotSupportedError for later versions.
  static ProgramFile open(const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
      throw Error(path + ": it is no file");  // to open a pipe would wait for a writer
    std::ifstream stream(path, std::ios::binary | std::ios::ate);
    if (!stream) throw Error(path + ": it cannot be opened");
    const std::streamoff size = stream.tellg();
    if (size < 0) throw Error(path + ": it is no file");
    std::vector<unsigned char> bytes(static_cast<std::size_t>(size));
    stream.seekg(0);
    if (size && !stream.read(reinterpret_cast<char*>(bytes.data()), size))
      throw Error(path + ": it cannot be read");
    return ProgramFile(std::move(bytes), path);
  }

  // Args: bytes: the whole file; source: what messages call it.
  ProgramFile(std::vector<unsigned char> bytes, const std::string& source)
      : bytes_(std::move(bytes)) {
    const detail::Archive archive({bytes_.data(), bytes_.size()}, source);
    const detail::Bytes text = archive.read("program.json");
    const detail::Bytes weights = archive.read("weights.safetensors");
    if (archive.size() != 2) throw DataError(source + ": it has other entries than a program");
    tensors_ = detail::read_tensors(weights, archive.where("weights.safetensors"));
    const std::string where = archive.where("program.json");
    const std::string_view json(reinterpret_cast<const char*>(text.data), text.size);
    const detail::Json document = detail::JsonReader(json, where).read();
    read(detail::Field(document, where));
  }

  ProgramFile(ProgramFile&&) = default;  // tensors are views of bytes, which keep their place
  ProgramFile& operator=(ProgramFile&&) = default;
  ProgramFile(const ProgramFile&) = delete;
  ProgramFile& operator=(const ProgramFile&) = delete;

  const std::vector<Argument>& arguments() const { return arguments_; }
  const std::vector<std::string>& shaders() const { return shaders_; }
  const std::vector<detail::Kernel>& kernels() const { return kernels_; }
  const std::vector<detail::Variant>& variants() const { return variants_; }

 private:
  using Field = detail::Field;

  void read(const Field& document) {
    const auto head = document.mapping();
    if (!head.count("format") || !head.count("version"))
      document.fail("members 'format' and 'version' are missing");
    head.at("format").choice({"webnn-program"});
    if (head.at("version").integer(1, detail::max_size) != 1)
      throw NotSupportedError("the file has a later version of the format than this reader");
    const auto given = document.members(
        {"format", "version", "producer", "arguments", "shaders", "kernels", "variants"});
    given.at("producer").text(true);
    std::set<std::string> names;
    for (const Field& item : given.at("arguments").items()) {
      arguments_.push_back(argument(item));
      if (!names.insert(arguments_.back().name).second)
        item.fail("two arguments have the same name");
    }
    for (const Field& item : given.at("shaders").items()) {
      detail::WgslLimits{item};
      shaders_.push_back(item.text());
    }
    for (const Field& item : given.at("kernels").items()) kernels_.push_back(kernel(item));
    for (const Field& item : given.at("variants").items()) variants_.push_back(variant(item));
    if (variants_.empty()) given.at("variants").fail("expected at least one variant");
  }

  static Argument argument(const Field& field) {
    const auto given =
        field.members({"name", "data_type", "shape", "size", "access", "required"});
    Argument made;
    made.name = given.at("name").text();
    made.bytes = detail::width_of(given.at("data_type").choice(
        {"float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"}));
    made.data_type = given.at("data_type").text();
    for (const Field& item : given.at("shape").items(8)) {
      made.shape.push_back(item.integer(1, detail::max_tensor));
      if (made.bytes > detail::max_tensor / made.shape.back())
        given.at("shape").fail("the tensor is too large");
      made.bytes *= made.shape.back();
    }
    made.size = (made.bytes + 3) / 4 * 4;
    if (given.at("size").integer(4, detail::max_size) != made.size)
      given.at("size").fail("expected " + std::to_string(made.size));
    constexpr std::array<Access, 3> accesses = {Access::read, Access::write, Access::read_write};
    made.access = accesses[given.at("access").choice({"read", "write", "read-write"})];
    made.required = given.at("required").boolean();
    if (made.access != Access::read_write && made.required != (made.access == Access::read))
      given.at("required").fail("expected true if it is only read, false if it is only written");
    return made;
  }

  detail::Kernel kernel(const Field& field) const {
    const auto given = field.members({"name", "shader", "entry_point", "constants", "bindings"});
    detail::Kernel made;
    made.name = given.at("name").text();
    made.shader = given.at("shader").index(shaders_.size());
    made.entry_point = given.at("entry_point").text();
    for (const auto& [name, value] : given.at("constants").mapping())
      made.constants.emplace_back(name, value.number());
    for (const Field& item : given.at("bindings").items()) {
      const auto layout = item.members({"binding", "type", "min_size"});
      detail::Binding binding;
      binding.number = static_cast<std::uint32_t>(layout.at("binding").integer(0, 999));
      binding.type = static_cast<detail::BindingType>(
          layout.at("type").choice({"read-only-storage", "storage", "uniform"}));
      binding.min_size = layout.at("min_size").integer(4, detail::max_size, 4);
      if (!made.bindings.empty() && made.bindings.back().number >= binding.number)
        item.fail("binding numbers must increase");
      made.bindings.push_back(binding);
    }
    return made;
  }

  detail::Variant variant(const Field& field) const {
    const auto given =
        field.members({"adapter", "features", "limits", "buffers", "steps", "sections"});
    detail::Variant made;
    made.adapter = static_cast<detail::Adapter>(
        given.at("adapter").choice({"any", "hardware", "software"}));
    for (const Field& item : given.at("features").items()) made.features.push_back(item.text());
    for (const auto& [name, value] : given.at("limits").mapping())
      made.limits.emplace_back(name, value.integer(1, detail::max_size));
    for (const Field& item : given.at("buffers").items()) made.buffers.push_back(buffer(item));
    for (const Field& item : given.at("steps").items()) made.steps.push_back(step(item, made));
    std::uint64_t dispatches = 0;
    for (const Field& item : given.at("sections").items()) {
      const auto part = item.members({"first", "count", "repeat"});
      detail::Section section;
      section.first = part.at("first").index(made.steps.size());
      section.count = part.at("count").integer(1, made.steps.size() - section.first);
      section.repeat = part.at("repeat").integer(1, detail::max_dispatches);
      for (std::size_t i = 0; i < section.count; ++i) {
        dispatches += made.steps[section.first + i].times * section.repeat;
        if (dispatches > detail::max_dispatches) item.fail("too many dispatches");
      }
      made.sections.push_back(section);
    }
    if (!dispatches) given.at("sections").fail("got 0 dispatches, expected at least 1");
    std::vector<std::uint64_t> ends(made.buffers.size());
    for (const detail::Step& each : made.steps)
      for (const detail::Place& place : each.places)
        if (!place.argument)
          ends[place.index] = std::max(ends[place.index], place.offset + place.size);
    for (std::size_t i = 0; i < ends.size(); ++i)
      if (ends[i] != made.buffers[i].size)
        given.at("buffers").fail("buffer " + std::to_string(i) + " has another size than steps use");
    return made;
  }

  detail::Buffer buffer(const Field& field) const {
    const auto given = field.members({"size", "usage", "contents"});
    detail::Buffer made;
    made.size = given.at("size").integer(4, detail::max_size, 4);
    made.uniform = given.at("usage").choice({"storage", "uniform"}) == 1;
    for (const Field& item : given.at("contents").items()) {
      const auto part = item.members({"tensor", "offset"});
      const auto tensor = tensors_.find(part.at("tensor").text(true));
      if (tensor == tensors_.end())
        part.at("tensor").fail("expected the name of a tensor of this file");
      const std::uint64_t offset =
          part.at("offset").integer(0, made.size, detail::place_alignment);
      if (tensor->second.size > made.size - offset) item.fail("its bytes exceed the buffer");
      made.contents.push_back({tensor->second, offset});
    }
    return made;
  }

  detail::Step step(const Field& field, const detail::Variant& variant) const {
    const auto given = field.members({"kernel", "places", "workgroups", "times"});
    detail::Step made;
    made.kernel = given.at("kernel").index(kernels_.size());
    const auto& bindings = kernels_[made.kernel].bindings;
    const auto places = given.at("places").items();
    if (places.size() != bindings.size())
      given.at("places").fail("expected one place for each binding of the kernel");
    for (const Field& item : places) made.places.push_back(place(item, variant));
    for (std::size_t i = 0; i < places.size(); ++i) {
      const detail::Place& bound = made.places[i];
      if (bound.size < bindings[i].min_size)
        places[i].fail("it has fewer bytes than the kernel needs");
      const bool uniform = !bound.argument && variant.buffers[bound.index].uniform;
      if (uniform != (bindings[i].type == detail::BindingType::uniform))
        places[i].fail("a uniform buffer is bound as storage, or a storage buffer as uniform");
      if (bindings[i].type != detail::BindingType::storage) continue;
      if (bound.argument && !arguments_[bound.index].written())
        places[i].fail("a kernel writes an argument that is read-only");
      for (std::size_t j = 0; j < places.size(); ++j)
        if (j != i && made.places[j].argument == bound.argument &&
            made.places[j].index == bound.index)
          places[i].fail("a step binds memory twice that it writes");
    }
    const auto workgroups = given.at("workgroups").items(3);
    if (workgroups.size() != 3) given.at("workgroups").fail("expected three numbers");
    for (std::size_t i = 0; i < 3; ++i)
      made.workgroups[i] = static_cast<std::uint32_t>(workgroups[i].integer(1, 0xFFFFFFFFu));
    made.times = given.at("times").integer(1, detail::max_dispatches);
    return made;
  }

  detail::Place place(const Field& field, const detail::Variant& variant) const {
    detail::Place made;
    made.argument = field.mapping().count("argument") != 0;
    const auto given =
        field.members({made.argument ? "argument" : "buffer", "offset", "size"});
    std::uint64_t end;
    if (made.argument) {
      made.index = given.at("argument").index(arguments_.size());
      end = arguments_[made.index].size;
    } else {
      made.index = given.at("buffer").index(variant.buffers.size());
      end = variant.buffers[made.index].size;
    }
    made.offset = given.at("offset").integer(0, detail::max_size, detail::place_alignment);
    made.size = given.at("size").integer(4, detail::max_size, 4);
    if (made.offset + made.size > end) field.fail("its bytes exceed the argument or buffer");
    return made;
  }

  std::vector<unsigned char> bytes_;
  std::map<std::string, detail::Bytes> tensors_;
  std::vector<Argument> arguments_;
  std::vector<std::string> shaders_;
  std::vector<detail::Kernel> kernels_;
  std::vector<detail::Variant> variants_;
};

// --------------------------------------------------------------------------------- running

// What an argument is given as: memory of the host, or a buffer of the device.
struct Resource {
  void* memory = nullptr;          // read, and written if the program writes the argument
  const void* contents = nullptr;  // of memory that may only be read
  std::uint64_t bytes = 0;
  WGPUBuffer buffer = nullptr;
  std::uint64_t offset = 0;  // in the buffer, in bytes, a multiple of 256
};

using Arguments = std::map<std::string, Resource>;

// Memory of the host that a run may read and write.
inline Resource host(void* memory, std::uint64_t bytes) { return {memory, memory, bytes}; }
// Memory of the host for an argument that a program only reads.
inline Resource host(const void* memory, std::uint64_t bytes) { return {nullptr, memory, bytes}; }
template <typename T, std::size_t n>
Resource host(T (&array)[n]) {
  return host(&array[0], sizeof(array));
}
template <typename T>
Resource host(std::vector<T>& values) {
  return host(values.data(), values.size() * sizeof(T));
}
template <typename T>
Resource host(const std::vector<T>& values) {
  return host(values.data(), values.size() * sizeof(T));
}
// A buffer of usage STORAGE, from an offset on.
inline Resource on_device(WGPUBuffer buffer, std::uint64_t offset = 0) {
  Resource made;
  made.buffer = buffer, made.offset = offset;
  return made;
}

namespace detail {

// Owns an object of WebGPU's.
template <typename T, void (*release)(T)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T object) : object_(object) {}
  Handle(Handle&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Handle() {
    if (object_) release(object_);
  }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

using BufferHandle = Handle<WGPUBuffer, wgpuBufferRelease>;
using GroupHandle = Handle<WGPUBindGroup, wgpuBindGroupRelease>;
using LayoutHandle = Handle<WGPUBindGroupLayout, wgpuBindGroupLayoutRelease>;
using PipelineHandle = Handle<WGPUComputePipeline, wgpuComputePipelineRelease>;
using ModuleHandle = Handle<WGPUShaderModule, wgpuShaderModuleRelease>;
using PipelineLayoutHandle = Handle<WGPUPipelineLayout, wgpuPipelineLayoutRelease>;
using EncoderHandle = Handle<WGPUCommandEncoder, wgpuCommandEncoderRelease>;
using CommandsHandle = Handle<WGPUCommandBuffer, wgpuCommandBufferRelease>;
using PassHandle = Handle<WGPUComputePassEncoder, wgpuComputePassEncoderRelease>;

inline WGPUStringView view(std::string_view text) { return {text.data(), text.size()}; }

inline std::string text_of(WGPUStringView given) {
  if (!given.data) return "";
  return given.length == WGPU_STRLEN ? std::string(given.data)
                                     : std::string(given.data, given.length);
}

// What is done until a callback came.
using Pump = std::function<void()>;

// Collects what the device finds wrong until `check`.
class Scope {
 public:
  Scope(WGPUDevice device, const Pump& pump, std::string what)
      : device_(device), pump_(pump), what_(std::move(what)) {
    for (const WGPUErrorFilter filter : filters) wgpuDevicePushErrorScope(device_, filter);
  }
  Scope(const Scope&) = delete;
  ~Scope() {
    if (open_) pop();
  }

  // Throws an OperationError if there was an error.
  void check() {
    const std::string message = pop();
    if (!message.empty()) throw OperationError(what_ + ": " + message);
  }

 private:
  static constexpr WGPUErrorFilter filters[] = {
#ifndef WEBNN_WGPU_NATIVE  // it ends the process over this filter
      WGPUErrorFilter_Internal,
#endif
      WGPUErrorFilter_OutOfMemory, WGPUErrorFilter_Validation};

  struct Popped {
    bool done = false;
    std::string message;
  };

  std::string pop() {
    open_ = false;
    std::string all;
    for (std::size_t i = 0; i < std::size(filters); ++i) {
      auto popped = std::make_unique<Popped>();
      WGPUPopErrorScopeCallbackInfo info{};
      info.mode = WGPUCallbackMode_AllowProcessEvents;
      info.userdata1 = popped.get();
      info.callback = [](WGPUPopErrorScopeStatus, WGPUErrorType type, WGPUStringView message,
                         void* user, void*) {
        auto& result = *static_cast<Popped*>(user);
        if (type != WGPUErrorType_NoError) result.message = text_of(message) + " ";
        result.done = true;
      };
      wgpuDevicePopErrorScope(device_, info);
      while (!popped->done) pump_();
      all += popped->message;
    }
    return all;
  }

  WGPUDevice device_;
  const Pump& pump_;
  std::string what_;
  bool open_ = true;
};

inline bool has_feature(WGPUDevice device, const std::string& name) {
  if (name == "shader-f16") return wgpuDeviceHasFeature(device, WGPUFeatureName_ShaderF16);
#ifdef WEBNN_WGPU_NATIVE
  const auto native = [device](WGPUNativeFeature feature) {
    return wgpuDeviceHasFeature(device, static_cast<WGPUFeatureName>(feature)) != 0;
  };
  if (name == "shader-int64") return native(WGPUNativeFeature_ShaderInt64);
  if (name == "subgroups") return native(WGPUNativeFeature_Subgroup);
#else
  if (name == "subgroups") return wgpuDeviceHasFeature(device, WGPUFeatureName_Subgroups);
#endif
  return false;  // nothing else changes what compute kernels can do
}

// Takes `subgroups` out of directives that enable it, which wgpu-native refuses, though it has it.
inline void drop_subgroups(std::string& code) {
  constexpr std::string_view word = "subgroups", directive = "enable", spaces = " \t\r\n";
  const auto in_name = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  for (std::size_t at = 0; (at = code.find(directive, at)) != std::string::npos;) {
    const std::size_t begin = at;
    at += directive.size();
    if ((begin && in_name(code[begin - 1])) || spaces.find(code[at]) == std::string_view::npos)
      continue;
    std::vector<std::pair<std::size_t, std::size_t>> names;  // begin and end
    std::size_t end = at;
    for (bool more = true; more; end += more) {
      names.emplace_back(code.find_first_not_of(spaces, end), 0);
      if (names.back().first == std::string::npos) return;
      for (end = names.back().first; end < code.size() && in_name(code[end]);) ++end;
      names.back().second = end;
      end = code.find_first_not_of(spaces, end);
      if (end == std::string::npos) return;
      more = code[end] == ',';
    }
    if (code[end] != ';') continue;
    std::string kept;
    for (const auto& [first, last] : names) {
      const std::string name = code.substr(first, last - first);
      if (!name.empty() && name != word) kept += (kept.empty() ? "" : ", ") + name;
    }
    const std::string made = kept.empty() ? "" : std::string(directive) + " " + kept + ";";
    code.replace(begin, end + 1 - begin, made);
    at = begin + made.size();
  }
}

inline std::optional<std::uint64_t> limit_of(const WGPULimits& limits, const std::string& name) {
  const std::map<std::string, std::uint64_t> known = {
      {"maxBufferSize", limits.maxBufferSize},
      {"maxStorageBufferBindingSize", limits.maxStorageBufferBindingSize},
      {"maxUniformBufferBindingSize", limits.maxUniformBufferBindingSize},
      {"maxStorageBuffersPerShaderStage", limits.maxStorageBuffersPerShaderStage},
      {"maxUniformBuffersPerShaderStage", limits.maxUniformBuffersPerShaderStage},
      {"maxComputeWorkgroupStorageSize", limits.maxComputeWorkgroupStorageSize},
      {"maxComputeInvocationsPerWorkgroup", limits.maxComputeInvocationsPerWorkgroup},
      {"maxComputeWorkgroupSizeX", limits.maxComputeWorkgroupSizeX},
      {"maxComputeWorkgroupSizeY", limits.maxComputeWorkgroupSizeY},
      {"maxComputeWorkgroupSizeZ", limits.maxComputeWorkgroupSizeZ},
      {"maxComputeWorkgroupsPerDimension", limits.maxComputeWorkgroupsPerDimension},
  };
  const auto found = known.find(name);
  if (found == known.end()) return std::nullopt;
  return found->second;
}

// Whether a program plays the GPU, as far as that can be told.
inline bool is_software(WGPUDevice device, WGPUAdapter adapter) {
  WGPUAdapterInfo info{};
#ifdef WEBNN_WGPU_NATIVE
  (void)device;  // wgpuDeviceGetAdapterInfo is not implemented
  if (!adapter || wgpuAdapterGetInfo(adapter, &info) != WGPUStatus_Success) return false;
#else
  const WGPUStatus status = adapter ? wgpuAdapterGetInfo(adapter, &info)
                                    : wgpuDeviceGetAdapterInfo(device, &info);
  if (status != WGPUStatus_Success) return false;
#endif
  const bool found = info.adapterType == WGPUAdapterType_CPU;
  wgpuAdapterInfoFreeMembers(info);
  return found;
}

// The limits that a variant needs: those that it tells, and what its sizes ask for.
inline std::map<std::string, std::uint64_t> needed_limits(const ProgramFile& file,
                                                          const Variant& variant) {
  std::map<std::string, std::uint64_t> needed(variant.limits.begin(), variant.limits.end());
  const auto need = [&needed](const char* name, std::uint64_t value) {
    std::uint64_t& known = needed[name];
    known = std::max(known, value);
  };
  for (const Argument& argument : file.arguments()) need("maxBufferSize", argument.size);
  for (const Buffer& buffer : variant.buffers) need("maxBufferSize", buffer.size);
  for (const Step& step : variant.steps) {
    const auto& bindings = file.kernels()[step.kernel].bindings;
    std::uint64_t storage = 0, uniform = 0;
    for (std::size_t i = 0; i < bindings.size(); ++i) {
      const bool is_uniform = bindings[i].type == BindingType::uniform;
      ++(is_uniform ? uniform : storage);
      need(is_uniform ? "maxUniformBufferBindingSize" : "maxStorageBufferBindingSize",
           step.places[i].size);
    }
    need("maxStorageBuffersPerShaderStage", storage);
    need("maxUniformBuffersPerShaderStage", uniform);
    for (const std::uint32_t count : step.workgroups)
      need("maxComputeWorkgroupsPerDimension", count);
  }
  return needed;
}

// What a device lacks for a variant, in words; empty if it can run it.
inline std::string lacking(WGPUDevice device, const WGPULimits& limits, bool software,
                           const ProgramFile& file, const Variant& variant) {
  std::string missing;
  const auto add = [&missing](const std::string& what) {
    missing += (missing.empty() ? "" : ", ") + what;
  };
  if (variant.adapter == (software ? Adapter::hardware : Adapter::software))
    add(software ? "a hardware adapter" : "a software adapter");
  for (const std::string& name : variant.features)
    if (!has_feature(device, name)) add("the feature " + name);
  for (const auto& [name, value] : needed_limits(file, variant)) {
    const auto has = limit_of(limits, name);
    if (!has)
      add("the limit " + name + ", which this reader does not know");
    else if (*has < value)
      add(name + " of " + std::to_string(value) + " (it has " + std::to_string(*has) + ")");
  }
  return missing;
}

// Where an argument lies on the device.
struct Bound {
  WGPUBuffer buffer;
  std::uint64_t offset;

  bool operator==(const Bound& other) const {
    return buffer == other.buffer && offset == other.offset;
  }
};

}  // namespace detail

// What a program is loaded with, besides the device.
struct Options {
  // The device's adapter. Some files have other kernels for adapters that are programs, such as
  // SwiftShader; wgpu-native tells of these only by the adapter.
  WGPUAdapter adapter = nullptr;
  // Lets the WebGPU implementation call back; needed where it is not wgpu-native.
  std::function<void()> process_events;
};

// A program on a device: pipelines, its own buffers, bind groups. Runs change its own buffers, which
// keep what they hold from run to run. One thread at a time may use it.
class Program {
 public:
  // Args: device: kept alive; path: of the file. Throws what ProgramFile::open does, a
  // NotSupportedError that tells what the device lacks, an OperationError where it fails.
  static Program load(WGPUDevice device, const std::string& path, const Options& options = {}) {
    return Program(device, ProgramFile::open(path), options);
  }

  Program(WGPUDevice device, const ProgramFile& file, const Options& options = {})
      : device_(device), pump_(options.process_events), arguments_(file.arguments()) {
    if (!pump_) {
#ifdef WEBNN_WGPU_NATIVE
      pump_ = [device] { wgpuDevicePoll(device, 1, nullptr); };
#else
      throw Error("Options::process_events is needed with this implementation of WebGPU");
#endif
    }
    choose(file, options.adapter);
    wgpuDeviceAddRef(device_);
    owner_ = DeviceHandle(device_);
    make_pipelines(file);
    make_buffers();
  }

  const std::vector<Argument>& arguments() const { return arguments_; }

  // Records one run into an encoder with no open pass. Every argument is given, as a buffer of its
  // `size` or more; what is written shares no memory with another.
  void encode(WGPUCommandEncoder encoder, const Arguments& given) {
    std::vector<detail::Bound> places;
    for (const Argument& argument : arguments_) {
      const auto found = given.find(argument.name);
      if (found == given.end() || !found->second.buffer)
        throw Error("argument '" + argument.name + "': expected a buffer of the device");
      places.push_back(checked(argument, found->second));
    }
    check_names(given);
    check_apart(places);
    record(encoder, places);
  }

  // Runs once and waits. What the program writes is written into what is given; what may be left out
  // need not be given.
  void run(const Arguments& given) {
    check_names(given);
    std::vector<detail::Bound> places;
    std::vector<Download> downloads;
    detail::Scope scope(device_, pump_, "running a program");
    const WGPUQueue queue = wgpuDeviceGetQueue(device_);
    const QueueHandle keep(queue);
    const detail::EncoderHandle encoder(wgpuDeviceCreateCommandEncoder(device_, nullptr));
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const Argument& argument = arguments_[i];
      const auto found = given.find(argument.name);
      if (found != given.end() && found->second.buffer) {
        places.push_back(checked(argument, found->second));
        continue;
      }
      const detail::Bound place{own(i), 0};
      places.push_back(place);
      if (found == given.end()) {
        if (argument.required) throw Error("argument '" + argument.name + "' is missing");
        if (argument.access == Access::read_write)
          wgpuCommandEncoderClearBuffer(encoder.get(), place.buffer, 0, argument.size);
        continue;
      }
      const Resource& memory = found->second;
      if (memory.bytes != argument.bytes)
        throw Error("argument '" + argument.name + "': " + std::to_string(memory.bytes) +
                    " bytes, expected " + std::to_string(argument.bytes));
      if (argument.access != Access::write) upload(queue, place.buffer, memory);
      if (!argument.written()) continue;
      if (!memory.memory) throw Error("argument '" + argument.name + "' is written, not only read");
      downloads.push_back({i, memory.memory});
    }
    check_apart(places);
    record(encoder.get(), places);
    for (const Download& each : downloads)
      wgpuCommandEncoderCopyBufferToBuffer(encoder.get(), places[each.argument].buffer, 0,
                                           staging(each.argument), 0,
                                           arguments_[each.argument].size);
    const detail::CommandsHandle commands(wgpuCommandEncoderFinish(encoder.get(), nullptr));
    scope.check();  // wgpu-native ends the process over commands that are not valid
    detail::Scope submitting(device_, pump_, "running a program");
    wgpuQueueSubmit(queue, 1, std::array{commands.get()}.data());
    submitting.check();
    if (downloads.empty()) wait(queue);
    for (const Download& each : downloads) read(each);
  }

 private:
  using DeviceHandle = detail::Handle<WGPUDevice, wgpuDeviceRelease>;
  using QueueHandle = detail::Handle<WGPUQueue, wgpuQueueRelease>;

  struct Download {
    std::size_t argument;
    void* memory;
  };

  void choose(const ProgramFile& file, WGPUAdapter adapter) {
    WGPULimits limits{};
    wgpuDeviceGetLimits(device_, &limits);
    const bool software = detail::is_software(device_, adapter);
    std::string said;
    for (const detail::Variant& variant : file.variants()) {
      const std::string missing = detail::lacking(device_, limits, software, file, variant);
      if (missing.empty()) {
        variant_ = variant;
        return;
      }
      said += (said.empty() ? "" : "; ") + std::string("variant ") +
              std::to_string(&variant - file.variants().data()) + " needs " + missing;
    }
    throw NotSupportedError("this device cannot run the program: " + said);
  }

  void make_pipelines(const ProgramFile& file) {
    kernels_ = file.kernels();
    for (const detail::Step& step : variant_.steps) {
      if (pipelines_.count(step.kernel)) continue;
      const detail::Kernel& kernel = kernels_[step.kernel];
      detail::Scope scope(device_, pump_, "compiling the kernel " + kernel.name);
      layouts_[step.kernel] = layout_of(kernel);
      pipelines_[step.kernel] =
          pipeline_of(kernel, file.shaders()[kernel.shader], layouts_[step.kernel].get());
      scope.check();
    }
  }

  detail::LayoutHandle layout_of(const detail::Kernel& kernel) const {
    constexpr std::array<WGPUBufferBindingType, 3> types = {
        WGPUBufferBindingType_ReadOnlyStorage, WGPUBufferBindingType_Storage,
        WGPUBufferBindingType_Uniform};
    std::vector<WGPUBindGroupLayoutEntry> entries;
    for (const detail::Binding& binding : kernel.bindings) {
      WGPUBindGroupLayoutEntry entry{};
      entry.binding = binding.number;
      entry.visibility = WGPUShaderStage_Compute;
      entry.buffer.type = types[static_cast<std::size_t>(binding.type)];
      entry.buffer.minBindingSize = binding.min_size;
      entries.push_back(entry);
    }
    WGPUBindGroupLayoutDescriptor descriptor{};
    descriptor.entryCount = entries.size();
    descriptor.entries = entries.data();
    return detail::LayoutHandle(wgpuDeviceCreateBindGroupLayout(device_, &descriptor));
  }

  detail::PipelineHandle pipeline_of(const detail::Kernel& kernel, std::string code,
                                     WGPUBindGroupLayout layout) const {
#ifdef WEBNN_WGPU_NATIVE
    detail::drop_subgroups(code);
#endif
    WGPUShaderSourceWGSL source{};
    source.chain.sType = WGPUSType_ShaderSourceWGSL;
    source.code = detail::view(code);
    WGPUShaderModuleDescriptor module_descriptor{};
    module_descriptor.nextInChain = &source.chain;
    module_descriptor.label = detail::view(kernel.name);
    const detail::ModuleHandle module(wgpuDeviceCreateShaderModule(device_, &module_descriptor));
    WGPUPipelineLayoutDescriptor layout_descriptor{};
    layout_descriptor.bindGroupLayoutCount = 1;
    layout_descriptor.bindGroupLayouts = &layout;
    const detail::PipelineLayoutHandle pipeline_layout(
        wgpuDeviceCreatePipelineLayout(device_, &layout_descriptor));
    std::vector<WGPUConstantEntry> constants;
    for (const auto& [name, value] : kernel.constants)
      constants.push_back({nullptr, detail::view(name), value});
    WGPUComputePipelineDescriptor descriptor{};
    descriptor.label = detail::view(kernel.name);
    descriptor.layout = pipeline_layout.get();
    descriptor.compute.module = module.get();
    descriptor.compute.entryPoint = detail::view(kernel.entry_point);
    descriptor.compute.constantCount = constants.size();
    descriptor.compute.constants = constants.data();
    return detail::PipelineHandle(wgpuDeviceCreateComputePipeline(device_, &descriptor));
  }

  detail::BufferHandle buffer_of(std::uint64_t size, WGPUBufferUsage usage, bool mapped) const {
    WGPUBufferDescriptor descriptor{};
    descriptor.size = size;
    descriptor.usage = usage;
    descriptor.mappedAtCreation = mapped;
    return detail::BufferHandle(wgpuDeviceCreateBuffer(device_, &descriptor));
  }

  void make_buffers() {
    const std::string what = "making the buffers of a program";
    detail::Scope making(device_, pump_, what);
    for (const detail::Buffer& planned : variant_.buffers)
      buffers_.push_back(
          buffer_of(planned.size, planned.uniform ? WGPUBufferUsage_Uniform : WGPUBufferUsage_Storage,
                    !planned.contents.empty()));
    making.check();  // wgpu-native ends the process where one that could not be made is filled
    detail::Scope filling(device_, pump_, what);
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const detail::Buffer& planned = variant_.buffers[i];
      if (planned.contents.empty()) continue;
      const WGPUBuffer buffer = buffers_[i].get();
      auto* memory =
          static_cast<unsigned char*>(wgpuBufferGetMappedRange(buffer, 0, planned.size));
      if (!memory) filling.check();
      if (!memory) throw OperationError(what + ": no memory");
      for (const detail::Contents& part : planned.contents)
        if (part.tensor.size) std::memcpy(memory + part.offset, part.tensor.data, part.tensor.size);
      wgpuBufferUnmap(buffer);
    }
    filling.check();
    for (detail::Buffer& planned : variant_.buffers) planned.contents.clear();  // views of the file
    io_.resize(arguments_.size());
    staging_.resize(arguments_.size());
    fixed_.resize(variant_.steps.size());
  }

  void check_names(const Arguments& given) const {
    for (const auto& [name, resource] : given) {
      const bool known = std::any_of(arguments_.begin(), arguments_.end(),
                                     [&name = name](const Argument& a) { return a.name == name; });
      if (!known) throw Error("argument '" + name + "': the program has no argument of this name");
    }
  }

  static detail::Bound checked(const Argument& argument, const Resource& given) {
    const std::uint64_t size = wgpuBufferGetSize(given.buffer);
    const std::string what = "argument '" + argument.name + "': ";
    if (given.offset % detail::place_alignment)
      throw Error(what + "its offset is no multiple of 256");
    if (given.offset > size || size - given.offset < argument.size)
      throw Error(what + "a buffer of " + std::to_string(size) + " bytes, expected " +
                  std::to_string(argument.size) + " from " + std::to_string(given.offset));
    if (!(wgpuBufferGetUsage(given.buffer) & WGPUBufferUsage_Storage))
      throw Error(what + "the buffer's usage lacks STORAGE");
    return {given.buffer, given.offset};
  }

  void check_apart(const std::vector<detail::Bound>& places) const {
    for (std::size_t i = 0; i < places.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (places[i].buffer == places[j].buffer &&
            (arguments_[i].written() || arguments_[j].written()))
          throw Error("arguments '" + arguments_[j].name + "' and '" + arguments_[i].name +
                      "' are in one buffer, and one of them is written");
  }

  WGPUBuffer own(std::size_t argument) {
    detail::BufferHandle& found = io_[argument];
    if (!found.get())
      found = buffer_of(arguments_[argument].size,
                        WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst,
                        false);
    return found.get();
  }

  WGPUBuffer staging(std::size_t argument) {
    detail::BufferHandle& found = staging_[argument];
    if (!found.get())
      found = buffer_of(arguments_[argument].size,
                        WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst, false);
    return found.get();
  }

  static void upload(WGPUQueue queue, WGPUBuffer buffer, const Resource& given) {
    const std::uint64_t whole = given.bytes / 4 * 4;
    if (whole) wgpuQueueWriteBuffer(queue, buffer, 0, given.contents, whole);
    if (whole == given.bytes) return;
    std::array<unsigned char, 4> rest{};
    std::memcpy(rest.data(), static_cast<const unsigned char*>(given.contents) + whole,
                given.bytes - whole);
    wgpuQueueWriteBuffer(queue, buffer, whole, rest.data(), rest.size());
  }

  detail::GroupHandle group_of(const detail::Step& step,
                               const std::vector<detail::Bound>& places) const {
    std::vector<WGPUBindGroupEntry> entries;
    for (std::size_t i = 0; i < step.places.size(); ++i) {
      const detail::Place& place = step.places[i];
      WGPUBindGroupEntry entry{};
      entry.binding = kernels_[step.kernel].bindings[i].number;
      entry.buffer = place.argument ? places[place.index].buffer : buffers_[place.index].get();
      entry.offset = place.offset + (place.argument ? places[place.index].offset : 0);
      entry.size = place.size;
      entries.push_back(entry);
    }
    WGPUBindGroupDescriptor descriptor{};
    descriptor.layout = layouts_.at(step.kernel).get();
    descriptor.entryCount = entries.size();
    descriptor.entries = entries.data();
    return detail::GroupHandle(wgpuDeviceCreateBindGroup(device_, &descriptor));
  }

  // Bind groups of the last run serve the next one over the same buffers, which are kept till then.
  void bind(const std::vector<detail::Bound>& places) {
    const bool same = places == bound_;
    for (std::size_t i = 0; i < variant_.steps.size(); ++i) {
      const auto& used = variant_.steps[i].places;
      const bool given = std::any_of(used.begin(), used.end(),
                                     [](const detail::Place& place) { return place.argument; });
      if (!fixed_[i].get() || (given && !same)) fixed_[i] = group_of(variant_.steps[i], places);
    }
    if (same) return;
    std::vector<detail::BufferHandle> kept;
    for (const detail::Bound& place : places) {
      wgpuBufferAddRef(place.buffer);
      kept.emplace_back(place.buffer);
    }
    kept_ = std::move(kept);
    bound_ = places;
  }

  void record(WGPUCommandEncoder encoder, const std::vector<detail::Bound>& places) {
    bind(places);
    const detail::PassHandle pass(wgpuCommandEncoderBeginComputePass(encoder, nullptr));
    std::size_t set = SIZE_MAX;  // the kernel whose pipeline is set
    for (const detail::Section& section : variant_.sections)
      for (std::uint64_t repeat = 0; repeat < section.repeat; ++repeat)
        for (std::size_t i = section.first; i < section.first + section.count; ++i) {
          const detail::Step& step = variant_.steps[i];
          if (set != step.kernel)
            wgpuComputePassEncoderSetPipeline(pass.get(), pipelines_.at(step.kernel).get());
          set = step.kernel;
          wgpuComputePassEncoderSetBindGroup(pass.get(), 0, fixed_[i].get(), 0, nullptr);
          for (std::uint64_t time = 0; time < step.times; ++time)
            wgpuComputePassEncoderDispatchWorkgroups(pass.get(), step.workgroups[0],
                                                     step.workgroups[1], step.workgroups[2]);
        }
    wgpuComputePassEncoderEnd(pass.get());
  }

  struct Arrived {
    bool done = false;
    bool failed = false;
    std::string message;
  };

  void wait(WGPUQueue queue) const {
    Arrived arrived;
    WGPUQueueWorkDoneCallbackInfo info{};
    info.mode = WGPUCallbackMode_AllowProcessEvents;
    info.userdata1 = &arrived;
    info.callback = [](WGPUQueueWorkDoneStatus status, WGPUStringView message, void* user, void*) {
      auto& result = *static_cast<Arrived*>(user);
      result.failed = status != WGPUQueueWorkDoneStatus_Success;
      result.message = detail::text_of(message);
      result.done = true;
    };
    wgpuQueueOnSubmittedWorkDone(queue, info);
    while (!arrived.done) pump_();
    if (arrived.failed) throw OperationError("running a program: " + arrived.message);
  }

  void read(const Download& each) {
    const WGPUBuffer buffer = staging_[each.argument].get();
    const Argument& argument = arguments_[each.argument];
    Arrived arrived;
    WGPUBufferMapCallbackInfo info{};
    info.mode = WGPUCallbackMode_AllowProcessEvents;
    info.userdata1 = &arrived;
    info.callback = [](WGPUMapAsyncStatus status, WGPUStringView message, void* user, void*) {
      auto& result = *static_cast<Arrived*>(user);
      result.failed = status != WGPUMapAsyncStatus_Success;
      result.message = detail::text_of(message);
      result.done = true;
    };
    wgpuBufferMapAsync(buffer, WGPUMapMode_Read, 0, argument.size, info);
    while (!arrived.done) pump_();
    if (arrived.failed)
      throw OperationError("reading argument '" + argument.name + "': " + arrived.message);
    std::memcpy(each.memory, wgpuBufferGetConstMappedRange(buffer, 0, argument.size),
                argument.bytes);
    wgpuBufferUnmap(buffer);
  }

  WGPUDevice device_;
  DeviceHandle owner_;
  detail::Pump pump_;
  std::vector<Argument> arguments_;
  detail::Variant variant_;
  std::vector<detail::Kernel> kernels_;
  std::map<std::size_t, detail::LayoutHandle> layouts_;
  std::map<std::size_t, detail::PipelineHandle> pipelines_;
  std::vector<detail::BufferHandle> buffers_;
  std::vector<detail::GroupHandle> fixed_;
  std::vector<detail::BufferHandle> io_;
  std::vector<detail::BufferHandle> staging_;
  std::vector<detail::Bound> bound_;
  std::vector<detail::BufferHandle> kept_;
};

}  // namespace webnn
