#include "model/config_reader.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"

namespace perigee::model {
namespace {

constexpr size_t kMaxDepth = 16;

std::string DoubleText(double v) {
  std::string text = StrCat(v);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// Turns the parser's events into paths and leaves.
class FlattenSax {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  FlattenSax(std::string_view text, std::map<std::string, ConfigValue, std::less<>>& values)
      : text_(text), values_(values) {}
  const std::string& error() const { return error_; }

  bool null() { return Leaf({nullptr}); }
  bool boolean(bool v) { return Leaf({v}); }
  bool number_integer(number_integer_t v) { return Leaf({v}); }
  bool number_unsigned(number_unsigned_t v) {
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return Leaf({static_cast<double>(v)});
    return Leaf({static_cast<int64_t>(v)});
  }
  bool number_float(number_float_t v, const string_t&) { return Leaf({v}); }
  bool string(string_t& v) { return Leaf({v}); }
  bool binary(binary_t&) { return Fail("holds binary data"); }

  bool start_object(size_t) {
    if (!path_.empty() && list_depth_ == 0 && !Leaf({ConfigValue::Other{}})) return false;
    if (list_depth_ > 0) list_is_flat_ = false;
    if (path_.size() == kMaxDepth) return Fail(StrCat("is nested deeper than ", kMaxDepth, " levels"));
    path_.emplace_back();
    return true;
  }
  bool key(string_t& name) {
    path_.back() = name;
    return true;
  }
  bool end_object() {
    path_.pop_back();
    return true;
  }
  bool start_array(size_t) {
    if (path_.empty()) return Fail("is a list, expected an object");
    if (list_depth_ > 0) list_is_flat_ = false;
    if (list_depth_++ == 0) {
      list_.clear();
      list_is_flat_ = true;
    }
    if (list_depth_ > kMaxDepth) return Fail(StrCat("is nested deeper than ", kMaxDepth, " levels"));
    return true;
  }
  bool end_array() {
    if (--list_depth_ > 0) return true;
    if (!list_is_flat_) return Leaf({ConfigValue::Other{}});
    return Leaf({std::move(list_)});
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(StrCat("is not valid JSON at ", TextPosition(text_, position)));
  }

 private:
  bool Fail(std::string_view what) {
    if (error_.empty()) error_ = what;
    return false;
  }
  bool Leaf(ConfigValue value) {
    if (path_.empty()) return Fail("is no object");
    if (list_depth_ > 0) {
      if (list_is_flat_) list_.push_back(std::move(value));
      return true;
    }
    const std::string path = StrJoin(path_, ".");
    if (!values_.emplace(path, std::move(value)).second)
      return Fail(StrCat("gives the key ", Quoted(path), " twice"));
    return true;
  }

  const std::string_view text_;
  std::map<std::string, ConfigValue, std::less<>>& values_;
  std::vector<std::string> path_;
  size_t list_depth_ = 0;
  bool list_is_flat_ = true;
  ConfigValue::List list_;
  std::string error_;
};

std::string RangeText(int64_t min, int64_t max) {
  return StrCat("expected an integer from ", min, " to ", max);
}

}  // namespace

std::string ConfigValue::Text() const {
  struct Writer {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return StrCat(v); }
    std::string operator()(double v) const { return DoubleText(v); }
    std::string operator()(const std::string& v) const { return Quoted(v); }
    std::string operator()(const List& v) const {
      constexpr size_t kShown = 4;
      std::string out = "[";
      for (size_t i = 0; i < std::min(v.size(), kShown); ++i) out += (i > 0 ? ", " : "") + v[i].Text();
      return out + (v.size() > kShown ? StrCat(", ... ", v.size(), " in all]") : "]");
    }
    std::string operator()(Other) const { return "a nested value"; }
  };
  return std::visit(Writer{}, value);
}

bool operator==(const ConfigValue& a, const ConfigValue& b) {
  const auto number = [](const ConfigValue& v) -> std::optional<double> {
    if (const auto* i = std::get_if<int64_t>(&v.value)) return static_cast<double>(*i);
    if (const auto* d = std::get_if<double>(&v.value)) return *d;
    return std::nullopt;
  };
  if (a.value.index() != b.value.index()) {
    const std::optional<double> x = number(a), y = number(b);
    return x && y && *x == *y;
  }
  if (std::holds_alternative<ConfigValue::Other>(a.value)) return false;
  if (const auto* list = std::get_if<ConfigValue::List>(&a.value))
    return *list == std::get<ConfigValue::List>(b.value);
  if (const auto* text = std::get_if<std::string>(&a.value)) return *text == std::get<std::string>(b.value);
  if (const auto* flag = std::get_if<bool>(&a.value)) return *flag == std::get<bool>(b.value);
  if (const auto* integer = std::get_if<int64_t>(&a.value)) return *integer == std::get<int64_t>(b.value);
  if (const auto* real = std::get_if<double>(&a.value)) return *real == std::get<double>(b.value);
  return true;  // null
}

StatusOr<ConfigReader> ConfigReader::Parse(std::string_view json, std::string where) {
  // The parser takes a NUL for the end of its input and would not look at what follows.
  if (json.find('\0') != std::string_view::npos)
    return InvalidArgument(StrCat(where, ": is not valid JSON: holds a NUL byte"));
  ConfigReader reader(std::move(where));
  FlattenSax sax(json, reader.values_);
  try {
    if (nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) return reader;
  } catch (const std::exception& e) {
    return InvalidArgument(StrCat(reader.where_, ": is not valid JSON: ", Quoted(e.what())));
  }
  return InvalidArgument(StrCat(reader.where_, ": ", sax.error()));
}

void ConfigReader::Fail(std::string_view key, std::string_view what) {
  if (status_.ok()) status_ = InvalidArgument(StrCat(where_, ": ", key, ": ", what));
}

std::optional<ConfigReader::Found> ConfigReader::Find(const Names& names) {
  std::optional<Found> found;
  for (std::string_view name : names) {
    known_.emplace(name);
    const auto it = values_.find(name);
    if (it == values_.end() || it->second.IsNull()) continue;
    if (!found) {
      found = Found{it->first, &it->second};
    } else if (!(*found->value == it->second)) {
      Fail(found->key, StrCat("is ", found->value->Text(), ", but ", name, ", another name of the same, is ",
                              it->second.Text(), "; give one of them"));
    }
  }
  return found;
}

std::optional<ConfigReader::Found> ConfigReader::Require(const Names& names) {
  std::optional<Found> found = Find(names);
  if (!found) {
    const bool null = std::any_of(names.begin(), names.end(), [&](auto name) { return Has(name); });
    Fail(names.front(), null ? "is null, but the model needs it" : "is missing, but the model needs it");
  }
  return found;
}

void ConfigReader::WrongType(const Found& found, std::string_view accepted) {
  Fail(found.key, StrCat("is ", found.value->Text(), ", ", accepted));
}

int64_t ConfigReader::CheckedInt(std::string_view key, const ConfigValue& value, int64_t min, int64_t max) {
  const auto* v = std::get_if<int64_t>(&value.value);
  if (v == nullptr || *v < min || *v > max) {
    WrongType({key, &value}, RangeText(min, max));
    return min;
  }
  return *v;
}

int64_t ConfigReader::Int(const Names& names, int64_t min, int64_t max) {
  const std::optional<Found> found = Require(names);
  return found ? CheckedInt(found->key, *found->value, min, max) : min;
}

std::optional<int64_t> ConfigReader::OptionalInt(const Names& names, int64_t min, int64_t max) {
  const std::optional<Found> found = Find(names);
  if (!found) return std::nullopt;
  return CheckedInt(found->key, *found->value, min, max);
}

double ConfigReader::PositiveDouble(const Names& names, double max) {
  const std::optional<Found> found = Require(names);
  if (!found) return max;
  double v = std::numeric_limits<double>::quiet_NaN();
  if (const auto* real = std::get_if<double>(&found->value->value)) v = *real;
  if (const auto* integer = std::get_if<int64_t>(&found->value->value)) v = static_cast<double>(*integer);
  if (v > 0 && v <= max) return v;
  WrongType(*found, StrCat("expected a number above 0 and up to ", max));
  return max;
}

bool ConfigReader::Bool(const Names& names) {
  const std::optional<Found> found = Require(names);
  if (!found) return false;
  if (const auto* v = std::get_if<bool>(&found->value->value)) return *v;
  WrongType(*found, "expected true or false");
  return false;
}

std::string ConfigReader::String(const Names& names) {
  const std::optional<Found> found = Require(names);
  if (!found) return {};
  if (const auto* v = std::get_if<std::string>(&found->value->value)) return *v;
  WrongType(*found, "expected a string");
  return {};
}

std::vector<int64_t> ConfigReader::IntOrList(const Names& names, int64_t min, int64_t max) {
  const std::optional<Found> found = Find(names);
  if (!found) return {};
  if (std::holds_alternative<ConfigValue::List>(found->value->value))
    return OptionalIntList(names, min, max).value_or(std::vector<int64_t>{});
  return {CheckedInt(found->key, *found->value, min, max)};
}

std::optional<std::vector<int64_t>> ConfigReader::OptionalIntList(const Names& names, int64_t min,
                                                                  int64_t max) {
  const std::optional<Found> found = Find(names);
  if (!found) return std::nullopt;
  const auto* list = std::get_if<ConfigValue::List>(&found->value->value);
  if (list == nullptr) {
    WrongType(*found, "expected a list of integers");
    return std::nullopt;
  }
  std::vector<int64_t> out;
  out.reserve(list->size());
  for (const ConfigValue& v : *list) out.push_back(CheckedInt(found->key, v, min, max));
  return out;
}

std::optional<std::vector<std::string>> ConfigReader::OptionalStringList(const Names& names) {
  const std::optional<Found> found = Find(names);
  if (!found) return std::nullopt;
  const auto* list = std::get_if<ConfigValue::List>(&found->value->value);
  std::vector<std::string> out;
  bool strings = list != nullptr;
  if (strings) {
    for (const ConfigValue& v : *list) {
      const auto* text = std::get_if<std::string>(&v.value);
      strings = strings && text != nullptr;
      if (strings) out.push_back(*text);
    }
  }
  if (!strings) {
    WrongType(*found, "expected a list of strings");
    return std::nullopt;
  }
  return out;
}

void ConfigReader::RequireAbsentOr(std::string_view key, std::initializer_list<ConfigValue> accepted,
                                   std::string_view why) {
  const std::optional<Found> found = Find({key});
  if (!found) return;
  std::string list = "accepted: absent or null";
  for (const ConfigValue& v : accepted) {
    if (*found->value == v) return;
    list += StrCat(" or ", v.Text());
  }
  Fail(key, StrCat("is ", found->value->Text(), "; ", list, " (", why, ")"));
}

void ConfigReader::Ignore(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) ignored_.emplace(key);
}

std::vector<std::string> ConfigReader::UnknownKeys() const {
  // Whether some known key lies inside the object at `path`.
  const auto has_known_inside = [&](const std::string& path) {
    const auto it = known_.lower_bound(path + ".");
    return it != known_.end() && it->starts_with(path + ".");
  };
  std::vector<std::string> unknown;
  for (const auto& [path, value] : values_) {
    if (value.IsNull() || known_.contains(path) || has_known_inside(path)) continue;
    if (ignored_.contains(path.substr(0, path.find('.')))) continue;
    const size_t dot = path.rfind('.');
    // A key inside an object that is unknown as a whole is that object's matter.
    if (dot != std::string::npos && !has_known_inside(path.substr(0, dot))) continue;
    unknown.push_back(path);
  }
  return unknown;
}

}  // namespace perigee::model
