#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace perigee::model {

// A leaf of a JSON configuration. Lists hold scalars only; anything deeper is kOther (it can be named and
// refused, not read). Integers too large for 64 bits become doubles.
struct ConfigValue {
  struct Other {};
  using List = std::vector<ConfigValue>;
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Other> value;

  bool IsNull() const { return std::holds_alternative<std::nullptr_t>(value); }
  // As in a message: JSON text, cut to one short line.
  std::string Text() const;
};
bool operator==(const ConfigValue& a, const ConfigValue& b);

// Typed reading of one JSON object whose nested keys are written as paths ("linear_attn_config.head_dim").
// The first error sticks and later calls return harmless values, so that a parser reads straight down and
// asks status() at the end. A key may have aliases; when several are given they must agree. A null counts as
// absent. Every message reads "WHERE: key: what is wrong, what is accepted".
class ConfigReader {
 public:
  // The canonical name first, then its aliases.
  using Names = std::vector<std::string_view>;

  // `where` names the file in errors. Refused: text that is no JSON object, a key given twice.
  static StatusOr<ConfigReader> Parse(std::string_view json, std::string where);

  const Status& status() const { return status_; }
  void Fail(std::string_view key, std::string_view what);

  // A present value that is not null. Marks all the names as known.
  struct Found {
    std::string_view key;  // the spelling that the file uses
    const ConfigValue* value = nullptr;
  };
  std::optional<Found> Find(const Names& names);
  // The same, and an error when there is none.
  std::optional<Found> Require(const Names& names);
  bool Has(std::string_view key) const { return values_.contains(key); }

  int64_t Int(const Names& names, int64_t min, int64_t max);
  std::optional<int64_t> OptionalInt(const Names& names, int64_t min, int64_t max);
  double PositiveDouble(const Names& names, double max);
  bool Bool(const Names& names);
  std::string String(const Names& names);
  // One integer or a list of them; empty when absent.
  std::vector<int64_t> IntOrList(const Names& names, int64_t min, int64_t max);
  std::optional<std::vector<int64_t>> OptionalIntList(const Names& names, int64_t min, int64_t max);
  std::optional<std::vector<std::string>> OptionalStringList(const Names& names);

  // The key may be absent, null or one of `accepted`; anything else is an error that ends in `why`.
  void RequireAbsentOr(std::string_view key, std::initializer_list<ConfigValue> accepted,
                       std::string_view why);

  // Nothing at or under these keys of the top level matters to us.
  void Ignore(std::initializer_list<std::string_view> keys);
  // Keys that no call has named, shortest path that is unknown as a whole, sorted.
  std::vector<std::string> UnknownKeys() const;

 private:
  explicit ConfigReader(std::string where) : where_(std::move(where)) {}
  void WrongType(const Found& found, std::string_view accepted);
  int64_t CheckedInt(std::string_view key, const ConfigValue& value, int64_t min, int64_t max);

  std::string where_;
  std::map<std::string, ConfigValue, std::less<>> values_;
  std::set<std::string, std::less<>> known_;
  std::set<std::string, std::less<>> ignored_;
  Status status_;
};

}  // namespace perigee::model
