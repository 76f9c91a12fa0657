#include "model/checkpoint_check.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/strings.h"

namespace perigee::model {
namespace {

std::vector<int64_t> WithoutOnes(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

bool ShapeMatches(const ExpectedTensor& expected, const StoredTensor& stored) {
  switch (expected.rule) {
    case ShapeRule::kExact:
      return stored.shape == expected.shape;
    case ShapeRule::kWithoutOnes:
      return WithoutOnes(stored.shape) == WithoutOnes(expected.shape);
    case ShapeRule::kElementCount:
      return stored.NumElements() == expected.NumElements();
  }
  return false;
}

std::string ExpectedShapeText(const ExpectedTensor& expected) {
  if (expected.rule == ShapeRule::kElementCount) return StrCat(expected.NumElements(), " elements");
  return ShapeString(expected.shape);
}

// One kind of problem: the text of the first and how many there are.
struct Problems {
  std::string first;
  int64_t count = 0;

  // `text` is called for the first one only: a wrong num_experts makes thousands.
  template <typename F>
  void Add(const F& text) {
    if (count++ == 0) first = text();
  }
};

Status Summary(const Problems& missing, const Problems& misshapen, const Problems& unexpected) {
  const int64_t total = missing.count + misshapen.count + unexpected.count;
  if (total == 0) return Status::Ok();
  std::string message = missing.count > 0     ? missing.first
                        : misshapen.count > 0 ? misshapen.first
                                              : unexpected.first;
  if (total > 1) {
    message += StrCat(" (", total, " problems in all: ", missing.count, " missing, ", misshapen.count,
                      " of wrong shape, ", unexpected.count, " unexpected)");
  }
  return InvalidArgument(std::move(message));
}

}  // namespace

int64_t ExpectedTensor::NumElements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

Status CheckCheckpoint(const Checkpoint& checkpoint, std::span<const ExpectedTensor> expected) {
  const auto folder = [&](const StoredTensor& tensor) {
    const std::string& source = checkpoint.source();
    return StrCat(std::string_view(source).substr(0, source.rfind('/') + 1), tensor.file);
  };
  Problems missing, misshapen, unexpected;
  std::set<std::string_view> names;
  for (const ExpectedTensor& want : expected) {
    names.insert(want.name);
    const StoredTensor* stored = checkpoint.Find(want.name);
    if (stored == nullptr) {
      missing.Add([&] {
        return StrCat(checkpoint.source(), ": tensor ", Quoted(want.name), " ", ExpectedShapeText(want),
                      " is missing");
      });
    } else if (!ShapeMatches(want, *stored)) {
      misshapen.Add([&] {
        return StrCat(folder(*stored), ": tensor ", Quoted(want.name), ": shape ", ShapeString(stored->shape),
                      ", expected ", ExpectedShapeText(want));
      });
    }
  }
  for (const auto& entry : checkpoint.tensors()) {
    // References of their own: clang 14 lets no lambda capture a structured binding.
    const std::string& name = entry.first;
    const StoredTensor& stored = entry.second;
    if (names.contains(name) || name.find(".rotary_emb.") != std::string::npos) continue;
    unexpected.Add([&] {
      return StrCat(folder(stored), ": tensor ", Quoted(name), " ", ShapeString(stored.shape),
                    " is not part of this model");
    });
  }
  return Summary(missing, misshapen, unexpected);
}

}  // namespace perigee::model
