#include "tensor/safetensors_json.h"

#include <cstddef>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/strings.h"

namespace perigee::internal {
namespace {

constexpr size_t kMaxRank = 16;

// What both readers share: the first error wins and stops the parser; every event is refused unless the
// reader accepts it.
class StrictSax {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit StrictSax(std::string where) : where_(std::move(where)) {}
  virtual ~StrictSax() = default;

  virtual bool null() { return Unexpected("null"); }
  virtual bool boolean(bool) { return Unexpected("true or false"); }
  virtual bool number_unsigned(number_unsigned_t v) { return Unexpected(StrCat(v)); }
  virtual bool number_integer(number_integer_t v) { return Unexpected(StrCat(v)); }
  virtual bool number_float(number_float_t, const string_t& text) { return Unexpected(Quoted(text, 40)); }
  virtual bool string(string_t& v) { return Unexpected(Quoted(v, 40)); }
  virtual bool binary(binary_t&) { return Unexpected("binary"); }
  virtual bool start_object(size_t) = 0;
  virtual bool key(string_t& name) = 0;
  virtual bool end_object() = 0;
  virtual bool start_array(size_t) { return Unexpected("a list"); }
  virtual bool end_array() { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(StrCat("not valid JSON near byte ", position));
  }

  const std::string& error() const { return error_; }

 protected:
  bool Fail(std::string_view what) {
    if (error_.empty()) error_ = StrCat(where_, ": ", what);
    return false;
  }
  // `found` stands where the format has something else.
  virtual bool Unexpected(std::string_view found) = 0;

 private:
  std::string where_;
  std::string error_;
};

Status RunSax(std::string_view json, StrictSax& sax, const std::string& where) {
  // The parser takes a NUL for the end of its input and would not look at what follows.
  if (json.find('\0') != std::string_view::npos)
    return InvalidArgument(StrCat(where, ": not valid JSON: holds a NUL byte"));
  try {
    if (nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) return Status::Ok();
  } catch (const std::exception& e) {
    return InvalidArgument(StrCat(where, ": not valid JSON: ", Quoted(e.what())));
  }
  return InvalidArgument(sax.error().empty() ? StrCat(where, ": not valid JSON") : sax.error());
}

class HeaderSax final : public StrictSax {
 public:
  explicit HeaderSax(const std::string& where) : StrictSax(StrCat(where, ": header")) {}

  std::vector<HeaderEntry> TakeEntries() { return std::move(entries_); }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && !metadata_) {
      place_ = Place::kEntry;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else if (place_ == Place::kTop) {
      place_ = Place::kMetadata;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(name).second) return Fail(StrCat("tensor ", Quoted(name), " is given twice"));
      metadata_ = name == "__metadata__";
      if (!metadata_) entries_.push_back({.name = name});
      return true;
    }
    if (place_ == Place::kMetadata) return true;
    field_ = name;
    bool* seen = name == "dtype"          ? &has_dtype_
                 : name == "shape"        ? &has_shape_
                 : name == "data_offsets" ? &has_offsets_
                                          : nullptr;
    if (seen == nullptr)
      return FailEntry(StrCat("unknown key ", Quoted(name), "; accepted are dtype, shape and data_offsets"));
    if (*seen) return FailEntry(StrCat(field_, " is given twice"));
    *seen = true;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    const bool entry = place_ == Place::kEntry;
    place_ = Place::kTop;
    if (!entry) return true;
    if (!has_dtype_) return FailEntry("has no dtype");
    if (!has_shape_) return FailEntry("has no shape");
    if (!has_offsets_) return FailEntry("has no data_offsets");
    return true;
  }

  bool string(string_t& v) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kEntry || field_ != "dtype") return Unexpected(Quoted(v, 40));
    entries_.back().dtype = v;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || field_ == "dtype") return Unexpected("a list");
    place_ = Place::kList;
    offsets_.clear();
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    if (field_ == "shape") return true;
    if (offsets_.size() != 2)
      return FailEntry(StrCat("data_offsets has ", offsets_.size(), " numbers, expected [begin, end]"));
    entries_.back().begin = offsets_[0];
    entries_.back().end = offsets_[1];
    return true;
  }

  bool number_unsigned(number_unsigned_t v) override {
    if (place_ != Place::kList) return Unexpected(StrCat(v));
    if (field_ == "data_offsets") {
      if (offsets_.size() == 2) return FailEntry("data_offsets has more than 2 numbers");
      offsets_.push_back(v);
      return true;
    }
    if (v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return FailEntry(StrCat("shape has a dimension of ", v));
    if (entries_.back().shape.size() == kMaxRank)
      return FailEntry(StrCat("shape has more than ", kMaxRank, " dimensions"));
    entries_.back().shape.push_back(static_cast<int64_t>(v));
    return true;
  }

 protected:
  bool Unexpected(std::string_view found) override {
    switch (place_) {
      case Place::kEntry:
      case Place::kList:
        return FailEntry(
            StrCat(field_.empty() ? std::string("entry") : field_, " holds ", found,
                   field_ == "dtype" ? ", expected a string" : ", expected a list of integers >= 0"));
      case Place::kMetadata:
        return Fail(StrCat("__metadata__ holds ", found, ", expected strings only"));
      case Place::kTop:
        if (metadata_) return Fail(StrCat("__metadata__ is ", found, ", expected an object"));
        return FailEntry(StrCat("is ", found, ", expected an object"));
      default:
        return Fail(StrCat("is ", found, ", expected an object"));
    }
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kList, kEnd };

  bool FailEntry(std::string_view what) {
    return Fail(StrCat("tensor ", Quoted(entries_.back().name), ": ", what));
  }

  Place place_ = Place::kStart;
  bool metadata_ = false;  // the key at the top level is __metadata__
  std::string field_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<uint64_t> offsets_;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
};

// Accepts {"metadata": anything, "weight_map": {name: file}}.
class IndexSax final : public StrictSax {
 public:
  using StrictSax::StrictSax;

  bool has_map() const { return has_map_; }
  std::map<std::string, std::string> TakeMap() { return std::move(map_); }

  bool start_object(size_t) override {
    if (depth_ == 1 && top_key_ == "weight_map") in_map_ = true;
    if (depth_ == 2 && in_map_) return Unexpected("an object");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (Strict()) return Unexpected("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      top_key_ = name;
      if (name != "weight_map") return true;
      if (has_map_) return Fail("weight_map is given twice");
      has_map_ = true;
    } else if (in_map_) {
      tensor_ = name;
      if (map_.contains(name)) return Fail(StrCat("tensor ", Quoted(name), " is given twice"));
    }
    return true;
  }
  bool string(string_t& file) override {
    if (!in_map_) return Strict() ? Unexpected(Quoted(file, 40)) : true;
    const bool plain = file.find('/') == std::string::npos && file.find('\0') == std::string::npos &&
                       file.ends_with(".safetensors");
    if (!plain) {
      return Fail(StrCat("tensor ", Quoted(tensor_), ": file ", Quoted(file),
                         ", expected the name of a .safetensors file of this folder"));
    }
    map_.emplace(tensor_, file);
    return true;
  }
  bool null() override { return Strict() ? Unexpected("null") : true; }
  bool boolean(bool) override { return Strict() ? Unexpected("true or false") : true; }
  bool number_unsigned(number_unsigned_t v) override { return Strict() ? Unexpected(StrCat(v)) : true; }
  bool number_integer(number_integer_t v) override { return Strict() ? Unexpected(StrCat(v)) : true; }
  bool number_float(number_float_t, const string_t& s) override {
    return Strict() ? Unexpected(Quoted(s, 40)) : true;
  }

 protected:
  bool Unexpected(std::string_view found) override {
    if (depth_ == 0) return Fail(StrCat("is ", found, ", expected an object with weight_map"));
    if (!in_map_) return Fail(StrCat("weight_map is ", found, ", expected an object"));
    return Fail(StrCat("tensor ", Quoted(tensor_), ": file is ", found, ", expected a string"));
  }

 private:
  // Where only one kind of value is right: the text as a whole and the map; the rest may hold anything.
  bool Strict() const { return depth_ == 0 || in_map_ || (depth_ == 1 && top_key_ == "weight_map"); }

  size_t depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
  std::string top_key_;
  std::string tensor_;
  std::map<std::string, std::string> map_;
};

}  // namespace

StatusOr<std::vector<HeaderEntry>> ParseHeaderJson(std::string_view json, const std::string& where) {
  HeaderSax sax(where);
  PERIGEE_RETURN_IF_ERROR(RunSax(json, sax, StrCat(where, ": header")));
  return sax.TakeEntries();
}

StatusOr<std::map<std::string, std::string>> ParseIndexJson(std::string_view json, const std::string& where) {
  IndexSax sax(where);
  PERIGEE_RETURN_IF_ERROR(RunSax(json, sax, where));
  if (!sax.has_map()) return InvalidArgument(StrCat(where, ": has no weight_map"));
  return sax.TakeMap();
}

}  // namespace perigee::internal
