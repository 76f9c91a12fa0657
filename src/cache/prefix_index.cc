#include "cache/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace perigee::cache {

struct PrefixIndex::Node {
  Node* parent = nullptr;
  const Key* key = nullptr;  // in the parent's map
  std::map<Key, std::unique_ptr<Node>> children;
  int32_t block = -1;
  Origin origin = kPromptForm;
  int64_t holders = 0;  // sequences whose path goes through here
  uint64_t used = 0;

  int32_t snapshot = -1;
  Origin snapshot_origin = kPromptForm;
  int64_t pins = 0;
  bool reused = false;  // the snapshot was
  uint64_t snapshot_used = 0;
};

PrefixIndex::PrefixIndex(BlockAllocator& blocks, int64_t first_slot, int64_t num_snapshots)
    : blocks_(blocks),
      first_slot_(static_cast<int32_t>(first_slot)),
      slots_(num_snapshots),
      root_(std::make_unique<Node>()) {}

// One after another: a path is too long for destructors that call each other.
PrefixIndex::~PrefixIndex() {
  std::vector<std::unique_ptr<Node>> left;
  left.push_back(std::move(root_));
  while (!left.empty()) {
    const std::unique_ptr<Node> node = std::move(left.back());
    left.pop_back();
    for (auto& [key, child] : node->children) left.push_back(std::move(child));
  }
}

template <typename Accept>
PrefixIndex::Match PrefixIndex::Walk(std::span<const int32_t> tokens, Accept accept) const {
  Match match;
  const Node* node = root_.get();
  int64_t unheld = 0;
  bool mixed = false;
  Key key;
  for (int64_t end = kBlockTokens; end <= static_cast<int64_t>(tokens.size()); end += kBlockTokens) {
    std::copy_n(tokens.begin() + (end - kBlockTokens), kBlockTokens, key.begin());
    const auto child = node->children.find(key);
    if (child == node->children.end() || !accept(child->second->origin, end)) break;
    node = child->second.get();
    match.known = end;
    unheld += node->holders == 0 ? 1 : 0;
    mixed = mixed || node->origin != kPromptForm;
    if (node->snapshot < 0 || !accept(node->snapshot_origin, end)) continue;
    match.node = child->second.get();
    match.tokens = end;
    match.unheld = unheld;
    match.mixed = mixed || node->snapshot_origin != kPromptForm;
    match.snapshot = first_slot_ + node->snapshot;
  }
  return match;
}

PrefixIndex::Match PrefixIndex::Find(std::span<const int32_t> tokens) const {
  return Walk(tokens, [](Origin, int64_t) { return true; });
}

PrefixIndex::Match PrefixIndex::FindExact(std::span<const int32_t> tokens, int64_t prompt_size) const {
  return Walk(tokens, [prompt_size](Origin origin, int64_t end) {
    return origin == (end <= prompt_size ? kPromptForm : prompt_size);
  });
}

PrefixIndex::Hold PrefixIndex::Take(const Match& match, std::vector<int32_t>& blocks) {
  Hold hold{.node = match.node, .blocks = match.tokens / kBlockTokens};
  if (match.node == nullptr) return hold;
  std::vector<int32_t> path;
  for (Node* node = match.node; node != root_.get(); node = node->parent) {
    AddHolder(*node);
    blocks_.AddRef(node->block);
    path.push_back(node->block);
  }
  PERIGEE_CHECK(static_cast<int64_t>(path.size()) == hold.blocks);
  blocks.insert(blocks.end(), path.rbegin(), path.rend());
  Node& end = *match.node;
  if (end.pins++ == 0) snapshots_.erase({end.snapshot_used, &end});
  end.reused = true;
  end.snapshot_used = ++clock_;
  return hold;
}

void PrefixIndex::Unpin(Node& node) {
  PERIGEE_CHECK(node.pins > 0 && node.snapshot >= 0);
  if (--node.pins == 0) snapshots_.insert({node.snapshot_used, &node});
}

int32_t PrefixIndex::Descend(Hold& hold, std::span<const int32_t> tokens, int32_t block, Origin origin) {
  PERIGEE_CHECK(static_cast<int64_t>(tokens.size()) == kBlockTokens);
  Node& parent = hold.node == nullptr ? *root_ : *hold.node;
  Key key;
  std::copy_n(tokens.begin(), kBlockTokens, key.begin());
  const auto [entry, made] = parent.children.try_emplace(key);
  if (made) {
    entry->second = std::make_unique<Node>();
    Node& node = *entry->second;
    node.parent = &parent;
    node.key = &entry->first;
    node.block = block;
    node.origin = origin;
    node.holders = 1;
    blocks_.AddRef(block);
  } else {
    AddHolder(*entry->second);
  }
  Node& node = *entry->second;
  hold = {.node = &node, .blocks = hold.blocks + 1};
  if (node.block == block) return block;
  if (node.origin == origin && origin != kMixed) {
    blocks_.AddRef(node.block);
    blocks_.Release(block);
    return node.block;
  }
  if (origin == kPromptForm) {
    // The better one: what is reused from now on has the bits of a run without cache.
    blocks_.AddRef(block);
    blocks_.Release(node.block);
    node.block = block;
    node.origin = origin;
  }
  return block;
}

void PrefixIndex::Release(Hold& hold) {
  if (hold.node == nullptr) return;
  for (Node* node = hold.node; node != root_.get(); node = node->parent) DropHolder(*node);
  hold = {};
}

int64_t PrefixIndex::ReplaceOwn(const Hold& hold, std::span<const int32_t> blocks,
                                std::span<const Origin> origins) {
  if (hold.node == nullptr) return 0;
  int64_t replaced = 0;
  auto i = static_cast<size_t>(hold.blocks);
  for (Node* node = hold.node; node != root_.get(); node = node->parent) {
    --i;
    if (node->holders > 1 || node->block == blocks[i]) continue;
    blocks_.AddRef(blocks[i]);
    blocks_.Release(node->block);
    node->block = blocks[i];
    node->origin = origins[i];
    ++replaced;
  }
  return replaced;
}

std::optional<int32_t> PrefixIndex::ReserveSnapshot() {
  if (slots_.num_free() == 0) {
    if (snapshots_.empty()) return std::nullopt;
    DropSnapshot(*snapshots_.begin()->second);
    ++evicted_snapshots_;
  }
  return first_slot_ + *slots_.Allocate();
}

bool PrefixIndex::ReclaimSnapshot(Node& node, int32_t slot) {
  if (node.snapshot != slot - first_slot_ || node.pins > 0 || node.reused || node.children.size() > 1) {
    return false;
  }
  snapshots_.erase({node.snapshot_used, &node});
  node.snapshot = -1;
  return true;
}

bool PrefixIndex::Attach(Node& node, int32_t slot, Origin origin) {
  if (node.snapshot >= 0) {
    if (node.pins > 0 || origin != kPromptForm || node.snapshot_origin == kPromptForm) {
      Discard(slot);
      return false;
    }
    DropSnapshot(node);
  }
  node.snapshot = slot - first_slot_;
  PERIGEE_CHECK(slots_.in_use(node.snapshot));
  node.snapshot_origin = origin;
  node.reused = false;
  node.snapshot_used = ++clock_;
  snapshots_.insert({node.snapshot_used, &node});
  return true;
}

void PrefixIndex::Discard(int32_t slot) {
  slots_.Release(slot - first_slot_);
}

bool PrefixIndex::EvictBlock() {
  if (leaves_.empty()) return false;
  Node& node = *leaves_.begin()->second;
  ++evicted_blocks_;
  evicted_snapshots_ += node.snapshot >= 0 ? 1 : 0;
  Remove(node);
  return true;
}

void PrefixIndex::Flush() {
  while (!leaves_.empty()) Remove(*leaves_.begin()->second);
  while (!snapshots_.empty()) DropSnapshot(*snapshots_.begin()->second);
}

std::vector<int32_t> PrefixIndex::TakeFreedSlots() {
  std::vector<int32_t> slots = slots_.TakeFreed();
  for (int32_t& slot : slots) slot += first_slot_;
  return slots;
}

// A node that is held is not in the order; its time counts from when it is let go.
void PrefixIndex::AddHolder(Node& node) {
  if (node.holders++ > 0) return;
  --unheld_;
  if (node.children.empty()) leaves_.erase({node.used, &node});
}

void PrefixIndex::DropHolder(Node& node) {
  PERIGEE_CHECK(node.holders > 0);
  if (--node.holders > 0) return;
  node.used = ++clock_;
  ++unheld_;
  if (node.children.empty()) leaves_.insert({node.used, &node});
}

void PrefixIndex::DropSnapshot(Node& node) {
  PERIGEE_CHECK(node.snapshot >= 0 && node.pins == 0);
  snapshots_.erase({node.snapshot_used, &node});
  slots_.Release(node.snapshot);
  node.snapshot = -1;
}

void PrefixIndex::Remove(Node& node) {
  PERIGEE_CHECK(node.holders == 0 && node.children.empty());
  leaves_.erase({node.used, &node});
  --unheld_;
  if (node.snapshot >= 0) DropSnapshot(node);
  blocks_.Release(node.block);
  Node& parent = *node.parent;
  const Key key = *node.key;
  parent.children.erase(key);
  if (&parent != root_.get() && parent.children.empty() && parent.holders == 0) {
    leaves_.insert({parent.used, &parent});
  }
}

template <typename Visit>
void PrefixIndex::ForEach(Visit visit) const {
  std::vector<Node*> left = {root_.get()};
  while (!left.empty()) {
    Node* node = left.back();
    left.pop_back();
    if (node != root_.get()) visit(*node);
    for (const auto& [key, child] : node->children) left.push_back(child.get());
  }
}

std::vector<int32_t> PrefixIndex::Blocks() const {
  std::vector<int32_t> blocks;
  ForEach([&](const Node& node) { blocks.push_back(node.block); });
  return blocks;
}

void PrefixIndex::CheckInvariants(int64_t reserved) const {
  slots_.CheckInvariants();
  int64_t unheld = 0;
  size_t leaves = 0, unpinned = 0;
  int64_t snapshots = 0;
  std::vector<bool> taken(static_cast<size_t>(slots_.num_slots()), false);
  ForEach([&](Node& node) {
    PERIGEE_CHECK(blocks_.ref_count(node.block) > 0);
    PERIGEE_CHECK_MSG(node.parent == root_.get() || node.parent->holders >= node.holders,
                      "a path is held without its beginning");
    if (node.holders == 0) {
      ++unheld;
      PERIGEE_CHECK_MSG(blocks_.ref_count(node.block) == 1, "a block that nobody holds has other references");
      PERIGEE_CHECK(node.pins == 0);
      leaves += node.children.empty() ? 1 : 0;
      PERIGEE_CHECK(leaves_.contains({node.used, &node}) == node.children.empty());
    }
    PERIGEE_CHECK(node.pins == 0 || node.snapshot >= 0);
    if (node.snapshot < 0) return;
    PERIGEE_CHECK_MSG(slots_.in_use(node.snapshot), "a snapshot in a free slot");
    PERIGEE_CHECK_MSG(!taken[static_cast<size_t>(node.snapshot)], "a slot holds two snapshots");
    taken[static_cast<size_t>(node.snapshot)] = true;
    ++snapshots;
    unpinned += node.pins == 0 ? 1 : 0;
    PERIGEE_CHECK(snapshots_.contains({node.snapshot_used, &node}) == (node.pins == 0));
  });
  PERIGEE_CHECK(unheld == unheld_ && leaves == leaves_.size() && unpinned == snapshots_.size());
  PERIGEE_CHECK_MSG(snapshots + reserved == used_snapshots(), "a slot of a snapshot is lost");
}

}  // namespace perigee::cache
