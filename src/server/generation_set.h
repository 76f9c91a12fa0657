#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "server/api_error.h"

namespace perigee::server {

// The generations that are under way, so that all can be ended with a word to their clients. Delivery thread
// only.
class GenerationSet {
 public:
  class Member {
   public:
    virtual ~Member() = default;
    // Ends it with an error for its client; it leaves the set.
    virtual void Fail(const ApiError& error) = 0;
  };

  // Not joined, but an error for its client, once the set is closed.
  std::optional<ApiError> Join(const std::shared_ptr<Member>& member) {
    if (!closed_) members_[member.get()] = member;
    return closed_;
  }
  void Leave(Member* member) { members_.erase(member); }

  // Fails all members, and from now on those that would join. Returns how many there were.
  size_t Close(const ApiError& error) {
    closed_ = error;
    const auto members = members_;  // they leave
    for (const auto& [key, weak] : members) {
      if (const auto member = weak.lock()) member->Fail(error);
    }
    return members.size();
  }

 private:
  std::map<Member*, std::weak_ptr<Member>> members_;
  std::optional<ApiError> closed_;
};

}  // namespace perigee::server
