#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

// The two JSON texts of a safetensors folder, read strictly and turned into plain data. Nothing here looks at
// the data section or the file system.
namespace perigee::internal {

// One entry of a file's header as written; only the JSON form has been checked.
struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  // each >= 0
  uint64_t begin = 0;          // data_offsets, relative to the end of the header
  uint64_t end = 0;
};

// `where` names the file in errors. Refused: anything but one object of entries with exactly dtype, shape and
// data_offsets (and a __metadata__ object of strings), numbers that are not integers >= 0, a name given
// twice.
StatusOr<std::vector<HeaderEntry>> ParseHeaderJson(std::string_view json, const std::string& where);

// model.safetensors.index.json: tensor name -> file name. A file name must be plain (no directory part) and
// end in .safetensors; a name given twice is an error.
StatusOr<std::map<std::string, std::string>> ParseIndexJson(std::string_view json, const std::string& where);

}  // namespace perigee::internal
